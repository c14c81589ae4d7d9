"""Files of features: the same bytes however often the work was killed."""

import fcntl
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.tasks.captioning import open_features
from corollout.tasks.captioning.feature_files import network_of, write_features
from tests.support.image_files import MeanColours, make_images, slow_features


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
    out = tmp_path / "new" / "folder" / "x.npy"
    seen: list[int] = []
    written = write_features(paths, MeanColours(), out, batch=3, on_progress=seen.append)
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
    """Do the work in a child that is killed right before a write becomes safe or a file gets its name, or right after.

    Whether it came that far.
    """
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


def test_killed_at_any_instant_the_work_goes_on_to_the_same_bytes(tmp_path: Path):
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
        write_features(paths, network, out, batch=2, skip_bad=True, on_progress=seen.append)
        assert contents(out.parent) == expected, instants
        # Nothing is done twice: of the files, all but the third are images.
        assert sum(network.calls) == {0: 4, 2: 2, 4: 1, 5: 0}[seen[0]]
    # Twice each: two beginnings, three batches of rows and a line, a header, two files beside, three new names.
    assert instants - 1 == 2 * (2 + 3 * 2 + 1 + 2 + 3)


def test_killed_again_and_again_the_work_comes_to_its_end(tmp_path: Path):
    paths, out = make_images(tmp_path / "images", 12), tmp_path / "x.npy"
    kills = 0
    # Each life lasts long enough for three batches, or for what comes after the last.
    while kills < 9 and killed_at(13, lambda: write_features(paths, MeanColours(), out, batch=1)):
        kills += 1
    assert 3 <= kills < 9
    assert np.array_equal(np.load(out), slow_features(paths))
    assert not list(tmp_path.glob("*.part*"))


def begun(tmp_path: Path) -> tuple[list[Path], Path]:
    """Work that was killed when two of three batches were done."""
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
def test_what_was_not_written_to_its_end_is_done_again(tmp_path: Path, torn: Callable, done: int):
    paths, out = begun(tmp_path)
    files = tmp_path / "x.npy.part", tmp_path / "x.npy.part.jsonl"
    rows, record = (file.read_bytes() for file in files)
    for file, data in zip(files, torn(rows[: rows.index(b"\n") + 1 + 4 * 48], record), strict=True):
        file.write_bytes(data)
    seen: list[int] = []
    write_features(paths, MeanColours(), out, batch=2, on_progress=seen.append)
    assert seen[0] == done
    assert np.array_equal(np.load(out), slow_features(paths))


def test_other_images_or_another_network_do_not_go_on(tmp_path: Path):
    class Other(MeanColours):
        name = "other"

    paths, out = begun(tmp_path)
    before = contents(tmp_path / "images")
    for wrong in (paths[1:], [*paths, *make_images(tmp_path / "more", 7)[6:]]):
        with pytest.raises(InputError, match=r"x\.npy\.part was begun with other images or another network: remove it"):
            write_features(wrong, MeanColours(), out)
    with pytest.raises(InputError, match="begun with other images"):
        write_features(paths, Other(), out)
    os.utime(paths[0], (0, 0))
    with pytest.raises(InputError, match="begun with other images"):
        write_features(paths, MeanColours(), out)
    assert contents(tmp_path / "images") == before


def test_a_file_that_is_complete_is_left_alone(tmp_path: Path):
    paths, out = make_images(tmp_path / "images", 3), tmp_path / "x.npy"
    first = write_features(paths, MeanColours(), out)
    before, network = out.stat().st_mtime_ns, MeanColours()
    assert write_features(paths, network, out) == first
    assert (network.calls, out.stat().st_mtime_ns) == ([], before)
    with pytest.raises(InputError, match=r"x\.npy is there already, and not of these images and this network"):
        write_features(paths[1:], network, out)
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(InputError, match="is there already"):
        write_features(paths, network, out)
    np.save(tmp_path / "precious.npy", np.zeros(3))
    with pytest.raises(InputError, match="is there already"):
        write_features(paths, network, tmp_path / "precious.npy")
    assert np.array_equal(np.load(tmp_path / "precious.npy"), np.zeros(3))


def test_a_bad_image_stops_the_work_until_it_may_be_left_out(tmp_path: Path):
    paths, out = make_images(tmp_path / "images", 5), tmp_path / "x.npy"
    paths[3].write_bytes(b"bad")
    with pytest.raises(InputError, match=r"image-03\.png: it is no image.* --skip-bad$"):
        write_features(paths, MeanColours(), out, batch=2)
    network = MeanColours()
    written = write_features(paths, network, out, batch=2, skip_bad=True)
    assert (written.rows, list(written.bad), network.calls) == (4, ["image-03.png"], [1, 1])
    assert written.names.read_text().split() == [path.name for path in paths if path != paths[3]]
    assert np.array_equal(np.load(out), slow_features([*paths[:3], paths[4]]))
    with pytest.raises(InputError, match=r"image-03\.png: .*; it was left out before: go on with --skip-bad$"):
        write_features(paths, MeanColours(), out)
    for path in paths:
        path.write_bytes(b"bad")
    with pytest.raises(InputError, match=r"none of 5 images can be read; the first: .*image-00\.png"):
        write_features(paths, MeanColours(), tmp_path / "y.npy", skip_bad=True)
    assert not (tmp_path / "y.npy").exists()


def test_two_processes_do_not_write_one_file(tmp_path: Path):
    paths, out = begun(tmp_path)
    with (tmp_path / "x.npy.part.jsonl").open("ab") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"another process is writing .*x\.npy: wait for it"):
            write_features(paths, MeanColours(), out)
    assert write_features(paths, MeanColours(), out).rows == 6


def test_what_another_process_has_just_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths, out = make_images(tmp_path / "images", 2), tmp_path / "x.npy"

    def quicker(*arguments: object) -> None:
        monkeypatch.undo()
        out.write_bytes(b"theirs")

    monkeypatch.setattr(fcntl, "flock", quicker)
    with pytest.raises(InputError, match=r"another process has just written .*x\.npy: give the command again"):
        write_features(paths, MeanColours(), out)
    assert out.read_bytes() == b"theirs"
    assert not list(tmp_path.glob("*.part*"))


def test_what_cannot_be_written_or_named_is_refused(tmp_path: Path):
    paths = make_images(tmp_path / "images", 2)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*x\.npy: (Not a directory|File exists); make room, or choose"):
        write_features(paths, MeanColours(), tmp_path / "file" / "x.npy")
    with pytest.raises(InputError, match=r"a file that ends in \.npy, not to .*features$"):
        write_features(paths, MeanColours(), tmp_path / "features")
    with pytest.raises(InputError, match=r"two images have the name 'image-00\.png'"):
        write_features([*paths, tmp_path / "elsewhere" / "image-00.png"], MeanColours(), tmp_path / "x.npy")
    with pytest.raises(InputError, match=r"cannot read the image .*absent\.png: No such file"):
        write_features([tmp_path / "absent.png"], MeanColours(), tmp_path / "x.npy")
    for name in ("two\nlines.png", "end.png ", os.fsdecode(b"\xff.png")):
        (tmp_path / name).write_bytes(paths[0].read_bytes())
        with pytest.raises(InputError, match="cannot be a line of text: rename the file"):
            write_features([tmp_path / name], MeanColours(), tmp_path / "x.npy")


def test_names_in_any_language_are_kept(tmp_path: Path):
    paths = make_images(tmp_path / "images", 2)
    paths[0] = paths[0].rename(tmp_path / "images" / "à 9.41\u202fAM 写真.png")
    written = write_features(paths, MeanColours(), tmp_path / "x.npy")
    assert list(open_features(written.path).names) == [path.name for path in paths]


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths, out = make_images(tmp_path / "images", 2), tmp_path / "x.npy"
    real, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*x\.npy: No space left on device; make room"):
        write_features(paths, MeanColours(), out)
    assert np.array_equal(np.load(write_features(paths, MeanColours(), out).path), slow_features(paths))
