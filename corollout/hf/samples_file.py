"""What a training keeps of its completions: ``samples.jsonl``, a line for each update whose completions were kept, and
``completions.html``, the page of the first and the last of them.
"""

import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.files import append, check_entries, os_errors, read_bytes, write_file
from corollout.reports.completions import is_completions_page, write_completions_page
from corollout.reports.sample_records import samples_of
from corollout.training.samples import Samples

NAME, PAGE = "samples.jsonl", "completions.html"
_LAST = 7  # updates on the page besides the first one


class SamplesFile:
    """Appends to the file in a folder, and writes the page beside it. A training that begins wants no such files; one
    that is resumed at some update goes on after what was written until then.

    ``facts`` are told on the page.
    """

    def __init__(self, folder: Path, update: int, facts: Mapping[str, Any]):
        self.path, self.page, self._facts = folder / NAME, folder / PAGE, facts
        self._first: Samples | None = None
        self._last: deque[Samples] = deque(maxlen=_LAST)
        self._curve: list[tuple[int, float]] = []
        self.update = 0  # the last one that was kept
        with os_errors(f"write to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        for path in (self.path, self.page):
            if os.path.lexists(path) and update == 0:
                raise InputError(f"{path} exists, and nothing is overwritten: choose another output_dir, or remove it")
        if os.path.lexists(self.page) and not is_completions_page(self.page):
            raise InputError(f"{self.page} was not written by a training: choose another output_dir, or remove it")
        if os.path.lexists(self.path):
            write_file(self.path, b"".join(self._lines_until(update)))

    def _lines_until(self, update: int) -> list[bytes]:
        kept = []
        for number, line in enumerate(read_bytes(self.path).split(b"\n")[:-1], start=1):
            where = f"{self.path}, line {number}"
            try:
                record = check_entries(json.loads(line), where, update=int)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} is damaged: it is not valid JSON ({error})") from error
            if record["update"] <= update:
                self._remember(samples_of(record, self.path, number))
                kept.append(line + b"\n")
        return kept

    def _remember(self, samples: Samples) -> None:
        self.update = samples.update
        if self._first is None:
            self._first = samples
        else:
            self._last.append(samples)
        if samples.reward is not None:
            self._curve.append((samples.update, samples.reward))

    def add(self, samples: Samples) -> None:
        """Append a record, and write the page anew."""
        line = (json.dumps(asdict(samples)) + "\n").encode()
        with os_errors(f"write {self.path}", left="its last lines are whole"), self.path.open("ab", 0) as file:
            append(file, line)
        self._remember(samples)
        assert self._first is not None
        write_completions_page(self.page, [self._first, *self._last], self._facts, curve=self._curve)
