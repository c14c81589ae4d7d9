"""The formulas of the estimators as loops over rows, steps, references, actions and decisions."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product
from statistics import fmean, pstdev

import torch
from torch import Tensor

from corollout.estimators import (
    ARM,
    ARS,
    GRPO,
    RLOO,
    BeamExpectation,
    BinaryTreeARSM,
    BinaryTreeDisARM,
    DisARM,
    MonteCarlo,
    Pairs,
    Reinforce,
    SelfCritic,
    UnorderedSet,
    Vine,
)  # fmt: skip
from corollout.estimators.branching import Branching
from corollout.estimators.budget import keep_probabilities
from corollout.noise import REDRAW, Noise, exponential
from corollout.types import Cells
from tests.support.baseline_reference import Members, plain_fitted, plain_shrunk
from tests.support.literal_world import TreeWorld, World
from tests.support.pairs_reference import plain_gap
from tests.support.pseudo_reference import by_swapping
from tests.support.set_reference import plain_mix, plain_weight

Branch = tuple[int, int, int]  # row, step and first token
_Weight = Callable[[list[int], int], float]  # the weight of the s-th of some rows
_Mix = Callable[[list[int], int, int], float]  # the weight of the o-th reward in the baseline of the s-th row


def _zero_if_skipped(value: float) -> float:
    return 0.0 if value != value else value


def _ars(estimator: ARS, world: World, noise: Noise) -> Tensor:
    vocab = world.logits.shape[2]
    coefficients: dict[Branch, Tensor] = {}  # C_a
    for (row, step), draw in product(world.cells(), range(estimator.draws)):
        pi = _pi_given_token(world, noise, row, step, draw) if draw else world.pi(row, step)
        cell = (torch.tensor([row]), torch.tensor([step]))
        references = estimator._references(Cells.of(world.trajectories, *cell), noise, vocab)
        assert len(references[0].unique()) == len(references[0]) == (estimator.references or vocab)
        table = by_swapping(world.logits[row, step][None], pi[None], references)[0]
        for k, j in enumerate(references[0].tolist()):
            weight = (1 - vocab * pi[j]) / len(references[0]) / estimator.draws
            for a in range(vocab):
                if a != world.token(row, step):
                    hits = (table[k] == a).double()
                    c = coefficients.setdefault((row, step, a), torch.zeros(vocab, dtype=torch.float64))
                    c += weight * (hits - hits.mean())
    coefficients = {branch: c for branch, c in coefficients.items() if c.norm() > 1e-12}
    scale = _budget_weights(estimator, {branch: float(c.norm()) for branch, c in coefficients.items()}, world, noise)
    g = torch.zeros_like(world.logits)
    for (row, step, a), c in coefficients.items():
        for copy in range(estimator.completions):
            gap = world.branch(row, step, a, copy, estimator.pseudo == "greedy") - float(world.mains[row])
            share = scale.get((row, step, a), 0.0) / estimator.completions / estimator.samples
            g[row, step] += share * _zero_if_skipped(gap) * c
    return g.masked_fill(world.logits == -torch.inf, 0.0)


def _pi_given_token(world: World, noise: Noise, row: int, step: int, draw: int) -> Tensor:
    """π given the token, from the arrival times e exp(−φ) of the actions: the token first, then the others."""
    rate, token, mains = world.logits[row, step].exp(), world.token(row, step), world.trajectories
    keys = noise.keys(mains.examples[row : row + 1], REDRAW, mains.samples[row : row + 1], draw)
    fresh = exponential(keys, torch.tensor([step]), len(rate), rate.dtype)[0]
    first = fresh[token] / rate.sum()
    e = fresh.clone()  # for actions that never arrive
    for a in range(len(rate)):
        if rate[a] > 0:
            e[a] = rate[a] * (first if a == token else first + fresh[a] / rate[a])
    return e / e.sum()


def _budget_weights(
    estimator: Branching, sizes: dict[Branch, float], world: World, noise: Noise
) -> dict[Branch, float]:
    """1/s of the kept branches. The plan says which are kept; their number must be the budget."""
    if estimator.budget is None:
        return dict.fromkeys(sizes, 1.0)
    branches = estimator.plan(world.trajectories, noise).branches
    planned = set(zip(branches.parent.tolist(), branches.step.tolist(), branches.token.tolist(), strict=True))
    contexts = world.trajectories.contexts.tolist()
    pools: dict[int, list[Branch]] = {}
    for branch in sorted(sizes):
        pools.setdefault(contexts[branch[0]] if estimator.budget_per == "example" else 0, []).append(branch)
    weights = {}
    for pool in pools.values():
        s = keep_probabilities(torch.tensor([sizes[b] for b in pool], dtype=torch.float64), estimator.budget)
        kept = {b: 1 / float(p) for b, p in zip(pool, s, strict=True) if b in planned}
        assert len(kept) == min(estimator.budget, len(pool))
        weights |= kept
    return weights


def _binary_tree(estimator: BinaryTreeARSM, world: TreeWorld, noise: Noise) -> Tensor:
    branches: dict[Branch, tuple[int, float]] = {}  # the depth at which it leaves the path, and its weight
    for row, step in world.cells():
        pi = world.pi(row, step)
        for depth, (node, bit) in enumerate(world.path(row, step)):
            phi = world.logits[row, step, depth]
            true, pseudo = bool(pi[depth] < phi.sigmoid()), bool(pi[depth] > (-phi).sigmoid())
            assert estimator.main == "greedy" or true == bit
            if pseudo != bit:
                arm, disarm = 0.5 - pi[depth], 0.5 * (-1) ** pseudo * phi.abs().sigmoid()
                weight = float(disarm if isinstance(estimator, BinaryTreeDisARM) else arm)
                branches[row, step, world.other(node, bit)] = depth, weight
    sizes = {branch: abs(weight) for branch, (_, weight) in branches.items()}
    scale = _budget_weights(estimator, sizes, world, noise)
    g = torch.zeros_like(world.logits)
    for (row, step, code), (depth, weight) in branches.items():
        for copy in range(estimator.completions):
            gap = float(world.mains[row]) - world.branch(row, step, code, copy, estimator.pseudo == "greedy")
            share = scale.get((row, step, code), 0.0) / estimator.completions / estimator.samples
            g[row, step, depth] += share * _zero_if_skipped(gap) * weight
    return g


def _binary(estimator: ARM, world: World, noise: Noise) -> Tensor:
    g = torch.zeros_like(world.logits)
    for row, step in world.cells():
        phi = world.logits[row, step, 1] - world.logits[row, step, 0]
        pi = world.pi(row, step)[1]
        true, pseudo = int(pi < phi.sigmoid()), int(pi > (-phi).sigmoid())
        if true != pseudo:
            gap = _zero_if_skipped(float(world.mains[row]) - world.branch(row, step, pseudo, 0, False))
            if isinstance(estimator, DisARM):
                value = 0.5 * gap * (-1) ** pseudo * phi.abs().sigmoid()
            else:
                value = gap * (0.5 - pi)
            g[row, step, 1] = value / estimator.samples
            g[row, step, 0] = -value / estimator.samples
    return g


def _pairs(estimator: Pairs, world: World, noise: Noise) -> Tensor:
    lengths = world.trajectories.lengths.tolist()
    branches = {(row, step, a): (p, way) for row, step in world.cells() for a, p, way in world.others(row, step)}
    sizes = {
        (row, step, a): p * plain_gap(estimator.gaps, p, step) / math.sqrt(lengths[row] - step)
        for (row, step, a), (p, _) in branches.items()
    }
    if estimator.budget is None:
        pools = len(set(world.trajectories.contexts.tolist())) if estimator.budget_per == "example" else 1
        estimator = replace(estimator, budget=max(1, math.ceil(estimator.per_step * sum(lengths) / pools)))
    scale = _budget_weights(estimator, sizes, world, noise)
    g = torch.zeros_like(world.logits)
    for (row, step, a), (p, way) in branches.items():
        for copy in range(estimator.completions):
            gap = world.branch(row, step, a, copy, estimator.pseudo == "greedy") - float(world.mains[row])
            share = scale.get((row, step, a), 0.0) / estimator.completions / estimator.samples
            g[row, step] += share * 0.5 * p * _zero_if_skipped(gap) * way
    return g


def _advantages(world: World, advantage: Callable[[int, int], float]) -> Tensor:
    g = torch.zeros_like(world.logits)
    for row, step in world.cells():
        g[row, step] = _zero_if_skipped(advantage(row, step)) * world.score(row, step)
    return g


def _with_other_contexts(
    estimator: Reinforce | RLOO | UnorderedSet, world: World, weight: _Weight, mix: _Mix
) -> Tensor:
    """Shrunk or fitted baselines, from the baselines that ``mix`` gives within a context."""
    rewards, groups = world.mains.tolist(), _rows_by_context(world)
    contexts = []
    for rows in groups:
        means = [sum((mix(rows, s, o) * rewards[i] for o, i in enumerate(rows)), 0.0) for s in range(len(rows))]
        weights = [weight(rows, s) for s in range(len(rows))]
        scores = [world.whole_score(i) for i in rows]
        contexts.append(Members(weights, [rewards[i] for i in rows], means, scores, estimator.sampler.count == 1))
    advantages = {}
    for i, (rows, members) in enumerate(zip(groups, contexts, strict=True)):
        if estimator.baseline == "shrunk":
            baselines = plain_shrunk(contexts, i)
        else:
            baselines = plain_fitted(contexts, i, estimator.past)
        for row, w, b in zip(rows, members.weights, baselines, strict=True):
            advantages[row] = w * (rewards[row] - b) if members.valid else 0.0
    return _advantages(world, lambda row, _: advantages[row])


def _rows_by_context(world: World) -> list[list[int]]:
    """The rows of each context."""
    contexts = world.trajectories.contexts.tolist()
    return [[row for row, c in enumerate(contexts) if c == context] for context in sorted(set(contexts))]


def _against_others(estimator: Reinforce | RLOO, world: World) -> Tensor:
    """Independent samples: the baseline of each is the mean of its context's others."""
    samples = estimator.samples
    return _with_other_contexts(
        estimator,
        world,
        lambda rows, s: 1 / samples,
        lambda rows, s, o: 0.0 if s == o else 1 / (samples - 1),
    )


def _reinforce(estimator: Reinforce, world: World, noise: Noise) -> Tensor:
    if estimator.baseline in ("shrunk", "fitted"):
        return _against_others(estimator, world)
    rewards = world.mains.tolist()

    def advantage(row: int, _: int) -> float:
        others = [r for i, r in enumerate(rewards) if r == r and (i != row or estimator.baseline == "batch")]
        baseline = sum(others) / len(others) if others and estimator.baseline != "none" else 0.0
        return (rewards[row] - baseline) / estimator.samples

    return _advantages(world, advantage)


def _rloo(estimator: RLOO, world: World, noise: Noise) -> Tensor:
    if estimator.baseline != "others":
        return _against_others(estimator, world)
    rewards, contexts = world.mains.tolist(), world.trajectories.contexts.tolist()

    def advantage(row: int, _: int) -> float:
        others = [r for i, r in enumerate(rewards) if r == r and i != row and contexts[i] == contexts[row]]
        return (rewards[row] - (sum(others) / len(others) if others else 0.0)) / estimator.samples

    return _advantages(world, advantage)


def _grpo(estimator: GRPO, world: World, noise: Noise) -> Tensor:
    rewards = world.mains.tolist()
    group = {row: rows for rows in _rows_by_context(world) for row in rows}

    def advantage(row: int, _: int) -> float:
        valid = [rewards[i] for i in group[row] if rewards[i] == rewards[i]] or [0.0]
        return (rewards[row] - fmean(valid)) / (pstdev(valid) + 1e-4) / estimator.samples

    return _advantages(world, advantage)


def _beam(estimator: BeamExpectation, world: World, noise: Noise) -> Tensor:
    rewards, contexts = world.mains.tolist(), world.trajectories.contexts.tolist()
    p = world.trajectories.log_probs.exp().tolist()

    def advantage(row: int, _: int) -> float:
        beam = [i for i, c in enumerate(contexts) if c == contexts[row]]
        valid = [i for i in beam if rewards[i] == rewards[i]]
        mean = sum(p[i] * rewards[i] for i in valid) / sum(p[i] for i in valid) if valid else 0.0
        return p[row] / sum(p[i] for i in beam) * (rewards[row] - mean)

    return _advantages(world, advantage)


def _unordered_set(estimator: UnorderedSet, world: World, noise: Noise) -> Tensor:
    rewards, contexts = world.mains.tolist(), world.trajectories.contexts.tolist()
    p = [Fraction(x) for x in world.trajectories.log_probs.exp().tolist()]
    if estimator.baseline == "fitted":
        return _with_other_contexts(
            estimator,
            world,
            lambda rows, s: plain_weight([p[i] for i in rows], s),
            lambda rows, s, o: plain_mix([p[i] for i in rows], s, o),
        )

    def advantage(row: int, _: int) -> float:
        members = [i for i, c in enumerate(contexts) if c == contexts[row]]
        of_set, s = [p[i] for i in members], members.index(row)
        baseline = sum(plain_mix(of_set, s, o) * rewards[i] for o, i in enumerate(members))
        return plain_weight(of_set, s) * (rewards[row] - baseline)

    return _advantages(world, advantage)


def _self_critic(estimator: SelfCritic, world: World, noise: Noise) -> Tensor:
    baseline = {}
    for rows in _rows_by_context(world):
        # One greedy sequence for all samples: a sample that never leaves it, or its completion from the last departure.
        last = max(rows, key=lambda row: (world.departure(row), -row))
        baseline |= dict.fromkeys(rows, world.greedy_baseline(last, 0))

    def advantage(row: int, _: int) -> float:
        return (float(world.mains[row]) - baseline[row]) / estimator.samples

    return _advantages(world, advantage)


def _monte_carlo(estimator: MonteCarlo, world: World, noise: Noise) -> Tensor:
    def advantage(row: int, step: int) -> float:
        token, last = world.token(row, step), step == int(world.trajectories.lengths[row]) - 1
        copies = range(1, estimator.completions + 1)
        values = [float(world.mains[row]) if last else world.branch(row, step, token, c, False) for c in copies]
        values = values or [float(world.mains[row])]
        gaps = [_zero_if_skipped(value - world.greedy_baseline(row, step)) for value in values]
        return sum(gaps) / len(gaps) / estimator.samples

    return _advantages(world, advantage)


def _vine(estimator: Vine, world: World, noise: Noise) -> Tensor:
    rewards, lengths = world.mains.tolist(), world.trajectories.lengths.tolist()
    group = {row: rows for rows in _rows_by_context(world) for row in rows}

    def value(row: int, step: int, copy: int) -> float:
        """The reward of a completion of the prefix that ends with the step's token."""
        if step == lengths[row] - 1:
            return rewards[row]
        return world.branch(row, step, world.token(row, step), copy, False)

    def advantage(row: int, step: int) -> float:
        total = 0.0
        for copy in range(1, estimator.completions + 1):
            if step > 0:
                before = [value(row, step - 1, copy)]
            else:
                before = [rewards[other] for other in group[row] if other != row]
            gaps = [value(row, step, copy) - one for one in before]
            total += sum(_zero_if_skipped(gap) for gap in gaps) / len(gaps)
        return total / estimator.completions / estimator.samples

    return _advantages(world, advantage)


FORMULAS: list[tuple[type, Callable[..., Tensor]]] = [
    (ARS, _ars),
    (ARM, _binary),
    (BinaryTreeARSM, _binary_tree),
    (Reinforce, _reinforce),
    (RLOO, _rloo),
    (BeamExpectation, _beam),
    (SelfCritic, _self_critic),
    (MonteCarlo, _monte_carlo),
    (Pairs, _pairs),
    (UnorderedSet, _unordered_set),
    (GRPO, _grpo),
    (Vine, _vine),
]
