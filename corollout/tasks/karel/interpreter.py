"""The slow and simple interpreter of Karel, the reference for the compiled machine.

Each action, each evaluation of a condition and each iteration of a REPEAT takes a tick. A program fails if it needs
more than ``limit`` ticks, moves into a wall or out of the grid, picks up a marker from an empty cell, or puts one on a
cell with ``MOST_MARKERS``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from corollout.tasks.karel.language import (
    Action,
    Body,
    Condition,
    If,
    IfElse,
    KarelSyntaxError,
    Program,
    Repeat,
    Statement,
    While,
    parse,
)
from corollout.tasks.karel.world import MOST_MARKERS, STEPS, World

LIMIT = 200
_TURNS = {"frontIsClear": 0, "leftIsClear": -1, "rightIsClear": 1}
Status = Literal["ok", "crash", "timeout", "syntax"]


@dataclass(frozen=True)
class Result:
    """How a run ended, the actions of the hero, the final world, and the ticks used."""

    status: Status
    actions: list[str]  # without the one that crashed
    world: World
    ticks: int


class _Stop(Exception):
    """The end of a run by a crash or a time-out."""

    def __init__(self, status: Status):
        self.status: Status = status


def interpret(program: Program | str | Sequence[str] | Sequence[int], world: World, limit: int = LIMIT) -> Result:
    """Run a program, given as a tree, text, tokens or ids, in a world."""
    if not isinstance(program, Program):
        try:
            program = parse(program)
        except KarelSyntaxError:
            return Result("syntax", [], world, 0)
    run, status = _Run(world, limit), "ok"
    try:
        run.run(program.body)
    except _Stop as stop:
        status = stop.status
    return Result(status, run.actions, run.world(), run.ticks)


def run(program: Program | str | Sequence[str] | Sequence[int], world: World) -> Result:
    """Run a program, given as text, tokens, ids or a tree, in a world, for at most 200 ticks."""
    return interpret(program, world)


class _Run:
    """The state of a run."""

    def __init__(self, world: World, limit: int) -> None:
        self.start, self.limit, self.ticks = world, limit, 0
        self.row, self.col, self.direction = world.hero
        self.markers = dict(world.markers)
        self.actions: list[str] = []

    def world(self) -> World:
        start = self.start
        hero = (self.row, self.col, self.direction)
        return World(start.rows, start.cols, hero, start.walls, tuple(self.markers.items()))

    def run(self, body: Body) -> None:
        # The open blocks, outermost first: a list instead of recursion, for programs of any depth.
        blocks: list[Iterator[Statement]] = [iter(body)]
        while blocks:
            statement = next(blocks[-1], None)
            if statement is None:
                blocks.pop()
            elif isinstance(statement, Action):
                self.act(statement.name)
            else:
                blocks.append(self.rounds(statement))

    def rounds(self, statement: Repeat | While | If | IfElse) -> Iterator[Statement]:
        """The statements inside this one in the order in which they run, decided on the way."""
        match statement:
            case Repeat(times, body):
                for _ in range(times):
                    self.tick()
                    yield from body
            case While(condition, body):
                while self.holds(condition):
                    yield from body
            case If(condition, body):
                if self.holds(condition):
                    yield from body
            case IfElse(condition, body, otherwise):
                yield from body if self.holds(condition) else otherwise

    def tick(self) -> None:
        if self.ticks == self.limit:
            raise _Stop("timeout")
        self.ticks += 1

    def act(self, name: str) -> None:
        self.tick()
        cell = (self.row, self.col)
        match name:
            case "move":
                if not self.clear(0):
                    raise _Stop("crash")
                north, east = STEPS[self.direction]
                self.row, self.col = self.row + north, self.col + east
            case "turnLeft":
                self.direction = (self.direction - 1) % 4
            case "turnRight":
                self.direction = (self.direction + 1) % 4
            case "pickMarker":
                if cell not in self.markers:
                    raise _Stop("crash")
                self.markers[cell] -= 1
                if self.markers[cell] == 0:
                    del self.markers[cell]
            case _:
                if self.markers.get(cell, 0) == MOST_MARKERS:
                    raise _Stop("crash")
                self.markers[cell] = self.markers.get(cell, 0) + 1
        self.actions.append(name)

    def holds(self, condition: Condition) -> bool:
        self.tick()
        if condition.test in _TURNS:
            value = self.clear(_TURNS[condition.test])
        else:
            value = ((self.row, self.col) in self.markers) == (condition.test == "markersPresent")
        return value != (condition.negations % 2 == 1)

    def clear(self, turn: int) -> bool:
        """Whether the next cell in a direction is inside the grid and not a wall."""
        north, east = STEPS[(self.direction + turn) % 4]
        row, col = self.row + north, self.col + east
        return 0 <= row < self.start.rows and 0 <= col < self.start.cols and (row, col) not in self.start.walls
