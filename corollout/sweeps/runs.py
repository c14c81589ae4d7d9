"""The jobs of a sweep: create a run if it does not exist yet, train it to its end, and evaluate its best weights."""

from pathlib import Path
from typing import Any

from corollout.config import from_table, import_object
from corollout.events import Callback, Event, Progress
from corollout.files import write_json
from corollout.folders import make_folder
from corollout.tasks.task import find_task
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings
from corollout.training.start import create_finetuning, create_pretraining, evaluate_run, resume_run

RESULT = "result.json"
Table = dict[str, Any]


def pretrain_and_evaluate(
    directory: str, model: Table, settings: Table, machine: Table, beam: int, on_event: Callback
) -> None:
    """The job of a model, which has a task, a scale, a folder of data, a network, and perhaps a tree to be built."""
    path, pretrain = Path(directory), from_table(PretrainSettings, settings, directory)
    if not (path / "config.toml").exists():
        task, data, file = model["task"], Path(model["data"]), None
        if "tree" in model:
            file = path.with_name(f"{path.name}.tree")
            make_folder(path.parent)
            tree = dict(model["tree"])
            import_object(tree.pop("build"))(file, data, Path(tree.pop("softmax")), **tree)
        network = from_table(find_task(task).model, model["network"], directory)
        computer = from_table(MachineSettings, machine, directory)
        create_pretraining(path, task, data, network, pretrain, computer, model["scale"], file)
    _finish(path, beam, "epochs", pretrain.epochs, on_event)


def finetune_and_evaluate(
    directory: str, start: str, settings: Table, machine: Table, beam: int, on_event: Callback
) -> None:
    """The job of a method."""
    path, finetune = Path(directory), from_table(FinetuneSettings, settings, directory)
    if not (path / "config.toml").exists():
        create_finetuning(
            path, Path(start), finetune, from_table(MachineSettings, machine, directory), on_event=on_event
        )
    _finish(path, beam, finetune.unit, finetune.budget, on_event)


def _finish(directory: Path, beam: int, unit: str, budget: float, on_event: Callback) -> None:
    """Train to the end, then evaluate the best weights."""
    progress = Progress(on_event, directory.name, budget)

    def relay(event: Event) -> None:
        record = {name: value for name, value in event.record.items() if isinstance(value, int | float)}
        if event.kind in ("update", "evaluation"):
            key = {"updates": "update", "epochs": "epochs" if event.kind == "evaluation" else "epoch"}.get(unit, unit)
            progress.report(record.get(key, progress.done), **record)
        else:
            on_event(event)

    resume_run(directory, relay)
    result: dict[str, Table] = {}
    for split in ("val", "test"):
        task, evaluation = evaluate_run(directory, split, beam if split == "test" else 0)
        scores = evaluation.scores.tolist()
        result[split] = {**evaluation.numbers(), "count": len(scores)}
        if task.metric.is_share:
            result[split]["solved"] = "".join("1" if score else "0" for score in scores)
        else:
            result[split]["scores"] = [round(score, 6) for score in scores]
    write_json(directory / RESULT, result)
