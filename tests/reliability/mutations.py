"""Small changes of files: of their bytes, of the numbers in their text, of JSON at any depth, and of arrays."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 1e308, -0.0, float("nan"), float("inf"), 0.5),
    *("", "x", "\ud800", "\0", "1", "../x", "é" * 50, [], {}, [[]], {"a": 1}, [1, "a"], {"files": "x"}, "nan"),
]
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_NUMBERS = [
    b"-1",
    b"0",
    b"1e400",
    b"NaN",
    b"99999999999999999999",
    b"-9223372036854775809",
    b'"x"',
    b"1" * 5000,
    b"",
    b"2.5",
]
_INSERTED = [
    b"\0",
    b"\xff\xfe",
    b"\n",
    b"\r",
    b"{",
    b"]",
    b'"',
    b",",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\xef\xbb\xbf",
    b" ",
    b"[" * 3000,
]
_NUMPY_VALUES = [-1, 0, 1, 2, 127, 255, 32_767, -32_768, 2**31 - 1, 2**62, -(2**62), 1_000_000]
_DTYPES = ["u1", "i2", "i4", "i8", "f2", "f4", "f8", ">i8", "c8", "S3", "U2", "O"]


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """A few flipped bits, or a part removed, repeated, inserted or replaced."""
    if not data:
        return random.randbytes(random.randint(1, 50))
    kind, at = random.randrange(9), random.randrange(len(data))
    size = min(random.choice((1, 2, 4, 8, 64, 1000)), len(data) - at)
    if kind <= 2:
        changed = bytearray(data)
        for _ in range(random.choice((1, 1, 1, 2, 8))):
            # Headers are at the beginning.
            place = random.randrange(min(len(data), random.choice((64, 200, len(data)))))
            changed[place] ^= 1 << random.randrange(8)
        return bytes(changed)
    if kind == 3:
        return data[:at]
    if kind == 4:
        return data[:at] + data[at + size :]
    if kind == 5:
        return data[: at + size] + data[at : at + size] * random.choice((1, 1, 3)) + data[at + size :]
    if kind == 6:
        return data[:at] + random.choice(_INSERTED) + data[at:]
    if kind == 7 and (numbers := list(_NUMBER.finditer(data))):
        chosen = random.choice(numbers)
        return data[: chosen.start()] + random.choice(_NUMBERS) + data[chosen.end() :]
    return data[:at] + random.randbytes(size) + data[at + size :]


def mutate_json(content: Any, random: Random) -> Any:
    """The same with one entry replaced, removed, repeated or renamed, somewhere."""
    changed: Any
    if not isinstance(content, dict | list) or not content or random.random() < 0.15:
        return random.choice(NASTY)
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key, kind = random.choice(keys), random.randrange(6)
    changed = content.copy()
    if kind == 0:
        del changed[key]
    elif kind == 1 and isinstance(changed, list):
        changed.insert(key, random.choice((changed[key], random.choice(NASTY))))
    elif kind == 1:
        changed[random.choice(("", "x", "\0", "kind", f"{key}2"))] = changed[key]
    elif kind == 2:
        changed[key] = changed[random.choice(keys)]
    else:
        changed[key] = mutate_json(changed[key], random)
    return changed


def mutate_array(array: np.ndarray, random: Random) -> np.ndarray:
    """Another value, type, shape or order."""
    kind = random.randrange(7)
    if kind == 0 and array.dtype.kind in "iuf":
        return array.astype(random.choice(_DTYPES))
    if kind == 1:
        return random.choice(
            (array[:-1], array[1:], array[None], array[..., :-1], array.reshape(-1), array[:0], array[:1])
        )
    if kind == 2:
        return np.concatenate([array, array[-1:]])
    if kind == 3:
        return np.asfortranarray(array)
    changed = array.copy()
    for _ in range(random.choice((1, 1, 3)) if changed.size else 0):
        place = random.randrange(changed.size)
        if changed.dtype.kind in "iu":
            info = np.iinfo(changed.dtype)
            changed.flat[place] = min(max(random.choice(_NUMPY_VALUES), info.min), info.max)
        elif changed.dtype.kind == "f":
            changed.flat[place] = random.choice((np.nan, np.inf, -np.inf, 1e30, -0.0, 6e4))
    return changed


def mutate_file(path: Path, random: Random) -> None:
    """Change a file according to what it is."""
    kind = random.random()
    if path.suffix == ".npy" and kind < 0.6:
        with np.errstate(all="ignore"):
            np.save(path, mutate_array(np.load(path), random))
    elif path.suffix == ".npz" and kind < 0.4:
        with np.errstate(all="ignore"):
            arrays = dict(np.load(path))
            name = random.choice(list(arrays))
            arrays[name] = mutate_array(arrays[name], random)
            random.choice((np.savez, np.savez_compressed))(path, **arrays)
    elif path.suffix in (".json", ".jsonl") and kind < 0.7:
        lines = path.read_text("utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
        place = random.randrange(len(lines))
        lines[place] = json.dumps(mutate_json(json.loads(lines[place]), random))
        path.write_text("\n".join(lines) + "\n", "utf-8")
    elif path.suffix == ".safetensors" and kind < 0.6:
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.dumps(_with_inner_json(json.loads(data[8:end]), random)).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])
    elif random.random() < 0.03:
        path.unlink()
    else:
        path.write_bytes(mutate_bytes(path.read_bytes(), random))


def _with_inner_json(header: Any, random: Random) -> Any:
    """A changed header; metadata in JSON is changed inside, too."""
    meta = header.get("__metadata__")
    if meta and random.random() < 0.4:
        key = random.choice(list(meta))
        try:
            meta[key] = json.dumps(mutate_json(json.loads(meta[key]), random))
        except ValueError:
            meta[key] = random.choice(("", "x", "-1", "\0"))
        return header
    return mutate_json(header, random)
