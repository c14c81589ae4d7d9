"""Images read as people see them, and features in batches as one by one."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from corollout.errors import InputError
from corollout.tasks.captioning.images import extract, find_images, read_image
from tests.support.image_files import MeanColours, make_images, noise, slow_features


def saved(folder: Path, image: Image.Image, name: str = "a.png", **how: Any) -> np.ndarray:
    image.save(folder / name, **how)
    read = read_image(folder / name)
    assert read.mode == "RGB"
    return np.asarray(read)


def test_images_are_found_by_their_endings_and_in_order(tmp_path: Path):
    for name in ("b.JPG", "a.jpeg", "c.png", "B.webp", "d.bmp", "e.gif", "f.txt", ".hidden.jpg", "g.jpg.part"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.jpg").mkdir()
    assert [path.name for path in find_images(tmp_path)] == ["B.webp", "a.jpeg", "b.JPG", "c.png", "d.bmp"]


def test_a_folder_without_images_is_refused(tmp_path: Path):
    (tmp_path / "readme.txt").write_text("")
    with pytest.raises(InputError, match=r"no image in the folder .*: files that end in \.jpg, .* are looked for"):
        find_images(tmp_path)
    for wrong in (tmp_path / "absent", tmp_path / "readme.txt"):
        with pytest.raises(InputError, match="cannot read the folder of images"):
            find_images(wrong)


def test_colours_stay_what_they_are(tmp_path: Path):
    colours = noise(0)
    assert np.array_equal(saved(tmp_path, Image.fromarray(colours)), colours)
    assert np.array_equal(saved(tmp_path, Image.fromarray(colours), "a.bmp"), colours)
    assert np.array_equal(saved(tmp_path, Image.fromarray(colours), "a.webp", lossless=True), colours)


def test_grey_is_three_equal_colours(tmp_path: Path):
    grey = noise(1)[:, :, 0]
    assert np.array_equal(saved(tmp_path, Image.fromarray(grey)), np.repeat(grey[:, :, None], 3, 2))
    deep = (grey.astype(np.uint16) << 8) + 77
    assert np.array_equal(saved(tmp_path, Image.fromarray(deep)), np.repeat(grey[:, :, None], 3, 2))
    black_white = Image.fromarray(grey > 99)
    assert black_white.mode == "1"
    assert np.array_equal(saved(tmp_path, black_white)[:, :, 1], 255 * (grey > 99))


def test_palettes_are_looked_up(tmp_path: Path):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    assert saved(tmp_path, image).tolist() == [[[10, 20, 30], [200, 100, 50]]]
    assert saved(tmp_path, image, transparency=1).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    assert saved(tmp_path, image, transparency=bytes([0, 255])).tolist() == [[[255, 255, 255], [200, 100, 50]]]


def test_what_is_transparent_is_white(tmp_path: Path):
    pixels = np.array([[[9, 9, 9, 0], [9, 9, 9, 255], [55, 155, 255, 51]]], np.uint8)
    assert saved(tmp_path, Image.fromarray(pixels)).tolist() == [[[255] * 3, [9] * 3, [215, 235, 255]]]
    grey = np.array([[[9, 0], [9, 255]]], np.uint8)
    assert saved(tmp_path, Image.fromarray(grey)).tolist() == [[[255] * 3, [9] * 3]]


def test_inks_become_light(tmp_path: Path):
    inks = {(255, 0, 0, 0): (0, 255, 255), (0, 0, 255, 0): (255, 255, 0), (0, 0, 0, 255): (0, 0, 0)}
    for ink, light in inks.items():
        read = saved(tmp_path, Image.new("CMYK", (16, 16), ink), "a.jpg", quality=100)
        assert np.abs(read[8, 8].astype(int) - light).max() <= 3, ink


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_stand_the_right_way_up(tmp_path: Path, orientation: int):
    upright = noise(2)
    # How a camera stores what it sees when it is held this way.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(stored))
    assert np.array_equal(saved(tmp_path, image, exif=exif), upright)


@pytest.mark.parametrize("batch", [1, 3, 4, 7, 50])
def test_features_in_batches_are_those_of_one_image_after_the_other(tmp_path: Path, batch: int):
    paths, network = make_images(tmp_path, 7), MeanColours()
    seen: list[int] = []
    found = extract(paths, network, batch, on_progress=seen.append)
    assert (found.paths, found.bad) == (paths, {})
    assert np.array_equal(found.rows, slow_features(paths))
    assert network.calls == [min(batch, 7 - start) for start in range(0, 7, batch)]
    assert seen == [min(start + batch, 7) for start in range(0, 7, batch)]
    for path, row in zip(paths, found.rows, strict=True):
        assert np.array_equal(network.features(path).numpy(), row)


def test_the_next_batch_is_decoded_while_the_network_computes(tmp_path: Path):
    class Waiting(MeanColours):
        """Goes on computing until the batch after the present one is decoded."""

        def __init__(self) -> None:
            super().__init__()
            self.decoded = threading.Semaphore(0)

        def prepare(self, image: Image.Image) -> np.ndarray:
            self.decoded.release()
            return super().prepare(image)

        def __call__(self, images: torch.Tensor) -> torch.Tensor:
            awaited = 4 if not self.calls else 2 if len(self.calls) == 1 else 0
            assert all(self.decoded.acquire(timeout=20) for _ in range(awaited))
            return super().__call__(images)

    network = Waiting()
    paths = make_images(tmp_path, 6)
    assert np.array_equal(extract(paths, network, 2).rows, slow_features(paths))
    assert network.calls == [2, 2, 2]


def test_a_bad_image_is_named_or_left_out(tmp_path: Path):
    paths = make_images(tmp_path, 9)
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[: len(whole) // 2])
    paths[3].write_bytes(b"no image at all")
    for path in paths[6:]:
        path.write_bytes(b"")
    with pytest.raises(InputError, match=r"^cannot read the image .*image-01\.png: .*; repair it, .* --skip-bad$"):
        extract(paths, MeanColours(), 3)
    network = MeanColours()
    found = extract(paths, network, 3, skip_bad=True)
    good = [paths[0], paths[2], *paths[4:6]]
    assert found.paths == good
    assert list(found.bad) == [paths[1], paths[3], *paths[6:]]
    assert found.bad[paths[3]] == f"cannot read the image {paths[3]}: it is no image, whatever its name says"
    assert np.array_equal(found.rows, slow_features(good))
    assert network.calls == [2, 2]
    with pytest.raises(InputError, match=r"image-01\.png"):
        network.features(paths[1])
    with pytest.raises(InputError, match="No such file"):
        network.features(tmp_path / "absent.png")


def test_no_image_of_all_is_good(tmp_path: Path):
    paths = make_images(tmp_path, 2)
    for path in paths:
        path.write_bytes(b"")
    found = extract(paths, MeanColours(), skip_bad=True)
    assert (found.paths, found.rows.shape, list(found.bad)) == ([], (0, 12), paths)


def test_a_network_must_do_what_it_says(tmp_path: Path):
    class Narrow(MeanColours):
        width = 13

    paths = make_images(tmp_path, 2)
    with pytest.raises(InputError, match=r"mean-colours made float32 \(2, 12\) of 2 images, not float32 \(2, 13\)"):
        extract(paths, Narrow())
    with pytest.raises(InputError, match="at least one image, not 0"):
        extract(paths, MeanColours(), batch=0)
