"""Arrays in files: whatever is not an array as expected is refused in one sentence, before memory is allocated."""

import io
from pathlib import Path

import numpy as np
import pytest

from corollout.arrays import map_array, read_array, read_header, read_stream
from corollout.limits import ARRAY_BYTES, Limit
from tests.support.errors import refused


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    text = header.encode("latin-1")
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text + data


def described(shape: str = "(3,)", descr: str = "'<i8'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.zeros((0, 4), np.float32), np.array(["a", "bc"])])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_arrays_are_read_as_numpy_reads_them(tmp_path: Path, array: np.ndarray, version: tuple[int, int]):
    for ordered in (array, np.asfortranarray(array)):
        with (tmp_path / "a.npy").open("wb") as file:
            np.lib.format.write_array(file, ordered, version)
        with (tmp_path / "a.npy").open("rb") as file:
            stream = read_stream(file, "a.npy")
        for read in (stream, map_array(tmp_path / "a.npy")):
            assert (read.dtype, read.shape, read.tolist()) == (array.dtype, array.shape, array.tolist())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin like one"),
        (b"PK\x03\x04 something else", "does not begin like one"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "does not begin like one"),
        (b"\x93NUMPY\x01", "header cannot be read"),
        (npy("garbage"), "header cannot be read"),
        (npy("[" * 5000), "header cannot be read"),
        (npy(described())[:40], "header cannot be read"),
        (npy(described(descr="'|O'"), bytes(24)), "header cannot be read"),
        (npy(described(descr="[('a', '<i8')]"), bytes(24)), "header cannot be read"),
        (npy(described(order="1"), bytes(24)), "header cannot be read"),
        (npy(described(shape="(-3,)"), bytes(24)), "header cannot be read"),
        (npy(described(shape="(3 3,)"), bytes(24)), "shape is"),
        (npy(described(shape=f"({10**30},)"), bytes(24)), "shape is"),
        (npy(described(shape=f"(0, {10**17}, {10**17})")), "shape is"),
        (npy(described(descr="'<f3'"), bytes(24)), "type is"),
        (npy(described(descr="'<U0'"), bytes(24)), "shape is"),
        (npy(described(), bytes(23)), "cut short"),
        (npy(described(shape=f"({10**12},)"), bytes(23)), "cut short"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    assert str(path) in refused(message, map_array, path)
    refused(f"{message}|bytes", read_stream, io.BytesIO(content), "a.npy")


@pytest.mark.parametrize(
    "array", [np.zeros(3, np.int32), np.zeros((3, 1), np.int64), np.zeros(2, np.int64), np.zeros(3, ">i8")]
)
def test_another_type_or_shape_is_refused(tmp_path: Path, array: np.ndarray):
    np.save(tmp_path / "a.npy", array)
    refused("is damaged: expected", read_array, tmp_path / "a.npy", np.int64, 1, size=3)
    np.save(tmp_path / "b.npy", np.asfortranarray(np.zeros((2, 2))))
    refused("row-major", read_array, tmp_path / "b.npy", (np.float32, np.float64), 2)


def test_an_array_in_memory_is_limited(monkeypatch: pytest.MonkeyPatch):
    bomb = npy(described(shape=f"({10**9}, 8)"))
    message = refused("64,000,000,000 bytes", read_stream, io.BytesIO(bomb), "a.npy")
    assert "COROLLOUT_MAX_ARRAY_BYTES" in message
    assert f"{ARRAY_BYTES.default:,}" in message
    assert read_header(io.BytesIO(bomb), "a.npy").nbytes == 64 * 10**9
    monkeypatch.setenv("COROLLOUT_MAX_ARRAY_BYTES", "16")
    refused("24 bytes", read_stream, io.BytesIO(npy(described(), bytes(24))), "a.npy")
    monkeypatch.setenv("COROLLOUT_MAX_ARRAY_BYTES", "24")
    assert read_stream(io.BytesIO(npy(described(), bytes(24))), "a.npy").tolist() == [0, 0, 0]


@pytest.mark.parametrize("text", ["-1", "0", "x", "1.5", "9" * 50, "²"])
def test_a_limit_must_be_a_number(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("SOME_LIMIT", text)
    refused("SOME_LIMIT must be a number of bytes", lambda: Limit("SOME_LIMIT", 5, "bytes").check(1, "it"))
