"""Commands of the captioning task: ``data captions|features|neighbours``, ``score`` and ``tree build|show``."""

import json
from dataclasses import fields
from math import log2
from typing import Any

from rich.text import Text

from corollout.cli.progress import show_events
from corollout.cli.tables import evaluation_table, plain_table
from corollout.cli.terminal import Terminal
from corollout.data import check_device
from corollout.errors import InputError
from corollout.events import Callback
from corollout.files import require_new_file
from corollout.folders import make_folder, require_empty
from corollout.reports.manifest import manifest
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.extraction import network_of, write_features
from corollout.tasks.captioning.features import open_features
from corollout.tasks.captioning.metrics import CIDER, CaptionEvaluation, Scorer
from corollout.tasks.captioning.neighbours import consensus
from corollout.tasks.captioning.networks import find_images, load_network
from corollout.tasks.captioning.preparation import prepare
from corollout.tasks.captioning.readers import read_captions
from corollout.tasks.captioning.scenes import SCALES, make_scenes
from corollout.tasks.captioning.scoring import score_files, write_frequencies
from corollout.tasks.captioning.settings import (
    CaptionsSettings,
    FeaturesSettings,
    NeighboursSettings,
    ScoreSettings,
    TreeBuildSettings,
    TreeShowSettings,
)
from corollout.tasks.captioning.trees import build_tree, token_counts
from corollout.trees import entropy, huffman_tree, load_tree, save_tree
from corollout.trees.show import depth_bars, neighbourhood, top

_METRICS = {f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)}
_METRICS |= {"rouge_l": "ROUGE-L", "cider_d": "CIDEr-D", "cider": "CIDEr", "meteor": "METEOR"}


def prepare_captions(settings: CaptionsSettings) -> None:
    """Prepare a data set for captioning, from public files and features, or of generated scenes."""
    unused = settings.files if settings.generate else settings.scenes
    for one in fields(unused):
        if getattr(unused, one.name) is not None:
            flag = "--" + one.name.replace("_", "-")
            raise InputError(f"{flag} is not for {'generated scenes' if settings.generate else 'files'}: leave it out")
    require_empty(settings.out)  # now, not when everything is read
    make = _generate if settings.generate else _prepare_files
    with show_events() as on_event:
        data = make(settings, on_event)
    for line in data.summary():
        _print(line)


def _generate(settings: CaptionsSettings, on_event: Callback) -> CaptionData:
    scenes, preparation = settings.scenes, settings.preparation
    given = {"train": scenes.train_images, "val": scenes.val_images, "test": scenes.test_images}
    counts: dict[str, Any] = dict(SCALES[scenes.scale or "tiny"])
    counts |= {split: count for split, count in given.items() if count is not None}
    seed, facts = preparation.data_seed, manifest(seed=preparation.data_seed, **counts)
    return make_scenes(settings.out, counts, seed=seed, settings=preparation, facts=facts, on_event=on_event)


def _prepare_files(settings: CaptionsSettings, on_event: Callback) -> CaptionData:
    files, skip_bad = settings.files, settings.skip_bad
    if files.features is None:
        raise InputError("no features: give a file or folder with --features, or generate scenes with --generate")
    features = open_features(files.features, files.names)
    given = {"train": files.train, "val": files.val, "test": files.test}
    splits = {split: path for split, path in given.items() if path is not None}
    captions = read_captions(files.captions, splits, files.format, skip_bad)
    options = {"photos": files.images, "skip_bad": skip_bad, "facts": manifest(network=network_of(files.features))}
    return prepare(captions, features, settings.out, settings.preparation, **options, on_event=on_event)


def make_features(settings: FeaturesSettings) -> None:
    """Make features of images with a pretrained network; if killed, the same command continues."""
    check_device(settings.device)
    paths, network = find_images(settings.images), load_network(settings.network, settings.device)
    with show_events() as on_event:
        written = write_features(paths, network, settings.out, settings.batch, settings.skip_bad, on_event)
    _print(f"{written.path}: {written.rows:,} images, {network.width:,} features each; their names: {written.names}")
    if written.bad:
        _print(f"skipped {len(written.bad):,} images; the first: {next(iter(written.bad.values()))}")


def caption_by_neighbours(settings: NeighboursSettings) -> None:
    """Caption images by the consensus of their nearest training images, a baseline for captioners."""
    data = CaptionData.open(settings.data)
    images = data.split(settings.split)
    captions = consensus(data.split("train"), images, settings.k)
    result = CaptionEvaluation(*Scorer(images.references).all(captions), captions, {})
    if settings.json:
        print(json.dumps(result.numbers()))
    else:
        Terminal().print(evaluation_table(result, f"{settings.split}, consensus of {settings.k} neighbours", CIDER))


def score(settings: ScoreSettings) -> None:
    """Score captions by BLEU, ROUGE-L, CIDEr-D, CIDEr, and METEOR where its Java program is installed.

    The scores, including tokenisation, are those of the public COCO evaluation, whose CIDEr is CIDEr-D.
    """
    if settings.hyps is None and settings.write_df is None:
        raise InputError("nothing to do: give captions to score with --hyps, or a file with --write-df")
    if settings.write_df is not None:
        require_new_file(settings.write_df, "--write-df")
        write_frequencies(settings.write_df, settings.refs)
    if settings.hyps is None:
        return
    with Terminal(stderr=True).status("scoring …"):
        result = score_files(settings.refs, settings.hyps, settings.df, settings.partial, meteor=not settings.no_meteor)
    console, each = Terminal(), result.each
    if settings.json:
        record: dict[str, Any] = {"images": len(result.captions), **result.corpus}
        if result.no_meteor is not None:
            record |= {"meteor": None, "meteor_absent": result.no_meteor}
        if settings.per_example:
            record["examples"] = [
                {"image_id": image, **{name: float(values[row]) for name, values in each.items()}}
                for row, image in enumerate(result.captions)
            ]
        print(json.dumps(record, indent=2))
        return
    if settings.per_example:
        columns = {_METRICS[name]: each[name] for name in ("cider_d", "bleu_4", "rouge_l", "meteor") if name in each}
        rows = [
            [" ".join(words), str(image), *(f"{100 * values[row]:.1f}" for values in columns.values())]
            for row, (image, words) in enumerate(result.captions.items())
        ]
        console.print(plain_table("", ["caption", "image", *columns], rows))
    rows = [[name, f"{100 * result.corpus[key]:.2f}"] for key, name in _METRICS.items() if key in result.corpus]
    _print(f"{settings.hyps}: {len(result.captions):,} captions, scores times 100", "bold")
    console.print(plain_table("", ["metric", "value"], rows))
    if result.no_meteor is not None:
        _print(f"METEOR is missing: {result.no_meteor}.", "dim")


def build(settings: TreeBuildSettings) -> None:
    """Build a binary tree over the words of a data set."""
    require_new_file(settings.out)  # now, not after the work
    data = CaptionData.open(settings.data)
    make_folder(settings.out.parent, "choose another with --out")
    with Terminal(stderr=True).status("building the tree …"):
        tree, builder = build_tree(data, settings.tree)
    save_tree(settings.out, tree, builder, data.vocabulary.known, new=True)
    expected = tree.expected_depth(token_counts(data.split("train")))
    _print(f"{settings.out}: {builder}")
    means = f"{tree.depths.mean():.2f} on average, {expected:.2f} in training captions"
    _print(f"  {tree.size:,} words, depth {tree.depth}, {means}")


def show(settings: TreeShowSettings) -> None:
    """Show the depths of a tree and a part of it."""
    if settings.around is not None and settings.data is None:
        raise InputError("--around needs the words: give the data set with --data")
    words, counts = None, None
    if settings.data is not None:
        data = CaptionData.open(settings.data)
        words, counts = data.vocabulary.known, token_counts(data.split("train"))
        if settings.around not in (None, *words):
            raise InputError(f"the word {settings.around!r} is not among the tokens of {settings.data}")
    stored = load_tree(settings.file, words)
    tree = stored.tree
    labels = [f"#{token}" for token in range(tree.size)] if words is None else list(words)
    numbers = {
        "maximum for a word": tree.depth,
        "mean over the vocabulary": tree.depths.mean(),
        "log₂ V": log2(tree.size),
    }
    if counts is not None:
        numbers["expected in training captions"] = tree.expected_depth(counts)
        numbers["the same for a Huffman tree"] = huffman_tree(counts).expected_depth(counts)
        numbers["entropy of training captions"] = entropy(counts)
    console = Terminal()
    _print(f"{settings.file}: {stored.builder}")
    rows = [[name, f"{number:.2f}"] for name, number in numbers.items()]
    console.print(plain_table("", ["decisions", "number"], rows))
    console.print(depth_bars(tree, counts))
    if settings.around is None:
        console.print(top(tree, labels))
    else:
        console.print(neighbourhood(tree, labels, labels.index(settings.around), settings.words))


def _print(line: str, style: str = "") -> None:
    Terminal(soft_wrap=True).print(Text(line, style))
