"""``corollout inspect`` as a person meets it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from corollout.cli.inspect import record
from corollout.cli.main import cli
from corollout.errors import InputError
from corollout.inspection.credit import ALONE, Inspection, inspect_run
from corollout.tasks.karel.language import decode
from corollout.tasks.views import KarelSubject
from tests.support.pages import Page
from tests.support.small_karel import small_run


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def moved(directory: Path) -> Inspection:
    """An estimate by ARSM with a gradient."""
    for number in range(6):
        for seed in range(4):
            found = inspect_run(directory, split="train", number=number, seed=seed, weights="last")
            if found.norm > 0 and found.cost.rollouts > 3:
                return found
    pytest.fail("no task has a gradient")


def run(directory: Path, *arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli, ["inspect", str(directory), *map(str, arguments)])


def options(found: Inspection, estimator: str = "arsm") -> list[object]:
    place = ["--split", "train", "--task", found.number, "--seed", found.seed]
    return [*place, "--weights", "last", "--estimator", estimator]


def subject(found: Inspection) -> KarelSubject:
    assert isinstance(found.subject, KarelSubject)
    return found.subject


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_json_is_the_whole_inspection(directory: Path, moved: Inspection):
    result = run(directory, *options(moved), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found == json.loads(json.dumps(record(moved)))
    assert found["reference"] == decode(subject(moved).reference)
    (main,) = found["mains"]
    branches = [branch for step in main["steps"] for branch in step["branches"]]
    assert len(branches) == found["totals"]["rollouts"] == moved.cost.rollouts
    assert [branch["reward"] for branch in branches] == [b.reward for s in moved.mains[0].steps for b in s.branches]
    assert sum(step["gradient_norm"] == 0 for step in main["steps"]) == found["totals"]["zero_steps"]


def test_the_text_shows_every_step_and_branch(directory: Path, moved: Inspection):
    result = run(directory, *options(moved), "--most", 0)
    assert result.exit_code == 0, result.output
    text = squeezed(result.stdout)
    (main,) = moved.mains
    for number, (step, name) in enumerate(zip(main.steps, decode(main.sequence), strict=True)):
        assert f"{number} {name} p {step.probability:.3f} ‖g‖ {step.norm:.2g}" in text
        for branch in step.branches:
            first, *rest = decode(branch.sequence[number:])
            assert squeezed(f"{first} {branch.reward:g} ‖C‖ {branch.norm:.2g} … {' '.join(rest)}") in text
    assert text.count("‖C‖") == moved.cost.rollouts
    assert f"rollouts {moved.cost.rollouts}, {moved.rollouts_per_step:.2f} per step" in text
    assert f"exactly zero at {moved.zero_steps} of {moved.steps} steps" in text


def test_few_branches_are_those_that_count_most(directory: Path, moved: Inspection):
    text = squeezed(run(directory, *options(moved), "--most", 1).stdout)
    steps = [step for step in moved.mains[0].steps if step.branches]
    assert text.count("‖C‖") == len(steps)
    for step in steps:
        assert f"‖C‖ {max(branch.norm for branch in step.branches):.2g} …" in text
        if len(step.branches) > 1:
            assert f"{len(step.branches) - 1} more" in text


@pytest.mark.parametrize("estimator", ["ars-5", "mc-2", "sc-2", "rloo-8", "reinforce", "rl_beam-3", "set-3", "pairs"])
def test_every_estimator_is_shown(estimator: str, directory: Path, moved: Inspection, tmp_path: Path):
    page = tmp_path / "page.html"
    result = run(directory, *options(moved, estimator), "--most", 0, "--html", page)
    assert result.exit_code == 0, result.output
    found = inspect_run(
        directory, split="train", number=moved.number, seed=moved.seed, weights="last", estimator=estimator
    )
    text = squeezed(result.stdout)
    assert text.count("‖C‖") == found.cost.rollouts
    for main in found.mains:
        if found.is_flat:
            assert main.advantage is not None
            assert f"{main.reward:g} {main.advantage:+.3g} {main.weight:.3g} {main.norm:.3g}" in text
            assert " ".join(decode(main.sequence)) in text
    assert (ALONE in text) == (estimator == "reinforce")
    assert Page(page).count("ol", "trunk") == (0 if found.is_flat else len(found.mains))


def test_the_page_has_all_branches_in_one_file(directory: Path, moved: Inspection, tmp_path: Path):
    path = tmp_path / "page.html"
    result = run(directory, *options(moved), "--html", path)
    assert result.exit_code == 0, result.output
    assert f"Page: {path}" in result.stdout
    page = Page(path)
    rewards = [branch.reward for step in moved.mains[0].steps for branch in step.branches]
    assert page.count("span", "reward") == len(rewards) + 1
    assert page.count("span", "good") == sum(reward > 0 for reward in [*rewards, moved.mains[0].reward])
    assert page.count("span", "taken") == moved.cost.rollouts
    assert page.count("li", "moved") == moved.steps - moved.zero_steps
    worlds = [world for pair in subject(moved).worlds for world in pair]
    assert page.count("svg", "world") == len(worlds)
    markers = sum(len(world.markers) for world in worlds)
    assert page.count("circle", "marker") + page.count("rect", "marker") == markers
    assert page.count("rect", "wall") == sum(len(world.walls) for world in worlds)
    text = path.read_text("utf-8")
    assert "&lt;/s&gt;" in text
    assert "url(" not in text
    assert "http" not in text


def test_json_and_page_together(directory: Path, moved: Inspection, tmp_path: Path):
    result = run(directory, *options(moved), "--json", "--html", tmp_path / "page.html")
    assert json.loads(result.stdout)["estimator"] == "arsm"
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--task", "3"], "the split val has only the tasks 0 to 2, not 3"),
        (["--estimator", "magic"], "there is no estimator 'magic'"),
        (["--estimator", "arm"], "V must be 2"),
        (["--estimator", "rloo-1"], "RLOO needs samples ≥ 2, not 1"),
        (["--split", "exam"], "no split is called 'exam'"),
        (["--weights", "nowhere.safetensors"], "cannot read the weights nowhere.safetensors"),
        (["--html", "nowhere/page.html"], "cannot write nowhere/page.html"),
    ],
)
def test_bad_input_is_a_sentence(given: list[str], said: str, directory: Path):
    result = run(directory, *given)
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)
    assert result.stdout == ""


def test_a_directory_without_a_run(tmp_path: Path):
    result = run(tmp_path)
    assert isinstance(result.exception, InputError)
    assert "holds no run" in str(result.exception)
