"""Tables of prompts from files, from folders, and from the hub.

Small readers of our own for text: they name the file and the line of what is wrong, and keep no caches.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.files import os_errors, read_lines, read_text
from corollout.hf.settings import PromptSettings
from corollout.json_text import decode_json
from corollout.limits import TABLE_BYTES
from corollout.text import first_line, quoted, shortened

Row = Mapping[str, Any]
Rows = Any  # with a length, and a row at each number: a list, or a table of datasets
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.\[\]:%+-]+)?")  # of a data set at the hub, perhaps with a split
_TRAIN = "train"


def read_prompts(settings: PromptSettings, source: str | None = None) -> Rows:
    """The rows of a data set, each with a ``prompt``; ``source`` is another one than that of the settings."""
    source = settings.dataset if source is None else source
    if not source:
        raise InputError("there are no prompts: give --dataset a file or a name")
    rows = read_table(source, settings.dataset_config)
    if len(rows) == 0:
        raise InputError(f"the data set {source} is empty: it has no rows")
    column, first = settings.prompt_column, rows[0]
    if column not in first:
        names = ", ".join(map(str, first)) or "none"
        raise InputError(
            f"the data set {shortened(source)} has no column {quoted(column)}: it has {shortened(names, 400)}; choose "
            f"one with --prompt-column"
        )
    return rows if column == "prompt" else Renamed(rows, column)


class Renamed(Sequence[Row]):
    """Rows whose prompts are in another column."""

    def __init__(self, rows: Rows, column: str):
        self._rows, self._column = rows, column

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: Any) -> Any:
        row = self._rows[number]
        return {**row, "prompt": row[self._column]}


def read_table(source: str, config: str | None = None) -> Rows:
    """The rows of a file, of a folder that ``save_to_disk`` made, or of a data set at the hub."""
    path = Path(source).expanduser()
    with os_errors(f"use the data set {shortened(source)}"):
        is_folder, exists = path.is_dir(), path.exists()
    if is_folder:
        return _folder(path)
    if exists:
        return read_file(path)
    if path.suffix in READERS or source.startswith((".", "/", "~")) or not _NAME.fullmatch(source):
        raise InputError(f"there is no file {shortened(source)}")
    return _at_hub(source, config)


def read_file(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, by its ending; every row has all columns, with None where it lacks one."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} has an unknown ending: files of prompts end with {', '.join(READERS)}")
    with os_errors(f"read {path}"):
        TABLE_BYTES.check(path.stat().st_size, str(path))
    rows = list(reader(path))
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield _object(line, f"{path}, line {number}")


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value = decode_json(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid JSON: {shortened(str(error), 200)}") from error
    if not isinstance(value, dict):
        raise InputError(f"{where} is not a JSON object, with columns by their names, but {quoted(value)}")
    return value


def _json(path: Path) -> Iterator[dict[str, Any]]:
    """A list of objects, or JSON lines."""
    text = read_text(path)
    if not text.lstrip().startswith("["):
        yield from _json_lines(path)
        return
    try:
        values = decode_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {shortened(str(error), 200)}") from error
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise InputError(f"{path}, entry {number} is not a JSON object, but {quoted(value)}")
        yield value


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            where = f"{path}, line {reader.line_num}"
            if not fields:
                continue
            if header is None:
                header = fields
                if len(set(header)) < len(header):
                    raise InputError(f"{where}: two columns have the same name")
            elif len(fields) != len(header):
                raise InputError(f"{where} has {len(fields)} fields, but the header has {len(header)}")
            else:
                yield dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num} is not valid CSV: {error}") from error


def _text(path: Path) -> Iterator[dict[str, Any]]:
    for line in read_lines(path):
        if line.strip():
            yield {"prompt": line}


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(number).total_byte_size for number in groups)
            TABLE_BYTES.check(size, f"{path}, unpacked,")
            rows = file.read().to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a valid parquet file: {shortened(str(error), 200)}") from error
    yield from rows


READERS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
    ".txt": _text,
}


def _folder(path: Path) -> Rows:
    import datasets

    try:
        return _one_split(datasets.load_from_disk(str(path)), str(path))
    except InputError:
        raise
    except Exception as error:  # whatever a damaged folder makes of the library
        raise InputError(
            f"the folder {path} is not a data set of datasets, as save_to_disk writes it: {first_line(error)}"
        ) from error


def _at_hub(source: str, config: str | None) -> Rows:
    import datasets

    name, _, split = source.partition(":")
    datasets.disable_progress_bars()
    try:
        return _one_split(datasets.load_dataset(name, config, split=split or None), name)
    except InputError:
        raise
    except Exception as error:  # of the network, of the hub, of the name, of the files behind it
        raise InputError(
            f"there is no file {name}, and the data set of that name cannot be loaded from the hub: {first_line(error)}"
        ) from error


def _one_split(loaded: Any, name: str) -> Rows:
    """A table of a library's data set, which may have several."""
    if not isinstance(loaded, Mapping):
        return loaded
    if len(loaded) == 1 or _TRAIN in loaded:
        return loaded[_TRAIN if _TRAIN in loaded else next(iter(loaded))]
    raise InputError(f"the data set {name} has no split {_TRAIN!r}: choose one of {', '.join(map(str, loaded))}")
