"""Karel programs as JSON: the public ``program_json`` form, a tree of objects with a ``type``.

    {"type": "run", "body": [{"type": "repeat", "times": 3, "body": [{"type": "move"}]},
                             {"type": "ifElse", "condition": "notFrontIsClear", "ifBody": […], "elseBody": […]}]}

Variants are read as well: ``cond`` for ``condition``, conditions as objects, ``{"type": "not", …}``
around them, counts as ``{"type": "count", "value": 3}``, and ``repeatUntil``, which is a ``WHILE not``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short

from corollout.errors import InputError
from corollout.tasks.karel.language import (
    ACTIONS,
    COUNTS,
    TESTS,
    Action,
    Body,
    Condition,
    If,
    IfElse,
    Program,
    Repeat,
    Statement,
    While,
    condition_tokens,
    parse,
)

_NEGATED = {f"not{test[0].upper()}{test[1:]}": test for test in TESTS}
_NEGATION = {test: name for name, test in _NEGATED.items()}
_CONDITIONAL = {"while": ("WHILE", "w"), "repeatUntil": ("WHILE", "w"), "if": ("IF", "i")}


def to_json(program: Program) -> dict[str, object]:
    """A program in its JSON form."""
    root: list[object] = []
    pending = [(program.body, root)]

    def later(body: Body) -> list[object]:
        nodes: list[object] = []
        pending.append((body, nodes))
        return nodes

    def node(statement: Statement) -> dict[str, object]:
        match statement:
            case Action(name):
                return {"type": name}
            case Repeat(times, body):
                return {"type": "repeat", "times": times, "body": later(body)}
            case While(condition, body):
                return {"type": "while", "condition": _condition_json(condition), "body": later(body)}
            case If(condition, body):
                return {"type": "if", "condition": _condition_json(condition), "body": later(body)}
            case IfElse(condition, body, otherwise):
                kind = {"type": "ifElse", "condition": _condition_json(condition)}
                return {**kind, "ifBody": later(body), "elseBody": later(otherwise)}

    while pending:
        body, nodes = pending.pop()
        nodes.extend(map(node, body))
    return {"type": "run", "body": root}


def _condition_json(condition: Condition) -> object:
    if condition.negations == 0:
        return condition.test
    value: object = _NEGATION[condition.test]
    for _ in range(condition.negations - 1):
        value = {"type": "not", "condition": value}
    return value


def from_json(tree: object) -> Program:
    """The program of a JSON form; errors name the position in the tree."""
    root = _Node(tree)
    if root.kind != "run":
        raise root.error(f"the type of a program must be 'run', not {root.kind!r}")
    tokens = ["DEF", "run", "m("]
    # Converted to tokens with a stack instead of recursion, for programs of any depth.
    pending: list[str | _Node] = ["m)", *root.statements("body")]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            tokens.append(node)
        elif node.kind in ACTIONS:
            tokens.append(node.kind)
        elif node.kind == "repeat":
            tokens += ["REPEAT", node.count(), "r("]
            pending += ["r)", *node.statements("body")]
        elif node.kind in _CONDITIONAL:
            keyword, letter = _CONDITIONAL[node.kind]
            tokens += [keyword, *condition_tokens(node.condition(node.kind == "repeatUntil")), f"{letter}("]
            pending += [f"{letter})", *node.statements("body")]
        elif node.kind == "ifElse":
            tokens += ["IFELSE", *condition_tokens(node.condition()), "i("]
            pending += ["e)", *node.statements("elseBody"), "e(", "ELSE", "i)", *node.statements("ifBody")]
        else:
            raise node.error(f"unknown type {node.kind!r}")
    return parse(tokens)


@dataclass(frozen=True, eq=False, repr=False)
class _Node:
    """A value in the tree, and the path to it."""

    value: object
    parent: "_Node | None" = None
    step: str = "program"

    @property
    def kind(self) -> str:
        kind = self.at("type").value
        if not isinstance(kind, str):
            raise self.at("type").error("expected a string")
        return kind

    def at(self, *names: str) -> "_Node":
        """The value under the first of these names that exists."""
        if not isinstance(self.value, Mapping):
            raise self.error(f"expected an object with '{names[0]}', not {short(self.value)}")
        for name in names:
            if name in self.value:
                return _Node(self.value[name], self, f".{name}")
        raise self.error(f"'{names[0]}' is missing")

    def statements(self, name: str) -> list["_Node"]:
        """The statements under a name, in reverse order."""
        body = self.at(name)
        if not isinstance(body.value, list) or not body.value:
            raise body.error(f"expected a list of at least one statement, not {short(body.value)}")
        return [_Node(value, body, f"[{index}]") for index, value in enumerate(body.value)][::-1]

    def count(self) -> str:
        times = self.at("times")
        value = times.at("value").value if isinstance(times.value, Mapping) else times.value
        if type(value) is not int or not 0 <= value < len(COUNTS):
            raise times.error(f"expected a whole number from 0 to {len(COUNTS) - 1}, not {short(value)}")
        return COUNTS[value]

    def condition(self, negate: bool = False) -> Condition:
        node, negations = self.at("condition", "cond"), int(negate)
        while isinstance(node.value, Mapping) and node.kind == "not":
            node, negations = node.at("condition", "cond"), negations + 1
        name = node.value if isinstance(node.value, str) else node.kind
        if name in _NEGATED:
            name, negations = _NEGATED[name], negations + 1
        if name not in TESTS:
            raise node.error(f"unknown condition {short(name)}")
        return Condition(name, negations)

    def error(self, message: str) -> InputError:
        steps, node = [], self
        while node is not None:
            steps.append(node.step)
            node = node.parent
        return InputError(f"{''.join(reversed(steps))}: {message}")
