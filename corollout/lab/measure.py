"""Many gradient estimates at fixed parameters: by one that is trusted, as a reference, and by one that is measured.

Gradients are those that training uses: of the loss, minus the mean expected reward of the batch, as one vector. They
are far too many to keep. What stays of them are the means of ``BLOCKS`` blocks, to which estimates go in turn: products
of *different* blocks are free of the noise that a product of a block with itself has, so squared norms without bias
come from them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from corollout.data import Batch
from corollout.errors import InputError
from corollout.estimators import Adaptive, Estimator
from corollout.lab.defaults import biased_by_design
from corollout.noise import Noise
from corollout.rewards import Reward, RewardFunction
from corollout.rollouts import Engine
from corollout.training.estimate import as_estimator
from corollout.training.variance import Draw, gradient_source
from corollout.types import Cost

BLOCKS = 8
WARM_UP = 8  # estimates that an adaptive estimator learns from before it is measured
_COLUMNS = 1 << 16  # of vectors that are multiplied at once, in double precision
_ROUNDING = 1e-12  # squared distances that single precision does not tell from none, over the squared norm
_LEARNING = 1  # label of the noise of estimates that only teach


def _ignore() -> None:
    pass


@dataclass(frozen=True)
class Reference:
    """What the true gradient is taken to be: the means of some blocks of estimates without bias."""

    blocks: Float[Tensor, "block parameter"]  # in single precision
    estimator: str
    estimates: int

    @cached_property
    def products(self) -> Float[np.ndarray, "block block"]:
        """Inner products of the blocks."""
        return _products(self.blocks)

    @property
    def squared_norm(self) -> float:
        """Of the true gradient, without bias: the mean product of different blocks, which may be negative by chance."""
        return between_blocks(self.products)

    @property
    def variance(self) -> float:
        """Of one of its estimates: how far blocks are apart, times the estimates in a block."""
        apart = float(np.trace(self.products)) / len(self.products) - self.squared_norm
        return max(0.0, apart) * self.estimates / len(self.products)

    @property
    def mean(self) -> Float[Tensor, " parameter"]:
        return self.blocks.mean(0)


def between_blocks(products: Float[np.ndarray, "block block"]) -> float:
    """The mean of the products of different blocks."""
    count = len(products)
    return float((products.sum() - np.trace(products)) / (count * (count - 1)))


def make_reference(
    engine: Engine,
    batch: Batch,
    reward: Reward | RewardFunction,
    estimator: Estimator | str,
    estimates: int,
    noise: Noise,
    on_estimate: Callable[[], None] = _ignore,
) -> Reference:
    """The mean of many estimates, in blocks: ``BLOCKS`` vectors as long as all parameters together."""
    name = name_of(estimator)
    _enough(estimates, "a reference")
    made = as_reference(estimator)
    blocks = _Blocks()
    with gradient_source(engine, batch, reward) as draw:
        for i in range(estimates):
            blocks.add(i, draw(made, noise.fold(i))[1])
            on_estimate()
    return Reference(blocks.means(), name, estimates)


def as_reference(estimator: Estimator | str) -> Estimator:
    """The estimator, if it can be one that others are judged by."""
    made = as_estimator(estimator)
    if biased_by_design(made):
        raise InputError(
            f"a reference must be without bias, which {name_of(estimator)} is not: choose another, set-16 for example"
        )
    return made


@dataclass(frozen=True)
class Measurement:
    """What was seen of some independent estimates by one estimator. Lists have an entry for each, but for two of them.

    ``distances`` begin with the second estimate: i/(i+1) · ‖g_i − mean of those before‖², each of which is expected to
    be the trace of the covariance, and their mean is its unbiased sample value. ``seconds`` has the seconds of each
    round in which all estimators took turns, if they did.

    ``cosines`` are ⟨g_i, reference⟩ / (‖g_i‖ ‖g‖), with the unbiased norm of the true gradient: the noise of the
    reference does not make them smaller. An estimate that is zero has cosine 0; all are left out if the reference is so
    noisy that the squared norm came out negative.

    ``bias_blocks`` are the inner products of the block means of the estimator less those of the reference.
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
    definition: str  # class and options, where the class tells them


def measure(
    engine: Engine,
    batch: Batch,
    reward: Reward | RewardFunction,
    estimator: Estimator | str,
    estimates: int,
    noise: Noise,
    reference: Reference,
    on_estimate: Callable[[], None] = _ignore,
    *,
    name: str | None = None,
    warm_up: int = WARM_UP,
) -> Measurement:
    """Measure an estimator by independent estimates, number i with the noise ``noise.fold(i)``.

    An adaptive estimator first learns from ``warm_up`` estimates that count for nothing else, and then learns no more:
    those that count are independent and of one distribution.

    Memory: ``BLOCKS`` vectors as long as all parameters together, beside those of the reference; and for a moment the
    gradient itself, the reference's mean and a running mean.
    """
    _enough(estimates, "a measurement")
    made = as_estimator(estimator)
    sheet = _Sheet(reference)
    with gradient_source(engine, batch, reward) as draw:
        ready = _warm(made, draw, noise, warm_up)
        for i in range(estimates):
            start = time.perf_counter()
            sample, gradient = draw(ready, noise.fold(i))
            sheet.seconds.append(time.perf_counter() - start)
            sheet.add(gradient.float(), sample.cost, sample.mean_reward)
            on_estimate()
    return Measurement(
        estimator=name_of(estimator) if name is None else name,
        estimates=estimates,
        distances=sheet.distances,
        cosines=sheet.cosines,
        tokens=[cost.tokens for cost in sheet.costs],
        reward_calls=[cost.reward_calls for cost in sheet.costs],
        seconds=sheet.seconds,
        bias_blocks=sheet.bias_blocks(reference),
        mean_reward=float(np.mean(sheet.rewards)),
        rollouts_per_step=sum(c.rollouts for c in sheet.costs) / max(sum(c.main_tokens for c in sheet.costs), 1),
        biased_by_design=biased_by_design(made),
        definition=definition_of(made),
    )


def definition_of(estimator: Estimator) -> str:
    """An estimator's class with its options, if it is a data class, as all of the registry are."""
    return repr(estimator) if is_dataclass(estimator) else type(estimator).__qualname__


def name_of(estimator: Estimator | str) -> str:
    """What an estimator is called, unless somebody gives it another name."""
    return estimator if isinstance(estimator, str) else definition_of(estimator)


def _enough(estimates: int, what: str) -> None:
    if estimates < BLOCKS:
        raise InputError(f"{what} needs at least {BLOCKS} estimates, not {estimates}")


def _warm(estimator: Estimator, draw: Draw, noise: Noise, count: int) -> Estimator:
    """The estimator with all that it learns from some estimates."""
    for i in range(count if isinstance(estimator, Adaptive) else 0):
        sample, _ = draw(estimator, noise.fold(_LEARNING, i))
        taught = sample.updated(estimator)
        if taught is estimator:  # it could learn, but not as it is set
            break
        estimator = taught
    return estimator


class _Blocks:
    """Sums of the vectors of each block."""

    def __init__(self) -> None:
        self._sums = torch.zeros(BLOCKS, 0)
        self._counts = torch.zeros(BLOCKS)

    def add(self, number: int, vector: Float[Tensor, " parameter"]) -> None:
        if number == 0:
            self._sums = vector.new_zeros(BLOCKS, len(vector), dtype=torch.float32)
        self._sums[number % BLOCKS] += vector
        self._counts[number % BLOCKS] += 1

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def mean(self) -> Float[Tensor, " parameter"]:
        """Of all vectors."""
        return self._sums.sum(0) / self.count

    def means(self) -> Float[Tensor, "block parameter"]:
        """Of each block. The sums are used up: there is no second tensor of that size."""
        return self._sums.div_(self._counts[:, None].to(self._sums.device))


@dataclass
class _Sheet:
    """What is noted of each estimate."""

    reference: Reference
    distances: list[float] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    blocks: _Blocks = field(default_factory=_Blocks)

    def __post_init__(self) -> None:
        self._truth = self.reference.mean
        self._squared_norm = self.reference.squared_norm

    def add(self, gradient: Float[Tensor, " parameter"], cost: Cost, reward: float) -> None:
        before, square = self.blocks.count, _squared_norm(gradient)
        if before:
            distance = before / (before + 1) * _squared_norm(gradient - self.blocks.mean())
            self.distances.append(distance if distance > _ROUNDING * square else 0.0)
        if self._squared_norm > 0:
            norm = (square * self._squared_norm) ** 0.5
            along = float((gradient * self._truth).sum(dtype=torch.float64))
            self.cosines.append(along / norm if norm > 0 else 0.0)
        self.blocks.add(before, gradient)
        self.costs.append(cost)
        self.rewards.append(reward)

    def bias_blocks(self, reference: Reference) -> list[list[float]]:
        return _products(self.blocks.means().sub_(reference.blocks)).tolist()


def _squared_norm(vector: Float[Tensor, " parameter"]) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64)) ** 2


def _products(vectors: Float[Tensor, "block parameter"]) -> Float[np.ndarray, "block block"]:
    """All inner products, summed up in double precision."""
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64, device=vectors.device)
    for part in vectors.split(_COLUMNS, 1):
        total += part.double() @ part.double().T
    return total.cpu().numpy()
