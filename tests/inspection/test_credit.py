"""An estimate taken apart: the parts are those of the estimate, and add up to its gradient."""

import shutil
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from corollout.inspection.credit import Inspection, inspect_example, inspect_run
from corollout.inspection.settings import InspectSettings
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.captioning.task import CaptionTask
from corollout.tasks.captioning.view import CaptionView
from corollout.tasks.captioning.vocabulary import END as CAPTION_END
from corollout.tasks.karel.language import END
from corollout.tasks.karel.metrics import SolvesTask
from corollout.tasks.karel.view import KarelView
from corollout.tasks.task import Task
from corollout.training import Estimate, estimate
from corollout.training.credit import Branch
from corollout.training.run_weights import open_run
from corollout.training.settings import FinetuneSettings, MachineSettings
from corollout.training.start import create_finetuning
from tests.support.small_karel import verdict
from tests.support.text_metrics import plain_cider, plain_frequencies

BRANCHING = ("arsm", "ars-5", "sc", "sc-3", "mc-0", "mc-2")
WHOLE = ("reinforce", "rloo-4", "rloo-4:baseline=shrunk", "rl_beam-4", "set-4", "set-4:baseline=fitted")
SCORE = ("sc", "sc-3", "mc-0", "mc-2", *WHOLE)
Opened = tuple[Task, Engine]
Pairs = list[tuple[Inspection, Estimate]]


@pytest.fixture(scope="module")
def opened(karel_run: Path) -> Opened:
    return open_run(karel_run, "last")


@pytest.fixture(scope="module")
def captions(caption_run: Path) -> Opened:
    return open_run(caption_run)


def _judge(solves: SolvesTask, number: int, sequences: list[list[int]]) -> list[float]:
    return solves(sequences, [number] * len(sequences))


@cache
def pairs(opened: Opened, estimator: str, kind: str = "all") -> Pairs:
    """Inspections of some tasks of validation and training data, each with the estimate made directly."""
    task, engine = opened
    found = []
    for split, number, seed in [("val", 0, 5), ("val", 2, 5), *(("train", n, 0) for n in range(6))]:
        tasks = getattr(task, split)
        reward = Reward(partial(_judge, SolvesTask(tasks.data, kind), number), name="direct")
        direct = estimate(engine, tasks.columns.batch([number]), reward, estimator, Noise(seed))
        found.append((inspect_example(task, engine, split, number, estimator, kind, seed), direct))
    assert any(bool(direct.gradient.any()) for _, direct in found), "nothing would be tested"
    return found


@cache
def caption_pairs(captions: Opened, estimator: str) -> Pairs:
    task, engine = captions
    found = []
    for split, index, seed in [("train", 3, 0), ("val", 1, 0), ("test", 2, 1)]:
        images = task.split(split)
        direct = estimate(engine, images.columns.batch([index]), task.reward("cider-d", images), estimator, Noise(seed))
        found.append((inspect_example(task, engine, split, index, estimator, seed=seed), direct))
    return found


def branches_of(found: Inspection) -> list[Branch]:
    return [branch for main in found.mains for step in main.steps for branch in step.branches]


@pytest.mark.parametrize("estimator", BRANCHING + WHOLE)
def test_all_parts_are_those_of_the_estimate(estimator: str, opened: Opened):
    for found, direct in pairs(opened, estimator):
        mask, probabilities = direct.trajectories.mask, direct.logits.detach().softmax(2)
        assert found.cost == direct.cost
        assert len(branches_of(found)) == direct.cost.rollouts == len(direct.plan.branches)
        assert found.norm == pytest.approx(float(direct.gradient.norm()), abs=1e-6)
        assert found.totals["rollouts_per_step"] == pytest.approx(direct.cost.rollouts / int(mask.sum()))
        assert found.totals["mean_reward"] == pytest.approx(direct.mean_reward)
        assert found.totals["zero_steps"] == int((~direct.gradient.any(2) & mask).sum())
        assert found.totals["steps"] == int(mask.sum())
        for row, main in enumerate(found.mains):
            assert main.sequence == direct.trajectories.tokens[row, : len(main.steps)].tolist()
            assert main.sequence == [step.token for step in main.steps]
            product = torch.tensor([step.probability for step in main.steps]).prod()
            assert main.probability == pytest.approx(float(product), rel=1e-3)
            for t, step in enumerate(main.steps):
                assert torch.equal(step.gradient, direct.gradient[row, t])
                assert step.probability == pytest.approx(float(probabilities[row, t, step.token]))


@pytest.mark.parametrize("kind", ["all", "held-out"])
@pytest.mark.parametrize("estimator", ["arsm", "mc-2", "rloo-4"])
def test_rewards_are_what_the_plain_interpreter_finds(estimator: str, kind: str, opened: Opened):
    for found, _ in pairs(opened, estimator, kind):
        assert isinstance(found.view, KarelView)
        for sequence, reward in {(tuple(one.sequence), one.reward) for one in (*found.mains, *branches_of(found))}:
            words = list(sequence[:-1] if sequence[-1] == END else sequence)
            right = [verdict(words, before, wanted) == "right" for before, wanted in found.view.worlds]
            assert reward == (float(all(right)) if kind == "all" else (1.0 if right[-1] else -1.0))


@pytest.mark.parametrize("estimator", ["ars-4", "arsm", "mc-2", "rloo-4"])
def test_rewards_are_cider_with_the_end_for_a_word_and_the_frequencies_of_training(estimator: str, captions: Opened):
    task = captions[0]
    taught = [[[*label, CAPTION_END] for label in labels] for labels in task.train.data.labels]
    frequencies = plain_frequencies(taught)
    values = set()
    for found, _ in caption_pairs(captions, estimator):
        labels = task.split(found.view.split_name).data.labels[found.view.index]
        for one in (*found.mains, *branches_of(found)):
            # The end token is part of a sequence that ended, and not of one that was cut.
            group = [[*label, CAPTION_END] for label in labels]
            expected = plain_cider(one.sequence, group, frequencies, len(taught))
            assert one.reward == pytest.approx(expected, abs=1e-6)
            values.add(round(expected, 3))
    assert len(values) > 3, "nothing would be tested"


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
    if estimator == "sc-3":  # one greedy completion for all samples, and none if a sample is greedy
        assert kinds <= expected
    else:
        assert kinds == (expected if estimator != "mc-0" else {"greedy"})


@pytest.mark.parametrize(
    ("task", "estimator"), [*(("opened", name) for name in BRANCHING), ("captions", "ars-4"), ("captions", "arsm")]
)
def test_coefficients_times_rewards_are_the_gradient(task: str, estimator: str, request: pytest.FixtureRequest):
    is_ars, atol = estimator.startswith("ars"), 1e-6 if task == "opened" else 1e-5
    for found, direct in (pairs if task == "opened" else caption_pairs)(request.getfixturevalue(task), estimator):
        only_mains = direct.rewards.clone()
        only_mains[len(found.mains) :] = 0
        rest = direct.plan.gradient(only_mains, direct.logits.detach())
        for row, main in enumerate(found.mains):
            # ARSM compares the reward of each branch with the main sequence's; others have a part of its own for that.
            total = rest[row, : len(main.steps)] * (not is_ars)
            for t, step in enumerate(main.steps):
                for branch in step.branches:
                    steps, values, _ = branch.coefficients()
                    coefficients = torch.zeros_like(total).index_copy_(0, steps, values)
                    assert branch.norm == pytest.approx(float(coefficients.norm()))
                    assert not is_ars or (branch.norm > 0 and not coefficients[torch.arange(len(total)) != t].any())
                    total += (branch.reward - main.reward * is_ars) * coefficients
                if is_ars:
                    assert sum(branch.credit for branch in step.branches) == pytest.approx(step.credit, abs=10 * atol)
                    assert len({branch.token for branch in step.branches}) == len(step.branches)
                    assert step.branches or step.is_zero
            torch.testing.assert_close(total, direct.gradient[row, : len(main.steps)], atol=atol, rtol=1e-4)
            assert total.any() or task == "opened"


@pytest.mark.parametrize("estimator", SCORE)
def test_weights_and_advantages_make_the_gradient(estimator: str, opened: Opened):
    for found, direct in pairs(opened, estimator):
        assert found.is_flat or estimator not in WHOLE
        for row, main in enumerate(found.mains):
            assert main.weight is not None
            for t, step in enumerate(main.steps):
                assert step.advantage is not None
                score = -direct.logits.detach()[row, t].softmax(0)
                score[step.token] += 1
                expected = main.weight * step.advantage * score
                torch.testing.assert_close(step.gradient, expected, atol=1e-6, rtol=1e-4)


def test_the_tokens_named_are_those_moved_most(opened: Opened):
    named = 0
    for found, _ in pairs(opened, "arsm"):
        for step in found.mains[0].steps:
            assert not step.is_zero or step.moves == [None, None]
            for sign, move in zip((1, -1), step.moves, strict=True):
                if move is not None:
                    token, value = move
                    others = step.gradient[torch.arange(len(step.gradient)) != token]
                    assert value == float(step.gradient[token])
                    assert bool((sign * others < sign * value).all())
                    named += 1
    assert named


def test_tones_compare_with_the_main_caption_or_with_the_others(captions: Opened):
    def tone(gap: float) -> str:
        return "even" if abs(gap) < 5e-4 else "good" if gap > 0 else "bad"

    tones = set()
    for found, _ in caption_pairs(captions, "arsm"):
        (main,) = found.mains
        assert found.tone(main) == "even"
        for branch in branches_of(found):
            assert found.tone(main, branch) == tone(branch.reward - main.reward)
            tones.add(found.tone(main, branch))
    assert tones == {"good", "bad", "even"}
    for found, _ in caption_pairs(captions, "rloo-4"):
        for main in found.mains:
            others = sum(other.reward for other in found.mains if other is not main) / 3
            assert found.tone(main) == tone(main.reward - others)


def test_reinforce_says_that_it_has_no_baseline_for_one_example(opened: Opened):
    for found, _ in pairs(opened, "reinforce"):
        assert "baseline" in found.note
        assert found.mains[0].advantage == pytest.approx(found.mains[0].reward)
    assert inspect_example(*opened, "val", 0, "reinforce-2").note == ""


def test_the_view_is_that_of_the_example(karel_run: Path, opened: Opened, caption_run: Path, captions: Opened):
    found = inspect_run(InspectSettings(karel_run, split="test", index=2, weights="last"))
    assert (found.view.id, found.estimator) == (int(opened[0].split("test").data.ids[2]), "arsm")
    assert isinstance(found.view, KarelView)
    assert {verdict(found.view.reference, *pair) for pair in found.view.worlds} == {"right"}

    found, task = inspect_run(InspectSettings(caption_run, split="test", index=2)), captions[0]
    view = found.view
    assert (view.id, found.reward) == (int(task.split("test").data.ids[2]), "cider-d")
    assert isinstance(view, CaptionView)
    assert isinstance(task, CaptionTask)
    assert (view.name, view.photo) == ("test-2.png", caption_run.parent / "photos" / "test-2.png")
    assert view.tokens([*task.data.vocabulary.encode(["a", "gnu"]), CAPTION_END]) == ["a", "<unk>", "<end>"]
    assert [view.token_style(token) for token in ("a", "<unk>", "<end>")] == ["word", "mark", "mark"]


def test_a_fine_tuned_run_brings_its_estimator_and_reward(karel_run: Path, tmp_path: Path):
    settings = FinetuneSettings(estimator="rloo-3", reward="held-out")
    create_finetuning(tmp_path / "tuned", karel_run, settings, MachineSettings())
    shutil.copy(karel_run / "best.safetensors", tmp_path / "tuned")
    found = inspect_run(InspectSettings(tmp_path / "tuned"))
    assert (found.estimator, found.reward, len(found.mains)) == ("rloo-3", "held-out", 3)
    assert {main.reward for main in found.mains} <= {-1.0, 1.0}
    assert inspect_run(InspectSettings(tmp_path / "tuned", estimator="mc-0")).estimator == "mc-0"
