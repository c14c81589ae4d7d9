"""Many gradient estimates at fixed parameters, and what is kept of them.

Gradients are those that training uses: of the loss, minus the mean expected reward of the batch, as one vector. They
are far too large to keep, and those of large models too large to add up: these are sketched by ``WIDTH`` numbers (see
:class:`GradientSketch`), which changes a variance by less than a thousandth. What is kept are the means of ``BLOCKS``
blocks, to which estimates are dealt in turn: products of *different* blocks have no noise in common, so they give
squared norms without bias.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from corollout.compilation import wall_time
from corollout.data import Batch
from corollout.errors import InputError
from corollout.estimators import RLOO, Adaptive, Estimator
from corollout.events import Callback, Progress, ignore
from corollout.lab.settings import BLOCKS
from corollout.noise import Noise
from corollout.processes import processes
from corollout.rewards import AnyReward
from corollout.rollouts import Engine
from corollout.training.base import Gradient, GradientStatistics
from corollout.training.estimates import Estimate, as_estimator, estimate
from corollout.training.probes import Made, Recorder, gradient_source
from corollout.types import Cost, Sampler

WARM_UP = 8  # estimates that an adaptive estimator learns from before it is measured
_COLUMNS = 1 << 16  # parameters that are multiplied at once, in double precision
_ROUNDING = 1e-12  # squared distances below this share of the squared norm are rounding errors
_LEARNING = 1  # label of the noise of the warm-up
WIDTH = 1 << 24  # longer gradients are sketched
SEQUENCES = 8  # per context, with and without replacement, for the facts about a policy

Products = Float[np.ndarray, "block block"]


def _draw(
    engine: Engine, batch: Batch, reward: AnyReward, estimator: Estimator, noise: Noise
) -> tuple[Estimate, Gradient, float]:
    """An estimate, its gradient, and the seconds that both took; the parameters' ``.grad`` are left as they were."""
    with gradient_source(engine, batch, reward, width=WIDTH) as draw:
        start = wall_time()
        sample, gradient = draw(estimator, noise)
        gradient[:1].sum().item()  # waits for a device that computes asynchronously
        return sample, gradient, wall_time() - start


def _draws(count: int, draw: Callable[[int], tuple[Estimate, Gradient, float]]) -> Iterator[tuple[Made, Gradient]]:
    """Estimates 0 … ``count`` − 1 in order, each drawn by one of the processes of the job, for all of them."""
    group = processes()
    for first in range(0, count, group.size):
        sample, gradient, seconds = draw(min(first + group.rank, count - 1))  # the last ones may be drawn twice
        made = Made.of(sample, seconds)
        if group.size == 1:
            yield made, gradient
            continue
        numbers = group.gather_values([list(vars(made.cost).values()), made.mean_reward, made.seconds])
        gradients = group.gather(gradient[None])
        for (cost, mean_reward, taken), one in list(zip(numbers, gradients, strict=True))[: count - first]:
            yield Made(Cost(*cost), mean_reward, taken), one[0]


@dataclass(frozen=True)
class Reference:
    """What is taken for the true gradient: block means of estimates by an unbiased estimator."""

    blocks: Float[Tensor, "block parameter"]  # in single precision
    estimator: str
    estimates: int

    @cached_property
    def products(self) -> Products:
        """Inner products of the blocks."""
        return _inner_products(self.blocks)

    @property
    def squared_norm(self) -> float:
        """An unbiased estimate of ‖g‖²: the mean product of different blocks, which may be negative by chance."""
        return between_blocks(self.products)

    @property
    def variance(self) -> float:
        """The variance of one of its estimates: that of the blocks, times the estimates in a block."""
        of_blocks = float(np.trace(self.products)) / len(self.products) - self.squared_norm
        return max(0.0, of_blocks) * self.estimates / len(self.products)


def between_blocks(products: Products) -> float:
    """The mean of the products of different blocks."""
    count = len(products)
    return float((products.sum() - np.trace(products)) / (count * (count - 1)))


def make_reference(
    engine: Engine,
    batch: Batch,
    reward: AnyReward,
    estimator: Estimator | str,
    estimates: int,
    noise: Noise,
    on_event: Callback = ignore,
) -> Reference:
    """The mean of many estimates, in blocks: ``BLOCKS`` vectors of all parameters."""
    _require_enough(estimates, "a reference")
    name, estimator = name_of(estimator), as_reference(estimator)
    blocks, progress = _Blocks(), Progress(on_event, f"reference {name}", estimates)
    for _, gradient in _draws(estimates, lambda i: _draw(engine, batch, reward, estimator, noise.fold(i))):
        blocks.add(gradient)
        progress.advance()
    return Reference(blocks.means(), name, estimates)


def as_reference(estimator: Estimator | str) -> Estimator:
    """The estimator, unless it is biased."""
    made = as_estimator(estimator)
    if made.is_biased:
        raise InputError(f"the reference must be unbiased, not {name_of(estimator)}: choose another, such as set-16")
    return made


@dataclass(frozen=True)
class Measurement:
    """Independent estimates by one estimator. Lists have an entry for each estimate, with two exceptions.

    ``distances`` begin with the second estimate: i/(i+1) · ‖g_i − mean(g_0 … g_{i−1})‖², each of which has the trace of
    the covariance for its expectation; their mean is the unbiased sample variance. ``seconds`` has the seconds of each
    round of timing, if there was one.

    ``cosines`` are ⟨g_i, reference⟩ / (‖g_i‖ ‖g‖), with the unbiased ‖g‖, so that the noise of the reference does not
    make them smaller. An estimate that is zero has cosine 0; the list is empty if the reference is so noisy that ‖g‖²
    came out negative.

    ``bias_blocks`` are the inner products of the estimator's block means less those of the reference.
    """

    estimator: str
    estimates: int
    distances: list[float]
    cosines: list[float]
    tokens: list[int]
    reward_calls: list[int]
    seconds: list[float]
    bias_blocks: list[list[float]]
    mean_reward: float
    rollouts_per_step: float
    biased_by_design: bool
    definition: str  # class and options


def measure(
    engine: Engine,
    batch: Batch,
    reward: AnyReward,
    estimator: Estimator | str,
    estimates: int,
    noise: Noise,
    reference: Reference,
    on_event: Callback = ignore,
    *,
    name: str | None = None,
    warm_up: int = WARM_UP,
) -> Measurement:
    """Measure an estimator by independent estimates, number i with the noise ``noise.fold(i)``.

    An adaptive estimator first learns from ``warm_up`` estimates, which are not counted, and is then frozen: the
    estimates that count are independent and identically distributed.

    Memory: ``BLOCKS`` vectors of all parameters besides those of the reference, and a few for the running mean.
    """
    _require_enough(estimates, "a measurement")
    name, estimator = name or name_of(estimator), as_estimator(estimator)
    truth, squared_norm = reference.blocks.mean(0), reference.squared_norm
    trained = estimator
    for i in range(warm_up if isinstance(estimator, Adaptive) else 0):
        sample, _, _ = _draw(engine, batch, reward, trained, noise.fold(_LEARNING, i))
        updated = sample.updated(trained)
        if updated is trained:  # with its options there is nothing to learn
            break
        trained = updated
    blocks, recorder, progress = _Blocks(), Recorder(), Progress(on_event, name, estimates)
    cosines: list[float] = []
    for made, gradient in _draws(estimates, lambda i: _draw(engine, batch, reward, trained, noise.fold(i))):
        gradient = gradient.float()
        blocks.add(gradient)
        recorder.add(made, gradient)
        if squared_norm > 0:
            norm = (recorder.squares[-1] * squared_norm) ** 0.5
            along = float((gradient * truth).sum(dtype=torch.float64))
            cosines.append(along / norm if norm > 0 else 0.0)
        progress.advance()
    distances = zip(recorder.gradients.distances, recorder.squares[1:], strict=True)
    return Measurement(
        estimator=name,
        estimates=estimates,
        distances=[distance if distance > _ROUNDING * square else 0.0 for distance, square in distances],
        cosines=cosines,
        tokens=[cost.tokens for cost in recorder.costs],
        reward_calls=[cost.reward_calls for cost in recorder.costs],
        seconds=recorder.seconds,
        bias_blocks=_inner_products(blocks.means().sub_(reference.blocks)).tolist(),
        mean_reward=float(np.mean(recorder.rewards)),
        rollouts_per_step=recorder.probe().rollouts_per_step,
        biased_by_design=estimator.is_biased,
        definition=definition_of(estimator),
    )


@dataclass(frozen=True)
class BatchVariance:
    """How much gradients vary because each update has another batch: the part that no estimator makes smaller.

    A lab measures on one batch. In training, the variance of a gradient is that of the estimator on its batch plus that
    of the true gradient between batches. More sequences for each context lower the first part only.

    ``distances`` are as in a measurement, but of estimates for different batches of one size; ``within`` is the
    variance of the same estimator on one batch.
    """

    distances: list[float]
    within: float

    @property
    def between(self) -> float:
        """The variance of the true gradient between batches."""
        return max(0.0, float(np.mean(self.distances)) - self.within)


def measure_batches(
    engine: Engine, batches: Sequence[Batch], reward: AnyReward, estimator: str, noise: Noise, on_event: Callback
) -> list[float]:
    """The distances of one estimate for each batch."""
    made, statistics = as_estimator(estimator), GradientStatistics()
    progress = Progress(on_event, "other batches", len(batches))
    for _, gradient in _draws(len(batches), lambda i: _draw(engine, batches[i], reward, made, noise.fold(i))):
        statistics.add(gradient)
        progress.advance()
    return statistics.distances


def time_rounds(
    engine: Engine,
    batch: Batch,
    reward: AnyReward,
    estimators: Mapping[str, Estimator | str],
    rounds: int,
    noise: Noise,
    on_event: Callback = ignore,
) -> dict[str, list[float]]:
    """Seconds of an estimate in each round, backward pass included, by name.

    In a round every estimator makes one estimate with the same noise, so that whatever slows the machine down meets all
    of them, and ratios within a round are comparable. One more round comes first and is not counted: things are
    compiled and cached in it. Of several processes the first measures, while the others are idle.
    """
    group = processes()
    made = {name: as_estimator(estimator) for name, estimator in estimators.items()}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    turns = [(number, name) for number in range(rounds + 1 if rounds else 0) for name in made]
    progress = Progress(on_event, "timing", len(turns))
    for number, name in turns:
        taken = _draw(engine, batch, reward, made[name], noise.fold(number))[2] if group.is_first else 0.0
        seconds[name].append(group.from_first(taken))
        progress.advance()
    return {name: rounds[1:] for name, rounds in seconds.items()}


@dataclass(frozen=True)
class PolicyFacts:
    """How confident a policy is, and how often its rewards differ: means over contexts and sampled sequences."""

    contexts: int
    nats_per_token: float  # −log p of sampled sequences over their tokens: the entropy of a token, on average
    mean_length: float  # in tokens, the end token included
    mean_reward: float
    top_mass: float  # probability of 8 sequences drawn without replacement
    equal_rewards: float  # share of contexts in which 8 samples have the same reward: RLOO has no gradient there


@torch.no_grad()
def policy_facts(engine: Engine, batch: Batch, reward: AnyReward, noise: Noise) -> PolicyFacts:
    """Facts about the policy, from a few sequences of each context."""
    sample = estimate(engine, batch, reward, RLOO(SEQUENCES), noise)
    drawn = sample.trajectories
    distinct = engine.decode(batch.context, batch.examples, Sampler("set", SEQUENCES), noise).trajectories
    rewards = sample.rewards[: len(drawn.tokens)].view(len(batch), SEQUENCES)
    highest, lowest = rewards.nan_to_num(-torch.inf).amax(1), rewards.nan_to_num(torch.inf).amin(1)  # NaN: skipped
    return PolicyFacts(
        contexts=len(batch),
        nats_per_token=float(-drawn.log_probs.double().sum() / drawn.lengths.sum()),
        mean_length=float(drawn.lengths.double().mean()),
        mean_reward=sample.mean_reward,
        top_mass=float(distinct.log_probs.double().exp().sum()) / len(batch),
        equal_rewards=float((highest <= lowest).double().mean()),
    )


def definition_of(estimator: Estimator) -> str:
    """An estimator's class with its options, if it is a dataclass, as all those of the registry are."""
    return repr(estimator) if is_dataclass(estimator) else type(estimator).__qualname__


def name_of(estimator: Estimator | str) -> str:
    """The name of an estimator that was not given another."""
    return estimator if isinstance(estimator, str) else definition_of(estimator)


def _require_enough(estimates: int, what: str) -> None:
    if estimates < BLOCKS:
        raise InputError(f"{what} needs at least {BLOCKS} estimates, not {estimates}")


class _Blocks:
    """Sums of gradients in blocks, to which they are dealt in turn."""

    def __init__(self) -> None:
        self._sums, self._count = torch.zeros(BLOCKS, 0), 0

    def add(self, gradient: Gradient) -> None:
        if self._count == 0:
            self._sums = gradient.new_zeros(BLOCKS, len(gradient), dtype=torch.float32)
        self._sums[self._count % BLOCKS] += gradient
        self._count += 1

    def means(self) -> Float[Tensor, "block parameter"]:
        """The mean of each block, in place: there is no second tensor of that size."""
        counts = (torch.arange(self._count, device=self._sums.device) % BLOCKS).bincount()
        return self._sums.div_(counts[:, None])


def _inner_products(vectors: Float[Tensor, "block parameter"]) -> Products:
    """All inner products, summed up in double precision."""
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64, device=vectors.device)
    for part in vectors.split(_COLUMNS, 1):
        total += part.double() @ part.double().T
    return total.cpu().numpy()
