"""The coefficients of ARS as plain sums over every entry of the table of pseudo-actions."""

from itertools import product
from unittest.mock import patch

import torch
from torch import Tensor

from corollout.estimators import coefficients
from corollout.estimators.coefficients import Coefficients
from corollout.estimators.pseudo import PseudoActions, pseudo_actions
from corollout.noise import Noise, dirichlet

LEAST = 1e-5  # below this, a sum is zero but for rounding


def plain_sums(table: PseudoActions, weight: Tensor, token: Tensor) -> Tensor:
    """S[cell, action, coordinate], main trajectories' own actions left out, in double precision."""
    dense = table.dense()
    cells, references, vocab = dense.shape
    sums = torch.zeros(cells, vocab, vocab, dtype=torch.float64)
    for c in range(cells):
        for k in range(references):
            for m in range(vocab):
                sums[c, int(dense[c, k, m]), m] += weight[c, k].double()
                sums[c, int(table.default[c, k]), m] -= weight[c, k].double()
        sums[c, int(token[c])] = 0
    return sums


def make_case(
    vocab: int, count: int, scale: float, dtype: torch.dtype, draw: int = 0
) -> tuple[PseudoActions, Tensor, Tensor]:
    """Pseudo-actions of some cells, their w_k, and tokens, most of which are the true actions."""
    generator = torch.Generator().manual_seed(vocab * 10 + count)
    cells = 23
    logits = (scale * torch.randn(cells, vocab, generator=generator)).to(dtype)
    if vocab > 2:
        logits[::5, 1] = -torch.inf
    steps = torch.full((cells,), draw)
    pi = dirichlet(Noise(vocab).keys(torch.arange(cells)), steps, vocab, dtype)
    references = torch.rand(cells, vocab, generator=generator).argsort(1)[:, :count].contiguous()
    table = pseudo_actions(logits, pi, references)
    weight = (1 - vocab * pi.gather(1, references)) / count
    token = table.true.clone()
    token[::4] = 0
    return table, weight, token


CASES = [(5, 5, 1.0), (5, 2, 2.0), (9, 9, 0.0), (12, 3, 1.0), (2, 2, 1.0), (1, 1, 1.0), (7, 7, 3.0)]


def sums_agree(dtype: torch.dtype = torch.float64) -> bool:
    """Whether both ways of adding up, the compiled one run as plain Python, give the plain sums."""
    for vocab, count, scale in CASES:
        case = make_case(vocab, count, scale, dtype)
        wanted = plain_sums(*case)
        with patch.object(coefficients, "_bucket", coefficients._bucket.py_func):
            ways = [coefficients._collect_torch(*case), coefficients._collect_compiled(*case)]
        if not all(_are(found, wanted) for found in ways):
            return False
    return True


def means_agree(dtype: torch.dtype = torch.float64) -> bool:
    """Whether the mean of one, two or three coefficients is that of all their values, added up one by one."""
    for (vocab, count, scale), draws in product(CASES, (1, 2, 3)):
        cases = [make_case(vocab, count, scale, dtype, draw) for draw in range(draws)]
        cells = torch.arange(len(cases[0][2]))
        parts = [Coefficients.of(*case, cells // 3, cells % 3) for case in cases]
        wanted = torch.zeros(len(cells), vocab, vocab, dtype=torch.float64)
        for part in parts:
            entries = zip(part.branch.tolist(), part.coordinate.tolist(), part.value.tolist(), strict=True)
            for branch, coordinate, value in entries:
                cell = int(part.row[branch]) * 3 + int(part.step[branch])
                wanted[cell, int(part.action[branch]), coordinate] += value / draws
        mean = Coefficients.mean(parts, vocab)
        found = mean.row * 3 + mean.step, mean.action, mean.norm, mean.branch, mean.coordinate, mean.value
        if not _are(found, wanted):
            return False
    return True


def _are(found: tuple[Tensor, ...], wanted: Tensor) -> bool:
    cell, action, norm, branch, coordinate, value = found
    vocab = wanted.shape[1]
    dense = torch.zeros_like(wanted)
    dense.index_put_((cell[branch], action[branch], coordinate), value.double(), accumulate=True)
    centred = wanted - wanted.mean(2, keepdim=True)
    size = centred.norm(dim=2)
    there = size > LEAST
    # What is the same at every coordinate is removed by the centring: it is no branch.
    ordered = (cell * vocab + action).diff() > 0
    return bool(
        ordered.all()
        and torch.equal(there.nonzero(), torch.stack([cell, action], 1))
        and torch.allclose(dense[there], wanted[there], atol=LEAST)
        and torch.allclose(norm.double(), size[there], atol=LEAST)
        and (value != 0).all()
    )
