"""The LSTM layer is PyTorch's own, with the input's share of the gates computed beforehand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corollout.policies.lstm import lstm, lstm_step

ORDER = (3, 0, 1, 2)  # our gates o, i, f, g among PyTorch's i, f, g, o


def reordered(weight: Any) -> Tensor:
    """The gates of PyTorch's weight or bias in our order; a matrix is transposed."""
    chunks = weight.chunk(4)
    arranged = torch.cat([chunks[number] for number in ORDER])
    return arranged.t() if weight.ndim == 2 else arranged


def share(layer: nn.LSTM, inputs: Tensor) -> Tensor:
    """The input's share of the gates, both biases included."""
    return inputs @ reordered(layer.weight_ih_l0) + reordered(layer.bias_ih_l0) + reordered(layer.bias_hh_l0)


def make(steps: int, rows: int, hidden: int = 5) -> tuple[nn.LSTM, list[Tensor]]:
    torch.manual_seed(steps * 100 + rows)
    layer = nn.LSTM(3, hidden).double()
    shapes = ((steps, rows, 3), (1, rows, hidden), (1, rows, hidden))
    return layer, [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def assert_equal_with_gradients(one: Tensor, other: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(one, other)
    outer = torch.randn_like(other)
    for a, b in zip(torch.autograd.grad(one, leaves, outer), torch.autograd.grad(other, leaves, outer), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (1, 4), (2, 1), (7, 4), (30, 3)])
def test_values_and_gradients_are_those_of_pytorch(steps, rows):
    layer, (inputs, h, c) = make(steps, rows)
    theirs, _ = layer(inputs, (h, c))
    ours = lstm(share(layer, inputs), reordered(layer.weight_hh_l0), h[0], c[0])
    assert_equal_with_gradients(ours, theirs, [inputs, h, c, *layer.parameters()])


@pytest.mark.parametrize("wanted", [range(4), [0], [1], [2], [3]])
def test_gradients_are_those_of_finite_differences(wanted):
    """Also if only one of the inputs needs a gradient."""
    torch.manual_seed(0)
    leaves = [torch.randn(shape, dtype=torch.float64) for shape in ((3, 2, 8), (2, 8), (2, 2), (2, 2))]
    for index in wanted:
        leaves[index].requires_grad_()
    assert torch.autograd.gradcheck(lstm, leaves)


def test_one_first_state_may_serve_all_rows():
    """Expanded tensors are read, never written, and their rows' gradients add up."""
    x = torch.randn(4, 3, 8, dtype=torch.float64, requires_grad=True)
    weight, first = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 8), (2, 2)))
    assert torch.autograd.gradcheck(
        lambda x, w, f: lstm(x, w, f[0].expand(3, 2), f[1].expand(3, 2)), (x, weight, first)
    )


@torch.no_grad()
def test_steps_one_by_one():
    layer, (inputs, h, c) = make(6, 4)
    x, weight = share(layer, inputs), reordered(layer.weight_hh_l0)
    together = lstm(x, weight, h[0], c[0])
    theirs, (last_h, last_c) = layer(inputs, (h, c))
    state = h[0], c[0]
    for t in range(6):
        kept = [part.clone() for part in (x, weight, *state)]
        after = lstm_step(x[t], weight, *state)[:2]
        assert all(torch.equal(a, b) for a, b in zip(kept, (x, weight, *state), strict=True))
        torch.testing.assert_close(after[0], together[t])
        state = after
    torch.testing.assert_close(together, theirs)
    torch.testing.assert_close(state, (last_h[0], last_c[0]))


@pytest.mark.parametrize(("steps", "rows"), [(0, 3), (3, 0), (0, 0)])
def test_no_steps_or_no_rows(steps, rows):
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((steps, rows, 8), (2, 8), (rows, 2), (rows, 2))]
    outputs = lstm(*leaves)
    assert outputs.shape == (steps, rows, 2)
    outputs.sum().backward()
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)


def test_saturated_gates_give_finite_gradients():
    x = torch.tensor([1e4, -1e4, 1e4, -1e4]).repeat(3, 2, 2).requires_grad_()
    weight = torch.full((2, 8), 100.0, requires_grad=True)
    lstm(x, weight, torch.ones(2, 2), torch.ones(2, 2)).sum().backward()
    for gradient in (x.grad, weight.grad):
        assert gradient is not None
        assert gradient.isfinite().all()


def test_second_derivatives_are_refused():
    x = torch.randn(2, 1, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        lstm(x, torch.randn(1, 4), torch.zeros(1, 1), torch.zeros(1, 1)).square().sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def maxout_by_hand(x: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """Five parts: the candidate is the larger of two, without a tanh."""
    out = []
    for step in x:
        o, i, f, a, b = (step + h @ weight).chunk(5, 1)
        c = f.sigmoid() * c + i.sigmoid() * torch.maximum(a, b)
        h = o.sigmoid() * c.tanh()
        out.append(h)
    return torch.stack(out)


@pytest.mark.parametrize(("steps", "rows", "hidden"), [(1, 1, 1), (3, 2, 2), (5, 4, 3)])
def test_a_maxout_cell(steps, rows, hidden):
    torch.manual_seed(1)
    shapes = ((steps, rows, 5 * hidden), (hidden, 5 * hidden), (rows, hidden), (rows, hidden))
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    outputs = lstm(*leaves)
    assert_equal_with_gradients(outputs, maxout_by_hand(*leaves), leaves)
    with torch.no_grad():
        h, _, _ = lstm_step(leaves[0][0], *leaves[1:])
    torch.testing.assert_close(h, outputs[0])
