"""What the rollout engine asks of a model, and how it handles the model's states.

A policy is any object with four methods (usually an ``nn.Module``):

    encode(context) -> memory                 once for each context
    start(memory) -> state                    before the first token
    step(state, tokens) -> logits, state      feed one token to each row, get the logits of the next
    score(memory, tokens) -> logits           the same for whole sequences at once, with gradient

``tokens`` of ``score`` begin with the start token: ``score(...)[:, t]`` is what ``step`` returns after tokens 0 … t.

A memory or a state is a tensor with rows first, or any nest of lists, tuples, dicts, named tuples and dataclasses
of such tensors. Then the engine gathers, repeats, drops and joins rows by itself. A state of another layout brings
``select(rows)``, ``detach()`` and the class method or static method ``concat(states)``; it may stand inside a nest.

``step`` must leave the state that it was given as it was: branches start from it later.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from corollout.errors import PolicyError

Nest = TypeVar("Nest")


@runtime_checkable
class Policy(Protocol):
    """A sequence generator. See the module's description."""

    def encode(self, context: Any) -> Any: ...

    def start(self, memory: Any) -> Any: ...

    def step(self, state: Any, tokens: Int64[Tensor, " row"]) -> tuple[Float[Tensor, "row vocab"], Any]: ...

    def score(self, memory: Any, tokens: Int64[Tensor, "row step"]) -> Float[Tensor, "row step vocab"]: ...


def score_by_steps(policy: Any, memory: Any, tokens: Int64[Tensor, "row step"]) -> Float[Tensor, "row step vocab"]:
    """``score`` for a model that has only ``start`` and ``step``: right for every model, if not the fastest."""
    state = policy.start(memory)
    logits = []
    for t in range(tokens.shape[1]):
        logits_t, state = policy.step(state, tokens[:, t])
        logits.append(logits_t)
    return torch.stack(logits, 1)


def select(nest: Nest, rows: Int64[Tensor, " row"]) -> Nest:
    """The given rows of a memory or state; a row may be repeated or left out."""
    return _map([nest], "select", lambda tensors: tensors[0][rows], lambda objects: objects[0].select(rows))


def concat(nests: Sequence[Nest]) -> Nest:
    """States joined row-wise."""
    if len(nests) == 1:
        return nests[0]
    return _map(nests, "concat", torch.cat, lambda objects: type(objects[0]).concat(objects))


def detach(nest: Nest) -> Nest:
    """The same memory, cut off from the graph."""
    return _map([nest], "detach", lambda tensors: tensors[0].detach(), lambda objects: objects[0].detach())


def _map(nests: Sequence[Any], method: str, on_tensors: Callable[[Any], Any], on_objects: Callable[[Any], Any]) -> Any:
    """Apply a function to the lists of corresponding tensors, or objects with the method, of equally built nests."""
    first = nests[0]
    if isinstance(first, Tensor):
        return on_tensors(list(nests))
    if first is None:
        return None
    if hasattr(first, method):
        return on_objects(list(nests))

    def inner(parts: Sequence[Any]) -> Any:
        return _map(parts, method, on_tensors, on_objects)

    if isinstance(first, Mapping):
        return {key: inner([nest[key] for nest in nests]) for key in first}
    if is_dataclass(first) and not isinstance(first, type):
        return replace(first, **{f.name: inner([getattr(n, f.name) for n in nests]) for f in fields(first)})
    if isinstance(first, (tuple, list)):
        parts = [inner(items) for items in zip(*nests, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    raise PolicyError(
        f"a memory or state contains a {type(first).__name__}: use tensors with rows first in lists, tuples, dicts or "
        f"dataclasses, or give the class select(rows), concat(states) and detach()"
    )


@contextmanager
def evaluation_mode(policy: Any) -> Generator[None, None, None]:
    """Dropout and the like are off inside; every module is as it was afterwards.

    Recurrent layers stay in training mode, without their dropout: cuDNN computes no gradient in evaluation mode.
    """
    modules = list(policy.modules()) if isinstance(policy, nn.Module) else []
    recurrent = [module for module in modules if isinstance(module, nn.RNNBase)]
    modes = [module.training for module in modules]
    dropouts = [module.dropout for module in recurrent]
    for module in modules:
        module.training = module in recurrent
    for module in recurrent:
        module.dropout = 0.0
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for module, dropout in zip(recurrent, dropouts, strict=True):
            module.dropout = dropout
