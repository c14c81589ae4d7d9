"""Keys and values of generated tokens: one place for each token, whatever sequences go on from it."""

from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float, Int64
from torch import Tensor

_FIRST = 64  # places to begin with


class Store:
    """Places for tokens, in every layer. States refer to them by their paths; a place that no state refers to any more
    is used again before the store grows.
    """

    def __init__(self) -> None:
        self.states: WeakSet[Any] = WeakSet()  # each has a ``path``
        self._keys: dict[int, Float[Tensor, "head place width"]] = {}  # by layer
        self._values: dict[int, Float[Tensor, "head place width"]] = {}
        self._size = 0
        self._free: Int64[Tensor, " place"] | None = None

    def places(self, count: int, device: torch.device) -> Int64[Tensor, " place"]:
        """Places for so many new tokens."""
        if self._free is None:
            self._free = torch.empty(0, dtype=torch.int64, device=device)
        if len(self._free) < count:
            self._free = self._unused(device)
            if len(self._free) < max(count, self._size // 4):
                self._grow(max(_FIRST, 2 * self._size, self._size + count), device)
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _unused(self, device: torch.device) -> Int64[Tensor, " place"]:
        used = torch.zeros(self._size, dtype=torch.bool, device=device)
        for state in list(self.states):
            used[state.path] = True
        return (~used).nonzero().squeeze(1)

    def _grow(self, size: int, device: torch.device) -> None:
        assert self._free is not None
        self._free = torch.cat([self._free, torch.arange(self._size, size, device=device)])
        self._size = size

    def write(
        self,
        layer: int,
        place: Int64[Tensor, " row"],
        keys: Float[Tensor, "head row width"],
        values: Float[Tensor, "head row width"],
    ) -> None:
        for parts, new in ((self._keys, keys), (self._values, values)):
            part = parts.get(layer, new[:, :0])
            if part.shape[1] < self._size:
                part = parts[layer] = _grown(part, self._size)
            part[:, place] = new

    def read(
        self, layer: int, path: Int64[Tensor, "row step"]
    ) -> tuple[Float[Tensor, "head row step width"], Float[Tensor, "head row step width"]]:
        """The keys and the values along some paths."""
        return self._keys[layer][:, path], self._values[layer][:, path]


def _grown(part: Float[Tensor, "head place width"], size: int) -> Float[Tensor, "head size width"]:
    return torch.cat([part, part.new_zeros(part.shape[0], size - part.shape[1], part.shape[2])], 1)
