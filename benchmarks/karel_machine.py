"""How many Karel programs a second? The compiled machine against the plain interpreter, on one thread.

The programs are generated ones of 13 tokens, each with the six worlds, of up to 8 × 8 cells, of its own task: all of
them run to their end on every world and are right, so nothing is saved by a program that fails early. The machine gets
them as an array, and as Python lists, which it packs first. The interpreter gets tokens, which it parses once for six
runs, and worlds that have been made beforehand. Both say of each program on which worlds it is right.
"""

from typing import NamedTuple

import numpy as np
from rich.progress import Progress

from benchmarks.harness import Contestant, Result, Target, figure, milliseconds, time_alternately
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import unpack
from corollout.tasks.karel.interpreter import interpret
from corollout.tasks.karel.language import parse
from corollout.tasks.karel.machine import Programs, judge
from corollout.tasks.karel.world import World, same_state

SEED = 1
LENGTH, LARGEST = 13, 8
LEAST_SPEEDUP, LEAST_RATE = 200, 300_000


class Sizes(NamedTuple):
    tasks: int
    copies: int  # how often the machine does all tasks in one measurement
    plain: int  # tasks that the interpreter does in one
    repetitions: int


FULL = Sizes(tasks=2000, copies=10, plain=200, repetitions=15)
QUICK = Sizes(tasks=20, copies=2, plain=5, repetitions=2)

MACHINE, LISTS, PLAIN = "machine, array in", "machine, lists in", "interpreter"


class Problem(NamedTuple):
    """Programs with their tasks, in the forms that the contestants read."""

    data: KarelData
    programs: Programs
    lists: list[list[int]]
    tasks: np.ndarray
    worlds: list[list[tuple[World, World]]]  # before and after


def make_problem(sizes: Sizes) -> Problem:
    counts = {"train": sizes.tasks}
    data = generate(counts, seed=SEED, shortest=LENGTH, longest=LENGTH, largest=LARGEST)["train"]
    lists = [tokens[:length].tolist() for tokens, length in zip(data.tokens, data.lengths, strict=True)] * sizes.copies
    worlds = [
        [(unpack(data.inputs[task, e]), unpack(data.outputs[task, e])) for e in range(data.examples)]
        for task in range(sizes.plain)
    ]
    return Problem(data, Programs.pack(lists), lists, np.tile(np.arange(sizes.tasks), sizes.copies), worlds)


def judge_array(problem: Problem) -> np.ndarray:
    return judge(problem.programs, problem.tasks, problem.data.inputs, problem.data.outputs).right


def judge_lists(problem: Problem) -> np.ndarray:
    return judge(Programs.pack(problem.lists), problem.tasks, problem.data.inputs, problem.data.outputs).right


def judge_plainly(problem: Problem) -> np.ndarray:
    """The first tasks only, by the interpreter."""
    right = []
    for tokens, pairs in zip(problem.lists, problem.worlds, strict=False):
        program = parse(tokens)
        results = [(interpret(program, before), after) for before, after in pairs]
        right.append([result.status == "ok" and same_state(result.world, after) for result, after in results])
    return np.array(right)


CONTESTANTS = {MACHINE: judge_array, LISTS: judge_lists, PLAIN: judge_plainly}


def check(problem: Problem) -> None:
    """Everybody finds every program right, as it is."""
    for name, contestant in CONTESTANTS.items():
        if not contestant(problem).all():
            raise AssertionError(f"'{name}' finds a generated program wrong on a world of its own task")


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    problem = make_problem(sizes)
    check(problem)
    timings = time_alternately(
        [Contestant(name, 1, lambda call=call: call(problem)) for name, call in CONTESTANTS.items()],
        sizes.repetitions,
        progress,
        "karel_machine",
    )
    counts = {MACHINE: len(problem.lists), LISTS: len(problem.lists), PLAIN: sizes.plain}
    rates = {timing.name: counts[timing.name] / timing.median for timing in timings}
    return {
        "benchmark": "karel_machine",
        "quick": quick,
        "settings": {**sizes._asdict(), "tokens": LENGTH, "largest_world": LARGEST, "worlds_per_program": 6},
        "seeds": {"tasks": SEED},
        "timings": [{"programs": counts[timing.name], **timing.record()} for timing in timings],
        "measurements": {
            "programs_per_second": rates,
            "speedups": {name: rates[name] / rates[PLAIN] for name in (MACHINE, LISTS)},
        },
        "targets": [
            Target(
                f"at least {LEAST_SPEEDUP} times as fast as the plain interpreter ({MACHINE})",
                rates[MACHINE] / rates[PLAIN],
                LEAST_SPEEDUP,
                at_least=True,
                judged=not quick,
            ).record(),
            Target(
                f"at least {LEAST_RATE:,} programs a second on one core ({MACHINE})",
                rates[MACHINE],
                LEAST_RATE,
                at_least=True,
                judged=not quick,
            ).record(),
        ],
        "table": [
            {
                "contestant": timing.name,
                "programs": f"{counts[timing.name]:,}",
                "ms (quartiles)": milliseconds(timing),
                "programs / s": figure(rates[timing.name]),
                "× interpreter": figure(rates[timing.name] / rates[PLAIN]),
            }
            for timing in timings
        ],
    }
