"""An exponential moving average of the weights of all updates (Polyak averaging), to be evaluated and kept."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from corollout.arguments import require_number
from corollout.errors import InputError

_WARM_UP = 10  # updates: at first the average forgets faster
_PREFIX = "average/"  # of its tensors in a state


class WeightAverage:
    """θ̄ ← d θ̄ + (1 − d) θ after every update; with the decay 0 there is no average, and nothing costs anything.

    After t updates d is the smaller of ``decay`` and (1 + t) / (10 + t), so that the weights of the start are soon
    forgotten.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float):
        require_number("ema_decay", decay, "a number in [0, 1)", lambda decay: 0 <= decay < 1)
        self.decay = decay
        self._parameters = parameters if decay else []
        self._averages = [p.detach().clone() for p in self._parameters]

    def add(self, updates: int) -> None:
        """Take in the weights after so many updates."""
        if not self._averages:
            return
        decay = min(self.decay, (1 + updates) / (_WARM_UP + updates))
        with torch.no_grad():
            for average, parameter in zip(self._averages, self._parameters, strict=True):
                average.lerp_(parameter, 1 - decay)

    @contextmanager
    def in_use(self) -> Generator[None, None, None]:
        """Inside, the parameters have their averages."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for average, parameter in zip(self._averages, self._parameters, strict=True):
            current = parameter.clone()
            parameter.copy_(average)
            average.copy_(current)

    def tensors(self) -> dict[str, Tensor]:
        """For checkpoints."""
        return {f"{_PREFIX}{i}": average.clone() for i, average in enumerate(self._averages)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from the tensors of a state, which may have others besides."""
        count = sum(name.startswith(_PREFIX) for name in tensors)
        if count != len(self._averages):
            what = "with" if count else "without"
            raise InputError(
                f"the state comes from a training {what} a moving average of weights, but here ema_decay is "
                f"{self.decay}"
            )
        for i, average in enumerate(self._averages):
            average.copy_(tensors[f"{_PREFIX}{i}"])
