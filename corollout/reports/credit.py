"""Sequences on a page, each token coloured by its credit, with rewards and branches."""

from collections.abc import Sequence
from html import escape

from corollout.reports.tables import reward_text

CSS = """
.reward { display: inline-block; min-width: 1.7em; padding: 0 .4em; border-radius: 1em; text-align: center;
          font-weight: 700; font-size: .8rem; line-height: 1.5; background: #fde5d8; color: #97340b; }
.reward.good { background: #cdeede; color: #04543c; } .reward.even { background: #eaeef2; color: #424a53; }
.head { display: flex; flex-wrap: wrap; align-items: baseline; gap: .2rem 1.2rem; margin: 0 0 .8rem; }
.number { color: var(--soft); font-size: .85rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
.strip { display: flex; flex-wrap: wrap; gap: .25rem; }
.strip > span { border-radius: 4px; padding: 0 .35rem; background: var(--tint); overflow-wrap: anywhere; }
.strip.joined { display: block; line-height: 1.9; white-space: pre-wrap; overflow-wrap: anywhere; }
.strip.joined > span { padding: .1rem 0; border-radius: 2px; }
.strip > span.raised { background: rgb(0 114 178 / calc(var(--c) * .5)); box-shadow: inset 0 -2px #0072B2; }
.strip > span.lowered { background: rgb(213 94 0 / calc(var(--c) * .5)); box-shadow: inset 0 -2px #D55E00; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .7rem 0 .8rem; font-size: .85rem;
       color: var(--soft); }
.key .strip { display: inline-flex; } .key .strip > span { color: var(--ink); }
"""
_SAME = 5e-4  # rewards that look equal on a page
_FAINT = 0.01  # of the largest credit: less is not coloured


def token_strip(
    pieces: Sequence[str],
    credit: Sequence[float],
    probability: Sequence[float],
    largest: float,
    separator: str = " ",
    remarks: Sequence[str] = (),
) -> str:
    """Tokens, given as HTML, in the colours of their credit: raised by the estimate, or lowered.

    ``remarks`` on each of them follow its numbers.
    """
    spans = []
    for piece, value, chance, remark in zip(pieces, credit, probability, remarks or [""] * len(pieces), strict=True):
        share = min(1.0, abs(value) / largest) if largest else 0.0
        tone = "" if share < _FAINT else f' class="{"raised" if value > 0 else "lowered"}" style="--c:{share:.2f}"'
        title = f"credit {value:+.3g}, probability {chance:.3f}{escape(remark)}"
        spans.append(f'<span{tone} title="{title}">{piece}</span>')
    return f'<div class="strip{"" if separator else " joined"}">{"".join(spans)}</div>'


def credit_key() -> str:
    """What the colours mean."""
    samples = ("more", "raised", "made more probable by the update"), ("less", "lowered", "made less probable")
    parts = (
        f'<span><span class="strip"><span class="{tone}" style="--c:1">{word}</span></span> {meaning}</span>'
        for word, tone, meaning in samples
    )
    return f'<p class="key">{"".join(parts)}<span>paler: a smaller credit</span></p>'


def reward_pill(reward: float | None, tone: str) -> str:
    """A reward in colour: good, bad or even."""
    return f'<span class="reward {tone}">{escape("skipped" if reward is None else reward_text(reward))}</span>'


def reward_tone(reward: float | None, other: float | None) -> str:
    """Whether a reward is better than another one."""
    if reward is None or other is None or abs(reward - other) < _SAME:
        return "even"
    return "good" if reward > other else "bad"


def small_number(content: str) -> str:
    """A number beside something, given as HTML."""
    return f'<span class="number">{content}</span>'
