"""Karel worlds and programs in colour."""

from rich.columns import Columns
from rich.console import Group
from rich.text import Text

from corollout.tasks.karel import Program, World, pretty
from corollout.tasks.karel.language import kind_of

HERO, MARKERS, WALL, EMPTY, BORDER = "bold bright_cyan", "yellow", "grey50", "grey30", "grey50"
ACTION = "green"
# Of tokens by their kind: those of programs, then those of captions.
TOKENS = {
    "action": ACTION,
    "test": "cyan",
    "keyword": "bold magenta",
    "bracket": "grey50",
    "word": "",
    "mark": "grey50",
}


def world_text(world: World) -> Text:
    """A world as ``World.draw`` draws it, in colour."""
    hero = (world.rows - 1 - world.hero[0], world.hero[1])
    counts = {(world.rows - 1 - row, col) for (row, col), _ in world.markers}
    walls = {(world.rows - 1 - row, col) for row, col in world.walls}
    first, *lines, last = world.draw().splitlines()
    text = Text(no_wrap=True, overflow="crop")
    text.append(f"{first}\n", BORDER)
    for row, (line, labels) in enumerate(zip(lines, world.labels(), strict=True)):
        text.append(line[0], BORDER)
        for col, label in enumerate(labels):
            cell = (row, col)
            if cell == hero and cell in counts:
                text.append(label[0], HERO).append(label[1:], MARKERS)
            elif cell == hero:
                text.append(label, HERO)
            else:
                text.append(label, WALL if cell in walls else MARKERS if cell in counts else EMPTY)
        text.append(f"{line[-2:]}\n", BORDER)
    return text.append(last, BORDER)


def before_after(before: World, after: World, titles: tuple[str, str] = ("before", "after")) -> Columns:
    """Two worlds side by side, or one above the other where there is no room."""
    return Columns([titled(world, title) for world, title in zip((before, after), titles, strict=True)], padding=(0, 4))


def titled(world: World, title: str) -> Group:
    """A world under its title."""
    drawing = world_text(world)
    return Group(Text(title.center(_width(drawing)), "bold"), drawing)


def _width(drawing: Text) -> int:
    return max(map(len, drawing.plain.splitlines()))


def program_text(program: Program) -> Text:
    """A program, indented and in colour."""
    text = Text()
    for line in pretty(program).splitlines():
        words = line.lstrip()
        text.append(line[: len(line) - len(words)])
        for word in words.split():
            text.append(word, TOKENS[kind_of(word)]).append(" ")
        text.right_crop(1)
        text.append("\n")
    text.right_crop(1)
    return text
