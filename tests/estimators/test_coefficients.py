"""Coefficients of ARS: both implementations give the plain sums."""

import pytest
import torch
from torch import Tensor

from corollout.estimators.ars import Coefficients, _collect_compiled, _collect_torch
from tests.support.coefficient_reference import CASES, make_case, means_agree, plain_sums, sums_agree


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_and_means(dtype: torch.dtype):
    assert sums_agree(dtype)
    assert means_agree(dtype)


@pytest.mark.parametrize(("vocab", "count", "scale"), [*CASES, (400, 400, 2.0)])
def test_the_compiled_loop_gives_the_same(vocab: int, count: int, scale: float):
    case = make_case(vocab, count, scale, torch.float64)
    compiled, plain = _collect_compiled(*case), _collect_torch(*case)
    assert len(compiled[0]) > 100 or vocab < 400
    for a, b in zip(*(_sorted(sums, vocab) for sums in (compiled, plain)), strict=True):
        torch.testing.assert_close(a, b)


def _sorted(sums: tuple[Tensor, ...], vocab: int) -> list[Tensor]:
    order = (sums[3] * vocab + sums[4]).argsort()  # by branch and coordinate
    return [*sums[:3], *(part[order] for part in sums[3:])]


def test_a_mean_of_one_is_the_same_object():
    table, weight, token = make_case(5, 5, 1.0, torch.float32)
    cells = torch.arange(len(token))
    only = Coefficients.from_table(table, weight, token, cells, torch.zeros_like(cells))
    assert Coefficients.mean([only], 5) is only
    assert plain_sums(table, weight, token).abs().max() > 0.1
