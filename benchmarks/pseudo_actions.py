"""How fast are pseudo-actions? ``corollout.pseudo_actions`` against the dense table of Algorithm 1, in PyTorch.

The opponent fills all K · V entries of each row, each the least of three candidates: o'_j = a_m − φ_j,
o'_m = a_j − φ_m and the best of the others. It is written in four layouts: a loop over the references with
[rows, V] at a time or one operation on [rows, K, V], and all rows at once or so few that temporaries stay in the
cache. All must give the same table first. The opponent is whichever layout is fastest on normal logits.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from rich.progress import Progress
from torch import Tensor

import corollout
from benchmarks.harness import Result, Target, Timing, best, figure, milliseconds, time_alternately, with_threads
from corollout.estimators.pseudo_torch import search_torch
from corollout.noise import Noise, dirichlet, subsets

SEED = 1
KINDS = {"normal × 3": 3.0, "flat": 0.0}
LEAST_SPEEDUP = 50.0
OURS, TORCH_ONLY = "corollout.pseudo_actions", "our search, PyTorch only"


class Sizes(NamedTuple):
    rows: int
    vocab: int
    references: int
    repetitions: int


FULL = Sizes(rows=400, vocab=9488, references=20, repetitions=7)
QUICK = Sizes(rows=20, vocab=200, references=5, repetitions=2)


class Layout(NamedTuple):
    """A way to fill the dense table: a function for some rows, and how many rows it is given (None: all)."""

    name: str
    fill: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    rows: int | None


def dense_table(
    logits: Float[Tensor, "row vocab"],
    pi: Float[Tensor, "row vocab"],
    references: Int64[Tensor, " reference"],
    layout: Layout,
) -> Int64[Tensor, "row reference vocab"]:
    """All pseudo-actions, entry by entry."""
    rows, vocab = logits.shape
    a = pi.log()
    table = torch.empty(rows, len(references), vocab, dtype=torch.int64)
    block = layout.rows or rows
    for i in range(0, rows, block):
        layout.fill(logits[i : i + block], a[i : i + block], references, table[i : i + block])
    return table


def _two_best(phi: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The smallest and the second smallest o = a − φ of each row with their actions, as columns."""
    top, index = (phi - a).topk(2, 1)
    return -top[:, :1], -top[:, 1:], index[:, :1], index[:, 1:]


def _fill_by_reference(phi: Tensor, a: Tensor, references: Tensor, table: Tensor) -> None:
    vocab = phi.shape[1]
    o_1, o_2, z_1, z_2 = _two_best(phi, a)
    m = torch.arange(vocab)
    for k, j in enumerate(references.tolist()):
        o_j, o_m = a - phi[:, j : j + 1], a[:, j : j + 1] - phi
        # The best other than j and m: the best, but the second where j or m is the best.
        o_other = torch.where(z_1 == j, o_2, o_1).expand(-1, vocab).clone().scatter_(1, z_1, o_2)
        other = torch.where(z_1 == j, z_2, z_1).expand(-1, vocab).clone().scatter_(1, z_1, z_2)
        table[:, k] = torch.where(torch.minimum(o_m, o_j) < o_other, torch.where(o_m < o_j, m, j), other)


def _fill_at_once(phi: Tensor, a: Tensor, references: Tensor, table: Tensor) -> None:
    count, vocab = len(references), phi.shape[1]
    o_1, o_2, z_1, z_2 = _two_best(phi, a)
    m, j = torch.arange(vocab), references[:, None]
    o_j, o_m = a[:, None] - phi[:, references, None], a[:, references, None] - phi[:, None]
    o_other = torch.where(z_1 == references, o_2, o_1)[:, :, None].expand(-1, -1, vocab).clone()
    other = torch.where(z_1 == references, z_2, z_1)[:, :, None].expand(-1, -1, vocab).clone()
    at_best, second, runner_up = (x[:, None].expand(-1, count, -1) for x in (z_1, o_2, z_2))
    o_other.scatter_(2, at_best, second)
    other.scatter_(2, at_best, runner_up)
    torch.where(torch.minimum(o_m, o_j) < o_other, torch.where(o_m < o_j, m, j), other, out=table)


LAYOUTS = [
    Layout("dense, loop over references, all rows", _fill_by_reference, None),
    Layout("dense, loop over references, 16 rows at a time", _fill_by_reference, 16),
    Layout("dense, [rows, K, V], all rows", _fill_at_once, None),
    Layout("dense, [rows, K, V], 2 rows at a time", _fill_at_once, 2),
]


def draw(rows: int, vocab: int, scale: float, seed: int = SEED) -> tuple[Tensor, Tensor]:
    """Normal logits of a scale, and π for each row."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale
    pi = dirichlet(Noise(seed).keys(torch.arange(rows)), torch.zeros(rows, dtype=torch.int64), vocab)
    return logits, pi


def shared_references(vocab: int, count: int, seed: int = SEED) -> Int64[Tensor, " reference"]:
    keys = Noise(seed).keys(torch.zeros(1, dtype=torch.int64))
    return subsets(keys, torch.zeros_like(keys), vocab, count)[0]


def check(logits: Tensor, pi: Tensor, references: Tensor) -> None:
    """Ours and all layouts of the opponent give the same table."""
    ours = corollout.pseudo_actions(logits, pi, references).dense()
    for layout in LAYOUTS:
        if not torch.equal(ours, dense_table(logits, pi, references, layout)):
            raise AssertionError(f"the table ({layout.name}) differs from corollout.pseudo_actions")


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    references = shared_references(sizes.vocab, sizes.references)
    layouts = LAYOUTS
    timings: list[Timing] = []
    table: list[dict[str, str]] = []
    measurements: dict[str, Any] = {}
    for kind, scale in KINDS.items():
        logits, pi = draw(sizes.rows, sizes.vocab, scale)
        check(logits, pi, references)
        raced = _compete(logits, pi, references, layouts, sizes.repetitions, progress, f"pseudo_actions: {kind} logits")
        ours = best(raced, OURS)
        layouts = [min(layouts, key=lambda layout: best(raced, layout.name).median)]  # for the next kind, too
        measurements[kind] = {
            "opponent": layouts[0].name,
            "speedup": best(raced, layouts[0].name).median / ours.median,
            "speedup_by_contestant_and_threads": {
                f"{timing.name}, {timing.threads} threads": timing.median / ours.median
                for timing in raced
                if timing.name != OURS
            },
        }
        table += [
            {
                "logits": kind,
                "contestant": timing.name,
                "threads": str(timing.threads),
                "ms (quartiles)": milliseconds(timing),
                "time / ours": figure(timing.median / ours.median),
            }
            for timing in raced
        ]
        timings += [replace(timing, name=f"{timing.name}, {kind} logits") for timing in raced]
    kind = next(iter(KINDS))
    target = Target(
        f"at least {LEAST_SPEEDUP:g} times as fast as the table ({measurements[kind]['opponent']}), {kind} logits",
        measurements[kind]["speedup"],
        LEAST_SPEEDUP,
        at_least=True,
        judged=not quick,
    )
    return {
        "benchmark": "pseudo_actions",
        "quick": quick,
        "settings": {**sizes._asdict(), "dtype": "float32", "kinds": KINDS},
        "seeds": {"logits, pi and references": SEED},
        "timings": [timing.record() for timing in timings],
        "measurements": measurements,
        "targets": [target.record()],
        "table": table,
    }


def _compete(
    logits: Tensor,
    pi: Tensor,
    references: Tensor,
    layouts: list[Layout],
    repetitions: int,
    progress: Progress,
    description: str,
) -> list[Timing]:
    """Ours, the given dense layouts and, for information, what a GPU would run: the search by PyTorch operations."""
    calls: dict[str, Callable[[], object]] = {OURS: lambda: corollout.pseudo_actions(logits, pi, references)}
    for layout in layouts:
        calls[layout.name] = lambda layout=layout: dense_table(logits, pi, references, layout)
    calls[TORCH_ONLY] = lambda: search_torch(logits, pi.log(), references.expand(len(logits), -1))
    contestants = [c for name, call in calls.items() for c in with_threads(name, call)]
    return time_alternately(contestants, repetitions, progress, description)
