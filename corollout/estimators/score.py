"""Score-function estimators: an advantage for each token times e_z − p. The paper's baselines, RLOO and GRPO."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.baselines import Evidence
from corollout.estimators.estimator import BranchNoise, Estimator, FittedBaseline
from corollout.estimators.plans import ContrastPlan, GroupPlan, SetPlan, rows_by_context
from corollout.noise import Noise
from corollout.types import Branches, Sampler, Trajectories

# Score-function estimators work with every head; names that begin with bt- are the paper's names for trees.


@dataclass(frozen=True)
class Reinforce(FittedBaseline):
    """REINFORCE with the mean reward of the batch as the baseline (Williams 1992).

    ``baseline="others"`` leaves a sequence's own reward out of the mean, which makes it unbiased; "batch" is the plain
    batch mean, which shrinks the expected gradient by 1 − 1/B; "none" is no baseline; "shrunk" and "fitted" are as for
    RLOO.
    """

    names = ("reinforce", "bt-reinforce", "bt-rf")
    title = "REINFORCE"
    reads = "tokens"
    number = "samples"

    baseline: Literal["others", "batch", "none", "shrunk", "fitted"] = "others"
    samples: int = 1

    def __post_init__(self) -> None:
        self.check_options(samples=1)

    @property
    def is_biased(self) -> bool:
        return self.baseline == "batch"

    @property
    def note_for_one_context(self) -> str:
        if self.samples > 1:
            return ""
        return "The baseline of REINFORCE is the mean reward of the batch's other examples: one example alone has none."

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> GroupPlan | SetPlan:
        if self.baseline == "shrunk" or self.baseline == "fitted":
            return _set_plan(trajectories, self.samples, self.baseline, self.past)
        share = torch.zeros_like(trajectories.log_probs) if self.baseline == "none" else _ones(trajectories)
        return GroupPlan(
            trajectories,
            group=torch.zeros_like(trajectories.contexts),
            share=share,
            weight=_ones(trajectories) / self.samples,
            leave_one_out=self.baseline == "others",
            spans_contexts=self.baseline != "none",
        )


@dataclass(frozen=True)
class RLOO(FittedBaseline):
    """REINFORCE leave-one-out: the baseline of each sequence is the mean reward of its context's other sequences
    (Kool, van Hoof, Welling 2019). Unbiased.

    ``baseline="shrunk"`` moves that mean towards the mean of other contexts (James and Stein); "fitted" is the
    combination of a constant and that mean with the least variance. Both use other contexts only, and are unbiased.
    """

    names = ("rloo", "bt-rloo")
    title = "RLOO"
    reads = "tokens"
    number = "samples"

    samples: int = 4
    baseline: Literal["others", "shrunk", "fitted"] = "others"

    def __post_init__(self) -> None:
        self.check_options(samples=2)

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> GroupPlan | SetPlan:
        if self.baseline != "others":
            return _set_plan(trajectories, self.samples, self.baseline, self.past)
        ones = _ones(trajectories)
        return GroupPlan(
            trajectories, group=trajectories.contexts, share=ones, weight=ones / self.samples, leave_one_out=True
        )


@dataclass(frozen=True)
class GRPO(Estimator):
    """The advantages of GRPO: rewards minus their context's mean, divided by its standard deviation (Shao et al. 2024).

    Biased: contexts count more the less their rewards differ, and the gradient shrinks by 1 − 1/samples, because the
    mean includes a sequence's own reward.
    """

    names = ("grpo",)
    title = "GRPO"
    reads = "tokens"
    number = "samples"

    samples: int = 8

    def __post_init__(self) -> None:
        self.check_options(samples=2)

    @property
    def is_biased(self) -> bool:
        return True

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
class BeamExpectation(Estimator):
    """RL_beam: the gradient of Σ_s q_s r_s over a beam, where q are the renormalised probabilities of its sequences
    (Bunel et al. 2018): q_s (r_s − Σ q r) ∇ log p_s.

    Biased: it follows the expected reward on the beam, not under the policy. It has no variance, given the policy.
    """

    names = ("rl-beam", "beam")
    title = "RL_beam"
    reads = "tokens"
    number = "size"

    size: int = 64

    def __post_init__(self) -> None:
        self.check_options(size=2)

    @property
    def is_biased(self) -> bool:
        return True

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
class SelfCritic(Estimator):
    """Self-critical sequence training: the reward of the greedy sequence is the baseline (Rennie et al. 2017).

    Unbiased. The greedy sequence of a context is completed once, from the last step at which a sample leaves it; if a
    sample never does, it is the greedy sequence.
    """

    names = ("sc", "self-critic", "scst", "bt-sc")
    title = "SC"
    reads = "greedy"
    number = "samples"

    samples: int = 1

    def __post_init__(self) -> None:
        self.check_options(samples=1)

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        baseline, branches = _greedy_sequences(trajectories)
        rows, steps = trajectories.mask.nonzero(as_tuple=True)
        return ContrastPlan(
            branches=branches,
            row=rows,
            step=steps,
            token=trajectories.tokens[rows, steps],
            plus=rows,
            minus=baseline[rows],
            weight=_ones(trajectories)[rows] / self.samples,
            centre="policy",
            decisions=trajectories.decisions,
        )


@dataclass(frozen=True)
class MonteCarlo(Estimator):
    """MC-K: token-level rewards, the mean over K independent completions of z_{1:t}, with token-level greedy baselines,
    the reward of the greedy completion of z_{1:t−1} (Liu et al. 2017). Unbiased.

    MC-0 uses the reward of the whole sequence for all tokens (TD-SCST of Rennie et al. 2017). The last token needs no
    completion: its reward is that of the sequence.
    """

    names = ("mc", "mc-k", "td-scst", "bt-mc")
    title = "MC"
    reads = "greedy"
    number = "completions"

    completions: int = 2
    samples: int = 1
    noise: BranchNoise = "shared"
    """The random numbers of completions, never those of main trajectories: the same for the completions of all steps of
    a sequence, or "own" ones, as in the paper."""

    def __post_init__(self) -> None:
        self.check_options(completions=0, samples=1)

    @classmethod
    def from_name(cls, name: str, **options: Any) -> "MonteCarlo":
        """``td-scst`` is MC-0."""
        if name == "td-scst" and options.setdefault("completions", 0) != 0:
            raise InputError(f"td-scst is mc-0: use mc-{options['completions']} for that many completions")
        return cls(**options)

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        baseline, greedy = _greedy_baselines(trajectories)
        rows, steps = trajectories.mask.nonzero(as_tuple=True)
        tokens = trajectories.tokens[rows, steps]
        copies = max(self.completions, 1)
        plus = rows.repeat(copies)
        branches = [greedy]
        if self.completions:
            inner = (steps < trajectories.lengths[rows] - 1).nonzero().squeeze(1)
            first = len(trajectories.tokens) + len(greedy)
            for copy in range(copies):
                # Copy 0 would share its parent's noise, and be the parent again.
                branches.append(
                    Branches.of(rows[inner], steps[inner], tokens[inner], copy=copy + 1, own_noise=self.noise == "own")
                )
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


def _greedy_sequences(trajectories: Trajectories) -> tuple[Int64[Tensor, " row"], Branches]:
    """The source of the reward of the greedy sequence of each row's context, and the branches this needs."""
    mask, contexts = trajectories.mask, trajectories.contexts
    rows, width = mask.shape
    greedy = _greedy_tokens(trajectories)
    row = torch.arange(rows, device=mask.device)
    leaves = mask & (greedy != trajectories.tokens)
    step = torch.where(leaves.any(1), leaves.long().argmax(1), width)  # `width`: never
    count = int(contexts.max()) + 1 if rows else 0
    latest = step.new_zeros(count).scatter_reduce(0, contexts, step, "amax", include_self=False)
    last = step == latest[contexts]
    chosen = row.new_full((count,), rows).scatter_reduce(0, contexts, torch.where(last, row, rows), "amin")
    starts = chosen[(latest < width) & (chosen < rows)]  # a context may have no row
    source = torch.cat([row, row.new_zeros(1)])
    source[starts] = rows + torch.arange(len(starts), device=mask.device)
    return source[chosen][contexts], Branches.of(starts, step[starts], greedy[starts, step[starts]], greedy=True)


def _greedy_baselines(trajectories: Trajectories) -> tuple[Int64[Tensor, "row step"], Branches]:
    """For each step the source of the reward of the greedy completion of z_{1:t−1}, and the branches this needs.

    As long as z follows the greedy choice, all its prefixes have the same greedy completion. So there is one branch,
    with the greedy token, for each step at which z leaves the greedy path; the baseline of a step is the next such
    branch, or the main trajectory if there is none.
    """
    mask = trajectories.mask
    rows, width = mask.shape
    greedy = _greedy_tokens(trajectories)
    leaves = mask & (greedy != trajectories.tokens)
    row, step = leaves.nonzero(as_tuple=True)
    number = torch.full((rows, width + 1), width, dtype=torch.int64, device=mask.device)
    number[:, :width] = torch.where(leaves, torch.arange(width, device=mask.device), width)
    next_leave = number.flip(1).cummin(1).values.flip(1)[:, :width]  # step of the next branch, or `width` for none
    source = torch.arange(rows, device=mask.device)[:, None].repeat(1, width + 1)
    source[row, step] = rows + torch.arange(len(row), device=mask.device)
    return source.gather(1, next_leave), Branches.of(row, step, greedy[row, step], greedy=True)


def _greedy_tokens(trajectories: Trajectories) -> Int64[Tensor, "row step"]:
    """What greedy decoding would have chosen instead of each token; in a tree possibly an inner node."""
    decisions = trajectories.decisions
    if decisions is None:
        return trajectories.logits.argmax(-1) if trajectories.greedy is None else trajectories.greedy
    against = decisions.valid & (decisions.bits != (trajectories.logits > 0))
    first = against.long().argmax(-1, keepdim=True)
    return torch.where(against.any(-1), decisions.other.gather(-1, first).squeeze(-1), trajectories.tokens)


def _set_plan(
    trajectories: Trajectories, samples: int, baseline: Literal["shrunk", "fitted"], past: Evidence | None
) -> SetPlan:
    """Each sequence compared with the mean of its context's others, corrected by other contexts."""
    table = rows_by_context(trajectories, samples)
    weight = torch.full_like(table, 1 / samples, dtype=torch.float64)
    others = (1 - torch.eye(samples, dtype=torch.float64, device=table.device)) / max(samples - 1, 1)
    return SetPlan(trajectories, table, weight, others.expand(len(table), -1, -1), baseline, past)


def _ones(trajectories: Trajectories) -> Tensor:
    return torch.ones_like(trajectories.log_probs)
