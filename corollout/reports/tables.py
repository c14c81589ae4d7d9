"""Numbers as text."""

from typing import Any

from corollout.tasks.task import Metric

NOTHING = "–"


def signed(value: float, digits: int) -> str:
    """A difference, with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def score_text(value: float | None, metric: Metric, extra: int = 1) -> str:
    """A value of a metric as it is shown, with one more decimal than elsewhere, and without its name and unit."""
    return NOTHING if value is None else f"{metric.scale * value:.{metric.digits + extra}f}"


def interval_text(interval: tuple[float, float] | None, metric: Metric) -> str:
    return NOTHING if interval is None else "–".join(score_text(end, metric, 0) for end in interval)


def times(metric: Metric) -> str:
    """For notes on values without a unit: by what they were multiplied."""
    return "" if metric.scale == 1 else f", times {metric.scale:g}"


def percent(value: float, digits: int = 2) -> str:
    """A share in per cent, without the sign."""
    return f"{100 * value:.{digits}f}"


def number(value: float | int | None) -> str:
    """A number in three digits, or as a whole number."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def count_text(count: float | int) -> str:
    """A large count in millions or thousands."""
    if count >= 1e6:
        return f"{count / 1e6:.3g} M" if count < 1e9 else f"{count / 1e6:,.0f} M"
    return f"{count / 1e3:.3g} k" if count >= 1e4 else f"{count:,.0f}"


def reward_text(reward: float) -> str:
    """A reward: without decimals if it is a whole number, else with three."""
    return f"{reward:.0f}" if reward.is_integer() else f"{reward:.3f}"


def setting_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return NOTHING if value is None else str(value)
