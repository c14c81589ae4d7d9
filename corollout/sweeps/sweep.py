"""A sweep: models by maximum likelihood, then fine-tuned by every method × learning rate × seed.

Every part is a run directory of its own, and a sweep continues where it was stopped. Runs are processes of one thread,
some at a time; a second is a second of CPU time where the settings say so, so that runs do not disturb each other's
budgets. The first seed tries every learning rate; the other seeds use the one that was best for each method.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from corollout.config import from_table, option, read_toml, to_table, write_toml
from corollout.errors import InputError
from corollout.events import Callback, Event, Progress, ignore
from corollout.files import check_entries, read_json, write_json
from corollout.folders import FolderLock
from corollout.sweeps.jobs import Job, run_jobs
from corollout.sweeps.runs import RESULT
from corollout.tasks.task import DataFile, Metric, find_task, open_task
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings

MLE = "MLE"
PLAN, DATA_FILES = "plan.toml", "data.json"
DATA_WEIGHT, ANALYSIS_WEIGHT = 0.3, 0.1  # in the estimate of the time left, where a run counts 1


@dataclass(frozen=True)
class Analysis:
    """A measurement of each method when its runs are done, as a job: see :mod:`corollout.sweeps.analysis`."""

    name: str
    file: str  # where the results are kept, in the folder of the sweep
    work: str  # "module:function", which returns what was measured of a method
    methods: Callable[["Sweep"], Sequence[str]]
    arguments: Callable[["Sweep", str], dict[str, Any]]  # of the function, for a method


@dataclass(frozen=True)
class Model:
    """A model that maximum likelihood trains and methods start from."""

    name: str
    folder: str  # of its runs, beside those of the methods
    tree: str = ""  # "module:function" that writes its tree to a file; a softmax has none
    after: str | None = None  # the model that the tree is built from
    needs: str = ""  # the setting of the data without which it is left out


@dataclass(frozen=True)
class SweepSpec:
    """What an experiment sweeps over: a task, its data, models and methods, at several scales."""

    name: str  # of the command, and of the section in plan.toml
    task: str
    methods: Mapping[str, str]  # label → estimator
    scales: Mapping[str, Mapping[str, Any]]  # name of the scale → entries of Grid
    data: type  # settings of the data; ``folder`` is that of existing data
    make_data: Callable[[Path, Any, Callback], None]  # checks the data in a folder, or makes it
    analyses: Sequence[Analysis] = ()
    models: Sequence[Model] = (Model(MLE, "mle"),)
    starts: Mapping[str, str] = field(default_factory=dict)  # the model a method starts from, if not the first
    # Other estimators of some methods at a scale: scale → label → estimator.
    at_scale: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # The model of a scale made large enough for existing data, if sizes of the model depend on the data.
    fit_model: Callable[[Path, Any], Any] | None = None

    @property
    def metric(self) -> Metric:
        return find_task(self.task).metric

    def start(self, method: str) -> str:
        return self.starts.get(method, self.models[0].name)


@dataclass(frozen=True)
class Grid:
    """What is swept over."""

    rates: tuple[float, ...] = option((), "Learning rates that each method may choose from.")
    seeds: tuple[int, ...] = option((), "Seeds.")
    methods: tuple[str, ...] = option((), "Methods.")
    models: tuple[str, ...] = option((MLE,), "Models.")
    beam: int = option(0, "Width of the beam in the final evaluation on the test data; 0: greedy only.", least=0)
    probes: int = option(20, "Gradient estimates for each method's variance at the start.", least=3)


@dataclass(frozen=True)
class Sweep:
    """A sweep at one scale, in a folder."""

    spec: SweepSpec
    scale: str
    out: Path
    data: Any
    model: Any
    pretrain: PretrainSettings
    finetune: FinetuneSettings
    grid: Grid
    machine: MachineSettings

    @classmethod
    def of_scale(cls, spec: SweepSpec, scale: str, out: Path, **changes: Any) -> "Sweep":
        """The sweep of a scale; ``changes`` are settings of the data, the machine or the grid that replace its own."""

        def changed(kind: type) -> dict[str, Any]:
            return {one.name: changes.pop(one.name) for one in fields(kind) if one.name in changes}

        table = find_task(spec.task).scale(scale)
        data = from_table(spec.data, {**table.get("data", {}), **changed(spec.data)}, f"scale {scale}")
        machine = changed(MachineSettings)
        methods = changes.get("methods", spec.methods)
        models = _models(spec, list(methods), data)
        known = [method for method in methods if method not in spec.methods or spec.start(method) in models]
        grid = {**spec.scales[scale], **changes, "models": models, "methods": known}
        sections = {"scale": scale, "data": to_table(data), spec.name: grid, "machine": machine}
        if data.folder and spec.fit_model is not None:
            model = from_table(find_task(spec.task).model, table.get("model", {}), f"scale {scale}")
            sections["model"] = to_table(spec.fit_model(Path(data.folder), model))
        return cls.from_table(spec, out, {**table, **sections})

    @classmethod
    def from_table(cls, spec: SweepSpec, out: Path, table: Mapping[str, Any]) -> "Sweep":
        """The sweep that :meth:`table` described."""
        where = str(out / PLAN)
        for section in ("scale", spec.name):
            if section not in table:
                raise InputError(f"{where} is not a sweep of {spec.name}: it has no {section}")
        kinds = {"data": spec.data, "model": find_task(spec.task).model, "pretrain": PretrainSettings}
        kinds |= {"finetune": FinetuneSettings, spec.name: Grid, "machine": MachineSettings}
        parts = {name: from_table(kind, table.get(name, {}), where) for name, kind in kinds.items()}
        grid = parts.pop(spec.name)
        for method in grid.methods:
            if method not in spec.methods:
                raise InputError(f"{spec.name} has no method {method!r}: choose from {', '.join(spec.methods)}")
        for name, values in (("rates", grid.rates), ("seeds", grid.seeds), ("methods", grid.methods)):
            if len(set(values)) < max(1, len(values)):
                raise InputError(f"{name} must be one or more different values, not {list(values)}")
        return cls(spec, table["scale"], out, grid=grid, **parts)

    def table(self) -> dict[str, Any]:
        """The settings, as plan.toml has them."""
        parts = {part: to_table(getattr(self, part)) for part in ("data", "model", "pretrain", "finetune", "machine")}
        return {"scale": self.scale, **parts, self.spec.name: to_table(self.grid)}

    def estimator(self, method: str) -> str:
        """The name of a method's estimator."""
        return self.spec.at_scale.get(self.scale, {}).get(method, self.spec.methods[method])

    @property
    def folder(self) -> Path:
        """Where the data is."""
        return Path(self.data.folder) if self.data.folder else self.out / "data"

    def mle(self, seed: int, model: str = MLE) -> Path:
        """The run of a model."""
        folder = next(known.folder for known in self.spec.models if known.name == model)
        return self.out / f"seed-{seed}" / folder

    def run(self, seed: int, method: str, rate: float) -> Path:
        """The run of a method."""
        start = self.spec.start(method)
        prefix = "" if start == MLE else f"{start}-".lower().replace("_", "-")
        return self.out / f"seed-{seed}" / f"{prefix}{re.sub('[:=,]', '-', self.estimator(method))}-{rate:g}"

    @property
    def runs(self) -> int:
        """The number of runs."""
        grid = self.grid
        return len(grid.seeds) * (len(grid.models) + len(grid.methods)) + (len(grid.rates) - 1) * len(grid.methods)

    @property
    def weight(self) -> float:
        """Of all parts, in the estimate of the time left."""
        measured = sum(len(analysis.methods(self)) for analysis in self.spec.analyses)
        return DATA_WEIGHT + self.runs + ANALYSIS_WEIGHT * measured


def _models(spec: SweepSpec, methods: list[str], data: Any) -> list[str]:
    """The models that the methods need, or all for all methods; those that the data does not allow are left out."""
    models = {model.name: model for model in spec.models}
    wanted = {spec.start(method) for method in methods if method in spec.methods}
    if set(methods) >= set(spec.methods):
        wanted |= set(models)
    wanted |= {after for name in wanted if (after := models[name].after) is not None}
    return [one.name for one in spec.models if one.name in wanted and (not one.needs or getattr(data, one.needs))]


def open_sweep(spec: SweepSpec, out: Path, scale: str | None = None, **changes: Any) -> Sweep:
    """The sweep of a folder, with which the given settings must agree; a new folder gets one of these settings."""
    path = out / PLAN
    if not path.exists():
        sweep = Sweep.of_scale(spec, scale or "small", out, **changes)
        with FolderLock(out) as lock:
            lock.require_empty()
            write_toml(path, sweep.table())
        return sweep
    sweep = Sweep.from_table(spec, out, read_toml(path))
    stored = sweep.table()
    known = {"scale": sweep.scale, **stored[spec.name], **stored["data"], **stored["machine"]}
    given = changes if scale is None else {"scale": scale, **changes}

    def shown(value: Any) -> str:
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)

    if differing := [name for name, value in given.items() if value != known[name]]:
        differences = ", ".join(f"{name} {shown(known[name])} instead of {shown(given[name])}" for name in differing)
        raise InputError(
            f"{out} was started with {differences}: leave these settings out to continue, or choose another folder "
            f"with --out"
        )
    return sweep


def run_sweep(sweep: Sweep, workers: int, on_event: Callback = ignore) -> None:
    """Run everything that is missing: data, runs in two stages, analyses."""
    with FolderLock(sweep.out):
        _run_missing(sweep, workers, on_event)


def _run_missing(sweep: Sweep, workers: int, on_event: Callback) -> None:
    _make_data(sweep, on_event)
    grid, models = sweep.grid, [model for model in sweep.spec.models if model.name in sweep.grid.models]
    jobs = [_pretrain_job(sweep, model, seed) for model in models for seed in grid.seeds]
    # Every learning rate for the first seed, which does not wait for the other seeds' pre-training.
    jobs += [_finetune_job(sweep, grid.seeds[0], method, rate) for method in grid.methods for rate in grid.rates]
    run_jobs(jobs, workers, on_event)
    rates = best_rates(sweep)
    jobs = [_finetune_job(sweep, seed, method, rates[method]) for seed in grid.seeds[1:] for method in grid.methods]
    run_jobs(jobs, workers, on_event)
    for analysis in sweep.spec.analyses:
        run_analysis(sweep, analysis, workers, on_event)


def _make_data(sweep: Sweep, on_event: Callback) -> None:
    share = 0.0

    def relay(event: Event) -> None:
        nonlocal share
        if event.kind != "progress":
            on_event(event)
        elif event.record.get("total"):
            # It may have several parts, of which each starts at zero.
            share = max(share, min(event.record["done"] / event.record["total"], 0.999))
            data.report(share, note=event.record.get("note", ""), weight=DATA_WEIGHT)

    data = Progress(on_event, "data", 1.0)
    sweep.spec.make_data(sweep.folder, sweep.data, relay)
    if not (sweep.out / DATA_FILES).exists():
        task = open_task({**sweep.table(), "task": sweep.spec.task, "data": {"folder": str(sweep.folder)}})
        write_json(sweep.out / DATA_FILES, [asdict(one) for one in task.data_files()])
    data.report(1.0, weight=DATA_WEIGHT)


def read_data_files(sweep: Sweep) -> list[DataFile]:
    """The files of the data as they were when the sweep began; none if that was not recorded."""
    path, advice = sweep.out / DATA_FILES, "remove the file to have it written again"
    entries = read_json(path, advice) if path.exists() else []
    kinds: dict[str, Any] = {"split": str, "file": str, "examples": int, "digest": str}
    if not isinstance(entries, list):
        raise InputError(f"{path} is not a list of files: {advice}")
    return [DataFile(**{name: check_entries(e, path, advice, **kinds)[name] for name in kinds}) for e in entries]


def _pretrain_job(sweep: Sweep, model: Model, seed: int) -> Job:
    described: dict[str, Any] = {"task": sweep.spec.task, "scale": sweep.scale, "data": str(sweep.folder)}
    described["network"] = to_table(sweep.model)
    if model.tree:
        built = {"build": model.tree, "softmax": str(sweep.mle(seed)), "seed": seed}
        described["tree"] = {**built, "settings": to_table(sweep.data)}
    after = () if model.after is None else (f"{model.after}, seed {seed}",)
    name, directory = f"{model.name}, seed {seed}", sweep.mle(seed, model.name)
    return _job(sweep, "pretrain", name, directory, replace(sweep.pretrain, seed=seed), after, model=described)


def _finetune_job(sweep: Sweep, seed: int, method: str, rate: float) -> Job:
    settings = replace(sweep.finetune, seed=seed, learning_rate=rate, estimator=sweep.estimator(method))
    name, start = f"{method}, seed {seed}, rate {rate:g}", sweep.spec.start(method)
    directory, after = sweep.run(seed, method, rate), (f"{start}, seed {seed}",)
    return _job(sweep, "finetune", name, directory, settings, after, start=str(sweep.mle(seed, start)))


def _job(sweep: Sweep, work: str, name: str, directory: Path, settings: Any, after: Sequence[str], **more: Any) -> Job:
    arguments = {"directory": str(directory), "settings": to_table(settings), **more}
    arguments |= {"machine": to_table(sweep.machine), "beam": sweep.grid.beam}
    return Job(name, f"corollout.sweeps.runs:{work}_and_evaluate", arguments, after, is_done(directory))


def rate_scores(sweep: Sweep, method: str) -> dict[float, float | None]:
    """A method's validation score with each learning rate, for the first seed; None for a run that is not done."""
    runs = {rate: sweep.run(sweep.grid.seeds[0], method, rate) for rate in sweep.grid.rates}
    key = sweep.spec.metric.key
    return {rate: read_result(run, "val", key) if is_done(run) else None for rate, run in runs.items()}


def read_result(run: Path, split: str, key: str, type: type | tuple[type, ...] = (int, float)) -> Any:
    """An entry of the evaluation that ended a run."""
    path, advice = run / RESULT, "remove it to evaluate the run again"
    result = check_entries(read_json(path, advice), path, advice, **{split: dict})
    return check_entries(result[split], f"{path}, {split}", advice, **{key: type})[key]


def is_done(run: Path) -> bool:
    return (run / RESULT).exists()


def best_rates(sweep: Sweep) -> dict[str, float]:
    """For each method the learning rate whose best weights have the highest validation score, with the first seed."""
    scores = {method: rate_scores(sweep, method) for method in sweep.grid.methods}
    if missing := [method for method, own in scores.items() if None in own.values()]:
        raise InputError(f"{sweep.out}: {missing[0]} has not been run with every learning rate yet")
    return {method: max(own, key=lambda rate: own[rate] or 0.0) for method, own in scores.items()}


def read_analysis(sweep: Sweep, analysis: Analysis) -> dict[str, dict[str, Any]]:
    """What has been measured so far, by method."""
    path, advice = sweep.out / analysis.file, "remove the file to measure again"
    if not path.exists():
        return {}
    results = check_entries(read_json(path, advice), path, advice)
    return check_entries(results, path, advice, **dict.fromkeys(results, dict))


def run_analysis(sweep: Sweep, analysis: Analysis, workers: int = 1, on_event: Callback = ignore) -> None:
    """Measure every method that has not been measured yet; each result is saved at once."""
    results = read_analysis(sweep, analysis)
    names = {f"{analysis.name}, {method}": method for method in analysis.methods(sweep)}
    jobs = [
        Job(name, analysis.work, analysis.arguments(sweep, method), (), method in results, ANALYSIS_WEIGHT)
        for name, method in names.items()
    ]

    def collect(event: Event) -> None:
        if event.kind == "result":
            results[names[event.record["job"]]] = event.record["value"]
            write_json(sweep.out / analysis.file, results, indent=None)
        else:
            on_event(event)

    run_jobs(jobs, workers, collect)
