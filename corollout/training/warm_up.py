"""A dry run before the first update, in which everything that it needs is compiled or loaded."""

from collections.abc import Sequence

from corollout.estimators import Auto, Estimator
from corollout.noise import Noise
from corollout.training.finetuning import Trainer
from corollout.training.probes import gradient_source

_EXAMPLES = 4  # with a single row, arrays have other layouts


def warm_up(trainer: Trainer) -> None:
    """Make two gradient estimates for a few examples, as the first updates will, and forget them.

    The same engine, policy, estimators and data types go the same ways, so what is compiled is what training needs,
    without a list of functions to be kept. The reward is not called, which might be slow or have effects outside: a
    function that says 0 and 1 in turns takes its place (equal rewards would have no gradient). Noise has no state and
    sampling uses no dropout; the parameters' gradients are left as they were, the optimiser and the estimator are not
    updated, and nothing is counted.
    """
    examples = range(min(_EXAMPLES, trainer.batch_size, len(trainer.data)))
    batch, noise = trainer.data.batch(examples, trainer.device), Noise(0)
    given = trainer.estimator
    estimators: Sequence[Estimator] = list(given.candidates.values()) if isinstance(given, Auto) else [given]
    with gradient_source(trainer.engine, batch, _stand_in) as draw:
        for estimator in [*estimators, *trainer.probes.values()]:
            first, _ = draw(estimator, noise)
            draw(first.updated(estimator), noise.fold(1))  # with what it has learned
        trainer.warm_up_bookkeeping(batch)


def _stand_in(sequences: list[list[int]]) -> list[float]:
    return [float(number % 2) for number in range(len(sequences))]
