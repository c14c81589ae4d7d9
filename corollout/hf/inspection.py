"""Where did it go wrong, from nothing but names: ``corollout lm inspect`` from Python."""

from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.files import require_new_file
from corollout.hf.data_files import read_prompts
from corollout.hf.generate import load_policy
from corollout.hf.inspect import inspect_completions
from corollout.hf.reward_names import import_rewards
from corollout.hf.samples_file import NAME, PAGE
from corollout.hf.settings import SETTINGS, InspectSettings, kept_settings
from corollout.reports.completions import is_completions_page, write_completions_page
from corollout.reports.sample_records import read_samples_file
from corollout.training.samples import Samples

_FRESH = ("model", "dataset", "reward")  # what a fresh estimate needs


@dataclass(frozen=True)
class Inspected:
    """The records of a page, and the one of them that is printed."""

    page: Path
    records: list[Samples]
    shown: Samples


def inspect_language_model(settings: InspectSettings) -> Inspected:
    """Write the page of what a training has kept, or of a fresh estimate."""
    given = [name for name in _FRESH if getattr(settings, name)]
    if settings.folder is not None:
        if given:
            names = ", ".join(f"--{name}" for name in given)
            raise InputError(f"FOLDER shows what its training has kept: leave out {names}, or FOLDER")
        return _of_training(settings, settings.folder)
    if len(given) < len(_FRESH):
        missing = " and ".join(f"--{name}" for name in _FRESH if name not in given)
        raise InputError(f"there is nothing to inspect: name the folder of a training, or give {missing} as well")
    if settings.update is not None:
        raise InputError("--update is for the folder of a training: leave it out")
    return _of_fresh_estimate(settings)


def _of_training(settings: InspectSettings, folder: Path) -> Inspected:
    if not (folder / NAME).is_file():
        wanted = "train with --samples-steps, or give --model, --dataset and --reward for a fresh estimate"
        raise InputError(f"{folder} has no {NAME}: {wanted}")
    page = settings.html or folder / PAGE
    if settings.html is not None:
        require_new_file(settings.html, "--html")
    elif page.exists() and not is_completions_page(page):
        raise InputError(f"{page} is not such a page, and nothing is overwritten: choose another file with --html")
    records = read_samples_file(folder / NAME)
    if not records:
        raise InputError(f"{folder / NAME} is empty: no update has kept any completions yet")
    by_update = {record.update: record for record in records}
    update = records[-1].update if settings.update is None else settings.update
    if update not in by_update:
        kept = ", ".join(map(str, by_update))
        raise InputError(f"update {update} has kept no completions: those that have are {kept}")
    facts: dict[str, Any] = {"training": str(folder)}
    if (folder / SETTINGS).is_file():
        kept = kept_settings(folder)
        facts |= {name: _fact(kept[name]) for name in (*_FRESH, "temperature", "learning_rate") if name in kept}
    write_completions_page(page, records, facts, new=settings.html is not None)
    return Inspected(page, records, by_update[update])


def _of_fresh_estimate(settings: InspectSettings) -> Inspected:
    s = settings
    page = s.html or _unused(Path(PAGE))
    require_new_file(page, "--html")
    rows, functions = read_prompts(s), import_rewards(s.reward)
    assert s.model is not None
    samples = inspect_completions(
        load_policy(s.model, s.dtype, s.use_cpu),
        [rows[number] for number in range(min(s.examples, len(rows)))],
        functions,
        s.estimator,
        max_completion_length=s.max_completion_length,
        temperature=s.temperature,
        stop_strings=s.stop_strings or None,
        reward_weights=s.reward_weights or None,
        seed=s.seed,
        batch_size=s.batch_size,
    )
    names = (*_FRESH, "estimator", "temperature", "seed")
    write_completions_page(page, [samples], {name: _fact(getattr(s, name)) for name in names}, new=True)
    return Inspected(page, [samples], samples)


def _fact(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _unused(path: Path) -> Path:
    """The path, or if there is such a file NAME-2, NAME-3, …."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return next(each for each in chain([path], numbered) if not each.exists())
