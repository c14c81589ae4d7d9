"""What the terminal shows of events."""

import io
import re
from typing import Any

import pytest

from corollout.cli import progress
from corollout.cli.progress import show_events
from corollout.cli.terminal import Terminal
from corollout.events import Event, Progress, warning
from corollout.tasks.task import Metric

SHARE = Metric("share", "Share", " %", "examples", "the share", True)


def shown(events: list[Event], terminal: bool = True, **options: Any) -> str:
    file = io.StringIO()
    console = Terminal(file=file, force_terminal=terminal, width=120, color_system=None, legacy_windows=False)
    with show_events(console, **options) as on_event:
        for event in events:
            on_event(event)
    return file.getvalue()


UPDATE = {"update": 30, "epoch": 1, "tokens": 900, "seconds": 10.0, "reward": 0.25, "rollouts_per_step": 2.5}
EVALUATION = {"update": 30, "epochs": 2, "tokens": 900, "seconds": 10.0, "share": 0.5}


@pytest.mark.parametrize(
    ("unit", "total", "percent"), [("updates", 40, 75), ("epochs", 4, 50), ("tokens", 1000, 90), ("seconds", 5, 100)]
)
def test_a_run_has_a_bar_with_its_rate_reward_rollouts_and_metric(
    unit: str, total: int, percent: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", -1.0)
    events = [Event("update", UPDATE), Event("evaluation", EVALUATION), Event("probe", {"update": 30})]
    text = shown(events, terminal=False, title="ARSM", unit=unit, total=total, metric=SHARE)
    note = "3.0 updates/s, reward 0.25, 2.5 rollouts a step, Share 50.0 %"
    assert percent == 100 or (note in text and f"ARSM: {percent} %" in text)
    assert note in shown(events, title="ARSM", unit=unit, total=total, metric=SHARE)


def test_parts_have_bars_and_warnings_and_choices_are_lines():
    events: list[Event] = []
    reading = Progress(events.append, "reading", 10)
    reading.advance(5)
    reading.advance(5, note="all [read]")
    Progress(events.append, "unknown").advance(3)
    events += [warning("look [out]"), Event("choice", {"update": 4, "reason": "rloo-8 is best"})]
    text = shown(events)
    assert "warning: look [out]" in text
    assert "after 4 updates: rloo-8 is best" in text
    first, second = text.splitlines()[-3:-1]
    assert re.search(r"reading .* 100 % .* all \[read\]", first)
    assert second.startswith("unknown")


def test_a_sweep_counts_parts_by_their_weights_and_finished_ones_become_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", -1.0)
    events: list[Event] = []
    Progress(events.append, "old run", 7).report(7)  # done before
    Progress(events.append, "data", 4).report(4, weight=0.5)
    run = Progress(events.append, "run", 100)
    run.report(50, loss=0.5)
    run.report(100, share=0.25)
    run.report(100)
    events.append(Event("update", {**UPDATE, "job": "run"}))
    events.append(Event("choice", {"update": 4, "reason": "best", "job": "run"}))
    text = shown(events, terminal=False, title="all", total=2.5, metric=SHARE)
    assert "run, after 4 updates: best" in text
    assert "old run" not in text
    assert "all: 80 %" in text
    assert "run: 50 %" in text
    assert text.count("run: 0.50 nats a token, Share 25.0 %\n") == 1


def test_lines_are_rare_where_nobody_watches():
    events: list[Event] = []
    reading = Progress(events.append, "reading", 100)
    for _ in range(100):
        reading.advance()
    assert shown(events, terminal=False) == ""
