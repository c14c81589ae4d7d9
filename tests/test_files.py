"""Files appear whole or not at all, whoever else writes them, and whatever becomes of the process."""

import errno
import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

from corollout.files import atomic_file, check_entries, require_new_file, temporary_name, write_file, write_json
from corollout.training.runs import Run
from tests.support.errors import refused
from tests.support.full_disks import small_files
from tests.support.races import take_first_for_a_leftover


def test_two_writers_leave_one_whole_file(tmp_path: Path):
    """With one temporary name for both, each would truncate what the other is writing."""
    path, torn = tmp_path / "numbers.json", []
    write_json(path, [0] * 5_000)

    def write(number: int) -> None:
        for _ in range(60):
            write_json(path, [number] * 5_000)

    writers = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        torn += [numbers for numbers in [json.loads(path.read_bytes())] if len(set(numbers)) > 1]
    for writer in writers:
        writer.join()
    assert not torn
    assert [entry.name for entry in tmp_path.iterdir()] == ["numbers.json"]


@pytest.mark.parametrize("removed_before", [True, False])
def test_a_new_file_that_is_taken_for_a_leftover_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed_before: bool
):
    """Another writer comes between creating and locking it: it has locked, and perhaps removed it, before we lock."""
    taken = take_first_for_a_leftover(monkeypatch, removed_before=removed_before)
    with atomic_file(tmp_path / "a") as file:
        temporary = Path(str(file.name))
        for path in taken:
            path.unlink(missing_ok=True)
        assert taken
        assert temporary not in taken
        assert temporary.exists()
        file.write(b"x")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"x"}


def test_leftovers_that_cannot_be_removed_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    left = tmp_path / temporary_name("a")
    left.touch()

    def flock(handle: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    write_file(tmp_path / "a", "x")
    assert (tmp_path / "a").read_text() == "x"
    assert left.exists()


def test_what_killed_writers_left_is_removed_and_what_others_write_is_not(tmp_path: Path):
    left, foreign, other = (tmp_path / name for name in (temporary_name("a"), ".temporary-a", temporary_name("ab")))
    for path in (left, foreign, other):
        path.touch()
    with atomic_file(tmp_path / "a") as file, (tmp_path / temporary_name("a")).open("xb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        file.write(b"x")
        write_file(tmp_path / "a", "y")
        assert len(list(tmp_path.iterdir())) == 5  # the file, both that are being written, and those of others
    assert (tmp_path / "a").read_bytes() == b"x"
    assert not left.exists()
    assert foreign.exists()
    assert other.exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    write_file(tmp_path / "a", "old")
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "a") as file:  # noqa: PT012
        file.write(b"new")
        raise KeyboardInterrupt
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_new_file_replaces_nothing(tmp_path: Path):
    write_file(tmp_path / "a", "old", new=True)
    refused(r"cannot write .*a: File exists", write_file, tmp_path / "a", "new", new=True)
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / temporary_name("a")).touch()  # killed after the file was complete
    for name in ("a", "link"):
        assert "choose another file with --html" in refused(
            "nothing is overwritten", require_new_file, tmp_path / name, "--html"
        )
    assert {path.name for path in tmp_path.iterdir()} == {"a", "link"}
    assert (tmp_path / "a").read_text() == "old"


def test_a_full_disk_while_logging_leaves_whole_records_and_no_lock(tmp_path: Path):
    directory = tmp_path / "run"

    def log() -> None:
        with Run.create(directory, {}) as run, small_files(700):
            for update in range(100):
                run.log("update", {"update": update, "reward": 0.1})

    refused("cannot write to the run directory", log)
    assert Run.open(directory).records()
    assert (directory / "metrics.jsonl").read_bytes().endswith(b"}\n")
    assert not (directory / ".lock").exists()
    with Run.open(directory, resume=True) as run:
        run.log("update", {"update": 1})


@pytest.mark.parametrize("content", [[], None, 3, {"a": 1}, {"a": "x", "b": None}, {"a": True, "b": float("nan")}])
def test_entries_are_checked(content: object):
    refused("data.json is damaged.*; remove it", check_entries, content, "data.json", "remove it", a=int, b=float)
