"""A Karel run that takes a few seconds: so few short programs that the model learns some of them by heart."""

from pathlib import Path

import pytest

from corollout.tasks.karel.generator import make_data
from corollout.tasks.karel.interpreter import interpret
from corollout.tasks.karel.settings import DataSettings, ModelSettings
from corollout.tasks.karel.world import World, same_state
from corollout.training.settings import MachineSettings, PretrainSettings
from corollout.training.start import create_pretraining, resume_run

DATA = DataSettings(train=6, val=3, test=3, shortest=5, longest=7, largest=4)
MODEL = ModelSettings(
    largest_world=4, channels=4, blocks=1, pair_width=32, embedding=16, hidden=32, layers=2, max_length=9
)
_runs: list[Path] = []


def small_run(factory: pytest.TempPathFactory) -> Path:
    """The directory of the run, the same for all tests of a session; none of its weights solve a new task, so
    that its best ones are those with the least loss on new tasks, and its last ones know more of the old tasks."""
    if not _runs:
        data = factory.mktemp("small_karel")
        make_data(data, DATA, workers=1)
        settings = PretrainSettings(learning_rate=2e-2, batch_size=6, epochs=100, evaluate_every=50)
        create_pretraining(data / "run", "karel", data, MODEL, settings, MachineSettings())
        resume_run(data / "run")
        _runs.append(data / "run")
    return _runs[0]


def verdict(tokens: list[int] | list[str], before: World, after: World) -> str:
    """The verdict on a program, by the simple interpreter."""
    result = interpret(tokens, before)
    if result.status == "ok":
        return "right" if same_state(result.world, after) else "wrong world"
    return {"crash": "crash", "timeout": "time-out", "syntax": "no program"}[result.status]
