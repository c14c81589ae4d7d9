"""ARS, ARS-K and ARSM: augment-REINFORCE-swap(-merge) (section 3 and appendix C of the paper).

For one token with logits φ, π ~ Dirichlet(1_V), z = argmin (ln π − φ) and references j_1 … j_K,

    g_v = Σ_k w_k [ r(z^{v⇌j_k}) − mean_m r(z^{m⇌j_k}) ],    w_k = (1 − V π_{j_k}) / K,

is unbiased for every fixed choice of references. It is linear in the rewards, Σ_a r(a) C_a, with coefficients that
are known beforehand and add up to zero, so g = Σ_{a≠z} (r(a) − r(z)) C_a: one completion for each different action
is enough, and none for an action whose coefficients are zero.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.budget import keep_probabilities, systematic_sample
from corollout.estimators.coefficients import Coefficients
from corollout.estimators.plans import ContrastPlan
from corollout.estimators.pseudo import pseudo_actions
from corollout.noise import BUDGET, REFERENCES, Noise, dirichlet, subsets, uniform
from corollout.types import Branches, Sampler, Trajectories

# Steps are treated in groups of at most this many numbers of noise.
_CHUNK = 1 << 24


@dataclass(frozen=True)
class ARS:
    """ARS-K; with ``references=None`` all V of them: ARSM.

    Unbiased with the defaults, for any ``references``, ``completions``, ``budget`` and ``samples``. Greedy main or
    greedy pseudo trajectories, which the paper offers too, are biased.
    """

    references: int | None = None
    """How many references K; None for all V."""
    shared_references: bool = False
    """One set of references for all rows of a batch at a step, as in the paper's code, instead of one for each row."""
    main: Literal["sample", "greedy"] = "sample"
    """How main trajectories are drawn. "greedy" is biased: prefixes are then not the policy's own."""
    pseudo: Literal["sample", "greedy"] = "sample"
    """How branches are completed. "greedy" is biased: a greedy completion is not a draw of the future reward."""
    completions: int = 1
    """Completions of each branch, averaged."""
    budget: int | None = None
    """At most this many branches; None for no limit. Which are kept is random, and the kept ones are reweighted."""
    budget_per: Literal["update", "example"] = "update"
    """Whether the budget is for all of a batch or for each context in it."""
    samples: int = 1
    """Main trajectories of each context, averaged."""

    def __post_init__(self) -> None:
        for name in ("references", "completions", "budget", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"ARS needs {name} ≥ 1, not {value}")
        for name in ("main", "pseudo"):
            if getattr(self, name) not in ("sample", "greedy"):
                raise InputError(f'ARS needs {name} to be "sample" or "greedy", not {getattr(self, name)!r}')
        if self.budget_per not in ("update", "example"):
            raise InputError(f'budget_per must be "update" or "example", not {self.budget_per!r}')

    @property
    def sampler(self) -> Sampler:
        return Sampler(self.main, self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        coefficients = self._coefficients(trajectories, noise)
        kept, weight = self._spend(coefficients, trajectories, noise)
        return _contrasts(coefficients, kept, weight, trajectories, self)

    def _coefficients(self, trajectories: Trajectories, noise: Noise) -> Coefficients:
        rows, steps = trajectories.mask.nonzero(as_tuple=True)
        vocab = trajectories.logits.shape[-1]
        parts = [
            self._coefficients_of(trajectories, noise, rows[chunk], steps[chunk])
            for chunk in torch.arange(len(rows), device=rows.device).split(max(1, _CHUNK // vocab))
        ]
        return Coefficients.join(parts)

    def _coefficients_of(
        self, trajectories: Trajectories, noise: Noise, rows: Int64[Tensor, " cell"], steps: Int64[Tensor, " cell"]
    ) -> Coefficients:
        logits = trajectories.logits[rows, steps]
        vocab = logits.shape[1]
        pi = dirichlet(trajectories.keys[rows], steps, vocab, logits.dtype)
        references = self._references(trajectories, noise, rows, steps, vocab)
        table = pseudo_actions(logits, pi, references)
        weight = (1 - vocab * pi.gather(1, references)) / references.shape[1]  # w_k

        return Coefficients.of(table, weight, trajectories.tokens[rows, steps], rows, steps)

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

    def _spend(
        self, coefficients: Coefficients, trajectories: Trajectories, noise: Noise
    ) -> tuple[Int64[Tensor, " kept"], Float[Tensor, " kept"]]:
        """The branches to roll out, and 1/s for each of them."""
        sizes = coefficients.norm
        every = torch.arange(len(sizes), device=sizes.device)
        if self.budget is None or len(sizes) == 0:
            return every, torch.ones_like(sizes)
        context = trajectories.contexts[coefficients.row]
        if self.budget_per == "update":
            context = torch.zeros_like(context)
        shared = noise.shared_key(trajectories.examples, BUDGET)
        kept, weights = [], []
        # Branches come in the order of their contexts, so each context's are a run.
        for pool in every.split(context.bincount().tolist()):
            if len(pool) == 0:
                continue
            s = keep_probabilities(sizes[pool], self.budget)
            example = trajectories.examples[coefficients.row[pool[:1]]]
            keys = shared if self.budget_per == "update" else noise.keys(example, BUDGET)
            start = uniform(keys, torch.zeros_like(keys), 1, torch.float64)[0, 0]
            chosen = systematic_sample(s, start)
            kept.append(pool[chosen])
            weights.append((1 / s[chosen]).to(sizes.dtype))
        return torch.cat(kept), torch.cat(weights)


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
    copies = range(options.completions)
    return ContrastPlan(
        branches=Branches.join(
            *(Branches.of(row, step, action, greedy=options.pseudo == "greedy", copy=copy) for copy in copies)
        ),
        row=coefficients.row[branch].repeat(len(copies)),
        step=coefficients.step[branch].repeat(len(copies)),
        token=coefficients.coordinate[used].repeat(len(copies)),
        plus=torch.cat([mains + copy * len(kept) + source for copy in copies]),
        minus=coefficients.row[branch].repeat(len(copies)),
        weight=value.repeat(len(copies)),
        centre="uniform",
    )
