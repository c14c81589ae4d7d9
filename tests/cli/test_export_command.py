"""``corollout export`` as a person meets it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from corollout.cli.main import cli
from corollout.errors import InputError
from corollout.rollouts.decoding import decode
from corollout.training import start as jobs
from corollout.types import Sampler
from tests.support.small_captions import small_run


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli, ["export", *map(str, arguments)])


def test_what_is_printed_can_be_typed(directory: Path, tmp_path: Path):
    out = tmp_path / "a folder"
    result = run(directory, "--out", out)
    assert result.exit_code == 0, (result.output, result.exception)
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0].startswith(f"{out}: captioner of {directory} (best weights, after update ")
    assert lines[1] == "16 words (softmax), captions of up to 16, LSTM of 32, 12 features an image"
    sizes = {path.name: path.stat().st_size for path in out.iterdir()}
    assert len(sizes) == 4
    for name, size in sizes.items():
        assert [name, f"{size:,}"] in [line.split() for line in lines]
    typed = lines[-1].removeprefix("To use it: python ").replace("FILE.npy", f"{tmp_path}/features.npy")
    task, engine = jobs.open_run(directory)
    val = task.split("val")
    np.save(tmp_path / "features.npy", val.data.features(np.arange(len(val))))
    command = f"{sys.executable} {typed} --no-numba"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    captions = decode(engine, val.columns, Sampler("greedy"))
    assert done.stdout.splitlines() == [" ".join(task.words[token] for token in one[0]) for one in captions]


def test_other_weights(directory: Path, tmp_path: Path):
    result = run(directory, "--out", tmp_path / "out", "--weights", "last")
    assert "(last weights, after update " in result.stdout
    again = run(directory, "--out", tmp_path / "out", "--weights", directory / "best.safetensors")
    assert again.exit_code == 0
    assert f"({directory / 'best.safetensors'} weights, after update " in again.stdout


def test_a_folder_with_something_else_is_refused(directory: Path, tmp_path: Path):
    (tmp_path / "precious.txt").write_text("mine")
    result = run(directory, "--out", tmp_path)
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == f"{tmp_path} holds something else than an earlier export: choose another with --out"
    assert result.stdout == ""
