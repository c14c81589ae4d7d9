"""Random Karel programs like those of the public data set.

A program of a given length is drawn from a grammar in which each statement depends on the previous one and on the kind
of its block. The main block continues until the program has its length; an inner block may end after any statement.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from corollout.noise import mix_compiled
from corollout.numba_cache import numba
from corollout.tasks.karel.language import ACTIONS, ID, TESTS

SHORTEST_PROGRAM = 5
DEEPEST = 4  # nested constructs


class Grammar(NamedTuple):
    """Unnormalised weights of a grammar."""

    main: np.ndarray  # [previous statement, statement]
    stop: np.ndarray  # [previous statement]: the probability that it may end the main block
    inner: np.ndarray  # [block, previous statement, statement or end]
    tests: np.ndarray  # [construct, test]
    negations: np.ndarray  # [construct]: the probability that a test of walls is negated; tests of markers never are
    counts: np.ndarray  # [count of a REPEAT]


# With these weights, generated programs of at most 19 tokens, without those for which no worlds were found, have the
# statistics of 600 genuine programs of at most 19 tokens. They were fitted by iterative scaling: generate 6,000
# programs; multiply each weight by (g / h) ** 0.8, where g and h are 1.5 plus the count per 600 programs of its choice
# among genuine and generated ones; repeat a dozen times. Choices that are rare in such short programs were pooled over
# rows and bounded: constructs are at most 30 % of the first statements of inner blocks and 10 % of the others, and 10 %
# of what follows a WHILE, IF or IFELSE in the main block; in inner blocks there are 7 IFELSE for 10 IF. For the quality
# of the fit, run `python -m corollout.tasks.karel.statistics`.

# Columns: move turnLeft turnRight pickMarker putMarker REPEAT WHILE IF IFELSE, and the end of the block. Rows: the
# previous statement, in the same order, and the beginning of the block. Genuine programs never do and undo (turnLeft
# turnRight, pickMarker putMarker), and write two turns of either kind as turnLeft turnLeft.
_MAIN = (
    (108, 74, 58, 155, 167, 80, 141, 43, 174, 372),
    (254, 99, 0, 0, 0, 181, 300, 84, 81, 777),
    (309, 0, 0, 0, 0, 216, 270, 83, 121, 1000),
    (218, 133, 130, 64, 0, 69, 236, 68, 84, 637),
    (176, 112, 83, 0, 107, 101, 257, 104, 60, 547),
    (151, 69, 81, 155, 235, 120, 94, 61, 33, 511),
    (245, 100, 92, 164, 294, 39, 30, 20, 11, 519),
    (334, 131, 62, 168, 207, 39, 30, 20, 11, 566),
    (222, 71, 60, 220, 323, 39, 30, 20, 11, 244),
    (173, 75, 73, 150, 204, 98, 166, 15, 46, 0),
)
_CONSTRUCT = 5  # one row for all four in the tables of inner blocks
_REPEATED = (
    (101, 17, 33, 16, 394, 18, 36, 33, 23, 331),
    (260, 1, 0, 2, 1, 18, 36, 32, 22, 628),
    (140, 0, 0, 3, 3, 18, 36, 33, 23, 744),
    (103, 3, 158, 8, 0, 18, 36, 33, 23, 618),
    (222, 22, 38, 0, 98, 18, 35, 33, 23, 510),
    (128, 43, 10, 14, 68, 0, 0, 0, 0, 736),
    (181, 55, 51, 94, 284, 56, 131, 87, 61, 0),
)
_WHILE = (
    (18, 92, 45, 72, 229, 41, 1, 37, 26, 439),
    (92, 38, 0, 1, 1, 40, 0, 38, 26, 764),
    (82, 0, 0, 2, 1, 39, 0, 37, 26, 811),
    (60, 85, 19, 1, 0, 39, 0, 38, 26, 731),
    (258, 33, 39, 0, 92, 41, 1, 37, 26, 473),
    (156, 0, 0, 189, 228, 0, 0, 0, 0, 427),
    (121, 89, 89, 150, 196, 23, 65, 158, 110, 0),
)
_BRANCH = (
    (52, 46, 46, 51, 21, 5, 7, 8, 5, 760),
    (77, 1, 0, 2, 2, 3, 4, 4, 3, 905),
    (1, 0, 0, 2, 1, 3, 4, 4, 3, 982),
    (108, 63, 1, 30, 0, 3, 4, 4, 3, 785),
    (49, 45, 46, 0, 1, 3, 4, 4, 3, 846),
    (8, 9, 6, 5, 346, 2, 2, 2, 1, 619),
    (104, 124, 142, 225, 224, 173, 3, 3, 2, 0),
)
# Columns: frontIsClear leftIsClear rightIsClear markersPresent noMarkersPresent; rows: WHILE, IF, IFELSE.
_TESTS = ((317, 190, 157, 135, 202), (185, 211, 209, 160, 235), (113, 270, 321, 167, 130))


def _inner(rows: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    return [*rows[:_CONSTRUCT], *4 * [rows[_CONSTRUCT]], rows[_CONSTRUCT + 1]]


GRAMMAR = Grammar(
    main=np.array(_MAIN, np.float64)[:, :-1],
    stop=np.array(_MAIN, np.float64)[:, -1] / 1000,
    inner=np.array([_inner(_REPEATED), _inner(_WHILE), _inner(_BRANCH)], np.float64),
    tests=np.array(_TESTS, np.float64),
    negations=np.array([0.23, 0.26, 0.26]),
    counts=np.array([0, 0, 88, 143, 188, 215, 136, 117, 52, 31, 31], np.float64),
)

# Lengths of 600 genuine programs of at most 19 tokens, from 5 on; only one program of 5 tokens does anything. The whole
# public set has a mean of about 20 and a maximum of about 45 tokens: half of it is assumed to be longer than 19, each
# length 0.89 times as frequent as the previous one.
_SHORT = (0.2, 2, 14, 51, 44, 36, 43, 60, 83, 64, 48, 31, 52, 65, 7)
_DECAY = 0.89


def length_weights(shortest: int, longest: int) -> np.ndarray:
    """Weights of the lengths 0, 1, … ``longest``; those below ``shortest`` are 0."""
    first_long = SHORTEST_PROGRAM + len(_SHORT)
    weights = np.zeros(max(longest + 1, first_long))
    weights[SHORTEST_PROGRAM:first_long] = np.array(_SHORT) / sum(_SHORT)
    weights[first_long:] = (1 - _DECAY) * _DECAY ** np.arange(len(weights) - first_long)
    weights[:shortest] = 0
    return weights[: longest + 1]


_TURN_LEFT, _MOVE = ACTIONS.index("turnLeft"), ACTIONS.index("move")
_ACTIONS, _WALL_TESTS = len(ACTIONS), TESTS.index("markersPresent")
_FIRST_CONDITIONAL = _ACTIONS + 1
_BEGIN = _END = _ACTIONS + 4
_IN_MAIN, _IN_REPEAT, _IN_WHILE, _IN_IF, _IN_THEN, _IN_ELSE = range(6)
_DEF, _RUN, _ELSE, _NOT, _OPEN, _CLOSE = (ID[token] for token in ("DEF", "run", "ELSE", "not", "c(", "c)"))
_FIRST_ACTION, _FIRST_TEST, _FIRST_COUNT = ID[ACTIONS[0]], ID[TESTS[0]], ID["R=0"]
_CONSTRUCTS = np.array([ID[token] for token in ("REPEAT", "WHILE", "IF", "IFELSE")], np.uint8)
_OPENERS = np.array([ID[token] for token in ("m(", "r(", "w(", "i(", "i(", "e(")], np.uint8)
_CLOSERS = np.array([ID[token] for token in ("m)", "r)", "w)", "i)", "i)", "e)")], np.uint8)


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def uniform(state):
    """A number in [0, 1) from a SplitMix64 stream, whose state is ``state[0]``."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return np.float64(mix_compiled(state[0]) >> np.uint64(11)) * 2.0**-53


@no_type_check
@numba.njit(cache=True, nogil=True)
def choose(state, weights):
    """Draw an index in proportion to its weight."""
    total = 0.0
    for i in range(len(weights)):
        total += weights[i]
    left = uniform(state) * total
    last = 0
    for i in range(len(weights)):
        if weights[i] > 0:
            last = i
            left -= weights[i]
            if left < 0:
                break
    return last


@no_type_check
@numba.njit(cache=True, nogil=True)
def draw_program(state, length, grammar, tokens):
    """Try to draw a program of this length into ``tokens[:length]``; return whether it succeeded."""
    kinds, before = np.zeros(DEEPEST + 1, np.int64), np.zeros(DEEPEST + 1, np.int64)
    tokens[0], tokens[1], tokens[2] = _DEF, _RUN, _OPENERS[_IN_MAIN]
    size, depth, moves = 3, 0, False
    before[0] = _BEGIN
    while size < length:
        kind, last = kinds[depth], before[depth]
        if kind == _IN_MAIN:
            if size == length - 1:
                tokens[size] = _CLOSERS[_IN_MAIN]
                # Every genuine program moves.
                return moves and uniform(state) < grammar.stop[last]
            chosen = choose(state, grammar.main[last])
        else:
            chosen = choose(state, grammar.inner[min(kind, _IN_IF) - 1, last])
        before[depth] = chosen
        if chosen == _END:
            tokens[size] = _CLOSERS[kind]
            size += 1
            if kind == _IN_THEN:
                if size + 2 > length:
                    return False
                tokens[size], tokens[size + 1] = _ELSE, _OPENERS[_IN_ELSE]
                size += 2
                kinds[depth], before[depth] = _IN_ELSE, _BEGIN
            else:
                depth -= 1
        elif chosen < _ACTIONS:
            tokens[size] = _FIRST_ACTION + chosen
            # Three left turns are written as a right turn.
            if chosen == _TURN_LEFT and tokens[size - 1] == tokens[size] and tokens[size - 2] == tokens[size]:
                return False
            moves |= chosen == _MOVE
            size += 1
        else:
            # The shortest continuation: a body of one action and the ends of all open blocks, at least two tokens.
            if depth == DEEPEST or size + (6 if chosen == _ACTIONS else 8) > length:
                return False
            tokens[size] = _CONSTRUCTS[chosen - _ACTIONS]
            if chosen == _ACTIONS:
                tokens[size + 1] = _FIRST_COUNT + choose(state, grammar.counts)
                size += 2
                kind = _IN_REPEAT
            else:
                row = chosen - _FIRST_CONDITIONAL
                test = choose(state, grammar.tests[row])
                negated = test < _WALL_TESTS and uniform(state) < grammar.negations[row]
                tokens[size + 1] = _OPEN
                size += 2
                if negated:
                    if size + 9 > length:
                        return False
                    tokens[size], tokens[size + 1] = _NOT, _OPEN
                    size += 2
                tokens[size], tokens[size + 1] = _FIRST_TEST + test, _CLOSE
                size += 2
                if negated:
                    tokens[size] = _CLOSE
                    size += 1
                kind = _IN_WHILE + row
            tokens[size] = _OPENERS[kind]
            size += 1
            depth += 1
            kinds[depth], before[depth] = kind, _BEGIN
    return False
