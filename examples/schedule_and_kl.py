"""Keeping a training stable: ``python examples/schedule_and_kl.py``

Rewards are rarely quite what is meant. Here a model has learned to sort short lists, fairly well, from examples. It is
fine-tuned on a reward with a hole: the share of neighbours that are in order. A list that repeats one symbol is in
perfect order, too, and sorts nothing. Training finds such holes. This script trains twice from the same weights: once
freely, and once with the usual means of stabilisation together

- a penalty on the divergence from the start (``kl``), which makes it costly to become another model altogether,
- a learning rate that warms up and then falls along a cosine,
- a moving average of the weights (``ema_decay``), which is what is evaluated and kept,
- early stopping: ``fit`` evaluates now and then, keeps the best weights, and stops when they do not get better.
"""

import argparse
import copy
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from corollout import Engine, Schedule, Trainer, evaluate, fit, pretrain
from corollout.tasks.sorting import sorted_exactly, sorting_data, sorting_engine
from corollout.weights import read_weights

SYMBOLS, LONGEST = 8, 6


def in_order(sequences: list[list[int]], target: list[list[int]]) -> list[float]:
    """The reward with a hole: how many neighbours are in order, if the length is right. Which symbols, it ignores."""
    rewards = []
    for tokens, right in zip(sequences, target, strict=True):
        pairs = list(pairwise(tokens))
        rewards.append(sum(a <= b for a, b in pairs) / len(pairs) if len(tokens) == len(right) > 1 else 0.0)
    return rewards


def warm_up_and_cosine(optimizer: torch.optim.Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Any scheduler of PyTorch will do; the trainer makes a step with it after every update."""
    schedulers = torch.optim.lr_scheduler
    rise = schedulers.LinearLR(optimizer, 0.1, 1.0, total_iters=updates // 10)
    fall = schedulers.CosineAnnealingLR(optimizer, T_max=updates - updates // 10)
    return schedulers.SequentialLR(optimizer, [rise, fall], milestones=[updates // 10])


def finetune(engine: Engine, directory: Path, updates: int, stabilised: bool) -> dict[str, Any]:
    """Train in a run directory; return its summary. The engine's policy has the best weights afterwards."""
    train, val = sorting_data(2_000, SYMBOLS, 3, LONGEST), sorting_data(200, SYMBOLS, 3, LONGEST, seed=1)
    policy: Any = engine.policy
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    options: dict[str, Any] = {}
    if stabilised:
        options = {"kl": 0.1, "ema_decay": 0.95, "scheduler": warm_up_and_cosine(optimizer, updates)}
    trainer = Trainer(engine, train, in_order, "rloo-4", optimizer, batch_size=32, **options)

    def evaluation() -> dict[str, float]:
        """What is meant, and what is rewarded. Greedy sequences of lists that training has not seen."""
        return {name: evaluate(engine, val, f) for name, f in (("sorted", sorted_exactly), ("in_order", in_order))}

    def show(event: Any) -> None:
        if event.kind == "evaluation":
            record = event.record
            print(f"  {record['update']:6d}   {record['sorted']:12.1%}   {record['in_order']:8.2f}")

    # The directory holds everything: metrics, checkpoints, the best weights. Killed and started again, the script would
    # go on from the last checkpoint and reach the same weights. Four evaluations without a gain, and it stops.
    print("  update   sorted right   in order")
    schedule = Schedule("updates", total=updates, every=updates // 8, patience=4)
    summary = fit(trainer, directory, schedule, evaluation, "sorted", on_event=show)
    policy.load_state_dict(read_weights(directory / "best.safetensors")[0])
    return summary


def main(quick: bool = False) -> None:
    torch.set_num_threads(1)
    start = sorting_engine(SYMBOLS, LONGEST, hidden=48)
    policy: Any = start.policy
    # Maximum likelihood first: a policy that never earns a reward has nothing to learn from.
    lists = sorting_data(2_000, SYMBOLS, 3, LONGEST)
    for _ in pretrain(start, lists, torch.optim.Adam(policy.parameters(), lr=3e-3), epochs=1 if quick else 4):
        pass
    weights = copy.deepcopy(policy.state_dict())
    with TemporaryDirectory() as folder:
        for name, stabilised in (("freely", False), ("with kl, schedule, average", True)):
            print(f"\nfine-tuned {name}:")
            policy.load_state_dict(weights)
            summary = finetune(start, Path(folder) / name, 16 if quick else 240, stabilised)
            early = "stopped early, after" if summary["stopped_early"] else "trained for"
            print(f"  {early} {summary['updates']} updates; best: {summary['best_sorted']:.1%} sorted right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few updates only: to see that it runs")
    main(**vars(parser.parse_args()))
