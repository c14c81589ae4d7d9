"""Alter the estimators, one sign, factor or index at a time, and see that the proof of unbiasedness notices.

    python -m tests.mutants [--shard I/N] [--function NAME] [--verbose]

A mutant is one function of the package with one place of its syntax tree changed; its compiled code takes the place
of the function's own. It is caught if any of its cases deviates or raises. The few that may live are listed with the
reason why they compute the same. Prints every survivor and exits with 1 if there is one that is not listed.
"""

import argparse
import ast
import copy
import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from corollout.estimators import ARS, GRPO, RLOO, Estimator
from tests.support.baseline_reference import products_agree, shrunk_agrees
from tests.support.coefficient_reference import means_agree, sums_agree
from tests.support.literal import ESTIMATORS, ON_TREES, agrees
from tests.support.pairs_reference import kinds_agree, learning_agrees
from tests.support.pseudo_reference import swaps_agree
from tests.support.search_reference import gumbels_agree, perturbed_agrees, searches_agree
from tests.support.set_reference import ratios_agree, tables_agree
from tests.support.unbiased_cases import BY_NAME, LIMIT, Case


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
    return many and agrees(RLOO(3, "fitted"), contexts=2)


def _groups_agree() -> bool:
    return _formulas_agree(lambda estimator: isinstance(estimator, GRPO))


CHECKS: dict[str, Callable[[], bool]] = {
    "sums": sums_agree,  # coefficients are the sums over all pseudo-actions
    "means": means_agree,  # and their mean is that of the sums
    "swaps": swaps_agree,  # pseudo-actions are those of brute-force swapping
    "ratios": ratios_agree,  # weights of sets are those of drawing in all orders
    "tables": tables_agree,  # and a set's members are found by context and number
    "shrunk": shrunk_agrees,  # baselines are moved as plain means say
    "products": products_agree,  # inner products are those of dense gradients
    "fits": _fits_agree,  # baselines are fitted as by least squares over all entries
    "groups": _groups_agree,  # rewards are divided by their deviation
    "gumbels": gumbels_agree,  # Gumbel numbers given their maximum are those of the formula
    "perturbed": perturbed_agrees,  # a head's tokens are in the order of their perturbed log-probabilities
    "searches": searches_agree,  # searches find what plain lists of prefixes find
    "kinds": kinds_agree,  # branches are told apart by probability and step
    "learning": learning_agrees,  # what is learned of their differences is a plain sum
    "formula": _formulas_agree,
}

# Function -> the unbiasedness cases that look after it, quickest to notice first, and other checks. An alteration that
# only raises the variance is no matter of bias: it is noticed by the comparison with the formula.
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
TARGETS: dict[str, list[str]] = {
    "plans.ContrastPlan.gradient": ["arsm", "self-critic", "arsm-masked", "bt-arsm", "bt-self-critic"],
    "plans.GroupPlan.gradient": [*GROUP_CASES, "bt-rloo-3"],
    "plans.GroupPlan._above_baseline": ["groups", *GROUP_CASES],
    "plans.SetPlan.gradient": SET_CASES,
    "plans.SetPlan._compared": SET_CASES,
    "plans.by_context": ["tables"],
    "plans.score_gradient": ["rloo-2", "set-2", "set-4-masked", "bt-rloo-3"],
    "sets.UnorderedSet.plan": SET_CASES,
    "sets.ratios": ["ratios"],
    "sets._ratios": ["ratios", "set-2", "set-5"],
    "sets._log_one_minus_exp_minus_exp": ["ratios"],
    "baselines.Fit.of": ["fits", *FIT_CASES],
    "baselines.Fit.change": ["fits", *FIT_CASES],
    "baselines._of_others": ["fits", *FIT_CASES],
    "baselines.shrunk": ["shrunk", "rloo-2-shrunk", "reinforce-shrunk"],
    "baselines.inner_products": ["products", *FIT_CASES],
    "baselines._of_softmax": ["products", *FIT_CASES],
    "baselines._of_walks": ["products", "bt-set-2-fitted", "bt-rloo-2-fitted"],
    "values.Vine.plan": VINE_CASES,
    "values.Vine._values": VINE_CASES,
    "pairs.Pairs.plan": PAIR_CASES,
    "pairs.Pairs._funded": PAIR_CASES,
    "pairs.Pairs._gap": ["kinds"],
    "pairs.Pairs.learned": ["learning"],
    "pairs._kinds": ["kinds"],
    "pairs._actions": PAIR_CASES[:3],
    "pairs._decisions": PAIR_CASES[3:],
    "searches.search": ["searches"],
    "searches._Complete.nothing": ["searches"],
    "searches._Complete.found": ["searches"],
    "heads.Softmax.perturbed": ["perturbed"],
    "tree_head.TreeHead.perturbed_by_levels": ["perturbed"],
    "walks._given_maximum": ["gumbels"],
    "noise.conditional_gumbels": ["gumbels"],
    "ars.ARS._coefficients_of": [*ARS_CASES, *DRAW_CASES],
    "ars._pi": [*DRAW_CASES, "arsm"],
    "noise.dirichlet_given": DRAW_CASES,
    "ars.ARS._references": ARS_CASES,
    "coefficients.Coefficients.mean": ["means"],
    "coefficients._collect_torch": ["sums"],
    "coefficients._sums": ["sums"],
    "coefficients._bucket": ["sums"],
    "ars._contrasts": [*ARS_CASES, *BUDGET_CASES],
    "branching.Branching.spend": [*BUDGET_CASES, "bt-arsm-budget-1-each", "bt-arsm-budget-update"],
    "branching.Branching.branches": COPY_CASES,
    "branching.Branching.sources": COPY_CASES,
    "budget.systematic_sample": BUDGET_CASES,
    "score.Reinforce.plan": [
        "reinforce-others",
        "reinforce-others-two-samples",
        "reinforce-plain",
        "reinforce-batches",
    ],
    "score.RLOO.plan": ["rloo-2", "rloo-5"],
    "score.GRPO.plan": ["groups"],
    "score._compared": ["rloo-2-shrunk", *FIT_CASES],
    "score.SelfCritic.plan": ["self-critic", "self-critic-two-samples"],
    "score.MonteCarlo.plan": MC_CASES,
    "score._greedy_baselines": GREEDY_CASES,
    "score._greedy_tokens": [*GREEDY_CASES, "bt-self-critic", "bt-mc-0", "bt-self-critic-confident"],
    "types.Decisions.scores": ["bt-reinforce-plain", "bt-rloo-3", "bt-self-critic"],
    "tree.BinaryTreeARSM.plan": TREE_CASES,
    "tree.BinaryTreeARSM._uniforms": TREE_CASES,
    "binary.arm_weight": ARM_CASES,
    "binary.disarm_weight": ["disarm", "disarm-two-samples"],
    "binary.pseudo_bit": [*ARM_CASES, "disarm"],
    "binary.ARM.plan": [*ARM_CASES, "disarm"],
    "pseudo._block": ["swaps"],
    "pseudo._pairs": ["swaps"],
    "pseudo._least": ["swaps"],
    "pseudo._winner": ["swaps"],
}

# Mutants that may live: (function, altered line, change) -> why nothing that matters changes.
_PROPOSES = "a bound that only proposes entries: each is then evaluated exactly"
_ROUNDING = "room for rounding"
_NOT_ONE = "entries of zero add nothing, and no sum is exactly 1"
_NAN = "where this says −inf, there would be NaN: neither passes a comparison"
HARMLESS: dict[tuple[str, str, str], str] = {
    (
        "plans.score_gradient",
        "tokens = torch.where(mask, trajectories.tokens, 0)[:, :, None]",
        "0 -> 1",
    ): "a place that nothing is added to",
    (
        "plans.GroupPlan._above_baseline",
        "shared_reward = share * torch.where(skipped, 0.0, rewards)",
        "0.0 -> 1.0",
    ): "times a share of zero",
    (
        "plans.GroupPlan._above_baseline",
        "groups = int(self.group.max()) + 1 if len(self.group) else 0",
        "1 -> 2",
    ): "one empty group more",
    (
        "plans.GroupPlan._above_baseline",
        "groups = int(self.group.max()) + 1 if len(self.group) else 0",
        "0 -> 1",
    ): "one empty group more",
    (
        "plans.GroupPlan._above_baseline",
        "total_share = torch.where(members > 1, total_share - share, 0.0)",
        "0.0 -> 1.0",
    ): "then no reward is left either: the baseline is 0 / 1",
    (
        "plans.GroupPlan._above_baseline",
        "return above / ((square / total_share.clamp(min=1)).sqrt() + _LEAST_DEVIATION)",
        "1 -> 2",
    ): "a single reward is its own mean: nothing is divided",
    (
        "plans.SetPlan._compared",
        "reward = torch.where(self.table >= 0, rewards[self.table.clamp(min=0)].double(), 0.0)",
        "0.0 -> 1.0",
    ): "times a weight of zero",
    (
        "plans.SetPlan._compared",
        "reward = torch.where(sound[:, None], reward, 0.0)",
        "0.0 -> 1.0",
    ): "of a context that is left out",
    (
        "plans.by_context",
        "table = torch.full((count, size), -1, dtype=torch.int64, device=contexts.device)",
        "1 -> 2",
    ): "any negative number says: none",
    **{
        (
            "sets.ratios",
            "_ratios(part) for part in log_probs.double()"
            ".split(max(1, _CHUNK // (log_probs.shape[1] ** 2 * len(_grid()))))",
            change,
        ): "other parts, of the same sets"
        for change in (
            "1 -> 2",
            "2 -> 3",
            "log_probs.shape[1] ** 2 * len(_grid()) -> log_probs.shape[1] ** 2",
        )
    },
    (
        "sets._ratios",
        "factor = torch.where(there[:, :, None], _log_one_minus_exp_minus_exp(x), 0.0)",
        "0.0 -> 1.0",
    ): "a factor that all integrals then have in common",
    ("sets._log_one_minus_exp_minus_exp", "y = -x.clamp(max=math.log(700.0)).exp()", "700.0 -> 701.0"): _ROUNDING,
    (
        "sets._log_one_minus_exp_minus_exp",
        "return torch.where(x < -30.0, x, torch.log(-torch.expm1(y)))",
        "30.0 -> 31.0",
    ): _ROUNDING,
    (
        "noise.conditional_gumbels",
        "v = most - free + torch.where(gap > -0.6931, torch.log(-torch.expm1(gap)), torch.log1p(-torch.exp(gap)))",
        "0.6931 -> 1.6931",
    ): "between the two bounds both forms are precise",
    (
        "tree_head.TreeHead.perturbed_by_levels",
        "drawn = exponential(keys, steps, 2 * logits.shape[1], torch.float64).log_().unflatten(1, (-1, 2))",
        "2 -> 3",
    ): "more numbers than are read",
    ("tree_head.TreeHead.perturbed_by_levels", "leaf = below < 0", "0 -> 1"): "node 0 is the root, and below no other",
    (
        "baselines.Fit.change",
        "ridge = torch.where(ridge > 0, ridge, 1.0)",
        "1.0 -> 2.0",
    ): "where no gradient was seen, the right side is zero too",
    (
        "baselines._of_softmax",
        "tokens = torch.where(trajectories.mask, trajectories.tokens, 0)",
        "0 -> 1",
    ): "a place that is not counted",
    (
        "values.Vine.plan",
        "other = rows + (trajectories.samples[rows] + turn) % self.samples - trajectories.samples[rows]",
        "trajectories.samples[rows] + turn -> trajectories.samples[rows] - turn",
    ): "the same others, the last first",
    (
        "values.Vine.plan",
        "share = torch.cat([torch.full_like(entry[0], entry[4], dtype=torch.float64) for entry in entries])",
        "0 -> 1",
    ): "there are as many rows as steps",
    (
        "branching.Branching.spend",
        "if self.budget is None or len(sizes) == 0:",
        "0 -> 1",
    ): "a single branch is always kept",
    (
        "branching.Branching.spend",
        "start = uniform(keys, torch.zeros_like(keys), 1, torch.float64)[0, 0]",
        "1 -> 2",
    ): "only the first is used",
    **{
        (function, f"{line}", f"_ROUNDING * squares -> {change}"): _ROUNDING
        for function, line in (
            ("coefficients._sums", "some = centred > _ROUNDING * squares"),
            ("coefficients._bucket", "if centred > _ROUNDING * squares:"),
        )
        for change in ("_ROUNDING / squares", "_ROUNDING")
    },
    ("coefficients._sums", "used = some[branch] & (total != 0)", "0 -> 1"): _NOT_ONE,
    ("coefficients._bucket", "if total[m] != 0:", "0 -> 1"): _NOT_ONE,
    (
        "coefficients.Coefficients.mean",
        "steps = int(every.step.max()) + 1 if len(every.step) else 1",
        "1 -> 2",
    ): "numbers of cells that are further apart",
    **{
        ("coefficients._bucket", line, change): "room for more than is written"
        for line, change in (
            ("cells, terms = len(starts) - 1, 2 * len(action)", "2 -> 3"),
            ("largest = 0", "0 -> 1"),
            (
                "largest = max(largest, starts[c + 1] - starts[c])",
                "starts[c + 1] - starts[c] -> starts[c + 1] + starts[c]",
            ),
            ("largest = max(largest, starts[c + 1] - starts[c])", "c + 1 -> c - 1"),
            ("actions = np.empty(min(vocab, 2 * largest), np.int64)", "2 -> 3"),
            (
                "bucket_swap, bucket_value = np.empty(2 * largest, np.int64), np.empty(2 * largest, np.float64)",
                "2 -> 3",
            ),
            ("end = 0", "0 -> 1"),
        )
    },
    (
        "ars._contrasts",
        "number = torch.full((len(coefficients.row),), -1, dtype=torch.int64, device=kept.device)",
        "1 -> 2",
    ): "any negative number says: not kept",
    (
        "budget.systematic_sample",
        "certain = probabilities == 1",
        "1 -> 2",
    ): "an interval of length 1 is hit by exactly one tick",
    (
        "score._greedy_baselines",
        "number = torch.full((rows, width + 1), width, dtype=torch.int64, device=mask.device)",
        "1 -> 2",
    ): "one column more than is read",
    (
        "score._greedy_baselines",
        "source = torch.arange(rows, device=mask.device)[:, None].repeat(1, width + 1)",
        "1 -> 2",
    ): "more columns than are read",
    (
        "binary.disarm_weight",
        "return 0.5 * sign * phi.abs().sigmoid()",
        "0.5 * sign -> 0.5 / sign",
    ): "the sign is 1 or −1",
    (
        "pseudo._block",
        "z2_free = (z2 != j) & (z2 != swap)",
        "(z2 != j) & (z2 != swap) -> (z2 != j) | (z2 != swap)",
    ): "where it matters, an exchanged value is no larger than the runner-up's",
    (
        "pseudo._block",
        "row, k = (is_true & ~alone[:, None]).nonzero(as_tuple=True)",
        "is_true & ~alone[:, None] -> is_true | ~alone[:, None]",
    ): _PROPOSES,
    **{
        ("pseudo._pairs", "slack = 4 * torch.finfo(x.dtype).eps", change): _PROPOSES
        for change in (
            "4 * torch.finfo(x.dtype).eps -> 4 / torch.finfo(x.dtype).eps",
            "4 * torch.finfo(x.dtype).eps -> 4",
            "4 -> 5",
        )
    },
    **{
        ("pseudo._pairs", line, f"slack * ({terms}) -> {change}"): _ROUNDING
        for line, terms in (
            ("bound = lowest - limit - slack * (lowest.abs() + limit.abs())", "lowest.abs() + limit.abs()"),
            ("bound = limit + highest + slack * (limit.abs() + highest.abs())", "limit.abs() + highest.abs()"),
            (
                "threshold = limit[:, None] + y_pad + slack * (limit.abs()[:, None] + y_pad.abs())",
                "limit.abs()[:, None] + y_pad.abs()",
            ),
        )
        for change in (f"slack / ({terms})", "slack")
    },
    (
        "pseudo._pairs",
        "y_row, y_index, y_pad = _ragged(y, y >= bound[:, None], -torch.inf)",
        "-torch.inf -> torch.inf",
    ): _PROPOSES,
    (
        "pseudo._pairs",
        "bound = torch.where(highest == -torch.inf, -torch.inf, bound)",
        "-torch.inf -> torch.inf",
    ): f"{_NAN}; or {_PROPOSES}",
    (
        "pseudo._pairs",
        "threshold = torch.where(y_pad == -torch.inf, -torch.inf, threshold)",
        "-torch.inf -> torch.inf",
    ): "padding that is not read",
}


_PACKAGES = {
    **dict.fromkeys(("noise", "searches", "types"), "corollout"),
    **dict.fromkeys(("heads", "tree_head", "walks"), "corollout.policies"),
}


@dataclass(frozen=True)
class Mutant:
    function: str
    line: str
    change: str
    code: CodeType

    @property
    def key(self) -> tuple[str, str, str]:
        return self.function, self.line, self.change


def mutants_of(name: str) -> Iterator[Mutant]:
    """Every mutant of a function."""
    module, _ = find(name)
    source = inspect.getsource(module)
    lines, tree = source.splitlines(), ast.parse(source)
    for index, original in enumerate(_places(tree, name)):
        for alternative in _alternatives(original):
            changed = copy.deepcopy(tree)
            place = _places(changed, name)[index]
            for fieldname, value in vars(alternative).items():
                setattr(place, fieldname, value)
            place.__class__ = alternative.__class__
            ast.fix_missing_locations(changed)
            code = _code(compile(changed, str(module.__file__), "exec"), name.split(".")[1:])
            change = f"{ast.unparse(original)} -> {ast.unparse(alternative)}"
            yield Mutant(name, lines[original.lineno - 1].strip(), change, code)


def find(name: str) -> tuple[ModuleType, FunctionType]:
    module_name, *path = name.split(".")
    module = importlib.import_module(f"{_PACKAGES.get(module_name, 'corollout.estimators')}.{module_name}")
    found: Any = module
    for part in path:
        found = inspect.getattr_static(found, part)
    found = getattr(found, "__func__", found)  # a class method
    return module, inspect.unwrap(getattr(found, "py_func", found))


def _places(tree: ast.Module, name: str) -> list[ast.expr]:
    """The expressions of a function that can be altered, in a fixed order; not annotations, messages or checks."""
    scope: Any = tree
    for part in name.split(".")[1:]:
        scope = next(node for node in scope.body if getattr(node, "name", None) == part)
    found: list[ast.expr] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, (ast.Raise, ast.arguments)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            return
        if isinstance(node, ast.expr):
            found.append(node)
        for child_name, child in ast.iter_fields(node):
            if child_name in ("annotation", "returns", "decorator_list"):
                continue
            for item in child if isinstance(child, list) else [child]:
                if isinstance(item, ast.AST):
                    visit(item)

    visit(scope)
    return [node for node in found if list(_alternatives(node))]


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    """What may stand in an expression's place."""
    if isinstance(node, ast.BinOp):
        swapped = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
        other = swapped.get(type(node.op))
        if other:
            yield ast.BinOp(node.left, other(), node.right)
        if isinstance(node.op, (ast.Mult, ast.Div)):
            yield copy.deepcopy(node.left)  # a factor left out
        if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            yield ast.BinOp(node.left, ast.BitOr() if isinstance(node.op, ast.BitAnd) else ast.BitAnd(), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert)):
        yield copy.deepcopy(node.operand)  # a sign left out
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        reverse = {
            ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
        }  # fmt: skip
        if type(node.ops[0]) in reverse:
            yield ast.Compare(node.left, [reverse[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        yield ast.Constant(node.value + 1)  # another index or factor
    elif isinstance(node, ast.Call):
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        for one, two in (("plus", "minus"), ("row", "step"), ("share", "weight")):
            if one in keywords and two in keywords:
                trade = {one: keywords[two], two: keywords[one]}
                yield ast.Call(
                    node.func, node.args, [ast.keyword(k.arg, trade.get(k.arg or "", k.value)) for k in node.keywords]
                )
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) >= 2:
        first, second, *rest = node.slice.elts
        if (
            not isinstance(first, ast.Slice)
            and not isinstance(second, ast.Slice)
            and ast.dump(first) != ast.dump(second)
        ):
            yield ast.Subscript(node.value, ast.Tuple([second, first, *rest], ast.Load()), node.ctx)


def _code(code: CodeType, path: list[str]) -> CodeType:
    for part in path:
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == part)
    return code


def noticed_by(mutant: Mutant) -> str | None:
    """The kind of check that notices the mutant, or None."""
    function = find(mutant.function)[1]
    original = function.__code__
    function.__code__ = mutant.code
    names = TARGETS[mutant.function]
    cases = [name for name in names if name not in CHECKS]
    try:
        for check in names:
            if check in CHECKS and _fails(CHECKS[check]):
                return check
        if any(_fails(lambda case=case: _unbiased(BY_NAME[case].short())) for case in cases):
            return "bias"
        if any(_fails(lambda case=case: _unbiased(BY_NAME[case])) for case in cases):
            return "bias"
        return "formula" if cases and _fails(CHECKS["formula"]) else None
    finally:
        function.__code__ = original


def _unbiased(case: Case) -> bool:
    return bool(case.deviations().max() < LIMIT)


def _fails(check: Callable[[], bool]) -> bool:
    try:
        return not check()
    except Exception:  # a mutant that breaks down is noticed, however it does
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shard", default="1/1", help="which part of the mutants: I/N")
    parser.add_argument("--function", help="only this function, as in TARGETS")
    parser.add_argument("--verbose", action="store_true", help="print every mutant with its fate")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shard, shards = map(int, options.shard.split("/"))
    mutants = [m for name in TARGETS if options.function in (None, name) for m in mutants_of(name)]
    mutants = mutants[shard - 1 :: shards]
    fates: Counter[str] = Counter()
    for mutant in mutants:
        fate = noticed_by(mutant) or ("harmless" if mutant.key in HARMLESS else "SURVIVED")
        fates[fate] += 1
        if options.verbose or fate == "SURVIVED":
            print(f"{fate:8}", *mutant.key, sep="  |  ", flush=True)
    print(
        f"{len(mutants)} mutants: {fates['bias']} noticed by their bias, {fates['formula']} only by the formula, "
        f"{sum(fates[check] for check in CHECKS if check != 'formula')} by brute force, "
        f"{fates['harmless']} harmless, {fates['SURVIVED']} survived"
    )
    return 1 if fates["SURVIVED"] or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
