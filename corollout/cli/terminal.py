"""The one place that makes consoles: nothing that is printed can command the terminal or be taken for markup."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from corollout.launch import is_first
from corollout.text import shortened, visible

_LONGEST_ERROR = 4000  # characters


class Terminal(Console):
    """A console that prints text as it is, control characters visibly; for colours, print ``Text`` with styles."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False, **options: Any):
        options = {"quiet": not is_first(), **options}  # of several processes, one talks
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A string as text, before its width is measured."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything that is printed, piece by piece; control segments are those of the console itself."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


def print_error(message: str) -> None:
    """Print a message to standard error, as one line unless it has several itself."""
    Terminal(stderr=True, soft_wrap=True, quiet=False).print(shortened(message, _LONGEST_ERROR))
