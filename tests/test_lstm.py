"""The LSTM layer is PyTorch's own, with the input's share of the gates computed beforehand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corollout.policies.lstm import lstm, lstm_step

ORDER = (3, 0, 1, 2)  # our gates o, i, f, g among PyTorch's i, f, g, o


def ours(weight: Any) -> Tensor:
    """The gates of PyTorch's weight or bias in our order, the other way round if it is a matrix."""
    chunks = weight.chunk(4)
    arranged = torch.cat([chunks[number] for number in ORDER])
    return arranged.t() if weight.ndim == 2 else arranged


def share(layer: nn.LSTM, inputs: Tensor) -> Tensor:
    """The input's share of the gates, both biases included."""
    return inputs @ ours(layer.weight_ih_l0) + ours(layer.bias_ih_l0) + ours(layer.bias_hh_l0)


def make(steps: int, rows: int, hidden: int = 5) -> tuple[nn.LSTM, list[Tensor]]:
    torch.manual_seed(steps * 100 + rows)
    layer = nn.LSTM(3, hidden).double()
    shapes = ((steps, rows, 3), (1, rows, hidden), (1, rows, hidden))
    return layer, [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (1, 4), (2, 1), (7, 4), (30, 3)])
def test_values_and_gradients_are_those_of_pytorch(steps, rows):
    layer, leaves = make(steps, rows)
    inputs, h, c = leaves
    leaves += list(layer.parameters())
    theirs, _ = layer(inputs, (h, c))
    mine = lstm(share(layer, inputs), ours(layer.weight_hh_l0), h[0], c[0])
    torch.testing.assert_close(mine, theirs)
    outer = torch.randn_like(theirs)
    for mine_grad, their_grad in zip(
        torch.autograd.grad(mine, leaves, outer), torch.autograd.grad(theirs, leaves, outer), strict=True
    ):
        torch.testing.assert_close(mine_grad, their_grad)


@pytest.mark.parametrize(("steps", "rows", "hidden"), [(1, 1, 1), (3, 2, 2), (4, 1, 3)])
def test_gradients_are_the_limits_of_differences(steps, rows, hidden):
    torch.manual_seed(0)
    shapes = ((steps, rows, 4 * hidden), (hidden, 4 * hidden), (rows, hidden), (rows, hidden))
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lstm, leaves)


@pytest.mark.parametrize("wanted", range(4))
def test_each_input_may_be_the_only_one_with_a_gradient(wanted):
    shapes = ((3, 2, 8), (2, 8), (2, 2), (2, 2))
    leaves = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    leaves[wanted].requires_grad_()
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
    x, weight = share(layer, inputs), ours(layer.weight_hh_l0)
    together = lstm(x, weight, h[0], c[0])
    theirs, (last_h, last_c) = layer(inputs, (h, c))
    state = h[0], c[0]
    for t in range(6):
        kept = [part.clone() for part in (x, weight, *state)]
        after = lstm_step(x[t], weight, *state)
        assert all(torch.equal(a, b) for a, b in zip(kept, (x, weight, *state), strict=True))
        torch.testing.assert_close(after[0], together[t])
        state = after
    torch.testing.assert_close(together, theirs)
    torch.testing.assert_close(state, (last_h[0], last_c[0]))


@pytest.mark.parametrize(("steps", "rows"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_do(steps, rows):
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((steps, rows, 8), (2, 8), (rows, 2), (rows, 2))]
    done = lstm(*leaves)
    assert done.shape == (steps, rows, 2)
    done.sum().backward()
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)


def test_saturated_gates_give_finite_gradients():
    x = torch.tensor([1e4, -1e4, 1e4, -1e4]).repeat(3, 2, 2).requires_grad_()
    weight = torch.full((2, 8), 100.0, requires_grad=True)
    done = lstm(x, weight, torch.ones(2, 2), torch.ones(2, 2))
    done.sum().backward()
    for gradient in (x.grad, weight.grad):
        assert gradient is not None
        assert gradient.isfinite().all()


def test_a_gradient_of_the_gradient_is_refused():
    x = torch.randn(2, 1, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        lstm(x, torch.randn(1, 4), torch.zeros(1, 1), torch.zeros(1, 1)).square().sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def maxout_by_hand(x: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """Five parts: the candidate is the larger of two, as it is."""
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
    mine, plain = lstm(*leaves), maxout_by_hand(*leaves)
    torch.testing.assert_close(mine, plain)
    outer = torch.randn_like(plain)
    for a, b in zip(torch.autograd.grad(mine, leaves, outer), torch.autograd.grad(plain, leaves, outer), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        h, _ = lstm_step(leaves[0][0], *leaves[1:])
    torch.testing.assert_close(h, mine[0])
