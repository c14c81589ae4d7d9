"""Estimators at the edges: tiny vocabularies, masks, number types, budgets, names, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout import estimate_gradient, make_estimator
from corollout.errors import InputError, RewardError
from corollout.estimators import (
    ARM,
    ARS,
    GRPO,
    NAMES,
    RLOO,
    Auto,
    BeamExpectation,
    ContrastPlan,
    DisARM,
    Estimator,
    MonteCarlo,
    Pairs,
    Reinforce,
    SelfCritic,
    UnorderedSet,
    Vine,
    single,
)
from corollout.noise import MAIN, Noise, dirichlet
from corollout.types import Branches
from tests.support.enumeration import Problem

# Every estimator that takes any vocabulary: those that are linear in the rewards, and those that weigh them by others.
LINEAR = ["arsm", "ars-2", "reinforce", "rloo-3", "sc", "mc-0", "mc-2", "vine-2", "rl-beam-4", "set-3", "pairs"]
WEIGHING = [
    "grpo-4",
    "reinforce:baseline=shrunk",
    "reinforce:baseline=fitted",
    "rloo-3:baseline=shrunk",
    "rloo-3:baseline=fitted",
    "set-3:baseline=fitted",
    "auto",
]
ANY = [*LINEAR, *WEIGHING]
BINARY = ["arm", "disarm"]


def logits_of(rows: int, vocab: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def table_reward(rows: int, vocab: int, seed: int = 1):
    table = torch.randn(rows, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return lambda actions, owners: table[owners, actions]


def constant_reward(actions: Tensor, owners: Tensor) -> Tensor:
    return torch.full(actions.shape, 0.7, dtype=torch.float64)


# Vocabularies of one and two


@pytest.mark.parametrize("name", [name for name in (*ANY, "ars-1") if name != "ars-2"])
def test_a_variable_with_one_value_has_no_gradient(name: str):
    g = estimate_gradient(logits_of(20, 1), table_reward(20, 1), name)
    assert g.shape == (20, 1)
    assert bool((g == 0).all())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_arsm_of_two_actions_is_arm(dtype: torch.dtype, tolerance: float):
    logits, reward = logits_of(2000, 2, dtype=dtype), table_reward(2000, 2)
    arsm, arm = (estimate_gradient(logits, reward, name, seed=3) for name in ("arsm", "arm"))
    assert 0.1 < float((arm != 0).double().mean()) < 0.9
    torch.testing.assert_close(arsm, arm, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(estimate_gradient(logits, reward, "ars", k=2, seed=3), arsm, rtol=0, atol=0)


@pytest.mark.parametrize("name", BINARY)
def test_one_column_is_the_logit_of_action_one(name: str):
    phi = logits_of(500, 1)
    reward = table_reward(500, 2)
    one = estimate_gradient(phi, reward, name)
    two = estimate_gradient(torch.cat([torch.zeros_like(phi), phi], 1), reward, name)
    assert one.shape == (500, 1)
    assert bool((one != 0).any())
    torch.testing.assert_close(one, two[:, 1:], rtol=0, atol=0)
    torch.testing.assert_close(two[:, 0], -two[:, 1], rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", BINARY)
def test_arm_and_disarm_are_their_formulas(name: str):
    phi = logits_of(1000, 1)[:, 0]
    table = torch.randn(1000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = torch.arange(1000)
    keys = Noise(9).keys(rows, MAIN, torch.zeros_like(rows))
    pi = dirichlet(keys, torch.zeros_like(rows), 2, torch.float64)[:, 1]
    true, pseudo = (pi < phi.sigmoid()).long(), (pi > (-phi).sigmoid()).long()
    gap = table[rows, true] - table[rows, pseudo]
    if name == "arm":
        expected = gap * (0.5 - pi)
    else:
        expected = 0.5 * gap * (-1.0) ** pseudo * (true != pseudo) * phi.abs().sigmoid()
    g = estimate_gradient(phi[:, None], lambda actions, owners: table[owners, actions], name, seed=9)
    torch.testing.assert_close(g[:, 0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", BINARY)
def test_binary_estimators_refuse_other_vocabularies(name: str):
    with pytest.raises(InputError, match=r"is for binary variables: V must be 2, not 3; use arsm"):
        estimate_gradient(logits_of(4, 3), constant_reward, name)


# Arithmetic


def ars_twin(logits: Tensor, table: Tensor, seed: int) -> Tensor:
    """ARSM as section 1 of the method writes it: every swap, every reward, no sparseness."""
    rows, vocab = logits.shape
    index = torch.arange(rows)
    keys = Noise(seed).keys(index, MAIN, torch.zeros_like(index))
    pi = dirichlet(keys, torch.zeros_like(keys), vocab, logits.dtype)
    g = torch.zeros_like(logits)
    for j in range(vocab):
        rewards = torch.zeros_like(logits)
        for m in range(vocab):
            swapped = pi.clone()
            swapped[:, j], swapped[:, m] = pi[:, m], pi[:, j]
            rewards[:, m] = table[index, (swapped.log() - logits).argmin(1)]
        g += (rewards - rewards.mean(1, keepdim=True)) * (1 - vocab * pi[:, j, None]) / vocab
    return g


@pytest.mark.parametrize("vocab", [2, 3, 7])
def test_arsm_equals_a_slow_obvious_twin(vocab: int):
    logits = logits_of(300, vocab)
    table = torch.randn(300, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    g = estimate_gradient(logits, lambda actions, owners: table[owners, actions], seed=4)
    torch.testing.assert_close(g, ars_twin(logits, table, seed=4), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("vocab", [3, 6])
def test_ars_with_all_references_is_arsm(vocab: int):
    logits, reward = logits_of(200, vocab), table_reward(200, vocab)
    arsm = estimate_gradient(logits, reward, "arsm", seed=5)
    for other in (
        estimate_gradient(logits, reward, "ars", k=vocab, seed=5),
        estimate_gradient(logits, reward, f"ars-{vocab}", seed=5),
        estimate_gradient(logits, reward, ARS(references=vocab, shared_references=True), seed=5),
    ):
        assert torch.equal(other, arsm)


def test_more_references_than_actions_are_refused():
    with pytest.raises(InputError, match="ARS-4 needs 4 references, but the vocabulary has only 3 actions"):
        estimate_gradient(logits_of(2, 3), constant_reward, "ars", k=4)


@pytest.mark.parametrize("name", ["arsm", "ars-1", "ars-3", "sc", "mc-0", "mc-2", "vine-2", "pairs", *BINARY])
def test_equal_rewards_give_exactly_no_gradient(name: str):
    g = estimate_gradient(logits_of(300, 2 if name in BINARY else 5), constant_reward, name)
    assert bool((g == 0).all())


@pytest.mark.parametrize("name", [*LINEAR, *BINARY])
def test_rewards_enter_linearly(name: str):
    vocab = 2 if name in BINARY else 5
    logits, first, second = logits_of(50, vocab), table_reward(50, vocab, 1), table_reward(50, vocab, 2)
    both = estimate_gradient(logits, lambda a, o: 2 * first(a, o) - 3 * second(a, o), name)
    parts = 2 * estimate_gradient(logits, first, name) - 3 * estimate_gradient(logits, second, name)
    torch.testing.assert_close(both, parts, rtol=1e-9, atol=1e-12)
    assert bool((both != 0).any())


@pytest.mark.parametrize("name", [*ANY, *BINARY])
def test_gradients_of_a_row_sum_to_zero(name: str):
    vocab = 2 if name in BINARY else 5
    g = estimate_gradient(logits_of(100, vocab), table_reward(100, vocab), name)
    assert float(g.sum(1).abs().max()) < 1e-12


# Masks


@pytest.mark.parametrize("name", ANY)
def test_masked_actions_have_exactly_no_gradient(name: str):
    logits = logits_of(300, 6)
    logits[:, 2] = -torch.inf
    logits[:100, 4] = -torch.inf
    reward = table_reward(300, 6)

    def seen(actions: Tensor, owners: Tensor) -> Tensor:
        assert bool(logits[owners, actions].isfinite().all())
        return reward(actions, owners)

    g = estimate_gradient(logits, seen, name)
    assert bool(g.isfinite().all())
    assert bool((g[logits == -torch.inf] == 0).all())
    assert bool((g != 0).any())


@pytest.mark.parametrize("name", ["arsm", "ars-2", "sc", "rloo-3", "mc-1", "rl-beam-4", "vine-1", "pairs", *WEIGHING])
def test_a_row_with_one_possible_action_has_no_gradient(name: str):
    logits = torch.full((5, 4), -torch.inf, dtype=torch.float64)
    logits[:, 1] = 0.0
    g = estimate_gradient(logits, table_reward(5, 4), name)
    assert bool((g == 0).all())


# Types


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*ANY, *BINARY])
def test_the_gradient_has_the_type_of_the_logits(name: str, dtype: torch.dtype):
    vocab = 2 if name in BINARY else 5
    g = estimate_gradient(logits_of(40, vocab, dtype=dtype), table_reward(40, vocab), name)
    assert g.dtype == dtype
    assert g.shape == (40, vocab)
    assert bool(g.isfinite().all())
    assert bool((g != 0).any())


@pytest.mark.parametrize("name", [*ANY, *BINARY])
def test_single_precision_is_close_to_double_precision(name: str):
    vocab = 2 if name in BINARY else 5
    logits = logits_of(500, vocab, dtype=torch.float32)
    single_, double = (estimate_gradient(x, table_reward(500, vocab), name) for x in (logits, logits.double()))
    torch.testing.assert_close(single_.double(), double, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["arsm", "rloo-3", "sc"])
def test_half_precision_is_computed_in_single_precision(name: str):
    logits = logits_of(200, 5, dtype=torch.bfloat16)
    g = estimate_gradient(logits, table_reward(200, 5), name)
    assert torch.equal(g, estimate_gradient(logits.float(), table_reward(200, 5), name).bfloat16())


@pytest.mark.parametrize("name", ["arsm", "rloo-3"])
def test_logits_may_need_a_gradient_and_rewards_may_have_one(name: str):
    logits, weight = logits_of(10, 4), torch.ones((), dtype=torch.float64, requires_grad=True)
    reward = table_reward(10, 4)
    plain = estimate_gradient(logits, reward, name)
    g = estimate_gradient(logits.clone().requires_grad_(), lambda a, o: weight * reward(a, o), name)
    assert torch.equal(g, plain)
    assert not g.requires_grad


def test_rewards_may_be_whole_numbers_or_truth_values():
    logits = logits_of(30, 4)
    whole = estimate_gradient(logits, lambda a, o: a)
    assert torch.equal(whole, estimate_gradient(logits, lambda a, o: a.double()))
    assert bool((estimate_gradient(logits, lambda a, o: a > 1) != 0).any())


# Seeds and rows


@pytest.mark.parametrize("name", [*ANY, *BINARY])
def test_a_seed_fixes_the_estimate(name: str):
    vocab = 2 if name in BINARY else 5
    logits, reward = logits_of(30, vocab), table_reward(30, vocab)
    first, again, other = (estimate_gradient(logits, reward, name, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name == "rl-beam-4")  # which draws nothing


@pytest.mark.parametrize(
    "name", ["arsm", "ars-1", "ars-3", "rloo-2", "rloo-4", "sc", "mc-2", "vine-2", "grpo-2", "set-3"]
)
def test_a_row_does_not_depend_on_the_rows_after_it(name: str):
    logits, reward = logits_of(40, 6), table_reward(40, 6)
    whole = estimate_gradient(logits, reward, name)
    for rows in (1, 7, 39):
        assert torch.equal(estimate_gradient(logits[:rows], reward, name), whole[:rows])


def test_shared_references_are_the_same_in_every_row():
    """With one reference, a row's gradient is a multiple of 1 − Vπ_j: equal logits and rewards tell j."""
    logits = torch.zeros(400, 5, dtype=torch.float64)
    trajectories = single._one_step(logits, ARS(), Noise(0))
    rows, steps = torch.arange(400), torch.zeros(400, dtype=torch.int64)
    shared, own = (
        ARS(references=1, shared_references=together)._references(trajectories, Noise(0), rows, steps, 5)
        for together in (True, False)
    )
    assert len(shared.unique()) == 1
    assert len(own.unique()) == 5


@pytest.mark.parametrize("name", [*ANY, *BINARY, "ars-1"])
def test_an_empty_batch_has_an_empty_gradient(name: str):
    def never(actions: Tensor, owners: Tensor) -> Tensor:
        raise AssertionError("there is nothing to reward")

    for dtype in (torch.float32, torch.bfloat16):
        g = estimate_gradient(torch.zeros(0, 2, dtype=dtype), never, name)
        assert g.shape == (0, 2)
        assert g.dtype == dtype


# What is refused


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["arsm", "rloo"])
def test_logits_that_are_no_numbers_are_refused(name: str, bad: float):
    logits = logits_of(5, 3)
    logits[3, 1] = bad
    with pytest.raises(InputError, match=r"the logits of row 3 contain NaN or \+inf, or are all −inf"):
        estimate_gradient(logits, constant_reward, name)
    logits[3] = -torch.inf
    with pytest.raises(InputError, match="the logits of row 3 contain"):
        estimate_gradient(logits, constant_reward, name)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(4), r"logits must be of shape \[rows, V\] with V ≥ 1, not \[4\]"),
        (torch.zeros(2, 3, 4), r"logits must be of shape .* not \[2, 3, 4\]"),
        (torch.zeros(4, 0), r"logits must be of shape .* not \[4, 0\]"),
        (torch.zeros(4, 2, dtype=torch.int64), r"logits must be floating-point numbers, not torch.int64"),
    ],
)
def test_logits_of_another_kind_are_refused(logits: Tensor, message: str):
    with pytest.raises(InputError, match=message):
        single._check_logits(logits)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rewards_that_are_no_numbers_are_refused(bad: float):
    def reward(actions: Tensor, owners: Tensor) -> Tensor:
        values = torch.zeros(len(actions))
        values[2] = bad
        return values

    with pytest.raises(RewardError, match="the reward of action number 2 is NaN or infinite"):
        estimate_gradient(logits_of(5, 3), reward)


def test_rewards_of_another_shape_are_refused():
    for shape in ((), (1,), (4,), (5, 1)):
        message = rf"the reward of 5 actions must be of shape \[5\], not \[{', '.join(map(str, shape))}\]"
        with pytest.raises(RewardError, match=message):
            estimate_gradient(logits_of(5, 3), lambda a, o, shape=shape: torch.zeros(shape), "reinforce")


# Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("arsm", ARS()),
        ("ARSM", ARS()),
        (" arsm ", ARS()),
        ("ars", ARS(references=1)),
        ("ars-k", ARS(references=1)),
        ("ars-20", ARS(references=20)),
        ("ars_20", ARS(references=20)),
        ("ARS 20", ARS(references=20)),
        ("ars20", ARS(references=20)),
        ("arm", ARM()),
        ("DisARM", DisARM()),
        ("reinforce", Reinforce()),
        ("reinforce-2", Reinforce(samples=2)),
        ("rloo", RLOO()),
        ("rloo-8", RLOO(samples=8)),
        ("sc", SelfCritic()),
        ("self-critic", SelfCritic()),
        ("self_critic", SelfCritic()),
        ("scst", SelfCritic()),
        ("sc-3", SelfCritic(samples=3)),
        ("scst-3", SelfCritic(samples=3)),
        ("mc", MonteCarlo()),
        ("mc-k", MonteCarlo()),
        ("mc-0", MonteCarlo(completions=0)),
        ("MC-2", MonteCarlo(completions=2)),
        ("td-scst", MonteCarlo(completions=0)),
        ("rl-beam", BeamExpectation()),
        ("RL_beam", BeamExpectation()),
        ("beam-8", BeamExpectation(size=8)),
        ("rl_beam_8", BeamExpectation(size=8)),
        ("grpo", GRPO()),
        ("grpo-4", GRPO(samples=4)),
        ("vine", Vine()),
        ("vine-3", Vine(completions=3)),
        ("set-3", UnorderedSet(size=3)),
        ("pairs", Pairs()),
        ("pairs-2", Pairs(per_step=2)),
        ("auto", Auto()),
    ],
)
def test_estimators_have_names(name: str, expected: Estimator):
    assert make_estimator(name) == expected
    assert type(make_estimator(name)) is type(expected)


def test_every_listed_name_makes_an_estimator():
    assert len(set(NAMES)) == len(NAMES) >= 9
    assert len({repr(make_estimator(name)) for name in NAMES}) == len(NAMES)


def test_a_number_can_be_given_apart_from_the_name():
    assert make_estimator("ars", k=7) == make_estimator("ars-7") == make_estimator("ars-7", k=7)
    assert make_estimator("rloo", k=3) == RLOO(samples=3)
    assert make_estimator("mc", k=0) == make_estimator("mc-0")
    assert make_estimator("rl-beam", k=9) == BeamExpectation(size=9)


def test_options_are_the_fields_of_the_class():
    estimator = make_estimator("ars-3", completions=2, budget=10, budget_per="example", samples=4, main="greedy")
    assert estimator == ARS(references=3, completions=2, budget=10, budget_per="example", samples=4, main="greedy")
    assert make_estimator("reinforce", baseline="none") == Reinforce(baseline="none")
    assert make_estimator("ars", references=6) == ARS(references=6)


@pytest.mark.parametrize("name", ["", "ppo", "arsn", "ars-x", "20", "-3", "arsm--4", "ars-2.5", "ars--2"])
def test_unknown_names_are_refused(name: str):
    with pytest.raises(InputError, match=r"^there is no estimator '.*'; there are arsm, ars, .*, auto, with a number"):
        make_estimator(name)


@pytest.mark.parametrize(
    ("name", "k", "options", "message"),
    [
        ("ars-20", 5, {}, "the estimator is called 'ars-20', but k = 5 was asked for: leave one of the two out"),
        ("td-scst", 2, {}, "the estimator is called 'td-scst', but k = 2 was asked for"),
        ("arm-2", None, {}, "arm takes no number k"),
        ("disarm", 2, {}, "disarm takes no number k"),
        ("arsm", None, {"size": 3}, "arsm has no option 'size'; it has main, pseudo, completions"),
        ("rloo", None, {"budget": 3}, "rloo has no option 'budget'; it has samples"),
        ("arm", None, {"references": 3}, "arm has no option 'references'; it has samples"),
        ("ars-5", None, {"references": 7}, "ars-5.*7|references"),
        ("rloo", 8, {"samples": 4}, "8.*4|samples"),
        ("mc-2", None, {"completions": 3}, "mc-2.*3|completions"),
    ],
)
def test_numbers_and_options_that_do_not_fit_are_refused(
    name: str, k: int | None, options: dict[str, Any], message: str
):
    with pytest.raises(InputError, match=message):
        make_estimator(name, k, **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ARS, {"references": 0}),
        (ARS, {"completions": 0}),
        (ARS, {"budget": 0}),
        (ARS, {"samples": 0}),
        (ARS, {"samples": -3}),
        (ARM, {"samples": 0}),
        (DisARM, {"samples": 0}),
        (Reinforce, {"samples": 0}),
        (RLOO, {"samples": 1}),
        (RLOO, {"samples": 0}),
        (SelfCritic, {"samples": 0}),
        (MonteCarlo, {"samples": 0}),
        (MonteCarlo, {"completions": -1}),
        (BeamExpectation, {"size": 0}),
        (BeamExpectation, {"size": 1}),
        (GRPO, {"samples": 1}),
        (Vine, {"completions": 0}),
        (Vine, {"samples": 1}),
        (Auto, {"every": 0}),
        (Auto, {"estimates": 1}),
    ],
)
def test_counts_that_are_too_small_are_refused(kind: type, options: dict[str, Any]):
    ((option, value),) = options.items()
    with pytest.raises(InputError, match=f"needs {option} ≥ [012], not {value}"):
        kind(**options)


@pytest.mark.parametrize(
    "name", ["ars-0", "arsm-0", "rloo-1", "rloo-0", "sc-0", "rl-beam-1", "reinforce-0", "grpo-1", "vine-0"]
)
def test_numbers_in_names_that_are_too_small_are_refused(name: str):
    with pytest.raises(InputError, match=r"needs \w+ ≥ [12]"):
        make_estimator(name)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ARS, {"main": "beam"}, 'ARS needs main to be "sample" or "greedy", not \'beam\''),
        (ARS, {"pseudo": "argmax"}, 'ARS needs pseudo to be "sample" or "greedy"'),
        (ARS, {"budget_per": "step"}, 'budget_per must be "update" or "example", not \'step\''),
        (
            Reinforce,
            {"baseline": "mean"},
            'REINFORCE needs baseline "others", "batch", "none", "shrunk" or "fitted", not \'mean\'',
        ),
        (RLOO, {"baseline": "mean"}, 'RLOO needs baseline "others", "shrunk" or "fitted", not \'mean\''),
        (UnorderedSet, {"baseline": "own"}, 'a set needs baseline "set" or "fitted", not \'own\''),
    ],
)
def test_words_that_mean_nothing_are_refused(kind: type, options: dict[str, str], message: str):
    # Type checks of the tests would refuse them before; a user's program has none.
    wanted = kind()
    for option, value in options.items():
        object.__setattr__(wanted, option, value)
    with pytest.raises(InputError, match=message):
        wanted.__post_init__()


# Options


def plan_of(estimator: ARS, batch: int = 30, seed: int = 0) -> tuple[ContrastPlan, Tensor]:
    """A plan for a batch of sequences, and the context of each of its branches."""
    problem = Problem.make(vocab=6, length=4, seed=2)
    engine, noise = problem.engine(), Noise(seed)
    contexts = torch.zeros(batch, dtype=torch.int64)
    trajectories = engine.sample(contexts, torch.arange(batch), estimator.sampler, noise).trajectories
    plan = estimator.plan(trajectories, noise)
    return plan, trajectories.contexts[plan.branches.parent]


def codes(branches: Branches) -> set[tuple[int, ...]]:
    columns = (branches.parent, branches.step, branches.token, branches.copy)
    return {*zip(*(column.tolist() for column in columns), strict=True)}


@pytest.mark.parametrize("budget", [1, 2, 17, 60])
@pytest.mark.parametrize("options", [{}, {"references": 2}, {"samples": 3}])
def test_a_plan_has_exactly_the_branches_of_its_budget(budget: int, options: dict[str, Any]):
    free, _ = plan_of(ARS(**options))
    assert len(free.branches) > 60
    for seed in range(5):
        free, _ = plan_of(ARS(**options), seed=seed)
        plan, _ = plan_of(ARS(**options, budget=budget), seed=seed)
        assert len(plan.branches) == budget
        assert len(codes(plan.branches)) == budget
        assert codes(plan.branches) <= codes(free.branches)


@pytest.mark.parametrize("budget", [1, 3, 8])
def test_a_budget_for_each_example_is_spent_on_each(budget: int):
    free, owner = plan_of(ARS())
    plan, of_plan = plan_of(ARS(budget=budget, budget_per="example"))
    assert of_plan.bincount(minlength=30).tolist() == owner.bincount(minlength=30).clamp(max=budget).tolist()
    assert codes(plan.branches) <= codes(free.branches)
    assert len(plan.branches) < len(free.branches)


def test_what_an_example_keeps_of_its_own_budget_does_not_depend_on_the_batch():
    estimator = ARS(budget=3, budget_per="example")
    (small, _), (large, owner) = plan_of(estimator, batch=7), plan_of(estimator, batch=30)
    assert codes(small.branches) == codes(large.branches.select((owner < 7).nonzero().squeeze(1)))


@pytest.mark.parametrize("budget_per", ["update", "example"])
@pytest.mark.parametrize("options", [{}, {"references": 2, "samples": 2}, {"completions": 2}])
def test_a_sufficient_budget_changes_nothing(budget_per: Any, options: dict[str, Any]):
    problem = Problem.make(vocab=4, length=3, seed=1)
    estimator = ARS(**options)
    limited = replace(estimator, budget=10**6, budget_per=budget_per)
    for share_noise in (True, False):
        free, _ = problem.estimates(estimator, 50, seed=3, share_noise=share_noise)
        same, _ = problem.estimates(limited, 50, seed=3, share_noise=share_noise)
        assert bool((free != 0).any())
        assert torch.equal(free, same)
    logits, reward = logits_of(40, 5), table_reward(40, 5)
    assert torch.equal(estimate_gradient(logits, reward, limited), estimate_gradient(logits, reward, estimator))


def test_a_budget_that_is_just_enough_changes_nothing():
    free, _ = plan_of(ARS())
    same, _ = plan_of(ARS(budget=len(free.branches)))
    assert codes(same.branches) == codes(free.branches)
    assert torch.equal(same.weight, free.weight)
    less, _ = plan_of(ARS(budget=len(free.branches) - 1))
    assert len(less.branches) == len(free.branches) - 1


def test_kept_branches_are_reweighted():
    """The mean over many budgets' starts of what is kept, reweighted, is the estimate without a budget."""
    logits, reward = logits_of(3, 6), table_reward(3, 6)
    trajectories = single._one_step(logits, ARS(), Noise(0))

    def gradient(estimator: ARS, budget_seed: int) -> Tensor:
        plan = estimator.plan(trajectories, Noise(budget_seed))
        tokens = torch.cat([trajectories.tokens[:, 0], plan.branches.token])
        owners = torch.cat([trajectories.contexts, plan.branches.parent])
        return plan.gradient(reward(tokens, owners), logits[:, None])[:, 0]

    exact = gradient(ARS(), 0)
    kept = torch.stack([gradient(ARS(budget=2), seed) for seed in range(600)])
    assert len(ARS().plan(trajectories, Noise(0)).branches) > 2
    error = kept.std(0) / 600**0.5
    # 18 comparisons, each beyond 6.8 standard errors with probability 1e-11.
    assert bool(((kept.mean(0) - exact).abs() <= 6.8 * error + 1e-12).all())


def test_completions_repeat_every_branch():
    once, _ = plan_of(ARS())
    thrice, _ = plan_of(ARS(completions=3))
    assert len(thrice.branches) == 3 * len(once.branches)
    assert codes(thrice.branches) == {(*code[:3], copy) for code in codes(once.branches) for copy in range(3)}
    logits, reward = logits_of(40, 5), table_reward(40, 5)
    g = estimate_gradient(logits, reward, ARS(completions=3))
    torch.testing.assert_close(g, estimate_gradient(logits, reward, ARS()), rtol=1e-12, atol=1e-14)


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
    """The mean of three independent estimates has the same mean as one and a third of its variance."""
    rows, vocab = 6000, 2 if isinstance(one, ARM) else 4
    logits = logits_of(1, vocab).expand(rows, -1)
    table = torch.randn(vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    a, b = (estimate_gradient(logits, lambda actions, owners: table[actions], method) for method in (one, several))
    error = (a.var(0) / rows + b.var(0) / rows).sqrt()
    assert float(((a.mean(0) - b.mean(0)) / error).abs().max()) < 6.8
    ratio = float(b.var(0).sum() / a.var(0).sum())
    assert 0.27 < ratio < 0.41


@pytest.mark.parametrize("options", [{"main": "greedy"}, {"pseudo": "greedy"}, {"main": "greedy", "pseudo": "greedy"}])
def test_greedy_options_are_obeyed(options: dict[str, Any]):
    estimator = ARS(**options)
    plan, _ = plan_of(estimator)
    assert bool((plan.branches.greedy == (estimator.pseudo == "greedy")).all())
    assert len(plan.branches) > 0
    assert estimator.sampler.mode == estimator.main
    logits = logits_of(40, 5)
    trajectories = single._one_step(logits, estimator, Noise(0))
    follows = trajectories.tokens[:, 0] == logits.argmax(1)
    assert bool(follows.all()) == (estimator.main == "greedy")
    assert bool(estimate_gradient(logits, table_reward(40, 5), estimator).isfinite().all())


def test_self_critic_needs_no_branch_where_the_greedy_action_was_drawn():
    logits = logits_of(500, 4)
    trajectories = single._one_step(logits, SelfCritic(), Noise(0))
    plan = SelfCritic().plan(trajectories, Noise(0))
    away = (trajectories.tokens[:, 0] != logits.argmax(1)).nonzero().squeeze(1)
    assert plan.branches.parent.tolist() == away.tolist()
    assert torch.equal(plan.branches.token, logits.argmax(1)[away])
    assert 0 < len(away) < 500


def test_reinforce_has_the_baseline_that_it_names():
    logits = logits_of(6, 3)
    trajectories = single._one_step(logits, Reinforce(), Noise(0))
    rewards = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], dtype=torch.float64)
    action = trajectories.tokens[:, 0]
    score = torch.nn.functional.one_hot(action, 3) - logits.softmax(1)
    baselines = {"none": torch.zeros(6), "batch": rewards.mean().expand(6), "others": (rewards.sum() - rewards) / 5}
    for name, baseline in baselines.items():
        plan = make_estimator("reinforce", baseline=name).plan(trajectories, Noise(0))
        g = plan.gradient(rewards, logits[:, None])[:, 0]
        torch.testing.assert_close(g, (rewards - baseline)[:, None] * score)


def test_one_sequence_alone_has_no_baseline():
    logits = logits_of(1, 3)
    trajectories = single._one_step(logits, Reinforce(), Noise(0))
    g = Reinforce().plan(trajectories, Noise(0)).gradient(torch.tensor([3.0]).double(), logits[:, None])[:, 0]
    score = torch.nn.functional.one_hot(trajectories.tokens[:, 0], 3) - logits.softmax(1)
    torch.testing.assert_close(g, 3 * score)


def test_the_beam_gives_the_gradient_of_the_expectation_on_the_beam():
    logits = logits_of(20, 5).requires_grad_()
    table = torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for size in (2, 3, 5, 9):
        kept = logits.topk(min(size, 5), 1).indices
        q = logits.gather(1, kept).softmax(1)
        (expected,) = torch.autograd.grad((q * table.gather(1, kept)).sum(), logits)
        g = estimate_gradient(logits, lambda a, o: table[o, a], "rl-beam", k=size)
        torch.testing.assert_close(g, expected, rtol=1e-10, atol=1e-12)


# Sets of one variable's actions


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
    gap = (g.mean(0) - exact_gradient(logits[:1], table)[0]).abs()
    assert 1e-3 < float(error.max()) < 0.03
    # Five comparisons, each beyond 6.8 standard errors with probability 1e-11.
    assert bool((gap <= 6.8 * error).all())


@pytest.mark.parametrize("name", ["set-5", "set-64", "set-64:baseline=fitted"])
def test_a_set_of_all_actions_gives_the_exact_gradient(name: str):
    """Whatever the baseline: over everything, Σ p ∇ log p = 0."""
    logits, table = logits_of(30, 5), table_reward(30, 5)
    logits[:10, 2] = -torch.inf
    logits[0, 1:] = -torch.inf
    every = table(torch.arange(5).repeat(30), torch.arange(30).repeat_interleave(5)).view(30, 5)
    g = estimate_gradient(logits, table, name)
    torch.testing.assert_close(g, exact_gradient(logits, every), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_actions_of_a_set_are_those_that_the_engine_draws(dtype: torch.dtype):
    problem = Problem.make(vocab=6, length=1, seed=4)
    noise, examples = Noise(3), torch.arange(50)
    wanted = problem.engine().sample(torch.zeros_like(examples), examples, UnorderedSet(4).sampler, noise).trajectories
    logits = problem.policy.table.detach().expand(50, -1).to(dtype)
    found = single._one_step(logits, UnorderedSet(4), noise)
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert len({tuple(row) for row in found.tokens.view(50, 4).tolist()}) > 20
    for name in ("contexts", "samples", "keys"):
        assert torch.equal(getattr(found, name), getattr(wanted, name))
    torch.testing.assert_close(found.log_probs, wanted.log_probs, rtol=1e-6, atol=0)
