"""Hidden states of prefixes, read out, are what scoring whole sequences gives, and so are their gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from corollout.errors import InputError
from corollout.noise import Noise
from corollout.policies import TransformerPolicy, select
from corollout.prefix_tree import PrefixTree
from corollout.training.base import flat_gradient
from corollout.types import Sampler, Sequences, Trajectories
from tests.support.policy_cases import CASES, PolicyCase, policy_case


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> PolicyCase:
    return policy_case(request.param)


def outputs(case: PolicyCase, memory: Any, tree: PrefixTree) -> Tensor:
    """What the policy puts out after each prefix, with gradient."""
    hidden = case.policy.hidden_states(memory, tree)
    if getattr(case.policy, "head", None) is not None:
        return hidden
    layer = case.policy.read_out(tree)
    logits = linear(hidden, layer.weight, layer.bias)
    return logits if layer.allowed is None else logits.masked_fill(~layer.allowed, -torch.inf)


def scored(case: PolicyCase, memory: Any, drawn: Trajectories) -> Tensor:
    """The slow twin: every sequence on its own."""
    return case.policy.score(select(memory, drawn.contexts), case.engine().score_inputs(drawn))[drawn.mask]


def part_of(drawn: Trajectories, rows: Tensor) -> Trajectories:
    names = ("tokens", "lengths", "finished", "contexts", "examples", "samples", "keys", "log_probs", "logits")
    return Trajectories(**{name: getattr(drawn, name)[rows] for name in names})


@pytest.mark.parametrize("rows", [range(30), [0, 2, 3, 14, 15, 16, 29], [7]])  # some contexts have no row
def test_outputs_of_prefixes_are_those_of_sequences(case: PolicyCase, rows: list[int]):
    drawn = part_of(case.sample(5), torch.tensor(list(rows)))
    tree = PrefixTree.of(drawn, drawn.contexts, case.bos)
    found: list[tuple[Tensor, Tensor]] = []
    for shared in (True, False):
        case.policy.zero_grad()
        memory = case.policy.encode(case.context)
        values = outputs(case, memory, tree)[tree.node[drawn.mask]] if shared else scored(case, memory, drawn)
        finite = values.isfinite()
        weight = torch.randn(values.shape, generator=torch.Generator().manual_seed(0)).double()
        values[finite].backward(gradient=weight[finite])
        found.append((values.detach(), flat_gradient(case.policy.parameters())))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-10)
    assert float(found[0][1].abs().max()) > 0.1
    if len(rows) == 30:
        assert len(tree) < int(drawn.lengths.sum())
        assert not torch.equal(found[0][0][0], found[0][0][-1])


def test_a_pruned_tree_has_the_same_outputs(case: PolicyCase):
    drawn = case.sample(5)
    tree = PrefixTree.of(drawn, drawn.contexts, case.bos)
    used = torch.rand(len(tree), generator=torch.Generator().manual_seed(2)) < 0.1
    pruned, kept = tree.pruned(used)
    assert 0 < len(kept) < len(tree)
    with torch.no_grad():
        memory = case.policy.encode(case.context)
        torch.testing.assert_close(outputs(case, memory, pruned), outputs(case, memory, tree)[kept])


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("share", [0.1, 1.0])  # of the prefixes that are used
@pytest.mark.parametrize("name", ["karel", "karel with grammar"])
def test_what_sampling_has_computed_gets_the_same_gradient(name: str, share: float, samples: int):
    case = policy_case(name)
    batch = case.batch
    mains = case.engine().decode(batch.context, batch.examples, Sampler("sample", samples), Noise(0), "tokens")
    tree = PrefixTree.of(mains.trajectories, mains.trajectories.contexts, case.bos)
    states = mains.states(tree.sizes)
    assert states is not None
    gates = [state[3].layers[1].clone() for state in states]
    used = torch.rand(len(tree), generator=torch.Generator().manual_seed(3)) < share
    pruned, kept = tree.pruned(used)
    assert (len(kept) == len(tree)) == (share == 1)
    found = []
    for again in (True, False):
        case.policy.zero_grad()
        memory = case.policy.encode(case.context)
        if again:
            hidden = case.policy.hidden_states_again(memory, pruned, states, None if share == 1 else kept)
        else:
            hidden = case.policy.hidden_states(memory, pruned)
        hidden.backward(torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0)).double())
        found.append((hidden.detach(), flat_gradient(case.policy.parameters())))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-10)
    assert float(found[0][1].abs().max()) > 0.1
    assert all(map(torch.equal, gates, (state[3].layers[1] for state in states)))


def test_states_that_are_not_those_of_the_tree_are_not_used():
    case = policy_case("karel")
    batch = case.batch
    for options in ({"max_rows": 4}, {"drop_every": 3}):
        mains = case.engine(**options).decode(batch.context, batch.examples, Sampler("sample", 2), Noise(0), "tokens")
        tree = PrefixTree.of(mains.trajectories, mains.trajectories.contexts, case.bos)
        assert mains.states(tree.sizes) is None


def test_chains_have_the_outputs_of_their_rows(case: PolicyCase):
    drawn = case.sample(1)
    with torch.no_grad():
        memory = case.policy.encode(case.context)
        chains = PrefixTree.chains(case.engine().score_inputs(drawn), drawn.lengths)
        values = outputs(case, memory, chains)
        assert len(values) == int(drawn.lengths.sum())
        torch.testing.assert_close(values[chains.node[drawn.mask]], scored(case, memory, drawn))


def test_a_grammar_masks_some_tokens_of_every_prefix():
    case = policy_case("karel with grammar")
    drawn = case.sample(5)
    tree = PrefixTree.of(drawn, drawn.contexts, case.bos)
    allowed = case.policy.read_out(tree).allowed
    expected = case.policy.grammar.allowed_after(case.engine().score_inputs(drawn))
    assert torch.equal(allowed[tree.node[drawn.mask]], expected[drawn.mask])
    assert bool(allowed.any(1).all())
    assert not bool(allowed.all(1).any())
    assert policy_case("karel").policy.read_out(tree).allowed is None


def test_a_transformer_refuses_prefixes_that_are_too_long():
    policy = TransformerPolicy(7, 6, max_positions=6, width=8, heads=2)
    memory = policy.encode(torch.tensor([[1, 2, 3]]))
    for length in (3, 4):
        row = torch.ones(1, length, dtype=torch.int64)
        sequences = Sequences(row, torch.tensor([length]), torch.tensor([False]))
        tree = PrefixTree.of(sequences, torch.tensor([0]), bos=5)
        if length == 3:
            assert len(policy.hidden_states(memory, tree)) == 3
        else:
            with pytest.raises(InputError, match="7 tokens together, but the transformer was made for max_positions=6"):
                policy.hidden_states(memory, tree)
