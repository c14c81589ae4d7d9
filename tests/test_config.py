"""Settings survive a round trip through files, and a mistake in a file is explained."""

import dataclasses
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from corollout.config import from_table, merge, option, options_of, read_toml, required, to_table, toml_text, write_toml
from corollout.errors import InputError


@dataclass(frozen=True)
class Model:
    hidden: int = option(8, "Width of the state.", least=1)
    cell: Literal["lstm", "gru"] = option("lstm", "Type of cell.")
    dropout: float = option(0.0, "Dropout.", least=0, most=1)


@dataclass(frozen=True)
class Settings:
    data: Path = option(Path("data"), "Folder with the data.")
    rate: float = option(1e-3, "Learning rate.", least=0)
    updates: int | None = option(None, "Updates.", least=1)
    clip: float | None = option(1.0, "Norm to which gradients are clipped.")
    name: str = option("run", "Name.")
    note: str | None = option(None, "Remark.")
    log: bool = option(True, "Write a log.")
    estimator: str = option("arsm", "Estimator.", choices=("arsm", "rloo"))
    temperatures: tuple[float, ...] = option((0.5, 1.0), "Temperatures.", least=0)
    sizes: tuple[int, ...] = option((), "Sizes.")
    words: tuple[str, ...] = option(("a",), "Words.", choices=("a", "b", "c"))
    files: tuple[Path, ...] | None = option(None, "Files.")
    model: Model = Model(hidden=16)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
floats = st.floats(allow_nan=False, allow_infinity=False)
rates = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
models = st.builds(Model, hidden=st.integers(1, 2**62), cell=st.sampled_from(["lstm", "gru"]), dropout=st.floats(0, 1))
configs = st.builds(
    Settings,
    data=st.sampled_from([Path("x"), Path("/a b/ü"), Path()]),
    rate=rates,
    updates=st.none() | st.integers(1, 100),
    clip=st.none() | floats,
    name=texts,
    note=st.none() | texts.filter(lambda text: text != "none"),
    log=st.booleans(),
    estimator=st.sampled_from(["arsm", "rloo"]),
    temperatures=st.lists(rates, max_size=3).map(tuple),
    sizes=st.lists(st.integers(-(2**62), 2**62), max_size=3).map(tuple),
    words=st.lists(st.sampled_from("abc"), max_size=3).map(tuple),
    files=st.none() | st.just((Path("x"), Path("y"))),
    model=models,
)


@settings(max_examples=100, deadline=None)
@given(configs)
def test_settings_survive_a_round_trip(tmp_path_factory: pytest.TempPathFactory, config: Settings):
    path = tmp_path_factory.getbasetemp() / "settings.toml"
    write_toml(path, to_table(config))
    again = from_table(Settings, read_toml(path), str(path))
    assert again == config
    assert repr(again) == repr(config)  # 1 is not 1.0


def test_a_table_is_complete_and_missing_entries_have_their_defaults():
    table = to_table(Settings())
    assert set(table) == {field.name for field in dataclasses.fields(Settings)}
    assert table["updates"] == "none"
    assert table["model"] == {"hidden": 16, "cell": "lstm", "dropout": 0.0}
    assert from_table(Settings, {}, "here") == Settings()
    # The section's own default, 16, and not that of its class, 8.
    assert from_table(Settings, {"model": {"cell": "gru"}}, "here").model == Model(16, "gru")
    assert repr(from_table(Settings, {"rate": 1}, "here").rate) == "1.0"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rat": 1.0}, "a.toml: unknown key 'rat'; did you mean 'rate'?"),
        ({"zzzzz": 1.0}, "a.toml: unknown key 'zzzzz'; the keys are data, rate, updates,"),
        ({"model": {"hiden": 1}}, "a.toml: unknown key 'hiden' in section model; did you mean 'hidden'?"),
        ({"model": 3}, "a.toml: model must be a section, not 3"),
        ({"rate": "fast"}, 'a.toml: rate must be a number, not "fast"'),
        ({"rate": float("nan")}, "a.toml: rate must be a finite number, not nan"),
        ({"rate": {"a": 1}}, "a.toml: rate must be a number, not a section"),
        ({"rate": -0.5}, "a.toml: rate must be at least 0, not -0.5"),
        ({"updates": True}, 'a.toml: updates must be a whole number or "none", not true'),
        ({"log": 1}, "a.toml: log must be true or false, not 1"),
        ({"estimator": "ars"}, 'a.toml: estimator must be one of arsm, rloo, not "ars"'),
        ({"model": {"cell": "rnn"}}, 'a.toml: model.cell must be one of lstm, gru, not "rnn"'),
        ({"model": {"dropout": 1.01}}, "a.toml: model.dropout must be at most 1, not 1.01"),
        ({"temperatures": 1.0}, "a.toml: temperatures must be a list of numbers, not 1.0"),
        ({"temperatures": [1.0, "x"]}, "a.toml: temperatures must be a list of numbers, not ["),
        ({"temperatures": [1.0, -1.0]}, "a.toml: temperatures must be at least 0, not -1"),
        ({"updates": 2**63}, "a.toml: updates must be a whole number of at most 18 digits, not 9223372036854775808"),
        ({"updates": 10**4000}, "a.toml: updates must be a whole number of at most 18 digits, not 1000"),
        ({"rate": -(10**4000)}, "a.toml: rate must be a number, not -1000"),
        ({"rate": date(2026, 1, 2)}, "a.toml: rate must be a number, not 2026-01-02"),
        ({"data": "a\0b"}, 'a.toml: data must be a path, not "a\\u0000b"'),
        ({"name": ["x" * 10**6]}, 'a.toml: name must be text, not [ "xxx'),
        ({"y" * 10**6: 1}, "a.toml: unknown key 'yyy"),
        ({"files": [1]}, 'a.toml: files must be a list of paths or "none", not ['),
    ],
)
def test_a_mistake_is_explained(table: dict[str, Any], message: str):
    with pytest.raises(InputError) as caught:
        from_table(Settings, table, "a.toml")
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 400


def test_settings_are_checked_when_they_are_written():
    with pytest.raises(InputError, match="rate must be at least 0"):
        to_table(Settings(rate=-1.0))
    with pytest.raises(InputError, match='note must not be the text "none"'):
        to_table(Settings(note="none"))
    assert to_table(Settings(name="none"))["name"] == "none"


def test_a_field_may_be_required_or_renamed():
    @dataclass(frozen=True)
    class Strict:
        out: Path = required("A folder.")
        max_norm: float = option(1.0, "Norm.", formerly="clip")
        model: Model = dataclasses.field(default_factory=Model)

    assert from_table(Strict, {"out": "x", "clip": 2.0}, "a.toml") == Strict(Path("x"), 2.0)
    with pytest.raises(InputError, match=r"a\.toml: out is missing and has no default"):
        from_table(Strict, {}, "a.toml")


@pytest.mark.parametrize("type", [dict[str, int], tuple[int, int], int | str])
def test_unsupported_types_are_refused(type: Any):
    with pytest.raises(TypeError, match="not supported"):
        options_of(dataclasses.make_dataclass("Odd", [("entry", type)]))
    with pytest.raises(TypeError, match="not a dataclass"):
        options_of(int)


def test_later_tables_win_entry_by_entry():
    first = {"a": 1, "b": {"c": 1, "d": {"e": 1}}, "f": {"g": 1}, "h": 1}
    second = {"a": 2, "b": {"d": {"x": 2}}, "f": 2, "h": {"i": 2}}
    assert merge(first, second) == {"a": 2, "b": {"c": 1, "d": {"e": 1, "x": 2}}, "f": 2, "h": {"i": 2}}
    assert first["b"] == {"c": 1, "d": {"e": 1}}
    assert merge() == {}


def test_files_that_cannot_be_read_or_written(tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot read the settings .*none\.toml: No such file"):
        read_toml(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = 1\n\nb = = 2\n")
    with pytest.raises(InputError, match=r"broken\.toml are not valid TOML: .*line 3"):
        read_toml(broken)
    broken.write_bytes(b'a = "\xff"')
    with pytest.raises(InputError, match="not UTF-8"):
        read_toml(broken)
    with pytest.raises(InputError, match="cannot write the settings"):
        write_toml(tmp_path / "no" / "folder", {})
    with pytest.raises(InputError, match="cannot be written as TOML"):
        toml_text({"a": None})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a = {'9' * 5000}", "are not valid TOML"),
        (f"a = {'[' * 10**5}", "are nested more than 20 levels deep"),
        (f"a = {'[' * 30}{']' * 30}", "are nested more than 20 levels deep"),
        (f"{'.'.join('a' * 5000)} = 1", "are nested more than 20 levels deep"),
        (f"a = 2026-13-45{'x' * 10**5}", "are not valid TOML"),
    ],
)
def test_files_that_would_overwhelm_a_reader(tmp_path: Path, text: str, message: str):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_toml(tmp_path / "a.toml")
    assert len(str(caught.value)) < 400


def test_a_name_that_is_not_utf_8_cannot_be_written(tmp_path: Path):
    with pytest.raises(InputError, match=r"'.*caf\\udce9.*' in it is not valid Unicode"):
        write_toml(tmp_path / "a.toml", {"data": "caf\udce9"})
    assert not list(tmp_path.iterdir())
