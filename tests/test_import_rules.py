"""Imports point one way. `RULES` says which; every module of the package is held to it."""

import ast
from collections.abc import Mapping
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]


class Rule(NamedTuple):
    """A room is a module with all its submodules. A room may always import itself."""

    room: str
    only: tuple[str, ...] | None = None  # of this package, the room may import nothing but these
    never: tuple[str, ...] = ()  # the room may not import these
    besides: tuple[str, ...] = ()  # rooms inside the room to which the rule does not apply


SHARED = ("corollout.types", "corollout.errors", "corollout.row_threads")

RULES = [
    Rule("corollout.noise", only=SHARED),
    Rule("corollout.config", only=SHARED),
    Rule("corollout.trees", only=(*SHARED, "corollout.noise")),
    Rule("corollout.estimators", only=(*SHARED, "corollout.noise")),
    Rule("corollout.policies", only=(*SHARED, "corollout.noise", "corollout.trees")),
    Rule("corollout.rollouts.search", only=(*SHARED, "corollout.noise", "corollout.policies")),
    Rule("corollout.rollouts", only=(*SHARED, "corollout.noise", "corollout.policies", "corollout.rollouts.search")),
    Rule("corollout.rewards", only=SHARED),
    Rule("corollout.tasks", never=("corollout.training", "corollout.cli", "corollout.reports")),
    Rule("corollout.training", never=("corollout.tasks", "corollout.experiments", "corollout.reports")),
    Rule("corollout.lab", never=("corollout.tasks", "corollout.experiments", "corollout.reports")),
    Rule("corollout.experiments", never=("corollout.reports",)),
    Rule("corollout.export", never=("corollout.reports",)),
    Rule("corollout.export.runtime", only=(), never=("torch", "safetensors", "scipy")),
    Rule("corollout", never=("rich", "matplotlib", "typer"), besides=("corollout.cli", "corollout.reports")),
    Rule("corollout", never=("corollout.cli",), besides=("corollout.cli",)),
]


class Violation(NamedTuple):
    path: str
    line: int
    target: str
    rule: Rule

    def __str__(self) -> str:
        allowed = f"; of ours it may import only {', '.join(self.rule.only)}" if self.rule.only else ""
        return f"{self.path}:{self.line}: {self.rule.room} must not import {self.target}{allowed}"


def violations(sources: Mapping[str, str]) -> list[Violation]:
    """All imports in `sources` (path from the repository root → text) that break a rule.

    `from a import b` counts as an import of `a.b`, whether `b` is a module or a name in `a`.
    """

    def inside(name: str, rooms: tuple[str, ...]) -> bool:
        return any(name == room or name.startswith(room + ".") for room in rooms)

    found: list[Violation] = []
    for path, source in sources.items():
        parts = path.removesuffix(".py").split("/")
        package = ".".join(parts[:-1])
        module = package if parts[-1] == "__init__" else ".".join(parts)
        for node in ast.walk(ast.parse(source, path)):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = resolve_name("." * node.level + (node.module or ""), package)
                targets = [f"{origin}.{alias.name}" for alias in node.names]
            else:
                continue
            for rule in RULES:
                if not inside(module, (rule.room,)) or inside(module, rule.besides):
                    continue
                for target in targets:
                    stranger = (
                        rule.only is not None
                        and inside(target, ("corollout",))
                        and not inside(target, (rule.room, *rule.only))
                    )
                    if stranger or inside(target, rule.never):
                        found.append(Violation(path, node.lineno, target, rule))
    return found


def test_the_package_keeps_the_rules() -> None:
    files = sorted((ROOT / "corollout").rglob("*.py"))
    broken = violations({file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files})
    assert not broken, "\n" + "\n".join(map(str, broken))


@pytest.mark.parametrize("room", sorted({rule.room for rule in RULES}))
def test_every_rule_is_about_a_room_that_exists(room: str) -> None:
    place = ROOT / room.replace(".", "/")
    assert place.is_dir() or place.with_suffix(".py").is_file(), f"{room} is gone, so its rule checks nothing"


BROKEN = [
    ("corollout/noise.py", "import corollout.trees", "corollout.trees"),
    ("corollout/config.py", "from .training import runs", "corollout.training.runs"),
    ("corollout/trees.py", "from corollout.policies import Head", "corollout.policies.Head"),
    ("corollout/estimators/plan.py", "from ..rollouts import sample", "corollout.rollouts.sample"),
    ("corollout/estimators/__init__.py", "from .. import rewards", "corollout.rewards"),
    ("corollout/estimators/plan.py", "import corollout", "corollout"),
    ("corollout/estimators/plan.py", "from corollout import *", "corollout.*"),
    ("corollout/policies/lstm.py", "from corollout import rewards as r", "corollout.rewards"),
    ("corollout/rollouts.py", "from . import types, estimators", "corollout.estimators"),
    ("corollout/rollouts/search.py", "from .rollouts import Engine", "corollout.rollouts.Engine"),
    ("corollout/rewards/pool.py", "def f():\n    from ..tasks.karel import run", "corollout.tasks.karel.run"),
    ("corollout/tasks/karel/data.py", "from ...training import loop", "corollout.training.finetuning"),
    ("corollout/tasks/karel/__init__.py", "from ... import reports", "corollout.reports"),
    ("corollout/tasks/__init__.py", "import corollout.training.finetuning as loop", "corollout.training.finetuning"),
    ("corollout/training/finetuning.py", "def f():\n    import os, rich.table", "rich.table"),
    ("corollout/training/fit.py", "from corollout.tasks.karel import run", "corollout.tasks.karel.run"),
    ("corollout/lab/lab.py", "from corollout.experiments import jobs", "corollout.training.start"),
    ("corollout/experiments/table1.py", "from corollout.reports import html", "corollout.reports.html"),
    ("corollout/export/writing.py", "from ..reports import html", "corollout.reports.html"),
    ("corollout/export/runtime.py", "def f():\n    from corollout import noise", "corollout.noise"),
    ("corollout/export/runtime.py", "import torch", "torch"),
    ("corollout/training/finetuning.py", "from matplotlib import pyplot", "matplotlib.pyplot"),
    ("corollout/__init__.py", "if True:\n    import typer", "typer"),
    ("corollout/reports/html.py", "from ..cli.main import app", "corollout.cli.main.app"),
    ("corollout/__init__.py", "from .cli import main", "corollout.cli.main"),
]

SOUND = [
    ("corollout/noise.py", "import torch\nfrom .types import Seed\nfrom .errors import NoiseError"),
    ("corollout/trees.py", "from corollout import noise, types"),
    ("corollout/estimators/__init__.py", "from .plan import Plan\nfrom . import arsm"),
    ("corollout/estimators/plan.py", "from corollout.noise import uniforms\nfrom .. import errors"),
    ("corollout/rollouts.py", "from .policies.protocol import Policy"),
    ("corollout/tasks/karel/model.py", "from ...policies import Head\nfrom ...estimators import Plan"),
    ("corollout/training/finetuning.py", "import richness, typers"),
    ("corollout/cli/main.py", "import rich, typer\nfrom .demo import demo\nfrom ..reports import table"),
    ("corollout/reports/figures.py", "import matplotlib.pyplot as plt"),
]


@pytest.mark.parametrize(("path", "source", "target"), BROKEN)
def test_a_broken_rule_is_found(path: str, source: str, target: str) -> None:
    assert target in [violation.target for violation in violations({path: source})]


@pytest.mark.parametrize(("path", "source"), SOUND)
def test_sound_imports_pass(path: str, source: str) -> None:
    assert violations({path: source}) == []


def test_every_rule_can_fail() -> None:
    broken = {violation.rule for path, source, _ in BROKEN for violation in violations({path: source})}
    assert broken == set(RULES)


def test_a_violation_says_where_and_what() -> None:
    (violation,) = violations({"corollout/trees.py": "import torch\nfrom . import rollouts"})
    assert str(violation) == (
        "corollout/trees.py:2: corollout.trees must not import corollout.rollouts; "
        "of ours it may import only corollout.types, corollout.errors, corollout.row_threads, corollout.noise"
    )
