"""A policy at another temperature: its logits, divided by it. Gradients are those of this policy."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from corollout.errors import InputError
from corollout.policies.protocol import Head, Policy
from corollout.policies.read_out import ReadOut
from corollout.policies.tree_head import TreeHead
from corollout.text import quoted

_OFFERED = ("hidden_states", "hidden_states_again", "read_out", "step_hidden")


class Tempered:
    """The policy p ∝ exp(φ / temperature), where φ are the logits of another one, whose parameters it uses.

    With a tree head, the logits of all decisions are divided. What the other policy offers besides, it offers, too.
    """

    def __init__(self, policy: Policy, temperature: float):
        self._policy: Any = policy
        self._scale = 1 / temperature
        head = getattr(policy, "head", None)
        if isinstance(head, Head) and not isinstance(head, TreeHead):
            raise InputError(
                f"a temperature needs a policy with a softmax or a tree head, not with a {type(head).__name__}"
            )
        self.head = None if head is None else head.tempered(temperature)
        self._last: tuple[Tensor | None, int, Tensor | None] = (None, 0, None)  # a bias, its version, and it scaled

    def encode(self, context: Any) -> Any:
        return self._policy.encode(context)

    def start(self, memory: Any) -> Any:
        return self._policy.start(memory)

    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
        outputs, after = self._policy.step(state, tokens)
        return self._scaled(outputs), after

    def score(self, memory: Any, tokens: Tensor) -> Tensor:
        return self._scaled(self._policy.score(memory, tokens))

    def __getattr__(self, name: str) -> Any:
        """What a policy may offer; see ``corollout.policies.protocol``."""
        if name not in _OFFERED:
            raise AttributeError(f"a tempered policy has no attribute {name!r}")
        offered = getattr(self._policy, name)
        if name in ("hidden_states", "hidden_states_again"):
            return lambda *given: self._scaled(offered(*given))
        if name == "read_out":
            return lambda tree: self._scaled_read_out(offered(tree))
        return partial(self._step_hidden, offered)

    def _step_hidden(self, offered: Callable[..., Any], state: Any, tokens: Tensor) -> tuple[Tensor, ReadOut, Any]:
        hidden, read_out, after = offered(state, tokens)
        # The same object as long as the bias is the same: screening prepares a read-out once, not at every step.
        bias, version, scaled = self._last
        if read_out.bias is not bias or (bias is not None and bias._version != version):
            scaled = self._scaled_read_out(read_out).bias
            version = 0 if read_out.bias is None else read_out.bias._version
            self._last = (read_out.bias, version, scaled)
        return self._scaled(hidden), replace(read_out, bias=scaled), after

    def _scaled(self, outputs: Tensor) -> Tensor:
        return outputs * self._scale if self.head is None else outputs

    def _scaled_read_out(self, read_out: ReadOut) -> ReadOut:
        # The weights stay as they are: hidden states are scaled instead.
        bias, cap = read_out.bias, read_out.softcap
        if bias is None and cap is None:
            return read_out
        return replace(
            read_out,
            bias=None if bias is None else bias * self._scale,
            softcap=None if cap is None else cap * self._scale,
        )


def require_temperature(temperature: Any) -> None:
    """Raise an error unless logits can be divided by it."""
    if not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise InputError(f"temperature must be a positive number, not {quoted(temperature)}")
