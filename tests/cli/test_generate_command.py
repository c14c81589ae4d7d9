"""``corollout generate`` as a person meets it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from corollout.cli.main import cli
from corollout.errors import InputError
from corollout.rollouts.decoding import Decoded
from corollout.tasks.karel.generated import attempt_all
from corollout.tasks.karel.language import decode, encode, parse, pretty, tokenize
from corollout.tasks.karel.task import Split
from corollout.tasks.karel.world import World
from corollout.tasks.views import KarelSubject
from corollout.training import start as jobs
from tests.support.small_karel import small_run, verdict

CRASH = "DEF run m( REPEAT R=19 r( move r) m)"
LONG = "DEF run m( REPEAT R=19 r( REPEAT R=19 r( turnLeft r) r) m)"
NO_PROGRAM = "DEF run m( move"
WRONG = "DEF run m( turnLeft turnLeft turnLeft turnLeft m)"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def val(directory: Path) -> Split:
    return jobs.open_run(directory)[0].val


def reference_of(tasks: Split, number: int) -> list[int]:
    return KarelSubject.of(tasks, number).reference


def worlds_of(tasks: Split, number: int) -> list[tuple[World, World]]:
    return KarelSubject.of(tasks, number).worlds


def decoded(programs: list[list[int]]) -> list[Decoded]:
    return [Decoded(tokens, -1.0) for tokens in programs]


def run(directory: Path, *arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli, ["generate", str(directory), *map(str, arguments)])


def lines(result: Result) -> list[dict]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_json_has_a_line_for_each_program_with_true_verdicts(directory: Path, val: Split):
    found = lines(run(directory, "--sample", 4, "--weights", "last", "--json"))
    assert [(line["task"], line["rank"]) for line in found] == [(task, rank) for task in range(3) for rank in range(4)]
    for line in found:
        worlds = worlds_of(val, line["task"])
        assert line["id"] == int(val.data.ids[line["task"]])
        assert line["verdicts"] == [verdict(line["tokens"], *pair) for pair in worlds]
        assert line["solves"] == (set(line["verdicts"]) == {"right"})
        assert line["exact"] == (encode(line["tokens"]) == reference_of(val, line["task"]))


def test_samples_depend_on_the_seed_and_on_nothing_else(directory: Path):
    def sampled(*options: object) -> list[list[str]]:
        result = run(directory, "--sample", 3, "--weights", "last", "--json", *options)
        return [line["tokens"] for line in lines(result)]

    assert sampled() == sampled("--seed", 0) != sampled("--seed", 1)
    # A task's programs do not depend on which other tasks are asked for.
    assert sampled("--task", 2) == sampled()[6:]


def test_a_beam_and_greedy_decoding(directory: Path):
    beam = lines(run(directory, "--beam", 3, "--split", "train", "--task", "1,4", "--weights", "last", "--json"))
    assert [(line["task"], line["rank"]) for line in beam] == [(task, rank) for task in (1, 4) for rank in range(3)]
    assert len({tuple(line["tokens"]) for line in beam[:3]}) == 3
    options = ("--task", 1, "--task", 4, "--weights", "last", "--json")
    greedy = lines(run(directory, "--split", "train", *options))
    assert [line["task"] for line in greedy] == [1, 4]
    assert len(lines(run(directory, "--count", 2, "--json"))) == 2


def test_what_is_shown_of_each_kind_of_program(directory: Path, val: Split, monkeypatch: pytest.MonkeyPatch):
    reference = reference_of(val, 0)
    same = [*reference[:-1], *encode(["turnLeft", "turnRight"]), reference[-1]]
    texts = (CRASH, LONG, NO_PROGRAM, WRONG)
    programs = [reference, same, *(encode(tokenize(text)) for text in texts), []]
    monkeypatch.setattr("corollout.cli.generate.decode_scored", lambda *_, **__: [decoded(programs)])
    worlds = worlds_of(val, 0)

    found = lines(run(directory, "--task", 0, "--json"))
    assert [line["verdicts"] for line in found] == [[verdict(tokens, *p) for p in worlds] for tokens in programs]
    assert [line["exact"] for line in found] == [True] + [False] * 6
    assert [line["solves"] for line in found[:2]] == [True, True]
    assert [set(line["verdicts"]) for line in found[2:]] == [
        {"crash"}, {"time-out"}, {"no program"}, {"wrong world"}, {"no program"},
    ]  # fmt: skip

    shown = run(directory, "--task", 0, "--sample", 7)
    assert shown.exit_code == 0, shown.output
    text = shown.stdout.replace("\N{NO-BREAK SPACE}", " ")
    for program in (reference, encode(tokenize(CRASH))):
        for line in pretty(parse(program)).splitlines():
            assert line in text
    assert "program 7 of 7" in text
    assert text.count("solves the task, and is the reference program") == 1
    assert text.count("solves the task, and is not the reference program") == 1
    assert text.count("does not solve the task, and is not the reference program") == 5
    for said in ("held out: right", "example 1: crash", "example 5: time-out", "held out: no program"):
        assert said in text
    assert "token 4 (the end): expected a statement" in text
    assert f"reference: {' '.join(decode(reference))}" in text
    # Each example before and after; and where crash, time-out or wrong ends differ, the wanted and the reached world.
    attempts = attempt_all(val, 0, decoded(programs))
    differing = sum(
        (reached.hero, reached.markers) != (wanted.hero, wanted.markers)
        for attempt in attempts
        for (_, wanted), reached, said in zip(worlds, attempt.reached, attempt.verdicts, strict=True)
        if said != "no program"
    )
    assert differing >= 6
    assert (text.count("before"), text.count("wanted")) == (6, differing)
    assert text.count("▲") + text.count("▶") + text.count("▼") + text.count("◀") == 2 * 6 + 2 * differing


def test_drawings_are_those_of_the_worlds(directory: Path, val: Split):
    text = run(directory, "--task", 0).stdout
    for pair in worlds_of(val, 0):
        for world in pair:
            for line in world.draw().splitlines():
                assert line in text
    assert "held out" in text
    assert "val, task 0" in text


def test_the_reference_is_not_repeated(directory: Path, val: Split, monkeypatch: pytest.MonkeyPatch):
    found = decoded([reference_of(val, 1)])
    monkeypatch.setattr("corollout.cli.generate.decode_scored", lambda *_, **__: [found])
    text = run(directory, "--task", 1).stdout
    assert "and is the reference program" in text
    assert "reference:" not in text
    assert "wanted" not in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--task", "3"], "the split val has only the tasks 0 to 2, not 3"),
        (["--task", "-1"], "not -1"),
        (["--task", "1,x"], "--number takes whole numbers, as in 4 or 4,7, not '1,x'"),
        (["--split", "exam"], "no split is called 'exam'"),
        (["--beam", "2", "--sample", "2"], "choose one"),
        (["--image", "a.png"], "--image is for models that write captions: this one was trained for karel"),
        (["--weights", "nowhere.safetensors"], "cannot read the weights nowhere.safetensors"),
    ],
)
def test_bad_input_is_a_sentence(options: list[str], said: str, directory: Path):
    result = run(directory, *options)
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)
    assert result.stdout == ""


def test_a_directory_without_a_run_and_a_run_without_weights(tmp_path: Path, directory: Path):
    result = run(tmp_path)
    assert isinstance(result.exception, InputError)
    assert "holds no run" in str(result.exception)
    (tmp_path / "config.toml").write_bytes((directory / "config.toml").read_bytes())
    for weights, said in (("best", "cannot read the weights"), ("last", "has no checkpoint yet")):
        result = run(tmp_path, "--weights", weights)
        assert isinstance(result.exception, InputError)
        assert said in str(result.exception)
