"""Imports point one way: every module of the package is held to the tables below."""

import ast
from collections.abc import Mapping
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SHARED = (
    "types errors lazy text arguments limits json_text numba_cache row_threads noise files weights arrays folders "
    "signals events config data prefix_tree launch stores heartbeats process_group processes divided_work restarts "
    "division"
)
# All that a room may import from this package, besides itself.
ONLY = {
    **dict.fromkeys([*SHARED.split(), "trees", "estimators", "rewards", "text_metrics"], SHARED),
    "policies": f"{SHARED} trees",
    "rollouts": f"{SHARED} policies",
    "export.runtime": "",
}
# What a room must not import. "tasks.*" are concrete tasks.
NEVER = {
    "tasks": "training lab inspection reports sweeps experiments",
    "training": "tasks.* lab inspection reports sweeps experiments",
    "lab": "tasks.* sweeps experiments",
    "inspection": "tasks.* sweeps experiments",
    "reports": "tasks.* sweeps experiments",
    "sweeps": "tasks.* experiments",
    "hf": "tasks.* lab inspection sweeps experiments export",
    "export": "tasks.* reports sweeps experiments",
    "cli": "tasks.* experiments.*",
    "": "cli",
}
# Not in "tasks.*" and "experiments.*"; the demo is a command.
GENERIC = ("tasks.spec", "tasks.task", "tasks.views")
GENERIC += ("experiments.experiment", "experiments.registry", "experiments.settings", "experiments.demo")
# Packages that only the rooms cli and reports, and modules of some names, may import.
DISPLAY, DISPLAY_MODULES = ("rich", "typer", "matplotlib"), ("show", "view", "views", "figures", "commands", "terminal")
RUNTIME = ("torch", "safetensors", "scipy")  # packages that the exported runtime must do without
NUMBA = ("numba_cache", "export.runtime")  # all others import numba from the first, so that it has a cache


def inside(name: str, room: str) -> bool:
    return room == "" or name == room or name.startswith(f"{room}.")


def forbids(room: str, target: str) -> bool:
    """Whether an entry of `NEVER` is about a module of the package."""
    if room.endswith(".*"):
        return inside(target, room[:-2]) and target != room[:-2] and not any(inside(target, one) for one in GENERIC)
    return inside(target, room)


def allowed(module: str, target: str) -> bool:
    """Whether a module may import a target; the names of our own modules do not begin with "corollout."."""
    name = module.rpartition(".")[2]
    if not inside(target, "corollout"):
        package = target.partition(".")[0]
        shows = inside(module, "cli") or inside(module, "reports") or name in DISPLAY_MODULES
        if target == "numba" and module not in NUMBA:
            return False
        return (shows or package not in DISPLAY) and not (module == "export.runtime" and package in RUNTIME)
    target = target.removeprefix("corollout").removeprefix(".")
    is_command_line = inside(module, "cli") or module == "__main__"
    if inside(module, "tasks") and name == "commands":
        return not forbids("experiments", target)
    for room, others in ONLY.items():
        if inside(module, room) and not any(inside(target, other) for other in (room, *others.split())):
            return False
    return not any(
        inside(module, room) and not (room == "" and is_command_line) and forbids(other, target)
        for room, others in NEVER.items()
        for other in others.split()
    )


def violations(sources: Mapping[str, str]) -> list[str]:
    """All imports in `sources` (path from the repository root → text) that break a rule.

    `from a import b` counts as an import of `a.b`, whether `b` is a module or a name in `a`.
    """
    broken: list[str] = []
    for path, source in sources.items():
        parts = path.removesuffix(".py").split("/")
        package = ".".join(parts[:-1])
        module = ".".join(parts[1:-1] if parts[-1] == "__init__" else parts[1:])
        for node in ast.walk(ast.parse(source, path)):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = resolve_name("." * node.level + (node.module or ""), package)
                targets = [f"{origin}.{alias.name}" for alias in node.names]
            else:
                continue
            broken += [
                f"{path}:{node.lineno} must not import {target}" for target in targets if not allowed(module, target)
            ]
    return broken


def test_the_package_keeps_the_rules() -> None:
    files = sorted((ROOT / "corollout").rglob("*.py"))
    broken = violations({file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files})
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize("room", [*ONLY, *NEVER])
def test_every_rule_is_about_a_room_that_exists(room: str) -> None:
    path = ROOT / "corollout" / room.replace(".", "/")
    assert path.is_dir() or path.with_suffix(".py").is_file(), f"{room} does not exist, so its rule checks nothing"


FORBIDDEN = [(room, other) for room in NEVER for other in NEVER[room].split()]


@pytest.mark.parametrize(("room", "other"), [*FORBIDDEN, *((room, "training.start") for room in ONLY)])
def test_every_forbidden_import_is_found(room: str, other: str) -> None:
    path = f"corollout/{room.replace('.', '/') or 'main'}/module.py"
    target = "corollout." + other.replace("*", "concrete")
    assert violations({path: f"def f():\n    import os, {target}"}) == [f"{path}:2 must not import {target}"]


@pytest.mark.parametrize(
    ("path", "source", "broken"),
    [
        ("estimators/plan.py", "from ..rollouts import sample", 1),
        ("estimators/__init__.py", "from .. import training", 1),
        ("estimators/plan.py", "from corollout import *", 1),
        ("rollouts/engine.py", "from .. import types, estimators", 1),
        ("tasks/karel/commands.py", "from ...experiments import table1", 1),
        ("export/runtime.py", "import torch", 1),
        ("estimators/ars.py", "import numba", 1),
        ("estimators/ars.py", "from corollout.numba_cache import numba", 0),
        ("__main__.py", "from corollout.cli.main import app", 0),
        ("training/start.py", "def f():\n    import os, rich.table", 1),
        ("__init__.py", "if True:\n    import typer", 1),
        ("lab/lab.py", "from matplotlib import pyplot", 1),
        ("noise.py", "import torch\nfrom .types import Seed\nfrom .errors import InputError", 0),
        ("estimators/__init__.py", "from .plan import Plan\nfrom . import arsm", 0),
        ("rollouts/engine.py", "from ..policies.protocol import Policy", 0),
        ("tasks/karel/model.py", "from ...policies import Head\nfrom ...estimators import Plan\nimport richness", 0),
        ("tasks/karel/commands.py", "import rich\nfrom ...cli import progress\nfrom ...training import Run", 0),
        ("lab/report.py", "from corollout.reports.report import Report", 0),
        ("cli/main.py", "import rich, typer\nfrom .check import check\nfrom ..tasks.task import find_task", 0),
        ("cli/main.py", "from ..experiments.registry import EXPERIMENTS", 0),
        ("experiments/table1.py", "from ..tasks.karel import task\nfrom ..reports import html", 0),
    ],
)
def test_imports_that_break_a_rule_are_found_and_others_are_allowed(path: str, source: str, broken: int) -> None:
    assert len(violations({f"corollout/{path}": source})) == broken
