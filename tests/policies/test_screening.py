"""Screening in bfloat16: its bound holds, and tokens are those of all logits. It is forced, on any processor."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from corollout.noise import Noise, exponential
from corollout.policies import RecurrentPolicy, screening
from corollout.policies.protocol import SOFTMAX
from corollout.policies.read_out import ReadOut
from corollout.policies.screening import Screen, Screening, bfloat16_is_fast
from corollout.rollouts import Engine
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.types import Branches, Sampler, Sequences


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(screening, "bfloat16_is_fast", lambda: True)
    monkeypatch.setattr(screening, "LEAST_WEIGHTS", 0)
    monkeypatch.setattr(screening, "LEAST_ROWS", 0)


def problem(seed: int, rows: int, vocab: int, width: int, scale: float = 1.0) -> tuple[Tensor, ReadOut]:
    torch.manual_seed(seed)
    hidden, weight = torch.randn(rows, width), torch.randn(vocab, width) * scale
    return hidden, ReadOut(weight, torch.randn(vocab))


def screen_of(read_out: ReadOut) -> Screen:
    screen = Screen.of(read_out)
    assert screen is not None
    return screen


def exact(hidden: Tensor, read_out: ReadOut) -> Tensor:
    """All logits in double precision."""
    logits = hidden.double() @ read_out.weight.double().t()
    logits = logits if read_out.bias is None else logits + read_out.bias.double()
    return logits if read_out.allowed is None else logits.masked_fill(~read_out.allowed, -torch.inf)


def drawing(seed: int, rows: int, distinct: int | None = None) -> tuple[Tensor, Tensor]:
    return Noise(seed).keys(torch.arange(rows) % (distinct or rows)), torch.arange(rows) % 3


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 20),
    vocab=st.integers(1, 600),
    width=st.integers(1, 600),
    powers=st.tuples(st.integers(-130, 30), st.integers(-130, 30)),
    spread=st.sampled_from([0.0, 1.0, 10.0]),
)
def test_no_product_is_further_off_than_the_bound_says(
    seed: int, rows: int, vocab: int, width: int, powers: tuple[int, int], spread: float
):
    torch.manual_seed(seed)
    hidden, weight = (
        torch.randn(n, width) * torch.exp(spread * torch.randn(n, width)).clamp(max=1e6) * 2.0**power
        for n, power in zip((rows, vocab), powers, strict=True)
    )
    read_out = ReadOut(weight)
    screen = screen_of(read_out)
    near, radius = screen.product(hidden)
    near = near.double()
    bound = radius.double()[:, None] * screen.norms.double() + 2.0**-8 * near.abs()
    assert ((near - exact(hidden, read_out)).abs() <= bound).all()


def test_the_bound_holds_where_all_errors_point_one_way():
    """Every number lies just below the middle of two of bfloat16, and every product has the same sign."""
    middle = 1 + 2.0**-8 - 2.0**-20
    hidden, weight = torch.full((3, 512), middle), torch.full((5, 512), middle)
    read_out = ReadOut(weight)
    screen = screen_of(read_out)
    near, radius = screen.product(hidden)
    error = (near.double() - exact(hidden, read_out)).abs()
    bound = radius.double()[:, None] * screen.norms.double() + 2.0**-8 * near.double().abs()
    assert (error <= bound).all()
    assert (error > 0.5 * 2.0**-7 * 512).all()  # the case is as bad as it should be


@pytest.mark.parametrize("scale", [0.01, 0.3, 5.0, 1e4])
def test_scores_are_bounded_from_below(scale: float):
    hidden, read_out = problem(1, 40, 700, 33, scale)
    assert read_out.bias is not None
    screen = screen_of(read_out)
    near, radius = screen.product(hidden)
    keys, steps = drawing(2, 40)
    scores = exponential(keys, steps, 700, torch.float64).log() - exact(hidden, read_out)
    below, noise, lows = (np.empty(n, np.float32) for n in (700, 700, screening._LANES))
    for r in range(40):
        screening._noise_below(int(keys[r]), int(steps[r]), noise)
        screening._scores_below(
            noise,
            near[r].view(torch.int16).numpy(),
            screen.lift.numpy(),
            screen.norms.numpy(),
            radius.numpy()[r],
            below,
            lows,
        )
        assert (below <= scores[r].numpy()).all()
        lanes = [below[lane :: screening._LANES].min() for lane in range(screening._LANES)]
        np.testing.assert_array_equal(lows, lanes)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scale", [0.02, 0.2, 3.0])
@pytest.mark.parametrize("vocab", [3, 700])
def test_tokens_are_those_of_all_logits(seed: int, scale: float, vocab: int):
    rows = 500
    hidden, read_out = problem(seed, 100, vocab, 48, scale)
    keys, steps = drawing(seed, rows, distinct=rows if seed % 2 else 9)
    index = torch.randint(100, (rows,))
    allowed = torch.rand(100, vocab) < 0.5
    allowed[:, 1] = True
    assert read_out.bias is not None
    read_out.bias[0] = -torch.inf
    for masks in (None, allowed):
        masked = ReadOut(read_out.weight, read_out.bias, masks)
        for greedy in (False, True, torch.rand(rows) < 0.5):
            tokens, valid = Screening().choose(hidden, masked, keys, steps, greedy, index)
            expected = SOFTMAX.choose(exact(hidden, masked), keys, steps, greedy, index)
            assert screen_of(masked).choose(hidden, keys, steps, greedy, index, masks) is not None
            assert torch.equal(tokens, expected.tokens)
            assert valid.all()
            assert len(valid) == 100


@pytest.mark.parametrize("greedy", [True, False])
def test_near_ties_are_decided_exactly(greedy: bool):
    """Logits closer together than bfloat16 can tell apart, but multiples of 2⁻²⁰: float32 has them exactly."""
    torch.manual_seed(0)
    vocab, rows = 400, 300
    weight = torch.randint(-16, 17, (1, 16)).repeat(vocab, 1) / 16.0
    weight[:, 0] += torch.randint(-3, 4, (vocab,)) * 2.0**-15
    hidden = torch.randint(-16, 17, (rows, 16)) / 16.0
    keys, steps = drawing(0, rows)
    read_out = ReadOut(weight)
    logits = exact(hidden, read_out)
    expected = SOFTMAX.choose(logits, keys, steps, greedy).tokens
    if greedy:  # the first of equal ones
        expected = (logits == logits.amax(1, keepdim=True)).int().argmax(1)
    assert torch.equal(Screening().choose(hidden, read_out, keys, steps, greedy)[0], expected)


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_invalid_logits_are_noticed(wrong: float, greedy: bool):
    hidden, read_out = problem(0, 20, 300, 16)
    keys, steps = drawing(0, 20)
    hidden[7, 3] = wrong
    tokens, valid = Screening().choose(hidden, read_out, keys, steps, greedy)
    expected = SOFTMAX.choose(read_out.logits(hidden, slice(None)), keys, steps, greedy)
    assert torch.equal(valid, expected.valid)
    assert not valid[7]
    assert torch.equal(tokens, expected.tokens)


@pytest.mark.parametrize("part", ["weight", "bias", "mask"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_invalid_weights_are_noticed(part: str, wrong: float):
    hidden, read_out = problem(0, 20, 300, 16)
    keys, steps = drawing(0, 20)
    assert read_out.bias is not None
    allowed = None
    if part == "weight":
        read_out.weight[4, 2] = wrong
    elif part == "bias":
        read_out.bias[4] = wrong
    else:
        allowed = torch.ones(20, 300, dtype=torch.bool)
        allowed[5] = False
    read_out = ReadOut(read_out.weight, read_out.bias, allowed)
    _, valid = Screening().choose(hidden, read_out, keys, steps, False)
    assert torch.equal(valid, SOFTMAX.choose(read_out.logits(hidden, slice(None)), keys, steps, False).valid)
    assert not valid.all()


def captioner() -> CaptionPolicy:
    torch.manual_seed(3)
    policy = CaptionPolicy(300, width=8, embedding=16, hidden=32)
    with torch.no_grad():
        policy.output.mul_(10)
    return policy


def recurrent() -> RecurrentPolicy:
    torch.manual_seed(3)
    return RecurrentPolicy(nn.Linear(8, 16), 16, 300, hidden=32, cell="gru")


def last_layer(policy: Any) -> Tensor:
    return policy.output if isinstance(policy, CaptionPolicy) else policy.output.weight


@pytest.mark.parametrize("make", [captioner, recurrent])
@torch.no_grad()
def test_hidden_states_of_a_step_read_out_are_its_logits(make: Callable[[], Any]):
    policy = make()
    state, tokens = policy.start(policy.encode(torch.randn(5, 8))), torch.arange(5)
    logits, after = policy.step(state, tokens)
    hidden, read_out, after_hidden = policy.step_hidden(state, tokens)
    torch.testing.assert_close(read_out.logits(hidden, slice(None)), logits)
    for one, other in zip(tree_leaves(after), tree_leaves(after_hidden), strict=True):
        assert torch.equal(one, other)


def completed(policy: Any, share_noise: bool, max_rows: int) -> Sequences:
    """Branches of every token of some captions, a third of them greedy, some of them copies."""
    engine = Engine(policy, bos=0, eos=0, max_length=9, max_rows=max_rows, share_noise=share_noise)
    torch.manual_seed(5)
    mains = engine.decode(torch.randn(6, 8), torch.arange(6), Sampler(count=2), Noise(4))
    parent, step = mains.trajectories.mask.nonzero().repeat(8, 1).unbind(1)
    branches = Branches(
        parent,
        step,
        torch.randint(0, 300, parent.shape),
        greedy=torch.rand(len(parent)) < 0.3,
        copy=torch.randint(0, 2, parent.shape),
        own_noise=torch.rand(len(parent)) < 0.3,
    )
    return engine.complete(mains, branches, Noise(4)).sequences


@pytest.mark.parametrize("make", [captioner, recurrent])
@pytest.mark.parametrize("share_noise", [True, False])
@pytest.mark.parametrize("max_rows", [50, 4096])
def test_completions_are_the_same_with_and_without(
    make: Callable[[], Any], share_noise: bool, max_rows: int, monkeypatch: pytest.MonkeyPatch
):
    policy = make()
    calls = []
    real = Screen.choose
    monkeypatch.setattr(Screen, "choose", lambda *args: calls.append(1) or real(*args))
    for _ in range(2):
        screened = completed(policy, share_noise, max_rows)
        assert calls
        with monkeypatch.context() as plain:
            plain.setattr(screening, "bfloat16_is_fast", lambda: False)
            calls.clear()
            expected = completed(policy, share_noise, max_rows)
            assert not calls
        assert torch.equal(screened.tokens, expected.tokens)
        assert torch.equal(screened.lengths, expected.lengths)
        # The weights change in a way that no version counter sees: nothing may be left of the old ones.
        last_layer(policy).data.neg_()


def test_only_what_pays_is_screened(monkeypatch: pytest.MonkeyPatch):
    policy = CaptionPolicy(300, width=8, embedding=16, hidden=32)
    assert Screening.offered_by(policy, 1) is not None
    assert Screening.offered_by(object(), 1) is None
    monkeypatch.setattr(screening, "LEAST_ROWS", 64)
    assert Screening.offered_by(policy, 63) is None
    assert isinstance(bfloat16_is_fast(), bool)
    for unusual in (ReadOut(torch.zeros(4, 4, dtype=torch.float64)), ReadOut(torch.zeros(4, 4).bfloat16())):
        assert not screening._suits(unusual)
    monkeypatch.setattr(screening, "LEAST_WEIGHTS", 17)
    assert not screening._suits(ReadOut(torch.zeros(4, 4)))
