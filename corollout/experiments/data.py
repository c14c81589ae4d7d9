"""The tasks of an experiment, made from its settings."""

from collections.abc import Callable
from pathlib import Path

from corollout.errors import InputError
from corollout.tasks.karel.dataset import SPLITS
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.settings import DataSettings


def make_data(folder: Path, settings: DataSettings, on_progress: Callable[[int], None] = lambda done: None) -> None:
    """Generate the splits into a folder, unless they are there. A folder that is not complete is made again.

    ``on_progress`` is told how many tasks have been made, or written, since it was told last: each of them twice.
    """
    files = {split: folder / f"{split}.jsonl" for split in SPLITS}
    if all(path.exists() for path in files.values()):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in files.values():  # those that remain may be of other settings
            path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the data in {folder}: {error.strerror or error}") from error
    data = generate(
        {split: getattr(settings, split) for split in SPLITS},
        seed=settings.data_seed,
        shortest=settings.shortest,
        longest=settings.longest,
        largest=settings.largest,
        on_progress=on_progress,
    )
    for split, tasks in data.items():
        tasks.write(files[split], on_progress=on_progress)
