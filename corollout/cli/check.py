"""``corollout data check``: check data of any task."""

from corollout.cli.settings import CheckSettings
from corollout.cli.terminal import Terminal
from corollout.config import import_object
from corollout.errors import InputError
from corollout.tasks.spec import find_task, task_names


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
