"""Captioners with random weights that say captions of many lengths, and what the PyTorch engine makes of them."""

import numpy as np
import torch

from corollout.noise import Noise
from corollout.rollouts import Engine
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.trees import Tree, balanced_tree, huffman_tree
from corollout.types import Decoded, Sampler

VOCAB, WIDTH, EMBEDDING, HIDDEN, LONGEST = 120, 10, 12, 24, 9
WORDS = ("<end>", *(f"w{number}" for number in range(1, VOCAB - 1)), "<unk>")
TREES = {
    "softmax": None,
    "balanced": balanced_tree(VOCAB),
    "huffman": huffman_tree(1.1 ** -np.arange(VOCAB)),  # up to 20 decisions, three for the end
}


def captioner(tree: Tree | None, vocab: int = VOCAB, longest: int = LONGEST) -> Engine:
    torch.manual_seed(0)
    policy = CaptionPolicy(vocab, WIDTH, EMBEDDING, HIDDEN, tree=tree)
    policy.standardise(5 + 3 * torch.randn(50, WIDTH))
    with torch.no_grad():
        # Large weights: what is said depends much on the image and on all words before.
        for part in (policy.image.weight, policy.embedding, policy.recurrent):
            part.mul_(5)
        policy.embedding.mul_(3)
        if policy.head is None:
            policy.output.mul_(30)
            policy.output_bias[0] = 7
        else:
            policy.head.weight.mul_(30)
            path = policy.head.tree.path(0)
            push = 1 if len(path) > 5 else -1  # the end should come sometimes, and not always
            for node, bit in path:
                policy.head.bias[node] += push if bit else -push
    return Engine(policy, bos=0, eos=0, max_length=longest)


def features(rows: int, seed: int = 0) -> np.ndarray:
    return (5 + 3 * np.random.default_rng(seed).standard_normal((rows, WIDTH))).astype(np.float32)


@torch.no_grad()
def by_pytorch(
    engine: Engine, rows: np.ndarray, sampler: Sampler, seed: int = 0, ids: np.ndarray | None = None
) -> list[list[Decoded]]:
    """What the engine says for each row of features."""
    examples = torch.arange(len(rows)) if ids is None else torch.from_numpy(ids)
    memory = engine.policy.encode(torch.from_numpy(rows))
    found = engine.sample(memory, examples, sampler, Noise(seed)).trajectories
    groups: list[list[Decoded]] = [[] for _ in rows]
    for row, tokens, value in zip(found.contexts.tolist(), found.lists(), found.log_probs.tolist(), strict=True):
        groups[row].append(Decoded(tokens, value))
    return groups
