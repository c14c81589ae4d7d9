"""Compare two sets of Karel programs: ``python -m corollout.tasks.karel.statistics GENERATED PROGRAMS``."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain, pairwise
from math import fsum
from pathlib import Path

import numpy as np

from corollout.errors import CorolloutError, InputError
from corollout.files import read_text
from corollout.tasks.karel.dataset import read_records
from corollout.tasks.karel.language import COUNTS, TESTS, decode, parse, tokenize

Tokens = list[str]
_OPENERS, _CLOSERS = ("r(", "w(", "i(", "e("), ("r)", "w)", "i)", "e)")
_HALVINGS = 100


def depth(program: Tokens) -> int:
    """The depth of nested constructs."""
    levels = np.cumsum([(token in _OPENERS) - (token in _CLOSERS) for token in program])
    return int(levels.max(initial=0))


# The values that each program contributes to the distribution of a feature.
FEATURES: dict[str, Callable[[Tokens], Iterable[Hashable]]] = {
    "length": lambda program: [len(program)],
    "depth": lambda program: [depth(program)],
    "tokens": lambda program: program,
    "bigrams": pairwise,
    "constructs": lambda program: [sum(token in _OPENERS and token != "e(" for token in program)],
    "conditions": lambda program: [
        (program[i - 2] == "not", token) for i, token in enumerate(program) if token in TESTS
    ],
    "repeat counts": lambda program: [token for token in program if token in COUNTS],
}


def distances(a: Iterable[Tokens], b: Iterable[Tokens]) -> dict[str, float]:
    """The total-variation distance ½ Σ |p − q| of the distributions of each feature: 0 if equal, 1 if disjoint."""
    sides = list(a), list(b)
    return {
        name: _variation(*(Counter(chain.from_iterable(map(values, side))) for side in sides))
        for name, values in FEATURES.items()
    }


def noise_floor(programs: Sequence[Tokens], seed: int = 0) -> dict[str, float]:
    """The mean distances of two random halves: what to expect of programs from the same source."""
    random = np.random.default_rng(seed)
    halves = []
    for _ in range(_HALVINGS):
        order = random.permutation(len(programs)).tolist()
        half = len(order) // 2
        halves.append(distances([programs[i] for i in order[:half]], [programs[i] for i in order[half:]]))
    return {name: float(np.mean([one[name] for one in halves])) for name in FEATURES}


def read_programs(path: Path) -> list[Tokens]:
    """The programs of a file: records if its name ends in .jsonl, otherwise one program per line."""
    if path.suffix == ".jsonl":
        data, _ = read_records(path)
        rows = zip(data.tokens, data.lengths, strict=True)
        return [decode(tokens[:length].tolist()) for tokens, length in rows]
    programs = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            try:
                parse(line)
            except InputError as error:
                raise InputError(f"{path}, line {number}: {error}") from error
            programs.append(tokenize(line))
    if not programs:
        raise InputError(f"{path} has no programs")
    return programs


def _variation(a: Counter[Hashable], b: Counter[Hashable]) -> float:
    if not a or not b:
        return float(bool(a) != bool(b))
    # Exactly rounded, because sets have no order.
    return 0.5 * fsum(abs(a[value] / a.total() - b[value] / b.total()) for value in a.keys() | b.keys())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the distances between generated programs and others, and between two halves of the others."""
    parser = argparse.ArgumentParser(prog="python -m corollout.tasks.karel.statistics", description=main.__doc__)
    parser.add_argument("generated", type=Path, help="records (.jsonl), or one program per line")
    parser.add_argument("programs", type=Path, help="the programs to compare with, in either form")
    given = parser.parse_args(arguments)
    others = read_programs(given.programs)
    longest = max(map(len, others))
    generated = [program for program in read_programs(given.generated) if len(program) <= longest]
    if not generated:
        raise InputError(f"{given.generated}: no program of at most {longest} tokens, the longest of {given.programs}")
    near, floor = distances(generated, others), noise_floor(others)
    print(f"{len(generated)} programs of at most {longest} tokens, compared with {len(others)}")
    print(f"{'':14} generated  two halves of the others")
    for name in FEATURES:
        print(f"{name:14} {near[name]:9.3f}  {floor[name]:.3f}")


if __name__ == "__main__":
    try:
        main()
    except CorolloutError as problem:
        sys.exit(f"error: {problem}")
