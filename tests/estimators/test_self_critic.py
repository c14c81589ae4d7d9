"""The baseline of SC: one greedy sequence for each context, against greedy decoding."""

from collections import Counter

import pytest
import torch

from corollout.estimators import make_estimator
from corollout.noise import Noise
from corollout.rollouts import Mains
from corollout.types import Sampler, Sequences
from tests.support.policy_cases import PolicyCase, policy_case


def rows_of(sequences: Sequences) -> list[list[int]]:
    return [row[:n] for row, n in zip(sequences.tokens.tolist(), sequences.lengths.tolist(), strict=True)]


def decided_case(name: str) -> PolicyCase:
    """A policy that often follows the greedy path for some steps, and sometimes to its end."""
    case = policy_case(name)
    with torch.no_grad():
        layer = case.policy.head.weight if case.policy.head is not None else case.policy.output
        layer.mul_(8)
    return case


def drawn(case: PolicyCase, samples: int, reads: str, seed: int) -> Mains:
    with torch.no_grad():
        memory = case.policy.encode(case.context)
    sampler = Sampler("sample", samples)
    return case.engine().sample(memory, case.batch.examples, sampler, Noise(seed), reads)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["captions", "captions by a tree"])
@pytest.mark.parametrize("samples", [1, 2, 5])
def test_the_greedy_sequence_of_a_context_is_completed_at_most_once(name: str, samples: int):
    case, estimator = decided_case(name), make_estimator("sc", samples=samples)
    engine = case.engine()
    greedy = engine.decode(case.context, case.batch.examples, Sampler("greedy"), Noise(0)).trajectories
    greedy_rows = rows_of(greedy)
    kinds: Counter[bool] = Counter()
    late = 0
    for seed in range(8):
        mains = drawn(case, samples, "greedy", seed)
        mains_drawn = mains.trajectories
        plan = estimator.plan(mains_drawn, Noise(seed))
        parents = mains_drawn.contexts[plan.branches.parent].tolist()
        assert len(set(parents)) == len(parents)
        sources = rows_of(mains_drawn) + rows_of(engine.complete(mains, plan.branches, Noise(seed)).sequences)
        # Every baseline is the greedy sequence of the row's context.
        for row, minus in zip(plan.row.tolist(), plan.minus.tolist(), strict=True):  # pyright: ignore[reportAttributeAccessIssue]
            assert sources[minus] == greedy_rows[int(mains_drawn.contexts[row])]
        # There is a branch exactly if no sample is the greedy sequence; it starts where the last one leaves it.
        for context, expected in enumerate(greedy_rows):
            rows = [rows_of(mains_drawn)[row] for row in (mains_drawn.contexts == context).nonzero().flatten().tolist()]
            kinds[expected in rows] += 1
            assert (context in parents) == (expected not in rows)
            if context in parents:
                common = [
                    next(t for t, (a, b) in enumerate(zip(row, expected, strict=False)) if a != b) for row in rows
                ]
                step = int(plan.branches.step[parents.index(context)])
                assert step == max(common)
                late += step > min(common)
    assert kinds[True] > 1
    assert kinds[False] > 1
    assert (late > 0) == (samples > 1)


@pytest.mark.parametrize("samples", [1, 3])
def test_greedy_tokens_and_logits_give_the_same_plan(samples: int):
    case, estimator = decided_case("captions"), make_estimator("sc", samples=samples)
    by_tokens, by_logits = (
        estimator.plan(drawn(case, samples, reads, 1).trajectories, Noise(1)) for reads in ("greedy", "logits")
    )
    for name in ("parent", "step", "token", "greedy"):
        assert torch.equal(getattr(by_tokens.branches, name), getattr(by_logits.branches, name)), name
    assert torch.equal(by_tokens.minus, by_logits.minus)  # pyright: ignore[reportAttributeAccessIssue]
    assert bool(by_tokens.branches.greedy.all())
    assert len(by_tokens.branches) > 0
