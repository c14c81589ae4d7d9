"""ARSM with coefficients averaged over draws of π given the tokens (Rao and Blackwell)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from corollout import estimate_gradient
from corollout.errors import InputError
from corollout.estimators import ARS, single
from corollout.estimators import estimator as estimator_module
from corollout.estimators.estimator import notes_of
from corollout.noise import Noise
from corollout.types import Cells, Trajectories
from tests.support.unbiased_cases import LIMIT, Case, bits, three_of_four


def trajectories_of(logits: Tensor, rows: int, seed: int) -> Trajectories:
    """Many draws of one variable."""
    return single._one_step(logits.expand(rows, -1), ARS(), Noise(seed))


def dense_coefficients(estimator: ARS, trajectories: Trajectories, seed: int) -> Tensor:
    """C[row, action, coordinate] of variables, centred."""
    rows, _, vocab = trajectories.logits.shape
    (notes,) = notes_of(estimator, trajectories, Noise(seed))
    (row, _, action), (branch, coordinate, value) = notes.select(torch.arange(len(notes.norm)))
    dense = trajectories.logits.new_zeros(rows, vocab, vocab)
    dense.index_put_((row[branch], action[branch], coordinate), value)
    return dense - dense.mean(2, keepdim=True)


@pytest.mark.parametrize("references", [None, 2])
def test_coefficients_given_a_token_are_those_of_draws_that_chose_it(references: int | None):
    """Unconditional draws of π that chose z have the same mean coefficients as draws given z."""
    logits = torch.tensor([0.5, -0.3, 1.2], dtype=torch.float64)
    chosen, again = trajectories_of(logits, 40_000, seed=1), trajectories_of(logits, 8_000, seed=2)
    by_rejection = dense_coefficients(ARS(references=references), chosen, seed=1)
    given_token = dense_coefficients(ARS(references=references, draws=12), again, seed=2)
    means = []
    for z in range(3):
        a, b = by_rejection[chosen.tokens[:, 0] == z], given_token[again.tokens[:, 0] == z]
        error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
        assert bool(((a.mean(0) - b.mean(0)).abs() <= LIMIT * error + 1e-12).all())
        # The average over twelve draws has less variance, about a twelfth.
        assert float(b.var(0).sum() / a.var(0).sum()) < (0.15 if references is None else 0.5)
        means.append(b.mean(0))
    # Tokens have different coefficients, so that those of another token would be noticed.
    assert min(float((means[z] - means[z - 1]).abs().max()) for z in range(3)) > 0.1


@pytest.mark.parametrize("phi", [0.0, 1.3, -2.0])
def test_for_two_actions_the_limit_is_known(phi: float):
    """E[C | z] is ½ (1 − p_z) for the other action and minus that for z."""
    logits = torch.tensor([0.0, phi], dtype=torch.float64)
    trajectories = trajectories_of(logits, 2_000, seed=3)
    coefficients = dense_coefficients(ARS(draws=20), trajectories, seed=3)
    for z in range(2):
        c = coefficients[trajectories.tokens[:, 0] == z][:, 1 - z]
        share = (1 - logits.softmax(0)[z]) / 2
        exact = torch.stack([share, -share] if z == 1 else [-share, share])
        error = c.std(0) / len(c) ** 0.5
        assert float(error.max()) < 0.02
        assert bool(((c.mean(0) - exact).abs() < LIMIT * error).all())


@pytest.mark.parametrize("problem", [three_of_four, bits])
@pytest.mark.parametrize("share_noise", [True, False])
def test_more_draws_have_less_variance(problem: Any, share_noise: bool):
    """Paired: the same tokens, so the difference of squares is sharp."""
    engine = {"share_noise": share_noise}
    one, many = (Case("", ARS(draws=n), problem, 2_000, engine=engine).draw().flatten(1) for n in (1, 12))
    excess = (one**2).sum(1) - (many**2).sum(1)
    assert excess.mean() > LIMIT * excess.std() / len(excess) ** 0.5


@pytest.mark.parametrize("options", [{"samples": 2}, {"references": 2}, {"budget": 2, "budget_per": "example"}])
def test_the_gradient_of_an_example_does_not_depend_on_the_batch(options: dict[str, Any]):
    problem, estimator = three_of_four(), ARS(draws=3, **options)
    many, few = (problem.estimates(estimator, batch, seed=5)[0] for batch in (40, 7))
    assert bool(few.any())
    assert torch.equal(many[:7], few)


def test_chunks_of_steps_change_nothing(monkeypatch: pytest.MonkeyPatch):
    problem, estimator = three_of_four(), ARS(draws=3)
    whole, _ = problem.estimates(estimator, 30, seed=6)
    monkeypatch.setattr(estimator_module, "_CHUNK", 5 * 4)  # logits of five steps
    sizes = []
    original = ARS.take_notes

    def spy(self: ARS, cells: Cells, noise: Noise) -> Any:
        sizes.append(len(cells.rows))
        return original(self, cells, noise)

    monkeypatch.setattr(ARS, "take_notes", spy)
    assert torch.equal(problem.estimates(estimator, 30, seed=6)[0], whole)
    assert max(sizes) == 5
    assert len(sizes) > 5


def test_more_draws_have_more_branches():
    logits = torch.randn(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    trajectories = single._one_step(logits, ARS(), Noise(0))
    estimators = (ARS(draws=8, budget=50), ARS(), ARS(draws=2), ARS(draws=8))
    counts = [len(estimator.plan(trajectories, Noise(0)).branches) for estimator in estimators]
    assert 50 == counts[0] < counts[1] < counts[2] < counts[3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_any_size_have_finite_gradients(dtype: torch.dtype):
    logits = torch.tensor([[1e4, 0.0, -1e4], [-1e30, -1e30, -torch.inf], [0.0, 3e38, -3e38], [0.0, 90.0, 60.0]])
    g = estimate_gradient(logits.to(dtype), lambda actions, rows: actions.double(), ARS(draws=8))
    assert bool(g.isfinite().all())
    assert g[1, 2] == 0
    assert torch.equal(g[[0, 2]], torch.zeros(2, 3, dtype=dtype))
    one = estimate_gradient(torch.zeros(4, 1, dtype=dtype), lambda actions, rows: actions.double(), ARS(draws=8))
    assert one.tolist() == [[0.0]] * 4


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_invalid_logits_are_named(bad: float):
    trajectories = single._one_step(torch.zeros(5, 3), ARS(), Noise(0))
    trajectories.logits[3, 0, 1] = bad
    with pytest.raises(InputError, match=r"the logits of row 3 contain NaN or \+inf"):
        ARS(draws=4).plan(trajectories, Noise(0))
