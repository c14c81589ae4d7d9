"""Rewards in this process: the calling convention, duplicates, the cache, and what is refused."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corollout.errors import InputError, RewardError
from corollout.rewards import Reward, RewardFunction

TWO = [[1, 2], [3]]


def score(function: RewardFunction, sequences: list[list[int]], **columns: Sequence[Any]) -> list[float]:
    """The values of `function` on `sequences`, which all belong to different examples."""
    return Reward(function)(sequences, range(10, 10 + len(sequences)), columns).values.tolist()


def returning(result: Any) -> Reward:
    """A reward whose function returns `result` whatever it gets."""
    return Reward(lambda sequences: result, name="fixed")


# How a function is called


def by_keyword(sequences: list[list[int]], target: list[int]) -> list[float]:
    return [float(tokens.count(t)) for tokens, t in zip(sequences, target, strict=True)]


def sequences_last(target: list[int], sequences: list[list[int]]) -> list[float]:
    return by_keyword(sequences, target)


def first_parameter(completions: list[list[int]], **others: Any) -> list[float]:
    assert "sequences" not in others
    return by_keyword(completions, others["target"])


def positional_only(sequences: list[list[int]], /, target: list[int]) -> list[float]:
    return by_keyword(sequences, target)


def first_is_a_column(target: list[int], **others: Any) -> list[float]:
    return by_keyword(others["sequences"], target)


class Scorer:
    def __call__(self, sequences: list[list[int]], target: list[int]) -> list[float]:
        return by_keyword(sequences, target)

    def method(self, sequences: list[list[int]], target: list[int]) -> list[float]:
        return by_keyword(sequences, target)


FUNCTIONS = [by_keyword, sequences_last, first_parameter, positional_only, first_is_a_column, Scorer(), Scorer().method]


@pytest.mark.parametrize("function", [*FUNCTIONS, partial(by_keyword, target=[1, 3])])
def test_every_kind_of_function(function: RewardFunction):
    columns = {"unused": ["a", "b"]} if isinstance(function, partial) else {"target": [1, 3], "unused": ["a", "b"]}
    assert score(function, [[1, 1], [3, 1, 3, 3]], **columns) == [2.0, 3.0]
    assert Reward(Scorer()).name == "Scorer"


def test_a_function_with_keyword_arguments_gets_everything():
    arguments: dict[str, Any] = {}

    def function(**kwargs: Any) -> list[float]:
        arguments.update(kwargs)
        return [0.0, 0.0]

    Reward(function)(TWO, [7, 8], {"a": "xy", "b": (1, 2)}, [True, False])
    flags = {"examples": [7, 8], "finished": [True, False]}
    assert arguments == {"sequences": TWO, **flags, "a": ["x", "y"], "b": [1, 2]}


def test_finished_examples_and_defaults():
    def function(
        sequences: list[list[int]], finished: list[bool] | None = None, weight: Any = (5.0, 5.0), *, examples: list[int]
    ) -> list[float]:
        done = finished or [False, False]
        return [e + 0.5 * d + 10 * w for e, d, w in zip(examples, done, weight, strict=True)]

    assert Reward(function)(TWO, [7, 8], {}).values.tolist() == [57.0, 58.0]
    assert Reward(function)(TWO, [7, 8], {"weight": [1.0, 2.0]}, [True, False]).values.tolist() == [17.5, 28.0]


def test_parameters_that_cannot_be_filled_are_refused():
    def exact(sequences: list[list[int]], answer: list[str], weight: float = 1.0) -> list[float]:
        raise AssertionError("must not be called")

    def no_sequences(target: list[int]) -> list[float]:
        raise AssertionError("must not be called")

    with pytest.raises(InputError, match=r"'exact' requires the parameter `answer`.*\(prompt, target\)"):
        Reward(exact)(TWO, [0, 1], {"prompt": "ab", "target": "cd"})
    with pytest.raises(InputError, match=r"`answer`.*sequences, examples, finished and the columns \(none\)"):
        Reward(exact)(TWO, [0, 1], {}, [True, True])
    with pytest.raises(InputError, match="'no_sequences' has no parameter for the sequences"):
        score(no_sequences, TWO, target=[10, 20])
    with pytest.raises(InputError, match=r"the parameters of reward 'min' .* wrap it in a `def`"):
        Reward(min)


def test_calls_are_bounded_by_the_batch_size_and_get_copies():
    sizes: list[int] = []

    def function(sequences: list[list[int]]) -> list[float]:
        sizes.append(len(sequences))
        return [float(tokens.pop()) for tokens in sequences]

    sequences = [[n] for n in range(5)]
    assert Reward(function, batch_size=2)(sequences, [0] * 5, {}).values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sizes == [2, 2, 1]
    assert sequences == [[n] for n in range(5)]
    empty = Reward(function)([], [], {})
    assert (empty.values.shape, empty.values.dtype, empty.calls) == ((0,), torch.float64, 0)
    assert len(sizes) == 3


# Duplicates and the cache


def test_duplicates_have_the_same_example_tokens_and_flag():
    scored: list[tuple[int, list[int], bool]] = []

    def function(sequences: list[list[int]], examples: list[int], finished: list[bool]) -> list[float]:
        scored.extend(zip(examples, sequences, finished, strict=True))
        return [float(len(scored) - n) for n in range(len(sequences), 0, -1)]

    reward = Reward(function)
    sequences = [[1], [1], [1], [1], [2], [1]]
    scores = reward(sequences, [0, 0, 1, 0, 0, 0], {}, [True, True, True, False, True, True])
    assert scored == [(0, [1], True), (1, [1], True), (0, [1], False), (0, [2], True)]
    assert scores.values.tolist() == [0.0, 0.0, 1.0, 2.0, 3.0, 0.0]
    assert scores.calls == 4
    assert reward([[1], [1]], [0, 0], {}, [True, True]).calls == 1  # nothing is remembered without a cache


def test_the_cache_keeps_the_results_used_last():
    reward = Reward(lambda sequences: [float(tokens[0]) if tokens else None for tokens in sequences], cache=2)

    def calls(*sequences: list[int]) -> int:
        scores = reward(list(sequences), [0] * len(sequences), {})
        expected = [float(tokens[0]) if tokens else math.nan for tokens in sequences]
        torch.testing.assert_close(scores.values, torch.tensor(expected, dtype=torch.float64), equal_nan=True)
        return scores.calls

    assert calls([1], []) == 2
    assert calls([], [1]) == 0  # a skipped sequence is remembered too
    assert calls([2]) == 1  # the empty sequence leaves
    assert calls([1]) == 0
    assert calls([]) == 1  # 2 leaves
    assert calls([1], []) == 0
    assert calls([1], [2], [3], [4]) == 3  # more than the cache holds
    assert calls([3], [4]) == 0


row = st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), max_size=2), st.booleans())


@given(
    calls=st.lists(st.lists(row, max_size=12), min_size=1, max_size=3),
    cache=st.sampled_from([0, 1, 4, 100]),
    batch_size=st.sampled_from([None, 1, 3]),
)
def test_the_deduplicated_result_equals_the_plain_one(
    calls: list[list[tuple[int, list[int], bool]]], cache: int, batch_size: int | None
):
    evaluated = 0

    def function(sequences: list[list[int]], weight: list[float], finished: list[bool]) -> list[float | None]:
        nonlocal evaluated
        evaluated += len(sequences)
        return [
            sum(tokens) * w / 7 - len(tokens) + done if tokens != [2] else None
            for tokens, w, done in zip(sequences, weight, finished, strict=True)
        ]

    reward = Reward(function, cache=cache, batch_size=batch_size)
    for rows in calls:
        sequences, examples, finished = [r[1] for r in rows], [r[0] for r in rows], [r[2] for r in rows]
        weight = [0.3 * example for example in examples]
        plain = [math.nan if value is None else value for value in function(sequences, weight, finished)]
        evaluated = 0
        scores = reward(sequences, examples, {"weight": weight}, finished)
        torch.testing.assert_close(
            scores.values, torch.tensor(plain, dtype=torch.float64), rtol=0, atol=0, equal_nan=True
        )
        assert scores.calls == evaluated
        distinct = len({(example, tuple(tokens), done) for example, tokens, done in rows})
        assert scores.calls == distinct if cache == 0 else scores.calls <= distinct


# Results


@pytest.mark.parametrize(
    "result",
    [
        [1.5, 2],
        [1.5, 1 + np.True_],
        (1.5, 2.0),
        np.array([1.5, 2.0]),
        np.array([1.5, 2.0], dtype=np.float32),
        [np.float32(1.5), np.int64(2)],
        torch.tensor([1.5, 2.0]),
        torch.tensor([1.5, 2.0], dtype=torch.bfloat16, requires_grad=True),
        [torch.tensor(1.5), torch.tensor(2)],
    ],
)
def test_all_kinds_of_number_lists_are_accepted(result: Any):
    scores = returning(result)(TWO, [0, 1], {})
    assert scores.values.dtype == torch.float64
    assert scores.values.tolist() == [1.5, 2.0]


def test_none_skips_a_sequence():
    scores = returning([None, 2.0])(TWO, [0, 1], {})
    assert scores.values.isnan().tolist() == [True, False]
    assert scores.calls == 2


@pytest.mark.parametrize(
    ("result", "message"),
    [
        # An entry that is not a finite number
        ([1.0, math.nan], r"nan \(float\) for a sequence of example 42; return a finite number"),
        ([1.0, -math.inf], r"-inf \(float\) for a sequence of example 42"),
        ([1.0, np.float32("nan")], r"nan \(float\)"),
        ([1.0, 10**400], r"1000.*\(int\)"),
        ([1.0, "2.0"], r"'2.0' \(str\)"),
        ([1.0, [2.0]], r"\[2.0\] \(list\)"),
        ([1.0, 2j], r"2j \(complex\)"),
        ([1.0, torch.ones(1)], r"tensor\(\[1.\]\) \(Tensor\)"),
        # Not a sequence of one value for each
        (1.0, r"a float, in a batch of 2 sequences \(examples 41, 42\); return"),
        (None, "a NoneType"),
        ("12", "a str"),
        ({1.0, 2.0}, "a set"),
        (torch.tensor(1.0), "a Tensor of 0 dimensions"),
        (np.ones((2, 1)), "a ndarray of 2 dimensions"),
        ([1.0, 2.0, 3.0], r"3 values, in a batch of 2 sequences \(examples 41, 42\); return one"),
    ],
)
def test_results_that_are_refused(result: Any, message: str):
    with pytest.raises(RewardError, match=f"^reward 'fixed' returned {message}"):
        returning(result)(TWO, [41, 42], {})


@pytest.mark.parametrize("error", [ZeroDivisionError("by nought"), SystemExit("enough"), AssertionError()])
def test_an_exception_is_chained_and_names_the_examples(error: BaseException):
    def broken(sequences: list[list[int]]) -> list[float]:
        raise error

    with pytest.raises(
        RewardError, match=f"^reward 'broken' raised {type(error).__name__}.*{error}.* example 9;"
    ) as one:
        Reward(broken)([[1]], [9], {})
    assert one.value.__cause__ is error
    for examples, message in (
        ([9, 4, 9], r"in a batch of 3 sequences \(examples 9, 4\);"),
        ([9, 9], r"in a batch of 2 sequences \(example 9\);"),
        (range(20), r"batch of 20 sequences \(examples 0, 1, 2, 3, 4, 5, 6, 7, …\);"),
    ):
        with pytest.raises(RewardError, match=message):
            Reward(broken)([[n] for n in range(len(examples))], examples, {})


def test_an_interruption_is_not_a_reward_error():
    def interrupted(sequences: list[list[int]]) -> list[float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Reward(interrupted)([[1]], [9], {})


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": -1}, "cache must be .* not -1"),
        ({"workers": -1}, "workers must be .* not -1"),
        ({"batch_size": 0}, "batch_size must be .* not 0"),
        ({"workers": 1, "timeout": 0.0}, "timeout must be a positive .* not 0.0"),
        ({"workers": 1, "timeout": math.nan}, "timeout must be a positive .* not nan"),
        ({"timeout": 1.0}, "a time-out needs worker processes"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        Reward(lambda sequences: [0.0], **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0], {}), "1 entries of 'examples' for 2 sequences"),
        (([0, 1], {"target": [1, 2, 3]}), "3 entries of 'target' for 2 sequences"),
        (([0, 1], {}, [True]), "1 entries of 'finished' for 2 sequences"),
        *[(([0, 1], {name: [1, 2]}), f"'{name}' .* reserved") for name in ("sequences", "examples", "finished")],
    ],
)
def test_columns_that_are_refused(arguments: tuple[Any, ...], message: str):
    with pytest.raises(InputError, match=message):
        returning([0.0, 0.0])(TWO, *arguments)


def test_closing_a_reward_without_workers_changes_nothing():
    with returning([1.0]) as reward:
        pass
    reward.close()
    assert reward([[1]], [0], {}).values.tolist() == [1.0]
