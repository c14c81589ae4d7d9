"""Data sets: columns of equal length, batches of them, and orders that follow the examples."""

from typing import Any

import pytest
import torch

from corollout.data import Columns, Rows, shuffled
from corollout.errors import InputError
from corollout.noise import Noise


def columns(count: int, **more: Any) -> Columns:
    return Columns(
        context=torch.arange(10 * count).view(count, 10), answer=[f"answer {i}" for i in range(count)], **more
    )


def test_a_batch_has_its_part_of_every_column():
    batch = columns(6).batch([4, 0, 4])
    assert len(batch) == 3
    assert batch.examples.tolist() == [4, 0, 4]
    assert batch.context is batch.columns["context"]
    assert batch.context[:, 0].tolist() == [40, 0, 40]
    assert batch.columns["answer"] == ["answer 4", "answer 0", "answer 4"]


@pytest.mark.parametrize("index", [[], torch.empty(0, dtype=torch.int64)])
def test_a_batch_or_a_data_set_may_be_empty(index: Any):
    batch = columns(6).batch(index)
    assert (len(batch), batch.context.shape, batch.columns["answer"]) == (0, (0, 10), [])
    data = Columns(context=[], answer=torch.zeros(0))
    assert [batch for batch in data.epoch(4, Noise(0)) if len(batch)] == []


def test_examples_are_counted_unless_they_have_ids():
    assert columns(4).ids.tolist() == [0, 1, 2, 3]
    named = columns(4, ids=[40, -3, 7, 2**40])
    assert named.batch([3, 1]).examples.tolist() == [2**40, -3]
    assert named.batch([3, 1]).context[:, 0].tolist() == [30, 10]
    assert columns(2, ids=torch.tensor([5, 6])).batch([1]).examples.tolist() == [6]
    assert Columns(context=["a", "b", "c"]).batch([2, 0]).context == ["c", "a"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "'context'; it has no columns"),
        ({"b": [1], "a": [2]}, r"'context'; it has \['a', 'b'\]"),
        ({"context": torch.zeros(2, 3), "answer": [1, 2, 3]}, r"same length, not {'context': 2, 'answer': 3}"),
        ({"context": [1, 2], "ids": [1, 2, 3]}, "ids must be 2 different whole numbers, one for each example"),
        ({"context": [1, 2], "ids": [1, 1]}, "ids must be 2 different whole numbers"),
        ({"context": [1, 2], "ids": torch.tensor([[1], [2]])}, "ids must be 2 different whole numbers"),
    ],
)
def test_columns_that_are_no_data_set_are_refused(given: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        Columns(**given)


@pytest.mark.parametrize(
    ("count", "size", "sizes"), [(10, 4, [4, 4, 2]), (10, 5, [5, 5]), (3, 10, [3]), (3, 1, [1, 1, 1])]
)
def test_an_epoch_has_every_example_once(count: int, size: int, sizes: list[int]):
    data = columns(count, ids=[100 + 7 * i for i in range(count)])
    batches = list(data.epoch(size, Noise(3)))
    assert [len(batch) for batch in batches] == sizes
    assert sorted(e for batch in batches for e in batch.examples.tolist()) == data.ids.tolist()
    for batch in batches:
        index = (batch.examples - 100) // 7
        assert torch.equal(batch.context[:, 0], 10 * index)
        assert batch.columns["answer"] == [f"answer {i}" for i in index.tolist()]


def test_the_order_is_the_noise_s_and_does_not_depend_on_the_batch_size():
    data = columns(50)

    def order(size: int, noise: Noise) -> list[int]:
        return [e for batch in data.epoch(size, noise) for e in batch.examples.tolist()]

    assert order(8, Noise(1)) == order(8, Noise(1)) == order(50, Noise(1)) == order(1, Noise(1))
    assert order(8, Noise(1)) != order(8, Noise(2))
    assert order(8, Noise(1).fold(0, 0)) != order(8, Noise(1).fold(0, 1))
    assert order(50, Noise(1)) != list(range(50))


def test_orders_are_uniform_enough():
    """Where the first of three examples comes, over 3000 noises: χ² with two degrees of freedom, P(> 41.5) = 1e-9."""
    places = torch.tensor([int((shuffled(torch.arange(3), Noise(seed)) == 0).nonzero()) for seed in range(3000)])
    counts = places.bincount(minlength=3)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 41.5


@pytest.mark.parametrize("column", [[10, 11, 12], (10, 11, 12), torch.tensor([10, 11, 12])])
def test_rows_see_the_entries_of_their_contexts(column):
    rows = Rows(column, [2, 0, 2])
    assert len(rows) == 3
    assert [int(entry) for entry in rows] == [12, 10, 12]
    assert [int(entry) for entry in rows[1:]] == [10, 12]
    batch = Columns(context=[0, 0, 0], other=column).batch([2, 1])
    assert [int(entry) for entry in batch.aligned(torch.tensor([1, 1, 0]))["other"]] == [11, 11, 12]
