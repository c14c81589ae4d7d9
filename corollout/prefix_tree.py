"""Prefix trees: the distinct prefixes of the sequences of each context, so that each is computed once.

A node is what a policy has read when it puts out logits: the start token and the first t tokens of a sequence.
Sequences of a context that begin alike share their first nodes. Nodes are ordered by level, that is by the number of
tokens read, and within a level by the first row that passes through them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor

from corollout.numba_cache import numba
from corollout.types import Sequences

_TOKENS = 1 << 32  # more than a vocabulary has: place · _TOKENS + token is one number


class Level(NamedTuple):
    """The nodes of one level."""

    nodes: slice  # their places among all nodes
    parent: Int64[Tensor, " node"]  # places in the level before; of the first level: contexts
    token: Int64[Tensor, " node"]  # the last token that was read


def places_within(group: Int64[Tensor, " row"], groups: int) -> tuple[Int64[Tensor, " row"], int]:
    """The place of each row among those of its group, in their order, and how many the largest group has."""
    order = group.argsort(stable=True)
    counts = group.bincount(minlength=groups)
    place, first = torch.empty_like(order), counts.cumsum(0) - counts
    place[order] = torch.arange(len(order), device=order.device) - first[group[order]]
    return place, int(counts.max()) if groups else 0


@dataclass(frozen=True)
class Layout:
    """The nodes of each context in a row of places, parents before their children."""

    contexts: Int64[Tensor, " row"]
    row: Int64[Tensor, " node"]
    place: Int64[Tensor, " node"]
    depth: Int64[Tensor, " node"]  # the level
    sees: Bool[Tensor, "row place place"]  # whether the node at the second place is, or leads to, that at the first

    @classmethod
    def of_lengths(cls, lengths: Int64[Tensor, " row"]) -> "Layout":
        """One sequence of each length in a row of its own; nodes are ordered by row."""
        rows, width = torch.arange(len(lengths), device=lengths.device), int(lengths.max()) if len(lengths) else 0
        row, place = (torch.arange(width, device=lengths.device) < lengths[:, None]).nonzero(as_tuple=True)
        causal = torch.ones(width, width, dtype=torch.bool, device=lengths.device).tril()
        return cls(rows, row, place, place, causal.repeat(len(lengths), 1, 1))

    def spread(self, values: Shaped[Tensor, "node *width"]) -> Shaped[Tensor, "row place *width"]:
        """Values of the nodes, each at its place; zero where there is no node."""
        rows, places = self.sees.shape[:2]
        return values.new_zeros(rows, places, *values.shape[1:]).index_put((self.row, self.place), values)


@dataclass(frozen=True)
class PrefixTree:
    """One tree for each context, all of them level by level."""

    sizes: tuple[int, ...]  # the number of nodes of each level
    context: Int64[Tensor, " node"]
    parent: Int64[Tensor, " node"]
    token: Int64[Tensor, " node"]
    node: Int64[Tensor, "row step"]  # where each token of the sequences was chosen; −1 beyond their ends

    def __len__(self) -> int:
        return len(self.token)

    @classmethod
    def of(cls, sequences: Sequences, contexts: Int64[Tensor, " row"], bos: int) -> "PrefixTree":
        """The tree of some sequences. Those of a context are in consecutive rows."""
        if contexts.device.type != "cpu":
            # A copy of the sequences costs less than waiting for a device at every step.
            copies = Sequences(*(part.cpu() for part in (sequences.tokens, sequences.lengths, sequences.finished)))
            return cls.of(copies, contexts.cpu(), bos).to(contexts.device)
        rows, steps = sequences.tokens.shape
        if torch.equal(contexts, torch.arange(rows)):  # one sequence for each context: nothing is shared
            read = torch.cat([torch.full_like(sequences.tokens[:, :1], bos), sequences.tokens[:, :-1]], 1)
            return cls.chains(read, sequences.lengths)
        node = torch.full((rows, steps), -1, dtype=torch.int64, device=contexts.device)
        alive = torch.arange(rows, device=contexts.device)
        before = contexts  # where the rows under way were in the level before
        read = torch.full_like(contexts, bos)
        sizes, parents, tokens, owners, first = [], [], [], [], 0
        for t in range(steps):
            going = (sequences.lengths[alive] > t).nonzero().squeeze(1)
            if len(going) < len(alive):
                alive, before, read = alive[going], before[going], read[going]
            if len(alive) == 0:
                break
            place, new = merge(contexts[alive], before, read)
            sizes.append(len(new))
            parents.append(before[new])
            tokens.append(read[new])
            owners.append(contexts[alive[new]])
            node[alive, t] = first + place
            first += len(new)
            before, read = place, sequences.tokens[alive, t]
        context, parent, token = (torch.cat([contexts[:0], *parts]) for parts in (owners, parents, tokens))
        return cls(tuple(sizes), context, parent, token, node)

    @classmethod
    def chains(cls, inputs: Int64[Tensor, "row step"], lengths: Int64[Tensor, " row"]) -> "PrefixTree":
        """Sequences that share nothing, one for each context, by the tokens that are read."""
        steps = torch.arange(inputs.shape[1], device=inputs.device)
        step, row = (lengths > steps[:, None]).nonzero(as_tuple=True)  # by step, then by row
        sizes = [size for size in step.bincount(minlength=0).tolist() if size]
        place = torch.full((inputs.shape[1] + 1, inputs.shape[0]), -1, dtype=torch.int64, device=inputs.device)
        first = torch.tensor([0, *accumulate(sizes)], device=inputs.device)[step]
        place[step + 1, row] = torch.arange(len(row), device=inputs.device) - first
        place[0] = torch.arange(inputs.shape[0], device=inputs.device)
        node = torch.full_like(inputs, -1)
        node[row, step] = torch.arange(len(row), device=inputs.device)
        return cls(tuple(sizes), row, place[step, row], inputs[row, step], node)

    def to(self, device: torch.device) -> "PrefixTree":
        """The same tree on another device."""
        return PrefixTree(self.sizes, *(part.to(device) for part in (self.context, self.parent, self.token, self.node)))

    def levels(self) -> Iterator[Level]:
        for start, size in zip(self.starts, self.sizes, strict=False):
            nodes = slice(start, start + size)
            yield Level(nodes, self.parent[nodes], self.token[nodes])

    @property
    def starts(self) -> list[int]:
        """Where each level starts, and where the last one ends."""
        return list(accumulate(self.sizes, initial=0))

    @property
    def ancestor(self) -> Int64[Tensor, " node"]:
        """The parents' places among all nodes; −1 in the first level."""
        if not self.sizes:
            return self.parent
        offsets = torch.tensor([0, *self.starts[:-2]], device=self.parent.device)
        offset = offsets.repeat_interleave(torch.tensor(self.sizes, device=self.parent.device))
        whole = self.parent + offset
        whole[: self.sizes[0]] = -1
        return whole

    def layout(self) -> Layout:
        """Each context's nodes in a row of their own, for models that compute all of them at once."""
        contexts = self.context[: self.sizes[0]]  # one node of the first level for each
        column = torch.empty(int(self.context.max()) + 1, dtype=torch.int64, device=contexts.device)
        column[contexts] = torch.arange(len(contexts), device=contexts.device)
        row = column[self.context]
        place, width = places_within(row, len(contexts))
        seen = torch.zeros(len(self), width, dtype=torch.bool, device=row.device)
        depth = torch.empty_like(place)
        above: slice | None = None
        for number, level in enumerate(self.levels()):
            if above is not None:
                seen[level.nodes] = seen[above][level.parent]
            depth[level.nodes] = number
            above = level.nodes
            seen[torch.arange(level.nodes.start, level.nodes.stop, device=row.device), place[level.nodes]] = True
        # Places without a node see themselves: whoever sees nothing would have an attention of NaN.
        sees = torch.eye(width, dtype=torch.bool, device=row.device).repeat(len(contexts), 1, 1)
        sees[row, place] = seen
        return Layout(contexts, row, place, depth, sees)

    def reaching(
        self, row: Int64[Tensor, " token"], step: Int64[Tensor, " token"]
    ) -> "tuple[PrefixTree, Int64[Tensor, ' kept']]":
        """The tree of the prefixes at which some tokens were chosen; see :meth:`pruned`."""
        used = torch.zeros(len(self), dtype=torch.bool, device=self.token.device)
        used[self.node[row, step]] = True
        return self.pruned(used)

    def pruned(self, used: Bool[Tensor, " node"]) -> "tuple[PrefixTree, Int64[Tensor, ' kept']]":
        """The tree of the nodes that are used and of those that lead to them, and which nodes those are."""
        if used.device.type != "cpu":
            tree, kept = self.to(torch.device("cpu")).pruned(used.cpu())
            return tree.to(used.device), kept.to(used.device)
        needed = used.clone()
        levels = list(self.levels())
        for level, above in zip(levels[:0:-1], levels[-2::-1], strict=True):
            needed[above.nodes][level.parent[needed[level.nodes]]] = True
        kept = needed.nonzero().squeeze(1)
        if len(kept) == len(needed):
            return self, kept
        place = torch.full((len(needed) + 1,), -1, dtype=torch.int64, device=kept.device)  # the last stands for −1
        sizes, parents = [], []
        for number, level in enumerate(levels):
            of_level = needed[level.nodes].nonzero().squeeze(1)
            parent = level.parent[of_level]
            if number:
                above = levels[number - 1].nodes
                parent = place[above][parent] - sum(sizes[:-1])
            if len(of_level) == 0:
                break
            place[level.nodes][of_level] = sum(sizes) + torch.arange(len(of_level), device=kept.device)
            sizes.append(len(of_level))
            parents.append(parent)
        parent = torch.cat([self.parent[:0], *parents])
        return PrefixTree(tuple(sizes), self.context[kept], parent, self.token[kept], place[self.node]), kept


def merge(
    group: Int64[Tensor, " row"], before: Int64[Tensor, " row"], token: Int64[Tensor, " row"]
) -> tuple[Int64[Tensor, " row"], Int64[Tensor, " node"]]:
    """Rows that come from the same place with the same token meet: the place of each row, and the first row of each.

    Only rows of one ``group`` can meet; those of a group are consecutive.
    """
    if group.device.type == "cpu":
        place, new = _merge_compiled(group.numpy(), before.numpy(), token.numpy())
        return torch.from_numpy(place), torch.from_numpy(new)
    first = first_alike(before, token)
    is_first = first == torch.arange(len(first), device=first.device)
    return (is_first.cumsum(0) - 1)[first], is_first.nonzero().squeeze(1)


def first_alike(before: Int64[Tensor, " row"], token: Int64[Tensor, " row"]) -> Int64[Tensor, " row"]:
    """For each row the first one that comes from the same place with the same token.

    Rows of different groups come from different places. No device is waited for.
    """
    index = torch.arange(len(token), device=token.device)
    ordered, order = (before * _TOKENS + token).sort(stable=True)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    start = torch.where(starts, index, 0).cummax(0).values
    return torch.empty_like(order).scatter_(0, order, order[start])


@no_type_check
@numba.njit(cache=True, nogil=True)
def _merge_compiled(group, before, token):
    rows = len(group)
    place, new = np.empty(rows, np.int64), np.empty(rows, np.int64)
    count, start = 0, 0
    for r in range(rows):
        if group[r] != group[start]:
            start = r
        place[r] = -1
        for other in range(start, r):
            if before[other] == before[r] and token[other] == token[r]:
                place[r] = place[other]
                break
        if place[r] < 0:
            place[r] = count
            new[count] = r
            count += 1
    return place, new[:count].copy()
