"""Baselines that other contexts recommend, the slow and obvious way: dense gradients, plain means and least squares."""

import statistics
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from corollout.estimators import baselines
from corollout.estimators.baselines import Evidence
from corollout.estimators.plans import by_context
from corollout.noise import Noise
from corollout.trees import balanced_tree
from corollout.types import Sampler, Trajectories
from tests.support.enumeration import Problem
from tests.support.tree_problems import TreeProblem, words_of_five

# As if earlier batches had been for a larger constant and less of the context's own baseline.
PAST = Evidence(
    torch.tensor([[3.0, 0.7], [0.7, 2.0]], dtype=torch.float64),
    torch.tensor([0.9, -0.8], dtype=torch.float64),
    *(torch.tensor(x, dtype=torch.float64) for x in (5.0, 4.0, 6.0)),
)


@dataclass(frozen=True)
class Members:
    """The sequences of a context: weights, rewards, and the baselines that they bring along.

    ``scores`` is ∇ log p of each, by what the entries are derivatives to: a logit after a prefix.
    """

    weights: list[float]
    rewards: list[float]
    own: list[float]
    scores: list[dict[Hashable, float]]

    @property
    def judged(self) -> bool:
        return all(r == r for r in self.rewards)


def plain_shrunk(contexts: list[Members], i: int) -> list[float]:
    """The baselines of context i, moved towards the mean of the others."""
    others = [c.rewards for j, c in enumerate(contexts) if j != i and c.judged]
    own, size = contexts[i].own, len(contexts[i].own)
    if not others:
        return own
    means = [statistics.fmean(rewards) for rewards in others]
    centre, keep = statistics.fmean(means), 1.0
    if size == 1:
        keep = 0.0
    elif len(others) > 1:
        noise = statistics.fmean(statistics.variance(rewards) for rewards in others)
        between = max(0.0, statistics.variance(means) - noise / size)
        total = between + noise / (size - 1)
        keep = between / total if total > 0 else 1.0
    return [centre + keep * (m - centre) for m in own]


def plain_fitted(contexts: list[Members], i: int, past: Evidence | None = None) -> list[float]:
    """The baselines α + β m of context i with the α and β that make the gradients of the others shortest.

    Least squares over all entries of all gradients, and two more equations: α = 0 in units of the rewards' size and
    β = 1 in units of one, each as precise as the gradient of one context.
    """
    others = [c for j, c in enumerate(contexts) if j != i and c.judged]
    blocks = [_equations(c) for c in others]
    length = sum(float((wanted**2).sum()) for _, wanted in blocks)
    squares = sum(w * r**2 for c in others for w, r in zip(c.weights, c.rewards, strict=True))
    count = float(len(others))
    if past is not None:
        # Two equations with the same normal equations as the past's.
        root = torch.linalg.cholesky(past.matrix)
        blocks.append((root.T, torch.linalg.solve(root, past.right)))
        length, squares = length + float(past.length), squares + float(past.reward)
        count += float(past.contexts)
    prior = torch.tensor([length / squares, length / count] if length > 0 else [1.0, 1.0], dtype=torch.float64)
    blocks.append((prior.sqrt().diag(), torch.zeros(2, dtype=torch.float64)))
    design, wanted = (torch.cat(part) for part in zip(*blocks, strict=True))
    alpha, change = torch.linalg.lstsq(design, wanted[:, None]).solution.squeeze(1).tolist()
    return [alpha + (1 + change) * m for m in contexts[i].own]


def _equations(context: Members) -> tuple[Tensor, Tensor]:
    """Σ_s w_s (α + (β − 1) m_s) ∇ log p(s), entry by entry, is to be Σ_s w_s (r_s − m_s) ∇ log p(s)."""
    entries = sorted({place for score in context.scores for place in score}, key=repr)
    design, wanted = torch.zeros(len(entries), 2).double(), torch.zeros(len(entries)).double()
    for w, r, m, score in zip(context.weights, context.rewards, context.own, context.scores, strict=True):
        dense = torch.tensor([score.get(place, 0.0) for place in entries], dtype=torch.float64)
        design += torch.outer(dense, torch.tensor([w, w * m], dtype=torch.float64))
        wanted += w * (r - m) * dense
    return design, wanted


def shrunk_agrees() -> bool:
    """Whether baselines are moved as they should be: many contexts, few or none, alike or not, some of them skipped."""
    generator = torch.Generator().manual_seed(1)
    scales = (0.0, 3.0), (0.0, 1.0), (0.0, 2.0)  # between contexts, of single rewards, of the last context's own
    for contexts, size, skipped, spread, noise, odd in product((1, 2, 3, 6), (1, 2, 3), (0, 1), *scales):
        drawn = torch.randn(contexts, size + 1, generator=generator, dtype=torch.float64)
        reward = 5 + spread * drawn[:, :1] + noise * drawn[:, 1:]
        reward[-1] += odd * torch.arange(size)
        own = (reward.sum(1, keepdim=True) - reward) / max(size - 1, 1)
        sound = torch.arange(contexts) >= skipped
        found = baselines.shrunk(reward, own, sound)
        plain = [
            Members([], r if s else [torch.nan], m, [])
            for r, m, s in zip(reward.tolist(), own.tolist(), sound.tolist(), strict=True)
        ]
        wanted = torch.tensor([plain_shrunk(plain, i) for i in range(contexts)], dtype=torch.float64)
        if not torch.allclose(found[sound], wanted[sound], rtol=1e-9, atol=1e-9):
            return False
    return True


def log_prob_gradients(problem: Problem, found: Trajectories) -> Tensor:
    """d log p(sequence) / d table of each row, by automatic differentiation."""
    rows = []
    for tokens, length in zip(found.tokens, found.lengths.tolist(), strict=True):
        log_probs = problem.token_log_probs()[problem.policy.prefix_numbers(tokens[None, :length])[0]]
        total = log_probs[torch.arange(length), tokens[:length]].sum()
        rows.append(torch.autograd.grad(total, problem.policy.table)[0].nan_to_num(0.0).flatten())
    return torch.stack(rows)


def logits_of(problem: Problem, found: Trajectories) -> Tensor:
    """What the policy says of main trajectories, as an estimate sees it."""
    with torch.no_grad():
        prefixes = problem.policy.prefix_numbers(found.tokens).clamp(max=len(problem.policy.table) - 1)
        return problem.engine().head.logits(problem.policy.table[prefixes], found.tokens)


def products_agree() -> bool:
    """Whether inner products are those of dense gradients, also with places that are empty or not in order."""
    problems = [
        Problem.make(vocab=3, length=3, seed=2),
        Problem.make(vocab=4, length=2, seed=5, masked=True),
        words_of_five(),
        TreeProblem.of(balanced_tree(8), length=2, seed=3),  # where both of two walks go on after they have parted
    ]
    samplers = Sampler("sample", 5), Sampler("set", 30)
    return all(_products(problem, sampler) for problem in problems for sampler in samplers)


def _products(problem: Problem, sampler: Sampler) -> bool:
    memory = torch.zeros(3, dtype=torch.int64)
    found = problem.engine().sample(memory, torch.arange(3), sampler, Noise(1)).trajectories
    table = by_context(found, sampler.count).flip(1)
    table[1, -2] = -1
    dense, nothing = log_prob_gradients(problem, found), torch.zeros(problem.policy.table.numel(), dtype=torch.float64)
    of_place = [torch.stack([nothing if row < 0 else dense[row] for row in rows]) for rows in table.tolist()]
    wanted = torch.stack([g @ g.T for g in of_place])
    products = baselines.inner_products(found, table, logits_of(problem, found))
    return torch.allclose(products, wanted, rtol=1e-9, atol=1e-12)
