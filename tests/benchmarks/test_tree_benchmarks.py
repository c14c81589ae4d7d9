"""The benchmarks of heads and of the runtime at tiny sizes: what is wrong is noticed, counts are right. No timing."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.progress import Progress

from benchmarks import runtime, runtime_worker, tree_head
from benchmarks.runtime_worker import COMPILED, PLAIN, PYTORCH
from benchmarks.tree_head import BALANCED, HUFFMAN, QUICK, SOFTMAX_HEAD
from corollout.export.runtime import Captioner
from corollout.policies import TreeHead
from corollout.trees import balanced_tree, entropy, huffman_tree

# tree_head


def test_biases_give_tokens_their_probabilities():
    p = np.random.default_rng(0).random(37)
    p /= p.sum()
    for tree in (balanced_tree(37), huffman_tree(p)):
        head = tree_head.tree_head(tree, 4, p)
        assert np.allclose(head.all_log_probs(torch.zeros(1, 4)).exp().detach().numpy(), p)


@pytest.mark.parametrize("wrong", ["biases", "walks"])
def test_a_wrong_tree_is_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch):
    tree_head.check(QUICK)
    if wrong == "biases":
        monkeypatch.setattr(tree_head, "node_biases", lambda tree, p: np.zeros(tree.size - 1))
    else:
        choose = TreeHead.choose
        monkeypatch.setattr(TreeHead, "choose", lambda self, x, *rest: choose(self, -x, *rest))
    with pytest.raises(AssertionError, match="Zipf" if wrong == "biases" else "walks end where they should"):
        tree_head.check(QUICK)


def test_measurements_of_heads():
    with Progress(disable=True) as progress:
        measured = {name: tree_head.measure(name, 400, QUICK, progress) for name in tree_head.HEADS}
    p = tree_head.zipf(400)
    assert measured[SOFTMAX_HEAD].depth == measured[SOFTMAX_HEAD].decisions == 400
    assert measured[BALANCED].depth == 9
    assert measured[BALANCED].expected == pytest.approx(balanced_tree(400).depths.mean())
    assert entropy(p) <= measured[HUFFMAN].expected < entropy(p) + 1
    for name in (BALANCED, HUFFMAN):
        assert measured[name].decisions == pytest.approx(measured[name].expected, abs=1)
    # About as much work for each head, whole batches, and no more states than there are.
    assert measured[SOFTMAX_HEAD].tokens == {(1, way): 15 for way in tree_head.WAYS} | {
        (8, way): 8 for way in tree_head.WAYS
    }
    assert set(measured[BALANCED].tokens.values()) == {64}
    summary = tree_head.summary(measured, QUICK, [(8, "greedy")])[BALANCED]
    assert summary["multiply_adds_of_the_softmax_over_these"] == 400 / measured[BALANCED].decisions
    seconds = [one.timings[8, "greedy"].median for one in (measured[SOFTMAX_HEAD], measured[BALANCED])]
    assert summary["speedup"]["batch 8, greedy"] == pytest.approx(seconds[0] / 8 / (seconds[1] / 64))


# runtime


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runtime")
    runtime.make_folder(folder, "softmax", runtime.QUICK)
    return folder


def test_pytorch_has_the_weights_of_the_export(folder: Path):
    features = np.load(folder / "features.npy")
    theirs, ours = runtime_worker.load_pytorch(folder), Captioner.load(folder, compiled=False)
    for mode in runtime_worker.MODES:
        assert theirs(features, mode) == [one.tokens for one in ours.generate(features, mode)]


def test_a_contestant_is_a_process_that_reports_its_error(folder: Path):
    measured = runtime.measured(PLAIN, folder, runtime.QUICK)
    assert 0 < measured["resident_after_import"] <= measured["peak"]
    assert measured["captions"].keys() == measured["seconds"].keys()
    assert [len(seconds) for seconds in measured["seconds"].values()] == [2] * 4
    with pytest.raises(AssertionError, match=r"(?s)'nobody' failed: .*KeyError"):
        runtime.measured("nobody", folder, runtime.QUICK)


def report(**changed: Any) -> dict[str, Any]:
    parts = {"import": 0.5, "load": 1.0, "first": 1.0, "resident_after_import": 1.0, "resident": 100.0, "peak": 1.0}
    cases = [f"{mode}, batch {batch}" for batch in runtime.QUICK.batches for mode in runtime_worker.MODES]
    captions = {case: [[1, 2], [1, 2, 3, 4, 5, 6]] for case in cases}
    return {**parts, "seconds": {case: [0.5, 1.5] for case in cases}, "captions": captions, **changed}


def test_measurements_of_the_runtime(monkeypatch: pytest.MonkeyPatch):
    answers = {
        PYTORCH: report(**{"import": 2.0, "resident": 300.0}),
        PLAIN: report(),
        COMPILED: report(first=7.0),
    }
    calls: list[str] = []

    def measured(name: str, folder: Path, sizes: runtime.Sizes) -> dict[str, Any]:
        calls.append(name)
        # The first round is slow.
        slow = len(calls) <= 3
        return {**answers[name], "first": 60.0} if slow else answers[name]

    monkeypatch.setattr(runtime, "measured", measured)
    monkeypatch.setattr(runtime, "QUICK", runtime.QUICK._replace(rounds=3))
    with Progress(disable=True) as progress:
        result = runtime.run(True, progress)
    assert calls == [PYTORCH, PLAIN, COMPILED] * 3
    tree = result["measurements"]["tree"]
    assert (tree[COMPILED]["first"], tree[COMPILED]["first_in_the_first_round"]) == (7.0, 60.0)
    # Three tokens with the end, and six of a caption that was cut.
    assert set(tree[PLAIN]["tokens_a_second"].values()) == {9.0}
    assert [len(timing["seconds"]) for timing in result["timings"]] == [4] * 12
    assert [target["measured"] for target in result["targets"]] == [4.0, 3.0]
    assert tree["equal_captions"] == 1.0


def test_other_captions_are_noticed():
    other = copy.deepcopy(report())
    other["captions"]["sample, batch 4"][1] = [9]
    with pytest.raises(AssertionError, match=r"only 87\.5% of the captions"):
        runtime.equal_share({PYTORCH: report(), PLAIN: report(), COMPILED: other})
