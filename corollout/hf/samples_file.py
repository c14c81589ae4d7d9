"""The file ``samples.jsonl`` of a training: a line for each update whose completions were kept."""

import json
import os
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.files import append, check_entries, os_errors, read_bytes, write_file

NAME = "samples.jsonl"


class SamplesFile:
    """Appends to the file in a folder. A training that begins wants no such file; one that is resumed at some update
    goes on after what was written until then.
    """

    def __init__(self, folder: Path, update: int):
        self.path = folder / NAME
        with os_errors(f"write to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(self.path):
            if update == 0:
                raise InputError(
                    f"{self.path} exists, and nothing is overwritten: choose another output_dir, or remove it"
                )
            write_file(self.path, b"".join(self._lines_until(update)))
        with os_errors(f"write {self.path}"):
            self._file = self.path.open("ab", buffering=0)

    def _lines_until(self, update: int) -> list[bytes]:
        kept = []
        for number, line in enumerate(read_bytes(self.path).split(b"\n")[:-1], start=1):
            where = f"{self.path}, line {number}"
            try:
                record = check_entries(json.loads(line), where, update=int)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} is damaged: it is not valid JSON ({error})") from error
            if record["update"] <= update:
                kept.append(line + b"\n")
        return kept

    def add(self, record: dict[str, Any]) -> None:
        with os_errors(f"write {self.path}", left="its last lines are whole"):
            append(self._file, (json.dumps(record) + "\n").encode())
