"""Pseudo-actions by brute force: swap two coordinates of π and draw again."""

from unittest.mock import patch

import torch
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators import pseudo, pseudo_torch
from corollout.noise import Noise, dirichlet


def by_swapping(logits: Tensor, pi: Tensor, references: Tensor) -> Tensor:
    """The table z^{m⇌j_k}: [rows, K, V]."""
    rows, vocab = logits.shape
    index = torch.arange(rows)
    table = torch.empty(rows, references.shape[1], vocab, dtype=torch.int64)
    for k in range(references.shape[1]):
        j = references[:, k]
        for m in range(vocab):
            swapped = pi.clone()
            swapped[index, j], swapped[index, m] = pi[index, m], pi[index, j]
            table[:, k, m] = (swapped.log() - logits).argmin(1)
    return table


def swaps_agree() -> bool:
    """Whether the PyTorch search, and the core of the compiled one run as Python, give the same as swapping."""
    generator = torch.Generator().manual_seed(0)
    for vocab, scale, coarse, shift in (
        (5, 1.0, False, 0.0),
        (5, 2.0, False, -20.0),
        (4, 3.0, True, 0.0),
        (2, 1.0, False, 0.0),
        (9, 0.0, False, 0.0),
        (1, 1.0, False, 0.0),
        (6, 2.0, True, -9.0),
    ):
        rows = 61
        logits = scale * torch.randn(rows, vocab, generator=generator) + shift
        pi = dirichlet(Noise(vocab).keys(torch.arange(rows)), torch.zeros(rows, dtype=torch.int64), vocab)
        if coarse:  # ties
            logits = logits.round()
            pi = torch.exp2(torch.randint(-3, 0, (rows, vocab), generator=generator).float())
        if vocab > 2:
            logits[::7, 1] = -torch.inf
            logits[::10, :-1] = -torch.inf
        for count in (1, vocab):
            references = torch.rand(rows, vocab, generator=generator).argsort(1)[:, :count].contiguous()
            wanted = by_swapping(logits, pi, references)
            with patch.object(pseudo_torch, "_BLOCK", 20 * vocab):  # several blocks, the last of one row
                true, default, entries = pseudo_torch.search_torch(logits, pi.log(), references)
            table = pseudo.PseudoActions(vocab, true, references, default, *entries).dense()
            if not torch.equal(table, wanted) or not torch.equal(true, (pi.log() - logits).argmin(1)):
                return False
            if not _winners_agree(logits, pi, references, wanted):
                return False
    return _names("logits of row 4", logits_of_4=-torch.inf) and _names("pi of row 2", log_pi_of_2=torch.inf)


def _names(message: str, logits_of_4: float = 0.0, log_pi_of_2: float = -1.0) -> bool:
    """Whether the error message names the invalid row."""
    logits, log_pi = torch.zeros(6, 3), torch.full((6, 3), -1.0)
    logits[4] = logits_of_4
    log_pi[2, 1] = log_pi_of_2
    try:
        pseudo_torch.search_torch(logits, log_pi, torch.arange(3).expand(6, -1))
    except InputError as error:
        return message in str(error)
    return False


def _winners_agree(logits: Tensor, pi: Tensor, references: Tensor, wanted: Tensor) -> bool:
    winner = pseudo._winner.py_func
    for r in range(0, len(logits), 6):
        a, phi = pi[r].log().numpy(), logits[r].numpy()
        o = a - phi
        z, *others = o.argsort(kind="stable")
        if not others or o[others[0]] == float("inf"):
            continue
        z2 = others[0]
        for k, j in enumerate(references[r].tolist()):
            for m in range(len(o)):
                if winner(a, phi, j, m, z, o[z], z2, o[z2]) != wanted[r, k, m]:
                    return False
    return True
