"""The command line, in this process and in others."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from corollout.cli.root import cli
from corollout.errors import InputError


def invoke(*arguments: object, columns: int = 160, stdin: bytes | None = None) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(cli, list(map(str, arguments)), stdin)


def output(*arguments: object, **options: object) -> str:
    """What a command that succeeds prints."""
    result = invoke(*arguments, **options)  # pyright: ignore[reportArgumentType]
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refusal(*arguments: object, **options: object) -> str:
    """The error of a command that prints nothing else."""
    result = invoke(*arguments, **options)  # pyright: ignore[reportArgumentType]
    assert isinstance(result.exception, InputError), (result.output, result.exception)
    assert (result.stdout, "\n" in str(result.exception)) == ("", False)
    return str(result.exception)


def reproduce(out: Path, name: str) -> str:
    """Run an experiment in a process; what it prints to standard error."""
    command = ["-c", "from corollout.cli.main import app; app()", "reproduce", name, "--out", str(out)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def short_training(plan: dict[str, Any], name: str, updates: int, batch_size: int) -> dict[str, Any]:
    """The plan of a sweep with an epoch and a few updates."""
    plan["pretrain"] |= {"epochs": 1}
    plan["finetune"] |= {"unit": "updates", "budget": float(updates), "evaluate_every": updates / 2}
    plan["finetune"] |= {"batch_size": batch_size, "train_eval_examples": 4}
    plan[name] |= {"rates": [1e-3], "probes": 3, "beam": 2}
    return plan
