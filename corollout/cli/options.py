"""Flags for settings: one for each field of a settings class, and ``--config`` for a file with them."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from corollout.config import Option, options_of

_FILE = Annotated[
    Path | None,
    typer.Option("--config", metavar="<file>", help="TOML file with settings; flags win over it.", show_default=False),
]


def with_options(*classes: type, scaled: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command one flag for each field of some settings classes, sections included, and ``--config FILE``.

    The command gets ``flags``, a table of only those that were given (nested where the class has sections, as a TOML
    file would be), and ``config``, the path of the file or None; other parameters are its own. So it can let files
    stand between the defaults and the flags: ``from_table(cls, merge(scale, read_toml(config), flags), where)``.
    """
    known = [option for cls in classes for option in options_of(cls)]
    # What a scale sets comes before the class's own default.
    words = "default: the scale's, else" if scaled else "default:"

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints.get(name, parameter.annotation), kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command).parameters.items()
            if name not in ("flags", "config")
        ]
        file = Annotated[
            Path | None,
            typer.Option(
                "--config", metavar="<file>", help="TOML file with settings; flags win over it.", show_default=False
            ),
        ]
        added = [_parameter("config", file), *(_parameter(option.name, _annotation(option, words)) for option in known)]
        parameters = [*own, *added]
        names = [parameter.name for parameter in parameters]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise TypeError(f"the command {command.__name__} would have two flags {_flag(twice[0])}")

        def run(**given: Any) -> Any:
            flags: dict[str, Any] = {}
            for option in known:
                value = given.pop(option.name)
                if value is None:
                    continue
                section = flags
                for name in option.path[:-1]:
                    section = section.setdefault(name, {})
                section[option.name] = value if option.kind is bool else option.parse(value, _flag(option.name))
            return command(flags=flags, **given)

        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        vars(run)["__signature__"] = inspect.Signature(parameters)
        return run

    return decorate


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    # None says that a flag was not given.
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _annotation(option: Option, words: str) -> Any:
    flag = _flag(option.name)
    help = " ".join(filter(None, [option.help, f"[{_default(option, words)}]"]))
    if option.kind is bool:
        switch = f"{flag}/--no-{flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(switch, help=help, show_default=False)]
    # Text, whatever the type: so that flags and files are read, checked and refused in the same words.
    return Annotated[str | None, typer.Option(flag, metavar=_metavar(option), help=help, show_default=False)]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _metavar(option: Option) -> str:
    if option.choices is not None:
        one = "|".join(map(str, option.choices))
    else:
        one = {int: "int", float: "float", str: "text", Path: "path"}[option.kind]
    return f"<{one},…>" if option.several else f"<{one}>"


def _default(option: Option, words: str) -> str:
    value = option.default
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return "default: depends on scale"
    if option.several:
        return f"{words} {','.join(map(str, value)) or 'none'}"
    if option.kind is bool:
        return f"{words} {'yes' if value else 'no'}"
    return f"{words} {value}"
