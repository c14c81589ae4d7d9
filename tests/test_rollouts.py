"""The rollout engine against a slow twin that runs one row at a time, from the start token, and drops nothing.

The policies choose their tokens by a softmax, but for one whose head is a tree; there, branches may begin with words
that are only begun.
"""

from dataclasses import dataclass
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
from tests.support.enumeration import Problem, TablePolicy
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
        """Main trajectories of some contexts, whose ids are 3 × their place − 7."""
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

    def draw(self, outputs: Tensor, begun: int, key: Tensor, step: int, greedy: bool) -> int:
        """A token of one row; −1 − n is one that is begun at inner node n."""
        if self.tree_head is not None:
            return plain_walk(self.tree_head, outputs[0], ~begun, key, step, greedy)[0]
        return int(outputs.argmax(1) if greedy else race(outputs, key[None], torch.tensor([step])))

    @torch.no_grad()
    def alone(self, context: int, prefix: list[int], key: Tensor, greedy: bool) -> list[int]:
        """The slow twin: one row, its whole prefix computed anew, then tokens up to the end."""
        state = self.policy.start(self.policy.encode(self.contexts[context : context + 1]))
        tokens = list(prefix)
        begun = tokens.pop() if tokens and tokens[-1] < 0 else -1
        if tokens and (tokens[-1] == EOS or len(tokens) == self.length):
            return tokens
        for fed in [self.bos, *tokens[:-1]] if tokens else []:
            _, state = self.policy.step(state, torch.tensor([fed]))
        while True:
            outputs, state = self.policy.step(state, torch.tensor([tokens[-1] if tokens else self.bos]))
            tokens.append(self.draw(outputs, begun, key, len(tokens), greedy))
            begun = -1
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

    With a tree: some tokens, and words that are begun at some inner nodes, the root and the last one among them.
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


def assert_equal(a: Sequences, b: Sequences) -> None:
    assert torch.equal(a.tokens, b.tokens)
    assert torch.equal(a.lengths, b.lengths)
    assert torch.equal(a.finished, b.finished)


# Main trajectories


@pytest.mark.parametrize("mode", ["sample", "greedy"])
@pytest.mark.parametrize("count", [1, 3])
def test_main_trajectories_equal_those_of_the_slow_twin(case: Case, mode: Any, count: int):
    noise = Noise(11)
    rows = torch.arange(12)
    mains = case.sample(case.engine(), rows, Sampler(mode, count), noise)
    found = mains.trajectories
    assert found.contexts.tolist() == [c for c in range(12) for _ in range(count)]
    assert found.samples.tolist() == list(range(count)) * 12
    assert torch.equal(found.examples, 3 * found.contexts - 7)
    assert torch.equal(found.keys, noise.keys(found.examples, MAIN, found.samples))
    expected = [
        case.alone(context, [], found.keys[row], mode == "greedy")
        for row, context in enumerate(found.contexts.tolist())
    ]
    assert rows_of(found) == expected
    assert len({tuple(row) for row in expected}) > 1 or mode == "greedy"
    assert mains.tokens == sum(map(len, expected))


def test_logits_are_those_that_the_tokens_were_chosen_from(case: Case):
    engine = case.engine()
    found = case.sample(engine, torch.arange(12), Sampler("sample", 2), Noise(1)).trajectories
    with torch.no_grad():
        memory = case.policy.encode(case.contexts[:12][found.contexts])
        if isinstance(case.policy, TablePolicy):
            # The table has no row behind its last token; such tokens are padding.
            inputs = case.policy.prefix_numbers(found.tokens).clamp(max=len(case.policy.table) - 1)
            scored = case.policy.table[inputs]
        else:
            scored = case.policy.score(memory, engine.score_inputs(found))
        log_probs = case.log_probs(scored.flatten(0, 1)).unflatten(0, scored.shape[:2])
        scored = engine.head.logits(scored, found.tokens)
    mask = found.mask
    torch.testing.assert_close(found.logits[mask], scored[mask])
    assert bool((found.logits[~mask] == 0).all())
    chosen = log_probs.gather(2, found.tokens[:, :, None]).squeeze(2)
    torch.testing.assert_close(found.log_probs, torch.where(mask, chosen, 0.0).sum(1))


def test_inputs_of_score_are_the_sequences_one_step_later(case: Case):
    engine = case.engine()
    found = case.sample(engine, torch.arange(12), Sampler(), Noise(1)).trajectories
    inputs = engine.score_inputs(found)
    assert inputs.shape == found.tokens.shape
    assert bool((inputs[:, 0] == case.bos).all())
    assert torch.equal(inputs[:, 1:], found.tokens[:, :-1])


@pytest.mark.parametrize("mode", ["sample", "beam"])
def test_an_example_is_treated_alike_in_any_batch_and_order(case: Case, mode: Any):
    engine, noise, sampler = case.engine(), Noise(2), Sampler(mode, 3)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    found = case.sample(engine, torch.arange(64), sampler, noise).trajectories
    by_example: dict[int, list[list[int]]] = {}
    for example, row in zip(found.examples.tolist(), rows_of(found), strict=True):
        by_example.setdefault(example, []).append(row)
    for rows in (torch.arange(8), torch.arange(56, 64), order, order[:8], torch.tensor([5])):
        part = case.sample(engine, rows, sampler, noise).trajectories
        assert rows_of(part) == [row for place in rows.tolist() for row in by_example[3 * place - 7]]


def test_other_noise_gives_other_trajectories(case: Case):
    a, b = (case.sample(case.engine(), torch.arange(30), Sampler(), Noise(seed)).trajectories for seed in (1, 2))
    assert rows_of(a) != rows_of(b)


# Branches


@pytest.mark.parametrize("share_noise", [True, False])
def test_completions_equal_those_of_the_slow_twin(case: Case, share_noise: bool):
    noise, engine = Noise(5), case.engine(share_noise=share_noise)
    mains = case.sample(engine, torch.arange(5), Sampler("sample", 2), noise)
    parents = mains.trajectories
    branches = Branches.join(all_branches(mains, 5, copies=3), all_branches(mains, 5, greedy=True))
    done = engine.complete(mains, branches, noise)
    expected = []
    for i in range(len(branches)):
        parent, step, token, copy = (int(x[i]) for x in (branches.parent, branches.step, branches.token, branches.copy))
        example, sample = parents.examples[parent : parent + 1], parents.samples[parent : parent + 1]
        if not share_noise:
            key = noise.keys(example, BRANCH, sample, step, token, copy)[0]
        elif copy == 0:
            key = parents.keys[parent]
        else:
            key = noise.keys(example, COPY, sample, copy)[0]
        prefix = [*parents.tokens[parent, :step].tolist(), token]
        expected.append(case.alone(int(parents.contexts[parent]), prefix, key, bool(branches.greedy[i])))
    assert rows_of(done.sequences) == expected
    assert done.sequences.finished.tolist() == [row[-1] == EOS for row in expected]
    own_steps = [len(row) - step - 1 for row, step in zip(expected, branches.step.tolist(), strict=True)]
    assert done.tokens == sum(own_steps)
    assert len(branches) > 150


def test_a_branch_that_does_what_its_parent_did_is_its_parent(case: Case):
    engine, noise = case.engine(), Noise(6)
    mains = case.sample(engine, torch.arange(20), Sampler(), noise)
    parents = mains.trajectories
    row, step = parents.mask.nonzero(as_tuple=True)
    done = engine.complete(mains, Branches.of(row, step, parents.tokens[row, step]), noise)
    assert rows_of(done.sequences) == [rows_of(parents)[i] for i in row.tolist()]


def test_copies_differ_and_do_not_repeat_the_parent(case: Case):
    for share_noise in (True, False):
        engine, noise = case.engine(share_noise=share_noise), Noise(7)
        mains = case.sample(engine, torch.arange(40), Sampler(), noise)
        first = torch.arange(40)
        token = torch.full_like(first, 1)
        rows = [
            rows_of(engine.complete(mains, Branches.of(first, 0 * first, token, copy=copy), noise).sequences)
            for copy in (0, 1, 2)
        ]
        assert rows[0] != rows[1] != rows[2] != rows[0]


@pytest.mark.parametrize("max_rows", [1, 3, 7, EVERYTHING])
def test_a_bound_on_rows_changes_no_result(case: Case, max_rows: int):
    noise, rows = Noise(8), torch.arange(9)
    free, bound = case.engine(), case.engine(max_rows=max_rows)
    expected = case.sample(free, rows, Sampler("sample", 2), noise)
    mains = case.sample(bound, rows, Sampler("sample", 2), noise)
    assert_equal(mains.trajectories, expected.trajectories)
    torch.testing.assert_close(mains.trajectories.logits, expected.trajectories.logits)
    torch.testing.assert_close(mains.trajectories.log_probs, expected.trajectories.log_probs)
    assert mains.tokens == expected.tokens
    branches = Branches.join(all_branches(mains, 5), all_branches(mains, 5, greedy=True))
    done, wanted = bound.complete(mains, branches, noise), free.complete(expected, branches, noise)
    assert_equal(done.sequences, wanted.sequences)
    assert done.tokens == wanted.tokens
    beams, wide = (case.sample(engine, rows, Sampler("beam", 4), noise) for engine in (bound, free))
    assert_equal(beams.trajectories, wide.trajectories)
    assert beams.tokens == wide.tokens


class Counting:
    """Counts the rows that a policy is asked to step, and refuses to go on after the end of a sequence."""

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


@pytest.mark.parametrize("max_rows", [3, EVERYTHING])
def test_a_beam_counts_the_rows_that_it_steps(case: Case, max_rows: int):
    counting = Counting(case.policy, max_rows)
    engine = Engine(counting, bos=case.bos, eos=EOS, max_length=case.length, max_rows=max_rows)
    mains = case.sample(engine, torch.arange(4), Sampler("beam", 3), Noise(9))
    assert counting.rows == mains.tokens > 0


def test_branches_that_are_complete_need_no_step(case: Case):
    counting = Counting(case.policy, EVERYTHING)
    engine = Engine(counting, bos=case.bos, eos=EOS, max_length=case.length)
    mains = case.sample(engine, torch.arange(60), Sampler(), Noise(10))
    parents = mains.trajectories
    counting.rows = 0
    # The end token at any step, and any token at the last possible one.
    row, step = parents.mask.nonzero(as_tuple=True)
    ends = Branches.of(row, step, torch.zeros_like(row))
    full = (parents.lengths == case.length).nonzero().squeeze(1)
    assert len(full) > 0
    last = Branches.of(full, torch.full_like(full, case.length - 1), torch.full_like(full, 3))
    done = engine.complete(mains, Branches.join(ends, last), Noise(10))
    assert counting.rows == done.tokens == 0
    prefixes = [rows_of(parents)[i][:t] for i, t in zip(row.tolist(), step.tolist(), strict=True)]
    assert rows_of(done.sequences)[: len(ends)] == [[*prefix, EOS] for prefix in prefixes]
    assert bool(done.sequences.finished[: len(ends)].all())
    tails = rows_of(done.sequences)[len(ends) :]
    assert tails == [[*rows_of(parents)[i][:-1], 3] for i in full.tolist()]
    assert not bool(done.sequences.finished[len(ends) :].any())


def test_there_may_be_no_branches(case: Case):
    engine = case.engine()
    mains = case.sample(engine, torch.arange(3), Sampler(), Noise(0))
    done = engine.complete(mains, Branches.none(torch.device("cpu")), Noise(0))
    assert done.tokens == 0
    assert done.sequences.lists() == []
    assert len(done.sequences.tokens) == 0


@pytest.mark.parametrize("mode", ["sample", "greedy", "beam"])
def test_there_may_be_no_contexts(case: Case, mode: Any):
    engine = case.engine()
    mains = case.sample(engine, torch.arange(0), Sampler(mode, 2), Noise(0))
    assert mains.tokens == 0
    assert mains.trajectories.lists() == []
    assert len(mains.trajectories.log_probs) == 0
    assert engine.complete(mains, Branches.none(torch.device("cpu")), Noise(0)).tokens == 0


@pytest.mark.parametrize(
    ("step", "token", "message"),
    [
        (-1, 1, "a branch starts at a step which its main trajectory does not have"),
        (99, 1, "a branch starts at a step which its main trajectory does not have"),
        (None, 1, "a branch starts at a step which its main trajectory does not have"),
        (
            0,
            -VOCAB,
            rf"a branch starts with token -{VOCAB}: tokens are|a word was begun at inner node {VOCAB - 1}, but",
        ),
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


class Fixed(TablePolicy):
    """A table policy some tokens of which are impossible, or certain."""

    def __init__(self, vocab: int, length: int, banned: tuple[int, ...]):
        super().__init__(vocab, length)
        with torch.no_grad():
            self.table[:, list(banned)] = -torch.inf


def sample_fixed(policy: TablePolicy, sampler: Sampler, count: int = 5) -> Mains:
    engine = Engine(policy, bos=policy.vocab, eos=0, max_length=policy.length)
    return engine.sample(torch.zeros(count, dtype=torch.int64), torch.arange(count), sampler, Noise(0))


@pytest.mark.parametrize("mode", ["sample", "greedy", "beam"])
def test_a_sequence_without_an_end_is_cut(mode: Any):
    found = sample_fixed(Fixed(4, 3, banned=(0,)), Sampler(mode, 2)).trajectories
    assert found.lengths.tolist() == [3] * 10
    assert not bool(found.finished.any())
    assert all(len(row) == 3 and 0 not in row for row in found.lists())


@pytest.mark.parametrize("mode", ["sample", "greedy", "beam"])
def test_a_sequence_may_end_at_once(mode: Any):
    mains = sample_fixed(Fixed(4, 3, banned=(1, 2, 3)), Sampler(mode, 1))
    found = mains.trajectories
    assert found.lengths.tolist() == [1] * 5
    assert bool(found.finished.all())
    assert found.lists() == [[]] * 5
    assert found.tokens.shape == (5, 1)
    assert mains.tokens == 5
    assert found.log_probs.tolist() == [0.0] * 5


def test_the_end_token_at_the_last_step_is_an_end():
    found = sample_fixed(TablePolicy(3, 2), Sampler("sample", 200), count=1).trajectories
    last = found.tokens[:, -1] == 0
    full = found.lengths == 2
    assert torch.equal(found.finished[full], last[full])
    assert bool(found.finished[~full].all())
    assert {len(row) for row in found.lists()} == {0, 1, 2}
    for words, row, done in zip(found.lists(), rows_of(found), found.finished.tolist(), strict=True):
        assert words == (row[:-1] if done else row)
        assert 0 not in words


def test_a_sequence_may_have_one_step_only():
    mains = sample_fixed(TablePolicy(4, 1), Sampler("sample", 50), count=1)
    assert mains.trajectories.tokens.shape == (50, 1)
    assert len(mains.trajectories.tokens.unique()) > 1
    assert mains.tokens == 50


def test_masked_tokens_are_never_generated():
    found = sample_fixed(Fixed(5, 4, banned=(2, 4)), Sampler("sample", 500), count=1).trajectories
    assert set(found.tokens[found.mask].tolist()) == {0, 1, 3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_policies_of_any_precision_can_be_sampled(dtype: torch.dtype):
    policy = TablePolicy(5, 4, dtype=dtype)
    mains = sample_fixed(policy, Sampler("sample", 4))
    assert mains.trajectories.logits.dtype == torch.float32  # half precision is only the model's
    exact = sample_fixed(policy.double(), Sampler("sample", 4))
    assert rows_of(mains.trajectories) == rows_of(exact.trajectories)


# Beams


def log_probability(problem: Problem, sequence: tuple[int, ...]) -> float:
    tokens = torch.tensor([sequence])
    with torch.no_grad():
        log_p = problem.policy.table[problem.policy.prefix_numbers(tokens)[0]].log_softmax(1)
        return float(log_p[torch.arange(len(sequence)), tokens[0]].sum())


# With S = 7 every prefix of V = 3 and T = 3 fits; there are 15 sequences.
@pytest.mark.parametrize("size", [7, 9, 14, 15, 16, 100])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("max_rows", [1, EVERYTHING])
def test_a_large_beam_is_the_best_of_all_sequences(size: int, masked: bool, max_rows: int):
    for seed in range(4):
        problem = Problem.make(vocab=3, length=3, scale=2.0, seed=seed, masked=masked)
        best = sorted(((log_probability(problem, s), s) for s in problem.rewards), reverse=True)
        best = [(value, s) for value, s in best[:size] if value > -torch.inf]
        engine = problem.engine(max_rows=max_rows)
        found = engine.sample(torch.zeros(2).long(), torch.tensor([4, 9]), Sampler("beam", size), Noise(0)).trajectories
        assert rows_of(found) == 2 * [list(s) for _, s in best]
        torch.testing.assert_close(found.log_probs, torch.tensor(2 * [value for value, _ in best]).double())
        assert found.contexts.tolist() == [0] * len(best) + [1] * len(best)
        assert found.examples.tolist() == [4] * len(best) + [9] * len(best)
        assert found.samples.tolist() == 2 * list(range(len(best)))
        assert found.finished.tolist() == 2 * [s[-1] == 0 for _, s in best]


@pytest.mark.parametrize("name", ["recurrent", "transformer", "tree"])
def test_a_large_beam_of_a_network_is_the_best_of_all_sequences(name: str):
    case = make_case(name)
    engine = Engine(case.policy, bos=BOS, eos=EOS, max_length=2)
    found = case.sample(engine, torch.arange(3), Sampler("beam", 40), Noise(0)).trajectories
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
            here = (found.contexts == context).nonzero().squeeze(1)
            assert [rows_of(found)[i] for i in here.tolist()] == [sequences[i] for i in order.tolist()]
            torch.testing.assert_close(found.log_probs[here], value[order])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_narrow_beam_is_ordered_and_without_repetition(case: Case, size: int):
    found = case.sample(case.engine(), torch.arange(10), Sampler("beam", size), Noise(0)).trajectories
    for context in range(10):
        here = found.contexts == context
        assert int(here.sum()) == size
        assert bool((found.log_probs[here].diff() <= 0).all())
        assert found.samples[here].tolist() == list(range(size))
    rows = {(c, *row) for c, row in zip(found.contexts.tolist(), rows_of(found), strict=True)}
    assert len(rows) == 10 * size


def test_a_narrow_beam_equals_a_slow_twin(case: Case):
    """Prefixes of one context in a plain list, the best S of those that ended and those that went on."""
    size = 3
    found = case.sample(case.engine(), torch.arange(6), Sampler("beam", size), Noise(0)).trajectories
    for context in range(6):
        alive: list[tuple[float, list[int]]] = [(0.0, [])]
        ended: list[tuple[float, list[int]]] = []
        while alive:
            pool = [(value, tokens, True) for value, tokens in ended]
            for value, tokens in alive:
                with torch.no_grad():
                    state = case.policy.start(case.policy.encode(case.contexts[context : context + 1]))
                    outputs = torch.zeros(1, 1)
                    for fed in [case.bos, *tokens]:
                        outputs, state = case.policy.step(state, torch.tensor([fed]))
                for token, log_p in enumerate(case.log_probs(outputs)[0].tolist()):
                    over = token == EOS or len(tokens) + 1 == case.length
                    pool.append((value + log_p, [*tokens, token], over))
            pool = sorted(pool, key=lambda item: -item[0])[:size]
            ended = [(value, tokens) for value, tokens, over in pool if over]
            alive = [(value, tokens) for value, tokens, over in pool if not over]
        here = (found.contexts == context).nonzero().squeeze(1).tolist()
        assert [rows_of(found)[i] for i in here] == [tokens for _, tokens in ended]
        torch.testing.assert_close(found.log_probs[here], torch.tensor([value for value, _ in ended]).double())


@pytest.mark.parametrize("name", ["table", "recurrent", "transformer"])
def test_a_beam_of_one_is_greedy_with_a_softmax(name: str):
    """With a tree it is not: the likelier half of the tokens need not have the likeliest one."""
    case = make_case(name)
    beam, greedy = (
        case.sample(case.engine(), torch.arange(30), Sampler(mode, 1), Noise(0)) for mode in ("beam", "greedy")
    )
    assert_equal(beam.trajectories, greedy.trajectories)
    assert beam.tokens == greedy.tokens
    torch.testing.assert_close(beam.trajectories.log_probs, greedy.trajectories.log_probs)


# Policies that do not keep the protocol


class Clock:
    """Not a module. Counts time for each row; never ends by itself, and never says 3. What its logits become for the
    second context, once a token 3 was fed or the time has come, is a test's choice."""

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
@pytest.mark.parametrize("mode", ["sample", "greedy", "beam"])
@pytest.mark.parametrize("time", [0, 3])
def test_logits_that_are_no_distribution_are_refused(bad: Tensor, mode: Any, time: int):
    engine, memory, examples = clock_engine(Clock(bad, time))
    message = rf"policy.step returned NaN or \+inf, or masked every token, for example 21 at step {time}"
    with pytest.raises(PolicyError, match=message):
        engine.sample(memory, examples, Sampler(mode, 2), Noise(0))


@pytest.mark.parametrize("bad", BAD)
def test_bad_logits_of_a_branch_are_refused(bad: Tensor):
    engine, memory, examples = clock_engine(Clock(bad))
    mains = engine.sample(memory, examples, Sampler(), Noise(0))
    assert mains.tokens == 15
    rows = torch.arange(3)
    branches = Branches.of(rows, torch.tensor([0, 2, 1]), torch.full_like(rows, 3))
    with pytest.raises(PolicyError, match="for example 21 at step 3"):
        engine.complete(mains, branches, Noise(0))


@pytest.mark.parametrize("shape", [(3,), (4, 4), (3, 1, 4)])
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
    engine, memory, examples = clock_engine(Clock())
    monkeypatch.setattr(engine.policy, "step", lambda state, tokens: (torch.zeros(shape), state), raising=True)
    listed = ", ".join(map(str, shape))
    message = rf"policy.step returned logits of shape \[{listed}\] for 3 rows; it must return \[rows, V\]"
    with pytest.raises(PolicyError, match=message):
        engine.sample(memory, examples, Sampler(), Noise(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bos": -1}, "the engine needs bos ≥ 0, not -1"),
        ({"eos": -1}, "the engine needs eos ≥ 0, not -1"),
        ({"max_length": 0}, "the engine needs max_length ≥ 1, not 0"),
        ({"max_rows": 0}, "the engine needs max_rows ≥ 1, not 0"),
    ],
)
def test_an_engine_that_could_not_work_is_refused(options: dict[str, int], message: str):
    good: dict[str, Any] = {"bos": 4, "eos": 0, "max_length": 5}
    with pytest.raises(InputError, match=message):
        Engine(Clock(), **{**good, **options})


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
    states = [tensor for prefix in first.prefixes for tensor in tensors_in(prefix.states)]
    assert len(states) > 5
    assert not any(tensor.requires_grad for tensor in [*states, first.trajectories.logits])
    assert [module.training for module in case.policy.modules()] == modes
    assert case.policy.training
