"""Scoring: the policy's logits at the main trajectories, with gradient, but without a tensor of all of them.

A policy that offers ``hidden_states`` and ``read_out`` computes every distinct prefix once, and its last layer is fused
with the gradient (``corollout.policies.read_out``). One that has ``score`` only computes every distinct sequence once,
in micro-batches of similar length. Prefixes and sequences whose gradient is exactly zero are left out. None of this
changes the gradient.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from corollout.errors import PolicyError
from corollout.estimators import Plan
from corollout.estimators.baselines import Scores, TokenProbabilities, token_probabilities
from corollout.estimators.plans import Credits, Rewards, SparsePlan
from corollout.policies import select
from corollout.policies.protocol import as_leaves, policy_errors
from corollout.policies.read_out import CHUNK, PrefixCredits, ReadOut, read_out_backward
from corollout.prefix_tree import PrefixTree, merge
from corollout.rollouts import Engine, Mains
from corollout.rollouts.policy_calls import call_backward
from corollout.types import Decisions, Sequences, Trajectories, full_precision

Rows = Int64[Tensor, " row"]
Logits = Float[Tensor, "row step vocab"]

BATCH = 1 << 24  # logits of a micro-batch of a policy that has ``score`` only
_GROUPS = 4  # of similar length
_KEPT = 1 << 25  # logits that are kept from one use to the next


class Scoring(ABC):
    """The main trajectories of an estimate, scored for a plan."""

    tokens: int
    """How many prefixes were computed with gradient."""
    scores: Scores | None = None
    """What the plan read of the logits."""
    credits: Credits
    """The gradient, if the plan is a :class:`SparsePlan`. Processes that share a batch exchange numbers to compute it,
    so it is computed only once."""

    @abstractmethod
    def backward(self, scale: float) -> None:
        """Add ``scale`` times the gradient of the expected reward to the parameters' ``.grad``."""


def score(engine: Engine, memory: Any, mains: Mains, plan: Plan, rewards: Rewards) -> Scoring:
    """Score main trajectories as the policy and the plan allow."""
    if not isinstance(plan, SparsePlan):
        return DenseScoring(engine, memory, mains.trajectories, plan, rewards)
    tree = PrefixTree.of(mains.trajectories, mains.trajectories.contexts, engine.bos)
    if not hasattr(engine.model, "hidden_states"):
        return SequenceScoring(engine, memory, mains.trajectories, tree, plan, rewards)
    kind = PathScoring if engine.head.logits_by_token else PrefixScoring
    return kind(engine, memory, mains, tree, plan, rewards)


class NoScoring(Scoring):
    """That of a process that has no context of its batch: what its plan says is what others need to know."""

    def __init__(self, trajectories: Trajectories, plan: Plan, rewards: Rewards):
        self.tokens = 0
        if trajectories.decisions is None:
            empty = torch.zeros(trajectories.tokens.shape, dtype=torch.float64, device=rewards.device)
            self.scores = TokenProbabilities(empty, empty, empty)
        else:
            self.scores = torch.zeros(trajectories.decisions.bits.shape, dtype=torch.float64, device=rewards.device)
        if isinstance(plan, SparsePlan):
            self.credits = plan.credits(rewards, self.scores)

    def backward(self, scale: float) -> None:
        pass


def without_zeros(credits: Credits) -> Credits:
    """Those that are not zero."""
    used = (credits.value != 0).nonzero().squeeze(1)
    if len(used) == len(credits.value):
        return credits
    return credits.select(used)


class PrefixScoring(Scoring):
    """A softmax on hidden states of distinct prefixes."""

    def __init__(self, engine: Engine, memory: Any, mains: Mains, tree: PrefixTree, plan: SparsePlan, rewards: Rewards):
        self._trajectories, self._tree = mains.trajectories, tree
        self._known = mains.logits if mains.logits is not None and len(mains.logits) == len(tree) else None
        self._states = mains.states(tree.sizes)
        self._kept: Rows | None = None  # of the sampled prefixes; None for all
        if plan.reads_scores:
            self._compute(engine, memory)
            self.scores = self._probabilities()
            self.credits = without_zeros(plan.credits(rewards, self.scores))
        else:
            self.credits = without_zeros(plan.credits(rewards))
            self._prune()
            self._compute(engine, memory)

    def _prune(self) -> None:
        """Leave out prefixes that no gradient comes from or goes through."""
        whole = len(self._tree)
        self._tree, kept = self._tree.reaching(self.credits.row, self.credits.step)
        if len(kept) < whole:
            self._kept = kept
            self._known = None if self._known is None else self._known[kept]

    def _compute(self, engine: Engine, memory: Any) -> None:
        self.tokens = len(self._tree)
        model: Any = engine.model
        self._pass_on: Callable[[], None] | None = None
        if hasattr(memory, "as_leaves"):
            memory, self._pass_on = memory.as_leaves()
        if self.tokens:
            if self._states is not None and hasattr(model, "hidden_states_again"):
                again = model.hidden_states_again(memory, self._tree, self._states, self._kept)
            else:
                again = model.hidden_states(memory, self._tree)
            self._hidden: Tensor = again
            self._read_out: ReadOut = model.read_out(self._tree)

    def _probabilities(self) -> TokenProbabilities:
        """Those of all tokens, from chunks of logits."""
        trajectories, vocab = self._trajectories, len(self._read_out.weight)
        if self._known is None and len(self._tree) * vocab <= _KEPT:
            self._known = full_precision(self._read_out.logits(self._hidden, slice(None)))
        row, step = trajectories.mask.nonzero(as_tuple=True)
        out = torch.zeros(3, *trajectories.tokens.shape, dtype=torch.float64, device=row.device)
        for some, nodes, place in _chunks(self._tree.node[row, step], vocab):
            if self._known is None:
                logits = full_precision(self._read_out.logits(self._hidden[nodes], nodes))
            else:
                logits = self._known[nodes]
            cell = row[some], step[some]
            out[:, *cell] = torch.stack(token_probabilities(logits[place], trajectories.tokens[cell]))
        return TokenProbabilities(*out)

    def backward(self, scale: float) -> None:
        if self.tokens:
            credits = self.credits
            prefix = self._tree.node[credits.row, credits.step]
            sparse = PrefixCredits(prefix, credits.token, credits.value, credits.centre)
            read_out_backward(self._hidden, self._read_out, sparse, scale, self._known)
            if self._pass_on is not None:
                self._pass_on()


def _chunks(node: Rows, vocab: int) -> Iterator[tuple[Rows, Rows, Rows]]:
    """Tokens in the order of their prefixes, a chunk of logits at a time: which tokens, their distinct prefixes, and
    the place of each token's among those."""
    for some in node.argsort(stable=True).split(max(1, CHUNK // vocab)):
        yield some, *node[some].unique_consecutive(return_inverse=True)


class PathScoring(Scoring):
    """A tree head on hidden states of distinct prefixes: few logits for each token, all at once."""

    def __init__(self, engine: Engine, memory: Any, mains: Mains, tree: PrefixTree, plan: SparsePlan, rewards: Rewards):
        trajectories = mains.trajectories
        if plan.reads_scores:
            row, step = trajectories.mask.nonzero(as_tuple=True)
            self._compute(engine, memory, trajectories, tree, row, step)
            logits = full_precision(self._logits.detach())
            scores = logits.new_zeros(*trajectories.tokens.shape, logits.shape[1])
            scores[row, step] = logits
            self.scores = scores
            self.credits = without_zeros(plan.credits(rewards, scores))
        else:
            self.credits = without_zeros(plan.credits(rewards))
            steps = trajectories.tokens.shape[1]
            cell = (self.credits.row * steps + self.credits.step).unique()
            row, step = cell // steps, cell % steps
            self._compute(engine, memory, trajectories, tree.reaching(row, step)[0], row, step)

    def _compute(
        self, engine: Engine, memory: Any, trajectories: Trajectories, tree: PrefixTree, row: Rows, step: Rows
    ) -> None:
        self.tokens = len(tree)
        self._place = torch.full(trajectories.tokens.shape, -1, dtype=torch.int64, device=row.device)
        self._place[row, step] = torch.arange(len(row), device=row.device)
        decisions = trajectories.decisions
        assert decisions is not None
        self._decisions = Decisions(*(part[row, step][:, None] for part in vars(decisions).values()))
        if self.tokens:
            model: Any = engine.model
            hidden = model.hidden_states(memory, tree)[tree.node[row, step]]
            self._logits = engine.head.logits(hidden[:, None], trajectories.tokens[row, step][:, None])[:, 0]

    def backward(self, scale: float) -> None:
        if self.tokens:
            logits, credits = full_precision(self._logits.detach())[:, None], self.credits
            place = self._place[credits.row, credits.step]
            local = replace(credits, row=place, step=torch.zeros_like(place))
            gradient = local.gradient(logits, self._decisions)[:, 0]
            call_backward(self._logits, (scale * gradient).to(self._logits.dtype))


class SequenceScoring(Scoring):
    """Distinct sequences through ``policy.score``, in micro-batches."""

    def __init__(
        self,
        engine: Engine,
        memory: Any,
        trajectories: Trajectories,
        tree: PrefixTree,
        plan: SparsePlan,
        rewards: Rewards,
    ):
        self._engine, self._memory, self._trajectories = engine, memory, trajectories
        # Equal sequences of a context have their last prefix and their last token in common.
        last = (trajectories.lengths - 1).clamp(min=0)[:, None]
        ends = (part.gather(1, last).squeeze(1) for part in (tree.node, trajectories.tokens))
        self._place, self._distinct = merge(trajectories.contexts, *ends)
        self._outputs: Tensor | None = None  # of the only micro-batch, with graph
        used = torch.ones(len(self._distinct), dtype=torch.bool, device=last.device)
        if plan.reads_scores:
            self.scores = self._read(self._batches(used))
            self.credits = without_zeros(plan.credits(rewards, self.scores))
        else:
            self.credits = without_zeros(plan.credits(rewards))
            used[:] = False
            used[self._place[self.credits.row]] = True
        self._used = self._batches(used)
        self.tokens = int(trajectories.lengths[self._distinct[used]].sum())

    def _batches(self, used: Tensor) -> list[Rows]:
        """Numbers of distinct sequences, by their lengths."""
        lengths = self._trajectories.lengths[self._distinct]
        number = used.nonzero().squeeze(1)
        number = number[lengths[number].argsort(stable=True)]
        if len(number) == 0:
            return []
        groups = number.chunk(_GROUPS)
        padded = sum(len(group) * int(lengths[group[-1]]) for group in groups)
        if padded > 0.85 * len(number) * int(lengths[number[-1]]):
            groups = (number,)
        width = max(1, self._engine.output_width or 1)
        return [part for group in groups for part in group.split(max(1, BATCH // (width * int(lengths[group[-1]]))))]

    def _score(self, memory: Any, number: Rows) -> tuple[Tensor, Sequences]:
        """The logits of some distinct sequences, and the sequences."""
        row = self._distinct[number]
        steps = int(self._trajectories.lengths[row].max())
        part = Sequences(
            self._trajectories.tokens[row, :steps], self._trajectories.lengths[row], self._trajectories.finished[row]
        )
        outputs = score_rows(self._engine, memory, part, self._trajectories.contexts[row])
        return self._engine.head.logits(outputs, part.tokens), part

    def _read(self, batches: list[Tensor]) -> Scores:
        """What plans read of the logits; if there is only one micro-batch, its graph is kept."""
        pieces, shape = [], self._trajectories.tokens.shape
        for number in batches:
            with torch.set_grad_enabled(len(batches) == 1):
                logits, part = self._score(self._memory, number)
            if len(batches) == 1:
                self._outputs = logits
            logits = full_precision(logits.detach())
            if not self._engine.head.logits_by_token:
                mask = torch.arange(logits.shape[1], device=logits.device) < part.lengths[:, None]
                logits = torch.stack(token_probabilities(logits, torch.where(mask, part.tokens, 0)), -1)
            pieces.append((number, logits))
        width = pieces[0][1].shape[2] if pieces else 3
        kind = pieces[0][1] if pieces else torch.zeros(0, device=self._place.device)
        dense = kind.new_zeros(len(self._distinct), shape[1], width)
        for number, values in pieces:
            dense[number, : values.shape[1]] = values
        dense = dense[self._place]
        return dense if self._engine.head.logits_by_token else TokenProbabilities(*dense.unbind(2))

    def backward(self, scale: float) -> None:
        place = torch.full((len(self._distinct),), -1, dtype=torch.int64, device=self._place.device)
        memory, finish = (self._memory, None) if len(self._used) == 1 else as_leaves(self._memory)
        for number in self._used:
            if self._outputs is None:
                logits, _ = self._score(memory, number)
            else:
                logits = self._outputs
            place[:] = -1
            place[number] = torch.arange(len(number), device=number.device)
            local = replace(self.credits, row=place[self._place[self.credits.row]])
            credits = local.select((local.row >= 0).nonzero().squeeze(1))
            decisions = self._trajectories.decisions
            if decisions is not None:
                rows, steps = self._distinct[number], logits.shape[1]
                decisions = Decisions(*(part[rows, :steps] for part in vars(decisions).values()))
            gradient = credits.gradient(full_precision(logits.detach()), decisions)
            call_backward(logits, (scale * gradient).to(logits.dtype))
        if finish is not None:
            finish()


class DenseScoring(Scoring):
    """All logits at once, for plans that say no more than how rewards become a gradient."""

    def __init__(self, engine: Engine, memory: Any, trajectories: Trajectories, plan: Plan, rewards: Rewards):
        outputs = score_rows(engine, memory, trajectories, trajectories.contexts)
        self._logits = engine.head.logits(outputs, trajectories.tokens)
        self.scores = full_precision(self._logits.detach())
        self._gradient = plan.gradient(rewards, self.scores)
        self.tokens = int(trajectories.lengths.sum())

    def backward(self, scale: float) -> None:
        call_backward(self._logits, (scale * self._gradient).to(self._logits.dtype))


def score_rows(engine: Engine, memory: Any, sequences: Sequences, contexts: Rows) -> Float[Tensor, "row step width"]:
    """What ``policy.score`` puts out for some sequences."""
    with policy_errors("policy.score"):
        outputs = engine.model.score(select(memory, contexts), engine.score_inputs(sequences))
    if not isinstance(outputs, Tensor) or outputs.ndim != 3:
        returned = list(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise PolicyError(f"policy.score must return logits of shape [rows, steps, V], but it returned {returned}")
    if outputs.shape[:2] != sequences.tokens.shape:
        raise wrong_shape(engine, outputs, sequences)
    return outputs


@torch.no_grad()
def sequence_log_probs(engine: Engine, memory: Any, sequences: Sequences, contexts: Rows) -> Float64[Tensor, " row"]:
    """The log-probabilities of whole sequences by the engine's policy; ``memory`` is that of all contexts.

    As in scoring, each distinct prefix is computed once where the policy allows it, and logits a chunk at a time.
    """
    result = torch.zeros(len(sequences.tokens), dtype=torch.float64, device=sequences.tokens.device)
    order = contexts.argsort(stable=True)  # a prefix tree wants the rows of a context together
    model: Any = engine.model
    size = len(order)
    if not hasattr(model, "hidden_states"):
        size = max(1, BATCH // (max(1, engine.output_width or 1) * sequences.tokens.shape[1]))
    for rows in order.split(size) if len(order) else ():
        steps = int(sequences.lengths[rows].max())
        part = Sequences(sequences.tokens[rows, :steps], sequences.lengths[rows], sequences.finished[rows])
        row, step = part.mask.nonzero(as_tuple=True)
        if hasattr(model, "hidden_states"):
            tree = PrefixTree.of(part, contexts[rows], engine.bos)
            values = _node_log_probs(engine, memory, tree, tree.node[row, step], part.tokens[row, step])
        else:
            outputs = score_rows(engine, memory, part, contexts[rows])
            logits = full_precision(engine.head.logits(outputs, part.tokens))
            values = engine.head.log_probs(logits, part.tokens)[row, step]
        result.index_add_(0, rows[row], values.double())
    return result


def _node_log_probs(engine: Engine, memory: Any, tree: PrefixTree, node: Rows, token: Rows) -> Float[Tensor, " row"]:
    """The log-probabilities of some tokens after some prefixes of a tree."""
    model: Any = engine.model
    hidden = model.hidden_states(memory, tree)
    if engine.head.logits_by_token:
        logits = full_precision(engine.head.logits(hidden[node][:, None], token[:, None]))
        return engine.head.log_probs(logits, token[:, None])[:, 0]
    read_out = model.read_out(tree)
    values = torch.zeros(len(node), dtype=full_precision(hidden).dtype, device=node.device)
    for some, nodes, place in _chunks(node, len(read_out.weight)):
        logits = full_precision(read_out.logits(hidden[nodes], nodes))
        values[some] = logits[place, token[some]] - logits.logsumexp(1)[place]
    return values


def wrong_shape(engine: Engine, scored: Tensor, sequences: Sequences) -> PolicyError:
    given = [*sequences.tokens.shape, engine.output_width or scored.shape[-1]]
    return PolicyError(f"policy.score returned logits of shape {list(scored.shape)} where policy.step gave {given}")
