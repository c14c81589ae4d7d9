"""Tables of text, as terminals, pages and Markdown files show them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

NOTHING = "–"


@dataclass(frozen=True)
class TextTable:
    """A title, a header, rows of as many cells, and what has to be known to read them."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The table under its title, with its notes below; the first column to the left, numbers to the right."""
        rule = "|".join(["---", *["---:"] * (len(self.header) - 1)])
        lines = [f"## {self.title}", "", _line(self.header), f"|{rule}|", *map(_line, self.rows)]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"


# What keeps words together on a page: spaces and hyphens at which no line is broken.
_PLAIN = str.maketrans("\u00a0\u2011", " -")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").translate(_PLAIN) for cell in cells) + " |"


def without_empty_columns(table: TextTable) -> TextTable:
    """The table without the columns in which nothing is known of anything."""
    kept = [i for i in range(len(table.header)) if i == 0 or any(row[i] != NOTHING for row in table.rows)]
    return TextTable(
        table.title, [table.header[i] for i in kept], [[row[i] for i in kept] for row in table.rows], table.notes
    )


def percent(value: float | None, digits: int = 2) -> str:
    """A share in per cent, without the sign."""
    return NOTHING if value is None else f"{100 * value:.{digits}f}"


def percent_range(interval: tuple[float, float] | None, signed: bool = False) -> str:
    """An interval of shares in per cent; of differences with their signs."""
    if interval is None:
        return NOTHING
    low, high = (100 * end for end in interval)
    return f"{_signed(low, 1)}…{_signed(high, 1)}" if signed else f"{low:.1f}–{high:.1f}"


def signed_percent(value: float | None) -> str:
    """A difference of shares in per cent, with its sign."""
    return NOTHING if value is None else _signed(100 * value, 2)


def number(value: float | int | None) -> str:
    """A number in as few digits as tell it from others."""
    if value is None:
        return NOTHING
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def reward_text(reward: float) -> str:
    """A reward: a whole number as such, any other in three decimals."""
    return f"{reward:.0f}" if reward.is_integer() else f"{reward:.3f}"


def _signed(value: float, digits: int) -> str:
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−")
