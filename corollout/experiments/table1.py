"""The paper's first table: Karel."""

from dataclasses import dataclass, replace
from pathlib import Path

from corollout.config import option
from corollout.errors import InputError
from corollout.events import Callback, ignore
from corollout.experiments.experiment import SweepExperiment
from corollout.reports.report import Table
from corollout.reports.tables import NOTHING, percent
from corollout.sweeps.analysis import VARIANCE
from corollout.sweeps.report import ReportTexts, SweepResults
from corollout.sweeps.sweep import SweepSpec
from corollout.tasks.karel import generator
from corollout.tasks.karel.dataset import SPLITS, find_file
from corollout.tasks.karel.dataset import KarelData as KarelTasks
from corollout.tasks.karel.grids import needed_side
from corollout.tasks.karel.settings import DataSettings, ModelSettings

_DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class KarelData(DataSettings):
    """Generated tasks, or files of the user's."""

    folder: str = option("", "Folder with the files train, val and test; without it, tasks are generated.")


def make_data(folder: Path, settings: KarelData, on_event: Callback) -> None:
    """Generate the tasks, unless the folder has them already; only check that files of the user's are there."""
    if settings.folder:
        user_files(folder)
    else:
        generator.make_data(folder, settings, on_event=on_event)


def user_files(folder: Path) -> list[Path]:
    """The files of the user's in a folder: train.jsonl, val.jsonl and test.jsonl, or with .json as the public ones."""
    paths = {split: find_file(folder, split) for split in SPLITS}
    if missing := [split for split, path in paths.items() if path is None]:
        raise InputError(f"{folder} has no file {missing[0]}.jsonl or {missing[0]}.json")
    return [path for path in paths.values() if path is not None]


def fit_model(folder: Path, model: ModelSettings, on_event: Callback = ignore) -> ModelSettings:
    """A model that is large enough for the worlds and the programs of the user's files, their end tokens included."""
    data = [KarelTasks.open(path, on_event=on_event) for path in user_files(folder)]
    world = max(needed_side(one.inputs) - 2 for one in data)
    longest = max(int(one.lengths.max()) for one in data) + 1
    return replace(model, largest_world=max(model.largest_world, world), max_length=max(model.max_length, longest))


def lead(results: SweepResults) -> str:
    data = results.sweep.data
    source = f"{data.train:,} tasks with programs of {data.shortest} to {data.longest} tokens"
    if data.folder:
        counts = {one.split: one for one in results.data_files}
        known = f"{counts['train'].examples:,} tasks of {counts['train'].file}" if "train" in counts else "the tasks"
        source = f"{known} in {Path(data.folder).name}"
    reward = "The reward is 1 for a program that is right on all examples of its task, else 0."
    return f"{reward} A model learns from {source}"


def _beam_table(results: SweepResults) -> Table:
    tops = {method.label: method.scores["test"].top for method in results.methods if "test" in method.scores}
    longest = max((len(top) for top in tops.values()), default=0)
    depths = [k for k in _DEPTHS if k <= longest]
    rows = []
    for label, top in tops.items():
        rows.append([label, *(percent(top[k - 1]) if k <= len(top) else NOTHING for k in depths)])
    note = (
        f"Percentage of test tasks for which one of the first k programs of a beam of {longest} is right on all "
        f"examples, mean over seeds."
    )
    return Table("Beam search, test", ["method", *(f"top {k}" for k in depths)], rows, [note])


TABLE1 = SweepExperiment(
    SweepSpec(
        "table1",
        "karel",
        {
            "REINFORCE": "reinforce",
            "SC": "sc",
            "MC-0": "mc-0",
            "MC-2": "mc-2",
            "RL_beam": "rl-beam-64",
            "RLOO": "rloo-8",
            "ARSM": "arsm",
            "ARSM-own": "arsm:noise=own",
        },
        {
            "tiny": {"rates": [2e-4, 5e-4, 1e-3], "seeds": [0], "beam": 5, "probes": 20},
            "small": {"rates": [1e-4, 3e-4, 1e-3, 3e-3], "seeds": [0, 1, 2], "beam": 5, "probes": 40},
            "paper": {"rates": [1e-5, 5e-5, 2e-4], "seeds": [0, 1, 2], "beam": 50, "probes": 40},
        },
        KarelData,
        make_data,
        (VARIANCE,),
        at_scale={"paper": {"REINFORCE": "reinforce:baseline=batch"}},
        fit_model=fit_model,
    ),
    ReportTexts(
        "Fine-tuning a Karel synthesiser",
        lead,
        tables=(_beam_table,),
        paper={
            "MLE": {"validation": 13.6, "test": 12.76},
            "SC": {"validation": 12.51, "test": 12.12},
            "MC-0": {"validation": 12.64, "test": 12.56},
            "MC-2": {"validation": 13.56, "test": 12.76},
            "RL_beam": {"validation": 14.76, "test": 14.92},
            "ARSM": {"validation": 17.07, "test": 16.28},
            "ARSM-own": {"validation": 17.07, "test": 16.28},
        },
        paper_note=(
            "The paper's numbers, in per cent, are for other tasks, with programs of up to 45 tokens in worlds of up "
            "to 16 by 16, and for a model of 12 million weights. They are for orientation: the order of methods may "
            "agree, the numbers need not. The paper's ARSM completes every rollout with random numbers of its own, as "
            "ARSM-own does here; ARSM uses those of the main program."
        ),
        variance_notes=["RL_beam does not sample: its gradient has no variance at given weights, but is biased."],
    ),
)
