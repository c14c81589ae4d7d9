"""AUTO: whichever of a few estimators is best at the moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.baselines import Scores
from corollout.estimators.estimator import Adaptive, Estimator
from corollout.estimators.pairs import Pairs
from corollout.estimators.plans import Plan, Rewards
from corollout.estimators.score import RLOO, Reinforce
from corollout.estimators.sets import UnorderedSet
from corollout.noise import Noise
from corollout.types import Cells, Sampler, Trajectories


def default_candidates() -> dict[str, Estimator]:
    """Unbiased estimators for every head."""
    return {
        "reinforce:baseline=fitted": Reinforce("fitted"),
        "rloo-4:baseline=fitted": RLOO(4, "fitted"),
        "set-2:baseline=fitted": UnorderedSet(2, "fitted"),
        "set-4:baseline=fitted": UnorderedSet(4, "fitted"),
        "set-8:baseline=fitted": UnorderedSet(8, "fitted"),
        "pairs": Pairs(),
    }


@dataclass(frozen=True)
class Auto(Adaptive):
    """One of several candidates. The trainer probes all of them at the start and from time to time, and uses the one
    with the least variance × seconds. Unbiased if they are: the choice does not depend on later estimates.
    """

    names = ("auto",)
    title = "AUTO"
    chooses_estimators = True

    every: int = 1000
    """The number of updates after which candidates are probed again; then after twice as many, and so on."""
    estimates: int = 6
    """Gradient estimates of each candidate in a probe; candidates that are far behind make fewer."""
    candidates: Mapping[str, Estimator] = field(default_factory=default_candidates, repr=False)
    chosen: str = field(default="", repr=False)
    """The name of the candidate in use; empty for the first."""

    def __post_init__(self) -> None:
        self.check_options(every=1, estimates=2)
        if not self.candidates:
            raise InputError("AUTO needs at least one candidate")
        if self.chosen and self.chosen not in self.candidates:
            raise InputError(f"AUTO has no candidate {self.chosen!r}; it has {', '.join(self.candidates)}")

    @property
    def name(self) -> str:
        return self.chosen or next(iter(self.candidates))

    @property
    def current(self) -> Estimator:
        return self.candidates[self.name]

    @property
    def sampler(self) -> Sampler:
        return self.current.sampler

    @property
    def reads(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.current.reads

    @property
    def compares_contexts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.current.compares_contexts

    def take_notes(self, cells: Cells, noise: Noise) -> Any:
        return self.current.take_notes(cells, noise)

    def plan(self, trajectories: Trajectories, noise: Noise) -> Plan:
        return self.current.plan(trajectories, noise)

    def is_due(self, updates: int) -> bool:
        """Whether to probe before the next update: at the start, after ``every`` updates, after twice as many, …"""
        times, rest = divmod(updates, self.every)
        return updates == 0 or (rest == 0 and times & (times - 1) == 0)

    def updated(self, plan: Plan, rewards: Rewards, scores: Scores | None) -> "Auto":
        if not isinstance(self.current, Adaptive):
            return self
        return self.with_candidate(self.name, self.current.updated(plan, rewards, scores))

    def with_candidate(self, name: str, estimator: Estimator) -> "Auto":
        """A copy with another estimator for a candidate."""
        return replace(self, candidates={**self.candidates, name: estimator})

    def state_dict(self) -> dict[str, Tensor]:
        states = {
            f"{name}/{key}": tensor
            for name, candidate in self.candidates.items()
            if isinstance(candidate, Adaptive)
            for key, tensor in candidate.state_dict().items()
        }
        return {_CHOSEN: torch.tensor(list(self.candidates).index(self.name)), **states}

    def load_state_dict(self, state: dict[str, Tensor]) -> "Auto":
        candidates = {}
        for name, candidate in self.candidates.items():
            part = {key.removeprefix(f"{name}/"): value for key, value in state.items() if key.startswith(f"{name}/")}
            candidates[name] = candidate.load_state_dict(part) if isinstance(candidate, Adaptive) else candidate
        return replace(self, candidates=candidates, chosen=list(candidates)[int(state[_CHOSEN])])


_CHOSEN = "chosen"  # in a state: the index of the candidate in use
