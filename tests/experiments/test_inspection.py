"""An estimate taken apart: the parts are those of the estimate, and add up to its gradient."""

import shutil
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from corollout.errors import InputError
from corollout.inspection.credit import ALONE, Inspection, inspect_example, inspect_run
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.karel.language import END
from corollout.tasks.karel.metrics import SolvesTask
from corollout.tasks.task import Task
from corollout.tasks.views import KarelSubject
from corollout.training import Estimate, estimate
from corollout.training import start as jobs
from corollout.training.settings import FinetuneSettings, MachineSettings
from tests.support.small_karel import small_run, verdict

BRANCHING = ("arsm", "ars-5", "sc", "sc-3", "mc-0", "mc-2")
WHOLE = ("reinforce", "rloo-4", "rloo-4:baseline=shrunk", "rl_beam-4", "set-4", "set-4:baseline=fitted")
SCORE = ("sc", "sc-3", "mc-0", "mc-2", *WHOLE)
Opened = tuple[Task, Engine]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def opened(run: Path) -> Opened:
    return jobs.open_run(run, "last")


def _judge(solves: SolvesTask, number: int, sequences: list[list[int]]) -> list[float]:
    return solves(sequences, [number] * len(sequences))


@cache
def pairs(opened: Opened, estimator: str, kind: str = "all") -> list[tuple[Inspection, Estimate]]:
    """Inspections of some tasks of validation and training data, each with the estimate made directly."""
    task, engine = opened
    found = []
    for split, number, seed in [("val", 0, 5), ("val", 2, 5), *(("train", n, 0) for n in range(6))]:
        tasks = getattr(task, split)
        batch, solves = tasks.columns.batch([number]), SolvesTask(tasks.data, kind)
        reward = partial(_judge, solves, number)
        direct = estimate(engine, batch, Reward(reward, name="direct"), estimator, Noise(seed))
        found.append((inspect_example(task, engine, split, number, estimator, kind, seed), direct))
    assert any(bool(direct.gradient.any()) for _, direct in found), "nothing would be tested"
    return found


def probabilities(direct: Estimate) -> torch.Tensor:
    return direct.logits.detach().softmax(2)


@pytest.mark.parametrize("estimator", BRANCHING + WHOLE)
def test_all_parts_are_those_of_the_estimate(estimator: str, opened: Opened):
    for found, direct in pairs(opened, estimator):
        assert found.cost == direct.cost
        assert sum(main.rollouts for main in found.mains) == direct.cost.rollouts == len(direct.sweep.branches)
        assert found.rollouts_per_step == pytest.approx(direct.cost.rollouts / int(direct.trajectories.lengths.sum()))
        assert found.mean_reward == pytest.approx(direct.mean_reward)
        assert found.norm == pytest.approx(float(direct.gradient.norm()), abs=1e-6)
        mask = direct.trajectories.mask
        assert found.zero_steps == int((~direct.gradient.any(2) & mask).sum())
        assert found.steps == int(mask.sum())
        for row, main in enumerate(found.mains):
            assert main.sequence == direct.trajectories.tokens[row, : len(main.steps)].tolist()
            assert main.sequence == [step.token for step in main.steps]
            product = torch.tensor([step.probability for step in main.steps]).prod()
            assert main.probability == pytest.approx(float(product), rel=1e-3)
            for t, step in enumerate(main.steps):
                assert torch.equal(step.gradient, direct.gradient[row, t])
                assert step.probability == pytest.approx(float(probabilities(direct)[row, t, step.token]))


@pytest.mark.parametrize("kind", ["all", "held-out"])
@pytest.mark.parametrize("estimator", ["arsm", "mc-2", "rloo-4"])
def test_rewards_are_what_the_plain_interpreter_finds(estimator: str, kind: str, opened: Opened):
    for found, _ in pairs(opened, estimator, kind):
        assert isinstance(found.subject, KarelSubject)
        sequences = {(tuple(main.sequence), main.reward) for main in found.mains}
        branches = [branch for main in found.mains for step in main.steps for branch in step.branches]
        sequences |= {(tuple(branch.sequence), branch.reward) for branch in branches}
        for sequence, reward in sequences:
            words = list(sequence[:-1] if sequence[-1] == END else sequence)
            right = [verdict(words, before, wanted) == "right" for before, wanted in found.subject.worlds]
            assert reward == (float(all(right)) if kind == "all" else (1.0 if right[-1] else -1.0))


@pytest.mark.parametrize("estimator", BRANCHING)
def test_branches_leave_their_main_sequence_where_they_say(estimator: str, opened: Opened):
    kinds = set()
    for found, _ in pairs(opened, estimator):
        for main in found.mains:
            for t, step in enumerate(main.steps):
                for branch in step.branches:
                    assert branch.sequence[: t + 1] == [*main.sequence[:t], branch.token]
                    assert (branch.token == step.token) == (branch.kind == "completion")
                    kinds.add(branch.kind)
    expected = {"a": {"pseudo-action"}, "s": {"greedy"}, "m": {"greedy", "completion"}}[estimator[0]]
    assert kinds == (expected if estimator != "mc-0" else {"greedy"})


@pytest.mark.parametrize("estimator", ["arsm", "ars-5"])
def test_coefficients_times_rewards_are_the_gradient(estimator: str, opened: Opened):
    for found, direct in pairs(opened, estimator):
        (main,) = found.mains
        total = torch.zeros(len(main.steps), direct.gradient.shape[2])
        for t, step in enumerate(main.steps):
            assert len({branch.token for branch in step.branches}) == len(step.branches)
            for branch in step.branches:
                assert branch.norm > 0
                assert not branch.coefficients[torch.arange(len(main.steps)) != t].any()
                total += (branch.reward - main.reward) * branch.coefficients
            assert step.branches or step.is_zero
        torch.testing.assert_close(total, direct.gradient[0, : len(main.steps)], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("estimator", BRANCHING)
def test_what_is_left_without_the_branches_is_the_main_sequences_part(estimator: str, opened: Opened):
    for found, direct in pairs(opened, estimator):
        only_mains = direct.rewards.clone()
        only_mains[len(found.mains) :] = 0
        rest = direct.sweep.gradient(only_mains, direct.logits.detach())
        for row, main in enumerate(found.mains):
            total = rest[row, : len(main.steps)].clone()
            for step in main.steps:
                for branch in step.branches:
                    total += branch.reward * branch.coefficients
            torch.testing.assert_close(total, direct.gradient[row, : len(main.steps)], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("estimator", SCORE)
def test_weights_and_advantages_make_the_gradient(estimator: str, opened: Opened):
    for found, direct in pairs(opened, estimator):
        for row, main in enumerate(found.mains):
            assert main.weight is not None
            for t, step in enumerate(main.steps):
                assert step.advantage is not None
                score = -probabilities(direct)[row, t]
                score[step.token] += 1
                expected = main.weight * step.advantage * score
                torch.testing.assert_close(step.gradient, expected, atol=1e-6, rtol=1e-4)


def test_advantages_of_rloo_are_rewards_above_those_of_the_others(opened: Opened):
    for found, _ in pairs(opened, "rloo-4"):
        rewards = [main.reward for main in found.mains]
        for main in found.mains:
            assert main.weight == 0.25
            assert main.advantage == pytest.approx(main.reward - (sum(rewards) - main.reward) / 3, abs=1e-6)
        assert found.is_flat


def test_the_tokens_named_are_those_moved_most(opened: Opened):
    named = 0
    for found, _ in pairs(opened, "arsm"):
        for step in found.mains[0].steps:
            for entry, least in ((step.raised, False), (step.lowered, True)):
                if entry is None:
                    continue
                token, value = entry
                others = step.gradient[torch.arange(len(step.gradient)) != token]
                assert value == float(step.gradient[token])
                assert bool((others > value).all() if least else (others < value).all())
                named += 1
            if step.is_zero:
                assert step.raised is step.lowered is None
    assert named


def test_reinforce_alone_says_that_it_has_no_baseline(opened: Opened):
    for found, _ in pairs(opened, "reinforce"):
        assert found.note == ALONE
        assert found.mains[0].advantage == pytest.approx(found.mains[0].reward)
    assert inspect_example(*opened, "val", 0, "reinforce-2").note == ""


def test_the_task_is_the_split_s(run: Path, opened: Opened):
    found = inspect_run(run, split="test", number=2, weights="last")
    tasks = opened[0].split("test")
    assert found.id == int(tasks.data.ids[2])
    assert found.estimator == "arsm"
    subject = KarelSubject.of(tasks, 2)
    assert found.subject == subject
    assert len(subject.worlds) == tasks.data.examples
    assert {verdict(subject.reference, *pair) for pair in subject.worlds} == {"right"}


def test_a_fine_tuned_run_brings_its_own_estimator_and_reward(run: Path, tmp_path: Path):
    settings = FinetuneSettings(estimator="rloo-3", reward="held-out")
    jobs.new_finetuning(tmp_path / "tuned", run, settings, MachineSettings())
    shutil.copy(run / "best.safetensors", tmp_path / "tuned")
    found = inspect_run(tmp_path / "tuned")
    assert (found.estimator, found.reward, len(found.mains)) == ("rloo-3", "held-out", 3)
    assert {main.reward for main in found.mains} <= {-1.0, 1.0}
    assert inspect_run(tmp_path / "tuned", estimator="mc-0").estimator == "mc-0"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"number": 3}, "the split val has only the tasks 0 to 2, not 3"),
        ({"number": -1}, "not -1"),
        ({"split": "exam"}, "no split is called 'exam'"),
        ({"estimator": "magic"}, "there is no estimator 'magic'"),
        ({"estimator": "disarm"}, "V must be 2"),
        ({"estimator": "ars-54"}, "only 53 actions"),
        ({"weights": "nowhere.safetensors"}, "cannot read the weights nowhere.safetensors"),
    ],
)
def test_what_cannot_be_inspected(options: dict, said: str, run: Path):
    with pytest.raises(InputError, match=said):
        inspect_run(run, **options)


def test_a_directory_without_a_run(tmp_path: Path):
    with pytest.raises(InputError, match="holds no run"):
        inspect_run(tmp_path)
