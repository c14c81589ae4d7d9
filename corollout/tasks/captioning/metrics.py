"""Captions against references: CIDEr-D as the reward, and the metrics of the literature as the evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corollout.data import Columns
from corollout.errors import InputError
from corollout.rollouts import Engine
from corollout.rollouts.decoding import decode
from corollout.tasks.task import Metric, mean_interval
from corollout.text_metrics import Bleu, Cider, DocumentFrequencies, References, RougeL
from corollout.types import Sampler

_MEANING = "the mean over images of the greedy caption's CIDEr-D, times 100"
CIDER = Metric("cider", "CIDEr-D", "", "images", _MEANING, is_share=False)
NAMES = {"cider": "CIDEr-D", "rouge_l": "ROUGE-L", **{f"bleu_{n}": f"BLEU-{n}" for n in range(4, 0, -1)}}


class CiderReward:
    """CIDEr-D as a reward that counts the end token as a word.

    The references end with the end token, and a sequence gets it if it is finished: without it, policies learn to stop
    in the middle of a sentence. Data sets need a column ``image``, the index into the references.
    """

    def __init__(self, references: References, frequencies: DocumentFrequencies | None = None, end: int | None = None):
        self.cider = Cider(references, frequencies)
        self.end = end

    def __call__(self, sequences: list[list[int]], image: Sequence[int], finished: Sequence[bool]) -> list[float]:
        if (end := self.end) is not None:
            sequences = [[*tokens, end] if done else tokens for tokens, done in zip(sequences, finished, strict=True)]
        return self.cider.scores(sequences, image).tolist()


class Scorer:
    """The references of a split, indexed once; document frequencies are their own, as in the public evaluation."""

    def __init__(self, references: Sequence[Sequence[Sequence[int]]]):
        self._references = References(references)
        self._cider = Cider(self._references)
        self._bleu, self._rouge = Bleu(self._references), RougeL(self._references)

    def cider(self, captions: Sequence[Sequence[int]], images: Sequence[int] | np.ndarray) -> np.ndarray:
        """CIDEr-D of captions of some images."""
        return self._cider.scores(captions, np.asarray(images))

    def all(self, captions: Sequence[Sequence[int]]) -> tuple[np.ndarray, dict[str, float]]:
        """CIDEr-D of one caption per image, and all metrics of the whole set."""
        images = np.arange(len(self._references))
        scores = self._cider.scores(captions, images)
        bleu = {f"bleu_{n}": float(value) for n, value in enumerate(self._bleu.corpus(captions, images), 1)}
        rouge = float(self._rouge.scores(captions, images).mean())
        return scores, {"cider": float(scores.mean()), "rouge_l": rouge, **bleu}


@dataclass(frozen=True)
class CaptionEvaluation:
    """Metrics of the greedy captions of some images and, if asked for, of the best captions of a beam search."""

    scores: np.ndarray  # CIDEr-D of each image's greedy caption
    values: dict[str, float]
    captions: list[list[int]]
    beam: dict[str, float]

    def numbers(self) -> dict[str, float]:
        low, high = mean_interval(self.scores) or (float("nan"),) * 2
        length = float(np.mean([len(caption) for caption in self.captions]))
        beam = {f"beam_{name}": value for name, value in self.beam.items()}
        return {**self.values, "cider_low": low, "cider_high": high, "length": length, **beam}

    def rows(self) -> list[list[str]]:
        ends = mean_interval(self.scores)
        interval = "" if ends is None else " – ".join(f"{100 * end:.1f}" for end in ends)
        rows = [[name, f"{100 * self.values[key]:.1f}", ""] for key, name in NAMES.items()]
        rows[0][2] = interval  # CIDEr-D is the first
        rows += [[f"{NAMES[key]}, beam", f"{100 * value:.1f}", ""] for key, value in self.beam.items()]
        return [*rows, ["words per caption", f"{self.numbers()['length']:.1f}", ""]]


def evaluate_captions(
    engine: Engine, columns: Columns, scorer: Scorer, *, beam: int = 0, batch_size: int = 256, device: str = "cpu"
) -> CaptionEvaluation:
    """Decode every image greedily and, unless ``beam`` is 0, by a beam search."""
    if len(columns) == 0:
        raise InputError("the split has no image to evaluate on")

    def first(sampler: Sampler, size: int) -> list[list[int]]:
        return [captions[0] for captions in decode(engine, columns, sampler, batch_size=size, device=device)]

    greedy = first(Sampler("greedy"), batch_size)
    best = scorer.all(first(Sampler("beam", beam), max(1, batch_size // beam)))[1] if beam else {}
    return CaptionEvaluation(*scorer.all(greedy), greedy, best)
