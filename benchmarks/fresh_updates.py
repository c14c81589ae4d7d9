"""Updates of a captioner whose captions all have the same length: seconds and peak memory, in a fresh process.

Words follow Zipf's law, and no caption ends before the maximal length, so that an update's size is exactly known. The
peak is the high-water mark of resident memory during an update, beyond what is resident before it: weights, gradients,
the optimizer's and the trainer's averages are there already, since a small update with the same trainer came before,
and its free memory was given back.
"""

import ctypes
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

import torch

from benchmarks.caption_update import END, make_policy
from benchmarks.speed_worker import SEED, make_optimizer, prepare_process
from corollout import Columns, Engine, Trainer
from corollout.events import ignore

WIDTH = 32  # of an image's features
MOST_MEMORY = 14 * 2**30  # a process that wants more is told that there is none
LONG_ENOUGH = 10.0  # seconds, after which an update is not repeated more than once


class Point(NamedTuple):
    """An update's size."""

    method: str
    vocab: int
    hidden: int
    contexts: int
    length: int


class Update(NamedTuple):
    seconds: list[float]
    peak: int  # bytes


def make_trainer(point: Point) -> Trainer:
    policy = make_policy(point.vocab, WIDTH, point.hidden)
    with torch.no_grad():
        policy.output[END], policy.output_bias[END] = 0.0, -1e4  # finite, but never drawn
    engine = Engine(policy, bos=END, eos=END, max_length=point.length)
    data = Columns(context=torch.randn(point.contexts, WIDTH))
    return Trainer(
        engine,
        data,
        reward,
        point.method,
        make_optimizer(policy),
        batch_size=point.contexts,
        seed=SEED,
        on_event=ignore,
    )


def reward(sequences: list[list[int]]) -> list[float]:
    """A reward that costs nothing and differs between sequences."""
    return [sum(tokens) % 7 / 7 for tokens in sequences]


def measure(point: Point, repetitions: int) -> Update | None:
    """To be run in a fresh process, on one thread; None if there is not enough memory."""
    prepare_process()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    try:
        trainer = make_trainer(point)
        trainer.engine.max_length = min(2, point.length)
        trainer.step()  # compiled code is loaded; everything that stays is there
        trainer.engine.max_length = point.length
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the mark starts anew from what is in use
        before = _status("VmRSS")
        seconds: list[float] = []
        peak = 0
        while len(seconds) < 2 or (len(seconds) < repetitions and sum(seconds) < LONG_ENOUGH):
            started = time.perf_counter()
            length = trainer.step().mean_length
            seconds.append(time.perf_counter() - started)
            peak = peak or _status("VmHWM") - before
            if length != point.length:
                raise AssertionError(f"captions have {length:g} words on average, not {point.length}")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            return None
        raise
    return Update(seconds, peak)


def _status(entry: str) -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{entry}:"))


class FreshProcesses:
    """Measures points one after another, each in a process of its own; all in one process if it is only for a try."""

    def __init__(self, quick: bool) -> None:
        # A server imports this module once and then forks a fresh process for each call.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pool = ProcessPoolExecutor(max_workers=1, mp_context=context, max_tasks_per_child=None if quick else 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def measure(self, point: Point, repetitions: int) -> Update | None:
        return self._pool.submit(measure, point, repetitions).result()
