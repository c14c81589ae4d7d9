"""What an export writes, what it refuses, and that it is there whole or not at all."""

import json
import os
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import safetensors.numpy
import torch

from corollout.data import Columns
from corollout.errors import InputError
from corollout.export import export_run, runtime, write_export
from corollout.policies import TreeHead
from corollout.rollouts import Engine
from corollout.rollouts.decoding import decode
from corollout.tasks.captioning.settings import ModelSettings
from corollout.tasks.captioning.task import CaptionTask
from corollout.tasks.captioning.vocabulary import Vocabulary
from corollout.training import start as jobs
from corollout.training.checkpoints import write_weights
from corollout.training.runs import Run
from corollout.training.settings import MachineSettings, PretrainSettings
from corollout.trees import huffman_tree, save_tree
from corollout.types import Sampler
from tests.support.enumeration import TablePolicy
from tests.support.random_captioners import TREES, WORDS, captioner
from tests.support.small_captions import small_run

NAMES = ["model.json", "weights.safetensors", "vocabulary.txt", "runtime.py"]


@pytest.fixture(scope="module")
def softmax_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def tree_run(softmax_run: Path) -> Path:
    """Another run on the same data, whose head is a tree; its weights are random, and it has no checkpoint."""
    folder = softmax_run.parent
    task, _ = jobs.open_run(softmax_run)
    save_tree(folder / "tree.safetensors", huffman_tree(1.3 ** -np.arange(len(task.words))), "Huffman", task.words)
    model, run = ModelSettings(embedding=16, hidden=32), folder / "tree-run"
    arguments = "captions", folder / "data", model, PretrainSettings(), MachineSettings()
    jobs.new_pretraining(run, *arguments, tree=folder / "tree.safetensors")
    policy = jobs.module(task_with_tree(run))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(5)
    write_weights(run / "best.safetensors", policy.state_dict(), {"update": "17"})
    return run


def task_with_tree(run: Path) -> Engine:
    engine = CaptionTask(run.parent / "data", ModelSettings(embedding=16, hidden=32, head="tree")).engine(3)
    assert isinstance(engine.head, TreeHead)
    engine.head.plant(huffman_tree(1.3 ** -np.arange(engine.head.tree.size)))
    return engine


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
    # Read by us as by others, and nothing more than is needed.
    arrays = safetensors.numpy.load(files["weights.safetensors"])
    own = runtime.read_safetensors(written.folder / "weights.safetensors")
    assert own.keys() == arrays.keys() == runtime._shapes(model).keys()
    assert all(np.array_equal(own[name], arrays[name]) and own[name].dtype == arrays[name].dtype for name in own)
    state = jobs.module(engine).state_dict()
    assert np.array_equal(own["bias"], state["bias"].sum(0).numpy())
    if tree is not None:
        assert np.array_equal(own["children"], tree.children)
        assert np.array_equal(own["node.weight"], state["head.weight"].numpy())


def test_doubles_become_floats(tmp_path: Path):
    engine = captioner(TREES["balanced"])
    jobs.module(engine).double()
    write_export(tmp_path / "out", engine, WORDS)
    arrays = safetensors.numpy.load_file(tmp_path / "out" / "weights.safetensors")
    assert {str(array.dtype) for array in arrays.values()} == {"float32", "int32"}


def test_an_earlier_export_is_replaced(tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()  # an empty folder may be written to
    write_export(out, captioner(None), WORDS)
    (out / "__pycache__").mkdir()  # as a use of it leaves
    for name in ("new", "old"):  # what a process that was killed leaves
        (tmp_path / f".temporary-{name}-out").mkdir()
        (tmp_path / f".temporary-{name}-out" / "weights.safetensors").write_text("torn")
    write_export(out, captioner(TREES["balanced"]), WORDS)
    assert sorted(contents(out)) == sorted(NAMES)
    assert runtime.Captioner.load(out, compiled=False).model["head"] == "tree"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_export_that_fails_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "out"
    write_export(out, captioner(None), WORDS)
    before, calls = contents(out), []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write the export .*out: No space left on device"):
        write_export(out, captioner(TREES["balanced"]), WORDS)
    assert contents(out) == before


@pytest.mark.parametrize("there", ["file", "folder", "model of another kind"])
def test_nothing_else_is_overwritten(there: str, tmp_path: Path, softmax_run: Path):
    out = tmp_path / "out"
    if there == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / ("model.json" if "model" in there else "notes.txt")).write_text('{"kind": "mine"}')
    for export in (
        lambda: write_export(out, captioner(None), WORDS),
        lambda: export_run(softmax_run, out),
    ):
        with pytest.raises(InputError, match="is no folder" if there == "file" else "holds something else"):
            export()
    assert out.is_file() or len(contents(out)) == 1


def test_what_cannot_be_exported_is_a_sentence(tmp_path: Path, softmax_run: Path, tree_run: Path):
    broken = captioner(None)
    with torch.no_grad():
        jobs.module(broken).get_parameter("output")[3, 2] = torch.nan
    config = {"task": "karel", "data": {"folder": "nowhere"}}
    Run.create(tmp_path / "karel", config).close()
    fresh = tmp_path / "fresh"
    settings = PretrainSettings(), MachineSettings()
    jobs.new_pretraining(fresh, "captions", softmax_run.parent / "data", ModelSettings(), *settings)
    (tmp_path / "file").write_text("in the way")
    for export, said in (
        (lambda: write_export(tmp_path / "out", captioner(None), WORDS[1:]), "has 120 tokens, but there are 119 words"),
        (lambda: write_export(tmp_path / "out", broken, WORDS), "'output' are not all finite numbers"),
        (
            lambda: write_export(tmp_path / "out", Engine(TablePolicy(3, 2), bos=0, eos=0, max_length=2), WORDS),
            "only captioners are exported, not a TablePolicy",
        ),
        (lambda: write_export(tmp_path / "file" / "out", captioner(None), WORDS), "cannot write the export .*file/out"),
        (lambda: export_run(tmp_path / "karel", tmp_path / "out"), "is a run of the task 'karel'"),
        (lambda: export_run(tmp_path / "nothing", tmp_path / "out"), "holds no run"),
        (lambda: export_run(fresh, tmp_path / "out"), "cannot read the weights .*best.safetensors"),
        (lambda: export_run(tree_run, tmp_path / "out", "last"), "has no checkpoint yet"),
        (lambda: export_run(tree_run, tmp_path / "out", str(softmax_run / "best.safetensors")), "do not fit"),
    ):
        with pytest.raises(InputError, match=said):
            export()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("head", ["softmax", "tree"])
def test_a_run_says_the_same_when_it_is_exported(head: str, softmax_run: Path, tree_run: Path, tmp_path: Path):
    run = softmax_run if head == "softmax" else tree_run
    task, engine = jobs.open_run(run)
    assert isinstance(task, CaptionTask)
    written = export_run(run, tmp_path / "out")
    assert written.model["source"]["run"] == str(run)
    ours = runtime.Captioner.load(written.folder, compiled=False)
    columns: Columns = task.train.columns
    ids = task.train.data.ids
    given = task.train.data.features(np.arange(len(ids)))
    beams = [[one.tokens for one in group] for group in ours.beams(given, 3)]
    assert beams == decode(engine, columns, Sampler("beam", 3), seed=2)
    modes: list[Literal["greedy", "sample"]] = ["greedy", "sample"]
    for mode in modes:
        found = [[one.tokens] for one in ours.generate(given, mode, seed=2, ids=ids)]
        assert found == decode(engine, columns, Sampler(mode), seed=2)
        texts = [one.text for one in ours.generate(given, seed=2)]
        assert texts == [task.data.vocabulary.text(one[0]) for one in decode(engine, columns, Sampler("greedy"))]


def test_which_weights(softmax_run: Path, tree_run: Path, tmp_path: Path):
    last = export_run(softmax_run, tmp_path / "last", "last").model
    updates = Run.open(softmax_run).records("update")
    assert (last["source"]["weights"], last["source"]["update"]) == ("last", updates[-1]["update"])
    assert export_run(tree_run, tmp_path / "tree").model["source"]["update"] == 17
    # A file that somebody else wrote says nothing about updates.
    state = jobs.module(jobs.open_run(softmax_run)[1]).state_dict()
    file = tmp_path / "other.safetensors"
    file.write_bytes(safetensors.numpy.save({name: tensor.numpy() for name, tensor in state.items()}))
    other = export_run(softmax_run, tmp_path / "other", str(file))
    assert (other.model["source"]["weights"], other.model["source"]["update"]) == (str(file), None)
    assert other.model["digests"] == export_run(softmax_run, tmp_path / "best").model["digests"]
