"""Large JSON files entry by entry: what a file of half a million captions says is never in memory as objects."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corollout.errors import InputError

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def entries(path: Path, text: str, key: str) -> Iterator[Any]:
    """The entries of the list that the object in a file has under this key; none if there is no such list."""
    try:
        yield from _entries(text, key)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}, column {error.colno}: not JSON, {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: nested too deeply, or a number too long, to be a file of captions") from error


def _entries(text: str, key: str) -> Iterator[Any]:
    place = _expect(text, 0, "{")
    if _at(text, place) == "}":
        return
    while True:
        name, place = _value(text, place)
        if not isinstance(name, str):
            raise json.JSONDecodeError("Expecting property name", text, place)
        place = _next(text, _expect(text, place, ":"))
        if _at(text, place) != "[":
            place = _value(text, place)[1]
        else:
            place = _next(text, place + 1)
            while _at(text, place) != "]":
                entry, place = _value(text, place)
                if name == key:
                    yield entry
                place = _next(text, place)
                if _at(text, place) != "]":
                    place = _expect(text, place, ",")
            place += 1
        place = _next(text, place)
        if _at(text, place) == "}":
            return
        place = _expect(text, place, ",")


def _next(text: str, place: int) -> int:
    """The next place that is no space."""
    found = _SPACE.match(text, place)
    return place if found is None else found.end()


def _at(text: str, place: int) -> str:
    return text[place : place + 1]


def _expect(text: str, place: int, mark: str) -> int:
    """The place behind a mark, and behind the space that follows it."""
    place = _next(text, place)
    if _at(text, place) != mark:
        raise json.JSONDecodeError(f"Expecting {mark!r}", text, place)
    return _next(text, place + 1)


def _value(text: str, place: int) -> tuple[Any, int]:
    return _DECODER.raw_decode(text, place)
