"""How much faster is an update than at an earlier commit, how close to the machine's limit, and than an ordinary loop?

An update is one call of ``Trainer.step`` as users make it: estimate, backward, clipping, Adam, running variance,
metrics. The working tree and a checkout of an earlier commit (6358d86, or the one in the environment variable
COROLLOUT_OLD_COMMIT) each have a process of their own. These take turns with the same weights, examples and noise, so
that they must draw the same sequences and get the same gradients. Learning rates are so small that policies stay as
they are. The first updates, in which things are compiled and checked, do not count. Wall-clock medians with one thread
are judged; two threads and processor time are reported.

The arithmetic that an update needs (``arithmetic.py``), divided by its time, is compared with the speed of a large
product of matrices in the same run. On captions, an ordinary PyTorch loop (``scst_loop.py``) has a turn as well, in
processes of the earlier commit, of which it uses CIDEr-D alone.

A quick run compares the working tree with itself.
"""

import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import Progress

from benchmarks import speed_problems
from benchmarks.arithmetic import Network, caption_network, karel_network, needed_flops
from benchmarks.harness import Result, Target, Timing, figure, milliseconds
from benchmarks.speed_problems import CAPTIONS, KAREL
from benchmarks.speed_trees import ROOT, WorkerProcess, checked_out
from benchmarks.speed_worker import MLE, SCST, SEED

OLD_COMMIT = "6358d86"
OLD, NEW = "old", "new"
LOOPS = {"loop, recorded": "recorded", "loop, second pass": "second pass"}
WARM_UP = 2  # the first update compiles and checks, the second has all memory
LEAST_LOOP, LEAST_SHARE = 2.2, 0.6
LEAST_EQUAL, MOST_APART = 0.8, 1e-3  # rounding may change a sequence now and then


class Case(NamedTuple):
    problem: str
    method: str
    repetitions: int
    least: float | None  # times as fast as the earlier commit
    loops: bool = False  # compared with an ordinary loop
    near_limit: bool = False  # a share of the machine's limit is demanded


CASES = (
    Case(KAREL, "rloo-8", 20, 3.0, near_limit=True),
    Case(KAREL, "reinforce", 40, 1.3),
    Case(KAREL, "arsm", 30, 1.3),
    Case(KAREL, "set-2:baseline=fitted", 30, 1.3),
    Case(CAPTIONS, "reinforce", 15, 1.6),
    Case(CAPTIONS, "sc", 10, None, loops=True),
    Case(CAPTIONS, "rloo-5", 10, 1.6, loops=True, near_limit=True),
    Case(CAPTIONS, "ars-20", 6, 1.3),
    Case(CAPTIONS, MLE, 20, 1.25),
)


class Sizes(NamedTuple):
    problems: speed_problems.Sizes
    cases: tuple[Case, ...]
    threads: tuple[int, ...]
    counted: int  # updates whose arithmetic is counted
    matrix: int  # side of the matrices whose product is the limit


def full_sizes() -> Sizes:
    return Sizes(speed_problems.full_sizes(), CASES, threads=(1, 2), counted=4, matrix=2048)


QUICK = Sizes(
    speed_problems.QUICK,
    tuple(case._replace(repetitions=2, method=case.method.replace("ars-20", "ars-3")) for case in CASES),
    threads=(1,),
    counted=1,
    matrix=64,
)


# --- measurement ----------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """One case with one number of threads: what each contestant reported of each update."""

    case: Case
    threads: int
    reports: dict[str, list[dict[str, float]]]
    counts: list[dict[str, Any]] = field(default_factory=list)

    def timing(self, contestant: str) -> Timing:
        name = f"{self.case.problem}, {self.case.method}, {contestant}"
        return Timing(name, self.threads, [report["seconds"] for report in self.reports[contestant][WARM_UP:]])

    def cpu(self, contestant: str) -> float:
        return statistics.median(report["cpu"] for report in self.reports[contestant][WARM_UP:])

    @property
    def speedup(self) -> float:
        return self.timing(OLD).median / self.timing(NEW).median

    @property
    def loop(self) -> str:
        """The faster one of the ordinary loops."""
        return min(LOOPS, key=lambda name: self.timing(name).median)

    def gflop(self, network: Network, prefixes: str = "different") -> float:
        return statistics.mean(needed_flops(network, counts, prefixes) for counts in self.counts) / 1e9

    def share(self, network: Network, limit: float) -> float:
        """Of the machine's limit, in GFLOP/s."""
        return self.gflop(network) / self.timing(NEW).median / limit


def measure(case: Case, threads: int, folder: Path, workers: dict[str, WorkerProcess], progress: Progress) -> Measured:
    """Let the contestants make updates in turn."""
    methods = {OLD: case.method, NEW: case.method}
    if case.loops:
        methods |= {name: f"{SCST} {way}, {case.method}" for name, way in LOOPS.items()}
    measured = Measured(case, threads, {name: [] for name in methods})
    rounds = WARM_UP + case.repetitions
    task = progress.add_task(f"speed: {case.problem}, {case.method}, threads: {threads}", total=rounds * len(methods))
    for name, method in methods.items():
        workers[name].start(folder / case.problem, method, threads)
    for number in range(rounds):
        for name in list(methods) if number % 2 else reversed(methods):
            measured.reports[name].append(workers[name].ask("update"))
            progress.advance(task)
    progress.remove_task(task)
    return measured


def check(measured: Measured) -> dict[str, Any]:
    """Both trees have drawn the same sequences, with the same gradients.

    Fitted baselines were defined anew after the earlier commit (they no longer depend on the zero of the reward): there
    the sequences are compared, not the gradients.
    """
    name = f"{measured.case.problem}, {measured.case.method}"
    equal, apart = 0, []
    both = list(zip(measured.reports[OLD], measured.reports[NEW], strict=True))
    if measured.case.method == MLE:
        both = both[:1]  # later ones have dropout
    for old, new in both:
        norms = abs(old["norm"] - new["norm"]) / max(old["norm"], 1e-12)
        same = all(abs(old[key] - new[key]) <= 1e-5 * max(abs(old[key]), 1) for key in ("reward", "length"))
        equal += same and (norms <= MOST_APART or "fitted" in measured.case.method)
        apart.append(norms)
    rewards = [
        (counts["reward"], old["reward"])
        for counts, old in zip(measured.counts, measured.reports[OLD], strict=False)
        if "reward" in counts
    ]
    if not all(abs(a - b) <= 1e-6 * max(abs(b), 1) for a, b in rewards):
        raise AssertionError(f"{name}: what was counted are not the updates that were measured: rewards {rewards}")
    if equal < LEAST_EQUAL * len(both):
        raise AssertionError(f"{name}: only {equal} of {len(both)} updates of the two trees agree: {both[0]}")
    return {
        "updates": len(both),
        "equal": equal,
        "median_difference_of_norms": statistics.median(apart),
        "counted": rewards,
    }


def measure_all(
    sizes: Sizes, folder: Path, old_tree: Path, progress: Progress
) -> tuple[list[Measured], dict[int, float]]:
    """All cases, and the limit in GFLOP/s for each number of threads."""
    done: list[Measured] = []
    with ExitStack() as stack:
        trees = {OLD: old_tree, NEW: ROOT} | dict.fromkeys(LOOPS, old_tree)
        workers = {name: stack.enter_context(WorkerProcess(tree)) for name, tree in trees.items()}

        def limit(threads: int) -> float:
            return workers[NEW].ask("limit", threads=threads, size=sizes.matrix)["gflops"]

        limits = {threads: limit(threads) for threads in sizes.threads}
        for case in sizes.cases:
            counts: list[dict[str, Any]] = []
            for threads in sizes.threads:
                done.append(measure(case, threads, folder, workers, progress))
                counts = counts or workers[OLD].ask("count", updates=sizes.counted)["updates"]
                done[-1].counts = counts
                check(done[-1])
        limits = {threads: max(before, limit(threads)) for threads, before in limits.items()}
    return done, limits


# --- results --------------------------------------------------------------------------------------------------------


def summary(measured: Measured, network: Network, limit: float) -> dict[str, Any]:
    found = {
        "problem": measured.case.problem,
        "method": measured.case.method,
        "threads": measured.threads,
        "speedup": measured.speedup,
        "speedup_in_processor_time": measured.cpu(OLD) / measured.cpu(NEW),
        "gflop": measured.gflop(network),
        "gflop_without_sharing": measured.gflop(network, "all"),
        "share_of_the_limit": measured.share(network, limit),
        "counts": measured.counts,
        "agreement": check(measured),
        "mean_reward": statistics.mean(report["reward"] for report in measured.reports[NEW]),
        "mean_length": statistics.mean(report["length"] for report in measured.reports[NEW]),
    }
    if measured.case.loops:
        ours, theirs = measured.timing(NEW).median, measured.timing(measured.loop).median
        found |= {"faster_loop": measured.loop, "loop_over_ours": theirs / ours}
    return found


def targets(found: list[dict[str, Any]], cases: tuple[Case, ...], quick: bool) -> list[Target]:
    by_case = {(one["problem"], one["method"]): one for one in found if one["threads"] == 1}
    made = []
    for case in cases:
        one, name = by_case[case.problem, case.method], f"{case.problem}, {case.method}"
        wanted = []
        if case.least is not None:
            wanted.append((f"{name}: at least {case.least:g} times as fast as before", one["speedup"], case.least))
        if case.near_limit:
            text = f"{name}: at least {LEAST_SHARE:.0%} of the speed of a large product"
            wanted.append((text, one["share_of_the_limit"], LEAST_SHARE))
        if case.loops:
            text = f"{name}: at least {LEAST_LOOP:g} times as fast as an ordinary PyTorch loop"
            wanted.append((text, one["loop_over_ours"], LEAST_LOOP))
        made += [Target(*each, at_least=True, judged=not quick) for each in wanted]
    return made


def row(measured: Measured, found: dict[str, Any]) -> dict[str, str]:
    loop = f"{found['loop_over_ours']:.2f} ({LOOPS[measured.loop]})" if measured.case.loops else ""
    return {
        "problem": measured.case.problem,
        "method": measured.case.method,
        "threads": str(measured.threads),
        "before, ms": milliseconds(measured.timing(OLD)),
        "now, ms": milliseconds(measured.timing(NEW)),
        "before / now": f"{measured.speedup:.2f}",
        "CPU": f"{found['speedup_in_processor_time']:.2f}",
        "GFLOP": figure(found["gflop"]),
        "of limit": f"{found['share_of_the_limit']:.0%}",
        "loop / now": loop,
    }


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else full_sizes()
    commit = os.environ.get("COROLLOUT_OLD_COMMIT", OLD_COMMIT)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        task = progress.add_task("speed: preparation", total=None)
        tree = ROOT if quick else stack.enter_context(checked_out(commit))
        problems = speed_problems.write_problems(folder, sizes.problems, folder if quick else None)
        progress.remove_task(task)
        done, limits = measure_all(sizes, folder, tree, progress)
    networks = {
        KAREL: karel_network(problems[KAREL]["model"], problems[KAREL]["pairs"]),
        CAPTIONS: caption_network(problems[CAPTIONS]["model"]),
    }
    found = [summary(one, networks[one.case.problem], limits[one.threads]) for one in done]
    return {
        "benchmark": "speed",
        "quick": quick,
        "settings": {"old_commit": "the working tree" if quick else commit, "dtype": "float32", "problems": problems},
        "seeds": {"data, weights and noise": SEED},
        "timings": [one.timing(name).record() for one in done for name in one.reports],
        "measurements": {"cases": found, "limit_in_gflop_per_second": {str(n): gflops for n, gflops in limits.items()}},
        "targets": [target.record() for target in targets(found, sizes.cases, quick)],
        "table": [row(one, each) for one, each in zip(done, found, strict=True)],
    }
