"""Pages as tests read them."""

from html.parser import HTMLParser
from pathlib import Path

from corollout.reports.script import SCRIPT

VOID = {"meta", "br", "img", "rect", "path", "circle"}


class Page(HTMLParser):
    """Refuses tags that do not match, ids that occur twice, and whatever would be loaded or run but for our script.

    Counts elements by tag and class; collects the data of plots and the texts of figures.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, str | None]] = []
        self.images: list[str] = []
        self.ids: set[str | None] = set()
        self.plots: list[str] = []
        self.labels: list[str | None] = []  # of figures
        self.text = self.script = ""
        self.feed(path.read_text("utf-8"))
        assert self.open == []
        assert self.script in ("", SCRIPT)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag not in ("link", "iframe")
        assert not {"href", "onclick"} & given.keys()
        if "data-plot" in given:
            self.plots.append(given["data-plot"] or "")
        if tag == "svg" and "aria-hidden" not in given:
            self.labels.append(given.get("aria-label"))
        if "src" in given:
            assert tag == "img"
            assert (given["src"] or "").startswith("data:image/")
            self.images.append(given["src"] or "")
        if "id" in given:
            assert given["id"] not in self.ids
            self.ids.add(given["id"])
        self.found.append((tag, given.get("class")))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.script += data
        elif "style" not in self.open:
            self.text += data

    def count(self, tag: str, name: str) -> int:
        return sum(t == tag and name in (c or "").split() for t, c in self.found)
