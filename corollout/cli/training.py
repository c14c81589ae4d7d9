"""``corollout pretrain``, ``finetune`` and ``evaluate``."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from corollout.cli.options import with_options
from corollout.cli.progress import following
from corollout.cli.tables import evaluation_table
from corollout.config import from_table, merge, read_toml
from corollout.errors import InputError, Interrupted
from corollout.tasks.captioning.settings import ModelSettings as CaptionModel
from corollout.tasks.karel.settings import ModelSettings as KarelModel
from corollout.tasks.registry import find_task
from corollout.training import start as jobs
from corollout.training.checkpoints import replace_file
from corollout.training.runs import Run
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings

pretrain = typer.Typer(no_args_is_help=True, help="Train a model by maximum likelihood.")

OUT = Annotated[Path, typer.Option("--out", help="Directory of the new run.", show_default=False)]
RESUME = Annotated[bool, typer.Option("--resume", help="Go on with the run that is in the directory.")]
SCALE = Annotated[str, typer.Option("--scale", help="Settings to begin with: tiny, small or paper.")]
RUN = Annotated[Path, typer.Argument(help="Directory of a run.", show_default=False)]


@dataclass(frozen=True)
class KarelPretraining:
    """What `pretrain karel` can be told."""

    model: KarelModel = field(default_factory=KarelModel)
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)


@dataclass(frozen=True)
class CaptionPretraining:
    """What `pretrain captions` can be told."""

    model: CaptionModel = field(default_factory=CaptionModel)
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)


@dataclass(frozen=True)
class Finetuning:
    """What `finetune` can be told."""

    finetune: FinetuneSettings = field(default_factory=FinetuneSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)


@pretrain.command("karel")
@with_options(KarelPretraining, scaled=True)
def pretrain_karel(
    out: OUT,
    flags: dict[str, Any],
    config: Path | None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with train.jsonl, val.jsonl, test.jsonl.", show_default=False)
    ] = None,
    scale_name: SCALE = "small",
    resume: RESUME = False,
) -> None:
    """Train a Karel synthesiser on reference programs, until Generalization on the validation data rises no more."""
    missing = "say by --data where the tasks are; `corollout data karel --out DIR` makes some"
    _pretrain("karel", KarelPretraining, out, flags, config, data, scale_name, resume, missing)


@pretrain.command("captions")
@with_options(CaptionPretraining, scaled=True)
def pretrain_captions(
    out: OUT,
    flags: dict[str, Any],
    config: Path | None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder that `corollout data captions` has prepared.", show_default=False),
    ] = None,
    tree: Annotated[
        Path | None,
        typer.Option(
            help="File of `corollout tree build`: words are chosen by walks down this tree.", show_default=False
        ),
    ] = None,
    scale_name: SCALE = "small",
    resume: RESUME = False,
) -> None:
    """Train a captioner on what people wrote, until CIDEr-D on the validation data rises no more."""
    missing = "say by --data where the images' features are; `corollout data captions --out DIR` prepares them"
    _pretrain("captions", CaptionPretraining, out, flags, config, data, scale_name, resume, missing, tree)


def _pretrain(
    task: str,
    cls: type,
    out: Path,
    flags: dict[str, Any],
    config: Path | None,
    data: Path | None,
    scale_name: str,
    resume: bool,
    missing: str,
    tree: Path | None = None,
) -> None:
    if resume:
        _refuse_settings(flags, config, data or tree)
    else:
        if data is None:
            raise InputError(missing)
        settings = _settings(cls, find_task(task).scale(scale_name), config, flags)
        jobs.new_pretraining(out, task, data, settings.model, settings.pretrain, settings.machine, scale_name, tree)
    _carry_out(out, f"corollout pretrain {task} --resume --out")


@with_options(Finetuning, scaled=True)
def finetune(
    run: RUN,
    out: OUT,
    flags: dict[str, Any],
    config: Path | None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Another data folder than the run's.", show_default=False)
    ] = None,
    resume: RESUME = False,
) -> None:
    """Fine-tune the best weights of a run on its task's reward, by any estimator."""
    if resume:
        _refuse_settings(flags, config, data)
    else:
        parent = Run.open(run).config
        own = find_task(parent.get("task")).scale(parent.get("scale", "small"))
        settings = _settings(Finetuning, own, config, flags)
        jobs.new_finetuning(out, run, settings.finetune, settings.machine, data)
    _carry_out(out, f"corollout finetune {run} --resume --out")


def evaluate(
    run: RUN,
    split: Annotated[str, typer.Option(help="Examples to evaluate on: train, val or test.")] = "test",
    beam: Annotated[int, typer.Option(min=0, help="Size of the beam; 0 for greedy decoding only.")] = 10,
    weights: Annotated[str, typer.Option(help="Which weights: best, last, or a file.")] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """All measures of a run's task, with 95 % intervals: by greedy decoding, and by a beam."""
    task, result = jobs.evaluate_run(run, split, beam, weights)
    numbers = result.numbers()
    name = f"evaluation-{split}{'' if weights == 'best' else '-' + Path(weights).stem}.json"
    text = json.dumps({"count": len(result.scores), **numbers}, indent=2) + "\n"
    try:
        replace_file(run / name, text.encode())
    except OSError as error:
        raise InputError(f"cannot write {run / name}: {error.strerror or error}") from error
    if as_json:
        typer.echo(json.dumps(numbers))
        return
    Console().print(evaluation_table(result, split, task.metric))


def _settings(cls: type, scale_table: dict[str, Any], config: Path | None, flags: dict[str, Any]) -> Any:
    """Defaults, then the scale's, then the file's, then the flags."""
    own = {name: scale_table[name] for name in cls.__dataclass_fields__ if name in scale_table}
    file = {} if config is None else read_toml(config)
    if "kind" in file:  # the settings of a run: of those, the ones that belong here
        file = {name: file[name] for name in cls.__dataclass_fields__ if name in file}
    from_table(cls, file, str(config))  # whatever is wrong with the file is said of the file
    return from_table(cls, merge(own, file, flags), "the settings")


def _refuse_settings(flags: dict[str, Any], config: Path | None, data: Path | None) -> None:
    if flags or config is not None or data is not None:
        raise InputError("a run that is resumed keeps its settings: leave all of them out beside --resume")


def _carry_out(directory: Path, again: str) -> None:
    console = Console(stderr=True)
    settings = Run.open(directory).config
    kind = settings["kind"]
    unit, total = ("epochs", settings[kind]["epochs"]) if kind == "pretrain" else _budget(settings[kind])
    name = "maximum likelihood" if kind == "pretrain" else settings[kind]["estimator"]
    try:
        with following(console, name, unit, total) as hooks:
            summary = jobs.resume(directory, hooks)
    except Interrupted as error:
        raise Interrupted(f"{error}. Go on with: {again} {directory}") from error
    measure = find_task(settings["task"]).metric
    best = measure.words(summary[f"best_{measure.key}"])
    Console().print(
        f"Best on the validation data: {best}, after {summary['best_update']:,} of {summary['updates']:,} updates. "
        f"Weights: {directory / 'best.safetensors'}",
        highlight=False,
        soft_wrap=True,
    )


def _budget(settings: dict[str, Any]) -> tuple[str, float]:
    return settings["unit"], settings["budget"]
