"""Alter the estimators, one sign, factor or index at a time, and see that the proof of unbiasedness notices.

    python tests/mutants.py [--shard I/N] [--function NAME] [--verbose]

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
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from coefficient_reference import sums_agree
from literal import ESTIMATORS, ON_TREES, agrees
from pseudo_reference import swaps_agree
from unbiased_cases import BY_NAME, LIMIT, Case

from corollout.estimators import ARS


def _formulas_agree() -> bool:
    settings = [
        (e, skip, on_tree) for es, on_tree in ((ON_TREES, True), (ESTIMATORS, False)) for e in es for skip in (0.0, 0.2)
    ]
    return all(agrees(e, skip, on_tree=on_tree) for e, skip, on_tree in settings) and agrees(ARS(), masked=True)


CHECKS: dict[str, Callable[[], bool]] = {
    "sums": sums_agree,  # coefficients are the sums over all pseudo-actions
    "swaps": swaps_agree,  # pseudo-actions are those of brute-force swapping
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
COPY_CASES = ["arsm-three-completions-own-noise", "bt-arsm-three-completions", "ars-2-budget-completions"]
TARGETS: dict[str, list[str]] = {
    "plans.ContrastPlan.gradient": ["arsm", "self-critic", "arsm-masked", "bt-arsm", "bt-self-critic"],
    "plans.GroupPlan.gradient": [*GROUP_CASES, "bt-rloo-3"],
    "plans.GroupPlan._above_baseline": GROUP_CASES,
    "ars.ARS._coefficients_of": ARS_CASES,
    "ars.ARS._references": ARS_CASES,
    "coefficients._collect_torch": ["sums"],
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
        "plans.GroupPlan.gradient",
        "tokens = torch.where(mask, self.trajectories.tokens, 0)[:, :, None]",
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
        "branching.Branching.spend",
        "if self.budget is None or len(sizes) == 0:",
        "0 -> 1",
    ): "a single branch is always kept",
    (
        "branching.Branching.spend",
        "example = trajectories.examples[row[pool[:1]]]",
        "1 -> 2",
    ): "only the first is used",
    (
        "branching.Branching.spend",
        "start = uniform(keys, torch.zeros_like(keys), 1, torch.float64)[0, 0]",
        "1 -> 2",
    ): "only the first is used",
    **{
        (function, f"{line}", f"_ROUNDING * squares -> {change}"): _ROUNDING
        for function, line in (
            ("coefficients._collect_torch", "some = centred > _ROUNDING * squares"),
            ("coefficients._bucket", "if centred > _ROUNDING * squares:"),
        )
        for change in ("_ROUNDING / squares", "_ROUNDING")
    },
    ("coefficients._collect_torch", "used = some[branch] & (total != 0)", "0 -> 1"): _NOT_ONE,
    ("coefficients._bucket", "if total[m] != 0:", "0 -> 1"): _NOT_ONE,
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
        "budget.systematic_sample",
        "hit = torch.searchsorted(cumulated, comb, right=True).clamp_(max=len(open_ends) - 1)",
        "len(open_ends) - 1 -> len(open_ends) + 1",
    ): _ROUNDING,
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
    package = "corollout" if module_name == "types" else "corollout.estimators"
    module = importlib.import_module(f"{package}.{module_name}")
    found: Any = module
    for part in path:
        found = inspect.getattr_static(found, part)
    found = getattr(found, "__func__", found)  # a class method
    return module, getattr(found, "py_func", found)


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
    cases = [case for case in TARGETS[mutant.function] if case not in CHECKS]
    try:
        if any(_fails(lambda case=case: _unbiased(BY_NAME[case].short())) for case in cases):
            return "bias"
        if any(_fails(lambda case=case: _unbiased(BY_NAME[case])) for case in cases):
            return "bias"
        check = "formula" if cases else TARGETS[mutant.function][0]
        return check if _fails(CHECKS[check]) else None
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
        f"{fates['swaps'] + fates['sums']} by brute force, {fates['harmless']} harmless, {fates['SURVIVED']} survived"
    )
    return 1 if fates["SURVIVED"] or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
