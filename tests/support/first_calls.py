"""The run-time type checker of the tests: beartype, for the first calls of every function in every test.

Shapes and types are checked at each call by walking through all annotations, which takes longer than most functions
do themselves. What a function gets in a test is known after a few calls; a loop that calls it ten thousand times would
be checked ten thousand times. ``COROLLOUT_CHECKED_CALLS=0`` checks all calls, as ``make prove`` does.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import beartype

CHECKED_CALLS = int(os.environ.get("COROLLOUT_CHECKED_CALLS", "10"))

_calls: dict[int, int] = {}  # of each function in this test
_known: list[Any] = []  # functions that are not checked any more


def first_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """A type checker for jaxtyping, which gives it two functions for each of ours: they have its signature, and only
    check.
    """
    check = beartype.beartype(function)
    if not CHECKED_CALLS or function.__name__ == "check_single_arg":
        return check
    key = id(check)

    def check_at_first(*given: Any, **options: Any) -> Any:
        calls = _calls[key] = _calls.get(key, 0) + 1
        if calls == CHECKED_CALLS:
            checked = sys._getframe(1).f_locals.get("fn")  # in jaxtyping's wrapper: the function that is called
            if checked is not None and "__no_type_check__" not in vars(checked):
                checked.__no_type_check__ = True
                _known.append(checked)
        return check(*given, **options)

    return check_at_first


def begin_again() -> None:
    """Check the first calls of all functions once more: another test begins."""
    _calls.clear()
    for function in _known:
        del function.__no_type_check__
    _known.clear()
