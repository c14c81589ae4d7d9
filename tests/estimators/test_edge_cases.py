"""Estimators of a single variable at the edges: small vocabularies, masks, number types, seeds, and invalid inputs."""

import pytest
import torch
from torch import Tensor

from corollout import estimate_gradient, make_estimator
from corollout.errors import InputError, RewardError
from corollout.estimators import ARM, ARS, DisARM, Estimator, MonteCarlo, Reinforce, SelfCritic, UnorderedSet, single
from corollout.noise import MAIN, Noise, dirichlet
from corollout.types import Cells
from tests.support.enumeration import Problem

# Estimators for any vocabulary: those whose gradient is linear in the rewards, and the others.
LINEAR = ["arsm", "ars-2", "reinforce", "rloo-3", "sc", "mc-0", "mc-2", "vine-2", "rl-beam-4", "set-3", "pairs"]
NONLINEAR = [
    "grpo-4",
    "reinforce:baseline=shrunk",
    "reinforce:baseline=fitted",
    "rloo-3:baseline=shrunk",
    "rloo-3:baseline=fitted",
    "set-3:baseline=fitted",
    "auto",
]
ANY = [*LINEAR, *NONLINEAR]
BINARY = ["arm", "disarm"]


def vocab_of(name: str) -> int:
    return 2 if name in BINARY else 5


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def logits_of(rows: int, vocab: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return randn(rows, vocab, seed=0).to(dtype)


def table_reward(rows: int, vocab: int, seed: int = 1):
    table = randn(rows, vocab, seed=seed)
    return lambda actions, owners: table[owners, actions]


def constant_reward(actions: Tensor, owners: Tensor) -> Tensor:
    return torch.full(actions.shape, 0.7, dtype=torch.float64)


# Small vocabularies


@pytest.mark.parametrize("name", [name for name in (*ANY, "ars-1") if name != "ars-2"])
def test_a_variable_with_one_value_has_no_gradient(name: str):
    assert estimate_gradient(logits_of(20, 1), table_reward(20, 1), name).tolist() == [[0.0]] * 20


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_arsm_of_two_actions_is_arm(dtype: torch.dtype, tolerance: float):
    logits, reward = logits_of(2000, 2, dtype=dtype), table_reward(2000, 2)
    arsm, arm = (estimate_gradient(logits, reward, name, seed=3) for name in ("arsm", "arm"))
    assert 0.1 < float((arm != 0).double().mean()) < 0.9
    torch.testing.assert_close(arsm, arm, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", BINARY)
def test_arm_and_disarm_are_their_formulas(name: str):
    """With one column, the logit of action 1, and with two."""
    phi, table, rows = randn(1000, seed=0), randn(1000, 2, seed=1), torch.arange(1000)
    keys = Noise(9).keys(rows, MAIN, torch.zeros_like(rows))
    pi = dirichlet(keys, torch.zeros_like(rows), 2, torch.float64)[:, 1]
    true, pseudo = (pi < phi.sigmoid()).long(), (pi > (-phi).sigmoid()).long()
    gap = table[rows, true] - table[rows, pseudo]
    disarm = 0.5 * gap * (-1.0) ** pseudo * (true != pseudo) * phi.abs().sigmoid()
    expected = gap * (0.5 - pi) if name == "arm" else disarm
    for logits in (phi[:, None], torch.stack([torch.zeros_like(phi), phi], 1)):
        g = estimate_gradient(logits, lambda actions, owners: table[owners, actions], name, seed=9)
        assert g.shape == logits.shape
        torch.testing.assert_close(g[:, -1], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(g[:, 0], -expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(InputError, match="V must be 2, not 3"):
        estimate_gradient(logits_of(4, 3), constant_reward, name)


# Arithmetic


@pytest.mark.parametrize("vocab", [2, 3, 7])
def test_arsm_equals_a_slow_twin(vocab: int):
    """Every swap and every reward, as section 3 of the paper writes it; also as ARS-V."""
    logits, table, index = logits_of(300, vocab), randn(300, vocab, seed=1), torch.arange(300)
    keys = Noise(4).keys(index, MAIN, torch.zeros_like(index))
    pi = dirichlet(keys, torch.zeros_like(keys), vocab, logits.dtype)
    expected = torch.zeros_like(logits)
    for j in range(vocab):
        rewards = torch.zeros_like(logits)
        for m in range(vocab):
            swapped = pi.clone()
            swapped[:, j], swapped[:, m] = pi[:, m], pi[:, j]
            rewards[:, m] = table[index, (swapped.log() - logits).argmin(1)]
        expected += (rewards - rewards.mean(1, keepdim=True)) * (1 - vocab * pi[:, j, None]) / vocab
    g = estimate_gradient(logits, lambda actions, owners: table[owners, actions], seed=4)
    torch.testing.assert_close(g, expected, rtol=1e-10, atol=1e-12)
    for same in (f"ars-{vocab}", ARS(references=vocab, shared_references=True)):
        assert torch.equal(estimate_gradient(logits, lambda a, o: table[o, a], same, seed=4), g)
    with pytest.raises(InputError, match=f"ARS-{vocab + 1} needs {vocab + 1} references"):
        estimate_gradient(logits, constant_reward, "ars", k=vocab + 1)


@pytest.mark.parametrize("name", ["arsm", "ars-1", "ars-3", "sc", "mc-0", "mc-2", "vine-2", "pairs", *BINARY])
def test_equal_rewards_give_exactly_no_gradient(name: str):
    assert not bool(estimate_gradient(logits_of(300, vocab_of(name)), constant_reward, name).any())


@pytest.mark.parametrize("name", [*LINEAR, *BINARY])
def test_rewards_enter_linearly(name: str):
    vocab = vocab_of(name)
    logits, first, second = logits_of(50, vocab), table_reward(50, vocab, 1), table_reward(50, vocab, 2)
    both = estimate_gradient(logits, lambda a, o: 2 * first(a, o) - 3 * second(a, o), name)
    parts = 2 * estimate_gradient(logits, first, name) - 3 * estimate_gradient(logits, second, name)
    torch.testing.assert_close(both, parts, rtol=1e-9, atol=1e-12)
    assert bool(both.any())


# Masks


@pytest.mark.parametrize("name", ANY)
def test_masked_actions_have_exactly_no_gradient(name: str):
    logits = logits_of(300, 6)
    logits[:, 2] = -torch.inf
    logits[:100, 4] = -torch.inf
    logits[0, [0, 1, 3, 4]] = -torch.inf  # a single possible action
    reward = table_reward(300, 6)

    def checked(actions: Tensor, owners: Tensor) -> Tensor:
        assert bool(logits[owners, actions].isfinite().all())
        return reward(actions, owners)

    g = estimate_gradient(logits, checked, name)
    assert bool(g.isfinite().all())
    assert not bool(g[logits == -torch.inf].any() | g[0].abs().gt(1e-12).any())
    assert bool(g.any())


# Number types, seeds and rows


@pytest.mark.parametrize("name", [*ANY, *BINARY])
def test_gradients_of_every_type(name: str):
    vocab = vocab_of(name)
    reward = table_reward(200, vocab)
    half, low, single_ = (
        logits_of(200, vocab, dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)
    )
    for logits in (half, low, single_, single_.double()):
        g = estimate_gradient(logits, reward, name)
        assert g.dtype == logits.dtype
        assert bool(g.isfinite().all() & g.any())
    assert float(g.sum(1).abs().max()) < 1e-12
    torch.testing.assert_close(estimate_gradient(single_, reward, name).double(), g, rtol=1e-4, atol=1e-5)
    # Half precision is computed in single precision.
    assert torch.equal(estimate_gradient(low, reward, name), estimate_gradient(low.float(), reward, name).bfloat16())


@pytest.mark.parametrize("name", [*ANY, *BINARY])
def test_seeds_and_batches(name: str):
    vocab = vocab_of(name)
    logits, reward = logits_of(30, vocab), table_reward(30, vocab)
    first, again, other = (estimate_gradient(logits, reward, name, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name == "rl-beam-4")  # without randomness

    def never(actions: Tensor, owners: Tensor) -> Tensor:
        raise AssertionError("nothing to reward")

    for dtype in (torch.float32, torch.bfloat16):
        empty = estimate_gradient(torch.zeros(0, 2, dtype=dtype), never, name)
        assert empty.shape == (0, 2)
        assert empty.dtype == dtype


@pytest.mark.parametrize("name", ["arsm", "ars-1", "rloo-2", "sc", "mc-2", "vine-2", "grpo-2", "set-3"])
def test_a_row_does_not_depend_on_later_rows(name: str):
    logits, reward = logits_of(40, 6), table_reward(40, 6)
    whole = estimate_gradient(logits, reward, name)
    for rows in (1, 7, 39):
        assert torch.equal(estimate_gradient(logits[:rows], reward, name), whole[:rows])


@pytest.mark.parametrize("name", ["arsm", "rloo-3"])
def test_logits_may_require_a_gradient_and_rewards_may_have_any_type(name: str):
    logits, weight = logits_of(10, 4), torch.ones((), dtype=torch.float64, requires_grad=True)
    reward = table_reward(10, 4)
    g = estimate_gradient(logits.clone().requires_grad_(), lambda a, o: weight * reward(a, o), name)
    assert torch.equal(g, estimate_gradient(logits, reward, name))
    assert not g.requires_grad
    whole, double = (estimate_gradient(logits, lambda a, o, t=t: a.to(t), name) for t in (torch.int64, torch.float64))
    assert torch.equal(whole, double)
    assert bool(estimate_gradient(logits, lambda a, o: a > 1, name).any())


def test_shared_references_are_the_same_in_every_row():
    trajectories = single._one_step(torch.zeros(400, 5, dtype=torch.float64), ARS(), Noise(0))
    rows, steps = torch.arange(400), torch.zeros(400, dtype=torch.int64)
    for shared, different in ((True, 1), (False, 5)):
        estimator = ARS(references=1, shared_references=shared)
        assert len(estimator._references(Cells.of(trajectories, rows, steps), Noise(0), 5).unique()) == different


# Invalid inputs


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["arsm", "rloo"])
def test_invalid_logits_are_refused(name: str, bad: float):
    logits = logits_of(5, 3)
    logits[3, 1:] = bad
    logits[3, 0] = -torch.inf
    with pytest.raises(InputError, match=r"the logits of row 3 contain NaN or \+inf, or are all −inf"):
        estimate_gradient(logits, constant_reward, name)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(4), r"\[rows, V\] with V ≥ 1, not \[4\]"),
        (torch.zeros(2, 3, 4), r"not \[2, 3, 4\]"),
        (torch.zeros(4, 0), r"not \[4, 0\]"),
        (torch.zeros(4, 2, dtype=torch.int64), "floating-point numbers, not torch.int64"),
    ],
)
def test_logits_of_the_wrong_shape_or_type_are_refused(logits: Tensor, message: str):
    with pytest.raises(InputError, match=message):
        single._check_logits(logits)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_invalid_rewards_are_refused(bad: float):
    def reward(actions: Tensor, owners: Tensor) -> Tensor:
        return torch.where(torch.arange(len(actions)) == 2, bad, 0.0)

    with pytest.raises(RewardError, match="the reward of action number 2 is NaN or infinite"):
        estimate_gradient(logits_of(5, 3), reward)
    for shape in ((), (1,), (4,), (5, 1)):
        with pytest.raises(
            RewardError, match=rf"5 actions must have the shape \[5\], not \[{', '.join(map(str, shape))}"
        ):
            estimate_gradient(logits_of(5, 3), lambda a, o, shape=shape: torch.zeros(shape), "reinforce")


def test_a_number_does_not_go_with_an_estimator_object():
    with pytest.raises(InputError, match="k goes with the name"):
        estimate_gradient(logits_of(2, 3), constant_reward, ARS(), k=2)


# Options


@pytest.mark.parametrize(
    ("one", "several"),
    [
        (ARS(), ARS(samples=3)),
        (ARS(references=2), ARS(references=2, samples=3)),
        (SelfCritic(), SelfCritic(samples=3)),
        (MonteCarlo(1), MonteCarlo(1, samples=3)),
        (Reinforce("none"), Reinforce("none", samples=3)),
        (ARM(), ARM(samples=3)),
        (DisARM(), DisARM(samples=3)),
    ],
)
def test_samples_are_averaged(one: Estimator, several: Estimator):
    """The mean of three independent estimates has the same expectation as one and a third of its variance."""
    rows, vocab = 6000, 2 if isinstance(one, ARM) else 4
    logits, table = logits_of(1, vocab).expand(rows, -1), randn(vocab, seed=1)
    a, b = (estimate_gradient(logits, lambda actions, owners: table[actions], method) for method in (one, several))
    error = (a.var(0) / rows + b.var(0) / rows).sqrt()
    assert float(((a.mean(0) - b.mean(0)) / error).abs().max()) < 6.8
    assert 0.27 < float(b.var(0).sum() / a.var(0).sum()) < 0.41


def test_self_critic_needs_no_branch_where_the_greedy_action_was_drawn():
    logits = logits_of(500, 4)
    trajectories = single._one_step(logits, SelfCritic(), Noise(0))
    branches = SelfCritic().plan(trajectories, Noise(0)).branches
    away = (trajectories.tokens[:, 0] != logits.argmax(1)).nonzero().squeeze(1)
    assert branches.parent.tolist() == away.tolist()
    assert torch.equal(branches.token, logits.argmax(1)[away])
    assert 0 < len(away) < 500


@pytest.mark.parametrize("rows", [1, 6])
def test_baselines_of_reinforce(rows: int):
    """A single sequence has no others: its baseline is 0."""
    logits, rewards = logits_of(rows, 3), 2.0 ** torch.arange(rows, dtype=torch.float64)
    trajectories = single._one_step(logits, Reinforce(), Noise(0))
    score = torch.nn.functional.one_hot(trajectories.tokens[:, 0], 3) - logits.softmax(1)
    others = (rewards.sum() - rewards) / max(rows - 1, 1)
    for name, baseline in {"none": 0 * rewards, "batch": rewards.mean().expand(rows), "others": others}.items():
        plan = make_estimator("reinforce", baseline=name).plan(trajectories, Noise(0))
        g = plan.gradient(rewards, logits[:, None])[:, 0]
        torch.testing.assert_close(g, (rewards - baseline)[:, None] * score)


def test_the_beam_gives_the_gradient_of_the_expectation_on_the_beam():
    logits, table = logits_of(20, 5).requires_grad_(), randn(20, 5, seed=1)
    for size in (2, 3, 5, 9):
        kept = logits.topk(min(size, 5), 1).indices
        q = logits.gather(1, kept).softmax(1)
        (expected,) = torch.autograd.grad((q * table.gather(1, kept)).sum(), logits)
        g = estimate_gradient(logits, lambda a, o: table[o, a], "rl-beam", k=size)
        torch.testing.assert_close(g, expected, rtol=1e-10, atol=1e-12)


# Expectations


def exact_gradient(logits: Tensor, table: Tensor) -> Tensor:
    p = logits.softmax(1)
    return p * (table - (p * table).sum(1, keepdim=True))


@pytest.mark.parametrize(
    "name", ["set-2", "set-3", "set-3:baseline=fitted", "rloo-3:baseline=fitted", "vine-1", "pairs"]
)
def test_estimates_of_one_variable_are_unbiased(name: str):
    """Many rows of one variable; the last action is masked."""
    rows = 6000
    logits = torch.tensor([[1.0, -0.5, 0.3, 0.8, -torch.inf]], dtype=torch.float64).expand(rows, -1)
    table = torch.tensor([1.0, 3.0, -2.0, 0.5, 9.0], dtype=torch.float64)
    g = estimate_gradient(logits, lambda actions, owners: table[actions], name, seed=2)
    error = g.std(0) / rows**0.5
    assert 1e-3 < float(error.max()) < 0.03
    # Five comparisons, each beyond 6.8 standard errors with probability 1e-11.
    assert bool(((g.mean(0) - exact_gradient(logits[:1], table)[0]).abs() <= 6.8 * error).all())


@pytest.mark.parametrize("name", ["set-5", "set-64", "set-64:baseline=fitted"])
def test_a_set_of_all_actions_gives_the_exact_gradient(name: str):
    """For any baseline: over all sequences, Σ p ∇ log p = 0."""
    logits, table = logits_of(30, 5), randn(30, 5, seed=1)
    logits[:10, 2] = -torch.inf
    logits[0, 1:] = -torch.inf
    g = estimate_gradient(logits, lambda a, o: table[o, a], name)
    torch.testing.assert_close(g, exact_gradient(logits, table), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_actions_of_a_set_are_those_of_the_engine(dtype: torch.dtype):
    problem = Problem.make(vocab=6, length=1, seed=4)
    noise, examples = Noise(3), torch.arange(50)
    wanted = problem.engine().sample(torch.zeros_like(examples), examples, UnorderedSet(4).sampler, noise).trajectories
    drawn = single._one_step(problem.policy.table.detach().expand(50, -1).to(dtype), UnorderedSet(4), noise)
    assert len({tuple(row) for row in drawn.tokens.view(50, 4).tolist()}) > 20
    for name in ("tokens", "contexts", "samples", "keys"):
        assert torch.equal(getattr(drawn, name), getattr(wanted, name))
    torch.testing.assert_close(drawn.log_probs, wanted.log_probs, rtol=1e-6, atol=0)
