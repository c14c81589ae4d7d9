"""Captioners with a tree for a head, from pre-training to fine-tuning, in run directories."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corollout.errors import InputError
from corollout.inspection.credit import inspect_run
from corollout.inspection.settings import InspectSettings
from corollout.policies import TreeHead
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.settings import ModelSettings, TreeSettings
from corollout.tasks.captioning.trees import build_tree
from corollout.tasks.karel.settings import ModelSettings as KarelModel
from corollout.training.run_weights import open_run
from corollout.training.runs import Run
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings
from corollout.training.start import TREE, create_finetuning, create_pretraining, resume_run
from corollout.trees import balanced_tree, save_tree
from corollout.weights import read_weights
from tests.support.small_captions import small_run

MODEL = ModelSettings(embedding=16, hidden=32, dropout=0.0)
TEACHING = PretrainSettings(learning_rate=2e-2, batch_size=15, epochs=12, evaluate_every=6, ema_decay=0.9)
TUNING = FinetuneSettings(
    estimator="bt-disarm",
    learning_rate=1e-3,
    batch_size=4,
    unit="updates",
    budget=6.0,
    evaluate_every=3.0,
    reward="cider-d",
    train_eval_examples=4,
)


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def data(softmax: Path) -> Path:
    return softmax.parent / "data"


@pytest.fixture(scope="module")
def tree(softmax: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    opened = CaptionData.open(data)
    built, builder = build_tree(opened, TreeSettings(f"run:{softmax}"))
    path = tmp_path_factory.mktemp("tree") / "tree.safetensors"
    save_tree(path, built, builder, opened.vocabulary.known)
    return path


@pytest.fixture(scope="module")
def run(data: Path, tree: Path) -> Path:
    directory = tree.with_name("run")
    create_pretraining(directory, "captions", data, MODEL, TEACHING, MachineSettings(), tree=tree)
    resume_run(directory)
    return directory


def head_of(directory: Path) -> TreeHead:
    head = open_run(directory)[1].head
    assert isinstance(head, TreeHead)
    return head


def test_a_tree_is_copied_into_the_run_and_comes_with_its_weights(run: Path, tree: Path, data: Path):
    built, _ = build_tree(CaptionData.open(data), TreeSettings(f"run:{Path(data).parent / 'run'}"))
    assert built != balanced_tree(built.size)
    assert (run / TREE).read_bytes() == tree.read_bytes()
    assert head_of(run).tree == built
    assert Run.open(run).config["model"]["head"] == "tree"
    weights, _ = read_weights(run / "best.safetensors")
    assert "output" not in weights
    assert np.array_equal(weights["head.below"].numpy(), built.children)


def test_a_tree_model_learns(run: Path):
    scores = [record["cider"] for record in Run.open(run).records("evaluation")]
    assert max(scores[1:]) > scores[0] + 0.2


@pytest.mark.parametrize(
    "estimator", ["bt-arsm", "bt-disarm:budget=20", "bt-sc", "bt-rloo", "reinforce", "mc-2", "pairs"]
)
def test_a_tree_model_is_fine_tuned(run: Path, tmp_path: Path, estimator: str):
    create_finetuning(tmp_path / "tuned", run, replace(TUNING, estimator=estimator), MachineSettings())
    summary = resume_run(tmp_path / "tuned")
    assert summary["updates"] == 6
    assert head_of(tmp_path / "tuned").tree == head_of(run).tree
    records = Run.open(tmp_path / "tuned").records("update")
    depth = head_of(run).tree.depth
    branching = estimator.startswith(("bt-arsm", "bt-disarm"))
    for record in records:
        assert len(record["rollouts_by_depth"]) == depth
        total = sum(share > 0 for share in record["rollouts_by_depth"])
        assert total > 0 if branching else True
        assert 0 <= max(record["rollouts_by_depth"]) <= 1  # a decision has one opposite
    before, after = (read_weights(where / "best.safetensors")[0] for where in (run, tmp_path / "tuned"))
    assert torch.equal(before["head.below"], after["head.below"])


def test_a_choice_and_light_probes_are_recorded(run: Path, tmp_path: Path):
    beside = " bt-rloo-2;pairs:per_step=0.5, samples=2; "
    settings = replace(TUNING, estimator="auto:estimates=2", probe_every=4, probes=beside)
    create_finetuning(tmp_path / "tuned", run, settings, MachineSettings())
    heard: list[str] = []
    resume_run(tmp_path / "tuned", lambda event: heard.append(event.kind))
    (choice,), (probe,) = (Run.open(tmp_path / "tuned").records(kind) for kind in ("choice", "probe"))
    assert [kind for kind in heard if kind in ("choice", "probe")] == ["choice", "probe"]
    assert choice["update"] == 0
    assert choice["picked"] in [each["estimator"] for each in choice["seen"]]
    assert choice["picked"] in choice["reason"]
    assert probe["update"] == 4
    assert [each["estimator"] for each in probe["seen"]] == ["in use", "bt-rloo-2", "pairs:per_step=0.5, samples=2"]


def test_a_softmax_records_no_depths(softmax: Path, tmp_path: Path):
    create_finetuning(tmp_path / "tuned", softmax, replace(TUNING, estimator="ars-2"), MachineSettings())
    resume_run(tmp_path / "tuned")
    assert all(record["rollouts_by_depth"] == [] for record in Run.open(tmp_path / "tuned").records("update"))


def test_an_estimate_is_taken_apart(run: Path):
    found = inspect_run(InspectSettings(run, split="train", index=1))
    assert found.estimator == "bt-arsm"
    (main,) = found.mains
    assert main.probability == pytest.approx(np.prod([step.probability for step in main.steps]), rel=1e-4)
    for t, step in enumerate(main.steps):
        assert step.moves == [None, None]  # there is no logit of a word
        words = [branch.token for branch in step.branches]
        assert len(set(words)) == len(words)
        for branch in step.branches:
            assert branch.token not in (step.token, -1)
            assert branch.sequence[: t + 1] == [*main.sequence[:t], branch.token]
    assert found.cost.rollouts > 0


@pytest.mark.parametrize("estimator", ["bt-sc", "bt-rloo-2"])
def test_advantages_of_a_tree_are_those_of_its_rewards(run: Path, estimator: str):
    found = inspect_run(InspectSettings(run, split="train", index=2, estimator=estimator))
    for main in found.mains:
        others = [other.reward for other in found.mains if other is not main]
        branches = [branch.reward for step in main.steps for branch in step.branches]
        baseline = others[0] if others else (branches or [main.reward])[0]
        assert main.advantage == pytest.approx(main.reward - baseline, abs=1e-6)


def test_what_does_not_fit_is_refused_before_anything_is_made(
    run: Path, softmax: Path, data: Path, tree: Path, tmp_path: Path
):
    new = tmp_path / "new"
    size = CaptionData.open(data).vocabulary.size
    save_tree(tmp_path / "small.tree", balanced_tree(size - 1), "balanced")
    save_tree(tmp_path / "strange.tree", balanced_tree(size), "balanced", [f"w{i}" for i in range(size)])

    def pretrain(task: str, model: object, tree: Path | None) -> None:
        create_pretraining(new, task, data, model, TEACHING, MachineSettings(), tree=tree)

    def finetune(start: Path, **settings: Any) -> None:
        create_finetuning(new, start, replace(TUNING, **settings), MachineSettings())

    for action, sentence in [
        (lambda: pretrain("captions", replace(MODEL, head="tree"), None), "a model with a tree head needs a tree"),
        (lambda: pretrain("karel", KarelModel(), tree), "'karel' have no head that could be a tree"),
        (lambda: pretrain("captions", MODEL, tmp_path / "none.tree"), "cannot read the tree"),
        (lambda: pretrain("captions", MODEL, tmp_path / "small.tree"), f"has {size - 1} tokens"),
        (lambda: pretrain("captions", MODEL, tmp_path / "strange.tree"), "of another vocabulary"),
        (lambda: finetune(run, estimator="ars-5"), "ARS-5 needs a softmax head.*tree head: choose one of bt-arsm"),
        (lambda: finetune(softmax), "needs a tree head.*softmax head: choose one of arsm"),
        (lambda: finetune(run, probes="rloo-8;arsm"), "ARSM needs a softmax head"),
        (lambda: finetune(softmax, estimator="auto", probes="bt-arsm"), "needs a tree head"),
        (lambda: finetune(run, probes="rloo-8; nothing-3"), "'nothing-3'"),
    ]:
        with pytest.raises(InputError, match=sentence):
            action()
        assert not new.exists()
