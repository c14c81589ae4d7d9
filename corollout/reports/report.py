"""A report is data first: sections of blocks that JSON can hold, from which page, text and figures are made.

``write`` leaves in a folder

    report.json      everything, compact: the page can be made again from this file alone
    manifest.json    command, code, machine and settings
    table.md         the tables
    NAME.png         the figures
    report.html      the page

and :func:`open_report` reads it back.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from reprlib import repr as short
from typing import Any, ClassVar

from matplotlib.figure import Figure as Drawing

from corollout.config import import_object
from corollout.errors import InputError
from corollout.files import read_json, read_text, write_file, write_json
from corollout.folders import make_folder
from corollout.reports import figures, html
from corollout.reports.curves import Curves
from corollout.reports.tables import NOTHING, setting_text
from corollout.reports.typed import build
from corollout.text import visible_values
from corollout.training.runs import flat_settings

FILE, PAGE = "report.json", "report.html"
ELSEWHERE = "choose another folder with --out"
_PLAIN = str.maketrans("\u00a0\u2011\n", " - ")  # what a cell of a page may have: breaks, and places without
_HEAD = ("kind", "title", "lead", "manifest", "numbers")  # of a report, beside its sections
_OF_A_SEED = frozenset({"seed", "run", "update", "folder"})


@dataclass(frozen=True)
class Table:
    """Rows of text under a header, with notes that explain them."""

    kind: ClassVar[str] = "table"
    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.header or any(len(row) != len(self.header) for row in self.rows):
            raise InputError(f"a row of the table {self.title!r} does not have {len(self.header)} cells")

    def html(self, prefix: str = "") -> str:
        return html.table(self.header, self.rows) + "".join(map(html.note, self.notes))

    def markdown(self) -> str:
        """The table and its notes, without the title; the first column to the left, numbers to the right."""
        cells = [[cell.replace("|", r"\|").translate(_PLAIN) for cell in row] for row in (self.header, *self.rows)]
        lines = [f"| {' | '.join(row)} |" for row in cells]
        lines.insert(1, "|---" + "|---:" * (len(self.header) - 1) + "|")
        return "\n\n".join(["\n".join(lines), *self.notes]) + "\n"

    def without_empty_columns(self) -> "Table":
        """The table without the columns that have no value in any row."""
        kept = [i for i in range(len(self.header)) if i == 0 or any(row[i] != NOTHING for row in self.rows)]
        rows = [[row[i] for i in kept] for row in self.rows]
        return Table(self.title, [self.header[i] for i in kept], rows, self.notes)


@dataclass(frozen=True)
class Paragraph:
    kind: ClassVar[str] = "paragraph"
    text: str

    def html(self, prefix: str = "") -> str:
        return html.paragraph(self.text)


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    kind: ClassVar[str] = "facts"
    entries: dict[str, Any]

    def html(self, prefix: str = "") -> str:
        return html.facts(self.entries)


@dataclass(frozen=True)
class Figure:
    """A figure: what draws it, called with ``data`` as keyword arguments, and the name of its PNG file."""

    kind: ClassVar[str] = "figure"
    name: str
    draw: str  # "corollout.package.module:some_figure"
    data: dict[str, Any]
    note: str = ""
    wide: bool = False  # as wide as the page

    def drawing(self) -> Drawing:
        module, _, function = self.draw.partition(":")
        # A report may come from somebody else: it names a figure of ours, or nothing.
        if not module.startswith("corollout.") or not function.endswith("_figure") or function.startswith("_"):
            raise InputError(f"{self.draw!r} does not name a figure of this package")
        try:
            return import_object(self.draw)(**self.data)
        except Exception as error:  # the data may be anything
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(f"cannot draw the figure {self.name} by {self.draw}: {reason}") from error

    def html(self, prefix: str = "") -> str:
        drawn = figures.svg(self.drawing(), self.note or self.name.replace("-", " "), prefix)
        shown = f'<div class="wide" tabindex="0">{drawn}</div>' if self.wide else html.panels([drawn])
        return shown + html.note(self.note)


@dataclass(frozen=True)
class Html:
    """HTML, with the style sheet it needs."""

    kind: ClassVar[str] = "html"
    content: str
    css: str = ""

    def html(self, prefix: str = "") -> str:
        return self.content


Block = Table | Paragraph | Facts | Figure | Html | Curves
_BLOCKS: dict[str, Callable[[dict[str, Any]], Block]] = {
    Curves.kind: Curves.from_json,
    **{block.kind: partial(build, block) for block in (Table, Paragraph, Facts, Figure, Html)},
}
_FILE_NAME = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class Section:
    """Blocks under a title; the title of a table stands above it unless it is that of the section."""

    title: str
    blocks: Sequence[Block]
    page_only: bool = False  # its tables are not in table.md

    @property
    def tables(self) -> list[Table]:
        return [block for block in self.blocks if isinstance(block, Table)]

    def html(self, prefix: str) -> str:
        parts = []
        for index, block in enumerate(self.blocks):
            heading = block.title if isinstance(block, Table) and block.title != self.title else ""
            parts.append(f"<h3>{escape(heading)}</h3>" if heading else "")
            parts.append(block.html(f"{prefix}{index}-"))
        return "".join(parts)

    def markdown(self) -> str:
        parts = [f"## {self.title}\n"]
        for block in self.blocks:
            if isinstance(block, Table):
                parts += [f"### {block.title}\n"] if block.title not in ("", self.title) else []
                parts.append(block.markdown())
            elif isinstance(block, Paragraph):
                parts.append(f"{block.text}\n")
        return "\n".join(parts)


@dataclass(frozen=True)
class Report:
    """A title, a sentence or two that sum it up, and sections."""

    kind: str  # "comparison", "lab", or the name of an experiment
    title: str
    lead: str
    sections: Sequence[Section]
    manifest: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)  # behind the tables, for programs

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections if not section.page_only for table in section.tables]

    def markdown(self) -> str:
        parts = [section.markdown() for section in self.sections if section.tables and not section.page_only]
        return "\n".join([f"# {self.title}\n\n{self.lead}\n", *parts])

    def page(self) -> str:
        sections = [(section.title, section.html(f"s{i}-")) for i, section in enumerate(self.sections)]
        facts = {name: value for name, value in self.manifest.items() if name != "settings"}
        sections += [("How this was made", html.facts(facts))] if facts else []
        styles = [block.css for section in self.sections for block in section.blocks if isinstance(block, Html)]
        return html.page(self.title, self.lead, sections, "".join(dict.fromkeys(styles)))

    def write(self, folder: Path) -> Path:
        """Write everything; return the path of the page."""
        make_folder(folder, ELSEWHERE)
        content = self.to_json()
        write_json(folder / FILE, content, ELSEWHERE, indent=None)
        write_json(folder / "manifest.json", content["manifest"], ELSEWHERE)
        stored = Report.from_json(content)  # with its rounded numbers, so that the same page can be made again
        write_file(folder / "table.md", stored.markdown(), ELSEWHERE)
        for block in (block for section in stored.sections for block in section.blocks):
            if isinstance(block, Figure | Curves):
                write_file(folder / f"{block.name}.png", figures.png(block.drawing()), ELSEWHERE)
        return stored.write_page(folder)

    def write_page(self, folder: Path) -> Path:
        write_file(folder / PAGE, self.page(), ELSEWHERE)
        return folder / PAGE

    def add_page(self, folder: Path) -> Path:
        """Write the page where there is none; another one is left alone, and an error."""
        page = folder / PAGE
        if not page.exists():
            return self.write_page(folder)
        if read_text(page) != self.page():
            raise InputError(f"{page} is another page, and nothing is overwritten: {ELSEWHERE}, or remove it")
        return page

    def to_json(self) -> dict[str, Any]:
        sections = [
            {
                "title": section.title,
                "page_only": section.page_only,
                "blocks": [{"kind": block.kind, **asdict(block)} for block in section.blocks],
            }
            for section in self.sections
        ]
        return visible_values(rounded({**{name: getattr(self, name) for name in _HEAD}, "sections": sections}))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Report":
        """What :meth:`to_json` described; an ``InputError`` if it is something else."""
        if not isinstance(content, dict) or not isinstance(content.get("sections"), list):
            raise InputError("expected an object with sections")
        return build(cls, {**content, "sections": [_section(section) for section in content["sections"]]})


def _section(content: Any) -> Section:
    if not isinstance(content, dict) or not isinstance(content.get("blocks"), list):
        raise InputError(f"expected a section with blocks, not {short(content)}")
    return build(Section, {**content, "blocks": [_block(block) for block in content["blocks"]]})


def _block(content: Any) -> Block:
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in _BLOCKS:
        raise InputError(f"expected a block of one of the kinds {', '.join(_BLOCKS)}, not {short(content)}")
    block = _BLOCKS[kind]({name: value for name, value in content.items() if name != "kind"})
    if isinstance(block, Figure | Curves) and not _FILE_NAME.fullmatch(block.name):
        raise InputError(f"a figure cannot have the name {block.name!r}")
    return block


def settings_section(configs: Mapping[str, Mapping[str, Any]], note: str = "") -> Section:
    """The settings that all methods share, and a table of those in which they differ."""
    flat = {label: flat_settings(config) for label, config in configs.items()}
    # What differs from seed to seed or between machines is left out.
    names = [name for name in dict.fromkeys(name for own in flat.values() for name in own) if name not in _OF_A_SEED]
    shown = {label: {name: setting_text(own.get(name)) for name in names} for label, own in flat.items()}
    common = {name: next(iter(shown.values()))[name] for name in names if len({o[name] for o in shown.values()}) == 1}
    rows = [[name.replace("_", " "), *(own[name] for own in shown.values())] for name in names if name not in common]
    blocks: list[Block] = [Paragraph(note)] if note else []
    blocks += [Table("", ["setting", *shown], rows)] if rows else []
    blocks.append(Facts({name.replace("_", " "): value for name, value in common.items()}))
    return Section("Settings", blocks, page_only=True)


def open_report(folder: Path) -> Report:
    """The report that lies in a folder."""
    path = folder / FILE
    content = read_json(path)
    try:
        return Report.from_json(visible_values(content))
    except RecursionError:
        raise InputError(f"{path} is not a report: it is nested too deeply") from None
    except InputError as error:
        raise InputError(f"{path} is not a report: {error}") from error


def is_report(folder: Path) -> bool:
    return (folder / FILE).is_file()


def rounded(value: Any, digits: int = 6) -> Any:
    """JSON content with floats rounded to significant digits, and null for those that are not finite."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): rounded(entry, digits) for key, entry in value.items()}
    return [rounded(entry, digits) for entry in value] if isinstance(value, list | tuple) else value
