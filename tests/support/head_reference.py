"""A tree head the slow and obvious way: a walk in plain Python, and a token's probability as a product."""

import math

import numpy as np
import torch
from torch import Tensor

from corollout.noise import uniform
from corollout.policies import TreeHead
from corollout.trees import Tree

# A decision is uncertain if its uniform number is so close to σ(φ), or φ to 0, that rounding may decide.
CLOSE = {torch.float64: 1e-12, torch.float32: 2e-5}


def chain(size: int) -> Tree:
    """The tree whose token t has the depth t + 1, except for the last one."""
    children = np.array([[~node, node + 1] for node in range(size - 1)], np.int32)
    children[-1, 1] = ~(size - 1)
    return Tree(children)


def random_head(tree: Tree, width: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> TreeHead:
    """A head with random weights."""
    generator = torch.Generator().manual_seed(seed)
    head = TreeHead(width, tree)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator))
    return head.to(dtype)


def phi_of(head: TreeHead, x: Tensor, node: int) -> float:
    """The logit of one inner node, in double precision."""
    products = zip(head.weight[node].tolist(), x.tolist(), strict=True)
    return math.fsum([*(w * y for w, y in products), head.bias[node].item()])


def sigmoid(phi: float) -> float:
    return 1 / (1 + math.exp(-phi)) if phi > -700 else math.exp(phi)


def plain_walk(
    head: TreeHead, x: Tensor, node: int, key: Tensor, step: int, greedy: bool
) -> tuple[int, dict[int, float], float]:
    """From a node to a token, bit by bit: the token, the logits by their depths, and the closest decision."""
    pi = uniform(key.reshape(1), torch.tensor([step]), head.tree.depth, torch.float64)[0].tolist()
    depth = int(head.tree.node_depths[node]) if node >= 0 else 0
    logits: dict[int, float] = {}
    closest = math.inf
    while node >= 0:
        phi = logits[depth] = phi_of(head, x, node)
        closest = min(closest, abs(phi) if greedy else abs(pi[depth] - sigmoid(phi)))
        bit = phi > 0 if greedy else pi[depth] < sigmoid(phi)
        node = int(head.tree.children[node, int(bit)])
        depth += 1
    return ~node, logits, closest


def plain_log_prob(head: TreeHead, x: Tensor, token: int) -> float:
    """The logarithm of the product along a token's path."""
    path = ((phi_of(head, x, node), bit) for node, bit in head.tree.path(token))
    return math.fsum(math.log(sigmoid(phi if bit else -phi)) for phi, bit in path)
