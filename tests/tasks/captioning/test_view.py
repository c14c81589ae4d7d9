"""Images and captions as they are shown: in the terminal, on a page, and as JSON by ``corollout generate``."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import Tensor

from corollout.rollouts import Engine
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.settings import DEFAULT_NETWORK
from corollout.tasks.captioning.task import CaptionTask
from corollout.tasks.captioning.view import photo_html
from corollout.training.run_weights import open_run
from tests.support.commands import output, refusal
from tests.support.image_files import noise
from tests.support.small_captions import SmallColours, small_run
from tests.support.text_metrics import plain_cider, plain_frequencies

LOAD = "corollout.tasks.captioning.task.load_network"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def opened(directory: Path) -> tuple[CaptionTask, Engine]:
    task, engine = open_run(directory)
    assert isinstance(task, CaptionTask)
    return task, engine


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The networks that were asked for; all of them are the one of the data set."""
    names: list[str] = []

    def load(name: str, device: str) -> SmallColours:
        names.append(name)
        return SmallColours()

    monkeypatch.setattr(LOAD, load)
    return names


def records(*arguments: object) -> list[dict]:
    return [json.loads(line) for line in output("generate", *arguments, "--json").splitlines()]


def log_probability(task: CaptionTask, engine: Engine, features: Tensor, caption: str) -> float:
    """Of a finished caption, token by token."""
    ids = [*task.data.vocabulary.encode(caption.split()), engine.eos]
    with torch.no_grad():
        memory = engine.policy.encode(features[None])
        logits = engine.policy.score(memory, torch.tensor([[engine.bos, *ids[:-1]]]))[0]
    return float(logits.log_softmax(1)[torch.arange(len(ids)), ids].sum())


def test_a_page_shows_the_photo_and_the_references(opened: tuple[CaptionTask, Engine]):
    task, _ = opened
    view = task.view("val", task.val, 1)
    assert view.record() == {"name": "val-1.png", "photo": str(view.photo), "references": view.references}
    html = view.html()
    assert html.count('<img class="tiny" src="data:image/png;base64,') == 1
    assert all(f"<li>{text}</li>" in html for text in view.references)
    assert html.count("<div") == html.count("</div>") == 2
    assert view.tokens_html([1, len(task.tokens) - 1]).endswith('<span class="mark">&lt;unk&gt;</span></code>')


@pytest.mark.parametrize(("size", "kind", "shown"), [((40, 20), "png", (240, 120)), ((1120, 700), "jpeg", (560, 350))])
def test_photos_are_made_smaller_or_shown_larger(tmp_path: Path, size: tuple[int, int], kind: str, shown: tuple):
    Image.fromarray(noise(0, size[1], size[0])).save(tmp_path / "a.png")
    html = photo_html(tmp_path / "a.png", 'a "name"')
    assert f"data:image/{kind};base64," in html
    assert html.endswith(f'alt="a &quot;name&quot;" width="{shown[0]}" height="{shown[1]}">')


def test_json_has_the_true_scores_of_every_caption(directory: Path, opened: tuple[CaptionTask, Engine]):
    (task, engine), vocabulary = opened, opened[0].data.vocabulary
    val = task.val
    groups = list(val.data.references)
    frequencies = plain_frequencies(groups)
    lines = records(directory, "--sample", 3, "--index", "2,0")
    assert [(line["image"], line["rank"]) for line in lines] == [(image, rank) for image in (2, 0) for rank in range(3)]
    finished = 0
    for line in lines:
        image = line["image"]
        assert (line["split"], line["name"], line["id"]) == ("val", f"val-{image}.png", int(val.data.ids[image]))
        assert line["references"] == [vocabulary.text(ids) for ids in groups[image]]
        ids = vocabulary.encode(line["caption"].split())
        assert line["cider"] == pytest.approx(plain_cider(ids, groups[image], frequencies, len(groups)), abs=1e-9)
        if len(ids) < task.data.longest:
            expected = log_probability(task, engine, val.columns.batch([image]).context[0], line["caption"])
            assert line["log_probability"] == pytest.approx(expected, abs=1e-3)
            finished += 1
    assert finished
    assert lines[-1]["references"][2].split()[4] == "lathe"  # references keep words that no model learns


def test_what_is_shown_in_the_terminal(directory: Path):
    for options, title in ((["--count", 2], "caption"), (["--beam", 3, "--index", 1], "captions, beam")):
        lines = records(directory, *options)
        shown = output("generate", directory, *options).splitlines()
        assert title in [line.split("  ")[1].strip() for line in shown if line.startswith("  caption")]
        for line in lines:
            numbers = f"{100 * line['cider']:.1f}", f"{line['log_probability']:.2f}"
            assert [*line["caption"].split(), *numbers] in [text.split() for text in shown]
            assert any(text.startswith(f"val, image {line['image']}  {line['name']}") for text in shown)
            assert {f"    {reference}" for reference in line["references"]} <= {text.rstrip() for text in shown}
    values = [line["log_probability"] for line in lines]
    assert values == sorted(values, reverse=True)


def test_an_image_file_gets_the_caption_of_the_same_image_in_the_data(directory: Path, asked: list[str]):
    paths = [directory.parent / "photos" / f"val-{number}.png" for number in range(3)]
    options = [option for path in paths for option in ("--image", path)]
    lines, known = records(directory, *options), records(directory)
    assert [line["caption"] for line in lines] == [line["caption"] for line in known]
    assert [line["name"] for line in lines] == list(map(str, paths))
    for line, same in zip(lines, known, strict=True):
        assert line.keys() == {"name", "rank", "caption", "log_probability"}
        assert line["log_probability"] == pytest.approx(same["log_probability"], abs=1e-4)
    shown = output("generate", directory, *options)
    assert not any(word in shown for word in ("CIDEr-D", "references"))
    assert all(f"{line['name']} " in shown and line["caption"] in shown for line in lines)
    assert asked == ["small-colours"] * 2


def test_samples_for_a_file_do_not_depend_on_the_others(directory: Path, asked: list[str]):
    one, other = (directory.parent / "photos" / f"test-{number}.png" for number in (0, 1))
    both = records(directory, "--image", one, "--image", other, "--image", one, "--sample", 4)
    alone = records(directory, "--image", other, "--sample", 4)
    assert [line["caption"] for line in both[4:]] == [line["caption"] for line in alone]


def test_which_network_describes_a_file(directory: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch):
    photo = directory.parent / "photos" / "val-0.png"
    output("generate", directory, "--image", photo, "--network", "mine")
    read = CaptionData.open
    # A data set whose network is unknown.
    unknown = {"made": {}}
    monkeypatch.setattr(CaptionData, "open", lambda folder: replace(read(folder), meta=unknown))
    output("generate", directory, "--image", photo)
    assert asked == ["mine", DEFAULT_NETWORK]


def test_errors(directory: Path, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch):
    photo = (directory.parent / "photos" / "val-0.png").read_bytes()
    (tmp_path / "torn.png").write_bytes(photo[: len(photo) // 2])
    (tmp_path / "text.png").write_text("no image")
    for options, message in (
        (["--index", "4"], "the split val has only the images 0 to 3, not 4"),
        (["--index", "-1"], "not -1"),
        (["--split", "exam"], "has no split 'exam'; it has train, val, test"),
        (["--image", "absent.png"], "cannot read the image absent.png: No such file or directory"),
        (["--image", tmp_path / "torn.png"], "torn.png: "),
        (["--image", tmp_path / "text.png"], "it is not an image"),
        (["--image", "a.png", "--index", "1"], "exclude each other"),
        (["--network", "mine"], "--network is for image files"),
    ):
        assert message in refusal("generate", directory, *options)
    monkeypatch.setattr(LOAD, lambda name, device: SimpleNamespace(width=48))
    message = refusal("generate", directory, "--image", "a.png", "--network", "wide")
    assert "the network wide makes 48 features of an image, but this model was trained on 12" in message
