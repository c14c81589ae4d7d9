"""The benchmarks of whole updates at tiny sizes: contestants agree, counts are right, a difference is noticed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.progress import Progress

from benchmarks import fresh_updates, growth, memory, overhead, speed, speed_problems, speed_trees, speed_worker
from benchmarks.arithmetic import Network, caption_network, karel_network, needed_flops
from benchmarks.fresh_updates import Point, Update
from benchmarks.harness import Timing
from benchmarks.scst_loop import Captioner, Captions, Loop, Way
from benchmarks.speed import NEW, OLD, Case, Measured
from benchmarks.speed_problems import CAPTIONS, KAREL
from benchmarks.speed_trees import ROOT, WorkerProcess, checked_out
from benchmarks.speed_worker import Problem, count_prefixes, count_update, start_updates
from corollout import Engine, Noise, estimate
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.types import Sampler


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("problems")
    speed_problems.write_problems(folder, speed_problems.QUICK, folder)
    return folder


class SameProcess:
    """A worker without a process of its own."""

    def __init__(self, tree: Path):
        self.worker = speed_worker.Worker()

    def __enter__(self):
        return self

    def __exit__(self, *error: object):
        pass

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        return json.loads(json.dumps(self.worker.answer({"do": do, **request})))

    def start(self, folder: Path, method: str, threads: int) -> None:
        self.ask("start", folder=str(folder), method=method, threads=threads)


# speed


@pytest.fixture(scope="module")
def result(folder: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch, Progress(disable=True) as progress:
        patch.setattr(speed, "WorkerProcess", SameProcess)
        threads = torch.get_num_threads()
        try:
            return dict(speed.run(True, progress))
        finally:
            torch.set_num_threads(threads)


@pytest.mark.prove
def test_a_tree_agrees_with_itself(result: dict[str, Any]):
    cases = result["measurements"]["cases"]
    assert [(one["problem"], one["method"]) for one in cases] == [(c.problem, c.method) for c in speed.QUICK.cases]
    for one in cases:
        assert one["agreement"]["equal"] == one["agreement"]["updates"]
        assert one["agreement"]["median_difference_of_norms"] == 0
        assert 0 < one["gflop"] <= one["gflop_without_sharing"]
    loops = [one for one in cases if "loop_over_ours" in one]
    assert [one["method"] for one in loops] == ["sc", "rloo-5"]
    assert len(result["timings"]) == 2 * len(cases) + 2 * len(loops)


@pytest.mark.prove
def test_every_demand_is_a_target(result: dict[str, Any]):
    wanted = [(c.least is not None) + c.near_limit + c.loops for c in speed.CASES]
    assert len(result["targets"]) == sum(wanted) == 12
    assert all(target["passed"] is None for target in result["targets"])
    least = {case.method: case.least for case in speed.CASES if case.problem == CAPTIONS}
    assert least == {"reinforce": 1.6, "sc": None, "rloo-5": 1.6, "ars-20": 1.3, "mle": 1.25}


def measured(old: list[dict[str, float]], new: list[dict[str, float]]) -> Measured:
    return Measured(Case(KAREL, "reinforce", 1, None), 1, {OLD: old, NEW: new})


def test_other_samples_and_other_gradients_are_noticed():
    report = {"seconds": 2.0, "cpu": 2.0, "reward": 0.5, "length": 7.0, "norm": 3.0}
    same = [report] * 10
    assert speed.check(measured(same, same))["equal"] == 10
    assert speed.check(measured(same, [{**report, "reward": 0.6}, *same[1:]]))["equal"] == 9  # rounding, perhaps
    for changed in ({"reward": 0.6}, {"length": 7.1}, {"norm": 3.01}):
        with pytest.raises(AssertionError, match="only 7 of 10 updates"):
            speed.check(measured(same, [{**report, **changed}] * 3 + same[3:]))
    counted = measured(same, same)
    counted.counts = [{"reward": 0.4}]
    with pytest.raises(AssertionError, match="are not the updates that were measured"):
        speed.check(counted)


def test_the_first_updates_do_not_count():
    reports = [{"seconds": s, "cpu": s, "reward": 0.0, "length": 1.0, "norm": 1.0} for s in (90.0, 50.0, 4.0, 6.0)]
    faster = [{**report, "seconds": report["seconds"] / 5} for report in reports]
    assert measured(reports, faster).timing(OLD).seconds == [4.0, 6.0]
    assert measured(reports, faster).speedup == 5


def test_what_is_counted_is_what_the_trainer_does(folder: Path):
    for name, method in ((KAREL, "arsm"), (CAPTIONS, "ars-3"), (CAPTIONS, "set-2")):
        problem = Problem(folder / name)
        update = start_updates(problem, method)
        per_epoch = -(-len(problem.data) // problem.batch_size)
        for number in range(per_epoch + 1):
            report, counts = update(), count_update(problem, method, number)
            assert counts["reward"] == report["reward"]
            assert counts["scored"]["all"] == pytest.approx(
                report["length"] * problem.batch_size * (1 + (method == "set-2"))
            )
            assert counts["generated"]["all"] > counts["scored"]["all"] or method == "set-2"


def test_prefixes_are_counted_by_context():
    rows = [(0, [5, 6, 0]), (0, [5, 7, 0]), (1, [5, 0]), (1, [5, 0])]
    # (), 5, 5 6 and 5 7 of the first context; () and 5 of the second. 0, 5, 6 and 7 are fed.
    assert count_prefixes(rows, 0) == {"all": 10, "different": 6, "words": 4}


def test_arithmetic_of_a_tiny_captioner():
    network = caption_network({"width": 3, "embedding": 2, "hidden": 4, "vocab": 7})
    assert network == Network(first=3 * 2, encoder=2 * 20, word=2 * 20, step=4 * 20, read_out=4 * 7)
    counts = {
        "contexts": 2,
        "generated": {"all": 12, "different": 9, "words": 5},
        "scored": {"all": 10, "different": 8, "words": 4},
    }
    contexts = 2 * (6 + 40 + 6 + 80)  # the image's layer has no gradient of its input
    generating, scoring = 5 * 40 + 9 * (80 + 28), 4 * 40 + 8 * (80 + 28)  # of which only the gradient is new
    assert needed_flops(network, counts) == 2 * (contexts + generating + 2 * scoring)
    more = 3 * 108 + 2 * 2 * 108
    assert needed_flops(network, counts, "all") - needed_flops(network, counts) == 2 * more
    counts["generated"] = {"all": 0, "different": 0, "words": 0}  # maximum likelihood
    assert needed_flops(network, counts) == 2 * (contexts + 3 * scoring)


def test_arithmetic_of_a_tiny_karel_network():
    model = {"largest_world": 2, "channels": 3, "blocks": 1, "pair_width": 5, "embedding": 2, "hidden": 4, "layers": 2}
    network = karel_network(model, pairs=5)
    # Grids of 4 × 4, kernels of 3 × 3, 16 channels of a picture; 53 tokens.
    assert network.first == 5 * (2 * 16 * 9 * 16 * 3)
    assert network.encoder == 5 * (3 * 16 * 9 * 6 * 6 + 16 * 6 * 5 + 5 * 16)
    assert network.word == 2 * 16
    assert network.step == 5 * (3 * 4 * 16)
    assert network.read_out == 4 * 53


# trees and processes


@pytest.mark.prove
def test_a_worker_is_a_process_that_reports_its_error(folder: Path):
    with WorkerProcess(ROOT) as worker:
        assert worker.ask("limit", threads=1, size=32)["gflops"] > 0
        with pytest.raises(AssertionError, match=r"(?s)failed: .*no estimator"):
            worker.start(folder / CAPTIONS, "nobody", 1)
        worker.start(folder / CAPTIONS, "reinforce", 1)
        report = worker.ask("update")
        assert set(report) == {"seconds", "cpu", "norm", "tokens", "reward", "length"}
        worker.tree = folder
        with pytest.raises(AssertionError, match="has imported"):
            worker.start(folder / CAPTIONS, "reinforce", 1)
        worker._process.kill()
        worker._process.wait()
        with pytest.raises(AssertionError, match="has ended"):
            worker.ask("update")


def test_a_checkout_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def git(*arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *author, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    git("init", "-q")
    (tmp_path / "file").write_text("old")
    git("add", "file")
    git("commit", "-qm", "old")
    (tmp_path / "file").write_text("new")
    monkeypatch.setattr(speed_trees, "ROOT", tmp_path)
    kept: list[Path] = []

    def interrupted() -> None:
        with checked_out("HEAD") as tree:
            kept.append(tree)
            assert (tree / "file").read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not kept[0].parent.exists()
    assert len(git("worktree", "list").splitlines()) == 1
    with pytest.raises(AssertionError, match="git worktree add"), checked_out("nothing"):
        pass


# the ordinary loop


def make_loop(folder: Path, way: Way, baseline: str = "rloo", samples: int = 5) -> tuple[Problem, Loop]:
    problem = Problem(folder / CAPTIONS)
    sizes: Any = {"baseline": baseline, "samples": samples, "way": way, "longest": 6, "end": problem.end}
    loop = Loop(problem.weights, problem.features, problem.score_captions, **sizes, learning_rate=1e-9)
    return problem, loop


@pytest.mark.parametrize(("baseline", "samples"), [("rloo", 5), ("sc", 1)])
def test_the_loop_has_our_gradient_for_our_captions(folder: Path, baseline: str, samples: int):
    problem, loop = make_loop(folder, "second pass", baseline, samples)
    problem.engine.policy.double()
    loop.captioner.double()
    loop.features = loop.features.double()
    batch = problem.data.batch(range(len(problem.data)))
    batch.columns["context"].data = batch.columns["context"].double()
    ours = estimate(problem.engine, batch, problem.reward, "rloo-5" if samples > 1 else "sc", Noise(3))
    ours.backward()
    captions = Captions(ours.trajectories.tokens, ours.trajectories.mask, None)
    loop.loss(captions, loop.advantages(loop.rewards(captions, loop.images))).backward()
    theirs = dict(loop.captioner.named_parameters())
    for name, parameter in problem.engine.policy.named_parameters():
        torch.testing.assert_close(theirs[name].grad, parameter.grad, rtol=1e-5, atol=1e-8)


def test_both_ways_of_the_loop_are_the_same(folder: Path):
    reports = [make_loop(folder, way)[1].update() for way in ("recorded", "second pass")]
    assert reports[0]["reward"] == reports[1]["reward"]
    assert reports[0]["length"] == reports[1]["length"]
    assert reports[0]["norm"] == pytest.approx(reports[1]["norm"], rel=1e-4)
    with pytest.raises(ValueError, match="two samples"):
        make_loop(folder, "recorded", samples=1)


def test_the_loop_decodes_as_the_engine_does(folder: Path):
    problem, loop = make_loop(folder, "recorded")
    with torch.no_grad():
        greedy = loop.generate(greedy=True)
        memory = problem.engine.policy.encode(problem.features)
        ours = problem.engine.sample(memory, torch.arange(len(problem.features)), Sampler("greedy"), Noise(0))
    assert greedy.lists(problem.end) == (ours.trajectories.lists(), ours.trajectories.finished.tolist())
    assert isinstance(loop.captioner, Captioner)


# problems


def test_captions_have_the_length_that_is_wanted():
    torch.manual_seed(0)
    policy, features = CaptionPolicy(50, 8, 16, 16), torch.randn(300, 8)
    entropy = speed_problems.set_length(policy, features, 12, 7.0)
    assert 0 < entropy < 4
    with torch.no_grad():
        engine = Engine(policy, bos=0, eos=0, max_length=12)
        lengths = engine.sample(policy.encode(features), torch.arange(300), Sampler(), Noise(0)).trajectories.lengths
    assert float(lengths.double().mean()) == pytest.approx(7.0, abs=0.8)


# overhead, growth, memory


def test_the_share_of_bookkeeping(monkeypatch: pytest.MonkeyPatch):
    step, alone = Timing("step", 1, [4.0, 8.0, 10.0]), Timing("alone", 1, [3.0, 6.0, 5.0])
    assert overhead.Share.of(step, alone) == (0.25, 0.25, 0.5)
    with Progress(disable=True) as progress:
        result = overhead.run(True, progress)
    assert list(result["measurements"]["share_of_bookkeeping"]) == [KAREL, CAPTIONS]
    assert [target["passed"] for target in result["targets"]] == [None, None]


def test_the_interval_of_the_share_contains_the_true_median_in_95_percent_of_all_cases():
    random = np.random.default_rng(5)
    inside = 0
    for _ in range(2_000):
        steps = random.exponential(size=41)
        share = overhead.Share.of(Timing("step", 1, [1.0] * 41), Timing("alone", 1, list(1 - steps)))
        inside += share.low <= np.log(2) <= share.high
    assert 0.94 < inside / 2_000 < 0.98


def test_an_update_without_bookkeeping_is_the_same_update(folder: Path):
    problem = Problem(folder / CAPTIONS)
    step, alone = overhead.contestants(problem, updates=2)
    gradients = []
    for call in (step, alone):
        call()
        gradients.append([p.grad.clone() for p in problem.engine.policy.parameters()])
    norm = torch.stack([g.norm() for g in gradients[1]]).norm()
    for clipped, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(clipped * norm.clamp(min=1), plain, rtol=1e-3, atol=1e-6)


class NoProcesses:
    def __init__(self, quick: bool):
        self.asked: list[Point] = []

    def __enter__(self):
        return self

    def __exit__(self, *error: object):
        pass

    def measure(self, point: Point, repetitions: int) -> Update | None:
        size = point.contexts * point.length * point.vocab
        return Update([size * 1e-6] * repetitions, size * 1000)


@pytest.mark.prove
def test_growth_is_fitted_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(growth, "FreshProcesses", NoProcesses)
    with Progress(disable=True) as progress:
        result = growth.run(True, progress)
    for by_axis in result["measurements"]["exponents"].values():
        assert [round(b, 6) for axis in by_axis.values() for b in axis.values()] == [1.0] * 12
    assert len(result["timings"]) == 24
    assert growth.draw_figure(result, tmp_path).read_bytes()[:4] == b"\x89PNG"


def test_exponents_are_those_of_the_upper_half():
    line = {size: Update([float(max(size, 40) ** 2)], 5 * size) for size in (1, 2, 10, 50, 100)}
    assert growth.exponent(dict(list(line.items())[1:]), "seconds") == pytest.approx(2)
    assert growth.exponent(line, "peak") == pytest.approx(1)


def test_points_that_are_too_large_are_left_out():
    line = {10: Update([3.0, 2.0], 10**9)}
    assert not growth.is_too_large({}, 10**9)
    assert not growth.is_too_large(line, 80)
    assert growth.is_too_large(line, 81)  # 8 GB
    assert growth.is_too_large({10: Update([3.0], 1)}, 70)  # 21 seconds


@pytest.mark.prove
def test_memory_of_an_update():
    with Progress(disable=True) as progress:
        result = memory.run(True, progress)
    assert set(result["measurements"]["peak_bytes"]) == {"reinforce", "rloo-8", "arsm:budget=200"}
    point = memory.point_of("rloo-8", memory.FULL)
    assert (point.contexts, point.length, point.vocab) == (8, 64, 50_257)


def test_a_process_that_wants_too_much_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "FreshProcesses", NoProcesses)
    monkeypatch.setattr(NoProcesses, "measure", lambda self, point, repetitions: None)
    with Progress(disable=True) as progress:
        result = memory.run(False, progress)
    assert [target["passed"] for target in result["targets"]] == [False] * 3
    assert {row["peak, GB"] for row in result["table"]} == {"over 15"}


@pytest.mark.prove
def test_peak_memory_is_measured():
    point = Point("reinforce", 2000, 8, 64, 32)
    with fresh_updates.FreshProcesses(quick=False) as processes:
        update = processes.measure(point, repetitions=3)
    assert update is not None
    assert len(update.seconds) == 3
    assert update.peak > 0
