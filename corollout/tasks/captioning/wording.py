"""What people might say of a generated scene: each time something else of it, in other words."""

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
    """Choices that depend on a key only; of Python's generator, just what never changes between versions is used."""

    def __init__(self, key: int):
        self.number = Random(key % 2**64).random  # from 0 to below 1; of a negative key, Random ignores the sign

    def choose(self, options: Sequence[T]) -> T:
        return options[int(self.number() * len(options))]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """So many different ones, in any order."""
        left = list(options)
        return [left.pop(int(self.number() * len(left))) for _ in range(count)]

    def chance(self, probability: float) -> bool:
        return self.number() < probability


@dataclass(frozen=True)
class Group:
    """Objects that are alike."""

    count: int
    shape: str
    colour: str
    size: str
    cells: tuple[tuple[int, int], ...]  # row and column of each, on a board of three by three


@dataclass(frozen=True)
class Scene:
    """One or two groups of objects before a background."""

    background: str
    groups: tuple[Group, ...]
    relation: (
        str  # where the first group is, seen from the second; or how the only one is arranged, or "" for one object
    )


def describe(scene: Scene, dice: Dice) -> list[str]:
    """Five captions, all different."""
    templates = _ONE if len(scene.groups) == 1 else _TWO
    captions: list[str] = []
    while len(captions) < CAPTIONS:
        text = dice.choose(templates)(scene, dice)
        if SHORTEST <= len(text.split()) <= LONGEST and text not in captions:
            captions.append(text)
    return captions


def _thing(group: Group, dice: Dice) -> str:
    """A group with all, some or none of its properties: two big red stars."""
    words = [dice.choose(_COUNTS[group.count])]
    said = dice.number()
    if said < 0.45:
        words.append(dice.choose(_SIZES[group.size]))
    if said < 0.35 or said > 0.55:
        words.append(group.colour)
    noun = dice.choose(_SYNONYMS.get(group.shape, (group.shape,)))
    words.append(noun if group.count == 1 else _PLURALS.get(noun, f"{noun}s"))
    if words[0] == "a" and words[1][0] in "aeiou":
        words[0] = "an"
    return " ".join(words)


def _background(scene: Scene, dice: Dice) -> str:
    colour = scene.background
    article = "an" if colour[0] in "aeiou" else "a"
    return dice.choose(
        (
            f"on {article} {colour} background",
            f"on {article} {colour} background",
            f"on {colour}",
            f"against {article} {colour} wall",
            f"in front of {article} {colour} wall",
            f"with {article} {colour} background",
        )
    )


def _place(scene: Scene, dice: Dice) -> str:
    """Where the only group is."""
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
    """Both groups, in either order, and where the one that is named first is."""
    first, second = scene.groups
    relation = scene.relation
    if dice.chance(0.5):
        first, second, relation = second, first, _OPPOSITE[relation]
    return _thing(first, dice), dice.choose(_BESIDE[relation]), _thing(second, dice)


def _both(scene: Scene, dice: Dice) -> str:
    first, _, second = _pair(scene, dice)
    return f"{first} {dice.choose(('and', 'and', 'with'))} {second}"


def _any(scene: Scene, dice: Dice) -> Group:
    return dice.choose(scene.groups)


def _there(group: Group) -> str:
    return "there is" if group.count == 1 else "there are"


def _picture(dice: Dice) -> str:
    return dice.choose(("a picture of", "a drawing of", "an image of", "a picture with", "we see", "this shows"))


def _does(group: Group, dice: Dice) -> str:
    verb = dice.choose(("is", "sit", "float", "hang"))
    if verb == "is":
        return "is" if group.count == 1 else "are"
    return f"{verb}s" if group.count == 1 else verb


def _plain_background(scene: Scene) -> str:
    return f"{'an' if scene.background[0] in 'aeiou' else 'a'} {scene.background} background"


def _related(scene: Scene, dice: Dice) -> str:
    return " ".join(_pair(scene, dice))


def _active(scene: Scene, dice: Dice) -> str:
    """The first group in the place where it is, with a verb."""
    group = scene.groups[0]
    if len(scene.groups) == 1:
        return f"{_thing(group, dice)} {_does(group, dice)} {_place(scene, dice)}"
    where = dice.choose(_BESIDE[scene.relation])
    return f"{_thing(group, dice)} {_does(group, dice)} {where} {_thing(scene.groups[1], dice)}"


def _colours(scene: Scene, dice: Dice) -> str:
    group = _any(scene, dice)
    noun, verb = (group.shape, "is") if group.count == 1 else (_PLURALS.get(group.shape, f"{group.shape}s"), "are")
    return f"the {noun} {verb} {group.colour} and the background is {scene.background}"


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
    lambda s, d: f"{_plain_background(s)} with {_thing(s.groups[0], d)} {_place(s, d)}",
    _active,
    _colours,
)
_TWO: tuple[Template, ...] = (
    _related,
    _related,
    lambda s, d: f"{_related(s, d)} {_background(s, d)}",
    lambda s, d: f"{_both(s, d)} {_background(s, d)}",
    lambda s, d: f"{_picture(d)} {_both(s, d)}",
    lambda s, d: f"{_plain_background(s)} with {_both(s, d)}",
    lambda s, d: f"{_thing(_any(s, d), d)} {_background(s, d)}",
    lambda s, d: (
        f"there {'is' if s.groups[0].count == 1 else 'are'} {_thing(s.groups[0], d)} "
        f"{d.choose(_BESIDE[s.relation])} {_thing(s.groups[1], d)}"
    ),
    _active,
    _colours,
    _total,
)
