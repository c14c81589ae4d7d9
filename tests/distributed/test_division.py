"""How a batch is divided, and how numbers about all of its contexts meet, against plain lists."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corollout.division import Division, divide_by_cost, divide_evenly
from corollout.processes import Processes
from tests.support.ranks import Rank, run_ranks


@given(st.integers(0, 40), st.integers(1, 9))
def test_even_parts_are_consecutive_and_differ_by_one(count: int, parts: int):
    shares = divide_evenly(count, parts)
    assert [number for share in shares for number in share] == list(range(count))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.lists(st.floats(0, 1e6) | st.just(math.nan), max_size=30), st.integers(1, 6))
def test_parts_of_equal_cost_have_every_example_once(costs: list[float], parts: int):
    shares = divide_by_cost(costs, parts)
    assert sorted(number for share in shares for number in share) == list(range(len(costs)))
    assert all(share == sorted(share) for share in shares)
    assert len(shares) == parts


@settings(max_examples=50)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 3))
def test_the_costliest_part_is_close_to_the_best_possible(costs: list[int], parts: int):
    divisions = product(range(parts), repeat=len(costs))
    best = min(
        max(sum(cost for cost, at in zip(costs, division, strict=True) if at == part) for part in range(parts))
        for division in divisions
    )
    assert max(sum(costs[number] for number in share) for share in divide_by_cost(costs, parts)) <= 4 / 3 * best


def test_unknown_costs_count_as_the_mean_and_equal_ones_are_dealt_in_turn():
    assert divide_by_cost([math.nan] * 5, 2) == [[0, 2, 4], [1, 3]]
    assert divide_by_cost([0.0] * 4, 2) == [[0, 2], [1, 3]]
    assert divide_by_cost([9.0, math.nan, 1.0, math.nan], 2) == [[0, 2], [1, 3]]
    assert divide_by_cost([], 2) == [[], []]


SHARES = [[[0, 1], [2, 3, 4]], [[1, 3, 4], [0, 2]], [[0, 1, 2, 3, 4], []], [[], [4, 2][::-1], [0, 1, 3]]]


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_rows_and_runs_arrive_in_the_order_of_the_batch(shares: list[list[int]], dtype: torch.dtype):
    examples = torch.tensor([10, 2**62 + 1, 12, 13, 14])
    rows = [0, 0, 1, 3, 3, 3, 4]  # contexts of all rows; the one at place 2 has none
    values = (torch.arange(7.0)[:, None] * torch.tensor([1.0, 1 / 3]) * 5).to(dtype)
    counts = torch.tensor([2, 0, 3, 1, 0, 2, 1])
    runs = [[f"{row}{i}" for i in range(count)] for row, count in enumerate(counts.tolist())]
    numbers = torch.tensor([int(text) for run in runs for text in run])

    def one(rank: Rank):
        division = Division.of(examples, shares, rank)
        own = shares[rank.rank]
        mine = torch.tensor([row for place in own for row, context in enumerate(rows) if context == place]).long()
        contexts = torch.tensor([own.index(rows[row]) for row in mine.tolist()]).long()
        parts = [int(text) for row in mine.tolist() for text in runs[row]]
        return (
            mine,
            division.gather(values[mine], contexts),
            division.gather(values[mine][:, 0], contexts),
            division.gather_runs(torch.tensor(parts).long(), counts[mine], contexts),
            parts,
            division.total(torch.tensor([rank.rank + 1.0, 1.0])).tolist(),
            (len(division), division.is_empty, division.places.tolist()),
        )

    size = len(shares)
    for number, (mine, table, column, run, parts, total, facts) in enumerate(run_ranks(size, one)):
        assert torch.equal(table.values, values)
        assert table.values.dtype == dtype
        assert torch.equal(table.own, mine)
        assert torch.equal(column.values, values[:, 0])
        assert torch.equal(run.values, numbers)
        assert run.values[run.own].tolist() == parts
        assert total == [size * (size + 1) / 2, size]
        assert facts == (5, shares[number] == [], shares[number])


def test_bits_of_numbers_survive():
    values = torch.tensor([[math.nan, -0.0, math.inf], [1 / 3, 5e-324, 1e308]], dtype=torch.float64)
    division = Division.of(torch.arange(2), [[0, 1]], Processes())
    everyone = division.gather(values, torch.arange(2))
    assert everyone.values.view(torch.int64).tolist() == values.view(torch.int64).tolist()
