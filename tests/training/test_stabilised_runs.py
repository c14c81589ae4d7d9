"""Runs with every means of stabilisation at once: settings, resuming to the bit, and what is refused."""

import os
import signal
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.errors import Interrupted
from corollout.events import Event
from corollout.training.metrics import TIMED
from corollout.training.optimizers import make_scheduler
from corollout.training.run_weights import open_run
from corollout.training.runs import Run
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings
from corollout.training.start import create_finetuning, create_pretraining, resume_run
from corollout.weights import read_weights
from tests.support.commands import output, refusal
from tests.support.repeat_task import ModelSettings
from tests.training.test_kill import KILLS, assert_same, kill_often

TASK = "tests.support.repeat_task"
EVERYTHING = FinetuneSettings(
    estimator="rloo-3:baseline=fitted",
    batch_size=4,
    accumulate=2,
    micro_batch=3,
    budget=9.0,
    evaluate_every=3.0,
    patience=3,
    reward="likeness,constant",
    reward_weights=(1.0, 0.5),
    learning_rate=1e-2,
    warm_up=2,
    schedule="cosine",
    kl=0.2,
    kl_target=0.05,
    entropy=0.05,
    temperature=1.3,
    mle_weight=0.1,
    ema_decay=0.9,
    train_eval_examples=4,
)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("start") / "run"
    settings = PretrainSettings(epochs=1, batch_size=16)
    create_pretraining(run, TASK, None, ModelSettings(), settings, MachineSettings())
    resume_run(run)
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, start: Path) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    create_finetuning(run, start, EVERYTHING, MachineSettings())
    resume_run(run)
    return run


def untimed(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k not in TIMED} for record in Run.open(run).records()]


def test_a_run_that_is_stopped_reaches_the_same_bits(tmp_path: Path, start: Path, whole: Path):
    create_finetuning(tmp_path / "run", start, EVERYTHING, MachineSettings())

    def stop(event: Event) -> None:
        if event.kind == "update" and event.record["update"] in (2, 4):  # in a warm-up, and inside an epoch
            os.kill(os.getpid(), signal.SIGTERM)

    for _ in range(2):
        with pytest.raises(Interrupted):
            resume_run(tmp_path / "run", stop)
    resume_run(tmp_path / "run")
    states = [Run.open(path).load() for path in (whole, tmp_path / "run")]
    assert states[0] is not None
    assert states[1] is not None
    one, other = (state[1] for state in states if state)
    assert one.tensors.keys() == other.tensors.keys()
    assert any("average/" in name for name in one.tensors)
    assert any("reference/" in name for name in one.tensors)
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name
    assert untimed(whole) == untimed(tmp_path / "run")
    best = [read_weights(Run.open(path).best)[0] for path in (whole, tmp_path / "run")]
    assert all(torch.equal(tensor, best[1][name]) for name, tensor in best[0].items())


@pytest.mark.prove
@pytest.mark.parametrize("kills", KILLS)
def test_a_run_that_is_killed_often_reaches_the_same_bits(tmp_path: Path, start: Path, kills: int):
    settings = replace(EVERYTHING, budget=30.0 * kills, evaluate_every=20.0, patience=0)
    for name in ("whole", "killed"):
        create_finetuning(tmp_path / name, start, settings, MachineSettings())
    resume_run(tmp_path / "whole")
    assert kill_often(tmp_path / "killed", kills) >= 1
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_everything_is_recorded(whole: Path):
    config = tomllib.loads((whole / "config.toml").read_text())["finetune"]
    assert (config["kl"], config["kl_target"], config["schedule"], config["reward_weights"]) == (
        0.2, 0.05, "cosine", [1.0, 0.5],
    )  # fmt: skip
    updates = Run.open(whole).records("update")
    assert len(updates) == 9
    rates = [record["learning_rate"] for record in updates]
    assert rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2])
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert 0 < rates[-1] < 1e-3
    for record in updates:
        assert set(record["rewards"]) == {"likeness", "constant"}
        assert record["reward"] == pytest.approx(record["rewards"]["likeness"] + 0.5 * 0.1)
        assert record["mle_loss"] > 0
        assert record["kl"] is not None
    assert open_run(whole)[1].temperature == 1.3


def test_averaged_weights_are_the_best_weights(whole: Path):
    best = read_weights(Run.open(whole).best)
    checkpoint = Run.open(whole).load()
    assert checkpoint is not None
    last = {n: t for n, t in checkpoint[1].tensors.items() if n.startswith("learner/policy/")}
    assert any(not torch.equal(best[0][name.removeprefix("learner/policy/")], tensor) for name, tensor in last.items())


def test_old_settings_still_open(tmp_path: Path, start: Path):
    create_finetuning(tmp_path / "run", start, FinetuneSettings(estimator="rloo-2", budget=2.0), MachineSettings())
    path = tmp_path / "run" / "config.toml"
    new = set(vars(EVERYTHING)) - {
        "estimator",
        "learning_rate",
        "batch_size",
        "unit",
        "budget",
        "evaluate_every",
        "reward",
    }
    new -= {"max_grad_norm", "seed", "train_eval_examples", "variance_decay", "clock", "probe_every", "probes"}
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.partition(" ")[0] not in new]
    assert len(kept) < len(lines)
    path.write_text("".join(kept))
    assert resume_run(tmp_path / "run")["updates"] == 2


def test_other_weights_of_rewards_are_noticed(tmp_path: Path, start: Path):
    create_finetuning(tmp_path / "run", start, EVERYTHING, MachineSettings())
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("0.5,", "0.25,"))
    assert "the reward of" in refusal("finetune", "--resume", "--out", tmp_path / "run")


def test_the_command_line(tmp_path: Path, start: Path):
    flags = "--reward likeness,constant --reward-weights 1,0.2 --kl 0.1 --entropy 0.01 --temperature 0.9 --warm-up 1"
    flags += " --schedule linear --schedule-updates 5 --unit tokens --budget 200 --evaluate-every 100 --mle-weight 0.1"
    flags += (
        " --accumulate 2 --micro-batch 2 --ema-decay 0.9 --patience 9 --batch-size 4 --estimator rloo-2 --threads 1"
    )
    output("finetune", start, "--out", tmp_path / "run", *flags.split())
    rates = [record["learning_rate"] for record in Run.open(tmp_path / "run").records("update")]
    assert rates[:3] == pytest.approx([rates[1] / 2, rates[1], 0.75 * rates[1]])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--kl-target 2", "give --kl with --kl-target"),
        ("--reward likeness,nothing", "has no reward 'nothing'"),
        ("--reward likeness,constant --reward-weights 1", "1 reward weights for 2 rewards"),
        ("--unit seconds --budget 9 --evaluate-every 9 --schedule cosine", "give --schedule-updates"),
        ("--schedule linear --warm-up 20 --schedule-updates 10", "has to end after its warm-up of 20 updates"),
        ("--temperature 0", "temperature must be positive, not 0"),
        ("--schedule sudden", "must be one of constant, linear, cosine"),
    ],
)
def test_what_is_refused(tmp_path: Path, start: Path, flags: str, words: str):
    assert words in refusal("finetune", start, "--out", tmp_path / "run", *flags.split())
    assert not (tmp_path / "run").exists()


def test_schedules():
    def rates(warm_up: int, decay: Any, total: int | None, updates: int) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler, seen = make_scheduler(optimizer, warm_up, decay, total), []
        for _ in range(updates):
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        return seen

    assert rates(0, "constant", None, 3) == [1.0] * 3
    assert rates(3, "constant", None, 5) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates(0, "linear", 4, 6) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert rates(1, "cosine", 5, 6) == pytest.approx([0.5, 1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6)
