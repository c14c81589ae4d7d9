"""Several rewards with weights: their sum, what does not apply, names, counts, and mistakes."""

import math
from typing import Any

import pytest
import torch

from corollout import Columns, InputError, Noise, Reward, RewardError, WeightedRewards, estimate, evaluate
from corollout.events import Event, numbers_of
from corollout.loggers import Lines
from corollout.training import Run, Schedule, fit, probe_variance
from tests.support.reward_functions import mixed, obey
from tests.support.small_task import likeness, make_data, make_engine, make_policy, make_trainer

calls: list[int] = []


def length(sequences: list[list[int]]) -> list[float]:
    calls.append(len(sequences))
    return [float(len(tokens)) for tokens in sequences]


def if_long(sequences: list[list[int]]) -> list[float | None]:
    return [10.0 if len(tokens) > 1 else None for tokens in sequences]


def never(sequences: list[list[int]]) -> list[None]:
    return [None] * len(sequences)


SEQUENCES = [[1], [1, 2], [1, 2], []]


def test_the_sum_is_weighted_and_none_does_not_apply():
    rewards = WeightedRewards([length, if_long], [2.0, 0.5])
    scores = rewards(SEQUENCES, [0, 0, 0, 1], {})
    assert scores.values.tolist() == [2.0, 9.0, 9.0, 0.0]
    assert scores.parts["length"].tolist() == [1.0, 2.0, 2.0, 0.0]
    assert [math.isnan(value) for value in scores.parts["if_long"].tolist()] == [True, False, False, True]
    assert rewards.name == "2 length + 0.5 if_long"
    assert scores.calls == 6  # three distinct sequences, two functions
    assert WeightedRewards([length, if_long])(SEQUENCES, [0, 0, 0, 1], {}).values.tolist() == [1.0, 12.0, 12.0, 0.0]
    skipped = WeightedRewards([if_long, never])(SEQUENCES, [0, 0, 0, 1], {}).values
    assert skipped.isnan().tolist() == [True, False, False, True]
    assert len(rewards([], [], {}).values) == 0


def test_duplicates_are_scored_once_and_each_has_its_cache():
    calls.clear()
    rewards = WeightedRewards({"cached": Reward(length, cache=100), "again": if_long})
    assert [rewards(SEQUENCES, [0, 0, 0, 1], {}).calls for _ in range(2)] == [6, 3]
    assert calls == [3]
    assert list(rewards.rewards) == ["cached", "again"]


def test_workers():
    with WeightedRewards({"one": Reward(mixed, workers=1), "two": obey}, [1, -1]) as rewards:
        scores = rewards([[3, 4], [], [5]], [0, 1, 2], {"weight": [3.0, 1.0, 6.0]}, [True, True, False])
        assert scores.values.tolist() == [7.0 - 7.0, 0.0, 9.0 - 5.0]


def test_errors_name_the_function_and_the_example():
    def broken(sequences: list[list[int]]) -> list[float]:
        return [math.nan for _ in sequences]

    with pytest.raises(RewardError, match=r"reward 'broken' returned nan .* of example 7"):
        WeightedRewards([length, broken])([[1]], [7], {})
    with pytest.raises(RewardError, match=r"reward 'mine' returned nan .* of example 7"):
        WeightedRewards({"yours": length, "mine": broken})([[1]], [7], {})


@pytest.mark.parametrize(
    ("rewards", "weights", "message"),
    [
        ([length, length], None, "two of the rewards are called 'length'"),
        ([], None, "the list of rewards is empty"),
        ([length, never], [1.0], r"1 reward weights for 2 rewards \(length, never\): give one for each"),
        ([length, never], [1.0, math.nan], "the weight of reward 'never' must be a finite number, not nan"),
        ([length, never], [1.0, "a lot"], "the weight of reward 'never' must be a finite number, not 'a lot'"),
        ([length, 3], None, "a reward must be a function or a Reward, not 3"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_mistakes(rewards: Any, weights: Any, message: str):
    with pytest.raises(InputError, match=message):
        WeightedRewards(rewards, weights)


def test_weights_of_a_single_reward_are_a_mistake():
    with pytest.raises(InputError, match="reward_weights are for several rewards"):
        make_trainer(reward_weights=[0.5])


# In estimates, evaluations and trainings


def added_up(sequences: list[list[int]], target: list[list[int]], finished: list[bool]) -> list[float]:
    pairs = zip(likeness(sequences, target, finished), length(sequences), strict=True)
    return [like + 0.25 * count for like, count in pairs]


def test_estimates_and_evaluations_are_those_of_the_sum():
    policy, batch = make_policy(), make_data().batch(range(8))
    engine = make_engine(policy)
    gradients = []
    for reward, weights in (([likeness, length], [1.0, 0.25]), (added_up, None)):
        policy.zero_grad()
        sample = estimate(engine, batch, reward, "arsm", Noise(3), reward_weights=weights)
        sample.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].norm() > 0
    value = evaluate(engine, make_data(), [likeness, length], reward_weights=[1.0, 0.25])
    assert value == pytest.approx(evaluate(engine, make_data(), added_up))
    both = WeightedRewards([likeness, length], [1.0, 0.25])
    probes = [probe_variance(engine, batch, reward, "rloo-2", 3, Noise(0)) for reward in (both, added_up)]
    assert probes[0].variance == pytest.approx(probes[1].variance)


def test_metrics_have_the_mean_of_each(tmp_path: Any):
    def trainer() -> Any:
        return make_trainer("rloo-3", reward=[likeness, length, never], reward_weights=[1.0, 0.25, 3.0])

    plain, several = list(make_trainer("rloo-3", reward=added_up).run(updates=4)), list(trainer().run(updates=4))
    for one, other in zip(plain, several, strict=True):
        assert one.rewards == {}
        assert other.reward == pytest.approx(one.reward)
        assert other.gradient_norm == pytest.approx(one.gradient_norm)
        assert other.rewards["length"] == pytest.approx(one.mean_length - 1, abs=1)  # without the end token
        assert other.rewards["likeness"] + 0.25 * other.rewards["length"] == pytest.approx(other.reward)
        assert math.isnan(other.rewards["never"])
        assert other.reward_calls == 3 * one.reward_calls
    with Run.create(tmp_path / "run", {}) as run:
        fit(trainer(), run, Schedule("updates", 3, 3), lambda: {"score": 0.0}, "score")
    (first, *_), measured = run.records("update"), run.measurements()
    assert first["rewards"] == {**{k: v for k, v in several[0].rewards.items() if k != "never"}, "never": None}
    assert len(measured) == 5
    assert numbers_of(first)["rewards/length"] == several[0].rewards["length"]


def test_lines_show_each(capsys: pytest.CaptureFixture[str]):
    trainer = make_trainer("rloo-3", reward={"like": likeness, "long": length}, reward_weights=[1.0, 0.25])
    metrics = trainer.step()
    Lines()(Event("update", vars(metrics)))
    assert f"rewards/long {metrics.rewards['long']:.4g}" in capsys.readouterr().err


def test_a_skipped_sequence_is_one_that_nothing_applies_to():
    data = Columns(context=torch.ones(4, 3, dtype=torch.int64))
    sample = estimate(make_engine(make_policy()), data.batch(range(4)), [if_long, never], "rloo-4", Noise(1))
    short = torch.tensor([len(tokens) < 2 for tokens in sample.trajectories.lists()])
    assert short.any()
    assert torch.equal(sample.rewards.isnan(), short)
