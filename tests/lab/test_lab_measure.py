"""Measurements against what they must be: by definition, by another computation, and on problems that are solved."""

import numpy as np
import pytest
import torch

from corollout.data import Batch, Columns
from corollout.errors import InputError
from corollout.estimators import RLOO, BeamExpectation, Reinforce, make_estimator
from corollout.lab import Reference, make_reference, measure
from corollout.lab.measure import BLOCKS, between_blocks
from corollout.lab.summary import squared_bias
from corollout.noise import Noise
from corollout.rewards import RewardFunction
from corollout.rollouts import Engine
from corollout.training import probe_variance
from corollout.training.variance import gradient_source
from tests.support.enumeration import Problem
from tests.support.small_task import likeness, make_data, make_engine, make_policy

Task = tuple[Engine, Batch, RewardFunction]


@pytest.fixture(scope="module")
def task() -> Task:
    return make_engine(make_policy()), make_data().batch(range(4)), likeness


class Solved:
    """A problem whose sequences are all known, for some contexts that are all the same."""

    def __init__(self, contexts: int = 2):
        self.problem = Problem.make(vocab=3, length=2, seed=4)
        self.engine = self.problem.engine()
        self.batch = Columns(context=torch.zeros(contexts, dtype=torch.int64)).batch(range(contexts))
        self.exact = -self.problem.exact_gradient().flatten().float()  # of the loss

    def reward(self, sequences: list[list[int]], finished: list[bool]) -> list[float]:
        return [
            self.problem.rewards[(*tokens, 0) if done else tuple(tokens)]
            for tokens, done in zip(sequences, finished, strict=True)
        ]

    @property
    def reference(self) -> Reference:
        return Reference(self.exact.repeat(BLOCKS, 1), "exact", 8)


def test_the_variance_is_that_of_a_probe(task: Task):
    reference = make_reference(*task, "rloo-4", 8, Noise(1))
    for name in ("rloo-2", "sc", "set-3"):
        own = measure(*task, name, 9, Noise(5), reference)
        probe = probe_variance(*task, name, 9, Noise(5))
        assert np.mean(own.distances) == pytest.approx(probe.variance, rel=1e-5)
        assert len(own.distances) == 8
        assert np.mean(own.tokens) == probe.tokens
        assert np.mean(own.reward_calls) == probe.reward_calls
        assert own.mean_reward == pytest.approx(probe.mean_reward)
        assert own.rollouts_per_step == probe.rollouts_per_step


def test_blocks_and_distances_are_what_all_gradients_say(task: Task):
    with gradient_source(*task) as draw:
        truth = torch.stack([draw("rloo-4", Noise(1).fold(i))[1] for i in range(10)]).double()
        own = torch.stack([draw("sc", Noise(2).fold(i))[1] for i in range(11)]).double()
    reference = make_reference(*task, "rloo-4", 10, Noise(1))
    found = measure(*task, "sc", 11, Noise(2), reference)

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
    found = measure(solved.engine, solved.batch, solved.reward, "set-8", 8, Noise(0), solved.reference)
    assert found.cosines == pytest.approx([1.0] * 8, abs=1e-6)
    assert found.distances == [0.0] * 7
    assert np.abs(found.bias_blocks).max() < 1e-10 * solved.reference.squared_norm


def test_the_squared_norm_is_without_bias():
    draw = np.random.default_rng(0)
    truth = draw.normal(size=40)
    found = []
    for _ in range(2000):
        blocks = torch.tensor(truth + 3 * draw.normal(size=(BLOCKS, 40)), dtype=torch.float32)
        found.append(Reference(blocks, "noisy", BLOCKS).squared_norm)
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) == pytest.approx(truth @ truth, abs=3.5 * error)
    assert error < 0.05 * truth @ truth


def test_a_bias_is_seen_and_none_is_not():
    solved = Solved(contexts=2)
    reference = solved.reference

    def bias(estimator, estimates: int):
        own = measure(solved.engine, solved.batch, solved.reward, estimator, estimates, Noise(3), reference)
        found = squared_bias(np.array(own.bias_blocks), reference.products)
        assert found is not None
        return found, own.biased_by_design

    for name in ("rloo-4", "set-3"):
        found, by_design = bias(name, 32)
        assert found.low < 0 <= found.high < 0.2
        assert not by_design
    # The mean of a batch of two leaves half of the gradient: a quarter of its square is missing.
    found, by_design = bias(Reinforce("batch", samples=1), 96)
    assert 0 < found.low < 0.25 < found.high < 0.8
    assert by_design
    found, by_design = bias(BeamExpectation(2), 8)
    assert found.low > 0
    assert by_design


class Pupil:
    """Learns how many estimates it has made, and notes what it knew when it planned."""

    def __init__(self, notes: list[int], known: int = 0, most: int = 100):
        self.notes, self.known, self.most, self.inner = notes, known, most, RLOO(2)

    @property
    def sampler(self):
        return self.inner.sampler

    def plan(self, trajectories, noise):
        self.notes.append(self.known)
        return self.inner.plan(trajectories, noise)

    def updated(self, plan, rewards, logits):
        assert rewards.isfinite().all()
        assert not logits.requires_grad
        return self if self.known == self.most else Pupil(self.notes, self.known + 1, self.most)

    def state_dict(self):
        return {}

    def load_state_dict(self, memory):
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


def test_gradients_of_parameters_are_left_alone(task: Task):
    engine = task[0]
    assert isinstance(engine.policy, torch.nn.Module)
    parameter = next(engine.policy.parameters())
    parameter.grad = torch.ones_like(parameter)
    make_reference(*task, "rloo-2", 8, Noise(0))
    assert parameter.grad.eq(1).all()
    parameter.grad = None


def test_too_little_and_too_biased_are_refused(task: Task):
    with pytest.raises(InputError, match="a reference needs at least 8 estimates, not 7"):
        make_reference(*task, "rloo-2", 7, Noise(0))
    with pytest.raises(InputError, match="a reference must be without bias, which rl-beam-4 is not"):
        make_reference(*task, "rl-beam-4", 8, Noise(0))
    with pytest.raises(InputError, match="a measurement needs at least 8 estimates, not 2"):
        measure(*task, make_estimator("sc"), 2, Noise(0), Reference(torch.zeros(8, 1), "none", 8))


def test_different_blocks_only():
    products = np.array([[100.0, 1, 2], [1, 100, 3], [2, 3, 100]])
    assert between_blocks(products) == 2.0
