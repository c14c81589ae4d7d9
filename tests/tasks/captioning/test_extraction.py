"""Images are read as people see them; files of features have the same bytes however often the work is killed."""

import fcntl
import json
import os
import signal
import threading
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from corollout.events import Callback, Event
from corollout.tasks.captioning import open_features
from corollout.tasks.captioning.extraction import extract, network_of, write_features
from corollout.tasks.captioning.networks import find_images, read_image
from tests.support.errors import refused
from tests.support.full_disks import small_files
from tests.support.image_files import MeanColours, make_images, noise, slow_features

FOREIGN = "it is not an image in one of the formats JPEG, PNG, WEBP, BMP"


def counting(done: list[int]) -> Callback:
    return lambda event: done.append(event.record["done"])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_file_names_its_network(tmp_path: Path):
    out = tmp_path / "x.npy"
    write_features(make_images(tmp_path / "images", 2), MeanColours(), out)
    assert network_of(out) == "mean-colours"
    assert network_of(tmp_path / "x.npz") is None
    assert network_of(tmp_path / "y.npy") is None
    for damaged in ("{", "[]", "{}", '{"network": 3}'):
        (tmp_path / "x.json").write_text(damaged)
        assert network_of(out) is None


def test_features_are_written_as_their_reader_expects_them(tmp_path: Path):
    paths = make_images(tmp_path / "images", 7)
    paths[6] = paths[6].rename(tmp_path / "images" / "à 9.41\u202fAM 写真.png")
    out = tmp_path / "new" / "folder" / "x.npy"
    seen: list[int] = []
    written = write_features(paths, MeanColours(), out, batch=3, on_event=counting(seen))
    assert (written.path, written.rows, written.bad) == (out, 7, {})
    assert written.names.read_text() == "".join(f"{path.name}\n" for path in paths)
    assert seen == [0, 3, 6, 7, 7]
    np.save(tmp_path / "plain.npy", slow_features(paths))
    assert out.read_bytes() == (tmp_path / "plain.npy").read_bytes()
    found = open_features(out)
    assert (list(found.names), found.width, found.dtype) == ([path.name for path in paths], 12, np.float32)
    assert set(contents(out.parent)) == {"x.npy", "x_names.txt", "x.json"}
    about = json.loads((out.parent / "x.json").read_text())
    assert (about["network"], about["side"], about["width"], about["images"]) == ("mean-colours", 6, 12, 7)


def killed_at(instant: int, work: Callable[[], Any]) -> bool:
    """Do the work in a child that is killed right before or after a sync or a rename; whether it came that far."""
    child = os.fork()
    if child == 0:
        count = 0

        def deadly(function: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: Any) -> None:
                nonlocal count
                for moment in (lambda: None, lambda: function(*arguments)):
                    moment()
                    count += 1
                    if count == instant:
                        os.kill(os.getpid(), signal.SIGKILL)

            return call

        status = 1
        try:
            os.fsync, os.replace = deadly(os.fsync), deadly(os.replace)
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def test_killed_at_any_instant_the_work_resumes_to_the_same_bytes(tmp_path: Path):
    paths = make_images(tmp_path / "images", 5)
    paths[2].write_bytes(b"bad")
    write_features(paths, MeanColours(), tmp_path / "whole" / "x.npy", batch=2, skip_bad=True)
    expected = contents(tmp_path / "whole")
    instants, killed = 0, True
    while killed:
        instants += 1
        out = tmp_path / f"killed-{instants}" / "x.npy"
        killed = killed_at(instants, partial(write_features, paths, MeanColours(), out, batch=2, skip_bad=True))
        seen: list[int] = []
        network = MeanColours()
        write_features(paths, network, out, batch=2, skip_bad=True, on_event=counting(seen))
        assert contents(out.parent) == expected, instants
        # Nothing is done twice: of the files, all but the third are images.
        assert sum(network.calls) == {0: 4, 2: 2, 4: 1, 5: 0}[seen[0]]
    # Twice each: two beginnings, three batches of rows and a line, a header, two files and their folder, three renames
    assert instants - 1 == 2 * (2 + 3 * 2 + 1 + 2 * 2 + 3)


def begun(tmp_path: Path) -> tuple[list[Path], Path]:
    """Work that was killed after two of three batches."""
    paths, out = make_images(tmp_path / "images", 6), tmp_path / "x.npy"
    assert killed_at(2 * (2 + 2 * 2) + 1, lambda: write_features(paths, MeanColours(), out, batch=2))
    assert len((tmp_path / "x.npy.part.jsonl").read_text().splitlines()) == 3
    return paths, out


@pytest.mark.parametrize(
    ("torn", "done"),
    [
        (lambda rows, record: (rows + b"half a ro", record), 4),
        (lambda rows, record: (rows, record + b'{"files": 2, "b'), 4),
        (lambda rows, record: (rows, record + b'{"files": 2, "bad": {}}\n'), 4),
        (lambda rows, record: (rows[:-50], record), 2),
        (lambda rows, record: (rows, record[:-3]), 2),
        (lambda rows, record: (rows[:20], record), 0),
        (lambda rows, record: (b"", record), 0),
        (lambda rows, record: (rows, b""), 0),
        (lambda rows, record: (rows, record[:9]), 0),
    ],
)
def test_incomplete_writes_are_done_again(tmp_path: Path, torn: Callable, done: int):
    paths, out = begun(tmp_path)
    files = tmp_path / "x.npy.part", tmp_path / "x.npy.part.jsonl"
    rows, record = (file.read_bytes() for file in files)
    for file, data in zip(files, torn(rows[: rows.index(b"\n") + 1 + 4 * 48], record), strict=True):
        file.write_bytes(data)
    seen: list[int] = []
    write_features(paths, MeanColours(), out, batch=2, on_event=counting(seen))
    assert seen[0] == done
    assert np.array_equal(np.load(out), slow_features(paths))


def test_other_images_or_networks_do_not_resume(tmp_path: Path):
    class Other(MeanColours):
        name = "other"

    paths, out = begun(tmp_path)
    before = contents(tmp_path / "images")
    message = r"x\.npy\.part was begun with other images or another network: remove it"
    more = [*paths, *make_images(tmp_path / "more", 7)[6:]]
    for wrong, network in ((paths[1:], MeanColours()), (more, MeanColours()), (paths, Other())):
        refused(message, write_features, wrong, network, out)
    os.utime(paths[0], (0, 0))
    refused(message, write_features, paths, MeanColours(), out)
    assert contents(tmp_path / "images") == before


def test_a_file_that_is_complete_is_left_alone(tmp_path: Path):
    paths, out = make_images(tmp_path / "images", 3), tmp_path / "x.npy"
    first = write_features(paths, MeanColours(), out)
    before, network = out.stat().st_mtime_ns, MeanColours()
    assert write_features(paths, network, out) == first
    assert (network.calls, out.stat().st_mtime_ns) == ([], before)
    refused(r"x\.npy exists and was made from other images", write_features, paths[1:], network, out)
    (tmp_path / "x.json").write_text("[]")
    refused("exists and was made", write_features, paths, network, out)
    np.save(tmp_path / "precious.npy", np.zeros(3))
    refused("exists and was made", write_features, paths, network, tmp_path / "precious.npy")
    assert np.array_equal(np.load(tmp_path / "precious.npy"), np.zeros(3))


def test_a_bad_image_stops_the_work_until_it_may_be_left_out(tmp_path: Path):
    paths, out = make_images(tmp_path / "images", 5), tmp_path / "x.npy"
    paths[3].write_bytes(b"bad")
    refused(r"image-03\.png: it is not an image.* --skip-bad$", write_features, paths, MeanColours(), out, batch=2)
    network = MeanColours()
    written = write_features(paths, network, out, batch=2, skip_bad=True)
    assert (written.rows, list(written.bad), network.calls) == (4, ["image-03.png"], [1, 1])
    assert written.names.read_text().split() == [path.name for path in paths if path != paths[3]]
    assert np.array_equal(np.load(out), slow_features([*paths[:3], paths[4]]))
    refused(r"image-03\.png: .*; it was skipped before: continue", write_features, paths, MeanColours(), out)
    for path in paths:
        path.write_bytes(b"bad")
    out = tmp_path / "y.npy"
    refused(r"none of 5 images is readable; the first: ", write_features, paths, MeanColours(), out, skip_bad=True)
    assert not out.exists()


def test_two_processes_do_not_write_one_file(tmp_path: Path):
    paths, out = begun(tmp_path)
    with (tmp_path / "x.npy.part.jsonl").open("ab") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        refused(r"another process is writing .*x\.npy: wait for it", write_features, paths, MeanColours(), out)
    assert write_features(paths, MeanColours(), out).rows == 6


def test_what_another_process_has_just_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths, out = make_images(tmp_path / "images", 2), tmp_path / "x.npy"

    def quicker(*arguments: object) -> None:
        monkeypatch.undo()
        out.write_bytes(b"theirs")

    monkeypatch.setattr(fcntl, "flock", quicker)
    refused(r"another process has just written .*x\.npy: run the command", write_features, paths, MeanColours(), out)
    assert out.read_bytes() == b"theirs"
    assert not list(tmp_path.glob("*.part*"))


def test_paths_and_names_that_are_rejected(tmp_path: Path):
    paths, network, out = make_images(tmp_path / "images", 2), MeanColours(), tmp_path / "x.npy"
    (tmp_path / "file").write_text("")
    message = r"cannot write .*x\.npy: (Not a directory|File exists); make room, or choose"
    refused(message, write_features, paths, network, tmp_path / "file" / "x.npy")
    refused(r"to a \.npy file, not to .*features$", write_features, paths, network, tmp_path / "features")
    twice = [*paths, tmp_path / "elsewhere" / "image-00.png"]
    refused(r"two images have the name 'image-00\.png'", write_features, twice, network, out)
    refused(r"cannot read the image .*absent\.png: No such", write_features, [tmp_path / "absent.png"], network, out)
    for name in ("two\nlines.png", "end.png ", os.fsdecode(b"\xff.png")):
        refused("is not a valid line of text: rename", write_features, [tmp_path / name], network, out)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths, out = make_images(tmp_path / "images", 2), tmp_path / "x.npy"
    real, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    refused(
        r"cannot write .*x\.npy: the disk is full, and the same",
        write_features,
        paths,
        MeanColours(),
        out,
    )
    assert np.array_equal(np.load(write_features(paths, MeanColours(), out).path), slow_features(paths))


@pytest.mark.parametrize("size", [0, 1, 130])
def test_files_that_cannot_grow(size: int, tmp_path: Path):
    """Nothing that could not be written is tried again when a file is closed."""
    paths, out = make_images(tmp_path / "images", 2), tmp_path / "x.npy"

    def write() -> None:
        with small_files(size):
            write_features(paths, MeanColours(), out)

    refused(r"cannot write .*x\.npy: File too large; make room", write)
    assert np.array_equal(np.load(write_features(paths, MeanColours(), out).path), slow_features(paths))


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

    (tmp_path / "none").mkdir()
    refused(r"has no images \(files that end in \.jpg, ", find_images, tmp_path / "none")
    for wrong in (tmp_path / "absent", tmp_path / "f.txt"):
        refused("cannot read the folder of images", find_images, wrong)


def test_pixels_are_those_that_people_see(tmp_path: Path):
    colours, grey = noise(0), noise(1)[:, :, 0]
    three = np.repeat(grey[:, :, None], 3, 2)
    for name, how in (("a.png", {}), ("a.bmp", {}), ("a.webp", {"lossless": True})):
        assert np.array_equal(saved(tmp_path, Image.fromarray(colours), name, **how), colours)
    for pixels in (grey, (grey.astype(np.uint16) << 8) + 77):  # 8 and 16 bits
        assert np.array_equal(saved(tmp_path, Image.fromarray(pixels)), three)
    assert np.array_equal(saved(tmp_path, Image.fromarray(grey > 99)), 255 * (three > 99))
    # What is transparent is white.
    pixels = np.array([[[9, 9, 9, 0], [9, 9, 9, 255], [55, 155, 255, 51]]], np.uint8)
    assert saved(tmp_path, Image.fromarray(pixels)).tolist() == [[[255] * 3, [9] * 3, [215, 235, 255]]]
    assert saved(tmp_path, Image.fromarray(pixels[:, :2, 2:])).tolist() == [[[255] * 3, [9] * 3]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    assert saved(tmp_path, palette).tolist() == [[[10, 20, 30], [200, 100, 50]]]
    assert saved(tmp_path, palette, transparency=1).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    assert saved(tmp_path, palette, transparency=bytes([0, 255])).tolist() == [[[255, 255, 255], [200, 100, 50]]]


def test_inks_become_light(tmp_path: Path):
    inks = {(255, 0, 0, 0): (0, 255, 255), (0, 0, 255, 0): (255, 255, 0), (0, 0, 0, 255): (0, 0, 0)}
    for ink, light in inks.items():
        read = saved(tmp_path, Image.new("CMYK", (16, 16), ink), "a.jpg", quality=100)
        assert np.abs(read[8, 8].astype(int) - light).max() <= 3, ink


def test_images_stand_the_right_way_up(tmp_path: Path):
    upright, exif = noise(2), Image.Exif()
    # How a camera stores an image when it is held upright, upside down or sideways.
    cameras = {1: upright, 3: upright[::-1, ::-1], 6: np.rot90(upright), 8: np.rot90(upright, -1)}
    for orientation, stored in cameras.items():
        exif[0x0112] = orientation
        assert np.array_equal(saved(tmp_path, Image.fromarray(np.ascontiguousarray(stored)), exif=exif), upright)


@pytest.mark.parametrize("batch", [1, 3, 4, 7, 50])
def test_features_in_batches_are_those_of_one_image_after_the_other(tmp_path: Path, batch: int):
    paths, network = make_images(tmp_path, 7), MeanColours()
    events: list[Event] = []
    found = extract(paths, network, batch, on_event=events.append)
    assert (found.paths, found.bad) == (paths, {})
    assert np.array_equal(found.rows, slow_features(paths))
    assert network.calls == [min(batch, 7 - start) for start in range(0, 7, batch)]
    assert [event.record["done"] for event in events] == [min(start + batch, 7) for start in range(0, 7, batch)]
    for path, row in zip(paths, found.rows, strict=True):
        assert np.array_equal(network.features(path).numpy(), row)


def test_the_next_batch_is_decoded_while_the_network_computes(tmp_path: Path):
    class Waiting(MeanColours):
        """Computes until the next batch is decoded."""

        decoded = threading.Semaphore(0)

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
    refused(r"^cannot read the image .*image-01\.png: .*; repair .* --skip-bad$", extract, paths, MeanColours(), 3)
    network = MeanColours()
    found = extract(paths, network, 3, skip_bad=True)
    good = [paths[0], paths[2], *paths[4:6]]
    assert (found.paths, list(found.bad)) == (good, [paths[1], paths[3], *paths[6:]])
    assert found.bad[paths[3]] == f"cannot read the image {paths[3]}: {FOREIGN}"
    assert np.array_equal(found.rows, slow_features(good))
    assert network.calls == [2, 2]
    assert extract(paths[6:], MeanColours(), skip_bad=True).rows.shape == (0, 12)
    refused(r"image-01\.png", network.features, paths[1])
    refused("No such file", network.features, tmp_path / "absent.png")


def test_a_network_must_do_what_it_says(tmp_path: Path):
    class Narrow(MeanColours):
        width = 13

    paths = make_images(tmp_path, 2)
    refused(r"returned float32 \(2, 12\) for 2 images, not float32 \(2, 13\)", extract, paths, Narrow())
    refused("at least one image, not 0", extract, paths, MeanColours(), batch=0)


def _sum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")


def header_of(width: int, height: int) -> bytes:
    """The beginning of a PNG file of this size."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    chunks = ((b"IHDR", size), (b"IDAT", b""))
    parts = (len(data).to_bytes(4, "big") + kind + data + _sum(kind + data) for kind, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp"])
def test_the_number_of_pixels_is_limited(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(noise(0)).save(path)
    monkeypatch.setenv("COROLLOUT_MAX_PIXELS", "125")
    message = refused("x.* has 126 pixels, but at most 125", read_image, path)
    assert "COROLLOUT_MAX_PIXELS" in message
    monkeypatch.setenv("COROLLOUT_MAX_PIXELS", "126")
    assert read_image(path).size == (14, 9)


def test_a_bomb_is_refused_by_our_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.png"
    most = Image.MAX_IMAGE_PIXELS
    for side in (10_000, 20_000):  # Pillow would warn of the first, and refuse the second
        path.write_bytes(header_of(side, side))
        refused(f"{side**2:,} pixels, but at most 50,000,000", read_image, path)
    monkeypatch.setenv("COROLLOUT_MAX_PIXELS", str(10**9))
    refused("cannot read the image", read_image, path)  # there are no pixels
    assert most == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(("kind", "name"), [("GIF", "x.png"), ("EPS", "x.jpg"), ("TIFF", "x.bmp"), ("PPM", "x.png")])
def test_other_formats_are_refused_whatever_their_names(tmp_path: Path, kind: str, name: str):
    Image.fromarray(noise(0)).save(tmp_path / name, kind)
    refused(FOREIGN, read_image, tmp_path / name)


@pytest.mark.parametrize(
    "line",
    [
        *(
            "[]",
            "7",
            '{"files": "x"}',
            '{"files": 2, "bad": []}',
            '{"files": true, "bad": {}}',
            '{"files": -1, "bad": {}}',
        ),
        *('{"files": 900, "bad": {}}', '{"files": 1, "bad": {"x": "y"}}', '{"files": 1, "bad": {"image-00.png": 1}}'),
    ],
)
def test_a_record_of_something_else_does_not_count(tmp_path: Path, line: str):
    paths = make_images(tmp_path / "images", 4)
    expected = write_features(paths, MeanColours(), tmp_path / "a.npy", 2).path.read_bytes()
    about = json.loads((tmp_path / "a.json").read_text())
    task = {name: about[name] for name in ("network", "side", "width", "files")}
    (tmp_path / "b.npy.part").write_bytes(expected)
    (tmp_path / "b.npy.part.jsonl").write_text(f"{json.dumps(task)}\n{line}\n")
    assert write_features(paths, MeanColours(), tmp_path / "b.npy", 2).path.read_bytes() == expected


@pytest.mark.parametrize("bad", [None, [], "x", 3, {"image-00.png": 1}, {"other.png": "why"}])
def test_a_description_of_something_else_is_refused(tmp_path: Path, bad: object):
    paths = make_images(tmp_path / "images", 2)
    write_features(paths, MeanColours(), tmp_path / "a.npy")
    about = json.loads((tmp_path / "a.json").read_text()) | {"bad": bad}
    (tmp_path / "a.json").write_text(json.dumps(about))
    refused("was made from other images", write_features, paths, MeanColours(), tmp_path / "a.npy", skip_bad=True)
