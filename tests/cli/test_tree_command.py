"""``corollout tree`` as a person meets it."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from corollout.cli.main import cli
from corollout.errors import InputError
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.trees import token_counts
from corollout.trees import balanced_tree, entropy, huffman_tree, load_tree, save_tree
from tests.support.small_captions import small_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory).parent


@pytest.fixture(scope="module")
def data(folder: Path) -> CaptionData:
    return CaptionData.open(folder / "data")


@pytest.fixture(scope="module")
def file(folder: Path, data: CaptionData) -> Path:
    path = folder / "balanced.safetensors"
    save_tree(path, balanced_tree(data.vocabulary.size), "balanced", data.vocabulary.known)
    return path


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(cli, ["tree", *map(str, arguments)])


def refusal(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, InputError), result.output
    assert result.stdout == ""
    return str(result.exception)


def test_a_tree_is_built_and_shown(folder: Path, data: CaptionData, tmp_path: Path):
    out = tmp_path / "new" / "dis.safetensors"
    result = run("build", "--data", folder / "data", "--from", f"run:{folder / 'run'}", "--out", out, "--max-depth", 6)
    assert result.exit_code == 0, (result.output, result.exception)
    words, counts = data.vocabulary.known, token_counts(data.split("train"))
    stored = load_tree(out, words)
    tree = stored.tree
    assert stored.builder == f"ward clustering of the embeddings of {folder / 'run'}; at most 6 deep"
    assert result.stdout.splitlines() == [
        f"{out}: {stored.builder}",
        f"  {len(words)} words, {tree.depth} deep at most, {tree.depths.mean():.2f} on average, "
        f"{tree.expected_depth(counts):.2f} in training captions",
    ]
    shown = run("show", out, "--data", folder / "data").stdout
    assert shown.startswith(f"{out}: {stored.builder}\n")
    rows = [line.split() for line in shown.splitlines()]
    assert ["expected", "in", "training", "captions", f"{tree.expected_depth(counts):.2f}"] in rows
    best = huffman_tree(counts).expected_depth(counts)
    assert ["the", "same", "of", "a", "Huffman", "tree", f"{best:.2f}"] in rows
    assert ["entropy", "of", "training", "captions", f"{entropy(counts):.2f}"] in rows
    for depth in range(int(tree.depths.min()), tree.depth + 1):
        share = counts[tree.depths == depth].sum() / counts.sum()
        (row,) = [row for row in rows if row[:2] == [str(depth), str(tree.histogram[depth])]]
        assert row[-2:] == [f"{100 * share:.1f}", "%"]
        # In eighths of a character, of forty characters.
        assert abs(len(row[2]) - 40 * tree.histogram[depth] / tree.histogram.max()) <= 1


def test_a_random_tree_has_the_shape_of_another(folder: Path, file: Path, tmp_path: Path):
    out = tmp_path / "random.safetensors"
    build = "build", "--data", folder / "data", "--from", "random", "--out", out, "--of", file
    trees = []
    for seed in ([], ["--seed", "0"], ["--seed", "1"]):
        assert run(*build, *seed).exit_code == 0
        trees.append(load_tree(out).tree)
    assert trees[0] == trees[1] != trees[2]
    assert sorted(trees[2].depths) == sorted(load_tree(file).tree.depths)


def test_the_tree_around_a_word(folder: Path, data: CaptionData, file: Path):
    words = data.vocabulary.known
    token, tree = words.index("red"), load_tree(file).tree
    shown = run("show", file, "--data", folder / "data", "--around", "red", "--words", 4).stdout
    path = tree.path(token)
    (root,) = [node for node, _ in path if 4 <= tree.leaf_counts[node] <= 6]
    near = {words[other] for other in tree.tokens(root)}
    drawing = shown[shown.rindex(f" {len(near)} words\n") :]
    assert {line.split()[-1] for line in drawing.splitlines() if not line.endswith("words")} == near
    code = "".join(str(int(bit)) for node, bit in path if node < root)
    assert f"\n{code[: tree.node_depths[root]]} {len(near)} words\n" in shown


def test_what_is_not_drawn_is_named(folder: Path, data: CaptionData, file: Path):
    words = data.vocabulary.known
    tree = load_tree(file).tree
    shown = run("show", file, "--data", folder / "data").stdout
    parts = [node for node in range(tree.size - 1) if tree.node_depths[node] == 3]
    assert shown.count("words:") == len(parts) > 0
    for node in parts:
        named = ", ".join(words[token] for token in sorted(tree.tokens(node))[:6])
        assert f" {tree.leaf_counts[node]} words: {named}" in shown


def test_a_large_neighbour_is_named_but_not_drawn(folder: Path, data: CaptionData, tmp_path: Path):
    words = data.vocabulary.known
    chain = tmp_path / "chain"
    save_tree(chain, huffman_tree(2.0 ** -np.arange(len(words))), "chain", words)
    shown = run("show", chain, "--data", folder / "data", "--around", "<end>", "--words", 2).stdout
    named = ", ".join(words[1:7])
    assert f" {len(words) - 1} words: {named}, …\n" in shown
    assert shown.count("<end>") == 1
    assert f" {words[-1]}\n" not in shown


def test_without_data_there_are_numbers_only(file: Path):
    result = run("show", file)
    assert result.exit_code == 0, result.exception
    assert "entropy" not in result.stdout
    assert "words: #0, #1\n" in result.stdout


def test_a_tree_of_one_token_can_be_shown(tmp_path: Path):
    save_tree(tmp_path / "one", balanced_tree(1), "balanced")
    result = run("show", tmp_path / "one")
    assert result.exit_code == 0, result.exception
    assert result.stdout.rstrip().endswith("#0")


def test_bad_input_is_a_sentence(folder: Path, file: Path, tmp_path: Path):
    data, out = folder / "data", tmp_path / "x.safetensors"
    build = "build", "--data", data, "--out", out, "--from"
    assert "cannot be made from 'magic': choose one of vectors:FILE" in refusal(*build, "magic")
    assert "--of and --seed are for a random tree" in refusal(*build, "huffman", "--seed", 1)
    assert "--of and --seed are for a random tree" in refusal(*build, "balanced", "--of", file)
    assert "name its file with --of" in refusal(*build, "random")
    assert "--method is for clustering vectors" in refusal(*build, "huffman", "--method", "ward")
    assert "max_depth must be at least" in refusal(*build, "huffman", "--max-depth", 1)
    assert "cannot read the word vectors absent.txt" in refusal(*build, "vectors:absent.txt")
    assert "holds no run" in refusal(*build, f"run:{tmp_path}")
    assert "is no prepared data set" in refusal("build", "--data", tmp_path, "--out", out, "--from", "balanced")
    assert "choose another with --out" in refusal(*build[:3], "--out", file / "x" / "y", "--from", "balanced")
    assert not out.exists()
    assert "--around needs the words: name the data set with --data" in refusal("show", file, "--around", "red")
    strange = "show", file, "--data", data, "--around"
    assert "no model learns the word 'lathe': it is not in the vocabulary of" in refusal(*strange, "lathe")
    assert "no file of a tree" in refusal("show", data / "meta.json")
    save_tree(out, balanced_tree(5), "balanced")
    assert "has 5 tokens, but the vocabulary has" in refusal("show", out, "--data", data)
    assert run(*build, "run:x", "--method", "single").exit_code == 2
