"""Settings come back from files as they were, and a mistake in a file is explained."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from corollout.config import from_table, merge, option, options_of, read_toml, to_table, toml_text, write_toml
from corollout.errors import InputError


@dataclass(frozen=True)
class Model:
    hidden: int = option(8, "Width of the state.", least=1)
    cell: Literal["lstm", "gru"] = option("lstm", "Kind of cell.")
    dropout: float = option(0.0, "Share of units that are dropped.", least=0)


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
floats = st.floats(allow_nan=False)
models = st.builds(
    Model, hidden=st.integers(1, 2**62), cell=st.sampled_from(["lstm", "gru"]), dropout=floats.filter(lambda x: x >= 0)
)
configs = st.builds(
    Settings,
    data=st.sampled_from([Path("x"), Path("/a b/ü"), Path()]),
    rate=floats.filter(lambda x: x >= 0),
    updates=st.none() | st.integers(1, 100),
    clip=st.none() | floats,
    name=texts,
    note=st.none() | texts.filter(lambda text: text != "none"),
    log=st.booleans(),
    estimator=st.sampled_from(["arsm", "rloo"]),
    temperatures=st.lists(floats.filter(lambda x: x >= 0), max_size=3).map(tuple),
    sizes=st.lists(st.integers(-(2**62), 2**62), max_size=3).map(tuple),
    words=st.lists(st.sampled_from("abc"), max_size=3).map(tuple),
    files=st.none() | st.just((Path("x"), Path("y"))),
    model=models,
)


@settings(max_examples=100, deadline=None)
@given(configs)
def test_settings_come_back_from_a_file(tmp_path_factory: pytest.TempPathFactory, config: Settings):
    path = tmp_path_factory.getbasetemp() / "settings.toml"
    write_toml(path, to_table(config))
    again = from_table(Settings, read_toml(path), str(path))
    assert again == config
    assert repr(again) == repr(config)  # 1 is not 1.0


def test_a_table_is_complete_and_what_is_missing_has_its_default():
    table = to_table(Settings())
    assert set(table) == {field.name for field in dataclasses.fields(Settings)}
    assert table["updates"] == "none"
    assert table["model"] == {"hidden": 16, "cell": "lstm", "dropout": 0.0}
    assert from_table(Settings, {}, "here") == Settings()
    # The section's own default, 16, and not that of its class, 8.
    assert from_table(Settings, {"model": {"cell": "gru"}}, "here").model == Model(16, "gru")
    assert from_table(Settings, {"rate": 1}, "here").rate == 1.0
    assert type(from_table(Settings, {"rate": 1}, "here").rate) is float
    assert from_table(Settings, {"clip": "none"}, "here").clip is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rat": 1.0}, "a.toml: unknown key 'rat'; did you mean 'rate'?"),
        ({"zzzzz": 1.0}, "a.toml: unknown key 'zzzzz'; there are data, rate, updates,"),
        ({"model": {"hiden": 1}}, "a.toml: unknown key 'hiden' in section model; did you mean 'hidden'?"),
        ({"model": 3}, "a.toml: model must be a section, not 3"),
        ({"rate": "fast"}, 'a.toml: rate must be a number, not "fast"'),
        ({"rate": True}, "a.toml: rate must be a number, not true"),
        ({"rate": float("nan")}, "a.toml: rate must be a number, not nan"),
        ({"rate": {"a": 1}}, "a.toml: rate must be a number, not a section"),
        ({"rate": None}, "a.toml: rate must be a number, not None"),
        ({"rate": -0.5}, "a.toml: rate must be at least 0, not -0.5"),
        ({"updates": 1.0}, 'a.toml: updates must be a whole number or "none", not 1.0'),
        ({"updates": True}, 'a.toml: updates must be a whole number or "none", not true'),
        ({"updates": 0}, "a.toml: updates must be at least 1, not 0"),
        ({"log": 1}, "a.toml: log must be true or false, not 1"),
        ({"name": 1}, "a.toml: name must be text, not 1"),
        ({"data": 1}, "a.toml: data must be text (a path), not 1"),
        ({"estimator": "ars"}, 'a.toml: estimator must be one of arsm, rloo, not "ars"'),
        ({"model": {"cell": "rnn"}}, 'a.toml: model.cell must be one of lstm, gru, not "rnn"'),
        ({"model": {"hidden": 0}}, "a.toml: model.hidden must be at least 1, not 0"),
        ({"temperatures": 1.0}, "a.toml: temperatures must be a list of numbers, not 1.0"),
        ({"temperatures": [1.0, "x"]}, "a.toml: temperatures must be a list of numbers, not ["),
        ({"temperatures": [1.0, -1.0]}, "a.toml: temperatures must be at least 0, not -1.0"),
        ({"sizes": [1.5]}, "a.toml: sizes must be a list of whole numbers, not ["),
        ({"words": ["d"]}, 'a.toml: words must be one of a, b, c, not "d"'),
        ({"files": [1]}, 'a.toml: files must be a list of texts (paths) or "none", not ['),
    ],
)
def test_a_mistake_is_explained(table: dict[str, Any], message: str):
    with pytest.raises(InputError) as caught:
        from_table(Settings, table, "a.toml")
    assert str(caught.value).startswith(message)


def test_settings_made_by_hand_are_checked_when_they_are_written():
    with pytest.raises(InputError, match="rate must be at least 0"):
        to_table(Settings(rate=-1.0))
    with pytest.raises(InputError, match='cannot be the text "none"'):
        to_table(Settings(note="none"))
    assert to_table(Settings(name="none"))["name"] == "none"


def test_a_field_without_default_has_to_be_given():
    @dataclass(frozen=True)
    class Strict:
        out: Path

    assert from_table(Strict, {"out": "x"}, "a.toml").out == Path("x")
    with pytest.raises(InputError, match=r"a\.toml: out is missing and has no default"):
        from_table(Strict, {}, "a.toml")


def test_types_without_a_meaning_in_files_are_refused():
    @dataclass(frozen=True)
    class Odd:
        entries: dict[str, int] = dataclasses.field(default_factory=dict)

    @dataclass(frozen=True)
    class Pair:
        pair: tuple[int, int] = (1, 2)

    @dataclass(frozen=True)
    class Either:
        either: int | str = 1

    for cls in (Odd, Pair, Either):
        with pytest.raises(TypeError, match="not supported"):
            options_of(cls)
    with pytest.raises(TypeError, match="no dataclass"):
        options_of(int)


def test_options_say_where_they_are():
    found = {".".join(o.path): o for o in options_of(Settings)}
    assert list(found)[-3:] == ["model.hidden", "model.cell", "model.dropout"]
    assert found["model.hidden"].default == 16
    assert found["model.hidden"].help == "Width of the state."
    assert found["model.cell"].choices == ("lstm", "gru")


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
    broken.write_text("a = 1\nb = [1,\n")
    with pytest.raises(InputError, match=r"broken\.toml are no TOML: .*(line \d|end of document)"):
        read_toml(broken)
    broken.write_text("a = 1\n\nb = = 2\n")
    with pytest.raises(InputError, match=r"broken\.toml are no TOML: .*line 3"):
        read_toml(broken)
    broken.write_bytes(b'a = "\xff"')
    with pytest.raises(InputError, match="no UTF-8"):
        read_toml(broken)
    with pytest.raises(InputError, match="cannot write the settings"):
        write_toml(tmp_path / "no" / "folder", {})
    with pytest.raises(InputError, match="TOML cannot hold"):
        toml_text({"a": None})


@dataclass(frozen=True)
class Bounded:
    share: float = option(0.5, "A share.", least=0, most=1)


@pytest.mark.parametrize("value", [0, 0.25, 1, 1.0])
def test_a_value_up_to_the_largest_is_taken(value: float | int):
    assert from_table(Bounded, {"share": value}, "a.toml") == Bounded(float(value))


def test_a_value_above_the_largest_is_refused():
    with pytest.raises(InputError, match=r"^a.toml: share must be at most 1, not 1.001$"):
        from_table(Bounded, {"share": 1.001}, "a.toml")
