"""Run directories as trainings leave them, made up in milliseconds."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from corollout.config import write_toml
from corollout.tasks.karel.metrics import Share

TASKS = 400


def hits(share: float, seed: int, tasks: int = TASKS) -> np.ndarray:
    """Which tasks are solved: seeds have most of them in common, as trained policies have."""
    difficulty = np.random.default_rng(7).random(tasks)
    noise = np.random.default_rng(100 + seed).normal(0, 0.05, tasks)
    return difficulty + noise < share


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    """What a run recorded of a kind."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def make_run(
    directory: Path,
    estimator: str | None = None,  # None for a pre-training
    *,
    seed: int = 0,
    rate: float = 3e-4,
    start: float = 0.25,
    end: float = 0.30,
    updates: int = 200,
    seconds: float = 1.0,  # of an update
    tokens: int = 1000,  # of an update
    rollouts: tuple[float, float] = (0.0, 0.0),
    variance: float = 1.0,
    evaluations: int = 7,
    mle: Path | None = None,
    result: bool = True,
    finished: bool = True,
    task: str = "karel",
    tasks: int = TASKS,
    data: str = "/data",
) -> Path:
    """A run whose Generalization goes from ``start`` to ``end``."""
    draw = np.random.default_rng(seed * 1000 + updates)
    kind = "pretrain" if estimator is None else "finetune"
    settings: dict[str, Any] = {"learning_rate": rate, "seed": seed, "batch_size": 32}
    if estimator is not None:
        settings["estimator"] = estimator
    config: dict[str, Any] = {
        "task": task,
        "kind": kind,
        "data": {"folder": data},
        "model": {"hidden": 8},
        kind: settings,
        "machine": {"device": "cpu", "threads": 1},
    }
    if mle is not None:
        config["start"] = {"run": str(mle), "update": 100}
    directory.mkdir(parents=True)
    write_toml(directory / "config.toml", config)
    lines = []
    looks = {round(i * updates / (evaluations - 1)) for i in range(evaluations)} if evaluations > 1 else set()
    best, best_update = -1.0, 0
    for update in range(updates + 1):
        share = update / updates
        spent = {"tokens": update * tokens, "seconds": update * seconds * (1 + 0.01 * seed)}
        if update:
            record = {"kind": "update", "update": update, "epoch": update // 100, "gradient_norm": 1.0, **spent}
            if estimator is None:
                record["loss"] = 2 * math.exp(-3 * share) + 0.3 + 0.05 * draw.normal()
            else:
                record["reward"] = start + (end - start) * share + 0.05 * draw.normal()
                drawn = variance * math.exp(-share + 0.6 * draw.normal())
                record["gradient_variance"] = 0.0 if update == 1 else drawn
                record["rollouts_per_step"] = rollouts[0] + (rollouts[1] - rollouts[0]) * math.sqrt(share)
            lines.append(record)
        if update in looks:
            value = start + (end - start) * (1 - math.exp(-3 * share)) / (1 - math.exp(-3))
            look = _numbers(int(hits(value, seed + update, tasks).sum()), tasks)
            extra = {} if estimator is None else {"train_generalization": look["generalization"] + 0.1 * share + 0.05}
            lines.append({"kind": "evaluation", "update": update, "epochs": update // 100, **spent, **look, **extra})
            if look["generalization"] > best:
                best, best_update = look["generalization"], update
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        summary = {"updates": updates, "tokens": updates * tokens, "seconds": updates * seconds * (1 + 0.01 * seed)}
        best_entries = {"best_update": best_update, "best_generalization": best, "epochs": 1, "stopped_early": False}
        (directory / "summary.json").write_text(json.dumps({**summary, **best_entries}))
    if result:
        found = {}
        for number, split in enumerate(("val", "test")):
            solved = hits(max(start, end) - 0.01 * number, seed + 10 * number, tasks)
            numbers = _numbers(int(solved.sum()), tasks)
            found[split] = {**numbers, "count": tasks, "solved": "".join("01"[int(hit)] for hit in solved)}
        found["test"] |= {f"top_{k}": found["test"]["generalization"] + 0.01 * k for k in range(1, 6)}
        (directory / "result.json").write_text(json.dumps(found))
    return directory


def _numbers(solved: int, tasks: int) -> dict[str, float]:
    share = Share(solved, tasks)
    low, high = share.interval
    return {
        "generalization": share.value,
        "semantic": share.value,
        "exact": share.value / 2,
        "syntax": 0.9,
        "generalization_low": low,
        "generalization_high": high,
    }


# estimator: end, seconds and tokens of an update, rollouts first and last, variance
PROFILES: dict[str, tuple[float, float, int, tuple[float, float], float]] = {
    "reinforce": (0.18, 0.11, 350, (0.0, 0.0), 12.0),
    "sc": (0.262, 0.13, 700, (0.12, 0.1), 9.0),
    "mc-0": (0.272, 0.25, 2600, (1.0, 1.0), 6.0),
    "mc-2": (0.285, 0.4, 5200, (3.0, 3.0), 2.5),
    "rl-beam-64": (0.29, 0.9, 9000, (0.0, 0.0), 0.4),
    "rloo-8": (0.302, 0.3, 2800, (0.0, 0.0), 1.6),
    "arsm": (0.316, 0.33, 3100, (2.8, 1.3), 0.7),
}


def make_table(folder: Path, seeds: tuple[int, ...] = (0, 1, 2), length: float = 180.0) -> dict[str, list[Path]]:
    """Runs of maximum likelihood and of seven methods, as the experiment leaves them: by estimator, "mle" first."""
    runs: dict[str, list[Path]] = {"mle": []}
    for seed in seeds:
        where = folder / f"seed-{seed}"
        start = 0.25 + 0.004 * seed
        runs["mle"].append(make_run(where / "mle", seed=seed, rate=1e-3, start=0.02, end=start, updates=300))
        for name, (end, seconds, tokens, rollouts, variance) in PROFILES.items():
            for rate in (1e-4, 3e-4, 1e-3):
                if rate != 3e-4 and seed != seeds[0]:
                    continue
                made = make_run(
                    where / f"{name}-{rate:g}",
                    name,
                    seed=seed,
                    rate=rate,
                    start=start,
                    end=end + 0.004 * seed - (0 if rate == 3e-4 else 0.015),
                    updates=int(length / seconds),
                    seconds=seconds,
                    tokens=tokens,
                    rollouts=rollouts,
                    variance=variance,
                    mle=where / "mle",
                )
                if rate == 3e-4:
                    runs.setdefault(name, []).append(made)
    return runs
