"""Trees over the vocabulary of a captioning data set."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.trees import TreeSettings, build_tree, run_embeddings, token_counts
from corollout.training.checkpoints import read_weights, write_weights
from corollout.trees import balanced_tree, bisect_tree, cluster_tree, huffman_tree, permuted, save_tree
from tests.support.small_captions import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def data(run: Path) -> CaptionData:
    return CaptionData.open(run.parent / "data")


def copied(run: Path, folder: Path, **replaced: str) -> Path:
    """Another run with some words of its settings replaced."""
    shutil.copytree(run, folder)
    text = (folder / "config.toml").read_text()
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "config.toml").write_text(text)
    return folder


@pytest.mark.parametrize("longest", [3, 7, 8, 16])
def test_counts_are_those_of_what_is_taught(data: CaptionData, longest: int):
    cut = CaptionData(**{**vars(data), "longest": longest})
    for split in (cut.split("train"), cut.split("val"), cut.split("train").first(5)):
        plain = Counter(
            token
            for labels in split.labels
            for label in labels
            for token in [*label, 0][:longest]  # as teacher forcing cuts it
        )
        assert token_counts(split).tolist() == [plain[token] for token in range(cut.vocabulary.size)]


def test_trees_of_every_kind(data: CaptionData, run: Path, tmp_path: Path):
    words = data.vocabulary.known
    assert (words[0], words[-1]) == ("<end>", "<unk>")
    counts = token_counts(data.split("train"))
    embeddings = read_weights(run / "best.safetensors")[0]["embedding"].numpy()
    file = tmp_path / "vectors.txt"
    file.write_text("".join(f"{word} {place} {place**2}\n" for place, word in enumerate(words[1:-1], 1)))
    placed = np.array([[place, place**2] for place in range(len(words))], np.float32)
    placed[[0, -1]] = placed[1:-1].mean(0)
    of_run = cluster_tree(embeddings)
    save_tree(tmp_path / "tree", of_run, "mine", words)
    known = f"{len(words) - 2} of {len(words)} words have one"
    for settings, tree, builder in (
        (TreeSettings("huffman"), huffman_tree(counts), "Huffman code of training captions"),
        (TreeSettings("balanced"), balanced_tree(len(words)), "balanced, in the order of the vocabulary"),
        (TreeSettings(f"run:{run}"), of_run, f"ward clustering of the embeddings of {run}"),
        (
            TreeSettings(f"run:{run}", "average", max_depth=5),
            cluster_tree(embeddings, "average", 5),
            f"average clustering of the embeddings of {run}; at most 5 deep",
        ),
        (
            TreeSettings(f"run:{run}", "bisect"),
            bisect_tree(embeddings),
            f"bisect clustering of the embeddings of {run}",
        ),
        (
            TreeSettings(f"vectors:{file}", "complete"),
            cluster_tree(placed, "complete"),
            f"complete clustering of the vectors in {file} ({known})",
        ),
        (TreeSettings("random", of=tmp_path / "tree"), permuted(of_run, 0), "permutation by seed 0 of: mine"),
        (
            TreeSettings("random", of=tmp_path / "tree", seed=4, max_depth=5),
            permuted(of_run, 4, 5),
            "permutation by seed 4 of: mine; at most 5 deep",
        ),
    ):
        made, said = build_tree(data, settings)
        assert (said, made) == (builder, tree)


@pytest.mark.parametrize("source", ["ward", "vectors", "vectors:", "run:", "huffman:x", "balanced:", "", "Random"])
def test_unknown_sources(data: CaptionData, source: str):
    with pytest.raises(InputError, match=r"cannot be made from '.*': choose one of vectors:FILE, run:DIR"):
        build_tree(data, TreeSettings(source))


def test_embeddings_of_another_vocabulary_are_refused(data: CaptionData, run: Path, tmp_path: Path):
    folder = str(run.parent / "data")
    moved = copied(run, tmp_path / "moved", **{folder: str(tmp_path / "nowhere")})
    assert np.array_equal(run_embeddings(moved, data), run_embeddings(run, data))

    other = tmp_path / "data"
    shutil.copytree(folder, other)
    lines = (other / "vocabulary.txt").read_text().splitlines()
    (other / "vocabulary.txt").write_text("".join(f"{line}\n" for line in [lines[0], lines[2], lines[1], *lines[3:]]))
    swapped = copied(run, tmp_path / "swapped", **{folder: str(other)})
    with pytest.raises(InputError, match=r"the captioner in .*swapped has learnt another vocabulary than that of"):
        run_embeddings(swapped, data)

    weights, _ = read_weights(run / "best.safetensors")
    write_weights(moved / "best.safetensors", weights | {"embedding": weights["embedding"][1:]})
    with pytest.raises(InputError, match="another vocabulary"):
        run_embeddings(moved, data)
    write_weights(moved / "best.safetensors", {"output": weights["output"]})
    with pytest.raises(InputError, match="has no parameter 'embedding': it is not of a captioner"):
        run_embeddings(moved, data)
    karel = copied(run, tmp_path / "karel", **{'task = "captions"': 'task = "karel"'})
    with pytest.raises(InputError, match="is no run of a captioner, but of the task 'karel'"):
        run_embeddings(karel, data)
    with pytest.raises(InputError, match="holds no run"):
        run_embeddings(tmp_path, data)
