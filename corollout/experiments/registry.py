"""The experiments by the name under which ``corollout reproduce`` runs them, and those of them that are sweeps."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from corollout.config import import_object, option, required, switch
from corollout.errors import CorolloutError, InputError, Interrupted
from corollout.events import Callback, ignore
from corollout.reports.report import Report
from corollout.sweeps.report import ReportTexts, sweep_report
from corollout.sweeps.sweep import Sweep, SweepSpec, open_sweep, run_sweep
from corollout.tasks.task import Metric

EXPERIMENTS: dict[str, str] = {  # a new one is one line
    "table1": "corollout.experiments.table1:TABLE1",
    "table2": "corollout.experiments.table2:TABLE2",
    "curves-karel": "corollout.experiments.curves:KAREL_CURVES",
    "curves-captions": "corollout.experiments.curves:CAPTION_CURVES",
    "coldstart": "corollout.experiments.cold_start:COLD_START",
}


@runtime_checkable
class Experiment(Protocol):
    """What a command needs to know about an experiment.

    ``settings`` is a class with at least ``out``, the folder of everything, to which ``report`` is added, and
    ``report_only``; ``metric`` is that of the events of progress, and ``weight`` the sum of the weights of all parts,
    which these events have. ``run`` runs what is missing and writes the report.
    """

    @property
    def name(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def settings(self) -> type: ...
    @property
    def metric(self) -> Metric | None: ...
    def weight(self, settings: Any) -> float: ...
    def run(self, settings: Any, on_event: Callback) -> Report: ...


def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise InputError(f"unknown experiment {name!r}: choose one of {', '.join(EXPERIMENTS)}")
    return import_object(EXPERIMENTS[name])


@dataclass(frozen=True)
class SweepSettings:
    """Settings of ``corollout reproduce``; those that are not given are the folder's, or else the scale's."""

    out: Path = required("Folder for data, runs and report; give it again to continue.")
    scale: str | None = option(None, "Sizes and budgets. [default: small]", choices=("tiny", "small", "paper"))
    seeds: tuple[int, ...] = option((), "Seeds. [default: from the scale]")
    methods: tuple[str, ...] = option((), "Methods, as in ARSM,RLOO. [default: all]", metavar="<name,…>")
    data: Path | None = option(None, "Folder of existing data. [default: generated data]")
    jobs: int = option(2, "Runs at the same time.", least=1)
    threads: int | None = option(None, "Threads of each run. [default: 1]", least=1)
    device: str | None = option(None, "Where to compute: cpu, cuda, …. [default: cpu]")
    report_only: bool = switch("Only report what is done so far.")


@dataclass(frozen=True)
class SweepExperiment:
    """A sweep with the texts of its report."""

    help: str
    spec: SweepSpec
    texts: ReportTexts
    settings: type = SweepSettings

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def metric(self) -> Metric:
        return self.spec.metric

    def open(self, settings: Any) -> Sweep:
        """The sweep in the folder of the settings; a new one is only written if its data exists."""
        changes: dict[str, Any] = {}
        for name in ("seeds", "methods", "threads", "device"):
            if value := getattr(settings, name):
                changes[name] = list(value) if isinstance(value, tuple) else value
        if settings.data is not None:
            changes["folder"] = os.path.realpath(settings.data)
            self.spec.make_data(settings.data, self.spec.data(folder=changes["folder"]), ignore)
        if (vectors := getattr(settings, "vectors", None)) is not None:
            if not vectors.is_file():
                raise InputError(f"there is no file of word vectors {vectors}: leave --vectors out, or name another")
            changes["vectors"] = os.path.realpath(vectors)
        return open_sweep(self.spec, settings.out, settings.scale, **changes)

    def weight(self, settings: Any) -> float:
        return self.open(settings).weight

    def run(self, settings: Any, on_event: Callback = ignore) -> Report:
        if settings.report_only and not settings.out.is_dir():
            raise InputError(f"there is nothing to report: {settings.out} does not exist")
        sweep = self.open(settings)
        if not settings.report_only:
            run_resumable(lambda: run_sweep(sweep, settings.jobs, on_event), self.name, settings.out)
        report = sweep_report(sweep, self.texts)
        report.write(settings.out / "report")
        return report


def run_resumable(work: Callable[[], None], name: str, out: Path) -> None:
    """Run an experiment; whatever stops it, the message says how to continue."""
    again = f"corollout reproduce {name} --out {out}"
    try:
        work()
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(f"Stopped; all finished work is saved. Continue with: {again}") from None
    except InputError:
        raise
    except CorolloutError as error:
        raise CorolloutError(f"{error}. All finished work is saved; continue with: {again}") from error
