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


def returning(result: Any, name: str = "fixed") -> Reward:
    """A reward whose function returns `result` whatever it gets."""
    return Reward(lambda sequences: result, name=name)


# How a function is called


def test_columns_are_passed_by_keyword():
    def count(sequences: list[list[int]], target: list[int]) -> list[float]:
        return [float(tokens.count(t)) for tokens, t in zip(sequences, target, strict=True)]

    assert score(count, [[1, 1], [1, 2]], target=[1, 2], unused=["a", "b"]) == [2.0, 1.0]


def test_a_function_with_keyword_arguments_gets_everything():
    seen: dict[str, Any] = {}

    def function(**kwargs: Any) -> list[float]:
        seen.update(kwargs)
        return [0.0, 0.0]

    Reward(function)(TWO, [7, 8], {"a": "xy", "b": (1, 2)}, [True, False])
    assert seen == {
        "sequences": TWO,
        "examples": [7, 8],
        "finished": [True, False],
        "a": ["x", "y"],
        "b": [1, 2],
    }


def test_finished_and_examples_are_passed_if_accepted():
    def function(sequences: list[list[int]], finished: list[bool], *, examples: list[int]) -> list[float]:
        return [e + 0.5 * done for e, done in zip(examples, finished, strict=True)]

    assert Reward(function)(TWO, [7, 8], {}, [True, False]).values.tolist() == [7.5, 8.0]


def test_finished_keeps_its_default_if_the_caller_does_not_know():
    def function(sequences: list[list[int]], finished: list[bool] | None = None) -> list[float]:
        return [float(finished is None)] * len(sequences)

    assert score(function, TWO) == [1.0, 1.0]
    assert Reward(function)(TWO, [0, 1], {}, [True, True]).values.tolist() == [0.0, 0.0]


def test_a_column_goes_before_a_default():
    def function(sequences: list[list[int]], weight: Sequence[float] = (5.0, 5.0)) -> list[float]:
        return list(weight)

    assert score(function, TWO) == [5.0, 5.0]
    assert score(function, TWO, weight=[1.0, 2.0]) == [1.0, 2.0]


def test_without_a_parameter_sequences_the_first_positional_one_gets_them():
    def first(completions: list[list[int]], **kwargs: Any) -> list[float]:
        assert "sequences" not in kwargs
        return [float(len(tokens)) for tokens in completions]

    def positional_only(sequences: list[list[int]], /, bonus: list[int]) -> list[float]:
        return [len(tokens) + b for tokens, b in zip(sequences, bonus, strict=True)]

    assert score(first, TWO) == [2.0, 1.0]
    assert score(positional_only, TWO, bonus=[10, 20]) == [12.0, 21.0]


def test_a_parameter_sequences_need_not_come_first():
    def function(target: list[int], sequences: list[list[int]]) -> list[float]:
        return [float(tokens[0] == t) for tokens, t in zip(sequences, target, strict=True)]

    assert score(function, TWO, target=[1, 1]) == [1.0, 0.0]


def test_a_first_parameter_named_as_a_column_gets_the_column():
    def keywords(target: list[int], **kwargs: Any) -> list[float]:
        return [t + len(tokens) for tokens, t in zip(kwargs["sequences"], target, strict=True)]

    def none_left(target: list[int]) -> list[float]:
        return [float(t) for t in target]

    assert score(keywords, TWO, target=[10, 20]) == [12.0, 21.0]
    with pytest.raises(InputError, match="'none_left' has no parameter for the sequences"):
        score(none_left, TWO, target=[10, 20])


def test_methods_partials_and_callable_objects_work():
    class Scaled:
        def __call__(self, sequences: list[list[int]], scale: list[float]) -> list[float]:
            return [len(tokens) * s for tokens, s in zip(sequences, scale, strict=True)]

        def method(self, sequences: list[list[int]], scale: list[float]) -> list[float]:
            return self(sequences, scale)

    for function in (Scaled(), Scaled().method):
        assert score(function, TWO, scale=[1.0, 2.0]) == [2.0, 2.0]
    assert score(partial(Scaled(), scale=[3.0, 3.0]), TWO) == [6.0, 3.0]
    assert Reward(Scaled()).name == "Scaled"


def test_a_required_parameter_without_a_column_is_refused():
    def function(sequences: list[list[int]], answer: list[str], weight: float = 1.0) -> list[float]:
        raise AssertionError("must not be called")

    reward = Reward(function, name="exact")
    with pytest.raises(InputError, match=r"'exact' requires the parameter `answer`.*\(prompt, target\)"):
        reward(TWO, [0, 1], {"prompt": "ab", "target": "cd"})
    with pytest.raises(InputError, match=r"`answer`.*sequences, examples, finished and the columns \(none\)"):
        reward(TWO, [0, 1], {}, [True, True])


def test_the_function_cannot_change_the_caller_s_sequences():
    def greedy(sequences: list[list[int]]) -> list[float]:
        return [float(tokens.pop()) for tokens in sequences]

    sequences = [[1, 2], [3]]
    assert score(greedy, sequences) == [2.0, 3.0]
    assert sequences == TWO


def test_the_batch_size_bounds_every_call():
    sizes: list[int] = []

    def function(sequences: list[list[int]]) -> list[float]:
        sizes.append(len(sequences))
        return [float(tokens[0]) for tokens in sequences]

    scores = Reward(function, batch_size=2)([[n] for n in range(5)], [0] * 5, {})
    assert scores.values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sizes == [2, 2, 1]


def test_an_empty_batch_needs_no_call():
    def function(sequences: list[list[int]], missing: list[int]) -> list[float]:
        raise AssertionError("must not be called")

    scores = Reward(function)([], [], {})
    assert scores.values.shape == (0,)
    assert scores.values.dtype == torch.float64
    assert scores.calls == 0


# Duplicates and the cache


def test_duplicates_have_the_same_example_tokens_and_flag():
    seen: list[tuple[int, list[int], bool]] = []

    def function(sequences: list[list[int]], examples: list[int], finished: list[bool]) -> list[float]:
        seen.extend(zip(examples, sequences, finished, strict=True))
        return [float(len(seen) - n) for n in range(len(sequences), 0, -1)]

    sequences = [[1], [1], [1], [1], [2], [1]]
    scores = Reward(function)(sequences, [0, 0, 1, 0, 0, 0], {}, [True, True, True, False, True, True])
    assert seen == [(0, [1], True), (1, [1], True), (0, [1], False), (0, [2], True)]
    assert scores.values.tolist() == [0.0, 0.0, 1.0, 2.0, 3.0, 0.0]
    assert scores.calls == 4


def test_without_a_cache_every_call_evaluates_again():
    reward = Reward(lambda sequences: [1.0] * len(sequences))
    assert [reward([[1], [1]], [0, 0], {}).calls for _ in range(2)] == [1, 1]


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


def test_truth_values_count_as_numbers():
    assert returning([True, False])(TWO, [0, 1], {}).values.tolist() == [1.0, 0.0]
    assert returning([np.True_, np.False_])(TWO, [0, 1], {}).values.tolist() == [1.0, 0.0]


def test_none_skips_a_sequence():
    scores = returning([None, 2.0])(TWO, [0, 1], {})
    assert scores.values.isnan().tolist() == [True, False]
    assert scores.calls == 2


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (math.nan, r"nan \(float\)"),
        (-math.inf, r"-inf \(float\)"),
        (np.float32("nan"), r"nan \(float\)"),
        (10**400, r"1000.*\(int\)"),
        ("2.0", r"'2.0' \(str\)"),
        ([2.0], r"\[2.0\] \(list\)"),
        (2j, r"2j \(complex\)"),
        (torch.ones(1), r"tensor\(\[1.\]\) \(Tensor\)"),
    ],
)
def test_an_entry_that_is_no_finite_number_is_an_error_naming_the_example(result: Any, shown: str):
    message = rf"^reward 'fixed' returned {shown} for a sequence of example 42; return a finite number"
    with pytest.raises(RewardError, match=message):
        returning([1.0, result])(TWO, [41, 42], {})


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (1.0, "a float"),
        (None, "a NoneType"),
        ("12", "a str"),
        ({1.0, 2.0}, "a set"),
        (torch.tensor(1.0), "a Tensor of 0 dimensions"),
        (np.ones((2, 1)), "a ndarray of 2 dimensions"),
    ],
)
def test_a_result_that_is_no_sequence_is_an_error(result: Any, shown: str):
    message = rf"^reward 'fixed' returned {shown}, in a batch of 2 sequences \(examples 41, 42\); return"
    with pytest.raises(RewardError, match=message):
        returning(result)(TWO, [41, 42], {})


def test_a_result_of_the_wrong_length_is_an_error():
    message = r"^reward 'fixed' returned 3 values, in a batch of 2 sequences \(examples 4, 5\); return one"
    with pytest.raises(RewardError, match=message):
        returning([1.0, 2.0, 3.0])(TWO, [4, 5], {})
    with pytest.raises(RewardError, match=r"^reward 'fixed' returned 0 values, on a sequence of example 4; "):
        returning([])([[1]], [4], {})


@pytest.mark.parametrize("error", [ZeroDivisionError("by nought"), SystemExit("enough")])
def test_an_exception_is_chained_and_names_the_examples(error: BaseException):
    def broken(sequences: list[list[int]]) -> list[float]:
        raise error

    with pytest.raises(RewardError) as single:
        Reward(broken)([[1]], [9], {})
    assert single.value.__cause__ is error
    assert str(single.value) == (
        f"reward 'broken' raised {type(error).__name__}: {error}, on a sequence of example 9; "
        "correct the function, or let it return None for a sequence that it cannot score"
    )
    with pytest.raises(RewardError, match=r"in a batch of 3 sequences \(examples 9, 4\);"):
        Reward(broken)([[1], [2], [3]], [9, 4, 9], {})
    with pytest.raises(RewardError, match=r"in a batch of 2 sequences \(example 9\);"):
        Reward(broken)([[1], [2]], [9, 9], {})
    with pytest.raises(RewardError, match=r"batch of 20 sequences \(examples 0, 1, 2, 3, 4, 5, 6, 7, …\);"):
        Reward(broken)([[n] for n in range(20)], range(20), {})


def test_an_exception_without_a_message_is_named():
    def broken(sequences: list[list[int]]) -> list[float]:
        raise AssertionError

    with pytest.raises(RewardError, match="raised AssertionError, on a sequence of example 9;"):
        Reward(broken)([[1]], [9], {})


def test_an_interruption_is_not_a_reward_error():
    def interrupted(sequences: list[list[int]]) -> list[float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Reward(interrupted)([[1]], [9], {})


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": -1}, "cache=-1"),
        ({"workers": -1}, "workers=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"workers": 1, "timeout": 0.0}, "timeout=0.0"),
        ({"workers": 1, "timeout": math.nan}, "timeout=nan"),
        ({"timeout": 1.0}, "^a time-out needs worker processes: set workers=1 or more$"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        Reward(lambda sequences: [0.0], **options)


def test_a_function_whose_parameters_are_hidden_is_refused():
    with pytest.raises(InputError, match=r"^the parameters of reward 'min' .* wrap it in a `def`"):
        Reward(min)


def test_lengths_that_differ_are_refused():
    reward = returning([0.0, 0.0])
    with pytest.raises(InputError, match="got 1 entries of 'examples' for 2 sequences"):
        reward(TWO, [0], {})
    with pytest.raises(InputError, match="got 3 entries of 'target' for 2 sequences"):
        reward(TWO, [0, 1], {"target": [1, 2, 3]})
    with pytest.raises(InputError, match="got 1 entries of 'finished' for 2 sequences"):
        reward(TWO, [0, 1], {}, [True])


@pytest.mark.parametrize("name", ["sequences", "examples", "finished"])
def test_columns_with_reserved_names_are_refused(name: str):
    with pytest.raises(InputError, match=f"the column '{name}' has a name that is reserved"):
        returning([0.0, 0.0])(TWO, [0, 1], {name: [1, 2]})


def test_closing_a_reward_without_workers_changes_nothing():
    with returning([1.0]) as reward:
        pass
    reward.close()
    assert reward([[1]], [0], {}).values.tolist() == [1.0]
