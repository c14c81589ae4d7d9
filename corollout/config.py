"""Settings: frozen dataclasses, and the TOML files that they are read from and written to.

A field is made by :func:`option`, so that it carries its explanation and its bounds; a field whose type is another such
class is a section. TOML has nothing for None: it is written as the text ``"none"``, and a field that may be None reads
that text as None.
"""

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from corollout.errors import InputError
from corollout.files import read_text, write_file

NONE = "none"
T = TypeVar("T")


def option(
    default: Any,
    help: str,
    *,
    least: float | int | None = None,
    most: float | int | None = None,
    choices: Sequence[str | int | float] | None = None,
    formerly: str | None = None,
    flags: Sequence[str] = (),
    metavar: str | None = None,
) -> Any:
    """A field of a settings class: its default, one line about it, its smallest and largest value, or its choices.

    ``formerly`` is a name that it has in older files. On the command line it is called ``--name``, unless ``flags``
    says otherwise.
    """
    metadata = {"help": help, "least": least, "most": most, "choices": choices, "formerly": formerly}
    metadata |= {"flags": tuple(flags), "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


def required(help: str, **more: Any) -> Any:
    """An option without a default."""
    return option(dataclasses.MISSING, help, **more)


def argument(help: str, default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """A field that stands on the command line by its place, without a flag."""
    field = option(default, help, **more)
    field.metadata = {**field.metadata, "positional": True}
    return field


def switch(help: str, **more: Any) -> Any:
    """An option that is off unless its flag is given: ``--json``."""
    field = option(False, help, **more)
    field.metadata = {**field.metadata, "switch": True}
    return field


@dataclasses.dataclass(frozen=True)
class Option:
    """A field as files and flags see it; ``path`` is its name with the sections around it."""

    path: tuple[str, ...]
    kind: type  # bool, int, float, str or Path: the type, or that of the entries if there are several
    several: bool
    optional: bool
    default: Any  # dataclasses.MISSING if it has to be given
    help: str
    least: float | int | None
    most: float | int | None
    choices: tuple[str | int | float, ...] | None
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    positional: bool = False
    switch: bool = False

    @property
    def name(self) -> str:
        return self.path[-1]

    def value(self, raw: Any, where: str) -> Any:
        """The field's value for what a TOML file says; ``where`` begins the message if it is not usable."""
        if self.optional and raw == NONE:
            return None
        if not self.several:
            return self._checked(raw, raw, where)
        if not isinstance(raw, list):
            raise InputError(f"{where} must be {self._expected()}, not {_shown(raw)}")
        return tuple(self._checked(entry, raw, where) for entry in raw)

    def parse(self, text: str, where: str) -> Any:
        """What a TOML file would say for the text of a flag; several entries are separated by commas."""
        if self.optional and text == NONE:
            return NONE
        texts = [part.strip() for part in text.split(",")] if self.several else [text]
        raw: Any = [self._number(part) for part in texts if part or not self.several]
        raw = raw if self.several else raw[0]
        self.value(raw, where)
        return raw

    def _number(self, text: str) -> Any:
        """A number if one is wanted and this is one; else the text, which is then refused like that of a file."""
        try:
            return self.kind(text) if self.kind in (int, float) else text
        except ValueError:
            return text

    def _checked(self, raw: Any, whole: Any, where: str) -> Any:
        if self.kind is float and type(raw) is int:
            raw = float(raw)
        if type(raw) is not (str if self.kind is Path else self.kind) or raw != raw:
            raise InputError(f"{where} must be {self._expected()}, not {_shown(whole)}")
        if self.least is not None and raw < self.least:
            raise InputError(f"{where} must be at least {self.least}, not {_shown(raw)}")
        if self.most is not None and raw > self.most:
            raise InputError(f"{where} must be at most {self.most}, not {_shown(raw)}")
        if self.choices is not None and raw not in self.choices:
            known = ", ".join(map(str, self.choices))
            raise InputError(f"{where} must be one of {known}, not {_shown(raw)}")
        return Path(raw) if self.kind is Path else raw

    def _expected(self) -> str:
        one, many = {
            bool: ("true or false", ""),
            int: ("a whole number", "whole numbers"),
            float: ("a number", "numbers"),
            str: ("text", "texts"),
            Path: ("text (a path)", "texts (paths)"),
        }[self.kind]
        return (f"a list of {many}" if self.several else one) + (f' or "{NONE}"' if self.optional else "")


def options_of(cls: type, default: Any = None, path: tuple[str, ...] = ()) -> list[Option]:
    """All fields of a settings class, those of its sections included."""
    found: list[Option] = []
    for name, field, kind in _fields(cls):
        value = _default(field) if default is None else getattr(default, name)
        if _is_section(kind):
            found += options_of(kind, None if value is dataclasses.MISSING else value, (*path, name))
        else:
            found.append(_option((*path, name), field, kind, value))
    return found


def to_table(config: Any) -> dict[str, Any]:
    """All settings as nested dictionaries that TOML can hold; :func:`from_table` gives the same settings again."""
    table: dict[str, Any] = {}
    for name, field, kind in _fields(type(config)):
        value = getattr(config, name)
        if _is_section(kind):
            table[name] = to_table(value)
            continue
        known = _option((name,), field, kind, value)
        raw = [_raw(entry) for entry in value] if known.several and value is not None else _raw(value)
        if value is not None and raw == NONE and known.optional:
            raise InputError(f'{name} may be absent, and therefore cannot be the text "{NONE}"')
        known.value(raw, name)
        table[name] = raw
    return table


def from_table(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Settings from nested dictionaries; what is not there has its default. ``where`` names the file in messages."""
    return _build(cls, table, None, where, ())


def merge(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """One table of several, of which later ones win, entry by entry in each section."""
    merged: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            if isinstance(value, Mapping):
                old = merged.get(key)
                merged[key] = merge(old if isinstance(old, dict) else {}, value)
            else:
                merged[key] = value
    return merged


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file."""
    try:
        return tomllib.loads(read_text(path, "the settings "))
    except tomllib.TOMLDecodeError as error:  # it says the line and the column
        raise InputError(f"the settings {path} are not valid TOML: {error}") from error


def write_toml(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table to a TOML file."""
    write_file(path, toml_text(table), what="the settings ")


def toml_text(table: Mapping[str, Any]) -> str:
    """A table as TOML."""
    try:
        return tomli_w.dumps(table)
    except (TypeError, ValueError) as error:
        raise InputError(f"settings that TOML cannot hold: {error}") from error


def _build(cls: type[T], table: Mapping[str, Any], base: Any, where: str, path: tuple[str, ...]) -> T:
    fields = _fields(cls)
    names = [name for name, _, _ in fields]
    older = {field.metadata.get("formerly"): name for name, field, _ in fields}
    table = {older.get(key, key) if key not in names else key: value for key, value in table.items()}
    for key in table:
        if key not in names:
            close = difflib.get_close_matches(key, names, n=1)
            place = f" in section {'.'.join(path)}" if path else ""
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names) or 'none'}"
            raise InputError(f"{where}: unknown key {key!r}{place}; {hint}")
    values: dict[str, Any] = {}
    for name, field, kind in fields:
        known = _default(field) if base is None else getattr(base, name)
        dotted = ".".join((*path, name))
        if _is_section(kind):
            section = table.get(name, {})
            if not isinstance(section, Mapping):
                raise InputError(f"{where}: {dotted} must be a section, not {_shown(section)}")
            inner = None if known is dataclasses.MISSING else known
            values[name] = _build(kind, section, inner, where, (*path, name))
        elif name in table:
            values[name] = _option((*path, name), field, kind, known).value(table[name], f"{where}: {dotted}")
        elif known is dataclasses.MISSING:
            raise InputError(f"{where}: {dotted} is missing and has no default")
        else:
            values[name] = known
    return cls(**values)


def _fields(cls: type) -> list[tuple[str, "dataclasses.Field[Any]", Any]]:
    """Name, field and resolved type of each field of a settings class."""
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is no dataclass")
    hints = typing.get_type_hints(cls)
    return [(field.name, field, hints[field.name]) for field in dataclasses.fields(cls)]


def _is_section(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _option(path: tuple[str, ...], field: "dataclasses.Field[Any]", kind: Any, default: Any) -> Option:
    optional = several = False
    choices = field.metadata.get("choices")
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        others = [other for other in typing.get_args(kind) if other is not type(None)]
        if len(others) == 1 and len(typing.get_args(kind)) == 2:
            optional, kind = True, others[0]
    if typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (...,):
        several, kind = True, typing.get_args(kind)[0]
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        kind = type(choices[0])
    if kind not in (bool, int, float, str, Path) or (several and kind is bool):
        raise TypeError(f"settings of the type {kind} ({'.'.join(path)}) are not supported")
    known = None if choices is None else tuple(choices)
    more = {
        name: field.metadata[name] for name in ("flags", "metavar", "positional", "switch") if name in field.metadata
    }
    help, least, most = field.metadata.get("help", ""), field.metadata.get("least"), field.metadata.get("most")
    return Option(path, kind, several, optional, default, help, least, most, known, **more)


def _raw(value: Any) -> Any:
    if value is None:
        return NONE
    return str(value) if isinstance(value, Path) else value


def _shown(value: Any) -> str:
    """As it stands in a file: true rather than True."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return tomli_w.dumps({"v": value}).strip().removeprefix("v = ") if not isinstance(value, dict) else "a section"
    except (TypeError, ValueError):
        return repr(value)
