"""The network for Karel: its sizes, its pictures, its states, and a plain twin of it made of PyTorch's own layers."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from corollout.data import Columns
from corollout.noise import Noise
from corollout.policies import concat, detach, score_by_steps, select
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import Grids, pack
from corollout.tasks.karel.language import END, START, TOKENS
from corollout.tasks.karel.metrics import SolvesTask
from corollout.tasks.karel.model import CHANNELS, Constants, KarelPolicy, PairEncoder, pictures
from corollout.tasks.karel.task import karel_columns
from corollout.tasks.karel.world import World
from corollout.training.estimate import estimate
from tests.support.karel_strategies import worlds

SIDE, PAIRS = 7, 5
SIZES: Any = {"side": SIDE, "channels": 3, "pair_width": 6, "token_width": 5, "hidden": 4}


def small(blocks: int = 1, layers: int = 2, dtype: torch.dtype = torch.float64) -> KarelPolicy:
    torch.manual_seed(blocks * 10 + layers)
    policy = KarelPolicy(**SIZES, blocks=blocks, layers=layers)
    nn.init.normal_(policy.first)
    return policy.to(dtype)


@pytest.fixture(scope="module")
def data() -> KarelData:
    return generate({"train": 6}, shortest=5, longest=8, largest=SIDE - 2, workers=1)["train"]


@pytest.fixture(scope="module")
def columns(data: KarelData) -> Columns:
    return karel_columns(data)


def contexts(columns: Columns, count: int = 4) -> Tensor:
    return columns.batch(range(count)).context


def tokens(rows: int, steps: int) -> Tensor:
    drawn = torch.randint(len(TOKENS), (rows, steps), generator=torch.Generator().manual_seed(rows))
    drawn[:, :1] = START
    return drawn


# --- sizes and pictures --------------------------------------------------------------------------------------------


def test_the_paper_s_model_has_12_45_million_parameters():
    policy = KarelPolicy()
    assert sum(parameter.numel() for parameter in policy.parameters()) == 12_453_365
    convolutions = [module for module in policy.modules() if isinstance(module, nn.Conv2d)]
    shapes = [(c.in_channels, c.out_channels, c.kernel_size) for c in convolutions]
    assert shapes == [(16, 32, (3, 3))] * 2 + [(64, 64, (3, 3))] * 6
    assert policy.encoder.output.weight.shape == (512, 64 * 18 * 18)
    assert policy.embedding.weight.shape == (53, 256)
    # 256 numbers of the token and 512 of the pair go into the first of two layers of 256.
    assert (policy.from_token.shape, policy.from_pair.shape) == ((256, 1024), (512, 1024))
    assert [tuple(weight.shape) for weight in policy.recurrent] == [(256, 1024)] * 2
    assert policy.output.weight.shape == (53, 256)


def channels(picture: np.ndarray) -> np.ndarray:
    """What the encoder makes of a picture."""
    table: Any = PairEncoder(3, 1, 0, 1).table
    return table[torch.from_numpy(picture).long()].permute(2, 0, 1).numpy()


def public(world: World) -> np.ndarray:
    flat = np.zeros(CHANNELS * 18 * 18)
    flat[[int(entry.split(":")[0]) for entry in world.to_tensor().split()]] = 1
    return flat.reshape(CHANNELS, 18, 18)


@settings(deadline=None, max_examples=60)
@given(worlds(smallest=2, most_markers=10))
def test_pictures_have_the_public_channels(data):
    world = World.from_json(data)
    assert np.array_equal(channels(pictures(pack([world], 18))[0]), public(world))


@settings(deadline=None, max_examples=30)
@given(worlds(smallest=2, largest=6, most_markers=10))
def test_a_smaller_picture_is_a_corner_of_the_public_one(data):
    world = World.from_json(data)
    whole = public(world)
    assert np.array_equal(channels(pictures(pack([world], 8))[0]), whole[:, :8, :8])
    assert whole[:, :8, :8].sum() == whole.sum()


@pytest.mark.parametrize("count", [11, 101])
def test_more_than_ten_markers_look_like_ten(count):
    def with_markers(n: int) -> World:
        return World(3, 3, (0, 0, 2), markers=(((0, 0), n), ((2, 1), n)))

    many, ten = (pictures(pack([with_markers(n)], 5)) for n in (count, 10))
    assert np.array_equal(many, ten)


def test_pictures_of_any_arrangement():
    ones = [World(3, 3, (row, 1, row)) for row in range(3)] * 2
    grids = pack(ones, 5)
    arranged = Grids(grids.cells.reshape(2, 3, 5, 5), grids.hero.reshape(2, 3, 2))
    kept = grids.cells.copy()
    assert np.array_equal(pictures(arranged).reshape(6, 5, 5), pictures(grids))
    assert np.array_equal(grids.cells, kept)


def test_the_context_is_what_is_shown(data: KarelData, columns: Columns):
    context = contexts(columns)
    assert context.shape == (4, PAIRS, 2, SIDE, SIDE)
    for example in range(PAIRS):
        for number, grids in enumerate((data.inputs, data.outputs)):
            assert np.array_equal(context[:, example, number], pictures(grids[:4, example]))


# --- a plain twin --------------------------------------------------------------------------------------------------


class Twin(nn.Module):
    """The same network with ``nn.LSTM``, which is fed the token and the pair at every step, one pair after another."""

    def __init__(self, policy: KarelPolicy):
        super().__init__()
        self.policy = policy
        layers, hidden = len(policy.recurrent), policy.hidden
        width = policy.from_token.shape[0] + policy.from_pair.shape[0]
        self.rnn = nn.LSTM(width, hidden, layers, batch_first=True).double()
        inputs = [torch.cat([policy.from_token, policy.from_pair]), *policy.from_below]
        with torch.no_grad():
            for number in range(layers):
                for name, ours in (
                    ("weight_ih", inputs[number].t()),
                    ("weight_hh", policy.recurrent[number].t()),
                    ("bias_ih", policy.bias[number][0]),
                    ("bias_hh", policy.bias[number][1]),
                ):
                    o, i, f, g = ours.chunk(4)
                    getattr(self.rnn, f"{name}_l{number}").copy_(torch.cat([i, f, g, o]))

    def forward(self, context: Tensor, tokens: Tensor) -> Tensor:
        policy, encoder = self.policy, self.policy.encoder
        table: Any = encoder.table
        outputs = []
        for pair in range(context.shape[1]):
            before, after = (table[context[:, pair, n].long()].permute(0, 3, 1, 2) for n in (0, 1))
            x = torch.cat([encoder.before(before), encoder.after(after)], 1).relu()
            for block in encoder.blocks:
                first, second, third = block.children()
                x = (x + third(second(first(x).relu()).relu())).relu()
            vector = encoder.output(x.permute(0, 2, 3, 1).flatten(1))
            fed = torch.cat([policy.embedding(tokens), vector[:, None].expand(-1, tokens.shape[1], -1)], 2)
            h, c = (policy.first[:, n, None].expand(-1, len(tokens), -1).contiguous() for n in (0, 1))
            outputs.append(self.rnn(fed, (h, c))[0])
        return policy.output(torch.stack(outputs).amax(0))


@pytest.mark.parametrize(("blocks", "layers"), [(0, 1), (1, 2), (2, 3)])
def test_scores_are_those_of_the_plain_twin(columns: Columns, blocks: int, layers: int):
    policy = small(blocks, layers)
    context, drawn = contexts(columns), tokens(4, 6)
    torch.testing.assert_close(policy.score(policy.encode(context), drawn), Twin(policy)(context, drawn))


def test_gradients_are_those_of_the_plain_twin(columns: Columns):
    policy = small()
    twin = Twin(policy)
    context, drawn = contexts(columns), tokens(4, 6)
    shared = [*policy.encoder.parameters(), policy.embedding.weight, policy.first, *policy.output.parameters()]
    ours = policy.score(policy.encode(context), drawn)
    outer = torch.randn_like(ours)
    grads = torch.autograd.grad(ours, [*shared, policy.from_pair, *policy.recurrent, *policy.bias], outer)
    theirs = torch.autograd.grad(twin(context, drawn), [*shared, *twin.rnn.parameters()], outer)
    for mine, plain in zip(grads, theirs[: len(shared)], strict=False):
        torch.testing.assert_close(mine, plain)
    own = dict(zip([name for name, _ in twin.rnn.named_parameters()], theirs[len(shared) :], strict=True))
    names = ["weight_ih_l0", "weight_hh_l0", "weight_hh_l1", "bias_ih_l0", "bias_ih_l1"]
    for name, mine in zip(names, grads[len(shared) :], strict=True):
        i, f, g, o = own[name].chunk(4)
        plain = torch.cat([o, i, f, g])
        if name == "weight_ih_l0":
            plain = plain[:, len(policy.from_token) :]
        # Both biases have the same gradient.
        torch.testing.assert_close(mine[0] if mine.shape[0] == 2 and plain.ndim == 1 else mine, plain.t())


# --- states --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 3])
@torch.no_grad()
def test_steps_and_scores_agree(columns: Columns, layers: int):
    policy = small(layers=layers)
    memory = policy.encode(contexts(columns))
    rows = torch.tensor([3, 0, 0, 2, 1, 3])
    drawn = tokens(6, 9)
    chosen = select(memory, rows)
    torch.testing.assert_close(policy.score(chosen, drawn), score_by_steps(policy, chosen, drawn))


@torch.no_grad()
def test_rows_may_be_cut_and_joined_at_any_step(columns: Columns):
    policy = small()
    drawn = tokens(6, 8)
    whole = policy.score(policy.encode(contexts(columns, 6)), drawn)
    state = policy.start(policy.encode(contexts(columns, 6)))
    rows = torch.arange(6)
    for t in range(8):
        logits, state = policy.step(state, drawn[rows, t])
        torch.testing.assert_close(logits, whole[rows, t])
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(t))
        parts = [select(state, part) for part in order.split(2)]
        rows, state = rows[order], concat(parts)


@torch.no_grad()
def test_a_step_leaves_its_state_alone(columns: Columns):
    policy = small()
    state = policy.start(policy.encode(contexts(columns)))
    fed = torch.tensor([3, 4, 5, 6])
    _, state = policy.step(state, fed)
    kept = [part.clone() for layer in state[1] for part in layer]
    first, _ = policy.step(state, fed)
    assert all(torch.equal(a, b) for a, b in zip(kept, (part for layer in state[1] for part in layer), strict=True))
    assert torch.equal(first, policy.step(state, fed)[0])


def test_a_step_with_gradient_is_refused(columns: Columns):
    policy = small()
    state = policy.start(policy.encode(contexts(columns)))
    with pytest.raises(RuntimeError, match="without gradient"):
        policy.step(state, torch.zeros(4, dtype=torch.int64))


def test_constants_are_numbered_not_copied():
    table = torch.randn(3, 2, 4, requires_grad=True)
    constants = Constants(table, torch.arange(3))
    chosen = select(constants, torch.tensor([2, 0, 2, 1]))
    assert chosen.table is table
    assert chosen.number.tolist() == [2, 0, 2, 1]
    assert select(chosen, torch.tensor([3, 2])).number.tolist() == [1, 2]
    joined = concat([chosen, select(constants, torch.tensor([1]))])
    assert joined.table is table
    assert joined.number.tolist() == [2, 0, 2, 1, 1]
    free = detach(joined)
    assert not free.table.requires_grad
    assert free.table.data_ptr() == table.data_ptr()
    assert free.number.tolist() == joined.number.tolist()


def test_constants_of_several_tables_can_be_joined():
    tables = [torch.randn(rows, 2, 4) for rows in (3, 1, 2)]
    parts = [Constants(t, torch.tensor(n)) for t, n in zip(tables, ([2, 0], [0, 0, 0], [1]), strict=True)]
    joined = concat(parts)
    wanted = torch.cat([part.table[part.number] for part in parts])
    assert torch.equal(joined.table[joined.number], wanted)


# --- estimates -----------------------------------------------------------------------------------------------------


def variety(sequences: list[list[int]]) -> list[float]:
    """A reward that even an untrained policy gets."""
    return [float(len(set(sequence))) for sequence in sequences]


class Counting(KarelPolicy):
    """Notes how many contexts are encoded, how many pairs the encoder sees, and how often rows step."""

    encoded = pairs = steps = 0

    def encode(self, context: Tensor) -> Constants:
        self.encoded += len(context)
        handle = self.encoder.register_forward_hook(lambda module, inputs, output: self._note(len(output)))
        memory = super().encode(context)
        handle.remove()
        return memory

    def _note(self, pairs: int) -> None:
        self.pairs += pairs

    def step(self, state: Any, tokens: Tensor) -> Any:
        self.steps += len(tokens)
        return super().step(state, tokens)


def test_a_context_is_encoded_once(data: KarelData, columns: Columns):
    torch.manual_seed(0)
    policy = Counting(**SIZES)
    engine = Engine(policy, bos=START, eos=END, max_length=5, max_rows=100)
    done = estimate(engine, columns.batch(range(6)), Reward(SolvesTask(data)), "arsm", Noise(0))
    assert done.cost.rollouts > 6
    assert (policy.encoded, policy.pairs) == (6, 6 * PAIRS)
    assert policy.steps == done.cost.tokens


@torch.no_grad()
def test_the_pair_s_share_of_the_gates_is_computed_when_it_is_encoded(columns: Columns):
    """Afterwards neither steps nor scores look at its weights again."""
    policy, drawn = small(), tokens(4, 6)
    memory = policy.encode(contexts(columns))
    wanted = policy.score(memory, drawn)
    policy.from_pair.fill_(torch.nan)
    policy.bias[0].fill_(torch.nan)
    assert torch.equal(policy.score(memory, drawn), wanted)
    torch.testing.assert_close(score_by_steps(policy, memory, drawn), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "estimator",
    [
        "arsm",
        "ars-5",
        "mc-2",
        "mc-0",
        "rloo-4",
        "sc",
        "reinforce",
        "rl-beam-4",
        "set-4",
        "rloo-3:baseline=fitted",
        "pairs",
    ],
)
def test_every_estimator_works(columns: Columns, estimator: str, dtype: torch.dtype):
    engine = Engine(small(dtype=dtype), bos=START, eos=END, max_length=6)
    done = estimate(engine, columns.batch(range(4)), variety, estimator, Noise(1), check_score=True)
    done.backward()
    for name, parameter in engine.policy.named_parameters():  # pyright: ignore[reportAttributeAccessIssue]
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_chunks_of_rows_change_nothing(columns: Columns):
    """States of several chunks are joined where their branches run together."""
    policy, found = small(), []
    for max_rows in (4, 4096):
        engine = Engine(policy, bos=START, eos=END, max_length=3, max_rows=max_rows)
        found.append(estimate(engine, columns.batch(range(6)), variety, "mc-2", Noise(2)))
    assert torch.equal(found[0].completed.tokens, found[1].completed.tokens)
    torch.testing.assert_close(found[0].gradient, found[1].gradient)
