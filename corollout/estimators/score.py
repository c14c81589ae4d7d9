"""Score-function estimators: an advantage for each token times e_z − p. The paper's baselines, and RLOO."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.baselines import Evidence
from corollout.estimators.plans import ContrastPlan, Fitting, GroupPlan, SetPlan, by_context
from corollout.noise import Noise
from corollout.types import Branches, Sampler, Trajectories


@dataclass(frozen=True)
class Reinforce(Fitting):
    """REINFORCE with the mean reward of the batch as the baseline (Williams 1992).

    ``baseline="others"`` leaves a sequence's own reward out of the mean, which makes it unbiased; "batch" is the
    plain batch mean, which shrinks the expected gradient by 1 − 1/B; "none" has no baseline; "shrunk" and "fitted" are
    as for RLOO.
    """

    baseline: Literal["others", "batch", "none", "shrunk", "fitted"] = "others"
    samples: int = 1

    def __post_init__(self) -> None:
        _one_of("REINFORCE", self.baseline, ("others", "batch", "none", "shrunk", "fitted"))
        _at_least("REINFORCE", "samples", self.samples, 1)

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> GroupPlan | SetPlan:
        if self.baseline == "shrunk" or self.baseline == "fitted":
            return _compared(trajectories, self.samples, self.baseline, self.past)
        share = torch.zeros_like(trajectories.log_probs) if self.baseline == "none" else _ones(trajectories)
        return GroupPlan(
            trajectories,
            group=torch.zeros_like(trajectories.contexts),
            share=share,
            weight=_ones(trajectories) / self.samples,
            leave_one_out=self.baseline == "others",
        )


@dataclass(frozen=True)
class RLOO(Fitting):
    """REINFORCE leave-one-out: each of a context's sequences has the mean reward of the others as its baseline
    (Kool, van Hoof, Welling 2019). Unbiased.

    ``baseline="shrunk"`` moves that mean towards the other contexts' (James and Stein), "fitted" is the combination of
    a constant and that mean which gives the least variance; both are chosen by other contexts only, and unbiased.
    """

    samples: int = 4
    baseline: Literal["others", "shrunk", "fitted"] = "others"

    def __post_init__(self) -> None:
        _one_of("RLOO", self.baseline, ("others", "shrunk", "fitted"))
        _at_least("RLOO", "samples", self.samples, 2)

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> GroupPlan | SetPlan:
        if self.baseline != "others":
            return _compared(trajectories, self.samples, self.baseline, self.past)
        ones = _ones(trajectories)
        return GroupPlan(
            trajectories, group=trajectories.contexts, share=ones, weight=ones / self.samples, leave_one_out=True
        )


@dataclass(frozen=True)
class GRPO:
    """The advantages of GRPO: rewards less their context's mean, divided by its standard deviation (Shao et al. 2024).

    Biased: contexts count the more, the less their rewards differ; and the mean, a sequence's own reward included,
    shrinks all by 1 − 1/samples.
    """

    samples: int = 8

    def __post_init__(self) -> None:
        _at_least("GRPO", "samples", self.samples, 2)

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> GroupPlan:
        ones = _ones(trajectories)
        return GroupPlan(
            trajectories,
            group=trajectories.contexts,
            share=ones,
            weight=ones / self.samples,
            leave_one_out=False,
            normalised=True,
        )


@dataclass(frozen=True)
class BeamExpectation:
    """RL_beam: the gradient of Σ_s q_s r_s over a beam, q being the probabilities of its sequences renormalised
    (Bunel et al. 2018): q_s (r_s − Σ q r) ∇ log p_s.

    Biased: it follows the expected reward on the beam, not the policy's; without variance, given the policy.
    """

    size: int = 64

    def __post_init__(self) -> None:
        _at_least("RL_beam", "size", self.size, 2)

    @property
    def sampler(self) -> Sampler:
        return Sampler("beam", self.size)

    def plan(self, trajectories: Trajectories, noise: Noise) -> GroupPlan:
        group, log_probs = trajectories.contexts, trajectories.log_probs
        groups = int(group.max()) + 1 if len(group) else 0
        highest = log_probs.new_full((groups,), -torch.inf).scatter_reduce(0, group, log_probs, "amax")
        mass = (log_probs - highest[group]).exp()
        share = mass / mass.new_zeros(groups).index_add(0, group, mass)[group]
        return GroupPlan(trajectories, group, share=share, weight=share, leave_one_out=False)


@dataclass(frozen=True)
class SelfCritic:
    """Self-critical sequence training: the reward of the greedy sequence is the baseline (Rennie et al. 2017).

    Unbiased. The greedy sequence is rolled out from where the sampled one first leaves it.
    """

    samples: int = 1

    def __post_init__(self) -> None:
        _at_least("self-critic", "samples", self.samples, 1)

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        baseline, branches = _greedy_baselines(trajectories, first_only=True)
        rows, steps = trajectories.mask.nonzero(as_tuple=True)
        return ContrastPlan(
            branches=branches,
            row=rows,
            step=steps,
            token=trajectories.tokens[rows, steps],
            plus=rows,
            minus=baseline[rows, 0],
            weight=_ones(trajectories)[rows] / self.samples,
            centre="policy",
            decisions=trajectories.decisions,
        )


@dataclass(frozen=True)
class MonteCarlo:
    """MC-K: token-level rewards, the mean of K independent completions of z_{1:t}, against token-level greedy
    baselines, the reward of the greedy completion of z_{1:t−1} (Liu et al. 2017). Unbiased.

    MC-0 takes the whole sequence's reward in place of the token-level ones (TD-SCST of Rennie et al. 2017). The last
    token needs no completion: its reward is the sequence's own.
    """

    completions: int = 2
    samples: int = 1

    def __post_init__(self) -> None:
        _at_least("MC-K", "completions", self.completions, 0)
        _at_least("MC-K", "samples", self.samples, 1)

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        baseline, greedy = _greedy_baselines(trajectories, first_only=False)
        rows, steps = trajectories.mask.nonzero(as_tuple=True)
        tokens = trajectories.tokens[rows, steps]
        copies = max(self.completions, 1)
        plus = rows.repeat(copies)
        branches = [greedy]
        if self.completions:
            inner = (steps < trajectories.lengths[rows] - 1).nonzero().squeeze(1)
            first = len(trajectories.tokens) + len(greedy)
            for copy in range(copies):
                # Copy 0 would share its parent's noise, and be its parent over again.
                branches.append(Branches.of(rows[inner], steps[inner], tokens[inner], copy=copy + 1))
                number = torch.arange(len(inner), device=inner.device)
                plus[copy * len(rows) + inner] = first + copy * len(inner) + number
        return ContrastPlan(
            branches=Branches.join(*branches),
            row=rows.repeat(copies),
            step=steps.repeat(copies),
            token=tokens.repeat(copies),
            plus=plus,
            minus=baseline[rows, steps].repeat(copies),
            weight=_ones(trajectories)[rows].repeat(copies) / (copies * self.samples),
            centre="policy",
            decisions=trajectories.decisions,
        )


def _greedy_baselines(trajectories: Trajectories, first_only: bool) -> tuple[Int64[Tensor, "row step"], Branches]:
    """For each step the source of the reward of the greedy completion of z_{1:t−1}, and the branches this needs.

    As long as z follows the greedy choice, the greedy completions of its prefixes are one and the same sequence. So
    there is one branch for each step at which z leaves the greedy path, taking the greedy token there; a step's
    baseline is the next such branch, or the main trajectory itself if there is none. ``first_only`` keeps but the
    branch that serves the first step.
    """
    mask = trajectories.mask
    rows, width = mask.shape
    greedy = _greedy_tokens(trajectories)
    leaves = mask & (greedy != trajectories.tokens)
    if first_only:
        leaves &= leaves.cumsum(1) == 1
    row, step = leaves.nonzero(as_tuple=True)
    number = torch.full((rows, width + 1), width, dtype=torch.int64, device=mask.device)
    number[:, :width] = torch.where(leaves, torch.arange(width, device=mask.device), width)
    next_leave = number.flip(1).cummin(1).values.flip(1)[:, :width]  # step of the next branch, or `width` for none
    source = torch.arange(rows, device=mask.device)[:, None].repeat(1, width + 1)
    source[row, step] = rows + torch.arange(len(row), device=mask.device)
    return source.gather(1, next_leave), Branches.of(row, step, greedy[row, step], greedy=True)


def _greedy_tokens(trajectories: Trajectories) -> Int64[Tensor, "row step"]:
    """What greedy decoding would have chosen in the place of each token; in a tree, maybe a word only begun."""
    made = trajectories.decisions
    if made is None:
        return trajectories.logits.argmax(-1)
    against = made.there & (made.bits != (trajectories.logits > 0))
    first = against.long().argmax(-1, keepdim=True)
    return torch.where(against.any(-1), made.other.gather(-1, first).squeeze(-1), trajectories.tokens)


def _compared(
    trajectories: Trajectories, samples: int, baseline: Literal["shrunk", "fitted"], past: Evidence | None
) -> SetPlan:
    """Each of a context's sequences against the mean of its others, moved as other contexts recommend."""
    table = by_context(trajectories, samples)
    weight = torch.full_like(table, 1 / samples, dtype=torch.float64)
    others = (1 - torch.eye(samples, dtype=torch.float64, device=table.device)) / max(samples - 1, 1)
    return SetPlan(trajectories, table, weight, others.expand(len(table), -1, -1), baseline, past)


def _ones(trajectories: Trajectories) -> Tensor:
    return torch.ones_like(trajectories.log_probs)


def _one_of(estimator: str, baseline: str, known: tuple[str, ...]) -> None:
    if baseline not in known:
        words = ", ".join(f'"{name}"' for name in known[:-1])
        raise InputError(f'{estimator} needs baseline {words} or "{known[-1]}", not {baseline!r}')


def _at_least(estimator: str, option: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{estimator} needs {option} ≥ {least}, not {value}")
