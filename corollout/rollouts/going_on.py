"""Which rows go on after a step, and which of them go on as one.

How many these are depends on the tokens. A device must be asked for such a number, and the answer comes only when it
has done everything that it was told to do before. So it is asked once a step for all of them, or only every few steps;
in between, rows that have ended are computed along with the others.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from corollout.prefix_tree import first_alike, merge

Rows = Int64[Tensor, " row"]
Places = Int64[Tensor, " place"]
Ended = Bool[Tensor, " row"]


class GoingOn(NamedTuple):
    """What the next step computes: a place for each distinct prefix."""

    rows: Int64[Tensor, " going"] | None  # positions of the rows that go on; None for all of them
    place: Int64[Tensor, " going"]  # of each of these rows
    parents: Places | None  # the place that each place comes from; None for all of them in order
    read: Places  # the token that each place reads
    # Distinct prefixes of rows that have not ended: the number of places, if all others were dropped.
    prefixes: int | Int64[Tensor, ""]
    continued: int | None = None  # how many different parents there are, if that is known


def without_ended(
    ended: Ended, place: Rows, size: int, tokens: Rows, shared: bool, group: Rows | None = None
) -> GoingOn:
    """Go on without the rows that have ended. If places are ``shared``, rows at one place that read the same token go
    on as one; ``group`` may say which rows could be at one place, if these are consecutive: that is faster.
    """
    if not shared:
        going = (~ended).nonzero().squeeze(1)
        all_go_on = len(going) == len(tokens) == size
        parents = None if all_go_on else place[going]
        after = torch.arange(len(going), device=going.device)
        return GoingOn(going, after, parents, tokens[going], len(going), len(going))
    if group is not None and tokens.device.type == "cpu":
        going = (~ended).nonzero().squeeze(1)
        before, token = place[going], tokens[going]
        after, first = merge(group[going], before, token)
        return GoingOn(going, after, before[first], token[first], len(first))
    # Ended rows read another token than all others that are at their place, so no row that goes on meets them.
    first = first_alike(place, tokens)
    leads = (first == torch.arange(len(first), device=first.device)) & ~ended
    continued = torch.zeros(size, dtype=torch.int64, device=place.device).index_add_(0, place, (~ended).long()) > 0
    sizes = torch.stack([(~ended).sum(), leads.sum(), continued.sum()]).tolist()
    going = torch.nonzero_static(~ended, size=sizes[0]).squeeze(1)
    leaders = torch.nonzero_static(leads, size=sizes[1]).squeeze(1)
    after = (leads.cumsum(0) - 1)[first[going]]
    return GoingOn(going, after, place[leaders], tokens[leaders], sizes[1], sizes[2])


def with_ended(ended: Ended, place: Rows, size: int, tokens: Rows, shared: bool) -> GoingOn:
    """Go on with all rows, each at a place of its own; a row's place is that of the first row with the same prefix."""
    index = torch.arange(len(tokens), device=tokens.device)
    parents = place if size < len(tokens) else None
    if not shared:
        return GoingOn(None, index, parents, tokens, (~ended).sum())
    first = first_alike(place, tokens)
    return GoingOn(None, first, parents, tokens, ((first == index) & ~ended).sum())
