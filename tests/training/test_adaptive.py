"""Estimators that learn along training, the choice among several, and light probes beside it."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators import RLOO, Adaptive, Auto, Estimator, Pairs, Reinforce, UnorderedSet
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.training import Trainer, estimate, flat_gradient
from corollout.training import finetuning as loop
from corollout.training.base import Event
from corollout.training.checkpoints import State
from corollout.training.choice import LEARNING, Choice, Glance, choose, glance
from corollout.training.fit import Schedule, fit
from corollout.training.runs import Run
from tests.support.small_task import likeness, make_data, make_engine, make_policy


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
        untimed = LEARNING * len(self.seconds)  # what only teaches is started and not stopped
        if self.calls <= untimed:
            return 0.0
        turn, stopped = divmod(self.calls - untimed - 1, 2)
        return self.seconds[turn % len(self.seconds)] * stopped


def trainer(estimator: Estimator | str, reward: Any = likeness, **options: Any) -> Trainer:
    policy = make_policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    learner = Trainer(make_engine(policy), make_data(12), reward, estimator, optimizer, batch_size=5, **options)
    learner._now = Ticks()
    return learner


def some() -> Auto:
    return Auto(candidates={"one": Reinforce(), "four": RLOO(4, "fitted"), "pairs": Pairs()}, every=2, estimates=2)


def weights(learner: Trainer) -> Tensor:
    return torch.cat([p.detach().flatten() for p in learner.policy.parameters()])


def told(learner: Trainer, updates: int) -> list[Any]:
    """Metrics and news up to a number of updates."""
    metrics = [asdict(each) for each in learner.run(updates=updates)]
    news, learner.news = [asdict(each) for each in learner.news], []
    return [metrics, news]


def same_memory(one: Trainer, other: Trainer) -> bool:
    assert isinstance(one.estimator, Adaptive)
    assert isinstance(other.estimator, Adaptive)
    a, b = one.estimator.state_dict(), other.estimator.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# States


@pytest.mark.parametrize("make", [lambda: "set-3:baseline=fitted", lambda: "pairs", some], ids=["set", "pairs", "auto"])
@pytest.mark.parametrize("updates", [1, 4])  # between choices, and when one is due
def test_what_was_learned_goes_on_bit_for_bit(make: Callable[[], Estimator | str], updates: int):
    whole, first, second = (trainer(make()) for _ in range(3))
    before, after = told(whole, updates), told(whole, 5)
    assert told(first, updates) == before
    second.restore(first.state())
    assert told(second, 5) == after
    assert torch.equal(weights(whole), weights(second))
    assert same_memory(whole, second)
    assert asdict(whole.cost) == asdict(second.cost)


@pytest.mark.parametrize("name", ["set-3:baseline=fitted", "pairs"])
def test_what_was_learned_matters(name: str):
    whole, forgetful = trainer(name), trainer(name)
    told(whole, 2)
    state = whole.state()
    forgetful.restore(State({name: x for name, x in state.tensors.items() if "/estimator/" not in name}, state.values))
    assert not same_memory(whole, forgetful)
    assert torch.equal(weights(whole), weights(forgetful))
    told(whole, 4)
    told(forgetful, 4)
    assert not torch.equal(weights(whole), weights(forgetful))


def test_a_choice_is_restored_with_all_that_candidates_learned():
    first, second = trainer(some()), trainer(some())
    told(first, 3)
    assert isinstance(first.estimator, Auto)
    assert first.estimator.name != "one"
    second.restore(first.state())
    assert isinstance(second.estimator, Auto)
    assert second.estimator.chosen == first.estimator.chosen
    assert set(second.estimator.state_dict()) == {
        "chosen",
        *(f"four/{name}" for name in ("matrix", "right", "contexts", "length", "reward")),
        "pairs/gaps",
    }
    assert same_memory(first, second)
    # A state is a copy: what is learned later is not in it.
    kept = {name: tensor.clone() for name, tensor in second.estimator.state_dict().items()}
    told(first, 4)
    assert not same_memory(first, second)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in second.estimator.state_dict().items())


def test_an_estimate_teaches_those_that_learn():
    batch, engine = make_data().batch(range(4)), make_engine(make_policy())
    plain, learning = RLOO(3), UnorderedSet(3, "fitted")
    assert estimate(engine, batch, likeness, plain, Noise(1)).updated(plain) is plain
    sample = estimate(engine, batch, likeness, learning, Noise(1))
    found, wanted = sample.updated(learning), learning.updated(sample.plan, sample.rewards, sample.logits.detach())
    assert isinstance(found, UnorderedSet)
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in wanted.state_dict().items())
    assert float(found.state_dict()["contexts"]) == 4
    assert not found.state_dict()["matrix"].requires_grad


# Choices


@pytest.mark.parametrize("every", [1, 3, 250])
def test_choices_are_due_at_the_start_and_after_twice_as_long_each_time(every: int):
    auto = Auto(every=every)
    due = [updates for updates in range(20 * every + 1) if auto.is_due(updates)]
    assert due == [0, every, 2 * every, 4 * every, 8 * every, 16 * every]


def test_auto_is_its_first_candidate_until_it_has_chosen():
    auto = some()
    assert (auto.name, auto.current, auto.sampler) == ("one", Reinforce(), Reinforce().sampler)
    assert auto.load_state_dict(auto.state_dict()).name == "one"
    with pytest.raises(InputError, match=r"^auto has no candidate 'two'; it has one, four, pairs$"):
        Auto(candidates=some().candidates, chosen="two")
    with pytest.raises(InputError, match=r"^auto needs at least one candidate$"):
        Auto(candidates={})


def batches(count: int) -> Iterator[Any]:
    return (make_data(12).batch([(3 * i + j) % 12 for j in range(4)]) for i in range(count))


def sample_variance(estimators: list[Estimator], noise: Noise) -> float:
    """Of one gradient on each batch but the first, each by the estimator as it was then."""
    policy = make_policy()
    vectors = []
    for turn, (batch, estimator) in enumerate(zip(batches(len(estimators)), estimators, strict=True)):
        policy.zero_grad()
        estimate(make_engine(policy), batch, likeness, estimator, noise.fold(turn)).backward()
        vectors.append(flat_gradient(policy.parameters()))
    return float(torch.stack(vectors[LEARNING:]).var(0).sum())


def test_a_glance_is_the_variance_over_batches():
    engine, noise, two = make_engine(make_policy()), Noise(7), RLOO(2)
    seen, taught, cost = glance(
        engine, batches(5), Reward(likeness), {"two": two, "pairs": Pairs()}, noise, Durations(3.0, 0.5)
    )
    assert [(each.estimator, each.estimates, each.seconds) for each in seen] == [("two", 4, 3.0), ("pairs", 4, 0.5)]
    assert seen[0].variance == pytest.approx(sample_variance([two] * 5, noise), rel=1e-9)
    assert seen[0].product == 3.0 * seen[0].variance
    pairs: list[Estimator] = [Pairs()]
    for turn, batch in enumerate(batches(4)):
        pairs.append(estimate(engine, batch, likeness, pairs[-1], noise.fold(turn)).updated(pairs[-1]))
    assert seen[1].variance == pytest.approx(sample_variance(pairs, noise), rel=1e-9)
    assert taught["two"] is two
    samples = [estimate(engine, batch, likeness, two, noise.fold(i)) for i, batch in enumerate(batches(5))]
    tokens, calls = ([getattr(each.cost, name) for each in samples] for name in ("tokens", "reward_calls"))
    assert (seen[0].tokens, seen[0].reward_calls) == (sum(tokens[1:]) / 4, sum(calls[1:]) / 4)
    # All of it was spent, also what only taught.
    assert cost.tokens > sum(tokens) + 4 * seen[1].tokens
    assert isinstance(taught["pairs"], Pairs)
    assert taught["pairs"].state_dict().keys() == {"gaps"}


def test_those_that_are_far_behind_make_no_more_estimates():
    candidates: dict[str, Estimator] = {"two": RLOO(2), "eight": RLOO(8), "seven": RLOO(7)}
    auto = Auto(candidates=candidates, estimates=6, chosen="two")
    engine, reward, noise = make_engine(make_policy()), Reward(likeness), Noise(7)
    found, choice, cost = choose(auto, engine, batches(7), reward, noise, 0, Ticks())
    assert {each.estimator: each.estimates for each in choice.seen} == {"two": 3, "eight": 6, "seven": 6}
    assert found.chosen in ("eight", "seven")
    assert found.chosen not in choice.reason.split("that of ")[1].split(",")[0] in ("eight", "seven")
    seen, _, everything = glance(engine, batches(7), reward, candidates, noise, Ticks())
    assert {each.estimates for each in seen} == {6}
    assert seen[1:] == choice.seen[1:]
    assert everything.tokens - cost.tokens > 2 * seen[0].tokens
    # Only who was seen to the end is taken, whatever the others looked like.
    few, many = Glance("few", 3, 1.0, 1.0, 1.0, 1.0), Glance("many", 6, 2.0, 1.0, 1.0, 1.0)
    more = Glance("more", 6, 4.0, 1.0, 1.0, 1.0)
    assert "is 0.50 of that of more, the next best of 3, over 6 " in Choice(0, "many", [few, more, many]).reason


@pytest.mark.parametrize(("seconds", "best"), [((1.0, 1.0), "eight"), ((1.0, 1000.0), "two"), ((1000.0, 1.0), "eight")])
def test_the_choice_is_the_least_variance_times_seconds(seconds: tuple[float, float], best: str):
    auto = Auto(candidates={"two": RLOO(2), "eight": RLOO(8)}, estimates=4)
    found, choice, _ = choose(
        auto, make_engine(make_policy()), batches(5), Reward(likeness), Noise(7), 12, Durations(*seconds)
    )
    two, eight = choice.seen
    assert two.variance > 2 * eight.variance > 0
    assert (found.chosen, found.name, choice.picked, choice.update) == (best, best, best, 12)
    assert found.current == auto.candidates[best]
    share = min(two.product, eight.product) / max(two.product, eight.product)
    other = {"two": "eight", "eight": "two"}[best]
    assert choice.reason == (
        f"auto takes {best}: its variance × seconds is {share:.2f} of that of {other}, the next best of 2, over 4 "
        f"estimates"
    )


@pytest.mark.parametrize("chosen", ["", "two", "three"])
def test_with_nothing_to_choose_by_the_candidate_in_use_stays(chosen: str):
    auto = Auto(candidates={"two": RLOO(2), "three": RLOO(3)}, estimates=2, chosen=chosen)
    reward = Reward(lambda sequences: [0.5] * len(sequences))
    found, choice, _ = choose(auto, make_engine(make_policy()), batches(3), reward, Noise(7), 0, Ticks())
    assert found.chosen == choice.picked == (chosen or "two")
    assert choice.reason == f"auto takes {chosen or 'two'}: estimates do not vary, so there is nothing to choose by"


def test_reasons_of_special_choices():
    variances = {"a": 1.0, "b": 1.0, "c": 4.0}
    one, other, third = (Glance(name, 6, variance, 1.0, 1.0, 2.0) for name, variance in variances.items())
    assert Choice(0, "a", [one]).reason == "auto takes a, the only candidate"
    # As good as another: the sentence is about the one that was taken.
    assert Choice(0, "b", [third, one, other]).reason == (
        "auto takes b: its variance × seconds is 1.00 of that of a, the next best of 3, over 6 estimates"
    )
    assert Choice(0, "a", [third, one]).reason.startswith("auto takes a: its variance × seconds is 0.25 of that of c,")


def test_a_choice_is_made_when_it_is_due_and_paid_for():
    seen: list[int] = []

    def counted(sequences: list[list[int]], target: list[list[int]], finished: list[bool]) -> list[float]:
        seen.append(len(sequences))
        return likeness(sequences, target, finished)

    learner, twin = trainer(some(), counted), trainer(some())
    metrics, news = told(learner, 5)
    assert [(item["kind"], item["record"]["update"]) for item in news] == [("choice", at) for at in (0, 2, 4)]
    for item in news:
        record = item["record"]
        assert [each["estimator"] for each in record["seen"]] == ["one", "four", "pairs"]
        assert record["picked"] == min(record["seen"], key=lambda each: each["variance"] * each["seconds"])["estimator"]
        assert record["reason"].startswith(f"auto takes {record['picked']}: its variance × seconds is 0.")
    # Three candidates, with a tick for each start and for each stop but in the first turn; and the update's own.
    assert [m["seconds"] for m in metrics] == [16.0, 17.0, 33.0, 34.0, 50.0]
    assert metrics[-1]["reward_calls"] == sum(seen)
    # The first update is that of the candidate that was chosen; what the choice cost is added.
    auto = twin.estimator
    assert isinstance(auto, Auto)
    found, _, cost = choose(auto, twin.engine, twin._looked_at(2), twin.reward, twin._probe_noise, 0, Ticks())
    twin.estimator = found.current
    (alone,), _ = told(twin, 1)
    assert metrics[0]["tokens"] == cost.tokens + alone["tokens"]
    assert metrics[0]["reward"] == alone["reward"]
    assert metrics[0]["rollouts_per_step"] == alone["rollouts_per_step"]


def test_a_choice_looks_at_as_many_batches_as_it_needs():
    learner = trainer(some())
    looked = list(learner._looked_at(6))
    assert len(looked) == 6 + LEARNING > learner.updates_per_epoch
    rounds = [tuple(x for batch in looked[i : i + 3] for x in batch.examples.tolist()) for i in (0, 3)]
    assert [sorted(each) for each in rounds] == [list(range(100, 112))] * 2
    assert rounds[0] != rounds[1]


# Light probes


@pytest.mark.parametrize("name", ["rloo-2", "pairs", "set-3:baseline=fitted"])
def test_probes_are_news_and_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "PROBED", 3)
    plain, probed = trainer(name), trainer(name, probe_every=2, probes=["rloo-3", "vine-1"])
    (metrics, nothing), (same, news) = told(plain, 5), told(probed, 5)
    assert nothing == []
    assert [(item["kind"], item["record"]["update"]) for item in news] == [("probe", 2), ("probe", 4)]
    for item in news:
        seen = item["record"]["seen"]
        assert [each["estimator"] for each in seen] == ["in use", "rloo-3", "vine-1"]
        assert all(each["estimates"] == 3 and each["variance"] > 0 for each in seen)
        assert all(each["tokens"] > 0 and each["reward_calls"] > 0 and each["seconds"] == 1.0 for each in seen)
    # Also the seconds are those of the updates alone: a tick for each.
    assert same == metrics
    assert same[-1]["seconds"] == 5.0
    assert torch.equal(weights(plain), weights(probed))
    assert torch.equal(flat_gradient(plain.policy.parameters()), flat_gradient(probed.policy.parameters()))
    assert asdict(plain.cost) == asdict(probed.cost)
    if isinstance(plain.estimator, Adaptive):
        assert same_memory(plain, probed)


def test_what_is_probed_must_exist():
    with pytest.raises(InputError, match="there is no estimator 'nothing-3'"):
        trainer("rloo-2", probe_every=2, probes=["rloo-3", "nothing-3"])


# Runs


def looks() -> dict[str, float]:
    return {"score": 0.5}


def run_of(directory: Path, learner: Trainer, **hooks: Any) -> None:
    with Run.create(directory, {}) if not directory.exists() else Run.open(directory, resume=True) as run:
        fit(learner, run, Schedule("updates", 6, 3), looks, "score", **hooks)


class Killed(Exception):
    pass


def kill(metrics: Any) -> None:
    if metrics.update == 5:
        raise Killed


def test_news_are_recorded_once_also_by_a_run_that_was_killed(tmp_path: Path):
    first, killed, second = (trainer(some(), probe_every=3) for _ in range(3))
    heard: list[Event] = []
    run_of(tmp_path / "whole", first, on_news=heard.append)
    with pytest.raises(Killed):
        run_of(tmp_path / "run", killed, on_update=kill)
    run_of(tmp_path / "run", second)
    whole, found = (Run.open(tmp_path / name).records() for name in ("whole", "run"))
    assert found == whole
    assert torch.equal(weights(first), weights(second))
    news = [(record["kind"], record["update"]) for record in found if record["kind"] in ("choice", "probe")]
    assert sorted(news) == [*(("choice", at) for at in (0, 2, 4)), *(("probe", at) for at in (3, 6))]
    assert [(item.kind, item.record["update"]) for item in heard] == news
    assert first.news == second.news == []
