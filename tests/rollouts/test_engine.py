"""The rollout engine against a slow twin that runs one row at a time, from the start token, and drops nothing.

The policies choose their tokens by a softmax, except for one with a tree head: its branches may begin with a partial
walk down the tree.
"""

import copy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from corollout.errors import InputError, PolicyError
from corollout.noise import BRANCH, COPY, MAIN, Noise, race
from corollout.policies import RecurrentPolicy, TokenEncoder, TransformerPolicy, TreeHead
from corollout.rollouts import Engine, Mains
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.trees import huffman_tree
from corollout.types import Branches, Sampler, Sequences
from tests.support.enumeration import TablePolicy
from tests.support.head_reference import plain_walk

VOCAB, BOS, EOS, LENGTH = 6, 5, 0, 6
EVERYTHING = 10**6


@dataclass(frozen=True)
class Case:
    """A policy with contexts for it; in double precision, where rounding decides no draw."""

    policy: Any
    contexts: Tensor
    bos: int
    length: int

    def engine(self, **options: Any) -> Engine:
        return Engine(self.policy, bos=self.bos, eos=EOS, max_length=self.length, **options)

    def sample(self, engine: Engine, rows: Tensor, sampler: Sampler, noise: Noise) -> Mains:
        """Main trajectories of some contexts, whose ids are 3 × their index − 7."""
        with torch.no_grad():
            memory = self.policy.encode(self.contexts[rows])
        return engine.sample(memory, 3 * rows - 7, sampler, noise)

    @property
    def tree_head(self) -> TreeHead | None:
        head = getattr(self.policy, "head", None)
        return head if isinstance(head, TreeHead) else None

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Of all tokens."""
        return outputs.log_softmax(1) if self.tree_head is None else self.tree_head.all_log_probs(outputs)

    def draw(self, outputs: Tensor, start: int, key: Tensor, step: int, greedy: bool) -> int:
        """A token of one row; −1 − n starts at inner node n."""
        if self.tree_head is not None:
            return plain_walk(self.tree_head, outputs[0], ~start, key, step, greedy)[0]
        return int(outputs.argmax(1) if greedy else race(outputs, key[None], torch.tensor([step])))

    @torch.no_grad()
    def alone(self, context: int, prefix: list[int], key: Tensor, greedy: bool) -> list[int]:
        """The slow twin: one row, its whole prefix computed anew, then tokens up to the end."""
        state = self.policy.start(self.policy.encode(self.contexts[context : context + 1]))
        tokens = list(prefix)
        start = tokens.pop() if tokens and tokens[-1] < 0 else -1
        if tokens and (tokens[-1] == EOS or len(tokens) == self.length):
            return tokens
        for fed in [self.bos, *tokens[:-1]] if tokens else []:
            _, state = self.policy.step(state, torch.tensor([fed]))
        while True:
            outputs, state = self.policy.step(state, torch.tensor([tokens[-1] if tokens else self.bos]))
            tokens.append(self.draw(outputs, start, key, len(tokens), greedy))
            start = -1
            if tokens[-1] == EOS or len(tokens) == self.length:
                return tokens


def make_case(name: str) -> Case:
    torch.manual_seed(3)
    width = 5
    lengths = torch.randint(width + 1, (64, 1))
    contexts = torch.where(torch.arange(width) < lengths, torch.randint(7, (64, width)), -1)
    if name == "table":
        return Case(TablePolicy(vocab=5, length=5, seed=1), torch.zeros(64, dtype=torch.int64), bos=5, length=5)
    if name == "tree":
        tree = huffman_tree(np.array([9, 3, 14, 5, 1, 4]))
        policy = CaptionPolicy(VOCAB, width=3, embedding=4, hidden=8, dropout=0.0, tree=tree)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter *= 3
        return Case(policy.double(), torch.randn(64, 3).double(), bos=BOS, length=LENGTH)
    if name == "transformer":
        policy = TransformerPolicy(7, VOCAB, max_positions=16, width=8, heads=2, layers=2)
    else:
        encoder = TokenEncoder(7, 4)
        policy = RecurrentPolicy(encoder, encoder.width, VOCAB, hidden=8, layers=2, cell="lstm")
    with torch.no_grad():
        policy.output.weight *= 4  # so that the policy prefers something
    return Case(policy.double(), contexts, bos=BOS, length=LENGTH)


@pytest.fixture(scope="module", params=["table", "recurrent", "transformer", "tree"])
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


def rows_of(sequences: Sequences) -> list[list[int]]:
    """The sequences as lists, the end token included."""
    return [row[:n] for row, n in zip(sequences.tokens.tolist(), sequences.lengths.tolist(), strict=True)]


def all_branches(mains: Mains, vocab: int, copies: int = 1, greedy: bool = False) -> Branches:
    """Every token at every step of every main trajectory, in an order that has nothing to do with time.

    With a tree: some tokens, and partial walks to some inner nodes, the root and the last one among them.
    """
    parents, steps = mains.trajectories.mask.nonzero(as_tuple=True)
    tokens = range(vocab) if mains.trajectories.decisions is None else (1 - VOCAB, -3, -1, 0, 3)
    branches = Branches.join(
        *(
            Branches.of(parents, steps, torch.full_like(parents, token), greedy=greedy, copy=copy)
            for token in tokens
            for copy in range(copies)
        )
    )
    return branches.select(torch.randperm(len(branches), generator=torch.Generator().manual_seed(0)))


def prefixes_of(rows: list[list[int]], labels: list[Any], starts: list[int] | None = None) -> set[tuple[Any, ...]]:
    """What has to be computed: the distinct prefixes after which a token is chosen, from a row's start on."""
    starts = starts or [0] * len(rows)
    cases = zip(labels, rows, starts, strict=True)
    return {(label, *row[:t]) for label, row, start in cases for t in range(start, len(row))}


def assert_equal(a: Sequences, b: Sequences) -> None:
    assert torch.equal(a.tokens, b.tokens)
    assert torch.equal(a.lengths, b.lengths)
    assert torch.equal(a.finished, b.finished)


# Main trajectories


@pytest.mark.parametrize("mode", ["sample", "greedy"])
@pytest.mark.parametrize("count", [1, 3])
def test_main_trajectories_equal_those_of_the_slow_twin(case: Case, mode: Any, count: int):
    noise = Noise(11)
    mains = case.sample(case.engine(), torch.arange(12), Sampler(mode, count), noise)
    drawn = mains.trajectories
    assert drawn.contexts.tolist() == [c for c in range(12) for _ in range(count)]
    assert drawn.samples.tolist() == list(range(count)) * 12
    assert torch.equal(drawn.examples, 3 * drawn.contexts - 7)
    assert torch.equal(drawn.keys, noise.keys(drawn.examples, MAIN, drawn.samples))
    contexts = enumerate(drawn.contexts.tolist())
    expected = [case.alone(context, [], drawn.keys[row], mode == "greedy") for row, context in contexts]
    assert rows_of(drawn) == expected
    assert len({tuple(row) for row in expected}) > 1 or mode == "greedy"
    assert mains.tokens == len(prefixes_of(expected, drawn.contexts.tolist()))
    assert (mains.tokens < sum(map(len, expected))) == (count > 1)


def test_logits_are_those_that_the_tokens_were_chosen_from(case: Case):
    engine = case.engine()
    drawn = case.sample(engine, torch.arange(12), Sampler("sample", 2), Noise(1)).trajectories
    inputs = engine.score_inputs(drawn)
    assert bool((inputs[:, 0] == case.bos).all())
    assert torch.equal(inputs[:, 1:], drawn.tokens[:, :-1])
    with torch.no_grad():
        if isinstance(case.policy, TablePolicy):
            # The table has no row after its last token; such tokens are padding.
            scored = case.policy.table[case.policy.prefix_numbers(drawn.tokens).clamp(max=len(case.policy.table) - 1)]
        else:
            scored = case.policy.score(case.policy.encode(case.contexts[:12][drawn.contexts]), inputs)
        log_probs = case.log_probs(scored.flatten(0, 1)).unflatten(0, scored.shape[:2])
        scored = engine.head.logits(scored, drawn.tokens)
    torch.testing.assert_close(drawn.logits[drawn.mask], scored[drawn.mask])
    assert bool((drawn.logits[~drawn.mask] == 0).all())
    chosen = log_probs.gather(2, drawn.tokens[:, :, None]).squeeze(2)
    torch.testing.assert_close(drawn.log_probs, torch.where(drawn.mask, chosen, 0.0).sum(1))


@pytest.mark.parametrize("mode", ["sample", "beam", "set"])
def test_an_example_is_treated_alike_in_any_batch_and_order(case: Case, mode: Any):
    engine, noise, sampler = case.engine(), Noise(2), Sampler(mode, 3)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    drawn = case.sample(engine, torch.arange(64), sampler, noise).trajectories
    by_example: dict[int, list[list[int]]] = {}
    for example, row in zip(drawn.examples.tolist(), rows_of(drawn), strict=True):
        by_example.setdefault(example, []).append(row)
    for rows in (torch.arange(8), torch.arange(56, 64), order, order[:8], torch.tensor([5])):
        part = case.sample(engine, rows, sampler, noise).trajectories
        assert rows_of(part) == [row for index in rows.tolist() for row in by_example[3 * index - 7]]
    other = case.sample(engine, torch.arange(64), sampler, Noise(3)).trajectories
    assert (rows_of(other) == rows_of(drawn)) == (mode == "beam")


# Branches


@pytest.mark.parametrize(("share_noise", "some_own"), [(True, False), (True, True), (False, False)])
def test_completions_equal_those_of_the_slow_twin(case: Case, share_noise: bool, some_own: bool):
    noise, engine = Noise(5), case.engine(share_noise=share_noise)
    mains = case.sample(engine, torch.arange(4), Sampler("sample", 2), noise)
    parents = mains.trajectories
    branches = Branches.join(all_branches(mains, 5, copies=2), all_branches(mains, 5, greedy=True))
    if some_own:
        branches = replace(branches, own_noise=(branches.parent + branches.step + branches.copy) % 2 == 0)
    done = engine.complete(mains, branches, noise)
    expected = []
    for i in range(len(branches)):
        parent, step, token, copy = (int(x[i]) for x in (branches.parent, branches.step, branches.token, branches.copy))
        example, sample = parents.examples[parent : parent + 1], parents.samples[parent : parent + 1]
        if not share_noise or branches.own_noise[i]:
            key = noise.keys(example, BRANCH, sample, step, token, copy)[0]
        elif copy == 0:
            key = parents.keys[parent]
        else:
            key = noise.keys(example, COPY, sample, copy)[0]
        prefix = [*parents.tokens[parent, :step].tolist(), token]
        expected.append(case.alone(int(parents.contexts[parent]), prefix, key, bool(branches.greedy[i])))
    assert rows_of(done.sequences) == expected
    assert done.sequences.finished.tolist() == [row[-1] == EOS for row in expected]
    # Branches that leave one prefix with one token share what they have in common.
    steps = branches.step.tolist()
    starts = list(zip(parents.contexts[branches.parent].tolist(), steps, strict=True))
    assert done.tokens == len(prefixes_of(expected, starts, [step + 1 for step in steps])) < done.unshared
    assert done.unshared == sum(len(row) - step - 1 for row, step in zip(expected, steps, strict=True))
    assert len(branches) > 100


def test_a_branch_with_its_parents_token_is_its_parent(case: Case):
    engine, noise = case.engine(), Noise(6)
    mains = case.sample(engine, torch.arange(20), Sampler(), noise)
    parents = mains.trajectories
    row, step = parents.mask.nonzero(as_tuple=True)
    done = engine.complete(mains, Branches.of(row, step, parents.tokens[row, step]), noise)
    assert rows_of(done.sequences) == [rows_of(parents)[i] for i in row.tolist()]


@pytest.mark.parametrize("max_rows", [1, 7])
def test_a_bound_on_rows_changes_no_result(case: Case, max_rows: int):
    noise, rows = Noise(8), torch.arange(6)
    free, bound = case.engine(), case.engine(max_rows=max_rows)
    expected = case.sample(free, rows, Sampler("sample", 2), noise)
    mains = case.sample(bound, rows, Sampler("sample", 2), noise)
    assert_equal(mains.trajectories, expected.trajectories)
    torch.testing.assert_close(mains.trajectories.logits, expected.trajectories.logits)
    torch.testing.assert_close(mains.trajectories.log_probs, expected.trajectories.log_probs)
    most = int(mains.trajectories.lengths.sum())
    assert expected.tokens <= mains.tokens <= most  # contexts whose rows are apart share nothing
    assert max_rows > 1 or mains.tokens == most
    branches = Branches.join(all_branches(mains, 5), all_branches(mains, 5, greedy=True))
    done, wanted = bound.complete(mains, branches, noise), free.complete(expected, branches, noise)
    assert_equal(done.sequences, wanted.sequences)
    assert wanted.tokens <= done.tokens <= done.unshared == wanted.unshared
    assert max_rows > 1 or done.tokens == done.unshared


class Counting:
    """Counts the rows that a policy is asked to step, and refuses to continue after the end of a sequence."""

    def __init__(self, policy: Any, max_rows: int):
        self.policy, self.max_rows = policy, max_rows
        self.encode, self.start, self.score = policy.encode, policy.start, policy.score
        self.head = getattr(policy, "head", None)
        self.rows = self.calls = 0

    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
        assert 0 < len(tokens) <= self.max_rows
        assert not bool((tokens == EOS).any())
        self.rows += len(tokens)
        self.calls += 1
        return self.policy.step(state, tokens)


@pytest.mark.parametrize("max_rows", [5, EVERYTHING])
def test_no_row_is_stepped_after_its_end_and_no_prefix_twice(case: Case, max_rows: int):
    counting = Counting(case.policy, max_rows)
    engine = Engine(counting, bos=case.bos, eos=EOS, max_length=case.length, max_rows=max_rows)
    mains = case.sample(engine, torch.arange(30), Sampler(), Noise(9))
    assert counting.rows == mains.tokens == int(mains.trajectories.lengths.sum())
    assert int(mains.trajectories.lengths.min()) < case.length
    if max_rows == EVERYTHING:
        assert counting.calls == int(mains.trajectories.lengths.max())
    counting.rows = counting.calls = 0
    branches = all_branches(mains, 5)
    done = engine.complete(mains, branches, Noise(9))
    generated = done.sequences.lengths - branches.step - 1
    assert counting.rows == done.tokens == int(generated.sum())
    if max_rows == EVERYTHING:
        assert counting.calls < case.length


@pytest.mark.parametrize("mode", ["beam", "set"])
@pytest.mark.parametrize("max_rows", [3, EVERYTHING])
def test_a_search_counts_the_rows_that_it_steps(case: Case, mode: Any, max_rows: int):
    counting = Counting(case.policy, max_rows)
    engine = Engine(counting, bos=case.bos, eos=EOS, max_length=case.length, max_rows=max_rows)
    mains = case.sample(engine, torch.arange(4), Sampler(mode, 3), Noise(9))
    assert counting.rows == mains.tokens > 0


@pytest.mark.parametrize("mode", ["sample", "greedy", "beam", "set"])
@pytest.mark.parametrize("count", [0, 3])
def test_no_contexts_or_no_branches(case: Case, mode: Any, count: int):
    engine = case.engine()
    mains = case.sample(engine, torch.arange(count), Sampler(mode, 2), Noise(0))
    assert len(mains.trajectories.lists()) == len(mains.trajectories.log_probs) == 2 * count
    assert (mains.tokens == 0) == (count == 0)
    done = engine.complete(mains, Branches.none(torch.device("cpu")), Noise(0))
    assert (done.tokens, len(done.sequences.tokens), done.sequences.lists()) == (0, 0, [])


@pytest.mark.parametrize(
    ("step", "token", "message"),
    [
        *[(step, 1, "a step that its main trajectory does not have") for step in (-1, 99, None)],
        (0, -VOCAB, rf"a branch starts with token -{VOCAB}|a branch starts below inner node {VOCAB - 1}"),
    ],
)
def test_impossible_branches_are_refused(case: Case, step: int | None, token: int, message: str):
    engine = case.engine()
    mains = case.sample(engine, torch.arange(20), Sampler(), Noise(0))
    shortest = int(mains.trajectories.lengths.argmin())
    step = int(mains.trajectories.lengths[shortest]) if step is None else step
    branches = Branches.of(*(torch.tensor([0, x]) for x in (shortest, step, max(token, 0))))
    branches.token[1] = token
    with pytest.raises(InputError, match=message):
        engine.complete(mains, branches, Noise(0))


# What sequences are


def sample_table(banned: tuple[int, ...], sampler: Sampler, vocab: int = 4, length: int = 3, count: int = 5) -> Mains:
    """By a table policy some tokens of which are impossible."""
    policy = TablePolicy(vocab, length)
    with torch.no_grad():
        policy.table[:, list(banned)] = -torch.inf
    engine = Engine(policy, bos=vocab, eos=0, max_length=length)
    return engine.sample(torch.zeros(count, dtype=torch.int64), torch.arange(count), sampler, Noise(0))


@pytest.mark.parametrize("mode", ["sample", "greedy", "beam"])
def test_sequences_without_an_end_and_with_nothing_else(mode: Any):
    drawn = sample_table((0,), Sampler(mode, 2)).trajectories
    assert drawn.lengths.tolist() == [3] * 10
    assert not bool(drawn.finished.any())
    assert all(len(row) == 3 and 0 not in row for row in drawn.lists())
    mains = sample_table((1, 2, 3), Sampler(mode, 1))
    drawn = mains.trajectories
    assert (drawn.lists(), drawn.lengths.tolist(), drawn.tokens.shape) == ([[]] * 5, [1] * 5, (5, 1))
    assert bool(drawn.finished.all())
    assert (mains.tokens, drawn.log_probs.tolist()) == (5, [0.0] * 5)


def test_the_end_token_at_the_last_step_is_an_end():
    drawn = sample_table((), Sampler("sample", 200), vocab=3, length=2, count=1).trajectories
    assert {len(row) for row in drawn.lists()} == {0, 1, 2}
    for tokens, row, finished in zip(drawn.lists(), rows_of(drawn), drawn.finished.tolist(), strict=True):
        assert finished == (row[-1] == 0)
        assert tokens == (row[:-1] if finished else row)
        assert 0 not in tokens
    mains = sample_table((), Sampler("sample", 50), length=1, count=1)
    assert mains.trajectories.tokens.shape == (50, 1)
    assert mains.tokens == 1  # all are drawn from the same logits


def test_masked_tokens_are_never_generated():
    drawn = sample_table((2, 4), Sampler("sample", 500), vocab=5, length=4, count=1).trajectories
    assert set(drawn.tokens[drawn.mask].tolist()) == {0, 1, 3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_policies_of_any_precision(dtype: torch.dtype):
    policy = TablePolicy(5, 4, dtype=dtype)
    drawn = []
    for p in (policy, copy.deepcopy(policy).double()):
        engine = Engine(p, bos=5, eos=0, max_length=4)
        drawn.append(engine.sample(torch.zeros(5).long(), torch.arange(5), Sampler("sample", 4), Noise(0)).trajectories)
    assert drawn[0].logits.dtype == torch.float32  # only the model is in half precision
    assert rows_of(drawn[0]) == rows_of(drawn[1])


# Beams


@pytest.mark.parametrize("name", ["recurrent", "transformer", "tree"])
def test_a_large_beam_is_the_best_of_all_sequences(name: str):
    case = make_case(name)
    engine = Engine(case.policy, bos=BOS, eos=EOS, max_length=2)
    beam = case.sample(engine, torch.arange(3), Sampler("beam", 40), Noise(0)).trajectories
    sequences = [[EOS], *(list(pair) for pair in product(range(1, VOCAB), range(VOCAB)))]
    padded = torch.tensor([[*s, EOS][:2] for s in sequences])
    with torch.no_grad():
        for context in range(3):
            memory = case.policy.encode(case.contexts[context : context + 1].expand(len(sequences), -1))
            inputs = torch.cat([torch.full((len(padded), 1), BOS), padded[:, :1]], 1)
            outputs = case.policy.score(memory, inputs)
            log_p = case.log_probs(outputs.flatten(0, 1)).unflatten(0, padded.shape)
            log_p = log_p.gather(2, padded[:, :, None])[:, :, 0]
            value = log_p[:, 0] + torch.where(padded[:, 0] == EOS, 0.0, log_p[:, 1])
            order = value.argsort(descending=True)
            here = (beam.contexts == context).nonzero().squeeze(1)
            assert [rows_of(beam)[i] for i in here.tolist()] == [sequences[i] for i in order.tolist()]
            torch.testing.assert_close(beam.log_probs[here], value[order])


@pytest.mark.parametrize("name", ["table", "recurrent", "transformer"])
def test_a_beam_of_one_is_greedy_with_a_softmax(name: str):
    """With a tree it is not: the likelier half of the tokens need not contain the likeliest one."""
    case = make_case(name)
    beam, greedy = (
        case.sample(case.engine(), torch.arange(30), Sampler(mode, 1), Noise(0)) for mode in ("beam", "greedy")
    )
    assert_equal(beam.trajectories, greedy.trajectories)
    assert beam.tokens == greedy.tokens
    torch.testing.assert_close(beam.trajectories.log_probs, greedy.trajectories.log_probs)


# Policies that violate the protocol


class Clock:
    """Not a module. Counts steps for each row, never ends and never draws 3. Its logits for the second context are
    ``bad`` after a token 3, and at the step ``time``."""

    def __init__(self, bad: Tensor | None = None, time: int = 99):
        self.bad, self.time = bad, time

    def encode(self, context: Tensor) -> Tensor:
        return context

    def start(self, memory: Tensor) -> dict[str, Tensor]:
        return {"context": memory, "time": torch.zeros_like(memory)}

    def step(self, state: dict[str, Tensor], tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        logits = torch.zeros(len(tokens), 4)
        logits[:, [0, 3]] = -torch.inf
        if self.bad is not None:
            bad = (state["context"] == 1) & ((tokens == 3) | (state["time"] == self.time))
            logits[bad] = self.bad
        return logits, {"context": state["context"], "time": state["time"] + 1}

    def score(self, memory: Tensor, tokens: Tensor) -> Tensor:
        return torch.zeros(*tokens.shape, 4)


BAD = [
    torch.tensor([0.0, torch.nan, 0.0, 0.0]),
    torch.tensor([0.0, torch.inf, 0.0, 0.0]),
    torch.full((4,), -torch.inf),
]


def clock_engine(policy: Clock) -> tuple[Engine, Tensor, Tensor]:
    return Engine(policy, bos=4, eos=0, max_length=5), torch.arange(3), torch.tensor([10, 21, 32])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("time", [0, 3])
def test_logits_that_are_not_a_distribution_are_refused(bad: Tensor, time: int):
    engine, memory, examples = clock_engine(Clock(bad, time))
    for mode in ("sample", "greedy", "beam"):
        with pytest.raises(PolicyError, match=rf"NaN or \+inf, or masked every token, for example 21 at step {time}"):
            engine.sample(memory, examples, Sampler(mode, 2), Noise(0))
    engine, memory, examples = clock_engine(Clock(bad))
    mains = engine.sample(memory, examples, Sampler(), Noise(0))
    rows = torch.arange(3)
    branches = Branches.of(rows, torch.tensor([0, 2, 1]), torch.full_like(rows, 3))
    with pytest.raises(PolicyError, match="for example 21 at step 3"):
        engine.complete(mains, branches, Noise(0))


@pytest.mark.parametrize("shape", [(3,), (4, 4), (3, 1, 4)])
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
    engine, memory, examples = clock_engine(Clock())
    monkeypatch.setattr(engine.policy, "step", lambda state, tokens: (torch.zeros(shape), state), raising=True)
    with pytest.raises(PolicyError, match=r"policy.step returned logits of shape .* for 3 rows"):
        engine.sample(memory, examples, Sampler(), Noise(0))


@pytest.mark.parametrize("options", [{"bos": -1}, {"eos": -1}, {"max_length": 0}, {"max_rows": 0}])
def test_options_of_an_engine_that_are_refused(options: dict[str, int]):
    with pytest.raises(InputError, match="must be a whole number and at least"):
        Engine(Clock(), **{"bos": 4, "eos": 0, "max_length": 5, **options})  # pyright: ignore[reportArgumentType]


# Modes and graphs


def tensors_in(nest: Any) -> list[Tensor]:
    if isinstance(nest, Tensor):
        return [nest]
    values = nest.values() if isinstance(nest, dict) else vars(nest).values() if hasattr(nest, "__dict__") else nest
    return [tensor for value in values for tensor in tensors_in(value)]


@pytest.mark.parametrize("name", ["recurrent", "transformer"])
def test_dropout_is_off_and_there_is_no_graph(name: str):
    case = make_case(name)
    case.policy.train()
    for module in case.policy.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    memory = case.policy.encode(case.contexts[:10])
    assert any(tensor.requires_grad for tensor in tensors_in(memory))
    engine = case.engine()
    modes = [module.training for module in case.policy.modules()]
    runs = []
    for _ in range(2):
        mains = engine.sample(memory, torch.arange(10), Sampler(), Noise(1))
        done = engine.complete(mains, all_branches(mains, 5), Noise(1))
        beams = engine.sample(memory, torch.arange(10), Sampler("beam", 3), Noise(1))
        runs.append((mains, done, beams))
    (first, first_done, first_beams), (second, second_done, second_beams) = runs
    assert torch.equal(first.trajectories.logits, second.trajectories.logits)
    assert_equal(first_done.sequences, second_done.sequences)
    assert torch.equal(first_beams.trajectories.log_probs, second_beams.trajectories.log_probs)
    (prefix,) = first.prefixes
    sizes = (prefix.place.amax(0) + 1).tolist()[: first.trajectories.tokens.shape[1]]
    states = [prefix.states.at(t, torch.arange(size)) for t, size in enumerate(sizes)]
    states = tensors_in(states)
    assert len(states) > 5
    assert not any(tensor.requires_grad for tensor in [*states, first.trajectories.logits])
    assert [module.training for module in case.policy.modules()] == modes
    assert case.policy.training
