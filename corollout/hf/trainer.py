"""The trainer for language models: transformers' Trainer, whose gradients are policy gradients."""

import itertools
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
import transformers
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint

from corollout.compilation import cpu_time, wall_time
from corollout.data import Batch, shuffled
from corollout.errors import InputError
from corollout.estimators import Adaptive, Auto
from corollout.files import check_entries, read_json, write_json
from corollout.hf.config import PolicyGradientConfig
from corollout.hf.data import PromptRows, Row, batch_of, collate
from corollout.hf.inspect import inspect_rows, text_samples
from corollout.hf.launching import Exchange, require_supported, set_up, shards_weights
from corollout.hf.loading import load_model, load_tokenizer, require_vocabulary, without_adapter
from corollout.hf.metrics import BatchMetrics, BatchNumbers, evaluation_metrics, evaluation_record
from corollout.hf.policies import CausalLMPolicy, LanguageModelPolicy, Seq2SeqPolicy
from corollout.hf.replicas import Replica, ShardedReplica
from corollout.hf.rewards import RewardFunction, text_rewards
from corollout.hf.samples_file import SamplesFile
from corollout.hf.shares import SharedRows, division_of, require_same_rows, require_same_settings, shared_loader
from corollout.hf.text import Text
from corollout.noise import Noise
from corollout.processes import Processes, processes
from corollout.training.estimates import Estimate, estimate
from corollout.training.probes import choose_estimator
from corollout.training.regularisation import KL, Regulariser
from corollout.training.samples import Samples
from corollout.training.watchdog import Seen, Watchdog
from corollout.types import Sampler

_LOGGER = transformers.utils.logging.get_logger(__name__)
_TRAINING, _EVALUATION, _PROBES, _INSPECTION = range(4)
_STATE = "corollout"  # of files in a checkpoint


class PolicyGradientTrainer(Trainer):
    """Fine-tunes a language model on rewards.

    ``model`` is a name, a folder or a module. ``reward_funcs`` have TRL's signature: they are called with ``prompts``,
    ``completions``, ``completion_ids`` and the columns of the data set by their names, and return a number for each
    completion, or None where they do not apply. The data set has a column ``prompt`` of strings or chat messages.

    An update is one of :func:`corollout.estimate`; everything around it, from schedulers to checkpoints, is
    ``transformers.Trainer``.
    """

    args: PolicyGradientConfig

    def __init__(
        self,
        model: str | nn.Module,
        reward_funcs: RewardFunction | Sequence[RewardFunction],
        args: PolicyGradientConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        peft_config: Any = None,
    ):
        args = PolicyGradientConfig("policy-gradient") if args is None else args
        if not isinstance(args, PolicyGradientConfig):
            raise InputError(f"args must be a PolicyGradientConfig, not a {type(args).__name__}")
        self.processes = processes() if args.world_size > 1 else Processes()
        transformers.set_seed(args.seed)  # adapters begin with random weights
        tokenizer = load_tokenizer(model) if processing_class is None else processing_class
        module: Any = load_model(model, args.model_init_kwargs) if isinstance(model, str) else model
        if peft_config is not None:
            import peft

            module = peft.get_peft_model(module, peft_config)
        self.text = Text(tokenizer, args.chat_template_kwargs)
        self.replica = (ShardedReplica if shards_weights(args) else Replica)(module, self.processes)
        super().__init__(
            model=self.replica.trained(),
            args=args,
            data_collator=cast(Any, collate),
            train_dataset=None if train_dataset is None else PromptRows(train_dataset),
            eval_dataset=_eval_rows(eval_dataset),
            processing_class=tokenizer,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.model_accepts_loss_kwargs = False
        self.add_callback(Exchange(self.replica))
        self.replica.copy_first(args.device)
        if self.model is not module:
            module.to(args.device)
        kind = Seq2SeqPolicy if module.config.is_encoder_decoder else CausalLMPolicy
        self.policy: LanguageModelPolicy = kind(module, tokenizer)
        require_vocabulary(len(self.policy.read_out_weight), tokenizer)
        self.engine = self.policy.engine(
            args.max_completion_length, stop_strings=args.stop_strings, temperature=args.temperature
        )
        self.estimator = args.make_estimator()
        self._metrics: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in ("train", "eval")}
        self._batches: list[dict[str, Any]] = []  # of the update, or of the evaluation: numbers of this process's parts
        self._logged: list[tuple[str, float]] = []  # by reward functions
        self._prompts_per_batch = args.prompts_per_device * args.world_size
        self.reward = text_rewards(
            reward_funcs, self.text, self.engine, weights=args.reward_weights, workers=args.reward_workers,
            timeout=args.reward_timeout,
            options={"trainer_state": self.state, "log_extra": _ignore, "log_metric": self._log_metric},
        )  # fmt: skip
        self._regulariser: Regulariser | None = None
        if args.beta or args.entropy_weight:
            reference = without_adapter(kind, module, tokenizer) if args.beta else None
            kl = KL(args.beta) if args.beta else None
            self._regulariser = Regulariser(self.engine, kl, args.entropy_weight, reference)
        self._noise = Noise(args.seed)
        self._renderer = self.text.renderer(self.engine.ends)
        self._samples: SamplesFile | None = None
        self._watchdog = Watchdog()
        self._tokens = 0  # prompts and completions so far
        self.generated_tokens = 0  # branches included, and no shared prefix twice
        self._checked = False
        self._began = 0.0, 0.0  # the update: when, and how many seconds had been waited for other processes

    def create_accelerator_and_postprocess(self) -> None:
        require_supported(self.args)
        super().create_accelerator_and_postprocess()
        set_up(self.accelerator, self.args)
        self.is_fsdp_enabled = shards_weights(self.args)

    # --- data --------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        if self.train_dataset is None:
            raise InputError("training needs a train_dataset with a column 'prompt'")
        return self._loader(self.train_dataset, self._prompts_per_batch, "Training", self._get_train_sampler)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        rows: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(rows, str):
            rows = cast(Any, self.eval_dataset)[rows]
        if rows is None:
            raise InputError("evaluation needs an eval_dataset with a column 'prompt'")
        rows = rows if isinstance(rows, PromptRows) else PromptRows(rows, "eval_dataset")
        size = self.args.eval_batch_size * self.processes.size
        return self._loader(rows, size, "Evaluation", self._get_eval_sampler)

    def _loader(self, rows: Any, batch_size: int, description: str, sampler: Any) -> Any:
        """Batches of all processes, of which each gets its share."""
        if self.processes.size > 1:
            return shared_loader(rows, batch_size, sampler(rows), self.args, self.processes)
        return self._get_dataloader(rows, description, batch_size, sampler, is_training=description == "Training")

    def get_total_train_batch_size(self, args: Any) -> int:
        """Prompts in an update."""
        return self._prompts_per_batch * args.gradient_accumulation_steps

    def prompts(self, rows: Sequence[dict[str, Any]]) -> Tensor:
        """The prompts of some rows as ``engine.generate`` takes them."""
        return self._batch([{"number": number, "row": dict(row)} for number, row in enumerate(rows)]).context

    def _batch(self, rows: list[Row]) -> Batch:
        most = self.policy.prompt_room(self.args.max_completion_length)
        return batch_of(rows, self.text, most, self.args.device, division_of(rows, self.processes))

    # --- training ----------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *given: Any, **options: Any) -> Any:
        """Train as ``transformers.Trainer`` does. A checkpoint may be from any number of processes: batches have as
        many prompts as before.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        if self.processes.size > 1:
            require_same_settings(self.args, self.processes)
            if isinstance(self.train_dataset, PromptRows):
                require_same_rows(self.train_dataset, "train_dataset", self.processes)
        self._prompts_per_batch = self.args.prompts_per_device * self.processes.size
        if isinstance(resume_from_checkpoint, str):
            before = self._read_state(resume_from_checkpoint)
            if before.get("processes", 1) != self.processes.size:
                self._prompts_per_batch = before.get("prompts_per_batch", self.args.prompts_per_device)
        return super().train(resume_from_checkpoint, *given, **options)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Add the gradient of some prompts; what is returned with the last ones is minus the update's mean reward."""
        model.train()
        if not self._batches:
            self._began = wall_time(), self.processes.waiting
            self.processes.during = f"update {self.state.global_step + 1}"
        batch, parts = self._batch(inputs), self.current_gradient_accumulation_steps
        # An example's noise depends on its number and the epoch, so neither batches nor accumulation change it.
        noise = self._noise.fold(_TRAINING, int(self.state.epoch or 0))
        if isinstance(self.estimator, Auto) and self.estimator.is_due(self.state.global_step):
            self._choose_estimator(self.estimator)
        with self.accelerator.autocast():
            sample = estimate(
                self.engine, batch, self.reward, self.estimator, noise, check_score=not self._checked,
                regulariser=self._regulariser, micro_batch=self.args.micro_batch_size,
            )  # fmt: skip
            self._take_samples(sample, batch)
            sample.backward(batch.whole * parts)
        self._checked |= not batch.is_stand_in
        self.estimator = sample.updated(self.estimator)
        self._batches.append(BatchNumbers.of(sample, batch).record())
        loss = self._finish_update() if self.accelerator.sync_gradients else 0.0
        return torch.tensor(loss, device=self.args.device)

    def _choose_estimator(self, auto: Auto) -> None:
        """Let "auto" use the best of its candidates from here on, measured on prompts of the training data."""
        step = self.state.global_step
        noise, rows = self._noise.fold(_PROBES, step), self.train_dataset
        assert isinstance(rows, PromptRows)
        order = shuffled(torch.arange(len(rows)), noise).split(self._prompts_per_batch)
        read = SharedRows(rows, self.processes).__getitems__
        batches = (self._batch(read(some.tolist())) for some in itertools.cycle(order))
        some = itertools.islice(batches, 1 + auto.estimates)
        choice = choose_estimator(auto, self.engine, some, self.reward, noise, step, cpu_time, self._regulariser)
        self.estimator = choice.estimator
        self.generated_tokens += choice.cost.tokens
        _LOGGER.info(choice.reason)

    def _finish_update(self) -> float:
        """Sum gradients and metrics over all batches and processes; return minus the mean reward."""
        norm = self.replica.sum_gradients()
        everyone = self._exchanged()
        metrics = self._metrics["train"]
        batches = [BatchMetrics.of_all(parts) for parts in everyone]
        for batch in batches:
            self._tokens += batch.tokens
            self.generated_tokens += batch.generated
            for name, value in batch.values.items():
                metrics[name].append(value)
        metrics["num_tokens"] = [float(self._tokens)]
        if self.processes.size > 1:
            metrics["waiting"].append(self._waiting())
        last = batches[-1].values
        seen = Seen(last["reward"], norm, last["entropy"], last["completions/clipped_ratio"])
        for text in self._watchdog.look(seen):
            if self.processes.is_first:
                _LOGGER.warning(text)
        self._watchdog.require_rewards(self.state.global_step + 1, self.reward.name)
        return -math.fsum(batch.values["reward"] for batch in batches) / len(batches)

    def _exchanged(self) -> list[list[dict[str, Any]]]:
        """Of each batch so far, the numbers of all processes; and what their reward functions have logged."""
        everyone = self.processes.gather_values([self._batches, self._logged])
        self._batches, self._logged = [], []
        for _, logged in everyone:
            for name, value in logged:
                self._metrics["train"][name].append(value)
        return [list(parts) for parts in zip(*(batches for batches, _ in everyone), strict=True)]

    def _waiting(self) -> float:
        """The mean share of the time of this update that processes have waited for others."""
        began, waited = self._began
        times = self.processes.gather_values([wall_time() - began, self.processes.waiting - waited])
        return sum(seconds for _, seconds in times) / len(times) / max(seconds for seconds, _ in times)

    def _log_metric(self, name: str, value: float) -> None:
        self._logged.append((name, float(value)))

    def _take_samples(self, sample: Estimate, batch: Batch) -> None:
        """Keep completions of the first batch of an update."""
        every, step = self.args.samples_steps, self.state.global_step
        if not every or (step and (step + 1) % every) or self._batches:
            return
        with self.processes.agreed():
            if self.processes.is_first and (self._samples is None or self._samples.update > step):
                # It begins, trains again, or was resumed.
                self._samples = SamplesFile(Path(self._get_output_dir(trial=None)), step, self.facts())
        samples = text_samples(sample, batch, step + 1, self._renderer, self.estimator)
        if self._samples is not None:
            self._samples.add(samples)

    def inspect(self, rows: Any) -> Samples:
        """Completions of some prompts with the credit of every token, by this trainer's rewards and estimator, as
        :func:`corollout.reports.completions.write_completions_page` shows them. No weight changes.
        """

        def sample(batch: Batch) -> Estimate:
            with self.accelerator.autocast():
                return estimate(
                    self.engine, batch, self.reward, self.estimator, self._noise.fold(_INSPECTION),
                    regulariser=self._regulariser, micro_batch=len(batch),
                )  # fmt: skip

        size, step = self.args.prompts_per_device, self.state.global_step
        return inspect_rows(rows, self._batch, sample, self._renderer, self.estimator, step, size)

    def facts(self) -> dict[str, Any]:
        """What a page of this trainer's completions says about it: pages may be published, so no path."""
        name = getattr(self.policy.inner.config, "_name_or_path", "") or type(self.policy.inner).__name__
        return {
            "model": Path(name).name if Path(name).is_dir() else name,
            "estimator": self.args.estimator or self.estimator.label,
            "reward": self.reward.name,
            "temperature": f"{self.args.temperature:g}",
            "learning rate": f"{self.args.learning_rate:g}",
        }

    # --- evaluation --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Sampled completions of some prompts, and their rewards."""
        batch = self._batch(inputs)
        noise, count = self._noise.fold(_EVALUATION), self.args.num_generations or 1
        with self.accelerator.autocast():
            drawn = self.engine.decode(batch.context, batch.examples, Sampler("sample", count), noise, "tokens")
        trajectories = drawn.trajectories
        scores = self.reward(
            trajectories.lists(),
            batch.examples[trajectories.contexts].tolist(),
            batch.aligned(trajectories.contexts),
            trajectories.finished.tolist(),
        )
        self._batches.append({} if batch.is_stand_in else evaluation_record(trajectories, scores))
        return None, None, None

    def evaluation_loop(self, dataloader: Any, *given: Any, metric_key_prefix: str = "eval", **options: Any) -> Any:
        if self.is_fsdp_enabled and not self.is_in_train:
            self.accelerator.prepare_model(cast(nn.Module, self.model))  # not sharded yet, perhaps, and need not be
        output = super().evaluation_loop(dataloader, *given, metric_key_prefix=metric_key_prefix, **options)
        batches = [evaluation_metrics([part for part in parts if part]) for parts in self._exchanged()]
        for batch in batches:
            for name, value in batch.items():
                self._metrics["eval"][name].append(value)
        assert output.metrics is not None
        output.metrics[f"{metric_key_prefix}_loss"] = -math.fsum(batch["reward"] for batch in batches) / len(batches)
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's metrics, and ours, averaged since the last time."""
        mode = "eval" if any(name.startswith("eval_") for name in logs) else "train"
        prefix = "eval_" if mode == "eval" else ""
        for name, values in self._metrics[mode].items():
            known = [value for value in values if not math.isnan(value)]
            if known:
                logs[prefix + name] = math.fsum(known) / len(known)
        self._metrics[mode].clear()
        super().log(logs, start_time)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """What an estimator has learned belongs to a checkpoint, too."""
        super()._save_optimizer_and_scheduler(output_dir)
        if not self.args.should_save:
            return
        learned = self.estimator.state_dict() if isinstance(self.estimator, Adaptive) else {}
        tensors = {name: tensor.contiguous() for name, tensor in learned.items()}
        safetensors.torch.save_file(tensors, os.path.join(output_dir, f"{_STATE}.safetensors"))
        state = {
            "tokens": self._tokens,
            "watchdog": self._watchdog.state(),
            "processes": self.processes.size,
            "prompts_per_batch": self._prompts_per_batch,
        }
        write_json(Path(output_dir, f"{_STATE}.json"), state)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        values = self._read_state(checkpoint)
        self._tokens = values["tokens"]
        self._watchdog.load(values["watchdog"])
        if isinstance(self.estimator, Adaptive):
            tensors = safetensors.torch.load_file(Path(checkpoint, f"{_STATE}.safetensors"))
            self.estimator = self.estimator.load_state_dict(tensors)

    def _read_state(self, checkpoint: str) -> dict[str, Any]:
        path = Path(checkpoint, f"{_STATE}.json")
        if not path.is_file():
            raise InputError(f"{checkpoint} was not written by this trainer: it has no {path.name}")
        return check_entries(read_json(path), path, tokens=int, watchdog=dict)


def _eval_rows(given: Any) -> Any:
    if given is None:
        return None
    if isinstance(given, dict):
        return {name: PromptRows(rows, f"eval_dataset {name!r}") for name, rows in given.items()}
    return PromptRows(given, "eval_dataset")


def _ignore(*_: Any) -> None:
    """For what TRL would log."""
