"""What the rollout engine asks of a model and of its output head, and how it handles the model's states.

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

A policy may offer more, and is then faster and needs less memory; the results are the same:

    hidden_states(memory, tree) -> hidden     what the last layer reads, for each prefix of a ``PrefixTree``
    hidden_states_again(memory, tree,         the same, given the states that ``step`` returned, level by level, for a
        states, kept) -> hidden               tree of which ``kept`` are these prefixes (None for all): what they
                                              contain need not be computed again, only get a gradient (softmax only)
    read_out(tree) -> ReadOut                 the weights of that layer (not with a head of its own)
    step_hidden(state, tokens)                ``step`` before its last layer, and that layer: a ``ReadOut``
        -> hidden, read_out, state            with the tokens that are allowed to these rows (softmax only)
    state.rewind(steps) -> state              of a state that only grows: what it was so many steps ago

A head turns the policy's output into tokens, probabilities and the logits that gradients are for. Without one, outputs
are logits over the whole vocabulary, a softmax; a policy whose attribute ``head`` is a ``Head`` outputs what that head
reads. ``logits`` always means the numbers that an estimate differentiates with respect to: V of them for each token of
a softmax, at most D, one for each decision on the path to the token, of a tree.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from corollout.errors import CorolloutError, PolicyError
from corollout.noise import conditional_gumbels, exponential, race
from corollout.text import shortened
from corollout.types import Decisions, full_precision

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


def tensors_in(nest: Any) -> list[Tensor]:
    """The tensors of a memory, state or context, but for those of objects that bring ``select``."""
    found: list[Tensor] = []

    def keep(tensors: list[Tensor]) -> Tensor:
        found.extend(tensors)
        return tensors[0]

    _map([nest], "select", keep, lambda objects: objects[0])
    return found


def copied(nest: Nest) -> Nest:
    """The same state in memory of its own."""
    return _map([nest], "clone", lambda tensors: tensors[0].clone(), lambda objects: objects[0].clone())


def as_leaves(nest: Nest) -> tuple[Nest, Callable[[], None]]:
    """The same memory cut off from the graph, but with gradients, and a function that passes these on to the graph.

    A memory that is used for several backward passes then needs only one itself. Objects that bring ``detach`` must be
    dataclasses, or bring ``as_leaves``, which then does this.
    """
    if (own := getattr(nest, "as_leaves", None)) is not None:
        return own()
    pairs: list[tuple[Tensor, Tensor]] = []

    def cut(tensors: list[Tensor]) -> Tensor:
        tensor = tensors[0]
        if not tensor.requires_grad:
            return tensor
        leaf = tensor.detach().requires_grad_()
        pairs.append((tensor, leaf))
        return leaf

    def pass_on() -> None:
        used = [(tensor, leaf.grad) for tensor, leaf in pairs if leaf.grad is not None]
        if used:
            torch.autograd.backward([tensor for tensor, _ in used], [gradient for _, gradient in used])

    return _map([nest], "detach", cut, lambda objects: _leaf_object(objects[0], cut)), pass_on


def _leaf_object(thing: Any, cut: Callable[[list[Tensor]], Tensor]) -> Any:
    """An object that brings ``detach``, with its tensors cut off, if it is a dataclass."""
    if not is_dataclass(thing) or isinstance(thing, type):
        raise PolicyError(
            f"a memory contains a {type(thing).__name__}, which scoring in several micro-batches cannot take apart: "
            f"make it a dataclass of tensors, or give the policy hidden_states(memory, tree) and read_out(tree)"
        )
    parts = {f.name: getattr(thing, f.name) for f in fields(thing)}
    return replace(thing, **{name: cut([part]) if isinstance(part, Tensor) else part for name, part in parts.items()})


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


@dataclass(frozen=True)
class GraphSizes:
    """How large graphs of autograd should be: what a policy's optional method ``graph_sizes(context)`` says."""

    contexts: list[int]  # tokens of each context by itself, without its sequences
    most: int  # tokens of a graph


METHODS = ("encode", "start", "step", "score")


def require_policy(policy: Any) -> None:
    """Raise an error unless an object has the four methods of a policy."""
    if missing := [name for name in METHODS if not callable(getattr(policy, name, None))]:
        raise PolicyError(
            f"a policy needs the methods {', '.join(METHODS[:3])} and {METHODS[3]}, but {type(policy).__name__} has no "
            f"{' and no '.join(missing)} (docs/policies.md has an example)"
        )


def as_policy_error(error: Exception, method: str, given: str = "") -> PolicyError | None:
    """An error that says in which method of a policy an exception was raised, and what the method was given.

    None if the exception says enough by itself: if it is one of ours, or a lack of memory.
    """
    is_memory = isinstance(error, MemoryError) or re.search("allocate memory|out of memory", str(error))
    if isinstance(error, CorolloutError) or is_memory:
        return None
    reason = " ".join(str(error).split("\n\n")[0].split())
    return PolicyError(f"{method} failed{given}: {type(error).__name__}: {shortened(reason, 200)}")


@contextmanager
def policy_errors(method: str, given: str = "") -> Generator[None, None, None]:
    """Inside, where a method of a policy is called, exceptions become what ``as_policy_error`` makes of them."""
    try:
        yield
    except Exception as error:
        if (named := as_policy_error(error, method, given)) is None:
            raise
        raise named from error


@contextmanager
def evaluation_mode(policy: Any) -> Generator[None, None, None]:
    """Dropout and the like are off inside; every module is as it was afterwards.

    Recurrent layers stay in training mode, without their dropout: cuDNN computes no gradient in evaluation mode.
    """
    modules = list(policy.modules()) if isinstance(policy, nn.Module) else []
    recurrent = [module for module in modules if isinstance(module, nn.RNNBase)]
    changed = [module for module in modules if module.training and module not in recurrent]
    modes = [(module, module.training, module.dropout) for module in recurrent]
    for module in changed:
        module.training = False
    for module in recurrent:
        module.training, module.dropout = True, 0.0
    try:
        yield
    finally:
        for module in changed:
            module.training = True
        for module, mode, dropout in modes:
            module.training, module.dropout = mode, dropout


# For each row
Ints = Int64[Tensor, " row"]  # noise keys, steps, tokens or nodes
Numbers = Float[Tensor, " row"]
Outputs = Float[Tensor, "row width"]
SharedOutputs = Float[Tensor, "output width"]  # rows with the same prefix share one
Greedy = Bool[Tensor, " row"] | bool
# For each row and step
Tokens = Int64[Tensor, "row step"]
Logits = Float[Tensor, "row step logit"]
LogProbs = Float[Tensor, "row step"]


class Choice(NamedTuple):
    """A token for each row, the logits that it was chosen by, and whether those were valid (no NaN, not all −inf).

    Logits and their validity are given for each output, or for each row if they depend on the token
    (``Head.logits_by_token``).
    """

    tokens: Ints
    logits: Float[Tensor, "output logit"]
    valid: Bool[Tensor, " output"]


class Ranked(NamedTuple):
    """Each row's first tokens by rank, the first one first, and whether its logits were valid."""

    ranks: Float[Tensor, "row best"]  # log-probabilities, or perturbed ones
    log_probs: Float[Tensor, "row best"]  # without noise
    tokens: Int64[Tensor, "row best"]
    valid: Bool[Tensor, " row"]


class Head(ABC):
    """What the rollout engine asks of a head."""

    keeps_outputs: bool = False
    """Whether ``finish`` will be asked for: then the outputs of main trajectories are kept."""
    logits_by_token: bool = False
    """Whether the logits by which a token is chosen depend on the token, as those on its path in a tree do."""

    def vocab(self, width: int) -> int | None:
        """The number of tokens, given the width of the policy's outputs; None if the head does not know."""
        return None

    @abstractmethod
    def choose(
        self, outputs: SharedOutputs, keys: Ints, steps: Ints, greedy: Greedy, index: Ints | None = None
    ) -> Choice:
        """A token for each row: by the decoder's own preference where ``greedy``, by the noise elsewhere.

        Rows whose prefixes are the same share an output: then ``index`` says which output belongs to each row.
        """

    @abstractmethod
    def best(self, outputs: Outputs, count: int) -> Ranked:
        """The ``count`` most probable tokens of each row, or all if there are fewer."""

    @abstractmethod
    def perturbed(
        self, outputs: Outputs, log_prob: Numbers, rank: Numbers, keys: Ints, steps: Ints, count: int
    ) -> Ranked:
        """The extensions of prefixes that come first in a sample without replacement (``corollout.rollouts.search``).

        ``log_prob`` and ``rank`` are those of the prefixes.
        """

    @abstractmethod
    def logits(self, outputs: Float[Tensor, "row step width"], tokens: Tokens) -> Logits:
        """The logits by which each token was chosen, with gradient."""

    @abstractmethod
    def log_probs(self, logits: Logits, tokens: Tokens) -> LogProbs:
        """The tokens' log-probabilities, from their logits."""

    def decisions(self, tokens: Tokens) -> Decisions | None:
        """The binary decisions that make up each token, if that is how tokens are chosen."""
        return None

    def finish(self, outputs: Outputs, started: Ints, keys: Ints, steps: Ints, greedy: Greedy) -> Ints:
        """The tokens that partial walks lead to, see ``Branches.token``."""
        raise NotImplementedError


_PERTURBED = 1 << 20  # numbers that a search perturbs at once


class Softmax(Head):
    """Outputs are the logits of all tokens; a token is the winner of a race, or the one with the largest logit."""

    def vocab(self, width: int) -> int | None:
        return width

    def choose(
        self, outputs: SharedOutputs, keys: Ints, steps: Ints, greedy: Greedy, index: Ints | None = None
    ) -> Choice:
        logits = full_precision(outputs)
        # The largest logit is finite exactly if none is NaN or +inf and not all are −inf.
        highest = logits.amax(1)
        valid = highest.isfinite()
        if greedy is False:
            return Choice(race(logits, keys, steps, highest, index), logits, valid)
        best = logits.argmax(1) if index is None else logits.argmax(1)[index]
        if greedy is True:
            return Choice(best, logits, valid)
        return Choice(torch.where(greedy, best, race(logits, keys, steps, highest, index)), logits, valid)

    def best(self, outputs: Outputs, count: int) -> Ranked:
        logits = full_precision(outputs)
        values, tokens = logits.log_softmax(1).topk(min(count, logits.shape[1]), 1)
        return Ranked(values, values, tokens, logits.amax(1).isfinite())

    def perturbed(
        self, outputs: Outputs, log_prob: Numbers, rank: Numbers, keys: Ints, steps: Ints, count: int
    ) -> Ranked:
        # Some rows at a time: in double precision, all of them would take many times the memory of the logits.
        size = max(1, _PERTURBED // outputs.shape[1])
        given = (part.split(size) for part in (outputs, log_prob, rank, keys, steps))
        ranked = [self._perturb(x, p, r, k, t, count) for x, p, r, k, t in zip(*given, strict=True)]
        return Ranked(*map(torch.cat, zip(*ranked, strict=True)))

    def _perturb(
        self, outputs: Outputs, log_prob: Numbers, rank: Numbers, keys: Ints, steps: Ints, count: int
    ) -> Ranked:
        logits = outputs.double()
        values = logits.log_softmax(1) + log_prob[:, None]
        free = values - exponential(keys, steps, logits.shape[1], torch.float64).log_()
        # Conditioning on the maximum does not change their order.
        largest, tokens = free.topk(min(count, logits.shape[1]), 1)
        ranks = conditional_gumbels(largest, rank)
        return Ranked(ranks, values.gather(1, tokens), tokens, logits.amax(1).isfinite())

    def logits(self, outputs: Float[Tensor, "row step width"], tokens: Tokens) -> Logits:
        return outputs

    def log_probs(self, logits: Logits, tokens: Tokens) -> LogProbs:
        return logits.gather(2, tokens[:, :, None]).squeeze(2) - logits.logsumexp(2)


SOFTMAX = Softmax()


def head_of(policy: Any) -> Head:
    """The policy's head: a softmax, unless it says otherwise."""
    head = getattr(policy, "head", None)
    return head if isinstance(head, Head) else SOFTMAX


def check_valid(valid: Bool[Tensor, " row"], t: int, examples: Callable[[], Int64[Tensor, " row"]]) -> None:
    """Refuse logits that are not a distribution; ``examples`` are those of the rows."""
    if not bool(valid.all()):
        raise PolicyError(
            f"policy.step returned NaN or +inf, or masked every token, "
            f"for example {int(examples()[~valid][0])} at step {t}"
        )
