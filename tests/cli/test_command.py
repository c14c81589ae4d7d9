"""Commands made from settings: every field is an option or an argument, and only given values override."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from corollout.cli.command import LazyGroup, command, summary
from corollout.config import argument, option, read_toml, required, switch
from corollout.errors import InputError


@dataclass(frozen=True)
class Model:
    hidden: int = option(8, "Width of the state.", least=1)
    cell: Literal["lstm", "gru"] = option("lstm", "Type of cell.")


@dataclass(frozen=True)
class Settings:
    run: Path = argument("Directory of a run.")
    out: Path = required("Output folder.")
    others: tuple[Path, ...] = argument("More runs.", ())
    learning_rate: float = option(1e-3, "Step size.", least=0)
    updates: int | None = option(None, "Updates.", least=1)
    clip: float | None = option(1.0, "Largest norm.")
    keep_all: bool = option(False, "Keep everything.")
    temperatures: tuple[float, ...] = option((0.5, 1.0), "Temperatures.")
    number: int = option(0, "Index.", flags=("--number", "--task"), metavar="<index>")
    json: bool = switch("Print JSON.")
    config: Path | None = option(None, "TOML file.")
    model: Model = field(default_factory=lambda: Model(hidden=16))

    @classmethod
    def scale_of(cls, path: tuple[str, ...]) -> str:
        return "a scale" if path[0] == "model" else ""

    @classmethod
    def layers(cls, flags: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        scale = {"updates": 100, "learning_rate": 0.5, "clip": 2.0}
        return [scale, read_toml(Path(flags["config"]))] if "config" in flags else []


def call(*arguments: str, cls: type = Settings) -> Any:
    """The settings that a command gets, or its output if it does not run."""
    got: list[Any] = []

    def train(settings: Any) -> None:
        """Train something. Slowly."""
        got.append(settings)

    train.__annotations__["settings"] = cls
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command(train))
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return got[0] if got else result.output


def test_given_values_override_the_defaults():
    assert call("run", "--out", "x") == Settings(Path("run"), Path("x"))
    flags = ["--learning-rate", "0.1", "--hidden", "4", "--keep-all", "--task", "3", "--json", "--clip", "none"]
    got = call("run", "a", "b", "--out", "x", *flags, "--temperatures", "1, 2.5", "--temperatures", "3")
    others, temperatures = (Path("a"), Path("b")), (1.0, 2.5, 3.0)
    assert got == Settings(Path("run"), Path("x"), others, 0.1, None, None, True, temperatures, 3, True, None, Model(4))
    assert call("run", "--out", "x", "--temperatures", "").temperatures == ()
    assert call("run", "--out", "x", "--clip", "-1e3", "--no-keep-all").clip == -1000.0


def test_layers_come_between_defaults_and_flags(tmp_path: Path):
    (tmp_path / "a.toml").write_text("learning_rate = 0.25\nkeep_all = true\n[model]\ncell = 'gru'\n")
    got = call("run", "--out", "x", "--clip", "none", "--config", str(tmp_path / "a.toml"))
    assert (got.updates, got.learning_rate, got.clip, got.keep_all) == (100, 0.25, None, True)
    assert got.model == Model(16, "gru")


def test_help_explains_every_option():
    text = " ".join(call("--help").split())
    for part in (
        "[OTHERS]...",
        "Train something.",
        "--out <path> Output folder. [required]",
        "--learning-rate <float> Step size. [default: 0.001]",
        "--updates <int> Updates. --clip",
        "--keep-all / --no-keep-all Keep everything. [default: no]",
        "--temperatures <float,…> Temperatures. [default: 0.5,1.0]",
        "--number, --task <index> Index. [default: 0]",
        "--json Print JSON. --config",
        "--cell <lstm|gru> Type of cell. [default: from a scale, otherwise lstm]",
        "--hidden <int> Width of the state. [default: from a scale, otherwise 16]",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learning-rate", "fast"], '--learning-rate must be a number, not "fast"'),
        (["--updates", "1.5"], '--updates must be a whole number or "none", not "1.5"'),
        (["--cell", "rnn"], '--cell must be one of lstm, gru, not "rnn"'),
        (["--temperatures", "1,x"], "--temperatures must be a list of numbers, not ["),
        (["--task", "x"], "--number must be a whole number"),
    ],
)
def test_an_invalid_value_is_an_error(arguments: list[str], message: str):
    with pytest.raises(InputError) as caught:
        call("run", "--out", "x", *arguments)
    assert str(caught.value).startswith(message)


def test_unknown_and_missing_options_and_two_of_one_name():
    for arguments, name in ((["run", "--out", "x", "--learning", "1"], "--learning"), (["run"], "--out"), ([], "RUN")):
        assert name in call(*arguments)

    @dataclass(frozen=True)
    class Clash:
        hidden: int = option(1, "Something else.")
        model: Model = field(default_factory=Model)

    with pytest.raises(InputError, match=r"two options --hidden, hidden and model\.hidden"):
        call(cls=Clash)


def test_a_group_imports_only_what_is_called():
    targets = {"good": "tests.cli.test_command:a_command", "bad": "corollout.files:os_errors", "gone": "corollout.x:y"}
    assert summary(targets["bad"]).startswith("Inside, an ``OSError`` becomes")

    class Group(LazyGroup):
        def __init__(self, **attributes: Any):
            super().__init__(targets=lambda: targets, **attributes)

    app, runner = typer.Typer(cls=Group), CliRunner()
    app.callback()(lambda: None)
    assert "A sentence." in runner.invoke(app, ["good", "--help"]).output
    assert isinstance(runner.invoke(app, ["gone"]).exception, InputError)
    unknown = runner.invoke(app, ["goof"])
    assert unknown.exit_code == 2
    assert "Did you mean 'good'?" in unknown.output


def a_command(settings: Model) -> None:
    """A sentence. And another."""
