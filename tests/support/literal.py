"""The estimators as their formulas say, by plain loops over rows, steps, references, actions and decisions."""

import math
from collections.abc import Callable, Hashable
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
    Estimator,
    MonteCarlo,
    Pairs,
    Reinforce,
    SelfCritic,
    UnorderedSet,
    Vine,
)
from corollout.estimators.branching import Branching
from corollout.estimators.budget import keep_probabilities
from corollout.noise import REDRAW, Noise, dirichlet, exponential, uniform
from corollout.types import Trajectories
from tests.support.baseline_reference import PAST, Members, plain_fitted, plain_shrunk
from tests.support.enumeration import Problem
from tests.support.pairs_reference import SEEN, plain_gap
from tests.support.pseudo_reference import by_swapping
from tests.support.set_reference import plain_other, plain_weight
from tests.support.tree_problems import UNBALANCED, TreeProblem

ESTIMATORS: list[Estimator] = [
    ARS(),
    ARS(references=1),
    ARS(references=2, completions=2),
    ARS(references=3, samples=2),
    ARS(references=2, shared_references=True),
    ARS(main="greedy"),
    ARS(pseudo="greedy"),
    ARS(budget=3, budget_per="example"),
    ARS(budget=20, completions=2, samples=2),
    ARS(draws=3),
    ARS(references=2, draws=2, samples=2, budget=2, budget_per="example"),
    ARM(samples=2),
    DisARM(samples=2),
    Reinforce(),
    Reinforce(samples=3),
    Reinforce(baseline="batch"),
    Reinforce(baseline="none", samples=2),
    RLOO(samples=3),
    BeamExpectation(size=5),
    SelfCritic(),
    SelfCritic(samples=2),
    MonteCarlo(completions=0),
    MonteCarlo(completions=1, samples=2),
    MonteCarlo(completions=3),
    Pairs(),
    Pairs(per_step=100, samples=2, completions=2),
    Pairs(budget=2, budget_per="example"),
    Pairs(per_step=0.6, samples=2, gaps=SEEN),
    Pairs(per_step=2.18, budget_per="example"),
    UnorderedSet(size=2),
    UnorderedSet(size=5),
    UnorderedSet(size=3, baseline="fitted"),
    Reinforce(baseline="shrunk"),
    Reinforce(baseline="fitted"),
    Reinforce(baseline="fitted", samples=2),
    RLOO(samples=2, baseline="shrunk"),
    RLOO(samples=3, baseline="fitted"),
    RLOO(samples=2, baseline="fitted", past=PAST),
    GRPO(samples=3),
    Vine(completions=1),
    Vine(completions=2, samples=3),
]
ON_TREES: list[Estimator] = [
    BinaryTreeARSM(),
    BinaryTreeARSM(samples=2, completions=2),
    BinaryTreeARSM(main="greedy"),
    BinaryTreeARSM(pseudo="greedy"),
    BinaryTreeARSM(budget=2, budget_per="example"),
    BinaryTreeARSM(budget=20, completions=2, samples=2),
    BinaryTreeDisARM(),
    BinaryTreeDisARM(samples=3, completions=2),
    BinaryTreeDisARM(budget=15),
    Reinforce(samples=2),
    RLOO(samples=3),
    BeamExpectation(size=5),
    SelfCritic(),
    SelfCritic(samples=2),
    MonteCarlo(completions=0),
    MonteCarlo(completions=2, samples=2),
    Pairs(per_step=0.001),
    Pairs(budget=3, budget_per="example", samples=2, completions=2, gaps=SEEN),
    UnorderedSet(size=2),
    UnorderedSet(size=5),
    UnorderedSet(size=3, baseline="fitted"),
    Reinforce(baseline="fitted"),
    RLOO(samples=3, baseline="shrunk"),
    RLOO(samples=3, baseline="fitted"),
    GRPO(samples=2),
    Vine(completions=1, samples=3),
    Vine(completions=2),
]

Branch = tuple[int, int, int]  # row, step, and the token that it starts with
_Weight = Callable[[list[int], int], float]  # of a context's s-th sequence, given the rows of them all
_Other = Callable[[list[int], int, int], float]  # how much the o-th one's reward counts in the baseline of the s-th


def agrees(
    estimator: Estimator, skip: float = 0.0, masked: bool = False, on_tree: bool = False, contexts: int = 12
) -> bool:
    """Whether the plan's gradient is the formula's, with a random reward for everything that may be rolled out.

    ``skip`` is the share of rewards that are NaN: skipped by the reward function.
    """
    vocab = 2 if isinstance(estimator, ARM) else 4
    problem = TreeProblem.of(UNBALANCED, 3, seed=11) if on_tree else Problem.make(vocab, 3, seed=11, masked=masked)
    noise = Noise(5)
    memory = torch.zeros(contexts, dtype=torch.int64)
    trajectories = problem.engine().sample(memory, torch.arange(contexts), estimator.sampler, noise).trajectories
    plan = estimator.plan(trajectories, noise)
    world = (_TreeWorld if on_tree else _World)(trajectories, _table(problem, trajectories), skip)
    branches = zip(
        *(vars(plan.branches)[name].tolist() for name in ("parent", "step", "token", "copy", "greedy")), strict=True
    )
    branch_rewards = [world.branch(*branch) for branch in branches]
    rewards = torch.cat([world.mains, torch.tensor(branch_rewards, dtype=torch.float64)])
    found = plan.gradient(rewards, world.logits)
    formula = next(f for kind, f in _FORMULAS if isinstance(estimator, kind))
    return torch.allclose(found, formula(estimator, world, noise), rtol=1e-6, atol=1e-8)


class _World:
    """Main trajectories, their logits, and made-up rewards."""

    def __init__(self, trajectories: Trajectories, table: Tensor, skip: float):
        self.trajectories = trajectories
        self.logits = self.logits_of(table)
        generator = torch.Generator().manual_seed(3)
        rows, steps = trajectories.tokens.shape
        branches = rows, steps, self.codes(table.shape[2]), 5, 2
        draws = [torch.randn(rows, generator=generator), torch.randn(branches, generator=generator)]
        self.mains, self.table = (
            torch.where(torch.rand(d.shape, generator=generator) < skip, torch.nan, d.double()) for d in draws
        )

    def logits_of(self, table: Tensor) -> Tensor:
        return table

    def codes(self, width: int) -> int:
        """With how many tokens, or words begun, a branch may start."""
        return width

    def branch(self, row: int, step: int, token: int, copy: int, greedy: bool) -> float:
        return float(self.table[row, step, token, copy, int(greedy)])

    def cells(self) -> list[tuple[int, int]]:
        return [(r, t) for r, n in enumerate(self.trajectories.lengths.tolist()) for t in range(n)]

    def token(self, row: int, step: int) -> int:
        return int(self.trajectories.tokens[row, step])

    def greedy(self, row: int, step: int) -> int:
        """What greedy decoding does in the place of the token."""
        return int(self.logits[row, step].argmax())

    def greedy_baseline(self, row: int, step: int) -> float:
        """The reward of the greedy completion of the prefix before a step."""
        for t in range(step, int(self.trajectories.lengths[row])):
            best = self.greedy(row, t)
            if best != self.token(row, t):
                return self.branch(row, t, best, 0, True)
        return float(self.mains[row])

    def score(self, row: int, step: int) -> Tensor:
        """e_z − p."""
        e = torch.zeros(self.logits.shape[2], dtype=torch.float64)
        e[self.token(row, step)] = 1
        return e - self.logits[row, step].softmax(0)

    def names(self, row: int, step: int) -> list[int]:
        """What the logits of a step belong to; two rows with the same prefix have those of the same name in common."""
        return list(range(self.logits.shape[2]))

    def whole_score(self, row: int) -> dict[Hashable, float]:
        """d log p(sequence) by prefix and name of the logit."""
        tokens, length = self.trajectories.tokens[row].tolist(), int(self.trajectories.lengths[row])
        return {
            (*tokens[:t], "then", name): float(entry)
            for t in range(length)
            for name, entry in zip(self.names(row, t), self.score(row, t), strict=False)
        }

    def others(self, row: int, step: int) -> list[tuple[int, float, Tensor]]:
        """What might have been done instead: where a branch starts, its probability, and which way it would draw."""
        z, p, e = self.token(row, step), self.logits[row, step].softmax(0).tolist(), torch.eye(self.logits.shape[2])
        return [(a, p[a], (e[a] - e[z]).double()) for a in range(len(p)) if a != z and p[a] > 0]

    def pi(self, row: int, step: int) -> Tensor:
        keys = self.trajectories.keys[row : row + 1]
        return dirichlet(keys, torch.tensor([step]), self.logits.shape[2], self.logits.dtype)[0]


class _TreeWorld(_World):
    """The same with walks down the unbalanced tree; the table has the logits of all its inner nodes."""

    def logits_of(self, table: Tensor) -> Tensor:
        logits = torch.zeros(*table.shape[:2], UNBALANCED.depth, dtype=torch.float64)
        for row, step in self.cells():
            for depth, (node, _) in enumerate(self.path(row, step)):
                logits[row, step, depth] = table[row, step, node]
        return logits

    def codes(self, width: int) -> int:
        # All tokens; words begun are negative, and counted from the end of the table.
        return width + 1 + width

    def path(self, row: int, step: int) -> list[tuple[int, bool]]:
        return UNBALANCED.path(self.token(row, step))

    def other(self, node: int, bit: bool) -> int:
        """Where the opposite bit leads: to a token, or to a word that is begun."""
        child = int(UNBALANCED.children[node, int(not bit)])
        return -1 - child

    def greedy(self, row: int, step: int) -> int:
        for depth, (node, bit) in enumerate(self.path(row, step)):
            if bit != bool(self.logits[row, step, depth] > 0):
                return self.other(node, bit)
        return self.token(row, step)

    def score(self, row: int, step: int) -> Tensor:
        """b − σ(φ) for each decision."""
        out = torch.zeros(UNBALANCED.depth, dtype=torch.float64)
        for depth, (_, bit) in enumerate(self.path(row, step)):
            out[depth] = int(bit) - self.logits[row, step, depth].sigmoid()
        return out

    def names(self, row: int, step: int) -> list[int]:
        return [node for node, _ in self.path(row, step)]

    def others(self, row: int, step: int) -> list[tuple[int, float, Tensor]]:
        found, e = [], torch.eye(UNBALANCED.depth, dtype=torch.float64)
        for depth, (node, bit) in enumerate(self.path(row, step)):
            one = float(self.logits[row, step, depth].sigmoid())
            found.append((self.other(node, bit), 1 - one if bit else one, -e[depth] if bit else e[depth]))
        return found

    def pi(self, row: int, step: int) -> Tensor:
        keys = self.trajectories.keys[row : row + 1]
        return uniform(keys, torch.tensor([step]), UNBALANCED.depth, torch.float64)[0]


def _table(problem: Problem, trajectories: Trajectories) -> Tensor:
    """What the policy puts out at every step, as ``policy.score`` would give it."""
    numbers = problem.policy.prefix_numbers(trajectories.tokens).clamp(max=len(problem.policy.table) - 1)
    return problem.policy.table.detach()[numbers]


def _zero_if_skipped(value: float) -> float:
    return 0.0 if value != value else value


def _ars(estimator: ARS, world: _World, noise: Noise) -> Tensor:
    vocab = world.logits.shape[2]
    coefficients: dict[Branch, Tensor] = {}  # C_a, and what is not rolled out has none
    for (row, step), draw in product(world.cells(), range(estimator.draws)):
        pi = _pi_again(world, noise, row, step, draw) if draw else world.pi(row, step)
        here = (torch.tensor([row]), torch.tensor([step]))
        references = estimator._references(world.trajectories, noise, *here, vocab)
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


def _pi_again(world: _World, noise: Noise, row: int, step: int, draw: int) -> Tensor:
    """π given the token, from the times E = e exp(−φ) at which the actions arrive: the token first, then the others."""
    rate, token, made = world.logits[row, step].exp(), world.token(row, step), world.trajectories
    keys = noise.keys(made.examples[row : row + 1], REDRAW, made.samples[row : row + 1], draw)
    fresh = exponential(keys, torch.tensor([step]), len(rate), rate.dtype)[0]
    first = fresh[token] / rate.sum()
    e = fresh.clone()  # that of an action which never arrives
    for a in range(len(rate)):
        if rate[a] > 0:
            e[a] = rate[a] * (first if a == token else first + fresh[a] / rate[a])
    return e / e.sum()


def _budget_weights(
    estimator: Branching, sizes: dict[Branch, float], world: _World, noise: Noise
) -> dict[Branch, float]:
    """1/s of the branches that are kept. Which are kept is read off the plan: their number must be the budget."""
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


def _binary_tree(estimator: BinaryTreeARSM, world: _TreeWorld, noise: Noise) -> Tensor:
    found: dict[
        Branch, tuple[int, float]
    ] = {}  # the depth at which it leaves the path, and what its gap is credited with
    for row, step in world.cells():
        pi = world.pi(row, step)
        for depth, (node, bit) in enumerate(world.path(row, step)):
            phi = world.logits[row, step, depth]
            true, pseudo = bool(pi[depth] < phi.sigmoid()), bool(pi[depth] > (-phi).sigmoid())
            assert estimator.main == "greedy" or true == bit
            if pseudo != bit:
                arm, disarm = 0.5 - pi[depth], 0.5 * (-1) ** pseudo * phi.abs().sigmoid()
                weight = float(disarm if isinstance(estimator, BinaryTreeDisARM) else arm)
                found[row, step, world.other(node, bit)] = depth, weight
    scale = _budget_weights(estimator, {branch: abs(weight) for branch, (_, weight) in found.items()}, world, noise)
    g = torch.zeros_like(world.logits)
    for (row, step, code), (depth, weight) in found.items():
        for copy in range(estimator.completions):
            gap = float(world.mains[row]) - world.branch(row, step, code, copy, estimator.pseudo == "greedy")
            share = scale.get((row, step, code), 0.0) / estimator.completions / estimator.samples
            g[row, step, depth] += share * _zero_if_skipped(gap) * weight
    return g


def _binary(estimator: ARM, world: _World, noise: Noise) -> Tensor:
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


def _pairs(estimator: Pairs, world: _World, noise: Noise) -> Tensor:
    lengths = world.trajectories.lengths.tolist()
    found = {(row, step, a): (p, way) for row, step in world.cells() for a, p, way in world.others(row, step)}
    sizes = {
        (row, step, a): p * plain_gap(estimator.gaps, p, step) / math.sqrt(lengths[row] - step)
        for (row, step, a), (p, _) in found.items()
    }
    if estimator.budget is None:
        pools = len(set(world.trajectories.contexts.tolist())) if estimator.budget_per == "example" else 1
        estimator = replace(estimator, budget=max(1, math.ceil(estimator.per_step * sum(lengths) / pools)))
    scale = _budget_weights(estimator, sizes, world, noise)
    g = torch.zeros_like(world.logits)
    for (row, step, a), (p, way) in found.items():
        for copy in range(estimator.completions):
            gap = world.branch(row, step, a, copy, estimator.pseudo == "greedy") - float(world.mains[row])
            share = scale.get((row, step, a), 0.0) / estimator.completions / estimator.samples
            g[row, step] += share * 0.5 * p * _zero_if_skipped(gap) * way
    return g


def _advantages(world: _World, advantage: Callable[[int, int], float]) -> Tensor:
    g = torch.zeros_like(world.logits)
    for row, step in world.cells():
        g[row, step] = _zero_if_skipped(advantage(row, step)) * world.score(row, step)
    return g


def _recommended(estimator: Reinforce | RLOO | UnorderedSet, world: _World, weight: _Weight, other: _Other) -> Tensor:
    """Rewards against baselines that other contexts recommend, from those that a context's sequences bring along."""
    rewards, places = world.mains.tolist(), _places(world)
    contexts = []
    for rows in places:
        own = [sum((other(rows, s, o) * rewards[i] for o, i in enumerate(rows)), 0.0) for s in range(len(rows))]
        weights = [weight(rows, s) for s in range(len(rows))]
        contexts.append(Members(weights, [rewards[i] for i in rows], own, [world.whole_score(i) for i in rows]))
    of_row = {}
    for i, (rows, members) in enumerate(zip(places, contexts, strict=True)):
        if estimator.baseline == "shrunk":
            baselines = plain_shrunk(contexts, i)
        else:
            baselines = plain_fitted(contexts, i, estimator.past)
        for row, w, b in zip(rows, members.weights, baselines, strict=True):
            of_row[row] = w * (rewards[row] - b) if members.judged else 0.0
    return _advantages(world, lambda row, _: of_row[row])


def _places(world: _World) -> list[list[int]]:
    """The rows of each context."""
    contexts = world.trajectories.contexts.tolist()
    return [[row for row, c in enumerate(contexts) if c == context] for context in sorted(set(contexts))]


def _against_others(estimator: Reinforce | RLOO, world: _World) -> Tensor:
    """Independent samples: each one's own baseline is the mean of its context's others."""
    samples = estimator.samples
    return _recommended(
        estimator,
        world,
        lambda rows, s: 1 / samples,
        lambda rows, s, o: 0.0 if s == o else 1 / (samples - 1),
    )


def _reinforce(estimator: Reinforce, world: _World, noise: Noise) -> Tensor:
    if estimator.baseline in ("shrunk", "fitted"):
        return _against_others(estimator, world)
    rewards = world.mains.tolist()

    def advantage(row: int, _: int) -> float:
        others = [r for i, r in enumerate(rewards) if r == r and (i != row or estimator.baseline == "batch")]
        baseline = sum(others) / len(others) if others and estimator.baseline != "none" else 0.0
        return (rewards[row] - baseline) / estimator.samples

    return _advantages(world, advantage)


def _rloo(estimator: RLOO, world: _World, noise: Noise) -> Tensor:
    if estimator.baseline != "others":
        return _against_others(estimator, world)
    rewards, contexts = world.mains.tolist(), world.trajectories.contexts.tolist()

    def advantage(row: int, _: int) -> float:
        others = [r for i, r in enumerate(rewards) if r == r and i != row and contexts[i] == contexts[row]]
        return (rewards[row] - (sum(others) / len(others) if others else 0.0)) / estimator.samples

    return _advantages(world, advantage)


def _grpo(estimator: GRPO, world: _World, noise: Noise) -> Tensor:
    rewards = world.mains.tolist()
    group = {row: rows for rows in _places(world) for row in rows}

    def advantage(row: int, _: int) -> float:
        judged = [rewards[i] for i in group[row] if rewards[i] == rewards[i]] or [0.0]
        return (rewards[row] - fmean(judged)) / (pstdev(judged) + 1e-4) / estimator.samples

    return _advantages(world, advantage)


def _beam(estimator: BeamExpectation, world: _World, noise: Noise) -> Tensor:
    rewards, contexts = world.mains.tolist(), world.trajectories.contexts.tolist()
    p = world.trajectories.log_probs.exp().tolist()

    def advantage(row: int, _: int) -> float:
        beam = [i for i, c in enumerate(contexts) if c == contexts[row]]
        judged = [i for i in beam if rewards[i] == rewards[i]]
        mean = sum(p[i] * rewards[i] for i in judged) / sum(p[i] for i in judged) if judged else 0.0
        return p[row] / sum(p[i] for i in beam) * (rewards[row] - mean)

    return _advantages(world, advantage)


def _unordered_set(estimator: UnorderedSet, world: _World, noise: Noise) -> Tensor:
    rewards, contexts = world.mains.tolist(), world.trajectories.contexts.tolist()
    p = [Fraction(x) for x in world.trajectories.log_probs.exp().tolist()]
    if estimator.baseline == "fitted":
        return _recommended(
            estimator,
            world,
            lambda rows, s: plain_weight([p[i] for i in rows], s),
            lambda rows, s, o: plain_other([p[i] for i in rows], s, o),
        )

    def advantage(row: int, _: int) -> float:
        members = [i for i, c in enumerate(contexts) if c == contexts[row]]
        of_set, s = [p[i] for i in members], members.index(row)
        baseline = sum(plain_other(of_set, s, o) * rewards[i] for o, i in enumerate(members))
        return plain_weight(of_set, s) * (rewards[row] - baseline)

    return _advantages(world, advantage)


def _self_critic(estimator: SelfCritic, world: _World, noise: Noise) -> Tensor:
    def advantage(row: int, _: int) -> float:
        return (float(world.mains[row]) - world.greedy_baseline(row, 0)) / estimator.samples

    return _advantages(world, advantage)


def _monte_carlo(estimator: MonteCarlo, world: _World, noise: Noise) -> Tensor:
    def advantage(row: int, step: int) -> float:
        token, last = world.token(row, step), step == int(world.trajectories.lengths[row]) - 1
        copies = range(1, estimator.completions + 1)
        values = [float(world.mains[row]) if last else world.branch(row, step, token, c, False) for c in copies]
        values = values or [float(world.mains[row])]
        gaps = [_zero_if_skipped(value - world.greedy_baseline(row, step)) for value in values]
        return sum(gaps) / len(gaps) / estimator.samples

    return _advantages(world, advantage)


def _vine(estimator: Vine, world: _World, noise: Noise) -> Tensor:
    rewards, lengths = world.mains.tolist(), world.trajectories.lengths.tolist()
    group = {row: rows for rows in _places(world) for row in rows}

    def value(row: int, step: int, copy: int) -> float:
        """The reward of a completion of what is there up to and with the step's token."""
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


_FORMULAS: list[tuple[type, Callable[..., Tensor]]] = [
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
