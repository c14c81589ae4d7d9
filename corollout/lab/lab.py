"""The estimator lab: a reference, a measurement of each estimator, their seconds in turns, and what follows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from corollout.data import Batch
from corollout.errors import InputError
from corollout.estimators import Estimator
from corollout.lab.advice import advise
from corollout.lab.defaults import default_estimators, first_context
from corollout.lab.measure import WARM_UP, Measurement, as_reference, definition_of, make_reference, measure
from corollout.lab.policy_facts import PolicyFacts, policy_facts
from corollout.lab.spread import Spread, measure_spread
from corollout.lab.store import Store, digest_of
from corollout.lab.summary import Interval, Row, reference_error, squared_norm, summarise
from corollout.lab.timing import time_rounds
from corollout.noise import Noise
from corollout.rewards import Reward, RewardFunction
from corollout.rollouts import Engine
from corollout.training.estimate import as_estimator, as_reward, estimate

# What the seed's noise is used for.
_REFERENCE, _ESTIMATES, _TIMING, _FACTS, _SPREAD = range(5)
ESTIMATES, REFERENCE, REFERENCE_ESTIMATES, ROUNDS = 32, "set-16", 64, 5

Progress = Callable[[str, int, int], None]


def _ignore(part: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Lab:
    """What came out: a row for each estimator, facts about the policy, and advice in words."""

    settings: dict[str, Any]
    base: str
    facts: PolicyFacts
    squared_norm: Interval  # of the true gradient
    reference_error: float | None  # squared, over that
    spread: Spread | None  # of gradients between batches, if there were others
    rows: list[Row]
    advice: str
    measurements: list[Measurement]

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON holds it."""
        return asdict(self)


def run_lab(
    engine: Engine,
    batch: Batch,
    reward: Reward | RewardFunction,
    estimators: Sequence[str] | Mapping[str, Estimator | str] | None = None,
    *,
    batches: Sequence[Batch] = (),
    estimates: int = ESTIMATES,
    reference: str = REFERENCE,
    reference_estimates: int = REFERENCE_ESTIMATES,
    timing_rounds: int = ROUNDS,
    warm_up: int = WARM_UP,
    base: str | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    on_progress: Progress = _ignore,
) -> Lab:
    """Measure estimators on one batch at the policy's present parameters, which stay as they are.

    ``estimators`` are names, or a mapping from names of your own to estimators; by default a list that suits the
    policy's head. The first of them is the ``base`` that the others are compared with, unless another is named.

    ``batches`` are others of the same size, a dozen or so. With them the lab tells how much of the variance in training
    comes from the choice of contexts, and which estimator is best with that in the account.

    In a ``folder`` everything is kept as soon as it is measured. Called again with the same settings, the lab goes on
    where it was stopped; estimators may be added, and of those that are there nothing is measured again but their
    seconds. ``on_progress`` is told the name of the part under way, how many of its estimates are done, and of how
    many. The reward must have no cache: what it had seen before would count as free.
    """
    if len(batches) == 1:
        raise InputError("one other batch tells nothing about the spread between batches: give a dozen, or none")
    reward = as_reward(reward)
    made = _made(estimators if estimators is not None else default_estimators(engine, batch))
    base = next(iter(made)) if base is None else base
    if base not in made:
        raise InputError(f"the base {base!r} is not among the estimators: {', '.join(made)}")
    policy = engine.policy
    if not isinstance(policy, nn.Module):
        raise InputError("the lab needs a policy with parameters: an nn.Module")
    _try(engine, batch, reward, made | {f"the reference {reference}": as_reference(reference)})
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
    }
    store = Store(None if folder is None else Path(folder), settings)
    noise = Noise(seed)

    truth = store.reference(batch.examples.device)
    if truth is None:
        tell = _Counter(on_progress, f"reference {reference}", reference_estimates)
        truth = make_reference(engine, batch, reward, reference, reference_estimates, noise.fold(_REFERENCE), tell)
        store.keep_reference(truth)
    if batches and store.spread is None:
        tell = _Counter(on_progress, "other batches", len(batches))
        trusted = as_estimator(reference)
        store.keep_spread(measure_spread(engine, batches, reward, trusted, truth.variance, noise.fold(_SPREAD), tell))
    for name, estimator in made.items():
        if (known := store.measurements.get(name)) is not None:
            _check_same(known, estimator)
            continue
        tell = _Counter(on_progress, name, estimates)
        store.keep(
            measure(
                engine, batch, reward, estimator, estimates, noise.fold(_ESTIMATES), truth, tell,
                name=name, warm_up=warm_up,
            )
        )  # fmt: skip
    if timing_rounds and (list(store.seconds) != list(made) or len(store.seconds[base]) != timing_rounds):
        tell = _Counter(on_progress, "timing", (timing_rounds + 1) * len(made))
        store.keep_seconds(time_rounds(engine, batch, reward, made, timing_rounds, noise.fold(_TIMING), tell))

    measurements = [store.measurements[name] for name in made]
    if timing_rounds:
        measurements = [replace(one, seconds=store.seconds[one.estimator]) for one in measurements]
    facts = policy_facts(engine, batch, reward, noise.fold(_FACTS))
    rows = summarise(measurements, truth, base, store.spread)
    norm, error = squared_norm(truth), reference_error(truth)
    return Lab(settings, base, facts, norm, error, store.spread, rows, advise(facts, rows, base), measurements)


class _Counter:
    """Turns single estimates into progress."""

    def __init__(self, on_progress: Progress, part: str, total: int):
        self._tell, self._part, self._total, self._done = on_progress, part, total, 0

    def __call__(self) -> None:
        self._done += 1
        self._tell(self._part, self._done, self._total)


def _made(estimators: Sequence[str] | Mapping[str, Estimator | str]) -> dict[str, Estimator]:
    named = estimators if isinstance(estimators, Mapping) else {name: name for name in estimators}
    if not named or len(named) < len(estimators):
        raise InputError(f"the lab needs a list of different estimators, not {list(estimators)}")
    return {name: as_estimator(estimator) for name, estimator in named.items()}


@torch.no_grad()
def _try(engine: Engine, batch: Batch, reward: Reward, estimators: Mapping[str, Estimator]) -> None:
    """Whatever does not suit the policy is found before anything is measured."""
    if len(batch) == 0:
        raise InputError("the batch is empty: there is no gradient to estimate")
    first = first_context(batch)
    for name, estimator in estimators.items():
        try:
            estimate(engine, first, reward, estimator, Noise(0), check_score=True)
        except InputError as error:
            raise InputError(f"{name} cannot be measured here: {error}") from error


def _check_same(known: Measurement, estimator: Estimator) -> None:
    if known.definition != definition_of(estimator):
        raise InputError(
            f"{known.estimator} was measured as {known.definition}, and is now {definition_of(estimator)}: choose "
            f"another name, or another folder"
        )
