"""Metrics of programs, against the simple interpreter and known numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from corollout.data import Split
from corollout.errors import InputError
from corollout.rollouts.decoding import decode
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import unpack
from corollout.tasks.karel.language import encode, tokenize
from corollout.tasks.karel.metrics import SolvesTask, evaluate_karel, judge_lists
from corollout.tasks.karel.task import KarelTask, karel_split
from corollout.tasks.task import Share
from corollout.training.run_weights import open_run
from corollout.types import Sampler
from tests.support.small_karel import small_run, verdict


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


def right_by_hand(split: Split, tokens: list[int], task: int) -> list[bool]:
    return [
        verdict(tokens, unpack(split.data.inputs[task, e]), unpack(split.data.outputs[task, e])) == "right"
        for e in range(split.data.examples)
    ]


def test_wilsons_interval():
    assert Share(10, 100).interval == pytest.approx((0.0552, 0.1744), abs=1e-4)
    assert Share(0, 50).interval == pytest.approx((0.0, 0.0713), abs=1e-4)
    assert Share(50, 50).interval == pytest.approx((0.9287, 1.0), abs=1e-4)


def test_rewards_are_what_the_plain_interpreter_says():
    split = karel_split(generate({"train": 12}, longest=9, largest=4, workers=1)["train"])
    targets = split.columns.columns["target"]
    wrong = encode(tokenize("DEF run m( turnLeft m)"))
    programs = [*targets, *targets[1:], targets[0], *[wrong] * 12, [], [5]]
    tasks = [*range(12), *range(12), *range(12), 0, 1]
    by_hand = [right_by_hand(split, tokens, task) for tokens, task in zip(programs, tasks, strict=True)]
    verdicts = judge_lists(split.data, programs, tasks)
    assert verdicts.right.tolist() == by_hand
    assert verdicts.valid.tolist() == [True] * 36 + [False] * 2
    assert SolvesTask(split.data)(programs, tasks) == [float(all(hits)) for hits in by_hand]
    held_out = SolvesTask(split.data, "held-out")(programs, tasks)
    assert held_out == [1.0 if hits[-1] else -1.0 for hits in by_hand]
    assert SolvesTask(split.data)(list(targets), range(12)) == [1.0] * 12
    assert 0.0 in SolvesTask(split.data)(programs, tasks)
    with pytest.raises(InputError, match="unknown reward 'gold': choose one of all, held-out"):
        SolvesTask(split.data, "gold")


def test_an_evaluation_counts_what_the_plain_interpreter_finds(run: Path):
    task, engine = open_run(run, "last")
    split = task.train
    greedy = [found[0] for found in decode(engine, split.columns, Sampler("greedy"))]
    by_hand = np.array([right_by_hand(split, tokens, i) for i, tokens in enumerate(greedy)])
    result = evaluate_karel(engine, split, beam=3)
    assert result.generalization == Share(int(by_hand.all(1).sum()), len(split))
    assert result.semantic == Share(int(by_hand[:, :-1].all(1).sum()), len(split))
    assert result.exact.hits == sum(a == b for a, b in zip(greedy, split.columns.columns["target"], strict=True))
    assert result.generalization.hits > 0  # it has learnt some of these by heart
    assert result.scores.tolist() == by_hand.all(1).tolist()
    beams = decode(engine, split.columns, Sampler("beam", 3))
    for k in (1, 2, 3):
        solved = [any(all(right_by_hand(split, t, i)) for t in found[:k]) for i, found in enumerate(beams)]
        assert result.top[k - 1].hits == sum(solved)
    # Neither the target nor the batch changes an output.
    blind = karel_split(split.data)
    blind.columns.columns["target"][:] = [[] for _ in range(len(split))]
    unseen = evaluate_karel(engine, blind)
    assert (unseen.generalization, unseen.syntax, unseen.exact.hits) == (result.generalization, result.syntax, 0)
    one, many = (decode(engine, split.columns, Sampler("sample", 2), seed=3, batch_size=size) for size in (1, 256))
    assert one == many
    numbers = result.numbers()
    assert numbers["generalization"] == result.generalization.value
    assert numbers["generalization_low"] <= numbers["generalization"] <= numbers["generalization_high"]
    assert numbers["top_3"] >= numbers["top_1"]


def test_the_first_tasks_of_a_split(run: Path):
    task, engine = open_run(run, "last")
    first, whole = task.train.first(2), task.evaluate(engine, task.train)
    assert (len(first), len(task.train.first(99))) == (2, 6)
    assert torch.equal(first.columns.batch([0, 1]).context, task.train.columns.batch([0, 1]).context)
    assert task.evaluate(engine, first).scores.tolist() == whole.scores[:2].tolist()


def test_missing_splits_and_files_with_the_public_names(tmp_path: Path, run: Path):
    task, _ = open_run(run)
    assert isinstance(task, KarelTask)
    for folder in (tmp_path, None):
        with pytest.raises(InputError, match=r"there is no val.jsonl or val.json in .*: name a folder"):
            KarelTask(folder, task.model).split("val")
    with pytest.raises(InputError, match="unknown split 'all'"):
        task.split("all")
    # Files with the public names are read.
    (tmp_path / "val.json").write_bytes((run.parent / "val.jsonl").read_bytes())
    assert torch.equal(KarelTask(tmp_path, task.model).split("val").columns.ids, task.val.columns.ids)
