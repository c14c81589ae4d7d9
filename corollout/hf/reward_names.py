"""Reward functions by their names: ``package.module:function`` or ``path/to/file.py:function``."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corollout.config import import_object
from corollout.errors import CorolloutError, InputError
from corollout.text import quoted, shortened


def import_rewards(names: Sequence[str]) -> list[Any]:
    """The functions of some names."""
    return [import_reward(name) for name in names]


def import_reward(name: str) -> Any:
    """The function of a name. Modules in the working directory can be imported, and files anywhere.

    A file is imported as the module of its name, so that worker processes can import it, too.
    """
    place, _, function = name.rpartition(":")
    if not place or not function:
        raise InputError(
            f"the reward {quoted(name)} has no function: write package.module:function or path/to/file.py:function"
        )
    is_file = place.endswith(".py")
    try:
        found = _of_file(Path(place), function) if is_file else import_object(name)
    except CorolloutError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise InputError(f"importing the reward {quoted(name)} failed: {_description(error)}") from error
    if inspect.isclass(found):
        raise InputError(f"the reward {quoted(name)} is a class: name a function, or an instance of the class")
    if not callable(found):
        raise InputError(f"the reward {quoted(name)} is not a function, but {quoted(found)}")
    return found


def _of_file(path: Path, function: str) -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {path} with the reward {function!r}")
    if not path.stem.isidentifier():
        raise InputError(f"the file {path} cannot be imported: rename it to a word of letters, digits and underscores")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    home = getattr(importlib.import_module(path.stem), "__file__", None)
    if home is None or not os.path.samefile(home, path):
        raise InputError(f"another module is called {path.stem!r} ({home or 'built in'}): rename the file {path}")
    return import_object(f"{path.stem}:{function}")


def _description(error: Exception) -> str:
    """An error in a line, with the place that it comes from."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if not isinstance(error, SyntaxError):  # which names its place itself
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{text} ({last.filename}, line {last.lineno})"
    return shortened(" ".join(text.split()), 400)
