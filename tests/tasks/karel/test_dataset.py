"""Karel data sets and their cache, which is never stale, and is checked before it is used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from corollout.errors import InputError
from corollout.files import file_digest
from corollout.tasks.karel import dataset
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import unpack


@pytest.fixture(scope="module")
def made() -> KarelData:
    return generate({"train": 12}, seed=2, longest=14, largest=5)["train"]


@pytest.fixture
def file(made: KarelData, tmp_path: Path) -> Path:
    made.write(tmp_path / "train.jsonl")
    return tmp_path / "train.jsonl"


def same(a: KarelData, b: KarelData) -> bool:
    width = int(a.lengths.max())
    pairs = [(a.tokens[:, :width], b.tokens[:, :width]), (a.lengths, b.lengths), (a.ids, b.ids)]
    pairs += [(a.inputs.cells, b.inputs.cells), (a.outputs.cells, b.outputs.cells)]
    pairs += [(a.inputs.hero, b.inputs.hero), (a.outputs.hero, b.outputs.hero)]
    return all(np.array_equal(one, other) for one, other in pairs)


def opened(file: Path, **options: Any) -> tuple[KarelData, list[str]]:
    """The data, and the warnings."""
    warnings: list[str] = []
    return KarelData.open(file, 7, on_event=lambda event: warnings.append(event.record["text"]), **options), warnings


def test_a_file_is_read_once_and_again_when_it_changes(made: KarelData, file: Path, monkeypatch: pytest.MonkeyPatch):
    reads = Mock(side_effect=dataset.read_records)
    monkeypatch.setattr(dataset, "read_records", reads)
    assert same(made, opened(file)[0])
    assert reads.call_count == 0  # the cache was written with the file
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:7]))
    for _ in range(2):
        data, warnings = opened(file)
        assert data.ids.tolist() == made.ids[:7].tolist()
        assert (reads.call_count, warnings) == (1, [])
    assert sorted(entry.name for entry in file.parent.iterdir()) == ["train.jsonl", "train.jsonl.cache"]
    # A cache of another version is rebuilt.
    meta = file.with_name("train.jsonl.cache") / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"version": 0}))
    assert (len(opened(file)[0]), reads.call_count) == (7, 2)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("input_cells.npy", lambda data: data[:-100]),
        ("output_hero.npy", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        *(("tokens.npy", None), ("meta.json", None)),  # missing
        *(("meta.json", lambda _: b"{"), ("meta.json", lambda _: b"[]"), ("meta.json", lambda _: b"{}")),
    ],
)
def test_a_damaged_cache_is_rebuilt(made: KarelData, file: Path, name: str, damage: Callable[[bytes], bytes] | None):
    path = file.with_name("train.jsonl.cache") / name
    data = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(data))
    for expected in (["damaged"], []):
        data, warnings = opened(file)
        assert same(made, data)
        assert [word for word, warning in zip(expected, warnings, strict=True) if word in warning] == expected


def one(array: np.ndarray, index: tuple[int, ...], value: int) -> np.ndarray:
    changed = array.copy()
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokens", lambda array: one(array, (3, 2), 200)),
        ("tokens", lambda array: one(array, (3, 1), 0)),  # not a program
        ("tokens", lambda array: array.astype(np.int32)),
        ("tokens", lambda array: array[:-1]),
        ("tokens", np.asfortranarray),
        ("lengths", lambda array: one(array, (0,), 10**6)),
        ("lengths", lambda array: one(array, (0,), -1)),
        ("lengths", lambda array: array.astype(np.float64)),
        ("lengths", lambda array: array[:, None]),
        ("input_cells", lambda array: one(array, (5, 1, 0, 1), 0)),
        ("output_cells", lambda array: one(array, (11, 5, 1, 1), 200)),
        ("input_cells", lambda array: array[:, :, :, :-1]),
        ("input_cells", lambda array: array[:, :1]),
        ("input_cells", np.zeros_like),
        ("input_hero", lambda array: one(array, (5, 1, 0), 32_000)),
        ("output_hero", lambda array: one(array, (5, 1, 0), -1)),
        ("input_hero", lambda array: one(array, (5, 1, 1), 4)),
        ("input_hero", lambda array: array[..., :1]),
        ("ids", lambda array: one(array, (0,), array[1])),
        ("ids", lambda array: array.astype(np.uint64)),
        ("ids", lambda array: array.astype(object)),
        ("ids", lambda array: array[:0]),
    ],
)
def test_a_cache_with_invalid_arrays_is_rebuilt_even_if_its_digests_are_right(
    made: KarelData, file: Path, name: str, change: Callable[[np.ndarray], np.ndarray]
):
    folder = file.with_name("train.jsonl.cache")
    path = folder / f"{name}.npy"
    np.save(path, change(np.load(path)))
    meta = json.loads((folder / "meta.json").read_text())
    meta["arrays"][name] = file_digest(path)
    (folder / "meta.json").write_text(json.dumps(meta))
    data, (warning,) = opened(file)
    assert "damaged" in warning
    assert same(made, data)
    assert opened(file)[1] == []


@pytest.mark.parametrize(
    "change",
    [{"side": 6}, {"side": None}, {"bad_lines": "1"}, {"bad_lines": -1}, {"bad_lines": True}, {"arrays": ["tokens"]}],
)
def test_a_cache_with_invalid_facts_is_rebuilt(made: KarelData, file: Path, change: dict[str, Any]):
    meta = file.with_name("train.jsonl.cache") / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | change))
    data, (warning,) = opened(file)
    assert "damaged" in warning
    assert same(made, data)


def test_without_a_folder_for_the_cache_there_is_a_warning(made: KarelData, file: Path):
    cache = file.with_name("train.jsonl.cache")
    shutil.rmtree(cache)
    cache.write_text("a file")
    data, warnings = opened(file)
    assert same(made, data)
    assert "cannot write the cache" in warnings[-1]


def test_a_folder_with_other_files_is_not_removed(file: Path):
    precious = file.with_name("train.jsonl.cache") / "precious.txt"
    precious.write_text("")
    file.write_text(file.read_text() * 2)
    data, (warning,) = opened(file)
    assert "holds 'precious.txt', which is not part of a cache: move it away" in warning
    assert len(data) > 0
    assert precious.exists()


def test_bad_lines_are_an_error_even_if_the_cache_skipped_them(made: KarelData, file: Path):
    file.write_text(file.read_text() + "{}\n")
    for _ in range(2):
        data, (warning,) = opened(file, skip_bad=True)
        assert same(made, data)
        assert "skipped 1 bad lines of 13" in warning
        with pytest.raises(InputError, match="line 13: program_tokens"):
            opened(file)


def test_the_side_can_be_chosen(made: KarelData, file: Path):
    data = KarelData.open(file)
    assert data.side == 7
    for array in (data.tokens, data.inputs.cells, data.outputs.hero, data.ids):
        torch.from_numpy(array)  # PyTorch would warn of a read-only array
    larger = KarelData.open(file, side=18)
    assert larger.inputs.cells.shape == (12, 6, 18, 18)
    assert unpack(larger.outputs[4, 5]) == unpack(made.outputs[4, 5])
    with pytest.raises(InputError, match=r"train\.jsonl: the largest world has 5 rows or columns"):
        KarelData.open(file, side=6)
