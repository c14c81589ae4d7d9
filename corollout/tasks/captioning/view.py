"""How images, and captions generated for them, are shown."""

import io
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corollout.data import Split
from corollout.tasks.captioning.dataset import ImageSplit
from corollout.tasks.captioning.networks import read_image
from corollout.tasks.captioning.vocabulary import END_WORD, UNKNOWN_WORD
from corollout.tasks.views import ExampleView
from corollout.types import Decoded, Sampler

_LARGEST = 560  # pixels of a photo's longer side on a page
_TINY = 128  # pixels up to which a picture is enlarged, and stored without loss


class ImageView(ExampleView):
    """An image with a name; a subclass knows more about it."""

    example_noun, output_noun = "image", "caption"
    is_prose = True
    token_styles: ClassVar = {"word": "", "mark": "grey50"}
    css = """
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
    name: str
    photo: Path | None

    def record(self) -> dict[str, Any]:
        return {"name": self.name, "photo": None if self.photo is None else str(self.photo)}

    def token_style(self, token: str) -> str:
        return "mark" if token in (END_WORD, UNKNOWN_WORD) else "word"

    def show(self) -> RenderableType:
        return Text(self.name)

    def html(self) -> str:
        photo = "" if self.photo is None else photo_html(self.photo, self.name)
        return f'<div class="image"><figure>{photo}<figcaption>{escape(self.name)}</figcaption></figure></div>'

    def scores(self, outputs: Sequence[Decoded]) -> list[float] | None:
        """CIDEr-D of captions, if the image has references."""
        return None

    def output_records(self, outputs: Sequence[Decoded]) -> list[dict[str, Any]]:
        captions = [" ".join(self.tokens(one.tokens)) for one in outputs]
        pairs = zip(captions, outputs, strict=True)
        records = [{"caption": caption, "log_probability": one.log_probability} for caption, one in pairs]
        if (scores := self.scores(outputs)) is not None:
            records = [{**record, "cider": score} for record, score in zip(records, scores, strict=True)]
        return records

    def show_outputs(self, outputs: Sequence[Decoded], sampler: Sampler) -> RenderableType:
        scores = self.scores(outputs)
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        table.add_column("caption" if sampler.mode == "greedy" else f"captions, {sampler.mode}")
        if scores is not None:
            table.add_column("CIDEr-D", justify="right", vertical="top")
        table.add_column("log-probability", justify="right", vertical="top")
        for row, output in enumerate(outputs):
            cells = [] if scores is None else [f"{100 * scores[row]:.1f}"]
            caption = " ".join(self.tokens(output.tokens)) or "(empty)"
            table.add_row(Text(caption, "bold"), *cells, f"{output.log_probability:.2f}")
        return table


class ImageFileView(ImageView):
    """An image file that is in no data set; the split's ``data`` are the paths."""

    def __init__(self, split_name: str, split: Split, index: int, vocabulary: Sequence[str]):
        super().__init__(split_name, split, index, vocabulary)
        self.photo = split.data[index]
        self.name = str(self.photo)

    def heading(self) -> Text:
        return Text(self.name, "bold")

    def identity(self) -> dict[str, Any]:
        return {"name": self.name}


class CaptionView(ImageView):
    """An image of a data set, with its references."""

    split: ImageSplit

    def __init__(self, split_name: str, split: ImageSplit, index: int, vocabulary: Sequence[str]):
        super().__init__(split_name, split, index, vocabulary)
        images = split.data
        self.name, self.photo = images.names[index], images.photo(index)
        self.references = [images.data.vocabulary.text(ids) for ids in images.references[index]]

    def heading(self) -> Text:
        return super().heading().append(f"  {self.name}")

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "name": self.name}

    def record(self) -> dict[str, Any]:
        return {**super().record(), "references": self.references}

    def show(self) -> RenderableType:
        return Group(Text("references", "dim"), Padding(Text("\n".join(self.references), "dim"), (0, 0, 0, 2)))

    def html(self) -> str:
        references = "".join(f"<li>{escape(text)}</li>" for text in self.references)
        image = super().html().removesuffix("</div>")
        return f"{image}<div><h3>References</h3><ul>{references}</ul></div></div>"

    def scores(self, outputs: Sequence[Decoded]) -> list[float]:
        captions = [output.tokens for output in outputs]
        return self.split.scorer.cider(captions, [self.index] * len(outputs)).tolist()

    def output_records(self, outputs: Sequence[Decoded]) -> list[dict[str, Any]]:
        return [{**record, "references": self.references} for record in super().output_records(outputs)]

    def show_outputs(self, outputs: Sequence[Decoded], sampler: Sampler) -> RenderableType:
        return Group(super().show_outputs(outputs, sampler), "", self.show())


def photo_html(path: Path, name: str) -> str:
    """An image file embedded in a page: made smaller if it is large, and shown larger if it is tiny."""
    image = read_image(path)
    image.thumbnail((_LARGEST, _LARGEST), Image.Resampling.LANCZOS)
    tiny = max(image.size) <= _TINY
    file = io.BytesIO()
    image.save(file, "PNG" if tiny else "JPEG", quality=85)
    data = f"data:image/{'png' if tiny else 'jpeg'};base64,{b64encode(file.getvalue()).decode()}"
    scale = _TINY * 2 // max(image.size) if tiny else 1
    width, height = (scale * side for side in image.size)
    tiny_class = ' class="tiny"' if tiny else ""
    return f'<img{tiny_class} src="{data}" alt="{escape(name)}" width="{width}" height="{height}">'
