"""``corollout data`` as a person meets it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from corollout.cli.main import cli
from corollout.errors import InputError
from corollout.tasks.karel.dataset import KarelData

SMALL = ["--train", "12", "--val", "4", "--test", "3", "--longest", "14", "--largest", "4", "--workers", "1"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["data", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "karel"
    result = run("karel", "--out", out, "--scale", "tiny", *SMALL, "--seed", 4, "--forms", "both")
    assert result.exit_code == 0, result.output
    assert "train.jsonl: 12 programs of" in result.stdout
    return out


def test_a_data_set_with_caches_and_a_manifest_is_made(folder: Path):
    assert {entry.name for entry in folder.iterdir()} == {
        *("manifest.json", "train.jsonl", "val.jsonl", "test.jsonl"),
        *("train.jsonl.cache", "val.jsonl.cache", "test.jsonl.cache"),
    }
    facts = json.loads((folder / "manifest.json").read_text())
    assert (facts["seed"], facts["train"], facts["largest"], facts["scale"]) == (4, 12, 4, "tiny")
    sizes = {split: len(KarelData.open(folder / f"{split}.jsonl")) for split in ("train", "val", "test")}
    assert sizes == {"train": 12, "val": 4, "test": 3}
    assert "inpgrid_json" in (folder / "val.jsonl").read_text()


def test_the_same_seed_makes_the_same_files(folder: Path, tmp_path: Path):
    assert run("karel", "--out", tmp_path, *SMALL, "--seed", 4, "--forms", "both").exit_code == 0
    for split in ("train", "val", "test"):
        assert (tmp_path / f"{split}.jsonl").read_bytes() == (folder / f"{split}.jsonl").read_bytes()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path):
    (tmp_path / "precious").write_text("")
    result = run("karel", "--out", tmp_path, *SMALL)
    assert isinstance(result.exception, InputError)
    assert "is not empty" in str(result.exception)
    result = run("karel", "--out", tmp_path / "precious" / "x", *SMALL)
    assert isinstance(result.exception, InputError)
    assert "cannot use the folder" in str(result.exception)
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]


def test_a_refused_wish_leaves_no_file(tmp_path: Path):
    result = run("karel", "--out", tmp_path / "x", *SMALL, "--largest", 40)
    assert isinstance(result.exception, InputError)
    assert not list(tmp_path.rglob("*.jsonl*"))


def test_files_are_checked(folder: Path):
    result = run("check", folder / "train.jsonl", folder / "val.jsonl")
    assert result.exit_code == 0, result.output
    assert "reproduced: 72 of 72 examples" in result.stdout
    assert "val.jsonl: 4 programs of" in result.stdout


def test_wrong_examples_and_bad_lines_are_found(folder: Path, tmp_path: Path):
    lines = (folder / "train.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["program_tokens"] = ["DEF", "run", "m(", "turnLeft", "turnRight", "m)"]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([json.dumps(first), *lines[1:3], "{}"]))
    result = run("check", path)
    assert isinstance(result.exception, InputError)
    assert "line 4: program_tokens" in str(result.exception)
    result = run("check", path, "--skip-bad")
    assert "bad lines: 1, the first: " in result.stdout
    assert "reproduced: 12 of 18 examples" in result.stdout
    assert isinstance(result.exception, InputError)
    assert "6 examples are not what their programs do" in str(result.exception)
