"""Image captioning: describe an image, judged by the captions that people wrote."""

from typing import TYPE_CHECKING

from corollout.lazy import lazy_names

if TYPE_CHECKING:
    from corollout.tasks.captioning.dataset import CaptionData
    from corollout.tasks.captioning.features import open_features
    from corollout.tasks.captioning.preparation import prepare
    from corollout.tasks.captioning.readers import read_captions
    from corollout.tasks.captioning.scenes import make_scenes
    from corollout.tasks.captioning.settings import PreparationSettings
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "dataset": "CaptionData",
            "features": "open_features",
            "preparation": "prepare",
            "readers": "read_captions",
            "scenes": "make_scenes",
            "settings": "PreparationSettings",
        },
    )

__all__ = ["CaptionData", "PreparationSettings", "make_scenes", "open_features", "prepare", "read_captions"]
