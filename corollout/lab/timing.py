"""How long an estimate takes: estimators take turns, so that whatever slows the machine down meets all of them."""

import time
from collections.abc import Callable, Mapping

from corollout.data import Batch
from corollout.estimators import Estimator
from corollout.noise import Noise
from corollout.rewards import Reward, RewardFunction
from corollout.rollouts import Engine
from corollout.training.estimate import as_estimator
from corollout.training.variance import gradient_source


def time_rounds(
    engine: Engine,
    batch: Batch,
    reward: Reward | RewardFunction,
    estimators: Mapping[str, Estimator | str],
    rounds: int,
    noise: Noise,
    on_estimate: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of an estimate in each round, backward pass included, by name.

    In a round every estimator makes one estimate, one after the other, with the same noise. The ratio of two estimators
    in the same round means more than seconds of different hours. One more round, the first, is not counted: whatever
    is compiled or put into caches is done in it.
    """
    made = {name: as_estimator(estimator) for name, estimator in estimators.items()}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    with gradient_source(engine, batch, reward) as draw:
        for number in range(rounds + 1 if rounds else 0):
            for name, estimator in made.items():
                start = time.perf_counter()
                _, gradient = draw(estimator, noise.fold(number))
                # A device that computes on its own is waited for by whoever asks for a number.
                gradient[:1].sum().item()
                if number:
                    seconds[name].append(time.perf_counter() - start)
                on_estimate()
    return seconds
