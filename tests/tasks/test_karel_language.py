"""Programs as text, tokens, ids, trees and JSON, and what is said of those that are none."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corollout.errors import InputError
from corollout.tasks.karel.language import (
    ACTIONS,
    ID,
    TOKENS,
    Action,
    Condition,
    If,
    IfElse,
    KarelSyntaxError,
    Program,
    Repeat,
    While,
    check,
    decode,
    encode,
    parse,
    pretty,
    to_tokens,
    tokenize,
)
from corollout.tasks.karel.program_json import from_json, to_json
from tests.support.karel_strategies import programs

DEEP = 3_000  # beyond any recursion


@given(programs)
def test_all_forms_of_a_program_say_the_same(tokens):
    program = parse(tokens)
    assert to_tokens(program) == tokens
    assert parse(encode(tokens)) == program
    assert parse(" ".join(tokens)) == program
    assert decode(encode(tokens)) == tokens
    assert tokenize(pretty(program)) == tokens
    assert tokenize(" ".join(tokens).replace("( ", "(")) == tokens
    assert from_json(json.loads(json.dumps(to_json(program)))) == program
    assert eval(repr(program), {"parse": parse}) == program
    assert hash(parse(tokens)) == hash(program)
    assert check(tokens) is None


def test_the_vocabulary():
    assert len(TOKENS) == len(ID) == 53
    assert TOKENS[:3] == ("<pad>", "<s>", "</s>")


def test_the_tree_of_a_program():
    text = """DEF run m( REPEAT R=3 r( move r) WHILE c( not c( not c( leftIsClear c) c) c) w( turnLeft w)
        IF c( markersPresent c) i( pickMarker putMarker i)
        IFELSE c( frontIsClear c) i( move i) ELSE e( turnRight e) m)"""
    move = (Action("move"),)
    assert parse(text).body == (
        Repeat(3, move),
        While(Condition("leftIsClear", 2), (Action("turnLeft"),)),
        If(Condition("markersPresent"), (Action("pickMarker"), Action("putMarker"))),
        IfElse(Condition("frontIsClear"), move, (Action("turnRight"),)),
    )


def test_programs_with_other_tokens_differ():
    one = parse("DEF run m( move m)")
    assert one != parse("DEF run m( turnLeft m)")
    assert one != "DEF run m( move m)"


def test_pretty_puts_a_statement_on_a_line():
    text = (
        "DEF run m( WHILE c( frontIsClear c) w( move w) "
        "IFELSE c( not c( leftIsClear c) c) i( turnLeft i) ELSE e( REPEAT R=2 r( move r) e) m)"
    )
    assert pretty(parse(text)).splitlines() == [
        "DEF run m(",
        "    WHILE c( frontIsClear c) w(",
        "        move",
        "    w)",
        "    IFELSE c( not c( leftIsClear c) c) i(",
        "        turnLeft",
        "    i) ELSE e(",
        "        REPEAT R=2 r(",
        "            move",
        "        r)",
        "    e)",
        "m)",
    ]


def test_brackets_need_no_blanks():
    dense = "DEF run m(WHILE c(not c(frontIsClear c)c)w(turnLeft w)REPEAT R=12r(move r)m)"
    clear = "DEF run m( WHILE c( not c( frontIsClear c) c) w( turnLeft w) REPEAT R=12 r( move r) m)"
    assert " ".join(tokenize(dense)) == clear
    assert tokenize("move() mov") == ["move()", "mov"]  # words that are no tokens stay whole


@pytest.mark.parametrize(
    ("text", "position", "token", "said"),
    [
        ("", 0, None, "token 0 (the end): expected 'DEF'"),
        ("run", 0, "run", "token 0 ('run'): expected 'DEF'"),
        ("DEF move", 1, "move", "expected 'run'"),
        ("DEF run w(", 2, "w(", "expected 'm('"),
        ("DEF run m( m)", 3, "m)", "expected a statement, for the block opened at token 2 'm('"),
        (
            "DEF run m( move",
            4,
            None,
            "token 4 (the end): expected a statement or 'm)', for the block opened",
        ),
        ("DEF run m( move i)", 4, "i)", "expected a statement or 'm)'"),
        ("DEF run m( jump m)", 3, "jump", "token 3 ('jump', unknown to Karel): expected a statement"),
        ("DEF run m( move m) move", 5, "move", "expected nothing after the program's 'm)'"),
        ("DEF run m( move m) </s>", 5, "</s>", "expected nothing"),
        ("DEF run m( <pad> m)", 3, "<pad>", "expected a statement"),
        ("DEF run m( ELSE e( move e) m)", 3, "ELSE", "expected a statement"),
        ("DEF run m( REPEAT r( move r) m)", 4, "r(", "expected a count, 'R=0' to 'R=19'"),
        ("DEF run m( REPEAT R=20 r( move r) m)", 4, "R=20", "'R=20', unknown to Karel"),
        ("DEF run m( REPEAT R=2 w( move w) m)", 5, "w(", "expected 'r('"),
        ("DEF run m( REPEAT R=2 r( move w) m)", 7, "w)", "a statement or 'r)', for the block opened at token 5 'r('"),
        ("DEF run m( WHILE frontIsClear w( move w) m)", 4, "frontIsClear", "expected 'c('"),
        ("DEF run m( WHILE c( move c) w( move w) m)", 5, "move", "expected a test or 'not'"),
        ("DEF run m( WHILE c( not frontIsClear c) w( move w) m)", 6, "frontIsClear", "expected 'c('"),
        ("DEF run m( WHILE c( not c( frontIsClear c) w( move w) m)", 9, "w(", "expected 'c)'"),
        ("DEF run m( WHILE c( frontIsClear c) i( move i) m)", 7, "i(", "expected 'w('"),
        ("DEF run m( IF c( frontIsClear c) i( m) m)", 8, "m)", "expected a statement, for the block opened at token 7"),
        ("DEF run m( IF c( frontIsClear c) i( move i) ELSE e( move e) m)", 10, "ELSE", "a statement or 'm)'"),
        ("DEF run m( IFELSE c( frontIsClear c) i( move i) m)", 10, "m)", "expected 'ELSE'"),
        ("DEF run m( IFELSE c( frontIsClear c) i( move i) ELSE i( move i) m)", 11, "i(", "expected 'e('"),
        ("DEF run m( IFELSE c( frontIsClear c) i( move i) ELSE e( e) m)", 12, "e)", "opened at token 11 'e('"),
    ],
)
def test_what_is_no_program_is_refused_with_the_place(text, position, token, said):
    error = check(text)
    assert error is not None
    assert (error.position, error.token) == (position, token)
    assert said in str(error)
    with pytest.raises(KarelSyntaxError) as raised:
        parse(tokenize(text))
    assert str(raised.value) == str(error)


def test_ids_that_are_no_tokens():
    error = check([*encode(["DEF", "run", "m("]), 53, ID["m)"]])
    assert error is not None
    assert (error.position, error.token) == (3, "id 53")
    assert check([-1]) is not None
    with pytest.raises(InputError, match=r"token 1 has the id 53; Karel's ids are 0 to 52"):
        decode([0, 53])
    with pytest.raises(InputError, match=r"token 1 has the id -1"):
        decode([0, -1])
    with pytest.raises(InputError, match=r"token 1, 'jump', is not one of Karel's 53 tokens"):
        encode(["move", "jump"])


def test_a_syntax_error_survives_a_trip_between_processes():
    error = check("DEF run m( jump m)")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(again), again.position, again.token) == (str(error), 3, "jump")


@given(st.lists(st.integers(-1, 53), max_size=30))
def test_any_ids_are_judged(ids):
    error = check(ids)
    assert error is None or 0 <= error.position <= len(ids)


@given(programs, st.data())
def test_the_error_stands_where_the_program_was_spoilt(tokens, data):
    place = data.draw(st.integers(0, len(tokens) - 1))
    spoilt = [*tokens[:place], "<pad>", *tokens[place + 1 :]]
    error = check(spoilt)
    assert error is not None
    assert error.position == place
    cut = check(tokens[:place])
    assert cut is not None
    assert (cut.position, cut.token) == (place, None)


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("IF c( frontIsClear c) i(", "i)"),
        ("WHILE c( frontIsClear c) w(", "w)"),
        ("REPEAT R=1 r(", "r)"),
        ("IFELSE c( frontIsClear c) i( move i) ELSE e(", "e)"),
        ("IFELSE c( frontIsClear c) i(", "i) ELSE e( move e)"),
    ],
)
def test_no_nesting_is_too_deep(opening, closing):
    tokens = f"DEF run m( {f'{opening} ' * DEEP} move {f'{closing} ' * DEEP} m)".split()
    program = parse(tokens)
    assert to_tokens(program) == tokens
    assert program == parse(tokens)
    assert tokenize(pretty(program)) == tokens
    assert from_json(to_json(program)) == program
    error = check(tokens[:-1])
    assert error is not None
    assert error.position == len(tokens) - 1


def test_hostile_depth():
    tokens = ["DEF", "run", "m(", *["IF", "c(", "frontIsClear", "c)", "i("] * 100_000]
    error = check(tokens)
    assert error is not None
    assert error.position == len(tokens)


def test_no_negation_is_too_deep():
    tokens = f"DEF run m( IF {'c( not ' * DEEP} c( frontIsClear {'c) ' * (DEEP + 1)} i( move i) m)".split()
    program = parse(tokens)
    assert program.body == (If(Condition("frontIsClear", DEEP), (Action("move"),)),)
    assert to_tokens(program) == tokens
    assert from_json(to_json(program)) == program


def test_json_forms_in_circulation():
    move = {"type": "move"}
    tree = {
        "type": "run",
        "body": [
            {"type": "repeat", "times": {"type": "count", "value": 2}, "body": [move]},
            {"type": "while", "cond": {"type": "not", "cond": {"type": "leftIsClear"}}, "body": [move]},
            {"type": "if", "condition": "notFrontIsClear", "body": [{"type": "turnLeft"}]},
            {"type": "repeatUntil", "condition": "markersPresent", "body": [move]},
            {"type": "ifElse", "condition": {"type": "rightIsClear"}, "ifBody": [move], "elseBody": [move, move]},
        ],
    }
    assert to_tokens(from_json(tree)) == tokenize(
        """DEF run m( REPEAT R=2 r( move r) WHILE c( not c( leftIsClear c) c) w( move w)
        IF c( not c( frontIsClear c) c) i( turnLeft i) WHILE c( not c( markersPresent c) c) w( move w)
        IFELSE c( rightIsClear c) i( move i) ELSE e( move move e) m)"""
    )


def test_the_json_form_that_is_written():
    program = parse("DEF run m( REPEAT R=2 r( IF c( not c( leftIsClear c) c) i( move i) r) m)")
    inner = {"type": "if", "condition": "notLeftIsClear", "body": [{"type": "move"}]}
    assert to_json(program) == {"type": "run", "body": [{"type": "repeat", "times": 2, "body": [inner]}]}


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ([], "program: expected an object with 'type'"),
        ({}, "program: 'type' is missing"),
        ({"type": 3}, "program.type: expected a string"),
        ({"type": "move"}, "program: a program's type is 'run', not 'move'"),
        ({"type": "run"}, "program: 'body' is missing"),
        ({"type": "run", "body": []}, "program.body: expected a list of at least one statement, not []"),
        ({"type": "run", "body": "move"}, "program.body: expected a list"),
        ({"type": "run", "body": [{"type": "jump"}]}, "program.body[0]: unknown type 'jump'"),
        ({"type": "run", "body": [{"type": "run", "body": [{"type": "move"}]}]}, "program.body[0]: unknown type 'run'"),
        ({"type": "run", "body": [{"type": "move"}, "move"]}, "program.body[1]: expected an object with 'type'"),
    ],
)
def test_json_that_is_no_program_is_refused_with_the_place(tree, said):
    with pytest.raises(InputError) as raised:
        from_json(tree)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ({"type": "repeat", "body": [{"type": "move"}]}, "[1]: 'times' is missing"),
        (
            {"type": "repeat", "times": 20, "body": [{"type": "move"}]},
            "[1].times: expected a whole number from 0 to",
        ),
        ({"type": "repeat", "times": True, "body": [{"type": "move"}]}, "[1].times: expected a whole number"),
        ({"type": "while", "body": [{"type": "move"}]}, "[1]: 'condition' is missing"),
        ({"type": "while", "condition": "isRaining", "body": [{"type": "move"}]}, "unknown condition 'isRaining'"),
        ({"type": "while", "condition": {"type": "not"}, "body": [{"type": "move"}]}, "[1].condition: 'condition' is"),
        ({"type": "if", "condition": 7, "body": [{"type": "move"}]}, "[1].condition: expected an object"),
        ({"type": "if", "condition": "frontIsClear", "body": [{"type": "if"}]}, "[1].body[0]: 'condition' is missing"),
        ({"type": "ifElse", "condition": "frontIsClear", "ifBody": [{"type": "move"}]}, "[1]: 'elseBody' is missing"),
    ],
)
def test_a_json_statement_that_is_none_is_refused_with_the_place(statement, said):
    with pytest.raises(InputError) as raised:
        from_json({"type": "run", "body": [{"type": "move"}, statement]})
    assert str(raised.value).startswith("program.body[1]")
    assert said in str(raised.value)


def test_trees_are_plain_values():
    assert {Action(name) for name in ACTIONS} == {Action(name) for name in reversed(ACTIONS)}
    assert Program((Action("move"),)) == parse("DEF run m( move m)")
