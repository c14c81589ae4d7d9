"""Each rule of Karel, on the simple interpreter."""

import doctest

import pytest
from hypothesis import given

import corollout.tasks.karel as karel
from corollout.tasks.karel.interpreter import LIMIT, Result, interpret
from corollout.tasks.karel.language import ACTIONS, encode, parse, tokenize
from corollout.tasks.karel.world import MOST_MARKERS, World
from tests.support.karel_strategies import programs, worlds

OPEN = World(3, 3, (1, 1, 0))
AHEAD = [(2, 1), (1, 2), (0, 1), (1, 0)]  # of the middle cell, by direction


def run(body: str, world: World = OPEN) -> Result:
    return interpret(f"DEF run m( {body} m)", world)


def marked(count: int, cell: tuple[int, int] = (1, 1)) -> World:
    return World(3, 3, (1, 1, 0), markers=((cell, count),))


@pytest.mark.parametrize("direction", range(4))
def test_moves_and_turns(direction: int):
    ahead, world = AHEAD[direction], World(3, 3, (1, 1, direction))
    assert run("move", world) == Result("ok", ["move"], World(3, 3, (*ahead, direction)), 1)
    assert run("turnRight", world).world.hero == (1, 1, (direction + 1) % 4)
    assert run("turnLeft", world).world.hero == (1, 1, (direction + 3) % 4)
    # The border and walls block.
    world = World(3, 3, (*ahead, direction))
    assert run("turnLeft turnRight move", world) == Result("crash", ["turnLeft", "turnRight"], world, 3)
    assert run("IF c( frontIsClear c) i( turnLeft i)", world).actions == []
    world = World(3, 3, (1, 1, direction), frozenset({ahead}))
    assert run("move", world) == Result("crash", [], world, 1)


def test_markers_are_put_and_picked():
    assert run("putMarker") == Result("ok", ["putMarker"], marked(1), 1)
    assert run("pickMarker", marked(1)) == Result("ok", ["pickMarker"], OPEN, 1)
    assert run("putMarker putMarker pickMarker").world == marked(1)
    # Where no marker is, none can be picked.
    elsewhere = marked(2, (0, 0))
    left = World(3, 3, (1, 1, 3), markers=elsewhere.markers)
    assert run("turnLeft pickMarker", elsewhere) == Result("crash", ["turnLeft"], left, 2)


def test_a_cell_holds_101_markers():
    assert MOST_MARKERS == 101
    assert run("putMarker", marked(100)) == Result("ok", ["putMarker"], marked(101), 1)
    assert run("putMarker", marked(101)) == Result("crash", [], marked(101), 1)
    assert run("putMarker " * 102) == Result("crash", ["putMarker"] * 101, marked(101), 102)


@pytest.mark.parametrize("direction", range(4))
@pytest.mark.parametrize(("test", "turn"), [("frontIsClear", 0), ("rightIsClear", 1), ("leftIsClear", 3)])
def test_sides_are_clear_unless_blocked(direction: int, test: str, turn: int):
    cell = AHEAD[(direction + turn) % 4]
    others = frozenset((r, c) for r in range(3) for c in range(3)) - {cell, (1, 1)}
    ask = f"IFELSE c( {test} c) i( turnLeft i) ELSE e( turnRight e)"
    assert run(ask, World(3, 3, (1, 1, direction), others)).actions == ["turnLeft"]
    assert run(ask, World(3, 3, (1, 1, direction), frozenset({cell}))).actions == ["turnRight"]
    assert run(ask, World(1, 1, (0, 0, direction))).actions == ["turnRight"]  # the border


def test_markers_on_the_hero_s_cell_are_present():
    ask = "IF c( markersPresent c) i( turnLeft i) IF c( noMarkersPresent c) i( turnRight i)"
    assert run(ask, marked(2)).actions == ["turnLeft"]
    assert run(ask, marked(2, (1, 2))).actions == ["turnRight"]


@pytest.mark.parametrize("negations", range(5))
def test_not_turns_a_condition_round_and_costs_nothing(negations: int):
    condition = f"{'c( not ' * negations}c( frontIsClear c){' c)' * negations}"
    result = run(f"IFELSE {condition} i( turnLeft i) ELSE e( turnRight e)")
    assert (result.actions, result.ticks) == (["turnRight" if negations % 2 else "turnLeft"], 2)
    assert run(f"IF {condition} i( turnLeft i)").ticks == (1 if negations % 2 else 2)


@pytest.mark.parametrize(
    ("body", "actions", "ticks"),
    [
        ("move", 1, 1),
        ("REPEAT R=0 r( move r)", 0, 0),
        ("REPEAT R=1 r( turnLeft r)", 1, 2),
        ("REPEAT R=3 r( turnLeft turnLeft r)", 6, 9),
        ("REPEAT R=2 r( REPEAT R=3 r( turnLeft r) r)", 6, 14),
        ("REPEAT R=2 r( REPEAT R=0 r( turnLeft r) r)", 0, 2),
        ("WHILE c( frontIsClear c) w( move w)", 1, 3),
        ("WHILE c( markersPresent c) w( move w)", 0, 1),
        ("IF c( frontIsClear c) i( move i)", 1, 2),
        ("IF c( markersPresent c) i( move i)", 0, 1),
        ("IFELSE c( frontIsClear c) i( move i) ELSE e( turnLeft turnLeft e)", 1, 2),
        ("IFELSE c( markersPresent c) i( move i) ELSE e( turnLeft turnLeft e)", 2, 3),
        ("REPEAT R=2 r( IF c( frontIsClear c) i( move i) r)", 1, 5),
        ("WHILE c( frontIsClear c) w( REPEAT R=1 r( move r) w)", 1, 4),
    ],
)
def test_ticks_and_the_tick_after_the_last_is_a_time_out(body: str, actions: int, ticks: int):
    result = run(body)
    assert (result.status, len(result.actions), result.ticks) == ("ok", actions, ticks)
    # Turns change nothing: seen from the middle, all directions are the same.
    fits, over = (run("turnLeft " * (LIMIT - ticks + more) + body) for more in (0, 1))
    assert (fits.status, fits.ticks) == ("ok", LIMIT)
    assert (over.status, over.ticks) == ("timeout", LIMIT)


def test_two_hundred_ticks_end_everything():
    assert run("turnLeft " * 201) == Result("timeout", ["turnLeft"] * 200, OPEN, 200)
    assert run("turnLeft " * 199 + "pickMarker").status == "crash"
    assert run("turnLeft " * 200 + "pickMarker").status == "timeout"
    turning = run("WHILE c( frontIsClear c) w( turnLeft w)")
    assert (turning.status, len(turning.actions), turning.ticks) == ("timeout", 100, 200)
    idle = run("WHILE c( frontIsClear c) w( REPEAT R=0 r( move r) w)")
    assert (idle.status, idle.actions, idle.ticks) == ("timeout", [], 200)
    assert interpret("DEF run m( move m)", OPEN, limit=0).status == "timeout"
    assert interpret("DEF run m( REPEAT R=0 r( move r) m)", OPEN, limit=0).status == "ok"
    # A REPEAT inside a loop begins anew.
    result = run("WHILE c( frontIsClear c) w( REPEAT R=2 r( move r) putMarker w)", World(1, 5, (0, 0, 1)))
    assert result.world == World(1, 5, (0, 4, 1), markers=(((0, 2), 1), ((0, 4), 1)))


def test_a_crash_keeps_the_state_reached_and_a_syntax_error_changes_nothing():
    result = run("putMarker move move", World(2, 1, (0, 0, 0)))
    assert result == Result("crash", ["putMarker", "move"], World(2, 1, (1, 0, 0), markers=(((0, 0), 1),)), 3)
    for program in ("", "DEF run m( putMarker", ["DEF", "jump"], [1, 2, 3], []):
        assert interpret(program, OPEN) == Result("syntax", [], OPEN, 0)


def test_all_forms_of_a_program_run():
    text = "DEF run m( move turnLeft m)"
    results = [karel.run(p, OPEN) for p in (text, tokenize(text), encode(tokenize(text)), parse(text))]
    assert results == [Result("ok", ["move", "turnLeft"], World(3, 3, (2, 1, 3)), 2)] * 4


def test_depth_does_not_matter():
    deep = 3_000
    body = f"{'IF c( frontIsClear c) i( ' * deep}move {'i) ' * deep}"
    assert run(body).status == "timeout"
    result = interpret(f"DEF run m( {body} m)", OPEN, limit=deep + 1)
    assert result == Result("ok", ["move"], World(3, 3, (2, 1, 0)), deep + 1)


@given(programs, worlds(largest=5))
def test_actions_retrace_what_a_program_did(tokens, data):
    world = World.from_json(data)
    result = interpret(tokens, world)
    assert result.status in ("ok", "crash", "timeout")
    assert len(result.actions) <= result.ticks <= LIMIT
    assert set(result.actions) <= set(ACTIONS)
    assert World.from_json(data) == world
    again = interpret(["DEF", "run", "m(", *(result.actions or ["turnLeft", "turnRight"]), "m)"], world)
    assert (again.status, again.world) == ("ok", result.world)
    # With less time it does the same, only less of it.
    for limit in (0, result.ticks // 2, result.ticks):
        shorter = interpret(tokens, world, limit)
        assert shorter.actions == result.actions[: len(shorter.actions)]
        assert shorter.ticks == limit or shorter.status == "ok"


def test_the_example_of_the_package():
    outcome = doctest.testmod(karel)
    assert (outcome.failed, outcome.attempted) == (0, 5)
