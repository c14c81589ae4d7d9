"""Captions in files, scored by the metrics of the literature: the public evaluation without its Java programs.

References are COCO's annotations, hypotheses are COCO's results:

    {"annotations": [{"image_id": 391895, "caption": "A man with a red helmet …"}, …]}
    [{"image_id": 391895, "caption": "a man on a bicycle"}, …]

Document frequencies are those of the references, of other annotations, or of a file of ``write_frequencies``, whose
n-grams are words separated by spaces:

    {"images": 5000, "frequencies": {"a man": 1304, …}}
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np

from corollout.errors import InputError
from corollout.files import read_text, write_json
from corollout.json_text import decode_json
from corollout.tasks.captioning.meteor import MeteorError, score_meteor
from corollout.tasks.captioning.readers import json_errors
from corollout.tasks.captioning.tokenizer import tokenize
from corollout.text_metrics import Bleu, Cider, DocumentFrequencies, References, RougeL
from corollout.text_metrics.ngrams import LARGEST_ID, LONGEST

ImageId = int | str
_LISTED = 5  # images that an error lists


class Lexicon:
    """Ids of words, in the order of their first use."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self.ids.setdefault(word, len(self.ids)) for word in words]


@dataclass
class FileScores:
    """The metrics of a file of captions: of the whole set, and of each caption."""

    captions: dict[ImageId, list[str]]
    corpus: dict[str, float]
    each: dict[str, np.ndarray]  # float64[caption]
    no_meteor: str | None = None  # why METEOR is missing, if it is


def score_files(
    references: Path, hypotheses: Path, frequencies: Path | None = None, partial: bool = False, meteor: bool = True
) -> FileScores:
    """Score a file of captions; with ``partial``, images that have references but no caption are ignored."""
    lexicon = Lexicon()
    groups, captions = read_references(references), read_hypotheses(hypotheses)
    if unknown := [image for image in captions if image not in groups]:
        raise InputError(f"{hypotheses} has captions of images without references in {references}: {_listed(unknown)}")
    missing = [image for image in groups if image not in captions]
    if missing and not partial:
        which = f"{len(missing):,} of the {len(groups):,} images in {references}: {_listed(missing)}"
        advice = "caption every image, or ignore the others with --partial"
        raise InputError(f"{hypotheses} has no captions of {which}; {advice}")
    chosen, words = [groups[image] for image in captions], list(captions.values())
    known = References([lexicon.encode(reference) for reference in group] for group in chosen)
    tokens, images = [lexicon.encode(caption) for caption in words], np.arange(len(captions))
    bleu = Bleu(known)
    cider = Cider(known, None if frequencies is None else read_frequencies(frequencies, lexicon))
    each = {f"bleu_{n}": values for n, values in enumerate(bleu.scores(tokens, images).T, 1)}
    each["rouge_l"] = RougeL(known).scores(tokens, images)
    each["cider_d"] = cider.scores(tokens, images)
    each["cider"] = Cider(known, cider.frequencies, "plain").scores(tokens, images)
    corpus = {name: float(values.mean()) for name, values in each.items()}
    corpus |= {f"bleu_{n}": float(value) for n, value in enumerate(bleu.corpus(tokens, images), 1)}
    result = FileScores(captions, corpus, each)
    if not meteor:
        result.no_meteor = "it was disabled by --no-meteor"
        return result
    try:
        corpus["meteor"], each["meteor"] = score_meteor(chosen, words)
    except MeteorError as error:
        result.no_meteor = str(error)
    return result


def read_references(path: Path) -> dict[ImageId, list[list[str]]]:
    """The words of the captions of each image, from COCO's annotations."""
    return _references(path, _read_json(path))


def read_hypotheses(path: Path) -> dict[ImageId, list[str]]:
    """The words of the caption of each image, from COCO's results."""
    entries = _read_json(path)
    if not isinstance(entries, list):
        raise InputError(f'{path}: expected a list of captions, [{{"image_id": …, "caption": …}}, …]')
    captions: dict[ImageId, list[str]] = {}
    for number, entry in enumerate(entries, 1):
        image, caption = _caption(entry, f"{path}, entry {number}")
        if image in captions:
            raise InputError(f"{path}, entry {number}: a second caption of image {image!r}; keep one per image")
        captions[image] = caption
    if not captions:
        raise InputError(f"{path} has no captions")
    return captions


def read_frequencies(path: Path, lexicon: Lexicon) -> DocumentFrequencies:
    """Document frequencies of annotations, or from a file of :func:`write_frequencies`."""
    data = _read_json(path)
    if not isinstance(data, dict) or "frequencies" not in data:
        return _frequencies_of(_references(path, data), lexicon)
    images, table = data.get("images"), data["frequencies"]
    if type(images) is not int or not 1 <= images <= LARGEST_ID:
        raise InputError(f"{path}: images must be an integer from 1 to {LARGEST_ID}, not {short(images)}")
    if not isinstance(table, dict):
        raise InputError(f"{path}: frequencies must be an object of n-grams and counts, not {short(table)}")
    for ngram, count in table.items():
        if type(count) is not int or not 0 <= count <= images or not 1 <= len(ngram.split(" ")) <= LONGEST:
            expected = f"n-grams of 1 to {LONGEST} words, each in 0 to {images} images"
            raise InputError(f"{path}: frequencies must be {expected}, not {ngram!r}: {short(count)}")
    ids = {tuple(lexicon.encode(ngram.split(" "))): count for ngram, count in table.items()}
    return DocumentFrequencies.of_table(ids, images)


def write_frequencies(path: Path, references: Path) -> None:
    """Write the document frequencies of COCO's annotations to a file."""
    lexicon = Lexicon()
    frequencies = _frequencies_of(read_references(references), lexicon)
    words = list(lexicon.ids)
    table = {" ".join(words[token] for token in ngram): count for ngram, count in frequencies.table().items()}
    write_json(path, {"images": frequencies.images, "frequencies": table}, indent=None, new=True)


def _frequencies_of(references: Mapping[ImageId, Sequence[Sequence[str]]], lexicon: Lexicon) -> DocumentFrequencies:
    groups = ([lexicon.encode(words) for words in group] for group in references.values())
    return DocumentFrequencies.of(References(groups))


def _read_json(path: Path) -> Any:
    text = read_text(path)
    with json_errors(path):
        return decode_json(text)


def _references(path: Path, data: Any) -> dict[ImageId, list[list[str]]]:
    entries = data.get("annotations") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise InputError(f'{path}: expected annotations, {{"annotations": [{{"image_id": …, "caption": …}}, …]}}')
    captions: dict[ImageId, list[list[str]]] = {}
    for number, entry in enumerate(entries, 1):
        image, caption = _caption(entry, f"{path}, annotation {number}")
        captions.setdefault(image, []).append(caption)
    if not captions:
        raise InputError(f"{path} has no annotations")
    return captions


def _caption(entry: Any, where: str) -> tuple[ImageId, list[str]]:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: expected an object with image_id and caption, not {short(entry)}")
    image, caption = entry.get("image_id"), entry.get("caption")
    if not isinstance(image, int | str) or isinstance(image, bool):
        raise InputError(f"{where}: image_id must be an integer or text, not {short(image)}")
    if not isinstance(caption, str):
        raise InputError(f"{where}: caption must be text, not {short(caption)}")
    return image, tokenize(caption)


def _listed(images: list[ImageId]) -> str:
    return ", ".join(repr(image) for image in images[:_LISTED]) + (", …" if len(images) > _LISTED else "")
