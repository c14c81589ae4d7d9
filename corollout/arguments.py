"""Checks of the arguments of calls: whatever is wrong with one is told in a sentence that names it."""

import math
from collections.abc import Callable
from typing import Any

from corollout.errors import InputError
from corollout.text import quoted


def require_count(name: str, value: Any, least: int = 1) -> None:
    """Raise an error unless a value is a whole number that is not too small."""
    if type(value) is not int or value < least:
        raise InputError(f"{name} must be a whole number and at least {least}, not {quoted(value)}")


def is_number(value: Any) -> bool:
    """Whether a value is a number other than NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def require_number(name: str, value: Any, wanted: str, accepts: Callable[[float], bool]) -> None:
    """Raise an error unless a value is a number of the kind that ``wanted`` describes: "a positive number"."""
    if not is_number(value) or not accepts(value):
        raise InputError(f"{name} must be {wanted}, not {quoted(value)}")


def require_instance(name: str, value: Any, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise an error unless a value is an instance of a class; ``wanted`` says of which, and perhaps how to get one."""
    if not isinstance(value, kind):
        given = quoted(value) if value is None or isinstance(value, str | int | float) else f"a {type(value).__name__}"
        raise InputError(f"{name} must be {wanted}, not {given}")


def require_callable(name: str, value: Any, wanted: str = "a function") -> None:
    """Raise an error unless a value can be called."""
    if not callable(value):
        raise InputError(f"{name} must be {wanted}, not {quoted(value)}")
