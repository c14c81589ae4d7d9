"""Which of our files and functions a command runs through: ``python -m benchmarks.trace_calls COMMAND ...``.

Counts functions and methods that are called in this process, until the first step of an optimiser and in all; bodies of
modules and classes, lambdas and comprehensions do not count.
"""

import inspect
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

import corollout
from corollout.cli.main import app

PACKAGE = str(Path(corollout.__file__).parent)


class Tracer:
    """Collects (file, function) of every call into the package."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()
        self.first_step: set[tuple[str, str]] | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(PACKAGE):
            self.seen.add((code.co_filename, code.co_qualname))

    def on_step(self, *_: Any) -> None:
        if self.first_step is None:
            self.first_step = set(self.seen)


def counts(seen: set[tuple[str, str]]) -> str:
    return f"{len({file for file, _ in seen})} files, {len(seen)} functions"


def main() -> None:
    tracer = Tracer()
    register_optimizer_step_pre_hook(tracer.on_step)
    sys.argv = ["corollout", *sys.argv[1:]]
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        app()
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    if tracer.first_step is not None:
        print(f"until the first optimiser step: {counts(tracer.first_step)}")
    print(f"in all: {counts(tracer.seen)}")


if __name__ == "__main__":
    main()
