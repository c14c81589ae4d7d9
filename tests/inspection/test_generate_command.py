"""``corollout generate`` as a person meets it."""

import json
from pathlib import Path

import pytest

from corollout.tasks.karel.language import encode
from corollout.tasks.karel.view import KarelView
from corollout.training.run_weights import open_run
from tests.support.commands import output, refusal
from tests.support.small_karel import verdict


@pytest.fixture(scope="module")
def views(karel_run: Path) -> list[KarelView]:
    """All validation tasks."""
    task, _ = open_run(karel_run)
    return [view for i in range(3) if isinstance(view := task.view("val", task.val, i), KarelView)]


def lines(run: Path, *arguments: object) -> list[dict]:
    return [json.loads(line) for line in output("generate", run, *arguments, "--json").splitlines()]


def test_json_has_a_line_for_each_program_with_true_verdicts(karel_run: Path, views: list[KarelView]):
    found = lines(karel_run, "--sample", 4, "--weights", "last")
    assert [(line["task"], line["rank"]) for line in found] == [(task, rank) for task in range(3) for rank in range(4)]
    for line in found:
        worlds = views[line["task"]].worlds
        assert line["id"] == views[line["task"]].id
        assert line["verdicts"] == [verdict(line["tokens"], *pair) for pair in worlds]
        assert line["solves"] == (set(line["verdicts"]) == {"right"})
        assert line["exact"] == (encode(line["tokens"]) == views[line["task"]].reference)


def test_samples_depend_on_the_seed_and_on_nothing_else(karel_run: Path):
    def sampled(*options: object) -> list[list[str]]:
        return [line["tokens"] for line in lines(karel_run, "--sample", 3, "--weights", "last", *options)]

    assert sampled() == sampled("--seed", 0) != sampled("--seed", 1)
    # A task's programs do not depend on which other tasks are asked for.
    assert sampled("--task", 2) == sampled()[6:]


def test_a_beam_and_greedy_decoding(karel_run: Path):
    beam = lines(karel_run, "--beam", 3, "--split", "train", "--task", "1,4", "--weights", "last")
    assert [(line["task"], line["rank"]) for line in beam] == [(task, rank) for task in (1, 4) for rank in range(3)]
    assert len({tuple(line["tokens"]) for line in beam[:3]}) == 3
    greedy = lines(karel_run, "--split", "train", "--task", 1, "--task", 4, "--weights", "last")
    assert [line["task"] for line in greedy] == [1, 4]
    assert len(lines(karel_run, "--count", 2)) == 2


def test_the_text_shows_the_task_and_what_was_made_of_it(karel_run: Path, views: list[KarelView]):
    text = output("generate", karel_run, "--task", 0, "--sample", 2)
    for part in ("val, task 0", "held out", "program 2 of 2", "the reference program"):
        assert part in text.replace("\N{NO-BREAK SPACE}", " ")
    for world in (world for pair in views[0].worlds for world in pair):
        assert all(line in text for line in world.draw().splitlines())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--task", "3"], "only the tasks 0 to 2, not 3"),
        (["--task", "-1"], "not -1"),
        (["--task", "1,x"], "--index must be a list of whole numbers"),
        (["--split", "exam"], "'exam'"),
        (["--beam", "2", "--sample", "2"], "choose one"),
        (["--image", "a.png"], "tasks that caption images"),
        (["--weights", "nowhere.safetensors"], "nowhere.safetensors"),
    ],
)
def test_bad_input_is_a_sentence(options: list[str], said: str, karel_run: Path):
    assert said in refusal("generate", karel_run, *options)


def test_a_directory_without_a_run_and_a_run_without_weights(tmp_path: Path, karel_run: Path):
    assert "run" in refusal("generate", tmp_path)
    (tmp_path / "config.toml").write_bytes((karel_run / "config.toml").read_bytes())
    assert "cannot read the weights" in refusal("generate", tmp_path)
    assert "has no checkpoint yet" in refusal("generate", tmp_path, "--weights", "last")
