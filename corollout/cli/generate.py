"""``corollout generate``: what a model writes for tasks, and what becomes of it in their worlds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
from rich.columns import Columns as SideBySide
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corollout.cli.drawing import program_text, titled
from corollout.cli.training import RUN
from corollout.data import Columns
from corollout.errors import InputError
from corollout.experiments import jobs
from corollout.experiments.inspection import check_number, reference_of, worlds_of
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.grids import unpack
from corollout.tasks.karel.language import KarelSyntaxError, parse
from corollout.tasks.karel.language import decode as names_of
from corollout.tasks.karel.machine import STATUS, Programs, execute
from corollout.tasks.karel.metrics import decode, judge_lists
from corollout.tasks.karel.task import Split
from corollout.tasks.karel.world import World, same_state
from corollout.types import Sampler

SPLIT = Annotated[str, typer.Option(help="Where the tasks are: train, val or test.")]
WEIGHTS = Annotated[str, typer.Option(help="Which weights: best, last, or a file.")]
NBSP = "\N{NO-BREAK SPACE}"
RIGHT, WRONG = "right", "wrong world"
_VERDICTS = {"ok": WRONG, "crash": "crash", "timeout": "time-out", "syntax": "no program"}
_COLOURS = {RIGHT: "green", WRONG: "red", "crash": "red", "time-out": "yellow", "no program": "magenta"}


@dataclass(frozen=True)
class Attempt:
    """A program for a task, and how it did on each of the task's examples, the last of which is held out."""

    tokens: list[int]
    verdicts: list[str]
    reached: list[World]
    exact: bool  # it is the reference program

    @property
    def solves(self) -> bool:
        return all(verdict == RIGHT for verdict in self.verdicts)


def generate(
    run: RUN,
    split: SPLIT = "val",
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<int,…>", help="Numbers of tasks, from 0, instead of the first ones.", show_default=False
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many tasks, from the first on.")] = 3,
    beam: Annotated[int, typer.Option(min=0, help="Show the programs of a beam of this size.")] = 0,
    sample: Annotated[int, typer.Option(min=0, help="Show this many sampled programs.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    weights: WEIGHTS = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line, one for each program.")] = False,
) -> None:
    """Write programs for tasks and show what they do: greedily, or by a beam, or by sampling."""
    if beam and sample:
        raise InputError("--beam and --sample are two ways of decoding: choose one")
    sampler = Sampler("beam", beam) if beam else Sampler("sample", sample) if sample else Sampler("greedy")
    numbers = None if task is None else _numbers(task)
    karel, engine = jobs.open_run(run, weights)
    tasks = karel.split(split)
    numbers = list(range(min(count, len(tasks)))) if numbers is None else numbers
    for number in numbers:
        check_number(tasks, split, number)
    batch = tasks.columns.batch(numbers)
    programs = decode(engine, Columns(ids=batch.examples, **batch.columns), sampler, seed=seed, device=karel.device)
    console = Console(highlight=False)
    for number, found in zip(numbers, programs, strict=True):
        attempts = attempt_all(tasks, number, found)
        identity = {"split": split, "task": number, "id": int(tasks.columns.ids[number])}
        if as_json:
            for rank, attempt in enumerate(attempts):
                typer.echo(json.dumps({**identity, "rank": rank, **_record(attempt)}))
            continue
        console.rule(f"[bold]{split}, task {number}[/bold] [dim]id {identity['id']}[/dim]", align="left")
        console.print(Padding(_task(tasks, number, attempts, sampler), (1, 2, 1, 2)))


def attempt_all(tasks: Split, number: int, programs: Sequence[list[int]]) -> list[Attempt]:
    """Run programs on all examples of a task."""
    data: KarelData = tasks.data
    right = judge_lists(data, programs, [number] * len(programs)).right
    runs = execute(Programs.pack(programs), data.inputs[np.full(len(programs), number)])
    reference = reference_of(tasks.data, number)
    return [
        Attempt(
            tokens=tokens,
            verdicts=[
                RIGHT if right[i, e] else _VERDICTS[STATUS[status]] for e, status in enumerate(runs.status[i].tolist())
            ],
            reached=[unpack(runs.grids[i, e]) for e in range(right.shape[1])],
            exact=tokens == reference,
        )
        for i, tokens in enumerate(programs)
    ]


def _numbers(given: Sequence[str]) -> list[int]:
    words = [word.strip() for entry in given for word in entry.split(",")]
    try:
        return list(dict.fromkeys(int(word) for word in words))
    except ValueError:
        raise InputError(f"--task takes whole numbers, as in 4 or 4,7, not {','.join(given)!r}") from None


def _record(attempt: Attempt) -> dict[str, object]:
    return {
        "tokens": names_of(attempt.tokens),
        "verdicts": attempt.verdicts,
        "solves": attempt.solves,
        "exact": attempt.exact,
    }


def _task(tasks: Split, number: int, attempts: list[Attempt], sampler: Sampler) -> RenderableType:
    worlds = worlds_of(tasks.data, number)
    names = [_name(e, len(worlds)) for e in range(len(worlds))]
    shown = [_pair(name, pair, ("before", "after")) for name, pair in zip(names, worlds, strict=True)]
    parts: list[RenderableType] = [SideBySide(shown, padding=(1, 4))]
    for rank, attempt in enumerate(attempts, 1):
        title = "program" if sampler.mode == "greedy" else f"program {rank} of {len(attempts)}, {sampler.mode}"
        parts += [Text(title, "bold"), Padding(_program(attempt.tokens), (0, 0, 0, 2)), _verdicts(attempt, names)]
        wrong = [
            _pair(f"{name}: {verdict}", (wanted, reached), ("wanted", "reached"))
            for name, (_, wanted), reached, verdict in zip(
                names, worlds, attempt.reached, attempt.verdicts, strict=True
            )
            if verdict != "no program" and not same_state(wanted, reached)
        ]
        parts.append(Padding(SideBySide(wrong, padding=(1, 4)), (1, 0, 0, 0)) if wrong else "")
    if not all(attempt.exact for attempt in attempts):
        reference = reference_of(tasks.data, number)
        parts.append(Text(f"reference: {' '.join(names_of(reference))}", "dim"))
    return Group(*parts)


def _name(example: int, examples: int) -> str:
    return "held out" if example == examples - 1 else f"example {example + 1}"


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
