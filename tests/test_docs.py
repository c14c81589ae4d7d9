"""The Python examples in the documentation run: those of a page one after the other, as a reader would type them."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if page.exists()]
WITH_EXAMPLES = [page for page in PAGES if "```python" in page.read_text("utf-8")]


def run(text: str, name: str) -> int:
    """Run the ```python blocks of a page in one namespace; return their number. Tracebacks have the page's lines."""
    namespace = {"__name__": "example"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in blocks:
            exec(compile("\n" * text.count("\n", 0, block.start(1)) + block[1], name, "exec"), namespace)
    return len(blocks)


# Policies that have hardly begun to learn may be warned about.
@pytest.mark.filterwarnings("ignore::corollout.events.TrainingWarning")
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text("utf-8")
    # Counted in another way, so that no block escapes because it is indented or not closed.
    assert run(text, str(page)) == text.count("```python") > 0


def test_the_pages_that_teach_have_examples():
    names = {page.name for page in WITH_EXAMPLES}
    assert {"index.md", "estimators.md", "policies.md", "tasks.md", "extending.md"} <= names


def test_a_failing_example_is_noticed_and_other_blocks_are_not_run():
    text = "# Page\n\n```python\nx = 1\n```\n```bash\nrm -r x\n```\n\n```python\nassert x == 2\n```\n"
    with pytest.raises(AssertionError) as failure:
        run(text, "page.md")
    assert (str(failure.traceback[-1].path).rpartition("/")[2], failure.traceback[-1].lineno + 1) == ("page.md", 11)
