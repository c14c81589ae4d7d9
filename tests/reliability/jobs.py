"""Commands that write, made so small that they take a second, and what their results are compared by.

All cases of a process use one folder, of which every case gets a fresh one: results may contain its path.
"""

import atexit
import hashlib
import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np

from corollout.config import read_toml, write_toml
from corollout.experiments.cold_start import METHODS, SCALES, Runs, first_name, run_name
from corollout.experiments.table1 import TABLE1
from corollout.sweeps.sweep import PLAN, open_sweep
from corollout.tasks.karel.generator import generate
from corollout.training.card import CARD, is_card
from corollout.training.metrics import TIMED
from tests.reliability.launcher import Launcher, Started
from tests.reliability.suite import Finished
from tests.support.caption_files import coco, karpathy, numbers
from tests.support.commands import short_training
from tests.support.image_files import make_images

KAREL = "--shortest 5 --longest 7 --largest 4"
SIZES = "--largest-world 4 --channels 2 --blocks 0 --pair-width 8 --embedding 4 --hidden 8 --max-length 9"
PRETRAIN = f"pretrain karel --data data {SIZES} --epochs 5 --batch-size 3 --out"
LARGER = SIZES.replace("8", "32")
MLE = f"pretrain karel --data data {LARGER} --learning-rate 0.02 --epochs 80 --evaluate-every 40 --out"
FINETUNE = "finetune mle --estimator rloo-4 --unit updates --budget 6 --evaluate-every 2 --batch-size 4 --out"
SCENES = "data captions --generate --train-images 12 --val-images 3 --test-images 3 --more-than 0 --out"
CAPTIONS = "data captions --captions karpathy.json --features x.npy --out"
CAPTIONER = "pretrain captions --data scenes --embedding 8 --hidden 8 --epochs 2 --batch-size 20 --out"
LAB = "lab mle --examples 2 --estimates 8 --reference rloo-4 --reference-estimates 8 --rounds 1 --estimators"
FEATURES = "-m tests.reliability.programs features"

# Values that differ from call to call, by their keys in JSON; digests and sizes of what contains such values.
VARIABLE = {*TIMED, "cpu_seconds", "date", "command", "commit", "machine", "versions", "digest", "metrics"}
IS_DONE = re.compile("is not empty|nothing is overwritten")  # refusals to do again what exists
RUN_FILES = re.compile(r"(.*/)?(lock|events)(/.*)?")
REPORTS = ("report.html", "report.json", "table.md", "manifest.json", "page.html")


@dataclass(frozen=True)
class Job:
    """A command that writes, with relative paths; ``resume`` continues it where the command itself is refused.

    ``rival`` is a command that wants to write the same with other settings. Then one of both is refused, unless the
    output is one that a later command may replace, or the command only adds to it.
    """

    name: str
    needs: Sequence[str]
    command: str
    resume: str = ""
    rival: str = ""
    replaces: bool = False
    adds: bool = False
    weight: int = 1  # among the cases of a suite
    has_workers: bool = False  # processes of its own, which take seconds to start

    def next_command(self, folder: Path) -> list[str]:
        """What continues the work in a folder."""
        resumes = self.resume and (folder / "out" / "config.toml").exists()
        return (self.resume if resumes else self.command).split()


JOBS = {
    job.name: job
    for job in (
        Job("pretrain", ["data"], f"{PRETRAIN} out", "pretrain karel --resume --out out", f"{PRETRAIN} out --seed 1",
            weight=4),
        Job("finetune", ["data", "mle"], f"{FINETUNE} out", "finetune --resume --out out",
            f"{FINETUNE} out --seed 3 --learning-rate 0.5", weight=4),
        Job("data karel", [], f"data karel --train 6 --val 3 --test 3 {KAREL} --out out",
            rival=f"data karel --train 6 --val 3 --test 3 {KAREL} --seed 1 --out out", weight=2),
        Job("data captions --generate", [], f"{SCENES} out", rival=f"{SCENES} out --seed 1", weight=2),
        Job("data captions", ["captions"], f"{CAPTIONS} out --more-than 0", rival=f"{CAPTIONS} out --more-than 1"),
        Job("data features", ["images"], f"{FEATURES} images out/x.npy", rival=f"{FEATURES} others out/x.npy"),
        Job("lab", ["data", "mle"], f"{LAB} rloo-2,sc --out out", rival=f"{LAB} rloo-3,set-2 --out out", adds=True,
            weight=2),
        Job("evaluate", ["data", "mle"], "evaluate mle --beam 2", rival="evaluate mle --beam 3", replaces=True),
        Job("compare", ["data", "mle", "tuned"], "compare mle tuned --out out", rival="compare tuned --out out",
            replaces=True),
        Job("inspect --html", ["data", "mle"], "inspect mle --estimator rloo-2 --html page.html",
            rival="inspect mle --estimator rloo-3 --html page.html", replaces=True),
        Job("export", ["scenes", "captioner"], "export captioner --out out",
            rival="export captioner --weights last --out out", replaces=True),
        Job("tree build", ["scenes"], "tree build --data scenes --from huffman --out out/tree.safetensors",
            rival="tree build --data scenes --from balanced --out out/tree.safetensors", replaces=True),
        Job("score --write-df", ["captions"], "score --refs refs.json --write-df df.json",
            rival="score --refs others.json --write-df df.json", replaces=True),
        Job("reproduce table1", ["plan"], "reproduce table1 --jobs 2 --out out", has_workers=True),
        Job("reproduce coldstart", ["results"], "reproduce coldstart --jobs 2 --out out", has_workers=True),
    )
}  # fmt: skip


def deal(chance: random.Random, every_heavy: int, names: Sequence[str] = tuple(JOBS)) -> Iterator[Job]:
    """Jobs without end, in random order by their weights; one of so many has workers."""
    jobs = [JOBS[name] for name in names]
    decks: dict[bool, list[Job]] = {True: [], False: []}
    for number in count(1):
        deck = decks[has_workers := number % every_heavy == 0]
        if not deck:
            deck += [job for job in jobs if job.has_workers == has_workers for _ in range(job.weight)]
            chance.shuffle(deck)
        yield deck.pop()


def _tasks(folder: Path) -> None:
    """So few tasks that they can be learned by heart; what is evaluated is just that, so there are rewards."""
    tasks = generate({"train": 6}, shortest=5, longest=7, largest=4, workers=1)["train"]
    for split in ("train", "val", "test"):
        tasks.write(folder / "data" / f"{split}.jsonl")


def _caption_files(folder: Path) -> None:
    names = karpathy(folder / "karpathy.json", {"train": 6, "val": 2, "test": 2})
    np.save(folder / "x.npy", numbers(len(names), 6, np.float16))
    (folder / "x_names.txt").write_text("".join(f"{name}\n" for name in names))
    coco(folder / "refs.json", range(6))
    coco(folder / "others.json", range(3, 9))


def _images(folder: Path) -> None:
    make_images(folder / "images", 7)
    make_images(folder / "others", 5)


def _plan(folder: Path) -> None:
    """A sweep of one method and one seed that has not begun."""
    out = folder / "out"
    open_sweep(TABLE1.spec, out, "tiny", seeds=[0], methods=["RLOO"])
    plan = read_toml(out / PLAN)
    plan["data"] |= {"train": 12, "val": 4, "test": 4, "longest": 7, "largest": 4}
    plan["model"] |= {"largest_world": 4, "channels": 2, "pair_width": 4, "embedding": 4, "hidden": 4, "max_length": 6}
    write_toml(out / PLAN, short_training(plan, "table1", updates=4, batch_size=2))


def _results(folder: Path) -> None:
    """A cold start of which all but one run is done."""
    scale = SCALES["tiny"]
    runs = Runs(scale)
    curve = {"seconds": [0.0, 0.05], "tokens": [0, 100], "updates": [0, 9], "reward": [0.5, 0.6]}
    for method in METHODS:
        runs.done[first_name(50, method)] = {"seconds": 0.01, "tokens": 64, "rollouts": 1.0}
        for rate, seed in product(scale.rates, scale.seeds):
            if (method, seed) != ("RLOO", 1):
                runs.done[run_name(50, method, rate, seed)] = {"curve": curve, "rollouts": [1.0, 1.0], "stopped": ""}
    (folder / "out").mkdir()
    runs.write(folder / "out")


# What commands need, each a command that makes it or a function of the folder, and what that needs itself.
INPUTS: dict[str, tuple[Sequence[str], str | Callable[[Path], None]]] = {
    "data": ([], _tasks),
    "mle": (["data"], f"{MLE} mle"),
    "tuned": (["data", "mle"], f"{FINETUNE} tuned"),
    "scenes": ([], f"{SCENES} scenes"),
    "captioner": (["scenes"], f"{CAPTIONER} captioner"),
    "captions": ([], _caption_files),
    "images": ([], _images),
    "plan": ([], _plan),
    "results": ([], _results),
}

SLOW = 3.0  # seconds of a command that had to compile functions; it is timed once more
Snapshot = dict[str, str]


@dataclass(frozen=True)
class Reference:
    """What an undisturbed command makes, and how long it takes, in seconds and in changes of files."""

    snapshot: Snapshot
    seconds: float
    changes: int


class Bench:
    """A folder in which commands work, and a launcher to start them."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")  # where it takes no time to sync a file
        self._root = Path(tempfile.mkdtemp(prefix="corollout-reliability-", dir=memory if memory.is_dir() else None))
        self.folder = self._root / "case"
        self.folder.mkdir()
        self.launcher = Launcher()
        self._references: dict[str, Reference] = {}

    def close(self) -> None:
        self.launcher.__exit__()
        shutil.rmtree(self._root)

    def prepare(self, needs: Sequence[str]) -> None:
        """Empty the folder but for what a command needs."""
        for name in needs:
            if not (self._root / "inputs" / name).exists():
                self._make_input(name)
        self.clear()
        for name in needs:
            shutil.copytree(self._root / "inputs" / name, self.folder, dirs_exist_ok=True)

    def clear(self) -> None:
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def _make_input(self, name: str) -> None:
        needs, make = INPUTS[name]
        self.prepare(needs)
        before = set(self.folder.iterdir())
        if callable(make):
            make(self.folder)
        else:
            done = self.run(make)
            if done.code:
                raise RuntimeError(f"cannot make the input {name}: {done.errors}")
        made = self._root / "inputs" / name
        made.mkdir(parents=True)
        for entry in set(self.folder.iterdir()) - before:
            entry.rename(made / entry.name)

    def start(self, command: str | Sequence[str], **options: Any) -> Started:
        words = command.split() if isinstance(command, str) else command
        return self.launcher.start(words, self.folder, **options)

    def run(self, command: str | Sequence[str], **options: Any) -> Finished:
        return self.launcher.wait(self.start(command, **options))

    def reference(self, job: Job, command: str = "") -> Reference:
        """The result of a job, or of another command with the same inputs, that nothing disturbs."""
        command = command or job.command
        if command not in self._references:
            seconds = 0.0
            for _ in range(2):
                self.prepare(job.needs)
                process = self.start(command)
                done = self.launcher.wait(process)
                if done.code:
                    raise RuntimeError(f"{command} fails undisturbed: {done.errors}")
                seconds = time.monotonic() - process.began
                self._references[command] = Reference(self.snapshot(), seconds, process.changes)
                if seconds < SLOW or job.has_workers:
                    break
        return self._references[command]

    def snapshot(self) -> Snapshot:
        return snapshot(self.folder)

    def finish(self, job: Job) -> tuple[str, ...]:
        """Do again what was disturbed, as its messages say, to its end; return what is wrong then."""
        end = time.monotonic() + 20
        command = job.command
        while True:
            done = self.run(command)
            if problem := done.problem:
                return (f"{problem} (when it continues)",)
            if done.code == 0 or IS_DONE.search(done.errors):  # the comparison says whether it is complete
                break
            if job.resume and "--resume" in done.errors and command != job.resume:
                command = job.resume
            elif job.has_workers and "in use" in done.errors and time.monotonic() < end:
                time.sleep(0.5)  # a worker outlives the process that started it until it notices
            else:
                return (f"cannot continue: exit code {done.code}, {last_line(done.errors)}",)
        return differences(self.reference_of(job).snapshot, self.snapshot())

    def reference_of(self, job: Job) -> Reference:
        """What :meth:`reference` has made; unlike that, it leaves the folder alone."""
        return self._references[job.command]

    def inputs_of(self, job: Job) -> Snapshot:
        """The folder of a job that has not begun."""
        found: Snapshot = {}
        for name in job.needs:
            found |= snapshot(self._root / "inputs" / name)
        return found

    def stop_workers(self, grace: float = 5.0) -> int:
        """Kill workers that still use the folder after so many seconds; return how many there were."""
        end = time.monotonic() + grace
        while (workers := self._workers()) and time.monotonic() < end:
            time.sleep(0.1)
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        return len(workers)

    def _workers(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):  # it may have ended
                    is_worker = b"corollout.sweeps.worker" in (entry / "cmdline").read_bytes()
                    if is_worker and Path(os.readlink(entry / "cwd")) == self.folder.resolve():
                        found.append(int(entry.name))
        return found


@cache
def shared_bench() -> Bench:
    """The bench of this process: starting another one would take seconds."""
    bench = Bench()
    atexit.register(bench.close)
    return bench


def snapshot(folder: Path) -> Snapshot:
    """All files and empty folders, each with a digest of what must not differ from call to call."""
    found: Snapshot = {}
    for parent, folders, files in os.walk(folder):
        path = Path(parent)
        if path.name == "checkpoints":  # an interruption leaves other ones besides the newest
            complete = sorted(name for name in folders if re.fullmatch(r"step-\d+", name))
            folders[:] = [name for name in folders if name not in complete[:-1]]
        for name in files:
            relative = (path / name).relative_to(folder).as_posix()
            if not RUN_FILES.fullmatch(relative):
                with suppress(FileNotFoundError):  # a worker is still at it
                    found[relative] = describe(path / name)
        if not folders and not files and path != folder:
            found[path.relative_to(folder).as_posix() + "/"] = "empty"
    return found


def describe(path: Path) -> str:
    """A digest of a file, without what differs from call to call."""
    data = path.read_bytes()
    in_report = path.name in REPORTS or (path.parent / "report.json").exists()
    try:
        if path.name == "runs.json":
            return " ".join(sorted(json.loads(data)["done"]))
        if path.suffix == ".json":
            content = json.loads(data)
            return "complete" if in_report else _digest(json.dumps(_constant(content)).encode())
        if path.suffix == ".jsonl":
            lines = [json.dumps(_constant(json.loads(line))) for line in data.splitlines()]
            return _digest("\n".join([*lines, "" if data.endswith(b"\n") else "cut off"]).encode())
    except (ValueError, KeyError, TypeError) as error:
        return f"damaged: {error}"
    if path.name == CARD and is_card(path):
        return _digest(
            b"\n".join(line for line in data.splitlines() if b"second" not in line and b"digest" not in line)
        )
    ends = {".html": (b"</html>", b"</html>\n"), ".png": (b"IEND\xaeB`\x82",), ".md": (b"\n",)}
    if in_report and path.suffix in ends:
        return "complete" if data.endswith(ends[path.suffix]) else "cut off"
    return _digest(data)


def _constant(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _constant(entry) for name, entry in value.items() if name not in VARIABLE}
    return [_constant(entry) for entry in value] if isinstance(value, list) else value


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def differences(expected: Snapshot, got: Snapshot) -> tuple[str, ...]:
    """One line that says how a result differs from the expected one, or none."""
    changed = [name for name in sorted(expected.keys() & got.keys()) if expected[name] != got[name]]
    parts = {
        "left over": sorted(got.keys() - expected.keys()),
        "missing": sorted(expected.keys() - got.keys()),
        "different": [f"{name} ({got[name]})" for name in changed],
    }
    text = "; ".join(f"{what}: {_some(names)}" for what, names in parts.items() if names)
    return (text,) if text else ()


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "nothing said"
