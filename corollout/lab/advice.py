"""The measurements in words: what the policy is like, and which estimator is worth its cost."""

from collections.abc import Sequence
from typing import NamedTuple

from corollout.lab.policy_facts import SEQUENCES, PolicyFacts
from corollout.lab.summary import KINDS, Interval, Kind, Row

_PER: dict[Kind, str] = {"tokens": "per token", "calls": "per reward call", "seconds": "per second"}
_NAMED = 3  # estimators that are listed by name


class _Win(NamedTuple):
    """The best estimator for a kind of cost: against the base, if it is another, and which ones may be as good."""

    kind: Kind
    relative: Interval | None
    equals: list[str]


def advise(facts: PolicyFacts, rows: Sequence[Row], base: str) -> str:
    """The policy's state, the best estimator for each kind of cost among those without bias, and the biased ones."""
    sentences = [f"{state(facts)}: {_choice(rows, base)}."]
    if biased := _biased(rows):
        sentences.append(biased)
    if training := _in_training(rows):
        sentences.append(training)
    if any(row.bias is None for row in rows):
        sentences.append("The reference is too noisy to tell a bias: it needs more estimates.")
    return " ".join(sentences)


def state(facts: PolicyFacts) -> str:
    """What the policy is like, in half a sentence."""
    return (
        f"{facts.nats_per_token:.2g} nats a token, {percent_text(facts.top_mass)} of the probability in {SEQUENCES} "
        f"sequences, {percent_text(facts.equal_rewards)} of contexts with equal rewards"
    )


def _choice(rows: Sequence[Row], base: str) -> str:
    wins: dict[str, list[_Win]] = {}
    for kind in KINDS:
        best, equals = _best(rows, kind)
        if best is None:
            return "estimates do not differ, so there is nothing to choose by"
        win = _Win(kind, None if best.estimator == base else best.relative[kind], [row.estimator for row in equals])
        wins.setdefault(best.estimator, []).append(win)
    return "; ".join(f"{name} wins {_won(own, base)}" for name, own in wins.items())


def _in_training(rows: Sequence[Row]) -> str:
    """Who is best if contexts are drawn anew for each estimate, as training does."""
    wins: dict[str, list[str]] = {}
    for kind in KINDS:
        known = [(ratio.value, row.estimator, ratio) for row in rows if row.sound and (ratio := row.training.get(kind))]
        if not known:
            return ""
        _, best, ratio = min(known, key=lambda one: one[:2])
        wins.setdefault(best, []).append(f"{_PER[kind]} ({short_number(ratio.value)}, {range_text(ratio)})")
    words = "; ".join(f"{name} {_listed(parts)}" for name, parts in wins.items())
    return f"With contexts drawn anew, as in training, the least variance × cost has {words}."


def _best(rows: Sequence[Row], kind: Kind) -> tuple[Row | None, list[Row]]:
    """The estimator without bias that has the least variance × cost, and those which may be as good."""
    known = [row for row in rows if row.sound and row.relative[kind] is not None]
    if not any(row.variance.value > 0 for row in known):
        return None, []
    best = min(known, key=lambda row: row.products[kind].value)
    return best, [row for row in known if row is not best and row.products[kind].meets(best.products[kind])]


def _won(wins: Sequence[_Win], base: str) -> str:
    """For what an estimator is the best. What is not told apart from it is said once, if it is the same everywhere."""
    equals = wins[0].equals
    if any(win.equals != equals for win in wins):
        return _listed([_phrase(win, base, _not_told_apart(win.equals)) for win in wins])
    but = "".join(f", but is {words}" for words in _not_told_apart(equals))
    return _listed([_phrase(win, base, []) for win in wins]) + but


def _phrase(win: _Win, base: str, more: list[str]) -> str:
    """Such as: per token (variance × tokens 0.41 of rloo-8's, 95 % interval 0.33–0.52)."""
    words = []
    if win.relative is not None:
        value, ends = short_number(win.relative.value), range_text(win.relative)
        words = [f"{value}, {ends}"]
        if win.kind == KINDS[0]:  # the first says what the numbers are
            words = [f"variance × {win.kind} {value} of {base}'s, 95\u00a0% interval {ends}"]
    inside = "; ".join([*words, *more])
    return f"{_PER[win.kind]} ({inside})" if inside else _PER[win.kind]


def _not_told_apart(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    some = names if len(names) <= _NAMED + 1 else [*names[:_NAMED], f"{len(names) - _NAMED} others"]
    return [f"not told apart from {_listed(some)}"]


def _biased(rows: Sequence[Row]) -> str:
    """Which estimators were left out, and why."""
    seen = [
        f"{row.estimator} (squared bias {percent_text(row.bias.value)} of the squared gradient, "
        f"{percent_text(row.bias.low)} to {percent_text(row.bias.high)})"
        for row in rows
        if row.biased and row.bias is not None
    ]
    known = [f"{row.estimator} (by its definition)" for row in rows if row.biased_by_design and not row.biased]
    return f"Left out as biased: {_listed([*seen, *known])}." if seen or known else ""


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def percent_text(share: float) -> str:
    return f"{short_number(100 * share)}\u00a0%"


def range_text(interval: Interval) -> str:
    return f"{short_number(interval.low)}–{short_number(interval.high)}"


def short_number(value: float) -> str:
    """In two digits, or all those before the point."""
    text = f"{value:.2g}" if abs(value) < 9.95 else f"{value:,.0f}"
    return text.replace("-", "−")
