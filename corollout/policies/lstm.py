"""An LSTM layer whose input is projected beforehand, so that constant inputs are projected only once.

    o, i, f = σ(x_o + h W_o), …,   g = tanh(x_g + h W_g),   c ← f c + i g,   h ← o tanh(c)

``x`` holds the input's contribution to the four gates, in the order o, i, f, g, biases included. With five parts
instead of four the cell is a maxout LSTM: the candidate is g = max(x_a + h W_a, x_b + h W_b), without a tanh.

Single and double precision on the CPU run compiled loops (``lstm_cell``), all else plain PyTorch.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from corollout.policies import lstm_cell
from corollout.row_threads import by_rows


class Input(NamedTuple):
    """A part of the rows' input to the gates: a table, and which of its entries each row has, by default its own."""

    table: Float[Tensor, "entry gates"]
    index: Int64[Tensor, " row"] | None = None  # pyright: ignore[reportIncompatibleMethodOverride]


class Cell(NamedTuple):
    """What a step computes for its rows."""

    h: Float[Tensor, "row hidden"]
    c: Float[Tensor, "row hidden"]
    gates: Float[Tensor, "row gates"] | None  # after their non-linearities; only compiled loops keep them


@torch.no_grad()
def lstm_step(
    x: Float[Tensor, "row gates"] | Sequence[Input],
    weight: Float[Tensor, "hidden gates"],
    h: Float[Tensor, "row hidden"],
    c: Float[Tensor, "row hidden"],
) -> Cell:
    """One step without gradient."""
    inputs = [Input(x)] if isinstance(x, Tensor) else x
    _check(inputs, weight, h, c, len(h))
    gates = h @ weight
    if not _compiled(weight):
        return Cell(*_cell(sum((_rows(part, slice(None)) for part in inputs), gates), c), None)
    after = gates.new_empty(2, *h.shape)
    rows = np.arange(len(h))
    array = _array(gates)
    loop = partial(lstm_cell.forward, array, _NO_PLACES, *_tables(inputs, weight, len(h)), rows, _array(c), array)
    by_rows(partial(loop, *_arrays(after[1], after[0])), weight.shape[1], rows)
    return Cell(after[0], after[1], gates)


def lstm(
    x: Float[Tensor, "step row gates"],
    weight: Float[Tensor, "hidden gates"],
    h: Float[Tensor, "row hidden"],
    c: Float[Tensor, "row hidden"],
) -> Float[Tensor, "step row hidden"]:
    """All steps, with gradient; h of every step."""
    steps, rows, _ = x.shape
    parent = torch.arange(rows, device=x.device).repeat(steps)
    return lstm_levels([Input(x.flatten(0, 1))], weight, h, c, parent, [rows] * steps).view(steps, rows, h.shape[1])


def lstm_levels(
    inputs: Sequence[Input],
    weight: Float[Tensor, "hidden gates"],
    h: Float[Tensor, "root hidden"],
    c: Float[Tensor, "root hidden"],
    parent: Int64[Tensor, " row"],
    sizes: Sequence[int],
    known: Cell | None = None,
) -> Float[Tensor, "row hidden"]:
    """A tree of steps, with gradient; h of every row. Level l has ``sizes[l]`` rows, one level after the other.

    ``parent`` is the place of a row's predecessor in the level before, for level 0 in ``h`` and ``c``: several rows may
    have the same parent, and a parent may have no child. The gates are the sum of the inputs' entries and of the
    product of the parent's h and the weight, which is computed once for each parent that has children. What is
    ``known`` of the rows, because ``lstm_step`` has computed it with the same weights, is not computed again; the
    gradient overwrites its gates.

    The backward pass is written out: each level adds one small product, and the weight's gradient is one large product
    over all parents at the end. Automatic differentiation would do one for each level.
    """
    _check(inputs, weight, h, c, len(parent))
    if sum(sizes) != len(parent):
        raise ValueError(f"the levels' sizes add up to {sum(sizes)}, but there are {len(parent)} rows")
    if not _compiled(weight):
        return _levels(inputs, weight, h, c, parent, sizes)
    indices, tables = [part.index for part in inputs], [part.table for part in inputs]
    return _Levels.apply(weight, h, c, parent, sizes, known, indices, *tables)


def unread_product(
    x: Float[Tensor, "row width"], weight: Float[Tensor, "width gates"], bias: Float[Tensor, " gates"]
) -> Float[Tensor, "row gates"]:
    """x W + b with its gradient but without its values: the input of rows of which everything is known."""
    return _UnreadProduct.apply(x, weight, bias)


class _UnreadProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x.new_zeros(()).expand(len(x), len(bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, weight), gradient = ctx.saved_tensors, outer[0]
        return gradient @ weight.t(), x.t() @ gradient, gradient.sum(0)


def _check(inputs: Sequence[Input], weight: Tensor, h: Tensor, c: Tensor, rows: int) -> None:
    hidden, gates = weight.shape
    if gates not in (4 * hidden, 5 * hidden):
        raise ValueError(f"{hidden} units need 4 or 5 times as many gates, not {gates}")
    for name, tensor in (("h", h), ("c", c), *((f"input {k}", part.table) for k, part in enumerate(inputs))):
        if tensor.dtype != weight.dtype:
            raise ValueError(f"{name} has the type {tensor.dtype}, but the weight has {weight.dtype}")
    if h.shape[1] != hidden or c.shape != h.shape:
        raise ValueError(f"h and c have the shapes {tuple(h.shape)} and {tuple(c.shape)}, but there are {hidden} units")
    for number, (table, index) in enumerate(inputs):
        if table.shape[1] != gates:
            raise ValueError(f"input {number} has {table.shape[1]} gates, but the weight has {gates}")
        given = len(table if index is None else index)
        if given != rows:
            raise ValueError(f"input {number} is for {given} rows, but there are {rows}")


# Plain PyTorch.


def _cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The new h and c."""
    hidden = c.shape[1]
    o, i, f = gates[:, : 3 * hidden].sigmoid().split(hidden, 1)
    _, _, _, *parts = gates.split(hidden, 1)
    g = torch.maximum(*parts) if len(parts) == 2 else parts[0].tanh()
    c = f * c + i * g
    return o * c.tanh(), c


def _rows(part: Input, rows: slice) -> Tensor:
    return part.table[rows] if part.index is None else part.table[part.index[rows]]


def _levels(
    inputs: Sequence[Input], weight: Tensor, h: Tensor, c: Tensor, parent: Tensor, sizes: Sequence[int]
) -> Tensor:
    every_h = [h[:0]]
    for start, end in pairwise(accumulate(sizes, initial=0)):
        rows = slice(start, end)
        gates = (h @ weight)[parent[rows]]
        h, c = _cell(sum((_rows(part, rows) for part in inputs), gates), c[parent[rows]])
        every_h.append(h)
    return torch.cat(every_h)


# Compiled.

_NO_PLACES = np.empty(0, np.int64)


def _compiled(weight: Tensor) -> bool:
    on_cpu = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)
    return on_cpu and not torch.compiler.is_compiling()


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [_array(tensor) for tensor in tensors]


def _tables(
    inputs: Sequence[Input], weight: Tensor, rows: int
) -> tuple[int, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """The number of inputs, their tables and their indices, filled up to two: one compiled loop does for up to two."""
    tables = _arrays(*(table for table, _ in inputs))
    indices = [np.arange(rows) if index is None else _array(index) for _, index in inputs]
    for number, (table, index) in enumerate(zip(tables, indices, strict=True)):
        if not lstm_cell.within(index, len(table)):
            raise IndexError(f"an index of input {number} is not one of its {len(table)} entries")
    missing = 2 - len(inputs)
    return len(inputs), (*tables, *[_array(weight[:0])] * missing), (*indices, *[_NO_PLACES] * missing)


class _Tree:
    """Which rows have which parents; see ``lstm_cell.link``."""

    def __init__(self, parent: Tensor, sizes: Sequence[int], roots: int):
        self.parents, self.slots, self.order, self.starts, bounds = lstm_cell.link(
            _array(parent), np.array(sizes, np.int64), roots
        )
        self.roots, self.rows = roots, len(parent)
        self.used = len(self.starts) - 1
        # Of each level: its rows, and the slots of their parents.
        self.levels = list(pairwise(accumulate(sizes, initial=0)))
        self.level_slots = list(pairwise([*bounds.tolist(), self.used]))
        self.most = max((end - start for start, end in self.level_slots), default=0)
        self.states = torch.from_numpy(np.flatnonzero(self.slots >= 0))  # of each slot
        # Every row is its parent's only child, in the same order: gates may take the place of products.
        self.alone = self.used == self.rows and bool((self.order == np.arange(self.rows)).all())
        # Slots are those of the first states, so that their h need not be gathered.
        self.aligned = bool((self.slots[: self.used] == np.arange(self.used)).all())
        # Of each row, its parent's place among those of its level that have children.
        first = np.repeat(bounds, np.array(sizes, np.int64))
        self.places = _NO_PLACES if self.alone else self.slots[self.parents] - first

    def at_roots(self, values: Tensor) -> Tensor:
        """The values of the roots' slots at the roots, and 0 at those without children."""
        slots = torch.from_numpy(self.slots[: self.roots])
        out = values.new_zeros(self.roots, values.shape[1])
        out[slots >= 0] = values[slots[slots >= 0]]
        return out


class _Levels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        h: Tensor,
        c: Tensor,
        parent: Tensor,
        sizes: Sequence[int],
        known: Cell | None,
        indices: Sequence[Tensor | None],
        *tables: Tensor,
    ) -> Tensor:
        tree = _Tree(parent, sizes, len(h))
        ctx.tree, ctx.indices, ctx.entries = tree, indices, [len(table) for table in tables]
        if known is not None and known.gates is not None:
            all_h, all_c = torch.cat([h, known.h]), torch.cat([c, known.c])
            parents_h = all_h[: tree.used] if tree.aligned else all_h.index_select(0, tree.states)
            ctx.save_for_backward(known.gates, all_c, parents_h, weight)
            return all_h[tree.roots :]
        hidden, width = weight.shape
        all_h, all_c = weight.new_empty(2, tree.roots + tree.rows, hidden)
        all_h[: tree.roots], all_c[: tree.roots] = h, c
        parents_h = all_h[: tree.used] if tree.aligned else weight.new_empty(tree.used, hidden)
        gates = weight.new_empty(tree.rows, width)
        products = gates if tree.alone else weight.new_empty(tree.most, width)
        loop = partial(
            lstm_cell.forward,
            _array(products),
            tree.places,
            *_tables(list(map(Input, tables, indices)), weight, tree.rows),
            tree.parents,
            *_arrays(all_c, gates, all_c[tree.roots :], all_h[tree.roots :]),
        )
        rows = np.arange(tree.rows)
        for (start, end), (first, last) in zip(tree.levels, tree.level_slots, strict=True):
            if not tree.aligned:
                torch.index_select(all_h, 0, tree.states[first:last], out=parents_h[first:last])
            product = gates[start:end] if tree.alone else products[: last - first]
            torch.mm(parents_h[first:last], weight, out=product)
            by_rows(loop, width, rows[start:end])
        ctx.save_for_backward(gates, all_c, parents_h, weight)
        return all_h[tree.roots :]

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        gates, all_c, parents_h, weight = ctx.saved_tensors
        tree: _Tree = ctx.tree
        hidden, width = weight.shape
        if _keeps_graph():
            gates = gates.clone()
        for_weight, for_h, for_c, _, _, _, _, *for_tables = ctx.needs_input_grad
        d_tables: list[Tensor | None] = [None] * len(for_tables)
        summed = []
        for number in np.flatnonzero(for_tables):
            if ctx.indices[number] is not None:
                summed.append(Input(weight.new_zeros(ctx.entries[number], width), ctx.indices[number]))
                d_tables[number] = summed[-1].table
        d_products = gates if tree.alone else weight.new_empty(tree.used, width)
        dh, dc, d_before = weight.new_empty(3, tree.most, hidden)
        loop = partial(
            lstm_cell.backward,
            *_arrays(gates, all_c[tree.roots :], all_c),
            tree.parents,
            _array(outer[0]),
            tree.slots[tree.roots :],
            tree.order,
            tree.starts,
            not tree.alone,
            _array(d_products),
            *_tables(summed, weight, tree.rows),
        )
        for level, (first, last) in reversed(list(enumerate(tree.level_slots))):
            loop(first, last, *_arrays(dh, dc, d_before))
            dc, d_before = d_before, dc
            if level or for_h:
                torch.mm(d_products[first:last], weight.t(), out=dh[: last - first])
        d_weight = parents_h.t() @ d_products if for_weight else None
        # The gates are the gradient of their sums now.
        for number in np.flatnonzero(for_tables):
            if ctx.indices[number] is None:
                d_tables[number] = gates if all(other is not gates for other in d_tables) else gates.clone()
        d_h, d_c = (tree.at_roots(values) if wanted else None for values, wanted in ((dh, for_h), (dc, for_c)))
        return d_weight, d_h, d_c, None, None, None, None, *d_tables


def _keeps_graph() -> bool:
    """Whether the graph may be differentiated again, so that what it saved must stay as it is."""
    autograd = getattr(torch._C, "_autograd", None)  # pyright: ignore[reportPrivateUsage]
    return getattr(autograd, "_get_current_graph_task_keep_graph", lambda: True)()
