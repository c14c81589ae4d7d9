"""``corollout data captions`` as a person meets it."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from corollout.cli.data import app
from corollout.errors import InputError
from corollout.tasks.captioning import CaptionData
from corollout.tasks.captioning.metrics import Scorer
from corollout.tasks.captioning.neighbours import consensus
from tests.support.caption_files import coco, flickr, karpathy, numbers


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def done(*arguments: object) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with files of all formats, and features of all their images."""
    names = karpathy(tmp_path / "karpathy.json", {"train": 5, "restval": 1, "val": 2, "test": 2})
    flickr(tmp_path / "token.txt", names[:8])
    for split, chosen in {"train": names[:6], "val": names[6:8], "test": names[8:]}.items():
        (tmp_path / f"{split}.txt").write_text("".join(f"{name}\n" for name in chosen))
    coco(tmp_path / "train.json", range(100, 106))
    coco(tmp_path / "val.json", range(106, 110))
    np.save(tmp_path / "features.npy", numbers(10, 6, np.float16))
    (tmp_path / "features_names.txt").write_text("".join(f"{name}\n" for name in names))
    return tmp_path


def test_karpathy(files: Path):
    result = done("captions", "--captions", files / "karpathy.json", "--features", files / "features.npy",
                  "--more-than", 1, "--longest", 5, "--out", files / "out")  # fmt: skip
    assert "out: " in result.stdout
    assert "features 6 wide (float16)" in result.stdout
    assert "train: 6 images, 30 captions of 6.0 words on average" in result.stdout
    data = CaptionData.open(files / "out")
    assert data.splits == {"train": 6, "val": 2, "test": 2}
    assert (data.longest, data.meta["more_than"], data.meta["made"]["command"] != "") == (5, 1, True)
    assert data.meta["made"]["network"] is None


def test_the_network_that_made_the_features_is_remembered(files: Path):
    (files / "features.json").write_text('{"network": "mine"}')
    done("captions", "--captions", files / "karpathy.json", "--features", files / "features.npy",
         "--more-than", 1, "--out", files / "out")  # fmt: skip
    assert CaptionData.open(files / "out").meta["made"]["network"] == "mine"


def test_flickr_with_images_held_out(files: Path):
    (files / "photos").mkdir()
    result = done("captions", "--captions", files / "token.txt", "--train", files / "train.txt", "--val",
                  files / "val.txt", "--test", files / "test.txt", "--features", files / "features.npy", "--names",
                  files / "features_names.txt", "--images", files / "photos", "--hold-out", 2, "--seed", 3,
                  "--more-than", 0, "--out", files / "out")  # fmt: skip
    assert "test.txt: left out 2 images that have no captions" in result.stderr
    data = CaptionData.open(files / "out")
    assert data.splits == {"train": 4, "val": 2, "test": 2}
    assert (data.meta["data_seed"], data.photos) == (3, files / "photos")


def test_coco(files: Path):
    done("captions", "--train", files / "train.json", "--val", files / "val.json", "--features",
         files / "features.npy", "--more-than", 0, "--out", files / "out")  # fmt: skip
    assert CaptionData.open(files / "out").splits == {"train": 6, "val": 4}


def test_scenes(tmp_path: Path):
    few = ["--train-images", 30, "--val-images", 5, "--test-images", 4, "--more-than", 0]
    result = done("captions", "--generate", "--scale", "tiny", *few, "--seed", 5, "--out", tmp_path / "scenes")
    assert "train: 30 images, 150 captions" in result.stdout
    data = CaptionData.open(tmp_path / "scenes")
    assert data.meta["made"]["seed"] == 5
    assert len(list((tmp_path / "scenes" / "images").glob("*.png"))) == 39
    done("check", tmp_path / "scenes")


def test_bad_entries_are_counted(files: Path):
    content = json.loads((files / "karpathy.json").read_text())
    content["images"][1]["sentences"][2]["tokens"] = []
    (files / "karpathy.json").write_text(json.dumps(content))
    options = ["captions", "--captions", files / "karpathy.json", "--features", files / "features.npy",
               "--more-than", 0, "--out", files / "out"]  # fmt: skip
    assert "image 2 (COCO_val2014_000000000101.jpg), sentence 3: no word in the caption" in refused(*options)
    assert not (files / "out").exists()
    result = done(*options, "--skip-bad")
    assert "warning: left out 1 bad entries, the first: " in result.stderr
    assert CaptionData.open(files / "out").split("train").caption_count == 29


def test_what_does_not_go_together_is_refused(files: Path):
    (files / "full").mkdir()
    (files / "full" / "precious").write_text("")
    out = ["--out", files / "out"]
    from_files = ["--captions", files / "karpathy.json", "--features", files / "features.npy"]
    assert "--captions does not go with --generate" in refused("captions", "--generate", *from_files, *out)
    assert "--val-images does not go without --generate" in refused("captions", *from_files, "--val-images", 3, *out)
    assert "--scale does not go without --generate" in refused("captions", *from_files, "--scale", "tiny", *out)
    assert "no features: name a file" in refused("captions", "--captions", files / "karpathy.json", *out)
    assert "no captions: name a file" in refused("captions", "--features", files / "features.npy", *out)
    assert "is not empty" in refused("captions", *from_files, "--out", files / "full")
    message = refused("captions", "--captions", files / "token.txt", "--format", "coco", "--train", files / "train.txt",
                      "--features", files / "features.npy", *out)  # fmt: skip
    assert "token.txt, line 1, column 1: not JSON" in message
    assert run("captions", "--format", "csv", *from_files, *out).exit_code == 2
    assert not (files / "out").exists()
    assert [entry.name for entry in (files / "full").iterdir()] == ["precious"]


def test_a_folder_is_checked(files: Path):
    done("captions", "--captions", files / "karpathy.json", "--features", files / "features.npy", "--more-than", 0,
         "--out", files / "out")  # fmt: skip
    result = done("check", files / "out")
    assert "test: 2 images, 10 captions" in result.stdout
    assert "complete, and as it was written" in result.stdout
    content = bytearray((files / "out" / "features.npy").read_bytes())
    content[-1] ^= 1
    (files / "out" / "features.npy").write_bytes(bytes(content))
    assert "features.npy is not what was written" in refused("check", files / "out")
    assert "is no prepared data set of captions" in refused("check", files)


def test_neighbours_caption_without_a_model(files: Path):
    done("captions", "--captions", files / "karpathy.json", "--features", files / "features.npy",
         "--more-than", 0, "--out", files / "out")  # fmt: skip
    told = json.loads(done("neighbours", files / "out", "-k", 2, "--json").stdout)
    data = CaptionData.open(files / "out")
    chosen = consensus(data.split("train"), data.split("test"), 2)
    scores, values = Scorer(data.split("test").references).all(chosen)
    assert told["cider"] == pytest.approx(float(scores.mean()))
    assert told["bleu_1"] == pytest.approx(values["bleu_1"])
    assert "CIDEr-D" in done("neighbours", files / "out", "-k", 2).stdout
    assert "there are 6 training images" in refused("neighbours", files / "out", "-k", 7)
    assert "no split 'none'" in refused("neighbours", files / "out", "--split", "none")
