"""Limits on what a file may make us hold in memory, checked from headers before anything is decoded or allocated.

A few hundred kilobytes can describe an image of gigabytes. Each limit can be raised by an environment variable.
"""

import os
from dataclasses import dataclass

from corollout.errors import InputError


@dataclass(frozen=True)
class Limit:
    """The most that is accepted of something, and the environment variable that changes it."""

    variable: str
    default: int
    unit: str

    @property
    def value(self) -> int:
        text = os.environ.get(self.variable, "").strip()
        if not text:
            return self.default
        if not (text.isascii() and text.isdigit() and 0 < len(text) <= 18 and int(text) > 0):
            raise InputError(f"the environment variable {self.variable} must be a number of {self.unit}, not {text!r}")
        return int(text)

    def check(self, size: int, what: str) -> None:
        """Raise an error if ``what`` is larger than the limit."""
        if size > self.value:
            size_text = f"{size:,}" if size < 10**30 else "more than 10³⁰"
            raise InputError(
                f"{what} has {size_text} {self.unit}, but at most {self.value:,} are read: make it smaller, or raise "
                f"the limit with the environment variable {self.variable}"
            )


PIXELS = Limit("COROLLOUT_MAX_PIXELS", 50_000_000, "pixels")
ARRAY_BYTES = Limit("COROLLOUT_MAX_ARRAY_BYTES", 1 << 30, "bytes")
TABLE_BYTES = Limit("COROLLOUT_MAX_TABLE_BYTES", 4 << 30, "bytes")
