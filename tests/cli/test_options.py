"""Flags made from settings: what the user gave, and nothing else, reaches the command."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from corollout.cli.options import with_options
from corollout.config import from_table, merge, option, read_toml
from corollout.errors import InputError


@dataclass(frozen=True)
class Model:
    hidden: int = option(8, "Width of the state.", least=1)
    cell: Literal["lstm", "gru"] = option("lstm", "Kind of cell.")


@dataclass(frozen=True)
class Training:
    learning_rate: float = option(1e-3, "Step size.", least=0)
    updates: int | None = option(None, "Updates.", least=1)
    clip: float | None = option(1.0, "Largest norm.")
    keep_all: bool = option(False, "Keep everything.")
    temperatures: tuple[float, ...] = option((0.5, 1.0), "Temperatures.")
    data: Path = option(Path("data"), "Folder.")


@dataclass(frozen=True)
class Experiment:
    seed: int = option(0, "Seed.")
    model: Model = Model(hidden=16)


def call(*arguments: str, classes: tuple[type, ...] = (Experiment, Training)) -> dict[str, Any]:
    """What a command gets."""
    got: dict[str, Any] = {}

    @with_options(*classes)
    def train(
        flags: dict[str, Any],
        config: Path | None,
        out: Annotated[Path, typer.Option(help="Where to.")] = Path("out"),
        quick: bool = False,
    ) -> None:
        """Train something."""
        got.update(flags=flags, config=config, out=out, quick=quick)

    app = typer.Typer(rich_markup_mode=None)
    app.command()(train)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=True, env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    got["output"], got["code"] = result.output, result.exit_code
    return got


def test_only_what_was_given_is_passed_on():
    got = call()
    assert got["code"] == 0, got["output"]
    assert got["flags"] == {}
    assert got["config"] is None
    assert got["out"] == Path("out")
    got = call("--learning-rate", "0.1", "--hidden", "4", "--keep-all", "--out", "x", "--quick", "--config", "a.toml")
    assert got["flags"] == {"learning_rate": 0.1, "model": {"hidden": 4}, "keep_all": True}
    assert (got["config"], got["out"], got["quick"]) == (Path("a.toml"), Path("x"), True)
    got = call("--no-keep-all", "--temperatures", "1, 2.5", "--clip", "none", "--data", "d", "--cell", "gru")
    assert got["flags"] == {
        "keep_all": False,
        "temperatures": [1.0, 2.5],
        "clip": "none",
        "data": "d",
        "model": {"cell": "gru"},
    }
    assert call("--temperatures", "")["flags"] == {"temperatures": []}
    assert call("--clip", "-1e3", "--seed", "-5")["flags"] == {"clip": -1000.0, "seed": -5}


def test_defaults_then_scale_then_file_then_flags(tmp_path: Path):
    scale = {"updates": 100, "learning_rate": 0.5, "clip": 2.0}
    (tmp_path / "a.toml").write_text("learning_rate = 0.25\nkeep_all = true\n")
    got = call("--clip", "none", "--config", str(tmp_path / "a.toml"), classes=(Training,))
    config = from_table(Training, merge(scale, read_toml(got["config"]), got["flags"]), "settings")
    assert config == Training(learning_rate=0.25, updates=100, clip=None, keep_all=True)


def test_help_explains_every_flag():
    lines = [" ".join(line.split()) for line in call("--help")["output"].splitlines()]
    text = " ".join(lines)
    for part in (
        "Train something.",
        "--learning-rate <float> Step size. [default: 0.001]",
        "--updates <int> Updates. [default: depends on scale]",
        "--keep-all / --no-keep-all Keep everything. [default: no]",
        "--temperatures <float,…> Temperatures. [default: 0.5,1.0]",
        "--data <path> Folder. [default: data]",
        "--cell <lstm|gru> Kind of cell. [default: lstm]",
        "--hidden <int> Width of the state. [default: 16]",
        "--config <file> TOML file with settings; flags win over it.",
        "--out <path> Where to.",
    ):
        assert part in text
    assert text.count("[default: 0.001]") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learning-rate", "fast"], '--learning-rate must be a number, not "fast"'),
        (["--learning-rate", "nan"], "--learning-rate must be a number, not nan"),
        (["--learning-rate", "-1"], "--learning-rate must be at least 0, not -1.0"),
        (["--updates", "1.5"], '--updates must be a whole number or "none", not "1.5"'),
        (["--updates", "0"], "--updates must be at least 1, not 0"),
        (["--hidden", "0"], "--hidden must be at least 1, not 0"),
        (["--hidden", "none"], '--hidden must be a whole number, not "none"'),
        (["--cell", "rnn"], '--cell must be one of lstm, gru, not "rnn"'),
        (["--temperatures", "1,x"], "--temperatures must be a list of numbers, not ["),
    ],
)
def test_values_that_cannot_be(arguments: list[str], message: str):
    with pytest.raises(InputError) as caught:
        call(*arguments)
    assert str(caught.value).startswith(message)


def test_unknown_flags_are_refused():
    got = call("--learning", "1")
    assert got["code"] == 2
    assert "--learning" in got["output"]


def test_two_flags_of_one_name_are_refused_at_once():
    @dataclass(frozen=True)
    class Other:
        hidden: int = option(1, "Something else.")

    @dataclass(frozen=True)
    class Reserved:
        config: int = option(1, "The name of the file's flag.")

    @dataclass(frozen=True)
    class Out:
        out: int = option(1, "The name of the command's own parameter.")

    for classes, flag in (((Model, Other), "--hidden"), ((Reserved,), "--config"), ((Out,), "--out")):
        with pytest.raises(TypeError, match=f"train would have two flags {flag}"):
            call(classes=classes)
