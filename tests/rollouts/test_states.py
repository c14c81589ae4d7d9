"""States from which branches start: growing ones, of which only the last are kept, against one for each step."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.noise import Noise
from corollout.policies import TransformerPolicy, select
from corollout.policies.transformer import Cache
from corollout.rollouts import Engine, Mains
from corollout.rollouts.states import GrowingStates, States, StepStates
from corollout.types import Branches, Sampler


@dataclass(frozen=True)
class Tokens:
    """A state that only grows: everything that was read."""

    read: Tensor

    def rewind(self, steps: int) -> "Tokens":
        return Tokens(self.read[:, : self.read.shape[1] - steps])


def grow(seed: int, steps: int = 7) -> list[tuple[Tokens, Tensor | None]]:
    """States of each step and their parents: some rows end, others are continued once or several times."""
    generator = torch.Generator().manual_seed(seed)
    state, grown = Tokens(torch.rand(4, 1, generator=generator)), []
    parents = None
    for step in range(steps):
        grown.append((state, parents))
        rows = len(state.read)
        parents = None
        if step % 3 != seed % 3:
            parents = torch.randint(rows, (6 - step % 2,), generator=generator).sort().values
            state = select(state, parents)
        state = Tokens(torch.cat([state.read, torch.rand(len(state.read), 1, generator=generator)], 1))
    return grown


@pytest.mark.parametrize("seed", range(6))
def test_growing_states_are_those_of_each_step(seed: int):
    growing, plain = GrowingStates(), StepStates()
    generator = torch.Generator().manual_seed(seed)
    sizes: list[int] = []
    for state, parents in grow(seed):
        for states in (growing, plain):
            states.add(state, len(state.read), parents)
        sizes.append(len(state.read))
        for step, size in enumerate(sizes):  # also in between: what was found is found anew
            places = torch.cat([torch.arange(size), torch.randint(size, (5,), generator=generator)])
            places = places[torch.randperm(len(places), generator=generator)]
            got, expected = growing.at(step, places), plain.at(step, places)
            assert expected.read.shape == (size + 5, step + 1)
            assert torch.equal(got.read, expected.read)
    assert sum(len(state.read) for state in growing.kept.values()) < sum(sizes)


def test_only_states_that_can_be_rewound_are_kept_as_growing():
    assert isinstance(States.like(Tokens(torch.zeros(1, 1))), GrowingStates)
    assert isinstance(States.like((torch.zeros(1, 1),)), StepStates)


# Key-value caches


def transformer(max_positions: int = 16) -> TransformerPolicy:
    torch.manual_seed(0)
    policy = TransformerPolicy(7, 6, max_positions=max_positions, width=8, heads=2, layers=2).double()
    with torch.no_grad():
        policy.output.weight *= 4
    return policy


CONTEXT = torch.tensor([[1, 2, 3], [4, -1, -1], [-1, -1, -1], [5, 5, -1]])


def assert_equal(a: Cache, b: Cache) -> None:
    for one, other in zip([*a.keys, *a.values, a.real, a.length], [*b.keys, *b.values, b.real, b.length], strict=True):
        assert torch.equal(one, other)


def test_a_cache_is_rewound_to_what_it_was():
    policy = transformer()
    with torch.no_grad():
        caches = [policy.encode(CONTEXT)]
        for t in range(5):
            caches.append(policy.step(caches[-1], torch.tensor([5, t, 1, 2]))[1])
    for now, cache in enumerate(caches):
        for before in range(now + 1):
            assert_equal(cache.rewind(now - before), caches[before])


def sampled(policy: TransformerPolicy, eos: int, length: int, count: int = 4) -> tuple[Engine, Mains]:
    engine = Engine(policy, bos=5, eos=eos, max_length=length)
    return engine, engine.decode(CONTEXT, torch.arange(4), Sampler("sample", count), Noise(1))


@pytest.mark.parametrize("count", [1, 4])
def test_branches_from_growing_states_are_those_from_states_of_each_step(count: int, monkeypatch: pytest.MonkeyPatch):
    policy, sequences = transformer(), []
    for kind in (GrowingStates, StepStates):
        monkeypatch.setattr(States, "like", staticmethod(lambda _, kind=kind: kind()))
        engine, mains = sampled(policy, 0, 6, count)
        assert isinstance(mains.prefixes[0].states, kind)
        row, step = mains.trajectories.mask.nonzero(as_tuple=True)
        branches = Branches.join(*(Branches.of(row, step, torch.full_like(row, token)) for token in range(6)))
        sequences.append(engine.complete(mains, branches, Noise(2)).sequences)
    assert torch.equal(sequences[0].tokens, sequences[1].tokens)
    assert torch.equal(sequences[0].lengths, sequences[1].lengths)
    assert len(set(sequences[0].lengths.tolist())) > 2


def elements(states: list[Any]) -> int:
    """Numbers that caches keep in memory; a tensor keeps all of its storage."""
    tensors = [tensor for cache in states for tensor in (*cache.keys, *cache.values)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // t.element_size() for t in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("ends", [True, False])  # or all sequences have the full length
def test_the_memory_of_caches_is_linear_in_the_length(ends: bool, monkeypatch: pytest.MonkeyPatch):
    length, rows = 40, 16
    position = 2 * 2 * 8  # keys and values, two layers, the width
    bound = rows * (CONTEXT.shape[1] + length) * position
    policy = transformer(64)
    if not ends:
        with torch.no_grad():
            policy.output.bias[0] = -1e4
    _, mains = sampled(policy, 0, length)
    states = mains.prefixes[0].states
    assert isinstance(states, GrowingStates)
    assert 0 < elements(list(states.kept.values())) <= bound
    monkeypatch.setattr(States, "like", staticmethod(lambda _: StepStates()))
    states = sampled(policy, 0, length)[1].prefixes[0].states
    assert isinstance(states, StepStates)
    if not ends:
        assert elements(states.steps) > 10 * bound
