"""What the mutation tests alter, which checks must notice it, and the few alterations that change nothing."""

from collections.abc import Callable

from corollout.estimators import ARS, GRPO, RLOO, Estimator
from tests.support.baseline_reference import fits_are_scale_free, products_agree, shrunk_agrees
from tests.support.budget_reference import choices_agree
from tests.support.coefficient_reference import means_agree, sums_agree
from tests.support.literal import ESTIMATORS, ON_TREES, agrees
from tests.support.pairs_reference import kinds_agree, updates_agree
from tests.support.pseudo_reference import swaps_agree
from tests.support.rank_reference import ranks_agree
from tests.support.search_reference import gumbels_agree, perturbed_agrees, searches_agree
from tests.support.set_reference import set_weights_agree, tables_agree


def _formulas_agree(which: Callable[[Estimator], bool] = lambda estimator: True) -> bool:
    settings = [
        (e, skip, on_tree)
        for es, on_tree in ((ON_TREES, True), (ESTIMATORS, False))
        for e in filter(which, es)
        for skip in (0.0, 0.2)
    ]
    return all(agrees(e, skip, on_tree=on_tree) for e, skip, on_tree in settings) and agrees(ARS(), masked=True)


def _fits_agree() -> bool:
    many = _formulas_agree(lambda estimator: getattr(estimator, "baseline", "") == "fitted")
    return many and agrees(RLOO(3, "fitted"), contexts=2) and fits_are_scale_free()


def _groups_agree() -> bool:
    return _formulas_agree(lambda estimator: isinstance(estimator, GRPO))


CHECKS: dict[str, Callable[[], bool]] = {
    "sums": sums_agree,  # coefficients are the sums over all pseudo-actions
    "means": means_agree,  # and their mean is that of the sums
    "choices": choices_agree,  # a budget keeps the branches of a plain walk
    "swaps": swaps_agree,  # pseudo-actions are those of brute-force swapping
    "sets": set_weights_agree,  # weights of sets are those of drawing in all orders
    "tables": tables_agree,  # rows are listed by context and index
    "shrunk": shrunk_agrees,  # shrunk baselines are those of plain means
    "products": products_agree,  # inner products are those of dense gradients
    "fits": _fits_agree,  # fitted baselines are those of least squares over all entries
    "groups": _groups_agree,  # rewards are divided by their standard deviation
    "gumbels": gumbels_agree,  # Gumbel numbers given their maximum follow the formula
    "perturbed": perturbed_agrees,  # a head's tokens are ordered by their perturbed log-probabilities
    "searches": searches_agree,  # searches find what plain lists of prefixes find
    "kinds": kinds_agree,  # kinds of branches follow from probability and step
    "ranks": ranks_agree,  # several processes make the update of one
    "updates": updates_agree,  # squared differences are added up by kind
    "formula": _formulas_agree,
}

# Function -> the unbiasedness cases that concern it, quickest to notice first, and other checks. An alteration that
# only raises the variance causes no bias: the comparison with the formula notices it.
ARS_CASES = ["arsm", "ars-2", "arsm-two-samples", "ars-1-shared", "arsm-three-completions-own-noise", "arsm-masked"]
BUDGET_CASES = ["arsm-budget-1-each", "arsm-budget-update", "arsm-budget-two-samples", "ars-2-budget-completions"]
GROUP_CASES = ["rloo-2", "reinforce-others", "rloo-5", "reinforce-plain", "reinforce-alone"]
GREEDY_CASES = ["self-critic", "mc-0", "self-critic-two-samples"]
MC_CASES = ["mc-2", "mc-0", "mc-1", "mc-2-two-samples", "mc-3-own-noise"]
ARM_CASES = ["arm", "arm-two-samples"]
TREE_CASES = ["bt-arsm", "bt-arsm-two-samples", "bt-arsm-three-completions", "bt-arsm-budget-1-each", "bt-disarm"]
DRAW_CASES = ["arsm-4-draws", "arsm-4-draws-masked", "ars-2-3-draws", "arsm-4-draws-budget"]
SET_CASES = ["set-9-everything", "set-4-masked", "bt-set-2"]
PAIR_CASES = ["pairs-masked", "pairs-two-samples", "pairs-1-each", "bt-pairs", "bt-pairs-1-each"]
VINE_CASES = ["vine-1", "vine-2", "vine-1-own-noise", "bt-vine-2"]
FIT_CASES = ["rloo-3-fitted", "set-3-fitted", "reinforce-fitted", "rloo-2-fitted-pairs", "bt-set-2-fitted"]
COPY_CASES = ["arsm-three-completions-own-noise", "bt-arsm-three-completions", "ars-2-budget-completions"]
REINFORCE_CASES = ["reinforce-others", "reinforce-others-two-samples", "reinforce-plain", "reinforce-batches"]
TARGETS: dict[str, list[str]] = {
    "plans.Credits.gradient": ["arsm", "self-critic", "arsm-masked", "bt-arsm", "bt-self-critic"],
    "plans.ContrastPlan.credits": ["arsm", "self-critic", "arsm-masked", "bt-arsm", "bt-self-critic"],
    "plans.GroupPlan.credits": [*GROUP_CASES, "bt-rloo-3"],
    "plans.GroupPlan._above": ["groups", *GROUP_CASES],
    "plans.GroupPlan._above_baseline": ["ranks"],
    "plans.SetPlan._shrunk": ["ranks"],
    "baselines.gather_evidence": ["ranks"],
    "division.Division._gather": ["ranks"],
    "division.Division.gather_runs": ["ranks"],
    "branching.Branching._spend_together": ["ranks"],
    "plans.SetPlan.credits": SET_CASES,
    "plans.SetPlan._baselines": ["fits", *SET_CASES],
    "plans.rows_by_context": ["tables"],
    "plans._of_tokens": ["rloo-2", "set-2", "set-4-masked", "bt-rloo-3"],
    "sets.UnorderedSet.plan": SET_CASES,
    "sets.set_weights": ["sets"],
    "sets._chunk_weights": ["sets", "set-2", "set-5"],
    "sets._log_one_minus_exp_minus_exp": ["sets"],
    "baselines.Moments.merged": ["shrunk", "fits"],
    "baselines.Moments._about": ["shrunk", "fits"],
    "baselines.Evidence.from_rewards": ["fits", *FIT_CASES],
    "baselines.Evidence.coefficients": ["fits", *FIT_CASES],
    "baselines.Evidence._about": ["fits", *FIT_CASES],
    "baselines.fitted_baseline": ["fits", *FIT_CASES],
    "baselines.over_others": ["shrunk", "fits", *FIT_CASES],
    "baselines._running": ["shrunk", "fits", *FIT_CASES],
    "baselines.shrunk_baseline": ["shrunk", "rloo-2-shrunk", "reinforce-shrunk"],
    "baselines.inner_products": ["products", *FIT_CASES],
    "baselines.token_probabilities": ["products", *FIT_CASES],
    "baselines._softmax_products": ["products", *FIT_CASES],
    "baselines._tree_products": ["products", "bt-set-2-fitted", "bt-rloo-2-fitted"],
    "baselines._same_before": ["products", *FIT_CASES],
    "values.Vine.plan": VINE_CASES,
    "values.Vine._values": VINE_CASES,
    "pairs.Pairs.plan": PAIR_CASES,
    "pairs.Pairs._with_budget": ["ranks", *PAIR_CASES],
    "pairs.Pairs._gap": ["kinds"],
    "pairs.Pairs.updated": ["updates"],
    "pairs._kinds": ["kinds"],
    "pairs._actions": PAIR_CASES[:3],
    "pairs._decisions": PAIR_CASES[3:],
    "search.search": ["searches"],
    "search.Slots.join": ["searches"],
    "search.Slots.ranking": ["searches"],
    "protocol.Softmax.perturbed": ["perturbed"],
    "tree_head.TreeHead.perturbed_by_levels": ["perturbed"],
    "walks._given_maximum": ["gumbels"],
    "noise.conditional_gumbels": ["gumbels"],
    "ars.ARS.take_notes": [*ARS_CASES, *DRAW_CASES],
    "ars._pi": [*DRAW_CASES, "arsm"],
    "noise.dirichlet_given": DRAW_CASES,
    "ars.ARS._references": ARS_CASES,
    "ars.Coefficients.mean": ["means"],
    "ars.Coefficients.select": [*ARS_CASES, *BUDGET_CASES],
    "ars._collect_torch": ["sums"],
    "ars._sums": ["sums"],
    "ars._bucket": ["sums"],
    "ars._contrasts": [*ARS_CASES, *BUDGET_CASES],
    "branching.Branching.spend": ["ranks", *BUDGET_CASES, "bt-arsm-budget-1-each", "bt-arsm-budget-update"],
    "branching.Branching.branches": COPY_CASES,
    "branching.Branching.sources": COPY_CASES,
    "budget.choose": ["choices", *BUDGET_CASES],
    "budget.systematic_sample": ["choices"],
    "score.Reinforce.plan": REINFORCE_CASES,
    "score.RLOO.plan": ["rloo-2", "rloo-5"],
    "score.GRPO.plan": ["groups"],
    "score._set_plan": ["rloo-2-shrunk", *FIT_CASES],
    "score.SelfCritic.plan": ["self-critic", "self-critic-two-samples"],
    "score.MonteCarlo.plan": MC_CASES,
    "score._greedy_sequences": ["self-critic", "self-critic-two-samples"],
    "score._greedy_baselines": MC_CASES,
    "score._greedy_tokens": [*GREEDY_CASES, "bt-self-critic", "bt-mc-0", "bt-self-critic-confident"],
    "types.Decisions.scores": ["bt-reinforce-plain", "bt-rloo-3", "bt-self-critic"],
    "tree.BinaryTreeARSM.plan": TREE_CASES,
    "tree.BinaryTreeARSM._uniforms": TREE_CASES,
    "binary.arm_weight": ARM_CASES,
    "binary.disarm_weight": ["disarm", "disarm-two-samples"],
    "binary.pseudo_bit": [*ARM_CASES, "disarm"],
    "binary.ARM.plan": [*ARM_CASES, "disarm"],
    "pseudo_torch._block": ["swaps"],
    "pseudo_torch._pairs": ["swaps"],
    "pseudo_torch._least": ["swaps"],
    "pseudo._winner": ["swaps"],
}
PACKAGES = {  # of modules that are not in corollout.estimators
    **dict.fromkeys(("noise", "types", "division"), "corollout"),
    "search": "corollout.rollouts",
    **dict.fromkeys(("protocol", "tree_head", "walks"), "corollout.policies"),
}

# Alterations that change nothing that matters: (function, beginning of the line, change) -> why.
_PROPOSES = "a bound that only proposes entries: each is then evaluated exactly"
_ROUNDING = "room for rounding"
_NOT_ONE = "entries of zero add nothing, and no sum is exactly 1"
_ROOM = "room for more than is written"
_SORTED = "what is in order is put in order again"
_EMPTY = "one empty group more"
_CHUNKS = "other chunks, of the same sets"
HARMLESS: dict[tuple[str, str, str], str] = {
    ("plans.GroupPlan._above", "reward = torch.where", "0.0 -> 1.0"): "times a share of zero",
    (
        "plans.GroupPlan._above",
        "reward = torch.where",
        "rewards - lowest -> rewards + lowest",
    ): "the same shift",
    ("plans.GroupPlan._above", "groups =", "1 -> 2"): _EMPTY,
    ("plans.GroupPlan._above", "groups =", "0 -> 1"): _EMPTY,
    ("plans.GroupPlan._above", "return above /", "1 -> 2"): "a single reward is its own mean",
    ("plans.SetPlan._baselines", "reward = torch.where(self.table >= 0,", "0.0 -> 1.0"): "times a weight of zero",
    ("plans.SetPlan._baselines", "reward = torch.where(valid", "0.0 -> 1.0"): "in a context that is left out",
    ("plans.rows_by_context", "table = torch.full(", "1 -> 2"): "any negative number means none",
    ("sets.set_weights", "numbers =", "2 -> 3"): _CHUNKS,
    (
        "sets.set_weights",
        "numbers =",
        "log_probs.shape[1] ** 2 * len(_grid(log_probs.device)) -> log_probs.shape[1] ** 2",
    ): _CHUNKS,
    ("sets.set_weights", "parts =", "1 -> 2"): _CHUNKS,
    ("sets._chunk_weights", "factor = torch.where(", "0.0 -> 1.0"): "a factor that all integrals have in common",
    ("sets._log_one_minus_exp_minus_exp", "y = -x.clamp(", "700.0 -> 701.0"): _ROUNDING,
    ("sets._log_one_minus_exp_minus_exp", "return torch.where(", "30.0 -> 31.0"): _ROUNDING,
    ("noise.conditional_gumbels", "v = maximum", "0.6931 -> 1.6931"): "both forms are precise between the two bounds",
    ("tree_head.TreeHead.perturbed_by_levels", "drawn = exponential(", "2 -> 3"): "more numbers than are read",
    ("tree_head.TreeHead.perturbed_by_levels", "leaf = below < 0", "0 -> 1"): "node 0 is the root, and below no other",
    ("baselines.Moments.merged", "mean = self.mean +", "0.0 -> 1.0"): "without any weight, both means are zero",
    ("baselines.Evidence.coefficients", "noise =", "0.0 -> 1.0"): "without any weight, the right side is zero, too",
    ("baselines.Evidence.coefficients", "ridge = torch.where(", "1.0 -> 2.0"): "then all is zero but the ridge",
    **{
        (f"baselines.Evidence.{function}", line, change): "the last of two or three equal dimensions"
        for function, line, change in (
            ("coefficients", "least =", "-1 -> 1"),
            ("coefficients", "identity =", "-1 -> 1"),
            ("coefficients", "return torch.nn.functional.pad(", "-1 -> 1"),
            ("_about", "size =", "-1 -> 1"),
            ("_about", "size =", "1 -> 2"),
        )
    },
    ("baselines.shrunk_baseline", "count =", "0 -> 1"): "means and variances have the same weights",
    (
        "values.Vine.plan",
        "other = rows +",
        "trajectories.samples[rows] + turn -> trajectories.samples[rows] - turn",
    ): "the same others in another order",
    ("values.Vine.plan", "share = torch.cat(", "0 -> 1"): "there are as many rows as steps",
    ("branching.Branching.spend", "if self.budget is None", "0 -> 1"): "a single branch is always kept",
    ("branching.Branching.spend", "starts = uniform(", "1 -> 2"): "only the first is used",
    ("branching.Branching._spend_together", "start = uniform(", "1 -> 2"): "only the first is used",
    ("branching.Branching._spend_together", "if len(", "0 -> 1"): "a single branch is always kept",
    ("division.Division._gather", "if bool((arrived", "0 -> 1"): _SORTED,
    ("division.Division._gather", "if bool((arrived", "arrived.diff() < 0 -> arrived.diff() >= 0"): _SORTED,
    **{
        (function, line, f"ROUNDING * squares -> {change}"): _ROUNDING
        for function, line in (("ars._sums", "large ="), ("ars._bucket", "if centred >"))
        for change in ("ROUNDING / squares", "ROUNDING")
    },
    ("ars._sums", "kept, used =", "0 -> 1"): _NOT_ONE,
    ("ars._bucket", "if total[m] != 0:", "0 -> 1"): _NOT_ONE,
    ("ars.Coefficients.mean", "steps = int(", "1 -> 2"): "numbers of cells that are further apart",
    ("ars._bucket", "cells, terms =", "2 -> 3"): _ROOM,
    ("ars._bucket", "largest = 0", "0 -> 1"): _ROOM,
    ("ars._bucket", "largest = max(", "starts[c + 1] - starts[c] -> starts[c + 1] + starts[c]"): _ROOM,
    ("ars._bucket", "largest = max(", "c + 1 -> c - 1"): _ROOM,
    ("ars._bucket", "actions = np.empty(", "2 -> 3"): _ROOM,
    ("ars._bucket", "bucket_swap, bucket_value = np.empty(", "2 -> 3"): _ROOM,
    ("ars._bucket", "end = 0", "0 -> 1"): _ROOM,
    (
        "ars.Coefficients.select",
        "position = torch.full_like(",
        "1 -> 2",
    ): "any negative number means that it is not kept",
    ("budget.systematic_sample", "certain = probabilities == 1", "1 -> 2"): "a tick hits every interval of length 1",
    ("score._greedy_sequences", "count =", "1 -> 2"): _EMPTY,
    ("score._greedy_sequences", "count =", "0 -> 1"): _EMPTY,
    ("score._greedy_sequences", "source =", "1 -> 2"): _ROOM,
    ("score._greedy_baselines", "number = torch.full(", "1 -> 2"): "one column more than is read",
    ("score._greedy_baselines", "source = torch.arange(", "1 -> 2"): "more columns than are read",
    ("binary.disarm_weight", "return 0.5 * sign", "0.5 * sign -> 0.5 / sign"): "the sign is 1 or −1",
    (
        "pseudo_torch._block",
        "z2_free =",
        "(z2 != j) & (z2 != swap) -> (z2 != j) | (z2 != swap)",
    ): "where it matters, a swapped value is not larger than the runner-up's",
    ("pseudo_torch._block", "row, k = (is_true &", "is_true & ~alone[:, None] -> is_true | ~alone[:, None]"): _PROPOSES,
    **{
        ("pseudo_torch._pairs", "slack =", change): _PROPOSES
        for change in (
            "4 * torch.finfo(x.dtype).eps -> 4 / torch.finfo(x.dtype).eps",
            "4 * torch.finfo(x.dtype).eps -> 4",
            "4 -> 5",
        )
    },
    **{
        ("pseudo_torch._pairs", line, f"slack * ({terms}) -> {change}"): _ROUNDING
        for line, terms in (
            ("bound = lowest - limit", "lowest.abs() + limit.abs()"),
            ("bound = limit + highest", "limit.abs() + highest.abs()"),
            ("threshold = limit[:, None]", "limit.abs()[:, None] + y_pad.abs()"),
        )
        for change in (f"slack / ({terms})", "slack")
    },
    ("pseudo_torch._pairs", "y_row, y_index, y_pad =", "-torch.inf -> torch.inf"): _PROPOSES,
    (
        "pseudo_torch._pairs",
        "bound = torch.where(highest",
        "-torch.inf -> torch.inf",
    ): f"NaN fails as well; or {_PROPOSES}",
    ("pseudo_torch._pairs", "threshold = torch.where(", "-torch.inf -> torch.inf"): "padding that is not read",
}
