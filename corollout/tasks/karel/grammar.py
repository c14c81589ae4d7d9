"""The grammar of Karel as an automaton over tokens, for many rows at once: which tokens may come next.

A token may come if after it the program can still be ended, end token included, within the maximal length. The
shortest end is known at every place, so it is enough that a row counts the tokens it has to spare, and that a token
which makes the shortest end longer has a cost:

    the first statement of a block    0 for an action, 4 for REPEAT, 6 for WHILE and IF, 10 for IFELSE
    each further one                  one more
    not                               3
    anything else                     0
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from corollout.errors import InputError
from corollout.tasks.karel.language import ACTIONS, COUNTS, END, ID, START, TESTS, TOKENS

SHORTEST = 6  # DEF run m( move m) and the end token

# What is read next: a token that is named, the opening or the first statement of the innermost block, …
_START, _DEF, _RUN, _OPEN, _FIRST, _NEXT, _COUNT, _CONDITION, _TEST, _CLOSE, _ELSE, _END, _LOST = range(13)
_MODES = 13
# Kinds of blocks, with what begins the statement, opens the block and closes it.
_MAIN, _REPEAT, _WHILE, _IF, _THEN, _OTHERWISE = range(6)
_KINDS = range(6)
_OPENERS = ("m(", "r(", "w(", "i(", "i(", "e(")
_CLOSERS = ("m)", "r)", "w)", "i)", "i)", "e)")
_STATEMENTS = {"REPEAT": (_REPEAT, 4), "WHILE": (_WHILE, 6), "IF": (_IF, 6), "IFELSE": (_THEN, 10)}
_NOT = 3
# The stack of a row's open blocks is a whole number: three bits a block, the innermost last. The main block is 0.
_BITS = 3
_DEEPEST = 63 // _BITS
LONGEST = SHORTEST + 4 * _DEEPEST + 3  # in which no more blocks than that can lie inside one another
_TOO_MUCH = 1 << 20


@dataclass(frozen=True)
class Place:
    """Where rows are in their programs."""

    mode: Int64[Tensor, " row"]
    blocks: Int64[Tensor, " row"]  # the stack
    brackets: Int64[Tensor, " row"]  # of a condition, still open
    spare: Int64[Tensor, " row"]  # tokens left beyond the shortest end


class Grammar(nn.Module):
    """The automaton for programs of at most ``max_length`` tokens, end token included. It has no parameters.

    A row that reads a token which was not allowed has left the grammar, and everything is allowed to it.
    """

    # int64[situation, token, …]: the cost, the next mode, bits off the stack and on it, the block on it, brackets.
    table: Tensor
    costs: Tensor

    def __init__(self, max_length: int):
        super().__init__()
        if not SHORTEST <= max_length <= LONGEST:
            raise InputError(
                f"with the grammar, the maximal length must be from {SHORTEST}, which the shortest program needs, to "
                f"{LONGEST} tokens, not {max_length}"
            )
        self.max_length = max_length
        table = _table()
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("costs", table[:, :, 0].contiguous(), persistent=False)

    def start(self, rows: int) -> Place:
        """Before the start token."""
        zeros = torch.zeros(rows, dtype=torch.int64, device=self.table.device)
        return Place(zeros + _START, zeros, zeros, zeros + (self.max_length - SHORTEST))

    def advance(self, place: Place, tokens: Int64[Tensor, " row"]) -> Place:
        """Read a token in each row."""
        cost, mode, off, on, block, brackets = self.table[_situation(place), tokens].unbind(1)
        brackets = place.brackets + brackets
        mode = torch.where((mode == _CLOSE) & (brackets == 0), _OPEN, mode)
        lost = cost > place.spare
        return Place(
            torch.where(lost, _LOST, mode),
            ((place.blocks >> off) << on) | block,
            brackets,
            torch.where(lost, 0, place.spare - cost),
        )

    def allowed(self, place: Place) -> Bool[Tensor, "row vocab"]:
        """The tokens that may come next; there is always one."""
        return self.costs[_situation(place)] <= place.spare[:, None]

    def allowed_after(self, tokens: Int64[Tensor, "row step"]) -> Bool[Tensor, "row step vocab"]:
        """The tokens that may follow each of these, of which the first is the start token."""
        place, found = self.start(len(tokens)), []
        for t in range(tokens.shape[1]):
            place = self.advance(place, tokens[:, t])
            found.append(self.allowed(place))
        return torch.stack(found, 1)


def _situation(place: Place) -> Int64[Tensor, " row"]:
    return (place.mode << _BITS) | (place.blocks & ((1 << _BITS) - 1))


def _table() -> Int64[Tensor, "situation token what"]:
    table = torch.zeros(_MODES, 1 << _BITS, len(TOKENS), 6, dtype=torch.int64)
    table[:_LOST, :, :, 0] = _TOO_MUCH
    table[:, :, :, 1] = _LOST

    def rule(
        mode: int,
        tokens: Iterable[str],
        then: int,
        kinds: Sequence[int] = _KINDS,
        *,
        cost: int = 0,
        off: int = 0,
        on: int = 0,
        block: int = 0,
        brackets: int = 0,
    ) -> None:
        row = torch.tensor([cost, then, off * _BITS, on * _BITS, block, brackets])
        for token in tokens:
            table[mode, list(kinds), ID[token]] = row

    rule(_START, [TOKENS[START]], _DEF)
    rule(_DEF, ["DEF"], _RUN)
    rule(_RUN, ["run"], _OPEN)
    for kind in _KINDS:
        rule(_OPEN, [_OPENERS[kind]], _FIRST, [kind])
    for mode, more in ((_FIRST, 0), (_NEXT, 1)):
        rule(mode, ACTIONS, _NEXT, cost=more)
        for token, (kind, cost) in _STATEMENTS.items():
            rule(mode, [token], _COUNT if kind == _REPEAT else _CONDITION, cost=cost + more, on=1, block=kind)
    rule(_COUNT, COUNTS, _OPEN)
    rule(_CONDITION, ["c("], _TEST, brackets=1)
    rule(_TEST, ["not"], _CONDITION, cost=_NOT)
    rule(_TEST, TESTS, _CLOSE)
    rule(_CLOSE, ["c)"], _CLOSE, brackets=-1)  # until no bracket is open; then the block begins
    rule(_NEXT, [_CLOSERS[_MAIN]], _END, [_MAIN])
    for kind in (_REPEAT, _WHILE, _IF, _OTHERWISE):
        rule(_NEXT, [_CLOSERS[kind]], _NEXT, [kind], off=1)
    rule(_NEXT, [_CLOSERS[_THEN]], _ELSE, [_THEN], off=1, on=1, block=_OTHERWISE)
    rule(_ELSE, ["ELSE"], _OPEN)
    rule(_END, [TOKENS[END]], _END)
    return table.flatten(0, 1)
