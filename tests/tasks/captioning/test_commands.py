"""``corollout data captions|features|neighbours`` and ``corollout tree`` on the command line."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from corollout import trees
from corollout.tasks.captioning import commands
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.metrics import Scorer
from corollout.tasks.captioning.neighbours import consensus
from corollout.tasks.captioning.settings import DEFAULT_NETWORK, TreeSettings
from corollout.tasks.captioning.trees import build_tree, run_embeddings, token_counts
from corollout.trees import balanced_tree, huffman_tree, load_tree, save_tree
from corollout.weights import read_weights, write_weights
from tests.support.caption_files import flickr, karpathy, numbers
from tests.support.commands import invoke, output, refusal
from tests.support.errors import refused
from tests.support.image_files import MeanColours, make_images, slow_features
from tests.support.small_captions import small_run

CAPTIONS = ("data", "captions")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with files of all formats and features of all their images."""
    monkeypatch.chdir(tmp_path)
    names = karpathy(tmp_path / "karpathy.json", {"train": 5, "restval": 1, "val": 2, "test": 2})
    flickr(tmp_path / "token.txt", names[:8])
    for split, chosen in {"train": names[:6], "val": names[6:8], "test": names[8:]}.items():
        (tmp_path / f"{split}.txt").write_text("".join(f"{name}\n" for name in chosen))
    np.save(tmp_path / "x.npy", numbers(10, 6, np.float16))
    (tmp_path / "x_names.txt").write_text("".join(f"{name}\n" for name in names))
    return tmp_path


def prepared(*options: object) -> CaptionData:
    output(*CAPTIONS, "--features", "x.npy", "--out", "out", *options)
    return CaptionData.open("out")


def test_karpathy(files: Path):
    (files / "x.json").write_text('{"network": "mine"}')
    data = prepared("--captions", "karpathy.json", "--more-than", 1, "--longest", 5)
    assert data.splits == {"train": 6, "val": 2, "test": 2}
    assert (data.longest, data.meta["more_than"], data.meta["made"]["network"]) == (5, 1, "mine")
    assert data.summary()[0].endswith("features 6 wide (float16)")
    assert "train: 6 images, 30 captions of 6.0 words on average" in data.summary()[1]


def test_flickr_with_images_held_out(files: Path):
    (files / "photos").mkdir()
    lists = [word for split in ("train", "val", "test") for word in (f"--{split}", f"{split}.txt")]
    options = ["--names", "x_names.txt", "--images", "photos", "--hold-out", 2, "--seed", 3, "--more-than", 0]
    arguments = ["--captions", "token.txt", *lists, *options, "--features", "x.npy", "--out", "out"]
    assert "test.txt: skipped 2 images without captions" in invoke(*CAPTIONS, *arguments).stderr
    data = CaptionData.open("out")
    assert data.splits == {"train": 4, "val": 2, "test": 2}
    assert (data.meta["data_seed"], data.photos) == (3, files / "photos")


def test_scenes_and_their_check(tmp_path: Path):
    few = ["--train-images", 30, "--val-images", 5, "--test-images", 4, "--more-than", 0]
    out = tmp_path / "scenes"
    text = output(*CAPTIONS, "--generate", "--scale", "tiny", *few, "--seed", 5, "--out", out)
    assert "train: 30 images, 150 captions" in text
    assert CaptionData.open(out).meta["made"]["seed"] == 5
    assert len(list((out / "images").glob("*.png"))) == 39
    assert "complete and unchanged" in output("data", "check", out)
    np.save(out / "features.npy", np.load(out / "features.npy") + 1)
    assert "features.npy has changed" in refusal("data", "check", out)


def test_bad_entries_are_counted(files: Path):
    content = json.loads((files / "karpathy.json").read_text())
    content["images"][1]["sentences"][2]["tokens"] = []
    (files / "karpathy.json").write_text(json.dumps(content))
    options = [*CAPTIONS, "--captions", "karpathy.json", "--features", "x.npy", "--more-than", 0, "--out", "out"]
    assert "image 2 (COCO_val2014_000000000101.jpg), sentence 3: the caption" in refusal(*options)
    assert not (files / "out").exists()
    assert "warning: skipped 1 bad entries; the first: " in invoke(*options, "--skip-bad").stderr
    assert CaptionData.open("out").split("train").caption_count == 29


def test_options_that_do_not_go_together(files: Path):
    (files / "full").mkdir()
    (files / "full" / "precious").write_text("")
    captions, features, out = ["--captions", "karpathy.json"], ["--features", "x.npy"], ["--out", "out"]
    for arguments, message in (
        (["--generate", *captions, *features, *out], "--captions is not for generated scenes"),
        ([*captions, *features, "--val-images", 3, *out], "--val-images is not for files"),
        ([*captions, *features, "--scale", "tiny", *out], "--scale is not for files"),
        ([*captions, *out], "no features: give a file"),
        ([*features, *out], "no captions: give a file"),
        ([*captions, *features, "--out", "full"], "is not empty"),
        (["--train", "token.txt", "--format", "coco", *features, *out], "token.txt, line 1, column 1: not valid JSON"),
        (["--format", "csv", *captions, *features, *out], "karpathy, coco, flickr"),
    ):
        assert message in refusal(*CAPTIONS, *arguments)
    assert not (files / "out").exists()
    assert [entry.name for entry in (files / "full").iterdir()] == ["precious"]


def test_neighbours_caption_without_a_model(files: Path):
    data = prepared("--captions", "karpathy.json", "--more-than", 0)
    values = json.loads(output("data", "neighbours", "out", "-k", 2, "--json"))
    chosen = consensus(data.split("train"), data.split("test"), 2)
    _, expected = Scorer(data.split("test").references).all(chosen)
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    assert "CIDEr-D" in output("data", "neighbours", "out", "-k", 2)
    assert "k must be from 1 to 6" in refusal("data", "neighbours", "out", "-k", 7)
    assert "no split 'none'" in refusal("data", "neighbours", "out", "--split", "none")


def test_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    load = commands.load_network
    networks = {DEFAULT_NETWORK: MeanColours()}
    monkeypatch.setattr(commands, "load_network", lambda name, *rest: networks.get(name) or load(name))
    paths = make_images(tmp_path / "images", 5)
    arguments = "data", "features", "--images", tmp_path / "images", "--out", tmp_path / "x.npy", "--batch", 2
    plain = MeanColours.__call__

    def stop_later(self: MeanColours, images: torch.Tensor) -> torch.Tensor:
        if self.calls:
            raise KeyboardInterrupt
        return plain(self, images)

    with monkeypatch.context() as patch:
        patch.setattr(MeanColours, "__call__", stop_later)
        assert repr(invoke(*arguments).exception).startswith("Interrupted('stopped after 2 of 5 images")
    for _ in range(2):  # the second time there is nothing left to do
        assert "x.npy: 5 images, 12 features each; their names: " in output(*arguments)
    assert np.array_equal(np.load(tmp_path / "x.npy"), slow_features(paths))
    paths[4].write_bytes(b"bad")
    arguments = (*arguments, "--out", tmp_path / "y.npy")
    assert "image-04.png: it is not an image" in refusal(*arguments)
    assert "skipped 1 images; the first: cannot read the image" in output(*arguments, "--skip-bad")
    assert "unknown network 'eyes'" in refusal(*arguments, "--network", "eyes")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def folder(run: Path) -> Path:
    return run.parent


@pytest.fixture(scope="module")
def data(folder: Path) -> CaptionData:
    return CaptionData.open(folder / "data")


@pytest.fixture(scope="module")
def file(folder: Path, data: CaptionData) -> Path:
    path = folder / "balanced.safetensors"
    save_tree(path, balanced_tree(data.vocabulary.size), "balanced", data.vocabulary.known)
    return path


def test_a_tree_is_built_and_shown(folder: Path, data: CaptionData, tmp_path: Path):
    out = tmp_path / "new" / "dis.safetensors"
    source = f"run:{folder / 'run'}"
    built = output("tree", "build", "--data", folder / "data", "--from", source, "--out", out, "--max-depth", 6)
    words, counts = data.vocabulary.known, token_counts(data.split("train"))
    stored = load_tree(out, words)
    tree = stored.tree
    assert stored.builder == f"ward clustering of the embeddings of {folder / 'run'}; at most 6 deep"
    assert built.startswith(f"{out}: {stored.builder}\n  {len(words)} words, depth {tree.depth}, ")
    assert built.endswith(f" on average, {tree.expected_depth(counts):.2f} in training captions\n")
    shown = output("tree", "show", out, "--data", folder / "data")
    assert shown.startswith(f"{out}: {stored.builder}\n")
    rows = [line.split() for line in shown.splitlines()]
    best = huffman_tree(counts).expected_depth(counts)
    assert f"expected in training captions {tree.expected_depth(counts):.2f}".split() in rows
    assert f"the same for a Huffman tree {best:.2f}".split() in rows
    assert f"entropy of training captions {trees.entropy(counts):.2f}".split() in rows
    for depth in range(int(tree.depths.min()), tree.depth + 1):
        share = counts[tree.depths == depth].sum() / counts.sum()
        (row,) = [row for row in rows if row[:2] == [str(depth), str(tree.histogram[depth])]]
        assert row[-2:] == [f"{100 * share:.1f}", "%"]
        assert abs(len(row[2]) - 40 * tree.histogram[depth] / tree.histogram.max()) <= 1  # the bar


def test_what_is_drawn_of_a_tree(folder: Path, data: CaptionData, file: Path, tmp_path: Path):
    words, tree = data.vocabulary.known, load_tree(file).tree
    show = "tree", "show", file, "--data", folder / "data"
    # The top, with some words of each part that is not drawn.
    shown = output(*show)
    parts = [node for node in range(tree.size - 1) if tree.node_depths[node] == 3]
    assert shown.count("words:") == len(parts) > 0
    for node in parts:
        named = ", ".join(words[token] for token in sorted(tree.tokens(node))[:6])
        assert f" {tree.leaf_counts[node]} words: {named}" in shown
    # Around a word.
    shown, path = output(*show, "--around", "red", "--words", 4), tree.path(words.index("red"))
    (root,) = [node for node, _ in path if 4 <= tree.leaf_counts[node] <= 6]
    near = {words[other] for other in tree.tokens(root)}
    drawing = shown[shown.rindex(f" {len(near)} words\n") :]
    assert {line.split()[-1] for line in drawing.splitlines() if not line.endswith("words")} == near
    code = "".join(str(int(bit)) for node, bit in path if node < root)
    assert f"\n{code[: tree.node_depths[root]]} {len(near)} words\n" in shown
    # A large neighbour is named but not drawn.
    save_tree(tmp_path / "chain", huffman_tree(2.0 ** -np.arange(len(words))), "chain", words)
    shown = output(*show[:2], tmp_path / "chain", *show[3:], "--around", "<end>", "--words", 2)
    assert f" {len(words) - 1} words: {', '.join(words[1:7])}, …\n" in shown
    assert shown.count("<end>") == 1
    # Without data, and without decisions.
    shown = output("tree", "show", file)
    assert "entropy" not in shown
    assert "words: #0, #1\n" in shown
    save_tree(tmp_path / "one", balanced_tree(1), "balanced")
    assert output("tree", "show", tmp_path / "one").rstrip().endswith("#0")


def test_bad_arguments_for_trees(folder: Path, file: Path, tmp_path: Path):
    data, out = folder / "data", tmp_path / "x.safetensors"
    build, show = ("tree", "build", "--data", data, "--out", out, "--from"), ("tree", "show")
    save_tree(tmp_path / "small", balanced_tree(5), "balanced")
    for arguments, message in (
        ((*build, "magic"), "built from vectors:FILE"),
        ((*build, "huffman", "--seed", 1), "--of and --seed are only for random trees"),
        ((*build, "balanced", "--of", file), "--of and --seed are only for random trees"),
        ((*build, "random"), "give its file with --of"),
        ((*build, "huffman", "--method", "ward"), "--method is only for vectors"),
        ((*build, "run:x", "--method", "single"), "must be one of ward"),
        ((*build, "huffman", "--max-depth", 1), "max_depth must be at least"),
        ((*build, "vectors:absent.txt"), "cannot read the word vectors absent.txt"),
        ((*build, f"run:{tmp_path}"), "is not a run directory"),
        ((*build[:2], "--data", tmp_path, *build[4:], "balanced"), "is not a prepared data set"),
        ((*build[:4], "--out", file / "x" / "y", "--from", "balanced"), "choose another with --out"),
        ((*show, file, "--around", "red"), "--around needs the words"),
        ((*show, file, "--data", data, "--around", "lathe"), "the word 'lathe' is not among the tokens of"),
        ((*show, data / "meta.json"), "not a vocabulary tree"),
        ((*show, tmp_path / "small", "--data", data), "has 5 tokens, but the vocabulary has"),
    ):
        assert message in refusal(*arguments)
    assert not out.exists()


def copied(run: Path, folder: Path, **replaced: str) -> Path:
    """Another run with some words of its settings replaced."""
    shutil.copytree(run, folder)
    text = (folder / "config.toml").read_text()
    for old, new in replaced.items():
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
    of_run = trees.cluster_tree(embeddings)
    save_tree(tmp_path / "tree", of_run, "mine", words)
    known = f"{len(words) - 2} of {len(words)} words have one"
    clusters, of_file = f"clustering of the embeddings of {run}", f"clustering of the vectors in {file} ({known})"
    source, random, deep = f"run:{run}", TreeSettings("random", of=tmp_path / "tree"), "; at most 5 deep"
    for settings, tree, builder in (
        (TreeSettings("huffman"), huffman_tree(counts), "Huffman code of training captions"),
        (TreeSettings("balanced"), balanced_tree(len(words)), "balanced, in the order of the vocabulary"),
        (TreeSettings(source), of_run, f"ward {clusters}"),
        (
            TreeSettings(source, "average", 5),
            trees.cluster_tree(embeddings, "average", 5),
            f"average {clusters}{deep}",
        ),
        (TreeSettings(source, "bisect"), trees.bisect_tree(embeddings), f"bisect {clusters}"),
        (TreeSettings(f"vectors:{file}", "complete"), trees.cluster_tree(placed, "complete"), f"complete {of_file}"),
        (random, trees.permuted(of_run, 0), "permutation by seed 0 of: mine"),
        (replace(random, seed=4, max_depth=5), trees.permuted(of_run, 4, 5), f"permutation by seed 4 of: mine{deep}"),
    ):
        made, said = build_tree(data, settings)
        assert (said, made) == (builder, tree)


@pytest.mark.parametrize("source", ["ward", "vectors", "vectors:", "run:", "huffman:x", "balanced:", "", "Random"])
def test_unknown_sources(data: CaptionData, source: str):
    refused(r"built from vectors:FILE, run:DIRECTORY, .*, not from '", build_tree, data, TreeSettings(source))


def test_embeddings_of_another_vocabulary_are_refused(data: CaptionData, run: Path, tmp_path: Path):
    folder = str(run.parent / "data")
    moved = copied(run, tmp_path / "moved", **{folder: str(tmp_path / "nowhere")})
    assert np.array_equal(run_embeddings(moved, data), run_embeddings(run, data))
    other = tmp_path / "data"
    other.mkdir()
    known = data.vocabulary
    replace(known, words=(known.words[0], *known.words[2:0:-1], *known.words[3:])).save(other / "vocabulary.txt")
    swapped = copied(run, tmp_path / "swapped", **{folder: str(other)})
    refused(r"the captioner in .*swapped has another vocabulary than", run_embeddings, swapped, data)
    weights, _ = read_weights(run / "best.safetensors")
    write_weights(moved / "best.safetensors", weights | {"embedding": weights["embedding"][1:]})
    refused("another vocabulary", run_embeddings, moved, data)
    write_weights(moved / "best.safetensors", {"output": weights["output"]})
    refused("has no parameter 'embedding': it is not from a captioner", run_embeddings, moved, data)
    karel = copied(run, tmp_path / "karel", **{'task = "captions"': 'task = "karel"'})
    refused("is a run of the task 'karel', not of a captioner", run_embeddings, karel, data)
    refused("is not a run directory", run_embeddings, tmp_path, data)
