"""The page of completions: what it shows, what it is sorted by, and that strangers' text stays text."""

import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from corollout.errors import InputError
from corollout.reports import completions
from corollout.reports.completions import completions_page, is_completions_page, write_completions_page
from corollout.reports.sample_records import read_samples_file
from tests.support.completions import EVIL, make_context, make_samples, make_sequence


class Page(HTMLParser):
    """The elements of a page: tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("script", "style"):
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def of(self, name: str) -> list[dict[str, Any]]:
        """The attributes of elements of a class."""
        return [attributes for _, attributes in self.elements if name in (attributes.get("class") or "").split()]


def test_a_page_has_prompts_completions_rewards_and_branches():
    page = Page(completions_page([make_samples(3)], {"model": "a tiny one"}))
    for text in ("Name a colour.", "system", "Be brief.", "wanted", "red", "correct 1", "short -0.25", "a tiny one"):
        assert text in page.text
    assert "advantage +0.500" in page.text
    titles = [attributes.get("title") or "" for _, attributes in page.elements]
    assert "credit +0.3, probability 0.500, entropy 1.25, 2 branches" in titles
    assert "credit -0.1, probability 0.250, entropy 0.50" in titles
    # The branches of a token, those that matter most first, below what was sampled.
    at = page.text.index("token 1")
    assert page.text.index("sampled", at) < page.text.index("Crimson sky", at) < page.text.index("Blue", at)
    assert "2 branches, from 1 token" in page.text
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert links
    assert {f"#{attributes['id']}" for _, attributes in page.elements if attributes.get("id")} == set(links)


def test_tokens_have_the_colours_of_their_credit():
    page = Page(completions_page([make_samples()], {}))
    strips = [(one["class"], one.get("style")) for one in (*page.of("raised"), *page.of("lowered"))]
    assert ("raised", "--c:1.00") in strips  # the largest credit of the prompt
    assert ("lowered", "--c:0.33") in strips


def test_updates_are_folded_and_the_newest_comes_first():
    text = completions_page([make_samples(update) for update in (1, 10, 20)], {})
    page = Page(text)
    assert ["open" in one for one in page.of("update")] == [True, False, False]
    assert [one["data-update"] for one in page.of("group")] == ["20", "20", "10", "10", "1", "1"]
    assert text.count('role="img"') == 1  # the curve of their rewards
    assert Page(completions_page([make_samples(1)], {})).of("plot") == []


def test_what_is_sorted_by_is_in_attributes():
    groups = Page(completions_page([make_samples(3)], {})).of("group")
    assert [one["data-reward"] for one in groups] == ["0.5", "0"]
    assert [one["data-credit"] for one in groups] == ["0.3", "0"]
    assert [one["data-length"] for one in groups] == ["3", "3"]
    skipped = replace(make_samples(), contexts=[make_context(sequences=[make_sequence(reward=None)])])
    page = Page(completions_page([skipped], {}))
    assert [one["data-reward"] for one in (*page.of("group"), *page.of("completion"))] == ["", ""]


@pytest.mark.parametrize(
    ("branches", "teaches", "said"),
    [
        (0, False, "All 2 completions got the reward 0. RLOO-2 only compares them with each other and none is better"),
        (6, False, "The 2 completions and their 6 branches all got the reward 0. RLOO-2 only compares them"),
        (0, True, "What RLOO-2 learns here comes from elsewhere: its baseline knows other prompts, or a penalty"),
    ],
)
def test_equal_rewards_are_marked_and_explained(branches: int, teaches: bool, said: str):
    same = [make_sequence(reward=0.0, credit=[0.0] * 3, branches=[], branch_count=branches // 2) for _ in range(2)]
    context = make_context(sequences=same, equal_rewards=True, teaches=teaches, sequence_count=2)
    page = Page(completions_page([replace(make_samples(), contexts=[context, make_context()])], {}))
    groups = page.of("group")
    assert [one["data-equal"] for one in groups] == ["1", "0"]
    assert [one["data-teaches"] for one in groups] == [str(int(teaches)), "1"]
    assert len(page.of("mark")) == len(page.of("why")) == 1
    assert said in page.text


def test_text_of_strangers_stays_text():
    evil = make_sequence(pieces=[EVIL, "\x1b[2J", "<end>"], rewards={EVIL: 1.0, "b": 0.0}, token=EVIL)
    samples = replace(make_samples(), estimator=EVIL, contexts=[make_context(EVIL, sequences=[evil], role=EVIL)])
    text = completions_page([samples], {EVIL: EVIL})
    page, plain = Page(text), Page(completions_page([make_samples()], {"a": "b"}))
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in plain.elements}
    names = {name for _, attributes in page.elements for name in attributes}
    assert names <= {name for _, attributes in plain.elements for name in attributes}
    assert page.text.count("</script>") >= 6
    assert "\x1b" not in text
    assert "\\x1b[2J" in page.text
    text.encode()  # no lone surrogates


def test_what_cannot_be_seen_has_a_mark_that_is_not_copied():
    one = make_sequence(pieces=["a\n", "", "\N{GRINNING FACE}"], finished=False)
    page = completions_page([replace(make_samples(), contexts=[make_context(sequences=[one])])], {})
    strip = re.search(r'<div class="strip joined">(.*?)</div>', page, re.DOTALL)
    assert strip
    assert '<i class="break"></i>\n' in strip[1]
    assert '<i class="part"></i>' in strip[1]
    assert re.sub("<.*?>", "", strip[1], flags=re.DOTALL) == "a\n\N{GRINNING FACE}"


def test_a_page_is_bounded(monkeypatch: pytest.MonkeyPatch):
    records = [make_samples(update) for update in range(1, 7)]
    whole = completions_page(records, {})
    monkeypatch.setattr(completions, "_SIZE", len(whole) // 3)
    curve = [(update, update / 5000) for update in range(1, 5001)]
    page = completions_page(records, {}, curve)
    shown = [int(one["data-update"]) for one in Page(page).of("group")]
    assert {1, 6} <= set(shown) < {1, 2, 3, 4, 5, 6}
    assert "updates are left out" in page
    assert page.count(",") < 5000  # of the curve, not every point
    assert "update 5,000" in page


def test_a_page_is_written_at_once_and_only_over_its_own_kind(tmp_path: Path):
    path = tmp_path / "page.html"
    write_completions_page(path, [make_samples()], {}, new=True)
    assert is_completions_page(path)
    with pytest.raises(InputError, match="File exists"):
        write_completions_page(path, [make_samples()], {}, new=True)
    path.write_text("<!doctype html><title>mine</title>")
    assert not is_completions_page(path)
    with pytest.raises(InputError, match="there are no completions to show"):
        completions_page([], {})


def test_records_are_read_back(tmp_path: Path):
    path, records = tmp_path / "samples.jsonl", [make_samples(1), make_samples(2)]
    lines = [json.dumps(asdict(record)) for record in records]
    path.write_text("\n".join([*lines, lines[0][:50]]))  # the last line of a killed process
    assert read_samples_file(path) == records


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"contexts": None}, "'NoneType' object is not iterable"),
        ({"reward": float("nan")}, "the reward of a samples must not be nan"),
        ({"more": 1}, "a samples has no 'more'"),
        ({"prompt": [{"role": 1, "content": ""}]}, "the role of a message must not be 1"),
        ({"entropy": [1.0]}, "as many entropies as tokens"),
        ({"rewards": {"a": "1"}}, "the rewards of a sampledsequence"),
        (
            {"branches": [{"step": 9, "token": "", "kind": "", "continuation": "", "reward": None}]},
            "depart from a token",
        ),
    ],
)
def test_damaged_records_are_a_sentence(change: dict[str, Any], said: str, tmp_path: Path):
    record: Any = asdict(make_samples())
    context = record["contexts"][0]
    for part in (record, context, context["sequences"][0]):
        if change.keys() <= part.keys() or "more" in change:
            part.update(change)
            break
    (tmp_path / "samples.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(InputError, match=rf"samples\.jsonl, line 1 is damaged: .*{said}"):
        read_samples_file(tmp_path / "samples.jsonl")
