"""``corollout tree``: make and look at vocabulary trees."""

from enum import StrEnum
from math import log2
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from corollout.cli.tables import plain_table
from corollout.errors import InputError
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.trees import METHODS, SOURCES, TreeSettings, build_tree, token_counts
from corollout.trees import Tree, entropy, huffman_tree, load_tree, save_tree
from corollout.trees.show import depth_bars, neighbourhood, top

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make and look at vocabulary trees.")
Method = StrEnum("Method", METHODS)


@app.command()
def build(
    data: Annotated[Path, typer.Option(help="Folder that `corollout data captions` has prepared.", show_default=False)],
    source: Annotated[
        str, typer.Option("--from", metavar="<source>", help=f"What to make it from: {SOURCES}.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="File of the tree, as safetensors.", show_default=False)],
    method: Annotated[
        Method | None, typer.Option(help="How vectors are clustered. [default: ward]", show_default=False)
    ] = None,
    max_depth: Annotated[
        int | None, typer.Option(min=0, help="Most decisions that lead to a word. [default: any]", show_default=False)
    ] = None,
    of: Annotated[
        Path | None, typer.Option(metavar="<file>", help="For random: the tree to permute.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="For random: seed of the permutation. [default: 0]", show_default=False)
    ] = None,
) -> None:
    """Make a binary tree over the words of a data set."""
    settings = TreeSettings(source, None if method is None else method.value, max_depth, seed, of)
    opened = CaptionData.open(data)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)  # now, not after the work
    except OSError as error:
        raise InputError(f"cannot make the folder {out.parent}: {error.strerror}; choose another with --out") from error
    with Console(stderr=True).status("building the tree …"):
        tree, builder = build_tree(opened, settings)
    save_tree(out, tree, builder, opened.vocabulary.known)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{out}: {builder}", markup=False)
    expected = tree.expected_depth(token_counts(opened.split("train")))
    console.print(
        f"  {tree.size:,} words, {tree.depth} deep at most, {tree.depths.mean():.2f} on average, "
        f"{expected:.2f} in training captions"
    )


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="File of a tree.", show_default=False)],
    data: Annotated[
        Path | None,
        typer.Option(help="Prepared captions, for words and how often they occur.", show_default=False),
    ] = None,
    around: Annotated[
        str | None, typer.Option(metavar="<word>", help="Draw the tree around this word.", show_default=False)
    ] = None,
    words: Annotated[int, typer.Option(min=1, help="About how many words to draw around it.")] = 16,
) -> None:
    """How deep a tree is, and what it looks like."""
    if around is not None and data is None:
        raise InputError("--around needs the words: name the data set with --data")
    opened = None if data is None else CaptionData.open(data)
    names = None if opened is None else opened.vocabulary.known
    if around is not None and names is not None and around not in names:
        raise InputError(f"no model learns the word {around!r}: it is not in the vocabulary of {data}")
    stored = load_tree(file, names)
    tree = stored.tree
    console = Console(highlight=False)
    console.print(f"{file}: {stored.builder}", markup=False, soft_wrap=True)
    counts = None if opened is None else token_counts(opened.split("train"))
    console.print(plain_table("", ["decisions", "number"], _measures(tree, counts)))
    console.print(depth_bars(tree, counts))
    labels = [f"#{token}" for token in range(tree.size)] if names is None else list(names)
    if around is None:
        console.print(top(tree, labels))
    else:
        console.print(neighbourhood(tree, labels, labels.index(around), words))


def _measures(tree: Tree, counts: np.ndarray | None) -> list[list[str]]:
    numbers = {
        "most for a word": float(tree.depth),
        "mean over the vocabulary": float(tree.depths.mean()),
        "log₂ V": log2(tree.size),
    }
    if counts is not None:
        numbers |= {
            "expected in training captions": tree.expected_depth(counts),
            "the same of a Huffman tree": huffman_tree(counts).expected_depth(counts),
            "entropy of training captions": entropy(counts),
        }
    return [[name, f"{number:.2f}"] for name, number in numbers.items()]
