"""Random Karel programs that look like those of the public data set.

A program of a given length is drawn from a grammar in which each statement depends on the statement before it and on
the kind of block it stands in. The main block goes on until the program has its length; an inner block ends by itself.
"""

from typing import NamedTuple, no_type_check

import numba
import numpy as np

from corollout.noise import _mix_compiled  # pyright: ignore[reportPrivateUsage]
from corollout.tasks.karel.language import ACTIONS, ID, TESTS

SHORTEST_PROGRAM = 5
DEEPEST = 4  # constructs inside one another


class Grammar(NamedTuple):
    """Weights of a grammar; those of a choice need not sum to one."""

    main: np.ndarray  # [statement before, statement]
    stop: np.ndarray  # [statement before]: the chance that it may be the main block's last
    inner: np.ndarray  # [block, statement before, statement or end]
    tests: np.ndarray  # [construct, test]
    negations: np.ndarray  # [construct]: the chance that a test of walls is negated; one of markers never is
    counts: np.ndarray  # [count of a REPEAT]


# The numbers below are those with which generated programs of at most 19 tokens, after those for which no worlds were
# found have been dropped, have the statistics of 600 genuine ones of at most 19 tokens. They were found by iterative
# scaling: generate 16,000 programs; multiply each weight by the square root of the ratio of how often its choice was
# made in genuine and in generated programs, both plus 1.5; repeat. What so short programs cannot show was pooled: what
# follows a construct, and constructs inside constructs (an IFELSE there is to an IF as in the main block). How well
# they fit: `python -m corollout.tasks.karel.statistics`.

# Columns: move turnLeft turnRight pickMarker putMarker REPEAT WHILE IF IFELSE, and the end of the block. Rows: what
# stands before, the same, and the beginning of the block last. Genuine programs never do and undo (turnLeft turnRight,
# pickMarker putMarker), and write two turns of either kind as turnLeft turnLeft.
_MAIN = (
    (85, 67, 49, 131, 138, 130, 238, 38, 124, 113),
    (160, 73, 0, 0, 0, 198, 464, 50, 54, 189),
    (196, 0, 0, 0, 0, 217, 434, 63, 90, 276),
    (153, 112, 100, 52, 0, 82, 381, 56, 64, 206),
    (125, 99, 65, 0, 85, 107, 402, 75, 43, 170),
    (148, 93, 111, 165, 251, 90, 70, 46, 25, 1000),
    (245, 105, 97, 172, 302, 31, 24, 16, 9, 171),
    (311, 114, 77, 159, 233, 41, 32, 21, 12, 178),
    (226, 86, 67, 212, 307, 40, 31, 20, 11, 63),
    (148, 74, 76, 143, 193, 79, 243, 12, 33, 0),
)
_CONSTRUCT = 5  # in the tables of inner blocks, one row for all four
_REPEATED = (
    (38, 7, 20, 8, 188, 22, 68, 20, 16, 611),
    (109, 2, 0, 3, 2, 9, 28, 8, 7, 832),
    (41, 0, 0, 3, 3, 21, 67, 20, 16, 828),
    (27, 3, 86, 6, 0, 15, 48, 14, 11, 789),
    (92, 12, 24, 0, 42, 18, 55, 17, 13, 728),
    (82, 58, 32, 50, 75, 13, 10, 10, 8, 663),
    (235, 72, 67, 127, 338, 17, 95, 27, 22, 0),
)
_WHILE = (
    (22, 81, 53, 56, 254, 30, 10, 40, 25, 429),
    (94, 49, 0, 1, 1, 25, 5, 35, 25, 765),
    (90, 0, 0, 1, 1, 25, 5, 35, 25, 818),
    (80, 79, 27, 1, 0, 25, 5, 35, 25, 723),
    (290, 31, 32, 0, 91, 30, 10, 40, 25, 451),
    (141, 1, 1, 189, 242, 5, 5, 5, 5, 406),
    (136, 87, 104, 159, 214, 30, 70, 120, 80, 0),
)
_BRANCH = (
    (53, 47, 45, 51, 27, 12, 14, 14, 11, 725),
    (71, 3, 0, 4, 3, 7, 8, 8, 6, 889),
    (2, 0, 0, 3, 3, 7, 8, 8, 7, 963),
    (87, 68, 2, 33, 0, 6, 7, 7, 6, 784),
    (42, 55, 51, 0, 2, 6, 8, 8, 6, 822),
    (15, 16, 12, 9, 244, 4, 3, 3, 2, 694),
    (108, 122, 151, 221, 227, 152, 7, 6, 5, 0),
)
# Columns: frontIsClear leftIsClear rightIsClear markersPresent noMarkersPresent; rows: WHILE, IF, IFELSE.
_TESTS = (
    (326, 179, 148, 141, 207),
    (187, 207, 200, 161, 246),
    (119, 259, 305, 175, 143),
)


def _inner(rows: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    return [*rows[:_CONSTRUCT], *4 * [rows[_CONSTRUCT]], rows[_CONSTRUCT + 1]]


GRAMMAR = Grammar(
    main=np.array(_MAIN, np.float64)[:, :-1],
    stop=np.array(_MAIN, np.float64)[:, -1] / 1000,
    inner=np.array([_inner(_REPEATED), _inner(_WHILE), _inner(_BRANCH)], np.float64),
    tests=np.array(_TESTS, np.float64),
    negations=np.array([0.22, 0.28, 0.28]),
    counts=np.array([0, 0, 89, 144, 197, 209, 136, 108, 57, 32, 30], np.float64),
)

# Lengths of 600 genuine programs of at most 19 tokens, from 5 on; there is only one of 5 that does something. The
# whole public set has a mean of about 20 and programs of up to about 45 tokens: half of it is taken to be longer than
# 19, each length being 0.89 times as frequent as the one before.
_SHORT = (0.2, 2, 14, 51, 44, 36, 43, 60, 83, 64, 48, 31, 52, 65, 7)
_DECAY = 0.89


def length_weights(shortest: int, longest: int) -> np.ndarray:
    """How frequent programs of 0, 1, … ``longest`` tokens are; below ``shortest`` there are none."""
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
    return np.float64(_mix_compiled(state[0]) >> np.uint64(11)) * 2.0**-53


@no_type_check
@numba.njit(cache=True, nogil=True)
def choose(state, weights):
    """A place in ``weights`` with probability in proportion to its weight."""
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
    """Try to draw a program of a length; return whether ``tokens[:length]`` holds one now. Try again if not."""
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
            # Three turns to the left are written as one to the right.
            if chosen == _TURN_LEFT and tokens[size - 1] == tokens[size] and tokens[size - 2] == tokens[size]:
                return False
            moves |= chosen == _MOVE
            size += 1
        else:
            # The shortest that can follow: a body of one action and the ends of all that is open, at least two tokens.
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
