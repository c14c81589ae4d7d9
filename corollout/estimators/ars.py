"""ARS, ARS-K and ARSM: augment-REINFORCE-swap(-merge) (section 3 and appendix C of the paper).

For one token with logits φ, π ~ Dirichlet(1_V), z = argmin (ln π − φ) and references j_1 … j_K,

    g_v = Σ_k w_k [ r(z^{v⇌j_k}) − mean_m r(z^{m⇌j_k}) ],    w_k = (1 − V π_{j_k}) / K,

is unbiased for every fixed choice of references. It is linear in the rewards, Σ_a r(a) C_a, with coefficients that
are known beforehand and add up to zero, so g = Σ_{a≠z} (r(a) − r(z)) C_a: one completion for each different action
is enough, and none for an action whose coefficients are zero.

The π that chose z is one of many that would have. Averaging C_a over further draws of π given z (Rao and Blackwell)
keeps the expectation and takes away variance. More actions then have a coefficient: it goes with a budget.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.branching import Branching
from corollout.estimators.coefficients import Coefficients
from corollout.estimators.plans import ContrastPlan
from corollout.estimators.pseudo import pseudo_actions
from corollout.noise import REDRAW, REFERENCES, Noise, dirichlet, dirichlet_given, subsets
from corollout.types import Trajectories

# Steps are treated in groups of at most this many numbers of noise.
_CHUNK = 1 << 24


@dataclass(frozen=True, kw_only=True)
class ARS(Branching):
    """ARS-K; with ``references=None`` all V of them: ARSM.

    Unbiased with the defaults, for any ``references``, ``draws``, ``completions``, ``budget`` and ``samples``. Greedy
    main or greedy pseudo trajectories, which the paper offers too, are biased.
    """

    called = "ARS"

    references: int | None = None
    """How many references K; None for all V."""
    shared_references: bool = False
    """One set of references for all rows of a batch at a step, as in the paper's code, instead of one for each row."""
    draws: int = 1
    """How many draws of π, given the tokens that were sampled, the coefficients are averaged over. 1: the π that chose
    the token. More of them find more pseudo-actions, so that a ``budget`` should go with them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.references is not None and self.references < 1:
            raise InputError(f"ARS needs references ≥ 1, not {self.references}")
        if self.draws < 1:
            raise InputError(f"ARS needs draws ≥ 1, not {self.draws}")
        if self.draws > 1 and self.main == "greedy":
            raise InputError(f'ARS needs main to be "sample" for draws = {self.draws}: no π has chosen a greedy token')

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        if trajectories.decisions is not None:
            raise InputError("ARS compares all tokens of a softmax; for a policy whose head is a tree there is bt-arsm")
        coefficients = self._coefficients(trajectories, noise)
        kept, weight = self.spend(coefficients.norm, coefficients.row, trajectories, noise)
        return _contrasts(coefficients, kept, weight, trajectories, self)

    def _coefficients(self, trajectories: Trajectories, noise: Noise) -> Coefficients:
        rows, steps = trajectories.mask.nonzero(as_tuple=True)
        numbers = trajectories.logits.shape[-1] * self.draws  # for each step
        parts = [
            self._coefficients_of(trajectories, noise, rows[chunk], steps[chunk])
            for chunk in torch.arange(len(rows), device=rows.device).split(max(1, _CHUNK // numbers))
        ]
        return Coefficients.join(parts)

    def _coefficients_of(
        self, trajectories: Trajectories, noise: Noise, rows: Int64[Tensor, " cell"], steps: Int64[Tensor, " cell"]
    ) -> Coefficients:
        logits, token = trajectories.logits[rows, steps], trajectories.tokens[rows, steps]
        vocab = logits.shape[1]
        references = self._references(trajectories, noise, rows, steps, vocab)
        parts = []
        for draw in range(self.draws):
            pi = _pi(draw, logits, trajectories, noise, rows, steps)
            table = pseudo_actions(logits, pi, references)
            weight = (1 - vocab * pi.gather(1, references)) / references.shape[1]  # w_k
            parts.append(Coefficients.of(table, weight, token, rows, steps))
        return Coefficients.mean(parts, vocab)

    def _references(
        self,
        trajectories: Trajectories,
        noise: Noise,
        rows: Int64[Tensor, " cell"],
        steps: Int64[Tensor, " cell"],
        vocab: int,
    ) -> Int64[Tensor, "cell reference"]:
        count = vocab if self.references is None else self.references
        if count > vocab:
            raise InputError(f"ARS-{count} needs {count} references, but the vocabulary has only {vocab} actions")
        if count == vocab:
            return torch.arange(vocab, device=rows.device).expand(len(rows), -1)
        if self.shared_references:
            keys = noise.shared_key(trajectories.examples, REFERENCES).expand(len(rows)).contiguous()
        else:
            keys = noise.keys(trajectories.examples[rows], REFERENCES, trajectories.samples[rows])
        return subsets(keys, steps, vocab, count)


def _pi(
    draw: int,
    logits: Float[Tensor, "cell vocab"],
    trajectories: Trajectories,
    noise: Noise,
    rows: Int64[Tensor, " cell"],
    steps: Int64[Tensor, " cell"],
) -> Float[Tensor, "cell vocab"]:
    """Draw 0 is the π that chose the tokens; the others are what it might as well have been."""
    if draw == 0:
        return dirichlet(trajectories.keys[rows], steps, logits.shape[1], logits.dtype)
    keys = noise.keys(trajectories.examples[rows], REDRAW, trajectories.samples[rows], draw)
    return dirichlet_given(trajectories.tokens[rows, steps], logits, keys, steps)


def _contrasts(
    coefficients: Coefficients,
    kept: Int64[Tensor, " kept"],
    weight: Float[Tensor, " kept"],
    trajectories: Trajectories,
    options: ARS,
) -> ContrastPlan:
    """Write the kept branches and their coefficients as contrasts with the main trajectory."""
    mains = len(trajectories.tokens)
    number = torch.full((len(coefficients.row),), -1, dtype=torch.int64, device=kept.device)
    number[kept] = torch.arange(len(kept), device=kept.device)
    used = number[coefficients.branch] >= 0
    branch = coefficients.branch[used]
    source = number[branch]
    value = coefficients.value[used] * weight[source] / (options.completions * options.samples)
    row, step, action = coefficients.row[kept], coefficients.step[kept], coefficients.action[kept]
    copies = options.completions
    return ContrastPlan(
        branches=options.branches(row, step, action),
        row=coefficients.row[branch].repeat(copies),
        step=coefficients.step[branch].repeat(copies),
        token=coefficients.coordinate[used].repeat(copies),
        plus=options.sources(len(kept), source, mains),
        minus=coefficients.row[branch].repeat(copies),
        weight=value.repeat(copies),
        centre="uniform",
    )
