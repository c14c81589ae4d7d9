"""JSON with half of a surrogate pair is refused; everything else is as in Python's json."""

import json

import pytest

from corollout.json_text import decode_json


@pytest.mark.parametrize(
    "text",
    [
        *(r'"\ud83d\ude00"', r'"\uD83D\uDE00 \u00e9"', r'"\\ud800"', r'"\\\\ud800"', r'{"\ud83d\ude00": [1, "\\"]}'),
        *('"😀"', "[1, 2.5, null]", r'"\\\ud83d\ude00"'),
    ],
)
def test_valid_text_is_decoded(text: str):
    assert (
        decode_json(text)
        == json.loads(text)
        == decode_json(text.encode())
        == decode_json(b"\xef\xbb\xbf" + text.encode())
    )


@pytest.mark.parametrize(
    ("text", "position"),
    [
        *((r'"\ud800"', 1), (r'"\udc00\ud800"', 1), (r'["a", "\uDBFF"]', 7), (r'{"\ud800": 1}', 2)),
        *((r'"\ud800\u0041"', 1), (r'"\\\ud800"', 3), (r'"\ud800\ud800\udc00"', 1), (r'"\ud83d\ude00\ude00"', 13)),
    ],
)
def test_half_of_a_pair_is_refused(text: str, position: int):
    for content in (text, text.encode()):
        with pytest.raises(json.JSONDecodeError, match="half of a surrogate pair") as error:
            decode_json(content)
        assert error.value.pos == position


def test_bytes_must_be_utf_8():
    for content in (b'"\xed\xa0\x80"', '"a"'.encode("utf-16"), b'"\xff"'):
        with pytest.raises(UnicodeDecodeError):
            decode_json(content)
