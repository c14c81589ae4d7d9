"""Policies: stepping and scoring agree, states can be selected and joined, and modes are restored."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
from corollout.policies.protocol import as_leaves

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


@pytest.mark.parametrize(
    ("lengths", "width", "steps"),
    [((4, 4, 4), 4, 6), ((5, 1, 3, 5), 5, 6), ((2, 0, 3), 3, 2), ((1,), 1, 1), ((0, 0), 0, 3)],
)
def test_scoring_is_stepping(policy: Any, lengths: tuple[int, ...], width: int, steps: int):
    memory = policy.encode(contexts_of(*lengths, width=width))
    tokens = inputs_of(len(lengths), steps)
    scored = policy.score(memory, tokens)
    assert scored.shape == (len(lengths), steps, VOCAB)
    close(scored, score_by_steps(policy, memory, tokens))
    if steps == 6:  # steps depend on what was fed, and on the context
        assert gap(scored[:, 1:], scored[:, :-1]) > 1e-2
        assert gap(scored[0, 0], scored[1, 0]) > 1e-3


def test_scoring_reads_earlier_tokens_and_the_order_of_the_context(policy: Any):
    memory = policy.encode(contexts_of(3, 2))
    tokens = inputs_of(2, 6)
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % VOCAB
    before, after = policy.score(memory, tokens), policy.score(memory, changed)
    close(after[:, :4], before[:, :4])
    assert gap(after[:, 4:], before[:, 4:]) > 1e-3
    forwards = torch.tensor([[0, 1, 2, 3]])
    a, b = (policy.score(policy.encode(context), tokens[:1]) for context in (forwards, forwards.flip(1)))
    assert gap(a, b) > 1e-3


def test_padding_changes_nothing(policy: Any):
    lengths = (5, 1, 3, 0)
    contexts, tokens = contexts_of(*lengths), inputs_of(4, 5)
    together = policy.score(policy.encode(contexts), tokens)
    close(policy.score(policy.encode(torch.cat([contexts, torch.full((4, 3), -1)], 1)), tokens), together)
    for i, length in enumerate(lengths):
        alone = policy.encode(contexts[i : i + 1, :length])
        close(policy.score(alone, tokens[i : i + 1])[0], together[i])


# States


def test_selected_and_joined_rows_step_as_they_would_have(policy: Any):
    """Prefix sharing: rows may be repeated, dropped and reordered before a step or after it."""
    memory = policy.encode(contexts_of(5, 1, 3, 4))
    tokens = inputs_of(4, 4)
    rows = torch.tensor([3, 0, 0, 2])
    state = policy.start(memory)
    for t in range(3):
        _, state = policy.step(state, tokens[:, t])
    logits, after = policy.step(state, tokens[:, 3])
    assert torch.equal(policy.step(state, tokens[:, 3])[0], logits)  # the state is not changed
    selected_logits, selected_after = policy.step(select(state, rows), tokens[rows, 3])
    close(selected_logits, logits[rows])
    close(policy.step(selected_after, tokens[rows, 0])[0], policy.step(select(after, rows), tokens[rows, 0])[0])
    parts = [select(state, torch.tensor([2])), select(state, torch.tensor([0, 1, 3]))]
    order = torch.tensor([2, 0, 1, 3])
    close(policy.step(concat(parts), tokens[order, 3])[0], logits[order])
    none = torch.empty(0, dtype=torch.int64)
    assert policy.step(select(state, none), none)[0].shape == (0, VOCAB)


def test_gradients_reach_every_parameter(policy: Any):
    """Also through selected rows of the memory; the same in evaluation mode."""

    def gradients() -> list[Tensor]:
        policy.zero_grad()
        memory = select(policy.encode(contexts_of(4, 2, 3)), torch.tensor([1, 1, 0, 2]))
        policy.score(memory, inputs_of(4, 5)).square().sum().backward()
        return [parameter.grad.clone() for parameter in policy.parameters()]

    in_training = gradients()
    assert all(bool(g.isfinite().all() and (g != 0).any()) for g in in_training)
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


def test_limits_of_a_transformer():
    policy = transformer()
    memory = policy.encode(contexts_of(10, 4))
    for score in (policy.score, partial(score_by_steps, policy)):
        assert score(memory, inputs_of(2, 6)).shape == (2, 6, VOCAB)
        with pytest.raises(InputError, match=r"17 tokens together, .* max_positions=16"):
            score(memory, inputs_of(2, 7))
    # The shorter context alone leaves room for more: padding takes no position.
    assert policy.score(policy.encode(contexts_of(10, 4)[1:]), inputs_of(1, 12)).shape == (1, 12, VOCAB)
    with pytest.raises(InputError, match="17 tokens together"):
        policy.encode(contexts_of(17))
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
    """A state with rows last, which therefore selects and joins its rows itself."""

    def __init__(self, table: Tensor):
        self.table = table

    def select(self, rows: Tensor) -> "Columnar":
        return type(self)(self.table[:, rows])

    @staticmethod
    def concat(states: "list[Columnar]") -> "Columnar":
        return Columnar(torch.cat([state.table for state in states], 1))

    def detach(self) -> "Columnar":
        return type(self)(self.table.detach())


class ColumnarByClass(Columnar):
    """The same with a class method."""

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
def test_nests(kind: str):
    make = NESTS[kind]
    rows = torch.tensor([2, 0, 0])
    nest, other = make(table().requires_grad_()), make(table(100, rows=2))
    selected = select(nest, rows)
    joined = concat([nest, other, selected])
    built = type(nest) if kind != "ordered dict" else dict
    assert isinstance(selected, built)
    assert isinstance(joined, built)
    for whole, cut, more, all_ in zip(leaves(nest), leaves(selected), leaves(other), leaves(joined), strict=True):
        assert torch.equal(cut, whole[rows])
        assert torch.equal(all_, torch.cat([whole, more, cut]))
    assert concat([nest]) is nest
    for before, after in zip(leaves(nest), leaves(detach(nest)), strict=True):
        assert torch.equal(before, after)
        assert not after.requires_grad


@pytest.mark.parametrize("kind", [Columnar, ColumnarByClass])
def test_a_state_of_another_layout(kind: Any):
    state = {"columns": kind(table().t().requires_grad_()), "plain": table()}
    selected = select(state, torch.tensor([2, 2]))
    joined = concat([state, selected])
    assert type(selected["columns"]) is type(joined["columns"]) is kind
    assert torch.equal(selected["columns"].table, table()[[2, 2]].t())
    assert torch.equal(joined["columns"].table, table()[[0, 1, 2, 2, 2]].t())
    assert not detach(state)["columns"].table.requires_grad


@pytest.mark.parametrize(
    ("nest", "what"), [("text", "str"), ([1.5], "float"), ({"a": (3,)}, "int"), (object(), "object")]
)
def test_states_that_are_refused(nest: Any, what: str):
    for use in (lambda: select(nest, torch.tensor([0])), lambda: concat([nest, nest]), lambda: detach(nest)):
        with pytest.raises(PolicyError, match=f"a memory or state contains a {what}: use tensors"):
            use()


# Leaves


@dataclass(frozen=True)
class Table:
    """An object that selects and cuts off its rows itself, as that of the Karel policy."""

    table: Tensor
    index: Tensor

    def select(self, rows: Tensor) -> "Table":
        return Table(self.table, self.index[rows])

    def detach(self) -> "Table":
        return Table(self.table.detach(), self.index)


def tensors_of(nest: Any) -> list[Tensor]:
    return [nest.table[nest.index]] if isinstance(nest, Table) else leaves(nest)


@pytest.mark.parametrize("kind", [*NESTS, "object"])
def test_leaves_pass_their_gradients_on(kind: str):
    """Several backward passes through leaves and one through the graph before them give the gradient of all."""
    make = {**NESTS, "object": lambda x: Table(x, torch.tensor([2, 0, 0]))}[kind]
    x = table().requires_grad_()
    # A graph that frees its buffers after one backward pass.
    nest, factors = make(x.exp() * 2), [1.5, -0.5, 3.0]

    def use(part: Any, factor: float) -> Tensor:
        return sum((factor * (i + 1) * t.square().sum() for i, t in enumerate(tensors_of(part))), torch.zeros(()))

    direct = use(make(x.exp() * 2), sum(factors))
    expected = torch.autograd.grad(direct, x)[0] if direct.requires_grad else None
    cut, pass_on = as_leaves(nest)
    assert type(cut) is (type(nest) if kind != "ordered dict" else dict)
    for before, after in zip(tensors_of(nest), tensors_of(cut), strict=True):
        assert torch.equal(before, after)
    for factor in factors:
        if tensors_of(cut):
            use(cut, factor).backward()
    assert x.grad is None
    assert pass_on is not None
    pass_on()
    assert (x.grad is None) == (expected is None) == (kind in ("none", "empty"))
    if expected is not None:
        torch.testing.assert_close(x.grad, expected)


def test_leaves_without_gradient_stay_as_they_are():
    number, unused = torch.tensor([1, 2]), table().requires_grad_()
    (same, leaf), pass_on = as_leaves((number, unused * 2))
    assert same is number
    assert leaf.is_leaf
    assert pass_on is not None
    pass_on()  # nothing was used
    assert unused.grad is None


def test_objects_that_cannot_be_taken_apart_are_refused():
    with pytest.raises(
        PolicyError, match="a memory contains a Columnar, which scoring in several micro-batches cannot"
    ):
        as_leaves({"a": Columnar(table())})


# Modes


def modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


def test_every_module_gets_its_mode_back():
    module = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)).eval())
    module[1][1].train()  # pyright: ignore[reportIndexIssue]
    before = modes(module)
    assert len(set(before)) == 2
    with evaluation_mode(module):
        assert not any(modes(module))
    assert modes(module) == before

    def fail() -> None:
        with evaluation_mode(module), evaluation_mode(module):
            raise LookupError("inside")

    with pytest.raises(LookupError, match="inside"):
        fail()
    assert modes(module) == before
    with evaluation_mode(object()) as nothing:  # a policy need not be a module
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
