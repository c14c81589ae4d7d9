"""The Python examples of the documentation run: those of a page one after the other, as a reader would type them."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if page.exists()]
WITH_EXAMPLES = [page for page in PAGES if "```python" in page.read_text("utf-8")]


class Block(NamedTuple):
    line: int  # of the page, where the code begins
    code: str


def blocks(text: str) -> list[Block]:
    """The ```python blocks of a page."""
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def run(text: str, name: str) -> int:
    """Run the examples of a page in one namespace; return how many there are. Tracebacks name the page's lines."""
    namespace = {"__name__": "example"}
    examples = blocks(text)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in examples:
            exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), namespace)
    return len(examples)


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text("utf-8")
    # Counted by another rule, so that no block escapes because it is indented or not closed.
    assert run(text, str(page)) == text.count("```python") > 0


def test_the_pages_that_teach_have_examples():
    assert {"index.md", "estimators.md", "policies.md", "tasks.md"} <= {page.name for page in WITH_EXAMPLES}


def test_an_example_that_fails_is_noticed():
    text = "# Page\n\n```python\nx = 1\n```\n\nThen:\n\n```python\nassert x == 2\n```\n"
    with pytest.raises(AssertionError) as failure:
        run(text, "page.md")
    assert (str(failure.traceback[-1].path).rpartition("/")[2], failure.traceback[-1].lineno + 1) == ("page.md", 10)


def test_other_blocks_are_not_run():
    assert run("```bash\nrm -r everything\n```\n\n```text\nno Python\n```\n", "page.md") == 0
