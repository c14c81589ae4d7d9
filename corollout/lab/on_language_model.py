"""The estimator lab on a language model, on your prompts and with your reward."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from corollout.data import Batch, shuffled
from corollout.errors import InputError
from corollout.events import Callback, ignore
from corollout.files import digest_of
from corollout.folders import FolderLock
from corollout.hf.data import PromptRows, batch_of
from corollout.hf.data_files import read_prompts
from corollout.hf.generate import load_policy
from corollout.hf.reward_names import import_rewards
from corollout.hf.rewards import text_rewards
from corollout.hf.text import Text
from corollout.lab.lab import LANGUAGE_MODEL, run_lab
from corollout.lab.on_run import POINTS, Point, folder_name, require_lab_folder, split_names
from corollout.lab.settings import DEFAULT, LanguageModelLabSettings
from corollout.noise import Noise
from corollout.tasks.task import DataFile


@dataclass(frozen=True)
class LanguageModelLab:
    """A lab at the weights of a language model."""

    reward: str
    settings: LanguageModelLabSettings
    points: list[Point]

    @property
    def name(self) -> str:
        """The last part of the model's name."""
        return model_name(self.settings.model)

    @property
    def subject(self) -> dict[str, str]:
        """What is measured, for the report."""
        return {"model": self.name, "dataset": os.path.basename(self.settings.dataset or "")}

    @property
    def data_files(self) -> list[DataFile]:
        return []


def model_name(model: str) -> str:
    """The last part of a name or of a path."""
    return os.path.basename(os.path.normpath(model)) or model


def lab_of_language_model(settings: LanguageModelLabSettings, on_event: Callback = ignore) -> LanguageModelLab:
    """Measure estimators on the first prompts of a data set.

    Measurements are kept in the folder. Called again with the same settings, this continues where it stopped.
    """
    s = settings
    if not s.reward:
        raise InputError("a lab needs a reward: name a function with --reward")
    require_lab_folder(s.folder)
    names = split_names(s.estimators)
    estimators = [each for name in names for each in (LANGUAGE_MODEL if name == DEFAULT else [name])]
    rows, functions = PromptRows(read_prompts(s), "the data set"), import_rewards(s.reward)
    if s.threads is not None:
        torch.set_num_threads(s.threads)
    with FolderLock(s.folder):
        policy = load_policy(s.model, s.dtype, s.use_cpu)
        engine = policy.engine(s.max_completion_length, stop_strings=s.stop_strings or None, temperature=s.temperature)
        text, most, device = Text(policy.tokenizer), policy.prompt_room(engine.max_length), policy.device
        reward = text_rewards(
            functions, text, engine, weights=s.reward_weights or None, workers=s.reward_workers,
            timeout=s.reward_timeout,
        )  # fmt: skip

        def batch(numbers: Sequence[int]) -> Batch:
            return batch_of([rows[number] for number in numbers], text, most, device)

        count = min(s.examples, len(rows))
        first = batch(range(count))
        order = shuffled(torch.arange(len(rows)), Noise(s.seed)).split(count)
        others = [batch(some.tolist()) for some in islice(order, s.batches) if len(some) == count]
        label = model_name(s.model)
        source = {
            "temperature": s.temperature,
            "stop_strings": list(s.stop_strings),
            "dtype": s.dtype,
            "prompts": _digest([first, *others]),
        }
        try:
            lab = run_lab(
                engine, first, reward, list(dict.fromkeys(estimators)), batches=others, estimates=s.estimates,
                reference=s.reference, reference_estimates=s.reference_estimates, timing_rounds=s.rounds, seed=s.seed,
                folder=s.folder / POINTS / folder_name(label), source=source, on_event=on_event,
            )  # fmt: skip
        finally:
            reward.close()
    return LanguageModelLab(reward.name, s, [Point(label, s.model, None, lab)])


def _digest(batches: Sequence[Batch]) -> str:
    """A digest of the rows of some batches: what is measured on others cannot be compared."""

    def text(row: Any) -> bytes:
        return json.dumps(row, sort_keys=True, default=repr).encode()

    return digest_of(text(row) for batch in batches for row in batch.columns["row"])[:16]
