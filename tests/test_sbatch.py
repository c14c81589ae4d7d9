"""The batch scripts of the examples, by the shell they are written for; SLURM's commands are replaced by small ones."""

import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "finetune.sbatch"
COMMANDS = {
    "srun": 'shift; exec "$@"',
    "scontrol": 'case "$1" in show) printf "%s\\n" node-1 node-2;; *) echo "scontrol $*" >> calls;; esac',
    # As SLURM does: the tasks of the step get the signal, here the only one.
    "scancel": 'echo "scancel $*" >> calls; kill -USR1 "$(cat pid)"',
    "torchrun": 'echo "torchrun $*" >> calls; echo "$OMP_NUM_THREADS $COROLLOUT_PROCESS_TIMEOUT" >> calls\n'
    "trap 'sleep 0.2; eval \"$AFTER\"; exit 138' USR1\n"
    'echo $$ > pid.new; mv pid.new pid\n[ -n "$WAITS" ] || exit "$CODE"\nwhile :; do sleep 0.05; done',
}
TORCHRUN = (
    "torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d --rdzv-id 7 "
    "--rdzv-endpoint node-1:29500 --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGUSR1 --shutdown-timeout 150 "
    "-m corollout finetune {} --out runs/arsm"
)


def start(folder: Path, waits: str = "", code: int = 0, after: str = "") -> "subprocess.Popen[bytes]":
    (folder / "bin").mkdir()
    for name, text in COMMANDS.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node-[1-2]"}
    fake = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "WAITS": waits, "CODE": str(code), "AFTER": after}
    return subprocess.Popen(["bash", str(SCRIPT)], cwd=folder, env={**os.environ, **job, **fake})


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize("code", [0, 3])
def test_a_new_run_begins_and_the_exit_code_is_that_of_the_step(tmp_path: Path, code: int):
    assert start(tmp_path, code=code).wait(20) == code
    assert calls(tmp_path) == [TORCHRUN.format("runs/mle --estimator arsm --device cuda"), "1 600"]


@pytest.mark.parametrize("finished", [False, True])
def test_a_signal_reaches_the_processes_and_unfinished_work_is_queued_again(tmp_path: Path, finished: bool):
    (tmp_path / "runs/arsm").mkdir(parents=True)
    (tmp_path / "runs/arsm/config.toml").touch()
    job = start(tmp_path, waits="yes", after="touch runs/arsm/summary.json" if finished else "")
    deadline = time.monotonic() + 20
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR1)
    code = job.wait(20)
    requeued = [] if finished else ["scontrol requeue 7"]
    assert calls(tmp_path) == [TORCHRUN.format("--resume"), "1 600", "scancel --signal=USR1 7.0", *requeued]
    assert code == 138


def test_every_option_is_explained():
    lines = SCRIPT.read_text("utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#SBATCH") and not line.startswith(("#SBATCH --job-name", "#SBATCH --output")):
            assert lines[number - 1].startswith("# "), line
