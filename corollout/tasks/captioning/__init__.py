"""Image captioning: say what is to be seen in an image, judged by what people said of it."""

from corollout.tasks.captioning.arrays import SPLITS, CaptionArrays
from corollout.tasks.captioning.dataset import CaptionData, CaptionSplit
from corollout.tasks.captioning.features import Features, open_features
from corollout.tasks.captioning.gathering import Captions
from corollout.tasks.captioning.preparation import PreparationSettings, prepare
from corollout.tasks.captioning.readers import read_captions
from corollout.tasks.captioning.scenes import make_scenes
from corollout.tasks.captioning.vocabulary import Vocabulary

__all__ = [
    "SPLITS",
    "CaptionArrays",
    "CaptionData",
    "CaptionSplit",
    "Captions",
    "Features",
    "PreparationSettings",
    "Vocabulary",
    "make_scenes",
    "open_features",
    "prepare",
    "read_captions",
]
