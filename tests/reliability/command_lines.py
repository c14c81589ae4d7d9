"""Command lines that make no sense, of every command: each ends by itself, in one sentence and without a traceback.

A case is a command line that would work, with some of its words altered, left out, repeated or added. It is run by
``app`` in a worker process, inside a fresh copy of a folder with small data, runs and files. Budgets are tiny, and
``demo`` and ``reproduce`` stop where their work would begin.
"""

import contextlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from corollout.cli import demo
from corollout.cli.main import app
from corollout.errors import InputError
from corollout.experiments import cold_start, experiment
from corollout.tasks.captioning.scenes import make_scenes
from corollout.tasks.captioning.settings import ModelSettings as CaptionModel
from corollout.tasks.karel.generator import make_data
from corollout.text import visible
from corollout.training.settings import MachineSettings, PretrainSettings
from corollout.training.start import create_pretraining, resume_run
from tests.reliability.altered_commands import make_case
from tests.reliability.bad_commands import BadCase, left_behind, make_bad_case, small_disk
from tests.reliability.suite import MEGABYTES, Outcome, Suite
from tests.support.signal_handlers import kept_handlers
from tests.support.small_karel import DATA, MODEL

CASE_SECONDS, HANG_SECONDS = 60.0, 90.0  # for a case, and until its worker is killed
CASES_OF_A_WORKER = 400
EXIT_CODES = (0, 1, 2, 130)


def make_folder(folder: Path) -> None:
    """Small data, runs and files for all commands."""
    make_data(folder / "karel", DATA, workers=1)
    teach = PretrainSettings(learning_rate=1e-2, batch_size=4, epochs=1)
    create_pretraining(folder / "karel-run", "karel", folder / "karel", MODEL, teach, MachineSettings())
    resume_run(folder / "karel-run")
    make_scenes(folder / "captions", {"train": 4, "val": 2, "test": 2}, seed=0)
    small = CaptionModel(embedding=4, hidden=4)
    create_pretraining(folder / "captions-run", "captions", folder / "captions", small, teach, MachineSettings())
    resume_run(folder / "captions-run")
    quick = ["--unit", "updates", "--budget", "2", "--evaluate-every", "1", "--batch-size", "2"]
    for arguments in (
        ["finetune", "karel-run", "--out", "tuned-run", *quick],
        ["compare", "karel-run", "tuned-run", "--out", "report"],
        ["tree", "build", "--data", "captions", "--from", "huffman", "--out", "tree.safetensors"],
    ):
        with contextlib.chdir(folder):
            problem = run_case(arguments)
        assert not problem, problem
    (folder / "empty").mkdir()
    (folder / "empty-run").mkdir()
    (folder / "empty-run" / "config.toml").touch()
    shutil.copytree(folder / "karel-run", folder / "broken-run")
    (folder / "broken-run" / "config.toml").write_text("task = 5\nkind = [1]\n[model]\nhidden = 'x'\n")
    annotations = [{"image_id": image, "id": image, "caption": f"a cat {image}"} for image in (0, 1, 2)]
    images = [{"id": image, "file_name": f"{image}.jpg"} for image in (0, 1, 2)]
    (folder / "refs.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    (folder / "hyps.json").write_text(json.dumps(annotations))
    world = {"rows": 2, "cols": 2, "hero": "0:0:north", "blocked": "", "markers": ""}
    (folder / "world.json").write_text(json.dumps(world))
    (folder / "program").write_text("DEF run m( move m)")
    (folder / "garbage").write_bytes(bytes(range(256)))
    (folder / "empty-file").touch()
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "deep.toml").write_text(f"a = {'[' * 5000}")
    (folder / "names.txt").write_text("0.jpg\n1.jpg\n2.jpg\n")
    np.save(folder / "features.npy", np.ones((3, 4), np.float32))
    sizes = "\n".join(f"{name} = {value}" for name, value in vars(MODEL).items() if isinstance(value, int))
    (folder / "config.toml").write_text(f"[model]\n{sizes}\n".replace("True", "true").replace("False", "false"))
    (folder / "captions.toml").write_text("[model]\nembedding = 4\nhidden = 4\n")
    (folder / "image.png").write_bytes(b"\x89PNG\r\n")
    (folder / "link-to-nothing").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "[/b]\x1b[31m").mkdir(parents=True)
    if find_spec("transformers") is not None:
        from tests.support.tiny_models import save_tiny_model

        save_tiny_model(folder / "lm")
    (folder / "prompts.jsonl").write_text('{"prompt": "a b"}\n{"prompt": "c"}\n')
    (folder / "prompts.csv").write_text('prompt,answer\n"a, b",c\nd,e\n')
    (folder / "scores.py").write_text(
        "def score(completions, **_):\n    return [len(text) / 9 for text in completions]\n"
    )


def refuse_experiments() -> None:
    """In this process, ``demo`` and ``reproduce`` end where their work would begin, which takes minutes or hours."""

    def refuse(*_: object) -> None:
        raise InputError("experiments are not run here")

    for module, name in ((demo, "run_demo"), (experiment, "run_resumable"), (cold_start, "run_resumable")):
        setattr(module, name, refuse)


class TimeLimit(BaseException):
    """A case took too long. Not an ``Exception``, so that nothing handles it."""


@dataclass(frozen=True)
class Ended:
    """How a command line ended, and what was wrong with that, or nothing."""

    code: Any
    errors: str
    problem: str


def run_case(arguments: list[str]) -> str:
    """Run a command line in this process; what was wrong with how it ended, or nothing."""
    return run_line(arguments).problem


def run_line(arguments: list[str], codes: Sequence[int] = EXIT_CODES) -> Ended:
    """Run a command line in this process."""
    buffers = [io.BytesIO() for _ in range(2)]
    streams = [io.TextIOWrapper(buffer, "utf-8") for buffer in buffers]
    kept = sys.argv, sys.path[:], sys.stdout, sys.stderr
    sys.argv, sys.stdout, sys.stderr = ["corollout", *arguments], *streams
    problem, code = "", 0
    try:
        with kept_handlers():
            app()
    except SystemExit as end:
        code = end.code or 0
    except TimeLimit:
        problem = "hang"
    except BaseException as error:  # whatever it is, it would be a traceback
        last = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"traceback: {type(error).__name__}: {str(error)[:200]} ({last.filename}:{last.lineno})"
    finally:
        sys.argv, sys.path[:], sys.stdout, sys.stderr = kept
    for stream in streams:
        stream.flush()
    output, errors = (buffer.getvalue().decode("utf-8") for buffer in buffers)
    for text in (output, errors):
        if visible(text) != text:
            problem = problem or f"output that a terminal would obey: {text[:200]!r}"
        if "Traceback" in text:
            problem = problem or f"traceback: {text[-200:]!r}"
    if not problem and code not in codes:
        problem = f"exit code {code!r}"
    if not problem and code == 1 and not errors:
        problem = "no message"
    return Ended(code, errors, problem)


def run_bad_case(case: BadCase, folder: Path) -> str:
    """Run a command line with something wrong in a folder; what was wrong with how it ended, or nothing."""
    case.spoil(folder)
    codes: tuple[int, ...] = (0, 1, 2)
    with small_disk(folder, case.disk), ExitStack() as stack:
        if case.signal is not None:
            codes += (128 + case.signal[0],)
            timer = threading.Timer(case.signal[1], os.kill, (os.getpid(), case.signal[0]))
            # A signal that comes when the command has ended must not end this process.
            stack.enter_context(ignored_afterwards(case.signal[0]))
            timer.start()
            stack.callback(timer.join)
        ended = run_line(case.arguments, codes)
        left = left_behind(case, folder)
    if ended.problem:
        return ended.problem
    if case.must_fail and ended.code == 0:
        return "not refused"
    if ended.code == 1 and ended.errors.count("error: ") != 1:
        return f"not one sentence: {ended.errors[-300:]!r}"
    return f"left behind: {', '.join(left)}" if left and ended.code else ""


@contextmanager
def ignored_afterwards(number: int) -> Generator[None, None, None]:
    """Outside of a command, a signal does nothing."""
    before = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(number, before)


def work(connection: Connection, source: str, where: str) -> None:
    """A worker: runs cases, each in a fresh copy of the folder, until it gets none.

    A case is the words of a command line, or seed and number of a bad one.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEGABYTES << 20, MEGABYTES << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def stop(*_: object) -> None:
        raise TimeLimit

    signal.signal(signal.SIGALRM, stop)
    refuse_experiments()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)  # what compiled code prints
    os.dup2(null, 2)
    while (arguments := connection.recv()) is not None:
        folder = Path(where, "case")
        shutil.copytree(source, folder, symlinks=True)
        os.chdir(folder)
        signal.setitimer(signal.ITIMER_REAL, CASE_SECONDS)
        try:
            if isinstance(arguments, tuple):
                problem = run_bad_case(make_bad_case(*arguments), folder)
            else:
                problem = run_case(arguments)
        except TimeLimit:
            problem = "hang"
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir(where)
        shutil.rmtree(folder)
        connection.send(problem)


class Worker:
    """A process that runs cases, and is started anew when it died or hung."""

    _process: Any = None
    _left = 0  # cases until it is replaced

    def __init__(self, source: Path, where: Path):
        self._source, self._where = source, where

    def run(self, arguments: list[str] | tuple[int, int]) -> str:
        if self._left == 0:
            self.stop()
            self._start()
        self._left -= 1
        process = self._process
        try:
            self._connection.send(arguments)
            if self._connection.poll(HANG_SECONDS):
                return self._connection.recv()
            problem = "hang, which no signal ended"
        except (EOFError, OSError):
            process.join()
            problem = f"the process died, exit code {process.exitcode}"
        self.stop()
        return problem

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, str(self._source), str(self._where)), daemon=False)
        self._process.start()
        theirs.close()
        self._left = CASES_OF_A_WORKER

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process, self._left = None, 0
            shutil.rmtree(self._where / "case", ignore_errors=True)


def run(cases: int, seed: int) -> Iterator[Outcome]:
    """An outcome for each command line; one of ten is a bad one."""
    with worker() as one:
        for number in range(cases - cases // 10):
            name, arguments = make_case(seed, number)
            yield _outcome(name, arguments, one.run(arguments))
        yield from run_bad(one, cases // 10, seed)


def run_bad(worker: Worker, cases: int, seed: int) -> Iterator[Outcome]:
    """An outcome for each command line with something wrong."""
    for number in range(cases):
        case = make_bad_case(seed, number)
        problem = worker.run((seed, number))
        if case.signal is not None and problem == f"the process died, exit code {128 + case.signal[0]}":
            problem = ""  # while modules are imported, a signal ends the process at once
        yield _outcome(f"wrong: {case.wrong}", case.arguments, problem)


def _outcome(name: str, arguments: list[str], problem: str) -> Outcome:
    shown = " ".join(word[:60].encode("unicode_escape").decode() for word in arguments)
    return Outcome(name, 1, (f"{problem}: {shown}",) if problem else ())


@contextmanager
def worker() -> Generator[Worker, None, None]:
    """A worker with a folder of small data, runs and files."""
    offline = {"HF_HUB_OFFLINE": "1", "COLUMNS": "120", "OMP_NUM_THREADS": "1", "TORCH_HOME": "/nonexistent"}
    kept = {name: os.environ.get(name) for name in offline}
    os.environ.update(offline)
    with tempfile.TemporaryDirectory(prefix="command-lines-") as folder:
        source = Path(folder, "source")
        source.mkdir()
        make_folder(source)
        one = Worker(source, Path(folder))
        try:
            yield one
        finally:
            one.stop()
            for variable, value in kept.items():
                os.environ.pop(variable) if value is None else os.environ.update({variable: value})


SUITE = Suite("command_lines", "Any command line ends by itself, in one sentence if it is refused", 5_000, run)
