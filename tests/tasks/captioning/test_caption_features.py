"""Features from every kind of file: the same rows by the same names, and one sentence for each bad file."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from corollout.errors import InputError
from corollout.tasks.captioning import features
from corollout.tasks.captioning.features import open_features
from tests.support.caption_files import numbers

NAMES = [f"{letter}.jpg" for letter in "gecadbf"]


def npy(folder: Path, rows: np.ndarray) -> Path:
    np.save(folder / "x.npy", rows)
    (folder / "x_names.txt").write_text("\n".join(NAMES))
    return folder / "x.npy"


def npz(folder: Path, rows: np.ndarray) -> Path:
    np.savez(folder / "x.npz", features=rows, names=np.array(NAMES))
    return folder / "x.npz"


def compressed(folder: Path, rows: np.ndarray) -> Path:
    np.savez_compressed(folder / "x.npz", features=rows, names=np.array([name.encode() for name in NAMES]))
    return folder / "x.npz"


def npz_by_name(folder: Path, rows: np.ndarray) -> Path:
    np.savez(folder / "x.npz", allow_pickle=False, **dict(zip(NAMES, rows, strict=True)))
    return folder / "x.npz"


def safetensors(folder: Path, rows: np.ndarray) -> Path:
    save_file({"x": torch.from_numpy(rows)}, folder / "x.safetensors", {"names": json.dumps(NAMES)})
    return folder / "x.safetensors"


def safetensors_lines(folder: Path, rows: np.ndarray) -> Path:
    save_file({"x": torch.from_numpy(rows)}, folder / "x.safetensors", {"names": "\n".join(NAMES)})
    return folder / "x.safetensors"


def safetensors_by_name(folder: Path, rows: np.ndarray) -> Path:
    tensors = {name: torch.from_numpy(row.copy()) for name, row in zip(NAMES, rows, strict=True)}
    save_file(tensors, folder / "x.safetensors")
    return folder / "x.safetensors"


def hdf5(folder: Path, rows: np.ndarray) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file["features"], file["names"] = rows, NAMES
    return folder / "x.h5"


def hdf5_by_name(folder: Path, rows: np.ndarray) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.hdf5", "w") as file:
        for name, row in zip(NAMES, rows, strict=True):
            file[f"inside/{name}"] = row
    return folder / "x.hdf5"


def folder_of_files(folder: Path, rows: np.ndarray) -> Path:
    (folder / "x").mkdir(exist_ok=True)
    (folder / "x" / "read me").write_text("no features")
    for name, row in zip(NAMES, rows, strict=True):
        np.save(folder / "x" / f"{name}.npy", row[None])
    return folder / "x"


TABLES = [npy, npz, compressed, safetensors, safetensors_lines, hdf5]
SEPARATE = [npz_by_name, safetensors_by_name, hdf5_by_name, folder_of_files]
Write = Callable[[Path, np.ndarray], Path]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("write", TABLES + SEPARATE)
def test_every_kind_gives_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write, dtype: type):
    monkeypatch.setattr(features, "_WINDOW", 3)
    rows = numbers(len(NAMES), 6, dtype)
    found = open_features(write(tmp_path, rows))
    kept = np.float16 if dtype is np.float16 else np.float32
    assert (found.width, found.dtype) == (6, kept)
    names = [name.rpartition("/")[2] for name in found.names]
    assert sorted(names) == sorted(NAMES)
    expected = rows[[NAMES.index(name) for name in names]].astype(kept)
    for places in ([0, 1, 2, 3, 4, 5, 6], [2, 6], [1, 4], [0], []):
        got = found.rows(np.array(places, np.int64))
        assert got.dtype == kept
        assert np.array_equal(got, expected[places])


def test_other_numbers_become_float32(tmp_path: Path):
    rows = np.arange(14, dtype=np.uint8).reshape(7, 2)
    found = open_features(npy(tmp_path, rows))
    assert (found.dtype, found.rows(np.arange(7)).tolist()) == (np.float32, rows.tolist())
    save_file(
        {"x": torch.arange(14).reshape(7, 2).bfloat16()}, tmp_path / "b.safetensors", {"names": json.dumps(NAMES)}
    )
    found = open_features(tmp_path / "b.safetensors")
    assert (found.dtype, found.rows(np.arange(7)).tolist()) == (np.float32, rows.tolist())


@pytest.mark.parametrize("write", TABLES + SEPARATE)
def test_a_file_that_is_cut_short_is_noticed(tmp_path: Path, write: Write):
    path = write(tmp_path, numbers(len(NAMES), 600))
    file = path / "e.jpg.npy" if path.is_dir() else path
    file.write_bytes(file.read_bytes()[:-700])
    with pytest.raises(InputError, match=r"cannot read the features .* damaged or cut short") as failure:
        open_features(path).rows(np.arange(len(NAMES)))
    assert str(file) in str(failure.value)


@pytest.mark.parametrize("write", TABLES + SEPARATE)
@pytest.mark.parametrize("content", [b"", b"no such file"], ids=["empty", "text"])
def test_a_file_that_is_something_else_is_noticed(tmp_path: Path, write: Write, content: bytes):
    path = write(tmp_path, numbers(len(NAMES)))
    (path / "e.jpg.npy" if path.is_dir() else path).write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read the features .*x"):
        open_features(path).rows(np.arange(len(NAMES)))


@pytest.mark.parametrize("write", SEPARATE)
def test_rows_of_different_widths_are_refused(tmp_path: Path, write: Write):
    rows = list(numbers(len(NAMES)))
    rows[2] = rows[2][:4]
    path = write(tmp_path, rows)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"c\.jpg' are 4 numbers of float32, but those of '.*' 6 of float32"):
        open_features(path).rows(np.arange(len(NAMES)))


def test_rows_of_different_types_are_refused(tmp_path: Path):
    path = folder_of_files(tmp_path, numbers(len(NAMES), dtype=np.float16))
    np.save(path / "b.jpg.npy", np.ones(6))
    with pytest.raises(InputError, match=r"'b\.jpg' are 6 numbers of float32, but those of 'a\.jpg' 6 of float16"):
        open_features(path).rows(np.arange(len(NAMES)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones(7), r"expected a row of numbers for each image, not an array of the shape \(7,\)"),
        (np.ones((7, 2, 2)), r"not an array of the shape \(7, 2, 2\)"),
        (np.ones((7, 0)), r"not an array of the shape \(7, 0\)"),
        (np.ones((6, 2)), r"x_names\.txt has 7 names, but .*x\.npy 6 rows; there must be as many"),
        (np.ones((7, 2), np.complex64), "expected numbers, not complex64"),
        (np.array([["a"] * 2] * 7), "expected numbers, not <U1"),
    ],
)
def test_arrays_that_are_no_features(tmp_path: Path, rows: np.ndarray, message: str):
    with pytest.raises(InputError, match=message):
        open_features(npy(tmp_path, rows))


def test_objects_are_never_loaded(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.array([[{}, 1]] * 7, object), allow_pickle=True)
    (tmp_path / "x_names.txt").write_text("\n".join(NAMES))
    np.savez(tmp_path / "y.npz", features=numbers(7), names=np.array(NAMES, object))
    np.savez(tmp_path / "z.npz", features=np.array([[{}, 1]] * 7, object), names=np.array(NAMES))
    for name in ("x.npy", "y.npz", "z.npz"):
        with pytest.raises(InputError, match=name):
            open_features(tmp_path / name)


def test_names_of_rows(tmp_path: Path):
    np.save(tmp_path / "x.npy", numbers(2))
    with pytest.raises(InputError, match=r"x\.npy: .*x_names\.txt .* --names"):
        open_features(tmp_path / "x.npy")
    (tmp_path / "any_names.txt").write_text("a\nb\n")
    assert open_features(tmp_path / "x.npy").names == ["a", "b"]
    (tmp_path / "other_names.txt").write_text("c\nd\n")
    with pytest.raises(InputError, match="--names"):
        open_features(tmp_path / "x.npy")
    assert open_features(tmp_path / "x.npy", tmp_path / "other_names.txt").names == ["c", "d"]
    (tmp_path / "x_names.txt").write_text("e\nf\n")
    assert open_features(tmp_path / "x.npy").names == ["e", "f"]
    (tmp_path / "x_names.txt").write_text("e\ne\n")
    with pytest.raises(InputError, match=r"x_names\.txt, line 2: the name 'e' is in line 1 too"):
        open_features(tmp_path / "x.npy")


def test_names_that_will_not_do(tmp_path: Path):
    rows = torch.ones(2, 3)
    for told, message in [
        ("[1, 2]", r"expected the names of images in the metadata, not \[1, 2\]"),
        ("[1", "cut short"),
        ("a", "1 names for 2"),
    ]:
        save_file({"x": rows}, tmp_path / "x.safetensors", {"names": told})
        with pytest.raises(InputError, match=message):
            open_features(tmp_path / "x.safetensors")
    save_file({"x": rows, "y": rows + 1}, tmp_path / "x.safetensors", {"names": "a\nb"})
    with pytest.raises(InputError, match="for one array, but there are 2"):
        open_features(tmp_path / "x.safetensors")
    np.savez(tmp_path / "x.npz", features=numbers(2), names=np.array(["a", "a"]))
    with pytest.raises(InputError, match="the name 'a' is there twice"):
        open_features(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", features=numbers(2), names=np.arange(2))
    with pytest.raises(InputError, match="names: expected a list of texts, not an array of int64"):
        open_features(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", features=np.asfortranarray(numbers(2)), names=np.array(["a", "b"]))
    with pytest.raises(InputError, match="row by row"):
        open_features(tmp_path / "x.npz")


def test_files_that_cannot_be(tmp_path: Path):
    (tmp_path / "x.csv").write_text("")
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "x.npz", a=np.ones((2, 2)))
    (tmp_path / "y_names.txt").write_text("a\n")
    (tmp_path / "y.npy").write_bytes((tmp_path / "x.npz").read_bytes())
    (tmp_path / "z.npz").write_bytes(b"")
    np.save(tmp_path / "w.npy", np.ones(2))
    (tmp_path / "w.npy").rename(tmp_path / "w.npz")
    for name, message in [
        ("absent.npy", r"cannot read the features .*absent\.npy: there is no such file or folder"),
        ("x.csv", r"expected \.npy, \.npz, \.safetensors, \.h5, \.hdf5 or a folder, not \.csv"),
        ("empty", "no features in it"),
        ("x.npz", r"expected a vector for 'a', not an array of the shape \(2, 2\)"),
        ("y.npy", r"this is no \.npy file"),
        ("w.npz", r"w\.npz, which may be damaged or cut short: File is not a zip file"),
    ]:
        with pytest.raises(InputError, match=message):
            open_features(tmp_path / name)
    with pytest.raises(InputError, match="has names of its own: leave out --names"):
        open_features(tmp_path / "x.npz", tmp_path / "y_names.txt")


def test_without_h5py_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "x.h5").write_bytes(b"")
    with pytest.raises(InputError, match=r"x\.h5, the package h5py is needed: pip install 'corollout\[h5\]'"):
        open_features(tmp_path / "x.h5")
