"""The LSTM's gates, compiled: one pass over the rows forwards, one backwards, while a row is in the cache.

A row is summed up, squashed and combined before the next one, in short loops that become vector instructions. All
arithmetic is IEEE's, with explicit fused multiply-adds and without a library call in single precision, so that a number
has the same bits wherever it stands in a row and whatever rows are with it.

Parts of the gates are in the order o, i, f, g; with five parts the candidate is max(a, b) instead of tanh(g).
"""

import math
from typing import no_type_check

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from corollout.numba_cache import numba

# exp(r) - 1 ≈ r + r² q(r) for |r| ≤ ln(2)/2, with a relative error of exp(r) below 3.1e-9 (a minimax fit).
_Q0, _Q1, _Q2, _Q3, _Q4 = map(
    np.float32,
    (0.49999993432119727, 0.16666520399054383, 0.04166839078554918, 0.008368745107807884, 0.0013814540075141794),
)
_LOG2_E = np.float32(1.4426950408889634)
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693145751953125), np.float32(1.428606765330187e-06)
# Added to a small number, it leaves the nearest integer in the lowest bits.
_ROUND = np.float32(1.5 * 2**23)
_ROUND_BITS = int(_ROUND.view(np.int32))
_ONE, _TWO = np.float32(1), np.float32(2)
# exp(-87) is a normal number, 2^128 is infinite, and tanh(10) is 1 in single precision.
_LEAST, _MOST, _MOST_TANH = np.float32(-87), np.float32(89), np.float32(20)


@no_type_check
@intrinsic
def _fma(typing_context, a, b, c):
    """a b + c, rounded once: the same in vector and in scalar code."""
    return a(a, a, a), lambda context, builder, signature, arguments: builder.fma(*arguments)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _exp_parts(x):
    """2^n and exp(r) - 1, where x = n ln(2) + r; r is NaN if x is."""
    shifted = _fma(x, _LOG2_E, _ROUND)
    n = shifted - _ROUND
    r = _fma(n, -_LN_2_LOW, _fma(n, -_LN_2_HIGH, x))
    q = _fma(_fma(_fma(_fma(_Q4, r, _Q3), r, _Q2), r, _Q1), r, _Q0)
    power = np.int32((np.int32(np.float32(shifted).view(np.int32) - _ROUND_BITS + 127)) << 23).view(np.float32)
    return power, _fma(r * r, q, r)


@no_type_check
@numba.njit(cache=True, nogil=True, error_model="numpy")
def _sigmoid_single(x):
    y = -x
    y = _LEAST if y < _LEAST else y
    y = _MOST if y > _MOST else y
    power, rest = _exp_parts(y)
    return _ONE / _fma(power, _ONE + rest, _ONE)


@no_type_check
@numba.njit(cache=True, nogil=True, error_model="numpy")
def _tanh_single(x):
    """(exp(2x) - 1) / (exp(2x) + 1), exact to a few units in the last place also near zero."""
    y = _TWO * x
    y = -_MOST_TANH if y < -_MOST_TANH else y
    y = _MOST_TANH if y > _MOST_TANH else y
    power, rest = _exp_parts(y)
    e = _fma(power, rest, power - _ONE)
    return e / (e + _TWO)


@no_type_check
def _sigmoid(x):
    return 1 / (1 + math.exp(-x))


@no_type_check
def _tanh(x):
    return math.tanh(x)


@no_type_check
@overload(_sigmoid, jit_options={"error_model": "numpy"})
def _compile_sigmoid(x):
    return (lambda x: _sigmoid_single(x)) if x == types.float32 else (lambda x: 1 / (1 + math.exp(-x)))


@no_type_check
@overload(_tanh)
def _compile_tanh(x):
    return (lambda x: _tanh_single(x)) if x == types.float32 else (lambda x: math.tanh(x))


@no_type_check
@numba.njit(cache=True, nogil=True)
def _add(total, values):
    for j in range(len(total)):
        total[j] += values[j]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _copy(target, values):
    for j in range(len(target)):
        target[j] = values[j]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _max_or_nan(a, b):
    return a if a > b or a != a else b


@no_type_check
@numba.njit(cache=True, nogil=True)
def forward(products, places, inputs, tables, indices, parents, before, gates, c, h, rows):
    """The gates after their non-linearities, the new c and h of the given rows.

    The gates of a row are ``products[places[row]]``, or what is in ``gates`` already if there are no ``places``, plus
    ``tables[k][indices[k][row]]`` for each of the first ``inputs`` tables. The old c is ``before[parents[row]]``.
    """
    hidden = h.shape[1]
    for row in rows:
        gate, old_c, new_c, new_h = gates[row], before[parents[row]], c[row], h[row]
        if len(places):
            _copy(gate, products[places[row]])
        for k in range(inputs):
            _add(gate, tables[k][indices[k][row]])
        squash, o, i, f = gate[: 3 * hidden], gate[:hidden], gate[hidden : 2 * hidden], gate[2 * hidden : 3 * hidden]
        for j in range(len(squash)):
            squash[j] = _sigmoid(squash[j])
        if len(gate) == 5 * hidden:
            a, b = gate[3 * hidden : 4 * hidden], gate[4 * hidden :]
            for j in range(hidden):
                new_c[j] = i[j] * _max_or_nan(a[j], b[j])
            for j in range(hidden):
                new_c[j] = _fma(f[j], old_c[j], new_c[j])
        else:
            g = gate[3 * hidden :]
            for j in range(hidden):
                g[j] = _tanh(g[j])
            for j in range(hidden):
                new_c[j] = _fma(f[j], old_c[j], i[j] * g[j])
        for j in range(hidden):
            new_h[j] = o[j] * _tanh(new_c[j])


@no_type_check
@numba.njit(cache=True, nogil=True)
def backward(
    gates, c, before, parents, outer, slots, order, starts, shared, d_products, inputs, d_tables, indices,
    first, last, dh, dc, d_before,
):  # fmt: skip
    """Replace the gates of the rows whose parents have slots from ``first`` to ``last`` by the gradient of their sums.

    The parent with slot p has the rows ``order[starts[p]:starts[p + 1]]``. ``outer`` is the gradient of h; a row that
    has children receives from them row ``slots[row] - last`` of ``dh`` and ``dc``. The gradients of the sums are added
    up in ``d_products[p]`` if parents are ``shared``, and in ``d_tables[k][indices[k][row]]`` for the first ``inputs``
    tables; those of the parent's c in ``d_before[p - first]``.
    """
    hidden, one = c.shape[1], c.dtype.type(1)
    row_dh, row_dc = np.empty(hidden, c.dtype), np.empty(hidden, c.dtype)
    for p in range(first, last):
        parent_dc = d_before[p - first]
        for position in range(starts[p], starts[p + 1]):
            row = order[position]
            gate, old_c, new_c = gates[row], before[parents[row]], c[row]
            o, i, f = gate[:hidden], gate[hidden : 2 * hidden], gate[2 * hidden : 3 * hidden]
            _copy(row_dh, outer[row])
            if slots[row] >= 0:
                _add(row_dh, dh[slots[row] - last])
                _copy(row_dc, dc[slots[row] - last])
            else:
                row_dc[:] = 0
            for j in range(hidden):
                squashed = _tanh(new_c[j])
                through = row_dh[j] * o[j]
                row_dc[j] = _fma(through, _fma(-squashed, squashed, one), row_dc[j])
                o[j] = through * squashed * (one - o[j])
            if position == starts[p]:
                for j in range(hidden):
                    parent_dc[j] = row_dc[j] * f[j]
            else:
                for j in range(hidden):
                    parent_dc[j] = _fma(row_dc[j], f[j], parent_dc[j])
            for j in range(hidden):
                f[j] = row_dc[j] * old_c[j] * f[j] * (one - f[j])
            if len(gate) == 5 * hidden:
                a, b = gate[3 * hidden : 4 * hidden], gate[4 * hidden :]
                for j in range(hidden):
                    to_a = a[j] >= b[j]
                    candidate, through = a[j] if to_a else b[j], row_dc[j] * i[j]
                    i[j] = through * candidate * (one - i[j])
                    a[j] = through if to_a else one - one
                    b[j] = one - one if to_a else through
            else:
                g = gate[3 * hidden :]
                for j in range(hidden):
                    through = row_dc[j] * i[j]
                    i[j] = through * g[j] * (one - i[j])
                    g[j] = through * _fma(-g[j], g[j], one)
            if shared:
                if position == starts[p]:
                    _copy(d_products[p], gate)
                else:
                    _add(d_products[p], gate)
            for k in range(inputs):
                _add(d_tables[k][indices[k][row]], gate)


@no_type_check
@numba.njit(cache=True, nogil=True)
def link(parent, sizes, roots):
    """The tree of states, of which the first are ``roots`` and the others the rows, level after level.

    The predecessor of each row among the states; the slot of each state, which numbers those that have children, or −1;
    the rows in the order of their parents' slots, where those of each slot start, and the first slot of each level.
    """
    rows = len(parent)
    parents, counts = np.empty(rows, np.int64), np.zeros(roots + rows, np.int64)
    row, state, size = 0, 0, roots
    for level_size in sizes:
        for _ in range(level_size):
            if not 0 <= parent[row] < size:
                raise IndexError("a parent is outside of the level before its row")
            parents[row] = state + parent[row]
            counts[parents[row]] += 1
            row += 1
        state, size = state + size, level_size
    slots, starts, bounds = np.full(roots + rows, -1), np.zeros(roots + rows + 1, np.int64), np.empty_like(sizes)
    used, state, size = 0, 0, roots
    for level in range(len(sizes)):
        bounds[level] = used
        for _ in range(size):
            if counts[state]:
                slots[state] = used
                starts[used + 1] = starts[used] + counts[state]
                used += 1
            state += 1
        size = sizes[level]
    order, ends = np.empty(rows, np.int64), starts[:used].copy()
    for row in range(rows):
        slot = slots[parents[row]]
        order[ends[slot]] = row
        ends[slot] += 1
    return parents, slots, order, starts[: used + 1], bounds


@no_type_check
@numba.njit(cache=True, nogil=True)
def within(index, entries):
    """Whether there is an entry for every index."""
    outside = 0
    for i in index:
        outside += i < 0 or i >= entries
    return outside == 0
