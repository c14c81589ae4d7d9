"""Karel program synthesis: find the program that turns each input world into its output world.

>>> from corollout.tasks.karel import World, run
>>> world = World(rows=2, cols=3, hero=(0, 0, 1))
>>> result = run("DEF run m( WHILE c( frontIsClear c) w( move putMarker w) m)", world)
>>> result.status, result.actions
('ok', ['move', 'putMarker', 'move', 'putMarker'])
>>> print(result.world.draw())
┌───────┐
│ · · · │
│ · 1▶1 │
└───────┘
"""

from collections.abc import Sequence

from corollout.tasks.karel.interpreter import Result, interpret
from corollout.tasks.karel.language import (
    KarelSyntaxError,
    Program,
    check,
    decode,
    encode,
    parse,
    pretty,
    to_tokens,
    tokenize,
)
from corollout.tasks.karel.program_json import from_json, to_json
from corollout.tasks.karel.world import World, same_state


def run(program: Program | str | Sequence[str] | Sequence[int], world: World) -> Result:
    """Run a program, given as text, tokens, ids or a tree, in a world, for at most 200 ticks."""
    return interpret(program, world)


__all__ = [
    "KarelSyntaxError",
    "Program",
    "Result",
    "World",
    "check",
    "decode",
    "encode",
    "from_json",
    "parse",
    "pretty",
    "run",
    "same_state",
    "to_json",
    "to_tokens",
    "tokenize",
]
