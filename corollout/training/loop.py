"""Fine-tuning on a reward. A small loop: everything that matters is in the estimator, the engine and the reward."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from corollout.data import Batch, Columns
from corollout.errors import InputError, PolicyError
from corollout.estimators import Estimator
from corollout.noise import Noise
from corollout.rewards import Reward, RewardFunction
from corollout.rollouts import Engine
from corollout.training.diagnostics import RunningVariance, flat_gradient
from corollout.training.estimate import Estimate, as_estimator, as_reward, estimate
from corollout.types import Cost

# Parts of the seed's noise: what each is used for.
_ORDER, _ROLLOUTS = 0, 1


@dataclass(frozen=True)
class Metrics:
    """What is written about each update."""

    update: int
    epoch: int
    reward: float  # mean over the main trajectories
    gradient_norm: float  # before clipping
    gradient_variance: float  # exponential average, see RunningVariance
    rollouts_per_step: float  # branches, greedy baselines included, for each token of the main trajectories
    mean_length: float
    tokens: int  # generated so far
    reward_calls: int  # so far
    seconds: float  # so far, updates only


class Trainer:
    """Fine-tunes a policy: ``for metrics in Trainer(…).run(updates=100): …``.

    Gradients are clipped to ``clip`` in norm, in the same way for every estimator, and measured before. An example's
    noise depends on the seed, its id and the epoch. ``reward`` may be a plain function and ``estimator`` a name. With a
    ``directory`` every update appends a line to ``metrics.jsonl`` there.
    """

    def __init__(
        self,
        engine: Engine,
        data: Columns,
        reward: Reward | RewardFunction,
        estimator: Estimator | str,
        optimizer: torch.optim.Optimizer,
        *,
        batch_size: int = 32,
        clip: float | None = 1.0,
        seed: int = 0,
        variance_decay: float = 0.9,
        directory: Path | str | None = None,
        device: torch.device | str = "cpu",
    ):
        if not isinstance(engine.policy, nn.Module):
            raise InputError("training needs a policy with parameters: an nn.Module")
        if batch_size < 1 or len(data) == 0:
            raise InputError(
                f"training needs at least one example and a batch size ≥ 1, not {len(data)} and {batch_size}"
            )
        if clip is not None and not clip > 0:
            raise InputError(f"clip must be a positive norm or None, not {clip}")
        self.engine, self.data, self.reward = engine, data, as_reward(reward)
        self.estimator, self.optimizer = as_estimator(estimator), optimizer
        self.batch_size, self.clip, self.device = batch_size, clip, device
        self.noise = Noise(seed)
        self.variance = RunningVariance(variance_decay)
        self.cost, self.seconds, self.updates = Cost(), 0.0, 0
        self._parameters = [p for p in engine.policy.parameters() if p.requires_grad]
        self._file = _new_metrics_file(directory)
        self._stream = self._batches()

    def run(
        self, *, updates: int | None = None, tokens: int | None = None, seconds: float | None = None
    ) -> Iterator[Metrics]:
        """Train until so many updates were made, tokens generated or seconds used in all; call again to go on."""
        if updates is None and tokens is None and seconds is None:
            raise InputError("say when to stop: updates, tokens or seconds")
        while not (
            (updates is not None and self.updates >= updates)
            or (tokens is not None and self.cost.tokens >= tokens)
            or (seconds is not None and self.seconds >= seconds)
        ):
            epoch, batch = next(self._stream)
            yield self.update(batch, epoch)

    def update(self, batch: Batch, epoch: int) -> Metrics:
        """One estimate and one step of the optimiser."""
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        sample = estimate(
            self.engine,
            batch,
            self.reward,
            self.estimator,
            self.noise.fold(_ROLLOUTS, epoch),
            check_score=self.updates == 0,
        )
        sample.backward()
        gradient = flat_gradient(self._parameters)
        norm = float(gradient.norm())
        if not norm < float("inf"):
            raise PolicyError(
                f"the gradient of update {self.updates + 1} is not finite; the parameters were left as they were "
                f"(a smaller learning rate may help)"
            )
        variance = self.variance.add(gradient)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, self.clip)
        self.optimizer.step()
        self.seconds += time.perf_counter() - start
        self.cost += sample.cost
        self.updates += 1
        metrics = self._metrics(sample, epoch, norm, variance)
        if self._file is not None:
            with self._file.open("a") as f:
                f.write(_line(metrics))
        return metrics

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        epoch = 0
        while True:
            for batch in self.data.epoch(self.batch_size, self.noise.fold(_ORDER, epoch), self.device):
                yield epoch, batch
            epoch += 1

    def _metrics(self, sample: Estimate, epoch: int, norm: float, variance: float) -> Metrics:
        return Metrics(
            update=self.updates,
            epoch=epoch,
            reward=sample.mean_reward,
            gradient_norm=norm,
            gradient_variance=variance,
            rollouts_per_step=sample.cost.rollouts / max(sample.cost.main_tokens, 1),
            mean_length=float(sample.trajectories.lengths.double().mean()),
            tokens=self.cost.tokens,
            reward_calls=self.cost.reward_calls,
            seconds=self.seconds,
        )


def _line(metrics: Metrics) -> str:
    """A line of JSON; what is not a number (no reward was given) is null."""
    entries = {name: None if value != value else value for name, value in asdict(metrics).items()}
    return json.dumps(entries, allow_nan=False) + "\n"


def _new_metrics_file(directory: Path | str | None) -> Path | None:
    if directory is None:
        return None
    path = Path(directory) / "metrics.jsonl"
    if path.exists():
        raise InputError(f"{path} exists already: give each run a directory of its own, or remove that one")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise InputError(f"cannot write to the run directory {directory}: {error.strerror}") from error
    return path
