"""``corollout data features``: make features of image files with a pretrained network."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from corollout.cli.progress import progress_bars
from corollout.errors import Interrupted
from corollout.tasks.captioning.feature_files import write_features
from corollout.tasks.captioning.images import find_images
from corollout.tasks.captioning.networks import DEFAULT, NAMES, load_network


def features(
    images: Annotated[Path, typer.Option(help="Folder with images (jpg, jpeg, png, webp, bmp).")],
    out: Annotated[Path, typer.Option(help="File for the features, X.npy; names of the images go to X_names.txt.")],
    network: Annotated[
        str, typer.Option(help=f"{', '.join(NAMES)}, or the path of a folder with a Hugging Face model.")
    ] = DEFAULT,
    batch: Annotated[int, typer.Option(min=1, help="Images that go through the network together.")] = 32,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ….")] = "cpu",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out files that are no sound images instead of stopping at one.")
    ] = False,
) -> None:
    """Make features of images with a pretrained network. Killed, the same command goes on where it was."""
    paths = find_images(images)
    loaded = load_network(network, device)
    began = time.monotonic()
    before = after = None
    with progress_bars(Console(stderr=True)) as bars:
        task = bars.add_task("images", total=len(paths), note="")

        def on_progress(done: int) -> None:
            nonlocal before, after
            if before is None:
                # Rate and time left are reckoned without what was done before.
                before = done
                bars.reset(task, completed=done)
            after = done
            rate = (done - before) / (time.monotonic() - began)
            bars.update(task, completed=done, note=f"{done:,} of {len(paths):,}, {rate:.1f} images/s")

        try:
            written = write_features(paths, loaded, out, batch, skip_bad, on_progress)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped after {after or 0:,} of {len(paths):,} images; the same command goes on from there"
            ) from None
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{written.path}: {written.rows:,} images, {loaded.width:,} numbers each; their names: {written.names}",
        markup=False,
    )
    if written.bad:
        console.print(f"left out {len(written.bad):,}, the first: {next(iter(written.bad.values()))}", markup=False)
