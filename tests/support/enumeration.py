"""Policies small enough to enumerate, so that the exact gradient is known: a table of logits for each prefix."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from corollout.estimators import Estimator, GroupPlan, SetPlan
from corollout.noise import Noise
from corollout.policies import score_by_steps
from corollout.rollouts import Engine
from corollout.types import Decisions, Trajectories


class TablePolicy(nn.Module):
    """Logits are looked up by the whole prefix, so they depend on every earlier token.

    A state is the number of a prefix: the empty prefix is 0, and prefix p followed by token a is 1 + p·V + a. The start
    token, whose id is V, does not change it.
    """

    def __init__(self, vocab: int, length: int, scale: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.vocab, self.length = vocab, length
        generator = torch.Generator().manual_seed(seed)
        prefixes = sum(vocab**t for t in range(length))
        self.table = nn.Parameter(scale * torch.randn(prefixes, vocab, generator=generator, dtype=dtype))

    def encode(self, context: Tensor) -> Tensor:
        return torch.zeros_like(context)

    def start(self, memory: Tensor) -> Tensor:
        return memory

    def step(self, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.where(tokens == self.vocab, state, 1 + state * self.vocab + tokens)
        return self.table[state], state

    def score(self, memory: Tensor, tokens: Tensor) -> Tensor:
        return score_by_steps(self, memory, tokens)

    def prefix_numbers(self, tokens: Tensor) -> Tensor:
        """The number of the prefix before each token."""
        numbers = [torch.zeros_like(tokens[:, 0])]
        for t in range(tokens.shape[1] - 1):
            numbers.append(1 + numbers[-1] * self.vocab + tokens[:, t])
        return torch.stack(numbers, 1)


@dataclass(frozen=True)
class Problem:
    """A table policy, the end token 0, and a random reward for every sequence."""

    policy: TablePolicy
    rewards: dict[tuple[int, ...], float]

    @classmethod
    def make(cls, vocab: int, length: int, scale: float = 1.0, seed: int = 0, masked: bool = False) -> "Problem":
        policy = TablePolicy(vocab, length, scale, seed)
        if masked:
            with torch.no_grad():
                policy.table[:, -1] = -torch.inf
        generator = torch.Generator().manual_seed(seed + 1)
        sequences = sequences_of(vocab, length)
        values = 2 * torch.randn(len(sequences), generator=generator, dtype=torch.float64) + 0.5
        return cls(policy, dict(zip(sequences, values.tolist(), strict=True)))

    def engine(self, **options) -> Engine:
        return Engine(self.policy, bos=self.policy.vocab, eos=0, max_length=self.policy.length, **options)

    def reward_of(self, sequences) -> Tensor:
        rows = zip(sequences.tokens.tolist(), sequences.lengths.tolist(), strict=True)
        return torch.tensor([self.rewards[tuple(row[:n])] for row, n in rows], dtype=torch.float64)

    def logits_of(self, trajectories: Trajectories) -> Tensor:
        """The logits of main trajectories, as an estimate computes them again."""
        with torch.no_grad():
            prefixes = self.policy.prefix_numbers(trajectories.tokens).clamp(max=len(self.policy.table) - 1)
            return self.engine().head.logits(self.policy.table[prefixes], trajectories.tokens)

    def token_log_probs(self) -> Tensor:
        """Log-probabilities of every token after every prefix, differentiable."""
        return self.policy.table.log_softmax(1)

    def expected_reward(self) -> Tensor:
        """Σ over all sequences of probability × reward, differentiable."""
        total = torch.zeros((), dtype=torch.float64)
        log_probs = self.token_log_probs()
        for sequence, reward in self.rewards.items():
            tokens = torch.tensor([sequence])
            log_p = log_probs[self.policy.prefix_numbers(tokens)[0]]
            total = total + reward * log_p[torch.arange(len(sequence)), tokens[0]].sum().exp()
        return total

    def exact_gradient(self) -> Tensor:
        (gradient,) = torch.autograd.grad(self.expected_reward(), self.policy.table)
        return gradient.nan_to_num(0.0)

    def estimates(
        self, estimator: Estimator, batch: int, seed: int, split: int = 0, **options
    ) -> tuple[Tensor, "Trajectories"]:
        """One gradient with respect to the table for each of ``batch`` contexts: [context, prefix, V].

        With ``split``, an estimator that compares contexts sees batches of that many contexts.
        """
        engine = self.engine(**options)
        noise = Noise(seed)
        examples = torch.arange(batch)
        mains = engine.sample(torch.zeros(batch, dtype=torch.int64), examples, estimator.sampler, noise)
        plan = estimator.plan(mains.trajectories, noise)
        if split and isinstance(plan, GroupPlan):
            plan = replace(plan, group=mains.trajectories.contexts // split)
        done = engine.complete(mains, plan.branches, noise)
        rewards = torch.cat([self.reward_of(mains.trajectories), self.reward_of(done.sequences)])
        trajectories = mains.trajectories
        logits = self.logits_of(trajectories)
        if split and isinstance(plan, SetPlan):
            g = _in_batches(plan, rewards, logits, split)
        else:
            g = plan.gradient(rewards, logits)
        out = torch.zeros(batch, *self.policy.table.shape, dtype=g.dtype)
        rows, steps = trajectories.mask.nonzero(as_tuple=True)
        prefix = self.policy.prefix_numbers(trajectories.tokens)[rows, steps]
        self.put(out, trajectories.contexts[rows], prefix, trajectories.tokens[rows, steps], g[rows, steps])
        return out, trajectories

    def put(self, out: Tensor, contexts: Tensor, prefixes: Tensor, tokens: Tensor, g: Tensor) -> None:
        """Add gradients with respect to the logits of tokens to gradients with respect to the table."""
        out.index_put_((contexts, prefixes), g, accumulate=True)


def _in_batches(plan: SetPlan, rewards: Tensor, logits: Tensor, contexts: int) -> Tensor:
    """The gradient of a plan whose contexts are compared within batches of ``contexts`` only."""
    parts = zip(plan.table.split(contexts), plan.weight.split(contexts), plan.mix.split(contexts), strict=True)
    g = torch.zeros_like(logits)
    for table, weight, mix in parts:
        rows = table[table >= 0].sort().values
        whole = plan.trajectories
        picked: dict[str, Any] = {name: value[rows] for name, value in vars(whole).items() if isinstance(value, Tensor)}
        if whole.decisions is not None:
            picked["decisions"] = Decisions(*(value[rows] for value in vars(whole.decisions).values()))
        local = torch.where(table >= 0, torch.searchsorted(rows, table.clamp(min=0)), -1)
        part = replace(plan, trajectories=Trajectories(**picked), table=local, weight=weight, mix=mix)
        g[rows] = part.gradient(rewards[rows], logits[rows])
    return g


def sequences_of(vocab: int, length: int) -> list[tuple[int, ...]]:
    """All sequences that end with token 0 or at the maximal length."""
    tokens = range(1, vocab)
    finished = [(*s, 0) for n in range(length) for s in product(tokens, repeat=n)]
    return finished + list(product(tokens, repeat=length))
