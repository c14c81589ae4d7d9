"""Language models in several processes: one update, whatever their number, with shards and adapters, too."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.torchrun import Job

pytest.importorskip("transformers")
pytest.importorskip("peft")

from corollout.processes import Processes
from tests.support.shared_trainings import CASES, ROUNDED, load, run_case

# Accelerate warns about machines without accelerators.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unchecked")]

QUICK = ["rloo", "budget", "accumulated", "t5", "lora", "sharded", "sharded lora", "saved", "continued"]
TIMED = {"waiting", "eval_model_preparation_time"}
RANKS_ONLY = [*ROUNDED, "auto", "first reads"]  # where only the processes are compared with each other


class Outcomes:
    """What came of trainings, each of which is made once."""

    def __init__(self, folder: Path):
        self._folder = folder

    def alone(self, name: str) -> dict[str, Any]:
        """By this process."""
        if not (path := self._folder / "1" / name).with_suffix(".json").exists():
            run_case(name, path.parent, Processes())
        return load(path)

    def together(self, size: int, name: str, names: Sequence[str]) -> dict[str, Any]:
        """By several processes, which begin with all these names."""
        folder = self._folder / str(size)
        if not folder.exists():
            self.alone("saved")
            self.hand_over(folder / "output" / "continued", 1)
            arguments = ["-m", "tests.support.shared_trainings", folder, *names]
            with Job(size, arguments, variables={"PYTHONWARNINGS": "ignore"}) as job:
                done = job.wait(900)
            assert done.returncode == 0, done.stderr[-4000:]
        return load(folder / name)

    def output(self, size: int, name: str) -> Path:
        return self._folder / str(size) / "output" / name

    def hand_over(self, target: Path, size: int) -> None:
        """Copy what so many processes have saved after two updates to where a training continues."""
        target.mkdir(parents=True)
        source = self.output(size, "saved")
        shutil.copytree(source / "checkpoint-2", target / "checkpoint-2")
        for name in ("samples.jsonl", "completions.html"):
            shutil.copy(source / name, target / name)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return Outcomes(tmp_path_factory.mktemp("trainings"))


def check_same(first: dict[str, Any], other: dict[str, Any]) -> None:
    """Completions are identical, and gradients, weights and metrics equal to rounding."""
    updates = len(other["gradients"])
    assert updates > 0
    if updates == len(first["gradients"]):
        assert first["completions"] == other["completions"]
    pairs = list(zip(first["gradients"][-updates:], other["gradients"], strict=True))
    for one, two in [*pairs, (first["weights"], other["weights"])]:
        assert one.keys() == two.keys()
        largest = max(float(part.abs().max()) for part in one.values())
        assert largest > 1e-4
        assert max(float((part - two[name]).abs().max()) for name, part in one.items()) < 1e-6 * largest
    for one, two in zip(first["logged"][-updates - 1 :], other["logged"][-updates - 1 :], strict=True):
        assert one.keys() - TIMED == two.keys() - TIMED
        for name in one.keys() - TIMED - {"train_loss"}:
            assert two[name] == pytest.approx(one[name], rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("name", QUICK)
def test_two_processes_make_the_updates_of_one(outcomes: Outcomes, name: str):
    check_same(outcomes.alone(name.replace("continued", "saved")), outcomes.together(2, name, QUICK))


def test_what_is_kept_is_written_once(outcomes: Outcomes):
    """Samples are those of one process; a checkpoint has the same files, but for states of random numbers."""
    alone, other = outcomes.output(1, "saved"), outcomes.output(2, "saved")
    outcomes.alone("saved")
    outcomes.together(2, "saved", QUICK)
    assert (alone / "samples.jsonl").read_bytes() == (other / "samples.jsonl").read_bytes()
    assert sorted(path.name for path in other.iterdir()) == sorted(path.name for path in alone.iterdir())
    names = {path.name for path in (other / "checkpoint-4").iterdir()}
    assert names == {path.name for path in (alone / "checkpoint-4").iterdir()} - {"rng_state.pth"} | {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }


def test_one_process_goes_on_from_two(outcomes: Outcomes):
    outcomes.together(2, "saved", QUICK)
    outcomes.hand_over(outcomes.output(1, "continued"), 2)
    check_same(outcomes.alone("saved"), outcomes.alone("continued"))


@pytest.mark.prove
@pytest.mark.parametrize("name", CASES)
def test_three_processes_make_the_updates_of_one(outcomes: Outcomes, name: str):
    """Of each estimator, and from any checkpoint; all processes have the same weights."""
    made = outcomes.together(3, name, list(CASES))
    if name in RANKS_ONLY:
        assert len(made["gradients"]) > 0
    else:
        check_same(outcomes.alone(name.replace("continued", "saved")), made)
