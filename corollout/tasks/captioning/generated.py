"""Captions for images: those of a split, which people described as well, and files of which nothing is known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corollout.data import Columns
from corollout.errors import InputError
from corollout.rollouts.decoding import Decoded
from corollout.tasks.captioning.networks import DEFAULT, load_network
from corollout.tasks.captioning.preparation import image_ids
from corollout.tasks.captioning.task import CaptionTask, Split
from corollout.tasks.captioning.vocabulary import Vocabulary
from corollout.tasks.generated import OfSplit
from corollout.tasks.views import CaptionSubject
from corollout.types import Sampler


class SplitImages(OfSplit):
    """Images of a split."""

    def __init__(self, images: Split, split: str, numbers: list[int]):
        super().__init__(images.columns, split, CaptionSubject.noun, numbers)
        self._images = images

    def identity(self, place: int) -> dict[str, Any]:
        return {**super().identity(place), "name": self._subject(place).name}

    def heading(self, place: int) -> Text:
        return super().heading(place).append(f"  {self._subject(place).name}")

    def records(self, place: int, found: Sequence[Decoded]) -> list[dict[str, Any]]:
        subject = self._subject(place)
        told = _records(subject.vocabulary, found, self._scores(place, found))
        return [{**record, "references": subject.references} for record in told]

    def show(self, place: int, found: Sequence[Decoded], sampler: Sampler) -> RenderableType:
        subject = self._subject(place)
        references = Padding(Text("\n".join(subject.references), "dim"), (0, 0, 0, 2))
        table = _table(subject.vocabulary, found, sampler, self._scores(place, found))
        return Group(table, "", Text("references", "dim"), references)

    def _subject(self, place: int) -> CaptionSubject:
        return CaptionSubject.of(self._images, self.numbers[place])

    def _scores(self, place: int, found: Sequence[Decoded]) -> list[float]:
        images = [self.numbers[place]] * len(found)
        return self._images.scorer.cider([one.tokens for one in found], images).tolist()


class ImageFiles:
    """Image files, whose features a network makes now: it must be the one that made those of the data set."""

    def __init__(self, task: CaptionTask, paths: Sequence[Path], network: str | None):
        self._paths = list(dict.fromkeys(paths))
        self._vocabulary = task.data.vocabulary
        name = network or task.data.meta["made"].get("network") or DEFAULT
        loaded = load_network(name, task.device)
        if loaded.width != task.data.width:
            raise InputError(
                f"the network {name} makes {loaded.width:,} numbers of an image, but this model was trained on "
                f"{task.data.width:,}: name the network that made the features of {task.folder} by --network"
            )
        self._features = torch.stack([loaded.features(path) for path in self._paths])

    @property
    def columns(self) -> Columns:
        # What is sampled for a file depends on its name, as for images of a data set, not on the other files.
        ids = torch.from_numpy(image_ids([str(path) for path in self._paths]))
        return Columns(ids=ids, context=self._features)

    def identity(self, place: int) -> dict[str, Any]:
        return {"name": str(self._paths[place])}

    def heading(self, place: int) -> Text:
        return Text(str(self._paths[place]), "bold")

    def records(self, place: int, found: Sequence[Decoded]) -> list[dict[str, Any]]:
        return _records(self._vocabulary, found)

    def show(self, place: int, found: Sequence[Decoded], sampler: Sampler) -> RenderableType:
        return _table(self._vocabulary, found, sampler)


def _records(
    vocabulary: Vocabulary, found: Sequence[Decoded], scores: Sequence[float] | None = None
) -> list[dict[str, Any]]:
    told = [{"caption": vocabulary.text(one.tokens), "log_probability": one.log_probability} for one in found]
    if scores is None:
        return told
    return [{**record, "cider": score} for record, score in zip(told, scores, strict=True)]


def _table(
    vocabulary: Vocabulary, found: Sequence[Decoded], sampler: Sampler, scores: Sequence[float] | None = None
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("caption" if sampler.mode == "greedy" else f"captions, {sampler.mode}")
    if scores is not None:
        table.add_column("CIDEr-D", justify="right", vertical="top")
    table.add_column("log-probability", justify="right", vertical="top")
    for place, one in enumerate(found):
        cells = [] if scores is None else [f"{100 * scores[place]:.1f}"]
        table.add_row(Text(vocabulary.text(one.tokens) or "(nothing)", "bold"), *cells, f"{one.log_probability:.2f}")
    return table
