"""The grammar allows a token if and only if the program can still be completed in time."""

from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from corollout.data import Columns
from corollout.errors import InputError
from corollout.noise import Noise
from corollout.policies import score_by_steps, select
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grammar import LONGEST, SHORTEST, Grammar
from corollout.tasks.karel.language import ACTIONS, COUNTS, END, ID, START, TESTS, TOKENS, check
from corollout.tasks.karel.metrics import SolvesTask
from corollout.tasks.karel.model import KarelPolicy
from corollout.tasks.karel.settings import ModelSettings
from corollout.tasks.karel.task import KarelTask, karel_split
from corollout.training.estimates import estimate
from corollout.training.mle import MLETrainer
from corollout.types import Sampler
from tests.support.karel_strategies import programs

STOP = TOKENS[END]
SIDE = 6
SIZES = {"side": SIDE, "channels": 2, "blocks": 0, "pair_width": 6, "token_width": 5, "hidden": 4}
# Tokens that the grammar does not tell apart, by one of them.
ALIKE = {"move": ACTIONS, "frontIsClear": TESTS, "R=3": COUNTS}


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


@settings(max_examples=30, deadline=None)
@given(programs.filter(lambda tokens: len(tokens) < LONGEST), st.integers(0, 12))
def test_every_program_that_fits_is_allowed(program, more):
    """The converse, that whatever is allowed leads to a program, is the next test."""
    (found,) = masks([program], min(max(len(program) + 1 + more, SHORTEST), LONGEST))
    assert all(token in allowed for token, allowed in zip([*program, STOP], found, strict=True))


def random_walk(max_length: int, rows: int, weights: dict[str, float], seed: int) -> Tensor:
    """Tokens that are drawn among the allowed ones by their weight, 1 unless given."""
    weight = torch.tensor([weights.get(token, 1.0) for token in TOKENS])
    grammar, generator = Grammar(max_length), torch.Generator().manual_seed(seed)
    state, tokens = grammar.start(rows), torch.full((rows,), START)
    drawn = []
    for _ in range(max_length):
        state = grammar.advance(state, tokens)
        allowed = grammar.allowed(state)
        assert allowed.any(1).all()
        tokens = (allowed * weight).multinomial(1, generator=generator)[:, 0]
        drawn.append(tokens)
    return torch.stack(drawn, 1)


@pytest.mark.parametrize("max_length", [6, 7, 10, 11, 12, 16, 23, 48, 64, LONGEST])
@pytest.mark.parametrize(
    "weights",
    [
        *({}, {"REPEAT": 1e6}, {"IFELSE": 1e6}, {"WHILE": 1e3, "not": 1e6}),
        {"IF": 1e3, "IFELSE": 1e3, "REPEAT": 1e3, "WHILE": 1e3, "not": 0.1},
    ],
)
def test_whatever_is_allowed_leads_to_a_program(max_length, weights):
    for row in random_walk(max_length, 40, weights, max_length).tolist():
        length = row.index(END)
        assert check(row[:length]) is None
        assert set(row[length:]) == {END}


def test_the_longest_program_has_the_deepest_nest():
    row = random_walk(LONGEST, 1, {"REPEAT": 1e9}, 0)[0].tolist()
    assert row.count(ID["REPEAT"]) == 21
    assert row.index(ID["r)"]) - 1 == 3 + 3 * 21  # all of them inside one another
    assert row.index(END) >= LONGEST - 4
    for max_length in (0, SHORTEST - 1, LONGEST + 1):
        with pytest.raises(InputError, match="maximal length"):
            Grammar(max_length)


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


@pytest.fixture(scope="module")
def data() -> KarelData:
    return generate({"train": 6}, shortest=5, longest=9, largest=SIDE - 2, workers=1)["train"]


@pytest.fixture(scope="module")
def columns(data: KarelData) -> Columns:
    return karel_split(data).columns


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
    assert torch.equal(ours, plain.masked_fill(~Grammar(20).allowed_after(inputs), -torch.inf))


@pytest.mark.parametrize("estimator", ["arsm", "mc-2", "rloo-4", "sc", "rl-beam-4", "set-4", "vine-1", "pairs"])
def test_every_estimator_works(columns: Columns, estimator: str):
    def total(sequences: list[list[int]]) -> list[float]:
        return [float(sum(sequence)) for sequence in sequences]

    engine = make(11)
    done = estimate(engine, columns.batch(range(4)), total, estimator, Noise(1), check_score=True)
    assert all(check(tokens) is None for tokens in done.trajectories.lists() + done.completed.lists())
    assert done.completed.finished.all()
    assert done.gradient.isfinite().all()
    assert not done.gradient[done.logits == -torch.inf].any()
    done.backward()
    for parameter in engine.policy.parameters():  # pyright: ignore[reportAttributeAccessIssue]
        assert parameter.grad is not None
        assert (bool(parameter.grad.isfinite().all()), bool(parameter.grad.any())) == (True, True)


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
    sizes = ModelSettings(SIDE - 2, channels=2, blocks=0, pair_width=6, embedding=5, hidden=4, max_length=9)
    for model, expected in ((replace(sizes, max_length=10, grammar=True), 10), (sizes, None)):
        task = KarelTask(tmp_path, model)
        assert len(task.train) == 6
        assert getattr(task.engine().policy.grammar, "max_length", None) == expected  # pyright: ignore[reportAttributeAccessIssue]
    longest = data.lengths.max()
    with pytest.raises(InputError, match=f"a program of {longest} tokens.* set it to {longest + 1} or"):
        KarelTask(tmp_path, replace(sizes, grammar=True)).split("train")
