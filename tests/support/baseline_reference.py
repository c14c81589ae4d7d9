"""Shrunk and fitted baselines, the slow and obvious way: dense gradients, plain means and least squares."""

import math
import statistics
from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from corollout.estimators import baselines
from corollout.estimators.baselines import Evidence
from corollout.estimators.plans import rows_by_context
from corollout.noise import Noise
from corollout.trees import balanced_tree
from corollout.types import Sampler, Trajectories
from tests.support.enumeration import Problem
from tests.support.tree_problems import TreeProblem, words_of_five

# Evidence of earlier batches for a larger α and a smaller β.
PAST = Evidence(
    weight=torch.tensor(5.0, dtype=torch.float64),
    mean=torch.tensor(0.4, dtype=torch.float64),
    spread=torch.tensor(6.0, dtype=torch.float64),
    products=torch.tensor([[3.0, 0.7, 0.9], [0.7, 2.0, -0.8], [0.9, -0.8, 4.0]], dtype=torch.float64),
)
PAST_ALONE = replace(PAST, products=PAST.products[1:, 1:])  # of sequences that are alone in their contexts


@dataclass(frozen=True)
class Members:
    """The sequences of a context: weights w, rewards r, baselines m, and ∇ log p by logit (prefix and token)."""

    weights: list[float]
    rewards: list[float]
    baselines: list[float]
    scores: list[dict[Hashable, float]]

    alone: bool = False  # whether each sequence is the only one that is drawn, and has no baseline

    @property
    def valid(self) -> bool:
        return all(r == r for r in self.rewards)

    def baselines_or(self, centre: float) -> list[float]:
        return [centre] if self.alone else self.baselines


def plain_shrunk(contexts: list[Members], i: int) -> list[float]:
    """The baselines of context i, moved towards the mean of the other contexts."""
    others = [c.rewards for j, c in enumerate(contexts) if j != i and c.valid]
    baselines, size = contexts[i].baselines, len(contexts[i].baselines)
    if not others:
        return baselines
    means = [statistics.fmean(rewards) for rewards in others]
    centre, keep = statistics.fmean(means), 1.0
    if size == 1:
        keep = 0.0
    elif len(others) > 1:
        noise = statistics.fmean(statistics.variance(rewards) for rewards in others)
        between = max(0.0, statistics.variance(means) - noise / size)
        total = between + noise / (size - 1)
        keep = between / total if total > 0 else 1.0
    return [centre + keep * (m - centre) for m in baselines]


def plain_fitted(contexts: list[Members], i: int, past: Evidence | None = None) -> list[float]:
    """The baselines m + α + γ (m − c) of context i with the α and γ that make the gradients of the other contexts
    shortest; c is the mean of their rewards, and stands for the m of a sequence that is alone in its context.

    Least squares over all entries of all gradients, and two more for the prior: α = 0 in units of the rewards'
    deviation and γ = 0, each as precise as the gradient of one context.
    """
    others = [c for j, c in enumerate(contexts) if j != i and c.valid]
    pairs = [(w, r) for c in others for w, r in zip(c.weights, c.rewards, strict=True)]
    count, total = math.fsum(w for w, _ in pairs), math.fsum(w * r for w, r in pairs)
    if past is not None:
        count, total = count + float(past.weight), total + float(past.weight * past.mean)
    if count == 0:
        return contexts[i].baselines
    centre = total / count
    blocks = [_equations(c, centre) for c in others]
    squares = math.fsum(w * (r - centre) ** 2 for w, r in pairs)
    if past is not None:
        # Equations with the same normal equations as the past's, about this centre.
        root = torch.linalg.cholesky(past.products).mT.clone()
        move = float(past.mean) - centre
        root[:, 1] += move * root[:, 0]
        design = root[:, :2] if len(root) == 3 else root[:, :1] * torch.tensor([1.0, 0.0])
        blocks.append((design, root[:, -1]))
        squares += float(past.spread) + float(past.weight) * move**2
    length = sum(float((wanted**2).sum()) for _, wanted in blocks)
    # α in units of the deviation: without any, it is zero.
    unit = torch.tensor([(squares / count) ** 0.5, 1.0], dtype=torch.float64)
    blocks.append((torch.eye(2).double() * ((length / count) ** 0.5 or 1.0), torch.zeros(2).double()))
    design, wanted = (torch.cat(part) for part in zip(*blocks, strict=True))
    design[:-2] *= unit
    alpha, gamma = (unit * torch.linalg.lstsq(design, wanted[:, None]).solution.squeeze(1)).tolist()
    return [m + alpha + gamma * (m - centre) for m in contexts[i].baselines_or(centre)]


def _equations(context: Members, centre: float) -> tuple[Tensor, Tensor]:
    """Σ_s w_s (α + γ (m_s − c)) ∇ log p(s) should be Σ_s w_s (r_s − m_s) ∇ log p(s), entry by entry."""
    logits = sorted({logit for score in context.scores for logit in score}, key=repr)
    design, wanted = torch.zeros(len(logits), 2).double(), torch.zeros(len(logits)).double()
    baselines = context.baselines_or(centre)
    for w, r, m, score in zip(context.weights, context.rewards, baselines, context.scores, strict=True):
        dense = torch.tensor([score.get(logit, 0.0) for logit in logits], dtype=torch.float64)
        design += torch.outer(dense, torch.tensor([w, w * (m - centre)], dtype=torch.float64))
        wanted += w * (r - m) * dense
    return design, wanted


def shrunk_agrees() -> bool:
    """Whether baselines are shrunk correctly for many and few contexts, similar or not, some of them skipped."""
    generator = torch.Generator().manual_seed(1)
    scales = (0.0, 3.0), (0.0, 1.0), (0.0, 2.0)  # between contexts, within them, within the last one
    for contexts, size, skipped, spread, noise, odd in product((1, 2, 3, 6), (1, 2, 3), (0, 1), *scales):
        drawn = torch.randn(contexts, size + 1, generator=generator, dtype=torch.float64)
        reward = 5 + spread * drawn[:, :1] + noise * drawn[:, 1:]
        reward[-1] += odd * torch.arange(size)
        mean = (reward.sum(1, keepdim=True) - reward) / max(size - 1, 1)
        valid = torch.arange(contexts) >= skipped
        shrunk = baselines.shrunk_baseline(reward, mean, valid)
        plain = [
            Members([], r if v else [torch.nan], m, [])
            for r, m, v in zip(reward.tolist(), mean.tolist(), valid.tolist(), strict=True)
        ]
        wanted = torch.tensor([plain_shrunk(plain, i) for i in range(contexts)], dtype=torch.float64)
        if not torch.allclose(shrunk[valid], wanted[valid], rtol=1e-9, atol=1e-9):
            return False
    return True


def fits_are_scale_free() -> bool:
    """Whether fitted baselines do not depend on the scale of the gradients."""
    generator = torch.Generator().manual_seed(3)
    reward, gradients = (torch.randn(5, 3, n, generator=generator, dtype=torch.float64) for n in (1, 7))
    reward, products = reward.squeeze(2), gradients @ gradients.mT
    mean = (reward.sum(1, keepdim=True) - reward) / 2
    weight, valid = torch.full_like(reward, 1 / 3), torch.ones(5, dtype=torch.bool)
    one, *others = (
        baselines.fitted_baseline(Evidence.from_rewards(weight, reward, mean, scale * products, valid), None, mean)
        for scale in (1.0, 1e-8, 1e8)
    )
    return all(torch.allclose(other, one, rtol=1e-6) for other in others)


def log_prob_gradients(problem: Problem, trajectories: Trajectories) -> Tensor:
    """d log p(sequence) / d table of each row, by automatic differentiation."""
    rows = []
    for tokens, length in zip(trajectories.tokens, trajectories.lengths.tolist(), strict=True):
        log_probs = problem.token_log_probs()[problem.policy.prefix_numbers(tokens[None, :length])[0]]
        total = log_probs[torch.arange(length), tokens[:length]].sum()
        rows.append(torch.autograd.grad(total, problem.policy.table)[0].nan_to_num(0.0).flatten())
    return torch.stack(rows)


def products_agree() -> bool:
    """Whether inner products are those of dense gradients, also for tables with gaps and in another order."""
    problems = [
        Problem.make(vocab=3, length=3, seed=2),
        Problem.make(vocab=4, length=2, seed=5, masked=True),
        words_of_five(),
        TreeProblem.of(balanced_tree(8), length=2, seed=3),  # two paths both continue after they part
    ]
    samplers = Sampler("sample", 5), Sampler("set", 30)
    return all(_products(problem, sampler) for problem in problems for sampler in samplers)


def _products(problem: Problem, sampler: Sampler) -> bool:
    memory = torch.zeros(3, dtype=torch.int64)
    trajectories = problem.engine().sample(memory, torch.arange(3), sampler, Noise(1)).trajectories
    table = rows_by_context(trajectories, sampler.count).flip(1)
    table[1, -2] = -1
    dense = log_prob_gradients(problem, trajectories)
    members = [torch.stack([dense[row] if row >= 0 else 0 * dense[0] for row in rows]) for rows in table.tolist()]
    wanted = torch.stack([g @ g.T for g in members])
    products = baselines.inner_products(trajectories, table, problem.logits_of(trajectories))
    return torch.allclose(products, wanted, rtol=1e-9, atol=1e-12)
