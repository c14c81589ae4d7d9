"""Generated Karel tasks: programs like the public ones, with worlds on which all of each program matters.

A task depends on the seed, its split and its number, and on tasks before it only in that no program occurs twice.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, no_type_check

import numba
import numpy as np
import torch

from corollout.errors import InputError
from corollout.noise import Noise
from corollout.tasks.karel.dataset import SPLITS, KarelData
from corollout.tasks.karel.exercises import LARGEST, SMALLEST, find_examples
from corollout.tasks.karel.grids import Grids
from corollout.tasks.karel.machine import compile_program
from corollout.tasks.karel.programs import (
    GRAMMAR,
    SHORTEST_PROGRAM,
    choose,
    draw_program,
    length_weights,
)
from corollout.tasks.karel.records import program_id

_CHUNK = 32
# How many programs of a length are tried before another length is drawn: while no worlds are found for them, and while
# they are those of earlier tasks. Keeping the length keeps the distribution as long as there are other programs of it.
_WITHOUT_WORLDS, _TAKEN = 50, 20
# When to give up: how many lengths for a task, draws for a program, and programs that earlier tasks have.
_LENGTHS, _DRAWS, _ROUNDS = 50, 100_000, 400


class _Arrays(NamedTuple):
    tries: np.ndarray  # int64[task]: programs that were made
    tokens: np.ndarray  # uint8[task, longest]
    lengths: np.ndarray  # int64[task]
    in_cells: np.ndarray  # uint8[task, example, side · side]
    in_hero: np.ndarray  # int16[task, example, 2]
    out_cells: np.ndarray
    out_hero: np.ndarray


def generate(
    counts: Mapping[str, int],
    *,
    seed: int = 0,
    shortest: int = SHORTEST_PROGRAM,
    longest: int = 45,
    largest: int = LARGEST,
    examples: int = 6,
    workers: int | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> dict[str, KarelData]:
    """Make tasks: ``counts`` says how many for each of the splits train, val and test.

    Programs have from ``shortest`` to ``longest`` tokens, ``DEF run m(`` and ``m)`` included, and worlds up to
    ``largest`` rows and columns. ``on_progress`` is told how many tasks have been made since it was told last. The
    number of ``workers``, which are threads, changes nothing but the time.
    """
    _check(counts, shortest, longest, largest, examples)
    splits = [split for split in SPLITS if counts.get(split)]
    sizes = [counts[split] for split in splits]
    noise = Noise(seed)
    keys = [noise.keys(torch.arange(counts[split]), SPLITS.index(split)).numpy() for split in splits]
    # The splits take turns in proportion, so that what earlier tasks leave to later ones is the same for all of them.
    turns = np.argsort(np.concatenate([(np.arange(size) + 0.5) / size for size in sizes]), kind="stable")
    total, side = sum(sizes), largest + 2
    arrays = _Arrays(
        np.zeros(total, np.int64),
        np.zeros((total, longest), np.uint8),
        np.zeros(total, np.int64),
        np.zeros((total, examples, side * side), np.uint8),
        np.zeros((total, examples, 2), np.int16),
        np.zeros((total, examples, side * side), np.uint8),
        np.zeros((total, examples, 2), np.int16),
    )
    states = np.concatenate(keys).view(np.uint64)[turns]
    weights = length_weights(shortest, longest)
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        _settle(pool, states, weights, largest, side, arrays, on_progress)
    place = np.argsort(turns)
    edges = np.cumsum([0, *sizes])
    rows = [place[edges[i] : edges[i + 1]] for i in range(len(splits))]
    return {split: _data(_Arrays(*(array[r] for array in arrays)), side) for split, r in zip(splits, rows, strict=True)}


def _check(counts: Mapping[str, int], shortest: int, longest: int, largest: int, examples: int) -> None:
    unknown = set(counts) - set(SPLITS)
    if unknown:
        raise InputError(f"no split is called {sorted(unknown)[0]!r}: choose among {', '.join(SPLITS)}")
    if not any(counts.values()) or min(counts.values()) < 0:
        raise InputError(f"the numbers of tasks must be 0 or more, and not all 0: {dict(counts)}")
    if not SHORTEST_PROGRAM <= longest <= 200 or shortest > longest:
        raise InputError(
            f"programs have from {SHORTEST_PROGRAM} to 200 tokens, so they cannot be from {shortest} to {longest} long"
        )
    if not SMALLEST <= largest <= LARGEST:
        raise InputError(f"the largest world must have from {SMALLEST} to {LARGEST} rows and columns, not {largest}")
    if examples < 2:
        raise InputError(f"a task needs two examples or more, one of them to be held out, not {examples}")


def _settle(
    pool: ThreadPoolExecutor,
    states: np.ndarray,
    weights: np.ndarray,
    largest: int,
    side: int,
    arrays: _Arrays,
    on_progress: Callable[[int], None],
) -> None:
    """Make all tasks; then make those again whose program an earlier one has, until none has.

    A task's random numbers go on where they were, so that it takes the first of its programs that no earlier task has.
    """
    pending = np.arange(len(states))

    def make(rows: np.ndarray) -> int:
        make_tasks(rows, states, GRAMMAR, weights, largest, side, *arrays)
        return len(rows)

    for number in range(_ROUNDS):
        for done in pool.map(make, [pending[i : i + _CHUNK] for i in range(0, len(pending), _CHUNK)]):
            if number == 0:
                on_progress(done)
        if not arrays.lengths[pending].all():
            break
        seen: set[bytes] = set()
        again = []
        for row, tokens in enumerate(arrays.tokens):
            text = tokens.tobytes()
            if text in seen:
                again.append(row)
            seen.add(text)
        pending = np.array(again, np.int64)
        if not again:
            return
    raise InputError(
        f"there are too few different programs of {int(np.flatnonzero(weights)[0])} to {len(weights) - 1} tokens for "
        f"{len(states)} tasks in worlds of up to {largest} rows and columns: allow longer programs or ask for fewer"
    )


def _data(arrays: _Arrays, side: int) -> KarelData:
    shape = arrays.in_hero.shape[:2]
    programs = zip(arrays.tokens, arrays.lengths, strict=True)
    return KarelData(
        arrays.tokens,
        arrays.lengths,
        Grids(arrays.in_cells.reshape(*shape, side, side), arrays.in_hero),
        Grids(arrays.out_cells.reshape(*shape, side, side), arrays.out_hero),
        np.array([program_id(tokens[:length].tolist()) for tokens, length in programs], np.int64),
    )


@no_type_check
@numba.njit(cache=True, nogil=True)
def make_tasks(
    rows, states, grammar, weights, largest, side, tries, tokens, lengths, in_cells, in_hero, out_cells, out_hero
):
    """Make the tasks of some rows; the length stays 0 if there seem to be none."""
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
            if find_examples(
                state, code, size, largest, side, in_cells[row], in_hero[row], out_cells[row], out_hero[row], work
            ):
                lengths[row] = length
                program[length:] = 0
                break
