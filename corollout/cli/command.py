"""Commands from settings: a command is a function of one settings class, whose fields are its options and arguments.

What lists commands and their options imports no more than settings; the function is imported when the command runs.
"""

import ast
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from corollout.config import NONE, Command, Extra, Option, from_table, import_object, merge, options_of
from corollout.errors import InputError, Interrupted
from corollout.launch import has_others
from corollout.signals import ending_stops

# A command, a function of one settings class, a group, or the import path of one of these.
Target = Command | Callable[..., Any] | TyperGroup | str


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
    for parameter in made.params:
        if parameter.param_type_name == "argument":
            _plain_argument(parameter)
    return made


def _plain_argument(parameter: Any) -> None:
    """Let typer write an argument by its name, RUN: not as ``{RUN}``, nor as ``RUN <str>``."""
    name = parameter.metavar if parameter.required else f"[{parameter.metavar}]"
    vars(parameter)["_usage_display_name"] = lambda: name if parameter.nargs == 1 else f"{name}..."
    vars(parameter)["display_type_rich"] = lambda ctx: ""


def summary(target: Target) -> str:
    """The first sentence of a command's help, if possible read without importing its module."""
    paragraph = " ".join(help_of(target).split("\n\n")[0].split())
    return paragraph.split(". ")[0].removesuffix(".") + "." if paragraph else ""


def help_of(target: Target) -> str:
    """A command's help: its own, or the docstring of its function, if possible read without importing the module."""
    if isinstance(target, Command):
        return target.help or help_of(target.function)
    if not isinstance(target, str):
        return (target.help if isinstance(target, TyperGroup) else inspect.getdoc(target)) or ""
    module, _, name = target.partition(":")
    spec = find_spec(module)
    tree = ast.parse("" if spec is None or spec.origin is None else Path(spec.origin).read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Call):
            for keyword in node.value.keywords:
                if keyword.arg == "help" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    return help_of(import_object(target))


def command(target: Callable[[Any], None] | Command) -> Callable[..., None]:
    """A function as typer wants it: with a parameter for each field of the settings class, sections included.

    Values given on the command line win over the defaults. If the settings class has a class method ``layers``, it gets
    a table of the given values and returns tables that come in between, such as those of files, of which later ones
    win. If it has a class method ``scale_of``, that gets the path of an option and returns, for the help, whose scale
    sets its default: "the scale", or nothing if none does.
    """
    cls, name = settings_class(target), _function_name(target)
    options, layers, scale = options_of(cls), getattr(cls, "layers", None), getattr(cls, "scale_of", None)
    by_name: dict[str, Option] = {}
    for option in options:
        if (other := by_name.setdefault(option.name, option)) is not option:
            paths = " and ".join(".".join(one.path) for one in (other, option))
            raise InputError(f"{name} has two options {_flags(option)[0]}, {paths}: rename one")
    parameters = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            # A section may be completed by what comes in between.
            default=... if option.default is dataclasses.MISSING and (not layers or len(option.path) == 1) else None,
            annotation=_annotation(option, scale(option.path) if scale else ""),
        )
        for option in options
    ]

    def run(**given: Any) -> None:
        if has_others() and not (isinstance(target, Command) and target.several):
            raise InputError(
                "this command runs in one process: start it without torchrun (several processes can divide the work of "
                "pretrain, finetune, evaluate, lab and lm train)"
            )
        flags: dict[str, Any] = {}
        for option in options:
            if (value := given[option.name]) is None or value == []:
                continue
            section = flags
            for part in option.path[:-1]:
                section = section.setdefault(part, {})
            label = option.name.upper() if option.positional else _flags(option)[0]
            section[option.name] = value if option.type is bool else option.parse(value, label)
        with _joined():
            try:
                function = _load(target)
                function(from_table(cls, merge(*(layers(flags) if layers else ()), flags), "the settings"))
            except KeyboardInterrupt:
                raise Interrupted("Stopped; what is complete is kept. Run the same command again.") from None

    run.__name__, run.__doc__ = name, help_of(target)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _joined() -> AbstractContextManager[Any]:
    """Inside, the processes that torchrun has started are a group."""
    if not has_others():
        return nullcontext()
    with ending_stops():
        from corollout.processes import joined  # imports PyTorch
    return joined()


def settings_class(target: Callable[[Any], None] | Command) -> Any:
    """The settings class of a command."""
    if not isinstance(target, Command):
        return next(iter(get_type_hints(target).values()))
    return import_object(target.settings) if isinstance(target.settings, str) else target.settings


def _function_name(target: Callable[[Any], None] | Command) -> str:
    return target.function.rpartition(":")[2] if isinstance(target, Command) else target.__name__


def _load(target: Callable[[Any], None] | Command) -> Callable[[Any], None]:
    """The function of a command; PyTorch is imported here, which takes seconds."""
    if not isinstance(target, Command):
        return target
    if target.extra is not None:
        _require_extra(target.extra)
    with ending_stops():
        function = import_object(target.function)
    return lambda settings: function(settings, *target.arguments)


def _require_extra(extra: Extra) -> None:
    """Raise an error unless the packages of an extra are there."""
    if missing := [name for name in extra.packages if find_spec(name) is None]:
        which = f"the package {missing[0]}" if len(missing) == 1 else f"the packages {', '.join(missing)}"
        raise InputError(f"this command needs {which}: pip install 'corollout[{extra.name}]'")


def _annotation(option: Option, scale: str) -> Any:
    """The parameter's type and how it is given. All values but bools are text: flags are checked as files are."""
    help = " ".join(filter(None, [option.help, _default(option, scale)]))
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
    return f"<{one},…>" if option.is_list and not option.one_by_one else f"<{one}>"


def _default(option: Option, scale: str) -> str:
    value = option.none if option.default is None and option.none != NONE else option.default
    if value in (dataclasses.MISSING, None, "", ()) or option.switch:
        return ""
    shown = ",".join(map(str, value)) if option.is_list else value
    if option.type is bool:
        shown = "yes" if value else "no"
    elif isinstance(value, float):
        shown = f"{value:g}"
    return f"[default: {f'from {scale}, otherwise ' if scale else ''}{shown}]"
