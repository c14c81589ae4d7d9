"""Measures of programs, against the plain interpreter and known numbers."""

from pathlib import Path

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.rollouts.decoding import decode
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import unpack
from corollout.tasks.karel.language import encode, tokenize
from corollout.tasks.karel.metrics import SolvesTask, evaluate_karel, judge_lists
from corollout.tasks.karel.task import KarelTask, Split
from corollout.tasks.task import Share
from corollout.training import start as jobs
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
    low, high = Share(10, 100).interval
    assert (low, high) == (pytest.approx(0.0552, abs=1e-4), pytest.approx(0.1744, abs=1e-4))
    assert Share(0, 50).interval[0] == 0.0
    assert Share(50, 50).interval[1] == pytest.approx(1.0)
    assert Share(0, 50).interval[1] > 0.05


def test_rewards_are_what_the_plain_interpreter_says():
    split = Split(generate({"train": 12}, longest=9, largest=4, workers=1)["train"])
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


def test_an_unknown_reward_is_refused():
    data = generate({"train": 1}, longest=9, largest=4, workers=1)["train"]
    with pytest.raises(InputError, match="no reward is called 'gold': choose one of all, held-out"):
        SolvesTask(data, "gold")


def test_an_evaluation_counts_what_the_plain_interpreter_finds(run: Path):
    task, engine = jobs.open_run(run, "last")
    split = task.train
    greedy = [found[0] for found in decode(engine, split.columns, Sampler("greedy"))]
    by_hand = np.array([right_by_hand(split, tokens, i) for i, tokens in enumerate(greedy)])
    result = evaluate_karel(engine, split.data, split.columns, beam=3)
    assert result.generalization == Share(int(by_hand.all(1).sum()), len(split))
    assert result.semantic == Share(int(by_hand[:, :-1].all(1).sum()), len(split))
    assert result.exact.hits == sum(a == b for a, b in zip(greedy, split.columns.columns["target"], strict=True))
    assert result.generalization.hits > 0  # it has learnt some of these by heart
    assert result.scores.tolist() == by_hand.all(1).tolist()
    beams = decode(engine, split.columns, Sampler("beam", 3))
    for k in (1, 2, 3):
        solved = [any(all(right_by_hand(split, t, i)) for t in found[:k]) for i, found in enumerate(beams)]
        assert result.top[k - 1].hits == sum(solved)
    numbers = result.numbers()
    assert numbers["generalization"] == result.generalization.value
    assert numbers["generalization_low"] <= numbers["generalization"] <= numbers["generalization_high"]
    assert numbers["top_3"] >= numbers["top_1"]


def test_evaluations_do_not_look_at_the_target(run: Path):
    task, engine = jobs.open_run(run, "last")
    split = task.train
    blind = Split(split.data)
    blind.columns.columns["target"][:] = [[] for _ in range(len(split))]
    seen = evaluate_karel(engine, split.data, split.columns)
    unseen = evaluate_karel(engine, blind.data, blind.columns)
    assert (seen.generalization, seen.syntax) == (unseen.generalization, unseen.syntax)
    assert unseen.exact.hits == 0


def test_the_batch_changes_nothing(run: Path):
    task, engine = jobs.open_run(run, "last")
    one, many = (decode(engine, task.train.columns, Sampler("sample", 2), seed=3, batch_size=size) for size in (1, 256))
    assert one == many


def test_a_split_that_is_not_there_is_named(tmp_path: Path, run: Path):
    task, _ = jobs.open_run(run)
    assert isinstance(task, KarelTask)
    with pytest.raises(InputError, match=r"val.jsonl does not exist: name a folder with train.jsonl"):
        KarelTask(tmp_path, task.model).split("val")
    with pytest.raises(InputError, match="no split is called 'all'"):
        task.split("all")
