"""Every format of features gives the same rows by the same names, and bad files are errors."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from corollout.errors import InputError
from corollout.tasks.captioning import features
from corollout.tasks.captioning.features import open_features
from tests.support.caption_files import numbers
from tests.support.errors import refused

NAMES = [f"{letter}.jpg" for letter in "gecadbf"]


def npy(folder: Path, rows: np.ndarray) -> Path:
    np.save(folder / "x.npy", rows)
    (folder / "x_names.txt").write_text("\n".join(NAMES))
    return folder / "x.npy"


def npz(folder: Path, rows: np.ndarray, save: Callable[..., None] = np.savez, encoding: str = "") -> Path:
    names = [name.encode(encoding) for name in NAMES] if encoding else NAMES
    save(folder / "x.npz", features=rows, names=np.array(names))
    return folder / "x.npz"


def npz_by_name(folder: Path, rows: np.ndarray) -> Path:
    np.savez(folder / "x.npz", allow_pickle=False, **dict(zip(NAMES, rows, strict=True)))
    return folder / "x.npz"


def safetensors(folder: Path, rows: np.ndarray | torch.Tensor, names: str = json.dumps(NAMES)) -> Path:
    save_file({"x": torch.as_tensor(rows)}, folder / "x.safetensors", {"names": names})
    return folder / "x.safetensors"


def safetensors_by_name(folder: Path, rows: np.ndarray) -> Path:
    tensors = {name: torch.from_numpy(row.copy()) for name, row in zip(NAMES, rows, strict=True)}
    save_file(tensors, folder / "x.safetensors")
    return folder / "x.safetensors"


def hdf5(folder: Path, rows: np.ndarray, by_name: bool = False) -> Path:
    entries = {f"inside/{name}": row for name, row in zip(NAMES, rows, strict=True)}
    with pytest.importorskip("h5py").File(folder / "x.h5", "w") as file:
        for name, data in (entries if by_name else {"features": rows, "names": NAMES}).items():
            file[name] = data
    return folder / "x.h5"


def folder_of_files(folder: Path, rows: np.ndarray) -> Path:
    (folder / "x").mkdir(exist_ok=True)
    (folder / "x" / "read me").write_text("no features")
    for name, row in zip(NAMES, rows, strict=True):
        np.save(folder / "x" / f"{name}.npy", row[None])
    return folder / "x"


compressed = partial(npz, save=np.savez_compressed, encoding="utf-8")
lines, hdf5_by_name = partial(safetensors, names="\n".join(NAMES)), partial(hdf5, by_name=True)
TABLES = [npy, npz, compressed, safetensors, lines, hdf5]
SEPARATE = [npz_by_name, safetensors_by_name, hdf5_by_name, folder_of_files]
Write = Callable[[Path, np.ndarray], Path]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("write", TABLES + SEPARATE)
def test_every_kind_gives_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write, dtype: type):
    monkeypatch.setattr(features, "_WINDOW", 3)
    rows = numbers(len(NAMES), 6, dtype)
    opened = open_features(write(tmp_path, rows))
    kept = np.float16 if dtype is np.float16 else np.float32
    assert (opened.width, opened.dtype) == (6, kept)
    names = [name.rpartition("/")[2] for name in opened.names]
    assert sorted(names) == sorted(NAMES)
    expected = rows[[NAMES.index(name) for name in names]].astype(kept)
    for indices in ([0, 1, 2, 3, 4, 5, 6], [2, 6], [1, 4], [0], []):
        got = opened.rows(np.array(indices, np.int64))
        assert got.dtype == kept
        assert np.array_equal(got, expected[indices])


def test_other_numbers_become_float32(tmp_path: Path):
    rows = np.arange(14, dtype=np.uint8).reshape(7, 2)
    opened = open_features(npy(tmp_path, rows))
    assert (opened.dtype, opened.rows(np.arange(7)).tolist()) == (np.float32, rows.tolist())
    opened = open_features(safetensors(tmp_path, torch.arange(14).reshape(7, 2).bfloat16()))
    assert (opened.dtype, opened.rows(np.arange(7)).tolist()) == (np.float32, rows.tolist())


@pytest.mark.parametrize("write", TABLES + SEPARATE)
def test_damaged_files(tmp_path: Path, write: Write):
    path = write(tmp_path, numbers(len(NAMES), 600))
    file = path / "e.jpg.npy" if path.is_dir() else path
    file.write_bytes(file.read_bytes()[:-700])
    with pytest.raises(InputError, match=r"cannot read the features .* damaged or truncated|cut short") as failure:
        open_features(path).rows(np.arange(len(NAMES)))
    assert str(file) in str(failure.value)
    for content in (b"", b"no such file"):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"cannot read the features .*x|is not a \.npy file"):
            open_features(path).rows(np.arange(len(NAMES)))


@pytest.mark.parametrize("write", SEPARATE)
def test_rows_of_different_widths_are_refused(tmp_path: Path, write: Write):
    rows = list(numbers(len(NAMES)))
    rows[2] = rows[2][:4]
    path = write(tmp_path, rows)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"c\.jpg' are float32\[4\], but those of '.*' are float32\[6\]"):
        open_features(path).rows(np.arange(len(NAMES)))


def test_rows_of_different_types_are_refused(tmp_path: Path):
    path = folder_of_files(tmp_path, numbers(len(NAMES), dtype=np.float16))
    np.save(path / "b.jpg.npy", np.ones(6))
    with pytest.raises(InputError, match=r"'b\.jpg' are float32\[6\], but those of 'a\.jpg' are float16\[6\]"):
        open_features(path).rows(np.arange(len(NAMES)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones(7), r"expected a row of numbers per image, not an array of shape \(7,\)"),
        (np.ones((7, 0)), r"not an array of shape \(7, 0\)"),
        (np.ones((6, 2)), r"x_names\.txt has 7 names, but .*x\.npy has 6 rows"),
        (np.ones((7, 2), np.complex64), "expected numbers, not complex64"),
        (np.array([["a"] * 2] * 7), "expected numbers, not <U1"),
    ],
)
def test_invalid_arrays(tmp_path: Path, rows: np.ndarray, message: str):
    refused(message, open_features, npy(tmp_path, rows))


def test_objects_are_never_loaded(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.array([[{}, 1]] * 7, object), allow_pickle=True)
    (tmp_path / "x_names.txt").write_text("\n".join(NAMES))
    np.savez(tmp_path / "y.npz", features=numbers(7), names=np.array(NAMES, object))
    np.savez(tmp_path / "z.npz", features=np.array([[{}, 1]] * 7, object), names=np.array(NAMES))
    for name in ("x.npy", "y.npz", "z.npz"):
        refused(name, open_features, tmp_path / name)


def test_names_of_rows(tmp_path: Path):
    file = tmp_path / "x.npy"
    np.save(file, numbers(2))
    refused(r"x\.npy: .*x_names\.txt .* --names", open_features, file)
    (tmp_path / "any_names.txt").write_text("a\nb\n")
    assert open_features(file).names == ["a", "b"]
    (tmp_path / "other_names.txt").write_text("c\nd\n")
    refused("--names", open_features, file)
    assert open_features(file, tmp_path / "other_names.txt").names == ["c", "d"]
    (tmp_path / "x_names.txt").write_text("e\nf\n")
    assert open_features(file).names == ["e", "f"]


def test_invalid_names(tmp_path: Path):
    rows = numbers(2)
    refused(r"expected image names in the metadata, not \[1, 2\]", open_features, safetensors(tmp_path, rows, "[1, 2]"))
    refused("truncated", open_features, safetensors(tmp_path, rows, "[1"))
    refused("1 names for 2", open_features, safetensors(tmp_path, rows, "a"))
    two = {"x": torch.ones(2, 3), "y": torch.zeros(2, 3)}
    save_file(two, tmp_path / "x.safetensors", {"names": "a\nb"})
    refused("there must be one array, not 2", open_features, tmp_path / "x.safetensors")
    for names, array, message in (
        (["a", "a"], rows, "the name 'a' occurs twice"),
        ([0, 1], rows, "names must be a list of text, not int64"),
        (["a", "b"], np.asfortranarray(rows), "row-major"),
    ):
        np.savez(tmp_path / "x.npz", features=array, names=np.array(names))
        refused(message, open_features, tmp_path / "x.npz")


def test_invalid_files(tmp_path: Path):
    (tmp_path / "x.csv").write_text("")
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "x.npz", a=np.ones((2, 2)))
    (tmp_path / "y_names.txt").write_text("a\n")
    (tmp_path / "y.npy").write_bytes((tmp_path / "x.npz").read_bytes())
    (tmp_path / "z.npz").write_bytes(b"")
    np.save(tmp_path / "w.npy", np.ones(2))
    (tmp_path / "w.npy").rename(tmp_path / "w.npz")
    for name, message in [
        ("absent.npy", r"cannot read the features .*absent\.npy: no such file or folder"),
        ("x.csv", r"must be \.npy, \.npz, \.safetensors, \.h5, \.hdf5 or a folder, not .*x\.csv"),
        ("empty", "has no features"),
        ("x.npz", r"expected a vector for 'a', not an array of shape \(2, 2\)"),
        ("y.npy", r"is not a \.npy file"),
        ("w.npz", r"w\.npz, which may be damaged or truncated: File is not a zip file"),
    ]:
        refused(message, open_features, tmp_path / name)
    refused("includes the names: leave out --names", open_features, tmp_path / "x.npz", tmp_path / "y_names.txt")


def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "x.h5").write_bytes(b"")
    refused(r"x\.h5 needs the package h5py: pip install 'corollout\[h5\]'", open_features, tmp_path / "x.h5")


def header(shape: str, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "arrays",
    [
        {"features": header("(2, 1000000000)"), "names": header("(2,)", "|S1") + b"ab"},
        {"features": header("(2, 3)") + bytes(24), "names": header("(90,)", "<U9999999")},
        {"a.jpg": header("(3000000000,)"), "b.jpg": header("(3,)") + bytes(12)},
    ],
)
def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, arrays: dict[str, bytes]):
    with ZipFile(tmp_path / "x.npz", "w") as file:
        for name, data in arrays.items():
            file.writestr(f"{name}.npy", data)
    refused("COROLLOUT_MAX_ARRAY_BYTES", open_features, tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["features", "names", "a.jpg"])
def test_large_chunks_of_hdf5_are_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    h5py = pytest.importorskip("h5py")
    monkeypatch.setenv("COROLLOUT_MAX_ARRAY_BYTES", "100000")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        if name != "a.jpg":
            file["names" if name == "features" else "features"] = NAMES if name == "features" else numbers(7)
        large = (7, 10_000) if name == "features" else (1_000_000,)
        kind = h5py.string_dtype() if name == "names" else "f4"
        file.create_dataset(name, large, kind, chunks=large, compression="gzip")
    refused("COROLLOUT_MAX_ARRAY_BYTES", open_features, tmp_path / "x.h5")


def test_names_of_hdf5_that_share_a_long_text_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    h5py = pytest.importorskip("h5py")
    monkeypatch.setenv("COROLLOUT_MAX_ARRAY_BYTES", "100000")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["features"], file["names"] = numbers(7), ["x" * 20_000 + name for name in NAMES]
    refused("longer than the limit of COROLLOUT_MAX_ARRAY_BYTES", open_features, tmp_path / "x.h5")
    monkeypatch.setattr(features, "_READ_NAMES", "while True: pass")  # as libhdf5 does with some damaged files
    monkeypatch.setattr(features, "_NAMES_SECONDS", 0.2)
    refused("its names cannot be read in 0.2 seconds", open_features, tmp_path / "x.h5")


def test_hdf5_must_not_refer_to_other_files(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(bytes(100))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("a.jpg", (5,), "f4", external=[(str(tmp_path / "secret"), 0, 20)])
    refused("refers to other files", open_features, tmp_path / "x.h5")


def test_a_block_of_rows_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COROLLOUT_MAX_ARRAY_BYTES", "100")
    for write in (npy, safetensors):
        refused("a block of 7 rows of 6 features has 168 bytes", open_features, write(tmp_path, numbers(7)))
