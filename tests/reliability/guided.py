"""Files that a coverage-guided fuzzer makes: atheris, which is libFuzzer for Python.

Cases are those of ``readers``, but what is changed is decided by bytes that the fuzzer evolves, kind by kind, towards
code that no earlier file has reached.
"""

import importlib.util
import inspect
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tests.reliability.readers import prepare_worker, run_case, supervise
from tests.reliability.suite import Outcome, Suite

LONGEST, SEEDS = 256, 8  # bytes of an input; inputs to begin with


class Decisions(random.Random):
    """Random numbers read from bytes, so that similar bytes give similar decisions; after the end, all are zero."""

    def __new__(cls, data: bytes) -> "Decisions":
        return super().__new__(cls)

    def __init__(self, data: bytes):
        super().__init__()
        self._data, self._position = data, 0

    def getrandbits(self, k: int) -> int:
        size = (k + 7) // 8
        taken = self._data[self._position : self._position + size].ljust(size, b"\0")
        self._position += size
        return int.from_bytes(taken, "little") >> (8 * size - k)

    def random(self) -> float:
        return self.getrandbits(16) / (1 << 16)


def run(cases: int, seed: int) -> Iterator[Outcome]:
    """Run cases of each kind, more for those of larger weight."""
    if importlib.util.find_spec("atheris") is None:
        raise ModuleNotFoundError("guided fuzzing needs atheris: pip install --constraint constraints.txt atheris")
    from tests.reliability.kinds import KINDS

    left, weight = cases, sum(kind.weight for kind in KINDS.values())
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in KINDS.items():
            share = left * kind.weight // weight
            left, weight = left - share, weight - kind.weight
            yield from supervise("tests.reliability.guided", Path(folder), share, seed, name)


def _work(folder: Path, first: int, end: int, seed: int, name: str) -> None:
    atheris: Any = importlib.import_module("atheris")  # which not everybody has installed
    prepare_worker(folder, [name])
    for function in _functions():
        atheris.instrument_func(function)
    numbers = iter(range(first, end))

    def try_input(data: bytes) -> None:
        if (number := next(numbers, None)) is not None:
            run_case(folder, number, name, Decisions(data), f"the input {data.hex()}")

    corpus, draw = folder / f"{name}, inputs from {first}", random.Random(f"{seed}-{first}")
    corpus.mkdir()
    for index in range(SEEDS):
        (corpus / str(index)).write_bytes(draw.randbytes(LONGEST // 4))
    # A few more runs than needed, because it counts those of the first inputs, too. Time limits are ours.
    options = {"runs": end - first + SEEDS + 8, "seed": draw.getrandbits(31), "max_len": LONGEST, "timeout": 0}
    arguments = [f"-{option}={value}" for option, value in options.items()]
    atheris.Setup([sys.argv[0], *arguments, "-rss_limit_mb=0", str(corpus)], try_input)
    atheris.Fuzz()


def _functions() -> Iterator[Callable[..., Any]]:
    """All functions of the package whose code Python runs; those that numba has compiled are objects of its own."""
    from corollout.export import runtime

    compiled = (runtime._mix, runtime._unit, runtime._logit, runtime._logit_loop, runtime._race_loop)
    skipped = {*compiled, runtime._walk_loop, runtime._best}
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "corollout"]
    seen = {function for module in modules for function in _functions_of(module)}
    yield from sorted(seen - skipped, key=lambda function: (function.__module__, function.__qualname__))


def _functions_of(owner: ModuleType | type) -> Iterator[FunctionType]:
    for value in vars(owner).values():
        inner: Any = value
        if isinstance(value, property):
            inner = value.fget
        elif isinstance(value, cached_property):
            inner = value.func
        inner = getattr(inner, "__func__", inner)
        if isinstance(inner, FunctionType) or hasattr(inner, "cache_info"):
            inner = inspect.unwrap(inner)
        if (getattr(inner, "__module__", None) or "").partition(".")[0] != "corollout":
            continue
        if isinstance(inner, FunctionType):
            yield inner
        elif inspect.isclass(value) and isinstance(owner, ModuleType):
            yield from _functions_of(value)


SUITE = Suite(
    "guided",
    "The same for files that a fuzzer evolves towards code that no earlier file has reached",
    50_000,
    run,
)


if __name__ == "__main__":
    where, first, end, seed, name = sys.argv[1:]
    _work(Path(where), int(first), int(end), int(seed), name)
