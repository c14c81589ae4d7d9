"""The grammar of Karel as an automaton over tokens: which tokens are allowed next, for many rows at once.

A token is allowed if the program can still be completed, end token included, within the maximal length. The length of
the shortest completion is always known, so a row only counts the tokens it has to spare, and a token that makes the
shortest completion longer has a cost:

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

# What comes next: the named token, the opening or the first statement of the innermost block, …
_MODES = range(13)
_START, _DEF, _RUN, _OPEN, _FIRST, _NEXT, _COUNT, _CONDITION, _TEST, _CLOSE, _ELSE, _END, _LOST = _MODES
# Kinds of blocks, with the tokens that begin the statement, open the block and close it.
_KINDS = range(6)
_MAIN, _REPEAT, _WHILE, _IF, _THEN, _OTHERWISE = _KINDS
_OPENERS = ("m(", "r(", "w(", "i(", "i(", "e(")
_CLOSERS = ("m)", "r)", "w)", "i)", "i)", "e)")
_STATEMENTS = {"REPEAT": (_REPEAT, 4), "WHILE": (_WHILE, 6), "IF": (_IF, 6), "IFELSE": (_THEN, 10)}
_NOT = 3
# The stack of open blocks is an integer: three bits per block, the innermost last. The main block is 0.
_BITS = 3
_DEEPEST = 63 // _BITS
LONGEST = SHORTEST + 4 * _DEEPEST + 3  # so that blocks nest no deeper than that
_TOO_MUCH = 1 << 20


@dataclass(frozen=True)
class GrammarState:
    """The state of the automaton in each row."""

    mode: Int64[Tensor, " row"]
    blocks: Int64[Tensor, " row"]  # the stack
    brackets: Int64[Tensor, " row"]  # open ones, of a condition
    spare: Int64[Tensor, " row"]  # tokens left beyond the shortest completion


class Grammar(nn.Module):
    """The automaton for programs of at most ``max_length`` tokens, end token included. It has no parameters.

    After a token that is not allowed, a row is outside the grammar, and everything is allowed.
    """

    # int64[situation, token, …]: cost, next mode, bits popped off the stack and pushed, the block pushed, brackets.
    table: Tensor
    costs: Tensor

    def __init__(self, max_length: int):
        super().__init__()
        if not SHORTEST <= max_length <= LONGEST:
            raise InputError(
                f"with the grammar, the maximal length must be from {SHORTEST} (the shortest program) to {LONGEST} "
                f"tokens, not {max_length}"
            )
        self.max_length = max_length
        table = _table()
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("costs", table[:, :, 0].contiguous(), persistent=False)

    def start(self, rows: int) -> GrammarState:
        """The state before the start token."""
        zeros = torch.zeros(rows, dtype=torch.int64, device=self.table.device)
        return GrammarState(zeros + _START, zeros, zeros, zeros + (self.max_length - SHORTEST))

    def advance(self, state: GrammarState, tokens: Int64[Tensor, " row"]) -> GrammarState:
        """Read a token in each row."""
        cost, mode, off, on, block, brackets = self.table[_situation(state), tokens].unbind(1)
        brackets = state.brackets + brackets
        mode = torch.where((mode == _CLOSE) & (brackets == 0), _OPEN, mode)
        lost = cost > state.spare
        return GrammarState(
            torch.where(lost, _LOST, mode),
            ((state.blocks >> off) << on) | block,
            brackets,
            torch.where(lost, 0, state.spare - cost),
        )

    def allowed(self, state: GrammarState) -> Bool[Tensor, "row vocab"]:
        """The tokens that are allowed next; there is always one."""
        return self.costs[_situation(state)] <= state.spare[:, None]

    def allowed_after(self, tokens: Int64[Tensor, "row step"]) -> Bool[Tensor, "row step vocab"]:
        """The tokens that are allowed after each of these, of which the first is the start token."""
        state, masks = self.start(len(tokens)), []
        for t in range(tokens.shape[1]):
            state = self.advance(state, tokens[:, t])
            masks.append(self.allowed(state))
        return torch.stack(masks, 1)


def _situation(state: GrammarState) -> Int64[Tensor, " row"]:
    return (state.mode << _BITS) | (state.blocks & ((1 << _BITS) - 1))


def _table() -> Int64[Tensor, "situation token entry"]:
    table = torch.zeros(len(_MODES), 1 << _BITS, len(TOKENS), 6, dtype=torch.int64)
    table[:_LOST, :, :, 0] = _TOO_MUCH
    table[:, :, :, 1] = _LOST

    def rule(mode: int, tokens: Iterable[str], then: int, kinds: Sequence[int] = _KINDS, **entries: int) -> None:
        cost, off, on, block, brackets = (entries.get(name, 0) for name in ("cost", "off", "on", "block", "brackets"))
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
    rule(_CLOSE, ["c)"], _CLOSE, brackets=-1)  # once no bracket is open, the block begins
    rule(_NEXT, [_CLOSERS[_MAIN]], _END, [_MAIN])
    for kind in (_REPEAT, _WHILE, _IF, _OTHERWISE):
        rule(_NEXT, [_CLOSERS[kind]], _NEXT, [kind], off=1)
    rule(_NEXT, [_CLOSERS[_THEN]], _ELSE, [_THEN], off=1, on=1, block=_OTHERWISE)
    rule(_ELSE, ["ELSE"], _OPEN)
    rule(_END, [TOKENS[END]], _END)
    return table.flatten(0, 1)
