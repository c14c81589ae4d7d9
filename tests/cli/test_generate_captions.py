"""``corollout generate`` for captions, as a person meets it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from corollout.cli.main import cli
from corollout.errors import InputError
from corollout.rollouts import Engine
from corollout.tasks.captioning.networks import DEFAULT
from corollout.tasks.captioning.task import CaptionTask
from corollout.training import start as jobs
from tests.support.image_files import MeanColours
from tests.support.small_captions import SmallColours, small_run
from tests.support.text_metrics import plain_cider, plain_frequencies


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def opened(directory: Path) -> tuple[CaptionTask, Engine]:
    task, engine = jobs.open_run(directory)
    assert isinstance(task, CaptionTask)
    return task, engine


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of networks that were asked for; it is always the one of the data set that comes."""
    names: list[str] = []

    def load(name: str, device: str) -> SmallColours:
        names.append(name)
        return SmallColours()

    monkeypatch.setattr("corollout.tasks.captioning.generated.load_network", load)
    return names


def run(directory: Path, *arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli, ["generate", str(directory), *map(str, arguments)])


def lines(result: Result) -> list[dict]:
    assert result.exit_code == 0, (result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def log_probability(task: CaptionTask, engine: Engine, features: Tensor, caption: str) -> float:
    """Of a caption that ended by itself, token by token."""
    ids = [*task.data.vocabulary.encode(caption.split()), engine.eos]
    with torch.no_grad():
        memory = engine.policy.encode(features[None])
        logits = engine.policy.score(memory, torch.tensor([[engine.bos, *ids[:-1]]]))[0]
    return float(logits.log_softmax(1)[torch.arange(len(ids)), ids].sum())


def test_json_has_a_line_for_each_caption_with_its_true_measures(directory: Path, opened: tuple[CaptionTask, Engine]):
    task, engine = opened
    val = task.val
    groups = list(val.data.references)
    frequencies = plain_frequencies(groups)
    found = lines(run(directory, "--sample", 3, "--number", "2,0", "--json"))
    assert [(line["image"], line["rank"]) for line in found] == [(image, rank) for image in (2, 0) for rank in range(3)]
    ended = 0
    for line in found:
        image = line["image"]
        assert (line["split"], line["name"], line["id"]) == ("val", f"val-{image}.png", int(val.data.ids[image]))
        assert line["references"] == [task.data.vocabulary.text(ids) for ids in groups[image]]
        ids = task.data.vocabulary.encode(line["caption"].split())
        assert line["cider"] == pytest.approx(plain_cider(ids, groups[image], frequencies, len(groups)), abs=1e-9)
        if len(ids) < task.data.longest:
            features = val.columns.batch([image]).context[0]
            expected = log_probability(task, engine, features, line["caption"])
            assert line["log_probability"] == pytest.approx(expected, abs=1e-3)
            ended += 1
    assert ended


def test_references_keep_words_that_no_model_learns(directory: Path):
    (line,) = lines(run(directory, "--number", 0, "--json"))
    assert line["references"][2].startswith("there is a ")
    assert line["references"][2].split()[4] == "lathe"


def test_samples_depend_on_the_seed_and_the_image_alone(directory: Path):
    def sampled(*options: object) -> list[str]:
        return [line["caption"] for line in lines(run(directory, "--sample", 4, "--json", *options))]

    assert sampled() == sampled("--seed", 0) != sampled("--seed", 1)
    assert sampled("--task", 2) == sampled()[8:]


def test_a_beam_is_ordered_by_probability(directory: Path):
    found = lines(run(directory, "--beam", 4, "--split", "train", "--count", 2, "--json"))
    assert [(line["image"], line["rank"]) for line in found] == [(image, rank) for image in (0, 1) for rank in range(4)]
    for beam in (found[:4], found[4:]):
        values = [line["log_probability"] for line in beam]
        assert values == sorted(values, reverse=True)
        assert len({line["caption"] for line in beam}) == 4


def test_what_is_shown(directory: Path):
    for options, title in ((["--count", 2], "caption"), (["--beam", 3, "--number", 1], "captions, beam")):
        found = lines(run(directory, *options, "--json"))
        result = run(directory, *options)
        assert result.exit_code == 0, result.output
        shown = result.stdout.splitlines()
        assert title in [line.split("  ")[1].strip() for line in shown if line.startswith("  caption")]
        for line in found:
            numbers = f"{100 * line['cider']:.1f}", f"{line['log_probability']:.2f}"
            assert [*line["caption"].split(), *numbers] in [text.split() for text in shown]
            assert any(text.startswith(f"val, image {line['image']}  {line['name']}") for text in shown)
            for reference in line["references"]:
                assert f"    {reference}" in [text.rstrip() for text in shown]


def test_an_image_file_gets_the_caption_of_the_same_image_in_the_data(directory: Path, asked: list[str]):
    photos = directory.parent / "photos"
    paths = [photos / f"val-{number}.png" for number in range(3)]
    options = [option for path in paths for option in ("--image", path)]
    found = lines(run(directory, *options, "--json"))
    known = lines(run(directory, "--json"))
    assert [line["caption"] for line in found] == [line["caption"] for line in known]
    assert [line["name"] for line in found] == list(map(str, paths))
    for line, same in zip(found, known, strict=True):
        assert line.keys() == {"name", "rank", "caption", "log_probability"}
        assert line["log_probability"] == pytest.approx(same["log_probability"], abs=1e-4)
    shown = run(directory, *options).stdout
    assert "CIDEr-D" not in shown
    assert "references" not in shown
    for line in found:
        assert f"{line['name']} " in shown
        assert line["caption"] in shown
    assert asked == ["small-colours"] * 2


def test_samples_for_a_file_do_not_depend_on_the_others(directory: Path, asked: list[str]):
    one, other = (directory.parent / "photos" / f"test-{number}.png" for number in (0, 1))
    both = lines(run(directory, "--image", one, "--image", other, "--image", one, "--sample", 4, "--json"))
    assert len(both) == 8
    alone = lines(run(directory, "--image", other, "--sample", 4, "--json"))
    assert [(line["name"], line["caption"]) for line in alone] == [(str(other), line["caption"]) for line in both[4:]]


def test_which_network_describes_a_file(directory: Path, tmp_path: Path, asked: list[str]):
    photo = directory.parent / "photos" / "val-0.png"
    assert run(directory, "--image", photo, "--network", "mine").exit_code == 0
    # A data set whose features came from nobody knows where.
    shutil.copytree(directory.parent / "data", tmp_path / "data")
    meta = json.loads((tmp_path / "data" / "meta.json").read_text())
    del meta["made"]["network"]
    (tmp_path / "data" / "meta.json").write_text(json.dumps(meta))
    shutil.copytree(directory, tmp_path / "run")
    config = (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "run" / "config.toml").write_text(
        config.replace(str(directory.parent / "data"), str(tmp_path / "data"))
    )
    assert run(tmp_path / "run", "--image", photo).exit_code == 0
    assert asked == ["mine", DEFAULT]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--number", "4"], "the split val has only the images 0 to 3, not 4"),
        (["--number", "-1"], "not -1"),
        (["--number", "two"], "--number takes whole numbers, as in 4 or 4,7, not 'two'"),
        (["--split", "exam"], "has no split 'exam'; it has train, val, test"),
        (["--beam", "2", "--sample", "2"], "choose one"),
        (["--image", "absent.png"], "cannot read the image absent.png: No such file or directory"),
        (["--image", "{torn}"], "torn.png: "),
        (["--image", "{text}"], "it is no image, whatever its name says"),
        (["--image", "a.png", "--number", "1"], "--image and --number are two ways to name images: choose one"),
        (["--network", "mine"], "--network is for image files: name them by --image"),
    ],
)
def test_bad_input_is_a_sentence(options: list[str], said: str, directory: Path, tmp_path: Path, asked: list[str]):
    sound = (directory.parent / "photos" / "val-0.png").read_bytes()
    files = {"torn": tmp_path / "torn.png", "text": tmp_path / "text.png"}
    files["torn"].write_bytes(sound[: len(sound) // 2])
    files["text"].write_text("no image")
    result = run(directory, *(option.format(**files) for option in options))
    assert isinstance(result.exception, InputError), result.output
    assert said in str(result.exception)
    assert result.stdout == ""


def test_features_of_another_width_are_refused(directory: Path, monkeypatch: pytest.MonkeyPatch):
    class Wide(MeanColours):
        width = 48

    monkeypatch.setattr("corollout.tasks.captioning.generated.load_network", lambda name, device: Wide())
    result = run(directory, "--image", "a.png", "--network", "wide")
    assert isinstance(result.exception, InputError)
    said = str(result.exception)
    assert "the network wide makes 48 numbers of an image, but this model was trained on 12: name the network" in said
    assert str(directory.parent / "data") in said
