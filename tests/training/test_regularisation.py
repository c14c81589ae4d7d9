"""Temperature, divergence and entropy: the mean of many estimates is the gradient of the objective, by enumeration."""

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from benchmarks.synchronisations import CONTEXTS, Case, cases
from corollout import Engine, InputError, Noise, PolicyError, Trainer, estimate
from corollout.data import Columns
from corollout.estimators import make_estimator
from corollout.events import ignore
from corollout.policies.protocol import evaluation_mode
from corollout.policies.tempered import Tempered
from corollout.training.regularisation import KL, Regulariser, as_kl
from corollout.training.scoring import score_rows, sequence_log_probs
from corollout.types import Sampler, Sequences, Trajectories
from tests.support.enumeration import Problem, TablePolicy
from tests.support.tree_problems import TreeProblem, words_of_five
from tests.support.unbiased_cases import LIMIT

BATCH = 500
CASES = list(cases())


def problem_of(name: str) -> Problem:
    return copy.deepcopy(words_of_five() if name.startswith("bt-") else Problem.make(vocab=3, length=3, seed=5))


def another(policy: TablePolicy) -> TablePolicy:
    """A policy that is different, but not too much."""
    other = copy.deepcopy(policy)
    with torch.no_grad():
        other.table.add_(0.7 * torch.randn(other.table.shape, generator=torch.Generator().manual_seed(9)))
    return other


def log_probs(problem: Problem, policy: TablePolicy, temperature: float) -> Tensor:
    """Of every token after every prefix, with gradient."""
    if isinstance(problem, TreeProblem):
        return policy.head.tempered(temperature).all_log_probs(policy.table)  # pyright: ignore
    return (policy.table / temperature).log_softmax(1)


def exact_gradient(problem: Problem, reference: TablePolicy, temperature: float, kl: float, entropy: float) -> Tensor:
    """Of Σ p (r − kl · ln p/q − entropy · ln p), by automatic differentiation of all of it."""
    p, q = log_probs(problem, problem.policy, temperature), log_probs(problem, reference, temperature).detach()
    total = torch.zeros((), dtype=torch.float64)
    for sequence, reward in problem.rewards.items():
        tokens = torch.tensor([sequence])
        place = problem.policy.prefix_numbers(tokens)[0], tokens[0]
        ln_p, ln_q = p[place].sum(), q[place].sum()
        total = total + ln_p.exp() * (reward - kl * (ln_p - ln_q) - entropy * ln_p)
    (gradient,) = torch.autograd.grad(total, problem.policy.table)
    return gradient


def deviations(name: str, batches: int, temperature: float, kl: float, entropy: float) -> Tensor:
    """How far the mean of many gradients is from the exact one, in standard errors."""
    problem = problem_of(name)
    reference = another(problem.policy)
    engine = problem.engine(temperature=temperature)
    regulariser = None
    if kl or entropy:
        regulariser = Regulariser(engine, KL(kl) if kl else None, entropy, reference if kl else None)
    rewards = problem.rewards

    def reward(sequences: list[list[int]], finished: list[bool]) -> list[float]:
        rows = zip(sequences, finished, strict=True)
        return [rewards[(*tokens, 0) if ended else tuple(tokens)] for tokens, ended in rows]

    gradients = []
    for number in range(batches):
        batch = Columns(context=torch.zeros(BATCH, dtype=torch.int64)).batch(range(BATCH))
        sample = estimate(engine, batch, reward, make_estimator(name), Noise(number), regulariser=regulariser)
        problem.policy.zero_grad()
        sample.backward()
        assert problem.policy.table.grad is not None
        gradients.append(-problem.policy.table.grad.flatten())
    g = torch.stack(gradients)
    exact = exact_gradient(problem, reference, temperature, kl, entropy).flatten()
    along = g @ exact / exact.norm()
    g, exact = torch.cat([g, along[:, None]], 1), torch.cat([exact, exact.norm()[None]])
    error = g.std(0) / len(g) ** 0.5
    gap = (g.mean(0) - exact).abs()
    return torch.where(error > 1e-12, gap / error, torch.where(gap < 1e-9, 0.0, torch.inf))


ESTIMATORS = ("arsm", "rloo-3", "set-2", "pairs", "bt-arsm", "ars-2", "reinforce", "sc", "mc-2", "vine-2")
SETTINGS = {
    "temperature": (0.6, 0.0, 0.0),
    "kl": (1.0, 0.4, 0.0),
    "entropy": (1.0, 0.0, 0.5),
    "all": (1.7, 0.3, 0.2),
}


PROOFS = [
    *((name, "all", 40) for name in ESTIMATORS[:5]),
    *(pytest.param(name, setting, 200, marks=pytest.mark.prove) for name in ESTIMATORS for setting in SETTINGS),
]


@pytest.mark.parametrize(("name", "setting", "batches"), PROOFS)
def test_the_mean_is_the_gradient_of_the_objective(name: str, setting: str, batches: int):
    assert deviations(name, batches, *SETTINGS[setting]).max() < LIMIT


def test_the_proof_would_notice_a_mistake(monkeypatch: pytest.MonkeyPatch):
    """If branches had no penalty, say."""
    penalty = Regulariser.penalty

    def forgetful(self: Regulariser, memory: Any, context: Any, mains: Any, branches: Any, completed: Any) -> Any:
        whole = penalty(self, memory, context, mains, branches, completed)
        whole.values[len(mains.trajectories.tokens) :] = 0
        return whole

    monkeypatch.setattr(Regulariser, "penalty", forgetful)
    assert deviations("arsm", 40, *SETTINGS["all"]).max() > 2 * LIMIT


# Log-probabilities of sequences


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("with_hidden", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_log_probabilities_of_sequences(
    case: Case, with_hidden: bool, temperature: float, monkeypatch: pytest.MonkeyPatch
):
    policy: Any = case.policy
    if not with_hidden:
        monkeypatch.delattr(type(policy), "hidden_states")
    engine = Engine(policy, bos=case.bos, eos=case.eos, max_length=8, temperature=temperature)
    with torch.no_grad(), evaluation_mode(policy):
        memory = policy.encode(case.contexts)
        mains = engine.sample(memory, torch.arange(CONTEXTS), Sampler("sample", 3), Noise(2)).trajectories
        mixed = torch.randperm(len(mains.tokens), generator=torch.Generator().manual_seed(1))
        parts: dict[str, Any] = {n: v[mixed] if isinstance(v, Tensor) else None for n, v in vars(mains).items()}
        picked = Trajectories(**parts)
        found = sequence_log_probs(engine, memory, picked, picked.contexts)
        logits = engine.head.logits(score_rows(engine, memory, picked, picked.contexts), picked.tokens)
        expected = torch.where(picked.mask, engine.head.log_probs(logits, picked.tokens), 0.0).sum(1)
    torch.testing.assert_close(found, expected.double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found, picked.log_probs.double(), atol=1e-4, rtol=1e-4)
    nothing = Sequences(mains.tokens[:0], mains.lengths[:0], mains.finished[:0])
    assert len(sequence_log_probs(engine, memory, nothing, mains.contexts[:0])) == 0


# Regularisers


def test_a_reference_is_a_frozen_copy():
    problem = problem_of("arsm")
    engine = problem.engine()
    regulariser = Regulariser(engine, KL(0.1))
    assert isinstance(regulariser.reference, TablePolicy)
    assert regulariser.reference is not problem.policy
    assert not regulariser.reference.table.requires_grad
    assert problem.policy.table.requires_grad
    assert dict(regulariser.tensors())["table"].equal(problem.policy.table)
    mains = engine.decode(torch.zeros(50, dtype=torch.int64), torch.arange(50), Sampler(), Noise(0))
    none = make_estimator("reinforce").plan(mains.trajectories, Noise(0)).branches
    completed = engine.complete(mains, none, Noise(0)).sequences
    context = torch.zeros(50, dtype=torch.int64)
    same = regulariser.penalty(context, context, mains, none, completed)
    assert same.divergence == pytest.approx(0, abs=1e-12)
    assert same.entropy == pytest.approx(-float(mains.trajectories.log_probs.mean()))
    torch.testing.assert_close(same.values, torch.zeros(50, dtype=torch.float64))


def test_a_coefficient_is_steered_to_its_target():
    problem = problem_of("arsm")
    regulariser = Regulariser(problem.engine(), KL(0.1, target=2.0))
    for divergence, factor in ((2.0, 1.0), (2.2, 1.01), (100.0, 1.02), (0.0, 0.98), (-5.0, 0.98)):
        assert KL(0.1, target=2.0).steered(0.5, divergence) == pytest.approx(0.5 * factor)
    assert KL(0.1).steered(0.5, 100.0) == 0.5
    assert regulariser.coefficient == 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda engine: Regulariser(engine, KL(-1.0)), "the coefficient of KL must be 0 or positive, not -1.0"),
        (lambda engine: Regulariser(engine, KL(float("nan"))), "the coefficient of KL must be 0 or positive, not nan"),
        (lambda engine: Regulariser(engine, KL(0.1, 0.0)), "the target of KL must be positive, not 0.0"),
        (lambda engine: Regulariser(engine, KL(0.0, 1.0)), "must be positive at the start, not 0"),
        (lambda engine: Regulariser(engine, None, float("inf")), "entropy must be a finite number, not inf"),
        (lambda engine: Regulariser(engine, None, 0.1, engine.policy), "set kl, too"),
        (
            lambda engine: Regulariser(engine, KL(0.1), reference=torch.nn.Linear(1, 1)),
            "the reference, a Linear, is not a policy",
        ),
        (lambda engine: as_kl(cast(Any, "a lot")), "kl must be a coefficient, or a KL with a target, not 'a lot'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_settings_are_told(make: Any, message: str):
    with pytest.raises(InputError, match=message):
        make(problem_of("arsm").engine())


def test_a_reference_that_forbids_what_was_generated_is_told():
    problem = problem_of("arsm")
    reference = another(problem.policy)
    with torch.no_grad():
        reference.table[:, 1] = -torch.inf
    engine = problem.engine()
    regulariser = Regulariser(engine, KL(0.1), reference=reference)
    batch = Columns(context=torch.zeros(50, dtype=torch.int64)).batch(range(50))
    with pytest.raises(PolicyError, match="the reference policy gives a generated sequence the probability zero"):
        estimate(engine, batch, lambda s: [1.0] * len(s), "rloo-2", Noise(0), regulariser=regulariser)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan"), "hot", None])
@pytest.mark.usefixtures("unchecked")
def test_bad_temperatures_are_told(temperature: Any):
    with pytest.raises(InputError, match="temperature must be a positive number"):
        problem_of("arsm").engine(temperature=temperature)


# In training


def trainer_of(problem: Problem, **options: Any) -> Trainer:
    data = Columns(context=torch.zeros(64, dtype=torch.int64))
    optimizer = torch.optim.Adam(problem.policy.parameters(), lr=0.05)
    return Trainer(
        problem.engine(), data, lambda sequences: [float(len(tokens)) for tokens in sequences], "rloo-4", optimizer,
        batch_size=32, **options, on_event=ignore)  # fmt: skip


def test_training_stays_near_the_reference():
    last = {}
    for name, options in {"free": {}, "kl": {"kl": 3.0}, "entropy": {"entropy": 20.0}}.items():
        problem = problem_of("arsm")
        metrics = list(trainer_of(problem, **options).run(updates=60))
        with torch.no_grad():
            p = log_probs(problem, problem.policy, 1.0)
            start = log_probs(problem, problem_of("arsm").policy, 1.0)
        last[name] = metrics[-1], float((p.exp() * (p - start)).sum()), float(-(p.exp() * p).sum())
        assert all((one.kl is None) == (name != "kl") for one in metrics)
    assert last["kl"][1] < 0.3 * last["free"][1]
    assert last["entropy"][2] > 1.2 * last["free"][2]
    assert last["entropy"][0].entropy > last["free"][0].entropy
    # Rewards are shown without the penalty.
    assert last["free"][0].reward <= 3.0


def test_a_resumed_training_has_its_reference_and_its_coefficient():
    whole = problem_of("arsm")
    trainer = trainer_of(whole, kl=KL(0.5, target=0.01))
    for _ in trainer.run(updates=5):
        pass
    state, expected = trainer.state(), [metrics.reward for metrics in trainer.run(updates=10)]
    assert trainer.regulariser is not None
    assert trainer.regulariser.coefficient > 0.5
    again = problem_of("arsm")
    with torch.no_grad():
        again.policy.table.add_(1.0)  # another start, which the state replaces
    resumed = trainer_of(again, kl=KL(0.5, target=0.01))
    resumed.load_state(state)
    assert [metrics.reward for metrics in resumed.run(updates=10)] == expected
    assert torch.equal(again.policy.table, whole.policy.table)
    assert resumed.regulariser is not None
    assert resumed.regulariser.coefficient == trainer.regulariser.coefficient


def test_what_auto_measures_has_the_penalty(monkeypatch: pytest.MonkeyPatch):
    seen = []
    penalty = Regulariser.penalty
    monkeypatch.setattr(Regulariser, "penalty", lambda self, *args: seen.append(1) or penalty(self, *args))
    trainer = trainer_of(problem_of("arsm"), kl=0.1, probe_every=1, probes=["reinforce"])
    next(iter(trainer.run(updates=1)))
    assert len(seen) > 2


def test_a_tempered_engine_can_be_copied():
    engine = problem_of("arsm").engine(temperature=0.5)
    state = torch.zeros(2, dtype=torch.int64)
    expected, _ = engine.model.step(state, torch.tensor([1, 2]))
    found, _ = copy.deepcopy(engine).model.step(state, torch.tensor([1, 2]))
    assert torch.equal(found, expected)
    assert not hasattr(engine.model, "hidden_states")


def test_a_tempered_read_out_is_the_same_object_until_the_bias_changes():
    policy: Any = CASES[1].policy
    tempered: Any = Tempered(policy, 0.5)
    with torch.no_grad(), evaluation_mode(policy):
        state = policy.start(policy.encode(CASES[1].contexts))
        tokens = torch.zeros(CONTEXTS, dtype=torch.int64)
        first, second = (tempered.step_hidden(state, tokens)[1] for _ in range(2))
        assert first.bias is second.bias
        torch.testing.assert_close(first.bias, 2 * policy.output_bias)
        policy.output_bias += 1.0
        third = tempered.step_hidden(state, tokens)[1]
        torch.testing.assert_close(third.bias, 2 * policy.output_bias)
        policy.output_bias -= 1.0
