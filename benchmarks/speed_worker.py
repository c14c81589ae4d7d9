"""One contestant of ``benchmarks.speed``: a process that makes updates with the package of one commit.

``python -P speed_worker.py`` with a commit's tree as PYTHONPATH reads a JSON object a line and answers each by another:

    {"do": "start", "folder": F, "method": "rloo-8", "threads": 1}  a trainer for the problem in a folder
    {"do": "update"}                                                one whole update: wall and CPU seconds, metrics
    {"do": "count", "updates": 3}                                   what the first updates have generated and scored
    {"do": "limit", "threads": 1}                                   GFLOP/s of a large product of matrices

An answer with "error" is what went wrong. Only names that both commits have, or one of two, are used: ``find`` looks
for each where it is now, and where it was at 6358d86. Methods are estimators, "mle", and "scst …": the loop of
``scst_loop.py`` instead of the package's.
"""

import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

SEED = 1
LEARNING_RATE = 1e-9  # so small that the policy stays what it is
MLE, SCST = "mle", "scst"
EXAMPLE_ORDER, ROLLOUTS = 0, 1  # what a trainer folds into its noise


def find(name: str, *modules: str) -> Any:
    """What has a name in the first of some modules that has it."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise ImportError(f"none of {', '.join(modules)} has {name}")


class Problem:
    """An engine with its weights, data and a reward, read from a folder."""

    def __init__(self, folder: Path):
        import safetensors.torch

        self.folder = folder
        self.settings = json.loads((folder / "settings.json").read_text("utf-8"))
        self.batch_size = self.settings["batch_size"]
        self.weights = safetensors.torch.load_file(folder / "policy.safetensors")
        {"karel": self._open_karel, "captions": self._open_captions}[self.settings["task"]]()
        self.engine.policy.load_state_dict(self.weights)

    def _open_karel(self) -> None:
        import numpy as np

        from corollout import Reward
        from corollout.tasks.karel.dataset import KarelData
        from corollout.tasks.karel.grids import Grids
        from corollout.tasks.karel.metrics import SolvesTask
        from corollout.tasks.karel.settings import ModelSettings
        from corollout.tasks.karel.task import KarelTask

        with np.load(self.folder / "tasks.npz") as arrays:
            inputs, outputs = (
                Grids(arrays[f"{which}_cells"], arrays[f"{which}_hero"]) for which in ("input", "output")
            )
            data = KarelData(arrays["tokens"], arrays["lengths"], inputs, outputs, arrays["ids"])
        try:
            self.data = find("karel_split", "corollout.tasks.karel.task")(data).columns
        except ImportError:
            self.data = find("karel_columns", "corollout.tasks.karel.task")(data)
        self.engine: Any = KarelTask(Path(), ModelSettings(**self.settings["model"])).engine(SEED)
        self.reward = Reward(SolvesTask(data))

    def _open_captions(self) -> None:
        import safetensors.torch

        from corollout import Columns, Engine, Reward
        from corollout.tasks.captioning.model import CaptionPolicy

        references = find("References", "corollout.text_metrics", "corollout.rewards.references")
        cider = find("CiderReward", "corollout.tasks.captioning.metrics", "corollout.rewards.cider")
        captions = json.loads((self.folder / "captions.json").read_text("utf-8"))
        self.features = safetensors.torch.load_file(self.folder / "features.safetensors")["features"]
        self.targets, self.end = captions["targets"], self.settings["end"]
        self.data: Any = Columns(context=self.features, image=range(len(self.features)), target=self.targets)
        policy = CaptionPolicy(**self.settings["model"])
        self.engine = Engine(policy, bos=self.end, eos=self.end, max_length=self.settings["longest"])
        groups = [[[*words, self.end] for words in group] for group in captions["references"]]
        self.reward = Reward(cider(references(groups), end=self.end))

    def score_captions(self, sequences: list[list[int]], images: list[int], finished: list[bool]) -> Any:
        return self.reward(sequences, images, {"image": images}, finished).values


# --- one update after another ---------------------------------------------------------------------------------------


def make_optimizer(policy: Any) -> Any:
    """What the commands train with: a function of the package if it has one, otherwise plain Adam."""
    import torch

    try:
        return find("make_adam", "corollout.training.optimizers")(policy.parameters(), LEARNING_RATE)
    except ImportError:
        return torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)


def prepare_process() -> None:
    """What the commands that train do first: nothing, at 6358d86."""
    with suppress(ImportError):
        find("keep_pages", "corollout.allocator")()


def start_updates(problem: Problem, method: str) -> Callable[[], dict[str, float]]:
    """A call that makes the next update."""
    if method.startswith(SCST):
        return start_scst(problem, method)
    import corollout

    policy = problem.engine.policy
    optimizer = make_optimizer(policy)
    if method == MLE:
        trainer: Any = find("MLETrainer" if hasattr(corollout, "MLETrainer") else "TeacherForcing", "corollout")(
            problem.engine, problem.data, optimizer, batch_size=problem.batch_size, seed=SEED
        )
    else:
        trainer = corollout.Trainer(
            problem.engine, problem.data, problem.reward, method, optimizer, batch_size=problem.batch_size, seed=SEED
        )
    step = getattr(trainer, "step", None) or trainer.next
    dropout = getattr(policy, "dropout", None)

    def update() -> dict[str, float]:
        if method == MLE:  # without dropout in the first one, to be compared
            policy.dropout = dropout if trainer.updates else 0.0
        tokens = trainer.tokens
        metrics = step()
        report = {"norm": metrics.gradient_norm, "tokens": metrics.tokens}
        if method == MLE:
            return {**report, "reward": -metrics.loss, "length": (metrics.tokens - tokens) / problem.batch_size}
        return {**report, "reward": metrics.reward, "length": metrics.mean_length}

    return update


def start_scst(problem: Problem, method: str) -> Callable[[], dict[str, float]]:
    """``method`` is "scst", the way and the baseline: "scst second pass, rloo-5"."""
    file = Path(__file__).with_name("scst_loop.py")
    spec = importlib.util.spec_from_file_location("scst_loop", file)
    assert spec is not None
    assert spec.loader is not None
    scst_loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scst_loop)
    way, baseline = method.removeprefix(SCST).strip().split(", ")
    name, _, samples = baseline.partition("-")
    return scst_loop.Loop(
        problem.weights,
        problem.features,
        problem.score_captions,
        baseline=name,
        samples=int(samples or 1),
        way=way,
        longest=problem.settings["longest"],
        end=problem.end,
        learning_rate=LEARNING_RATE,
        seed=SEED,
    ).update


# --- what an update computes ----------------------------------------------------------------------------------------

Row = tuple[int, list[int]]  # a context, and a sequence with its end


def count_prefixes(rows: list[Row], bos: int) -> dict[str, int]:
    """Prefixes after which a token was drawn, in all and different ones of a context, and the tokens that end them."""
    steps = [(context, tuple(tokens[:t])) for context, tokens in rows for t in range(len(tokens))]
    words = {prefix[-1] if prefix else bos for _, prefix in steps}
    return {"all": len(steps), "different": len(set(steps)), "words": len(words)}


def inputs_of_update(problem: Problem, number: int) -> tuple[Any, Any]:
    """The batch and the noise of a trainer's update, numbered from 0."""
    from corollout import Noise

    epoch, position = divmod(number, -(-len(problem.data) // problem.batch_size))
    noise = Noise(SEED)
    batch = next(problem.data.epoch(problem.batch_size, noise.fold(EXAMPLE_ORDER, epoch), skip=position))
    return batch, noise.fold(ROLLOUTS, epoch)


def count_update(problem: Problem, method: str, number: int) -> dict[str, Any]:
    """What the trainer's update of a number, from 0, generates and scores."""
    from corollout import estimate

    bos, eos, limit = problem.engine.bos, problem.engine.eos, problem.engine.max_length
    nothing = count_prefixes([], bos)
    if method == MLE:
        rows = [(image, [*words, eos][:limit]) for image, words in enumerate(problem.targets)]
        return {
            "contexts": len(rows),
            "generated": nothing,
            "scored": count_prefixes(rows, bos),
            "sequences": len(rows),
        }
    batch, noise = inputs_of_update(problem, number)
    made: Any = estimate(problem.engine, batch, problem.reward, method, noise)
    contexts = made.trajectories.contexts
    mains = rows_of(contexts, made.trajectories)
    branches = rows_of(contexts[made.plan.branches.parent], made.completed)
    scored = count_prefixes(mains, bos)
    scored["different"] = min(scored["different"], getattr(made.cost, "scored_tokens", scored["different"]))
    return {
        "contexts": len(batch),
        "generated": count_prefixes(mains + branches, bos),
        "scored": scored,
        "sequences": len(mains) + len(branches),
        "reward": made.mean_reward,
    }


def rows_of(contexts: Any, sequences: Any) -> list[Row]:
    rows = zip(contexts.tolist(), sequences.tokens.tolist(), sequences.lengths.tolist(), strict=True)
    return [(context, tokens[:length]) for context, tokens, length in rows]


def product_speed(size: int, repetitions: int = 5) -> float:
    """GFLOP/s of the fastest product of two large square matrices in float32."""
    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty_like(a)
    seconds = []
    for _ in range(repetitions + 1):
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds[1:]) / 1e9


# --- the process ----------------------------------------------------------------------------------------------------


class Worker:
    """Answers requests, one at a time."""

    def __init__(self) -> None:
        self.problems: dict[str, Problem] = {}
        self.update: Callable[[], dict[str, float]] | None = None
        self.current: tuple[Problem, str] | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return getattr(self, f"do_{request.pop('do')}")(**request)

    def do_start(self, folder: str, method: str, threads: int) -> dict[str, Any]:
        import torch

        import corollout

        torch.set_num_threads(threads)
        torch.manual_seed(SEED)
        self.update = None  # before the next trainer takes memory
        if folder not in self.problems:
            self.problems[folder] = Problem(Path(folder))
        self.current = self.problems[folder], method
        self.update = start_updates(*self.current)
        return {"package": corollout.__file__}

    def do_update(self) -> dict[str, float]:
        assert self.update is not None
        started, cpu = time.perf_counter(), time.process_time()
        report = self.update()
        return {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu, **report}

    def do_count(self, updates: int) -> dict[str, Any]:
        assert self.current is not None
        return {"updates": [count_update(*self.current, number) for number in range(updates)]}

    def do_limit(self, threads: int, size: int) -> dict[str, float]:
        import torch

        torch.set_num_threads(threads)
        return {"gflops": product_speed(size)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    prepare_process()
    worker = Worker()
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
