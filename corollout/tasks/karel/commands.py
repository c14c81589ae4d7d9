"""``corollout karel``: commands for the Karel task."""

import json
import sys
import textwrap
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from corollout.errors import InputError
from corollout.tasks.karel import Result, World, parse
from corollout.tasks.karel import run as run_program
from corollout.tasks.karel.show import ACTION, before_after, program_text

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The Karel task: programs and worlds.")

_OUTCOMES = {
    "ok": ("ok", "green", "the program ran to its end"),
    "crash": ("crash", "red", "the next action could not be carried out"),
    "timeout": ("time-out", "yellow", "the program wanted more ticks than it may have"),
}


@app.command()
def run(
    program: Annotated[str, typer.Argument(help='The program, "DEF run m( … m)", or @FILE with the program in it.')],
    world: Annotated[
        str, typer.Option(help="JSON file with the world, in the public inpgrid_json form; - for standard input.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a program in a world and show what it does."""
    tree = parse(_read(program[1:]) if program.startswith("@") else program)
    start = _world(world)
    result = run_program(tree, start)
    if as_json:
        left = result.world.to_json(crashed=result.status == "crash")
        typer.echo(json.dumps({"status": result.status, "actions": result.actions, "world": left}))
        return
    console = Console(highlight=False)
    for part in (program_text(tree), before_after(start, result.world), _outcome(result)):
        console.print(Padding(part, (1, 2, 0, 2), expand=False))
    console.print()


def _outcome(result: Result) -> Text:
    name, colour, meaning = _OUTCOMES[result.status]
    text = Text().append(name, f"bold {colour}").append(f": {meaning}", colour)
    text.append(f"\nactions {len(result.actions)}, ticks {result.ticks}", "bold")
    return text.append("".join(f"\n{line}" for line in _lines(result.actions)), ACTION)


def _lines(actions: list[str]) -> list[str]:
    """Actions in lines of at most 76 characters, repetitions counted: ``move ×3``."""
    runs = [(name, len(list(group))) for name, group in groupby(actions)]
    # No break inside "move ×3".
    words = [name if count == 1 else f"{name}\N{NO-BREAK SPACE}×{count}" for name, count in runs]
    return textwrap.wrap(" ".join(words), 76)


def _read(source: str) -> str:
    try:
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {_name(source)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {_name(source)}: it is not UTF-8 text") from error


def _name(source: str) -> str:
    return "standard input" if source == "-" else source


def _world(source: str) -> World:
    name, text = _name(source), _read(source)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{name}, line {error.lineno}, column {error.colno}: not JSON, {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: nested too deeply, or a number too long, to be a world") from error
    if isinstance(data, Mapping) and "inpgrid_json" in data:
        data = data["inpgrid_json"]
    if not isinstance(data, Mapping):
        raise InputError(f"{name}: expected a JSON object with rows, cols, hero, blocked and markers")
    try:
        return World.from_json(data)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
