"""``corollout lm`` in several processes, started by torchrun or accelerate launch: one talks, an error is told once."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from torch import Tensor

from tests.support.commands import output
from tests.support.tiny_models import save_tiny_model
from tests.support.torchrun import ROOT, Job

pytest.importorskip("transformers")

REWARDS = """
import os
calls = 0
def late(completions, **_):
    global calls
    calls += 1
    if calls == 2 and os.environ.get("RANK") == "1" and "SIGNAL" in os.environ:
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    return [sum(map(ord, completion)) / 100 for completion in completions]
def fails(completions, **_):
    if os.environ.get("RANK") == "1":
        raise ValueError("no luck")
    return [1.0] * len(completions)
"""
TRAIN = "lm train --model model --dataset prompts.jsonl --max-completion-length 4 --learning-rate 1e-2 --use-cpu "
TRAIN += "--estimator rloo-2 --logging-steps 1 --save-steps 1 --max-steps 3"
# Accelerate warns about machines without accelerators.
pytestmark = [pytest.mark.prove, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, prompts and rewards, and what one process learns of them."""
    folder = tmp_path_factory.mktemp("lm")
    save_tiny_model(folder / "model")
    lines = [json.dumps({"prompt": f"a b {letter}", "letter": letter}) for letter in "defghi"]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    (folder / "rewards.py").write_text(REWARDS)
    return folder


def train(folder: Path, out: str, *more: str, reward: str = "late", **job: Any) -> subprocess.CompletedProcess[str]:
    arguments = ["-m", "corollout", *TRAIN.split(), "--per-device-train-batch-size", "4"]
    with Job(2, [*arguments, "--reward", f"rewards.py:{reward}", "--out", out, *more], cwd=folder, **job) as running:
        return running.wait()


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What ours is of what a job has written."""
    starts = ("error:", "stopped", "step", "continued", "Model:")
    return [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(starts)]


def weights(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "model" / "model.safetensors")


def alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The weights of one process with the same batches."""
    if not (folder / "alone").exists():
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", sys.path[:])
        arguments = ["--per-device-train-batch-size", "8", "--reward", "rewards.py:late", "--out", "alone"]
        output(*TRAIN.split(), *arguments)
    return weights(folder / "alone")


def check_near(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5


@pytest.mark.prove
def test_two_processes_train_and_one_talks(folder: Path, monkeypatch: pytest.MonkeyPatch):
    done = train(folder, "two")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in told(done)] == ["Model", "step 1/3", "step 2/3", "step 3/3"]
    check_near(alone(folder, monkeypatch), weights(folder / "two"))


def test_an_error_of_one_process_is_told_once(folder: Path):
    done = train(folder, "failed", reward="fails")
    assert done.returncode == 1
    assert [line[:50] for line in told(done)] == ["error: reward 'fails' raised ValueError: no luck, "]
    done = train(folder, "failed", reward="late")
    assert told(done) == ["error: failed is not empty: choose another with --out"]


def test_a_signal_stops_all_and_one_process_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch):
    done = train(folder, "stopped", variables={"SIGNAL": "15"})
    assert done.returncode != 0
    last = "stopped after update 2, which is saved in stopped. Continue with: corollout lm train --resume --out stopped"
    assert told(done)[-1] == last
    expected = alone(folder, monkeypatch)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    output("lm", "train", "--resume", "--out", "stopped")
    check_near(expected, weights(folder / "stopped"))


def test_a_job_that_is_started_again_reaches_the_same_bits(folder: Path):
    assert train(folder, "undisturbed").returncode == 0
    done = train(folder, "killed", restarts=3, variables={"SIGNAL": "9"})
    assert done.returncode == 0, done.stderr
    assert sum("ended during update" in line for line in told(done)) > 1
    assert all(weights(folder / "killed")[name].equal(one) for name, one in weights(folder / "undisturbed").items())


@pytest.mark.parametrize("command", ["generate --model model --prompt a", "inspect two"])
def test_other_commands_run_in_one_process(folder: Path, command: str):
    with Job(2, ["-m", "corollout", "lm", *command.split()], cwd=folder) as job:
        done = job.wait()
    assert done.returncode == 1
    (line,) = told(done)
    assert line.startswith("error: this command runs in one process: start it without torchrun")


@pytest.mark.parametrize("name", ["data_parallel", "sharded"])
def test_accelerate_starts_what_its_file_says(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """The files of the recipes, with two processes."""
    config = ROOT / "examples" / "accelerate" / f"{name}.yaml"
    words = ["-m", "accelerate.commands.launch", "--config_file", config, "--num_processes", 2]
    words += ["--main_process_port", 0, "-m", "corollout", *TRAIN.split(), "--per-device-train-batch-size", 4]
    words += ["--reward", "rewards.py:late", "--out", name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    check_near(alone(folder, monkeypatch), weights(folder / name))
    shards = (folder / name / "checkpoint-3" / "pytorch_model_fsdp.bin").exists()
    assert shards == (name == "sharded")


STAND_INS = {
    "srun": 'shift; exec "$@"',
    "scontrol": '[ "$1" = show ] && echo localhost || echo "$*" >> calls',
    "scancel": 'kill -USR1 "$(cat pid)"',
    "torchrun": f'echo $$ > pid; exec "{sys.executable}" -m torch.distributed.run "$@"',
}


def test_the_batch_script_trains_and_goes_on_after_a_signal(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """With shards, on one machine, and stand-ins of SLURM's commands."""
    with socket.socket() as some:
        some.bind(("localhost", 0))
        port = some.getsockname()[1]
    (folder / "bin").mkdir()
    for name, text in STAND_INS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "localhost", "PROCESSES": "2"}
    job |= {"OUT": "batch", "MODEL": "model", "PORT": str(port), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    job["REWARD"] = "rewards.py:late"
    options = ["--per-device-train-batch-size", "4", "--estimator", "rloo-2"]
    options += ["--max-completion-length", "4", "--learning-rate", "1e-2", "--use-cpu", "--save-steps", "1"]
    options += ["--max-steps", "40", "--dtype", "float32"]
    words = (ROOT / "examples" / "language_model.sbatch").read_text("utf-8")
    script = folder / "job.sbatch"  # in single precision, as there are no GPUs
    script.write_text(words.replace("--dtype bfloat16 --bf16 --gradient-checkpointing ", ""))
    run = ["bash", str(script), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **job}
    with subprocess.Popen(run, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for_checkpoint(folder / "batch", process)
        process.send_signal(signal.SIGUSR1)
        _, errors = process.communicate(timeout=120)
    assert "stopped after update" in errors
    assert (folder / "calls").read_text() == "requeue 7\n"
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "continued after step" in done.stderr
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    options[options.index("4")] = "8"
    options += ["--model", "model", "--dataset", "prompts.jsonl", "--reward", "rewards.py:late"]
    output("lm", "train", *options, "--out", "batch-alone")
    check_near(weights(folder / "batch-alone"), weights(folder / "batch"))


def wait_for_checkpoint(out: Path, process: "subprocess.Popen[str]") -> None:
    while not list(out.glob("checkpoint-*/trainer_state.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
