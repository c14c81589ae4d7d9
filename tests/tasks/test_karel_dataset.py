"""Karel data sets and their cache, which is quick, never stale, and never trusted blindly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corollout.errors import InputError
from corollout.tasks.karel import dataset
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import Grids, unpack


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


class Reads:
    """Counts how often records are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.count, self.read = 0, dataset.read_records
        monkeypatch.setattr(dataset, "read_records", self)

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        return self.read(*arguments)


def test_a_file_is_read_once(made: KarelData, file: Path, monkeypatch: pytest.MonkeyPatch):
    reads, warnings = Reads(monkeypatch), []
    assert same(made, KarelData.open(file, warn=warnings.append))
    assert reads.count == 0  # the cache was written with the file
    other = file.parent / "elsewhere"
    for _ in range(3):
        assert same(made, KarelData.open(file, side=7, cache=other, warn=warnings.append))
    assert reads.count == 1
    assert warnings == []
    assert sorted(entry.name for entry in file.parent.iterdir()) == ["elsewhere", "train.jsonl", "train.jsonl.cache"]


def test_a_changed_file_is_read_again(made: KarelData, file: Path, monkeypatch: pytest.MonkeyPatch):
    reads, warnings = Reads(monkeypatch), []
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:7]))
    for _ in range(2):
        assert same(made.subset(7), KarelData.open(file, side=7, warn=warnings.append))
    assert reads.count == 1
    assert warnings == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {
    "truncated array": lambda cache: (cache / "input_cells.npy").write_bytes(
        (cache / "input_cells.npy").read_bytes()[:-100]
    ),
    "changed byte": lambda cache: flip(cache / "output_hero.npy"),
    "missing array": lambda cache: (cache / "tokens.npy").unlink(),
    "meta gone": lambda cache: (cache / "meta.json").unlink(),
    "meta no JSON": lambda cache: (cache / "meta.json").write_text("{"),
    "meta no object": lambda cache: (cache / "meta.json").write_text("[]"),
    "meta without keys": lambda cache: (cache / "meta.json").write_text("{}"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_cache_is_made_again(made: KarelData, file: Path, kind: str):
    cache, warnings = file.with_name("train.jsonl.cache"), []
    DAMAGE[kind](cache)
    assert same(made, KarelData.open(file, side=7, warn=warnings.append))
    assert len(warnings) == 1
    assert "damaged" in warnings[0]
    assert same(made, KarelData.open(file, side=7, warn=warnings.append))
    assert len(warnings) == 1


def test_a_cache_of_another_version_is_made_again(made: KarelData, file: Path, monkeypatch: pytest.MonkeyPatch):
    reads, warnings = Reads(monkeypatch), []
    meta = file.with_name("train.jsonl.cache") / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"version": 0}))
    assert same(made, KarelData.open(file, side=7, warn=warnings.append))
    assert (reads.count, warnings) == (1, [])


def test_without_a_place_for_the_cache_there_is_a_warning(made: KarelData, file: Path):
    warnings: list[str] = []
    assert same(made, KarelData.open(file, side=7, cache=file / "no folder", warn=warnings.append))
    assert len(warnings) == 1
    assert "cannot write the cache" in warnings[0]


def test_a_folder_with_other_files_is_no_cache(file: Path):
    precious = file.with_name("train.jsonl.cache") / "precious.txt"
    precious.write_text("")
    file.write_text(file.read_text() * 2)
    with pytest.raises(InputError, match=r"holds 'precious\.txt', which is no part of a cache"):
        KarelData.open(file)
    assert precious.exists()


def test_bad_lines_are_an_error_though_the_cache_left_them_out(made: KarelData, file: Path):
    file.write_text(file.read_text() + "{}\n")
    warnings: list[str] = []
    for _ in range(2):
        assert same(made, KarelData.open(file, side=7, skip_bad=True, warn=warnings.append))
        with pytest.raises(InputError, match="line 13: program_tokens"):
            KarelData.open(file, side=7, warn=warnings.append)
    assert len(warnings) == 2
    assert "left out 1 bad lines of 13" in warnings[0]


def test_arrays_go_to_pytorch_without_a_warning(file: Path):
    data = KarelData.open(file)
    for array in (data.tokens, data.inputs.cells, data.outputs.hero, data.ids):
        torch.from_numpy(array)


def test_the_side_can_be_chosen(made: KarelData, file: Path):
    assert KarelData.open(file).side == 7
    larger = KarelData.open(file, side=18)
    assert larger.inputs.cells.shape == (12, 6, 18, 18)
    assert unpack(larger.outputs[4, 5]) == unpack(made.outputs[4, 5])
    with pytest.raises(InputError, match=r"train\.jsonl: there are worlds of 5 rows or columns"):
        KarelData.open(file, side=6)


def test_absent_files_are_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot read .*absent\.jsonl: No such file"):
        KarelData.open(tmp_path / "absent.jsonl")


def test_subsets_and_arrays_of_ones_own(made: KarelData):
    few = made.subset(5)
    assert len(few) == 5
    assert (few.side, few.examples) == (7, 6)
    own = KarelData.from_arrays(few.tokens, few.lengths, few.inputs, few.outputs)
    assert own.ids.tolist() == [0, 1, 2, 3, 4]
    for count in (0, 13):
        with pytest.raises(InputError, match="there are 12 tasks"):
            made.subset(count)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: {"tokens": d.tokens[:5]}, "tokens must have one entry for each of the 12 tasks"),
        (lambda d: {"inputs": d.inputs[:5]}, "inputs must have one entry"),
        (lambda d: {"outputs": d.outputs[:, :5]}, "must be of one shape"),
        (lambda d: {"outputs": Grids(d.outputs.cells[..., :5], d.outputs.hero)}, "must be of one shape"),
        (lambda d: {"ids": np.zeros(12, np.int64)}, "ids of tasks must be different"),
        (lambda d: {"ids": np.arange(3)}, "ids must have one entry"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(made: KarelData, change: Any, said: str):
    arrays = {"tokens": made.tokens, "lengths": made.lengths, "inputs": made.inputs, "outputs": made.outputs}
    with pytest.raises(InputError, match=said):
        KarelData.from_arrays(**(arrays | change(made)))
