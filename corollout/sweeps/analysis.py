"""Studies of methods whose runs are done: one method at a time, and each one is kept when it is done."""

import json
from collections.abc import Callable
from typing import Any

from corollout.errors import InputError
from corollout.sweeps.sweep import Analysis, Sweep
from corollout.training.checkpoints import replace_file


def read_analysis(sweep: Sweep, analysis: Analysis) -> dict[str, dict[str, Any]]:
    """What has been measured so far, by method."""
    path = sweep.out / analysis.file
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}; remove it to have it measured again") from error


def run_analysis(
    sweep: Sweep, analysis: Analysis, on_progress: Callable[[str, float], None] = lambda method, share: None
) -> dict[str, dict[str, Any]]:
    """Metric every method that has not been measured yet; ``on_progress`` is told the method and how much is done."""
    known = read_analysis(sweep, analysis)
    missing = [method for method in analysis.methods(sweep) if method not in known]
    if not missing:
        return known
    measure = analysis.begin(sweep)
    for method in missing:
        known[method] = measure(method, lambda share, method=method: on_progress(method, share))
        replace_file(sweep.out / analysis.file, (json.dumps(known) + "\n").encode())
    return known
