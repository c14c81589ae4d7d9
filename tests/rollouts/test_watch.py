"""What main trajectories keep of their logits, against the logits that scoring gives."""

from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.noise import Noise
from corollout.policies import select
from corollout.prefix_tree import PrefixTree
from corollout.rollouts import Mains, watch
from corollout.types import Cells, Sampler, Trajectories
from tests.support.policy_cases import CONTEXTS, PolicyCase, policy_case

SAMPLES = 4


@pytest.fixture(scope="module", params=["lstm", "karel with grammar"])
def case(request: pytest.FixtureRequest) -> PolicyCase:
    return policy_case(request.param)


def sample(case: PolicyCase, reads: Any, mode: Any = "sample", **options: Any) -> Mains:
    with torch.no_grad():
        memory = case.policy.encode(case.context)
    return case.engine(**options).sample(memory, 10 + torch.arange(CONTEXTS), Sampler(mode, SAMPLES), Noise(4), reads)


@torch.no_grad()
def all_logits(case: PolicyCase, drawn: Trajectories) -> Tensor:
    memory = select(case.policy.encode(case.context), drawn.contexts)
    return case.policy.score(memory, case.engine().score_inputs(drawn))


def note(cells: Cells) -> tuple[Cells, Tensor]:
    return cells, cells.logits[cells.index]


@pytest.mark.parametrize("reads", ["tokens", "greedy", "logits", note])
@pytest.mark.parametrize("max_rows", [4096, 5])
def test_tokens_and_their_probabilities_are_the_same_whatever_is_read(case: PolicyCase, reads: Any, max_rows: int):
    expected = sample(case, "logits").trajectories
    drawn = sample(case, reads, max_rows=max_rows).trajectories
    assert torch.equal(drawn.tokens, expected.tokens)
    logits, mask = all_logits(case, drawn), drawn.mask
    log_probs = logits.log_softmax(2).gather(2, drawn.tokens[:, :, None]).squeeze(2)
    assert drawn.token_log_probs is not None
    torch.testing.assert_close(drawn.token_log_probs[mask], log_probs[mask])
    assert not drawn.token_log_probs[~mask].any()
    torch.testing.assert_close(drawn.log_probs, drawn.token_log_probs.sum(1))
    # Nothing else is kept than what is read.
    assert (drawn.greedy is None) == (reads != "greedy")
    assert (drawn.notes is None) == (reads is not note)
    if reads == "logits":
        torch.testing.assert_close(drawn.logits[mask], logits[mask])
        assert not drawn.logits[~mask].any()
    else:
        assert drawn.logits.shape == (*drawn.tokens.shape, 0)


@pytest.mark.parametrize("max_rows", [4096, 5])
def test_greedy_tokens_are_those_of_the_largest_logits(case: PolicyCase, max_rows: int):
    drawn = sample(case, "greedy", max_rows=max_rows).trajectories
    assert drawn.greedy is not None
    best = all_logits(case, drawn).argmax(2)
    assert torch.equal(drawn.greedy[drawn.mask], best[drawn.mask])
    assert bool((drawn.greedy != drawn.tokens)[drawn.mask].any())


@pytest.mark.parametrize(("shown", "chunks"), [(1 << 22, 1), (300, 2), (1, 5)])
@pytest.mark.parametrize("max_rows", [4096, 5])
def test_a_function_sees_every_cell_once(
    case: PolicyCase, shown: int, chunks: int, max_rows: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watch, "_SHOWN", shown)
    drawn = sample(case, note, max_rows=max_rows).trajectories
    assert drawn.notes is not None
    assert len(drawn.notes) == 1 if chunks == 1 else len(drawn.notes) >= chunks
    logits, seen = all_logits(case, drawn), torch.zeros_like(drawn.mask)
    for cells, of_cells in drawn.notes:
        cell = cells.rows, cells.steps
        assert not seen[cell].any()
        seen[cell] = True
        torch.testing.assert_close(of_cells, logits[cell])
        assert torch.equal(cells.tokens, drawn.tokens[cell])
        for name in ("examples", "samples", "keys"):
            assert torch.equal(getattr(cells, name), getattr(drawn, name)[cells.rows]), name
        assert torch.equal(cells.batch, drawn.examples)
    assert torch.equal(seen, drawn.mask)
    if chunks == 1 and max_rows == 4096:
        assert sum(len(cells.logits) for cells, _ in drawn.notes) < int(drawn.mask.sum())  # prefixes are shared


def test_logits_of_prefixes_are_kept_in_the_order_of_the_prefix_tree(case: PolicyCase):
    mains = sample(case, "tokens")
    drawn = mains.trajectories
    tree = PrefixTree.of(drawn, drawn.contexts, case.bos)
    assert mains.logits is not None
    assert len(mains.logits) == len(tree) == mains.tokens
    torch.testing.assert_close(mains.logits[tree.node[drawn.mask]], all_logits(case, drawn)[drawn.mask])


def test_too_many_logits_of_prefixes_are_not_kept(case: PolicyCase, monkeypatch: pytest.MonkeyPatch):
    logits = sample(case, "tokens").logits
    assert logits is not None
    assert sample(case, "tokens", max_rows=5).logits is None  # chunks of rows may share prefixes
    for limit, kept in ((logits.numel(), True), (logits.numel() - 1, False)):
        monkeypatch.setattr(watch, "_KEPT", limit)
        assert (sample(case, "tokens").logits is not None) == kept


@pytest.mark.parametrize("reads", ["tokens", "greedy", "logits"])
def test_logits_of_decisions_are_kept_in_any_case(reads: Any):
    case = policy_case("captions by a tree")
    mains = sample(case, reads)
    drawn = mains.trajectories
    with torch.no_grad():
        logits = case.policy.head.logits(all_logits(case, drawn), drawn.tokens)
    torch.testing.assert_close(drawn.logits[drawn.mask], logits[drawn.mask])
    assert not drawn.logits[~drawn.mask].any()
    assert drawn.decisions is not None
    assert drawn.token_log_probs is not None
    log_probs = drawn.decisions.log_probs(logits)
    torch.testing.assert_close(drawn.token_log_probs[drawn.mask], log_probs[drawn.mask])
    assert mains.logits is None
