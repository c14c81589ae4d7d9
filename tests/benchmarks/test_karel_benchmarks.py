"""The benchmarks of Karel at tiny sizes: contestants agree, and a wrong one is noticed. No timing."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import karel_machine, karel_update
from benchmarks.karel_update import OURS, QUICK, THEIRS, Straightforward
from corollout.errors import InputError
from corollout.estimators import ARS
from corollout.noise import Noise
from corollout.types import Branches, Sampler


def test_all_judge_alike():
    problem = karel_machine.make_problem(karel_machine.QUICK)
    karel_machine.check(problem)
    assert (problem.data.lengths == 13).all()
    assert len(problem.programs) == len(problem.tasks) == len(problem.lists) == 40
    # With other tasks' worlds, nearly all are wrong, and all agree on which.
    shifted = problem._replace(tasks=np.roll(problem.tasks, 1), worlds=[problem.worlds[-1], *problem.worlds[:-1]])
    right = karel_machine.judge_array(shifted)
    assert right.mean() < 0.5
    assert np.array_equal(karel_machine.judge_lists(shifted), right)
    assert np.array_equal(karel_machine.judge_plainly(shifted)[1:], right[1:5])


def test_a_wrong_verdict_is_noticed(monkeypatch: pytest.MonkeyPatch):
    problem = karel_machine.make_problem(karel_machine.QUICK)
    wrong = {"wrong": lambda problem: np.zeros((1, 6), bool)}
    monkeypatch.setattr(karel_machine, "CONTESTANTS", wrong)
    with pytest.raises(AssertionError, match="wrong"):
        karel_machine.check(problem)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> karel_update.Problem:
    return karel_update.make_problem(QUICK, tmp_path_factory.mktemp("weights"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_both_updates_have_one_gradient(problem: karel_update.Problem, dtype: torch.dtype):
    checked = karel_update.check(problem, dtype)
    assert checked["largest_entry_of_the_gradient"] > 0
    assert checked["rollouts"] > 0
    ours, theirs = checked["tokens_computed"].values()
    assert theirs > 1.5 * ours


def test_the_opponent_respects_max_rows(problem: karel_update.Problem):
    engine = problem.contestant(THEIRS, torch.float64)
    batch, noise = problem.batches[0], Noise(0)
    with torch.no_grad():
        memory = engine.policy.encode(batch.context)
    mains = engine.sample(memory, batch.examples, Sampler(), noise)
    branches = ARS().plan(mains.trajectories, noise).branches
    together = engine.complete(mains, branches, noise)
    engine.max_rows = 7
    apart = engine.complete(mains, branches, noise)
    problem.contestant(OURS, torch.float32)
    assert together.sequences.lists() == apart.sequences.lists()
    assert apart.tokens <= together.tokens
    assert len(engine.complete(mains, Branches.none(torch.device("cpu")), noise).sequences.tokens) == 0


def test_the_opponent_refuses_other_samplers(problem: karel_update.Problem):
    with pytest.raises(InputError, match="one sequence"):
        problem.contestant(THEIRS).sample(None, torch.arange(2), Sampler("greedy"), Noise(0))


def test_another_gradient_is_noticed(problem: karel_update.Problem, monkeypatch: pytest.MonkeyPatch):
    run = Straightforward._run

    def faulty(self, memory, keys, *rest):
        return run(self, memory, keys.flip(0) + 1, *rest)  # with the noise of another example

    monkeypatch.setattr(Straightforward, "_run", faulty)
    with pytest.raises(AssertionError, match="sequences of the two ways differ"):
        karel_update.check(problem, torch.float64)
    problem.contestant(OURS, torch.float32)


def test_weights_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = karel_update.make_problem(QUICK, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(karel_update, "MLETrainer", lambda *args, **options: pytest.fail("trained again"))
    second = karel_update.make_problem(QUICK, tmp_path)
    for a, b in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(a, b)
