"""Pages as tests read them."""

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "img", "rect", "path", "circle"}


class Page(HTMLParser):
    """Refuses tags that do not match, ids that occur twice, and whatever would be loaded or run.

    Counts elements by tag and class.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, str | None]] = []
        self.images: list[str] = []
        self.ids: set[str | None] = set()
        self.text = ""
        self.feed(path.read_text("utf-8"))
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag not in ("script", "link", "iframe")
        assert not {"href", "onclick"} & given.keys()
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
        if "style" not in self.open:
            self.text += data

    def count(self, tag: str, name: str) -> int:
        return sum(t == tag and name in (c or "").split() for t, c in self.found)
