"""Rows of the estimator lab, made up."""

from dataclasses import replace
from typing import Any

from corollout.lab import KINDS, Interval, Kind, Lab, PolicyFacts, Row

FACTS = PolicyFacts(
    contexts=32, nats_per_token=0.312, mean_length=12.0, mean_reward=0.4, top_mass=0.6, equal_rewards=0.41
)
NOTHING = Interval(0.0, 0.0, 0.0)


def about(value: float) -> Interval:
    return Interval(value, 0.8 * value, 1.2 * value)


def row(name: str, tokens: float, calls: float, seconds: float, **changes: Any) -> Row:
    """An estimator by its variance × cost, the base's being 1."""
    products: dict[Kind, Interval] = dict(zip(KINDS, map(about, (tokens, calls, seconds)), strict=True))
    own = Row(
        estimator=name,
        estimates=32,
        variance=about(tokens),
        bias=Interval(0.0, -0.01, 0.01),
        biased=False,
        biased_by_design=False,
        cosine=about(0.5),
        costs=dict.fromkeys(KINDS, Interval(1.0, 1.0, 1.0)),
        products=products,
        relative={kind: products[kind] for kind in KINDS},
        training={},
        mean_reward=0.4,
        rollouts_per_step=0.0,
    )
    return replace(own, **changes)


BASE = row("rloo-8", 1.0, 1.0, 1.0)


def lab(*rows: Row) -> Lab:
    settings = {"estimates": 32, "reference": "set-16", "reference_estimates": 64}
    return Lab(settings, BASE.estimator, FACTS, about(2.0), 0.001, None, [BASE, *rows], "Take any.", [])
