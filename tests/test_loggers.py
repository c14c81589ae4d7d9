"""Loggers: what they pass on, and to whom; the services' packages are stood in for by small ones."""

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from corollout.errors import InputError
from corollout.events import Event, note, warning
from corollout.loggers import Lines, Logger, MLflow, TensorBoard, WeightsAndBiases, close_all, make_logger, together
from tests.support.event_files import read_scalars

EVENTS = [
    Event("update", {"update": 1, "reward": 0.5, "rollouts_by_step": [1.0], "finished": True, "text": "x"}),
    Event("evaluation", {"update": 1, "CIDEr-D": 42.0}),
    note("compiling"),
    Event("choice", {"update": 1, "reason": "best"}),
    Event("update", {"update": 2, "reward": None}),
]


class Kept(Logger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def log(self, update: int, numbers: dict[str, float]) -> None:
        self.seen.append((update, numbers))

    def close(self) -> None:
        self.closed += 1


def send(*callbacks: Any) -> None:
    for event in EVENTS:
        together(*callbacks)(event)


def test_numbers_of_updates_and_evaluations_are_passed_on():
    first, second, plain = Kept(), Kept(), []
    send(first, second, plain.append)
    assert first.seen == [(1, {"update/reward": 0.5}), (1, {"evaluation/CIDEr-D": 42.0}), (2, {})]
    assert second.seen == first.seen
    assert plain == EVENTS
    close_all([first, plain.append, second])
    with first:
        pass
    assert (first.closed, second.closed) == (2, 1)


def test_tensorboard_files_can_be_read_again(tmp_path: Path):
    with TensorBoard(tmp_path / "logs" / "here") as logger:
        send(logger)
    expected = [(1, "update/reward", 0.5), (1, "evaluation/CIDEr-D", 42.0)]
    assert read_scalars(tmp_path / "logs" / "here") == expected


def test_weights_and_biases(monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []
    run = SimpleNamespace(log=calls.append, finish=lambda: calls.append("finish"))
    wandb = ModuleType("wandb")
    wandb.init = lambda **options: calls.append(options) or run  # pyright: ignore
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with WeightsAndBiases("project", mode="offline") as logger:
        send(logger)
    assert calls == [
        {"project": "project", "mode": "offline"},
        {"update/reward": 0.5, "updates": 1},
        {"evaluation/CIDEr-D": 42.0, "updates": 1},
        {"updates": 2},
        "finish",
    ]
    assert isinstance(make_logger("wandb"), WeightsAndBiases)
    assert calls[-1] == {"project": None}


def test_mlflow(monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []
    mlflow = ModuleType("mlflow")
    for name in ("set_experiment", "start_run", "log_metrics", "end_run"):
        setattr(mlflow, name, lambda *args, name=name, **options: calls.append((name, args, options)))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    with MLflow("experiment", run_name="first") as logger:
        send(logger)
    assert calls == [
        ("set_experiment", ("experiment",), {}),
        ("start_run", (), {"run_name": "first"}),
        ("log_metrics", ({"update/reward": 0.5},), {"step": 1}),
        ("log_metrics", ({"evaluation/CIDEr-D": 42.0},), {"step": 1}),
        ("log_metrics", ({},), {"step": 2}),
        ("end_run", (), {}),
    ]


def test_lines_appear_now_and_then():
    stream = io.StringIO()
    lines = Lines(seconds=1000, stream=stream)
    for update in range(1, 4):
        lines(Event("update", {"update": update, "reward": 0.25, "mean_length": 7.0, "tokens": 9}))
    lines(Event("evaluation", {"update": 3, "Generalization": 0.125}))
    lines(warning("all rewards are equal"))
    assert stream.getvalue().splitlines() == [
        "update 1: reward 0.25, mean length 7",
        "update 3: Generalization 0.125",
        "warning: all rewards are equal",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wandbb", "there is no logger 'wandbb': choose one of tensorboard, wandb, mlflow, or give the import path"),
        ("tensorboard", "tensorboard needs a folder, as in tensorboard:logs"),
        ("wandb:x", r"logging to wandb needs the package wandb .*: pip install wandb"),
        ("mlflow", r"logging to mlflow needs the package mlflow .*: pip install mlflow"),
        ("no.such.module:NAME", "cannot import 'no.such.module'"),
        ("math:pi", "'math:pi' must be a class or function without arguments that returns a callback"),
        ("builtins:int", "'builtins:int' must be a class or function without arguments that returns a callback"),
    ],
)
def test_bad_names_are_told(name: str, message: str, monkeypatch: pytest.MonkeyPatch):
    for package in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=message):
        make_logger(name)


def test_a_logger_of_ones_own_is_named_by_its_import_path():
    assert isinstance(make_logger("tests.test_loggers:Kept"), Kept)
