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

from typing import TYPE_CHECKING

from corollout.lazy import lazy_names

if TYPE_CHECKING:
    from corollout.tasks.karel.interpreter import Result, run
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
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "interpreter": "Result run",
            "language": "KarelSyntaxError Program check decode encode parse pretty to_tokens tokenize",
            "program_json": "from_json to_json",
            "world": "World same_state",
        },
    )

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
