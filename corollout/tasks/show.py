"""The example that a page is about: Karel's worlds, or an image with what people wrote of it."""

import io
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from PIL import Image

from corollout.tasks.captioning.images import read_image
from corollout.tasks.karel import svg as worlds
from corollout.tasks.karel.world import World
from corollout.tasks.views import CaptionSubject, KarelSubject, Subject

_KAREL = (
    worlds.STYLE
    + """
.examples { display: flex; flex-wrap: wrap; gap: 1rem 2.2rem; }
.example figcaption { font-size: .85rem; color: var(--soft); margin-bottom: .3rem; }
.example { margin: 0; }
.example div { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem; color: var(--soft); }
.example.held figcaption { color: var(--ink); font-weight: 600; }
code { font: .86em/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.action { color: #116329; } .test { color: #0550ae; } .keyword { color: #8250df; font-weight: 600; }
.bracket { color: #8c959f; }
"""
)
_CAPTIONS = """
.image { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: flex-start; }
.image figure { margin: 0; flex: 0 1 auto; } .image div { flex: 1 1 18rem; }
.image img { display: block; max-width: 100%; height: auto; border-radius: 6px; }
.image img.tiny { image-rendering: pixelated; }
.image figcaption { font-size: .85rem; color: var(--soft); margin-top: .3rem; overflow-wrap: anywhere; }
.image h3 { font-size: .95rem; margin: 0 0 .2rem; color: var(--soft); font-weight: 600; }
.image ul { margin: 0; padding-left: 1.1rem; }
:root { --reward: 3rem; }
code { font: inherit; overflow-wrap: anywhere; }
.mark { color: #8c959f; font-size: .85em; }
"""
_WHEN = ("before", "after")
_LARGEST = 560  # pixels of a photo's longer side in a page
_TINY = 128  # pixels of a picture that is enlarged, and kept without loss


def subject_style(subject: Subject) -> str:
    """The style sheet for what the page shows of it, its tokens included."""
    return _KAREL if isinstance(subject, KarelSubject) else _CAPTIONS


def subject_html(subject: Subject) -> str:
    """The example itself."""
    if isinstance(subject, KarelSubject):
        return _karel(subject)
    assert isinstance(subject, CaptionSubject)
    return _image(subject)


def tokens_html(subject: Subject, tokens: Sequence[int]) -> str:
    """A sequence in colour."""
    names = subject.words(tokens)
    words = " ".join(f'<span class="{subject.kind(name)}">{escape(name)}</span>' for name in names)
    return f"<code>{words}</code>"


def _karel(subject: KarelSubject) -> str:
    last = len(subject.worlds) - 1
    examples = "".join(_example(number, pair, number == last) for number, pair in enumerate(subject.worlds))
    reference = tokens_html(subject, subject.reference)
    return f'<p>Reference program: {reference}</p><div class="examples">{examples}</div>'


def _example(number: int, pair: tuple[World, World], held_out: bool) -> str:
    name = "held out" if held_out else f"example {number + 1}"
    before, after = (worlds.world_svg(world, f"{name}, {when}") for world, when in zip(pair, _WHEN, strict=True))
    kind = " held" if held_out else ""
    return (
        f'<figure class="example{kind}"><figcaption>{name}</figcaption>'
        f"<div>{before}<span>→</span>{after}</div></figure>"
    )


def _image(subject: CaptionSubject) -> str:
    photo = "" if subject.photo is None else photo_html(subject.photo, subject.name)
    figure = f"<figure>{photo}<figcaption>{escape(subject.name)}</figcaption></figure>"
    references = "".join(f"<li>{escape(text)}</li>" for text in subject.references)
    return f'<div class="image">{figure}<div><h3>What people wrote</h3><ul>{references}</ul></div></div>'


def photo_html(path: Path, name: str) -> str:
    """An image file as part of a page: made smaller if it is large, shown larger if it is tiny."""
    image = read_image(path)
    image.thumbnail((_LARGEST, _LARGEST), Image.Resampling.LANCZOS)
    tiny = max(image.size) <= _TINY
    file = io.BytesIO()
    image.save(file, "PNG" if tiny else "JPEG", quality=85)
    data = f"data:image/{'png' if tiny else 'jpeg'};base64,{b64encode(file.getvalue()).decode()}"
    scale = _TINY * 2 // max(image.size) if tiny else 1
    width, height = (scale * side for side in image.size)
    kind = ' class="tiny"' if tiny else ""
    return f'<img{kind} src="{data}" alt="{escape(name)}" width="{width}" height="{height}">'
