"""Norms of gradients and the running variance of their sketches, against the plain formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corollout.errors import PolicyError
from corollout.events import Event
from corollout.noise import Noise
from corollout.policies import RecurrentPolicy, TokenEncoder
from corollout.training import running_variance
from corollout.training.base import flat_gradient
from corollout.training.checkpoints import State
from corollout.training.norms import total_norm
from corollout.training.optimizers import divides_gradients, make_adam
from corollout.training.running_variance import WIDTH, GradientSketch, RunningVariance
from tests.support.small_task import VOCAB, make_mle_trainer, make_policy, make_trainer, weights

SHAPES = [(300, 700), (41,), (3, 5, 7), (1,), (2, 40_000)]


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]


def set_gradients(given: list[nn.Parameter], gradient: Tensor) -> None:
    for parameter, part in zip(given, gradient.split([p.numel() for p in given]), strict=True):
        parameter.grad = part.view_as(parameter).to(parameter.dtype)


def drawn(kind: str, count: int) -> Tensor:
    """Some gradients of all parameters together."""
    size = sum(math.prod(shape) for shape in SHAPES)
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(count, size, generator=generator)
    if kind == "large mean":
        return 30 + noise
    if kind == "equal rows":  # as in an output layer: every word has the same direction, more or less of it
        period = torch.randn(size // 512 + 1, 1, generator=generator) * torch.randn(512, generator=generator)
        return period.flatten()[:size] * torch.randn(count, 1, generator=generator)
    if kind == "few":  # as in an embedding: a few words have a gradient
        return noise * (torch.rand(count, size, generator=generator) < 1e-4)
    return noise


@pytest.mark.parametrize("kind", ["plain", "large mean", "equal rows", "few"])
def test_the_variance_of_sketches_is_that_of_the_gradients(kind: str):
    """Within 5.5 %: five standard deviations of the sketch. The exact variance needs no sketch."""
    given = parameters()
    sketch, exact, sketched = GradientSketch(given), RunningVariance(0.8), RunningVariance(0.8)
    assert not sketch.is_exact
    for number, gradient in enumerate(drawn(kind, 12)):
        set_gradients(given, gradient)
        expected, value = exact.add(flat_gradient(given)), sketched.add(sketch())
        if number == 0:
            assert value == pytest.approx(0, abs=1e-9 * float(gradient.double().square().sum()))
        else:
            assert value == pytest.approx(expected, rel=0.055)
    assert sketched.mean is not None
    assert sketched.mean.shape == (WIDTH,) == (sketch.size,)


def test_a_sketch_is_unbiased_and_as_precise_as_its_width_says(monkeypatch: pytest.MonkeyPatch):
    given, ratios = parameters(), []
    gradient = drawn("equal rows", 1)[0]
    set_gradients(given, gradient)
    square = float(flat_gradient(given).double().square().sum())
    for seed in range(60):
        monkeypatch.setattr(running_variance, "_NOISE", Noise(seed))
        ratios.append(float(GradientSketch(given, 1 << 10)().double().square().sum()) / square)
    deviation = math.sqrt(2 / (1 << 10))
    assert abs(sum(ratios) / 60 - 1) < 4 * deviation / math.sqrt(60)
    assert 0.5 * deviation < float(torch.tensor(ratios).std()) < 1.5 * deviation


def test_a_sketch_is_linear_and_moves_every_gradient_by_its_sign_and_offset():
    given = parameters(torch.float64)
    one, other = drawn("plain", 2).double()
    sketch = GradientSketch(given)
    sketches = []
    for gradient in (one, other, one - 2 * other):
        set_gradients(given, gradient)
        sketches.append(sketch())
    torch.testing.assert_close(sketches[2], sketches[0] - 2 * sketches[1])
    for parameter in (0, 4):  # a single entry stays one, whatever its place
        set_gradients(given, torch.zeros_like(one))
        given[parameter].grad.view(-1)[-1] = 3.0  # pyright: ignore[reportOptionalMemberAccess]
        assert sketch().abs().sort().values[-2:].tolist() == [0.0, 3.0]
    set_gradients(given, one)
    whole = sketch()
    given[1].grad = None
    without = sketch()
    assert 0 < int((whole != without).sum()) <= 41
    set_gradients(given, torch.cat([one[:210_000], torch.zeros(41), one[210_041:]]))
    assert torch.equal(sketch(), without)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1 << 8, WIDTH])
def test_a_compiled_sketch_is_that_of_plain_operations_and_has_the_norm(
    dtype: torch.dtype, width: int, monkeypatch: pytest.MonkeyPatch
):
    given = parameters(dtype)
    pictures = torch.zeros(8, 4, 3, 3, dtype=dtype).contiguous(memory_format=torch.channels_last)
    given += [nn.Parameter(pictures), nn.Parameter(torch.zeros(5, dtype=dtype))]
    for p in given[:-1]:  # the last has no gradient
        p.grad = torch.randn(p.shape, dtype=dtype, generator=torch.Generator().manual_seed(p.numel()))
    whole, of_pictures = given[0].grad, given[-2].grad
    assert whole is not None
    assert of_pictures is not None
    whole[7:240] = 0.0
    sketch = GradientSketch(given, width)
    compiled, norm = sketch.with_norm()
    given[-2].grad = torch.empty_like(given[-2]).copy_(of_pictures)  # in the layout of its parameter
    assert torch.equal(sketch(), compiled)
    monkeypatch.setattr(running_variance, "can_loop", lambda tensors: False)
    plain, same = sketch.with_norm()
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-4)  # added up in another order
    close = 1e-7 if dtype == torch.float32 else 1e-12
    assert norm == pytest.approx(same, rel=close)
    assert norm == pytest.approx(float(flat_gradient(given).double().norm()), rel=close)


def test_up_to_its_width_a_sketch_is_the_gradient():
    given = [nn.Parameter(torch.zeros(shape)) for shape in [(WIDTH - 3,), (3,), (1,)]]
    set_gradients(given[:2], torch.randn(WIDTH))
    exact, beyond = GradientSketch(given[:2]), GradientSketch(given)
    assert exact.is_exact
    assert not beyond.is_exact
    assert torch.equal(exact(), flat_gradient(given[:2]))
    assert (exact.size, beyond.size) == (WIDTH, WIDTH)
    assert not torch.equal(beyond(), exact())


def test_sketches_of_half_precision_are_sums_in_single_precision():
    given, single = parameters(torch.bfloat16), parameters()
    set_gradients(given, drawn("plain", 1)[0])
    set_gradients(single, flat_gradient(given).float())
    # Added up in another order, but not in half precision, whose error would be near 1e-2.
    torch.testing.assert_close(GradientSketch(given)(), GradientSketch(single)(), rtol=1e-5, atol=1e-4)


def test_the_variance_does_not_overflow():
    running = RunningVariance(0.5)
    running.add(torch.full((4,), 1e30))
    assert running.add(torch.full((4,), -1e30)) == pytest.approx(4 * 8 / 9 * 1e60)


def large_policy() -> RecurrentPolicy:
    """One whose gradient is sketched."""
    torch.manual_seed(0)
    encoder = TokenEncoder(VOCAB, 32)
    return RecurrentPolicy(encoder, encoder.width, VOCAB, hidden=128)


def test_a_resumed_training_has_the_same_variance_bit_for_bit():
    def variances(trainer: Any, updates: int) -> list[float]:
        return [metrics.gradient_variance for metrics in trainer.run(updates=updates)]

    whole = make_trainer(policy=large_policy())
    expected = variances(whole, 5)
    assert expected[0] < 1e-9 < min(expected[1:])
    first = make_trainer(policy=large_policy())
    assert variances(first, 2) == expected[:2]
    second = make_trainer(policy=large_policy())
    second.load_state(first.state())
    assert variances(second, 5) == expected[2:]
    assert torch.equal(weights(second.policy), weights(whole.policy))
    assert first.state().tensors["own/mean"].shape == (WIDTH,)


def test_the_variance_of_an_older_checkpoint_starts_anew():
    trainer = make_trainer(policy=large_policy())
    list(trainer.run(updates=2))
    state, size = trainer.state(), len(weights(trainer.policy))
    older = {"own/mean": torch.ones(size), "own/square": torch.ones(size)}
    events: list[Event] = []
    resumed = make_trainer(policy=large_policy(), on_event=events.append)
    resumed.load_state(State({**state.tensors, **older}, state.values))
    [event] = events
    assert "earlier version: the running gradient variance starts anew" in event.record["text"]
    assert resumed.step().gradient_variance < 1e-9
    assert resumed.updates == 3
    # That of a small model, in single precision then, is the same.
    small, again = make_trainer(), make_trainer(on_event=events.append)
    list(small.run(updates=2))
    state = small.state()
    single = {name: tensor.float() for name, tensor in state.tensors.items() if name.startswith("own/")}
    again.load_state(State({**state.tensors, **single}, state.values))
    assert again.step().gradient_variance == pytest.approx(small.step().gradient_variance, rel=1e-5)
    assert len(events) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e-20, 1e-10, 1e-3, 1.0, 1e4, 1e20, 1e30, 3e38])
def test_a_norm_is_right_whatever_the_size(dtype: torch.dtype, size: float):
    size = min(size, torch.finfo(dtype).max)
    parts = [torch.full((50, 30), size, dtype=dtype), torch.full((7,), size / 2, dtype=dtype), torch.zeros(0)]
    expected = torch.cat([part.double().flatten() for part in parts]).norm()
    assert total_norm(parts) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_norm_is_not_finite_if_a_number_is_not(dtype: torch.dtype, value: float):
    for where in (0, 70_000, -1):
        part = torch.ones(100_003, dtype=dtype)
        assert math.isfinite(total_norm([part, part]))
        part[where] = value
        assert not math.isfinite(total_norm([torch.ones(3, dtype=dtype), part]))


def test_a_norm_is_precise_for_many_numbers_and_0_for_none():
    numbers = torch.randn(3_000_000, generator=torch.Generator().manual_seed(0))
    assert total_norm([numbers]) == pytest.approx(float(numbers.double().norm()), rel=1e-7)
    assert total_norm([]) == 0.0
    assert total_norm([torch.zeros(4)]) == 0.0
    mixed = [torch.full((3,), 2.0), torch.full((1,), 2.0, dtype=torch.float64)]
    assert total_norm(mixed) == pytest.approx(4.0)


def test_one_weight_that_becomes_infinite_is_noticed():
    policy = make_policy().float()
    trainer = make_trainer(policy=policy)
    trainer.step()

    def spoil(*_: Any) -> None:
        with torch.no_grad():
            policy.output.bias[2] = math.inf

    trainer.optimizer.register_step_post_hook(spoil)
    with pytest.raises(PolicyError, match="after update 2 some weights are infinite or NaN"):
        trainer.step()


@pytest.mark.parametrize("norm", [0.5, 5.0])
def test_an_optimiser_that_divides_gradients_clips_them_as_plain_operations_do(norm: float):
    results = []
    for fused in (True, False):
        policy = make_policy().float()
        optimizer = make_adam(policy.parameters(), 0.1) if fused else torch.optim.Adam(policy.parameters(), 0.1)
        assert divides_gradients(optimizer) == fused
        trainer = make_trainer(policy=policy, optimizer=optimizer)
        for number in range(3):
            for p in trainer.parameters:
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(number)) * 1e-8
            scale = norm / total_norm(p.grad for p in trainer.parameters if p.grad is not None)
            for p in trainer.parameters:
                assert p.grad is not None
                p.grad *= scale
            assert trainer.clip_gradients() == pytest.approx(norm)
            trainer.step_optimizer()
            assert float(flat_gradient(trainer.parameters).norm()) == pytest.approx(min(norm, 1.0), rel=1e-5)
        assert not hasattr(optimizer, "grad_scale")
        results.append(weights(policy))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("most_norm", [None, 1.0, 100.0])
@pytest.mark.parametrize("most_value", [None, 0.1, 100.0])
def test_values_are_clipped_as_pytorch_does_it_and_then_the_norm(most_value: float | None, most_norm: float | None):
    policy, plain = make_policy().float(), make_policy().float()
    trainer = make_mle_trainer(policy, max_grad_value=most_value, max_grad_norm=most_norm)
    for p, q in zip(policy.parameters(), plain.parameters(), strict=True):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
        q.grad = p.grad.clone()
    before = flat_gradient(policy.parameters())
    norm = trainer.clip_gradients()
    assert norm == pytest.approx(float(before.norm()))
    if most_value is not None:
        torch.nn.utils.clip_grad_value_(plain.parameters(), most_value)
    if most_norm is not None:
        torch.nn.utils.clip_grad_norm_(plain.parameters(), most_norm)
    expected = flat_gradient(plain.parameters())
    torch.testing.assert_close(flat_gradient(policy.parameters()), expected, rtol=1e-6, atol=1e-9)
    assert torch.equal(expected, before) == (most_value != 0.1 and most_norm != 1.0)


def test_a_value_that_clips_is_counted():
    trainer = make_trainer(max_grad_norm=None, max_grad_value=1e-4)
    assert {trainer.step().clipped for _ in range(3)} == {1.0}
    loose = make_trainer(max_grad_norm=None, max_grad_value=1e4)
    assert {loose.step().clipped for _ in range(3)} == {0.0}
