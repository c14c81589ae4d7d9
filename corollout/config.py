"""Settings: frozen dataclasses, and the TOML files that they are read from and written to."""

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from corollout.errors import InputError


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the settings {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the settings {path} are no UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:  # it says the line and the column
        raise InputError(f"the settings {path} are no TOML: {error}") from error


def write_toml(path: Path, table: dict[str, Any]) -> None:
    """Write a table to a TOML file."""
    try:
        path.write_text(toml_text(table), "utf-8")
    except OSError as error:
        raise InputError(f"cannot write the settings {path}: {error.strerror or error}") from error


def toml_text(table: dict[str, Any]) -> str:
    """A table as TOML."""
    try:
        return tomli_w.dumps(table)
    except (TypeError, ValueError) as error:
        raise InputError(f"settings that TOML cannot hold: {error}") from error
