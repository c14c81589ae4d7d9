"""``corollout score`` as a person meets it."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from corollout.cli.main import cli
from corollout.errors import InputError
from corollout.tasks.captioning import score_command as command
from corollout.tasks.captioning.meteor import MeteorError, meteor
from corollout.tasks.captioning.text import tokenize
from tests.support.text_metrics import PublicScores

REFERENCES = {
    7: ["A dog runs on the beach.", "The brown dog is running.", "a dog at the sea"],
    3: ["Two cats sleep on a red sofa", "Cats on the couch, asleep"],
    12: ["A man's hat hangs on a hook.", "a hat on a hook", "There is a hat here"],
}
CAPTIONS = {3: "two cats on a sofa", 7: "A dog runs on the beach", 12: ""}
MEASURES = ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider_d", "cider"]


def annotations(references: dict[Any, list[str]]) -> dict[str, Any]:
    entries = [{"image_id": image, "caption": text} for image, texts in references.items() for text in texts]
    return {"images": [{"id": image} for image in references], "annotations": entries}


def results(captions: dict[Any, str]) -> list[dict[str, Any]]:
    return [{"image_id": image, "caption": text} for image, text in captions.items()]


@pytest.fixture(autouse=True)
def no_meteor(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*args: object) -> None:
        raise MeteorError("Java is not installed")

    monkeypatch.setattr(command, "meteor", absent)


class Files:
    def __init__(self, folder: Path):
        self.folder = folder
        self.refs = self.write("refs.json", annotations(REFERENCES))
        self.hyps = self.write("hyps.json", results(CAPTIONS))

    def write(self, name: str, content: Any) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(content), "utf-8")
        return path

    def run(self, *arguments: object, refs: Path | None = None, hyps: Path | None = None) -> Result:
        given = ["--refs", refs or self.refs, "--hyps", hyps or self.hyps, *arguments]
        return CliRunner().invoke(cli, ["score", *map(str, given)])

    def values(self, *arguments: object, **files: Path) -> dict[str, Any]:
        done = self.run("--json", *arguments, **files)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def refused(self, *arguments: object, **files: Path) -> str:
        done = self.run(*arguments, **files)
        assert isinstance(done.exception, InputError), done.output
        return str(done.exception)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_the_table_has_every_measure_times_100(files: Files):
    done = files.run()
    assert done.exit_code == 0, done.output
    values = files.values()
    assert "hyps.json: 3 captions" in done.stdout
    for name, key in {"BLEU-1": "bleu_1", "BLEU-4": "bleu_4", "ROUGE-L": "rouge_l", "CIDEr-D": "cider_d"}.items():
        (line,) = (line for line in done.stdout.splitlines() if line.split()[:1] == [name])
        assert line.split()[1] == f"{100 * values[key]:.2f}"
    assert "METEOR is absent: Java is not installed." in done.stdout


def test_json_has_the_values_of_the_public_evaluation(files: Files):
    values = files.values("--per-example")
    assert list(values) == ["images", *MEASURES, "meteor", "meteor_absent", "examples"]
    assert (values["images"], values["meteor"], values["meteor_absent"]) == (3, None, "Java is not installed")
    assert [example["image_id"] for example in values["examples"]] == [3, 7, 12]
    assert values["examples"][1]["cider_d"] > values["examples"][0]["cider_d"] > values["examples"][2]["cider_d"] == 0
    pytest.importorskip("pycocoevalcap")
    groups = [[" ".join(tokenize(text)) for text in REFERENCES[image]] for image in CAPTIONS]
    public = PublicScores(groups, [" ".join(tokenize(text)) for text in CAPTIONS.values()])
    assert values["cider_d"] == pytest.approx(public.cider_corpus, abs=1e-9)
    assert [values[f"bleu_{n}"] for n in (1, 2, 3, 4)] == pytest.approx(public.bleu_corpus, abs=1e-9)
    assert values["rouge_l"] == pytest.approx(public.rouge.mean(), abs=1e-9)
    for key, expected in {"cider_d": public.cider, "bleu_3": public.bleu[:, 2], "rouge_l": public.rouge}.items():
        assert [example[key] for example in values["examples"]] == pytest.approx(expected, abs=1e-9)


def test_each_caption_is_shown(files: Files):
    done = files.run("--per-example")
    (line,) = (line for line in done.stdout.splitlines() if "two cats on a sofa" in line)
    cider_d = files.values("--per-example")["examples"][0]["cider_d"]
    assert line.split()[5:7] == ["3", f"{100 * cider_d:.1f}"]


def test_meteor_where_it_is(files: Files, monkeypatch: pytest.MonkeyPatch):
    def fake(groups: list[list[list[str]]], captions: list[list[str]]) -> tuple[float, list[float]]:
        assert groups[2][0] == ["a", "man", "'s", "hat", "hangs", "on", "a", "hook"]
        assert captions[0] == ["two", "cats", "on", "a", "sofa"]
        return 0.25, [0.5, 0.25, 0.0]

    monkeypatch.setattr(command, "meteor", fake)
    values = files.values("--per-example")
    assert values["meteor"] == 0.25
    assert "meteor_absent" not in values
    assert [example["meteor"] for example in values["examples"]] == [0.5, 0.25, 0.0]
    assert ["METEOR", "25.00"] in [line.split() for line in files.run().stdout.splitlines()]
    assert files.values("--no-meteor")["meteor_absent"] == "it was left out by --no-meteor"


def test_why_meteor_is_absent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(MeteorError, match="Java is not installed"):
        meteor([[["a"]]], [["a"]])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MeteorError, match="which has the program for it, is not installed"):
        meteor([[["a"]]], [["a"]])


@pytest.mark.slow
def test_meteor_itself():
    pytest.importorskip("pycocoevalcap")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    references = [[["a", "dog", "runs"], ["the", "dog"]], [["a", "cat"]]]
    corpus, each = meteor(references, [["a", "dog", "is", "running"], []])
    assert each == pytest.approx([0.402846288358352, 0], abs=1e-6)
    assert 0 < corpus < each[0]


# Document frequencies


def test_frequencies_of_others(files: Files, tmp_path: Path):
    others = files.write(
        "others.json", annotations({**REFERENCES, "x": ["a dog and two cats", "cats"], "y": ["a hat"]})
    )
    written = tmp_path / "df.json"
    done = CliRunner().invoke(cli, ["score", "--refs", str(others), "--write-df", str(written)])
    assert (done.exit_code, done.output) == (0, "")
    content = json.loads(written.read_text("utf-8"))
    assert content["images"] == 5
    assert content["frequencies"]["cats"] == content["frequencies"]["a hat"] == 2
    own, from_annotations, from_file = files.values(), files.values("--df", others), files.values("--df", written)
    assert from_annotations == from_file
    assert from_file["cider_d"] != own["cider_d"]
    assert from_file["bleu_4"] == own["bleu_4"]
    assert files.values("--df", files.refs) == own


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"frequencies": {}, "images": 0}, "images must be a whole number from 1 on, not 0"),
        ({"frequencies": {}}, "images must be a whole number"),
        ({"frequencies": [], "images": 2}, "frequencies must be an object"),
        ({"frequencies": {"a": 3}, "images": 2}, "each in 0 to 2 images, but there is 'a': 3"),
        ({"frequencies": {"a": "2"}, "images": 2}, "there is 'a': '2'"),
        ({"frequencies": {"a b c d e": 1}, "images": 2}, "there is 'a b c d e': 1"),
        ([], "expected annotations"),
    ],
)
def test_frequencies_that_cannot_be(files: Files, content: Any, said: str):
    assert said in files.refused("--df", files.write("df.json", content))


def test_frequencies_that_cannot_be_written(files: Files):
    assert "cannot write" in files.refused("--write-df", files.folder)


# Which images


def test_images_without_a_caption(files: Files):
    few = files.write("few.json", results({7: CAPTIONS[7], 3: CAPTIONS[3]}))
    said = files.refused(hyps=few)
    assert "few.json has no captions of 1 of the 3 images" in said
    assert ": 12; give each a caption, or leave them out with --partial" in said
    values = files.values("--partial", hyps=few)
    assert values["images"] == 2
    refs = files.write("two.json", annotations({image: REFERENCES[image] for image in (3, 7)}))
    assert values == files.values(hyps=few, refs=refs)


def test_images_without_references(files: Files):
    more = files.write("more.json", results({**CAPTIONS, 5: "a", "7": "b"}))
    assert "captions of images without references in" in files.refused(hyps=more)
    assert files.refused("--partial", hyps=more).endswith("refs.json: 5, '7'")


def test_two_captions_of_an_image(files: Files):
    twice = files.write("twice.json", [*results(CAPTIONS), {"image_id": 7, "caption": "again"}])
    assert "twice.json, entry 4: a second caption of image 7" in files.refused(hyps=twice)


# Files


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"a": 1}, "expected annotations"),
        ([1], "expected annotations"),
        ({"annotations": 5}, "expected annotations"),
        ({"annotations": []}, "there is no annotation in it"),
        ({"annotations": [{"image_id": 1, "caption": "a"}, 5]}, "annotation 2: expected an object"),
        ({"annotations": [{"caption": "a"}]}, "annotation 1: image_id must be a whole number or text, not None"),
        ({"annotations": [{"image_id": 1.5, "caption": "a"}]}, "image_id must be a whole number or text, not 1.5"),
        ({"annotations": [{"image_id": 1, "caption": None}]}, "annotation 1: caption must be text, not None"),
    ],
)
def test_references_of_the_wrong_form(files: Files, content: Any, said: str):
    assert said in files.refused(refs=files.write("bad.json", content))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"annotations": []}, "expected a list of captions"),
        ([], "there is no caption in it"),
        ([{"image_id": 7, "caption": ["a"]}], "entry 1: caption must be text, not ['a']"),
        ([{"image_id": True, "caption": "a"}], "entry 1: image_id must be"),
        (["a"], "entry 1: expected an object with image_id and caption, not 'a'"),
    ],
)
def test_captions_of_the_wrong_form(files: Files, content: Any, said: str):
    assert said in files.refused(hyps=files.write("bad.json", content))


def test_files_that_cannot_be_read(files: Files, tmp_path: Path):
    assert (
        files.refused(hyps=tmp_path / "none.json") == f"cannot read {tmp_path / 'none.json'}: No such file or directory"
    )
    bad = tmp_path / "bad.json"
    bad.write_text('[{"image_id": 7,\n oops', "utf-8")
    assert "bad.json, line 2, column 2: not JSON" in files.refused(hyps=bad)
    bad.write_bytes('[{"image_id": 7, "caption": "café"}]'.encode("latin-1"))
    assert "not UTF-8" in files.refused(hyps=bad)
    bad.write_text("[" * 100_000, "utf-8")
    assert "nested too deeply" in files.refused(hyps=bad)


def test_nothing_to_do(files: Files):
    done = CliRunner().invoke(cli, ["score", "--refs", str(files.refs)])
    assert isinstance(done.exception, InputError)
    assert "nothing to do" in str(done.exception)
