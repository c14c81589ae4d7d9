"""The fused read-out against autograd through all logits at once."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.policies import read_out
from corollout.policies.read_out import PrefixCredits, ReadOut, read_out_backward

PREFIXES, VOCAB, WIDTH = 13, 7, 5


def some_credits(centre: str, seed: int = 0, prefixes: int = PREFIXES) -> PrefixCredits:
    """Several for some prefixes and tokens, none for others."""
    generator = torch.Generator().manual_seed(seed)
    prefix = torch.randint(prefixes, (20,), generator=generator)
    prefix[prefix == 3] = 4
    token = torch.randint(2, VOCAB, (20,), generator=generator)
    return PrefixCredits(prefix, token, torch.randn(20, generator=generator).double(), centre)


def some_layer(bias: str = "plain", mask: bool = False) -> tuple[Tensor, ReadOut]:
    """Hidden states and a last layer; tokens 0 and 1 may be masked."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).double()

    b = None if bias == "none" else draw(VOCAB)
    if b is not None and bias == "infinite":
        b[0] = -torch.inf
    allowed = torch.rand(PREFIXES, VOCAB, generator=generator) < 0.5 if mask else None
    if allowed is not None:
        allowed[:, 2:] = True
    weight = draw(VOCAB, WIDTH).requires_grad_()
    return draw(PREFIXES, WIDTH).requires_grad_(), ReadOut(weight, None if b is None else b.requires_grad_(), allowed)


def plain_logits(hidden: Tensor, layer: ReadOut) -> Tensor:
    logits = hidden @ layer.weight.t()
    if layer.bias is not None:
        logits = logits + layer.bias
    return logits if layer.allowed is None else logits.masked_fill(~layer.allowed, -torch.inf)


def plain_gradient(credits: PrefixCredits, logits: Tensor) -> Tensor:
    """value · (e_token − c), one entry after the other; uniform centres leave masked tokens alone."""
    g = torch.zeros_like(logits)
    centre = {
        "policy": logits.softmax(1),
        "uniform": torch.full_like(logits, 1 / VOCAB).masked_fill(logits == -torch.inf, 0.0),
        "nothing": torch.zeros_like(logits),
    }[credits.centre]
    for prefix, token, value in zip(credits.prefix.tolist(), credits.token.tolist(), credits.value, strict=True):
        g[prefix, token] += value
        g[prefix] -= value * centre[prefix]
    return g


def gradients(hidden: Tensor, layer: ReadOut) -> list[Tensor | None]:
    """Of the hidden states, the weight and the bias, which then have none any more."""
    parts = [hidden, layer.weight, layer.bias]
    found = [None if part is None else part.grad for part in parts]
    for part in parts:
        if part is not None:
            part.grad = None
    return found


def assert_close(actual: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk", [1 << 22, 3 * VOCAB, 1])
@pytest.mark.parametrize("centre", ["policy", "uniform", "nothing"])
@pytest.mark.parametrize(
    ("bias", "mask"), [("plain", False), ("none", False), ("infinite", False), ("plain", True), ("none", True)]
)
def test_the_gradient_is_that_of_autograd(
    chunk: int, centre: str, bias: str, mask: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(read_out, "CHUNK", chunk)
    hidden, layer = some_layer(bias, mask)
    credits = some_credits(centre)
    logits = plain_logits(hidden, layer)
    logits.backward(gradient=-0.3 * plain_gradient(credits, logits.detach()))
    expected = gradients(hidden, layer)
    assert layer.masks == (mask or bias == "infinite")
    for known in (None, logits.detach()):
        read_out_backward(hidden, layer, credits, -0.3, known)
        assert_close(gradients(hidden, layer), expected)
    assert expected[0] is not None
    assert float(expected[0].abs().max()) > 0.1
    assert not expected[0][3].any()


def test_gradients_are_added_to_those_that_are_there():
    hidden, layer = some_layer()
    credits = some_credits("policy")
    read_out_backward(hidden, layer, credits, -0.3)
    once = gradients(hidden, layer)
    layer.weight.grad = before = torch.ones_like(layer.weight)
    read_out_backward(hidden, layer, credits, -0.3)
    assert layer.weight.grad is before  # and not a second one of its size
    assert once[1] is not None
    torch.testing.assert_close(before, 1 + once[1])


def test_whoever_waits_for_a_gradient_gets_it():
    hidden, layer = some_layer()
    seen: list[Tensor] = []
    layer.weight.register_hook(seen.append)
    read_out_backward(hidden, layer, some_credits("policy"), -0.3)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], layer.weight.grad)


@pytest.mark.parametrize("everything", [True, False])
def test_logits_of_some_prefixes(everything: bool):
    hidden, layer = some_layer(mask=True)
    which: Any = slice(None) if everything else torch.tensor([4, 0, 9])
    logits = layer.logits(hidden[which], which)
    torch.testing.assert_close(logits, plain_logits(hidden, layer)[which].detach())
    assert not logits.requires_grad


@pytest.mark.parametrize("chunk", [1 << 22, 2 * VOCAB])
def test_log_probabilities_are_written_on_the_way(chunk: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_out, "CHUNK", chunk)
    hidden, layer = some_layer(mask=True)
    credits = some_credits("policy")
    order = credits.prefix.argsort(stable=True)
    credits = PrefixCredits(credits.prefix[order], credits.token[order], credits.value[order], "policy")
    log_probs = torch.full_like(credits.value, torch.nan)
    read_out_backward(hidden, layer, credits, 1.0, log_probs=log_probs)
    expected = plain_logits(hidden, layer).detach().log_softmax(1)[credits.prefix, credits.token]
    torch.testing.assert_close(log_probs, expected)


def test_gradients_are_added_and_reach_what_comes_before():
    hidden, layer = some_layer()
    credits = some_credits("policy")
    read_out_backward(hidden, layer, credits, 1.0)
    once = gradients(hidden, layer)
    for _ in range(2):
        read_out_backward(2 * hidden, replace(layer, weight=layer.weight / 2), credits, 1.0)
    # The logits are the same, and so are their gradients: the factors cancel.
    assert_close(gradients(hidden, layer), [None if part is None else 2 * part for part in once])


def test_weights_that_do_not_learn_get_no_gradient():
    hidden, layer = some_layer()
    credits = some_credits("policy")
    read_out_backward(hidden, layer, credits, 1.0)
    full = gradients(hidden, layer)
    frozen = ReadOut(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
    read_out_backward(hidden, frozen, credits, 1.0)
    assert_close(gradients(hidden, frozen), [full[0], None, None])
    read_out_backward(hidden.detach(), layer, credits, 1.0)
    assert_close(gradients(hidden, layer), [None, *full[1:]])
    read_out_backward(hidden.detach(), frozen, credits, 1.0)
    assert gradients(hidden, frozen) == [None] * 3


def test_no_credits_are_a_gradient_of_zero():
    hidden, layer = some_layer()
    none = torch.zeros(0, dtype=torch.int64)
    read_out_backward(hidden, layer, PrefixCredits(none, none, none.double(), "policy"), 1.0)
    for part in gradients(hidden, layer):
        assert part is not None
        assert not part.any()


def test_half_precision_is_computed_in_single_precision():
    """Credits that nearly cancel keep their difference."""
    hidden, layer = some_layer()
    hidden, weight = hidden.detach().bfloat16().requires_grad_(), layer.weight.detach().bfloat16().requires_grad_()
    credits = PrefixCredits(
        torch.zeros(2, dtype=torch.int64), torch.tensor([2, 2]), torch.tensor([100.0, -99.9]), "policy"
    )
    credits = replace(credits, value=credits.value.double())
    read_out_backward(hidden, ReadOut(weight), credits, 1.0)
    single = ReadOut(weight.detach().float().requires_grad_())
    expected = hidden.detach().float().requires_grad_()
    read_out_backward(expected, single, credits, 1.0)
    assert hidden.grad is not None
    assert expected.grad is not None
    torch.testing.assert_close(hidden.grad.float(), expected.grad, rtol=0.02, atol=2e-3)
    assert float(expected.grad.abs().max()) > 0.03


@pytest.mark.parametrize("chunk", [1 << 22, 4 * VOCAB, VOCAB, 1])
def test_chunks_have_every_credit_once(chunk: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_out, "CHUNK", chunk)
    credits = some_credits("uniform")
    entries, prefixes = [], []
    for some, part in credits.chunks(VOCAB):
        assert 0 < len(some) <= max(1, chunk // VOCAB)
        assert part.centre == "uniform"
        assert set(part.prefix.tolist()) == set(range(len(some)))
        prefixes += some.tolist()
        entries += list(zip(some[part.prefix].tolist(), part.token.tolist(), part.value.tolist(), strict=True))
    everything = zip(credits.prefix.tolist(), credits.token.tolist(), credits.value.tolist(), strict=True)
    assert prefixes == sorted(set(credits.prefix.tolist()))
    assert entries == sorted(everything, key=lambda entry: entry[0])  # by prefix, otherwise in their order
