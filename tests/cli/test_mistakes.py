"""Mistakes on the command line: one sentence that says what is wrong, where, and what to do; and nothing is left."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from corollout.config import options_of
from corollout.errors import InputError
from corollout.files import os_errors
from corollout.tasks.captioning.scenes import make_scenes
from corollout.tasks.karel.generator import make_data
from corollout.training.settings import MachineSettings, PretrainSettings
from corollout.training.start import create_pretraining, resume_run
from tests.reliability.altered_commands import commands
from tests.support.commands import invoke, output, refusal
from tests.support.small_karel import DATA, MODEL

FEW = ("--unit", "updates", "--budget", 2, "--evaluate-every", 1, "--batch-size", 2, "--threads", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    make_data(folder / "data", DATA, workers=1)
    teach = PretrainSettings(learning_rate=1e-2, batch_size=4, epochs=1)
    create_pretraining(folder / "run", "karel", folder / "data", MODEL, teach, MachineSettings())
    resume_run(folder / "run")
    make_scenes(folder / "captions", {"train": 4, "val": 2, "test": 2}, seed=0)
    return folder


@pytest.fixture(autouse=True)
def unchanged(folder: Path):
    """No mistake leaves anything behind."""
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    yield
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "cannot compute on the device 'cuda': PyTorch finds no GPU that it can use with CUDA; choose cpu"),
        ("cuda:7", "cannot compute on the device 'cuda:7': PyTorch finds no GPU that it can use with CUDA; choose cpu"),
        ("tpu", "there is no device 'tpu': choose cpu, cuda, or a GPU by its number, as cuda:1"),
        ("meta", "cannot compute on the device 'meta': this PyTorch or this machine cannot use meta; choose cpu"),
    ],
)
def test_a_device_that_is_not_there(folder: Path, device: str, message: str) -> None:
    run, data, new = folder / "run", folder / "data", folder / "new"
    lines = {
        "pretrain karel": ["pretrain", "karel", "--data", data, "--out", new],
        "pretrain captions": ["pretrain", "captions", "--data", folder / "captions", "--out", new],
        "finetune": ["finetune", run, "--out", new, *FEW],
        **{name: [name, run] for name in ("evaluate", "generate", "inspect", "lab")},
        "data features": ["data", "features", "--images", folder, "--out", folder / "x.npy"],
        "reproduce table1": ["reproduce", "table1", "--out", new],
        "reproduce table2": ["reproduce", "table2", "--out", new],
        "reproduce curves-karel": ["reproduce", "curves-karel", "--out", new],
        "reproduce curves-captions": ["reproduce", "curves-captions", "--out", new],
    }
    having = {name for name, cls in commands().items() if any(option.name == "device" for option in options_of(cls))}
    assert having == set(lines)
    for line in lines.values():
        assert refusal(*line, "--device", device).startswith(message)


@pytest.mark.parametrize("option", ["--budget", "--learning-rate", "--evaluate-every"])
def test_numbers_that_are_none(folder: Path, option: str) -> None:
    line = ["finetune", folder / "run", "--out", folder / "new", *FEW, option]
    for value, message in {
        "inf": "must be a finite number, not inf",
        "nan": "must be a finite number, not nan",
        "1e400": "is too large a number: 1e400",
        "0": "must be positive, not 0",
        "-1": "must be positive, not -1",
        "1e-300": "must be at least 1e-09, not 1e-300",
        "much": 'must be a number, not "much"',
    }.items():
        assert refusal(*line, value) == f"{option} {message}"


def test_a_negative_number_in_the_name_of_an_estimator(folder: Path) -> None:
    line = ["finetune", folder / "run", "--out", folder / "new", *FEW, "--estimator"]
    assert refusal(*line, "arsm:budget=-5") == "ARS needs budget ≥ 1, not -5"


def test_no_program_fits(folder: Path) -> None:
    file = folder / "data" / "train.jsonl"
    lengths = [len(json.loads(line)["program_tokens"]) for line in file.read_text().splitlines()]
    line = ["pretrain", "karel", "--data", folder / "data", "--out", folder / "new", "--max-length"]
    assert refusal(*line, min(lengths)) == (
        f"no program of {file} fits into --max-length {min(lengths)} with its end token: the shortest has "
        f"{min(lengths)} tokens; set it to {max(lengths) + 1} for all programs to fit"
    )


def test_data_that_was_moved(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    config = (tmp_path / "run" / "config.toml").read_text()
    gone = tmp_path / "gone"
    (tmp_path / "run" / "config.toml").write_text(config.replace(str(folder / "data"), str(gone)))
    (tmp_path / "run" / "summary.json").unlink()
    run = tmp_path / "run"
    moved = f"the data of {run} is not at {gone} any more: move it back, or "
    advice = f"correct the entry folder in section data of {run / 'config.toml'}"
    for line in (["evaluate", run], ["generate", run], ["inspect", run], ["lab", run]):
        assert refusal(*line) == moved + "name its new place with --data"
        assert "cannot compute on the device 'cuda:99'" in refusal(
            *line, "--data", folder / "data", "--device", "cuda:99"
        )
        assert f"there is no data at {gone}" in refusal(*line, "--data", gone)
    assert "Generalization" in output("evaluate", run, "--beam", 0, "--data", folder / "data", "--device", "cpu")
    (run / "evaluation-test.json").unlink()
    assert refusal("pretrain", "karel", "--resume", "--out", run) == moved + advice
    assert refusal("finetune", run, "--out", tmp_path / "new", *FEW) == moved + "name its new place with --data"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    os.symlink(folder / "data", gone)
    assert "Generalization" in output("evaluate", run, "--beam", 0)


def test_a_run_of_no_kind(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    text = config.read_text()
    missing = 'its config.toml has no entry "kind" ("pretrain" or "finetune"), and no section "fit" of a call of fit'
    wrong = """the entry "kind" of its config.toml is 'trial', and must be "pretrain" or "finetune\""""
    for entry, said in (("", missing), ('kind = "trial"', wrong)):
        config.write_text(text.replace('kind = "pretrain"', entry))
        assert refusal("compare", tmp_path / "run", "--out", tmp_path / "new") == (
            f"{tmp_path / 'run'} is not a training run: {said}"
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no complete evaluation in metrics.jsonl: resume it, or leave it out"),
        (b'{"kind": "evalua', "has no complete evaluation in metrics.jsonl: resume it, or leave it out"),
        (b"\xff\xfe\x00garbage\n", "line 1 is damaged: it is not valid JSON"),
        (b"[1]\n", "line 1 is damaged: it is not a JSON object"),
        (b'{"kind": "evaluation", "update": "x"}\n', "is damaged: its entry 'update' is missing or wrong"),
    ],
)
def test_damaged_metrics(folder: Path, tmp_path: Path, content: bytes, message: str) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(content)
    assert message in refusal("compare", tmp_path / "run", "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("encoding", "where"), [("utf-16", "it seems to be UTF-16"), ("latin-1", "line 1, byte ")])
def test_other_encodings(folder: Path, tmp_path: Path, encoding: str, where: str) -> None:
    texts = {"a.json": '{"é": 1}', "a.toml": "# é", "token.txt": "é.jpg#0\ta dog", "program": "DEF é"}
    paths = {name: tmp_path / name for name in texts}
    for name, text in texts.items():
        paths[name].write_bytes(text.encode(encoding))
    data = ["--data", folder / "data", "--out", folder / "new"]
    for name, line in {
        "a.json": ["score", "--refs", paths["a.json"], "--hyps", paths["a.json"]],
        "a.toml": ["pretrain", "karel", *data, "--config", paths["a.toml"]],
        "program": ["karel", "run", f"@{paths['program']}", "--world", paths["a.json"]],
    }.items():
        said = refusal(*line)
        assert re.match(r"cannot read (the settings )?\S+: it is not UTF-8 text \(", said), name
        assert where in said
        assert said.endswith("save it as UTF-8")
    paths["token.txt"].write_bytes("é 1 2".encode("utf-16"))
    build = ["tree", "build", "--data", folder / "captions", "--out", folder / "new", "--from"]
    assert "they seem to be UTF-16; save them as UTF-8" in refusal(*build, f"vectors:{paths['token.txt']}")


def test_folders_for_files_and_files_for_folders(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    build = ["tree", "build", "--data", folder / "captions", "--from", "huffman", "--out"]
    assert refusal(*build, file / "below") == f"{file} is not a folder: choose another with --out"
    assert refusal("tree", "show", folder) == (
        f"cannot read the tree {folder}: it is a folder, not a file of `corollout tree build`"
    )
    for line in (["data", "karel"], ["data", "captions", "--generate"], ["compare", folder / "run"]):
        assert refusal(*line, "--out", file).endswith("Not a directory; choose another with --out")
    assert refusal("evaluate", file) == f"{file} is not a run directory: it has no config.toml"


def test_a_full_disk_is_called_so() -> None:
    for error in (OSError(errno.ENOSPC, "No space left on device"), OSError("13001 requested and 5616 written")):
        with pytest.raises(InputError) as caught, os_errors("write out/.temporary-staging.0123456789ab/x", "go away"):
            raise error
        full = "cannot write out/x: the disk is full, and nothing half-written is left; make room, or go away"
        assert str(caught.value) == full
    with (
        pytest.raises(InputError, match="cannot write x: Permission denied; go away"),
        os_errors("write x", "go away"),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["data", "check", "data"]])
def test_standard_output_on_a_full_disk(folder: Path, arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "corollout", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "error: cannot use standard output: the disk is full\n")


def test_help_has_no_types_of_python_and_no_default_of_a_scale_that_is_none() -> None:
    for words in ("evaluate", "compare", "karel run", "finetune", "pretrain karel", "tree build"):
        text = " ".join(output(*words.split(), "--help").split())
        assert not re.search(r"<str>|list\[|\{\w+\}|range>|…\.", text), words
    assert "--from <source> What to build the tree from" in text
    assert "[required]" in text.split("--method")[0]
    text = " ".join(output("pretrain", "karel", "--help").split())
    assert "--hidden <int> Width of the LSTM. [default: from the scale, otherwise 256]" in text
    assert "--seed <int> Seed of the weights and of the order of examples. [default: 0]" in text
    text = " ".join(output("finetune", "--help").split())
    assert "How long to train, in that unit. [default: from the scale of RUN, otherwise 10000]" in text
    assert "--device <text> Where to compute: cpu, cuda, cuda:1 and so on. [default: cpu]" in text
    assert "…" not in invoke("--help", columns=80).output
