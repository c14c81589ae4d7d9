"""Commands of the Karel task: ``corollout data karel`` and ``corollout karel run``."""

import json
import sys
import textwrap
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.padding import Padding
from rich.text import Text

from corollout.cli.progress import show_events
from corollout.cli.terminal import Terminal
from corollout.config import from_table
from corollout.errors import InputError
from corollout.files import read_text
from corollout.folders import require_empty
from corollout.json_text import decode_json
from corollout.reports.manifest import manifest
from corollout.tasks.karel import Result, World, parse, run
from corollout.tasks.karel.dataset import SPLITS, KarelData, find_file, read_records
from corollout.tasks.karel.generator import make_data
from corollout.tasks.karel.grids import needed_side
from corollout.tasks.karel.machine import Programs, judge
from corollout.tasks.karel.settings import DataSettings, GenerateSettings, RunSettings
from corollout.tasks.karel.show import TOKEN_STYLES, before_after, program_text
from corollout.tasks.karel.spec import KAREL
from corollout.tasks.spec import DataCheck

_STATUS = {
    "ok": ("ok", "green", "the program ran to its end"),
    "crash": ("crash", "red", "the next action is not possible"),
    "timeout": ("time-out", "yellow", "the program needs more ticks than allowed"),
}


def generate_data(settings: GenerateSettings) -> None:
    """Generate Karel tasks in the public JSON-lines format."""
    names = (*SPLITS, "shortest", "longest", "largest")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    sizes: dict[str, Any] = KAREL.scale(settings.scale)["data"] | given
    require_empty(settings.out)
    with show_events() as on_event:
        data = from_table(DataSettings, {**sizes, "data_seed": settings.seed}, "the settings")
        facts = manifest(seed=settings.seed, scale=settings.scale, forms=settings.forms, **sizes)
        make_data(settings.out, data, settings.forms, settings.workers, facts, on_event)
    console = Terminal(soft_wrap=True)
    for path in (settings.out / f"{split}.jsonl" for split in SPLITS if sizes[split]):
        console.print(f"{path}: {summary(KarelData.open(path))}")


def summary(data: KarelData) -> str:
    """The size of a data set in one line."""
    lengths, largest = data.lengths, needed_side(data.inputs) - 2
    return (
        f"{len(data):,} programs of {lengths.min()} to {lengths.max()} tokens, mean {lengths.mean():.1f}, "
        f"{data.examples} examples each, worlds of up to {largest} rows or columns"
    )


def check_data(path: Path, skip_bad: bool = False) -> DataCheck | None:
    """Run every program of a file, or of the files of a folder, on its worlds; None for a folder without any."""
    paths = [find_file(path, split) for split in SPLITS] if path.is_dir() else [path]
    lines, failures = [], 0
    for file in filter(None, paths):
        data, bad = read_records(file, skip_bad)
        right = judge(Programs(data.tokens, data.lengths), np.arange(len(data)), data.inputs, data.outputs).right
        lines.append(f"{file}: {summary(data)}")
        if bad:
            lines.append(f"  bad lines: {len(bad)}, the first: {bad[0]}")
        lines.append(f"  reproduced: {right.sum():,} of {right.size:,} examples")
        failures += int((~right).sum())
    return DataCheck(lines, failures) if lines else None


def run_program(settings: RunSettings) -> None:
    """Run a program in a world and show what it does."""
    text = settings.program
    program = parse(_read(text[1:]) if text.startswith("@") else text)
    start = _read_world(settings.world)
    result = run(program, start)
    if settings.json:
        world = result.world.to_json(crashed=result.status == "crash")
        print(json.dumps({"status": result.status, "actions": result.actions, "world": world}))
        return
    console = Terminal()
    for part in (program_text(program), before_after(start, result.world), _outcome(result)):
        console.print(Padding(part, (1, 2, 0, 2), expand=False))
    console.print()


def _outcome(result: Result) -> Text:
    name, colour, meaning = _STATUS[result.status]
    text = Text().append(name, f"bold {colour}").append(f": {meaning}", colour)
    text.append(f"\nactions {len(result.actions)}, ticks {result.ticks}", "bold")
    # Repetitions are counted, "move ×3", without a line break in between.
    groups = [(action, len(list(group))) for action, group in groupby(result.actions)]
    actions = [action if count == 1 else f"{action}\N{NO-BREAK SPACE}×{count}" for action, count in groups]
    return text.append("".join(f"\n{line}" for line in textwrap.wrap(" ".join(actions), 76)), TOKEN_STYLES["action"])


def _read(source: str) -> str:
    if source != "-":
        return read_text(Path(source))
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 text: {error}") from error


def _read_world(source: str) -> World:
    name, text = "standard input" if source == "-" else source, _read(source)
    try:
        data = decode_json(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{name}, line {error.lineno}, column {error.colno}: not JSON, {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: nested too deeply for a world, or a number is too long") from error
    if isinstance(data, Mapping) and "inpgrid_json" in data:
        data = data["inpgrid_json"]
    try:
        if not isinstance(data, Mapping):
            raise InputError("expected an object with rows, cols, hero, blocked and markers")
        return World.from_json(data)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
