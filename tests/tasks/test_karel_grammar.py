"""The grammar mask allows a token exactly if the program can still be ended in time, and so samples nothing else."""

from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from corollout.data import Columns
from corollout.errors import InputError
from corollout.noise import Noise
from corollout.policies import concat, score_by_steps, select
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grammar import LONGEST, SHORTEST, Grammar
from corollout.tasks.karel.language import ACTIONS, COUNTS, END, ID, START, TESTS, TOKENS, check
from corollout.tasks.karel.metrics import SolvesTask
from corollout.tasks.karel.model import KarelPolicy
from corollout.tasks.karel.settings import ModelSettings
from corollout.tasks.karel.task import KarelTask, karel_columns
from corollout.training.estimate import estimate
from corollout.training.mle import MLETrainer
from corollout.types import Sampler
from tests.support.karel_strategies import programs

STOP = TOKENS[END]
SIDE = 6
SIZES = {"side": SIDE, "channels": 2, "blocks": 0, "pair_width": 6, "token_width": 5, "hidden": 4}
# Tokens that the grammar does not tell apart, by one of them.
ALIKE = {"move": ACTIONS, "frontIsClear": TESTS, "R=3": COUNTS}
SINGLE = [token for token in TOKENS if token in ALIKE or not any(token in tokens for tokens in ALIKE.values())]


def masks(sequences: list[list[str]], max_length: int) -> list[list[set[str]]]:
    """What may follow each beginning of each sequence, the empty one included."""
    width = max(map(len, sequences))
    ids = [[START, *(ID[token] for token in sequence), *[END] * (width - len(sequence))] for sequence in sequences]
    allowed = Grammar(max_length).allowed_after(torch.tensor(ids))
    return [
        [{TOKENS[token] for token in allowed[row, step].nonzero()[:, 0].tolist()} for step in range(len(sequence) + 1)]
        for row, sequence in enumerate(sequences)
    ]


def spread(tokens: set[str]) -> set[str]:
    """The tokens with all that are like them."""
    return {like for token in tokens for like in ALIKE.get(token, (token,))}


# --- which tokens ---------------------------------------------------------------------------------------------------


def bodies(size: int, known: dict[int, list[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Every block of exactly so many tokens, up to tokens that are alike."""
    if size not in known:
        firsts = [(first, size - len(first)) for length in range(1, size + 1) for first in statements(length, known)]
        known[size] = [first + rest for first, left in firsts for rest in ([()] if left == 0 else bodies(left, known))]
    return known[size]


def statements(size: int, known: dict[int, list[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [("move",)] if size == 1 else []
    if size >= 5:
        found += [("REPEAT", "R=3", "r(", *body, "r)") for body in bodies(size - 4, known)]
    for negations in range(size // 3):
        condition = ("c(", *("not", "c(") * negations, "frontIsClear", *("c)",) * (negations + 1))
        left = size - len(condition) - 3
        if left >= 1:
            for keyword, opens, closes in (("WHILE", "w(", "w)"), ("IF", "i(", "i)")):
                found += [(keyword, *condition, opens, *body, closes) for body in bodies(left, known)]
        for then in range(1, left - 3):
            for body, other in product(bodies(then, known), bodies(left - 3 - then, known)):
                found.append(("IFELSE", *condition, "i(", *body, "i)", "ELSE", "e(", *other, "e)"))
    return found


@pytest.mark.parametrize("max_length", range(SHORTEST, 21))
def test_every_beginning_of_every_short_program(max_length):
    known: dict[int, list[tuple[str, ...]]] = {}
    every = [["DEF", "run", "m(", *body, "m)"] for size in range(1, max_length - 4) for body in bodies(size, known)]
    assert all(check(program) is None for program in every)
    following: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for program in every:
        for length, token in enumerate([*program, STOP]):
            following[tuple(program[:length])].add(token)
    for program, found in zip(every, masks(every, max_length), strict=True):
        for length, tokens in enumerate(found):
            assert tokens == spread(following[tuple(program[:length])]), program[:length]


def can_begin(tokens: list[str]) -> bool:
    """Whether a program can begin so, by the parser: nothing is wrong but that it is not there yet."""
    error = check(tokens)
    return error is None or error.position == len(tokens)


def shortest_end(tokens: list[str]) -> int:
    """How many tokens end a program soonest: whatever closes, before whatever must be there, and nothing else."""
    tokens = list(tokens)
    start = len(tokens)
    while check(tokens) is not None:
        order = ["m)", "r)", "w)", "i)", "e)", "c)", "ELSE", "e(", "frontIsClear", "move"]
        order += ["R=3", "DEF", "run", "m(", "c(", "r(", "w(", "i("]
        tokens.append(next(token for token in order if can_begin([*tokens, token])))
    return len(tokens) - start + 1


@settings(max_examples=8, deadline=None)
@given(programs.filter(lambda tokens: len(tokens) <= 40), st.integers(0, 12))
def test_every_beginning_of_a_random_program(program, more):
    max_length = len(program) + 1 + more
    (found,) = masks([program], max_length)
    for length, tokens in enumerate(found):
        before = program[:length]
        if length == len(program):
            wanted = {STOP}
        else:
            begins = [token for token in SINGLE if can_begin([*before, token])]
            wanted = {token for token in begins if length + 1 + shortest_end([*before, token]) <= max_length}
        assert tokens == spread(wanted), before


def random_walk(max_length: int, rows: int, weight: Tensor, seed: int) -> Tensor:
    """Tokens that are drawn among the allowed ones by their weight."""
    grammar, generator = Grammar(max_length), torch.Generator().manual_seed(seed)
    place, tokens = grammar.start(rows), torch.full((rows,), START)
    drawn = []
    for _ in range(max_length):
        place = grammar.advance(place, tokens)
        allowed = grammar.allowed(place)
        assert allowed.any(1).all()
        tokens = (allowed * weight).multinomial(1, generator=generator)[:, 0]
        drawn.append(tokens)
    return torch.stack(drawn, 1)


def weights(**chosen: float) -> Tensor:
    weight = torch.ones(len(TOKENS))
    for token, value in chosen.items():
        weight[ID[token]] = value
    return weight


@pytest.mark.parametrize("max_length", [6, 7, 10, 11, 12, 16, 23, 48, 64, LONGEST])
@pytest.mark.parametrize(
    "weight",
    [
        weights(),
        weights(REPEAT=1e6),
        weights(IFELSE=1e6),
        weights(WHILE=1e3, **{"not": 1e6}),
        weights(IF=1e3, IFELSE=1e3, REPEAT=1e3, WHILE=1e3, **{"not": 0.1}),
    ],
    ids=["any", "repeats", "ifelses", "nots", "blocks"],
)
def test_whatever_is_allowed_leads_to_a_program(max_length, weight):
    for row in random_walk(max_length, 40, weight, max_length).tolist():
        length = row.index(END)
        assert check(row[:length]) is None
        assert set(row[length:]) == {END}


def test_the_longest_program_has_the_deepest_nest():
    row = random_walk(LONGEST, 1, weights(REPEAT=1e9), 0)[0].tolist()
    assert row.count(ID["REPEAT"]) == 21
    assert row.index(ID["r)"]) - 1 == 3 + 3 * 21  # all of them inside one another
    assert row.index(END) >= LONGEST - 4


def test_a_row_that_left_the_grammar_is_free():
    grammar = Grammar(20)
    ids = [[START, ID["DEF"], ID["DEF"], ID["run"]], [START, ID["DEF"], ID["run"], ID["m("]]]
    allowed = grammar.allowed_after(torch.tensor(ids))
    assert allowed[0, :2].sum(1).tolist() == [1, 1]
    assert allowed[0, 2:].all()
    assert allowed[1].sum(1).tolist() == [1, 1, 1, len(ACTIONS) + 4]
    room = Grammar(9)  # not enough for REPEAT R=3 r( move r)
    ids = [START, *(ID[token] for token in ("DEF", "run", "m(", "REPEAT", "R=3"))]
    assert room.allowed_after(torch.tensor([ids]))[0].sum(1).tolist() == [1, 1, 1, len(ACTIONS), 53, 53]


@pytest.mark.parametrize("max_length", [0, SHORTEST - 1, LONGEST + 1])
def test_lengths_that_cannot_be(max_length):
    with pytest.raises(InputError, match="maximal length"):
        Grammar(max_length)


# --- in the network -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> KarelData:
    return generate({"train": 6}, shortest=5, longest=9, largest=SIDE - 2, workers=1)["train"]


@pytest.fixture(scope="module")
def columns(data: KarelData) -> Columns:
    return karel_columns(data)


def make(max_length: int, *, grammar: bool = True, dtype: torch.dtype = torch.float64) -> Engine:
    torch.manual_seed(1)
    policy = KarelPolicy(**SIZES, grammar=grammar, max_length=max_length).to(dtype)
    for parameter in policy.parameters():
        nn.init.normal_(parameter)
    return Engine(policy, bos=START, eos=END, max_length=max_length)


@pytest.mark.parametrize("max_length", [6, 9, 14, 26, 64])
def test_every_sequence_is_a_program_that_ends(columns: Columns, max_length: int):
    engine = make(max_length, dtype=torch.float32)
    batch = columns.batch(range(6))
    with torch.no_grad():
        memory = engine.policy.encode(batch.context)
    for sampler in (Sampler("sample", 30), Sampler("greedy"), Sampler("beam", 8)):
        found = engine.sample(memory, batch.examples, sampler, Noise(0)).trajectories
        assert found.finished.all()
        assert all(check(tokens) is None for tokens in found.lists())
        assert found.log_probs.isfinite().all()


@torch.no_grad()
def test_steps_and_scores_agree(columns: Columns):
    """On sampled programs, and on sequences of any tokens."""
    engine = make(20)
    policy = engine.policy
    memory = select(policy.encode(columns.batch(range(6)).context), torch.arange(6).repeat_interleave(4))
    found = engine.sample(memory, torch.arange(24), Sampler(), Noise(3)).trajectories
    noise = torch.randint(len(TOKENS), (24, 9), generator=torch.Generator().manual_seed(0))
    for inputs in (engine.score_inputs(found), torch.cat([torch.full_like(noise[:, :1], START), noise], 1)):
        torch.testing.assert_close(policy.score(memory, inputs), score_by_steps(policy, memory, inputs))
    scored = policy.score(memory, engine.score_inputs(found))
    torch.testing.assert_close(scored[found.mask], found.logits[found.mask])


@torch.no_grad()
def test_what_is_allowed_has_the_logits_it_has_without_the_grammar(columns: Columns):
    masked, free = make(20), make(20, grammar=False)
    assert masked.policy.state_dict().keys() == free.policy.state_dict().keys()  # pyright: ignore[reportAttributeAccessIssue]
    context = columns.batch(range(6)).context
    found = masked.sample(masked.policy.encode(context), torch.arange(6), Sampler(), Noise(3)).trajectories
    inputs = masked.score_inputs(found)
    ours, plain = (engine.policy.score(engine.policy.encode(context), inputs) for engine in (masked, free))
    allowed = Grammar(20).allowed_after(inputs)
    assert torch.equal(ours, plain.masked_fill(~allowed, -torch.inf))


@torch.no_grad()
def test_rows_may_be_cut_and_joined_at_any_step(columns: Columns):
    engine = make(12)
    policy = engine.policy
    memory = policy.encode(columns.batch(range(6)).context)
    found = engine.sample(memory, torch.arange(6), Sampler(), Noise(5)).trajectories
    drawn = engine.score_inputs(found)
    whole, state, rows = policy.score(memory, drawn), policy.start(memory), torch.arange(6)
    for t in range(drawn.shape[1]):
        logits, state = policy.step(state, drawn[rows, t])
        torch.testing.assert_close(logits, whole[rows, t])
        order = torch.randperm(6, generator=torch.Generator().manual_seed(t))
        rows, state = rows[order], concat([select(state, part) for part in order.split(2)])


def total(sequences: list[list[int]]) -> list[float]:
    return [float(sum(sequence)) for sequence in sequences]


@pytest.mark.parametrize(
    "estimator", ["arsm", "ars-5", "mc-2", "rloo-4", "sc", "rl-beam-4", "set-4", "vine-1", "pairs"]
)
def test_every_estimator_works(columns: Columns, estimator: str):
    engine = make(11)
    done = estimate(engine, columns.batch(range(4)), total, estimator, Noise(1), check_score=True)
    assert all(check(tokens) is None for tokens in done.trajectories.lists() + done.completed.lists())
    assert done.completed.finished.all()
    assert done.gradient.isfinite().all()
    assert not done.gradient[done.logits == -torch.inf].any()
    done.backward()
    for parameter in engine.policy.parameters():  # pyright: ignore[reportAttributeAccessIssue]
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_programs_can_be_taught(data: KarelData, columns: Columns):
    engine = make(11, dtype=torch.float32)
    optimizer = torch.optim.Adam(engine.policy.parameters(), 0.02)  # pyright: ignore[reportAttributeAccessIssue]
    losses = [metrics.loss for metrics in MLETrainer(engine, columns, optimizer, batch_size=6).run(updates=20)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    done = estimate(engine, columns.batch(range(6)), Reward(SolvesTask(data)), "arsm", Noise(1))
    assert done.rewards.isfinite().all()


def test_the_setting_reaches_the_policy(data: KarelData, tmp_path: Path):
    data.write(tmp_path / "train.jsonl")
    sizes: dict[str, Any] = {
        "largest_world": SIDE - 2,
        "channels": 2,
        "blocks": 0,
        "pair_width": 6,
        "embedding": 5,
        "hidden": 4,
    }
    task = KarelTask(tmp_path, ModelSettings(**sizes, max_length=10, grammar=True))
    policy = task.engine().policy
    assert isinstance(policy, KarelPolicy)
    assert policy.grammar is not None
    assert policy.grammar.max_length == 10
    assert len(task.train) == 6
    short = KarelTask(tmp_path, ModelSettings(**sizes, max_length=9, grammar=True))
    with pytest.raises(
        InputError, match=f"a program of {data.lengths.max()} tokens.* set it to {data.lengths.max() + 1} or"
    ):
        short.split("train")
    free = KarelTask(tmp_path, ModelSettings(**sizes, max_length=9))
    assert len(free.train) == 6
    free_policy = free.engine().policy
    assert isinstance(free_policy, KarelPolicy)
    assert free_policy.grammar is None
