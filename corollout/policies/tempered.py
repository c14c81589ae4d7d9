"""A policy at another temperature: its logits, divided by it. Gradients are those of this policy."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from corollout.errors import InputError
from corollout.policies.protocol import Head, Policy
from corollout.policies.read_out import ReadOut
from corollout.policies.tree_head import TreeHead


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
        offered = getattr(self._policy, name)
        if name == "hidden_states":
            return lambda memory, tree: self._scaled(offered(memory, tree))
        if name == "read_out":
            return lambda tree: self._scaled_read_out(offered(tree))
        if name == "step_hidden":

            def step_hidden(state: Any, tokens: Tensor) -> tuple[Tensor, ReadOut, Any]:
                hidden, read_out, after = offered(state, tokens)
                return self._scaled(hidden), self._scaled_read_out(read_out), after

            return step_hidden
        return offered

    def _scaled(self, outputs: Tensor) -> Tensor:
        return outputs * self._scale if self.head is None else outputs

    def _scaled_read_out(self, read_out: ReadOut) -> ReadOut:
        # The weights stay as they are: hidden states are scaled instead.
        return read_out if read_out.bias is None else replace(read_out, bias=read_out.bias * self._scale)
