"""How often does an update wait for the device? Counted on a device that does not exist (``pretended_device``).

A host that waits for a GPU cannot give it work ahead, and every wait costs some ten microseconds besides. The same
updates are made with sequences of two lengths, so that waits that come once for each step can be told from those that
come once for each update. Every update on the device must be the one that is made on the CPU: same sequences, same
gradient up to rounding.

No GPU is involved: the counts are those of CUDA, as far as its operations are documented to wait, and nothing is timed.
``RecurrentPolicy`` is missing, because PyTorch's own recurrent layers have no implementation that could be pretended.
"""

import copy
import multiprocessing
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn

from benchmarks.harness import Result, Target
from benchmarks.pretended_device import Wait, device, pretended
from corollout import Engine, Noise, estimate, make_estimator
from corollout.data import Columns
from corollout.estimators import Estimator
from corollout.policies import TransformerPolicy
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.tasks.karel.model import KarelPolicy
from corollout.trees import huffman_tree

SEED = 0
CONTEXTS = 6
SHORT, LONG = 6, 12
PHASES = ("sampling", "planning", "completion", "scoring")
ESTIMATORS = (
    "reinforce",
    "rloo-4",
    "sc",
    "mc-2",
    "vine-2",
    "set-3:baseline=fitted",
    "rl_beam-3",
    "ars-3",
    "arsm",
    "arsm:budget=20",
    "pairs",
)
TREE_ESTIMATORS = ("rloo-4", "sc", "bt-arsm", "set-3:baseline=fitted")
QUICK = ("mc-2", "bt-arsm")
DROPS = (1, 4)
MOST_A_STEP = 1.0


class Case(NamedTuple):
    name: str
    policy: nn.Module
    contexts: Tensor
    bos: int
    eos: int
    estimators: tuple[str, ...] = ESTIMATORS


class Update(NamedTuple):
    """What an update did."""

    steps: int
    tokens: int
    sequences: list[list[list[int]]]  # of the main trajectories, and of the branches
    gradient: Tensor
    waits: dict[str, list[Wait]]  # by phase


def cases() -> Iterator[Case]:
    torch.manual_seed(SEED)
    grids = torch.randint(0, 40, (CONTEXTS, 3, 2, 5, 5)).to(torch.uint8)
    karel = KarelPolicy(
        side=5, channels=4, blocks=1, pair_width=8, token_width=6, hidden=7, layers=2, max_length=LONG, grammar=True
    )
    yield Case("Karel, grammar", karel, grids, bos=1, eos=2)
    images = torch.randn(CONTEXTS, 5)
    yield Case("captions", CaptionPolicy(9, 5, 6, 7), images, bos=0, eos=0)
    tree = huffman_tree(np.arange(9) + 1)
    yield Case("captions, tree", CaptionPolicy(9, 5, 6, 7, tree=tree), images, 0, 0, TREE_ESTIMATORS)
    prompts = torch.randint(0, 7, (CONTEXTS, 3))
    prompts[1::2, 2] = -1
    transformer = TransformerPolicy(7, 9, max_positions=32, width=8, heads=2, layers=2)
    yield Case("transformer", transformer, prompts, bos=8, eos=0)


def update(case: Case, method: str, steps: int, drop_every: int, waits: list[Wait] | None) -> Update:
    """One update, on the pretended device if there is a list of its waits."""
    where = torch.device("cpu") if waits is None else device()
    policy = copy.deepcopy(case.policy).to(where)
    engine = Engine(cast(Any, policy), bos=case.bos, eos=case.eos, max_length=steps, drop_every=drop_every)
    batch = Columns(context=case.contexts).batch(range(CONTEXTS), where)
    phases: dict[str, list[Wait]] = {phase: [] for phase in PHASES}

    def made(estimator: Estimator) -> Any:
        return estimate(engine, batch, _reward, estimator, Noise(SEED))

    made(make_estimator(method))  # what is moved to the device once and for all
    with _noted(engine, make_estimator(method), waits or [], phases) as estimator:
        result = made(estimator)
        before = len(waits or [])
        result.backward()
        phases["scoring"] = (waits or [])[before:]
    gradients = [parameter.grad.cpu().flatten() for parameter in policy.parameters() if parameter.grad is not None]
    return Update(
        result.trajectories.tokens.shape[1],
        result.cost.tokens,
        [result.trajectories.lists(), result.completed.lists()],
        torch.cat(gradients),
        phases,
    )


@contextmanager
def _noted(
    engine: Engine, estimator: Estimator, waits: list[Wait], phases: dict[str, list[Wait]]
) -> Generator[Estimator]:
    """Sort waits by the phase in which they happen; notes that an estimator takes while sampling are planning."""

    def within(phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            first, inside = len(waits), sum(map(len, phases.values()))
            result = call(*args, **kwargs)
            nested = sum(map(len, phases.values())) - inside
            phases[phase] += waits[first : len(waits) - nested] if nested else waits[first:]
            return result

        return timed

    engine.sample, engine.complete = within("sampling", engine.sample), within("completion", engine.complete)
    for name in ("plan", "take_notes"):
        object.__setattr__(estimator, name, within("planning", getattr(estimator, name)))
    yield estimator


def _reward(sequences: list[list[int]], **_: Any) -> list[float]:
    return [sum(sequence) % 3 for sequence in sequences]


def compare(number: int, method: str, drop_every: int) -> dict[str, Any]:
    """The waits of updates with short and with long sequences; raises unless they are those of the CPU."""
    device()
    case, updates = list(cases())[number], []
    for steps in (SHORT, LONG):
        expected = update(case, method, steps, 1, None)
        with pretended() as waits:
            found = update(case, method, steps, drop_every, waits)
        where = f"{method} with {case.name}, {steps} steps, drop_every = {drop_every}"
        if found.sequences != expected.sequences or found.tokens != expected.tokens:
            raise RuntimeError(f"{where}: the device gives other sequences than the CPU")
        torch.testing.assert_close(found.gradient, expected.gradient, rtol=1e-3, atol=1e-5, msg=where)
        updates.append(found)
    short, long = updates
    counts = {phase: [len(short.waits[phase]), len(long.waits[phase])] for phase in PHASES}
    return {
        "policy": case.name,
        "estimator": method,
        "drop_every": drop_every,
        "steps": [short.steps, long.steps],
        "waits": counts,
        "waits_a_step": {phase: (b - a) / (long.steps - short.steps) for phase, (a, b) in counts.items()},
        "where": sorted({f"{phase}: {_place(wait)}" for phase in PHASES for wait in long.waits[phase]}),
    }


def _place(wait: Wait) -> str:
    file, line, source = wait.where[-1] if wait.where else ("?", 0, "")
    return f"{file}:{line} {source} ({wait.operation})"


def run(quick: bool, progress: Progress) -> Result:
    rows = []
    chosen = [(number, method, n) for number, case in enumerate(cases()) for method in case.estimators for n in DROPS]
    chosen = [(number, method, n) for number, method, n in chosen if not quick or method in QUICK]
    task = progress.add_task("synchronisations", total=len(chosen))
    # In a fresh process: a device must be there before the first backward pass, and it stays.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for row in pool.map(compare, *zip(*chosen, strict=True)):
            rows.append(row)
            progress.advance(task)
    each_step = [row for row in rows if row["drop_every"] == 1]
    most = {phase: max(row["waits_a_step"][phase] for row in each_step) for phase in ("sampling", "completion")}
    planning = max(row["waits_a_step"]["planning"] for row in each_step)
    return {
        "benchmark": "synchronisations",
        "quick": quick,
        "settings": {"steps": [SHORT, LONG], "contexts": CONTEXTS, "device": "pretended, on the CPU"},
        "seeds": {"weights, data and noise": SEED},
        "timings": [],
        "measurements": {"updates": rows},
        "targets": [
            *(
                Target(
                    f"{phase} waits for the device at most once a step", value, MOST_A_STEP, at_least=False, judged=True
                ).record()
                for phase, value in most.items()
            ),
            Target("planning does not wait at every step", planning, 0.0, at_least=False, judged=True).record(),
        ],
        "table": [
            {
                "policy": row["policy"],
                "estimator": row["estimator"],
                "rows dropped": "every step" if row["drop_every"] == 1 else f"every {row['drop_every']} steps",
                **{f"{phase}, a step": f"{row['waits_a_step'][phase]:.2f}" for phase in PHASES},
                **{f"{phase}, in all": f"{row['waits'][phase][1]}" for phase in ("planning",)},
            }
            for row in rows
        ],
    }
