"""Dataclasses from JSON that may come from somebody else: every field must have its type, at every depth."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from corollout.errors import InputError

T = TypeVar("T")


def build(kind: type[T], content: Any, finite: bool = True) -> T:
    """A dataclass of texts, numbers, lists and objects of these, literals, or dataclasses built before.

    Unless ``finite``, floats may be NaN or infinite.
    """
    name = kind.__name__.lower()
    if not isinstance(content, Mapping):
        raise InputError(f"expected an object that describes a {name}, not {short(content)}")
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # pyright: ignore[reportArgumentType]
    if unknown := [key for key in content if key not in known]:
        raise InputError(f"a {name} has no {short(unknown[0])}")
    for key, field in known.items():
        if key in content:
            if not is_of(content[key], hints[key], finite):
                raise InputError(f"the {key} of a {name} must not be {short(content[key])}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"a {name} has no {key}, but needs it")
    return kind(**content)


def is_of(value: Any, hint: Any, finite: bool = True) -> bool:
    """Whether a value has a type."""
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Any:
        return True
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in arguments)
    if origin in (int, float) and type(value) is int:
        return -(2**63) <= value < 2**63  # as arrays can hold
    if origin is float:
        return type(value) is float and (math.isfinite(value) or not finite)
    if origin in (int, bool, str):
        return type(value) is origin
    if isinstance(hint, UnionType):
        return any(is_of(value, one, finite) for one in arguments)
    if origin is NoneType or is_dataclass(origin):
        return isinstance(value, origin)
    if origin in (list, Sequence):
        return isinstance(value, list) and all(is_of(one, arguments[0], finite) for one in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(is_of(one, arguments[1], finite) for one in value.values())
    raise TypeError(f"a field of the type {hint} is not expected in a report")
