"""A small policy of each kind with contexts for it, in double precision, where rounding decides no draw."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from corollout.data import Batch, Columns
from corollout.noise import Noise
from corollout.policies import RecurrentPolicy, TokenEncoder, TransformerPolicy
from corollout.rollouts import Engine
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.tasks.karel.model import KarelPolicy
from corollout.trees import huffman_tree
from corollout.types import Sampler, Trajectories

CONTEXTS = 6


@dataclass(frozen=True)
class PolicyCase:
    policy: Any
    context: Tensor
    bos: int
    eos: int
    length: int

    def engine(self, policy: Any = None, **options: Any) -> Engine:
        return Engine(policy or self.policy, bos=self.bos, eos=self.eos, max_length=self.length, **options)

    @property
    def batch(self) -> Batch:
        return Columns(context=self.context, ids=range(10, 10 + len(self.context))).batch(range(len(self.context)))

    def sample(self, samples: int, seed: int = 0) -> Trajectories:
        """Some sequences of each context."""
        batch = self.batch
        return self.engine().decode(batch.context, batch.examples, Sampler("sample", samples), Noise(seed)).trajectories


def _karel(grammar: bool = False) -> PolicyCase:
    policy = KarelPolicy(
        side=5, channels=4, blocks=1, pair_width=8, token_width=6, hidden=7, layers=2, max_length=8, grammar=grammar
    )
    pictures = torch.randint(0, 40, (CONTEXTS, 3, 2, 5, 5)).to(torch.uint8)
    return PolicyCase(policy, pictures, bos=1, eos=2, length=8)


def _captions(tree: bool = False) -> PolicyCase:
    policy = CaptionPolicy(9, 5, 6, 7, dropout=0.0, tree=huffman_tree(np.arange(9) + 1) if tree else None)
    return PolicyCase(policy, torch.randn(CONTEXTS, 5).double(), bos=0, eos=0, length=7)


def _recurrent(cell: Any) -> PolicyCase:
    encoder = TokenEncoder(7, 4)
    policy = RecurrentPolicy(encoder, encoder.width, 6, hidden=8, layers=2, cell=cell)
    return PolicyCase(policy, torch.randint(0, 7, (CONTEXTS, 4)), bos=5, eos=0, length=6)


def _transformer() -> PolicyCase:
    policy = TransformerPolicy(7, 6, max_positions=16, width=8, heads=2, layers=2)
    contexts = [[1, 2, 3], [1, -1, -1], [4, 4, -1], [0, 0, 0], [-1, -1, -1], [6, -1, -1]]
    return PolicyCase(policy, torch.tensor(contexts), bos=5, eos=0, length=6)


CASES: dict[str, Callable[[], PolicyCase]] = {
    "karel": _karel,
    "karel with grammar": lambda: _karel(grammar=True),
    "captions": _captions,
    "captions by a tree": lambda: _captions(tree=True),
    "lstm": lambda: _recurrent("lstm"),
    "gru": lambda: _recurrent("gru"),
    "transformer": _transformer,
}


def policy_case(name: str) -> PolicyCase:
    torch.manual_seed(0)
    case = CASES[name]()
    policy: nn.Module = case.policy.double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2)  # so that the policy prefers something
    return case


class WithoutHiddenStates:
    """A policy that offers ``score`` only."""

    def __init__(self, policy: Any):
        self.encode, self.start, self.step, self.score = policy.encode, policy.start, policy.step, policy.score
        self.head = getattr(policy, "head", None)
