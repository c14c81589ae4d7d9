"""The Karel language: its tokens, its grammar, and programs as tokens, as text and as trees.

program   := DEF run m( block m)
block     := statement+
statement := action | REPEAT R=n r( block r) | WHILE cond w( block w) | IF cond i( block i)
           | IFELSE cond i( block i) ELSE e( block e)
cond      := c( test c) | c( not cond c)
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from corollout.errors import InputError

PAD, START, END = 0, 1, 2
ACTIONS = ("move", "turnLeft", "turnRight", "pickMarker", "putMarker")
TESTS = ("frontIsClear", "leftIsClear", "rightIsClear", "markersPresent", "noMarkersPresent")
COUNTS = tuple(f"R={n}" for n in range(20))
TOKENS = (
    *("<pad>", "<s>", "</s>", "DEF", "run"),
    *("m(", "m)", "c(", "c)", "r(", "r)", "w(", "w)", "i(", "i)", "e(", "e)"),
    *COUNTS,
    *("REPEAT", "WHILE", "IF", "IFELSE", "ELSE", "not"),
    *TESTS,
    *ACTIONS,
)
ID = {token: number for number, token in enumerate(TOKENS)}
_BRACKET = re.compile(r"([mcrwie][()])")


def token_kind(token: str) -> Literal["action", "test", "bracket", "keyword"]:
    """The kind of a token, for its colour."""
    if token in ACTIONS:
        return "action"
    return "test" if token in TESTS else "bracket" if token[-1] in "()" else "keyword"


class KarelSyntaxError(InputError):
    """Tokens that are not a program: ``position``, from 0, and ``token`` of the first that is not allowed.

    If the program ends too early, ``position`` is its length and ``token`` is None.
    """

    def __init__(self, position: int, token: str | None, expected: str) -> None:
        what = "the end" if token is None else repr(token) if token in ID else f"{token!r}, not a token of Karel"
        super().__init__(f"token {position} ({what}): expected {expected}")
        self.position, self.token, self.expected = position, token, expected

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.position, self.token, self.expected)


@dataclass(frozen=True)
class Condition:
    """A test under some number of ``not``."""

    test: str
    negations: int = 0


@dataclass(frozen=True)
class Action:
    name: str


@dataclass(frozen=True)
class Repeat:
    times: int
    body: "Body"


@dataclass(frozen=True)
class While:
    condition: Condition
    body: "Body"


@dataclass(frozen=True)
class If:
    condition: Condition
    body: "Body"


@dataclass(frozen=True)
class IfElse:
    condition: Condition
    body: "Body"
    otherwise: "Body"


Statement = Action | Repeat | While | If | IfElse
Body = tuple[Statement, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """A program as a tree. It is compared and printed by its tokens, so that it may be nested to any depth."""

    body: Body

    def __eq__(self, other: object) -> bool:
        return to_tokens(self) == to_tokens(other) if isinstance(other, Program) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(to_tokens(self)))

    def __repr__(self) -> str:
        return f"parse({' '.join(to_tokens(self))!r})"


def tokenize(text: str) -> list[str]:
    """Split a text into tokens: at white space, and around brackets as in ``c(frontIsClear c)``.

    Words that are not tokens are kept; ``parse`` reports them.
    """
    tokens = []
    for word in text.split():
        parts = [part for part in _BRACKET.split(word) if part]
        tokens.extend(parts if all(part in ID for part in parts) else [word])
    return tokens


def encode(tokens: Sequence[str]) -> list[int]:
    """The ids of tokens."""
    for position, token in enumerate(tokens):
        if token not in ID:
            raise InputError(f"token {position}, {token!r}, is not one of Karel's {len(TOKENS)} tokens")
    return [ID[token] for token in tokens]


def decode(ids: Sequence[int]) -> list[str]:
    """The tokens with these ids."""
    for position, number in enumerate(ids):
        if not 0 <= number < len(TOKENS):
            raise InputError(f"token {position} has the id {number}; Karel's ids are 0 to {len(TOKENS) - 1}")
    return [TOKENS[number] for number in ids]


def check(tokens: str | Sequence[str] | Sequence[int]) -> KarelSyntaxError | None:
    """The syntax error of a program, or None."""
    try:
        parse(tokens)
    except KarelSyntaxError as error:
        return error
    return None


def parse(tokens: str | Sequence[str] | Sequence[int]) -> Program:
    """The tree of a program given as text, tokens or ids."""
    reader = _Reader(tokens)
    reader.take("DEF")
    reader.take("run")
    blocks = [_Block(reader.take("m("), "m)", Program)]
    while True:
        block = blocks[-1]
        token = reader.token
        if token == block.closer and block.statements:
            reader.position += 1
            blocks.pop()
            finished = block.finish(tuple(block.statements))
            if isinstance(finished, Program):
                if reader.token is not None:
                    raise reader.error("nothing after the last 'm)'")
                return finished
            if isinstance(finished, partial):  # the first half of an IFELSE
                reader.take("ELSE")
                blocks.append(_Block(reader.take("e("), "e)", finished))
            else:
                blocks[-1].statements.append(finished)
        elif token in ACTIONS:
            reader.position += 1
            block.statements.append(Action(token))
        elif token in _STATEMENTS:
            reader.position += 1
            opener, closer, kind = _STATEMENTS[token]
            head = reader.count() if token == "REPEAT" else reader.condition()
            blocks.append(_Block(reader.take(opener), closer, partial(kind, head)))
        else:
            expected = f"a statement or {block.closer!r}" if block.statements else "a statement"
            opener = reader.tokens[block.opened]
            raise reader.error(f"{expected}, for the block opened at token {block.opened} {opener!r}")


# How the block of a statement opens and closes, and what its head and its body make: of an IFELSE, a function of the
# body of the other block.
_STATEMENTS: dict[str | None, tuple[str, str, Callable[..., Statement | partial[IfElse]]]] = {
    "REPEAT": ("r(", "r)", Repeat),
    "WHILE": ("w(", "w)", While),
    "IF": ("i(", "i)", If),
    "IFELSE": ("i(", "i)", lambda condition, body: partial(IfElse, condition, body)),
}


@dataclass
class _Block:
    """An open block."""

    opened: int
    closer: str
    finish: Callable[[Body], Program | Statement | partial[IfElse]]
    statements: list[Statement] = field(default_factory=list)


class _Reader:
    """Tokens, and the position of the next one."""

    def __init__(self, tokens: str | Sequence[str] | Sequence[int]) -> None:
        names = dict(enumerate(TOKENS))
        words = tokenize(tokens) if isinstance(tokens, str) else tokens
        self.tokens = [word if isinstance(word, str) else names.get(word, f"id {word}") for word in words]
        self.position = 0

    @property
    def token(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def error(self, expected: str) -> KarelSyntaxError:
        return KarelSyntaxError(self.position, self.token, expected)

    def take(self, expected: str) -> int:
        """Read this token and return its position."""
        if self.token != expected:
            raise self.error(repr(expected))
        self.position += 1
        return self.position - 1

    def count(self) -> int:
        if self.token not in COUNTS:
            raise self.error(f"a count, '{COUNTS[0]}' to '{COUNTS[-1]}'")
        self.position += 1
        return COUNTS.index(self.tokens[self.position - 1])

    def condition(self) -> Condition:
        self.take("c(")
        negations = 0
        while self.token == "not":
            self.position += 1
            self.take("c(")
            negations += 1
        if self.token not in TESTS:
            raise self.error("a test or 'not'")
        test = self.tokens[self.position]
        self.position += 1
        for _ in range(negations + 1):
            self.take("c)")
        return Condition(test, negations)


def to_tokens(program: Program) -> list[str]:
    """The tokens of a program."""
    tokens = ["DEF", "run", "m("]
    pending: list[str | Statement] = ["m)", *reversed(program.body)]
    while pending:
        match pending.pop():
            case str(token):
                tokens.append(token)
            case Action(name):
                tokens.append(name)
            case Repeat(times, body):
                tokens += ["REPEAT", f"R={times}", "r("]
                pending += ["r)", *reversed(body)]
            case While(condition, body):
                tokens += ["WHILE", *condition_tokens(condition), "w("]
                pending += ["w)", *reversed(body)]
            case If(condition, body):
                tokens += ["IF", *condition_tokens(condition), "i("]
                pending += ["i)", *reversed(body)]
            case IfElse(condition, body, otherwise):
                tokens += ["IFELSE", *condition_tokens(condition), "i("]
                pending += ["e)", *reversed(otherwise), "e(", "ELSE", "i)", *reversed(body)]
    return tokens


def condition_tokens(condition: Condition) -> list[str]:
    """The tokens of a condition with its brackets."""
    return ["c(", *["not", "c("] * condition.negations, condition.test, *["c)"] * (condition.negations + 1)]


def pretty(program: Program) -> str:
    """The program as indented text, one statement per line."""
    parts: list[str] = []
    depth, separator = 0, ""
    tokens = to_tokens(program)
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        opens, closes = token.endswith("(") and token != "c(", token.endswith(")") and token != "c)"
        depth -= closes
        # Bounded, so that deeply nested programs do not grow quadratically.
        indent = "    " * min(depth, 40) if separator == "\n" else ""
        parts.append(f"{separator}{indent}{token}")
        depth += opens
        separator = "\n" if opens or token in ACTIONS or (closes and following != "ELSE") else " "
    return "".join(parts)
