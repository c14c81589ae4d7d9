"""Real captions, where there are any: words and values are those of the public evaluation.

COCO's captions_val2017.json is looked for in the folder COROLLOUT_COCO_DATA, or ../shared/data/coco, and Flickr8k's
captions.token.txt in COROLLOUT_FLICKR8K_DATA, or ../shared/data/flickr8k.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_caption_text import CASES

from corollout.tasks.captioning.scoring import Lexicon
from corollout.tasks.captioning.text import tokenize
from corollout.text_metrics.bleu import Bleu
from corollout.text_metrics.cider import Cider
from corollout.text_metrics.references import References
from corollout.text_metrics.rouge import RougeL
from tests.support.text_metrics import PublicScores

SHARED = Path(__file__).parents[3] / "../shared/data"
COCO = Path(os.environ.get("COROLLOUT_COCO_DATA", SHARED / "coco")) / "captions_val2017.json"
FLICKR = Path(os.environ.get("COROLLOUT_FLICKR8K_DATA", SHARED / "flickr8k")) / "captions.token.txt"
PUNCTUATION = {"''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"}

pytestmark = pytest.mark.slow


def coco() -> list[tuple[str, str]]:
    entries = json.loads(COCO.read_text("utf-8"))["annotations"]
    return [(str(entry["image_id"]), entry["caption"]) for entry in entries]


def flickr() -> list[tuple[str, str]]:
    lines = (line.split("\t") for line in FLICKR.read_text("utf-8").splitlines())
    return [(name.partition("#")[0], caption) for name, caption in lines]


def captions(name: str) -> list[tuple[str, str]]:
    path = {"coco": COCO, "flickr": FLICKR}[name]
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return {"coco": coco, "flickr": flickr}[name]()


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


@pytest.mark.parametrize("name", ["coco", "flickr"])
def test_words_of_real_captions(name: str, tmp_path: Path):
    texts = [caption for _, caption in captions(name)]
    assert len(texts) > 25_000
    different = [
        (text, words, tokenize(text))
        for text, words in zip(texts, public_words(texts, tmp_path), strict=True)
        if words != tokenize(text)
    ]
    assert different == []


def test_the_cases_are_right(tmp_path: Path):
    # What a caption ends with may depend on the next, so that a sentence follows each.
    lines = [line for caption in CASES for line in (caption, "A man")]
    assert public_words(lines, tmp_path)[::2] == [words.split() for words in CASES.values()]


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
