"""The captioner equals plain code, step by step and all at once."""

import pytest
import torch
from torch import Tensor

from corollout.tasks.captioning.model import CaptionPolicy

VOCAB, WIDTH, HIDDEN = 9, 6, 5


def make(dropout: float = 0.5) -> CaptionPolicy:
    torch.manual_seed(0)
    policy = CaptionPolicy(VOCAB, WIDTH, 4, HIDDEN, dropout).double()
    policy.standardise(torch.randn(50, WIDTH, dtype=torch.float64) * 3 + 1)
    return policy.eval()


def plainly(policy: CaptionPolicy, features: Tensor, tokens: Tensor) -> Tensor:
    """The image is fed first, then the words; the output after the image is ignored."""
    inputs = [policy.image(policy.standardised(features)), *policy.embedding[tokens].unbind(1)]
    h = c = features.new_zeros(len(features), HIDDEN)
    logits = []
    for x in inputs:
        o, i, f, a, b = (x @ policy.from_input + h @ policy.recurrent + policy.bias.sum(0)).chunk(5, 1)
        c = f.sigmoid() * c + i.sigmoid() * torch.maximum(a, b)
        h = o.sigmoid() * c.tanh()
        logits.append(h @ policy.output.t() + policy.output_bias)
    return torch.stack(logits[1:], 1)


def test_scores_and_gradients_are_those_of_plain_code():
    policy = make()
    features, tokens = torch.randn(3, WIDTH, dtype=torch.float64), torch.randint(VOCAB, (3, 4))
    tokens[:, 0] = 0
    mine, plain = policy.score(policy.encode(features), tokens), plainly(policy, features, tokens)
    torch.testing.assert_close(mine, plain)
    outer, parameters = torch.randn_like(plain), list(policy.parameters())
    for a, b in zip(
        torch.autograd.grad(mine, parameters, outer), torch.autograd.grad(plain, parameters, outer), strict=True
    ):
        torch.testing.assert_close(a, b)


@torch.no_grad()
def test_steps_are_the_score():
    policy = make()
    features, tokens = torch.randn(3, WIDTH, dtype=torch.float64), torch.randint(VOCAB, (3, 4))
    memory = policy.encode(features)
    together, state = policy.score(memory, tokens), policy.start(memory)
    for t in range(4):
        logits, state = policy.step(state, tokens[:, t])
        torch.testing.assert_close(logits, together[:, t])


def test_dropout_only_in_training():
    policy = make()
    features, tokens = torch.randn(3, WIDTH, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.int64)
    memory = policy.encode(features)
    assert torch.equal(policy.score(memory, tokens), policy.score(memory, tokens))
    policy.train()
    assert not torch.equal(policy.score(memory, tokens), policy.score(memory, tokens))


def test_features_are_standardised():
    policy = make()
    examples = torch.randn(200, WIDTH, dtype=torch.float64) * 7 - 2
    examples[:, 1] = 4.0  # the same for all
    policy.standardise(examples)
    seen = policy.standardised(examples)
    torch.testing.assert_close(seen.mean(0), torch.zeros(WIDTH, dtype=torch.float64), atol=1e-9, rtol=0)
    assert seen.std(0, correction=0).tolist() == pytest.approx([1, 0, 1, 1, 1, 1], abs=1e-3)
    assert {"shift", "factor"} <= set(policy.state_dict())


def test_the_size_of_the_paper():
    """Linear 2048 → 512, embedding 512, maxout LSTM 512, V = 9488."""
    count = sum(p.numel() for p in CaptionPolicy(9488).parameters())
    assert count == 2048 * 512 + 512 + 9488 * 512 + 2 * 512 * 5 * 512 + 2 * 5 * 512 + 9488 * 512 + 9488


def test_a_step_with_gradient_is_an_error():
    policy = make()
    memory = policy.encode(torch.randn(1, WIDTH, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="has no gradient"):
        policy.step((memory[:, :HIDDEN], memory[:, :HIDDEN]), torch.tensor([0]))
