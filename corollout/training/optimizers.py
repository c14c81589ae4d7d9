"""The optimisers that the package itself makes, and what they can do."""

import json
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from corollout.arguments import require_instance
from corollout.errors import InputError
from corollout.text import quoted
from corollout.training.settings import Decay

_FUSED_DEVICES = ("cpu", "cuda")
_FUSED_TYPES = (torch.float32, torch.float64)


def make_adam(parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Adam in one pass over the parameters, where PyTorch has a kernel for their device and type."""
    parameters = list(parameters)
    fused = all(p.device.type in _FUSED_DEVICES and p.dtype in _FUSED_TYPES for p in parameters)
    return torch.optim.Adam(parameters, lr=learning_rate, fused=fused or None)


def make_scheduler(
    optimizer: torch.optim.Optimizer, warm_up: int, decay: Decay, total: int | None
) -> LRScheduler | None:
    """A learning rate that rises for ``warm_up`` updates and is 0 after ``total`` updates; None if it is constant.

    Update number n of the warm-up (from 1) has n / (warm_up + 1) of the rate.
    """
    if warm_up == 0 and decay == "constant":
        return None
    if decay != "constant" and (total is None or total <= warm_up):
        raise InputError(
            f"a {decay} schedule has to end after its warm-up of {warm_up} updates, not after {total}: set the number "
            f"of updates of the schedule"
        )

    def factor(updates: int) -> float:
        if updates < warm_up:
            return (updates + 1) / (warm_up + 1)
        if decay == "constant":
            return 1.0
        share = min((updates - warm_up) / ((total or 1) - warm_up), 1.0)
        return 1 - share if decay == "linear" else (1 + math.cos(math.pi * share)) / 2

    return LambdaLR(optimizer, factor)


def largest_change(optimizer: torch.optim.Optimizer) -> float:
    """By how much a step changes a parameter at most, if no gradient was above 10³⁰; infinite if that is not known.

    Adam's m and v are averages of g and g² by weights b β^k, so that by Cauchy–Schwarz, bias corrections included,
    |m| / √v ≤ 1 / √((1 − β₂) (1 − β₁² / β₂)). That is doubled, for rounding.
    """
    hooks: Any = optimizer  # which may change parameters as they like
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW) or hooks._optimizer_step_post_hooks:
        return math.inf
    largest = 0.0
    for group in optimizer.param_groups:
        first, second = (float(beta) for beta in group["betas"])
        plain = group["eps"] >= 1e-12 and group["weight_decay"] == 0 and first**2 < second
        if not plain or any(p.dtype not in _FUSED_TYPES for p in group["params"]):
            return math.inf
        largest = max(largest, 2 * float(group["lr"]) / math.sqrt((1 - second) * (1 - first**2 / second)))
    return largest


def divides_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step divides the gradients by the tensor ``optimizer.grad_scale``, while it reads them anyway.

    PyTorch's fused optimisers do, for its gradient scaler.
    """
    groups = optimizer.param_groups
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and all(
        group.get("fused") and all(p.is_cpu and p.dtype == torch.float32 for p in group["params"]) for group in groups
    )


def require_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Raise an error unless this is a scheduler of the optimizer, and its state can be written to a checkpoint."""
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InputError(
            "ReduceLROnPlateau waits for evaluations, and a scheduler makes a step after every update: choose one that "
            "needs no metric, such as LambdaLR or CosineAnnealingLR"
        )
    if not isinstance(scheduler, LRScheduler):
        raise InputError(f"scheduler must be one of torch.optim.lr_scheduler, not {quoted(scheduler)}")
    if scheduler.optimizer is not optimizer:
        raise InputError("the scheduler is of another optimizer than the one that the trainer was given")
    try:
        json.dumps(scheduler.state_dict())
    except (TypeError, ValueError) as error:
        kind = type(scheduler).__name__
        raise InputError(f"the state of the scheduler {kind} cannot be saved in a checkpoint: {error}") from error


def require_optimizer(optimizer: Any, policy: nn.Module, device: torch.device | str) -> None:
    """Raise an error unless an optimizer can train the policy on batches that are on the device."""
    require_instance(
        "optimizer", optimizer, torch.optim.Optimizer, "one of torch.optim, as in torch.optim.Adam(policy.parameters())"
    )
    parameters = {id(p): p for p in policy.parameters()}
    if not any(p.requires_grad for p in parameters.values()):
        raise InputError(
            "no parameter of the policy requires a gradient, so nothing could be learned: unfreeze what is to be "
            "trained with requires_grad_(True)"
        )
    given = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(id(p) in parameters and p.requires_grad for p in given):
        raise InputError(
            "none of the optimizer's parameters is a parameter of the engine's policy that requires a gradient: make "
            "it from engine.policy.parameters()"
        )
    places = {p.device.type for p in parameters.values()}
    if torch.device(device).type not in places:
        raise InputError(
            f"the policy is on {' and '.join(sorted(places))}, but batches would be moved to {device}: move the policy "
            f"there, or choose another device for the trainer"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError(
            "LBFGS computes its loss several times in a step, which trainers do not: choose another optimizer"
        )
    _require_eps(optimizer)


def _require_eps(optimizer: torch.optim.Optimizer) -> None:
    """Raise an error if the eps that keeps an optimiser from dividing by zero is zero in the weights' precision."""
    for group in optimizer.param_groups:
        eps = group.get("eps", 0.0)
        for dtype in {p.dtype for p in group["params"]}:
            if isinstance(eps, float) and eps > 0 and not torch.tensor(eps, dtype=dtype) > 0:
                raise InputError(
                    f"the optimizer's eps = {eps:g} is zero in {dtype}, and would make weights NaN: give it eps=1e-4, "
                    f"or use weights in torch.bfloat16 or torch.float32"
                )
