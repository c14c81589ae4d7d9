"""Estimators that learn during training, the choice among several, and probes."""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.errors import InputError
from corollout.estimators import RLOO, Adaptive, Auto, Estimator, Pairs, Reinforce, UnorderedSet
from corollout.events import Callback, Event, ignore
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.training import Run, Schedule, Trainer, estimate, fit, probes
from corollout.training.base import flat_gradient
from corollout.training.checkpoints import State
from corollout.training.probes import WARM_UP_BATCHES, Choice, Probe, choose_estimator, probe_estimators
from corollout.types import Cost
from tests.support.small_task import likeness, make_data, make_engine, make_policy, make_trainer, weights


class Ticks:
    """A clock by which everything takes a second."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1.0
        return self.time


class Durations:
    """A clock by which each of some estimators takes its own time, once they are timed."""

    def __init__(self, *seconds: float):
        self.seconds, self.calls = seconds, 0

    def __call__(self) -> float:
        self.calls += 1
        untimed = WARM_UP_BATCHES * len(self.seconds)  # what only teaches is started and not stopped
        if self.calls <= untimed:
            return 0.0
        turn, stopped = divmod(self.calls - untimed - 1, 2)
        return self.seconds[turn % len(self.seconds)] * stopped


def timed(estimator: Estimator | str, **options: Any) -> Trainer:
    """A trainer by whose clock everything takes a second."""
    trainer = make_trainer(estimator, **options)
    trainer.now = Ticks()
    return trainer


def make_auto() -> Auto:
    return Auto(candidates={"one": Reinforce(), "four": RLOO(4, "fitted"), "pairs": Pairs()}, every=2, estimates=2)


def train(trainer: Trainer, updates: int) -> tuple[list[dict[str, Any]], list[Event]]:
    """Metrics and other events up to a number of updates."""
    events: list[Event] = []
    trainer.on_event = events.append
    metrics = [asdict(one) for one in trainer.run(updates=updates)]
    assert [event.record for event in events if event.kind == "update"] == metrics
    return metrics, [event for event in events if event.kind != "update"]


def same_state(one: Trainer, other: Trainer) -> bool:
    """Whether two estimators have learned the same."""
    assert isinstance(one.estimator, Adaptive)
    assert isinstance(other.estimator, Adaptive)
    a, b = one.estimator.state_dict(), other.estimator.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# States


@pytest.mark.parametrize(
    "make", [lambda: "set-3:baseline=fitted", lambda: "pairs", make_auto], ids=["set", "pairs", "auto"]
)
@pytest.mark.parametrize("updates", [1, 4])  # between choices, and when one is due
def test_what_was_learned_resumes_bit_for_bit(make: Callable[[], Estimator | str], updates: int):
    whole, first, second = (timed(make()) for _ in range(3))
    before, after = train(whole, updates), train(whole, 5)
    assert train(first, updates) == before
    state = first.state()
    train(first, 6)  # a state is a copy
    second.load_state(state)
    assert train(second, 5) == after
    if isinstance(second.estimator, Auto):
        fitted = {f"four/{name}" for name in ("weight", "mean", "spread", "products")}
        assert set(second.estimator.state_dict()) == {"chosen", "pairs/gaps", *fitted}
    assert torch.equal(weights(whole.policy), weights(second.policy))
    assert same_state(whole, second)
    assert asdict(whole.cost) == asdict(second.cost)


@pytest.mark.parametrize("name", ["set-3:baseline=fitted", "pairs"])
def test_what_was_learned_matters(name: str):
    whole, forgetful = timed(name), timed(name)
    train(whole, 2)
    state = whole.state()
    tensors = {name: x for name, x in state.tensors.items() if "/estimator/" not in name}
    forgetful.load_state(State(tensors, state.values))
    assert torch.equal(weights(whole.policy), weights(forgetful.policy))
    train(whole, 4)
    train(forgetful, 4)
    assert not torch.equal(weights(whole.policy), weights(forgetful.policy))


def test_adaptive_estimators_learn_from_an_estimate():
    batch, engine = make_data().batch(range(4)), make_engine(make_policy())
    plain, fitted = RLOO(3), UnorderedSet(3, "fitted")
    assert estimate(engine, batch, likeness, plain, Noise(1)).updated(plain) is plain
    sample = estimate(engine, batch, likeness, fitted, Noise(1))
    updated, expected = sample.updated(fitted), fitted.updated(sample.plan, sample.rewards, sample.logits.detach())
    assert isinstance(updated, UnorderedSet)
    assert isinstance(expected, UnorderedSet)
    torch.testing.assert_close(updated.state_dict(), expected.state_dict())
    assert float(updated.state_dict()["weight"]) == pytest.approx(4)
    assert not updated.state_dict()["products"].requires_grad


# Choices


@pytest.mark.parametrize("every", [1, 3, 250])
def test_choices_are_due_at_the_start_and_after_twice_as_long_each_time(every: int):
    auto = Auto(every=every)
    due = [updates for updates in range(20 * every + 1) if auto.is_due(updates)]
    assert due == [0, every, 2 * every, 4 * every, 8 * every, 16 * every]


def test_auto_is_its_first_candidate_until_it_has_chosen():
    auto = make_auto()
    assert (auto.name, auto.current, auto.sampler) == ("one", Reinforce(), Reinforce().sampler)
    assert auto.load_state_dict(auto.state_dict()).name == "one"
    with pytest.raises(InputError, match="no candidate 'two'; it has one, four, pairs"):
        Auto(candidates=auto.candidates, chosen="two")
    with pytest.raises(InputError, match="at least one candidate"):
        Auto(candidates={})


def batches(count: int) -> Iterator[Any]:
    return (make_data(12).batch([(3 * i + j) % 12 for j in range(4)]) for i in range(count))


def sample_variance(estimators: list[Estimator], noise: Noise) -> float:
    """The variance of one gradient on each batch but the first, each by the estimator as it was then."""
    policy = make_policy()
    vectors = []
    for turn, (batch, estimator) in enumerate(zip(batches(len(estimators)), estimators, strict=True)):
        policy.zero_grad()
        estimate(make_engine(policy), batch, likeness, estimator, noise.fold(turn)).backward()
        vectors.append(flat_gradient(policy.parameters()))
    return float(torch.stack(vectors[WARM_UP_BATCHES:]).var(0).sum())


def test_estimators_are_probed_over_batches():
    engine, noise, two = make_engine(make_policy()), Noise(7), RLOO(2)
    estimators = {"two": two, "pairs": Pairs()}
    probed, updated, cost = probe_estimators(
        engine, batches(5), Reward(likeness), estimators, noise, Durations(3.0, 0.5)
    )
    assert [(name, p.estimates, p.seconds) for name, p in probed.items()] == [("two", 4, 3.0), ("pairs", 4, 0.5)]
    first, second = probed.values()
    assert first.variance == pytest.approx(sample_variance([two] * 5, noise), rel=1e-9)
    assert first.cost == 3.0 * first.variance
    pairs: list[Estimator] = [Pairs()]
    for turn, batch in enumerate(batches(4)):
        pairs.append(estimate(engine, batch, likeness, pairs[-1], noise.fold(turn)).updated(pairs[-1]))
    assert second.variance == pytest.approx(sample_variance(pairs, noise), rel=1e-9)
    assert updated["two"] is two
    assert isinstance(updated["pairs"], Pairs)
    assert updated["pairs"].state_dict().keys() == {"gaps"}
    samples = [estimate(engine, batch, likeness, two, noise.fold(i)) for i, batch in enumerate(batches(5))]
    tokens, calls = ([getattr(sample.cost, name) for sample in samples] for name in ("tokens", "reward_calls"))
    assert (first.tokens, first.reward_calls) == (sum(tokens[1:]) / 4, sum(calls[1:]) / 4)
    assert cost.tokens > sum(tokens) + 4 * second.tokens  # the warm-up included


def choose(auto: Auto, count: int, clock: Callable[[], float], reward: Any = likeness) -> Choice:
    return choose_estimator(auto, make_engine(make_policy()), batches(count), Reward(reward), Noise(7), 12, clock)


def test_candidates_far_behind_make_no_more_estimates():
    candidates: dict[str, Estimator] = {"two": RLOO(2), "eight": RLOO(8), "seven": RLOO(7)}
    choice = choose(Auto(candidates=candidates, estimates=6, chosen="two"), 7, Ticks())
    assert {name: p.estimates for name, p in choice.probes.items()} == {"two": 3, "eight": 6, "seven": 6}
    assert choice.estimator.chosen in ("eight", "seven")
    engine = make_engine(make_policy())
    complete, _, cost = probe_estimators(engine, batches(7), Reward(likeness), candidates, Noise(7), Ticks())
    assert {p.estimates for p in complete.values()} == {6}
    assert {n: complete[n] for n in ("eight", "seven")} == {n: choice.probes[n] for n in ("eight", "seven")}
    assert cost.tokens - choice.cost.tokens > 2 * complete["two"].tokens


@pytest.mark.parametrize(("seconds", "best"), [((1.0, 1.0), "eight"), ((1.0, 1000.0), "two"), ((1000.0, 1.0), "eight")])
def test_the_choice_has_the_smallest_variance_times_seconds(seconds: tuple[float, float], best: str):
    auto = Auto(candidates={"two": RLOO(2), "eight": RLOO(8)}, estimates=4)
    choice = choose(auto, 5, Durations(*seconds))
    two, eight = choice.probes.values()
    assert two.variance > 2 * eight.variance > 0
    assert (choice.estimator.chosen, choice.estimator.name, choice.update) == (best, best, 12)
    assert choice.estimator.current == auto.candidates[best]
    record = choice.record()
    assert (record["update"], record["picked"], record["reason"]) == (12, best, choice.reason)
    keys = {"estimator", "estimates", "variance", "tokens", "reward_calls", "seconds"}
    assert [set(probe) for probe in record["seen"]] == [keys, keys]


@pytest.mark.parametrize("chosen", ["", "two", "three"])
def test_the_candidate_in_use_stays_if_nothing_distinguishes_them(chosen: str):
    auto = Auto(candidates={"two": RLOO(2), "three": RLOO(3)}, estimates=2, chosen=chosen)
    choice = choose(auto, 3, Ticks(), lambda sequences: [0.5] * len(sequences))
    assert choice.estimator.chosen == (chosen or "two")
    assert choice.reason.startswith(f"auto uses {chosen or 'two'}: the estimates do not vary")


@pytest.mark.parametrize(
    ("chosen", "probed", "reason"),
    [
        ("a", {"a": (6, 1.0)}, "auto uses a, the only candidate"),
        ("b", {"c": (6, 4.0), "a": (6, 1.0), "b": (6, 1.0)}, "auto uses b: .* is 1.00 of that of a"),
        ("a", {"c": (6, 4.0), "a": (6, 1.0)}, "is 0.25 of that of c"),
        # A candidate that was given up is not the second best.
        ("b", {"few": (3, 1.0), "a": (6, 4.0), "b": (6, 2.0)}, "is 0.50 of that of a, the second best of 3, over 6 "),
    ],
)
def test_reasons(chosen: str, probed: dict[str, tuple[int, float]], reason: str):
    auto = Auto(candidates=dict.fromkeys(probed, RLOO(2)), chosen=chosen)
    made = {name: Probe(n, variance, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0, ()) for name, (n, variance) in probed.items()}
    assert re.search(reason, Choice(auto, 0, made, Cost()).reason)


def test_a_choice_is_made_when_it_is_due_and_its_cost_is_counted():
    calls: list[int] = []

    def counted(sequences: list[list[int]], target: list[list[int]], finished: list[bool]) -> list[float]:
        calls.append(len(sequences))
        return likeness(sequences, target, finished)

    trainer, twin = timed(make_auto(), reward=counted), timed(make_auto())
    metrics, events = train(trainer, 5)
    assert [(event.kind, event.record["update"]) for event in events] == [("choice", at) for at in (0, 2, 4)]
    for event in events:
        seen = event.record["seen"]
        assert [probe["estimator"] for probe in seen] == ["one", "four", "pairs"]
        best = min(seen, key=lambda probe: probe["variance"] * probe["seconds"])
        assert event.record["picked"] == best["estimator"]
    # Three candidates, with a tick for each start and for each stop but in the first turn; and the update's own.
    assert [m["seconds"] for m in metrics] == [16.0, 17.0, 33.0, 34.0, 50.0]
    assert metrics[-1]["reward_calls"] == sum(calls)
    # The first update is that of the candidate that was chosen; the cost of the choice is added.
    auto = twin.estimator
    assert isinstance(auto, Auto)
    choice = choose_estimator(auto, twin.engine, twin._probe_batches(2), twin.reward, twin._probe_noise, 0, Ticks())
    twin.estimator = choice.estimator.current
    (alone,), _ = train(twin, 1)
    assert metrics[0]["tokens"] == choice.cost.tokens + alone["tokens"]
    assert metrics[0]["reward"] == alone["reward"]
    assert metrics[0]["rollouts_per_step"] == alone["rollouts_per_step"]


def test_a_choice_uses_as_many_batches_as_it_needs():
    trainer = timed(make_auto())
    used = list(trainer._probe_batches(6))
    assert len(used) == 6 + WARM_UP_BATCHES > trainer.updates_per_epoch
    epochs = [[x for batch in used[i : i + 3] for x in batch.examples.tolist()] for i in (0, 3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(100, 112))] * 2
    assert epochs[0] != epochs[1]


# Probes during training


@pytest.mark.parametrize("name", ["rloo-2", "pairs", "set-3:baseline=fitted"])
def test_probes_are_events_and_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probes, "PROBE_ESTIMATES", 3)
    plain, probed = timed(name), timed(name, probe_every=2, probes=["rloo-3", "vine-1"])
    (metrics, none), (same, events) = train(plain, 5), train(probed, 5)
    assert none == []
    assert [(event.kind, event.record["update"]) for event in events] == [("probe", 2), ("probe", 4)]
    for event in events:
        seen = event.record["seen"]
        assert [probe["estimator"] for probe in seen] == ["in use", "rloo-3", "vine-1"]
        assert all(probe["estimates"] == 3 and probe["variance"] > 0 for probe in seen)
        assert all(probe["tokens"] > 0 and probe["reward_calls"] > 0 and probe["seconds"] == 1.0 for probe in seen)
    assert same == metrics
    assert same[-1]["seconds"] == 5.0  # of the updates alone
    assert torch.equal(weights(plain.policy), weights(probed.policy))
    assert torch.equal(flat_gradient(plain.policy.parameters()), flat_gradient(probed.policy.parameters()))
    assert asdict(plain.cost) == asdict(probed.cost)
    assert not isinstance(plain.estimator, Adaptive) or same_state(plain, probed)


def test_an_unknown_estimator_is_not_probed():
    with pytest.raises(InputError, match="no estimator 'nothing-3'"):
        timed("rloo-2", probe_every=2, probes=["rloo-3", "nothing-3"])


class Killed(Exception):
    pass


@pytest.mark.parametrize("killed_at", [pytest.param(1, marks=pytest.mark.prove), 5])
def test_events_are_recorded_once_also_by_a_run_that_was_killed(tmp_path: Path, killed_at: int):
    def kill(event: Event) -> None:
        if event.kind == "update" and event.record["update"] == killed_at:
            raise Killed

    def run(directory: Path, trainer: Trainer, on_event: Callback = ignore) -> None:
        with Run.open(directory, resume=True) if directory.exists() else Run.create(directory, {}) as run:
            fit(trainer, run, Schedule("updates", 6, 3), lambda: {"score": 0.5}, "score", on_event=on_event)

    first, killed, second = (timed(make_auto(), probe_every=3) for _ in range(3))
    events: list[Event] = []
    run(tmp_path / "whole", first, events.append)
    with pytest.raises(Killed):
        run(tmp_path / "run", killed, kill)
    run(tmp_path / "run", second)
    whole, resumed = (Run.open(tmp_path / name).records() for name in ("whole", "run"))
    assert resumed == whole
    assert torch.equal(weights(first.policy), weights(second.policy))
    records = [(record["kind"], record["update"]) for record in resumed if record["kind"] in ("choice", "probe")]
    assert sorted(records) == [*(("choice", at) for at in (0, 2, 4)), *(("probe", at) for at in (3, 6))]
    assert [(event.kind, event.record["update"]) for event in events if event.kind in ("choice", "probe")] == records
