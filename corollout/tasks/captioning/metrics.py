"""How good captions are, by the measures of the literature: on words, against all that people wrote of an image."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corollout.data import Columns
from corollout.errors import InputError
from corollout.rollouts import Engine
from corollout.rollouts.decoding import decode
from corollout.tasks.task import Metric, mean_interval
from corollout.text_metrics.bleu import Bleu
from corollout.text_metrics.cider import Cider
from corollout.text_metrics.references import References
from corollout.text_metrics.rouge import RougeL
from corollout.types import Sampler

CIDER = Metric(
    "cider",
    "CIDEr-D",
    "",
    "images",
    "the mean over images of the greedy caption's CIDEr-D, times 100",
    shares=False,
)
NAMES = {"cider": "CIDEr-D", "rouge_l": "ROUGE-L", **{f"bleu_{n}": f"BLEU-{n}" for n in range(4, 0, -1)}}


class Scorer:
    """The references of a split, indexed once; document frequencies are their own, as in the usual evaluation."""

    def __init__(self, references: Sequence[Sequence[Sequence[int]]]):
        self._references = References(references)
        self._cider = Cider(self._references)
        self._bleu, self._rouge = Bleu(self._references), RougeL(self._references)

    def __len__(self) -> int:
        return len(self._references)

    def cider(self, captions: Sequence[Sequence[int]], images: Sequence[int] | np.ndarray) -> np.ndarray:
        """CIDEr-D of captions of some images."""
        return self._cider.scores(captions, np.asarray(images))

    def all(self, captions: Sequence[Sequence[int]]) -> tuple[np.ndarray, dict[str, float]]:
        """CIDEr-D of one caption for each image, and all measures of them together."""
        images = np.arange(len(self))
        scores = self._cider.scores(captions, images)
        bleu = self._bleu.corpus(captions, images)
        values = {f"bleu_{n}": float(value) for n, value in enumerate(bleu, 1)}
        rouge = float(self._rouge.scores(captions, images).mean())
        return scores, {"cider": float(scores.mean()), "rouge_l": rouge, **values}


@dataclass(frozen=True)
class Evaluation:
    """What a policy achieves on a set of images, by greedy decoding and, if asked for, by a beam's best caption."""

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
        interval = mean_interval(self.scores)
        words = "" if interval is None else f"{100 * interval[0]:.1f} – {100 * interval[1]:.1f}"
        rows = [[name, f"{100 * self.values[key]:.1f}", words if key == "cider" else ""] for key, name in NAMES.items()]
        rows += [[f"{NAMES[key]}, beam", f"{100 * value:.1f}", ""] for key, value in self.beam.items()]
        return [*rows, ["words a caption", f"{self.numbers()['length']:.1f}", ""]]


def evaluate_captions(
    engine: Engine, columns: Columns, scorer: Scorer, *, beam: int = 0, batch_size: int = 256, device: str = "cpu"
) -> Evaluation:
    """Greedy decoding of every image, and a beam of the given size as well unless it is 0."""
    if len(columns) == 0:
        raise InputError("there is no image to evaluate on")
    greedy = [found[0] for found in decode(engine, columns, Sampler("greedy"), batch_size=batch_size, device=device)]
    scores, values = scorer.all(greedy)
    best: dict[str, float] = {}
    if beam:
        found = decode(engine, columns, Sampler("beam", beam), batch_size=max(1, batch_size // beam), device=device)
        best = scorer.all([captions[0] for captions in found])[1]
    return Evaluation(scores, values, greedy, best)
