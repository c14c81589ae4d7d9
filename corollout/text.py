"""Text of strangers, such as names, paths, labels and captions: made visible and short before anybody reads it.

The terminal (``cli/terminal.py``), figures (``reports/figures.py``), pages (``reports/html.py``) and messages all go
through these functions.
"""

import re
from collections.abc import Mapping
from typing import Any

# Control characters other than tab and newline, which a terminal obeys; lone surrogates, which no file can hold; line
# separators; and the marks that reorder the text around them.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")

_LINE_BREAK = re.compile(r"\s*\n\s*")  # with the indentation of what follows


def visible(text: str) -> str:
    """The text with what cannot be seen or encoded written as in Python: ``\\x1b``, ``\\u202e``, ``\\udcff``."""
    return _HIDDEN.sub(lambda match: _escaped(ord(match[0])), text)


def visible_values(value: Any) -> Any:
    """Content for JSON in which every text is visible, names of entries included."""
    if isinstance(value, Mapping):
        return {visible(str(name)): visible_values(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [visible_values(entry) for entry in value]
    return visible(value) if isinstance(value, str) else value


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def shortened(text: str, most: int = 120) -> str:
    """The text, without its middle if it has more than ``most`` characters: messages must not repeat a whole file."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} … {text[-half:]}"


def quoted(value: object, most: int = 120) -> str:
    """A value as Python writes it, in one line that is short enough for a message."""
    return shortened(_LINE_BREAK.sub(" ", repr(value)), most)


def first_line(error: BaseException, most: int = 200) -> str:
    """The first line of an error's message that says something: those of other libraries may have a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[0] if lines else type(error).__name__, most)
