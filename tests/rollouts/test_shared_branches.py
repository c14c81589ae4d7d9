"""Branches that begin alike are computed once, against branches that are completed one by one."""

from typing import Any

import pytest
import torch

from corollout.noise import Noise
from corollout.rollouts import Mains
from corollout.types import Branches, Sampler, Sequences
from tests.support.policy_cases import PolicyCase, policy_case

NOISE = Noise(7)


def rows_of(sequences: Sequences) -> list[list[int]]:
    return [row[:n] for row, n in zip(sequences.tokens.tolist(), sequences.lengths.tolist(), strict=True)]


CASES = ["captions by a tree", "lstm", *(pytest.param(n, marks=pytest.mark.prove) for n in ("karel", "transformer"))]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> PolicyCase:
    return policy_case(request.param)


def sample(case: PolicyCase, count: int, **options: Any) -> Mains:
    batch = case.batch
    return case.engine(**options).decode(batch.context, batch.examples, Sampler("sample", count), NOISE)


def some_branches(case: PolicyCase, mains: Mains, copies: int) -> Branches:
    """From steps 0 to 2 of every main trajectory, with its own token and with another sample's, drawn and greedy."""
    drawn = mains.trajectories
    parents, steps = drawn.mask[:, :3].nonzero(as_tuple=True)
    other = drawn.tokens[parents - drawn.samples[parents], steps]  # that of the context's first sample
    parts = [Branches.of(parents, steps, drawn.tokens[parents, steps], copy=copy) for copy in range(copies)]
    parts.append(Branches.of(parents, steps, other, greedy=True))
    if drawn.decisions is not None:
        parts.append(Branches.of(parents, steps, torch.full_like(parents, -1)))  # any token, by a walk from the root
    branches = Branches.join(*parts)
    return branches.select(torch.randperm(len(branches), generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize(("count", "copies"), [(1, 3), (3, 2)])
@pytest.mark.parametrize("share_noise", [True, False])
def test_shared_branches_are_those_that_are_completed_one_by_one(
    case: PolicyCase, count: int, copies: int, share_noise: bool
):
    engine, mains = case.engine(share_noise=share_noise), sample(case, count)
    branches = some_branches(case, mains, copies)
    done = engine.complete(mains, branches, NOISE)
    some = torch.arange(0, len(branches), 17)
    alone = [engine.complete(mains, branches.select(some[i : i + 1]), NOISE) for i in range(len(some))]
    together = rows_of(done.sequences)
    assert [together[i] for i in some.tolist()] == [rows_of(one.sequences)[0] for one in alone]
    assert [one.tokens for one in alone] == [one.unshared for one in alone]
    # What was computed: the distinct prefixes of branches that start at the same step.
    contexts = mains.trajectories.contexts[branches.parent].tolist()
    starts = list(zip(contexts, branches.step.tolist(), together, strict=True))
    fed = {(context, step, *row[:t]) for context, step, row in starts for t in range(step + 1, len(row))}
    assert done.tokens == len(fed) < done.unshared
    assert done.unshared == sum(len(row) - 1 - step for _, step, row in starts)


@pytest.mark.parametrize("max_rows", [1, 7])
def test_a_bound_on_rows_shares_less_but_changes_no_sequence(case: PolicyCase, max_rows: int):
    free, bound = sample(case, 3), sample(case, 3, max_rows=max_rows)
    assert torch.equal(bound.trajectories.tokens, free.trajectories.tokens)
    branches = some_branches(case, free, 2)
    branches = branches.select(torch.arange(0, len(branches), 5))
    expected = case.engine().complete(free, branches, NOISE)
    done = case.engine(max_rows=max_rows).complete(bound, branches, NOISE)
    assert rows_of(done.sequences) == rows_of(expected.sequences)
    assert expected.tokens < done.tokens <= done.unshared
    assert done.unshared == expected.unshared
    assert (done.tokens == done.unshared) == (max_rows == 1)


def test_branches_that_met_may_all_differ_later(case: PolicyCase):
    """Two copies of each branch of the first step of the first context: they share one prefix, then nothing."""
    engine, mains = case.engine(share_noise=False), sample(case, 1)
    parent = torch.arange(len(mains.trajectories.tokens)).repeat(2)
    tokens = mains.trajectories.tokens[parent, 0]
    copies = torch.arange(2).repeat_interleave(len(parent) // 2)
    zeros = torch.zeros_like(parent)
    every = Branches(parent.flip(0), zeros, tokens.flip(0), copies.flip(0), zeros.bool(), zeros.bool())
    done = rows_of(engine.complete(mains, every, NOISE).sequences)
    alone = [engine.complete(mains, every.select(torch.tensor([i])), NOISE) for i in range(len(every))]
    assert done == [rows_of(one.sequences)[0] for one in alone]


def test_branches_that_begin_differently_share_nothing(case: PolicyCase):
    mains = sample(case, 1)
    parents, steps = mains.trajectories.mask.nonzero(as_tuple=True)
    done = case.engine().complete(mains, Branches.of(parents, steps, mains.trajectories.tokens[parents, steps]), NOISE)
    assert done.tokens == done.unshared > 0
