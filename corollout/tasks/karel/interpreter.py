"""The slow, plain interpreter of Karel, against which the compiled machine is checked.

A tick passes with each action, each evaluation of a condition and each round of a REPEAT. A program that needs more
than ``limit`` has failed, and so has one that moves into a wall or out of the grid, picks a marker where none is, or
puts one where ``MOST_MARKERS`` are.
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
Status = Literal["ok", "crash", "timeout", "syntax"]


@dataclass(frozen=True)
class Result:
    """How a run ended, what the hero did, the world as it was left, and the ticks that passed."""

    status: Status
    actions: list[str]  # those that were carried out; the one that crashed is not among them
    world: World
    ticks: int


class _Crash(Exception):
    """An action that cannot be done."""


class _Timeout(Exception):
    """One tick too many."""


def interpret(program: Program | str | Sequence[str] | Sequence[int], world: World, limit: int = LIMIT) -> Result:
    """Run a program, given as a tree, text, tokens or ids, on a world."""
    if not isinstance(program, Program):
        try:
            program = parse(program)
        except KarelSyntaxError:
            return Result("syntax", [], world, 0)
    run = _Run(world, limit)
    status: Status = "ok"
    try:
        run.run(program.body)
    except _Crash:
        status = "crash"
    except _Timeout:
        status = "timeout"
    return Result(status, run.actions, run.world(), run.ticks)


class _Run:
    """The state of a run."""

    def __init__(self, world: World, limit: int) -> None:
        self.start = world
        self.row, self.col, self.direction = world.hero
        self.markers = dict(world.markers)
        self.actions: list[str] = []
        self.ticks = 0
        self.limit = limit

    def world(self) -> World:
        start = self.start
        hero = (self.row, self.col, self.direction)
        return World(start.rows, start.cols, hero, start.walls, tuple(self.markers.items()))

    def run(self, body: Body) -> None:
        # The blocks that are being run, outermost first: a list instead of recursion, for programs of any depth.
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
        """The statements inside this one that are to be run, decided while they are."""
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
            raise _Timeout
        self.ticks += 1

    def act(self, name: str) -> None:
        self.tick()
        here = (self.row, self.col)
        match name:
            case "move":
                if not self.clear(0):
                    raise _Crash
                north, east = STEPS[self.direction]
                self.row, self.col = self.row + north, self.col + east
            case "turnLeft":
                self.direction = (self.direction - 1) % 4
            case "turnRight":
                self.direction = (self.direction + 1) % 4
            case "pickMarker":
                if here not in self.markers:
                    raise _Crash
                self.markers[here] -= 1
                if self.markers[here] == 0:
                    del self.markers[here]
            case "putMarker":
                if self.markers.get(here, 0) == MOST_MARKERS:
                    raise _Crash
                self.markers[here] = self.markers.get(here, 0) + 1
            case _:
                raise ValueError(name)
        self.actions.append(name)

    def holds(self, condition: Condition) -> bool:
        self.tick()
        match condition.test:
            case "frontIsClear":
                value = self.clear(0)
            case "leftIsClear":
                value = self.clear(-1)
            case "rightIsClear":
                value = self.clear(1)
            case "markersPresent":
                value = (self.row, self.col) in self.markers
            case "noMarkersPresent":
                value = (self.row, self.col) not in self.markers
            case _:
                raise ValueError(condition.test)
        return value != (condition.negations % 2 == 1)

    def clear(self, turn: int) -> bool:
        """Whether the next cell in a direction is free to enter: inside the grid, and no wall."""
        north, east = STEPS[(self.direction + turn) % 4]
        row, col = self.row + north, self.col + east
        return 0 <= row < self.start.rows and 0 <= col < self.start.cols and (row, col) not in self.start.walls
