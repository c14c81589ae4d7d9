"""The reward of a program, and the metrics of the literature with their confidence intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corollout.data import Split
from corollout.errors import InputError
from corollout.rollouts import Engine
from corollout.rollouts.decoding import decode
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.machine import Programs, Verdicts, judge
from corollout.tasks.task import Metric, Share
from corollout.types import Sampler

REWARDS = ("all", "held-out")
_MEANING = "the percentage of tasks whose greedy program is right on all examples"
GENERALIZATION = Metric("generalization", "Generalization", " %", "tasks", _MEANING, is_share=True)
_SHARES = ("generalization", "semantic", "exact", "syntax")


class SolvesTask:
    """The reward "all": 1 for a program that is right on every example of its task, else 0.

    The reward "held-out" is +1 or −1, for the last example alone, as in the paper's code.
    """

    def __init__(self, data: KarelData, name: str = REWARDS[0]):
        if name not in REWARDS:
            raise InputError(f"unknown reward {name!r}: choose one of {', '.join(REWARDS)}")
        self.data, self.name = data, name

    def __call__(self, sequences: list[list[int]], task: Sequence[int]) -> list[float]:
        right = judge_lists(self.data, sequences, task).right
        if self.name == "held-out":
            return np.where(right[:, -1], 1.0, -1.0).tolist()
        return right.all(1).astype(float).tolist()


def judge_lists(data: KarelData, sequences: Sequence[Sequence[int]], tasks: Sequence[int]) -> Verdicts:
    """Run token sequences, each on the worlds of its task."""
    return judge(Programs.pack(sequences), np.fromiter(tasks, np.int64, len(tasks)), data.inputs, data.outputs)


@dataclass(frozen=True)
class KarelEvaluation:
    """Shares of tasks whose greedy program is right.

    ``generalization``: right on all examples; ``semantic``: on all but the one held out; ``exact``: equal to the
    reference program; ``syntax``: a program at all. ``top[k - 1]``: one of the first k of a beam generalizes.
    """

    generalization: Share
    semantic: Share
    exact: Share
    syntax: Share
    scores: np.ndarray  # 1 for each task whose greedy program generalizes, else 0
    top: tuple[Share, ...] = ()

    def numbers(self) -> dict[str, float]:
        low, high = self.generalization.interval
        values = {name: getattr(self, name).value for name in _SHARES}
        tops = {f"top_{k}": share.value for k, share in enumerate(self.top, 1)}
        return {**values, "generalization_low": low, "generalization_high": high, **tops}

    def rows(self) -> list[list[str]]:
        named = {"Generalization": self.generalization, **{name: getattr(self, name) for name in _SHARES[1:]}}
        named |= {f"Generalization, top {k} of beam": share for k, share in enumerate(self.top, 1)}
        intervals = {name: " – ".join(f"{100 * end:.2f}" for end in share.interval) for name, share in named.items()}
        return [[name, f"{100 * share.value:.2f} %", intervals[name]] for name, share in named.items()]


def evaluate_karel(engine: Engine, split: Split, *, beam: int = 0, device: str = "cpu") -> KarelEvaluation:
    """Evaluate the greedy program of every task and, unless ``beam`` is 0, the programs of a beam of that size."""
    data, columns, count = split.data, split.columns, len(split)
    if count == 0:
        raise InputError("the split has no task to evaluate on")
    greedy = [programs[0] for programs in decode(engine, columns, Sampler("greedy"), device=device)]
    verdicts = judge_lists(data, greedy, range(count))
    exact = sum(tokens == target for tokens, target in zip(greedy, columns.columns["target"], strict=True))
    solved = np.asarray(verdicts.right.all(1))
    return KarelEvaluation(
        generalization=Share(int(solved.sum()), count),
        semantic=Share(int(verdicts.right[:, :-1].all(1).sum()), count),
        exact=Share(exact, count),
        syntax=Share(int(verdicts.valid.sum()), count),
        scores=solved.astype(float),
        top=_top(decode(engine, columns, Sampler("beam", beam), device=device), data, beam) if beam else (),
    )


def _top(beams: list[list[list[int]]], data: KarelData, size: int) -> tuple[Share, ...]:
    tasks, ranks = zip(*((task, rank) for task, beam in enumerate(beams) for rank in range(len(beam))), strict=True)
    right = np.zeros((len(beams), size), np.bool_)
    right[tasks, ranks] = judge_lists(data, [tokens for beam in beams for tokens in beam], tasks).right.all(1)
    return tuple(Share(int(hits), len(beams)) for hits in np.logical_or.accumulate(right, 1).sum(0))
