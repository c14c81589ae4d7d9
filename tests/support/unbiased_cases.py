"""Every unbiased estimator with its options on small problems, and the test that each must pass.

A case draws many independent estimates and compares their mean with the exact gradient, coordinate by coordinate and
along the exact gradient, in units of the mean's standard error. With fewer than 10⁴ comparisons in all and the limit of
6.5, the probability that any correct estimator fails is below 10⁴ · 8·10⁻¹¹ < 10⁻⁶.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor

from corollout.estimators import (
    ARM,
    ARS,
    RLOO,
    BinaryTreeARSM,
    BinaryTreeDisARM,
    DisARM,
    Estimator,
    MonteCarlo,
    Pairs,
    Reinforce,
    SelfCritic,
    UnorderedSet,
    Vine,
)
from tests.support.enumeration import Problem
from tests.support.tree_problems import confident_words, words_of_five

LIMIT = 6.5
MOST_COMPARISONS = 10_000


@dataclass(frozen=True)
class Case:
    """An estimator on a problem. Each context gives one estimate; where contexts are coupled, the mean over a batch of
    ``group`` contexts is one estimate. With ``split``, batches are sampled together and compared separately.
    """

    name: str
    estimator: Estimator
    problem: Callable[[], Problem]
    estimates: int = 40_000
    group: int = 0
    split: bool = False
    engine: dict[str, bool] = field(default_factory=dict)

    def short(self) -> "Case":
        """The same with fewer estimates, which show a large bias."""
        return replace(self, estimates=self.estimates // 8 // max(self.group, 1) * max(self.group, 1))

    def draw(self, seed: int = 1) -> Tensor:
        """Independent estimates of the gradient: [estimate, prefix, V]."""
        problem = self.problem()
        if not self.group:
            return problem.estimates(self.estimator, self.estimates, seed, **self.engine)[0]
        if self.split:
            g = problem.estimates(self.estimator, self.estimates, seed, self.group, **self.engine)[0]
            return g.unflatten(0, (-1, self.group)).mean(1)
        repeats = range(self.estimates // self.group)
        return torch.stack(
            [problem.estimates(self.estimator, self.group, 1000 * seed + i, **self.engine)[0].mean(0) for i in repeats]
        )

    def deviations(self, seed: int = 1) -> Tensor:
        """The distance of the mean from the exact gradient in standard errors, for every comparison."""
        g = self.draw(seed).flatten(1)
        exact = self.problem().exact_gradient().flatten()
        along = g @ exact / exact.norm()
        g, exact = torch.cat([g, along[:, None]], 1), torch.cat([exact, exact.norm()[None]])
        error = g.std(0) / len(g) ** 0.5
        gap = (g.mean(0) - exact).abs()
        # Without noise, the mean must be exact up to rounding.
        return torch.where(error > 1e-12, gap / error, torch.where(gap < 1e-9, 0.0, torch.inf))


@cache
def three_of_four() -> Problem:
    """T = 3, V = 4."""
    return Problem.make(vocab=4, length=3, seed=0)


@cache
def two_of_three() -> Problem:
    """T = 2, V = 3, more confident."""
    return Problem.make(vocab=3, length=2, scale=1.5, seed=3)


@cache
def masked() -> Problem:
    """T = 2, V = 4, one token masked everywhere."""
    return Problem.make(vocab=4, length=2, seed=5, masked=True)


@cache
def bits() -> Problem:
    """T = 3, V = 2."""
    return Problem.make(vocab=2, length=3, scale=0.7, seed=7)


_own = {"share_noise": False}
_gaps = 50 * torch.rand(2, 64, generator=torch.Generator().manual_seed(11), dtype=torch.float64)

CASES = [
    Case("arsm", ARS(), three_of_four),
    Case("arsm-own-noise", ARS(noise="own"), three_of_four),
    Case("arsm-masked", ARS(), masked),
    Case("arsm-two-samples", ARS(samples=2), two_of_three, 30_000),
    Case("arsm-three-completions", ARS(completions=3), three_of_four, 20_000),
    Case("arsm-three-completions-own-noise", ARS(completions=3), three_of_four, 20_000, engine=_own),
    Case("ars-1", ARS(references=1), three_of_four),
    Case("ars-1-shared", ARS(references=1, shared_references=True), two_of_three, 12_800, group=16),
    Case("ars-2", ARS(references=2), three_of_four),
    Case("ars-3-own-noise", ARS(references=3, noise="own"), three_of_four),
    Case("ars-2-masked", ARS(references=2), masked),
    Case("arsm-budget-1-each", ARS(budget=1, budget_per="example"), two_of_three, 7_000),
    Case("arsm-budget-2-each", ARS(budget=2, budget_per="example"), three_of_four, 7_000),
    Case("arsm-budget-update", ARS(budget=20), two_of_three, 12_800, group=16),
    Case(
        "ars-2-budget-completions",
        ARS(references=2, budget=2, budget_per="example", completions=2),
        three_of_four,
        7_000,
    ),
    Case("arsm-budget-two-samples", ARS(budget=3, budget_per="example", samples=2), two_of_three, 7_000),
    Case("arsm-4-draws", ARS(draws=4), three_of_four, 10_000),
    Case("ars-2-3-draws", ARS(references=2, draws=3, samples=2), two_of_three, 10_000),
    Case("arsm-4-draws-masked", ARS(draws=4), masked, 16_000),
    Case("arsm-4-draws-budget", ARS(draws=4, budget=2, budget_per="example"), two_of_three, 2_400),
    Case("arsm-bits", ARS(), bits),
    Case("arm", ARM(), bits),
    Case("arm-own-noise", ARM(), bits, engine=_own),
    Case("arm-two-samples", ARM(samples=2), bits, 20_000),
    Case("disarm", DisARM(), bits),
    Case("disarm-own-noise", DisARM(noise="own"), bits),
    Case("disarm-two-samples", DisARM(samples=2), bits, 20_000),
    Case("reinforce-others", Reinforce(), two_of_three, 40_000, group=4, split=True),
    Case("reinforce-others-two-samples", Reinforce(samples=2), two_of_three, 40_002, group=3, split=True),
    Case("reinforce-plain", Reinforce(baseline="none"), three_of_four),
    Case("reinforce-alone", Reinforce(), two_of_three, 40_000, group=1, split=True),
    Case("reinforce-batches", Reinforce(), two_of_three, 6_000, group=4),
    Case("rloo-2", RLOO(samples=2), three_of_four),
    Case("rloo-5", RLOO(samples=5), two_of_three, 20_000),
    Case("self-critic", SelfCritic(), three_of_four),
    Case("self-critic-two-samples", SelfCritic(samples=2), two_of_three),
    Case("mc-0", MonteCarlo(completions=0), three_of_four),
    Case("mc-1", MonteCarlo(completions=1), three_of_four),
    Case("mc-2", MonteCarlo(completions=2), three_of_four),
    Case("mc-3-own-noise", MonteCarlo(completions=3, noise="own"), three_of_four),
    Case("mc-2-two-samples", MonteCarlo(completions=2, samples=2), two_of_three, 20_000),
    Case("pairs", Pairs(per_step=100), three_of_four, 20_000),
    Case("pairs-own-noise", Pairs(per_step=100, noise="own"), three_of_four, 20_000),
    Case("pairs-1-each", Pairs(budget=1, budget_per="example"), two_of_three, 5_000),
    Case("pairs-per-step", Pairs(per_step=0.5), two_of_three, 9_600, group=16),
    Case("pairs-two-samples", Pairs(samples=2, completions=2, per_step=100), two_of_three, 20_000),
    Case("pairs-masked", Pairs(per_step=100), masked, 20_000),
    Case("pairs-learned", Pairs(budget=2, budget_per="example", gaps=_gaps), two_of_three, 5_000),
    Case("bt-pairs", Pairs(per_step=100), words_of_five, 20_000),
    Case("bt-pairs-1-each", Pairs(budget=1, budget_per="example"), words_of_five, 7_000),
    Case("set-2", UnorderedSet(size=2), three_of_four),
    Case("set-5", UnorderedSet(size=5), three_of_four, 20_000),
    Case("set-4-masked", UnorderedSet(size=4), masked, 20_000),
    Case("set-9-everything", UnorderedSet(size=9), two_of_three, 4_000),
    Case("set-3-small-support", UnorderedSet(size=3), two_of_three, 20_000),
    Case("bt-set-2", UnorderedSet(size=2), words_of_five, 20_000),
    Case("bt-set-6", UnorderedSet(size=6), words_of_five, 20_000),
    Case("set-3-fitted", UnorderedSet(size=3, baseline="fitted"), masked, 2_400, group=4, split=True),
    Case("bt-set-2-fitted", UnorderedSet(size=2, baseline="fitted"), words_of_five, 2_400, group=3, split=True),
    Case("rloo-2-shrunk", RLOO(samples=2, baseline="shrunk"), two_of_three, 2_000, group=4, split=True),
    Case("rloo-3-fitted", RLOO(samples=3, baseline="fitted"), two_of_three, 2_000, group=4, split=True),
    Case("rloo-2-fitted-pairs", RLOO(samples=2, baseline="fitted"), two_of_three, 2_000, group=2, split=True),
    Case("reinforce-shrunk", Reinforce(baseline="shrunk"), two_of_three, 2_000, group=4, split=True),
    Case("reinforce-fitted", Reinforce(baseline="fitted"), two_of_three, 2_000, group=4, split=True),
    Case("bt-rloo-2-fitted", RLOO(samples=2, baseline="fitted"), words_of_five, 1_500, group=3, split=True),
    Case("vine-1", Vine(completions=1), three_of_four, 20_000),
    Case("vine-2", Vine(completions=2, samples=3), two_of_three, 20_000),
    Case("vine-1-own-noise", Vine(completions=1, noise="own"), three_of_four, 20_000),
    Case("bt-vine-2", Vine(completions=2), words_of_five, 20_000),
    Case("bt-arsm", BinaryTreeARSM(), words_of_five),
    Case("bt-arsm-own-noise", BinaryTreeARSM(noise="own"), words_of_five),
    Case("bt-arsm-confident", BinaryTreeARSM(), confident_words),
    Case("bt-arsm-two-samples", BinaryTreeARSM(samples=2), words_of_five, 20_000),
    Case("bt-arsm-three-completions", BinaryTreeARSM(completions=3), words_of_five, 20_000),
    Case("bt-arsm-budget-1-each", BinaryTreeARSM(budget=1, budget_per="example"), words_of_five, 8_000),
    Case("bt-arsm-budget-update", BinaryTreeARSM(budget=20), words_of_five, 12_800, group=16),
    Case("bt-disarm", BinaryTreeDisARM(), words_of_five),
    Case("bt-disarm-own-noise", BinaryTreeDisARM(noise="own"), confident_words),
    Case("bt-disarm-engine-without-shared-noise", BinaryTreeDisARM(), confident_words, engine=_own),
    Case("bt-disarm-two-samples", BinaryTreeDisARM(samples=2, completions=2), words_of_five, 20_000),
    Case("bt-disarm-budget-1-each", BinaryTreeDisARM(budget=1, budget_per="example"), words_of_five, 8_000),
    Case("bt-reinforce-others", Reinforce(), words_of_five, 40_000, group=4, split=True),
    Case("bt-reinforce-plain", Reinforce(baseline="none"), words_of_five),
    Case("bt-rloo-3", RLOO(samples=3), words_of_five, 20_000),
    Case("bt-self-critic", SelfCritic(), words_of_five),
    Case("bt-self-critic-confident", SelfCritic(), confident_words),
    Case("bt-mc-0", MonteCarlo(completions=0), words_of_five),
    Case("bt-mc-2", MonteCarlo(completions=2), words_of_five, 20_000),
]
BY_NAME = {case.name: case for case in CASES}
