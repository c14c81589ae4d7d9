"""``corollout demo``: Karel from nothing to a report, in a few minutes."""

from pathlib import Path

from corollout.cli.experiments import print_report
from corollout.cli.progress import show_events
from corollout.cli.terminal import Terminal
from corollout.experiments.demo import INTRODUCTION, demo_sweep, run_demo
from corollout.experiments.settings import DemoSettings


def demo(settings: DemoSettings) -> None:
    """Generate Karel tasks, pre-train a small model, fine-tune it by four estimators at equal cost, and compare."""
    Terminal().print(INTRODUCTION)
    sweep = demo_sweep(settings, Path())
    with show_events(title="demo", total=sweep.weight, metric=sweep.spec.metric) as on_event:
        report, page = run_demo(settings, on_event)
    print_report(report, page)
