"""What the processes of a training have in common: they begin with the same, and add up their gradients."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from corollout.data import Columns
from corollout.errors import InputError, ProcessError
from corollout.files import digest_of
from corollout.processes import Processes
from corollout.weights import tensor_bytes

_EXAMPLES = 64  # of the data, whose entries are compared


def add_gradients(parameters: Sequence[nn.Parameter], processes: Processes) -> None:
    """Replace the gradient of each parameter by the sum over processes; where some have none, theirs counts as zeros.

    A parameter that has no gradient in any process has none afterwards: optimisers leave it as it is.
    """
    if processes.size == 1 or not parameters:
        return
    has = torch.tensor([p.grad is not None for p in parameters], dtype=parameters[0].dtype, device=parameters[0].device)
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    # A parameter and its gradient may lie in memory in different orders, in different processes.
    gradients = [p.grad.contiguous() for p in parameters if p.grad is not None]
    processes.add([has, *gradients])
    for p, count, gradient in zip(parameters, has.tolist(), gradients, strict=True):
        p.grad = gradient if count else None


def require_agreement(
    processes: Processes, policy: nn.Module, data: Columns, settings: dict[str, Any], counts: list[int]
) -> None:
    """Raise an error unless all processes are about to make the same update: the sum would be of different gradients.

    Of the data, the ids of all examples are compared, and the entries of a few of them.
    """
    positions = torch.linspace(0, len(data) - 1, min(len(data), _EXAMPLES)).long().unique()
    some = data.batch(positions)
    sample = Columns(ids=some.examples, **some.columns).digest()
    mine = {
        "weights": digest_of(_bytes(policy)),
        "data": digest_of([tensor_bytes(data.ids), sample.encode(), json.dumps(sorted(data.columns)).encode()]),
        "settings": json.dumps(settings, sort_keys=True, default=str),
        "counts": counts,
    }
    advice = {
        "weights": "make the policy with the same seed in all of them, or load the same file",
        "data": "give all of them the whole data set: the trainer divides every batch itself",
        "settings": "give their trainers the same arguments",
        "counts": "let all of them resume from the same state",
    }
    everyone = processes.gather_values(mine)
    for name, what in advice.items():
        others = [rank for rank, one in enumerate(everyone) if one[name] != everyone[0][name]]
        if others:
            raise InputError(
                f"the processes of the job do not train the same: the {name} of rank {others[0]} differ from those of "
                f"rank 0; {what}"
            )


def require_same(numbers: Iterable[Sequence[float]], update: int) -> None:
    """Raise an error if processes have different numbers that follow from their weights and gradients."""
    if len({tuple(map(repr, one)) for one in numbers}) > 1:
        raise ProcessError(
            f"the weights of the processes have gone apart by update {update}: the norms of their gradients or weights "
            f"differ; resume from the last checkpoint, with the same hardware and the same PyTorch for all of them"
        )


def _bytes(policy: nn.Module) -> Iterable[bytes]:
    for name, tensor in policy.state_dict().items():
        yield f"{name} {tensor.dtype} {list(tensor.shape)}".encode()
        yield tensor_bytes(tensor)
