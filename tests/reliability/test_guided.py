"""Decisions that are read from bytes and, where the fuzzer is installed, some of its files."""

from pathlib import Path

import pytest

from tests.reliability import guided
from tests.reliability.guided import Decisions
from tests.reliability.readers import supervise
from tests.reliability.suite import Outcome


def test_decisions_are_read_from_bytes_and_end_with_zeros():
    draw = Decisions(b"\x2a\x00\x80\xff")
    assert draw.getrandbits(8) == 0x2A
    assert draw.random() == 0.5
    assert draw.randrange(16) == 0  # 31 of five bits is too much, and then there is nothing left
    assert [draw.choice("abc"), draw.random(), draw.randbytes(2)] == ["a", 0.0, b"\0\0"]
    assert Decisions(b"abc").sample(range(9), 3) == Decisions(b"abc").sample(range(9), 3)


def test_some_files_of_one_kind(tmp_path: Path):
    pytest.importorskip("atheris")
    assert list(supervise(guided.__name__, tmp_path, 60, 1, "trees")) == [Outcome("trees", 60)]
