"""Generated Karel tasks: programs like the public ones, on worlds that exercise every part of them.

A task depends on the seed, its split and its index, and on earlier tasks only because no program occurs twice.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, no_type_check

import numpy as np
import torch

from corollout.errors import InputError
from corollout.events import Callback, Progress, ignore
from corollout.files import os_errors, write_json
from corollout.folders import FolderLock, staged
from corollout.noise import Noise
from corollout.numba_cache import numba
from corollout.tasks.karel.dataset import SPLITS, KarelData, find_file
from corollout.tasks.karel.exercises import LARGEST, SMALLEST, find_examples
from corollout.tasks.karel.grids import Grids
from corollout.tasks.karel.machine import compile_program
from corollout.tasks.karel.programs import GRAMMAR, SHORTEST_PROGRAM, choose, draw_program, length_weights
from corollout.tasks.karel.records import program_id
from corollout.tasks.karel.settings import DataSettings, Form

_EXAMPLES = 6
_CHUNK = 32
# After how many programs another length is drawn: programs without suitable worlds, and programs of earlier tasks.
# Keeping the length keeps the distribution of lengths as long as there are other programs of that length.
_WITHOUT_WORLDS, _TAKEN = 50, 20
# When to give up: lengths tried for a task, draws for a program, and rounds of replacing duplicates.
_LENGTHS, _DRAWS, _ROUNDS = 50, 100_000, 400


def generate(
    counts: Mapping[str, int],
    *,
    seed: int = 0,
    shortest: int = SHORTEST_PROGRAM,
    longest: int = 45,
    largest: int = LARGEST,
    workers: int | None = None,
    on_event: Callback = ignore,
) -> dict[str, KarelData]:
    """Generate tasks, ``counts[split]`` for each of the splits train, val and test.

    Programs have from ``shortest`` to ``longest`` tokens, ``DEF run m(`` and ``m)`` included, and worlds at most
    ``largest`` rows and columns. The number of ``workers``, which are threads, does not change the result.
    """
    if unknown := set(counts) - set(SPLITS):
        raise InputError(f"unknown split {min(unknown)!r}: choose among {', '.join(SPLITS)}")
    if not any(counts.values()) or min(counts.values()) < 0:
        raise InputError(f"the numbers of tasks must be 0 or more, and not all 0: {dict(counts)}")
    if not SHORTEST_PROGRAM <= longest <= 200 or shortest > longest:
        raise InputError(
            f"programs of {shortest} to {longest} tokens cannot be generated: choose from {SHORTEST_PROGRAM} to 200"
        )
    if not SMALLEST <= largest <= LARGEST:
        raise InputError(f"the largest world must have from {SMALLEST} to {LARGEST} rows and columns, not {largest}")
    splits = [split for split in SPLITS if counts.get(split)]
    sizes = [counts[split] for split in splits]
    noise = Noise(seed)
    keys = [noise.keys(torch.arange(counts[split]), SPLITS.index(split)).numpy() for split in splits]
    # The splits take turns in proportion to their sizes, so that avoiding earlier programs affects all of them alike.
    turns = np.argsort(np.concatenate([(np.arange(size) + 0.5) / size for size in sizes]), kind="stable")
    states, weights = np.concatenate(keys).view(np.uint64)[turns], length_weights(shortest, longest)
    total, side = sum(sizes), largest + 2
    tokens, lengths = np.zeros((total, longest), np.uint8), np.zeros(total, np.int64)
    inputs, outputs = (
        Grids(np.zeros((total, _EXAMPLES, side, side), np.uint8), np.zeros((total, _EXAMPLES, 2), np.int16))
        for _ in range(2)
    )
    flat = [
        part for grids in (inputs, outputs) for part in (grids.cells.reshape(total, _EXAMPLES, side * side), grids.hero)
    ]
    arrays = (np.zeros(total, np.int64), tokens, lengths, *flat)
    progress = Progress(on_event, "tasks", total)

    def make(rows: np.ndarray) -> int:
        make_tasks(rows, states, GRAMMAR, weights, largest, side, *arrays)
        return len(rows)

    # Make all tasks, then replace those whose program occurs earlier until there are none. A task continues its stream
    # of random numbers, so that it gets the first of its programs that is new.
    pending = np.arange(total)
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for number in range(_ROUNDS):
            for done in pool.map(make, [pending[i : i + _CHUNK] for i in range(0, len(pending), _CHUNK)]):
                if number == 0:
                    progress.advance(done)
            if not lengths[pending].all():
                break
            first: dict[bytes, int] = {}
            pending = np.array([r for r in range(total) if first.setdefault(tokens[r].tobytes(), r) != r], np.int64)
            if len(pending) == 0:
                break
    if len(pending):
        raise InputError(
            f"there are too few different programs of {max(shortest, SHORTEST_PROGRAM)} to {longest} tokens for "
            f"{total} tasks in worlds of up to {largest} rows and columns: allow longer programs or fewer tasks"
        )
    ids = np.array([program_id(row[:length].tolist()) for row, length in zip(tokens, lengths, strict=True)], np.int64)
    parts = np.split(np.argsort(turns), np.cumsum(sizes)[:-1])
    return {
        split: KarelData(tokens[rows], lengths[rows], inputs[rows], outputs[rows], ids[rows])
        for split, rows in zip(splits, parts, strict=True)
    }


def make_data(
    folder: Path,
    settings: DataSettings,
    forms: Form = "tensor",
    workers: int | None = None,
    facts: Mapping[str, Any] | None = None,
    on_event: Callback = ignore,
) -> None:
    """Generate train.jsonl, val.jsonl and test.jsonl with their caches, unless the folder has them already.

    Existing files are never touched: a folder with some of the splits, but not all, is refused. All files appear
    together; ``facts``, if given, are one of them, manifest.json, and then the folder must be empty.
    """
    with FolderLock(folder) as lock:
        if facts is not None:
            lock.require_empty()  # another process may have been faster, with other settings
        elif _has_splits(folder, settings):
            return
        limits = {name: getattr(settings, name) for name in ("shortest", "longest", "largest")}
        counts = _counts(settings)
        data = generate(counts, seed=settings.data_seed, workers=workers, on_event=on_event, **limits)
        with os_errors(f"write the data to {folder}"), staged(folder, last=f"{next(iter(counts))}.jsonl") as staging:
            for split, tasks in data.items():
                tasks.write(staging / f"{split}.jsonl", forms, on_event)
            if facts is not None:
                write_json(staging / "manifest.json", facts)


def _counts(settings: DataSettings) -> dict[str, int]:
    return {split: count for split in SPLITS if (count := getattr(settings, split))}


def _has_splits(folder: Path, settings: DataSettings) -> bool:
    """Whether a folder has all files; one that has only some is refused."""
    wanted = _counts(settings)
    existing = [path.name for split in wanted if (path := find_file(folder, split)) is not None]
    if existing and len(existing) < len(wanted):
        raise InputError(
            f"{folder} has {', '.join(existing)} but not all splits: add the missing files or use another folder"
        )
    return bool(existing)


@no_type_check
@numba.njit(cache=True, nogil=True)
def make_tasks(
    rows, states, grammar, weights, largest, side, tries, tokens, lengths, in_cells, in_hero, out_cells, out_hero
):
    """Make the tasks of some rows; a length of 0 remains where none was found."""
    width = tokens.shape[1] + 1
    code, stack = np.zeros((width, 3), np.int32), np.zeros((width, 3), np.int32)
    work = (
        np.zeros(width, np.int32),
        np.zeros(side * side, np.uint8),
        np.zeros(side * side, np.int64),
        np.zeros((width, 2), np.uint8),
        np.zeros((width, 2), np.uint8),
    )
    for row in rows:
        state, program = states[row : row + 1], tokens[row]
        length = lengths[row] if tries[row] % _TAKEN > 0 else 0
        tries[row] += 1
        lengths[row] = 0
        for attempt in range(_LENGTHS * _WITHOUT_WORLDS):
            if length == 0 or (attempt > 0 and attempt % _WITHOUT_WORLDS == 0):
                length = choose(state, weights)
            draws = 1
            while draws < _DRAWS and not draw_program(state, length, grammar, program):
                draws += 1
            if draws == _DRAWS:
                continue
            size = compile_program(program, length, code, stack)
            worlds = (in_cells[row], in_hero[row], out_cells[row], out_hero[row])
            if find_examples(state, code, size, largest, side, *worlds, work):
                lengths[row] = length
                program[length:] = 0
                break
