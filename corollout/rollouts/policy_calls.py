"""Calls of a policy's methods: what they raise or return by mistake is told in a sentence that names the method."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import PolicyError
from corollout.policies.protocol import Policy, as_policy_error, policy_errors

Rows = Int64[Tensor, " row"]


def call_encode(policy: Policy, context: Any) -> Any:
    """The memory of some contexts."""
    given = f" for a tensor of shape {list(context.shape)}" if isinstance(context, Tensor) else ""
    with policy_errors("policy.encode", given or f" for a {type(context).__name__}"):
        return policy.encode(context)


def call_backward(outputs: Tensor, gradient: Tensor | None = None) -> None:
    """Add the gradient that comes from some outputs of the policy to the parameters' ``.grad``."""
    if not outputs.requires_grad:
        raise PolicyError(
            "policy.score returned logits without a gradient: look for detach(), .data, .item() or torch.no_grad() in "
            "what it computes"
        )
    try:
        outputs.backward(gradient)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise PolicyError(
            "policy.score, or a method that it calls, changes a tensor in place that the gradient needs: make a new "
            "tensor instead"
        ) from error


def call_step(
    step: Callable[[Any, Rows], Any], state: Any, tokens: Rows, bos: int
) -> tuple[Float[Tensor, "row width"], Any]:
    """What a step of the policy puts out, and the new state."""
    try:
        result = step(state, tokens)
    except Exception as error:
        # Most often, a start token that there is no embedding of.
        given = f"bos = {bos}" if bool((tokens == bos).all()) else f"tokens from {tokens.min()} to {tokens.max()}"
        if (named := as_policy_error(error, "policy.step", f" for {given}")) is None:
            raise
        raise named from error
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[0], Tensor):
        returned = "logits only" if isinstance(result, Tensor) else f"a {type(result).__name__}"
        raise PolicyError(f"policy.step must return a pair, logits and the new state, but it returned {returned}")
    outputs, state = result
    if outputs.ndim != 2 or len(outputs) != len(tokens):
        shape = list(outputs.shape)
        raise PolicyError(
            f"policy.step returned logits of shape {shape} for {len(tokens)} rows; it must return [rows, V]"
        )
    return outputs, state
