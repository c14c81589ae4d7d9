"""Captioning as a task: data, engine, reward and evaluation from the settings of a run."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.data import Columns
from corollout.errors import InputError
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.captioning.dataset import CaptionData, CaptionSplit
from corollout.tasks.captioning.metrics import CIDER, Evaluation, Scorer, evaluate_captions
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.tasks.captioning.settings import ModelSettings, scale
from corollout.tasks.captioning.vocabulary import END
from corollout.tasks.task import Task, TaskSpec
from corollout.text_metrics.cider import CiderReward, DocumentFrequencies
from corollout.text_metrics.references import References
from corollout.trees import balanced_tree

REWARDS = ("cider-d",)
_LOOKED_AT = 4096  # images by which features are standardised


class Features:
    """The column of contexts: images' features, for each image or for each caption."""

    def __init__(self, split: CaptionSplit, image: Int64[Tensor, " row"]):
        self._split, self._image = split, image

    def __len__(self) -> int:
        return len(self._image)

    def gather(self, index: Int64[Tensor, " context"]) -> Float[Tensor, "context width"]:
        return torch.from_numpy(self._split.features(self._image[index].numpy()))


class Lessons(Sequence[list[int]]):
    """The column of targets: every caption of every image, without a copy of them."""

    def __init__(self, split: CaptionSplit):
        self._split = split

    def __len__(self) -> int:
        return self._split.caption_count

    def __getitem__(self, place: int) -> list[int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._split.label(place)


class Split:
    """Images in both forms: as a data set and as columns."""

    def __init__(self, data: CaptionSplit):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @cached_property
    def columns(self) -> Columns:
        """``context`` for the encoder, ``image`` (its place) for the reward."""
        places = torch.arange(len(self.data))
        ids = torch.from_numpy(self.data.ids.copy())
        return Columns(ids=ids, context=Features(self.data, places), image=range(len(self.data)))

    @cached_property
    def mle_data(self) -> Columns:
        """A row for each caption: ``context`` for the encoder, ``target`` for teaching."""
        return Columns(
            context=Features(self.data, torch.from_numpy(self.data.image_of_caption)), target=Lessons(self.data)
        )

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.data.references)

    def first(self, count: int) -> "Split":
        return Split(self.data.first(min(count, len(self.data))))


class CaptionTask(Task):
    """The splits of a prepared data set, and what is done with them."""

    name = "captions"
    metric = CIDER
    rewards: tuple[str, ...] = REWARDS

    def __init__(self, folder: Path, model: ModelSettings, device: str = "cpu"):
        self.folder, self.model, self.device = folder, model, device

    @cached_property
    def data(self) -> CaptionData:
        return CaptionData.open(self.folder)

    @property
    def words(self) -> tuple[str, ...]:
        return self.data.vocabulary.known

    @property
    def mle_data(self) -> Columns:
        return self.train.mle_data

    def split(self, name: str) -> Split:
        return Split(self.data.split(name))

    def engine(self, seed: int = 0) -> Engine:
        torch.manual_seed(seed)
        m, vocab = self.model, self.data.vocabulary.size
        # Which tree it is, comes with the weights, or is said before there are any: ``TreeHead.plant``.
        tree = balanced_tree(vocab) if m.head == "tree" else None
        policy = CaptionPolicy(vocab, self.data.width, m.embedding, m.hidden, m.dropout, m.input_dropout, tree)
        train = self.data.split("train")
        policy.standardise(torch.from_numpy(train.features(np.arange(min(len(train), _LOOKED_AT)))))
        return Engine(policy.to(self.device), bos=END, eos=END, max_length=self.data.longest)

    def reward(self, kind: str = "cider-d", split: Split | None = None) -> Reward:
        """CIDEr-D against the labels of a split, by default of the one to train on.

        Document frequencies are always those of the labels to train on; the end of a caption counts as a word.
        """
        if kind not in REWARDS:
            raise InputError(f"no reward of captions is called {kind!r}: choose one of {', '.join(REWARDS)}")
        references = self._taught if split is None else _ended(split.data)
        return Reward(CiderReward(references, self._frequencies, END), name="CIDEr-D")

    @cached_property
    def _taught(self) -> References:
        return _ended(self.train.data)

    @cached_property
    def _frequencies(self) -> DocumentFrequencies:
        return DocumentFrequencies.of(self._taught)

    def evaluate(self, engine: Engine, split: Split, beam: int = 0) -> Evaluation:
        return evaluate_captions(engine, split.columns, split.scorer, beam=beam, device=self.device)


def _ended(split: CaptionSplit) -> References:
    return References([[*label, END] for label in labels] for labels in split.labels)


def _open(folder: Path, model: ModelSettings, device: str, warn: Callable[[str], None]) -> CaptionTask:
    return CaptionTask(folder, model, device)


CAPTIONS = TaskSpec(ModelSettings, scale, _open, CIDER)
