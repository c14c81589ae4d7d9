"""Genuine files, where there are any: they are read whole, and words and values are those of the public evaluation.

They are looked for in the folder COROLLOUT_CAPTION_DATA, or in ../shared/data: coco/captions_val2017.json, and
flickr8k with captions.token.txt, the lists of images and features.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from corollout.tasks.captioning.features import open_features
from corollout.tasks.captioning.preparation import prepare
from corollout.tasks.captioning.readers import read_captions
from corollout.tasks.captioning.scoring import Lexicon
from corollout.tasks.captioning.settings import PreparationSettings
from corollout.tasks.captioning.tokenizer import tokenize
from corollout.text_metrics import Bleu, Cider, References, RougeL
from tests.support.caption_files import listen
from tests.support.text_metrics import PublicScores
from tests.tasks.captioning.test_tokenizer import CASES

FOLDER = Path(os.environ.get("COROLLOUT_CAPTION_DATA", Path(__file__).parents[3] / "../shared/data"))
PUNCTUATION = {"''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"}


def genuine(name: str) -> Path:
    if not (FOLDER / name).exists():
        pytest.skip(f"{FOLDER / name} does not exist")
    return FOLDER / name


def captions(name: str) -> list[tuple[str, str]]:
    """Image and text of every caption."""
    if name == "coco":
        entries = json.loads(genuine("coco/captions_val2017.json").read_text("utf-8"))["annotations"]
        return [(str(entry["image_id"]), entry["caption"]) for entry in entries]
    lines = (line.split("\t") for line in genuine("flickr8k/captions.token.txt").read_text("utf-8").splitlines())
    return [(name.partition("#")[0], caption) for name, caption in lines]


def public_words(texts: list[str], folder: Path) -> list[list[str]]:
    """What the public evaluation's Java program makes of texts."""
    tokenizer = pytest.importorskip("pycocoevalcap.tokenizer")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    jar = Path(next(iter(tokenizer.__path__))) / "stanford-corenlp-3.4.1.jar"
    (folder / "captions.txt").write_text("\n".join(text.replace("\n", " ") for text in texts), "utf-8")
    program = ["java", "-cp", jar, "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    done = subprocess.run([*program, folder / "captions.txt"], capture_output=True, check=True)
    lines = done.stdout.decode("utf-8").split("\n")
    # split() as in the public CIDEr and BLEU: a fraction such as "2 1/2" comes as one token with a space in it.
    return [[word for word in line.split() if word not in PUNCTUATION] for line in lines[: len(texts)]]


@pytest.mark.prove
@pytest.mark.parametrize("name", ["coco", "flickr"])
def test_words_of_real_captions(name: str, tmp_path: Path):
    texts = [caption for _, caption in captions(name)]
    assert len(texts) > 25_000
    pairs = zip(texts, public_words(texts, tmp_path), strict=True)
    assert [(text, words, tokenize(text)) for text, words in pairs if words != tokenize(text)] == []


@pytest.mark.prove
def test_the_cases_are_right(tmp_path: Path):
    # What a caption ends with may depend on the next, so that a sentence follows each.
    lines = [line for caption in CASES for line in (caption, "A man")]
    assert public_words(lines, tmp_path)[::2] == [words.split() for words in CASES.values()]


@pytest.mark.prove
@pytest.mark.parametrize("name", ["coco", "flickr"])
def test_values_of_real_captions(name: str):
    """The first caption of every image against the others; every tenth is another image's, every tenth has gaps."""
    pytest.importorskip("pycocoevalcap")
    groups: dict[str, list[list[str]]] = {}
    for image, caption in captions(name):
        groups.setdefault(image, []).append(tokenize(caption))
    chosen = list(groups.values())[:5000]
    assert len(chosen) == 5000
    hypotheses = [group[0] for group in chosen]
    hypotheses[::10] = [hypotheses[-1], *hypotheses[:-1:10]][: len(hypotheses[::10])]
    hypotheses[5::10] = [words[: len(words) // 2] + words[::3] * 2 for words in hypotheses[5::10]]
    hypotheses[0], references = [], [group[1:] for group in chosen]
    public = PublicScores(
        [[" ".join(words) for words in group] for group in references], list(map(" ".join, hypotheses))
    )
    lexicon = Lexicon()
    known = References([lexicon.encode(words) for words in group] for group in references)
    tokens, images = [lexicon.encode(words) for words in hypotheses], np.arange(5000)
    assert Cider(known).scores(tokens, images) == pytest.approx(public.cider, abs=1e-9)
    assert Bleu(known).scores(tokens, images) == pytest.approx(public.bleu, abs=1e-9)
    assert Bleu(known).corpus(tokens, images) == pytest.approx(public.bleu_corpus, abs=1e-9)
    assert RougeL(known).scores(tokens, images) == pytest.approx(public.rouge, abs=1e-9)


def test_flickr8k(tmp_path: Path):
    folder = genuine("flickr8k")
    lists = {split: folder / f"{split}Images.txt" for split in ("train", "val", "test")}
    read = read_captions(folder / "captions.token.txt", lists)
    assert (len(read.names), len(read.arrays.captions) - 1, len(read.without_captions)) == (7000, 35_000, 1000)
    source = open_features(folder / "features_1280_fp16.npy")
    warnings: list[str] = []
    settings, photos = PreparationSettings(hold_out=500), folder / "sample_images"
    data = prepare(read, source, tmp_path / "out", settings, photos=photos, on_event=listen(warnings))
    assert f"{folder / 'testImages.txt'}: skipped 1,000 images without captions" in warnings
    assert data.splits == {"train": 5500, "val": 500, "test": 1000}
    assert (data.width, data.vectors.dtype) == (1280, np.float16)
    assert 2000 < data.vocabulary.size < 2500
    rows = np.load(folder / "features_1280_fp16.npy", mmap_mode="r")
    split = data.split("test")
    for image in (0, 17, 999):
        place = list(source.names).index(split.names[image])
        assert np.array_equal(split.features(np.array([image]))[0], rows[place].astype(np.float32))
    assert sum(split.photo(image) is not None for image in range(1000)) == 60


def test_coco():
    read = read_captions(splits={"train": genuine("coco/captions_val2017.json")})
    assert (len(read.names), len(read.arrays.captions) - 1) == (5000, 25_014)
    assert read.arrays.counts.min() >= 5
    place = read.names.index("000000397133.jpg")
    assert read.numbers[place] == 397133
    first = " ".join(read.words[token] for token in read.arrays.of(place)[0])
    assert first == "a man is in a kitchen making pizzas"
