"""Programs for Karel tasks, and what becomes of them in their worlds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.columns import Columns as SideBySide
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corollout.rollouts.decoding import Decoded
from corollout.tasks.generated import OfSplit
from corollout.tasks.karel.grids import unpack
from corollout.tasks.karel.language import KarelSyntaxError, parse
from corollout.tasks.karel.language import decode as names_of
from corollout.tasks.karel.machine import STATUS, Programs, execute
from corollout.tasks.karel.metrics import judge_lists
from corollout.tasks.karel.show import program_text, titled
from corollout.tasks.karel.task import Split
from corollout.tasks.karel.world import World, same_state
from corollout.tasks.views import KarelSubject
from corollout.types import Sampler

NBSP = "\N{NO-BREAK SPACE}"
RIGHT, WRONG = "right", "wrong world"
_VERDICTS = {"ok": WRONG, "crash": "crash", "timeout": "time-out", "syntax": "no program"}
_COLOURS = {RIGHT: "green", WRONG: "red", "crash": "red", "time-out": "yellow", "no program": "magenta"}


@dataclass(frozen=True)
class Attempt:
    """A program for a task, and how it did on each of the task's examples, the last of which is held out."""

    program: Decoded
    verdicts: list[str]
    reached: list[World]
    exact: bool  # it is the reference program

    @property
    def solves(self) -> bool:
        return all(verdict == RIGHT for verdict in self.verdicts)


class KarelTasks(OfSplit):
    """Tasks of a split."""

    def __init__(self, tasks: Split, split: str, numbers: list[int]):
        super().__init__(tasks.columns, split, KarelSubject.noun, numbers)
        self._tasks = tasks

    def heading(self, place: int) -> Text:
        return super().heading(place).append(f" id {self.identity(place)['id']}", "dim")

    def records(self, place: int, found: Sequence[Decoded]) -> list[dict[str, Any]]:
        return [
            {
                "tokens": names_of(attempt.program.tokens),
                "log_probability": attempt.program.log_probability,
                "verdicts": attempt.verdicts,
                "solves": attempt.solves,
                "exact": attempt.exact,
            }
            for attempt in attempt_all(self._tasks, self.numbers[place], found)
        ]

    def show(self, place: int, found: Sequence[Decoded], sampler: Sampler) -> RenderableType:
        number = self.numbers[place]
        subject, attempts = KarelSubject.of(self._tasks, number), attempt_all(self._tasks, number, found)
        last = len(subject.worlds) - 1
        names = ["held out" if e == last else f"example {e + 1}" for e in range(len(subject.worlds))]
        shown = [_pair(name, pair, ("before", "after")) for name, pair in zip(names, subject.worlds, strict=True)]
        parts: list[RenderableType] = [SideBySide(shown, padding=(1, 4))]
        for rank, attempt in enumerate(attempts, 1):
            title = "program" if sampler.mode == "greedy" else f"program {rank} of {len(attempts)}, {sampler.mode}"
            program = Padding(_program(attempt.program.tokens), (0, 0, 0, 2))
            parts += [Text(title, "bold"), program, _verdicts(attempt, names), _wrong(attempt, names, subject.worlds)]
        if not all(attempt.exact for attempt in attempts):
            parts.append(Text(f"reference: {' '.join(names_of(subject.reference))}", "dim"))
        return Group(*parts)


def attempt_all(tasks: Split, number: int, programs: Sequence[Decoded]) -> list[Attempt]:
    """Run programs on all examples of a task."""
    sequences = [program.tokens for program in programs]
    right = judge_lists(tasks.data, sequences, [number] * len(sequences)).right
    runs = execute(Programs.pack(sequences), tasks.data.inputs[np.full(len(sequences), number)])
    reference = KarelSubject.of(tasks, number).reference
    return [
        Attempt(
            program=program,
            verdicts=[
                RIGHT if right[i, e] else _VERDICTS[STATUS[status]] for e, status in enumerate(runs.status[i].tolist())
            ],
            reached=[unpack(runs.grids[i, e]) for e in range(right.shape[1])],
            exact=program.tokens == reference,
        )
        for i, program in enumerate(programs)
    ]


def _pair(name: str, worlds: tuple[World, World], titles: tuple[str, str]) -> Group:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(*(titled(world, title) for world, title in zip(worlds, titles, strict=True)))
    return Group(Text(name, "bold underline"), grid, "")


def _program(tokens: list[int]) -> Text:
    try:
        return program_text(parse(tokens))
    except KarelSyntaxError as error:
        words = " ".join(names_of(tokens)) or "(nothing)"
        return Text(words).append(f"\nno program: {error}", "magenta")


def _verdicts(attempt: Attempt, names: list[str]) -> Text:
    text = Text()
    for name, verdict in zip(names, attempt.verdicts, strict=True):
        # No line breaks inside a verdict.
        text.append(f"{name}: ".replace(" ", NBSP), "dim")
        text.append(verdict.replace(" ", NBSP), f"bold {_COLOURS[verdict]}").append("  ")
    text.right_crop(2)
    text.append("\nsolves the task" if attempt.solves else "\ndoes not solve the task", "bold")
    return text.append(", and is the reference program" if attempt.exact else ", and is not the reference program")


def _wrong(attempt: Attempt, names: list[str], worlds: list[tuple[World, World]]) -> RenderableType:
    """The worlds that the program should have reached, each beside the one that it did."""
    wrong = [
        _pair(f"{name}: {verdict}", (wanted, reached), ("wanted", "reached"))
        for name, (_, wanted), reached, verdict in zip(names, worlds, attempt.reached, attempt.verdicts, strict=True)
        if verdict != "no program" and not same_state(wanted, reached)
    ]
    return Padding(SideBySide(wrong, padding=(1, 4)), (1, 0, 0, 0)) if wrong else ""
