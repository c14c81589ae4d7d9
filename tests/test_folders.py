"""Output folders have one writer, and their files appear together."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from corollout.errors import InputError
from corollout.files import temporary_name
from corollout.folders import FolderLock, is_empty, new_folder, require_empty, staged, temporary_folder
from tests.support.errors import refused
from tests.support.races import take_first_for_a_leftover


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_has_one_writer(tmp_path: Path):
    folder = tmp_path / "deep" / "out"
    with FolderLock(folder) as lock:
        assert is_empty(folder)
        refused(rf"the folder .*out is in use by process {os.getpid()} \(since 2", FolderLock, folder)
    lock.release()
    assert not folder.exists()  # nothing was written
    with FolderLock(folder):
        (folder / "file").touch()
    assert names(folder) == {"file"}
    refused("is not a folder", FolderLock, folder / "file")
    refused("cannot write to the folder .*Not a directory", FolderLock, folder / "file" / "deep")


def test_a_lock_that_was_removed_meanwhile_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The last holder removes the file between our opening and our locking it."""
    real, calls = os.path.samestat, []

    def samestat(one: os.stat_result, other: os.stat_result) -> bool:
        calls.append(1)
        return len(calls) > 1 and real(one, other)

    monkeypatch.setattr(os.path, "samestat", samestat)
    with FolderLock(tmp_path / "out"):
        assert len(calls) == 2


def test_new_files_appear_together(tmp_path: Path):
    out = tmp_path / "out"
    with new_folder(out, last="meta") as folder:
        for name in ("meta", "a"):
            (folder / name).write_text(name)
        (folder / "images").mkdir()
        (folder / "images" / "1").touch()
        assert is_empty(out)
        refused("in use", FolderLock, out)
    assert names(out) == {"meta", "a", "images"}
    with pytest.raises(InputError, match="is not empty: choose another with --out"), new_folder(out, last="meta"):
        pass
    for error in (KeyboardInterrupt, OSError(28, "No space left on device")):
        with pytest.raises((KeyboardInterrupt, InputError)), new_folder(tmp_path / "failed", last="meta") as folder:  # noqa: PT012
            (folder / "a").touch()
            raise error
        assert names(tmp_path) == {"out"}


def test_nothing_is_overwritten(tmp_path: Path):
    (tmp_path / "a").write_text("mine")

    def write() -> None:
        with FolderLock(tmp_path), staged(tmp_path, last="a") as folder:
            (folder / "a").touch()
            (folder / "b").touch()

    refused("a exists, and nothing is overwritten", write)
    assert names(tmp_path) == {"a"}
    assert (tmp_path / "a").read_text() == "mine"


def _die_between_moves(out: Path) -> None:
    moved, rename = [], os.rename

    def counting(*arguments: object) -> None:
        rename(*arguments)  # pyright: ignore[reportArgumentType]
        moved.append(1)
        if len(moved) == 3:
            os._exit(9)

    os.rename = counting
    with new_folder(out, last="meta") as folder:
        for name in ("meta", "a", "b"):
            (folder / name).touch()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_moves_that_a_kill_interrupted_are_finished_by_the_next_writer(tmp_path: Path):
    child = multiprocessing.get_context("fork").Process(target=_die_between_moves, args=(tmp_path,))
    child.start()
    child.join()
    assert "meta" not in names(tmp_path)
    assert len(names(tmp_path) & {"a", "b"}) == 2
    refused("is not empty", require_empty, tmp_path)
    assert names(tmp_path) == {"meta", "a", "b"}


def test_what_killed_writers_left_is_removed(tmp_path: Path):
    left, notes = tmp_path / temporary_name("staging"), tmp_path / ".temporary-notes"
    (left / "deep").mkdir(parents=True)
    notes.touch()
    assert not is_empty(tmp_path)
    notes.rename(tmp_path / temporary_name("notes"))
    assert is_empty(tmp_path)
    with FolderLock(tmp_path):
        assert names(tmp_path) == {".lock"}


def test_a_lock_that_a_killed_process_left_goes(tmp_path: Path):
    (tmp_path / "data").touch()
    (tmp_path / ".lock").touch()
    refused("is not empty", require_empty, tmp_path)
    assert names(tmp_path) == {"data"}
    with FolderLock(tmp_path):
        refused("is in use by process", require_empty, tmp_path)


def test_a_folder_beside_its_place(tmp_path: Path):
    (tmp_path / temporary_name("cache")).mkdir()
    with temporary_folder(tmp_path / "cache") as first:
        with temporary_folder(tmp_path / "cache") as second:
            assert names(tmp_path) == {first.name, second.name}
        (first / "a").touch()
        first.rename(tmp_path / "cache")
    assert names(tmp_path) == {"cache"}


@pytest.mark.parametrize("removed_before", [True, False])
def test_a_folder_that_is_taken_for_a_leftover_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed_before: bool
):
    taken = take_first_for_a_leftover(monkeypatch, removed_before=removed_before)
    with temporary_folder(tmp_path / "cache") as folder:
        assert taken
        assert folder not in taken
        assert folder.exists()


def test_a_folder_that_its_last_holder_removes_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, real, removed = tmp_path / "out", os.open, []

    def open_late(path: Any, *arguments: Any, **options: Any) -> int:
        if path == folder / ".lock" and not removed:
            removed.append(folder.rmdir())
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_late)
    with FolderLock(folder):
        assert removed
        assert names(folder) == {".lock"}


def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_is_left_alone(tmp_path: Path):
    (tmp_path / "notes").write_text("mine")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".lock").symlink_to(tmp_path / "notes")
    refused("cannot write to the folder .*out: Too many levels of symbolic links; choose another", FolderLock, folder)
    assert (tmp_path / "notes").read_text() == "mine"
