"""Several ranks in one process, each a thread: quick, and any call that not all of them make is found at once."""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from corollout import processes as real
from corollout.processes import Processes
from corollout.training import base

Result = TypeVar("Result")
_PATIENCE = 60  # seconds that a rank waits for the others


class Meeting:
    """Where threads exchange what they bring."""

    def __init__(self, size: int):
        self.size, self.barrier = size, threading.Barrier(size, timeout=_PATIENCE)
        self.brought: list[Any] = [None] * size

    def exchange(self, rank: int, kind: str, value: Any) -> list[Any]:
        self.brought[rank] = (kind, value)
        self.barrier.wait()
        brought = list(self.brought)
        self.barrier.wait()
        assert {one[0] for one in brought} == {kind}, f"ranks make different calls: {[one[0] for one in brought]}"
        return [one[1] for one in brought]


class Rank(Processes):
    def __init__(self, rank: int, meeting: Meeting):
        super().__init__(rank, meeting.size)
        self._meeting = meeting
        self.calls: list[str] = []

    def _exchange(self, kind: str, value: Any) -> list[Any]:
        self.calls.append(kind)
        self.waiting += 1e-6
        return self._meeting.exchange(self.rank, kind, value)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        parts = self._exchange("gather", tensor.detach().clone())
        assert len({(part.dtype, part.shape[1:]) for part in parts}) == 1, "tensors do not fit together"
        return [part.clone() for part in parts]

    def gather_values(self, value: Any) -> list[Any]:
        return [json.loads(text) for text in self._exchange("gather_values", json.dumps(value))]

    def from_first(self, value: Any) -> Any:
        return json.loads(self._exchange("from_first", json.dumps(value))[0])

    def add(self, tensors: Sequence[Tensor]) -> None:
        everyone = self._exchange("add", [tensor.detach().clone() for tensor in tensors])
        for tensor, parts in zip(tensors, zip(*everyone, strict=True), strict=True):
            tensor.detach().copy_(torch.stack(parts).sum(0))


def run_ranks(size: int, function: Callable[[Rank], Result]) -> list[Result]:
    """What a function returns in each of so many ranks, whose trainers share every update."""
    meeting, local = Meeting(size), threading.local()
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(number: int) -> None:
        local.rank = rank = Rank(number, meeting)
        torch.set_num_threads(1)
        try:
            results[number] = function(rank)
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    before, base.processes = base.processes, lambda: getattr(local, "rank", None) or real.processes()
    try:
        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * _PATIENCE)
    finally:
        base.processes = before
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return results
