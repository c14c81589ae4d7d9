"""``corollout data captions``: images with captions, from public files or generated."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from corollout.errors import InputError
from corollout.reports.manifest import manifest
from corollout.tasks.captioning.arrays import SPLITS
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.feature_files import network_of
from corollout.tasks.captioning.features import open_features
from corollout.tasks.captioning.files import check_new
from corollout.tasks.captioning.preparation import PreparationSettings, prepare
from corollout.tasks.captioning.readers import read_captions
from corollout.tasks.captioning.scenes import SCALES, make_scenes

_SETTINGS = PreparationSettings()


class Format(StrEnum):
    karpathy = "karpathy"
    coco = "coco"
    flickr = "flickr"


class Scale(StrEnum):
    tiny = "tiny"
    small = "small"
    paper = "paper"


def captions(
    out: Annotated[Path, typer.Option(help="Folder of the data set; new or empty.", show_default=False)],
    captions: Annotated[
        Path | None,
        typer.Option(
            help="File of captions: Karpathy's dataset_*.json, COCO's annotations or Flickr's token.txt.",
            show_default=False,
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            help="Beside --captions, the list of images to train on; else their captions.", show_default=False
        ),
    ] = None,
    val: Annotated[Path | None, typer.Option(help="The same for validation.", show_default=False)] = None,
    test: Annotated[Path | None, typer.Option(help="The same for the test.", show_default=False)] = None,
    format: Annotated[
        Format | None, typer.Option(help="Format of the captions, if it is not recognised.", show_default=False)
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Features of the images: .npy, .npz, .safetensors, .h5, or a folder of NAME.npy.", show_default=False
        ),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(
            help="Text file with the image names of the rows of a .npy file. [default: *_names.txt beside it]",
            show_default=False,
        ),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of the images themselves, to show them.", show_default=False)
    ] = None,
    generate: Annotated[bool, typer.Option("--generate", help="Generate scenes instead of reading captions.")] = False,
    scale: Annotated[Scale | None, typer.Option(help="How many scenes. [default: tiny]", show_default=False)] = None,
    train_images: Annotated[int | None, typer.Option(min=1, help="Scenes to train on.", show_default=False)] = None,
    val_images: Annotated[int | None, typer.Option(min=0, help="Scenes for validation.", show_default=False)] = None,
    test_images: Annotated[int | None, typer.Option(min=0, help="Scenes for the test.", show_default=False)] = None,
    more_than: Annotated[
        int, typer.Option(min=0, help="Words that occur more often in captions to train on are learnt.")
    ] = _SETTINGS.more_than,
    longest: Annotated[
        int, typer.Option(min=1, help="Words after which a caption is cut to be learnt.")
    ] = _SETTINGS.longest,
    hold_out: Annotated[
        int, typer.Option(min=0, help="So many training images become val, and val becomes test.")
    ] = _SETTINGS.hold_out,
    seed: Annotated[int, typer.Option(help="Seed of scenes, and of the images held out.")] = 0,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out and count bad entries, and images without features.")
    ] = False,
) -> None:
    """Prepare a data set for captioning, from public files and features, or of generated scenes."""
    console = Console(highlight=False, soft_wrap=True)
    settings = PreparationSettings(more_than, longest, hold_out, seed)
    given = {"captions": captions, "train": train, "val": val, "test": test, "format": format}
    given |= {"features": features, "names": names, "images": images}
    counts = {"train_images": train_images, "val_images": val_images, "test_images": test_images}
    _refuse(given if generate else {"scale": scale, **counts}, generate)
    check_new(out)  # now, not when all is read
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:

        def warn(text: str) -> None:
            progress.console.print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)

        def follow(done: int, total: int) -> None:
            progress.update(copying, completed=done, total=total)

        if generate:
            wanted = zip(SPLITS, counts.values(), strict=True)
            scenes = SCALES[scale or Scale.tiny] | {split: count for split, count in wanted if count is not None}
            copying = progress.add_task("scenes", total=None)
            facts = manifest(seed=seed, **scenes)
            data = make_scenes(out, scenes, seed=seed, settings=settings, facts=facts, on_progress=follow)
        else:
            if features is None:
                raise InputError("no features: name a file or folder with --features, or generate scenes by --generate")
            reading = progress.add_task("captions", total=None)
            source = open_features(features, names)
            lists = {split: path for split, path in zip(SPLITS, (train, val, test), strict=True) if path is not None}
            read = read_captions(captions, lists, None if format is None else format.value, skip_bad)
            progress.update(reading, completed=1, total=1)
            copying = progress.add_task("features", total=None)
            data = prepare(
                read,
                source,
                out,
                settings,
                photos=images,
                skip_bad=skip_bad,
                facts=manifest(network=network_of(features)),
                on_progress=follow,
                warn=warn,
            )
    for line in summary(data):
        console.print(line, markup=False)


def _refuse(given: dict[str, object], generate: bool) -> None:
    """Flags of the one way of making data beside those of the other are a mistake."""
    flags = ["--" + name.replace("_", "-") for name, value in given.items() if value is not None]
    if flags:
        raise InputError(f"{flags[0]} does not go {'with' if generate else 'without'} --generate: leave it out")


def check_captions(folder: Path, console: Console) -> None:
    """Verify a prepared data set, and say what is in it."""
    data = CaptionData.open(folder)
    data.verify()
    for line in summary(data):
        console.print(line, markup=False)
    console.print("  complete, and as it was written")


def summary(data: CaptionData) -> list[str]:
    """What a data set is, in a few lines."""
    vocabulary, arrays = data.vocabulary, data.captions
    lines = [
        f"{data.folder}: {vocabulary.size:,} tokens, {len(vocabulary.words) - vocabulary.size:,} rare words, "
        f"features {data.width} wide ({data.vectors.dtype})"
    ]
    for name in data.splits:
        split = data.split(name)
        tokens = arrays.captions[arrays.images[split.end]] - arrays.captions[arrays.images[split.start]]
        mean = tokens / split.caption_count
        lines.append(
            f"  {name}: {len(split):,} images, {split.caption_count:,} captions of {mean:.1f} words on average"
        )
    return lines
