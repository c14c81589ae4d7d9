"""The distinct prefixes of main trajectories, from which branches start."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.rollouts.states import States
from corollout.types import Branches, Trajectories

OfBranches = Int64[Tensor, " branch"]


@dataclass(frozen=True)
class Prefixes:
    """The distinct prefixes of some consecutive rows of main trajectories, with their states."""

    rows: range
    place: Int64[Tensor, "row step"]  # where, among those of step t, the prefix is after which a row's token t comes
    states: States
    outputs: list[Tensor]  # what the policy put out at each step, if its head wants to see it again
    sizes: list[int]  # the number of prefixes of each step


class Spawned(NamedTuple):
    """Branches that start at a step, in the order of the chunks of their parents, and the states they start from."""

    rows: Int64[Tensor, " fresh"]
    place: Int64[Tensor, " fresh"]
    size: int  # the number of places
    states: list[Any]


def spawn(
    prefixes: list[Prefixes], t: int, fresh: Int64[Tensor, " fresh"], parent: OfBranches, shared: bool
) -> Spawned:
    """The states from which branches start at step t; those that start from one prefix share it, if asked for."""
    rows, places, states, first = [], [], [], 0
    for prefix in prefixes:
        selected, place = places_of(prefix, t, fresh, parent, alone=len(prefixes) == 1)
        if len(selected) == 0:
            continue
        if shared:
            distinct, place = place.unique(return_inverse=True)
        else:
            distinct, place = place, torch.arange(len(place), device=place.device)
        states.append(prefix.states.at(t, distinct))
        rows.append(selected)
        places.append(first + place)
        first += len(distinct)
    return Spawned(torch.cat(rows), torch.cat(places), first, states)


def places_of(
    prefix: Prefixes, t: int, branches: Int64[Tensor, " some"], parent: OfBranches, alone: bool
) -> tuple[Int64[Tensor, " selected"], Int64[Tensor, " selected"]]:
    """Those of some branches whose parents are in a chunk, and the places of the prefixes that they leave at step t.

    All are, if the chunk is the only one.
    """
    row = parent[branches] - prefix.rows.start
    if not alone:
        inside = ((row >= 0) & (row < len(prefix.rows))).nonzero().squeeze(1)
        branches, row = branches[inside], row[inside]
    return branches, prefix.place[row, t]


def have_common_starts(
    prefixes: list[Prefixes], trajectories: Trajectories, branches: Branches, chunk: Int64[Tensor, " chunk"]
) -> bool:
    """Whether some branches begin alike: from one prefix with one token."""
    parent, step = branches.parent[chunk], branches.step[chunk]
    if not prefixes or (int(trajectories.samples.max()) == 0 and not bool(branches.copy[chunk].any())):
        return False
    place = torch.cat([prefix.place for prefix in prefixes])[parent, step]
    context = trajectories.contexts[parent]
    start = torch.stack([context, step, place, branches.token[chunk]], 1)
    return len(start.unique(dim=0)) < len(start)
