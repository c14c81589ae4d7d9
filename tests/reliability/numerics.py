"""Every estimator under numbers at the limits: vocabularies, logits, rewards, data types and batches of all sizes.

A case is an estimator under one condition: two estimates, the second with what the first has taught, and two whole
updates of a trainer. Cases run in worker processes with limits of memory and of time for each case.
"""

import json
import math
import random
import signal
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from corollout.data import Columns
from corollout.errors import InputError, PolicyError
from corollout.estimators import ARS, Auto, Estimator, make_estimator
from corollout.estimators.branching import Branching
from corollout.events import ignore
from corollout.noise import Noise
from corollout.policies import TreeHead, score_by_steps
from corollout.rollouts import Engine
from corollout.training import Trainer, estimate
from corollout.training.base import flat_gradient
from corollout.trees import balanced_tree
from tests.reliability import suite
from tests.reliability.suite import Outcome, Suite

ANY_HEAD = [
    *("reinforce", "reinforce-2", "reinforce:baseline=batch", "reinforce:baseline=none", "reinforce:baseline=shrunk"),
    *("reinforce:baseline=fitted", "reinforce-2:baseline=fitted", "rloo-3", "rloo-3:baseline=shrunk"),
    *("rloo-3:baseline=fitted", "grpo-3", "rl-beam-3", "sc", "sc-2", "mc-0", "mc-2", "vine-2", "set-2"),
    *("set-3:baseline=fitted", "set-8:baseline=fitted", "pairs", "pairs-2:samples=2"),
    *("pairs:budget=2,budget_per=example", "auto:estimates=2"),
]
ESTIMATORS: dict[str, list[str]] = {
    "softmax": [
        *("arsm", "ars-1", "ars-3", "arsm:budget=2", "arsm:completions=2,samples=2", "ars-2:draws=3"),
        *("arsm:main=greedy", "arsm:pseudo=greedy", "arm", "disarm", "arm:samples=2"),
        *ANY_HEAD,
    ],
    "tree": ["bt-arsm", "bt-arsm:budget=2", "bt-disarm", "bt-disarm:samples=2,completions=2", *ANY_HEAD],
}
DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
REWARDS = ("plain", "1e30", "-1e30", "1e-30", "constant", "some None", "all None", "rare")
LOGITS = {"softmax": ("plain", "huge", "sure", "masked", "only one", "endless"), "tree": ("plain", "huge", "sure")}
BITS = ("arm", "disarm")  # estimators for two tokens
SLOW = ("auto:estimates=2",)

_SECONDS, _MEGABYTES, _CHUNK = 120, 6_000, 1_000
_LARGE, _LARGE_BUDGET = 200_000, 50


@dataclass(frozen=True)
class Condition:
    head: str
    estimator: str
    logits: str
    reward: str
    dtype: str
    vocab: int
    contexts: int
    length: int

    @property
    def can_overflow(self) -> bool:
        """Whether the gradient does not fit into the data type: then the update is refused."""
        return self.dtype == "float16" and self.reward in ("1e30", "-1e30")


def conditions() -> list[Condition]:
    """All cases; the large vocabulary only where it says something new."""
    cases = []
    for head, names in ESTIMATORS.items():
        for name in names:
            bits = name.partition(":")[0] in BITS
            vocab = 2 if bits else 5
            # A choice of "auto" takes as long as twenty estimates.
            for logits, reward, dtype in product(LOGITS[head], REWARDS, ["float32"] if name in SLOW else DTYPES):
                cases.append(Condition(head, name, logits, reward, dtype, vocab, contexts=3, length=3))
            shapes = [(1, 3), (1, 1), (3, 1)]
            for reward, (contexts, length) in product(REWARDS, shapes):
                cases.append(Condition(head, name, "plain", reward, "float32", vocab, contexts, length))
            if bits:
                continue
            for size, reward in product((1, 2) if head == "softmax" else (2,), REWARDS):
                cases.append(Condition(head, name, "plain", reward, "float64", size, contexts=2, length=2))
            for logits in LOGITS[head]:
                cases.append(Condition(head, name, logits, "plain", "float32", _LARGE, contexts=1, length=1))
    return cases


class StepTable(nn.Module):
    """A row of numbers for each step: the logits, or what a tree's head reads. A state is the number of the step."""

    mask: Tensor

    def __init__(self, condition: Condition, generator: torch.Generator):
        super().__init__()
        self.vocab = condition.vocab
        width = condition.vocab if condition.head == "softmax" else 4
        table = torch.randn(condition.length, width, generator=generator, dtype=torch.float64)
        if condition.head == "tree":
            self.head = TreeHead(width, balanced_tree(condition.vocab)).double()
            with torch.no_grad():
                weight = torch.randn(self.head.weight.shape, generator=generator, dtype=torch.float64)
                self.head.weight.copy_(weight * {"plain": 1.0, "huge": 5e3, "sure": 1e4}[condition.logits])
                if condition.logits == "sure":
                    table = table.sign()
        elif condition.logits == "huge":
            table = 1e4 * table.sign()
        elif condition.logits == "sure":
            table = torch.full_like(table, -1e4)
            table[:, -1] = 1e4
        mask = torch.zeros_like(table)
        masked = {"masked": slice(-1, None), "only one": slice(0, -1), "endless": slice(0, 1)}
        mask[:, masked.get(condition.logits, slice(0, 0))] = -torch.inf
        self.table = nn.Parameter(table)
        self.register_buffer("mask", mask)
        self.to(DTYPES[condition.dtype])

    def encode(self, context: Tensor) -> Tensor:
        return torch.zeros_like(context)

    def start(self, memory: Tensor) -> Tensor:
        return memory

    def step(self, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return (self.table + self.mask)[state], state + 1

    def score(self, memory: Tensor, tokens: Tensor) -> Tensor:
        return score_by_steps(self, memory, tokens)


def reward_function(kind: str) -> Any:
    """A number for each sequence that is as random as its checksum."""

    def score(sequences: list[list[int]], examples: list[int]) -> list[float | None]:
        drawn = [zlib.crc32(repr((s, e)).encode()) / 2**32 for s, e in zip(sequences, examples, strict=True)]
        if kind == "constant":
            return [0.1] * len(drawn)
        if kind == "rare":
            return [1.0 if x < 0.01 else -1.0 for x in drawn]
        if kind.endswith("None"):
            return [None if kind == "all None" or x < 0.3 else x for x in drawn]
        return [x * (1.0 if kind == "plain" else float(kind)) for x in drawn]

    return score


def failure(condition: Condition, seed: int) -> str:
    """What is wrong with a case; empty if nothing is."""
    method = make_estimator(condition.estimator)
    if condition.vocab == _LARGE and isinstance(method, Branching):
        method = replace(method, budget=_LARGE_BUDGET)
    try:
        first, again = (_gradients(condition, method, seed) for _ in range(2))
    except InputError as error:
        documented = isinstance(method, ARS) and f"only {condition.vocab} actions" in str(error)
        return "" if documented else f"refused: {error}"
    if isinstance(first, str):
        return first
    for gradient, repeated in zip(first, again, strict=True):
        assert isinstance(repeated, Tensor)
        if not torch.equal(gradient, repeated):
            return "wrong: the same estimate differs when it is repeated"
    return _update_failure(condition, method, seed)


def _set_up(condition: Condition, seed: int) -> tuple[StepTable, Engine, Columns]:
    policy = StepTable(condition, torch.Generator().manual_seed(seed))
    engine = Engine(policy, bos=condition.vocab, eos=0, max_length=condition.length)
    return policy, engine, Columns(context=torch.zeros(condition.contexts, dtype=torch.int64))


def _gradients(condition: Condition, method: Estimator, seed: int) -> list[Tensor] | str:
    """The gradients of two estimates in the logits and in the parameters, or what is wrong with them."""
    policy, engine, data = _set_up(condition, seed)
    gradients = []
    for turn in range(2):
        sample = estimate(
            engine, data.batch(range(condition.contexts)), reward_function(condition.reward), method,
            Noise(seed).fold(turn), check_score=True,
        )  # fmt: skip
        policy.zero_grad()
        sample.backward()
        g = sample.gradient
        if wrong := _wrong(condition, method, g, sample.logits.detach(), first=turn == 0):
            return f"wrong: {wrong}"
        whole = flat_gradient(policy.parameters())
        if not condition.can_overflow and not bool(whole.isfinite().all()):
            return "wrong: the gradient in the parameters is not finite"
        gradients += [g, whole.nan_to_num(0.0)]
        method = sample.updated(method)
    return gradients


def _wrong(condition: Condition, method: Estimator, g: Tensor, logits: Tensor, first: bool) -> str:
    if not bool(g.isfinite().all()):
        return "the gradient in the logits is not finite"
    if bool(g[logits == -torch.inf].any()):
        return "a masked action has a gradient"
    if condition.reward == "all None" and bool(g.any()):
        return "rewards that were all skipped have a gradient"
    if condition.reward == "constant" and _has_baseline(condition, method, first) and bool(g.any()):
        return f"equal rewards have a gradient of {float(g.abs().max()):.3g}"
    # The entries of masked actions, whose mean is zero, are left out by estimators that credit all actions evenly.
    uneven = condition.estimator.startswith(("ars", "arm", "disarm")) and bool((logits == -torch.inf).any())
    if condition.head == "softmax" and not uneven:
        # Credits of the size of the rewards may cancel, and leave rounding.
        size = abs(float(condition.reward)) if condition.reward.endswith("30") else 1.0
        room = torch.finfo(g.dtype).eps * (64 * g.double().abs().sum(-1) + size)
        error = float((g.double().sum(-1).abs() - room).max())
        if error > 0:
            return f"the gradients of all actions add up to {error:.3g}"
    return ""


def _has_baseline(condition: Condition, method: Estimator, first: bool) -> bool:
    """Whether equal rewards have no gradient: a single sequence of REINFORCE has nothing to be compared with."""
    current = method.current if isinstance(method, Auto) else method
    if not condition.estimator.startswith("reinforce") and not isinstance(method, Auto):
        return True
    baseline = getattr(current, "baseline", "")
    alone = condition.contexts * current.sampler.count == 1
    return baseline != "none" and (not alone or baseline == "batch" or (baseline == "fitted" and not first))


def _update_failure(condition: Condition, method: Estimator, seed: int) -> str:
    """What is wrong with two updates of a trainer."""
    policy, engine, data = _set_up(condition, seed)
    trainer = Trainer(
        engine, data, reward_function(condition.reward), method, torch.optim.SGD(policy.parameters(), lr=0.1),
        batch_size=condition.contexts, seed=seed, on_event=ignore)  # fmt: skip
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    for _ in range(2):
        try:
            metrics = trainer.step()
        except PolicyError as error:
            if condition.can_overflow and "is not finite; the parameters were left as they were" in str(error):
                same = all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())
                return "" if same or trainer.updates > 0 else "wrong: a refused update changed the weights"
            return f"refused: {error}"
        if not math.isfinite(metrics.gradient_norm):
            return "wrong: the norm of the gradient is not finite"
    return ""


def _chosen(cases: int, seed: int) -> list[int]:
    """The numbers of some cases: about as many of every estimator, in a random order."""
    shuffled = random.Random(seed)
    everything = list(enumerate(conditions()))
    shuffled.shuffle(everything)
    turn: dict[tuple[str, str], int] = {}
    ranked = []
    for number, condition in everything:
        key = (condition.head, condition.estimator)
        turn[key] = turn.get(key, -1) + 1
        ranked.append((turn[key], number))
    return [number for _, number in sorted(ranked, key=lambda pair: pair[0])[:cases]]


def run(cases: int, seed: int) -> Iterator[Outcome]:
    """Cases in worker processes; one that ends early has failed at the first case it did not report."""
    everything, left = conditions(), _chosen(cases, seed)
    while left:
        chunk = left[:_CHUNK]
        command = [sys.executable, "-m", "tests.reliability.numerics", str(seed), json.dumps(chunk)]
        finished = suite.run(command, seconds=_CHUNK * _SECONDS, megabytes=_MEGABYTES)
        reported = [json.loads(line) for line in finished.output.splitlines()]
        for number, problem in zip(chunk, reported, strict=False):
            yield _outcome(everything[number], problem)
        done = len(reported)
        if done < len(chunk):
            why = "hang" if finished.code == -signal.SIGALRM else finished.problem or f"exit code {finished.code}"
            yield _outcome(everything[chunk[done]], why)
            done += 1
        left = left[done:]


def _outcome(condition: Condition, problem: str) -> Outcome:
    what = f"{condition.estimator} ({condition.head})"
    return Outcome(what, 1, (f"{problem}, with {condition}",) if problem else ())


def main() -> None:
    """Try some cases; print a line for each as soon as it is done."""
    seed, numbers = int(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    everything = conditions()
    for number in numbers:
        signal.alarm(_SECONDS)  # without a handler, this ends the process wherever it is
        try:
            problem = failure(everything[number], seed)
        except Exception as error:
            problem = f"traceback: {type(error).__name__}: {error}"
        print(json.dumps(problem), flush=True)


SUITE = Suite(
    "numerics",
    "Every estimator gives a finite, repeatable gradient for any vocabulary, logits, rewards and data type",
    len(conditions()),
    run,
)

if __name__ == "__main__":
    main()
