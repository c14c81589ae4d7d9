"""What is added to the reward so that a policy stays near another one, or stays undecided.

The objective becomes

    E[r(z)] − kl · E[ln p(z) / q(z)] + entropy · E[−ln p(z)],

where q is a reference, usually the policy as it was at the start. Its gradient is that of the expectation of

    r(z) − kl · ln p(z) / q(z) − entropy · ln p(z)

with p in the logarithms held fixed: what that leaves out is a multiple of E[∇ ln p(z)] = 0. So these terms are a part
of every sequence's reward, of main trajectories and of branches alike, and every unbiased estimator stays unbiased.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from corollout.arguments import require_number
from corollout.errors import InputError, PolicyError
from corollout.policies.protocol import Policy, evaluation_mode
from corollout.rollouts import Engine, Mains
from corollout.text import quoted
from corollout.training.scoring import sequence_log_probs
from corollout.types import Branches, Sequences

# How a steered coefficient follows the divergence (Ziegler et al. 2019).
_MOST_ERROR = 0.2
_RATE = 0.1


@dataclass(frozen=True)
class KL:
    """A penalty on the divergence from a reference, in nats a sequence.

    With a ``target``, the coefficient is only where it starts: after every update it grows by up to 2 % if the
    divergence is above the target, and shrinks if it is below.
    """

    coefficient: float | int = 0.05
    target: float | int | None = None

    def __post_init__(self) -> None:
        require_number(
            "the coefficient of KL", self.coefficient, "0 or positive", lambda number: 0 <= number < math.inf
        )
        if self.target is not None:
            require_number("the target of KL", self.target, "positive", lambda number: 0 < number < math.inf)
        if self.target is not None and self.coefficient == 0:
            raise InputError("a coefficient of KL that is steered to a target must be positive at the start, not 0")

    def steered(self, coefficient: float, divergence: float) -> float:
        """The coefficient after an update with this divergence."""
        if self.target is None:
            return coefficient
        error = min(max(divergence / self.target - 1, -_MOST_ERROR), _MOST_ERROR)
        return coefficient * (1 + _RATE * error)


@dataclass(frozen=True)
class Penalty:
    """What is taken off the rewards of an estimate."""

    values: Float64[Tensor, " source"]  # of the main trajectories, then of the branches
    divergence: float | None  # from the reference: the mean over main trajectories, in nats
    entropy: float  # the same of −ln p


class Regulariser:
    """Computes penalties. It owns a frozen copy of the policy as its reference, unless another policy is given."""

    def __init__(self, engine: Engine, kl: KL | None = None, entropy: float = 0.0, reference: nn.Module | None = None):
        if not abs(entropy) < float("inf"):
            raise InputError(f"the coefficient of the entropy must be a finite number, not {entropy}")
        if reference is not None and kl is None:
            raise InputError("a reference policy is for a penalty on the divergence from it: set kl, too")
        self.engine, self.kl, self.entropy = engine, kl, entropy
        self.coefficient: float = float(kl.coefficient) if kl is not None else 0.0
        self.reference: nn.Module | None = None
        if kl is not None:
            policy: Any = engine.policy
            if reference is None and not isinstance(policy, nn.Module):
                raise InputError("a penalty on the divergence needs a policy that is an nn.Module, or a reference")
            frozen = copy.deepcopy(policy) if reference is None else reference
            if not (isinstance(frozen, Policy) and isinstance(frozen, nn.Module)):
                raise InputError(
                    f"the reference, a {type(frozen).__name__}, is not a policy: it needs the methods encode, start, "
                    f"step and score"
                )
            self.reference = frozen.requires_grad_(False)
            self._reference_engine = copy.copy(engine)
            self._reference_engine.use(frozen)

    @torch.no_grad()
    def penalty(self, memory: Any, context: Any, mains: Mains, branches: Branches, completed: Sequences) -> Penalty:
        """Of the sequences of an estimate."""
        trajectories = mains.trajectories
        contexts = trajectories.contexts[branches.parent]
        log_p = torch.cat(
            [trajectories.log_probs.double(), sequence_log_probs(self.engine, memory, completed, contexts)]
        )
        mains_count = len(trajectories.tokens)
        values, divergence = self.entropy * log_p, None
        if self.reference is not None:
            with evaluation_mode(self.reference):
                there = self.reference.encode(context)  # pyright: ignore[reportCallIssue]
                log_q = torch.cat(
                    [
                        sequence_log_probs(self._reference_engine, there, sequences, rows)
                        for sequences, rows in ((trajectories, trajectories.contexts), (completed, contexts))
                    ]
                )
            ratio = log_p - log_q
            if not bool(ratio.isfinite().all()):
                raise PolicyError(
                    "the reference policy gives a generated sequence the probability zero: the divergence from it is "
                    "infinite; use a reference that allows whatever the policy allows"
                )
            values = values + self.coefficient * ratio
            divergence = float(ratio[:mains_count].mean())
        return Penalty(values, divergence, float(-log_p[:mains_count].mean()))

    def steer(self, divergence: float) -> None:
        """Follow the divergence of an update with the coefficient, if it has a target."""
        if self.kl is not None:
            self.coefficient = self.kl.steered(self.coefficient, divergence)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights of the reference, for checkpoints."""
        if self.reference is not None:
            yield from self.reference.state_dict().items()


def as_kl(kl: KL | float | None) -> KL | None:
    if kl is None or isinstance(kl, KL):
        return kl
    if not isinstance(kl, int | float):
        raise InputError(f"kl must be a coefficient, or a KL with a target, not {quoted(kl)}")
    return KL(kl)
