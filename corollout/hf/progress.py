"""How a training of a language model goes on, as events."""

import time
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from corollout.events import Callback, Event, note

# What a line says of an update, if it is known: the name of the metric, and how it is called there.
_SHOWN = {
    "reward_std": "±",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "cut",
    "entropy": "entropy",
    "kl": "kl",
    "frac_reward_zero_std": "equal",
    "grad_norm": "gradient",
}


class ReportProgress(TrainerCallback):
    """Passes steps and logged metrics to a callback: events for a bar, and lines."""

    def __init__(self, on_event: Callback, name: str):
        self._on_event, self._name = on_event, name
        self._first, self._began = 0, time.monotonic()
        self._note = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._first, self._began = state.global_step, time.monotonic()
        if state.global_step:
            self._on_event(note(f"continued after step {state.global_step} of {state.max_steps}"))
        self._report(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._report(state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        if logs is None:
            return
        prefix = "eval_" if "eval_reward" in logs else ""
        if f"{prefix}reward" not in logs:
            return
        what = ", evaluation" if prefix else ""
        self._on_event(note(f"step {state.global_step}/{state.max_steps}{what}: {metrics_text(logs, prefix)}"))
        if not prefix:
            self._note = f"reward {logs['reward']:.3g}"

    def _report(self, state: Any) -> None:
        done = state.global_step - self._first
        pace = f"{(time.monotonic() - self._began) / done:.2g} s a step" if done else ""
        record = {"part": self._name, "done": state.global_step, "total": state.max_steps}
        self._on_event(Event("progress", {**record, "note": ", ".join(filter(None, [self._note, pace]))}))


def metrics_text(logs: Mapping[str, Any], prefix: str = "") -> str:
    """The metrics that matter most, in a line."""
    parts = [f"reward {logs[f'{prefix}reward']:.4g}"] if f"{prefix}reward" in logs else []
    several = [name for name in logs if name.startswith(f"{prefix}rewards/") and name.endswith("/mean")]
    if len(several) > 1:
        parts += [f"{name.removeprefix(prefix).split('/')[1]} {logs[name]:.3g}" for name in several]
    parts += [f"{text} {logs[prefix + name]:.3g}" for name, text in _SHOWN.items() if prefix + name in logs]
    return ", ".join(parts).replace(", ±", " ±")
