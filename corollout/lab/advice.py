"""The measurements in words: the state of the policy, and which estimator is worth its cost."""

from collections.abc import Sequence

from corollout.lab.measurement import SEQUENCES, PolicyFacts
from corollout.lab.summary import COSTS, CostName, Interval, Row

_PER: dict[CostName, str] = {"tokens": "per token", "calls": "per reward call", "seconds": "per second"}
_NAMED = 3  # estimators that are listed by name

# A cost for which an estimator is the best: per what, its ratio to the base ("" for the base itself), and the
# estimators that may be as good.
_Win = tuple[str, str, list[str]]


def advise(facts: PolicyFacts, rows: Sequence[Row], base: str) -> str:
    """The policy's state, the best unbiased estimator for each cost, and the biased ones."""
    state = (
        f"{facts.nats_per_token:.2g} nats per token, {percent_text(facts.top_mass)} of the probability in {SEQUENCES} "
        f"sequences, {percent_text(facts.equal_rewards)} of contexts with equal rewards"
    )
    sentences = [f"{state}: {_choice(rows, base)}.", _biased(rows), _in_training(rows)]
    if any(row.bias is None for row in rows):
        sentences.append("The reference is too noisy to detect a bias: it needs more estimates.")
    return " ".join(filter(None, sentences))


def _choice(rows: Sequence[Row], base: str) -> str:
    """Such as: set-8 wins per token (variance × tokens 0.41 of rloo-8's, 95 % interval 0.33–0.52)."""
    wins: dict[str, list[_Win]] = {}
    for cost in COSTS:
        candidates = [row for row in rows if row.is_unbiased and row.ratio[cost] is not None]
        if not any(row.variance.value > 0 for row in candidates):
            return "all estimates are equal, so there is nothing to choose by"
        lowest = min((row.variance_cost[cost] for row in candidates), key=lambda product: product.value)
        best = next(row for row in candidates if row.variance_cost[cost] is lowest)
        equals = [row.estimator for row in candidates if row is not best and row.variance_cost[cost].overlaps(lowest)]
        text = ""
        if best.estimator != base and (ratio := best.ratio[cost]) is not None:
            value, ends = short_number(ratio.value), range_text(ratio)
            text = f"{value}, {ends}"
            if cost == COSTS[0]:  # the first one says what the numbers are
                text = f"variance × tokens {value} of {base}'s, 95\u00a0% interval {ends}"
        wins.setdefault(best.estimator, []).append((_PER[cost], text, equals))
    return "; ".join(f"{name} wins {_wins_text(each)}" for name, each in wins.items())


def _wins_text(wins: Sequence[_Win]) -> str:
    """The costs for which an estimator is the best; its equals are named once if they are the same for all costs."""
    same = wins[0][2] if all(equals == wins[0][2] for _, _, equals in wins) else None
    parts = []
    for per, ratio, equals in wins:
        inside = "; ".join(filter(None, [ratio, _equals_text(equals) if same is None else ""]))
        parts.append(f"{per} ({inside})" if inside else per)
    return _listed(parts) + (f", but is {_equals_text(same)}" if same else "")


def _equals_text(names: Sequence[str]) -> str:
    shown = names if len(names) <= _NAMED + 1 else [*names[:_NAMED], f"{len(names) - _NAMED} others"]
    return f"not distinguishable from {_listed(shown)}" if names else ""


def _in_training(rows: Sequence[Row]) -> str:
    """Which estimator is best if every estimate has new contexts, as in training."""
    wins: dict[str, list[str]] = {}
    for cost in COSTS:
        known = [(row.estimator, ratio) for row in rows if row.is_unbiased and (ratio := row.training_ratio.get(cost))]
        if not known:
            return ""
        best, ratio = min(known, key=lambda pair: (pair[1].value, pair[0]))
        wins.setdefault(best, []).append(f"{_PER[cost]} ({short_number(ratio.value)}, {range_text(ratio)})")
    winners = "; ".join(f"{name} {_listed(parts)}" for name, parts in wins.items())
    return f"With new contexts at each update, as in training, variance × cost is lowest with {winners}."


def _biased(rows: Sequence[Row]) -> str:
    """Which estimators are excluded, and why."""
    measured = [
        f"{row.estimator} (squared bias {percent_text(row.bias.value)} of the squared gradient, "
        f"{percent_text(row.bias.low)} to {percent_text(row.bias.high)})"
        for row in rows
        if row.biased and row.bias is not None
    ]
    known = [f"{row.estimator} (by design)" for row in rows if row.biased_by_design and not row.biased]
    return f"Excluded as biased: {_listed([*measured, *known])}." if measured or known else ""


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def percent_text(share: float) -> str:
    return f"{short_number(100 * share)}\u00a0%"


def range_text(interval: Interval) -> str:
    return f"{short_number(interval.low)}–{short_number(interval.high)}"


def short_number(value: float) -> str:
    """In two significant digits, or all those before the decimal point."""
    text = f"{value:.2g}" if abs(value) < 9.95 else f"{value:,.0f}"
    return text.replace("-", "−")
