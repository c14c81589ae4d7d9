"""Image captioning: describe an image, judged by the captions that people wrote."""

from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.features import open_features
from corollout.tasks.captioning.preparation import PreparationSettings, prepare
from corollout.tasks.captioning.readers import read_captions
from corollout.tasks.captioning.scenes import make_scenes

__all__ = ["CaptionData", "PreparationSettings", "make_scenes", "open_features", "prepare", "read_captions"]
