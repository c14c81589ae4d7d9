"""Karel as the registry of tasks knows it."""

from pathlib import Path

from corollout.config import Command
from corollout.tasks.karel.settings import GenerateSettings, ModelSettings, RunSettings
from corollout.tasks.spec import TaskSpec

_COMMANDS = "corollout.tasks.karel.commands"

KAREL = TaskSpec(
    "karel",
    "corollout.tasks.karel.task:KarelTask",
    ModelSettings,
    scales=Path(__file__).parent / "scales",
    commands={
        "data karel": Command(f"{_COMMANDS}:generate_data", GenerateSettings),
        "karel run": Command(f"{_COMMANDS}:run_program", RunSettings),
    },
    data_help="name a folder with train, val and test by --data, or make one with `corollout data karel --out FOLDER`",
    check=f"{_COMMANDS}:check_data",
)
