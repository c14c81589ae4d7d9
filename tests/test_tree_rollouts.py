"""What is particular to rollouts with a tree for a head: words begun, beams over tokens, greedy baselines, NaN."""

from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.data import Columns
from corollout.errors import PolicyError
from corollout.estimators import MonteCarlo, SelfCritic
from corollout.estimators.score import _greedy_baselines
from corollout.noise import Noise
from corollout.policies.heads import SOFTMAX, Softmax, head_of
from corollout.rollouts import Engine, Mains
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.training import estimate
from corollout.types import Branches, Sampler, Sequences
from tests.support.enumeration import Problem, TablePolicy
from tests.support.head_reference import chain, plain_log_prob, plain_walk, random_head
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


# Words that are begun


def test_a_word_that_is_begun_where_its_parent_went_is_its_parents():
    """At every depth of every token: the same noise, the same walk, the same sequence."""
    engine, mains = sampled(words_of_five(), Sampler())
    parents = mains.trajectories
    expected, branches = [], []
    for row, step in parents.mask.nonzero().tolist():
        for node, _ in UNBALANCED.path(int(parents.tokens[row, step])):
            branches.append((row, step, ~node))
            expected.append(rows_of(parents)[row])
    done = engine.complete(mains, Branches.of(*torch.tensor(branches).t()), Noise(3))
    assert rows_of(done.sequences) == expected
    assert len(branches) > 100


def test_a_word_that_is_begun_ends_below_its_node():
    engine, mains = sampled(words_of_five(), Sampler())
    rows = torch.arange(40)
    for node in range(4):
        for copy in (0, 1, 2):
            branches = Branches.of(rows, 0 * rows, torch.full_like(rows, ~node), copy=copy)
            found = engine.complete(mains, branches, Noise(3)).sequences.tokens[:, 0]
            assert set(found.tolist()) == set(UNBALANCED.tokens(node).tolist())


def test_outputs_are_kept_for_a_head_that_wants_to_see_them_again():
    _, of_tree = sampled(words_of_five(), Sampler())
    _, of_softmax = sampled(Problem.make(vocab=4, length=3), Sampler())
    assert [len(outputs) for prefix in of_tree.prefixes for outputs in prefix.outputs] == [
        len(rows) for prefix in of_tree.prefixes for rows in prefix.rows
    ]
    assert all(prefix.outputs == [] for prefix in of_softmax.prefixes)


def test_the_decisions_of_trajectories_are_those_of_their_tokens():
    for sampler in (Sampler(), Sampler("greedy"), Sampler("beam", 3)):
        engine, mains = sampled(words_of_five(), sampler)
        found, expected = mains.trajectories.decisions, engine.head.decisions(mains.trajectories.tokens)
        assert found is not None
        assert expected is not None
        assert torch.equal(found.bits, expected.bits)
        assert torch.equal(found.other, expected.other)


# Beams


def plain_log_probability(problem: TreeProblem, sequence: tuple[int, ...]) -> float:
    policy = problem.policy
    prefixes = policy.prefix_numbers(torch.tensor([sequence]))[0].tolist()
    return sum(plain_log_prob(policy.head, policy.table[p], z) for p, z in zip(prefixes, sequence, strict=True))


@pytest.mark.parametrize("size", [21, 30])
def test_a_beam_that_holds_everything_lists_all_sequences_with_their_probabilities(size: int):
    problem = words_of_five()
    assert len(problem.rewards) == 21
    found = sampled(problem, Sampler("beam", size), count=2)[1].trajectories
    best = sorted(((plain_log_probability(problem, s), s) for s in problem.rewards), reverse=True)
    assert rows_of(found) == 2 * [list(s) for _, s in best]
    torch.testing.assert_close(found.log_probs, torch.tensor(2 * [value for value, _ in best]).double())
    assert float(found.log_probs[:21].exp().sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("tree", [UNBALANCED, chain(5)])
def test_a_beam_is_that_of_a_softmax_with_the_same_probabilities(tree: Any, size: int):
    for seed in range(4):
        problem = TreeProblem.of(tree, length=3, scale=1.5, seed=seed)
        softmax = Problem(TablePolicy(5, 3), problem.rewards)
        with torch.no_grad():
            softmax.policy.table.copy_(problem.policy.log_probs())
        one, other = (sampled(p, Sampler("beam", size), count=2)[1] for p in (problem, softmax))
        assert rows_of(one.trajectories) == rows_of(other.trajectories)
        torch.testing.assert_close(one.trajectories.log_probs, other.trajectories.log_probs)
        assert one.tokens == other.tokens


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
    source, branches = _greedy_baselines(mains.trajectories, first_only=False)
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
    found = estimate(engine, batch, lambda sequences: [len(s) + 0.1 * sum(s) for s in sequences], "bt-rloo-3", Noise(1))
    found.backward()
    estimated = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    policy.zero_grad()
    trajectories = found.trajectories
    outputs = policy.eval().score(
        policy.encode(batch.context)[trajectories.contexts], engine.score_inputs(trajectories)
    )
    assert policy.head is not None
    log_probs = policy.head.all_log_probs(outputs.flatten(0, 1)).unflatten(0, outputs.shape[:2])
    chosen = log_probs.gather(2, trajectories.tokens[:, :, None]).squeeze(2)
    log_p = torch.where(trajectories.mask, chosen, 0.0).sum(1)
    torch.testing.assert_close(log_p.detach(), trajectories.log_probs)
    rewards = found.rewards.unflatten(0, (4, 3))
    advantage = rewards - (rewards.sum(1, keepdim=True) - rewards) / 2
    (-(advantage.flatten() * log_p).sum() / 3 / 4).backward()
    for one, p in zip(estimated, policy.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad)
        assert bool((one != 0).any())


def test_a_score_that_does_not_agree_with_the_steps_is_noticed():
    class Forgetful(TreeTable):
        def score(self, memory: Tensor, tokens: Tensor) -> Tensor:
            return super().score(memory, tokens) + 0.01

    batch = Columns(context=torch.zeros(4, dtype=torch.int64)).batch(range(4))
    for policy, message in (
        (TreeTable(UNBALANCED, 2), None),
        (Forgetful(UNBALANCED, 2), "score and policy.step disag"),
    ):
        engine = Engine(policy, bos=5, eos=0, max_length=2)

        def ask(engine: Engine = engine) -> Any:
            return estimate(
                engine, batch, lambda sequences: [1.0] * len(sequences), "bt-arsm", Noise(1), check_score=True
            )

        if message is None:
            assert ask().cost.tokens > 0
        else:
            with pytest.raises(PolicyError, match=message):
                ask()


# NaN


class Clock:
    """Counts time for each row; at some time the outputs of the second context contain a bad number."""

    def __init__(self, bad: float, time: int):
        self.bad, self.time = bad, time
        self.head = random_head(chain(7))
        with torch.no_grad():
            self.head.bias[0] = 60.0  # token 0, the end, is never drawn

    def encode(self, context: Tensor) -> Tensor:
        return context

    def start(self, memory: Tensor) -> dict[str, Tensor]:
        return {"context": memory, "time": torch.zeros_like(memory)}

    def step(self, state: dict[str, Tensor], tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = torch.zeros(len(tokens), 6, dtype=torch.float64)
        outputs[(state["context"] == 1) & (state["time"] == self.time), 2] = self.bad
        return outputs, {"context": state["context"], "time": state["time"] + 1}

    def score(self, memory: Tensor, tokens: Tensor) -> Tensor:
        return torch.zeros(*tokens.shape, 6, dtype=torch.float64)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("mode", ["sample", "greedy", "beam"])
@pytest.mark.parametrize("time", [0, 3])
def test_outputs_that_are_no_numbers_are_refused(bad: float, mode: Any, time: int):
    engine = Engine(Clock(bad, time), bos=7, eos=0, max_length=5)
    message = rf"policy.step returned NaN or \+inf, or masked every token, for example 21 at step {time}"
    with pytest.raises(PolicyError, match=message):
        engine.sample(torch.arange(3), torch.tensor([10, 21, 32]), Sampler(mode, 2), Noise(0))


def test_bad_outputs_of_a_branch_are_refused():
    policy = Clock(0.0, 3)
    engine = Engine(policy, bos=7, eos=0, max_length=5)
    mains = engine.sample(torch.arange(3), torch.tensor([10, 21, 32]), Sampler(), Noise(0))
    policy.bad = torch.nan
    rows = torch.arange(3)
    with pytest.raises(PolicyError, match="for example 21 at step 3"):
        engine.complete(mains, Branches.of(rows, torch.tensor([0, 2, 1]), torch.full_like(rows, -3)), Noise(0))


def test_outputs_of_another_width_are_refused():
    policy = Clock(0.0, 0)
    policy.head = random_head(chain(7), width=5)
    engine = Engine(policy, bos=7, eos=0, max_length=5)
    with pytest.raises(PolicyError, match="the policy puts out 6 numbers for each row, but its head reads 5"):
        engine.sample(torch.arange(3), torch.arange(3), Sampler(), Noise(0))
