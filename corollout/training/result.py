"""What a training did: counts, the metrics of its last update, and a few numbers of each."""

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

Metrics = TypeVar("Metrics")


@dataclass(frozen=True)
class TrainingResult(Generic[Metrics]):
    """What a call of ``train`` did. ``print(result)`` sums it up in a line."""

    made: int  # updates of this call
    last: Metrics | None  # metrics of the last update; None if none was made
    history: dict[str, list[float]]  # a few numbers of each update of this call, by name
    # Totals of the trainer.
    updates: int
    epochs: int
    tokens: int
    seconds: float

    def __str__(self) -> str:
        counts = f"{self.updates:,} updates, {self.tokens:,} tokens, {self.seconds:.3g} seconds"
        if not self.made:
            return f"{counts}: no update was made, as the total had been reached before"
        # The means of the first and the last tenth: a single update is noise.
        tenth = max(1, self.made // 10)
        changes = (
            f"{name.replace('_', ' ')} {_mean(values[:tenth]):.4g} → {_mean(values[-tenth:]):.4g}"
            for name, values in self.history.items()
        )
        return ", ".join([counts, *changes])


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
