"""The network for Karel: sizes, pictures, states, and a simple twin made of PyTorch's layers."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from corollout.data import Columns
from corollout.noise import Noise
from corollout.policies import concat, detach, score_by_steps, select
from corollout.policies.protocol import GraphSizes
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import Grids, pack
from corollout.tasks.karel.language import END, START, TOKENS
from corollout.tasks.karel.metrics import SolvesTask
from corollout.tasks.karel.model import CHANNELS, Constants, KarelPolicy, PairEncoder, max_of_pairs, pictures
from corollout.tasks.karel.task import karel_split
from corollout.tasks.karel.world import World
from corollout.training.estimates import estimate
from tests.support.karel_strategies import worlds

SIDE, PAIRS = 7, 5
ESTIMATORS = "arsm ars-5 mc-2 mc-0 rloo-4 sc reinforce rl-beam-4 set-4 rloo-3:baseline=fitted pairs"
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
    return karel_split(data).columns


def contexts(columns: Columns, count: int = 4) -> Tensor:
    return columns.batch(range(count)).context


def tokens(rows: int, steps: int) -> Tensor:
    drawn = torch.randint(len(TOKENS), (rows, steps), generator=torch.Generator().manual_seed(rows))
    drawn[:, :1] = START
    return drawn


def test_the_paper_s_model_has_12_45_million_parameters():
    policy = KarelPolicy()
    assert sum(parameter.numel() for parameter in policy.parameters()) == 12_453_365
    convolutions = [module.weight.shape for module in policy.modules() if isinstance(module, nn.Conv2d)]
    assert convolutions == [(32, 16, 3, 3)] * 2 + [(64, 64, 3, 3)] * 6
    assert policy.encoder.output.weight.shape == (512, 64 * 18 * 18)
    # 256 numbers of the token and 512 of the pair go into the first of two layers of 256.
    assert (policy.from_token.shape, policy.from_pair.shape) == ((256, 1024), (512, 1024))


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
    if max(world.rows, world.cols) <= 6:
        assert np.array_equal(channels(pictures(pack([world], 8))[0]), public(world)[:, :8, :8])


def test_more_than_ten_markers_look_like_ten_and_any_arrangement_of_worlds_is_drawn():
    same = [World(3, 3, (0, 0, 2), markers=(((0, 0), n), ((2, 1), n))) for n in (10, 11, 101)]
    ten, *many = pictures(pack(same, 5))
    assert all(np.array_equal(one, ten) for one in many)
    ones = [World(3, 3, (row, 1, row)) for row in range(3)] * 2
    grids = pack(ones, 5)
    arranged, kept = Grids(grids.cells.reshape(2, 3, 5, 5), grids.hero.reshape(2, 3, 2)), grids.cells.copy()
    assert np.array_equal(pictures(arranged).reshape(6, 5, 5), pictures(grids))
    assert np.array_equal(grids.cells, kept)


def test_the_context_is_what_is_shown(data: KarelData, columns: Columns):
    context = contexts(columns)
    assert context.shape == (4, PAIRS, 2, SIDE, SIDE)
    for example in range(PAIRS):
        for number, grids in enumerate((data.inputs, data.outputs)):
            assert np.array_equal(context[:, example, number], pictures(grids[:4, example]))


def twin(policy: KarelPolicy, context: Tensor, tokens: Tensor) -> Tensor:
    """The same network with PyTorch's LSTM, fed the token and the pair at every step, one pair after another."""
    encoder, layers = policy.encoder, len(policy.recurrent)
    table: Any = encoder.table
    inputs = [torch.cat([policy.from_token, policy.from_pair]), *policy.from_below]
    weights = [part for n in range(layers) for part in (inputs[n].t(), policy.recurrent[n].t(), *policy.bias[n])]
    gates = [weight.chunk(4) for weight in weights]
    ordered = [torch.cat([i, f, g, o]) for o, i, f, g in gates]
    outputs = []
    for pair in range(context.shape[1]):
        before, after = (table[context[:, pair, n].long()].permute(0, 3, 1, 2) for n in (0, 1))
        x = torch.cat([encoder.before(before), encoder.after(after)], 1).relu()
        for block in encoder.blocks:
            first, second, third = block.children()
            x = (x + third(second(first(x).relu()).relu())).relu()
        vector = encoder.output(x.permute(0, 2, 3, 1).flatten(1))
        fed = torch.cat([policy.embedding(tokens), vector[:, None].expand(-1, tokens.shape[1], -1)], 2)
        start = [policy.first[:, n, None].expand(-1, len(tokens), -1).contiguous() for n in (0, 1)]
        outputs.append(torch.lstm(fed, start, ordered, True, layers, 0.0, False, False, True)[0])
    return policy.output(torch.stack(outputs).amax(0))


@pytest.mark.parametrize(("blocks", "layers"), [(0, 1), (1, 2), (2, 3)])
def test_scores_and_gradients_are_those_of_the_plain_twin(columns: Columns, blocks: int, layers: int):
    policy = small(blocks, layers)
    context, drawn = contexts(columns), tokens(4, 6)
    ours, plain = policy.score(policy.encode(context), drawn), twin(policy, context, drawn)
    torch.testing.assert_close(ours, plain)
    outer = torch.randn_like(ours)
    gradients = [torch.autograd.grad(logits, [*policy.parameters()], outer) for logits in (ours, plain)]
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)


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
def test_a_step_leaves_its_state_alone_and_has_no_gradient(columns: Columns):
    policy, fed = small(), torch.tensor([3, 4, 5, 6])
    _, state = policy.step(policy.start(policy.encode(contexts(columns))), fed)
    kept = [part.clone() for layer in state[1] for part in layer]
    first, _ = policy.step(state, fed)
    assert all(map(torch.equal, kept, (part for layer in state[1] for part in layer)))
    assert torch.equal(first, policy.step(state, fed)[0])
    with torch.enable_grad(), pytest.raises(RuntimeError, match="without gradient"):
        policy.step(state, fed)


def test_constants_are_numbered_not_copied():
    table = torch.randn(3, 2, 4, requires_grad=True)
    tokens = torch.randn(5, 4, requires_grad=True)
    constants = Constants(table, torch.arange(3), tokens)
    chosen = select(constants, torch.tensor([2, 0, 2, 1]))
    joined = concat([chosen, select(select(chosen, torch.tensor([3, 2])), torch.tensor([0]))])
    assert joined.table is chosen.table is table
    assert joined.index.tolist() == [2, 0, 2, 1, 1]
    free = detach(joined)
    assert (free.table.requires_grad, free.index.tolist()) == (False, joined.index.tolist())
    assert free.table.data_ptr() == table.data_ptr()
    assert free.tokens.data_ptr() == joined.tokens.data_ptr() == tokens.data_ptr()
    assert not free.tokens.requires_grad
    # Those of several tables can be joined as well.
    tables = [torch.randn(rows, 2, 4) for rows in (3, 1, 2)]
    parts = [Constants(t, torch.tensor(n), tokens) for t, n in zip(tables, ([2, 0], [0, 0, 0], [1]), strict=True)]
    joined = concat(parts)
    expected = torch.cat([part.table[part.index] for part in parts])
    assert torch.equal(joined.table[joined.index], expected)


def variety(sequences: list[list[int]]) -> list[float]:
    """A reward that even an untrained policy gets."""
    return [float(len(set(sequence))) for sequence in sequences]


def test_a_context_is_encoded_once(data: KarelData, columns: Columns, monkeypatch: pytest.MonkeyPatch):
    policy = small()
    encode, step = Mock(wraps=policy.encode), Mock(wraps=policy.step)
    monkeypatch.setattr(policy, "encode", encode)
    monkeypatch.setattr(policy, "step", step)
    engine = Engine(policy, bos=START, eos=END, max_length=5, max_rows=100)
    done = estimate(engine, columns.batch(range(6)), Reward(SolvesTask(data)), "arsm", Noise(0))
    assert done.cost.rollouts > 6
    assert sum(len(call.args[0]) for call in encode.call_args_list) == 6
    assert sum(len(call.args[1]) for call in step.call_args_list) == done.cost.tokens


@torch.no_grad()
def test_the_encoder_s_part_of_the_gates_is_computed_once(columns: Columns):
    """After encoding, neither steps nor scores use its weights again."""
    policy, drawn = small(), tokens(4, 6)
    memory = policy.encode(contexts(columns))
    expected = policy.score(memory, drawn)
    policy.from_pair.fill_(torch.nan)
    policy.bias[0].fill_(torch.nan)
    assert torch.equal(policy.score(memory, drawn), expected)
    torch.testing.assert_close(score_by_steps(policy, memory, drawn), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", ESTIMATORS.split())
def test_every_estimator_works(columns: Columns, estimator: str, dtype: torch.dtype):
    engine = Engine(small(dtype=dtype), bos=START, eos=END, max_length=6)
    done = estimate(engine, columns.batch(range(4)), variety, estimator, Noise(1), check_score=True)
    done.backward()
    for name, parameter in engine.policy.named_parameters():  # pyright: ignore[reportAttributeAccessIssue]
        assert parameter.grad is not None
        assert (parameter.grad.isfinite().all(), bool(parameter.grad.any())) == (True, True), name


def test_chunks_of_rows_change_nothing(columns: Columns):
    """States of several chunks are joined where their branches run together."""
    policy, found = small(), []
    for max_rows in (4, 4096):
        engine = Engine(policy, bos=START, eos=END, max_length=3, max_rows=max_rows)
        found.append(estimate(engine, columns.batch(range(6)), variety, "mc-2", Noise(2)))
    assert torch.equal(found[0].completed.tokens, found[1].completed.tokens)
    torch.testing.assert_close(found[0].gradient, found[1].gradient)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_maximum_of_pairs_is_that_of_pytorch_and_gives_its_gradient_to_the_first(dtype: torch.dtype):
    x = torch.randn(7, 4, 33, dtype=dtype, generator=torch.Generator().manual_seed(0)).round(decimals=1)  # with ties
    x[3, 2, 5] = x[4, 0, 6] = torch.nan
    outer = torch.randn(7, 33, dtype=dtype, generator=torch.Generator().manual_seed(1))
    x.requires_grad_()
    values = max_of_pairs(x)
    [gradient] = torch.autograd.grad(values, x, outer)
    expected = x.max(1)
    assert torch.equal(values.nan_to_num(99.0), expected.values.nan_to_num(99.0))
    first = (x == expected.values[:, None]).int().argmax(1)
    first[3, 5], first[4, 6] = 2, 0
    assert torch.equal(gradient, torch.zeros_like(x).scatter(1, first[:, None], outer[:, None]))


@pytest.mark.parametrize("estimator", ["rl-beam-8", "rloo-4", "rloo-3:baseline=fitted", "arsm"])
@pytest.mark.parametrize("most", [1, 12, 40])
def test_large_graphs_are_cut_and_the_gradient_is_the_same(
    columns: Columns, estimator: str, most: int, monkeypatch: pytest.MonkeyPatch
):
    """No graph has more tokens than the policy wants, but for a single sequence or context."""
    batch, gradients = columns.batch(range(5)), []
    policy = small()
    size = policy.graph_sizes(batch.context)
    assert (len(size.contexts), size.most > 10**5) == (5, True)
    hidden_states, sizes = policy.hidden_states, []
    for graph in (GraphSizes([0] * 5, 10**6), GraphSizes([0] * 5, most)):
        sizes.clear()
        monkeypatch.setattr(policy, "graph_sizes", lambda context, graph=graph: graph)
        monkeypatch.setattr(
            policy, "hidden_states", lambda memory, tree: sizes.append(len(tree)) or hidden_states(memory, tree)
        )
        engine = Engine(policy, bos=START, eos=END, max_length=6)
        policy.zero_grad(set_to_none=True)
        done = estimate(engine, batch, variety, estimator, Noise(1))
        scored = len(sizes)
        done.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    assert bool(gradients[0].any())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-12)
    graphs = sizes[scored:]
    assert len(graphs) > 1 or most == 40
    assert max(graphs, default=0) <= max(most, 6)  # a sequence of six tokens


def test_at_the_paper_s_sizes_only_beams_are_cut():
    """Batches of 16 tasks with programs of up to 50 tokens."""
    sizes = KarelPolicy(max_length=50).graph_sizes(torch.zeros(16, PAIRS, 2, 18, 18, dtype=torch.uint8))

    def fits(count: int) -> bool:
        return sum(sizes.contexts) + 16 * count * 50 <= sizes.most

    assert [fits(count) for count in (1, 8, 64)] == [True, True, False]
    assert 64 * 50 + max(sizes.contexts) < sizes.most  # a context is not
