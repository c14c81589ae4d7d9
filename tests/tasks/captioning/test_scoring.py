"""Files of captions, scored in Python and by ``corollout score``."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corollout.rewards import Reward
from corollout.tasks.captioning import meteor, scoring
from corollout.tasks.captioning.meteor import MeteorError, score_meteor
from corollout.tasks.captioning.metrics import CiderReward
from corollout.tasks.captioning.scoring import score_files, write_frequencies
from corollout.tasks.captioning.tokenizer import tokenize
from corollout.text_metrics import References
from tests.support.commands import output, refusal
from tests.support.errors import refused
from tests.support.text_metrics import PublicScores

REFERENCES = {
    7: ["A dog runs on the beach.", "The brown dog is running.", "a dog at the sea"],
    3: ["Two cats sleep on a red sofa", "Cats on the couch, asleep"],
    12: ["A man's hat hangs on a hook.", "a hat on a hook", "There is a hat here"],
}
CAPTIONS = {3: "two cats on a sofa", 7: "A dog runs on the beach", 12: ""}
METRICS = ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider_d", "cider"]


def annotations(references: dict[Any, list[str]]) -> dict[str, Any]:
    entries = [{"image_id": image, "caption": text} for image, texts in references.items() for text in texts]
    return {"images": [{"id": image} for image in references], "annotations": entries}


def results(captions: dict[Any, str]) -> list[dict[str, Any]]:
    return [{"image_id": image, "caption": text} for image, text in captions.items()]


@pytest.fixture(autouse=True)
def no_meteor(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object) -> None:
        raise MeteorError("Java is not installed")

    monkeypatch.setattr(scoring, "score_meteor", missing)


class Files:
    def __init__(self, folder: Path):
        self.folder = folder
        self.refs = self.write("refs.json", annotations(REFERENCES))
        self.hyps = self.write("hyps.json", results(CAPTIONS))

    def write(self, name: str, content: Any) -> Path:
        (self.folder / name).write_text(json.dumps(content), "utf-8")
        return self.folder / name

    def error(self, refs: Path | None = None, hyps: Path | None = None, **options: Any) -> str:
        return refused(".", score_files, refs or self.refs, hyps or self.hyps, **options)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_scores_are_those_of_the_public_evaluation(files: Files):
    result = score_files(files.refs, files.hyps)
    corpus, each = result.corpus, result.each
    assert sorted(corpus) == sorted(METRICS)
    assert (list(result.captions), result.no_meteor) == ([3, 7, 12], "Java is not installed")
    assert each["cider_d"][1] > each["cider_d"][0] > each["cider_d"][2] == 0
    pytest.importorskip("pycocoevalcap")
    groups = [[" ".join(tokenize(text)) for text in REFERENCES[image]] for image in CAPTIONS]
    public = PublicScores(groups, [" ".join(tokenize(text)) for text in CAPTIONS.values()])
    expected = {"cider_d": public.cider_corpus, "rouge_l": public.rouge.mean()}
    expected |= {f"bleu_{n}": value for n, value in enumerate(public.bleu_corpus, 1)}
    assert {name: corpus[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    for key, expected in {"cider_d": public.cider, "bleu_3": public.bleu[:, 2], "rouge_l": public.rouge}.items():
        assert each[key] == pytest.approx(expected, abs=1e-9)


def test_what_the_command_prints(files: Files):
    score = "score", "--refs", files.refs, "--hyps", files.hyps, "--per-example"
    result = score_files(files.refs, files.hyps)
    printed = json.loads(output(*score, "--json"))
    assert list(printed) == ["images", *METRICS, "meteor", "meteor_absent", "examples"]
    assert {name: printed[name] for name in METRICS} == result.corpus
    assert (printed["images"], printed["meteor"], printed["meteor_absent"]) == (3, None, "Java is not installed")
    assert [example["image_id"] for example in printed["examples"]] == [3, 7, 12]
    assert [example["cider"] for example in printed["examples"]] == result.each["cider"].tolist()
    table = output(*score)
    rows = [line.split() for line in table.splitlines()]
    assert "hyps.json: 3 captions" in table
    for name, key in {"BLEU-1": "bleu_1", "BLEU-4": "bleu_4", "ROUGE-L": "rouge_l", "CIDEr-D": "cider_d"}.items():
        assert [name, f"{100 * result.corpus[key]:.2f}"] in rows
    (line,) = (row for row in rows if row[:5] == ["two", "cats", "on", "a", "sofa"])
    assert line[5:7] == ["3", f"{100 * result.each['cider_d'][0]:.1f}"]
    assert "METEOR is missing: Java is not installed." in table
    assert "nothing to do" in refusal("score", "--refs", files.refs)


def test_ids_that_look_like_markup(tmp_path: Path):
    refs = {"images": [{"id": "[/b]\x1b[31m"}], "annotations": [{"image_id": "[/b]\x1b[31m", "caption": "a [red] cat"}]}
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    (tmp_path / "hyps.json").write_text(json.dumps(refs["annotations"]))
    files = "--refs", tmp_path / "refs.json", "--hyps", tmp_path / "hyps.json"
    assert r" [/b]\x1b[31m " in output("score", *files, "--per-example", "--no-meteor")


def test_meteor_if_installed(files: Files, monkeypatch: pytest.MonkeyPatch):
    def fake(groups: list[list[list[str]]], captions: list[list[str]]) -> tuple[float, np.ndarray]:
        assert groups[2][0] == ["a", "man", "'s", "hat", "hangs", "on", "a", "hook"]
        assert captions[0] == ["two", "cats", "on", "a", "sofa"]
        return 0.25, np.array([0.5, 0.25, 0.0])

    monkeypatch.setattr(scoring, "score_meteor", fake)
    result = score_files(files.refs, files.hyps)
    assert (result.corpus["meteor"], result.no_meteor) == (0.25, None)
    assert result.each["meteor"].tolist() == [0.5, 0.25, 0.0]
    assert "--no-meteor" in str(score_files(files.refs, files.hyps, meteor=False).no_meteor)


@pytest.mark.parametrize(("package", "message"), [(object(), "Java is not installed"), (None, "pycocoevalcap")])
def test_why_meteor_is_missing(monkeypatch: pytest.MonkeyPatch, package: object, message: str):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    with pytest.raises(MeteorError, match=message):
        score_meteor([[["a"]]], [["a"]])


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import time; time.sleep(60)", "did not finish within 1 seconds"),  # it neither reads nor answers
        ("import sys; sys.stdin.close(); import time; time.sleep(60)", "failed"),
        ("pass", "failed"),
        ("input(); print('what?\\n' * 9, flush=True); input(); input()", "could not convert"),
        ("import sys; [sys.stdout.buffer.write(b'\\xff\\n') for _ in range(9)]", "failed"),
    ],
)
def test_a_program_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, message: str):
    monkeypatch.setattr(meteor, "_folder", lambda: tmp_path)
    monkeypatch.setattr(meteor, "_command", lambda: [sys.executable, "-c", program])
    monkeypatch.setattr(meteor, "_SECONDS", 0.8)
    monkeypatch.setattr(meteor, "_SECONDS_PER_CAPTION", 0.1)
    captions = [["a", "dog" * 200_000], ["a", "cat"]]  # more than a pipe holds
    with pytest.raises(MeteorError, match=message):
        score_meteor([[["a"]], [["the", "cat"]]], captions)


def test_how_the_program_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked = ["SCORE ||| a b ||| c ||| a b", "SCORE |||  ||| "]
    lines = "; ".join(f"assert input() == {line!r}; print('1.0 2', flush=True)" for line in asked)
    program = f"{lines}; assert input() == 'EVAL ||| 1.0 2 ||| 1.0 2'; print('0.5\\n0.25\\n0.375', flush=True)"
    monkeypatch.setattr(meteor, "_folder", lambda: tmp_path)
    monkeypatch.setattr(meteor, "_command", lambda: [sys.executable, "-c", program])
    corpus, each = score_meteor([[["a", "b"], ["|||", "c"]], [[]]], [["a\nb"], []])
    assert (corpus, each.tolist()) == (0.375, [0.5, 0.25])
    with pytest.raises(MeteorError, match="not valid Unicode"):
        score_meteor([[["a"]]], [["\ud800"]])
    monkeypatch.setattr(meteor, "_command", lambda: [str(tmp_path / "missing")])
    with pytest.raises(MeteorError, match="does not start"):
        score_meteor([[["a"]]], [["a"]])


@pytest.mark.parametrize("name", ["refs", "hyps"])
def test_half_of_a_surrogate_pair_is_refused(files: Files, name: str):
    path = getattr(files, name)
    path.write_text(path.read_text().replace("dog", "\\ud800", 1))
    refused(rf"{name}\.json, line 1, column \d+: .*half of a surrogate pair", score_files, files.refs, files.hyps)
    if name == "refs":
        out = files.folder / "df.json"
        assert "half of a surrogate pair" in refusal("score", "--refs", files.refs, "--write-df", out)
        assert not out.exists()


@pytest.mark.parametrize("images", [0, -1, 10**30, True, 1.5, "5"])
def test_frequencies_need_a_number_of_images(files: Files, images: object):
    table = files.write("df.json", {"images": images, "frequencies": {"a": 1}})
    assert "images must be an integer from 1" in files.error(frequencies=table)


@pytest.mark.prove
def test_meteor_itself():
    pytest.importorskip("pycocoevalcap")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    references = [[["a", "dog", "runs"], ["the", "dog"]], [["a", "cat"]]]
    corpus, each = score_meteor(references, [["a", "dog", "is", "running"], []])
    assert each == pytest.approx([0.402846288358352, 0], abs=1e-6)
    assert 0 < corpus < each[0]


def test_document_frequencies(files: Files, tmp_path: Path):
    more = {**REFERENCES, "x": ["a dog and two cats", "cats"], "y": ["a hat"]}
    others = files.write("others.json", annotations(more))
    written = tmp_path / "df.json"
    assert output("score", "--refs", others, "--write-df", written) == ""
    content = json.loads(written.read_text("utf-8"))
    assert content["images"] == 5
    assert content["frequencies"]["cats"] == content["frequencies"]["a hat"] == 2
    usual, of_others, of_file, of_refs = (
        score_files(files.refs, files.hyps, path).corpus for path in (None, others, written, files.refs)
    )
    assert of_others == of_file
    assert of_file["cider_d"] != usual["cider_d"]
    assert of_file["bleu_4"] == usual["bleu_4"]
    assert of_refs == usual
    refused("cannot write", write_frequencies, tmp_path, files.refs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"frequencies": {}, "images": 0}, "images must be an integer from 1 to 2147483647, not 0"),
        ({"frequencies": [], "images": 2}, "frequencies must be an object"),
        ({"frequencies": {"a": 3}, "images": 2}, "each in 0 to 2 images, not 'a': 3"),
        ({"frequencies": {"a b c d e": 1}, "images": 2}, "not 'a b c d e': 1"),
        ([], "expected annotations"),
    ],
)
def test_invalid_frequencies(files: Files, content: Any, message: str):
    assert message in files.error(frequencies=files.write("df.json", content))


def test_images_that_do_not_match(files: Files):
    few = files.write("few.json", results({7: CAPTIONS[7], 3: CAPTIONS[3]}))
    assert "few.json has no captions of 1 of the 3 images in " in files.error(hyps=few)
    assert files.error(hyps=few).endswith(": 12; caption every image, or ignore the others with --partial")
    partial = score_files(files.refs, few, partial=True).corpus
    refs = files.write("two.json", annotations({image: REFERENCES[image] for image in (3, 7)}))
    assert partial == score_files(refs, few).corpus
    more = files.write("more.json", results({**CAPTIONS, 5: "a", "7": "b"}))
    assert files.error(hyps=more, partial=True).endswith("without references in " + str(files.refs) + ": 5, '7'")
    twice = files.write("twice.json", [*results(CAPTIONS), {"image_id": 7, "caption": "again"}])
    assert "twice.json, entry 4: a second caption of image 7" in files.error(hyps=twice)


def caption(image: object = 1, text: object = "a") -> dict[str, object]:
    return {"image_id": image, "caption": text}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"annotations": 5}, "expected annotations"),
        ({"annotations": []}, "has no annotations"),
        ({"annotations": [caption(), 5]}, "annotation 2: expected an object"),
        ({"annotations": [{"caption": "a"}]}, "annotation 1: image_id must be an integer or text, not None"),
        ({"annotations": [caption(1.5)]}, "image_id must be an integer or text, not 1.5"),
        ({"annotations": [caption(text=None)]}, "annotation 1: caption must be text, not None"),
    ],
)
def test_invalid_references(files: Files, content: Any, message: str):
    assert message in files.error(refs=files.write("bad.json", content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"annotations": []}', "expected a list of captions"),
        (b"[]", "has no captions"),
        (b'[{"image_id": true, "caption": "a"}]', "entry 1: image_id must be"),
        (b'[{"image_id": 7,\n oops', "bad.json, line 2, column 2: not valid JSON"),
        (b'[{"image_id": 7, "caption": "caf\xe9"}]', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_captions(files: Files, content: bytes, message: str):
    path = files.folder / "bad.json"
    path.write_bytes(content)
    assert message in files.error(hyps=path)


# CIDEr-D as a reward

END = 0


def test_the_end_counts_as_a_word_if_it_was_reached():
    groups = [[[1, 2, 3], [1, 2]], [[4, 2]], [[5, 6, 1, 7]]]
    cider_reward = CiderReward(References([[*tokens, END] for tokens in group] for group in groups), None, END)
    tokens = [[1, 2], [1, 2], [4, 2]]
    values = Reward(cider_reward)(tokens, [7, 8, 9], {"image": [0, 0, 1]}, [True, False, True]).values.tolist()
    assert values == cider_reward.cider.scores([[1, 2, END], [1, 2], [4, 2, END]], [0, 0, 1]).tolist()
    assert values[0] > values[1] > 0
    assert tokens == [[1, 2], [1, 2], [4, 2]]
    Reward(cider_reward, workers=1).close()  # it can be sent to a worker, or would be rejected before any starts
    without = CiderReward(cider_reward.cider.references)
    assert without(tokens, [0, 0, 1], [True] * 3) == cider_reward(tokens, [0, 0, 1], [False] * 3)
