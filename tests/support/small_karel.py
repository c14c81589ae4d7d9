"""A Karel run that takes a few seconds: so few short programs that the model soon knows some of them."""

from pathlib import Path

import pytest

from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.interpreter import interpret
from corollout.tasks.karel.settings import ModelSettings
from corollout.tasks.karel.world import World, same_state
from corollout.training import start as jobs
from corollout.training.settings import MachineSettings, PretrainSettings

MODEL = ModelSettings(
    largest_world=4, channels=4, blocks=1, pair_width=32, embedding=16, hidden=32, layers=2, max_length=9
)
_made: list[Path] = []


def small_run(factory: pytest.TempPathFactory) -> Path:
    """The directory of the run, the same for all tests of a session; its newest weights are its better ones."""
    if not _made:
        data = factory.mktemp("small_karel")
        counts = {"train": 6, "val": 3, "test": 3}
        for split, tasks in generate(counts, shortest=5, longest=7, largest=4, workers=1).items():
            tasks.write(data / f"{split}.jsonl")
        settings = PretrainSettings(learning_rate=2e-2, batch_size=6, epochs=100, evaluate_every=50)
        jobs.new_pretraining(data / "run", "karel", data, MODEL, settings, MachineSettings())
        jobs.resume(data / "run")
        _made.append(data / "run")
    return _made[0]


def verdict(tokens: list[int] | list[str], before: World, wanted: World) -> str:
    """What becomes of a program, by the plain interpreter."""
    result = interpret(tokens, before)
    if result.status == "ok":
        return "right" if same_state(result.world, wanted) else "wrong world"
    return {"crash": "crash", "timeout": "time-out", "syntax": "no program"}[result.status]
