"""A gradient estimate as a page: the main sequence as a trunk, its branches beside it, rewards in colour."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from corollout.inspection.credit import Branch, Inspection, MainSequence, Step
from corollout.reports import html
from corollout.reports.tables import reward_text
from corollout.tasks.show import subject_html, subject_style, tokens_html

_STYLE = """
.tiles { display: flex; flex-wrap: wrap; gap: .8rem 1.6rem; }
.tile { font-size: .85rem; color: var(--soft); }
.tile b { display: block; font-size: 1.35rem; line-height: 1.3; color: var(--ink); font-variant-numeric: tabular-nums; }
.reward { display: inline-block; min-width: 1.7em; padding: 0 .4em; border-radius: 1em; text-align: center;
          font-weight: 700; font-size: .8rem; line-height: 1.5; background: #fde5d8; color: #97340b; }
.reward.good { background: #cdeede; color: #04543c; } .reward.even { background: #eaeef2; color: #424a53; }
.head { display: flex; flex-wrap: wrap; align-items: baseline; gap: .2rem 1.2rem; margin: 0 0 .8rem; }
.number { color: var(--soft); font-size: .85rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
ol.trunk { list-style: none; margin: 0; padding: 0 0 0 .55rem; }
ol.trunk > li { position: relative; border-left: 2px solid #8c959f; padding: .12rem 0 .12rem 1.1rem; }
ol.trunk > li:first-child { border-image: linear-gradient(transparent .9rem, #8c959f .9rem) 1; }
ol.trunk > li:last-child { border-left-color: transparent; }
ol.trunk > li:last-child:before { content: ""; position: absolute; left: -2px; top: 0; height: .9rem;
                                  border-left: 2px solid #8c959f; }
ol.trunk > li > .node:before { content: ""; position: absolute; left: -7px; top: .62rem; width: 12px; height: 12px;
                               border-radius: 50%; background: #fff; border: 2px solid #8c959f; }
ol.trunk > li.moved > .node:before { background: #0072B2; border-color: #0072B2; }
.node { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 .9rem; padding: .1rem 0; }
.node > code { min-width: 9.5rem; font-size: .95rem; }
.node .up, .node .down { font-size: .85rem; white-space: nowrap; } .up { color: #116329; } .down { color: #97340b; }
.meter { display: inline-block; width: 5rem; height: .55rem; border-radius: 3px; background: #eaeef2; overflow: hidden;
         vertical-align: baseline; margin-right: .4rem; }
.meter i { display: block; height: 100%; background: #0072B2; }
ul.branches { list-style: none; margin: .1rem 0 .5rem; padding: 0; }
ul.branches li { position: relative; display: grid;
                 grid-template-columns: var(--reward, 2.2rem) minmax(0, 36rem) 9.5rem;
                 align-items: start; gap: 0 .8rem; padding: .12rem 0 .12rem 1.5rem; }
ul.branches li:before { content: ""; position: absolute; left: -1.1rem; top: 0; width: 2.1rem; height: .85rem;
                        border-bottom: 2px solid #d0d7de; }
ul.branches .meter { width: 3rem; height: .4rem; } ul.branches .meter i { background: #8c959f; }
ul.branches .number { font-size: .8rem; line-height: 1.5rem; }
ul.branches .reward { justify-self: start; margin-top: .1rem; }
.taken { border: 1px solid #d0d7de; border-radius: 4px; padding: 0 .3rem; background: var(--tint); }
.kind { color: var(--soft); font-size: .78rem; }
.before { color: #8c959f; } p.main { font-size: 1.15rem; margin: 0 0 .8rem; }
details summary { cursor: pointer; color: var(--soft); font-size: .85rem; padding-left: 1.5rem; }
ol.samples { list-style: none; margin: 0; padding: 0; }
ol.samples > li { border-top: 1px solid var(--line); padding: .7rem 0; }
ol.samples .head { margin-bottom: .3rem; }
.strip { display: flex; flex-wrap: wrap; gap: .25rem; }
.strip span { border-radius: 4px; padding: 0 .35rem; background: var(--tint); }
@media (max-width: 45rem) {
  body { padding: 1.5rem 1rem 3rem; }
  .node > code { min-width: 0; } .node { gap: 0 .7rem; }
  ol.trunk > li { padding-left: .9rem; }
  ul.branches li { grid-template-columns: var(--reward, 2.2rem) 1fr; padding-left: 1.1rem; }
  ul.branches li:before { left: -.9rem; width: 1.7rem; }
  ul.branches li > .number { grid-column: 2; }
  details summary { padding-left: 1.1rem; }
}
"""
_AT_ONCE = 6  # branches of a step that are shown unasked
_READING_TREE = (
    "Down the trunk go the tokens of the main {written}, each with its probability p and the norm ‖g‖ of the gradient "
    "for the logits it was drawn from; a hollow circle is a gradient of exactly zero. ↑ and ↓ name the tokens whose "
    "logits it raises and lowers most. A branch leaves the {written} with the token in the frame and is completed by "
    "itself; in front stands its reward, {colours}, which enters the gradient with coefficients, of norm ‖C‖, that "
    "were known before it was rolled out."
)
_READING_SAMPLES = (
    "Whole {written}s are compared with each other: the gradient for the logits of each token is weight × "
    "advantage × (e − p), where e stands for the token that was drawn and p for the probabilities of all of them. The "
    "paler a token, the less probable it was."
)


def inspection_page(found: Inspection, facts: Mapping[str, Any]) -> str:
    """The page of an estimate."""
    subject = found.subject
    written = subject.written
    colours = f"green above the main {written}'s and red below it" if subject.graded else "green if it is positive"
    if found.is_flat:
        heading, reading = f"{written.capitalize()}s", _READING_SAMPLES.format(written=written)
        body = _samples(found)
    else:
        heading, reading = f"Main {written} and branches", _READING_TREE.format(written=written, colours=colours)
        body = "".join(_tree(found, main) for main in found.mains)
    where = f"{subject.task}, {found.split} {subject.noun} {found.number}, seed {found.seed}"
    note = html.paragraph(found.note) if found.note else ""
    return html.page(
        "One gradient estimate, taken apart",
        f"How {found.estimator} makes a gradient of rewards: {where}.",
        [
            ("Totals", _totals(found) + note),
            (f"The {subject.noun}", subject_html(subject)),
            (heading, html.paragraph(reading) + body),
            ("How this was made", html.facts(facts)),
        ],
        style=_STYLE + subject_style(subject),
    )


def _totals(found: Inspection) -> str:
    tiles = {
        "rollouts": f"{found.cost.rollouts}",
        "rollouts per step": f"{found.rollouts_per_step:.2f}",
        f"{'reward' if len(found.mains) == 1 else 'mean reward'}, {found.reward}": f"{found.mean_reward:.3g}",
        "‖gradient‖": f"{found.norm:.3g}",
        "steps with gradient exactly zero": f"{found.zero_steps} of {found.steps}",
        "tokens generated": f"{found.cost.tokens}",
    }
    cells = "".join(f'<div class="tile"><b>{value}</b>{escape(name)}</div>' for name, value in tiles.items())
    return f'<div class="tiles">{cells}</div>'


def _tree(found: Inspection, main: MainSequence) -> str:
    most = max((step.norm for step in main.steps), default=0.0)
    heaviest = max((branch.norm for step in main.steps for branch in step.branches), default=0.0)
    entries = "".join(_step(found, number, step, main, most, heaviest) for number, step in enumerate(main.steps))
    sentence = f'<p class="main">{tokens_html(found.subject, main.sequence)}</p>' if found.subject.prose else ""
    return f'{_head(found, main)}{sentence}<ol class="trunk">{entries}</ol>'


def _head(found: Inspection, main: MainSequence) -> str:
    facts = [f"probability {main.probability:.2g}", f"‖g‖ {main.norm:.3g}"]
    if main.rollouts:
        facts.append(f"rollouts {main.rollouts}")
    if main.advantage is not None:
        facts.append(f"advantage {main.advantage:+.3g}")
    if main.weight is not None and main.weight != 1:
        facts.append(f"weight {main.weight:.3g}")
    numbers = "".join(f'<span class="number">{fact}</span>' for fact in facts)
    return f'<div class="head"><span>reward {_reward(found, main)}</span>{numbers}</div>'


def _step(found: Inspection, number: int, step: Step, main: MainSequence, most: float, heaviest: float) -> str:
    subject = found.subject
    parts = [tokens_html(subject, [step.token]), f'<span class="number">p {step.probability:.3f}</span>']
    if step.advantage is not None and main.advantage is None:
        parts.append(f'<span class="number">advantage {step.advantage:+.2f}</span>')
    if not step.is_zero:
        parts.append(f'<span class="number">{_meter(step.norm, most)}‖g‖ {step.norm:.2g}</span>')
    for kind, arrow, entry in (("up", "↑", step.raised), ("down", "↓", step.lowered)):
        if entry is not None:
            (name,) = subject.words([entry[0]])
            parts.append(f'<span class="{kind}">{arrow} {escape(name)} {entry[1]:+.2g}</span>')
    entries = [
        _branch(found, number, main, branch, heaviest)
        for branch in sorted(step.branches, key=lambda branch: -branch.norm)
    ]
    kind = "" if step.is_zero else ' class="moved"'
    return f'<li{kind}><div class="node">{"".join(parts)}</div>{_branches(entries)}</li>\n'


def _branches(entries: Sequence[str]) -> str:
    if not entries:
        return ""
    first, others = entries[:_AT_ONCE], entries[_AT_ONCE:]
    shown = f'<ul class="branches">{"".join(first)}</ul>'
    if others:
        rest = f'<ul class="branches">{"".join(others)}</ul>'
        shown += f"<details><summary>{len(others)} more, which count less</summary>{rest}</details>"
    return shown


def _branch(found: Inspection, number: int, main: MainSequence, branch: Branch, heaviest: float) -> str:
    subject = found.subject
    kind = "" if branch.kind == "pseudo-action" else f' <span class="kind">{branch.kind}</span>'
    # A sentence is read from its beginning; programs are long, and begin as the main one.
    begun = subject.words(branch.sequence[:number]) if subject.prose else []
    before = f'<span class="before">{escape(" ".join(begun))}</span> ' if begun else ""
    return (
        f"<li>{_reward(found, main, branch)}"
        f'<span>{before}<span class="taken">{tokens_html(subject, [branch.token])}</span>{kind} '
        f"{tokens_html(subject, branch.sequence[number + 1 :])}</span>"
        f'<span class="number">{_meter(branch.norm, heaviest)}‖C‖ {branch.norm:.2g}</span></li>\n'
    )


def _samples(found: Inspection) -> str:
    entries = []
    for main in found.mains:
        tokens = "".join(
            f'<span title="probability {step.probability:.3f}" style="opacity:{0.5 + 0.5 * step.probability:.2f}">'
            f"{tokens_html(found.subject, [step.token])}</span>"
            for step in main.steps
        )
        entries.append(f'<li>{_head(found, main)}<div class="strip">{tokens}</div></li>\n')
    return f'<ol class="samples">{"".join(entries)}</ol>'


def _meter(value: float, most: float) -> str:
    share = 100 * value / most if most else 0.0
    return f'<span class="meter"><i style="width:{share:.0f}%"></i></span>'


def _reward(found: Inspection, main: MainSequence, branch: Branch | None = None) -> str:
    return f'<span class="reward {found.tone(main, branch)}">{reward_text((branch or main).reward)}</span>'
