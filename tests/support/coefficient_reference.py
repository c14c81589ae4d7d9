"""The coefficients of ARS as plain sums over all entries of the table of pseudo-actions."""

from itertools import product
from unittest.mock import patch

import torch
from torch import Tensor

from corollout.estimators import ars
from corollout.estimators.ars import Coefficients
from corollout.estimators.pseudo import PseudoActions, pseudo_actions
from corollout.noise import Noise, dirichlet

LEAST = 1e-5  # a smaller sum is zero up to rounding


def plain_sums(table: PseudoActions, weight: Tensor, token: Tensor) -> Tensor:
    """S[cell, action, coordinate] without the actions of the main trajectories, in double precision."""
    dense, default, w = table.dense().tolist(), table.default.tolist(), weight.double().tolist()
    sums = [[[0.0] * table.vocab for _ in range(table.vocab)] for _ in w]
    for c, taken in enumerate(token.tolist()):
        for k, row in enumerate(dense[c]):
            for m, action in enumerate(row):
                sums[c][action][m] += w[c][k]
                sums[c][default[c][k]][m] -= w[c][k]
        sums[c][taken] = [0.0] * table.vocab
    return torch.tensor(sums, dtype=torch.float64)


def make_case(
    vocab: int, count: int, scale: float, dtype: torch.dtype, draw: int = 0
) -> tuple[PseudoActions, Tensor, Tensor]:
    """Pseudo-actions of some cells, w_k, and tokens, most of which are the true actions."""
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
    """Whether both implementations, the compiled one run as Python, give the plain sums."""
    for vocab, count, scale in CASES:
        case = make_case(vocab, count, scale, dtype)
        wanted = plain_sums(*case)
        with patch.object(ars, "_bucket", ars._bucket.py_func):
            ways = [ars._collect_torch(*case), ars._collect_compiled(*case)]
        if not all(_equal(sums, wanted) for sums in ways):
            return False
    return True


def means_agree(dtype: torch.dtype = torch.float64) -> bool:
    """Whether the mean of one, two or three lists of coefficients is the mean of their values."""
    for (vocab, count, scale), draws in product(CASES, (1, 2, 3)):
        cases = [make_case(vocab, count, scale, dtype, draw) for draw in range(draws)]
        cells = torch.arange(len(cases[0][2]))
        parts = [Coefficients.from_table(*case, cells // 3, cells % 3) for case in cases]
        wanted = torch.zeros(len(cells), vocab, vocab, dtype=torch.float64)
        for part in parts:
            entries = zip(part.branch.tolist(), part.coordinate.tolist(), part.value.tolist(), strict=True)
            for branch, coordinate, value in entries:
                cell = int(part.row[branch]) * 3 + int(part.step[branch])
                wanted[cell, int(part.action[branch]), coordinate] += value / draws
        mean = Coefficients.mean(parts, vocab)
        sums = mean.row * 3 + mean.step, mean.action, mean.norm, mean.branch, mean.coordinate, mean.value
        if not _equal(sums, wanted):
            return False
    return True


def _equal(sums: tuple[Tensor, ...], wanted: Tensor) -> bool:
    cell, action, norm, branch, coordinate, value = sums
    vocab = wanted.shape[1]
    dense = torch.zeros_like(wanted)
    dense.index_put_((cell[branch], action[branch], coordinate), value.double(), accumulate=True)
    centred = wanted - wanted.mean(2, keepdim=True)
    size = centred.norm(dim=2)
    kept = size > LEAST  # coefficients that are equal at all coordinates vanish when they are centred
    ordered = (cell * vocab + action).diff() > 0
    return bool(
        ordered.all()
        and torch.equal(kept.nonzero(), torch.stack([cell, action], 1))
        and torch.allclose(dense[kept], wanted[kept], atol=LEAST)
        and torch.allclose(norm.double(), size[kept], atol=LEAST)
        and (value != 0).all()
    )
