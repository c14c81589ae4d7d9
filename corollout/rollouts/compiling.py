"""A policy's step, compiled by PyTorch."""

from collections.abc import Callable
from typing import Any

import torch

from corollout.errors import InputError
from corollout.policies.protocol import Policy, copied

MODES = ("default", "reduce-overhead", "max-autotune")
_GRAPHS = MODES[1:]  # modes that record CUDA graphs

Step = Callable[[Any, torch.Tensor], tuple[torch.Tensor, Any]]


def compiled_step(policy: Policy, mode: str) -> Step:
    """``policy.step`` by ``torch.compile``, for any number of rows.

    A recorded graph writes its results to the same memory every time: they are copied, because states are kept.
    """
    if mode not in MODES:
        raise InputError(f"compile_step is a mode of torch.compile, one of {', '.join(MODES)}, not {mode!r}")
    step: Step = torch.compile(policy.step, dynamic=True, mode=mode)
    if mode not in _GRAPHS:
        return step

    def step_and_copy(state: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
        torch.compiler.cudagraph_mark_step_begin()
        outputs, after = step(state, tokens)
        return outputs.clone(), copied(after)

    return step_and_copy
