"""Programs as text, tokens, ids, trees and JSON, and the errors of what is not a program."""

import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corollout.errors import InputError
from corollout.tasks.karel import check, decode, encode, from_json, parse, pretty, to_json, to_tokens, tokenize
from corollout.tasks.karel.language import ID, TOKENS, Action, Condition, If, IfElse, KarelSyntaxError, Repeat, While
from tests.support.karel_strategies import programs

DEEP = 3_000  # deeper than any recursion


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
    assert program != parse([*tokens[:-1], "move", "m)"])


def test_the_vocabulary_and_the_tree_of_a_program():
    assert len(TOKENS) == len(ID) == 53
    assert TOKENS[:3] == ("<pad>", "<s>", "</s>")
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


def test_pretty_puts_a_statement_on_a_line():
    text = (
        "DEF run m( WHILE c( frontIsClear c) w( move w) "
        "IFELSE c( not c( leftIsClear c) c) i( turnLeft i) ELSE e( REPEAT R=2 r( move r) e) m)"
    )
    expected = """DEF run m(
    WHILE c( frontIsClear c) w(
        move
    w)
    IFELSE c( not c( leftIsClear c) c) i(
        turnLeft
    i) ELSE e(
        REPEAT R=2 r(
            move
        r)
    e)
m)"""
    assert pretty(parse(text)) == expected
    # Brackets need no blanks.
    dense = "DEF run m(WHILE c(not c(frontIsClear c)c)w(turnLeft w)REPEAT R=12r(move r)m)"
    clear = "DEF run m( WHILE c( not c( frontIsClear c) c) w( turnLeft w) REPEAT R=12 r( move r) m)"
    assert " ".join(tokenize(dense)) == clear
    assert tokenize("move() mov") == ["move()", "mov"]  # words that are no tokens stay whole


@pytest.mark.parametrize(
    ("text", "position", "token", "said"),
    [
        ("", 0, None, "token 0 (the end): expected 'DEF'"),
        ("run", 0, "run", "token 0 ('run'): expected 'DEF'"),
        ("DEF run m( m)", 3, "m)", "expected a statement, for the block opened at token 2 'm('"),
        ("DEF run m( move", 4, None, "token 4 (the end): expected a statement or 'm)', for the block opened"),
        ("DEF run m( jump m)", 3, "jump", "token 3 ('jump', not a token of Karel): expected a statement"),
        ("DEF run m( move m) move", 5, "move", "expected nothing after the last 'm)'"),
        ("DEF run m( REPEAT r( move r) m)", 4, "r(", "expected a count, 'R=0' to 'R=19'"),
        ("DEF run m( REPEAT R=20 r( move r) m)", 4, "R=20", "'R=20', not a token of Karel"),
        ("DEF run m( REPEAT R=2 r( move w) m)", 7, "w)", "a statement or 'r)', for the block opened at token 5 'r('"),
        ("DEF run m( WHILE c( move c) w( move w) m)", 5, "move", "expected a test or 'not'"),
        ("DEF run m( WHILE c( not frontIsClear c) w( move w) m)", 6, "frontIsClear", "expected 'c('"),
        ("DEF run m( WHILE c( not c( frontIsClear c) w( move w) m)", 9, "w(", "expected 'c)'"),
        ("DEF run m( IF c( frontIsClear c) i( m) m)", 8, "m)", "expected a statement, for the block opened at token 7"),
        ("DEF run m( IF c( frontIsClear c) i( move i) ELSE e( move e) m)", 10, "ELSE", "a statement or 'm)'"),
        ("DEF run m( IFELSE c( frontIsClear c) i( move i) m)", 10, "m)", "expected 'ELSE'"),
        ("DEF run m( IFELSE c( frontIsClear c) i( move i) ELSE e( e) m)", 12, "e)", "opened at token 11 'e('"),
    ],
)
def test_syntax_errors_and_their_positions(text, position, token, said):
    error = check(text)
    assert error is not None
    assert (error.position, error.token) == (position, token)
    assert said in str(error)
    with pytest.raises(KarelSyntaxError) as raised:
        parse(tokenize(text))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (errors travel between processes)
    assert str(raised.value) == str(again) == str(error)
    assert (again.position, again.token) == (position, token)


def test_ids_that_are_no_tokens():
    for number in (53, -1):
        error = check([*encode(["DEF", "run", "m("]), number, ID["m)"]])
        assert error is not None
        assert (error.position, error.token) == (3, f"id {number}")
        with pytest.raises(InputError, match=f"token 1 has the id {number}; Karel's ids are 0 to 52"):
            decode([0, number])
    with pytest.raises(InputError, match=r"token 1, 'jump', is not one of Karel's 53 tokens"):
        encode(["move", "jump"])


@given(programs, st.data())
def test_the_error_stands_where_the_program_was_spoilt(tokens, data):
    position = data.draw(st.integers(0, len(tokens) - 1))
    spoilt, cut = check([*tokens[:position], "<pad>", *tokens[position + 1 :]]), check(tokens[:position])
    assert spoilt is not None
    assert cut is not None
    assert (spoilt.position, cut.position, cut.token) == (position, position, None)


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
    assert to_tokens(program) == tokenize(pretty(program)) == tokens
    assert from_json(to_json(program)) == program
    error = check(tokens[:-1])
    assert error is not None
    assert error.position == len(tokens) - 1


def test_no_negation_is_too_deep():
    tokens = f"DEF run m( IF {'c( not ' * DEEP} c( frontIsClear {'c) ' * (DEEP + 1)} i( move i) m)".split()
    program = parse(tokens)
    assert program.body == (If(Condition("frontIsClear", DEEP), (Action("move"),)),)
    assert to_tokens(from_json(to_json(program))) == tokens


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
    # The form that is written.
    program = parse("DEF run m( REPEAT R=2 r( IF c( not c( leftIsClear c) c) i( move i) r) m)")
    inner = {"type": "if", "condition": "notLeftIsClear", "body": [{"type": "move"}]}
    assert to_json(program) == {"type": "run", "body": [{"type": "repeat", "times": 2, "body": [inner]}]}


MOVE = {"type": "move"}


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ([], "program: expected an object with 'type'"),
        ({}, "program: 'type' is missing"),
        ({"type": 3}, "program.type: expected a string"),
        ({"type": "move"}, "program: the type of a program must be 'run', not 'move'"),
        ({"type": "run"}, "program: 'body' is missing"),
        ({"type": "run", "body": []}, "program.body: expected a list of at least one statement, not []"),
        ("move", "[1]: expected an object with 'type'"),
        ({"type": "jump"}, "[1]: unknown type 'jump'"),
        ({"type": "repeat", "body": [MOVE]}, "[1]: 'times' is missing"),
        ({"type": "repeat", "times": 20, "body": [MOVE]}, "[1].times: expected a whole number from 0 to"),
        ({"type": "repeat", "times": True, "body": [MOVE]}, "[1].times: expected a whole number"),
        ({"type": "while", "condition": "isRaining", "body": [MOVE]}, "[1].condition: unknown condition 'isRaining'"),
        ({"type": "while", "condition": {"type": "not"}, "body": [MOVE]}, "[1].condition: 'condition' is missing"),
        ({"type": "if", "condition": 7, "body": [MOVE]}, "[1].condition: expected an object"),
        ({"type": "if", "condition": "frontIsClear", "body": [{"type": "if"}]}, "[1].body[0]: 'condition' is missing"),
        ({"type": "ifElse", "condition": "frontIsClear", "ifBody": [MOVE]}, "[1]: 'elseBody' is missing"),
    ],
)
def test_json_that_is_not_a_program_or_a_statement(tree, said):
    if said[0] == "[":  # the second statement of a program
        tree, said = {"type": "run", "body": [MOVE, tree]}, f"program.body{said}"
    with pytest.raises(InputError, match=re.escape(said)):
        from_json(tree)
