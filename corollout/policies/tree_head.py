"""The binary-tree softmax: a token is a walk down a vocabulary tree, one Bernoulli decision at each inner node.

At inner node n the bit is 1 with probability σ(w_n · x + b_n), x being the policy's output. A token's probability is
the product along its path, so that drawing or scoring a token takes as many products w · x as its path is long: at
most D, never V.
"""

import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, logsigmoid

from corollout.errors import InputError, PolicyError
from corollout.noise import conditional_gumbels, exponential, uniform
from corollout.policies import walks
from corollout.policies.protocol import (
    Choice,
    Greedy,
    Head,
    Ints,
    Logits,
    LogProbs,
    Numbers,
    Outputs,
    Ranked,
    SharedOutputs,
    Tokens,
)
from corollout.row_threads import by_rows
from corollout.trees import Tree
from corollout.types import Decisions, full_precision


class TreeHead(nn.Module, Head):
    """Weights for the inner nodes of a tree. The tree is saved and loaded with them."""

    keeps_outputs = True
    logits_by_token = True
    tree: Tree  # whose nodes the weights belong to
    temperature: float = 1.0  # of all decisions

    def __init__(self, width: int, tree: Tree, bound: float = 0.1):
        super().__init__()
        if tree.size < 2:
            raise InputError("a tree head needs a tree of at least two tokens")
        inner = tree.size - 1
        self.weight = nn.Parameter(torch.empty(inner, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(inner))
        self.register_buffer("below", torch.from_numpy(tree.children.copy()))
        self.arrange()
        self.register_load_state_dict_post_hook(TreeHead.arrange)

    @torch.no_grad()
    def plant(self, tree: Tree) -> None:
        """Replace the tree by another one over the same tokens; the weights stay as they are."""
        if tree.size != self.tree.size:
            raise InputError(f"the model has {self.tree.size:,} tokens, but the tree has {tree.size:,}")
        self._children.copy_(torch.from_numpy(tree.children.copy()))
        self.arrange()

    def vocab(self, width: int) -> int | None:
        return self.tree.size

    def choose(
        self, outputs: SharedOutputs, keys: Ints, steps: Ints, greedy: Greedy, index: Ints | None = None
    ) -> Choice:
        outputs = outputs if index is None else outputs[index]
        tokens, logits = self._walk(outputs, torch.zeros_like(keys), keys, steps, greedy)
        return Choice(tokens, logits, logits.isfinite().all(1))

    def finish(self, outputs: Outputs, started: Ints, keys: Ints, steps: Ints, greedy: Greedy) -> Ints:
        inner = len(self.tree.children)
        if len(started) and int(started.min()) < -inner:
            raise InputError(
                f"a branch starts below inner node {~int(started.min())}, but the tree has only {inner:,} inner nodes"
            )
        return self._walk(outputs, ~started, keys, steps, greedy)[0]

    def best(self, outputs: Outputs, count: int) -> Ranked:
        nothing = outputs.new_zeros(len(outputs), dtype=torch.float64)
        unused = outputs.new_zeros(len(outputs), dtype=torch.int64)
        first = self._first(outputs, nothing, nothing, unused, unused, count, perturb=False)
        log_probs = first.log_probs.to(full_precision(outputs).dtype)
        return first._replace(ranks=log_probs, log_probs=log_probs)

    def perturbed(
        self, outputs: Outputs, log_prob: Numbers, rank: Numbers, keys: Ints, steps: Ints, count: int
    ) -> Ranked:
        """A node's number is the largest of the tokens below it, so its children's are drawn given their maximum."""
        return self._first(outputs, log_prob, rank, keys, steps, count, perturb=True)

    def _first(
        self,
        outputs: Outputs,
        log_prob: Numbers,
        rank: Numbers,
        keys: Ints,
        steps: Ints,
        count: int,
        perturb: bool,
    ) -> Ranked:
        """The first tokens by their perturbed log-probabilities, or by those without noise."""
        self._check(outputs)
        x = full_precision(outputs.detach())
        count = min(count, self.tree.size)
        valid = x.isfinite().all(1)
        if x.device.type != "cpu" or not bool(valid.all()):
            if perturb:
                every, values = self.perturbed_by_levels(x, log_prob, rank, keys, steps)
            else:
                every = values = self.all_log_probs(x)
            ranks, tokens = every.topk(count, 1)
            values = values.gather(1, tokens)
            return Ranked(ranks, values, tokens, valid & values.isfinite().all(1))
        ranks = torch.empty(len(x), count, dtype=torch.float64)
        values, tokens = torch.empty_like(ranks), torch.empty(len(x), count, dtype=torch.int64)
        weight, bias = _arrays(*self._weights(x.dtype))
        by_rows(
            partial(walks.first_tokens, self.tree.children, weight, bias, perturb),
            count * self.tree.depth * x.shape[1],
            *_arrays(x, log_prob.double(), rank.double()),
            keys.numpy().view(np.uint64),
            steps.numpy().view(np.uint64),
            *_arrays(ranks, values, tokens),
        )
        return Ranked(ranks, values, tokens, values.isfinite().all(1))

    @torch.no_grad()
    def perturbed_by_levels(
        self, x: Outputs, log_prob: Numbers, rank: Numbers, keys: Ints, steps: Ints
    ) -> tuple[Float[Tensor, "row vocab"], Float[Tensor, "row vocab"]]:
        """The perturbed log-probabilities of all tokens, and those without noise, by PyTorch operations."""
        weight, bias = self._weights(x.dtype)
        logits = (x @ weight.t() + bias).double()
        drawn = exponential(keys, steps, 2 * logits.shape[1], torch.float64).log_().unflatten(1, (-1, 2))
        gains = torch.stack([logsigmoid(-logits), logsigmoid(logits)], 2)
        value, most = log_prob.double()[:, None], rank.double()[:, None]
        log_probs, ranks = [], []
        paths = self._paths(x.device)
        for nodes, leaves, inner in paths.levels:
            values = value[:, :, None] + gains[:, nodes]
            given = conditional_gumbels((values - drawn[:, nodes]).flatten(0, 1), most.flatten())
            value, most = values.flatten(1), given.unflatten(0, most.shape).flatten(1)
            log_probs.append(value[:, leaves])
            ranks.append(most[:, leaves])
            value, most = value[:, inner], most[:, inner]
        return torch.cat(ranks, 1)[:, paths.order], torch.cat(log_probs, 1)[:, paths.order]

    def logits(self, outputs: Float[Tensor, "row step width"], tokens: Tokens) -> Logits:
        self._check(outputs, tokens)
        x, paths = outputs.flatten(0, 1), self._paths(outputs.device)
        compiled = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
        logits = (_PathLogits.apply if compiled else path_logits)(
            x, tokens.flatten(), paths.nodes, paths.lengths, *self._weights(x.dtype)
        )
        return logits.unflatten(0, outputs.shape[:2])

    def log_probs(self, logits: Logits, tokens: Tokens) -> LogProbs:
        return self.decisions(tokens).log_probs(logits)

    def decisions(self, tokens: Tokens) -> Decisions:
        paths = self._paths(tokens.device)
        nodes, bits = paths.nodes[tokens].long(), paths.bits[tokens]
        valid = torch.arange(nodes.shape[-1], device=tokens.device) < paths.lengths[tokens][..., None]
        other = self._children[nodes, 1 - bits.long()].long()
        return Decisions(bits=bits, valid=valid, other=torch.where(valid, ~other, 0))

    def all_log_probs(self, outputs: Outputs) -> Float[Tensor, "row vocab"]:
        """The log-probabilities of all tokens, computing every node: for small vocabularies, and for tests."""
        weight, bias = self._weights(outputs.dtype)
        logits = outputs @ weight.t() + bias
        below = torch.stack([logsigmoid(-logits), logsigmoid(logits)], 2)
        reached = logits.new_zeros(len(outputs), 1)
        log_probs, paths = [], self._paths(outputs.device)
        for nodes, leaves, inner in paths.levels:
            value = (reached[:, :, None] + below[:, nodes]).flatten(1)
            log_probs.append(value[:, leaves])
            reached = value[:, inner]
        return torch.cat(log_probs, 1)[:, paths.order]

    def _check(self, outputs: Float[Tensor, "... width"], tokens: Tokens | None = None) -> None:
        """Refuse what would make compiled loops read outside of their arrays."""
        width = self.weight.shape[1]
        if outputs.shape[-1] != width:
            raise PolicyError(
                f"the policy outputs {outputs.shape[-1]} numbers for each row, but its head expects {width}"
            )
        unknown = [] if tokens is None else tokens[(tokens < 0) | (tokens >= self.tree.size)]
        if len(unknown):
            raise InputError(f"there is no token {int(unknown[0])}: the tree has {self.tree.size:,} tokens")

    def _walk(
        self, outputs: Outputs, start: Ints, keys: Ints, steps: Ints, greedy: Greedy
    ) -> tuple[Ints, Float[Tensor, "row logit"]]:
        """Walk from a node of each row to a token; also the logits on the way, at their depths."""
        self._check(outputs)
        x = full_precision(outputs.detach())
        if isinstance(greedy, bool):
            greedy = torch.full_like(keys, greedy, dtype=torch.bool)
        if x.device.type != "cpu":
            return self.walk_by_levels(x, start, keys, steps, greedy)
        tokens = torch.empty_like(keys)
        logits = x.new_zeros(len(x), self.tree.depth)
        weight, bias = _arrays(*self._weights(x.dtype))
        by_rows(
            partial(walks.walk, self.tree.children, self.tree.node_depths, weight, bias),
            self.tree.depth * x.shape[1],
            *_arrays(x, start),
            keys.numpy().view(np.uint64),
            steps.numpy().view(np.uint64),
            *_arrays(greedy, tokens, logits),
        )
        return tokens, logits

    @torch.no_grad()
    def walk_by_levels(
        self, x: Outputs, start: Ints, keys: Ints, steps: Ints, greedy: Tensor
    ) -> tuple[Ints, Float[Tensor, "row logit"]]:
        """The same walk by PyTorch operations, all rows taking one decision at a time."""
        weight, bias = self._weights(x.dtype)
        pi = uniform(keys, steps, self.tree.depth, torch.float64)
        logits = x.new_zeros(len(x), self.tree.depth)
        depth = self._paths(x.device).node_depths[start.clamp(min=0)]
        # A row that has arrived at a token, the complement of a node, stays there until all have: nobody asks who has.
        node = start
        for level in range(self.tree.depth):
            walks, here = (node >= 0) & (depth == level), node.clamp(min=0)
            phi = (weight[here] * x).sum(1) + bias[here]
            logits[:, level] = torch.where(walks, phi, 0.0)
            bit = torch.where(greedy, phi > 0, pi[:, level] < phi.double().sigmoid())
            node = torch.where(walks, self._children[here, bit.long()].long(), node)
            depth = depth + walks
        return ~node, logits

    def tempered(self, temperature: float) -> "TreeHead":
        """The same head, weights included, whose decisions have their logits divided by a temperature."""
        head = copy.copy(self)
        head.temperature = self.temperature * temperature
        return head

    def _weights(self, dtype: torch.dtype) -> tuple[Float[Tensor, "node width"], Float[Tensor, " node"]]:
        weight, bias = self.weight.to(dtype), self.bias.to(dtype)
        return (weight, bias) if self.temperature == 1 else (weight / self.temperature, bias / self.temperature)

    @property
    def _children(self) -> Tensor:
        return self.below  # pyright: ignore[reportReturnType]

    def _paths(self, device: torch.device) -> "_Paths":
        if self._arranged.nodes.device != device:
            self._arranged = self._arranged.to(device)
        return self._arranged

    def arrange(self, _: object = None) -> None:
        """Derive everything else from the saved tree; also a hook, called after a state was loaded."""
        self.tree = Tree(self._children.cpu().numpy())
        codes, depths = self.tree.codes, self.tree.node_depths.astype(np.int64)
        nodes, bits, lengths, depths = map(torch.from_numpy, (codes.nodes, codes.bits, codes.lengths, depths))
        self._arranged = _Paths(nodes, bits, lengths, depths, *_levels(self.tree))


class _Level(NamedTuple):
    """The inner nodes of one depth, and which of their children are tokens and inner nodes."""

    nodes: Tensor
    leaves: Tensor
    inner: Tensor


class _Paths(NamedTuple):
    """The paths of all tokens, see ``Codes``, how deep the inner nodes are, and the tree level by level."""

    nodes: Tensor
    bits: Tensor
    lengths: Tensor
    node_depths: Tensor
    levels: tuple[_Level, ...]
    order: Tensor  # of the tokens, where the leaves of all levels are put one after another

    def to(self, device: torch.device) -> "_Paths":
        levels = tuple(_Level(*(part.to(device) for part in level)) for level in self.levels)
        nodes, bits, lengths, depths, order = (
            part.to(device) for part in (self.nodes, self.bits, self.lengths, self.node_depths, self.order)
        )
        return _Paths(nodes, bits, lengths, depths, levels, order)


def _levels(tree: Tree) -> tuple[tuple[_Level, ...], Tensor]:
    levels, tokens, nodes = [], [], np.zeros(1, np.int64)
    while len(nodes):
        below = tree.children[nodes].astype(np.int64).ravel()
        leaves, inner = np.flatnonzero(below < 0), np.flatnonzero(below >= 0)
        levels.append(_Level(*map(torch.from_numpy, (nodes, leaves, inner))))
        tokens.append(~below[leaves])
        nodes = below[inner]
    return tuple(levels), torch.from_numpy(np.concatenate(tokens).argsort())


def path_logits(
    x: Outputs, tokens: Ints, nodes: Tensor, lengths: Tensor, weight: Float[Tensor, "node width"], bias: Tensor
) -> Float[Tensor, "row logit"]:
    """The logits on the path to each row's token, zero beyond its end, by PyTorch operations."""
    path = nodes[tokens].long()
    logits = torch.bmm(embedding(path, weight), x[:, :, None]).squeeze(2) + bias[path]
    on_path = torch.arange(path.shape[1], device=x.device) < lengths[tokens][:, None]
    return torch.where(on_path, logits, 0.0)


class _PathLogits(torch.autograd.Function):
    """The same, compiled; no copy is made of the weights on the paths."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, tokens: Tensor, nodes: Tensor, lengths: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        out = x.new_zeros(len(x), nodes.shape[1])
        by_rows(
            partial(walks.path_logits, *_arrays(nodes, lengths, weight, bias)),
            nodes.shape[1] * x.shape[1],
            *_arrays(x, tokens, out),
        )
        ctx.save_for_backward(nodes, lengths, weight, x, tokens)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor, None, None, None, Tensor, Tensor]:
        nodes, lengths, weight, x, tokens = ctx.saved_tensors
        # Not zeros_like: that may be laid out as a transposed x is, and the loop would fill a copy.
        dx, dweight, dbias = x.new_zeros(x.shape), weight.new_zeros(weight.shape), weight.new_zeros(len(weight))
        walks.path_gradients(*_arrays(nodes, lengths, weight, x, tokens, outer[0], dx, dweight, dbias))
        return dx, None, None, None, dweight, dbias


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
