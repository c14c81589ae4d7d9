"""How tasks and programs are shown, for each kind of program."""

import pytest
from rich.console import Console, RenderableType

from corollout.data import Split
from corollout.errors import InputError
from corollout.tasks.karel.language import decode, encode, parse, pretty, tokenize
from corollout.tasks.karel.view import KarelView
from corollout.training.run_weights import open_run
from corollout.types import Decoded, Sampler
from tests.support.small_karel import small_run, verdict

CRASH = "DEF run m( REPEAT R=19 r( move r) m)"
LONG = "DEF run m( REPEAT R=19 r( REPEAT R=19 r( turnLeft r) r) m)"
NO_PROGRAM = "DEF run m( move"
WRONG = "DEF run m( turnLeft turnLeft turnLeft turnLeft m)"


@pytest.fixture(scope="module")
def val(tmp_path_factory: pytest.TempPathFactory) -> Split:
    task, _ = open_run(small_run(tmp_path_factory))
    assert isinstance(task.view("val", task.val, 0), KarelView)
    return task.val


def shown(renderable: RenderableType) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().replace("\N{NO-BREAK SPACE}", " ")


def test_every_kind_of_program(val: Split):
    view = KarelView("val", val, 0)
    reference = view.reference
    same = [*reference[:-1], *encode(["turnLeft", "turnRight"]), reference[-1]]
    programs = [reference, same, *(encode(tokenize(text)) for text in (CRASH, LONG, NO_PROGRAM, WRONG)), []]
    outputs = [Decoded(tokens, -1.0) for tokens in programs]
    records = view.output_records(outputs)
    assert [record["verdicts"] for record in records] == [[verdict(p, *pair) for pair in view.worlds] for p in programs]
    assert [record["exact"] for record in records] == [True] + [False] * 6
    assert [record["solves"] for record in records] == [True, True] + [False] * 5
    verdicts = [verdict for record in records[2:] for verdict in set(record["verdicts"])]
    assert verdicts == ["crash", "time-out", "no program", "wrong world", "no program"]
    assert (records[2]["tokens"], records[2]["log_probability"]) == (CRASH.split(), -1.0)

    text = shown(view.show_outputs(outputs, Sampler("sample", 7)))
    for program in (reference, encode(tokenize(CRASH))):
        for line in pretty(parse(program)).splitlines():
            assert line in text
    assert "program 7 of 7, sample" in text
    assert text.count("solves the task, and is the reference program") == 1
    assert text.count("solves the task, and is not the reference program") == 1
    assert text.count("does not solve the task, and is not the reference program") == 5
    for said in ("held out: right", "example 1: crash", "example 5: time-out", "held out: no program"):
        assert said in text
    assert "token 4 (the end): expected a statement" in text
    assert f"reference: {' '.join(decode(reference))}" in text
    # Every example before and after; where another world was reached, this one and the expected one.
    differing = sum(
        (reached.hero, reached.markers) != (expected.hero, expected.markers)
        for attempt in view.attempts(outputs)
        for (_, expected), reached, said in zip(view.worlds, attempt.reached, attempt.verdicts, strict=True)
        if said != "no program"
    )
    assert differing >= 6
    assert (text.count("before"), text.count("reached")) == (6, differing)
    assert sum(map(text.count, "▲▶▼◀")) == 2 * 6 + 2 * differing
    # An exact program needs no reference.
    view = KarelView("val", val, 1)
    text = shown(view.show_outputs([Decoded(view.reference, -1.0)], Sampler("greedy")))
    assert "and is the reference program" in text
    assert not any(word in text for word in ("reference:", "reached"))
    for world in (world for pair in view.worlds for world in pair):
        assert all(line in text for line in world.draw().splitlines())


def test_the_task_itself(val: Split):
    view = KarelView("val", val, 2)
    number = int(val.data.ids[2])
    assert view.heading().plain == f"val, task 2 id {number}"
    assert view.identity() == {"split": "val", "task": 2, "id": number}
    assert view.record() == {"reference": decode(view.reference)}
    assert {verdict(view.reference, *pair) for pair in view.worlds} == {"right"}
    assert shown(view.show()).split() == ["reference", *decode(view.reference)]
    page = view.html()
    assert page.count("<svg") == 12
    assert page.count('class="example held"') == 1
    assert all(f"{name}, before: hero at" in page for name in (*(f"example {e}" for e in range(1, 6)), "held out"))
    assert '<span class="keyword">DEF</span>' in page
    assert all(f".{view.token_style(token)} " in view.css for token in ("move", "IF", "m(", "frontIsClear"))

    for index in (3, -1):
        with pytest.raises(InputError, match=f"the split val has only the tasks 0 to 2, not {index}"):
            KarelView("val", val, index)
