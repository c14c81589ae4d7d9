"""Settings: frozen dataclasses, read from and written to TOML files, and the options of every command.

A field is made by :func:`option`, so that it carries its help text and its bounds; a field whose type is another such
class is a section. TOML has no null: None is written as the text ``"none"``, or as another word that the field has for
it, and a field that may be None reads that text as None. Settings may name tasks and estimators outside the package by
their import path (:func:`import_object`).
"""

import dataclasses
import difflib
import importlib
import math
import os
import sys
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from corollout.errors import InputError
from corollout.files import read_text, write_file
from corollout.text import quoted, shortened

NONE = "none"
_DEEPEST = 20  # levels of sections and lists in a file
_LARGEST = 2**63  # TOML promises whole numbers of 64 bits
T = TypeVar("T")


def option(default: Any, help: str, **details: Any) -> Any:
    """A field of a settings class, with its default and its help text.

    ``details``: the bounds ``least`` and ``most``; ``choices``; ``none``, the word for None, such as "auto";
    ``formerly``, its name in older files; and for the command line ``flags``, by default ``--name``, ``metavar``, and
    for lists of texts that may have commas ``one_by_one``: each entry has a flag of its own.
    """
    return dataclasses.field(default=default, metadata={"help": help, **details})


def required(help: str, **more: Any) -> Any:
    """An option without a default."""
    return option(dataclasses.MISSING, help, **more)


def argument(help: str, default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """A field that is a positional argument on the command line."""
    return option(default, help, positional=True, **more)


def switch(help: str, **more: Any) -> Any:
    """A field that is False unless its flag is given: ``--json``."""
    return option(False, help, switch=True, **more)


@dataclasses.dataclass(frozen=True)
class Extra:
    """An extra of this package, ``pip install 'corollout[name]'``, and what is imported of the packages it brings."""

    name: str
    packages: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line whose function is imported when it runs; its help needs only the settings."""

    function: str  # its import path; it is called with the settings, and then with ``arguments``
    settings: type | str  # the settings class, or its import path
    help: str = ""  # by default the docstring of the function
    arguments: tuple[Any, ...] = ()
    extra: Extra | None = None  # without which its function cannot be imported
    several: bool = False  # whether torchrun may start it in several processes, which then divide the work


@dataclasses.dataclass(frozen=True)
class Option:
    """A field as files and flags see it; ``path`` is its name with the sections around it."""

    path: tuple[str, ...]
    type: type  # bool, int, float, str or Path; of a list, the type of its entries
    is_list: bool
    optional: bool  # may be None
    default: Any  # dataclasses.MISSING if it is required
    help: str = ""
    least: float | int | None = None
    most: float | int | None = None
    choices: tuple[str | int | float, ...] | None = None
    none: str = NONE
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    positional: bool = False
    switch: bool = False
    one_by_one: bool = False

    @property
    def name(self) -> str:
        return self.path[-1]

    def value(self, raw: Any, where: str) -> Any:
        """The field's value from the value in a TOML file; ``where`` is the start of the message if it is invalid."""
        if self.optional and raw == self.none:
            return None
        if not self.is_list:
            return self._checked(raw, raw, where)
        if not isinstance(raw, list):
            raise InputError(f"{where} must be {self._expected(raw)}, not {_as_toml(raw)}")
        return tuple(self._checked(entry, raw, where) for entry in raw)

    def parse(self, given: str | list[str], where: str) -> Any:
        """The TOML value for the text of a flag, or those of a flag that may be repeated.

        The entries of a list are separated by commas, or each has a flag of its own.
        """
        if isinstance(given, list) and self.one_by_one:
            self.value(given, where)
            return given
        text = given if isinstance(given, str) else ",".join(given)
        if self.optional and text == self.none:
            return text
        parts = [self._convert(part.strip()) for part in text.split(",") if part.strip()]
        raw = parts if self.is_list else self._convert(text)
        if isinstance(raw, float) and math.isinf(raw) and any(character.isdigit() for character in text):
            raise InputError(f"{where} is too large a number: {shortened(text)}")
        self.value(raw, where)
        return raw

    def _convert(self, text: str) -> Any:
        """A number if the field is one and the text is one; other text is rejected later, as in a file."""
        try:
            return self.type(text) if self.type in (int, float) else text
        except ValueError:
            return text

    def _checked(self, raw: Any, whole: Any, where: str) -> Any:
        if self.type is float and type(raw) is int and abs(raw) < _LARGEST:
            return self._checked(float(raw), whole, where)
        if self.type is int and type(raw) is int and not self._fits(raw):
            raise InputError(f"{where} must be a whole number of at most 18 digits, not {_as_toml(raw)}")
        if not self._fits(raw):
            raise InputError(f"{where} must be {self._expected(whole)}, not {_as_toml(whole)}")
        if self.least is not None and raw < self.least:
            wanted = "positive" if raw <= 0 < self.least < 1 else f"at least {_number(self.least)}"
            raise InputError(f"{where} must be {wanted}, not {_number(raw)}")
        if self.most is not None and raw > self.most:
            raise InputError(f"{where} must be at most {_number(self.most)}, not {_number(raw)}")
        if self.choices is not None and raw not in self.choices:
            raise InputError(f"{where} must be one of {', '.join(map(str, self.choices))}, not {_as_toml(raw)}")
        return Path(str(raw)) if self.type is Path else raw

    def _fits(self, raw: Any) -> bool:
        if self.type is Path:
            return type(raw) is str and "\0" not in raw
        if self.type is int:
            return type(raw) is int and abs(raw) < _LARGEST
        return type(raw) is self.type and (self.type is not float or math.isfinite(raw))

    def _expected(self, raw: Any) -> str:
        entries = raw if isinstance(raw, list) else [raw]
        is_infinite = any(isinstance(entry, float) and not math.isfinite(entry) for entry in entries)
        one, many = {
            bool: ("true or false", ""),
            int: ("a whole number", "whole numbers"),
            float: ("a finite number" if is_infinite else "a number", "finite numbers" if is_infinite else "numbers"),
            str: ("text", "strings"),
            Path: ("a path", "paths"),
        }[self.type]
        return (f"a list of {many}" if self.is_list else one) + (f' or "{self.none}"' if self.optional else "")


def options_of(cls: type, default: Any = dataclasses.MISSING, path: tuple[str, ...] = ()) -> list[Option]:
    """All fields of a settings class, those of its sections included."""
    options: list[Option] = []
    for name, field, type in _fields(cls):
        value = _default(field, default)
        if dataclasses.is_dataclass(type):
            options += options_of(typing.cast(Any, type), value, (*path, name))
        else:
            options.append(_option((*path, name), field, type, value))
    return options


def to_table(config: Any) -> dict[str, Any]:
    """All settings as nested dictionaries for a TOML file; :func:`from_table` is the inverse."""
    table: dict[str, Any] = {}
    for name, field, type in _fields(config.__class__):
        value = getattr(config, name)
        if dataclasses.is_dataclass(type):
            table[name] = to_table(value)
            continue
        option = _option((name,), field, type, value)
        if value is None:
            raw = option.none
        else:
            raw = list(map(_raw, value)) if isinstance(value, tuple) else _raw(value)
            if raw == option.none and option.optional:
                raise InputError(f'{name} must not be the text "{option.none}": in files it stands for None')
        option.value(raw, name)
        table[name] = raw
    return table


def from_table(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Settings from nested dictionaries; missing entries have their defaults. ``where`` names the file in messages."""
    return _build(cls, table, dataclasses.MISSING, where, ())


def merge(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """One table from several: later ones win, entry by entry in each section."""
    merged: dict[str, Any] = {}
    for key, value in (item for table in tables for item in table.items()):
        old = merged.get(key)
        is_section = isinstance(value, Mapping)
        merged[key] = merge(old if isinstance(old, dict) else {}, value) if is_section else value
    return merged


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    text = read_text(path, "the settings ")
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # its message has the line and the column
        raise InputError(f"the settings {path} are not valid TOML: {shortened(str(error))}") from error
    except RecursionError:
        table = None
    if table is None or _is_deep(table):
        raise InputError(f"the settings {path} are nested more than {_DEEPEST} levels deep")
    return table


def _is_deep(table: Mapping[str, Any]) -> bool:
    level: list[Any] = [table]
    for _ in range(_DEEPEST):
        entries = (entry for one in level for entry in (one.values() if isinstance(one, dict) else one))
        level = [entry for entry in entries if isinstance(entry, dict | list)]
    return bool(level)


def write_toml(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table to a TOML file."""
    write_file(path, toml_text(table), what="the settings ")


def toml_text(table: Mapping[str, Any]) -> str:
    """A table as TOML."""
    try:
        return tomli_w.dumps(table)
    except (TypeError, ValueError) as error:
        raise InputError(f"these settings cannot be written as TOML: {error}") from error


def _build(cls: type[T], table: Mapping[str, Any], base: Any, where: str, path: tuple[str, ...]) -> T:
    fields = _fields(cls)
    names = [name for name, _, _ in fields]
    renamed = {field.metadata.get("formerly"): name for name, field, _ in fields}
    table = {key if key in names else renamed.get(key, key): value for key, value in table.items()}
    for key in table:
        if key not in names:
            close = difflib.get_close_matches(key, names, n=1)
            section = f" in section {'.'.join(path)}" if path else ""
            hint = f"did you mean {close[0]!r}?" if close else f"the keys are {', '.join(names) or 'none'}"
            raise InputError(f"{where}: unknown key {quoted(key)}{section}; {hint}")
    values: dict[str, Any] = {}
    for name, field, type in fields:
        default = _default(field, base)
        dotted = ".".join((*path, name))
        if dataclasses.is_dataclass(type):
            section = table.get(name, {})
            if not isinstance(section, Mapping):
                raise InputError(f"{where}: {dotted} must be a section, not {_as_toml(section)}")
            values[name] = _build(typing.cast(Any, type), section, default, where, (*path, name))
        elif name in table:
            values[name] = _option((*path, name), field, type, default).value(table[name], f"{where}: {dotted}")
        elif default is dataclasses.MISSING:
            raise InputError(f"{where}: {dotted} is missing and has no default")
        else:
            values[name] = default
    return cls(**values)


def _fields(cls: type) -> list[tuple[str, "dataclasses.Field[Any]", Any]]:
    """Name, field and resolved type of each field of a settings class."""
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is not a dataclass")
    hints = typing.get_type_hints(cls)
    return [(field.name, field, hints[field.name]) for field in dataclasses.fields(cls)]


def _default(field: "dataclasses.Field[Any]", section: Any) -> Any:
    """The default of a field, in the default of its section if that has one; MISSING if there is none."""
    if section is not dataclasses.MISSING:
        return getattr(section, field.name)
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _option(path: tuple[str, ...], field: "dataclasses.Field[Any]", type: Any, default: Any) -> Option:
    optional = is_list = False
    metadata = {name: value for name, value in field.metadata.items() if name != "formerly" and value is not None}
    if typing.get_origin(type) in (typing.Union, types.UnionType):
        others = [other for other in typing.get_args(type) if other is not types.NoneType]
        if len(others) == 1 and len(typing.get_args(type)) == 2:
            optional, type = True, others[0]
    if typing.get_origin(type) is tuple and typing.get_args(type)[1:] == (...,):
        is_list, type = True, typing.get_args(type)[0]
    if typing.get_origin(type) is typing.Literal:
        metadata["choices"] = typing.get_args(type)
        type = metadata["choices"][0].__class__
    if type not in (bool, int, float, str, Path) or (is_list and type is bool):
        raise TypeError(f"settings of the type {type} ({'.'.join(path)}) are not supported")
    if "choices" in metadata:
        metadata["choices"] = tuple(metadata["choices"])
    return Option(path, type, is_list, optional, default, **metadata)


def _raw(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _number(value: float | int) -> str:
    """A number as people write it: 1000 rather than 1000.0."""
    return shortened(str(value)) if isinstance(value, int) else f"{value:g}"


def _as_toml(value: Any) -> str:
    """A value as it would be in a file, true rather than True, and not longer than fits a message."""
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = tomli_w.dumps({"v": value}).removeprefix("v = ")
        return shortened(" ".join(text.split()))  # lists stand on several lines
    except (TypeError, ValueError):
        return f"a value of the type {type(value).__name__}"


def import_object(path: str, default: str = "") -> Any:
    """The object at "package.module:NAME", or at "package.module" under the name ``default``.

    Modules in the working directory can be imported, too.
    """
    module_name, _, name = path.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise InputError(f"{quoted(path)} is not an import path: write package.module or package.module:NAME")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"cannot import {quoted(module_name)} (of {quoted(path)}): {shortened(str(error))}") from error
    try:
        return getattr(module, name or default)
    except AttributeError:
        raise InputError(f"the module {quoted(module_name)} has no {quoted(name or default)}") from None
