"""Captioning as the registry of tasks knows it."""

from pathlib import Path

from corollout.config import Command
from corollout.tasks.captioning.settings import (
    CaptionsSettings,
    FeaturesSettings,
    ModelSettings,
    NeighboursSettings,
    ScoreSettings,
    TreeBuildSettings,
    TreeShowSettings,
)
from corollout.tasks.spec import TaskSpec

_COMMANDS = "corollout.tasks.captioning.commands"

CAPTIONS = TaskSpec(
    "captions",
    "corollout.tasks.captioning.task:CaptionTask",
    ModelSettings,
    scales=Path(__file__).parent / "scales",
    commands={
        "data captions": Command(f"{_COMMANDS}:prepare_captions", CaptionsSettings),
        "data features": Command(f"{_COMMANDS}:make_features", FeaturesSettings),
        "data neighbours": Command(f"{_COMMANDS}:caption_by_neighbours", NeighboursSettings),
        "score": Command(f"{_COMMANDS}:score", ScoreSettings),
        "tree build": Command(f"{_COMMANDS}:build", TreeBuildSettings),
        "tree show": Command(f"{_COMMANDS}:show", TreeShowSettings),
    },
    data_help="name a prepared folder by --data, or make one with `corollout data captions --out FOLDER`",
    export="corollout.tasks.captioning.export:export_captioner",
    check="corollout.tasks.captioning.dataset:check_data",
)
