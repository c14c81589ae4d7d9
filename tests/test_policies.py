"""Policies: stepping and scoring agree, states can be cut and joined, and modes are given back."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from corollout.errors import InputError, PolicyError
from corollout.policies import (
    RecurrentPolicy,
    TokenEncoder,
    TransformerPolicy,
    concat,
    detach,
    evaluation_mode,
    score_by_steps,
    select,
)

CONTEXT_VOCAB, VOCAB, BOS = 7, 6, 5


def recurrent(cell: Any, layers: int, **options: Any) -> RecurrentPolicy:
    torch.manual_seed(layers)
    encoder = TokenEncoder(CONTEXT_VOCAB, 8)
    return RecurrentPolicy(encoder, encoder.width, VOCAB, hidden=12, layers=layers, cell=cell, **options)


def transformer(**options: Any) -> TransformerPolicy:
    torch.manual_seed(0)
    return TransformerPolicy(CONTEXT_VOCAB, VOCAB, max_positions=16, width=16, heads=4, layers=2, **options)


MAKERS: dict[str, Callable[..., nn.Module]] = {
    "lstm": lambda **options: recurrent("lstm", 1, **options),
    "lstm-2": lambda **options: recurrent("lstm", 2, **options),
    "gru": lambda **options: recurrent("gru", 1, **options),
    "gru-2": lambda **options: recurrent("gru", 2, **options),
    "transformer": transformer,
}


@pytest.fixture(params=MAKERS)
def policy(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


def contexts_of(*lengths: int, width: int | None = None, seed: int = 0) -> Tensor:
    """Contexts of several lengths in one table, −1 behind their ends."""
    width = max(lengths) if width is None else width
    context = torch.randint(CONTEXT_VOCAB, (len(lengths), width), generator=torch.Generator().manual_seed(seed))
    return torch.where(torch.arange(width) < torch.tensor(lengths)[:, None], context, -1)


def inputs_of(rows: int, steps: int, seed: int = 1) -> Tensor:
    """Tokens to feed: the start token first."""
    tokens = torch.randint(VOCAB, (rows, steps), generator=torch.Generator().manual_seed(seed))
    tokens[:, 0] = BOS
    return tokens


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


# Stepping and scoring


@pytest.mark.parametrize("lengths", [(4, 4, 4), (5, 1, 3, 5), (2, 0, 3), (1,)])
def test_scoring_is_stepping(policy: Any, lengths: tuple[int, ...]):
    memory = policy.encode(contexts_of(*lengths))
    tokens = inputs_of(len(lengths), 6)
    scored = policy.score(memory, tokens)
    assert scored.shape == (len(lengths), 6, VOCAB)
    close(scored, score_by_steps(policy, memory, tokens))
    # Steps depend on what was fed, and on the context.
    assert gap(scored[:, 1:], scored[:, :-1]) > 1e-2
    if len(lengths) > 1:
        assert gap(scored[0, 0], scored[1, 0]) > 1e-3


@pytest.mark.parametrize("steps", [1, 2])
def test_short_sequences_can_be_scored(policy: Any, steps: int):
    memory = policy.encode(contexts_of(3, 2))
    tokens = inputs_of(2, steps)
    close(policy.score(memory, tokens), score_by_steps(policy, memory, tokens))


def test_scoring_looks_at_no_later_token(policy: Any):
    memory = policy.encode(contexts_of(3, 2))
    tokens = inputs_of(2, 6)
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % VOCAB
    before, after = policy.score(memory, tokens), policy.score(memory, changed)
    close(after[:, :4], before[:, :4])
    assert gap(after[:, 4:], before[:, 4:]) > 1e-3


def test_a_context_without_any_place_can_be_read(policy: Any):
    memory = policy.encode(contexts_of(0, 0, width=0))
    tokens = inputs_of(2, 3)
    padded = policy.encode(contexts_of(0, 0, width=4))
    close(policy.score(memory, tokens), score_by_steps(policy, memory, tokens))
    close(policy.score(memory, tokens), policy.score(padded, tokens))


def test_no_row_depends_on_the_padding_of_others(policy: Any):
    lengths = (5, 1, 3, 0)
    tokens = inputs_of(4, 5)
    together = policy.score(policy.encode(contexts_of(*lengths)), tokens)
    wider = policy.score(policy.encode(torch.cat([contexts_of(*lengths), torch.full((4, 3), -1)], 1)), tokens)
    close(wider, together)
    for i, length in enumerate(lengths):
        alone = contexts_of(*lengths)[i : i + 1, : max(length, 1)]
        close(policy.score(policy.encode(alone), tokens[i : i + 1])[0], together[i])


def test_the_order_of_a_context_is_read(policy: Any):
    forwards = torch.tensor([[0, 1, 2, 3]])
    tokens = inputs_of(1, 2)
    a, b = (policy.score(policy.encode(context), tokens) for context in (forwards, forwards.flip(1)))
    assert gap(a, b) > 1e-3


# States


def test_selected_rows_step_as_they_would_have(policy: Any):
    """Prefix sharing: rows may be repeated, dropped and reordered before a step or after it."""
    memory = policy.encode(contexts_of(5, 1, 3, 4))
    tokens = inputs_of(4, 4)
    rows = torch.tensor([3, 0, 0, 2])
    state = policy.start(memory)
    for t in range(3):
        _, state = policy.step(state, tokens[:, t])
    logits, after = policy.step(state, tokens[:, 3])
    chosen_logits, chosen_after = policy.step(select(state, rows), tokens[rows, 3])
    close(chosen_logits, logits[rows])
    close(policy.step(chosen_after, tokens[rows, 0])[0], policy.step(select(after, rows), tokens[rows, 0])[0])


def test_a_step_does_not_change_the_state_it_starts_from(policy: Any):
    state = policy.start(policy.encode(contexts_of(3, 2)))
    first, _ = policy.step(state, torch.tensor([BOS, BOS]))
    policy.step(state, torch.tensor([0, 1]))
    again, _ = policy.step(state, torch.tensor([BOS, BOS]))
    assert torch.equal(first, again)


def test_joined_states_step_as_they_would_apart(policy: Any):
    memory = policy.encode(contexts_of(5, 1, 3, 4))
    state = policy.start(memory)
    _, state = policy.step(state, torch.full((4,), BOS))
    tokens = torch.tensor([1, 2, 3, 4])
    parts = [select(state, torch.tensor([2])), select(state, torch.tensor([0, 1, 3]))]
    order = torch.tensor([2, 0, 1, 3])
    joined, _ = policy.step(concat(parts), tokens[order])
    close(joined, policy.step(state, tokens)[0][order])


def test_no_rows_can_be_selected(policy: Any):
    state = policy.start(policy.encode(contexts_of(3, 2)))
    nothing = torch.empty(0, dtype=torch.int64)
    logits, _ = policy.step(select(state, nothing), nothing)
    assert logits.shape == (0, VOCAB)


def test_the_gradient_reaches_every_parameter(policy: Any):
    policy.score(policy.encode(contexts_of(4, 2, 3)), inputs_of(3, 5)).square().sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert bool((parameter.grad != 0).any()), name


def test_the_gradient_reaches_the_encoder_through_selected_rows(policy: Any):
    memory = select(policy.encode(contexts_of(4, 2, 3)), torch.tensor([1, 1]))
    policy.score(memory, inputs_of(2, 5)).square().sum().backward()
    encoder = policy.encoder if isinstance(policy, RecurrentPolicy) else policy.context_embedding
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert bool((parameter.grad != 0).any()), name


def test_the_gradient_is_the_same_in_evaluation_mode(policy: Any):
    def gradients() -> list[Tensor]:
        policy.zero_grad()
        policy.score(policy.encode(contexts_of(4, 2)), inputs_of(2, 4)).square().sum().backward()
        return [parameter.grad.clone() for parameter in policy.parameters()]

    in_training = gradients()
    policy.eval()
    close(gradients(), in_training)


def test_any_module_can_encode():
    torch.manual_seed(0)
    policy = RecurrentPolicy(nn.Linear(3, 9), 9, VOCAB, hidden=10)
    memory = policy.encode(torch.randn(4, 3))
    tokens = inputs_of(4, 5)
    close(policy.score(memory, tokens), score_by_steps(policy, memory, tokens))


@pytest.mark.parametrize("name", MAKERS)
def test_dropout_acts_in_training_only(name: str):
    policy: Any = MAKERS[name](dropout=0.5)
    context, tokens = contexts_of(3, 2), inputs_of(2, 4)
    torch.manual_seed(0)
    a, b = (policy.score(policy.encode(context), tokens) for _ in range(2))
    assert not torch.equal(a, b)
    policy.eval()
    a, b = (policy.score(policy.encode(context), tokens) for _ in range(2))
    assert torch.equal(a, b)
    close(a, score_by_steps(policy, policy.encode(context), tokens))


def test_a_transformer_says_when_its_positions_are_used_up():
    policy = transformer()
    memory = policy.encode(contexts_of(10, 4))
    close(policy.score(memory, inputs_of(2, 6)), score_by_steps(policy, memory, inputs_of(2, 6)))
    message = "context and sequence have 17 tokens together, but the transformer was made for max_positions=16"
    with pytest.raises(InputError, match=message):
        policy.score(memory, inputs_of(2, 7))
    with pytest.raises(InputError, match=message):
        score_by_steps(policy, memory, inputs_of(2, 7))
    # The shorter context alone has room for more: padding takes no position.
    short = policy.encode(contexts_of(10, 4)[1:])
    assert policy.score(short, inputs_of(1, 12)).shape == (1, 12, VOCAB)
    with pytest.raises(InputError, match="have 17 tokens together"):
        policy.encode(contexts_of(17))


def test_a_transformer_refuses_a_width_that_its_heads_cannot_share():
    with pytest.raises(InputError, match="the width 10 must be a multiple of the number of heads 4"):
        TransformerPolicy(3, 3, 8, width=10, heads=4)


# Nests


class Pair(NamedTuple):
    left: Tensor
    right: Any


@dataclass(frozen=True)
class Box:
    content: Any
    nothing: None = None


class Columnar:
    """A state with rows last, which therefore cuts and joins itself."""

    def __init__(self, table: Tensor):
        self.table = table

    def select(self, rows: Tensor) -> "Columnar":
        return Columnar(self.table[:, rows])

    @staticmethod
    def concat(states: "list[Columnar]") -> "Columnar":
        return Columnar(torch.cat([state.table for state in states], 1))

    def detach(self) -> "Columnar":
        return Columnar(self.table.detach())


class ColumnarByClass(Columnar):
    """The same with a class method."""

    def select(self, rows: Tensor) -> "ColumnarByClass":
        return ColumnarByClass(self.table[:, rows])

    @classmethod
    def concat(cls, states: "list[Columnar]") -> "ColumnarByClass":  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls(torch.cat([state.table for state in states], 1))


def table(offset: int = 0, rows: int = 3) -> Tensor:
    return torch.arange(offset, offset + 2 * rows, dtype=torch.float32).view(rows, 2)


NESTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: x,
    "tuple": lambda x: (x, x + 1),
    "list": lambda x: [x, (x,)],
    "named tuple": lambda x: Pair(x, [x - 1]),
    "dict": lambda x: {"a": x, "b": {"c": x * 2}},
    "ordered dict": lambda x: OrderedDict(a=x),
    "dataclass": lambda x: Box(x),
    "none": lambda x: None,
    "empty": lambda x: (),
    "deep": lambda x: {"a": [Box((x, None)), Pair(x, {"b": x})], "c": None},
}


def leaves(nest: Any) -> list[Tensor]:
    if isinstance(nest, Tensor):
        return [nest]
    if nest is None:
        return []
    if isinstance(nest, dict):
        return [leaf for value in nest.values() for leaf in leaves(value)]
    if isinstance(nest, Box):
        return leaves(nest.content)
    return [leaf for value in nest for leaf in leaves(value)]


@pytest.mark.parametrize("kind", NESTS)
def test_nests_are_cut_and_joined(kind: str):
    make = NESTS[kind]
    rows = torch.tensor([2, 0, 0])
    nest, other = make(table()), make(table(100, rows=2))
    chosen = select(nest, rows)
    joined = concat([nest, other, chosen])
    built = type(nest) if kind != "ordered dict" else dict
    assert isinstance(chosen, built)
    assert isinstance(joined, built)
    for whole, cut, more, all_ in zip(leaves(nest), leaves(chosen), leaves(other), leaves(joined), strict=True):
        assert torch.equal(cut, whole[rows])
        assert torch.equal(all_, torch.cat([whole, more, cut]))
    assert concat([nest]) is nest


@pytest.mark.parametrize("kind", NESTS)
def test_nests_are_detached(kind: str):
    nest = NESTS[kind](table().requires_grad_())
    cut = detach(nest)
    assert all(leaf.requires_grad for leaf in leaves(nest))
    assert not any(leaf.requires_grad for leaf in leaves(cut))
    for a, b in zip(leaves(nest), leaves(cut), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", [Columnar, ColumnarByClass])
def test_a_state_of_another_layout_cuts_and_joins_itself(kind: Any):
    state = kind(table().t().requires_grad_())
    chosen = select(state, torch.tensor([2, 2]))
    assert type(chosen) is kind
    assert torch.equal(chosen.table, table()[[2, 2]].t())
    joined = concat([state, chosen])
    assert type(joined) is kind
    assert torch.equal(joined.table, table()[[0, 1, 2, 2, 2]].t())
    assert not detach(state).table.requires_grad


def test_a_state_of_another_layout_may_lie_in_a_nest():
    state = {"own": Columnar(table().t()), "plain": table()}
    chosen = select(state, torch.tensor([1]))
    assert torch.equal(chosen["own"].table, table()[[1]].t())
    assert torch.equal(concat([state, chosen])["own"].table, table()[[0, 1, 2, 1]].t())
    assert torch.equal(detach(state)["plain"], table())


@pytest.mark.parametrize(
    ("nest", "what"), [("text", "str"), ([1.5], "float"), ({"a": (3,)}, "int"), (object(), "object")]
)
def test_what_cannot_be_cut_is_refused(nest: Any, what: str):
    message = f"a memory or state contains a {what}: use tensors with rows first in lists, tuples, dicts or dataclasses"
    with pytest.raises(PolicyError, match=message):
        select(nest, torch.tensor([0]))
    with pytest.raises(PolicyError, match=message):
        concat([nest, nest])
    with pytest.raises(PolicyError, match=message):
        detach(nest)


# Modes


class Mixed(nn.Module):
    """A module some parts of which are frozen in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.active, self.frozen = nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
        self.frozen.eval()
        self.frozen[1].train()


def modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


def test_every_module_gets_its_own_mode_back():
    module = Mixed()
    before = modes(module)
    assert len(set(before)) == 2
    with evaluation_mode(module):
        assert not any(modes(module))
    assert modes(module) == before


def test_modes_are_given_back_after_an_exception():
    module = Mixed()
    before = modes(module)

    def fail() -> None:
        with evaluation_mode(module), evaluation_mode(module):
            raise LookupError("inside")

    with pytest.raises(LookupError, match="inside"):
        fail()
    assert modes(module) == before


def test_an_evaluating_module_stays_one(policy: Any):
    policy.eval()
    before = modes(policy)
    with evaluation_mode(policy):
        pass
    assert modes(policy) == before
    assert not policy.training


def test_a_policy_need_not_be_a_module():
    with evaluation_mode(object()) as nothing:
        assert nothing is None


def test_recurrent_layers_lose_their_dropout_but_not_their_training_mode():
    """cuDNN computes gradients of recurrent layers in training mode only."""
    module = nn.ModuleDict({"rnn": nn.LSTM(3, 3, 2, dropout=0.7), "dropout": nn.Dropout(0.5)})
    rnn = module["rnn"]
    assert isinstance(rnn, nn.LSTM)
    x = torch.randn(4, 2, 3)
    with evaluation_mode(module):
        assert rnn.training
        assert not module["dropout"].training
        assert torch.equal(rnn(x)[0], rnn(x)[0])
    assert rnn.dropout == 0.7
    assert module["dropout"].training
    assert not torch.equal(rnn(x)[0], rnn(x)[0])
