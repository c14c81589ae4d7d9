"""The public JSON-lines form of Karel tasks: one record a line.

    {"program_tokens": ["DEF", "run", "m(", …], "guid": "226540459e33b9d9", "examples": [{"example_index": 0,
     "inpgrid_tensor": "56:1.0 …", "outgrid_tensor": …, "inpgrid_json": {"rows": 4, …}, "outgrid_json": …,
     "actions": ["move", …]}, …]}

Worlds may be there as tensors, as JSON or as both; ``program_json`` may stand for ``program_tokens``.
"""

import json
import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from re import fullmatch
from reprlib import repr as short
from typing import IO, Any, Literal

import numpy as np

from corollout.errors import InputError
from corollout.tasks.karel.actions import carried_out
from corollout.tasks.karel.grids import BORDER, FIRST_BLOCKED, LARGEST_SIDE, OUTSIDE, Grids, pack, unpack
from corollout.tasks.karel.language import ID, PAD, TOKENS, parse, to_tokens
from corollout.tasks.karel.program_json import from_json
from corollout.tasks.karel.tensors import grid_to_tensor, tensor_to_grid
from corollout.tasks.karel.world import TENSOR_SIDE, World

Form = Literal["tensor", "json", "both"]
_CHUNK = 512


@dataclass(frozen=True)
class Records:
    """The records of a file, and what was wrong with each line that was left out."""

    tokens: np.ndarray  # uint8[record, longest]
    lengths: np.ndarray  # int64[record]
    inputs: Grids  # [record, example]
    outputs: Grids  # [record, example]
    ids: np.ndarray  # int64[record]
    bad: list[str]


@dataclass(frozen=True)
class _Record:
    program: list[int]
    identity: int
    grids: Grids  # [example, input or output]


def read_records(path: Path | str, skip_bad: bool = False) -> Records:
    """Read a file; a bad line is an error that names it, or is left out."""
    source, bad = Path(path), []
    programs: list[list[int]] = []
    identities: list[int] = []
    chunks: list[Grids] = []
    waiting: list[Grids] = []
    examples = 0
    try:
        with source.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = _read(line)
                    found = len(record.grids.hero)
                    if examples not in (0, found):
                        raise InputError(f"{found} examples, but the records before have {examples}")
                except InputError as error:
                    text = f"{source}, line {number}: {error}"
                    if not skip_bad:
                        raise InputError(text) from error
                    bad.append(text)
                    continue
                examples = found
                programs.append(record.program)
                identities.append(record.identity)
                waiting.append(record.grids)
                if len(waiting) == _CHUNK:
                    chunks.append(_stacked(waiting))
                    waiting = []
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror}") from error
    if not programs:
        raise InputError(f"{source}: no record" + (f" but {len(bad)} bad lines, the first: {bad[0]}" if bad else ""))
    if waiting:
        chunks.append(_stacked(waiting))
    side = max(needed_side(chunk) for chunk in chunks)
    fitting = [resized(chunk, side) for chunk in chunks]
    lengths = np.array([len(program) for program in programs])
    tokens = np.full((len(programs), lengths.max()), PAD, np.uint8)
    for row, program in zip(tokens, programs, strict=True):
        row[: len(program)] = program
    inputs, outputs = (
        Grids(
            np.concatenate([chunk.cells[:, :, which] for chunk in fitting]),
            np.concatenate([chunk.hero[:, :, which] for chunk in fitting]),
        )
        for which in (0, 1)
    )
    return Records(tokens, lengths, inputs, outputs, _different(identities), bad)


def write_records(
    path: Path | str,
    tokens: np.ndarray,
    lengths: np.ndarray,
    inputs: Grids,
    outputs: Grids,
    ids: np.ndarray,
    forms: Form = "tensor",
    on_progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write records with their worlds in one form or both: the whole file or none."""
    with _whole_file(Path(path)) as file:
        for row in range(len(lengths)):
            program = tokens[row, : lengths[row]]
            examples: list[dict[str, object]] = []
            for e in range(inputs.hero.shape[1]):
                worlds = {"inpgrid": inputs[row, e], "outgrid": outputs[row, e]}
                example: dict[str, object] = {"example_index": e}
                for name, grid in worlds.items():
                    if forms != "json":
                        text = grid_to_tensor(grid.cells, grid.hero)
                        example[f"{name}_tensor"] = unpack(grid).to_tensor() if text is None else text
                    if forms != "tensor":
                        example[f"{name}_json"] = unpack(grid).to_json()
                example["actions"] = carried_out(program, worlds["inpgrid"])
                examples.append(example)
            record = {
                "program_tokens": [TOKENS[token] for token in program.tolist()],
                "guid": f"{int(ids[row]) % 2**64:016x}",
                "examples": examples,
            }
            file.write(json.dumps(record) + "\n")
            on_progress(1)


def needed_side(grids: Grids) -> int:
    """The side that the largest of these worlds needs, frame included."""
    first_lines = (grids.cells[..., :, 0], grids.cells[..., 0, :])
    return max(int((line == BORDER).sum(-1).max(initial=0)) for line in first_lines)


def resized(grids: Grids, side: int) -> Grids:
    """The same worlds in grids of another side."""
    old, needed = grids.side, needed_side(grids)
    if not needed <= side <= LARGEST_SIDE:
        raise InputError(
            f"there are worlds of {needed - 2} rows or columns: they need grids of a side from {needed} to "
            f"{LARGEST_SIDE}, not {side}"
        )
    if side == old:
        return grids
    cells = np.full((*grids.hero.shape[:-1], side, side), OUTSIDE, np.uint8)
    kept = min(side, old)
    cells[..., :kept, :kept] = grids.cells[..., :kept, :kept]
    hero = np.array(grids.hero)
    hero[..., 0] = hero[..., 0] // old * side + hero[..., 0] % old
    return Grids(cells, hero)


def program_id(program: Sequence[int]) -> int:
    """A number for a program, the same everywhere."""
    return _number(bytes(program))


def _number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)


def _different(identities: list[int]) -> np.ndarray:
    """The ids of records; of two that are equal, the second is changed."""
    seen: set[int] = set()
    for place, identity in enumerate(identities):
        while identity in seen:
            identity = _number(identity.to_bytes(8, "little", signed=True))
        seen.add(identity)
        identities[place] = identity
    return np.array(identities, np.int64)


def _stacked(parts: list[Grids]) -> Grids:
    side = max(part.side for part in parts)
    fitting = [resized(part, side) for part in parts]
    return Grids(np.stack([part.cells for part in fitting]), np.stack([part.hero for part in fitting]))


def _read(line: bytes) -> _Record:
    try:
        data = json.loads(line)
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON, {error.msg} at character {error.pos + 1}") from error
    except (ValueError, RecursionError) as error:
        raise InputError("nested too deeply, or a number too long, to be a record") from error
    if not isinstance(data, dict):
        raise InputError(f"expected an object with program_tokens and examples, not {short(data)}")
    program = _program(data)
    guid = data.get("guid")
    if guid is None:
        identity = program_id(program)
    elif isinstance(guid, str):
        public = fullmatch("[0-9a-f]{16}", guid)
        identity = int.from_bytes(bytes.fromhex(guid), "big", signed=True) if public else _number(guid.encode())
    else:
        raise InputError(f"guid: expected a string, not {short(guid)}")
    examples = data.get("examples")
    if not isinstance(examples, list) or len(examples) < 2:
        raise InputError(f"examples: expected a list of two or more, not {short(examples)}")
    return _Record(program, identity, _examples(examples))


def _program(data: Mapping[str, Any]) -> list[int]:
    tokens = data.get("program_tokens")
    if tokens is None and isinstance(data.get("program_json"), dict):
        tokens = to_tokens(from_json(data["program_json"]))
    if not isinstance(tokens, list):
        raise InputError(f"program_tokens: expected a list of tokens, not {short(tokens)}")
    for place, token in enumerate(tokens):
        if not isinstance(token, str) or token not in ID:
            raise InputError(f"program_tokens, token {place + 1}: {short(token)} is not in the vocabulary")
    parse(tokens)
    return [ID[token] for token in tokens]


def _examples(examples: list[Any]) -> Grids:
    for number, example in enumerate(examples):
        if not isinstance(example, dict):
            raise InputError(f"example {number}: expected an object, not {short(example)}")
    indices = [example.get("example_index", number) for number, example in enumerate(examples)]
    if any(isinstance(index, bool) or not isinstance(index, int) for index in indices):
        raise InputError(f"example_index: expected whole numbers, not {short(indices)}")
    if len(set(indices)) < len(indices):
        raise InputError(f"example_index: the same number twice in {short(indices)}")
    pairs = []
    for index, example in sorted(zip(indices, examples, strict=True), key=lambda pair: pair[0]):
        try:
            pair = _stacked([_grid(example, "inpgrid"), _grid(example, "outgrid")])
        except InputError as error:
            raise InputError(f"example {index}: {error}") from error
        fixed = np.where(pair.cells >= FIRST_BLOCKED, pair.cells, 0)
        if not np.array_equal(fixed[0], fixed[1]):
            raise InputError(f"example {index}: the walls of the input and of the output differ")
        pairs.append(pair)
    return _stacked(pairs)


def _grid(example: Mapping[str, Any], name: str) -> Grids:
    tensor, other = example.get(f"{name}_tensor"), example.get(f"{name}_json")
    if tensor is None and other is None:
        raise InputError(f"neither {name}_tensor nor {name}_json is there")
    grids = []
    if other is not None:
        if not isinstance(other, dict):
            raise InputError(f"{name}_json: expected an object with rows, cols and hero, not {short(other)}")
        try:
            world = World.from_json(other)
        except InputError as error:
            raise InputError(f"{name}_json: {error}") from error
        grids.append(_packed(world))
    if tensor is not None:
        if not isinstance(tensor, str):
            raise InputError(f"{name}_tensor: expected a string, not {short(tensor)}")
        cells, hero = np.empty((TENSOR_SIDE, TENSOR_SIDE), np.uint8), np.zeros(2, np.int16)
        if tensor_to_grid(tensor, cells, hero):
            grids.append(Grids(cells, hero))
        else:
            try:
                grids.append(_packed(World.from_tensor(tensor)))
            except InputError as error:
                raise InputError(f"{name}_tensor: {error}") from error
    if len(grids) == 2 and not (
        np.array_equal(grids[0].cells, grids[1].cells) and np.array_equal(grids[0].hero, grids[1].hero)
    ):
        raise InputError(f"{name}_tensor and {name}_json are different worlds")
    return grids[-1]


def _packed(world: World) -> Grids:
    return pack([world], max(TENSOR_SIDE, world.rows + 2, world.cols + 2))[0]


@contextmanager
def _whole_file(path: Path) -> Generator[IO[str]]:
    """A file that takes its place only when it is complete."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
