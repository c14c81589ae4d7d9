"""How good programs are: as a reward, and as the measures of the literature with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corollout.data import Columns
from corollout.errors import InputError
from corollout.rollouts import Engine
from corollout.rollouts.decoding import decode
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.machine import Programs, Verdicts, judge
from corollout.tasks.task import Metric, Share
from corollout.types import Sampler

REWARDS = ("all", "held-out")
GENERALIZATION = Metric(
    "generalization",
    "Generalization",
    " %",
    "tasks",
    "the share of tasks for which the greedy program is right on all examples, in per cent",
    shares=True,
)


class SolvesTask:
    """The reward: 1 for a program that is right on every example of its task, else 0.

    With ``kind="held-out"`` it is +1 or −1, for the last example alone, as in the paper's own code.
    """

    def __init__(self, data: KarelData, kind: str = "all"):
        if kind not in REWARDS:
            raise InputError(f"no reward is called {kind!r}: choose one of {', '.join(REWARDS)}")
        self.data, self.kind = data, kind

    def __call__(self, sequences: list[list[int]], task: Sequence[int]) -> list[float]:
        right = judge_lists(self.data, sequences, task).right
        if self.kind == "held-out":
            return np.where(right[:, -1], 1.0, -1.0).tolist()
        return right.all(1).astype(float).tolist()


def judge_lists(data: KarelData, sequences: Sequence[Sequence[int]], tasks: Sequence[int]) -> Verdicts:
    """Run token sequences on the tasks that they are meant for."""
    return judge(Programs.pack(sequences), np.fromiter(tasks, np.int64, len(tasks)), data.inputs, data.outputs)


@dataclass(frozen=True)
class Evaluation:
    """What a policy achieves on a set of tasks.

    ``generalization``: right on all examples, the one that was not shown included; ``semantic``: right on those shown;
    ``exact``: the reference program itself; ``syntax``: a program at all. ``top`` has, for k = 1, 2, … of a beam's
    programs, best first, the share of tasks for which one of the first k generalizes.
    """

    generalization: Share
    semantic: Share
    exact: Share
    syntax: Share
    scores: np.ndarray  # 1 for each task that the greedy program solves, else 0
    top: tuple[Share, ...] = ()

    def numbers(self) -> dict[str, float]:
        """The shares by name, with the interval of Generalization."""
        low, high = self.generalization.interval
        values = {name: getattr(self, name).value for name in ("generalization", "semantic", "exact", "syntax")}
        tops = {f"top_{k}": share.value for k, share in enumerate(self.top, 1)}
        return {**values, "generalization_low": low, "generalization_high": high, **tops}

    def rows(self) -> list[list[str]]:
        """Each share with its interval, as people read them."""
        named = {"Generalization": self.generalization, "semantic": self.semantic}
        named |= {"exact": self.exact, "syntax": self.syntax}
        named |= {f"Generalization, top {k} of beam": share for k, share in enumerate(self.top, 1)}
        return [[name, *_percent(share)] for name, share in named.items()]


def _percent(share: Share) -> tuple[str, str]:
    low, high = share.interval
    return f"{100 * share.value:.2f} %", f"{100 * low:.2f} – {100 * high:.2f}"


def evaluate_karel(
    engine: Engine, data: KarelData, columns: Columns, *, beam: int = 0, batch_size: int = 256, device: str = "cpu"
) -> Evaluation:
    """Greedy decoding of every task, and a beam of the given size as well unless it is 0."""
    if len(data) == 0:
        raise InputError("there is no task to evaluate on")
    tasks = range(len(data))
    greedy = [found[0] for found in decode(engine, columns, Sampler("greedy"), batch_size=batch_size, device=device)]
    verdicts = judge_lists(data, greedy, tasks)
    exact = sum(tokens == target for tokens, target in zip(greedy, columns.columns["target"], strict=True))
    solved = np.asarray(verdicts.right.all(1))
    count = len(data)
    return Evaluation(
        generalization=Share(int(solved.sum()), count),
        semantic=Share(int(verdicts.right[:, :-1].all(1).sum()), count),
        exact=Share(exact, count),
        syntax=Share(int(verdicts.valid.sum()), count),
        scores=solved.astype(float),
        top=_top(engine, data, columns, beam, batch_size, device) if beam else (),
    )


def _top(
    engine: Engine, data: KarelData, columns: Columns, beam: int, batch_size: int, device: str
) -> tuple[Share, ...]:
    found = decode(engine, columns, Sampler("beam", beam), batch_size=batch_size, device=device)
    owners = [task for task, programs in enumerate(found) for _ in programs]
    right = judge_lists(data, [tokens for programs in found for tokens in programs], owners).right.all(1)
    table = np.zeros((len(data), beam), np.bool_)
    ranks = [rank for programs in found for rank in range(len(programs))]
    table[owners, ranks] = right
    hits = np.logical_or.accumulate(table, 1).sum(0)
    return tuple(Share(int(n), len(data)) for n in hits)
