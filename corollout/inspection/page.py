"""A gradient estimate as a page: the main sequence as a trunk, its branches beside it, rewards in colour."""

from collections.abc import Mapping
from html import escape
from typing import Any

from corollout.inspection.credit import Inspection
from corollout.reports import html
from corollout.reports.credit import CSS, credit_key, reward_pill, small_number, token_strip
from corollout.training.credit import Branch, MainSequence, Step

_CSS = """
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
_SHOWN = 6  # branches of a step that are not folded away
_TREE_HELP = (
    "Down the trunk are the tokens of the main {noun}, each with its probability p and the norm ‖g‖ of the gradient "
    "for the logits it was drawn from; a hollow circle is a gradient of exactly zero. ↑ and ↓ name the tokens whose "
    "logits are raised and lowered most. A branch leaves the {noun} with the framed token and is completed on its own; "
    "its reward stands in front, {colours}, and enters the gradient with coefficients, of norm ‖C‖, that were known "
    "before the rollout."
)
_SAMPLES_HELP = (
    "Whole {noun}s are compared with each other: the gradient for the logits of each token is weight × advantage × "
    "(e − p), where e is one-hot at the token that was drawn and p are the probabilities of all tokens. The credit of "
    "a token is how fast that makes it more probable."
)


def inspection_page(inspection: Inspection, facts: Mapping[str, Any]) -> str:
    """The page of an estimate."""
    view = inspection.view
    example = f"{view.split_name} {view.example_noun} {view.index}, seed {inspection.seed}"
    totals, *rest = inspection_sections(inspection)
    return html.page(
        "One gradient estimate, taken apart",
        f"How {inspection.estimator} turns rewards into a gradient: {example}.",
        [totals, (f"The {view.example_noun}", view.html()), *rest, ("How this was made", html.facts(facts))],
        style=inspection_css(inspection),
    )


def inspection_css(inspection: Inspection) -> str:
    return CSS + _CSS + inspection.view.css


def inspection_sections(inspection: Inspection) -> list[tuple[str, str]]:
    """Titles and contents of the sections about the estimate itself."""
    view, noun = inspection.view, inspection.view.output_noun
    if inspection.is_flat:
        heading, help = f"{noun.capitalize()}s", _SAMPLES_HELP.format(noun=noun)
        body = _samples(inspection)
    else:
        colours = f"green above the main {noun}'s and red below it" if view.is_graded else "green if it is positive"
        heading, help = f"Main {noun} and branches", _TREE_HELP.format(noun=noun, colours=colours)
        body = "".join(_tree(inspection, main) for main in inspection.mains)
    note = html.paragraph(inspection.note) if inspection.note else ""
    return [("Totals", _totals(inspection) + note), (heading, html.paragraph(help) + body)]


def _totals(inspection: Inspection) -> str:
    totals, reward = inspection.totals, "reward" if len(inspection.mains) == 1 else "mean reward"
    entries = {
        "rollouts": f"{totals['rollouts']}",
        "rollouts per step": f"{totals['rollouts_per_step']:.2f}",
        f"{reward}, {inspection.reward}": f"{totals['mean_reward']:.3g}",
        "‖gradient‖": f"{inspection.norm:.3g}",
        "steps with gradient exactly zero": f"{totals['zero_steps']} of {totals['steps']}",
        "tokens generated": f"{totals['tokens']}",
    }
    return html.tiles(entries)


def _tree(inspection: Inspection, main: MainSequence) -> str:
    largest = max((step.norm for step in main.steps), default=0.0)
    heaviest = max((branch.norm for step in main.steps for branch in step.branches), default=0.0)
    steps = [_step(inspection, index, step, main, largest, heaviest) for index, step in enumerate(main.steps)]
    view = inspection.view
    sentence = f'<p class="main">{view.tokens_html(main.sequence)}</p>' if view.is_prose else ""
    return f'{_head(inspection, main)}{sentence}<ol class="trunk">{"".join(steps)}</ol>'


def _head(inspection: Inspection, main: MainSequence) -> str:
    facts = [f"probability {main.probability:.2g}", f"‖g‖ {main.norm:.3g}"]
    if main.rollouts:
        facts.append(f"rollouts {main.rollouts}")
    if main.advantage is not None:
        facts.append(f"advantage {main.advantage:+.3g}")
    if main.weight is not None and main.weight != 1:
        facts.append(f"weight {main.weight:.3g}")
    return f'<div class="head"><span>reward {_reward(inspection, main)}</span>{"".join(map(small_number, facts))}</div>'


def _step(inspection: Inspection, index: int, step: Step, main: MainSequence, largest: float, heaviest: float) -> str:
    view = inspection.view
    parts = [view.tokens_html([step.token]), small_number(f"p {step.probability:.3f}")]
    if step.advantage is not None and main.advantage is None:
        parts.append(small_number(f"advantage {step.advantage:+.2f}"))
    if not step.is_zero:
        parts.append(_norm("‖g‖", step.norm, largest))
    for css_class, arrow, move in zip(("up", "down"), "↑↓", step.moves, strict=True):
        if move is not None:
            token = escape(view.tokens([move[0]])[0])
            parts.append(f'<span class="{css_class}">{arrow} {token} {move[1]:+.2g}</span>')
    ordered = sorted(step.branches, key=lambda branch: -branch.norm)
    branches = [_branch(inspection, index, main, branch, heaviest) for branch in ordered]
    below = f'<ul class="branches">{"".join(branches[:_SHOWN])}</ul>' if branches else ""
    if len(branches) > _SHOWN:
        folded = f'<ul class="branches">{"".join(branches[_SHOWN:])}</ul>'
        count = f"{len(branches) - _SHOWN} more, which count less"
        below += f"<details><summary>{count}</summary>{folded}</details>"
    moved = "" if step.is_zero else ' class="moved"'
    return f'<li{moved}><div class="node">{"".join(parts)}</div>{below}</li>\n'


def _branch(inspection: Inspection, index: int, main: MainSequence, branch: Branch, heaviest: float) -> str:
    view = inspection.view
    kind = "" if branch.kind == "pseudo-action" else f' <span class="kind">{branch.kind}</span>'
    # A sentence is read from its beginning; other sequences are long, and begin as the main one.
    start = view.tokens(branch.sequence[:index]) if view.is_prose else []
    before = f'<span class="before">{escape(" ".join(start))}</span> ' if start else ""
    return (
        f"<li>{_reward(inspection, main, branch)}"
        f'<span>{before}<span class="taken">{view.tokens_html([branch.token])}</span>{kind} '
        f"{view.tokens_html(branch.sequence[index + 1 :])}</span>"
        f"{_norm('‖C‖', branch.norm, heaviest)}</li>\n"
    )


def _samples(inspection: Inspection) -> str:
    largest = max((abs(step.credit) for main in inspection.mains for step in main.steps), default=0.0)
    entries = []
    for main in inspection.mains:
        pieces = [inspection.view.tokens_html([step.token]) for step in main.steps]
        credit, probability = [step.credit for step in main.steps], [step.probability for step in main.steps]
        strip = token_strip(pieces, credit, probability, largest)
        entries.append(f"<li>{_head(inspection, main)}{strip}</li>\n")
    return f'{credit_key()}<ol class="samples">{"".join(entries)}</ol>'


def _norm(name: str, value: float, largest: float) -> str:
    """A norm, with a bar that compares it with the largest."""
    share = 100 * value / largest if largest else 0.0
    return small_number(f'<span class="meter"><i style="width:{share:.0f}%"></i></span>{name} {value:.2g}')


def _reward(inspection: Inspection, main: MainSequence, branch: Branch | None = None) -> str:
    return reward_pill((branch or main).reward, inspection.tone(main, branch))
