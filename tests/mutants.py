"""Alter the estimators, one sign, factor or index at a time, and see that the proof of unbiasedness notices.

    python -m tests.mutants [--shard I/N] [--function NAME] [--verbose]

A mutant is one function of the package with one expression changed; its code replaces that of the function. It is
noticed if any of its checks deviates or raises. The few harmless ones are listed with the reason why they compute the
same. Prints every survivor, and exits with 1 if there is one.
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

from tests.support.mutant_targets import CHECKS, HARMLESS, PACKAGES, TARGETS
from tests.support.unbiased_cases import BY_NAME, LIMIT, Case


@dataclass(frozen=True)
class Mutant:
    function: str
    line: str
    change: str
    code: CodeType

    @property
    def harmless(self) -> tuple[str, str, str] | None:
        """Its entry in the list of harmless alterations."""
        here = (key for key in HARMLESS if key[0] == self.function and key[2] == self.change)
        return next((key for key in here if self.line.startswith(key[1])), None)


def mutants_of(name: str) -> Iterator[Mutant]:
    """Every mutant of a function."""
    module, _ = find(name)
    source = inspect.getsource(module)
    lines, tree = source.splitlines(), ast.parse(source)
    for index, original in enumerate(_expressions(tree, name)):
        for alternative in _alternatives(original):
            changed = copy.deepcopy(tree)
            expression = _expressions(changed, name)[index]
            for fieldname, value in vars(alternative).items():
                setattr(expression, fieldname, value)
            expression.__class__ = alternative.__class__
            ast.fix_missing_locations(changed)
            code = _code(compile(changed, str(module.__file__), "exec"), name.split(".")[1:])
            change = f"{ast.unparse(original)} -> {ast.unparse(alternative)}"
            yield Mutant(name, lines[original.lineno - 1].strip(), change, code)


def find(name: str) -> tuple[ModuleType, FunctionType]:
    module_name, *path = name.split(".")
    module = importlib.import_module(f"{PACKAGES.get(module_name, 'corollout.estimators')}.{module_name}")
    function: Any = module
    for part in path:
        function = inspect.getattr_static(function, part)
    function = getattr(function, "__func__", function)  # a class method
    return module, inspect.unwrap(getattr(function, "py_func", function))


def _expressions(tree: ast.Module, name: str) -> list[ast.expr]:
    """The expressions of a function that can be altered, in a fixed order; not annotations, messages or checks."""
    scope: Any = tree
    for part in name.split(".")[1:]:
        scope = next(node for node in scope.body if getattr(node, "name", None) == part)
    expressions: list[ast.expr] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, (ast.Raise, ast.arguments)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            return
        if isinstance(node, ast.expr):
            expressions.append(node)
        for child_name, child in ast.iter_fields(node):
            if child_name in ("annotation", "returns", "decorator_list"):
                continue
            for item in child if isinstance(child, list) else [child]:
                if isinstance(item, ast.AST):
                    visit(item)

    visit(scope)
    return [node for node in expressions if list(_alternatives(node))]


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    """The alterations of an expression."""
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
        if cases and _fails(CHECKS["formula"]):
            return "formula"
        return "bias" if any(_fails(lambda case=case: _unbiased(BY_NAME[case])) for case in cases) else None
    finally:
        function.__code__ = original


def _unbiased(case: Case) -> bool:
    return bool(case.deviations().max() < LIMIT)


def _fails(check: Callable[[], bool]) -> bool:
    try:
        return not check()
    except Exception:  # a mutant that raises any error is noticed
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
    unused = set(HARMLESS) if shards == 1 and options.function is None else set()
    for mutant in mutants:
        fate = noticed_by(mutant) or ("harmless" if mutant.harmless else "SURVIVED")
        fates[fate] += 1
        unused.discard(mutant.harmless)
        if options.verbose or fate == "SURVIVED":
            print(f"{fate:8}", mutant.function, mutant.line, mutant.change, sep="  |  ", flush=True)
    print(
        f"{len(mutants)} mutants: {fates['bias']} noticed by their bias, {fates['formula']} by the formula, "
        f"{sum(fates[check] for check in CHECKS if check != 'formula')} by brute force, "
        f"{fates['harmless']} harmless, {fates['SURVIVED']} survived"
    )
    for key in unused:
        print("listed as harmless, but there is no such mutant:", *key, sep="  |  ")
    return 1 if fates["SURVIVED"] or unused or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
