"""Run directories as trainings leave them, made up in milliseconds."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from corollout.config import write_toml
from corollout.experiments.table2 import TABLE2
from corollout.tasks.task import Share, mean_interval

TASKS = 400
STEPS = 12
KEYS = {"karel": "generalization", "captions": "cider"}


def hits(share: float, seed: int, tasks: int = TASKS) -> np.ndarray:
    """Which tasks are solved: seeds have most of them in common, as trained policies have."""
    difficulty = np.random.default_rng(7).random(tasks)
    noise = np.random.default_rng(100 + seed).normal(0, 0.05, tasks)
    return difficulty + noise < share


def ciders(mean: float, seed: int, images: int = TASKS) -> np.ndarray:
    """CIDEr-D of each image: some images are easier than others, for all seeds."""
    ease = np.random.default_rng(7).gamma(2.0, 0.5, images)
    noise = np.random.default_rng(100 + seed).gamma(20.0, 0.05, images)
    return np.round(mean * ease * noise, 6)


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
    """A run whose Generalization, or CIDEr-D, goes from ``start`` to ``end``."""
    key = KEYS[task]
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
                record["rollouts_by_step"] = by_step(record["rollouts_per_step"], STEPS - update % 3)
            lines.append(record)
        if update in looks:
            value = start + (end - start) * (1 - math.exp(-3 * share)) / (1 - math.exp(-3))
            look = _numbers(value, seed + update, tasks, task)
            extra = {} if estimator is None else {f"train_{key}": look[key] + 0.1 * share + 0.05}
            lines.append({"kind": "evaluation", "update": update, "epochs": update // 100, **spent, **look, **extra})
            if look[key] > best:
                best, best_update = look[key], update
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        summary = {"updates": updates, "tokens": updates * tokens, "seconds": updates * seconds * (1 + 0.01 * seed)}
        best_entries = {"best_update": best_update, f"best_{key}": best, "epochs": 1, "stopped_early": False}
        (directory / "summary.json").write_text(json.dumps({**summary, **best_entries}))
    if result:
        found = {}
        for number, split in enumerate(("val", "test")):
            value, own = max(start, end) - 0.01 * number, seed + 10 * number
            numbers = _numbers(value, own, tasks, task)
            if task == "karel":
                each: Any = {"solved": "".join("01"[int(hit)] for hit in hits(value, own, tasks))}
            else:
                each = {"scores": ciders(value, own, tasks).tolist()}
            found[split] = {**numbers, "count": tasks, **each}
        if task == "karel":
            found["test"] |= {f"top_{k}": found["test"][key] + 0.01 * k for k in range(1, 6)}
        else:
            found["test"] |= {f"beam_{name}": found["test"][name] + 0.02 for name in _MEASURES}
        (directory / "result.json").write_text(json.dumps(found))
    return directory


_MEASURES = ("cider", "rouge_l", "bleu_1", "bleu_2", "bleu_3", "bleu_4")


def by_step(mean: float, steps: int) -> list[float]:
    """Rollouts of each step: most of them in the middle."""
    shape = 0.2 + np.sin(np.pi * (np.arange(steps) + 0.5) / steps)
    return [round(float(value), 4) for value in mean * shape / shape.mean()]


def _numbers(value: float, seed: int, tasks: int, task: str) -> dict[str, float]:
    """What an evaluation tells of a run whose measure is about ``value``."""
    if task == "captions":
        scores = ciders(value, seed, tasks)
        low, high = mean_interval(scores) or (math.nan, math.nan)
        others = {"rouge_l": 0.3 + value / 4, **{f"bleu_{n}": 0.75 - 0.14 * n + value / 10 for n in range(1, 5)}}
        return {"cider": float(scores.mean()), **others, "cider_low": low, "cider_high": high, "length": 9.5}
    share = Share(int(hits(value, seed, tasks).sum()), tasks)
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
Profiles = dict[str, tuple[float, float, int, tuple[float, float], float]]
PROFILES: Profiles = {
    "reinforce": (0.18, 0.11, 350, (0.0, 0.0), 12.0),
    "sc": (0.262, 0.13, 700, (0.12, 0.1), 9.0),
    "mc-0": (0.272, 0.25, 2600, (1.0, 1.0), 6.0),
    "mc-2": (0.285, 0.4, 5200, (3.0, 3.0), 2.5),
    "rl-beam-64": (0.29, 0.9, 9000, (0.0, 0.0), 0.4),
    "rloo-8": (0.302, 0.3, 2800, (0.0, 0.0), 1.6),
    "arsm": (0.316, 0.33, 3100, (2.8, 1.3), 0.7),
}
CAPTION_PROFILES: Profiles = {
    TABLE2.methods[method]: profile
    for method, profile in {
        "REINFORCE": (0.52, 0.06, 500, (0.0, 0.0), 40.0),
        "SC": (0.56, 0.08, 1000, (0.1, 0.1), 25.0),
        "RLOO": (0.575, 0.2, 2500, (0.0, 0.0), 6.0),
        "ARS-1": (0.53, 0.12, 2600, (1.6, 0.5), 12.0),
        "ARS-5": (0.56, 0.2, 9000, (5.9, 1.9), 5.0),
        "ARS-10": (0.575, 0.28, 15000, (9.8, 3.1), 3.5),
        "ARS-20": (0.585, 0.4, 26000, (15.5, 4.6), 2.4),
        "ARSM": (0.58, 0.9, 60000, (71.0, 14.0), 1.5),
    }.items()
}
RATES = (1e-4, 3e-4, 1e-3)


def make_table(
    folder: Path,
    seeds: tuple[int, ...] = (0, 1, 2),
    length: float = 180.0,
    profiles: Profiles = PROFILES,
    task: str = "karel",
    rates: tuple[float, ...] = RATES,
    start: float = 0.25,
) -> dict[str, list[Path]]:
    """Runs of maximum likelihood and of all methods, as the experiment leaves them: by estimator, "mle" first.

    The rate of 3e-4 is best; only the first seed has the others.
    """
    runs: dict[str, list[Path]] = {"mle": []}
    for seed in seeds:
        where = folder / f"seed-{seed}"
        first = start + 0.004 * seed
        mle = make_run(where / "mle", seed=seed, rate=1e-3, start=0.02, end=first, updates=300, task=task)
        runs["mle"].append(mle)
        for name, (end, seconds, tokens, rollouts, variance) in profiles.items():
            for rate in rates if seed == seeds[0] else (3e-4,):
                made = make_run(
                    where / f"{re.sub('[:=,]', '-', name)}-{rate:g}",
                    name,
                    seed=seed,
                    rate=rate,
                    start=first,
                    end=end + 0.004 * seed - (0 if rate == 3e-4 else 0.015),
                    updates=int(length / seconds),
                    seconds=seconds,
                    tokens=tokens,
                    rollouts=rollouts,
                    variance=variance,
                    mle=where / "mle",
                    task=task,
                )
                if rate == 3e-4:
                    runs.setdefault(name, []).append(made)
    return runs


def sentences(rollouts: float, count: int = 2000, seed: int = 0) -> dict[str, Any]:
    """What the study of rollouts measures: sentences that score less get more rollouts."""
    draw = np.random.default_rng(seed)
    scores = draw.gamma(2.0, 0.45, count)
    lengths = draw.integers(7, STEPS + 1, count)
    wanted = rollouts * lengths * draw.gamma(8.0, 0.125, count) / (0.6 + 0.4 * scores)
    reaching = [int((lengths > step).sum()) for step in range(STEPS)]
    return {
        "scores": [round(value, 5) for value in scores.tolist()],
        "lengths": lengths.tolist(),
        "rollouts": wanted.round().astype(int).tolist(),
        "by_step": by_step(rollouts, STEPS),
        "reaching": reaching,
    }
