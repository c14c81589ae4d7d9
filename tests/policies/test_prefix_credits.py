"""Credits of prefixes, a chunk at a time: sorted by runs, but in the order of a stable sort of all entries."""

import pytest
import torch

from corollout.policies import read_out
from corollout.policies.read_out import PrefixCredits


@pytest.mark.parametrize("longest", [1, 30])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_chunks_are_those_of_a_stable_sort_of_all_entries(longest: int, size: int, monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(longest)
    lengths = torch.randint(1, longest + 1, (40,), generator=generator)
    prefix = (2 * torch.randint(12, (40,), generator=generator)).repeat_interleave(lengths)
    token = torch.randint(9, (len(prefix),), generator=generator)
    value = torch.randn(len(prefix), generator=generator, dtype=torch.float64)
    monkeypatch.setattr(read_out, "CHUNK", 9 * size)
    chunks = list(PrefixCredits(prefix, token, value, "uniform").chunks(9))
    order = prefix.argsort(stable=True)
    assert not torch.equal(order, torch.arange(len(prefix)))
    assert torch.cat([some for some, _ in chunks]).tolist() == prefix.unique().tolist()
    assert {len(some) for some, _ in chunks[:-1]} <= {size}
    assert len(chunks) == -(-len(prefix.unique()) // size)
    assert torch.equal(torch.cat([some[part.prefix] for some, part in chunks]), prefix[order])
    assert torch.equal(torch.cat([part.token for _, part in chunks]), token[order])
    assert torch.equal(torch.cat([part.value for _, part in chunks]), value[order])
    assert {part.centre for _, part in chunks} == {"uniform"}


def test_no_credits_have_no_chunks():
    nothing = torch.zeros(0, dtype=torch.int64)
    assert list(PrefixCredits(nothing, nothing, nothing.double(), "uniform").chunks(9)) == []
