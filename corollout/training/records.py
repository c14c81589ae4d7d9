"""Files of records, a line of JSON each: what a run has measured."""

import json
import reprlib
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.files import check_entries, read_bytes


def read_records(path: Path, **types: type) -> list[dict[str, Any]]:
    """All records of a file, which must have entries of these types. An incomplete last line is left out."""
    lines = read_bytes(path).split(b"\n")[:-1] if path.exists() else []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number} is damaged: it is not valid JSON ({error})") from error
        records.append(check_entries(record, f"{path}, line {number}", "", **types))
    return records


def check_measurement(record: dict[str, Any], path: Path) -> None:
    """Raise an error unless a record of a file is that of an update or an evaluation: counts, and numbers by name."""
    where = f"{path}: the record {reprlib.repr(record)}"
    check_entries(record, where, update=int, tokens=(int, float), seconds=(int, float))
    for name, value in record.items():
        numbers = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if name != "kind" and not all(isinstance(one, int | float | None) for one in numbers):
            raise InputError(f"{where} is damaged: its entry {name!r} is not a number")
