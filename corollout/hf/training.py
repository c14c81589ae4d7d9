"""A training of a language model in a folder, from nothing but settings: ``corollout lm train`` from Python.

The folder has the settings, the trainer's checkpoints, and at the end the model. Whatever stops a training, it goes on
from the newest checkpoint that is whole, and reaches the same weights.
"""

import re
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PrinterCallback, TrainerCallback

from corollout.config import from_table, to_table, write_toml
from corollout.errors import CorolloutError, DiskFullError, InputError, Interrupted
from corollout.estimators import make_estimator
from corollout.events import Callback, ignore
from corollout.files import is_disk_full, os_errors, read_json
from corollout.folders import FolderLock, temporary_folder
from corollout.hf.config import PolicyGradientConfig
from corollout.hf.data_files import read_prompts
from corollout.hf.generate import MODEL, model_of
from corollout.hf.progress import ReportProgress
from corollout.hf.reward_names import import_rewards
from corollout.hf.samples_file import NAME as SAMPLES
from corollout.hf.samples_file import PAGE
from corollout.hf.settings import FREE, SETTINGS, TrainSettings, kept_settings
from corollout.hf.trainer import PolicyGradientTrainer
from corollout.processes import Processes, processes
from corollout.restarts import beginning, has_begun
from corollout.signals import StopRequest, deferred_stops
from corollout.text import first_line

PROMPTS = GENERATIONS = 4  # of a batch, and completions of each, unless something else is asked for
# What safetensors and PyTorch say when a disk is full.
_FULL_DISK = ("No space left on device", "os error 28", "PytorchStreamWriter failed writing")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class Trained:
    """A training that has reached its end."""

    model: Path  # the folder of the weights
    steps: int
    metrics: dict[str, float]  # that were logged last


def train_language_model(
    settings: TrainSettings, out: Path, resume: bool = False, on_event: Callback = ignore
) -> Trained:
    """Train in a folder, which must be new or empty, or go on with the training in it.

    Of several processes, which all make this call, the first writes.
    """
    group = processes()
    resume = resume or has_begun(out, SETTINGS)
    if resume:
        with group.agreed():
            _require_same(settings, out)
    with ExitStack() as stack:
        with group.agreed():
            if group.is_first:
                lock = stack.enter_context(FolderLock(out))
                if not resume:
                    lock.require_empty()
        trainer = make_trainer(settings, out, on_event if group.is_first else ignore)
        checkpoint = group.from_first(str(newest_checkpoint(out) or "") if resume and group.is_first else "")
        with deferred_stops() as stop, _disk_errors(out):
            with group.agreed(), beginning(out, SETTINGS):
                if group.is_first:
                    _begin(settings, out, is_new=not checkpoint)
            trainer.add_callback(_Stops(stop, group))
            with suppress(_Finished):
                trainer.train(resume_from_checkpoint=checkpoint or None)
            if stop and trainer.state.global_step < trainer.state.max_steps:
                raise Interrupted(f"stopped after update {trainer.state.global_step}, which is saved in {out}")
            with group.agreed():
                if group.is_first:
                    _save_model(trainer, out / MODEL)
    logged: dict[str, float] = {}
    for record in trainer.state.log_history:
        logged |= record
    return Trained(out / MODEL, trainer.state.global_step, logged)


def _begin(settings: TrainSettings, out: Path, is_new: bool) -> None:
    """Write the settings; one that was stopped before it had a checkpoint begins anew."""
    write_toml(out / SETTINGS, to_table(settings))
    if is_new:
        for name in (SAMPLES, PAGE):
            (out / name).unlink(missing_ok=True)


def make_trainer(settings: TrainSettings, out: Path, on_event: Callback = ignore) -> PolicyGradientTrainer:
    """The trainer of some settings, with everything read that it needs."""
    functions = import_rewards(settings.reward)
    rows = read_prompts(settings)
    eval_rows = None if settings.eval_dataset is None else read_prompts(settings, settings.eval_dataset)
    try:
        trainer = PolicyGradientTrainer(
            model_of(settings.model),
            functions,
            args=trainer_config(settings, out),
            train_dataset=rows,
            eval_dataset=eval_rows,
            callbacks=[ReportProgress(on_event, settings.estimator or "training")],
            peft_config=_adapter(settings),
        )
    except (ImportError, RuntimeError, ValueError) as error:  # a service without its package, a device without bf16
        if isinstance(error, CorolloutError) or "memory" in str(error):
            raise
        raise InputError(f"this training cannot begin: {first_line(error, 300)}") from error
    trainer.remove_callback(PrinterCallback)
    return trainer


def trainer_config(settings: TrainSettings, out: Path) -> PolicyGradientConfig:
    """The configuration of the trainer."""
    s = settings
    if s.warmup_ratio is not None and s.warmup_steps is not None:
        raise InputError("--warmup-ratio and --warmup-steps exclude each other: choose one")
    if s.eval_steps is not None and s.eval_dataset is None:
        raise InputError("--eval-steps needs prompts to evaluate on: give --eval-dataset")
    known = {field.name for field in fields(PolicyGradientConfig)}
    options: dict[str, Any] = {field.name: getattr(s, field.name) for field in fields(s) if field.name in known}
    if s.estimator is None and s.num_generations is None:
        options["num_generations"] = GENERATIONS
    count = options["num_generations"] or make_estimator(s.estimator or "").sampler.count
    warmup = s.warmup_steps
    if warmup is None:  # below 1, transformers takes it for a share
        warmup = min(s.warmup_ratio or 0.0, 1 - 1e-9)
    options |= {
        "warmup_steps": float(warmup),
        "max_steps": -1 if s.max_steps is None else s.max_steps,
        "per_device_train_batch_size": s.per_device_train_batch_size or PROMPTS * count,
        "per_device_eval_batch_size": PROMPTS,
        "reward_weights": list(s.reward_weights) or None,
        "stop_strings": list(s.stop_strings) or None,
        "eval_strategy": "no" if s.eval_dataset is None else "steps",
        "logging_steps": float(s.logging_steps),
        "save_steps": float(s.save_steps),
        "eval_steps": float(s.eval_steps or s.save_steps),
        "save_strategy": "steps",
        "model_init_kwargs": {"dtype": s.dtype},
        "disable_tqdm": True,
    }
    return PolicyGradientConfig(str(out), **options)


def _adapter(settings: TrainSettings) -> Any:
    """The configuration of an adapter, if one is trained."""
    if settings.lora_rank is None:
        if settings.lora_targets:
            raise InputError("--lora-targets are for adapters: give --lora-rank as well")
        return None
    import peft

    rank = settings.lora_rank
    return peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(settings.lora_targets) or None)


def newest_checkpoint(out: Path) -> Path | None:
    """The newest checkpoint that is whole: its state is written last."""
    with os_errors(f"read {out}"):
        numbered = {int(match[1]): path for path in out.iterdir() if (match := _CHECKPOINT.fullmatch(path.name))}
    for step in sorted(numbered, reverse=True):
        try:
            state = read_json(numbered[step] / "trainer_state.json")
        except InputError:  # stopped while it was written
            continue
        if isinstance(state, dict) and state.get("global_step") == step:
            return numbered[step]
    return None


def _require_same(settings: TrainSettings, out: Path) -> None:
    """Raise an error unless a training was begun with these settings."""
    table, kept = to_table(settings), to_table(from_table(TrainSettings, kept_settings(out), str(out / SETTINGS)))
    if changed := [name for name in table if name not in FREE and table[name] != kept[name]]:
        names = ", ".join(changed)
        raise InputError(f"a resumed training keeps its settings: {names} must be as in {out / SETTINGS}")


@contextmanager
def _disk_errors(out: Path) -> Generator[None, None, None]:
    """Inside, a disk that is full is told in a sentence, whichever library it was that wanted to write."""
    try:
        yield
    except DiskFullError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        text = str(error)
        is_full = isinstance(error, OSError) and is_disk_full(error)
        if is_full or any(words in text for words in _FULL_DISK):
            left = "what was saved before is kept"
            raise DiskFullError(f"cannot write to {out}: the disk is full, and {left}; make room") from error
        raise


class _Finished(Exception):
    """The checkpoint is that of the last step: transformers would do one more."""


class _Stops(TrainerCallback):
    """Saves a checkpoint and ends the training after a signal, whichever process has got it."""

    def __init__(self, stop: StopRequest, group: Processes):
        self._stop, self._group = stop, group

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= state.max_steps:
            raise _Finished

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self._stop.adopt(max(number for [number] in self._group.exchange([self._stop.number])))
        if self._stop:
            control.should_save = control.should_training_stop = True
        return control


def _save_model(trainer: PolicyGradientTrainer, folder: Path) -> None:
    """The weights and the tokenizer as an ordinary folder, an adapter merged into its model."""
    model: Any = trainer.policy.model
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    with os_errors(f"write {folder}"), temporary_folder(folder) as new:
        model.save_pretrained(new)
        trainer.text.tokenizer.save_pretrained(new)
        if folder.exists():  # of the same training, when it was shorter
            shutil.rmtree(folder)
        new.rename(folder)
