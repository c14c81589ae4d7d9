"""Updates that several processes make together, as a program for torchrun; and what one process makes, to compare."""

import itertools
import json
import math
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from corollout.data import Columns
from corollout.events import Event
from corollout.processes import joined
from corollout.rollouts import Engine
from corollout.training import MLETrainer, Trainer
from corollout.training.base import flat_gradient
from corollout.training.metrics import TIMED
from corollout.training.regularisation import KL
from corollout.trees import balanced_tree
from examples.own_model import Reverser
from tests.support.policy_cases import policy_case
from tests.support.small_task import BOS, EOS, LENGTH, VOCAB, make_data, make_policy, make_tree_policy

UPDATES, BATCH, EXAMPLES = 3, 5, 7  # the second batch of an epoch has two contexts: not all of three ranks get one
POLICIES = ("softmax", "tree", "bits", "karel", "captions", "captions by a tree", "own model")


@dataclass(frozen=True)
class Case:
    """Some updates by an estimator for a policy; ``options`` are those of the trainer."""

    estimator: str
    policy: str = "softmax"
    options: dict[str, Any] = field(default_factory=dict)
    skips: bool = False  # whether the reward leaves out some sequences, and all of an example
    updates: int = UPDATES

    @property
    def name(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        return " ".join(filter(None, [self.estimator, self.policy, options, "skips" * self.skips]))


SOFTMAX = (
    *("arsm", "ars-2", "ars-2:shared_references=true", "arsm:draws=2", "arsm:budget=9", "arsm:samples=2,budget=20"),
    *("arsm:budget=3,budget_per=example", "arsm:completions=2", "arsm:main=greedy", "ars-2:budget=6"),
    *("reinforce", "reinforce-2", "reinforce:baseline=batch", "reinforce:baseline=none"),
    *("reinforce:baseline=shrunk", "reinforce:baseline=fitted"),
    *("rloo-3", "rloo-3:baseline=shrunk", "rloo-3:baseline=fitted", "grpo-3", "sc", "sc-2", "mc-0", "mc-2", "td-scst"),
    *("vine-2", "rl-beam-4", "set-3", "set-3:baseline=fitted", "pairs", "pairs:budget=8", "pairs:budget_per=example"),
    *("pairs:samples=2,completions=2", "auto:every=2,estimates=2"),
)
TREE = (
    *("bt-arsm", "bt-arsm:budget=6", "bt-disarm", "bt-disarm:samples=2,budget=9,completions=2", "bt-reinforce"),
    *("bt-rloo-3", "rloo-3:baseline=fitted", "reinforce:baseline=shrunk", "set-3:baseline=fitted", "bt-sc", "bt-mc"),
    *("vine-2", "rl-beam-4", "pairs", "grpo-3", "auto:every=2,estimates=2"),
)
BITS = ("arm", "disarm", "arm:samples=2", "disarm:samples=2")
TASKS = ("arsm:budget=40", "reinforce", "rloo-3:baseline=fitted", "pairs", "mc-1", "auto:estimates=2")
TREE_TASK = ("bt-arsm:budget=20", "bt-disarm", "reinforce", "set-3:baseline=fitted", "pairs")
OPTIONS = (
    Case("rloo-3:baseline=fitted", options={"accumulate": 2, "micro_batch": 2}),
    Case("reinforce", options={"micro_batch": 1}),
    Case("pairs", options={"kl": 0.1, "entropy": 0.01}),
    Case("reinforce", "tree", {"kl": 0.2, "kl_target": 0.01}),
    Case("rloo-2", options={"mle_weight": 0.3, "micro_batch": 2}),
    Case("rloo-2", options={"mle_weight": 0.3, "mle_data": 4, "accumulate": 2}),
    Case("arsm:budget=9", options={"balance": "cost", "accumulate": 2, "ema_decay": 0.5}, updates=5),
    Case("pairs", options={"balance": "cost"}, updates=5),
    Case("rloo-3:baseline=fitted", options={"balance": "cost", "batch_size": 2}, updates=6),
    Case("reinforce", options={"batch_size": 1}, updates=4),
    Case("rloo-2", options={"probe_every": 2, "samples_every": 2, "max_grad_norm": 0.01}),
    *(
        Case(name, skips=True)
        for name in ("reinforce", "rloo-3", "rloo-3:baseline=fitted", "reinforce:baseline=shrunk", "set-3", "pairs")
    ),
    Case("mc-2", "tree", skips=True),
)
MLE = [Case("mle", policy) for policy in ("softmax", "tree", "captions")] + [
    Case("mle", options={"scheduled_sampling": 0.5, "batch_size": 2}),
]
QUICK = [
    Case("arsm:budget=9"),
    Case("reinforce"),
    Case("rloo-3:baseline=fitted", "tree"),
    Case("pairs", "karel"),
    Case("bt-disarm", "captions by a tree"),
    Case("set-3:baseline=fitted", "own model"),
    Case("rloo-3", options={"balance": "cost", "accumulate": 2}),
    Case("mle", "captions"),
]
ALL = [
    *(Case(name) for name in SOFTMAX),
    *(Case(name, "tree") for name in TREE),
    *(Case(name, "bits") for name in BITS),
    *(Case(name, policy) for policy in ("karel", "captions", "own model") for name in TASKS),
    *(Case(name, "captions by a tree") for name in TREE_TASK),
    *OPTIONS,
    *MLE,
]


def make_engine(policy: str) -> tuple[Engine, Columns]:
    """A small policy in double precision, and data for it."""
    if policy in ("softmax", "tree"):
        module = make_policy() if policy == "softmax" else make_tree_policy(balanced_tree(VOCAB))
        return Engine(module, bos=BOS, eos=EOS, max_length=LENGTH), make_data(EXAMPLES)
    if policy == "bits":
        return Engine(make_policy(vocab=2), bos=0, eos=1, max_length=LENGTH), make_data(EXAMPLES, vocab=2)
    if policy == "own model":
        torch.manual_seed(0)
        engine = Engine(Reverser(VOCAB, 8).double(), bos=1, eos=0, max_length=4)
        return engine, make_data(EXAMPLES)
    case = policy_case(policy)
    repeated = torch.cat([case.context, case.context])[:EXAMPLES]
    targets = [[3, 4, 3][: 1 + n % 3] for n in range(EXAMPLES)]
    return case.engine(), Columns(context=repeated, target=targets, ids=range(50, 50 + EXAMPLES))


# Ranks that are threads have one random generator, from which weights are drawn.
BUILDING = threading.Lock()


class Recording:
    """A reward that depends on the example and all tokens in a way no policy can learn, and keeps what it has seen."""

    __name__ = "recording"

    def __init__(self, skips: bool):
        self.skips = skips
        self.seen: dict[int, list[list[int]]] = {}

    def __call__(self, sequences: list[list[int]], examples: list[int], finished: list[bool]) -> list[float | None]:
        rewards = []
        for tokens, example, done in zip(sequences, examples, finished, strict=True):
            self.seen.setdefault(example, []).append([*tokens, int(done)])
            number = (example * 31 + sum((t + 1) * 7**i for i, t in enumerate(tokens)) + done) % 1009
            is_skipped = self.skips and (number % 5 == 0 or example % 3 == 0)
            rewards.append(None if is_skipped else number / 1009)
        return rewards


def make_trainer(case: Case, events: list[Event]) -> tuple[Any, Recording]:
    engine, data = make_engine(case.policy)
    reward, options = Recording(case.skips), {"batch_size": BATCH, "max_grad_norm": None, **case.options}
    policy: Any = engine.policy
    if case.estimator == "mle":
        from corollout.training.mle import ScheduledSampling

        if "scheduled_sampling" in options:
            options["scheduled_sampling"] = ScheduledSampling(options["scheduled_sampling"], every=1)
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        return MLETrainer(engine, data, optimizer, **options), reward
    if "kl_target" in options:
        options["kl"] = KL(options["kl"], options.pop("kl_target"))
    if "mle_data" in options:
        options["mle_data"] = make_data(options["mle_data"])
    if "probe_every" in options:
        options["probes"] = ["pairs", "arsm:budget=9"]
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    return Trainer(engine, data, reward, case.estimator, optimizer, on_event=events.append, **options), reward


def updates_of(case: Case) -> dict[str, Any]:
    """Sequences, gradients, metrics, events and the state of a training, as JSON can hold them."""
    events: list[Event] = []
    with BUILDING:
        trainer, reward = make_trainer(case, events)
    trainer.now = itertools.count(1.0).__next__  # "auto" then decides by variance only
    gradients, metrics = [], []
    for _ in range(case.updates):
        metrics.append(asdict(trainer.step()))
        gradients.append(flat_gradient(trainer.parameters).tolist())
    state = trainer.state()
    return {
        "sequences": {str(example): sorted(seen) for example, seen in reward.seen.items()},
        "gradients": gradients,
        "metrics": metrics,
        "events": [[event.kind, dict(event.record)] for event in events],
        "state": {name: tensor.double().flatten().tolist() for name, tensor in state.tensors.items()},
        "values": state.values,
    }


def differences(case: Case, one: dict[str, Any], many: list[dict[str, Any]]) -> list[str]:
    """What several processes did otherwise than one, or than each other."""
    found = [
        f"{what} of rank {rank} and rank 0"
        for rank, each in enumerate(many)
        for what in ("gradients", "state")
        if each[what] != many[0][what]  # to the bit
    ]
    everyone: dict[str, list[Any]] = {}
    for each in many:
        for example, sequences in each["sequences"].items():
            everyone.setdefault(example, []).extend(sequences)
    if {example: sorted(sequences) for example, sequences in everyone.items()} != one["sequences"]:
        found.append("sequences")
    for what in ("gradients", "state"):
        pairs = one[what].items() if what == "state" else enumerate(one[what])
        found += [f"{what} {key}" for key, values in pairs if not _relative_gap(many[0][what][key], values) < 1e-6]
    found += [
        f"{name} of update {number}: {each[name]} instead of {value}"
        for number, (each, alone) in enumerate(zip(many[0]["metrics"], one["metrics"], strict=True), 1)
        for name, value in alone.items()
        if name not in TIMED and not _is_close(each[name], value)
    ]
    for each, alone in zip(many[0]["events"], one["events"], strict=True):
        if alone[0] != "choice" and not _is_close(each, alone):  # reasons are in words
            found.append(f"{alone[0]}: {each[1]} instead of {alone[1]}")
    if not _is_close(many[0]["values"], one["values"]):
        found.append("values of the state")
    return found


def _relative_gap(values: list[float], expected: list[float]) -> float:
    if len(values) != len(expected):
        return math.inf
    largest = max(map(abs, expected), default=0.0)
    return max((abs(a - b) for a, b in zip(values, expected, strict=True)), default=0.0) / max(largest, 1e-12)


def _is_close(value: Any, expected: Any) -> bool:
    """Whether nests are equal but for the rounding of sums."""
    if isinstance(expected, dict):
        same = isinstance(value, dict) and value.keys() == expected.keys()
        return same and all(_is_close(value[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(value) == len(expected) and all(map(_is_close, value, expected))
    if isinstance(expected, float):
        return value == expected or math.isclose(value, expected, rel_tol=1e-7, abs_tol=1e-10) or math.isnan(expected)
    return value == expected


def main() -> None:
    out, which = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    with joined() as group:
        results = {case.name: updates_of(case) for case in (QUICK if which == "quick" else ALL)}
        (out / f"{group.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
