"""Runs of the command line that are resumed: whether they can be, and whether they are longer than they were."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from corollout.config import from_table
from corollout.errors import InputError
from corollout.training.loop import Schedule
from corollout.training.runs import CONFIG, FIT, Run, is_of_command, wrong_kind
from corollout.training.settings import FinetuneSettings, PretrainSettings

# The settings of each kind of run that may be larger when it is resumed.
EXTENDABLE = {"pretrain": ("epochs", "patience"), "finetune": ("budget", "patience")}


def require_resumable(run: Run) -> None:
    """Raise an error unless the command line can continue a run."""
    if not is_of_command(run.config) and FIT in run.config:
        raise InputError(
            f"{run.directory} was made in Python, and is continued there: open it with "
            f"Run.open({str(run.directory)!r}, resume=True), and call fit as before"
        )
    if not is_of_command(run.config):
        raise InputError(f"{run.directory} cannot be resumed: {wrong_kind(run.config.get('kind'))}")


def extended(run: Run, longer: Mapping[str, Any]) -> tuple[dict[str, Any], Schedule]:
    """The settings of a run's training with those that are larger, and the schedule that follows from them."""
    kind, where = run.config["kind"], str(run.directory / CONFIG)
    schedule_of, cls = {
        "pretrain": (pretraining_schedule, PretrainSettings), "finetune": (finetuning_schedule, FinetuneSettings),
    }[kind]  # fmt: skip
    before = from_table(cls, run.section(kind), where)
    for name, value in longer.items():
        old = getattr(before, name)
        if (value or math.inf) < (old or math.inf):  # a patience of 0 never ends
            more = f"{old:g}, more than {value:g}" if old else "0, which sets no end"
            raise InputError(f"a resumed run can be made longer, not shorter: the {name} of {run.directory} is {more}")
    after = replace(before, **longer)
    if after != before and isinstance(after, FinetuneSettings):
        _require_rate(run, before, after)
    schedule, summary = schedule_of(after), run.summary
    if after != before and summary is not None and schedule.is_complete(summary):
        length = "--epochs" if kind == "pretrain" else "--budget"
        reason = (
            f"has trained for all of its {schedule.unit}: a larger --patience changes nothing, a larger {length} does"
        )
        if summary.get("stopped_early"):
            misses = f"stopped because {summary.get('misses')} evaluations had brought no improvement"
            reason = f"{misses}: a larger {length} changes nothing, a larger --patience does"
        raise InputError(f"{run.directory} {reason}")
    return {**run.section(kind), **longer}, schedule


def _require_rate(run: Run, before: FinetuneSettings, after: FinetuneSettings) -> None:
    """Raise an error if a longer fine-tuning would have had another learning rate from the start."""
    if after.budget > before.budget and after.schedule != "constant" and after.schedule_updates is None:
        raise InputError(
            f"the learning rate of {run.directory} falls to 0 with the end of its budget, so that it cannot be made "
            f"longer: start another fine-tuning from its weights"
        )


def pretraining_schedule(settings: PretrainSettings) -> Schedule:
    return Schedule("epochs", settings.epochs, settings.evaluate_every, settings.patience)


def finetuning_schedule(settings: FinetuneSettings) -> Schedule:
    return Schedule(settings.unit, settings.budget, settings.evaluate_every, settings.patience or None)
