"""Files of Karel: records, caches and worlds."""

import json
from pathlib import Path
from random import Random

import numpy as np

from corollout.files import file_digest
from corollout.tasks.karel import parse
from corollout.tasks.karel import run as run_karel
from corollout.tasks.karel.commands import _read_world
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import unpack
from corollout.tasks.karel.machine import Programs, judge
from corollout.tasks.karel.model import pictures
from tests.reliability.kinds.kind import Kind, update_json


def _make_karel(folder: Path) -> None:
    generate({"train": 4}, seed=3, longest=12, largest=4)["train"].write(folder / "train.jsonl", "both")


def _make_karel_lines(folder: Path) -> None:
    _make_karel(folder)
    for file in (folder / "train.jsonl.cache").iterdir():
        file.unlink()
    (folder / "train.jsonl.cache").rmdir()


def _use_karel(folder: Path, random: Random) -> None:
    data = KarelData.open(folder / "train.jsonl", skip_bad=random.random() < 0.5)
    data.check()
    tasks = np.arange(len(data))
    assert judge(Programs(data.tokens, data.lengths), tasks, data.inputs, data.outputs).valid.all()
    for grids in (data.inputs, data.outputs):
        assert pictures(grids).shape == grids.cells.shape
        unpack(grids[0, 0])


def _correct_karel(folder: Path) -> None:
    cache = folder / "train.jsonl.cache"
    update_json(
        cache / "meta.json",
        lambda meta: meta["arrays"].update({file.stem: file_digest(file) for file in cache.glob("*.npy")}),
    )


def _make_world(folder: Path) -> None:
    world = {"rows": 4, "cols": 5, "hero": "1:2:east", "blocked": "0:0 3:3", "markers": "1:1:4 2:2:9", "crashed": False}
    (folder / "world.json").write_text(json.dumps({"inpgrid_json": world}))


def _use_world(folder: Path, random: Random) -> None:
    run_karel(parse("DEF run m( move turnLeft putMarker m)"), _read_world(str(folder / "world.json")))


KINDS = {
    "Karel records": Kind(_make_karel_lines, _use_karel, weight=8),
    "Karel caches": Kind(_make_karel, _use_karel, _correct_karel, "*.cache/*", weight=12),
    "Karel worlds": Kind(_make_world, _use_world),
}
