"""Runs that are killed at random instants reach the same weights as runs that are not."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.settings import ModelSettings
from corollout.training.metrics import TIMED
from corollout.training.runs import Run
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings
from corollout.training.start import create_finetuning, create_pretraining, resume_run
from corollout.weights import read_weights

LOOP = Path(__file__).parents[1] / "support" / "kill_loop.py"
# A share of the suite ``tests.reliability.kills`` is in the normal run.
pytestmark = pytest.mark.prove
KILLS = [20]
MODEL = ModelSettings(
    largest_world=4, channels=4, blocks=1, pair_width=32, embedding=16, hidden=32, layers=2, max_length=9
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So few tasks that they can be learnt by heart; what is evaluated is just that."""
    folder = tmp_path_factory.mktemp("data")
    tasks = generate({"train": 12}, longest=7, largest=4)["train"]
    for split in ("train", "val", "test"):
        tasks.write(folder / f"{split}.jsonl")
    return folder


def new_pretraining(directory: Path, data: Path, epochs: int, rate: float = 1e-3, every: int = 1) -> None:
    settings = PretrainSettings(batch_size=4, epochs=epochs, patience=1_000, learning_rate=rate, evaluate_every=every)
    create_pretraining(directory, "karel", data, MODEL, settings, MachineSettings())


def new_finetuning(directory: Path, start: Path, updates: int) -> None:
    settings = FinetuneSettings(
        estimator="arsm",
        batch_size=6,
        budget=float(updates),
        evaluate_every=5.0,
        learning_rate=1e-3,
        train_eval_examples=16,
    )
    create_finetuning(directory, start, settings, MachineSettings())


def kill_often(directory: Path, kills: int) -> int:
    command = [sys.executable, str(LOOP), str(directory), str(kills), "0", "0.8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[0])


def assert_same(one: Path, other: Path) -> None:
    """Last state, best weights and what was measured; only times may differ."""
    states = [Run.open(path).load() for path in (one, other)]
    assert states[0] is not None
    assert states[1] is not None
    assert states[0][0] == states[1][0]
    tensors = [state[1].tensors for state in states if state]
    assert tensors[0].keys() == tensors[1].keys()
    for name, tensor in tensors[0].items():
        assert torch.equal(tensor, tensors[1][name]), name
    best = [read_weights(Run.open(path).best)[0] for path in (one, other)]
    assert all(torch.equal(tensor, best[1][name]) for name, tensor in best[0].items())
    records = [
        [{key: value for key, value in record.items() if key not in TIMED} for record in Run.open(path).records()]
        for path in (one, other)
    ]
    assert records[0] == records[1]
    left = [path.name for path in other.rglob("*") if ".temporary-" in path.name]
    assert not left


@pytest.mark.parametrize("kills", KILLS)
def test_a_pretraining_that_is_killed_often_ends_with_the_same_weights(tmp_path: Path, data: Path, kills: int):
    for name in ("whole", "killed"):
        new_pretraining(tmp_path / name, data, epochs=6 * kills)
    resume_run(tmp_path / "whole")
    assert kill_often(tmp_path / "killed", kills) >= (kills if kills > 2 else 1)
    assert_same(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize("kills", KILLS)
def test_a_finetuning_that_is_killed_often_ends_with_the_same_weights(tmp_path: Path, data: Path, kills: int):
    new_pretraining(tmp_path / "start", data, epochs=150, rate=1e-2, every=50)
    resume_run(tmp_path / "start")
    for name in ("whole", "killed"):
        new_finetuning(tmp_path / name, tmp_path / "start", updates=6 * kills)
    resume_run(tmp_path / "whole")
    assert any(record["gradient_norm"] > 0 for record in Run.open(tmp_path / "whole").records("update"))
    assert kill_often(tmp_path / "killed", kills) >= (kills if kills > 2 else 1)
    assert_same(tmp_path / "whole", tmp_path / "killed")
