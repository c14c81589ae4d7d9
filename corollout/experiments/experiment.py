"""What an experiment is, and those experiments that are sweeps."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from corollout.data import check_device
from corollout.errors import CorolloutError, InputError, Interrupted
from corollout.events import Callback, ignore
from corollout.reports.report import Report
from corollout.sweeps.report import ReportTexts, sweep_report
from corollout.sweeps.sweep import Sweep, SweepSpec, open_sweep, run_sweep
from corollout.tasks.spec import Metric


@runtime_checkable
class Experiment(Protocol):
    """What runs an experiment.

    ``metric`` is that of the events of progress, and ``weight`` the sum of the weights of all parts, which these events
    have. ``run`` runs what is missing and writes the report.
    """

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> Metric | None: ...
    def weight(self, settings: Any) -> float: ...
    def run(self, settings: Any, on_event: Callback) -> Report: ...


@dataclass(frozen=True)
class SweepExperiment:
    """A sweep with the texts of its report."""

    spec: SweepSpec
    texts: ReportTexts

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def metric(self) -> Metric:
        return self.spec.metric

    def open(self, settings: Any) -> Sweep:
        """The sweep in the folder of the settings; a new one is only written if its data exists."""
        if settings.device is not None:
            check_device(settings.device)
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
