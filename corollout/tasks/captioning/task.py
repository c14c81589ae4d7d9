"""Captioning as a task."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from corollout.data import Columns, Split
from corollout.errors import InputError
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.captioning.dataset import CaptionData, CaptionSplit, FeatureColumn, ImageSplit, TargetColumn
from corollout.tasks.captioning.metrics import CIDER, CaptionEvaluation, CiderReward, evaluate_captions
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.tasks.captioning.networks import load_network
from corollout.tasks.captioning.preparation import image_ids
from corollout.tasks.captioning.settings import DEFAULT_NETWORK, ModelSettings
from corollout.tasks.captioning.view import CaptionView, ImageFileView
from corollout.tasks.captioning.vocabulary import END
from corollout.tasks.task import Task
from corollout.text_metrics import DocumentFrequencies, References
from corollout.trees import balanced_tree

_STANDARDISED_ON = 4096  # training images


class CaptionTask(Task):
    """Captions for the images of a prepared data set."""

    metric = CIDER
    rewards = ("cider-d",)
    folder: Path
    model: ModelSettings

    @cached_property
    def data(self) -> CaptionData:
        return CaptionData.open(self.folder)

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.data.vocabulary.known

    @property
    def mle_data(self) -> Columns:
        """A row per caption: ``context`` for the encoder, ``target`` to be learned."""
        train = self.train.data
        images = torch.from_numpy(train.image_of_caption)
        return Columns(context=FeatureColumn(train, images), target=TargetColumn(train))

    def data_digest(self) -> str:
        return self.data.digest()

    def split(self, name: str) -> ImageSplit:
        return ImageSplit(self.data.split(name))

    def engine(self, seed: int = 0) -> Engine:
        torch.manual_seed(seed)
        m, vocab = self.model, self.data.vocabulary.size
        # The actual tree comes with the weights, or from ``TreeHead.plant`` before there are any.
        tree = balanced_tree(vocab) if m.head == "tree" else None
        policy = CaptionPolicy(vocab, self.data.width, m.embedding, m.hidden, m.dropout, m.input_dropout, tree)
        train = self.data.split("train")
        policy.standardise(torch.from_numpy(train.features(np.arange(min(len(train), _STANDARDISED_ON)))))
        return Engine(policy.to(self.device), bos=END, eos=END, max_length=self.data.longest)

    def reward(self, name: str = "cider-d", split: Split | None = None) -> Reward:
        """CIDEr-D against the labels of a split, by default the training split.

        Document frequencies are always those of the training labels; the end of a caption counts as a word.
        """
        if name not in self.rewards:
            raise InputError(f"unknown reward {name!r} for captions: choose one of {', '.join(self.rewards)}")
        references = self._train_references if split is None else _references(split.data)
        return Reward(CiderReward(references, self._frequencies, END), name="CIDEr-D")

    def evaluate(self, engine: Engine, split: Split, beam: int = 0) -> CaptionEvaluation:
        assert isinstance(split, ImageSplit)
        return evaluate_captions(engine, split.columns, split.scorer, beam=beam, device=self.device)

    def view(self, split_name: str, split: Split, index: int) -> CaptionView:
        assert isinstance(split, ImageSplit)
        return CaptionView(split_name, split, index, self.tokens)

    def views_of_files(self, paths: Sequence[Path], network: str | None = None) -> tuple[Columns, list[ImageFileView]]:
        """Image files as examples. The network that makes their features must be the one of the data set."""
        paths = list(dict.fromkeys(paths))
        name = network or self.data.meta["made"].get("network") or DEFAULT_NETWORK
        loaded = load_network(name, self.device)
        if loaded.width != self.data.width:
            widths = f"{loaded.width:,} features of an image, but this model was trained on {self.data.width:,}"
            advice = f"give the network that made the features of {self.folder} with --network"
            raise InputError(f"the network {name} makes {widths}: {advice}")
        features = torch.stack([loaded.features(path) for path in paths])
        # Samples for a file depend on its name, as for images of a data set, and not on the other files.
        ids = torch.from_numpy(image_ids([str(path) for path in paths]))
        files = Split(Columns(ids=ids, context=features), paths)
        return files.columns, [ImageFileView("files", files, index, self.tokens) for index in range(len(paths))]

    @cached_property
    def _train_references(self) -> References:
        return _references(self.train.data)

    @cached_property
    def _frequencies(self) -> DocumentFrequencies:
        return DocumentFrequencies.of(self._train_references)


def _references(split: CaptionSplit) -> References:
    return References([[*label, END] for label in labels] for labels in split.labels)
