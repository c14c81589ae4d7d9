"""How several processes divide the prompts of a batch: each reads the rows of its own share."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, Dataset

from corollout.division import Division, divide_evenly
from corollout.errors import InputError
from corollout.files import digest_of
from corollout.hf.config import PolicyGradientConfig
from corollout.hf.data import PromptRows, Row, collate
from corollout.processes import Processes
from corollout.text import quoted

_LOADING = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "drop_last")
_COMPARED = 64  # rows of a data set
# Settings that every process must have alike.
_SETTINGS = "seed data_seed estimator num_generations max_completion_length temperature stop_strings beta "
_SETTINGS += "entropy_weight reward_weights per_device_train_batch_size gradient_accumulation_steps learning_rate "
_SETTINGS += "lr_scheduler_type max_steps num_train_epochs max_grad_norm samples_steps save_steps eval_steps "
_SETTINGS += "per_device_eval_batch_size train_sampling_strategy dataloader_drop_last"


class SharedRows(Dataset[Row]):
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


def shared_loader(
    rows: PromptRows, batch_size: int, sampler: Any, args: PolicyGradientConfig, processes: Processes
) -> Any:
    """A loader of the shares of batches, as transformers' Trainer wants it. All processes run through all batches, in
    one order.
    """
    options = {name: getattr(args, f"dataloader_{name}") for name in _LOADING}
    loader = DataLoader(SharedRows(rows, processes), batch_size, sampler=sampler, collate_fn=collate, **options)
    return prepare_data_loader(
        loader, num_processes=1, process_index=0, put_on_device=False, use_seedable_sampler=True,
        data_seed=args.data_seed,
    )  # fmt: skip


def require_same_rows(rows: PromptRows, what: str, processes: Processes) -> None:
    """Raise an error unless all processes have the same rows, as far as some of them show."""
    shown = [dict(rows.rows[number]) for number in range(0, len(rows), max(1, len(rows) // _COMPARED))]
    text = json.dumps([len(rows), shown], default=lambda value: type(value).__name__, sort_keys=True)
    for rank, (_, differs) in enumerate(_compared(digest_of([text.encode()]), processes)):
        if differs:
            raise InputError(
                f"the processes do not train the same: the rows of {what} in rank {rank} differ from those in rank 0; "
                f"give all of them the whole data set, which they divide among themselves"
            )


def require_same_settings(args: PolicyGradientConfig, processes: Processes) -> None:
    """Raise an error unless all processes have the settings that decide about updates alike."""
    values = {name: getattr(args, name) for name in _SETTINGS.split()}
    everyone = _compared({name: None if value is None else str(value) for name, value in values.items()}, processes)
    for rank, (settings, differs) in enumerate(everyone):
        if differs:
            name = next(name for name, value in settings.items() if value != everyone[0][0][name])
            raise InputError(
                f"the processes do not train the same: rank {rank} has {name} = {quoted(settings[name])}, and rank 0 "
                f"{quoted(everyone[0][0][name])}; give all of them the same settings"
            )


def _compared(value: Any, processes: Processes) -> list[tuple[Any, bool]]:
    """The values of all processes, and whether they differ from that of the first one."""
    values = processes.gather_values(value)
    return [(other, other != values[0]) for other in values]
