"""The numbers of an update, and the warnings that they give rise to."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from corollout import Columns, Trainer
from corollout.events import Event
from corollout.training.metrics import RewardNumbers, count_equal, peak_memory
from corollout.training.watchdog import WINDOW, Seen, Watchdog
from tests.support.enumeration import Problem

GOOD = Seen(reward=0.5, gradient_norm=1.0, entropy=1.0, cut=0.0)


def test_rewards_in_a_few_numbers():
    assert RewardNumbers.of([1.0, 3.0, math.nan]) == RewardNumbers(2.0, 1.0, 1.0, 3.0)
    assert RewardNumbers.of([4.0]) == RewardNumbers(4.0, 0.0, 4.0, 4.0)
    assert all(math.isnan(number) for number in RewardNumbers.of([math.nan]))
    assert all(math.isnan(number) for number in RewardNumbers.of([]))


def test_contexts_with_equal_rewards():
    rewards = torch.tensor([1.0, 1.0, 2.0, 3.0, 5.0, math.nan, 7.0, 7.0])
    contexts = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])  # context 2 has one known reward
    assert count_equal(rewards, contexts, 5) == (2, 3)
    assert count_equal(rewards[4:6], contexts[4:6], 5) == (0, 0)
    assert count_equal(rewards[:0], contexts[:0], 0) == (0, 0)
    assert count_equal(rewards[::2], contexts[::2], 4) == (0, 0)


def test_peak_memory_is_that_of_the_process():
    before = peak_memory("cpu")
    block = torch.ones(int(before * 1e6 / 4) + 50_000_000)
    assert peak_memory("cpu") > before + 100
    assert block[-1] == 1


def warnings_of(updates: list[Seen]) -> list[str]:
    watchdog, texts = Watchdog(), []
    for number, seen in enumerate(updates):
        texts += watchdog.look(seen)
        if number == len(updates) // 2:  # as if resumed
            state = json.loads(json.dumps(watchdog.state()))
            watchdog = Watchdog()
            watchdog.load(state)
    return texts


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gradient_norm": 0.0}, "the gradient has been exactly zero for 20 updates"),
        ({"entropy": 0.001}, "the entropy has collapsed from 1 to 0.001 nats a token"),
        ({"reward": 0.3}, "the reward has fallen from 0.5 in the first 20 updates to 0.3"),
        ({"cut": 0.75}, "% of the sequences were cut at the maximal length"),
    ],
)
def test_each_warning_is_given_once(changed: dict[str, float], words: str):
    bad = replace(GOOD, **changed)
    assert warnings_of([GOOD] * 3 * WINDOW) == []
    assert warnings_of([GOOD] * WINDOW + [bad] * (WINDOW // 4)) == []
    (text,) = warnings_of([GOOD] * WINDOW + [bad] * 5 * WINDOW)
    assert words in text


def test_what_is_no_reason_to_warn():
    noisy = [replace(GOOD, reward=0.5 + 0.4 * math.sin(number)) for number in range(10 * WINDOW)]
    assert warnings_of(noisy) == []
    sure = [replace(GOOD, entropy=0.01)] * 5 * WINDOW  # from the start
    assert warnings_of(sure) == []
    unknown = [GOOD, *[replace(GOOD, reward=math.nan)] * 5 * WINDOW]
    assert warnings_of(unknown) == []
    now_and_then = [replace(GOOD, gradient_norm=float(number % 10 == 0)) for number in range(5 * WINDOW)]
    assert warnings_of(now_and_then) == []


def train(reward: Any, **options: Any) -> tuple[list[Any], list[Event]]:
    problem, events = Problem.make(vocab=3, length=3, seed=5), []
    optimizer = torch.optim.SGD(problem.policy.parameters(), lr=0.1)
    data = Columns(context=torch.zeros(40, dtype=torch.int64))
    trainer = Trainer(
        problem.engine(), data, reward, "rloo-3", optimizer, batch_size=8, on_event=events.append, **options
    )
    metrics = list(trainer.run(updates=30))
    return metrics, [event for event in events if event.kind != "update"]


def test_metrics_of_a_training():
    metrics, events = train(lambda sequences: [float(len(tokens)) for tokens in sequences], max_grad_norm=0.5)
    assert events == []
    for one in metrics:
        assert one.reward_min <= one.reward <= one.reward_max
        assert 0 <= one.reward_std <= (one.reward_max - one.reward_min) / 2
        assert 0 <= one.equal_rewards <= 1
        assert one.clipped == float(one.gradient_norm > 0.5)
        assert 0 <= one.cut <= 1
        assert 0 < one.entropy < 2 * math.log(3)  # an estimate
        assert one.kl is None
        assert one.tokens_per_second > 0
        assert one.peak_memory > 50
    assert {one.clipped for one in metrics} == {0.0, 1.0}
    assert sum(one.equal_rewards for one in metrics) > 0


def test_a_constant_reward_is_told():
    metrics, events = train(lambda sequences: [1.0] * len(sequences))
    assert all(one.equal_rewards == 1 and one.gradient_norm == 0 for one in metrics)
    assert [event.kind for event in events] == ["warning"]
    assert "exactly zero for 20 updates" in events[0].record["text"]
