"""``corollout data features`` as a person meets it."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import corollout.tasks.captioning.features_command as command
from corollout.cli.data import app
from corollout.errors import InputError, Interrupted
from tests.support.image_files import MeanColours, make_images, slow_features


@pytest.fixture(autouse=True)
def _quick_network(monkeypatch: pytest.MonkeyPatch) -> None:
    real = command.load_network

    def load(name: str, device: str) -> object:
        return MeanColours() if (name, device) == ("efficientnet-lite2", "cpu") else real(name, device)

    monkeypatch.setattr(command, "load_network", load)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["features", *map(str, arguments)])


def refusal(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def test_features_and_names_are_made(tmp_path: Path):
    paths = make_images(tmp_path / "images", 5)
    for _ in range(2):  # the second time there is nothing left to do
        result = run("--images", tmp_path / "images", "--out", tmp_path / "x.npy", "--batch", 2)
        assert result.exit_code == 0, result.output
        assert "x.npy: 5 images, 12 numbers each; their names: " in result.stdout
        assert "5 of 5" in result.stderr
    assert np.array_equal(np.load(tmp_path / "x.npy"), slow_features(paths))
    assert (tmp_path / "x_names.txt").read_text().split() == [path.name for path in paths]


def test_bad_images_stop_it_or_are_counted(tmp_path: Path):
    paths = make_images(tmp_path / "images", 5)
    paths[1].write_bytes(b"")
    paths[4].write_bytes(b"bad")
    wish = "--images", tmp_path / "images", "--out", tmp_path / "x.npy"
    assert "image-01.png: it is no image, whatever its name says; repair it" in refusal(*wish)
    result = run(*wish, "--skip-bad")
    assert result.exit_code == 0, result.output
    assert "x.npy: 3 images" in result.stdout
    assert "left out 2, the first: cannot read the image" in result.stdout
    assert (tmp_path / "x_names.txt").read_text().split() == ["image-00.png", "image-02.png", "image-03.png"]


def test_what_cannot_be_done_is_said_in_a_sentence(tmp_path: Path):
    images = make_images(tmp_path / "images", 2)[0].parent
    (tmp_path / "empty").mkdir()
    out = tmp_path / "x.npy"
    assert "no image in the folder" in refusal("--images", tmp_path / "empty", "--out", out)
    assert "cannot read the folder of images" in refusal("--images", tmp_path / "absent", "--out", out)
    assert "there is no network 'eyes'" in refusal("--images", images, "--out", out, "--network", "eyes")
    assert "cannot write" in refusal("--images", images, "--out", images / "image-00.png" / "x.npy")
    assert "ends in .npy" in refusal("--images", images, "--out", tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "images"]


def test_stopped_by_a_person_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = make_images(tmp_path / "images", 5)
    wish = "--images", tmp_path / "images", "--out", tmp_path / "x.npy", "--batch", 2
    plain = MeanColours.__call__

    def stop_later(self: MeanColours, images: object) -> object:
        if self.calls:
            raise KeyboardInterrupt
        return plain(self, images)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(MeanColours, "__call__", stop_later)
        result = run(*wish)
    assert isinstance(result.exception, Interrupted)
    assert str(result.exception) == "stopped after 2 of 5 images; the same command goes on from there"
    assert run(*wish).exit_code == 0
    assert np.array_equal(np.load(tmp_path / "x.npy"), slow_features(paths))
