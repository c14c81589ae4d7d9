"""A table of methods: a model by maximum likelihood, then fine-tuned from the same weights by every one of them.

Each part is a run directory of its own and is done once: whatever stops the experiment, it goes on where it was. Runs
are processes of one thread, some at a time; a second is a second of processor time, so that they do not disturb each
other's budgets.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corollout.config import from_table, to_table
from corollout.errors import CorolloutError, InputError, Interrupted
from corollout.tasks.registry import find_task
from corollout.tasks.task import Metric
from corollout.training import start as jobs
from corollout.training.checkpoints import replace_file
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings

MLE = "MLE"


@dataclass(frozen=True)
class Analysis:
    """What is measured of one method after another when the runs are done: see :mod:`corollout.sweeps.analysis`."""

    name: str
    file: str  # where the results are kept, in the folder of the experiment
    methods: Callable[["Sweep"], Sequence[str]]  # of which it is measured
    # Makes ready what all of them need. What it returns measures a method, and is to tell which part of it is done.
    begin: Callable[["Sweep"], Callable[[str, Callable[[float], None]], dict[str, Any]]]


@dataclass(frozen=True)
class Model:
    """What maximum likelihood makes, and methods start from."""

    name: str
    folder: str  # of its runs, beside the methods'
    # Makes its tree for a seed, as a file, which is then copied into the run; None for a softmax.
    tree: Callable[["Sweep", int, Path], None] | None = None
    after: str | None = None  # the model without which its tree cannot be made
    possible: Callable[[Any], bool] = lambda data: True  # whether the settings of the data allow it


@dataclass(frozen=True)
class Experiment:
    """A table: its task, its methods with their estimators, and how its data come to be."""

    name: str  # of the command, and of the section in the files of scales
    task: str
    title: str
    methods: Mapping[str, str]
    data: type  # settings of the data
    folder: Callable[[Any, Path], Path]  # where the data are, given their settings and the place for made ones
    # Makes the data, if they are not there; told how many of how many parts are done.
    make_data: Callable[[Path, Any, Callable[[int, int], None]], None]
    analyses: tuple[Analysis, ...]
    models: tuple[Model, ...] = (Model(MLE, "mle"),)
    starts: Mapping[str, str] = field(default_factory=dict)  # from which model a method starts, if not from the first

    @property
    def metric(self) -> Metric:
        return find_task(self.task).metric

    def start(self, method: str) -> str:
        """The model from which a method starts."""
        return self.starts.get(method, self.models[0].name)


@dataclass(frozen=True)
class Sweep:
    """What is done, at which scale."""

    experiment: Experiment
    scale: str
    out: Path
    data: Any
    model: Any
    pretrain: PretrainSettings
    finetune: FinetuneSettings
    rates: tuple[float, ...]  # the learning rates that each method may choose from
    seeds: tuple[int, ...]
    models: tuple[str, ...]
    methods: tuple[str, ...]
    beam: int
    probes: int  # gradient estimates for each method's variance at the start

    @classmethod
    def of_scale(
        cls,
        experiment: Experiment,
        name: str,
        out: Path,
        seeds: tuple[int, ...] | None,
        methods: tuple[str, ...] | None,
        data: Mapping[str, Any] | None = None,
    ) -> "Sweep":
        table = find_task(experiment.task).scale(name)
        own = dict(table[experiment.name])
        own["seeds"] = list(seeds) if seeds else own["seeds"]
        settings = {**table.get("data", {}), **(data or {})}
        chosen = list(methods or own.get("methods", experiment.methods))
        own["models"], own["methods"] = _possible(experiment, chosen, from_table(experiment.data, settings, name))
        return cls.from_table(experiment, name, out, {**table, "data": settings, experiment.name: own})

    @classmethod
    def from_table(cls, experiment: Experiment, name: str, out: Path, table: Mapping[str, Any]) -> "Sweep":
        """The sweep that :meth:`table` described."""
        own = table[experiment.name]
        for method in own["methods"]:
            if method not in experiment.methods:
                raise InputError(
                    f"no method of {experiment.name} is called {method!r}: there are {', '.join(experiment.methods)}"
                )
        where = f"scale {name}"
        return cls(
            experiment,
            name,
            out,
            from_table(experiment.data, table["data"], where),
            from_table(find_task(experiment.task).model, table["model"], where),
            from_table(PretrainSettings, table["pretrain"], where),
            from_table(FinetuneSettings, table["finetune"], where),
            tuple(own["rates"]),
            tuple(own["seeds"]),
            tuple(own.get("models", [MLE])),
            tuple(own["methods"]),
            own["beam"],
            own["probes"],
        )

    @property
    def folder(self) -> Path:
        return self.experiment.folder(self.data, self.out / "data")

    def estimator(self, method: str) -> str:
        return self.experiment.methods[method]

    def start(self, method: str) -> str:
        """The model from which a method starts."""
        return self.experiment.start(method)

    def mle(self, seed: int, model: str = MLE) -> Path:
        """Where a model is made."""
        folder = next(known.folder for known in self.experiment.models if known.name == model)
        return self.out / f"seed-{seed}" / folder

    @property
    def runs(self) -> int:
        """How many there are in all."""
        seeds = len(self.seeds)
        return seeds * (len(self.models) + len(self.methods)) + (len(self.rates) - 1) * len(self.methods)

    def run(self, seed: int, method: str, rate: float) -> Path:
        prefix = "" if self.start(method) == MLE else f"{self.start(method)}-".lower().replace("_", "-")
        return self.out / f"seed-{seed}" / f"{prefix}{re.sub('[:=,]', '-', self.estimator(method))}-{rate:g}"

    def table(self) -> dict[str, Any]:
        """The settings, for the record."""
        parts = {part: to_table(getattr(self, part)) for part in ("data", "model", "pretrain", "finetune")}
        own = {"rates": list(self.rates), "beam": self.beam, "probes": self.probes}
        lists = {name: list(getattr(self, name)) for name in ("seeds", "models", "methods")}
        return {**parts, self.experiment.name: {**own, **lists}}


def _possible(experiment: Experiment, methods: list[str], data: Any) -> tuple[list[str], list[str]]:
    """Which models the methods need, or all if these are all methods; those that the data do not allow are left out."""
    models = {model.name: model for model in experiment.models}
    wanted = {experiment.start(method) for method in methods}
    if set(methods) >= set(experiment.methods):
        wanted |= set(models)
    wanted |= {after for name in wanted if (after := models[name].after) is not None}
    found = [name for name in models if name in wanted and models[name].possible(data)]
    return found, [method for method in methods if experiment.start(method) in found]


@dataclass(frozen=True)
class Job:
    """A run to be done: where, and how its directory is made."""

    name: str
    directory: Path
    create: Callable[[], None]
    unit: str
    total: float
    after: Path | None = None  # the run that must be done before

    @property
    def done(self) -> bool:
        return (self.directory / RESULT).exists()

    @property
    def ready(self) -> bool:
        return self.after is None or (self.after / RESULT).exists()


RESULT = "result.json"


def pretrain_jobs(sweep: Sweep, machine: MachineSettings) -> list[Job]:
    def job(model: Model, seed: int) -> Job:
        settings = replace(sweep.pretrain, seed=seed)
        directory = sweep.mle(seed, model.name)

        def create() -> None:
            tree = None
            if model.tree is not None:
                tree = directory.with_name(f"{model.folder}.tree")
                model.tree(sweep, seed, tree)
            jobs.new_pretraining(
                directory, sweep.experiment.task, sweep.folder, sweep.model, settings, machine, sweep.scale, tree
            )

        after = None if model.after is None else sweep.mle(seed, model.after)
        return Job(f"{model.name}, seed {seed}", directory, create, "epochs", settings.epochs, after)

    models = [model for model in sweep.experiment.models if model.name in sweep.models]
    return [job(model, seed) for model in models for seed in sweep.seeds]


def rate_jobs(sweep: Sweep, machine: MachineSettings) -> list[Job]:
    """Every method with every learning rate, for the first seed."""
    return [_finetune_job(sweep, sweep.seeds[0], m, rate, machine) for m in sweep.methods for rate in sweep.rates]


def seed_jobs(sweep: Sweep, machine: MachineSettings) -> list[Job]:
    """Every method with the learning rate that suited it, for the other seeds."""
    rates = chosen_rates(sweep)
    return [_finetune_job(sweep, seed, m, rates[m], machine) for seed in sweep.seeds[1:] for m in sweep.methods]


def _finetune_job(sweep: Sweep, seed: int, method: str, rate: float, machine: MachineSettings) -> Job:
    settings = replace(sweep.finetune, seed=seed, learning_rate=rate, estimator=sweep.estimator(method))
    directory = sweep.run(seed, method, rate)

    start = sweep.mle(seed, sweep.start(method))

    def create() -> None:
        jobs.new_finetuning(directory, start, settings, machine)

    name = f"{method}, seed {seed}, rate {rate:g}"
    return Job(name, directory, create, settings.unit, settings.budget, after=start)


def rate_scores(sweep: Sweep, method: str) -> dict[float, float | None]:
    """A method's score on the validation data with each learning rate, for the first seed; None if it is not done."""
    runs = {rate: sweep.run(sweep.seeds[0], method, rate) for rate in sweep.rates}
    key = sweep.experiment.metric.key
    return {rate: result_of(run)["val"][key] if (run / RESULT).exists() else None for rate, run in runs.items()}


def chosen_rates(sweep: Sweep) -> dict[str, float]:
    """For each method the learning rate whose best weights score best on the validation data, with the first seed."""
    scores = {method: rate_scores(sweep, method) for method in sweep.methods}
    if missing := [method for method, own in scores.items() if None in own.values()]:
        raise InputError(f"{sweep.out}: {missing[0]} has not been done with every learning rate yet")
    return {method: max(own, key=lambda rate: own[rate] or 0.0) for method, own in scores.items()}


def result_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / RESULT).read_text("utf-8"))


def work(directory: Path, beam: int) -> None:
    """Do a run to its end, then evaluate its best weights."""
    jobs.resume(directory)
    if (directory / RESULT).exists():
        return
    result = {}
    for split in ("val", "test"):
        task, evaluation = jobs.evaluate_run(directory, split, beam if split == "test" else 0)
        scores = evaluation.scores.tolist()
        each: dict[str, Any] = (
            {"solved": "".join("1" if hit else "0" for hit in scores)}
            if task.metric.shares
            else {"scores": [round(score, 6) for score in scores]}
        )
        result[split] = {**evaluation.numbers(), "count": len(scores), **each}
    replace_file(directory / RESULT, (json.dumps(result, indent=2) + "\n").encode())


def run_jobs(
    jobs: list[Job], jobs_at_once: int, beam: int, on_progress: Callable[[Job, float, dict[str, Any]], None]
) -> None:
    """Do all jobs, some at a time, each in a process of its own; ``on_progress`` hears how far each one is."""
    # Asked to end by another process, we end as after Ctrl-C: with the runs, which are processes of their own, saved.
    with suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    waiting = [job for job in jobs if not job.done]
    running: dict[subprocess.Popen[str], Job] = {}
    for job in jobs:
        if job.done:
            on_progress(job, job.total, {})
    try:
        while waiting or running:
            while len(running) < jobs_at_once and (ready := [job for job in waiting if job.ready]):
                job = ready[0]
                waiting.remove(job)
                if not (job.directory / "config.toml").exists():
                    job.create()
                running[_start(job, beam)] = job
            time.sleep(0.5)
            for process, job in list(running.items()):
                for progress, record in _newest(job):
                    on_progress(job, progress, record)
                if process.poll() is None:
                    continue
                del running[process]
                if process.returncode:
                    message = process.stderr.read().strip() if process.stderr else ""
                    raise CorolloutError(f"{job.name} failed in {job.directory}: {message or process.returncode}")
                on_progress(job, job.total, {})
    except KeyboardInterrupt as error:
        raise Interrupted("stopped; every run is saved, and the same command goes on from there") from error
    finally:
        for process in running:
            process.send_signal(signal.SIGINT)  # it saves first
        for process in running:
            process.wait()


def _start(job: Job, beam: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "corollout.sweeps.worker", str(job.directory), str(beam)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def _newest(job: Job) -> Iterator[tuple[float, dict[str, Any]]]:
    """How far a run is, by the last line that it wrote, with the last evaluation that is not far above it."""
    path = job.directory / "metrics.jsonl"
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65536))
        lines = file.read().split(b"\n")[:-1]
    evaluations = [line for line in lines if b'"evaluation"' in line]
    try:
        looked = [json.loads(line) for line in evaluations[-1:]]
        record = json.loads(lines[-1])
    except (ValueError, LookupError):  # the first line of what was read may be cut
        return
    key = {"updates": "update", "epochs": "epoch"}.get(job.unit, job.unit)
    if key in record:
        yield float(record[key]), {**(looked[0] if looked else {}), **record}
