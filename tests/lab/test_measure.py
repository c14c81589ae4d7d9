"""Measurements against what they must be: by definition, by another computation, and on problems that are solved."""

import numpy as np
import pytest
import torch

from corollout.data import Batch, Columns
from corollout.errors import InputError
from corollout.estimators import RLOO, Adaptive, BeamExpectation, Reinforce
from corollout.lab import make_reference, measure
from corollout.lab.measurement import BLOCKS, Reference
from corollout.lab.summary import squared_bias
from corollout.noise import Noise
from corollout.rewards import RewardFunction
from corollout.rollouts import Engine
from corollout.training.probes import gradient_source
from corollout.types import Cost
from tests.support.enumeration import Problem
from tests.support.small_task import likeness, make_data, make_engine, make_policy

Task = tuple[Engine, Batch, RewardFunction]


@pytest.fixture(scope="module")
def task() -> Task:
    return make_engine(make_policy()), make_data().batch(range(4)), likeness


class Solved:
    """A problem whose sequences are all known, for two contexts that are the same."""

    def __init__(self) -> None:
        self.problem = Problem.make(vocab=3, length=2, seed=4)
        batch = Columns(context=torch.zeros(2, dtype=torch.int64)).batch(range(2))
        self.task = self.problem.engine(), batch, self.reward
        exact = -self.problem.exact_gradient().flatten().float()  # of the loss
        self.reference = Reference(exact.repeat(BLOCKS, 1), "exact", 8)

    def reward(self, sequences: list[list[int]], finished: list[bool]) -> list[float]:
        ended = [(*tokens, 0) if done else tuple(tokens) for tokens, done in zip(sequences, finished, strict=True)]
        return [self.problem.rewards[tokens] for tokens in ended]


@pytest.mark.parametrize("name", ["rloo-2", "sc", "set-3", "mc-1"])
def test_a_measurement_is_what_all_its_estimates_say(task: Task, name: str):
    with gradient_source(*task) as draw:
        truth = torch.stack([draw("rloo-4", Noise(1).fold(i))[1] for i in range(10)]).double()
        samples, gradients = zip(*(draw(name, Noise(2).fold(i)) for i in range(11)), strict=True)
    own = torch.stack(gradients).double()
    reference = make_reference(*task, "rloo-4", 10, Noise(1))
    found = measure(*task, name, 11, Noise(2), reference)
    total = sum((sample.cost for sample in samples), Cost())
    assert found.tokens == [sample.cost.tokens for sample in samples]
    assert found.reward_calls == [sample.cost.reward_calls for sample in samples]
    assert found.rollouts_per_step == total.rollouts / total.main_tokens
    assert found.mean_reward == pytest.approx(np.mean([sample.mean_reward for sample in samples]))

    blocks = torch.stack([truth[j::BLOCKS].mean(0) for j in range(BLOCKS)])
    differences = torch.stack([own[j::BLOCKS].mean(0) for j in range(BLOCKS)]) - blocks
    assert np.allclose(reference.products, (blocks @ blocks.T).numpy(), rtol=1e-5)
    assert np.allclose(found.bias_blocks, (differences @ differences.T).numpy(), rtol=1e-4, atol=1e-7)
    pairs = [float(blocks[i] @ blocks[j]) for i in range(BLOCKS) for j in range(BLOCKS) if i != j]
    assert reference.squared_norm == pytest.approx(np.mean(pairs), rel=1e-4)
    distances = [i / (i + 1) * float(((own[i] - own[:i].mean(0)) ** 2).sum()) for i in range(1, 11)]
    assert np.allclose(found.distances, distances, rtol=1e-5)
    cosines = own @ blocks.mean(0) / own.norm(dim=1) / np.sqrt(reference.squared_norm)
    assert np.allclose(found.cosines, cosines.numpy(), rtol=1e-4)


def test_the_exact_gradient_has_cosine_one_and_neither_bias_nor_variance():
    solved = Solved()
    # Without replacement, eight of seven sequences are all of them.
    found = measure(*solved.task, "set-8", 8, Noise(0), solved.reference)
    assert found.cosines == pytest.approx([1.0] * 8, abs=1e-6)
    assert found.distances == [0.0] * 7
    assert np.abs(found.bias_blocks).max() < 1e-10 * solved.reference.squared_norm


def test_the_squared_norm_is_without_bias():
    draw = np.random.default_rng(0)
    truth = draw.normal(size=40)
    noisy = [torch.tensor(truth + 3 * draw.normal(size=(BLOCKS, 40)), dtype=torch.float32) for _ in range(2000)]
    found = [Reference(blocks, "noisy", BLOCKS).squared_norm for blocks in noisy]
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) == pytest.approx(truth @ truth, abs=3.5 * error)
    assert error < 0.05 * truth @ truth


def test_a_bias_is_seen_and_none_is_not():
    solved = Solved()
    cases = {"rloo-4": 32, "set-3": 32, Reinforce("batch", samples=1): 96, BeamExpectation(2): 8}
    found = []
    for estimator, estimates in cases.items():
        own = measure(*solved.task, estimator, estimates, Noise(3), solved.reference)
        bias = squared_bias(np.array(own.bias_blocks), solved.reference.products)
        assert bias is not None
        assert own.biased_by_design == (bias.low > 0) == (not isinstance(estimator, str))
        found.append(bias)
    for bias in found[:2]:
        assert bias.low < 0 <= bias.high < 0.2
    # The mean of a batch of two leaves half of the gradient: a quarter of its square is missing.
    assert 0 < found[2].low < 0.25 < found[2].high < 0.8


class Pupil(Adaptive):
    """Learns how many estimates it has made, and notes what it knew when it planned."""

    def __init__(self, notes: list[int], known: int = 0, most: int = 100):
        self.notes, self.known, self.most = notes, known, most

    @property
    def sampler(self):
        return RLOO(2).sampler

    def plan(self, trajectories, noise):
        self.notes.append(self.known)
        return RLOO(2).plan(trajectories, noise)

    def updated(self, plan, rewards, scores):
        assert rewards.isfinite().all()
        assert scores is None  # the plan reads none
        return self if self.known == self.most else Pupil(self.notes, self.known + 1, self.most)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        return self


def test_an_adaptive_estimator_learns_first_and_not_while_it_is_measured(task: Task):
    reference = make_reference(*task, "rloo-4", 8, Noise(1))
    notes: list[int] = []
    found = measure(*task, Pupil(notes), 10, Noise(2), reference, warm_up=3)
    assert notes == [0, 1, 2] + [3] * 10
    # What counts is what it is without learning, for this one learns nothing that matters.
    assert found.distances == measure(*task, "rloo-2", 10, Noise(2), reference).distances
    assert found.estimator == found.definition == "Pupil"
    notes.clear()
    measure(*task, Pupil(notes, most=0), 10, Noise(2), reference)
    assert notes == [0] * 11  # one estimate is enough to see that it learns nothing


def test_too_little_and_too_biased_are_refused(task: Task):
    with pytest.raises(InputError, match="a reference needs at least 8 estimates, not 7"):
        make_reference(*task, "rloo-2", 7, Noise(0))
    with pytest.raises(InputError, match="the reference must be unbiased"):
        make_reference(*task, "rl-beam-4", 8, Noise(0))
    with pytest.raises(InputError, match="a measurement needs at least 8 estimates, not 2"):
        measure(*task, "sc", 2, Noise(0), Reference(torch.zeros(8, 1), "none", 8))
