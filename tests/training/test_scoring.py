"""Scoring without a tensor of all logits, against the gradient of all logits at once."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from corollout.data import Columns
from corollout.errors import PolicyError
from corollout.estimators import make_estimator
from corollout.estimators.plans import SparsePlan
from corollout.noise import Noise
from corollout.policies import RecurrentPolicy, read_out, select
from corollout.policies.protocol import evaluation_mode
from corollout.prefix_tree import PrefixTree
from corollout.rollouts import Engine, watch
from corollout.training import Estimate, estimate, scoring
from corollout.training.base import flat_gradient
from corollout.training.scoring import DenseScoring, PathScoring, PrefixScoring, SequenceScoring
from tests.support.policy_cases import CASES, CONTEXTS, PolicyCase, WithoutHiddenStates, policy_case

ESTIMATORS = [
    *("rloo-8", "reinforce", "arsm", "set-3:baseline=fitted", "rloo-3:baseline=fitted", "sc:samples=3", "mc-2"),
    *("pairs", "grpo-4", "vine-2"),
]
QUICK = {
    "karel": ("rloo-8", "sc:samples=3"),
    "karel with grammar": ("arsm", "rloo-3:baseline=fitted"),
    "captions": ("set-3:baseline=fitted", "mc-2"),
    "captions by a tree": ("bt-arsm", "rloo-3:baseline=fitted", "grpo-4"),
    "lstm": ("pairs", "reinforce"),
    "gru": ("vine-2", "arsm"),
    "transformer": ("rloo-8", "set-3:baseline=fitted"),
}


def combinations() -> list[Any]:
    """Every kind of plan and of policy; all of their combinations in ``-m prove``."""
    found = []
    for policy, estimator in product(CASES, ESTIMATORS):
        name = "bt-arsm" if estimator == "arsm" and "tree" in policy else estimator
        marks = () if name in QUICK[policy] else pytest.mark.prove
        found.append(pytest.param(policy, name, marks=marks, id=f"{policy} {name}"))
    return found


def reward(sequences: list[list[int]]) -> list[float]:
    return [float(sum(sequence) % 3) for sequence in sequences]


def estimated(case: PolicyCase, estimator: str, policy: Any = None, **options: Any) -> tuple[Estimate, Tensor]:
    """An estimate, and the gradient that its scoring gives."""
    case.policy.zero_grad()
    sample = estimate(case.engine(policy), case.batch, options.pop("reward", reward), estimator, Noise(3), **options)
    sample.backward()
    return sample, flat_gradient(case.policy.parameters())


def dense_gradient(case: PolicyCase, sample: Estimate) -> Tensor:
    """The slow twin: score every sequence on its own, and back-propagate from all logits at once."""
    engine, drawn = case.engine(), sample.trajectories
    case.policy.zero_grad()
    with evaluation_mode(case.policy):
        memory = case.policy.encode(case.context)
        outputs = case.policy.score(select(memory, drawn.contexts), engine.score_inputs(drawn))
        logits = engine.head.logits(outputs, drawn.tokens)
        gradient = sample.plan.gradient(sample.rewards, logits.detach())
        logits.backward(gradient=-gradient / CONTEXTS)
    return flat_gradient(case.policy.parameters())


def assert_close(actual: Tensor, expected: Tensor) -> None:
    size = float(expected.abs().max())
    assert size > 1e-4
    assert float((actual - expected).abs().max()) < 1e-9 * size


@pytest.mark.parametrize(("policy", "estimator"), combinations())
def test_the_gradient_is_that_of_all_logits_at_once(policy: str, estimator: str, monkeypatch: pytest.MonkeyPatch):
    case = policy_case(policy)
    sample, gradient = estimated(case, estimator, check_score=True)
    expected = dense_gradient(case, sample)
    assert_close(gradient, expected)
    assert type(sample.scoring) is (PathScoring if "tree" in policy else PrefixScoring)
    # By chunks of logits none of which were kept.
    for module, name in ((read_out, "CHUNK"), (scoring, "CHUNK"), (scoring, "_KEPT"), (watch, "_KEPT")):
        monkeypatch.setattr(module, name, 40)
    monkeypatch.setattr(watch, "_SHOWN", 40)
    again, gradient = estimated(case, estimator)
    assert torch.equal(again.trajectories.tokens, sample.trajectories.tokens)
    assert_close(gradient, expected)
    # By whole sequences, in one micro-batch and in many.
    for limit in (1 << 24, 40):
        monkeypatch.setattr(scoring, "BATCH", limit)
        again, gradient = estimated(case, estimator, WithoutHiddenStates(case.policy), check_score=True)
        assert isinstance(again.scoring, SequenceScoring)
        parts = len(again.scoring._used)
        assert parts > 1 if limit == 40 else parts <= 4
        assert_close(gradient, expected)


def test_several_lengths_are_several_micro_batches():
    """Short sequences are not padded to the longest ones."""
    case = policy_case("lstm")
    with torch.no_grad():
        case.policy.output.bias[case.eos] += 1.5  # many sequences end at once
    sample, gradient = estimated(case, "rloo-8", WithoutHiddenStates(case.policy))
    assert isinstance(sample.scoring, SequenceScoring)
    lengths = [sample.trajectories.lengths[sample.scoring._distinct[part]] for part in sample.scoring._used]
    assert len(lengths) == 4
    assert [int(part.max()) for part in lengths] == sorted(int(part.max()) for part in lengths)
    assert int(lengths[0].max()) < int(lengths[-1].max())
    assert_close(gradient, dense_gradient(case, sample))


@pytest.mark.parametrize("policy", ["lstm", "captions by a tree"])
def test_tokens_are_counted_once_for_each_prefix_or_sequence(policy: str):
    case = policy_case(policy)
    sample, _ = estimated(case, "rloo-8:baseline=fitted")  # has read all prefixes
    drawn = sample.trajectories
    rows = list(zip(drawn.contexts.tolist(), drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True))
    prefixes = {(context, *tokens[:t]) for context, tokens, length in rows for t in range(length)}
    assert sample.scoring.tokens == sample.cost.scored_tokens == len(prefixes) < sample.cost.main_tokens
    by_sequence, _ = estimated(case, "rloo-8:baseline=fitted", WithoutHiddenStates(case.policy))
    sequences = {(context, *tokens[:length]) for context, tokens, length in rows}
    assert by_sequence.scoring.tokens == sum(len(sequence) - 1 for sequence in sequences) < sample.cost.main_tokens


@pytest.mark.parametrize("policy", ["karel with grammar", "captions by a tree", "transformer"])
@pytest.mark.parametrize("with_hidden_states", [True, False])
def test_what_has_no_gradient_is_not_computed(policy: str, with_hidden_states: bool):
    """Only the first sequence of the second context is rewarded: by RLOO the others of its context have a gradient."""
    case = policy_case(policy)

    def one(sequences: list[list[int]]) -> list[float]:
        return [float(number == 4) for number in range(len(sequences))]

    offered = None if with_hidden_states else WithoutHiddenStates(case.policy)
    sample, gradient = estimated(case, "rloo-4", offered, reward=one)
    tree = PrefixTree.of(sample.trajectories, sample.trajectories.contexts, case.bos)
    if with_hidden_states:
        assert sample.scoring.tokens <= int((tree.context == 1).sum())
    assert 0 < sample.scoring.tokens <= int(sample.trajectories.lengths[4:8].sum())
    assert_close(gradient, dense_gradient(case, sample))


@pytest.mark.parametrize("policy", ["lstm", "captions by a tree"])
@pytest.mark.parametrize("with_hidden_states", [True, False])
def test_equal_rewards_have_no_gradient_at_all(policy: str, with_hidden_states: bool):
    case = policy_case(policy)
    offered = None if with_hidden_states else WithoutHiddenStates(case.policy)
    sample, gradient = estimated(case, "rloo-4", offered, reward=lambda sequences: [0.1] * len(sequences))
    assert sample.scoring.tokens == 0
    assert not gradient.any()


class OtherPlan:
    """A plan that says no more than how rewards become a gradient."""

    def __init__(self, plan: SparsePlan):
        self.plan = plan
        self.branches = plan.branches  # pyright: ignore[reportAttributeAccessIssue]

    def gradient(self, rewards: Tensor, logits: Tensor) -> Tensor:
        return self.plan.gradient(rewards, logits)


@pytest.mark.parametrize("policy", ["lstm", "captions by a tree"])
def test_other_plans_are_scored_by_all_logits(policy: str):
    case = policy_case(policy)
    sample, expected = estimated(case, "mc-2")
    assert isinstance(sample.plan, SparsePlan)
    case.policy.zero_grad()
    engine = case.engine()
    memory = case.policy.encode(case.context)
    mains = engine.decode(case.context, case.batch.examples, make_estimator("mc-2").sampler, Noise(3))
    dense = scoring.score(engine, memory, mains, OtherPlan(sample.plan), sample.rewards)
    assert isinstance(dense, DenseScoring)
    assert dense.tokens == int(sample.trajectories.lengths.sum())
    dense.backward(-1 / CONTEXTS)
    assert_close(flat_gradient(case.policy.parameters()), expected)


# A policy whose methods disagree


class Shifted(WithoutHiddenStates):
    """Adds something to one logit of ``score`` or of ``hidden_states``, after the first token."""

    def __init__(self, policy: Any, method: str, shift: float):
        super().__init__(policy)
        self.read_out, self.hidden_states = policy.read_out, policy.hidden_states
        if method == "score":
            self.score = self._score
        elif method == "hidden_states":
            self.hidden_states = self._hidden_states
        elif method == "shape":
            self.score = lambda memory, tokens: policy.score(memory, tokens)[:, :, 1:]
        elif method == "steps":
            self.score = lambda memory, tokens: policy.score(memory, tokens)[:, 1:]
        self.policy, self.shift = policy, shift

    def _score(self, memory: Any, tokens: Tensor) -> Tensor:
        logits = self.policy.score(memory, tokens).clone()
        logits[:, 1:, 0] += self.shift
        return logits

    def _hidden_states(self, memory: Any, tree: PrefixTree) -> Tensor:
        hidden = self.policy.hidden_states(memory, tree).clone()
        hidden[tree.sizes[0] :] += self.shift
        return hidden


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "score",
            r"policy\.score and policy\.step disagree: for example 1\d the log-probability .* at step [1-5] diff",
        ),
        ("hidden_states", r"policy\.hidden_states and policy\.step disagree: for example 1\d .* at step [1-5] differs"),
        ("shape", r"policy\.score returned logits of shape \[\d+, \d, 5\] where policy\.step gave \[\d+, \d, 6\]"),
        ("steps", r"policy\.score returned logits of shape \[\d+, \d, 6\] where"),
    ],
)
def test_methods_that_disagree_are_refused(method: str, message: str):
    case = policy_case("lstm")
    with pytest.raises(PolicyError, match=message):
        estimated(case, "rloo-4", Shifted(case.policy, method, 0.5), check_score=True)
    with pytest.raises(PolicyError, match=message) if method == "hidden_states" else pytest.raises(PolicyError):
        estimated(case, "rloo-4", Shifted(case.policy, method, torch.nan), check_score=True)
    if method in ("score", "hidden_states"):
        sample, _ = estimated(case, "rloo-4", Shifted(case.policy, method, 0.0), check_score=True)
        assert isinstance(sample.scoring, PrefixScoring)


# Memory


class LargestTensor(TorchDispatchMode):
    """Notes how many elements the largest storage has that any operation returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize("estimator", ["rloo-4", "rloo-4:baseline=fitted", "grpo-4", "sc:samples=4", "set-4"])
def test_no_tensor_has_all_logits_of_a_large_vocabulary(estimator: str, monkeypatch: pytest.MonkeyPatch):
    vocab, contexts, steps, width = 20_000, 4, 16, 4
    step, everything = 4 * contexts * vocab, 4 * contexts * steps * vocab
    for module, name in (
        (read_out, "CHUNK"),
        (scoring, "CHUNK"),
        (scoring, "_KEPT"),
        (watch, "_KEPT"),
        (watch, "_SHOWN"),
    ):
        monkeypatch.setattr(module, name, step)
    torch.manual_seed(0)
    policy = RecurrentPolicy(torch.nn.Linear(3, width), width, vocab, hidden=width)
    engine = Engine(policy, bos=1, eos=0, max_length=steps)
    batch = Columns(context=torch.randn(contexts, 3)).batch(range(contexts))
    with LargestTensor() as largest:
        sample = estimate(engine, batch, reward, estimator, Noise(0))
        sample.backward()
    assert int(sample.trajectories.lengths.sum()) == 4 * contexts * steps
    assert any(bool(p.grad is not None and p.grad.any()) for p in policy.parameters())
    assert step <= largest.elements <= 2 * step < everything / 4
    with LargestTensor() as largest:
        assert sample.logits.shape[2] == vocab
    assert largest.elements >= everything
