"""Reward functions by name."""

import sys
from pathlib import Path

import pytest

from corollout.errors import InputError
from corollout.hf.reward_names import import_reward

SOURCE = """
def length(completions, **_):
    return [float(len(text)) for text in completions]
number = 3
class Kind:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    for name in ("rewards_of_a_user", "raises", "wrong"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "rewards_of_a_user.py").write_text(SOURCE)
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "wrong.py").write_text("def f(:\n")
    (tmp_path / "json.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["rewards_of_a_user:length", "rewards_of_a_user.py:length", "{}/rewards_of_a_user.py:length"]
)
def test_a_module_and_a_file_can_be_named(folder: Path, name: str):
    assert import_reward(name.format(folder))(["abc"]) == [3.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("length", "has no function: write package.module:function"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("rewards_of_a_user:f", "the module 'rewards_of_a_user' has no 'f'"),
        ("rewards_of_a_user:number", "is not a function, but 3"),
        ("rewards_of_a_user:Kind", "is a class: name a function"),
        ("missing.py:f", "there is no file missing.py with the reward 'f'"),
        ("raises:f", r"failed: ZeroDivisionError: division by zero \(.*raises.py, line 1\)"),
        ("wrong.py:f", r"failed: SyntaxError: .*wrong.py, line 1"),
        ("json.py:length", "another module is called 'json'"),
        ("a b:f", "is not an import path"),
    ],
)
def test_what_is_wrong_with_a_name_is_a_sentence(folder: Path, name: str, message: str):
    with pytest.raises(InputError, match=message) as error:
        import_reward(name)
    assert "\n" not in str(error.value)
