"""Captions as text, scored by the measures of the literature: the public evaluation without its Java programs.

References are COCO's annotations, hypotheses COCO's results:

    {"annotations": [{"image_id": 391895, "caption": "A man with a red helmet …"}, …]}
    [{"image_id": 391895, "caption": "a man on a bicycle"}, …]

Document frequencies are those of the references, or of other annotations, or from a file that ``write_frequencies``
wrote, in which n-grams are words with spaces between them:

    {"images": 5000, "frequencies": {"a man": 1304, …}}
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np

from corollout.errors import InputError
from corollout.tasks.captioning.files import read_text
from corollout.tasks.captioning.text import tokenize
from corollout.text_metrics.bleu import Bleu
from corollout.text_metrics.cider import Cider
from corollout.text_metrics.frequencies import DocumentFrequencies
from corollout.text_metrics.ngrams import LONGEST
from corollout.text_metrics.references import References
from corollout.text_metrics.rouge import RougeL

ImageId = int | str


class Lexicon:
    """Numbers for words, as they come."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self._ids.setdefault(word, len(self._ids)) for word in words]

    def words(self) -> list[str]:
        return list(self._ids)


@dataclass(frozen=True)
class TextScores:
    """The measures of some captions: of all together, and of each by itself."""

    corpus: dict[str, float]
    each: dict[str, np.ndarray]  # float64[caption]

    def with_measure(self, name: str, corpus: float, each: Sequence[float]) -> "TextScores":
        return TextScores({**self.corpus, name: corpus}, {**self.each, name: np.array(each)})


def score_words(
    references: Sequence[Sequence[Sequence[str]]],
    hypotheses: Sequence[Sequence[str]],
    lexicon: Lexicon,
    frequencies: DocumentFrequencies | None = None,
) -> TextScores:
    """BLEU, ROUGE-L, CIDEr-D and CIDEr of one caption for each image, all as words."""
    if len(hypotheses) == 0:
        raise InputError("there is no caption to score")
    known = References([lexicon.encode(words) for words in group] for group in references)
    captions, images = [lexicon.encode(words) for words in hypotheses], np.arange(len(hypotheses))
    bleu = Bleu(known)
    cider = Cider(known, frequencies)
    each = {f"bleu_{n}": values for n, values in enumerate(bleu.scores(captions, images).T, 1)}
    each["rouge_l"] = RougeL(known).scores(captions, images)
    each["cider_d"] = cider.scores(captions, images)
    each["cider"] = Cider(known, cider.frequencies, "plain").scores(captions, images)
    corpus = {name: float(values.mean()) for name, values in each.items()}
    corpus |= {f"bleu_{n}": float(value) for n, value in enumerate(bleu.corpus(captions, images), 1)}
    return TextScores(corpus, each)


def read_references(path: Path) -> dict[ImageId, list[list[str]]]:
    """Image → the words of each of its captions, from COCO's annotations."""
    return _references(path, _read_json(path))


def read_hypotheses(path: Path) -> dict[ImageId, list[str]]:
    """Image → the words of its caption, from COCO's results."""
    entries = _read_json(path)
    if not isinstance(entries, list):
        raise InputError(f'{path}: expected a list of captions, [{{"image_id": …, "caption": …}}, …]')
    captions: dict[ImageId, list[str]] = {}
    for number, entry in enumerate(entries, 1):
        image, caption = _caption(entry, f"{path}, entry {number}")
        if image in captions:
            raise InputError(f"{path}, entry {number}: a second caption of image {image!r}; leave one for each image")
        captions[image] = caption
    if not captions:
        raise InputError(f"{path}: there is no caption in it")
    return captions


def read_frequencies(path: Path, lexicon: Lexicon) -> DocumentFrequencies:
    """Document frequencies from annotations, or from a file of their own."""
    data = _read_json(path)
    if isinstance(data, dict) and "frequencies" in data:
        return _frequencies(path, data, lexicon)
    references = _references(path, data)
    return frequencies_of(references, lexicon)


def frequencies_of(references: Mapping[ImageId, Sequence[Sequence[str]]], lexicon: Lexicon) -> DocumentFrequencies:
    groups = ([lexicon.encode(words) for words in group] for group in references.values())
    return DocumentFrequencies.of(References(groups))


def write_frequencies(path: Path, frequencies: DocumentFrequencies, lexicon: Lexicon) -> None:
    words = lexicon.words()
    table = {" ".join(words[token] for token in ngram): count for ngram, count in frequencies.table().items()}
    text = json.dumps({"images": frequencies.images, "frequencies": table}, ensure_ascii=False)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _read_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}, column {error.colno}: not JSON, {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: nested too deeply, or a number too long, to be a file of captions") from error


def _references(path: Path, data: Any) -> dict[ImageId, list[list[str]]]:
    entries = data.get("annotations") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise InputError(f'{path}: expected annotations, {{"annotations": [{{"image_id": …, "caption": …}}, …]}}')
    captions: dict[ImageId, list[list[str]]] = {}
    for number, entry in enumerate(entries, 1):
        image, caption = _caption(entry, f"{path}, annotation {number}")
        captions.setdefault(image, []).append(caption)
    if not captions:
        raise InputError(f"{path}: there is no annotation in it")
    return captions


def _caption(entry: Any, where: str) -> tuple[ImageId, list[str]]:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: expected an object with image_id and caption, not {short(entry)}")
    image, caption = entry.get("image_id"), entry.get("caption")
    if not isinstance(image, int | str) or isinstance(image, bool):
        raise InputError(f"{where}: image_id must be a whole number or text, not {short(image)}")
    if not isinstance(caption, str):
        raise InputError(f"{where}: caption must be text, not {short(caption)}")
    return image, tokenize(caption)


def _frequencies(path: Path, data: dict[str, Any], lexicon: Lexicon) -> DocumentFrequencies:
    images, table = data.get("images"), data["frequencies"]
    if not isinstance(images, int) or images < 1:
        raise InputError(f"{path}: images must be a whole number from 1 on, not {short(images)}")
    if not isinstance(table, dict):
        raise InputError(f"{path}: frequencies must be an object of n-grams and numbers, not {short(table)}")
    for ngram, count in table.items():
        if not isinstance(count, int) or not 0 <= count <= images or not 1 <= len(ngram.split(" ")) <= LONGEST:
            raise InputError(
                f"{path}: frequencies: expected n-grams of 1 to {LONGEST} words, each in 0 to {images} images, but "
                f"there is {ngram!r}: {short(count)}"
            )
    ids = {tuple(lexicon.encode(ngram.split(" "))): count for ngram, count in table.items()}
    return DocumentFrequencies.of_table(ids, images)
