"""The search for pseudo-actions by PyTorch operations, on any device; see ``pseudo``."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.errors import InputError

# Rows are processed in blocks of about this many numbers, so that temporaries stay in the cache.
_BLOCK = 1 << 18


def row_error(row: int, a: Tensor) -> InputError:
    """Why nothing can be drawn in a row with this a = ln π."""
    if not bool(a.isfinite().all()):
        return InputError(f"pi of row {row} is not positive and finite: use a draw from Dirichlet(1, …, 1)")
    return InputError(
        f"the logits of row {row} contain NaN or +inf, or are all −inf: there is no distribution to draw from"
    )


Entries = tuple[Tensor, Tensor, Tensor, Tensor]  # row, reference, swap, action


def search_torch(phi: Tensor, a: Tensor, references: Tensor) -> tuple[Tensor, Tensor, Entries]:
    """True actions, defaults and departing entries, on any device; a = ln π."""
    size = max(1, _BLOCK // phi.shape[1])
    blocks = [
        _block(phi[i : i + size], a[i : i + size], references[i : i + size], i)
        for i in range(0, max(len(phi), 1), size)
    ]
    true, default = torch.cat([block[0] for block in blocks]), torch.cat([block[1] for block in blocks])
    row, reference, swap, action = (torch.cat([block[2][part] for block in blocks]) for part in range(4))
    return true, default, (row, reference, swap, action)


def _block(phi: Tensor, a: Tensor, references: Tensor, start: int) -> tuple[Tensor, Tensor, Entries]:
    vocab = phi.shape[1]
    best, true = (a - phi).min(1)
    bad = ~(best.isfinite() & (a.amax(1) < torch.inf))
    if bad.any():
        row = int(bad.nonzero()[0])
        raise row_error(start + row, a[row])
    if vocab == 1 or len(phi) == 0:
        nothing = torch.empty(0, dtype=torch.int64, device=phi.device)
        return true, torch.zeros_like(references), (nothing, nothing, nothing, nothing)
    # In "rest", z is masked.
    a_rest = a.scatter(1, true[:, None], torch.inf)
    phi_rest = phi.scatter(1, true[:, None], -torch.inf)
    second, runner_up = (a_rest - phi_rest).min(1)
    alone = second == torch.inf  # only z can be drawn
    is_true = references == true[:, None]
    default = torch.where(is_true & ~alone[:, None], runner_up[:, None], true[:, None])

    def entries(row: Tensor, reference: Tensor, swap: Tensor) -> Entries:
        """Of the proposed entries, those that depart from their default, with their pseudo-actions."""
        j = references[row, reference]
        o_j = a[row, swap] - phi[row, j]
        o_m = a[row, j] - phi[row, swap]
        # The smallest o outside {j, m}. If that is the third smallest, then {j, m} = {z, runner-up}, and one of the two
        # new values is not larger: rounding is monotone, so this holds in floating point, too.
        z, z2 = true[row], runner_up[row]
        z_free = (z != j) & (z != swap)
        z2_free = (z2 != j) & (z2 != swap)
        other = torch.where(z_free, z, z2)
        o_other = torch.where(z_free, best[row], torch.where(z2_free, second[row], torch.inf))
        action = _least(o_j, j, o_m, swap)
        action = _least(torch.minimum(o_j, o_m), action, o_other, other)
        departs = (action != default[row, reference]).nonzero().squeeze(1)
        return row[departs] + start, reference[departs], swap[departs], action[departs]

    # References other than z, swapped with actions other than z: a_j − φ_m ≤ o_z or a_m − φ_j ≤ o_z.
    a_reference, phi_reference = a_rest.gather(1, references), phi_rest.gather(1, references)
    row_1, k_1, m_1 = _pairs(a_reference, phi_rest, best)
    row_2, m_2, k_2 = _pairs(a_rest, phi_reference, best)
    width = references.shape[1]
    code = (torch.cat([row_1, row_2]) * width + torch.cat([k_1, k_2])) * vocab + torch.cat([m_1, m_2])
    code = code.unique()
    crossed = entries(code // (vocab * width), code // vocab % width, code % vocab)
    # References other than z, swapped with z; and z as the reference, swapped with anything.
    row, k = (~is_true).nonzero(as_tuple=True)
    with_true = entries(row, k, true[row])
    row, k = (is_true & ~alone[:, None]).nonzero(as_tuple=True)
    swaps = torch.arange(vocab, device=phi.device).repeat(len(row))
    from_true = entries(row.repeat_interleave(vocab), k.repeat_interleave(vocab), swaps)

    row, k, m, action = (torch.cat(parts) for parts in zip(crossed, with_true, from_true, strict=True))
    return true, default, (row, k, m, action)


def _least(value_1: Tensor, index_1: Tensor, value_2: Tensor, index_2: Tensor) -> Tensor:
    """The index of the smaller value; of equal ones, the smaller index."""
    first = (value_1 < value_2) | ((value_1 == value_2) & (index_1 < index_2))
    return torch.where(first, index_1, index_2)


def _pairs(
    x: Float[Tensor, "row left"], y: Float[Tensor, "row right"], limit: Float[Tensor, " row"]
) -> tuple[Int64[Tensor, " pair"], Int64[Tensor, " pair"], Int64[Tensor, " pair"]]:
    """Every (row, left, right) with x − y ≤ limit in floating point, and possibly a few more.

    Comparing each x with the largest y drops those without a partner, and vice versa. The remaining x are sorted, so
    that the partners of each y are the first ones.
    """
    slack = 4 * torch.finfo(x.dtype).eps
    lowest = x.amin(1)
    bound = lowest - limit - slack * (lowest.abs() + limit.abs())
    y_row, y_index, y_pad = _ragged(y, y >= bound[:, None], -torch.inf)
    highest = y_pad.amax(1)
    bound = limit + highest + slack * (limit.abs() + highest.abs())
    bound = torch.where(highest == -torch.inf, -torch.inf, bound)
    x_row, x_index, x_pad = _ragged(x, x <= bound[:, None], torch.inf)
    index_pad = torch.zeros(x_pad.shape, dtype=torch.int64, device=x.device)
    index_pad[x_row, _position(x_row)] = x_index
    x_pad, order = x_pad.sort(1)
    threshold = limit[:, None] + y_pad + slack * (limit.abs()[:, None] + y_pad.abs())
    threshold = torch.where(y_pad == -torch.inf, -torch.inf, threshold)
    partners = torch.searchsorted(x_pad, threshold, right=True)[y_row, _position(y_row)]
    right = torch.arange(len(y_row), device=x.device).repeat_interleave(partners)
    row = y_row[right]
    return row, index_pad[row, order[row, _position(right)]], y_index[right]


def _ragged(
    values: Float[Tensor, "row column"], mask: Bool[Tensor, "row column"], fill: float
) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " kept"], Float[Tensor, "row slot"]]:
    """The masked entries as (row, column), and their values packed to the left of a narrower table."""
    counts = mask.sum(1)
    slots, kept = torch.stack([counts.max(), counts.sum()]).tolist() if len(counts) else (0, 0)
    row, column = torch.nonzero_static(mask, size=kept).unbind(1)
    packed = values.new_full((len(values), max(slots, 1)), fill)
    packed[row, _position(row)] = values[row, column]
    return row, column, packed


def _position(group: Int64[Tensor, " item"]) -> Int64[Tensor, " item"]:
    """The index of each item within its run of equal numbers; the numbers ascend."""
    index = torch.arange(len(group), device=group.device)
    if len(group) == 0:
        return index
    starts = torch.ones_like(group, dtype=torch.bool)
    starts[1:] = group[1:] != group[:-1]
    return index - torch.where(starts, index, 0).cummax(0).values
