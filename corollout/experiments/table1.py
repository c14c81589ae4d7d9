"""The paper's first table: Karel."""

from collections.abc import Callable
from pathlib import Path

from corollout.errors import InputError
from corollout.sweeps.sweep import Experiment
from corollout.sweeps.variance_analysis import VARIANCE
from corollout.tasks.karel.dataset import SPLITS
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.settings import DataSettings


def make_data(
    folder: Path, settings: DataSettings, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Generate the splits into a folder, unless they are there. A folder that is not complete is made again.

    ``on_progress`` is told how many tasks of how many have been made, or written: each of them counts twice.
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
    done, total = 0, 2 * sum(getattr(settings, split) for split in SPLITS)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        on_progress(done, total)

    data = generate(
        {split: getattr(settings, split) for split in SPLITS},
        seed=settings.data_seed,
        shortest=settings.shortest,
        longest=settings.longest,
        largest=settings.largest,
        on_progress=advance,
    )
    for split, tasks in data.items():
        tasks.write(files[split], on_progress=advance)


TABLE1 = Experiment(
    "table1",
    "karel",
    "Karel",
    {
        "REINFORCE": "reinforce",
        "SC": "sc",
        "MC-0": "mc-0",
        "MC-2": "mc-2",
        "RL_beam": "rl-beam-64",
        "RLOO": "rloo-8",
        "ARSM": "arsm",
    },
    DataSettings,
    lambda settings, place: place,
    make_data,
    (VARIANCE,),
)
