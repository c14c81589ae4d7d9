"""How alike two sets of Karel programs are: ``python -m corollout.tasks.karel.statistics GENERATED PROGRAMS``."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from math import fsum
from pathlib import Path

import numpy as np

from corollout.errors import CorolloutError, InputError
from corollout.tasks.karel.language import COUNTS, TESTS, decode, parse, tokenize
from corollout.tasks.karel.records import read_records

Tokens = list[str]
_OPENERS, _CLOSERS = ("r(", "w(", "i(", "e("), ("r)", "w)", "i)", "e)")
_HALVINGS = 100


def depth(program: Tokens) -> int:
    """How many constructs stand inside one another, at most."""
    levels = np.cumsum([(token in _OPENERS) - (token in _CLOSERS) for token in program])
    return int(levels.max(initial=0))


# What is compared: the values that each program contributes to a distribution.
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
    """The total-variation distance, ½ Σ |p − q|, of each feature's distribution; 0 if equal, 1 if disjoint."""
    first, second = list(a), list(b)
    return {name: _variation(_counted(first, values), _counted(second, values)) for name, values in FEATURES.items()}


def noise_floor(programs: Sequence[Tokens], seed: int = 0) -> dict[str, float]:
    """The mean distances of two random halves: what programs from the very same source show."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(_HALVINGS):
        order = random.permutation(len(programs)).tolist()
        half = len(order) // 2
        found.append(distances([programs[i] for i in order[:half]], [programs[i] for i in order[half:]]))
    return {name: float(np.mean([one[name] for one in found])) for name in FEATURES}


def read_programs(path: Path) -> list[Tokens]:
    """The programs of a file: records if it ends in .jsonl, otherwise one program a line."""
    if path.suffix == ".jsonl":
        records = read_records(path)
        rows = zip(records.tokens, records.lengths, strict=True)
        return [decode(tokens[:length].tolist()) for tokens, length in rows]
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    programs = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                parse(line)
            except InputError as error:
                raise InputError(f"{path}, line {number}: {error}") from error
            programs.append(tokenize(line))
    if not programs:
        raise InputError(f"{path}: no program")
    return programs


def _counted(programs: list[Tokens], values: Callable[[Tokens], Iterable[Hashable]]) -> Counter[Hashable]:
    return Counter(value for program in programs for value in values(program))


def _variation(a: Counter[Hashable], b: Counter[Hashable]) -> float:
    if not a or not b:
        return float(bool(a) != bool(b))
    # Exactly rounded: values come in no order.
    return 0.5 * fsum(abs(a[value] / a.total() - b[value] / b.total()) for value in a.keys() | b.keys())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the distances of generated programs from others, and of two halves of the others from one another."""
    parser = argparse.ArgumentParser(prog="python -m corollout.tasks.karel.statistics", description=main.__doc__)
    parser.add_argument("generated", type=Path, help="records (.jsonl), or one program a line")
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
