"""How several processes divide the prompts of a batch: each reads the rows of its own share."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader

from corollout.division import Division, divide_evenly
from corollout.errors import InputError
from corollout.hf.config import PolicyGradientConfig
from corollout.hf.data import PromptRows, Row
from corollout.processes import Processes
from corollout.text import quoted

_COMPARED = 64  # rows of a data set
# Settings that every process must have alike.
_SETTINGS = "seed data_seed estimator num_generations max_completion_length temperature stop_strings beta "
_SETTINGS += "entropy_weight reward_weights per_device_train_batch_size gradient_accumulation_steps learning_rate "
_SETTINGS += "lr_scheduler_type max_steps num_train_epochs max_grad_norm samples_steps save_steps eval_steps "
_SETTINGS += "per_device_eval_batch_size train_sampling_strategy dataloader_drop_last"


class SharedRows(torch.utils.data.Dataset[Row]):
    """Rows of which a loader asks for whole batches, and gets the share of this process.

    Each row says in ``batch`` which rows the whole batch has. A process that has none of them gets the first one, as a
    stand-in.
    """

    def __init__(self, rows: PromptRows, processes: Processes):
        self._rows, self._rank, self._size = rows, processes.rank, processes.size

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Row:
        return self._rows[number]

    def __getitems__(self, numbers: Sequence[int]) -> list[Row]:
        if self._size == 1:
            return [self._rows[number] for number in numbers]
        batch = [int(number) for number in numbers]
        places = divide_evenly(len(batch), self._size)[self._rank] or [0]
        return [{**self._rows[batch[place]], "batch": batch} for place in places]


def division_of(rows: Sequence[Row], processes: Processes) -> Division | None:
    """How the batch of some rows is divided; None if they are all of it."""
    numbers = rows[0].get("batch")
    if numbers is None:
        return None
    return Division.of(torch.tensor(numbers), divide_evenly(len(numbers), processes.size), processes)


def as_loader(loader: Any, seed: int | None) -> Any:
    """A loader of :class:`SharedRows` as transformers' Trainer wants it. Batches of all processes have one order."""
    return prepare_data_loader(
        loader, num_processes=1, process_index=0, put_on_device=False, use_seedable_sampler=True, data_seed=seed
    )


def require_same_rows(rows: PromptRows, what: str, processes: Processes) -> None:
    """Raise an error unless all processes have the same rows, as far as some of them show."""
    step = max(1, len(rows) // _COMPARED)
    shown = [dict(rows.rows[number]) for number in range(0, len(rows), step)]
    text = json.dumps([len(rows), shown], default=lambda value: type(value).__name__, sort_keys=True)
    _require_same(
        hashlib.sha256(text.encode()).hexdigest(),
        processes,
        lambda rank, *_: (
            f"rank {rank} has other rows in {what} than rank 0: give all processes the same rows, which "
            f"they divide among themselves"
        ),
    )


def require_same_settings(args: PolicyGradientConfig, processes: Processes) -> None:
    """Raise an error unless all processes have the settings that decide about updates alike."""
    for name in _SETTINGS.split():
        value = getattr(args, name)
        _require_same(
            value if isinstance(value, int | float | list | None) else str(value),
            processes,
            lambda rank, here, first, name=name: (
                f"rank {rank} has {name} = {quoted(here)}, but rank 0 has "
                f"{quoted(first)}: start all processes with the same settings"
            ),
        )


def _require_same(value: Any, processes: Processes, message: Any) -> None:
    values = processes.gather_values(value)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise InputError(message(rank, other, values[0]))
