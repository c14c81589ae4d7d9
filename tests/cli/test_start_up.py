"""How fast the command line answers: help and version import nothing that takes long, and Ctrl-C is obeyed at once."""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import corollout
from corollout.cli.root import all_commands
from corollout.experiments.registry import EXPERIMENTS
from corollout.tasks.task import task_names

HEAVY = ("torch", "numba", "scipy", "matplotlib", "transformers", "numpy")
CPU_SECONDS = 0.6  # 0.2 alone; other work on the machine makes everything slower
NAMES = sorted({*all_commands(), *(f"pretrain {name}" for name in task_names())})
NAMES += [f"reproduce {name}" for name in EXPERIMENTS]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(corollout.__file__).parents[1])}
QUESTIONS = [["--version"], ["--help"], [], *([*name.split(), "--help"] for name in NAMES)]
QUESTIONS += [["data"], ["data", "--help"], ["tree", "--help"], ["karel", "--help"]]

# Answers all questions, each in a fork of a process that has imported nothing but Python itself.
SCRIPT = """
import json, os, resource, sys
answers = []
for question in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    if os.fork() == 0:
        sys.argv = ["corollout", *question]
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = None
        try:
            from corollout.cli.main import app
            app()
        except SystemExit as end:
            code = end.code or 0
        used = resource.getrusage(resource.RUSAGE_SELF)
        heavy = [name for name in HEAVY if name in sys.modules]
        os.write(writer, json.dumps([code, heavy, used.ru_utime + used.ru_stime]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answers.append(json.loads(pipe.read()))
    os.wait()
print(json.dumps(answers))
"""


def python(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout


@cache
def answers() -> list[tuple[list[str], int, list[str], float]]:
    found = json.loads(python(SCRIPT.replace("HEAVY", repr(HEAVY)), json.dumps(QUESTIONS)))
    return [(question, *answer) for question, answer in zip(QUESTIONS, found, strict=True)]


def test_help_of_every_command_imports_nothing_heavy() -> None:
    assert len(QUESTIONS) > 25
    assert [(question, heavy) for question, _, heavy, _ in answers() if heavy] == []
    # A group without a command prints its help, as a mistake.
    assert {tuple(question) for question, code, _, _ in answers() if code != 0} <= {(), ("data",)}


def test_help_takes_little_processor_time() -> None:
    for question in (["--version"], ["--help"], ["finetune", "--help"]):
        times = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, "-m", "corollout", *question], capture_output=True, check=True, env=ENVIRONMENT
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert min(times) < CPU_SECONDS, question


def test_the_package_is_imported_lazily_and_has_all_its_names() -> None:
    script = f"import sys, corollout; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert python(script) == "[]\n"
    script = "import corollout\nfor name in corollout.__all__: print(name, type(getattr(corollout, name)).__name__)"
    names = dict(line.split() for line in python(script).splitlines())
    assert set(names) == set(corollout.__all__) <= set(dir(corollout))
    kinds = names["fit"], names["pretrain"], names["Trainer"], names["policies"]
    assert kinds == ("function", "function", "type", "module")


@pytest.mark.parametrize(
    "package",
    [
        *("training", "tasks.karel"),
        *(
            pytest.param(name, marks=pytest.mark.prove)
            for name in ("lab", "tasks.captioning", "estimators", "policies")
        ),
    ],
)
def test_names_of_packages_are_what_they_say_whatever_is_imported_first(package: str) -> None:
    # A module that is imported becomes an attribute of its package, which must not hide a name.
    script = f"""
import importlib, pkgutil
package = importlib.import_module("corollout.{package}")
for module in pkgutil.iter_modules(package.__path__):
    importlib.import_module(f"corollout.{package}." + module.name)
print([name for name in package.__all__ if type(getattr(package, name)).__name__ == "module"])
"""
    assert python(script) == "[]\n"


def test_lazy_names_are_the_same_objects_and_can_be_pickled() -> None:
    from corollout import Engine
    from corollout.rollouts.engine import Engine as Original

    assert Engine is Original is corollout.Engine
    assert pickle.loads(pickle.dumps(corollout.Schedule)) is corollout.Schedule  # noqa: S301
    assert getattr(corollout, "training").Trainer is corollout.Trainer  # noqa: B009
    schedule = corollout.Schedule("updates", 3, 1)
    assert pickle.loads(pickle.dumps(schedule)) == schedule  # noqa: S301
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = corollout.nothing  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay", [0.0, 0.3, 0.8, 1.5])
def test_a_signal_while_modules_are_imported_ends_in_one_line(number: signal.Signals, delay: float, tmp_path: Path):
    # The first line of output is that of the entry point, which has begun.
    script = (
        "import sys; from corollout import signals; from corollout.cli.main import app\n"
        "handled = signals.ending_stops\n"
        "class Said:\n"
        "    def __enter__(self): self.inner = handled(); self.inner.__enter__(); print('listening', flush=True)\n"
        "    def __exit__(self, *error): return self.inner.__exit__(*error)\n"
        "import corollout.cli.main as main; main.ending_stops = Said\n"
        "app()\n"
    )
    command = [sys.executable, "-c", script, "evaluate", "missing"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=ENVIRONMENT
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if "missing" in errors:  # it was faster than the signal
        assert process.returncode == 1
        return
    assert process.returncode == 128 + number
    assert errors.count("\n") == 1
    assert errors.startswith("Stopped")


def test_a_signal_is_not_swallowed_by_the_module_that_is_imported(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    import math\n"
        "except BaseException: pass\ndef run(settings): print('ran')\n"
    )
    script = (
        "from corollout.cli import root\nfrom corollout.config import Command\n"
        "from corollout.tasks.spec import NoSettings\n"
        "root.COMMANDS['slow'] = Command('slow:run', NoSettings, 'Slow.')\n"
        "from corollout.cli.main import app; app()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "slow"], capture_output=True, text=True, cwd=tmp_path, check=False,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped. Run the same command again.\n")


def test_every_command_can_be_loaded() -> None:
    from corollout.cli.command import help_of
    from corollout.config import Command, import_object

    for name, target in all_commands().items():
        if isinstance(target, Command):
            function: Callable[..., Any] = import_object(target.function)
            assert help_of(target) == (target.help or help_of(function)), name
