"""The binary-tree softmax: a token is a walk down a vocabulary tree, one Bernoulli decision at each inner node.

At inner node n the bit is 1 with probability σ(w_n · x + b_n), x being the policy's output. A token's probability is
the product along its path, so that drawing or scoring a token takes as many products w · x as its path is long: at
most D, never V.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, logsigmoid

from corollout.errors import InputError, PolicyError
from corollout.noise import conditional_gumbels, exponential, uniform
from corollout.policies import walks
from corollout.policies.heads import Best, Choice, Head, Keys, Outputs, Perturbed, Steps
from corollout.row_threads import by_rows
from corollout.trees import Tree
from corollout.types import Decisions, full_precision


class TreeHead(nn.Module, Head):
    """Weights for the inner nodes of a tree. The tree is saved and loaded with them."""

    keeps_outputs = True

    def __init__(self, width: int, tree: Tree, bound: float = 0.1):
        super().__init__()
        if tree.size < 2:
            raise InputError("a tree head needs a tree of at least two tokens")
        inner = tree.size - 1
        self.weight = nn.Parameter(torch.empty(inner, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(inner))
        self.register_buffer("below", torch.from_numpy(tree.children.copy()))
        self.arrange()
        self.register_load_state_dict_post_hook(_arrange_anew)

    @property
    def tree(self) -> Tree:
        """The tree whose nodes the weights belong to."""
        return self._tree

    @torch.no_grad()
    def plant(self, tree: Tree) -> None:
        """Put another tree over the same tokens in the place of the present one; weights are left as they are."""
        if tree.size != self._tree.size:
            raise InputError(f"the model has {self._tree.size:,} tokens, but the tree {tree.size:,}")
        self._children.copy_(torch.from_numpy(tree.children.copy()))
        self.arrange()

    def choose(self, outputs: Outputs, keys: Keys, steps: Steps, greedy: Bool[Tensor, " row"] | bool) -> Choice:
        start = torch.zeros_like(keys)
        tokens, logits = self._walk(outputs, start, keys, steps, greedy)
        return Choice(tokens, logits, logits.isfinite().all(1))

    def finish(
        self,
        outputs: Outputs,
        started: Int64[Tensor, " row"],
        keys: Keys,
        steps: Steps,
        greedy: Bool[Tensor, " row"] | bool,
    ) -> Int64[Tensor, " row"]:
        inner = len(self._tree.children)
        if len(started) and int(started.min()) < -inner:
            raise InputError(
                f"a word was begun at inner node {~int(started.min())}, but the tree has {inner:,} of them"
            )
        return self._walk(outputs, ~started, keys, steps, greedy)[0]

    def best(self, outputs: Outputs, count: int) -> Best:
        self._check(outputs)
        x = full_precision(outputs.detach())
        count = min(count, self._tree.size)
        sound = x.isfinite().all(1)
        if x.device.type != "cpu" or not bool(sound.all()):
            values, tokens = self.all_log_probs(x).topk(count, 1)
            return Best(values, tokens, sound & values.isfinite().all(1))
        tokens = torch.empty(len(x), count, dtype=torch.int64)
        values = torch.empty(len(x), count, dtype=torch.float64)
        weight, bias = _arrays(self.weight.to(x.dtype), self.bias.to(x.dtype))
        by_rows(
            partial(walks.best_tokens, self._tree.children, weight, bias),
            count * self._tree.depth * x.shape[1],
            x.contiguous().numpy(),
            values.numpy(),
            tokens.numpy(),
        )
        return Best(values.to(x.dtype), tokens, values.isfinite().all(1))

    def perturbed(
        self,
        outputs: Outputs,
        log_prob: Float[Tensor, " row"],
        rank: Float[Tensor, " row"],
        keys: Keys,
        steps: Steps,
        count: int,
    ) -> Perturbed:
        """A node's number is the largest of the tokens below it, so its children's are drawn given their maximum."""
        self._check(outputs)
        x = full_precision(outputs.detach())
        count = min(count, self._tree.size)
        sound = x.isfinite().all(1)
        if x.device.type != "cpu" or not bool(sound.all()):
            every, values = self.perturbed_by_levels(x, log_prob, rank, keys, steps)
            ranks, tokens = every.topk(count, 1)
            values = values.gather(1, tokens)
            return Perturbed(ranks, values, tokens, sound & values.isfinite().all(1))
        ranks = torch.empty(len(x), count, dtype=torch.float64)
        values, tokens = torch.empty_like(ranks), torch.empty(len(x), count, dtype=torch.int64)
        weight, bias = _arrays(self.weight.to(x.dtype), self.bias.to(x.dtype))
        by_rows(
            partial(walks.first_tokens, self._tree.children, weight, bias),
            count * self._tree.depth * x.shape[1],
            *_arrays(x, log_prob.double(), rank.double()),
            keys.numpy().view(np.uint64),
            steps.numpy().view(np.uint64),
            ranks.numpy(),
            values.numpy(),
            tokens.numpy(),
        )
        return Perturbed(ranks, values, tokens, values.isfinite().all(1))

    @torch.no_grad()
    def perturbed_by_levels(
        self,
        x: Outputs,
        log_prob: Float[Tensor, " row"],
        rank: Float[Tensor, " row"],
        keys: Keys,
        steps: Steps,
    ) -> tuple[Float[Tensor, "row vocab"], Float[Tensor, "row vocab"]]:
        """The perturbed log-probabilities of all tokens, and those without noise, by PyTorch operations."""
        logits = (x @ self.weight.to(x.dtype).t() + self.bias.to(x.dtype)).double()
        drawn = exponential(keys, steps, 2 * logits.shape[1], torch.float64).log_().unflatten(1, (-1, 2))
        gains = torch.stack([logsigmoid(-logits), logsigmoid(logits)], 2)
        nodes = torch.zeros(1, dtype=torch.int64, device=x.device)
        value, most = log_prob.double()[:, None], rank.double()[:, None]
        found, ranks, tokens = [], [], []
        while len(nodes):
            below = self._children[nodes].long().flatten()
            values = value[:, :, None] + gains[:, nodes]
            given = conditional_gumbels((values - drawn[:, nodes]).flatten(0, 1), most.flatten())
            value, most = values.flatten(1), given.unflatten(0, most.shape).flatten(1)
            leaf = below < 0
            found.append(value[:, leaf])
            ranks.append(most[:, leaf])
            tokens.append(~below[leaf])
            value, most, nodes = value[:, ~leaf], most[:, ~leaf], below[~leaf]
        order = torch.cat(tokens).argsort()
        return torch.cat(ranks, 1)[:, order], torch.cat(found, 1)[:, order]

    def logits(
        self, outputs: Float[Tensor, "row step width"], tokens: Int64[Tensor, "row step"]
    ) -> Float[Tensor, "row step logit"]:
        self._check(outputs, tokens)
        x, paths = outputs.flatten(0, 1), self._paths(outputs.device)
        compiled = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
        found = (_PathLogits.apply if compiled else path_logits)(
            x, tokens.flatten(), paths.nodes, paths.lengths, self.weight.to(x.dtype), self.bias.to(x.dtype)
        )
        return found.unflatten(0, outputs.shape[:2])

    def log_probs(
        self, logits: Float[Tensor, "row step logit"], tokens: Int64[Tensor, "row step"]
    ) -> Float[Tensor, "row step"]:
        return self.decisions(tokens).log_probs(logits)

    def decisions(self, tokens: Int64[Tensor, "row step"]) -> Decisions:
        paths = self._paths(tokens.device)
        nodes, bits = paths.nodes[tokens].long(), paths.bits[tokens]
        there = torch.arange(nodes.shape[-1], device=tokens.device) < paths.lengths[tokens][..., None]
        other = self._children[nodes, 1 - bits.long()].long()
        return Decisions(bits=bits, there=there, other=torch.where(there, ~other, 0))

    def all_log_probs(self, outputs: Outputs) -> Float[Tensor, "row vocab"]:
        """The log-probabilities of all tokens: every node is computed. For small vocabularies, and to check with."""
        logits = outputs @ self.weight.to(outputs.dtype).t() + self.bias.to(outputs.dtype)
        below = torch.stack([logsigmoid(-logits), logsigmoid(logits)], 2)
        # Children come after their parents, level by level.
        reached = [logits.new_zeros(len(outputs), 1)]
        nodes = torch.zeros(1, dtype=torch.int64, device=outputs.device)
        found, tokens = [], []
        while len(nodes):
            children = self._children[nodes].long().flatten()
            value = (reached[-1][:, :, None] + below[:, nodes]).flatten(1)
            leaf = children < 0
            found.append(value[:, leaf])
            tokens.append(~children[leaf])
            reached.append(value[:, ~leaf])
            nodes = children[~leaf]
        return torch.cat(found, 1)[:, torch.cat(tokens).argsort()]

    # --- inside --------------------------------------------------------------------------------------------------

    def _check(self, outputs: Float[Tensor, "... width"], tokens: Int64[Tensor, "row step"] | None = None) -> None:
        """Refuse what would lead compiled loops out of their arrays."""
        width = self.weight.shape[1]
        if outputs.shape[-1] != width:
            raise PolicyError(
                f"the policy puts out {outputs.shape[-1]} numbers for each row, but its head reads {width}"
            )
        strange = [] if tokens is None else tokens[(tokens < 0) | (tokens >= self._tree.size)]
        if len(strange):
            raise InputError(f"the tree has {self._tree.size:,} tokens, and no token {int(strange[0])}")

    def _walk(
        self,
        outputs: Outputs,
        start: Int64[Tensor, " row"],
        keys: Keys,
        steps: Steps,
        greedy: Bool[Tensor, " row"] | bool,
    ) -> tuple[Int64[Tensor, " row"], Float[Tensor, "row logit"]]:
        """Walk from a node of each row to a token; the logits met, at their depths."""
        self._check(outputs)
        x = full_precision(outputs.detach())
        if isinstance(greedy, bool):
            greedy = torch.full_like(keys, greedy, dtype=torch.bool)
        if x.device.type != "cpu":
            return self.walk_by_levels(x, start, keys, steps, greedy)
        tokens = torch.empty_like(keys)
        logits = x.new_zeros(len(x), self._tree.depth)
        weight, bias = _arrays(self.weight.to(x.dtype), self.bias.to(x.dtype))
        by_rows(
            partial(walks.walk, self._tree.children, self._tree.node_depths, weight, bias),
            self._tree.depth * x.shape[1],
            x.contiguous().numpy(),
            start.numpy(),
            keys.numpy().view(np.uint64),
            steps.numpy().view(np.uint64),
            greedy.numpy(),
            tokens.numpy(),
            logits.numpy(),
        )
        return tokens, logits

    @torch.no_grad()
    def walk_by_levels(
        self,
        x: Outputs,
        start: Int64[Tensor, " row"],
        keys: Keys,
        steps: Steps,
        greedy: Bool[Tensor, " row"],
    ) -> tuple[Int64[Tensor, " row"], Float[Tensor, "row logit"]]:
        """The same walk by PyTorch operations, all rows taking one decision at a time."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        pi = uniform(keys, steps, self._tree.depth, torch.float64)
        logits = x.new_zeros(len(x), self._tree.depth)
        tokens, node = torch.where(start < 0, ~start, 0), start
        depth = torch.where(start < 0, 0, self._paths(x.device).node_depths[start.clamp(min=0)])
        rows = (start >= 0).nonzero().squeeze(1)
        while len(rows):
            here, place = node[rows], depth[rows]
            phi = (weight[here] * x[rows]).sum(1) + bias[here]
            logits[rows, place] = phi
            bit = torch.where(greedy[rows], phi > 0, pi[rows, place] < phi.double().sigmoid())
            below = self._children[here, bit.long()].long()
            tokens[rows] = torch.where(below < 0, ~below, 0)
            node = node.index_put((rows,), below)
            depth = depth.index_put((rows,), place + 1)
            rows = rows[below >= 0]
        return tokens, logits

    @property
    def _children(self) -> Tensor:
        return self.below  # pyright: ignore[reportReturnType]

    def _paths(self, device: torch.device) -> "_Paths":
        if self._arranged.nodes.device != device:
            self._arranged = _Paths(*(part.to(device) for part in self._arranged))
        return self._arranged

    def arrange(self) -> None:
        """Work out everything that follows from the tree as it was saved."""
        self._tree = Tree(self._children.cpu().numpy())
        codes, depths = self._tree.codes, self._tree.node_depths.astype(np.int64)
        self._arranged = _Paths(*map(torch.from_numpy, (codes.nodes, codes.bits, codes.lengths, depths)))


class _Paths(NamedTuple):
    """The paths of all tokens, see ``Codes``, and how deep the inner nodes are."""

    nodes: Tensor
    bits: Tensor
    lengths: Tensor
    node_depths: Tensor


def _arrange_anew(head: nn.Module, _: object) -> None:
    assert isinstance(head, TreeHead)
    head.arrange()


def path_logits(
    x: Float[Tensor, "row width"],
    tokens: Int64[Tensor, " row"],
    nodes: Tensor,
    lengths: Tensor,
    weight: Float[Tensor, "node width"],
    bias: Float[Tensor, " node"],
) -> Float[Tensor, "row logit"]:
    """The logits on the path to each row's token, zero beyond its end, by PyTorch operations."""
    path = nodes[tokens].long()
    logits = torch.bmm(embedding(path, weight), x[:, :, None]).squeeze(2) + bias[path]
    there = torch.arange(path.shape[1], device=x.device) < lengths[tokens][:, None]
    return torch.where(there, logits, 0.0)


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
