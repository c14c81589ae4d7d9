"""Coefficients of ARS: both ways of adding up their terms give the plain sums."""

import pytest
import torch

from corollout.estimators import coefficients
from tests.support.coefficient_reference import CASES, make_case, means_agree, plain_sums, sums_agree


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ways_give_the_plain_sums(dtype):
    assert sums_agree(dtype)


@pytest.mark.parametrize(("vocab", "count", "scale"), CASES)
def test_the_compiled_loop_is_its_plain_python(vocab, count, scale):
    case = make_case(vocab, count, scale, torch.float64)
    compiled, plain = coefficients._collect_compiled(*case), coefficients._collect_torch(*case)
    for mine, theirs in zip(compiled[:3], plain[:3], strict=True):
        torch.testing.assert_close(mine, theirs)
    keys = [found[3] * vocab + found[4] for found in (compiled, plain)]
    for part in (3, 4, 5):
        torch.testing.assert_close(compiled[part][keys[0].argsort()], plain[part][keys[1].argsort()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mean_is_that_of_all_values(dtype):
    assert means_agree(dtype)


def test_the_mean_of_one_is_itself():
    table, weight, token = make_case(5, 5, 1.0, torch.float32)
    cells = torch.arange(len(token))
    only = coefficients.Coefficients.of(table, weight, token, cells, torch.zeros_like(cells))
    assert coefficients.Coefficients.mean([only], 5) is only


def test_a_large_vocabulary_of_both_ways():
    case = make_case(400, 400, 2.0, torch.float32)
    compiled, plain = coefficients._collect_compiled(*case), coefficients._collect_torch(*case)
    assert len(compiled[0]) > 100
    assert torch.equal(compiled[0], plain[0])
    assert torch.equal(compiled[1], plain[1])
    torch.testing.assert_close(compiled[2], plain[2], rtol=1e-4, atol=1e-6)


def test_the_plain_sums_are_not_all_zero():
    assert plain_sums(*make_case(5, 5, 1.0, torch.float64)).abs().max() > 0.1
