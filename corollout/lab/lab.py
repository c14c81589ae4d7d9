"""The estimator lab: a reference, a measurement of each estimator, rounds of timing, and a summary in words."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from corollout.data import Batch
from corollout.errors import InputError
from corollout.estimators import Estimator
from corollout.events import Callback, ignore
from corollout.lab import measurement
from corollout.lab.advice import advise
from corollout.lab.measurement import BatchVariance, Measurement, PolicyFacts, as_reference, definition_of
from corollout.lab.settings import ESTIMATES, REFERENCE, REFERENCE_ESTIMATES, ROUNDS
from corollout.lab.store import Store, digest_of
from corollout.lab.summary import Interval, Row, reference_error, squared_norm, summarise
from corollout.noise import Noise
from corollout.policies import TreeHead
from corollout.rewards import AnyReward, as_reward
from corollout.rollouts import Engine
from corollout.training.base import policy_module
from corollout.training.estimates import as_estimator, estimate
from corollout.types import Sampler

# Labels of the seed's noise.
_REFERENCE, _ESTIMATES, _TIMING, _FACTS, _BATCHES = range(5)

# Estimators that are compared by default. The first of a list is the base, which the others are compared with.
_RLOO = ("rloo-8", "rloo-8:baseline=shrunk", "rloo-8:baseline=fitted", "rloo-2:baseline=fitted")
_EVERY_HEAD = (*_RLOO, "reinforce", "reinforce:baseline=fitted", "sc", "mc-2", "vine-2")
_SETS = ("pairs", "set-8", *(f"set-{size}:baseline=fitted" for size in (2, 4, 8, 16)))
TREE = (*_EVERY_HEAD, "bt-arsm", "bt-disarm", *_SETS)
SOFTMAX = (*_EVERY_HEAD, "arsm", "arsm:draws=8", "ars-5", *_SETS)
# With many actions, each step of ARSM asks for many rollouts: it gets a budget.
_BUDGETS = ("arsm:budget=64,budget_per=example", "arsm:budget=64,budget_per=example,draws=4")
LARGE_SOFTMAX = (*_EVERY_HEAD, *_BUDGETS, "ars-5:budget=32,budget_per=example", *_SETS)
MANY_ACTIONS = 200
# Of language models every completion is expensive, and so are lists of sixteen estimators.
LANGUAGE_MODEL = (
    "rloo-4",
    "rloo-4:baseline=fitted",
    "rloo-8:baseline=fitted",
    "set-4:baseline=fitted",
    "set-8:baseline=fitted",
    "arsm:budget=64",
)


def default_estimators(engine: Engine, batch: Batch) -> tuple[str, ...]:
    """Names that suit the policy's head and the size of its vocabulary."""
    if isinstance(engine.head, TreeHead):
        return TREE
    first = _first_context(batch)
    engine.decode(first.context, first.examples, Sampler("greedy"), Noise(0), "tokens")
    return LARGE_SOFTMAX if (engine.output_width or 0) > MANY_ACTIONS else SOFTMAX


@dataclass(frozen=True)
class Lab:
    """The result: a row for each estimator, facts about the policy, and advice in words."""

    settings: dict[str, Any]
    base: str
    facts: PolicyFacts
    squared_norm: Interval  # of the true gradient
    reference_error: float | None  # squared, over that
    batch_variance: BatchVariance | None  # of gradients between batches, if there were other batches
    rows: list[Row]
    advice: str
    measurements: list[Measurement]

    def to_json(self) -> dict[str, Any]:
        """Everything, under the names that reports have."""
        content = asdict(self) | {"rows": [row.to_json() for row in self.rows]}
        return {"spread" if name == "batch_variance" else name: value for name, value in content.items()}


def run_lab(
    engine: Engine,
    batch: Batch,
    reward: AnyReward,
    estimators: Sequence[str] | Mapping[str, Estimator | str] | None = None,
    *,
    batches: Sequence[Batch] = (),
    estimates: int = ESTIMATES,
    reference: str = REFERENCE,
    reference_estimates: int = REFERENCE_ESTIMATES,
    timing_rounds: int = ROUNDS,
    warm_up: int = measurement.WARM_UP,
    base: str | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    source: Mapping[str, Any] | None = None,
    on_event: Callback = ignore,
) -> Lab:
    """Measure estimators on one batch at the policy's current parameters, which are not changed.

    ``estimators`` are names, or a mapping from names of your choice to estimators; by default a list that suits the
    policy's head. The ``base``, with which the others are compared, is the first of them by default.

    ``batches`` are others of the same size, a dozen or so. With them the lab measures how much of the variance in
    training comes from the choice of contexts, and which estimator is best when that is taken into account.

    In a ``folder`` everything is kept as soon as it is measured. Called again with the same settings, the lab continues
    where it was stopped; estimators may be added, and only the seconds of earlier ones are measured again. Each part
    of the work reports its progress to ``on_event``. The reward must not have a cache: a cached sequence would count as
    free. ``source`` says what else the measurements of a folder are of, such as the data: it must stay the same.
    """
    if len(batches) == 1:
        raise InputError("the variance between batches cannot be measured with one other batch: pass a dozen, or none")
    reward = as_reward(reward)
    if estimators is None:
        estimators = default_estimators(engine, batch)
    named = estimators if isinstance(estimators, Mapping) else {name: name for name in estimators}
    if not named or len(named) < len(estimators):
        raise InputError(f"the lab needs a list of different estimators, not {list(estimators)}")
    made = {name: as_estimator(estimator) for name, estimator in named.items()}
    base = next(iter(made)) if base is None else base
    if base not in made:
        raise InputError(f"the base {base!r} is not among the estimators: {', '.join(made)}")
    policy = policy_module(engine, "the lab")
    _try_all(engine, batch, reward, made | {f"the reference {reference}": as_reference(reference)})
    settings = {
        "estimates": estimates,
        "reference": reference,
        "reference_estimates": reference_estimates,
        "warm_up": warm_up,
        "seed": seed,
        "reward": reward.name,
        "examples": batch.examples.tolist(),
        "batches": [other.examples.tolist() for other in batches],
        "max_length": engine.max_length,
        "share_noise": engine.share_noise,
        "weights": digest_of(policy),
        **(source or {}),
    }
    if sum(p.numel() for p in policy.parameters() if p.requires_grad) > measurement.WIDTH:
        settings["sketch"] = measurement.WIDTH
    store = Store(None if folder is None else Path(folder), settings)
    noise = Noise(seed)

    truth = store.reference(batch.examples.device)
    if truth is None:
        truth = measurement.make_reference(
            engine, batch, reward, reference, reference_estimates, noise.fold(_REFERENCE), on_event
        )
        store.set_reference(truth)
    if batches and store.batch_variance is None:
        distances = measurement.measure_batches(engine, batches, reward, reference, noise.fold(_BATCHES), on_event)
        store.batch_variance = BatchVariance(distances, truth.variance)
        store.save()
    for name, estimator in made.items():
        known, definition = store.measurements.get(name), definition_of(estimator)
        if known is None:
            store.measurements[name] = measurement.measure(
                engine, batch, reward, estimator, estimates, noise.fold(_ESTIMATES), truth, on_event,
                name=name, warm_up=warm_up,
            )  # fmt: skip
            store.save()
        elif known.definition != definition:
            raise InputError(
                f"{name} was measured as {known.definition}, and is now {definition}: choose another name, or another "
                "folder"
            )
    measurements = [store.measurements[name] for name in made]
    if timing_rounds:
        if list(store.seconds) != list(made) or len(store.seconds[base]) != timing_rounds:
            store.seconds = measurement.time_rounds(
                engine, batch, reward, made, timing_rounds, noise.fold(_TIMING), on_event
            )
            store.save()
        measurements = [replace(each, seconds=store.seconds[each.estimator]) for each in measurements]
    facts = measurement.policy_facts(engine, batch, reward, noise.fold(_FACTS))
    rows = summarise(measurements, truth, base, store.batch_variance)
    return Lab(
        settings=settings,
        base=base,
        facts=facts,
        squared_norm=squared_norm(truth),
        reference_error=reference_error(truth),
        batch_variance=store.batch_variance,
        rows=rows,
        advice=advise(facts, rows, base),
        measurements=measurements,
    )


@torch.no_grad()
def _try_all(engine: Engine, batch: Batch, reward: AnyReward, estimators: Mapping[str, Estimator]) -> None:
    """Refuse estimators that do not suit the policy before anything is measured."""
    if len(batch) == 0:
        raise InputError("the batch is empty: there is no gradient to estimate")
    first = _first_context(batch)
    for name, estimator in estimators.items():
        try:
            estimate(engine, first, reward, estimator, Noise(0), check_score=True)
        except InputError as error:
            raise InputError(f"{name} does not work here: {error}") from error


def _first_context(batch: Batch) -> Batch:
    """The first example of a batch, alone."""
    return Batch(batch.examples[:1], {name: column[:1] for name, column in batch.columns.items()})
