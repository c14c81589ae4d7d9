"""Cold start: a policy that knows nothing yet, thousands of actions, and a reward that says how near each token is.

Where all actions are about as likely, full ARSM wants a rollout for nearly every one of them at every step. Every
method gets the same seconds of processor time, and the same learning rates to choose from. A method whose first update
takes longer than that makes none.

Each part is kept when it is done: whatever stops the experiment, it goes on where it was.
"""

import json
import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from corollout.errors import InputError, PolicyError
from corollout.noise import Noise
from corollout.tasks.likeness import LikenessTask, likeness_task
from corollout.training.checkpoints import replace_file
from corollout.training.finetuning import Trainer

METHODS = {
    "ARSM": "arsm",
    "ARSM-256": "arsm:budget=256",
    "ARSM-draws": "arsm:draws=4,budget=256",
    "PAIRS": "pairs",
    "REINFORCE": "reinforce",
    "RLOO": "rloo-8",
    "RLOO-fit": "rloo-8:baseline=fitted",
    "SET-fit": "set-8:baseline=fitted",
}
FILE = "runs.json"
_EVALUATION = 1 << 20  # training uses the seed's noise under small numbers


@dataclass(frozen=True)
class ColdStart:
    """What is done, at which scale."""

    scale: str
    vocabularies: tuple[int, ...]
    contexts: int
    length: int
    dimensions: int  # of the tokens' vectors
    hidden: int
    seconds: float  # of processor time, for each run
    evaluations: int  # along a run, about
    samples: int  # sequences of each context in an evaluation
    rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0, 1, 2)

    def task(self, vocab: int, seed: int) -> LikenessTask:
        return likeness_task(vocab, self.contexts, self.length, self.dimensions, self.hidden, seed)

    def settings(self) -> dict[str, Any]:
        """As JSON has it, with the methods and their estimators."""
        return json.loads(json.dumps({**asdict(self), "methods": METHODS}))


SCALES = {
    "tiny": ColdStart(
        "tiny",
        vocabularies=(50,),
        contexts=4,
        length=4,
        dimensions=4,
        hidden=8,
        seconds=0.05,
        evaluations=3,
        samples=4,
        rates=(0.03,),
        seeds=(0, 1),
    ),
    "small": ColdStart(
        "small",
        vocabularies=(1_000, 10_000),
        contexts=8,
        length=8,
        dimensions=8,
        hidden=32,
        seconds=20.0,
        evaluations=12,
        samples=16,
        rates=(0.003, 0.01, 0.03, 0.1),
    ),
}


class First(NamedTuple):
    """The first update of a method."""

    vocab: int
    method: str

    @property
    def name(self) -> str:
        return f"V = {self.vocab:,}, {self.method}, first update"


class Trial(NamedTuple):
    """A run of a method."""

    vocab: int
    method: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"V = {self.vocab:,}, {self.method}, rate {self.rate:g}, seed {self.seed}"


Part = First | Trial
Found = dict[str, Any]


def first_updates(plan: ColdStart) -> list[First]:
    return [First(vocab, method) for vocab in plan.vocabularies for method in METHODS]


def trials(plan: ColdStart) -> list[Trial]:
    """Seed after seed, so that what is done so far says something of every method."""
    return [
        Trial(vocab, method, rate, seed)
        for seed in plan.seeds
        for vocab in plan.vocabularies
        for method in METHODS
        for rate in plan.rates
    ]


@dataclass
class Results:
    """What is done, by the name of the part."""

    plan: ColdStart
    done: dict[str, Found] = field(default_factory=dict)

    def of(self, part: Part) -> Found | None:
        return self.done.get(part.name)

    @property
    def missing(self) -> list[Part]:
        return [part for part in (*first_updates(self.plan), *trials(self.plan)) if part.name not in self.done]


def open_results(out: Path, scale: str | None = None, seeds: tuple[int, ...] | None = None) -> Results:
    """What a folder has already; a new folder gets the plan of the scale. What is given must agree with it."""
    known, done = _read(out / FILE)
    scale = scale or known.get("scale", "small")
    if scale not in SCALES:
        raise InputError(f"no scale of this experiment is called {scale!r}: choose one of {', '.join(SCALES)}")
    plan = replace(SCALES[scale], seeds=seeds or tuple(known.get("seeds", SCALES[scale].seeds)))
    if differing := [name for name, value in plan.settings().items() if known and known.get(name) != value]:
        raise InputError(
            f"{out} was begun with other settings ({', '.join(differing)}): leave them out to go on with it, or choose "
            f"another folder with --out"
        )
    return Results(plan, done)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Found]]:
    """The settings that a folder was begun with, and what is done; nothing of both if it is new."""
    if not path.exists():
        return {}, {}
    try:
        stored = json.loads(path.read_text("utf-8"))
        return dict(stored["settings"]), dict(stored["done"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {path}: {error}; remove it to have everything done again") from error


def carry_out(
    results: Results, out: Path, jobs: int, on_part: Callable[[Part, Found], None] = lambda part, found: None
) -> None:
    """Do what is missing, ``jobs`` parts at a time, and keep each one; ``on_part`` is told what came out of it."""
    plan = results.plan
    with _workers(jobs) as spread:
        for kind in (First, Trial):
            # Known in the second round, when runs ask for it.
            takes = {part: results.done[part.name]["seconds"] for part in first_updates(plan) if results.of(part)}
            missing = [part for part in results.missing if isinstance(part, kind)]
            for part, found in spread(partial(_do, plan, takes), missing):
                results.done[part.name] = found
                _write(out, results)
                on_part(part, found)


def _write(out: Path, results: Results) -> None:
    text = json.dumps({"settings": results.plan.settings(), "done": results.done}) + "\n"
    try:
        out.mkdir(parents=True, exist_ok=True)
        replace_file(out / FILE, text.encode())
    except OSError as error:
        raise InputError(
            f"cannot use the folder {out}: {error.strerror or error}; choose another with --out"
        ) from error


Spread = Callable[[Callable[[Part], tuple[Part, Found]], Sequence[Part]], Iterable[tuple[Part, Found]]]


@contextmanager
def _workers(jobs: int) -> Generator[Spread, None, None]:
    """What does parts, one after the other in this process, or some at a time in others, as they come."""
    if jobs == 1:
        torch.set_num_threads(1)
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _begin) as pool:
        yield pool.imap_unordered


def _begin() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started the workers ends them


def _do(plan: ColdStart, takes: Mapping[First, float], part: Part) -> tuple[Part, Found]:
    if isinstance(part, First):
        _warm_up(plan, part.method)
        return part, first_update(plan, part)
    affordable = takes[First(part.vocab, part.method)] <= plan.seconds
    if affordable:
        _warm_up(plan, part.method)
    return part, train(plan, part, plan.seconds if affordable else 0.0)


def first_update(plan: ColdStart, part: First) -> Found:
    """Seconds, tokens and rollouts for each step of a method's first update."""
    seed = plan.seeds[0]
    metrics = _trainer(plan.task(part.vocab, seed), part.method, plan.rates[0], seed).next()
    return {"seconds": metrics.seconds, "tokens": metrics.tokens, "rollouts": metrics.rollouts_per_step}


def train(plan: ColdStart, part: Trial, seconds: float) -> Found:
    """A run from random weights: reward, seconds, tokens and updates along it, and its first and last rollouts."""
    task = plan.task(part.vocab, part.seed)
    trainer = _trainer(task, part.method, part.rate, part.seed)
    noise = Noise(part.seed).fold(_EVALUATION)
    curve: dict[str, list[float]] = {name: [] for name in ("seconds", "tokens", "updates", "reward")}

    def look() -> None:
        for name in ("seconds", "tokens", "updates"):
            curve[name].append(getattr(trainer, name))
        curve["reward"].append(task.mean_reward(plan.samples, noise))

    look()
    rollouts: list[float] = []
    every = plan.seconds / plan.evaluations
    stopped = ""
    try:
        for metrics in trainer.run(seconds=seconds):
            rollouts.append(metrics.rollouts_per_step)
            if trainer.seconds >= curve["seconds"][-1] + every or trainer.seconds >= seconds:
                look()
    except PolicyError as error:  # a rate that was too large: the run ends with what it had
        stopped = str(error)
    tenth = max(1, len(rollouts) // 10)
    ends = [sum(some) / tenth for some in (rollouts[:tenth], rollouts[-tenth:])] if rollouts else []
    return {"curve": curve, "rollouts": ends, "stopped": stopped}


def _trainer(task: LikenessTask, method: str, rate: float, seed: int) -> Trainer:
    return Trainer(
        task.engine,
        task.data,
        task.reward,
        METHODS[method],
        torch.optim.Adam(task.policy.parameters(), lr=rate),
        batch_size=len(task.data),
        seed=seed,
        clock="cpu",
    )


def _warm_up(plan: ColdStart, method: str) -> None:
    """Whatever is compiled when it is first used is so before any second counts."""
    _trainer(plan.task(10, 0), method, plan.rates[0], 0).next()
