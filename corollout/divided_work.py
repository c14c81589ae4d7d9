"""Work in parts that the processes of a job divide among them."""

from collections.abc import Callable
from typing import Any

from corollout.processes import processes
from corollout.signals import requested


def divided(count: int, work: Callable[[int], Any]) -> list[Any]:
    """``[work(0), …, work(count − 1)]`` on all ranks, each computed by one of them, which all make this call.

    With several ranks, results are what JSON can hold: floats stay exact, tuples become lists. A signal that asks to
    stop raises ``KeyboardInterrupt`` on all ranks after their current part, where signals are asked for.
    """
    group = processes()
    if group.size == 1:
        return [work(number) for number in range(count)]
    mine: list[Any] = []
    for first in range(0, count, group.size):
        if first + group.rank < count:
            mine.append(work(first + group.rank))
        if any(signal for [signal] in group.exchange([requested()])):
            raise KeyboardInterrupt
    done = group.gather_values(mine)
    return [done[number % group.size][number // group.size] for number in range(count)]


def batches(count: int, batch_size: int) -> list[range]:
    """Batches of so many examples, in order; smaller ones if there would be fewer than ranks."""
    size = min(batch_size, -(-count // processes().size))
    return [range(first, min(first + size, count)) for first in range(0, count, max(size, 1))]
