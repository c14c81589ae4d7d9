"""What a run is compared by."""

from corollout.errors import InputError
from corollout.tasks.spec import Metric, find_task, is_task_path, own_metric
from corollout.training.runs import METRICS, Run, is_of_command, training_settings


def metric_of(run: Run) -> Metric:
    """What a run is compared by: its task's metric or, if it was made in Python with another one, that."""
    task = run.config.get("task")
    if is_of_command(run.config):
        return find_task(task).metric
    key = training_settings(run.config).get("metric") or _evaluated(run)
    if is_task_path(task) and (metric := find_task(task).metric).key == key:
        return metric
    return own_metric(str(key))


def _evaluated(run: Run) -> str:
    """What the evaluations of a run without settings of its training are called."""
    counts = ("kind", "update", "epochs", "tokens", "seconds")
    names = [name for record in run.records("evaluation")[:1] for name in record if name not in counts]
    if not names:
        raise InputError(f"{run.directory} has no complete evaluation in {METRICS}: resume it, or leave it out")
    return names[0]
