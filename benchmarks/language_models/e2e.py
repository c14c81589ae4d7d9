"""The E2E data: meaning representations of restaurants, such as ``name[The Mill], food[French]``, and texts for them.

Files are CSV with the header ``mr,ref``, plain or compressed with gzip; the references of a meaning representation are
as many rows.
"""

import csv
import gzip
import io
import re
from pathlib import Path
from typing import NamedTuple

from corollout.errors import InputError
from corollout.files import read_bytes

SLOTS = ("name", "eatType", "food", "priceRange", "customer rating", "area", "familyFriendly", "near")
PROMPT_END = " =>"  # tells the model that the text begins
_SLOT = re.compile(r"\s*([^\[\],]+)\[([^\[\]]*)\]\s*")
_GZIP = b"\x1f\x8b"


class Example(NamedTuple):
    """A meaning representation with all of its references."""

    mr: str
    slots: dict[str, str]
    references: tuple[str, ...]

    @property
    def prompt(self) -> str:
        return self.mr + PROMPT_END


def read_e2e(path: Path) -> list[Example]:
    """All examples of a file, in the order in which their meaning representations first occur."""
    data = read_bytes(path)
    try:
        text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; it must be UTF-8 text, plain or compressed by gzip") from error
    rows = csv.DictReader(io.StringIO(text, newline=""))
    if rows.fieldnames is None or not {"mr", "ref"} <= set(rows.fieldnames):
        raise InputError(f"{path} needs the columns mr and ref, not {', '.join(rows.fieldnames or ['none'])}")
    references: dict[str, list[str]] = {}
    for row in rows:
        if not row["mr"] or not (row["ref"] or "").strip():
            raise InputError(f"{path}, line {rows.line_num}: the meaning representation or the reference is empty")
        references.setdefault(row["mr"].strip(), []).append(row["ref"].strip())
    if not references:
        raise InputError(f"{path} has no rows")
    return [Example(mr, parse_slots(mr), tuple(texts)) for mr, texts in references.items()]


def parse_slots(mr: str) -> dict[str, str]:
    """``name[The Mill], food[French]`` as ``{"name": "The Mill", "food": "French"}``."""
    slots: dict[str, str] = {}
    end = 0
    while end < len(mr):
        match = _SLOT.match(mr, end)
        if match is None or match[1] not in SLOTS or match[1] in slots or mr[match.end() : match.end() + 1] not in ",":
            raise InputError(f"{mr!r} is not a meaning representation: expected slots such as name[The Mill], area[…]")
        slots[match[1]] = match[2]
        end = match.end() + 1
    return slots
