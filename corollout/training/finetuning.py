"""Fine-tuning on a reward. ``Trainer.step`` makes an update: batches, estimates, backward, clip, step, metrics."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from corollout.arguments import require_count, require_instance, require_number
from corollout.data import Batch, Columns, Data
from corollout.errors import InputError
from corollout.estimators import Adaptive, Auto, Estimator, make_estimator
from corollout.events import Callback, Event, warn, warning
from corollout.noise import Noise
from corollout.rewards import AnyReward, as_reward
from corollout.rollouts import Engine
from corollout.text import quoted
from corollout.training.agreement import add_gradients
from corollout.training.base import PROBES, ROLLOUTS, TARGET_ORDER, BaseTrainer, load_policy
from corollout.training.checkpoints import State
from corollout.training.estimates import Estimate, as_estimator, estimate
from corollout.training.imitation import Imitation
from corollout.training.metrics import Metrics, peak_memory
from corollout.training.norms import total_norm
from corollout.training.optimizers import require_scheduler
from corollout.training.process_updates import ProcessUpdate
from corollout.training.regularisation import KL, Regulariser, as_kl
from corollout.training.running_variance import GradientSketch, RunningVariance
from corollout.training.samples import Decode, Renderer, samples_of_all, take_samples
from corollout.training.settings import Balance, Clock
from corollout.training.update_totals import UpdateTotals
from corollout.training.watchdog import Seen, Watchdog
from corollout.types import Cost


class Trainer(BaseTrainer[Metrics]):
    """Fine-tunes a policy: ``Trainer(…).train(updates=100)``, or ``for metrics in Trainer(…).run(updates=100): …``.

    ``reward`` may be a plain function, or several of them in a list or by name, whose sum is weighted by
    ``reward_weights``; ``estimator`` may be a name. Gradients are clipped to the norm ``max_grad_norm``, in
    the same way for every estimator, and measured before. An example's noise depends on the seed, its id and the epoch.

    Every ``probe_every`` updates, variance and cost of the current estimator and of those in ``probes`` are measured on
    a few batches and reported as an event. That costs as much as some more updates, and is not counted in ``seconds``,
    ``tokens`` or reward calls. What the estimator "auto" spends on its choices is.

    With ``accumulate``, the estimates for so many batches make one update. With ``micro_batch``, so many contexts at a
    time are scored with a graph: less memory, the same gradient. A ``scheduler`` of PyTorch makes a step after every
    update. With ``ema_decay`` > 0 the weights that are evaluated and kept are an exponential moving average.

    ``kl`` takes that many times the divergence from a ``reference`` policy, by default the policy as it is now, off the
    objective (:class:`KL` steers it to a target), and ``entropy`` adds that many times the entropy of a sequence, in
    nats. Both are a part of every reward, so that estimates stay unbiased; metrics show rewards without them.
    ``mle_weight`` adds that many times the mean log-likelihood of the column ``target``, of the data or of
    ``mle_data``.

    At the first update and every ``samples_every`` updates, sequences of the update are reported as an event with their
    rewards, branches and the credit of every token (:class:`Samples`); a run keeps them. ``decode`` makes text of token
    ids, or is the names of all tokens. That is not counted in ``seconds``.

    ``balance`` says how several processes divide a batch: "even" gives them equally many contexts, "cost" equal parts
    of what its examples cost when they were last used. Neither changes a sequence or the gradient.
    """

    tracked = ("reward", "gradient_norm", "entropy")

    def __init__(
        self,
        engine: Engine,
        data: Data,
        reward: AnyReward,
        estimator: Estimator | str,
        optimizer: torch.optim.Optimizer,
        *,
        batch_size: int = 32,
        max_grad_norm: float | None = 1.0,
        max_grad_value: float | None = None,
        seed: int = 0,
        variance_decay: float = 0.9,
        device: torch.device | str = "cpu",
        clock: Clock = "wall",
        probe_every: int = 0,
        probes: Sequence[str] = (),
        accumulate: int = 1,
        micro_batch: int | None = None,
        scheduler: LRScheduler | None = None,
        kl: KL | float | None = None,
        reference: nn.Module | None = None,
        entropy: float = 0.0,
        mle_weight: float | int = 0.0,
        mle_data: Data | None = None,
        ema_decay: float = 0.0,
        reward_weights: Sequence[float | int] | None = None,
        samples_every: int = 0,
        decode: Decode | None = None,
        balance: Balance = "even",
        on_event: Callback = warn,
    ):
        super().__init__(
            engine, data, optimizer, batch_size=batch_size, max_grad_norm=max_grad_norm, seed=seed, device=device,
            clock=clock, on_event=on_event, accumulate=accumulate, ema_decay=ema_decay, balance=balance,
            max_grad_value=max_grad_value,
        )  # fmt: skip
        self.reward, self.estimator = as_reward(reward, reward_weights), as_estimator(estimator)
        self._estimator_name = estimator if isinstance(estimator, str) else None
        self.variance, self._sketch = RunningVariance(variance_decay), GradientSketch(self.parameters)
        self.cost = Cost()
        require_count("probe_every", probe_every, least=0)
        require_instance("probes", probes, (list, tuple), "a list of names of estimators")
        self.probe_every = probe_every
        self.probes = {name: make_estimator(name) for name in probes}
        if micro_batch is not None and (type(micro_batch) is not int or micro_batch < 1):
            raise InputError(
                f"micro_batch must be at least 1 context, or None for the whole batch, not {quoted(micro_batch)}"
            )
        if scheduler is not None:
            require_scheduler(scheduler, optimizer)
        self.micro_batch, self.scheduler = micro_batch, scheduler
        require_count("samples_every", samples_every, least=0)
        self.samples_every, self._renderer = samples_every, Renderer(decode, engine.ends)
        self.watchdog = Watchdog()
        self.regulariser: Regulariser | None = None
        require_number("entropy", entropy, "a finite number", math.isfinite)
        if kl is not None or entropy or reference is not None:
            self.regulariser = Regulariser(engine, as_kl(kl), entropy, reference)
        require_number("mle_weight", mle_weight, "0 or positive", lambda weight: 0 <= weight < math.inf)
        self.imitation: Imitation | None = None
        if mle_weight:
            targets = None if mle_data is None else Columns.of(mle_data)
            order = self.noise.fold(TARGET_ORDER)
            self.imitation = Imitation(engine, mle_weight, self.data, targets, order, micro_batch)
        elif mle_data is not None:
            raise InputError("mle_data are targets to imitate beside the reward: set mle_weight, too")

    def step(self) -> Metrics:
        self.begin_update()
        started, seconds, tokens, waited = self.now(), self.seconds, self.tokens, self.processes.waiting
        epoch, contexts = self.epochs, self.next_contexts
        if isinstance(self.estimator, Auto) and self.estimator.is_due(self.updates):
            self._choose_estimator(self.estimator)
        trained, totals, noise = self.estimator, UpdateTotals(), self.noise.fold(ROLLOUTS, epoch)
        log_likelihood, done, costs = 0.0, self.contexts_before, []
        self.optimizer.zero_grad(set_to_none=True)
        for batch in self.next_batches():
            sample = estimate(
                self.engine, batch, self.reward, self.estimator, noise, check_score=self.updates == 0,
                regulariser=self.regulariser, micro_batch=self.micro_batch,
            )  # fmt: skip
            if not totals.trajectories and self.takes_samples:  # of the first batch
                started += self._report_samples(sample, batch)
            sample.backward(contexts)
            if self.imitation is not None:
                log_likelihood += self.imitation.backward(batch, done, contexts, self.device)
            totals.add(sample)
            costs += self.divider.costs(sample, batch.examples)
            trained, done = sample.updated(trained), done + batch.whole
        add_gradients(self.parameters, self.processes)
        gradient, norm = self._sketch.with_norm()
        clips = self.clip_from(norm)
        rate = max(group["lr"] for group in self.optimizer.param_groups)
        self.step_optimizer()
        if self.scheduler is not None:
            self.scheduler.step()
        self.estimator = trained
        mine = ProcessUpdate(
            totals, log_likelihood, costs, self.now() - started, self.processes.waiting - waited,
            peak_memory(self.device),
        )  # fmt: skip
        update = mine.of_all(self.processes, [norm, self._most_weight], self.updates + 1)
        totals = update.totals
        self.divider.remember(update.costs)
        if self.regulariser is not None and totals.divergence is not None:
            self.regulariser.steer(totals.divergence)
        self.count_update(update.seconds)
        self.cost += totals.cost
        self.tokens = self.cost.tokens
        if self.probe_every and self.updates % self.probe_every == 0:
            self._probe_estimators()
        rewards = totals.rewards
        metrics = Metrics(
            update=self.updates,
            epoch=epoch,
            reward=rewards.mean,
            reward_std=rewards.std,
            reward_min=rewards.least,
            reward_max=rewards.largest,
            rewards=totals.reward_means,
            equal_rewards=totals.equal_rewards,
            gradient_norm=norm,
            learning_rate=float(rate),
            clipped=float(clips),
            gradient_variance=self.variance.add(gradient),
            rollouts_per_step=totals.rollouts_per_step,
            rollouts_by_step=totals.rollouts_by_step,
            rollouts_by_depth=totals.rollouts_by_depth,
            mean_length=totals.mean_length,
            cut=totals.cut,
            entropy=totals.entropy,
            mle_loss=None if self.imitation is None else -update.log_likelihood / contexts,
            kl=totals.divergence,
            tokens=self.tokens,
            scored_tokens=self.cost.scored_tokens,
            saved_tokens=self.cost.saved_tokens,
            reward_calls=self.cost.reward_calls,
            seconds=self.seconds,
            tokens_per_second=(self.tokens - tokens) / max(self.seconds - seconds, 1e-9),
            peak_memory=update.peak_memory,
            waiting=update.waiting,
            waiting_by_process=update.waiting_by_process,
        )
        for text in self.watchdog.look(Seen(metrics.reward, norm, metrics.entropy, metrics.cut)):
            self.on_event(warning(text))
        self.watchdog.require_rewards(self.updates, self.reward.name)
        return metrics

    @property
    def takes_samples(self) -> bool:
        """Whether sequences of the next update are reported."""
        return self.samples_every > 0 and (self.updates == 0 or (self.updates + 1) % self.samples_every == 0)

    def _report_samples(self, sample: Estimate, batch: Batch) -> float:
        """Report sequences of an estimate; return the seconds that took."""
        before = self.now()
        samples = take_samples(sample, batch, self.updates + 1, self._renderer, self.estimator.label)
        record = asdict(samples)
        if batch.division is not None:
            record = samples_of_all(record, sample, batch.division)
        self.on_event(Event("samples", record))
        return self.now() - before

    def warm_up_bookkeeping(self, batch: Batch) -> None:
        """What an update does with its gradients besides, for nothing, so that it is compiled."""
        if self.imitation is not None:
            self.imitation.backward(batch, 0, len(batch), self.device)
        gradient, _ = self._sketch.with_norm()
        total_norm(self.parameters)
        variance = RunningVariance()
        for _ in range(2):
            variance.add(gradient)

    def _choose_estimator(self, auto: Auto) -> None:
        """Let "auto" use the best of its candidates from here on."""
        from corollout.training.probes import choose_estimator  # probes make estimates, so they import this module

        batches, noise = self._probe_batches(auto.estimates), self._probe_noise
        choice = choose_estimator(
            auto, self.engine, batches, self.reward, noise, self.updates, self.now, self.regulariser
        )
        self.estimator = choice.estimator
        self.cost += choice.cost
        self.on_event(Event("choice", choice.record()))

    def _probe_estimators(self) -> None:
        """Measure the current estimator beside some others."""
        from corollout.training.probes import PROBE_ESTIMATES, probe_estimators

        estimators = {"in use": self.estimator, **self.probes}
        batches, noise = self._probe_batches(PROBE_ESTIMATES), self._probe_noise
        probes, _, _ = probe_estimators(
            self.engine, batches, self.reward, estimators, noise, self.now, regulariser=self.regulariser
        )
        seen = [probe.record(name) for name, probe in probes.items()]
        self.on_event(Event("probe", {"update": self.updates, "seen": seen}))

    @property
    def _probe_noise(self) -> Noise:
        return self.noise.fold(PROBES, self.updates)

    def _probe_batches(self, estimates: int) -> Iterator[Batch]:
        """Batches for a probe: others than those of training at the moment, if there are any; one more to warm up."""
        epochs = (self.batches_of_epoch(self._probe_noise.fold(i)) for i in count())
        return islice(chain.from_iterable(epochs), 1 + estimates)

    def settings(self) -> dict[str, Any]:
        named = {} if self._estimator_name is None else {"estimator": self._estimator_name}
        mle_weight = 0.0 if self.imitation is None else self.imitation.weight
        options = {"accumulate": self.accumulate, "mle_weight": mle_weight}
        return {**super().settings(), "label": self.estimator.label, **named, **options}

    def learning_rate_text(self) -> str:
        if self.scheduler is None:
            return super().learning_rate_text()
        return f"the learning rate follows {type(self.scheduler).__name__} from where it was"

    def extra_state(self) -> State:
        tensors = self.variance.tensors() | self.average.tensors() | self.divider.tensors()
        if isinstance(self.estimator, Adaptive):
            tensors |= {_ESTIMATOR + name: tensor.clone() for name, tensor in self.estimator.state_dict().items()}
        values: dict[str, Any] = {
            "cost": asdict(self.cost), "count": self.variance.count, "watchdog": self.watchdog.state()
        }  # fmt: skip
        if self.scheduler is not None:
            values["scheduler"] = self.scheduler.state_dict()
        if self.regulariser is not None:
            tensors |= {_REFERENCE + name: tensor.clone() for name, tensor in self.regulariser.tensors()}
            values["kl"] = self.regulariser.coefficient
        return State(tensors, values)

    def load_extra_state(self, state: State) -> None:
        tensors = {name: tensor.to(self.device, copy=True) for name, tensor in state.tensors.items()}
        self.average.load(tensors)
        self.divider.load(tensors)
        self.cost = Cost(**state.values["cost"])
        if "watchdog" in state.values:
            self.watchdog.load(state.values["watchdog"])
        mean, square = tensors.get("mean"), tensors.get("square")
        if mean is None or (len(mean) == self._sketch.size and (square is None or square.dim() == 0)):
            self.variance.load(state.values["count"], mean, square)
        else:
            self.variance.load(0, None, None)
            self.on_event(warning("the checkpoint is of an earlier version: the running gradient variance starts anew"))
        if isinstance(self.estimator, Adaptive):
            self.estimator = self.estimator.load_state_dict(_part(tensors, _ESTIMATOR))
        if self.scheduler is not None and "scheduler" in state.values:
            self.scheduler.load_state_dict(state.values["scheduler"])
        if self.regulariser is not None and "kl" in state.values:
            self.regulariser.coefficient = state.values["kl"]
            if self.regulariser.reference is not None:
                load_policy(self.regulariser.reference, _part(tensors, _REFERENCE), "the reference of the state")


# Prefixes of tensors in a state: of an adaptive estimator, and of a reference policy.
_ESTIMATOR, _REFERENCE = "estimator/", "reference/"


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
