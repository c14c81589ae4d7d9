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
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from corollout.cli import demo
from corollout.cli.main import COMMANDS, all_commands, app
from corollout.cli.pretrain import pretrain_command
from corollout.cli.reproduce import experiment_command
from corollout.config import Option, import_object, options_of
from corollout.errors import InputError
from corollout.experiments import cold_start, registry
from corollout.experiments.registry import EXPERIMENTS, find_experiment
from corollout.tasks.captioning.model import ModelSettings as CaptionModel
from corollout.tasks.captioning.scenes import make_scenes
from corollout.tasks.karel.generator import make_data
from corollout.tasks.task import task_names
from corollout.text import visible
from corollout.training.settings import MachineSettings, PretrainSettings
from corollout.training.start import create_pretraining, resume_run
from tests.reliability.suite import MEGABYTES, Outcome, Suite
from tests.support.small_karel import DATA, MODEL

CASE_SECONDS, HANG_SECONDS = 60.0, 90.0  # for a case, and until its worker is killed
CASES_OF_A_WORKER = 400
EXIT_CODES = (0, 1, 2, 130)
# Words that hardly any option expects. A command line has no null characters.
STRANGE = [
    "", " ", "-", "--", "0", "-1", "-0", "1", "2", "007", "1_0", "1.5", "1e3", "1e400", "-1e400", "nan", "inf", "-inf",
    "9" * 19, "-" + "9" * 19, "9" * 400, "9" * 5000, "0x10", "٣", "½", "true", "none", "null", "None", "[]", "{}", ",",
    ",,,", "a,b", "1,2,3", "1,,x", "nan,inf", "é", "犬", "🐕", "e\u0301", "\u202egpj", "\u200b", "\x1b[31mred",
    "\x9b5m", "\x07",
    "a\nb", "a\r\nb", "\t", "\x7f", "\udce9", "caf\udce9", "\udcff" * 50, "[/b]", "[red]x", "[/", "[link=x]", ":dog:",
    "$\\foo$", "$x", "\\frac{", "_", "_x", "%s", "{}", "{0}", "{x!r}", "%(x)s", "x" * 300, "y" * 100_000, ".", "..",
    "~",
    "*", "a b", "'", '"', "`id`", "$(id)", ";", "&", "|", "<script>", "@", "@x", "@/dev/null", "os", "os:system", "os:",
    ":x", "a.b:c", "corollout", "corollout.config:NONE", "tests", "=", "==", "a=b", "--help", "--version", "--out",
    "-k", "-h",
    "best", "last", "start", "step-1", "step-99999999", "val", "test", "train", "cpu", "cuda", "cuda:99", "meta",
    "mps", "CPU",
    "cpu:1", "arsm", "ars-0", "rloo-1", "rloo-999999999", "arsm:budget=0", "arsm:budget=x", "set-2", "mc-", "auto",
    "tiny",
]  # fmt: skip
# Existing places of all kinds, for options that read.
PLACES = [
    "karel", "captions", "karel-run", "captions-run", "tuned-run", "report", "empty", "empty-run", "broken-run",
    "tree.safetensors",
    "refs.json", "hyps.json", "world.json", "garbage", "empty-file", "deep.json", "deep.toml", "config.toml",
    "image.png", "names.txt",
    "features.npy", "karel/train.jsonl", "captions/vocabulary.json", "karel-run/best.safetensors", "missing",
    "missing/too",
    "/dev/null", "/proc/self/cmdline", "link-to-nothing", "loop", "image.png/below", "[/b]\x1b[31m", "caf\udce9",
]  # fmt: skip
# New places, for options that write: never outside of the folder.
NEW_PLACES = ["new", "new/deeper", "empty", "garbage", "garbage/below", "karel", "report", "loop", "link-to-nothing",
    "[/b]\x1b[31m",
              "new caf\udce9", "x" * 300, "$\\foo$"]  # fmt: skip
ESTIMATORS = [
    "arsm",
    "ars-2",
    "rloo-2",
    "reinforce",
    "sc",
    "mc-2",
    "mc-0",
    "rl-beam-2",
    "set-2",
    "auto",
    "arsm:budget=5",
    "bin",
]
PROGRAMS = ["DEF run m( move m)", "DEF run m( turnLeft move m)", "@garbage", "@missing", "@-", "DEF run m( m)", "DEF"]
# Options of so much work that a large number would be a long wait rather than a mistake.
WORK = {
    "epochs", "budget", "estimates", "reference_estimates", "rounds", "batches", "train", "val", "test",
    "train_images", "val_images",
    "test_images", "count", "sample", "beam", "train_eval_examples", "tokens", "seconds", "workers", "jobs",
    "threads", "words",
}  # fmt: skip


@cache
def commands() -> dict[str, type]:
    """The settings class of every command, by its words."""
    functions: dict[str, Any] = {
        name: import_object(target) if isinstance(target, str) else target
        for name, target in all_commands().items()
        if name not in ("pretrain", "reproduce")
    }
    functions |= {f"pretrain {task}": pretrain_command(task) for task in task_names()}
    functions |= {f"reproduce {name}": experiment_command(find_experiment(name)) for name in EXPERIMENTS}
    assert COMMANDS.keys() <= {*functions, "pretrain", "reproduce"}
    return {name: next(iter(get_type_hints(function).values())) for name, function in functions.items()}


# What keeps a command from long work. It stands before what is altered, which wins.
QUICK = {
    "pretrain": "--scale tiny --epochs 1",
    "finetune": "--unit updates --budget 2 --evaluate-every 1 --batch-size 2",
    "lab": "--examples 2 --estimates 32 --reference-estimates 32 --rounds 1 --batches 0 --estimators rloo-2,sc",
    "data karel": "--scale tiny --train 2 --val 1 --test 1 --longest 9",
}
# Command lines that work.
USUAL = {
    "demo": ["--out new"],
    "pretrain karel": ["--out new --data karel --config config.toml"],
    "pretrain captions": ["--out new --data captions --config captions.toml"],
    "finetune": ["karel-run --out new", "captions-run --out new --estimator arsm"],
    "evaluate": ["karel-run --beam 2", "captions-run --beam 0 --json"],
    "compare": ["karel-run tuned-run", "report", "karel-run --out new --labels a"],
    "generate": ["karel-run --count 1", "captions-run --index 0 --sample 2", "karel-run --json"],
    "export": ["captions-run --out new", "karel-run --out new"],
    "inspect": ["karel-run", "captions-run --html new", "karel-run --json --estimator rloo-2"],
    "lab": ["karel-run", "captions-run --out new"],
    "data check": ["karel", "captions", "karel/train.jsonl --skip-bad"],
    "data karel": ["--out new"],
    "data captions": [
        "--out new --generate --train-images 2 --val-images 1 --test-images 1",
        "--out new --captions refs.json --features features.npy --names names.txt",
    ],
    "data features": ["--images . --out new.npy"],
    "data neighbours": ["captions -k 2"],
    "score": ["--refs refs.json --hyps hyps.json --no-meteor", "--refs refs.json --write-df new"],
    "tree build": ["--data captions --out new --from huffman"],
    "tree show": ["tree.safetensors", "tree.safetensors --data captions --around a"],
    "karel run": ["@program --world world.json"],
    "reproduce": ["--out new", "--out new --report-only --scale tiny"],
}


def make_case(seed: int, number: int) -> tuple[str, list[str]]:
    """A command, and its altered arguments."""
    draw = random.Random(f"{seed}-{number}")
    name = draw.choice(list(commands()))
    options = options_of(commands()[name])
    first = name.split()[0]
    words = draw.choice(USUAL.get(name) or USUAL[first]).split()
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        _alter(words, options, draw)
    return name, [*name.split(), *(QUICK.get(name) or QUICK.get(first, "")).split(), *words]


def _alter(words: list[str], options: list[Option], draw: random.Random) -> None:
    position = draw.randrange(len(words) + 1)
    what = draw.random()
    if what < 0.6:
        option = draw.choice(options)
        value = _value(option, draw)
        if option.positional:
            words[position:position] = [value]
        elif option.type is bool:
            words.append(_flag(option))
        else:
            words += [f"{_flag(option)}={value}"] if draw.random() < 0.3 else [_flag(option), value]
    elif what < 0.7 and words:
        del words[position - 1]
    elif what < 0.8 and words:
        index = max(0, position - 1)
        is_number = index > 0 and words[index - 1].lstrip("-").replace("-", "_") in WORK
        words[index] = draw.choice(["", "x", "-1", "nan", "0"]) if is_number else _strange(draw)
    elif what < 0.85 and words:
        words.insert(position, words[draw.randrange(len(words))])
    elif what < 0.9:
        words.insert(
            position, draw.choice([f"--{_strange(draw)}", "--unknown", "--unknown=1", "-x", "--no-json", "--j"])
        )
    elif what < 0.95:
        words.insert(position, _strange(draw))
    else:
        words[:] = words[:position]


def _flag(option: Option) -> str:
    return option.flags[0] if option.flags else f"--{option.name.replace('_', '-')}"


def _strange(draw: random.Random) -> str:
    return draw.choice(STRANGE)


def _value(option: Option, draw: random.Random) -> str:
    if option.name in WORK and option.type in (int, float):
        return draw.choice(["0", "1", "2", "3", "", "x", "-1", "nan", "-inf", "1.5", "9" * 5000, "none", "犬"])
    if option.type is object or draw.random() < 0.35:
        strange = _strange(draw)
        return strange if option.name not in ("out", "html", "write_df") or _stays_inside(strange) else "new"
    if option.choices is not None:
        return str(draw.choice(option.choices))
    if option.name in ("out", "html", "write_df"):
        return draw.choice(NEW_PLACES)
    if "estimator" in option.name or option.name in ("reference", "probes"):
        return draw.choice(ESTIMATORS)
    if option.name == "program":
        return draw.choice(PROGRAMS)
    if option.type in (int, float):
        return draw.choice(
            ["0", "1", "2", "3", "0.5", "1e-9", "64", "100000", "-5", str(2**31), str(2**63 - 1), "1e300"]
        )
    return draw.choice(PLACES)


def _stays_inside(path: str) -> bool:
    return not path.startswith(("/", "..", "~"))


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


def refuse_experiments() -> None:
    """In this process, ``demo`` and ``reproduce`` end where their work would begin, which takes minutes or hours."""

    def refuse(*_: object) -> None:
        raise InputError("experiments are not run here")

    for module, name in ((demo, "run_demo"), (registry, "run_resumable"), (cold_start, "run_resumable")):
        setattr(module, name, refuse)


class TimeLimit(BaseException):
    """A case took too long. Not an ``Exception``, so that nothing handles it."""


def run_case(arguments: list[str]) -> str:
    """Run a command line in this process; what was wrong with how it ended, or nothing."""
    buffers = [io.BytesIO() for _ in range(2)]
    streams = [io.TextIOWrapper(buffer, "utf-8") for buffer in buffers]
    kept = sys.argv, sys.path[:], sys.stdout, sys.stderr
    sys.argv, sys.stdout, sys.stderr = ["corollout", *arguments], *streams
    problem, code = "", 0
    try:
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
    if not problem and code not in EXIT_CODES:
        problem = f"exit code {code!r}"
    if not problem and code == 1 and not errors:
        problem = "no message"
    return problem


def work(connection: Connection, source: str, where: str) -> None:
    """A worker: runs cases, each in a fresh copy of the folder, until it gets none."""
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

    def run(self, arguments: list[str]) -> str:
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
    """An outcome for each command line."""
    offline = {"HF_HUB_OFFLINE": "1", "COLUMNS": "120", "OMP_NUM_THREADS": "1", "TORCH_HOME": "/nonexistent"}
    kept = {name: os.environ.get(name) for name in offline}
    os.environ.update(offline)
    with tempfile.TemporaryDirectory(prefix="command-lines-") as folder:
        source = Path(folder, "source")
        source.mkdir()
        make_folder(source)
        worker = Worker(source, Path(folder))
        try:
            for number in range(cases):
                name, arguments = make_case(seed, number)
                problem = worker.run(arguments)
                shown = " ".join(word[:60].encode("unicode_escape").decode() for word in arguments)
                yield Outcome(name, 1, (f"{problem}: {shown}",) if problem else ())
        finally:
            worker.stop()
            for variable, value in kept.items():
                os.environ.pop(variable) if value is None else os.environ.update({variable: value})


SUITE = Suite("command_lines", "any command line ends by itself, in one sentence if it is refused", 5_000, run)
