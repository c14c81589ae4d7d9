"""JSON from files: one decoder, which accepts only text that can be written to a file again."""

import json
import re
from typing import Any

# An escaped surrogate pair; half of one (the group); any other escape, so that its backslash begins no other.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def decode_json(content: bytes | str) -> Any:
    """The content of JSON, of which bytes must be UTF-8.

    Half of a surrogate pair, as in ``"\\ud800"``, is an error: it is not a character, and no file can hold it. Raises
    ``UnicodeDecodeError``, ``json.JSONDecodeError``, ``ValueError`` for a number of too many digits, and
    ``RecursionError``.
    """
    text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    found = json.loads(text)
    if _SURROGATE.search(text):
        for escape in _ESCAPE.finditer(text):
            if escape[1]:
                raise json.JSONDecodeError(f"{escape[1]} is half of a surrogate pair", text, escape.start())
    return found
