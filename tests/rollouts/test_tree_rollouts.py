"""What is particular to rollouts with a tree head: partial walks, greedy baselines, gradients, NaN."""

import pytest
import torch
from torch import Tensor

from corollout.data import Columns
from corollout.errors import PolicyError
from corollout.estimators import MonteCarlo, SelfCritic
from corollout.estimators.score import _greedy_baselines
from corollout.noise import Noise
from corollout.policies.protocol import SOFTMAX, Softmax, head_of
from corollout.rollouts import Engine, Mains
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.training import estimate
from corollout.types import Branches, Sampler, Sequences
from tests.support.enumeration import Problem, TablePolicy
from tests.support.head_reference import plain_walk
from tests.support.tree_problems import UNBALANCED, TreeProblem, TreeTable, words_of_five


def rows_of(sequences: Sequences) -> list[list[int]]:
    """The sequences as lists, the end token included."""
    return [row[:n] for row, n in zip(sequences.tokens.tolist(), sequences.lengths.tolist(), strict=True)]


def sampled(problem: Problem, sampler: Sampler, count: int = 40) -> tuple[Engine, Mains]:
    engine = problem.engine()
    return engine, engine.sample(torch.zeros(count, dtype=torch.int64), torch.arange(count), sampler, Noise(3))


def test_a_policy_has_the_head_that_it_names():
    assert head_of(TablePolicy(3, 2)) is SOFTMAX
    assert isinstance(SOFTMAX, Softmax)
    policy = TreeTable(UNBALANCED, 2)
    assert head_of(policy) is policy.head
    assert Engine(policy, bos=5, eos=0, max_length=2).head is policy.head


def test_outputs_are_kept_and_decisions_are_those_of_the_tokens():
    for sampler in (Sampler(), Sampler("greedy"), Sampler("beam", 3)):
        engine, mains = sampled(words_of_five(), sampler)
        decisions, expected = mains.trajectories.decisions, engine.head.decisions(mains.trajectories.tokens)
        assert decisions is not None
        assert expected is not None
        assert torch.equal(decisions.bits, expected.bits)
        assert torch.equal(decisions.other, expected.other)
        for prefix in mains.prefixes:
            assert sum(map(len, prefix.outputs)) == prefix.tokens
    _, of_softmax = sampled(Problem.make(vocab=4, length=3), Sampler())
    assert all(prefix.outputs == [] for prefix in of_softmax.prefixes)


# Greedy baselines


def greedy_completion(problem: TreeProblem, prefix: list[int]) -> list[int]:
    policy, tokens = problem.policy, list(prefix)
    while not tokens or (tokens[-1] != 0 and len(tokens) < policy.length):
        number = int(policy.prefix_numbers(torch.tensor([[*tokens, 0]]))[0, -1])
        tokens.append(plain_walk(policy.head, policy.table[number], 0, torch.tensor(0), 0, True)[0])
    return tokens


def test_the_baseline_of_self_critic_is_the_greedy_sequence():
    left = []
    for seed in range(4):
        problem = TreeProblem.of(UNBALANCED, length=3, seed=seed)
        engine, mains = sampled(problem, SelfCritic().sampler)
        plan = SelfCritic().plan(mains.trajectories, Noise(3))
        done = engine.complete(mains, plan.branches, Noise(3))
        sequences = rows_of(mains.trajectories) + rows_of(done.sequences)
        expected = greedy_completion(problem, [])
        assert rows_of(sampled(problem, Sampler("greedy"), count=1)[1].trajectories) == [expected]
        assert {tuple(sequences[i]) for i in plan.minus.tolist()} == {tuple(expected)}
        away = [row for row, sequence in enumerate(rows_of(mains.trajectories)) if sequence != expected]
        assert plan.branches.parent.tolist() == away
        left.append(len(away))
    assert 0 < min(left) < 40


def test_the_baselines_of_prefixes_are_their_greedy_completions():
    problem = TreeProblem.of(UNBALANCED, length=3, seed=2)
    engine, mains = sampled(problem, MonteCarlo().sampler)
    source, branches = _greedy_baselines(mains.trajectories)
    done = engine.complete(mains, branches, Noise(3))
    sequences = rows_of(mains.trajectories) + rows_of(done.sequences)
    for row, step in mains.trajectories.mask.nonzero().tolist():
        prefix = mains.trajectories.tokens[row, :step].tolist()
        assert sequences[int(source[row, step])] == greedy_completion(problem, prefix)


# Gradients of a policy's parameters


def test_an_estimate_reaches_every_parameter_as_its_surrogate_loss_does():
    """RLOO: −Σ advantage · log p / 3, with log p from the probabilities of all tokens."""
    torch.manual_seed(1)
    policy = CaptionPolicy(5, width=3, embedding=4, hidden=6, dropout=0.5, tree=UNBALANCED).double()
    batch = Columns(context=torch.randn(4, 3).double()).batch(range(4))
    engine = Engine(policy, bos=0, eos=0, max_length=5)
    sample = estimate(
        engine, batch, lambda sequences: [len(s) + 0.1 * sum(s) for s in sequences], "bt-rloo-3", Noise(1)
    )
    sample.backward()
    estimated = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    policy.zero_grad()
    trajectories = sample.trajectories
    outputs = policy.eval().score(
        policy.encode(batch.context)[trajectories.contexts], engine.score_inputs(trajectories)
    )
    assert policy.head is not None
    log_probs = policy.head.all_log_probs(outputs.flatten(0, 1)).unflatten(0, outputs.shape[:2])
    chosen = log_probs.gather(2, trajectories.tokens[:, :, None]).squeeze(2)
    log_p = torch.where(trajectories.mask, chosen, 0.0).sum(1)
    torch.testing.assert_close(log_p.detach(), trajectories.log_probs)
    rewards = sample.rewards.unflatten(0, (4, 3))
    advantage = rewards - (rewards.sum(1, keepdim=True) - rewards) / 2
    (-(advantage.flatten() * log_p).sum() / 3 / 4).backward()
    for one, p in zip(estimated, policy.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad)
        assert bool((one != 0).any())


def test_a_wrong_score_is_refused():
    class Shifted(TreeTable):
        def score(self, memory: Tensor, tokens: Tensor) -> Tensor:
            return super().score(memory, tokens) + 0.01

    def check(policy: TreeTable) -> None:
        engine = Engine(policy, bos=5, eos=0, max_length=2)
        batch = Columns(context=torch.zeros(4, dtype=torch.int64)).batch(range(4))
        reward = lambda sequences: [1.0] * len(sequences)  # noqa: E731
        estimate(engine, batch, reward, "bt-arsm", Noise(1), check_score=True)

    check(TreeTable(UNBALANCED, 2))
    with pytest.raises(PolicyError, match="disagree"):
        check(Shifted(UNBALANCED, 2))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_invalid_outputs_are_refused(bad: float):
    policy = TreeTable(UNBALANCED, 3)
    engine = Engine(policy, bos=5, eos=0, max_length=2)
    memory, examples = torch.tensor([0, 1, 2]), torch.tensor([10, 21, 32])  # prefixes to start from
    mains = engine.sample(memory, examples, Sampler(), Noise(0))
    with torch.no_grad():
        policy.table[1, 2] = bad
    for mode in ("sample", "greedy", "beam"):
        with pytest.raises(PolicyError, match="for example 21 at step 0"):
            engine.sample(memory, examples, Sampler(mode, 2), Noise(0))
    with torch.no_grad():
        policy.table[:, 2] = bad
    rows = torch.arange(3)
    with pytest.raises(PolicyError, match=r"for example \d\d at step 1"):
        engine.complete(mains, Branches.of(rows, 0 * rows, torch.full_like(rows, -3)), Noise(0))
