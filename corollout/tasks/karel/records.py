"""The public format of Karel tasks: a record is a line of JSON.

    {"program_tokens": ["DEF", "run", "m(", …], "guid": "226540459e33b9d9", "examples": [{"example_index": 0,
     "inpgrid_tensor": "56:1.0 …", "outgrid_tensor": …, "inpgrid_json": {"rows": 4, …}, "outgrid_json": …,
     "actions": ["move", …]}, …]}

Worlds are given as tensors, as JSON or as both; ``program_json`` may replace ``program_tokens``.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from re import fullmatch
from reprlib import repr as short
from typing import Any, no_type_check

import numpy as np

from corollout.errors import InputError
from corollout.json_text import decode_json
from corollout.numba_cache import numba
from corollout.tasks.karel.grids import FIRST_BLOCKED, Grids, pack, stacked, unpack
from corollout.tasks.karel.language import ACTIONS, ID, TOKENS, parse, to_tokens
from corollout.tasks.karel.machine import TICKS, compile_program, run_code
from corollout.tasks.karel.program_json import from_json
from corollout.tasks.karel.settings import Form
from corollout.tasks.karel.tensors import grid_to_tensor, tensor_to_grid
from corollout.tasks.karel.world import TENSOR_SIDE, World

_MOVE, _LEFT, _RIGHT, _PICK, _PUT = range(len(ACTIONS))


def program_id(program: Sequence[int]) -> int:
    """A number that identifies a program, the same on every machine."""
    return digest_number(bytes(program))


def digest_number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)


def write_record(program: np.ndarray, number: int, inputs: Grids, outputs: Grids, forms: Form) -> str:
    """The line of a task: its tokens, its id, and its worlds, [example], in one form or both."""
    examples: list[dict[str, object]] = []
    for e in range(len(inputs.hero)):
        example: dict[str, object] = {"example_index": e}
        for name, grid in (("inpgrid", inputs[e]), ("outgrid", outputs[e])):
            if forms != "json":
                text = grid_to_tensor(grid)
                example[f"{name}_tensor"] = unpack(grid).to_tensor() if text is None else text
            if forms != "tensor":
                example[f"{name}_json"] = unpack(grid).to_json()
        examples.append({**example, "actions": actions_taken(program, inputs[e])})
    tokens = [TOKENS[token] for token in program.tolist()]
    return json.dumps({"program_tokens": tokens, "guid": f"{number % 2**64:016x}", "examples": examples})


def read_record(line: bytes) -> tuple[list[int], int, Grids]:
    """The program, the id and the worlds, [example, input or output], of a line."""
    try:
        data = decode_json(line)
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON, {error.msg} at character {error.pos + 1}") from error
    except (ValueError, RecursionError) as error:
        raise InputError("nested too deeply for a record, or a number is too long") from error
    if not isinstance(data, dict):
        raise InputError(f"expected an object with program_tokens and examples, not {short(data)}")
    program = _program(data)
    guid = data.get("guid")
    if guid is None:
        number = program_id(program)
    elif isinstance(guid, str):
        public = fullmatch("[0-9a-f]{16}", guid)
        number = int.from_bytes(bytes.fromhex(guid), "big", signed=True) if public else digest_number(guid.encode())
    else:
        raise InputError(f"guid: expected a string, not {short(guid)}")
    examples = data.get("examples")
    if not isinstance(examples, list) or len(examples) < 2:
        raise InputError(f"examples: expected a list of two or more, not {short(examples)}")
    return program, number, _examples(examples)


def _program(data: Mapping[str, Any]) -> list[int]:
    tokens = data.get("program_tokens")
    if tokens is None and isinstance(data.get("program_json"), dict):
        tokens = to_tokens(from_json(data["program_json"]))
    if not isinstance(tokens, list):
        raise InputError(f"program_tokens: expected a list of tokens, not {short(tokens)}")
    for position, token in enumerate(tokens, 1):
        if not isinstance(token, str) or token not in ID:
            raise InputError(f"program_tokens, token {position}: {short(token)} is not in the vocabulary")
    parse(tokens)
    return [ID[token] for token in tokens]


def _examples(examples: list[Any]) -> Grids:
    for number, example in enumerate(examples):
        if not isinstance(example, dict):
            raise InputError(f"example {number}: expected an object, not {short(example)}")
    indices = [example.get("example_index", number) for number, example in enumerate(examples)]
    if any(type(index) is not int for index in indices):
        raise InputError(f"example_index: expected whole numbers, not {short(indices)}")
    if len(set(indices)) < len(indices):
        raise InputError(f"example_index: a number occurs twice in {short(indices)}")
    pairs = []
    for index, example in sorted(zip(indices, examples, strict=True), key=lambda pair: pair[0]):
        try:
            pair = stacked([_grid(example, "inpgrid"), _grid(example, "outgrid")])
        except InputError as error:
            raise InputError(f"example {index}: {error}") from error
        fixed = np.where(pair.cells >= FIRST_BLOCKED, pair.cells, 0)
        if not np.array_equal(fixed[0], fixed[1]):
            raise InputError(f"example {index}: input and output have different walls")
        pairs.append(pair)
    return stacked(pairs)


def _grid(example: Mapping[str, Any], name: str) -> Grids:
    """The world of an example in a grid; both of its forms must agree."""
    grids = []
    for form, kind, expected in (
        ("json", dict, "an object with rows, cols and hero"),
        ("tensor", str, "a string"),
    ):
        value = example.get(f"{name}_{form}")
        if value is None:
            continue
        if not isinstance(value, kind):
            raise InputError(f"{name}_{form}: expected {expected}, not {short(value)}")
        grid = tensor_to_grid(value) if isinstance(value, str) else None
        if grid is None:  # the slow way, which explains errors
            try:
                world = World.from_tensor(value) if isinstance(value, str) else World.from_json(value)
            except InputError as error:
                raise InputError(f"{name}_{form}: {error}") from error
            grid = pack([world], max(TENSOR_SIDE, world.rows + 2, world.cols + 2))[0]
        grids.append(grid)
    if not grids:
        raise InputError(f"{name}_tensor and {name}_json are both missing")
    first, last = grids[0], grids[-1]
    if not (np.array_equal(first.cells, last.cells) and np.array_equal(first.hero, last.hero)):
        raise InputError(f"{name}_tensor and {name}_json are different worlds")
    return last


def actions_taken(program: np.ndarray, world: Grids) -> list[str]:
    """The actions of a valid program in one world, ``cells[side, side]`` and ``hero[2]``."""
    taken = np.zeros(TICKS, np.uint8)
    cells, (cell, direction) = np.ascontiguousarray(world.cells).reshape(-1), world.hero.tolist()
    count = _actions(np.ascontiguousarray(program), cells, cell, direction, world.side, taken)
    return [ACTIONS[action] for action in taken[:count].tolist()]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _actions(program, world, start, direction, side, taken):
    """Stop the machine after 1, 2, … ticks: every action, and nothing else, changes the hero or the markers."""
    width = len(program) + 1
    code, stack = np.zeros((width, 3), np.int32), np.zeros((width, 3), np.int32)
    counters = np.zeros(width, np.int32)
    size = compile_program(program, len(program), code, stack)
    cells = world.copy()
    _, _, _, ticks = run_code(code, size, cells, start, direction, side, TICKS, counters, None)
    count, previous, facing, markers = 0, start, direction, np.int64(world[start])
    for limit in range(1, ticks + 1):
        cells[:] = world
        _, cell, towards, _ = run_code(code, size, cells, start, direction, side, limit, counters, None)
        left = np.int64(cells[cell])
        action = -1
        if cell != previous:
            action = _MOVE
        elif towards != facing:
            action = _RIGHT if towards == (facing + 1) & 3 else _LEFT
        elif left != markers:
            action = _PUT if left > markers else _PICK
        if action >= 0:
            taken[count] = action
            count += 1
        previous, facing, markers = cell, towards, left
    return count
