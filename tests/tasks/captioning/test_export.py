"""Exports are complete or absent, and generate what the run generates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from corollout.export import export_run, runtime
from corollout.policies import TreeHead
from corollout.rollouts import Engine
from corollout.rollouts.decoding import decode
from corollout.tasks.captioning.export import write_export
from corollout.tasks.captioning.settings import ModelSettings
from corollout.tasks.captioning.task import CaptionTask
from corollout.tasks.captioning.vocabulary import Vocabulary
from corollout.training.run_weights import open_run
from corollout.training.runs import Run
from corollout.training.settings import MachineSettings, PretrainSettings
from corollout.training.start import create_pretraining, policy_module
from corollout.trees import huffman_tree, save_tree
from corollout.types import Sampler
from corollout.weights import write_weights
from tests.support.commands import output
from tests.support.enumeration import TablePolicy
from tests.support.errors import refused
from tests.support.random_captioners import TREES, WORDS, captioner
from tests.support.small_captions import small_run

NAMES = ["model.json", "weights.safetensors", "vocabulary.txt", "runtime.py"]


@pytest.fixture(scope="module")
def softmax_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def tree_run(softmax_run: Path) -> Path:
    """A run on the same data with a tree head, random weights and no checkpoint."""
    folder = softmax_run.parent
    task, _ = open_run(softmax_run)
    assert isinstance(task, CaptionTask)
    save_tree(folder / "tree.safetensors", huffman_tree(1.3 ** -np.arange(len(task.tokens))), "Huffman", task.tokens)
    model, run = ModelSettings(embedding=16, hidden=32), folder / "tree-run"
    arguments = "captions", folder / "data", model, PretrainSettings(), MachineSettings()
    create_pretraining(run, *arguments, tree=folder / "tree.safetensors")
    engine = CaptionTask(folder / "data", ModelSettings(embedding=16, hidden=32, head="tree")).engine(3)
    assert isinstance(engine.head, TreeHead)
    engine.head.plant(huffman_tree(1.3 ** -np.arange(engine.head.tree.size)))
    state = policy_module(engine).state_dict()
    large = {name: 5 * tensor if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    write_weights(run / "best.safetensors", large, {"update": "17"})
    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", list(TREES))
def test_what_is_written(name: str, tmp_path: Path):
    engine, tree = captioner(TREES[name]), TREES[name]
    written = write_export(tmp_path / "deep" / "out", engine, WORDS, {"note": "mine"})
    files = contents(written.folder)
    assert list(written.sizes.items()) == [(name, len(files[name])) for name in NAMES]
    assert len(files) == len(NAMES)
    assert files["runtime.py"] == Path(runtime.__file__).read_bytes()
    model = json.loads(files["model.json"])
    assert model == written.model
    assert model["sizes"] == {"vocabulary": 120, "features": 10, "embedding": 12, "hidden": 24}
    assert (model["head"], model["depth"]) == (("softmax", None) if tree is None else ("tree", tree.depth))
    assert (model["bos"], model["eos"], model["longest"], model["source"]["note"]) == (0, 0, 9, "mine")
    assert Vocabulary.load(written.folder / "vocabulary.txt").words == WORDS
    # The runtime reads what safetensors reads, and all of it is needed.
    arrays = safetensors.numpy.load(files["weights.safetensors"])
    own = runtime.read_safetensors(written.folder / "weights.safetensors")
    assert own.keys() == arrays.keys() == runtime._shapes(model).keys()
    assert all(np.array_equal(own[name], arrays[name]) and own[name].dtype == arrays[name].dtype for name in own)


def test_an_export_is_complete_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out, calls = tmp_path / "out", []
    engine = captioner(TREES["balanced"])
    policy_module(engine).double()

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused(
            "cannot write the folder .*out: the disk is full, and nothing",
            write_export,
            out,
            engine,
            WORDS,
        )
    assert not out.exists()
    (out / ".temporary-staging.0123456789ab").mkdir(parents=True)  # left by a killed process
    write_export(out, engine, WORDS)
    arrays = safetensors.numpy.load_file(out / "weights.safetensors")
    assert {str(array.dtype) for array in arrays.values()} == {"float32", "int32"}
    assert sorted(contents(out)) == sorted(NAMES)
    assert runtime.Captioner.load(out, compiled=False).model["head"] == "tree"
    before = contents(out)
    refused("is not empty: choose another with --out", write_export, out, captioner(None), WORDS)
    assert contents(out) == before


def test_nothing_is_overwritten(tmp_path: Path, softmax_run: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for place, message in ((out, "is not empty"), (out / "notes.txt", "is not a folder|Not a directory")):
        refused(message, write_export, place, captioner(None), WORDS)
        refused(message, export_run, softmax_run, place)
    assert contents(out) == {"notes.txt": b"mine"}


def test_errors(tmp_path: Path, softmax_run: Path, tree_run: Path):
    broken = captioner(None)
    with torch.no_grad():
        policy_module(broken).get_parameter("output")[3, 2] = torch.nan
    Run.create(tmp_path / "karel", {"task": "karel", "data": {"folder": "nowhere"}}).close()
    fresh, data = tmp_path / "fresh", softmax_run.parent / "data"
    create_pretraining(fresh, "captions", data, ModelSettings(), PretrainSettings(), MachineSettings())
    (tmp_path / "file").write_text("in the way")
    table = Engine(TablePolicy(3, 2), bos=0, eos=0, max_length=2)
    out, other = tmp_path / "out", str(softmax_run / "best.safetensors")
    refused("has 120 tokens, but there are 119 words", write_export, out, captioner(None), WORDS[1:])
    refused("'output' are not all finite", write_export, out, broken, WORDS)
    refused("only captioners can be exported, not a TablePolicy", write_export, out, table, WORDS)
    refused("cannot write to the folder .*file/out", write_export, tmp_path / "file" / "out", captioner(None), WORDS)
    refused("is a run of the task 'karel'", export_run, tmp_path / "karel", out)
    refused("is not a run directory", export_run, tmp_path / "nothing", out)
    refused("cannot read the weights .*best.safetensors", export_run, fresh, out)
    refused("has no checkpoint yet", export_run, tree_run, out, "last")
    refused("does not fit", export_run, tree_run, out, other)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("head", ["softmax", "tree"])
def test_a_run_says_the_same_when_it_is_exported(head: str, softmax_run: Path, tree_run: Path, tmp_path: Path):
    run = softmax_run if head == "softmax" else tree_run
    task, engine = open_run(run)
    assert isinstance(task, CaptionTask)
    written = export_run(run, tmp_path / "out")
    assert written.model["source"]["run"] == run.name
    ours = runtime.Captioner.load(written.folder, compiled=False)
    columns, ids = task.train.columns, task.train.data.ids
    given = task.train.data.features(np.arange(len(ids)))
    beams = [[one.tokens for one in group] for group in ours.beams(given, 3)]
    assert beams == decode(engine, columns, Sampler("beam", 3), seed=2)
    samples = [[one.tokens] for one in ours.generate(given, "sample", seed=2, ids=ids)]
    assert samples == decode(engine, columns, Sampler(), seed=2)
    greedy = decode(engine, columns, Sampler("greedy"))
    assert [one.text for one in ours.generate(given)] == [task.data.vocabulary.text(one[0]) for one in greedy]


def test_which_weights(softmax_run: Path, tree_run: Path, tmp_path: Path):
    last = export_run(softmax_run, tmp_path / "last", "last").model
    updates = Run.open(softmax_run).records("update")
    assert (last["source"]["weights"], last["source"]["update"]) == ("last", updates[-1]["update"])
    assert export_run(tree_run, tmp_path / "tree").model["source"]["update"] == 17
    # A file from elsewhere does not know its update.
    state = policy_module(open_run(softmax_run)[1]).state_dict()
    file = tmp_path / "other.safetensors"
    file.write_bytes(safetensors.numpy.save({name: tensor.numpy() for name, tensor in state.items()}))
    other = export_run(softmax_run, tmp_path / "other", str(file))
    assert (other.model["source"]["weights"], other.model["source"]["update"]) == (file.name, None)
    assert other.model["digests"] == export_run(softmax_run, tmp_path / "best").model["digests"]


def test_what_the_command_prints(softmax_run: Path, tmp_path: Path):
    out = tmp_path / "a folder"
    printed = output("export", softmax_run, "--out", out)
    assert f"{softmax_run} (best weights, after update " in printed
    rows = [line.split() for line in printed.splitlines()]
    assert all([path.name, f"{path.stat().st_size:,}"] in rows for path in out.iterdir())
    command = printed.splitlines()[-1].partition("python ")[2]
    done = subprocess.run(f"{sys.executable} {command}", shell=True, capture_output=True, text=True, check=True)
    assert "--features" in done.stdout
