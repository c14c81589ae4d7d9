"""Calls that must fail."""

from collections.abc import Callable

import pytest

from corollout.errors import InputError


def refused(match: str, function: Callable[..., object], *arguments: object, **options: object) -> str:
    """The message of the ``InputError`` that a call raises; ``match`` is a regular expression for a part of it."""
    with pytest.raises(InputError, match=match) as error:
        function(*arguments, **options)
    message = str(error.value)
    del error  # otherwise a cycle keeps all files open that the call has opened
    return message
