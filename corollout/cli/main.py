"""The command line: ``corollout COMMAND``.

A command is a function of one settings class, whose fields are its options and arguments.
"""

import ast
import dataclasses
import inspect
import io
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

import corollout
from corollout.cli.terminal import Terminal
from corollout.config import NONE, Option, from_table, import_object, merge, options_of
from corollout.errors import CorolloutError, InputError, Interrupted
from corollout.signals import end_at_once, exit_code, interrupting_stops, silence_after_stop
from corollout.tasks.task import find_task, task_names
from corollout.text import shortened

# A function of one settings class, a group, or the import path of either.
Target = Callable[..., Any] | TyperGroup | str
# The base of all errors of typer, which does not export it.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
_LONGEST_ERROR = 4000  # characters


class LazyGroup(TyperGroup):
    """A group whose commands are made when they are needed; ``targets`` returns them by name.

    A subclass may override :meth:`find`, if there are more commands than are listed.
    """

    def __init__(self, *, targets: Callable[[], Mapping[str, Target]], **attributes: Any):
        super().__init__(**{"no_args_is_help": True, "rich_markup_mode": None, **attributes})
        self.targets = targets

    def find(self, name: str) -> Target | None:
        return self.targets().get(name)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.targets())

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        if (target := self.find(cmd_name)) is not None:
            return make_command(cmd_name, target)
        self.commands = dict.fromkeys(self.list_commands(ctx))  # for suggestions
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(target)) for name, target in self.targets().items()])


def make_command(name: str, target: Target) -> TyperCommand | TyperGroup:
    """The command that a target stands for."""
    if isinstance(target, str):
        return make_command(name, import_object(target))
    if isinstance(target, TyperGroup):
        return target
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name)(command(target))
    made = typer.main.get_command(app)
    assert isinstance(made, TyperCommand)
    return made


def summary(target: Target) -> str:
    """The first sentence of a command's help, if possible read without importing its module."""
    if not isinstance(target, str):
        return _first_sentence((target.help if isinstance(target, TyperGroup) else target.__doc__) or "")
    module, _, name = target.partition(":")
    spec = find_spec(module)
    tree = ast.parse("" if spec is None or spec.origin is None else Path(spec.origin).read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _first_sentence(ast.get_docstring(node) or "")
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Call):
            for keyword in node.value.keywords:
                if keyword.arg == "help" and isinstance(keyword.value, ast.Constant):
                    return _first_sentence(str(keyword.value.value))
    return summary(import_object(target))


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].removesuffix(".") + "." if paragraph else ""


def command(function: Callable[[Any], None]) -> Callable[..., None]:
    """The function as typer wants it: with a parameter for each field of its settings class, sections included.

    Values given on the command line win over the defaults. If the settings class has a class method ``layers``, it gets
    a table of the given values and returns tables that come in between, such as those of files, of which later ones
    win.
    """
    cls = next(iter(get_type_hints(function).values()))
    options, layers = options_of(cls), getattr(cls, "layers", None)
    by_name: dict[str, Option] = {}
    for option in options:
        if (other := by_name.setdefault(option.name, option)) is not option:
            paths = " and ".join(".".join(one.path) for one in (other, option))
            raise InputError(f"{function.__name__} has two options {_flags(option)[0]}, {paths}: rename one")
    parameters = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=... if option.default is dataclasses.MISSING and len(option.path) == 1 else None,
            annotation=_annotation(option, layered=layers is not None and len(option.path) > 1),
        )
        for option in options
    ]

    def run(**given: Any) -> None:
        flags: dict[str, Any] = {}
        for option in options:
            if (value := given[option.name]) is None or value == []:
                continue
            section = flags
            for name in option.path[:-1]:
                section = section.setdefault(name, {})
            text = ",".join(value) if isinstance(value, list) else value
            label = option.name.upper() if option.positional else _flags(option)[0]
            section[option.name] = text if option.type is bool else option.parse(text, label)
        try:
            function(from_table(cls, merge(*(layers(flags) if layers else ()), flags), "the settings"))
        except KeyboardInterrupt:
            raise Interrupted("Stopped; what is complete is kept. Run the same command again.") from None

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _annotation(option: Option, layered: bool) -> Any:
    """The parameter's type and how it is given. All values but bools are text: flags are checked as files are."""
    help = " ".join(filter(None, [option.help, _default(option, layered)]))
    type = list[str] | None if option.is_list else str | None
    if option.positional:
        metavar = option.metavar or option.name.upper()
        return Annotated[type, typer.Argument(metavar=metavar, help=help, show_default=False)]
    flags = _flags(option)
    if option.type is bool:
        if not option.switch:
            flags = [f"{flags[0]}/--no-{flags[0].removeprefix('--')}"]
        return Annotated[bool | None, typer.Option(*flags, help=help, show_default=False)]
    return Annotated[type, typer.Option(*flags, metavar=_metavar(option), help=help, show_default=False)]


def _flags(option: Option) -> list[str]:
    return list(option.flags) or ["--" + option.name.replace("_", "-")]


def _metavar(option: Option) -> str:
    if option.metavar is not None:
        return option.metavar
    types = {int: "int", float: "float", str: "text", Path: "path"}
    one = types[option.type] if option.choices is None else "|".join(map(str, option.choices))
    return f"<{one},…>" if option.is_list else f"<{one}>"


def _default(option: Option, layered: bool) -> str:
    value = option.none if option.default is None and option.none != NONE else option.default
    if value in (dataclasses.MISSING, None, "", ()) or option.switch:
        return ""
    shown = ",".join(map(str, value)) if option.is_list else value
    if option.type is bool:
        shown = "yes" if value else "no"
    return f"[default: {'from the scale, otherwise ' if layered else ''}{shown}]"


# A command of this package costs one line: a function of one settings class. Those of tasks are found by their specs.
COMMANDS: dict[str, str] = {
    "demo": "corollout.cli.demo:demo",
    "pretrain": "corollout.cli.pretrain:pretrain",
    "finetune": "corollout.cli.finetune:finetune",
    "evaluate": "corollout.cli.evaluate:evaluate",
    "compare": "corollout.cli.compare:compare",
    "generate": "corollout.cli.generate:generate",
    "export": "corollout.cli.export:export",
    "inspect": "corollout.cli.inspect:inspect",
    "lab": "corollout.cli.lab:lab",
    "data check": "corollout.cli.check:check",
    "reproduce": "corollout.cli.reproduce:reproduce",
}


def all_commands() -> dict[str, Target]:
    """Commands of this package and of all known tasks, by full name: "data check"."""
    commands: dict[str, Target] = {}
    for name in task_names():
        try:
            if module := find_task(name).commands:
                commands |= import_object(module, "COMMANDS")
        except InputError as error:  # a broken task of another package must not take all commands with it
            missing = f"warning: the commands of the task {name} are missing: {error}"
            Terminal(stderr=True).print(missing, soft_wrap=True)
    return {**COMMANDS, **{name: target for name, target in commands.items() if name not in COMMANDS}}


def grouped(commands: Mapping[str, Target]) -> dict[str, Target]:
    """Commands by the first word of their names; those with a second word are in groups."""
    groups: dict[str, dict[str, Target]] = {}
    for name, target in commands.items():
        first, _, rest = name.partition(" ")
        groups.setdefault(first, {})[rest] = target
    return {name: group[""] if "" in group else _group(name, group) for name, group in groups.items()}


def _group(name: str, group: Mapping[str, Target]) -> LazyGroup:
    commands = dict(sorted(group.items()))
    return LazyGroup(name=name, help=f"Subcommands: {', '.join(commands)}.", targets=lambda: commands)


class Root(LazyGroup):
    """The whole command line."""

    def __init__(self, **attributes: Any):
        super().__init__(targets=lambda: grouped(all_commands()), **attributes)

    def find(self, name: str) -> Target | None:
        return COMMANDS.get(name) or super().find(name)  # tasks are only imported if they are needed


cli = typer.Typer(
    cls=Root, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"corollout {corollout.__version__}")
        raise typer.Exit
    return wanted


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Fine-tune sequence generators on rewards that are not differentiable."""


def app() -> None:
    """Run the command line and end the process; an error is one sentence and a non-zero exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8
    silence_after_stop()
    code = None
    with interrupting_stops():
        with suppress(KeyboardInterrupt):  # before a command begins, while an error is printed, or after everything
            code = _run()
            end_at_once()
        if code is None:
            _print_error("Stopped. Run the same command again.")
        end_at_once()
    sys.exit(exit_code() if code is None else code)


def _run() -> int:
    """Run the command line and report errors; the exit code."""
    try:
        code = cli(standalone_mode=False) or 0
        if code == 128 + signal.SIGINT:  # typer's answer to KeyboardInterrupt, whatever the signal was
            raise Interrupted("Stopped before anything was done. Run the same command again.")
        return code
    except Interrupted as error:
        _print_error(str(error))
        return exit_code()
    except CorolloutError as error:
        _print_error(f"error: {error}")
    except OSError as error:  # a path that the system refuses: too long, or not for us to look at
        if error.filename is None:
            raise
        _print_error(f"error: cannot use {shortened(str(error.filename))}: {error.strerror}")
    except (MemoryError, RuntimeError) as error:  # PyTorch raises either
        if not (
            isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error)
        ):
            raise
        _print_error("error: there is not enough memory: choose smaller sizes")
    except _UsageError as error:
        text = io.StringIO()
        error.show(text)
        _print_error(text.getvalue().rstrip("\n"))
        return error.exit_code
    return 1


def _print_error(message: str) -> None:
    Terminal(stderr=True, soft_wrap=True).print(shortened(message, _LONGEST_ERROR))
