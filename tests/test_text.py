"""Text of strangers: visible and short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corollout.text import quoted, shortened, visible, visible_values


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\n\tlines", "two\n\tlines"),
        ("a 🐕 · naïve · שלום", "a 🐕 · naïve · שלום"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\x9b31m\r\x7f\0", r"\x9b31m\x0d\x7f\x00"),
        ("invoice\u202egpj.exe\u2028\u2066", r"invoice\u202egpj.exe\u2028\u2066"),
        ("caf\udce9", r"caf\udce9"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible_values({text: [text, 1.5, None]}) == {shown: [shown, 1.5, None]}


@given(st.text(st.characters()))
def test_any_text_can_be_encoded_and_is_spelled_out_only_once(text: str) -> None:
    shown = visible(text)
    shown.encode()
    assert visible(shown) == shown
    assert all(character.isprintable() or character in "\n\t" or ord(character) > 0x9F for character in shown)


def test_long_text_loses_its_middle() -> None:
    assert shortened("short") == "short"
    assert shortened("9" * 5000 + "!", 10) == "99999 … 9999!"
    assert len(quoted("'" * 10**6)) < 130
