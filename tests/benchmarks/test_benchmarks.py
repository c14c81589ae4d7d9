"""The benchmarks at tiny sizes: opponents agree with ours, counts are right, results are complete. No timing."""

import json
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from rich.progress import Progress
from torch import Tensor
from typer.testing import CliRunner

import corollout
from benchmarks import __main__ as cli
from benchmarks import arsm_scaling, harness, prefix_sharing, pseudo_actions
from benchmarks.harness import Contestant, Target, Timing

MANIFEST = {"command", "commit", "date", "versions", "machine", "load_before", "load_after"}


# pseudo_actions


def brute_force(logits: Tensor, pi: Tensor, references: Tensor) -> Tensor:
    """Exchange π_j and π_m and see who wins, for every j and m."""
    table = torch.empty(len(logits), len(references), logits.shape[1], dtype=torch.int64)
    for k, j in enumerate(references.tolist()):
        for m in range(logits.shape[1]):
            order = torch.arange(logits.shape[1])
            order[j], order[m] = m, j
            table[:, k, m] = (pi[:, order].log() - logits).argmin(1)
    return table


@pytest.mark.parametrize("scale", pseudo_actions.KINDS.values())
@pytest.mark.parametrize("layout", pseudo_actions.LAYOUTS, ids=lambda layout: layout.name)
def test_every_dense_layout_is_right(layout: pseudo_actions.Layout, scale: float):
    logits, pi = pseudo_actions.draw(37, 12, scale)
    for references in (torch.arange(12), pseudo_actions.shared_references(12, 3)):
        expected = brute_force(logits, pi, references)
        assert torch.equal(pseudo_actions.dense_table(logits, pi, references, layout), expected)
        assert torch.equal(corollout.pseudo_actions(logits, pi, references).dense(), expected)


def test_a_wrong_table_is_noticed(monkeypatch: pytest.MonkeyPatch):
    def zeros(phi: Tensor, a: Tensor, references: Tensor, table: Tensor) -> None:
        table.zero_()

    wrong = pseudo_actions.Layout("wrong", zeros, None)
    monkeypatch.setattr(pseudo_actions, "LAYOUTS", [*pseudo_actions.LAYOUTS, wrong])
    with pytest.raises(AssertionError, match="wrong"):
        pseudo_actions.check(*pseudo_actions.draw(5, 12, 3.0), torch.arange(12))


# arsm_scaling


def test_the_exponent_of_a_power():
    sizes = (10, 100, 1000)
    assert arsm_scaling.exponent(sizes, [3 * v**1.5 for v in sizes]) == pytest.approx(1.5)


def test_used_memory_is_measured():
    # In a fresh process, as it wants: pages that an allocator has kept from earlier tests do not count as growth.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        grown = pool.submit(arsm_scaling.peak_memory, vocab=2000, rows=200, scale=3.0).result()
    entries = len(corollout.pseudo_actions(*pseudo_actions.draw(200, 2000, 3.0), torch.arange(2000)).row)
    assert grown > 8 * 4 * entries  # four numbers an entry are returned


# prefix_sharing


@pytest.mark.parametrize("end_bias", [prefix_sharing.NEVER, prefix_sharing.SOMETIMES])
def test_all_complete_the_same_sequences(end_bias: float):
    policy = prefix_sharing.make_policy(prefix_sharing.QUICK, end_bias, torch.float64)
    problem = prefix_sharing.make_problem(policy, prefix_sharing.QUICK)
    assert set(prefix_sharing.check(policy, problem, allowed=0).values()) == {0}
    # The engine feeds nothing twice, and the opponents do.
    ours, *opponents = prefix_sharing.count(prefix_sharing.QUICK, end_bias).values()
    assert (ours["ended"] > 0) == (end_bias == prefix_sharing.SOMETIMES)
    assert ours["fed"] == ours["generated"]
    assert ours["fed_again"] == ours["fed_to_finished_rows"] == 0
    for counts in opponents:
        assert counts["generated"] == ours["generated"]
        assert counts["fed"] - counts["fed_again"] == ours["generated"]
        assert counts["fed_again"] > 0
        assert counts["fed_to_finished_rows"] == 0


def test_the_counting_policy_notices_repetition_and_finished_rows():
    sizes = prefix_sharing.QUICK
    inner = prefix_sharing.make_policy(sizes, prefix_sharing.NEVER, torch.float32)
    policy = prefix_sharing.CountingPolicy(inner, prefix_sharing.EOS, length=2)
    state = policy.start(policy.encode(torch.zeros(2, 3, dtype=torch.int64)))
    for tokens in ([1, 1], [3, prefix_sharing.EOS], [4, 5]):
        _, state = policy.step(state, torch.tensor(tokens))
    assert policy.finished == 1 + 2  # an end token is read, then a third token by both
    policy.step(policy.start(policy.encode(torch.zeros(2, 3, dtype=torch.int64))), torch.tensor([1, 3]))
    assert len(torch.cat(policy.fed).unique()) == 8 - 1


# harness and command line


def test_contestants_take_turns_and_the_better_number_of_threads_counts():
    before, calls = torch.get_num_threads(), []
    contestants = [Contestant(name, 1, lambda name=name: calls.append(name)) for name in ("a", "b")]
    timings = harness.time_alternately(contestants, 3, Progress(disable=True), "")
    assert calls == ["a", "b", "b", "a"] * 2
    assert [len(timing.seconds) for timing in timings] == [3, 3]
    assert torch.get_num_threads() == before
    timings = [Timing("a", 2, [3.0, 3.0]), Timing("a", 1, [1.0, 2.0]), Timing("b", 1, [0.5, 0.5])]
    assert harness.best(timings, "a").threads == 1
    assert timings[1].record()["median"] == 1.5
    assert timings[1].record()["quartiles"] == [1.25, 1.75]
    for at_least, judged, passed in ((True, True, False), (False, True, True), (True, False, None)):
        assert Target("", 1.0, 2.0, at_least, judged).passed is passed


@pytest.mark.parametrize("names", [["pseudo_actions"], ["scaling_model"], pytest.param([], marks=pytest.mark.prove)])
def test_a_quick_run_writes_complete_results(tmp_path: Path, names: list[str]):
    done = CliRunner().invoke(cli.app, [*names, "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert {path.stem for path in tmp_path.glob("*.json")} == set(names or cli.MODULES)
    for path in tmp_path.glob("*.json"):
        result = json.loads(path.read_text("utf-8"))
        assert set(result) == set(harness.Result.__annotations__)
        assert set(result["manifest"]) == MANIFEST
        assert set(result["manifest"]["versions"]) == {"python", "torch", "numpy", "numba"}
        assert result["quick"]
        assert all(isinstance(seed, int) for seed in result["seeds"].values())
        assert result["timings"]
        assert result["measurements"]
        for timing in result["timings"]:
            assert len(timing["seconds"]) >= 2
            assert timing["median"] > 0
        for target in result["targets"]:
            assert math.isfinite(target["measured"])
            assert target["passed"] is None
        assert result["benchmark"] in done.output


def test_errors_of_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr(pseudo_actions, "run", lambda quick, progress: pytest.fail("measured"))
    done = CliRunner().invoke(cli.app, ["pseudo_actions", "--out", str(tmp_path / "file")])
    assert done.exit_code == 1
    assert "cannot make the folder" in done.output
    assert (tmp_path / "file").read_text() == "kept"
    missed = Target("at least 2 [times]", 1.5, 2.0, at_least=True, judged=True).record()
    empty = {"quick": False, "settings": {}, "seeds": {}, "timings": [], "measurements": {}}
    result = {"benchmark": "pseudo_actions", **empty, "targets": [missed], "table": [{"contestant": "ours"}]}
    monkeypatch.setattr(pseudo_actions, "run", lambda quick, progress: result)
    done = CliRunner().invoke(cli.app, ["pseudo_actions", "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "Missed: pseudo_actions: at least 2 [times] (measured 1.5)." in done.output
