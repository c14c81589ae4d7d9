"""``corollout data check``: check data of any task."""

from dataclasses import dataclass
from pathlib import Path

from corollout.cli.terminal import Terminal
from corollout.config import argument, import_object, switch
from corollout.errors import InputError
from corollout.tasks.task import find_task, task_names


@dataclass(frozen=True)
class CheckSettings:
    """The settings of ``data check``."""

    paths: tuple[Path, ...] = argument("Files of Karel tasks, folders of captions, or the data of another known task.")
    skip_bad: bool = switch("Count bad lines instead of stopping at the first one.")


def check(settings: CheckSettings) -> None:
    """Read data and verify it: Karel programs are run on their worlds, prepared captions are compared with digests."""
    console = Terminal(soft_wrap=True)
    checks = [import_object(path) for name in task_names() if (path := find_task(name).check)]
    failures = 0
    for path in settings.paths:
        # The first task that recognises the data checks it.
        result = next(filter(None, (check(path, settings.skip_bad) for check in checks)), None)
        if result is None:
            raise InputError(f"{path} is not data of any known task: {', '.join(task_names())}")
        console.print("\n".join(result.lines))
        failures += result.failures
    if failures:
        raise InputError(f"{failures:,} examples are wrong")
