"""Captions of generated scenes, which vary in what they mention and in their wording."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

SHORTEST, LONGEST = 4, 14  # words of a caption
CAPTIONS = 5

ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "middle", "right")
_SIZES = {"small": ("small", "small", "little", "tiny"), "big": ("big", "big", "large", "huge")}
_PLURALS = {"box": "boxes", "cross": "crosses"}
_SYNONYMS = {"circle": ("circle", "circle", "ball"), "square": ("square", "square", "box"), "ring": ("ring", "hoop")}
_COUNTS = {
    1: ("a", "a", "a", "one", "a single"),
    2: ("two", "two", "two", "a pair of"),
    3: ("three", "three", "three", "a few"),
    4: ("four", "four", "four", "several"),
}
_OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}
_BESIDE = {
    "left": ("to the left of", "left of", "on the left side of"),
    "right": ("to the right of", "right of", "on the right side of"),
    "above": ("above", "over", "higher than"),
    "below": ("below", "under", "lower than"),
}
_ARRANGED = {
    "row": ("in a row", "side by side", "in a line"),
    "column": ("in a column", "one above the other", "stacked up"),
    "scattered": ("scattered around", "spread out", "here and there"),
}
T = TypeVar("T")


class Dice:
    """Random choices that depend only on a key; uses only what is stable between Python versions."""

    def __init__(self, key: int):
        self.number = Random(key % 2**64).random  # in [0, 1); Random ignores the sign of a key

    def choose(self, options: Sequence[T]) -> T:
        return options[int(self.number() * len(options))]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """Distinct options in random order."""
        left = list(options)
        return [left.pop(int(self.number() * len(left))) for _ in range(count)]


@dataclass(frozen=True)
class Group:
    """Objects of the same kind."""

    count: int
    shape: str
    colour: str
    size: str
    cells: tuple[tuple[int, int], ...]  # row and column of each on a 3 × 3 board


@dataclass(frozen=True)
class Scene:
    """One or two groups of objects on a background."""

    background: str
    groups: tuple[Group, ...]
    relation: str  # position of the first group relative to the second, or arrangement of the only group


def describe(scene: Scene, dice: Dice) -> list[str]:
    """Five different captions."""
    templates = _ONE if len(scene.groups) == 1 else _TWO
    captions: list[str] = []
    while len(captions) < CAPTIONS:
        text = dice.choose(templates)(scene, dice)
        if SHORTEST <= len(text.split()) <= LONGEST and text not in captions:
            captions.append(text)
    return captions


def _thing(group: Group, dice: Dice) -> str:
    """A group with some of its properties: two big red stars."""
    words = [dice.choose(_COUNTS[group.count])]
    detail = dice.number()
    if detail < 0.45:
        words.append(dice.choose(_SIZES[group.size]))
    if detail < 0.35 or detail > 0.55:
        words.append(group.colour)
    noun = dice.choose(_SYNONYMS.get(group.shape, (group.shape,)))
    words.append(_number(group, noun, _PLURALS.get(noun, f"{noun}s")))
    if words[0] == "a" and words[1][0] in "aeiou":
        words[0] = "an"
    return " ".join(words)


def _background(scene: Scene, dice: Dice) -> str:
    colour = _with_article(scene)
    background, wall = f"{colour} background", f"{colour} wall"
    on = (f"on {background}", f"on {background}", f"on {scene.background}")
    return dice.choose((*on, f"against {wall}", f"in front of {wall}", f"with {background}"))


def _place(scene: Scene, dice: Dice) -> str:
    """The position of the only group."""
    if scene.relation:
        return dice.choose(_ARRANGED[scene.relation])
    ((row, column),) = scene.groups[0].cells
    up, across = ROWS[row], COLUMNS[column]
    if up == across:
        return dice.choose(("in the middle", "in the center", "in the very middle"))
    if across == "middle":
        return dice.choose((f"at the {up}", f"near the {up} edge"))
    if up == "middle":
        return dice.choose((f"on the {across}", f"on the {across} side", f"near the {across} edge"))
    return dice.choose((f"in the {up} {across} corner", f"at the {up} {across}"))


def _pair(scene: Scene, dice: Dice) -> tuple[str, str, str]:
    """Both groups, in either order, and the position of the first relative to the second."""
    first, second = scene.groups
    relation = scene.relation
    if dice.number() < 0.5:
        first, second, relation = second, first, _OPPOSITE[relation]
    return _thing(first, dice), dice.choose(_BESIDE[relation]), _thing(second, dice)


def _both(scene: Scene, dice: Dice) -> str:
    first, _, second = _pair(scene, dice)
    return f"{first} {dice.choose(('and', 'and', 'with'))} {second}"


def _number(group: Group, one: str, several: str) -> str:
    return one if group.count == 1 else several


def _there(group: Group) -> str:
    return _number(group, "there is", "there are")


def _picture(dice: Dice) -> str:
    return dice.choose(("a picture of", "a drawing of", "an image of", "a picture with", "we see", "this shows"))


def _does(group: Group, dice: Dice) -> str:
    return _number(group, *dice.choose((("is", "are"), ("sits", "sit"), ("floats", "float"), ("hangs", "hang"))))


def _with_article(scene: Scene) -> str:
    return f"{'an' if scene.background[0] in 'aeiou' else 'a'} {scene.background}"


def _related(scene: Scene, dice: Dice) -> str:
    return " ".join(_pair(scene, dice))


def _active(scene: Scene, dice: Dice) -> str:
    """The first group with a verb and its position."""
    group = scene.groups[0]
    if len(scene.groups) == 1:
        return f"{_thing(group, dice)} {_does(group, dice)} {_place(scene, dice)}"
    where = dice.choose(_BESIDE[scene.relation])
    return f"{_thing(group, dice)} {_does(group, dice)} {where} {_thing(scene.groups[1], dice)}"


def _colours(scene: Scene, dice: Dice) -> str:
    group = dice.choose(scene.groups)
    subject = _number(group, f"{group.shape} is", f"{_PLURALS.get(group.shape, f'{group.shape}s')} are")
    return f"the {subject} {group.colour} and the background is {scene.background}"


def _total(scene: Scene, dice: Dice) -> str:
    total = sum(group.count for group in scene.groups)
    return f"{dice.choose(_COUNTS[total])} {dice.choose(('shapes', 'objects', 'things'))} {_background(scene, dice)}"


Template = Callable[[Scene, Dice], str]
_ONE: tuple[Template, ...] = (
    lambda s, d: f"{_thing(s.groups[0], d)} {_background(s, d)}",
    lambda s, d: f"{_thing(s.groups[0], d)} {_place(s, d)}",
    lambda s, d: f"{_thing(s.groups[0], d)} {_place(s, d)} {_background(s, d)}",
    lambda s, d: f"{_there(s.groups[0])} {_thing(s.groups[0], d)} {_place(s, d)}",
    lambda s, d: f"{_there(s.groups[0])} {_thing(s.groups[0], d)} {_background(s, d)}",
    lambda s, d: f"{_picture(d)} {_thing(s.groups[0], d)} {_background(s, d)}",
    lambda s, d: f"{_picture(d)} {_thing(s.groups[0], d)} {_place(s, d)}",
    lambda s, d: f"{_with_article(s)} background with {_thing(s.groups[0], d)} {_place(s, d)}",
    _active,
    _colours,
)
_TWO: tuple[Template, ...] = (
    _related,
    _related,
    lambda s, d: f"{_related(s, d)} {_background(s, d)}",
    lambda s, d: f"{_both(s, d)} {_background(s, d)}",
    lambda s, d: f"{_picture(d)} {_both(s, d)}",
    lambda s, d: f"{_with_article(s)} background with {_both(s, d)}",
    lambda s, d: f"{_thing(d.choose(s.groups), d)} {_background(s, d)}",
    lambda s, d: (
        f"{_there(s.groups[0])} {_thing(s.groups[0], d)} {d.choose(_BESIDE[s.relation])} {_thing(s.groups[1], d)}"
    ),
    _active,
    _colours,
    _total,
)
