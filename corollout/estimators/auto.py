"""The estimator that is best at the moment, among a few."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.pairs import Pairs
from corollout.estimators.plans import Adaptive, Estimator, Logits, Plan, Rewards
from corollout.estimators.score import RLOO, Reinforce
from corollout.estimators.sets import UnorderedSet
from corollout.noise import Noise
from corollout.types import Sampler, Trajectories


def short_list() -> dict[str, Estimator]:
    """Candidates for every kind of head, all of them unbiased."""
    return {
        "reinforce:baseline=fitted": Reinforce("fitted"),
        "rloo-4:baseline=fitted": RLOO(4, "fitted"),
        "set-2:baseline=fitted": UnorderedSet(2, "fitted"),
        "set-4:baseline=fitted": UnorderedSet(4, "fitted"),
        "set-8:baseline=fitted": UnorderedSet(8, "fitted"),
        "pairs": Pairs(),
    }


@dataclass(frozen=True)
class Auto:
    """One of some candidates, by name. A trainer probes all of them at the start and now and then, and takes the one
    with the least variance × seconds. Unbiased if they are: the choice knows nothing of the estimates to come.
    """

    every: int = 1000
    """Updates after which candidates are probed again; then after twice as many, and so on."""
    estimates: int = 6
    """Gradient estimates of each candidate in a probe; those that are far behind make fewer."""
    candidates: Mapping[str, Estimator] = field(default_factory=short_list, repr=False)
    chosen: str = field(default="", repr=False)
    """The candidate in use; the first, if none was chosen yet."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"auto needs every ≥ 1, not {self.every}")
        if self.estimates < 2:
            raise InputError(f"auto needs estimates ≥ 2, not {self.estimates}: one has no variance")
        if not self.candidates:
            raise InputError("auto needs at least one candidate")
        if self.chosen and self.chosen not in self.candidates:
            raise InputError(f"auto has no candidate {self.chosen!r}; it has {', '.join(self.candidates)}")

    @property
    def name(self) -> str:
        return self.chosen or next(iter(self.candidates))

    @property
    def current(self) -> Estimator:
        return self.candidates[self.name]

    @property
    def sampler(self) -> Sampler:
        return self.current.sampler

    def plan(self, trajectories: Trajectories, noise: Noise) -> Plan:
        return self.current.plan(trajectories, noise)

    def is_due(self, updates: int) -> bool:
        """Whether to probe before the next update: at the start, after ``every``, after twice as many, …"""
        times, rest = divmod(updates, self.every)
        return updates == 0 or (rest == 0 and times & (times - 1) == 0)

    def updated(self, plan: Plan, rewards: Rewards, logits: Logits) -> "Auto":
        if not isinstance(self.current, Adaptive):
            return self
        return self.with_candidate(self.name, self.current.updated(plan, rewards, logits))

    def with_candidate(self, name: str, estimator: Estimator) -> "Auto":
        """The same with another estimator of that name."""
        return replace(self, candidates={**self.candidates, name: estimator})

    def state_dict(self) -> dict[str, Tensor]:
        learned = {
            f"{name}/{key}": tensor
            for name, candidate in self.candidates.items()
            if isinstance(candidate, Adaptive)
            for key, tensor in candidate.state_dict().items()
        }
        return {_CHOSEN: torch.tensor(list(self.candidates).index(self.name)), **learned}

    def load_state_dict(self, memory: dict[str, Tensor]) -> "Auto":
        candidates = {}
        for name, candidate in self.candidates.items():
            own = {key.removeprefix(f"{name}/"): value for key, value in memory.items() if key.startswith(f"{name}/")}
            candidates[name] = candidate.load_state_dict(own) if isinstance(candidate, Adaptive) else candidate
        return replace(self, candidates=candidates, chosen=list(candidates)[int(memory[_CHOSEN])])


_CHOSEN = "chosen"  # the number of the candidate in use, in a memory
