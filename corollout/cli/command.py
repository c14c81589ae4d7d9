"""Commands from settings: a command is a function of one settings class, and every field is a flag or an argument."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from corollout.config import Option, from_table, merge, options_of

Layers = Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]


def command(
    function: Callable[[Any], None], settings: type | None = None, layers: Layers | None = None
) -> Callable[..., None]:
    """The function as typer wants it: one parameter for each field of its settings class, sections included.

    The class is ``settings``, or else the type of the function's only parameter. What was given on the command line
    wins over the tables that ``layers`` returns, of which later ones win, and these over the defaults. ``layers`` is
    told what was given.
    """
    cls = settings or next(iter(get_type_hints(function).values()))
    options = options_of(cls)
    names = [option.name for option in options]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TypeError(f"the command {function.__name__} would have two flags {_flag(twice[0])}")
    parameters = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=... if option.default is dataclasses.MISSING and layers is None else None,
            annotation=_annotation(option, scaled=layers is not None),
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
            section[option.name] = value if option.kind is bool else option.parse(_joined(value), _shown_name(option))
        function(from_table(cls, merge(*(layers(flags) if layers else ()), flags), "the settings"))

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _joined(value: str | list[str]) -> str:
    return ",".join(value) if isinstance(value, list) else value


def _shown_name(option: Option) -> str:
    return option.name.upper() if option.positional else _flags(option)[0]


def _annotation(option: Option, scaled: bool) -> Any:
    help = " ".join(filter(None, [option.help, _default(option, scaled)]))
    if option.positional:
        kind = list[str] if option.several else str
        metavar = option.metavar or option.name.upper()
        return Annotated[kind | None, typer.Argument(metavar=metavar, help=help, show_default=False)]
    flags = _flags(option)
    if option.kind is bool:
        if not option.switch:
            flags = [f"{flags[0]}/--no-{flags[0].removeprefix('--')}"]
        return Annotated[bool | None, typer.Option(*flags, help=help, show_default=False)]
    # Text, whatever the type: so that flags and files are read, checked and refused in the same words.
    kind = list[str] if option.several else str
    return Annotated[kind | None, typer.Option(*flags, metavar=_metavar(option), help=help, show_default=False)]


def _flags(option: Option) -> list[str]:
    return list(option.flags) or [_flag(option.name)]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _metavar(option: Option) -> str:
    if option.metavar is not None:
        return option.metavar
    if option.choices is not None:
        one = "|".join(map(str, option.choices))
    else:
        one = {int: "int", float: "float", str: "text", Path: "path"}[option.kind]
    return f"<{one},…>" if option.several else f"<{one}>"


def _default(option: Option, scaled: bool) -> str:
    value = option.default
    if value is dataclasses.MISSING:
        return ""
    if value is None or value == "" or value == () or option.switch:
        return ""
    shown = ",".join(map(str, value)) if option.several else value
    if option.kind is bool:
        shown = "yes" if value else "no"
    return f"[default: {'the scale’s, else ' if scaled else ''}{shown}]"
