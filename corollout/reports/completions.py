"""A page of completions: every token in the colour of its credit, with the branches that left there and their rewards.

It is made of :class:`corollout.training.samples.Samples`: those that a training keeps in ``samples.jsonl``
(:func:`corollout.reports.sample_records.read_samples_file`), or a fresh estimate (:mod:`corollout.hf.inspect`):

    write_completions_page(Path("completions.html"), records, {"model": "HuggingFaceTB/SmolLM2-135M-Instruct"})
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.files import os_errors, write_file
from corollout.reports import html
from corollout.reports.completions_style import SCRIPT, STYLE
from corollout.reports.credit import CSS, credit_key, reward_pill, reward_tone, small_number, token_strip
from corollout.reports.tables import reward_text
from corollout.text import shortened
from corollout.training.samples import Message, SampledBranch, SampledContext, SampledSequence, Samples

TITLE = "Where did it go wrong?"
_SIZE = 5_000_000  # characters of a page that has more than two updates
_HEAD = 2000  # characters of a page by which it is recognised
_POINTS = 400  # of the curve
_FOLDED = 700  # characters of a message that are not folded away
_BEFORE, _AFTER = 40, 240  # characters of the completion around a token with branches

Curve = Sequence[tuple[int, float]]  # updates and their rewards


def write_completions_page(
    path: Path, records: Sequence[Samples], facts: Mapping[str, Any], *, curve: Curve = (), new: bool = False
) -> None:
    """Write the page; a reader sees either all of the old one or all of the new one. With ``new`` there must be no old
    one.
    """
    write_file(path, completions_page(records, facts, curve), new=new)


def is_completions_page(path: Path) -> bool:
    """Whether a file is such a page."""
    with os_errors(f"read {path}"), path.open("rb") as file:
        return f"<title>{TITLE}</title>\n<style>".encode() in file.read(_HEAD)


def completions_page(records: Sequence[Samples], facts: Mapping[str, Any], curve: Curve = ()) -> str:
    """The page of some updates; ``facts`` are told at its end, and ``curve`` may have updates that are not on it.

    If the page became too large, updates between the first and the last ones are left out.
    """
    if not records:
        raise InputError("there are no completions to show: no update has kept any")
    updates = [_update(record, number, number == len(records) - 1) for number, record in enumerate(records)]
    while len(updates) > 2 and sum(map(len, updates)) > _SIZE:
        del updates[1]
    curve = curve or [(record.update, record.reward) for record in records if record.reward is not None]
    sections = [("Reward", _curve(curve))] if len(curve) > 1 else []
    left = "" if len(updates) == len(records) else html.note(f"{len(records) - len(updates)} updates are left out.")
    tools = _tools(records)
    body = f'{_legend(records)}{tools}<div class="groups">{"".join(reversed(updates))}</div>{left}'
    sections += [("Completions", html.tiles(_totals(records)) + body)]
    sections += [("How this was made", html.facts(facts))] if facts else []
    return html.page(TITLE, _lead(records), sections, CSS + STYLE, SCRIPT)


def _lead(records: Sequence[Samples]) -> str:
    estimators = " and ".join(dict.fromkeys(record.estimator for record in records if record.estimator))
    by = f" by {estimators}" if estimators else ""
    return f"What a model wrote, every token in the colour of its credit{by}."


def _legend(records: Sequence[Samples]) -> str:
    has_branches = any(one.branch_count for _, context in _contexts(records) for one in context.sequences)
    branches = (
        " Underlined tokens have branches: other continuations that were completed from there, to find out what the "
        "token is worth. Click one to read them."
        if has_branches
        else ""
    )
    help = (
        "A token's credit is how fast its log-probability grows along the update's gradient estimate: what the update "
        "wants more of, and what it wants less of. Colours are relative to the largest credit of a prompt."
    )
    return html.paragraph(help + branches) + credit_key()


def _totals(records: Sequence[Samples]) -> dict[str, str]:
    contexts = [context for _, context in _contexts(records)]
    equal = sum(context.equal_rewards for context in contexts)
    silent = sum(not context.teaches for context in contexts)
    rewards = [record.reward for record in records if record.reward is not None]
    entries = {"prompts": str(len(contexts)), "completions": str(sum(len(one.sequences) for one in contexts))}
    if branches := sum(one.branch_count for context in contexts for one in context.sequences):
        entries["branches"] = f"{branches:,}"
    if rewards:
        ends = f"{rewards[0]:.3g} → {rewards[-1]:.3g}" if len(rewards) > 1 else f"{rewards[0]:.3g}"
        entries["mean reward" + (", first and last" if len(rewards) > 1 else "")] = ends
    entries["prompts with equal rewards"] = f"{equal} of {len(contexts)}"
    entries["prompts that teach nothing"] = f"{silent} of {len(contexts)}"
    return entries


def _contexts(records: Sequence[Samples]) -> Iterator[tuple[Samples, SampledContext]]:
    for record in records:
        for context in record.contexts:
            yield record, context


def _tools(records: Sequence[Samples]) -> str:
    """Choices for those who have JavaScript."""
    updates = [("", "all")] + [(str(one.update), f"{one.update:,}") for one in reversed(records)]
    orders = [
        ("update", "update, newest first"), ("low", "reward, lowest first"), ("high", "reward, highest first"),
        ("credit", "largest credit first"), ("length", "longest first"),
    ]  # fmt: skip
    filters = [("all", "all prompts"), ("teach", "those that teach"), ("equal", "those with equal rewards")]
    # Without updates to choose from, prompts have an order of their own all the same.
    orders[0] = orders[0] if len(records) > 1 else ("update", "as they came")
    choices = "".join(map(_choice, ("Update", "Sort by", "Show"), (updates, orders, filters)))
    return f'<div class="tools" hidden>{choices}<output></output></div>'


def _choice(label: str, options: Sequence[tuple[str, str]]) -> str:
    hidden = " hidden" * (label == "Update" and len(options) == 2)
    items = "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in options)
    return f"<label{hidden}>{escape(label)}<select>{items}</select></label>"


def _update(record: Samples, number: int, is_open: bool) -> str:
    groups = "".join(_group(record, context, f"{number}-{place}") for place, context in enumerate(record.contexts))
    reward = "" if record.reward is None else f"mean reward {record.reward:.3g}"
    words = ", ".join(filter(None, [_when(record).capitalize(), reward])) or "Completions"
    return f'<details class="update"{" open" if is_open else ""}><summary>{words}</summary>{groups}</details>\n'


def _when(record: Samples) -> str:
    return f"update {record.update:,}" if record.update else ""


def _group(record: Samples, context: SampledContext, name: str) -> str:
    """A prompt with its completions."""
    rewards = [one.reward for one in context.sequences if one.reward is not None]
    mean = math.fsum(rewards) / len(rewards) if rewards else None
    largest = max((abs(value) for one in context.sequences for value in one.credit), default=0.0)
    length = max((len(one.tokens) for one in context.sequences), default=0)
    facts = [f"<b>Prompt {context.example}</b>"] + ([_when(record)] if record.update else [])
    facts += [] if mean is None else [f"mean reward {reward_text(mean)}"]
    if context.sequence_count > len(context.sequences):
        facts.append(f"{len(context.sequences)} of {context.sequence_count} completions")
    marks = ['<span class="mark">equal rewards</span>'] if context.equal_rewards else []
    head = "".join(f"<span>{fact}</span>" for fact in facts) + "".join(marks)
    completions = [
        _completion(one, f"{name}-{place}", mean, largest, record.separator)
        for place, one in enumerate(context.sequences)
    ]
    numbers = _numbers(record.update, mean, largest, length)
    return (
        f'<article class="group" {numbers} data-equal="{int(context.equal_rewards)}" '
        f'data-teaches="{int(context.teaches)}"><div class="head">{head}</div>'
        f"{_prompt(context)}{_why(record, context)}"
        f'<ol class="completions">{"".join(completions)}</ol></article>\n'
    )


def _numbers(update: int, reward: float | None, credit: float, length: int) -> str:
    """What groups and completions are sorted by."""
    shown = "" if reward is None else f"{reward:.6g}"
    return f'data-update="{update}" data-reward="{shown}" data-credit="{credit:.6g}" data-length="{length}"'


def _prompt(context: SampledContext) -> str:
    messages = "".join(map(_message, context.prompt))
    columns = ", ".join(
        f"{escape(name)} <code>{escape(str(value))}</code>"
        for name, value in context.columns.items()
        if value is not None
    )
    return messages + (f'<p class="columns">{columns}</p>' if columns else "")


def _message(message: Message) -> str:
    role = escape(message.role) or "prompt"
    text = f'<p class="text">{escape(message.content)}</p>'
    if len(message.content) > _FOLDED:
        start = escape(shortened(message.content.replace("\n", " "), 160))
        text = f"<details><summary>{start}</summary>{text}</details>"
    return f'<div class="message"><span class="role">{role}</span>{text}</div>'


def _why(record: Samples, context: SampledContext) -> str:
    """What equal rewards mean for this estimator."""
    if not context.equal_rewards:
        return ""
    reward = next((one.reward for one in context.sequences if one.reward is not None), None)
    shown = "the same reward" if reward is None else f"the reward {reward_text(reward)}"
    branches = sum(one.branch_count for one in context.sequences)
    count = context.sequence_count or len(context.sequences)
    by = record.estimator or "the estimator"
    if branches:
        who = "The completion and its" if count == 1 else f"The {count} completions and their"
        who += f" {branches} branches all"
        reason = "no token made a difference"
    else:
        who, reason = f"All {count} completions", "none is better than the others"
    if context.teaches:
        rest = f"What {by} learns here comes from elsewhere: its baseline knows other prompts, or a penalty differs"
    else:
        rest = f"{by} only compares them with each other and {reason}: the gradient is exactly zero, nothing is learned"
    return f'<p class="why">{escape(f"{who} got {shown}. {rest}.")}</p>'


def _completion(one: SampledSequence, name: str, mean: float | None, largest: float, separator: str) -> str:
    facts = [f"{escape(part)} {'–' if value is None else reward_text(value)}" for part, value in one.rewards.items()]
    if len(facts) == 1:
        facts = [f"by {escape(next(iter(one.rewards)))}"]
    facts += [] if one.advantage is None else [f"advantage {one.advantage:+.3f}"]
    facts += [f"{len(one.tokens)} token{'s' * (len(one.tokens) != 1)}"]
    facts += [] if one.finished else ["cut at the maximal length"]
    pill = reward_pill(one.reward, reward_tone(one.reward, mean))
    branches: dict[int, list[SampledBranch]] = {}
    for branch in one.branches:
        branches.setdefault(branch.step, []).append(branch)
    credit = max(map(abs, one.credit), default=0.0)
    return (
        f'<li class="completion" {_numbers(0, one.reward, credit, len(one.tokens))}>'
        f'<div class="head"><span>reward {pill}</span>{"".join(map(small_number, facts))}</div>'
        f"{_strip(one, name, branches, largest, separator)}{_branches(one, name, branches, separator)}</li>\n"
    )


def _strip(
    one: SampledSequence, name: str, branches: Mapping[int, Sequence[SampledBranch]], largest: float, separator: str
) -> str:
    pieces, remarks = [], []
    for step, piece in enumerate(one.pieces):
        is_end = one.finished and step == len(one.pieces) - 1
        shown = '<i class="end"></i>' if is_end else _piece(piece)
        count = len(branches.get(step, ()))
        pieces.append(f'<a href="#{name}-{step}">{shown}</a>' if count else shown)
        remark = f", entropy {one.entropy[step]:.2f}" if one.entropy else ""
        remarks.append(remark + (f", {count} branch{'es' * (count > 1)}" if count else ""))
    return token_strip(pieces, one.credit, one.probability, largest, separator, remarks)


def _piece(piece: str) -> str:
    """A token's text: what cannot be seen has a mark, which is not copied with the text."""
    return escape(piece).replace("\n", '<i class="break"></i>\n') or '<i class="part"></i>'


def _branches(one: SampledSequence, name: str, branches: Mapping[int, Sequence[SampledBranch]], separator: str) -> str:
    if not branches:
        return ""
    heaviest = max(abs(branch.credit) for branch in one.branches)
    steps = [
        f'<li id="{name}-{step}">{_at(one, step)}'
        f'<ul class="rows">{_sampled(one, step, separator)}'
        f"{''.join(_branch(branch, one.reward, heaviest) for branch in sorted(some, key=_importance))}</ul></li>"
        for step, some in branches.items()
    ]
    count, places = one.branch_count, len(branches)
    left = count - len(one.branches)
    words = f"{count} branch{'es' * (count != 1)}" + (f", without {left} whose rewards differ less" if left else "")
    words += f", from {places} token{'s' * (places != 1)}"
    return f'<details class="branches"><summary>{words}</summary><ol class="steps">{"".join(steps)}</ol></details>'


def _importance(branch: SampledBranch) -> tuple[float, float]:
    return -abs(branch.credit), -branch.weight


def _at(one: SampledSequence, step: int) -> str:
    """The token that branches depart from."""
    numbers = [f"credit {one.credit[step]:+.3g}", f"probability {one.probability[step]:.3f}"]
    numbers += [f"entropy {one.entropy[step]:.2f}"] if one.entropy else []
    text = "end" if one.finished and step == len(one.pieces) - 1 else one.pieces[step]
    return (
        f'<p class="at"><span>token {step + 1} <code>{escape(text)}</code></span>{small_number(", ".join(numbers))}</p>'
    )


def _sampled(one: SampledSequence, step: int, separator: str) -> str:
    """What was sampled, to compare branches with."""
    inside = one.pieces[:-1] if one.finished else one.pieces
    token = inside[step] if step < len(inside) else "end"
    before, after = separator.join(inside[:step]), separator.join(inside[step + 1 :])
    start = ("…" if len(before) > _BEFORE else "") + before[-_BEFORE:]
    rest = after[:_AFTER] + ("…" if len(after) > _AFTER else "")
    return (
        f'<li class="row sampled">{reward_pill(one.reward, "even")}<div><span class="before">{escape(start)}</span>'
        f"{_taken(token, rest, separator)}</div>{small_number('sampled')}</li>"
    )


def _branch(branch: SampledBranch, reward: float | None, heaviest: float, separator: str = "") -> str:
    pill = reward_pill(branch.reward, reward_tone(branch.reward, reward))
    kind = "" if branch.kind == "pseudo-action" else f' <span class="kind">{escape(branch.kind)}</span>'
    share = 50 * abs(branch.credit) / heaviest if heaviest else 0.0
    tone = "raised" if branch.credit > 0 else "lowered"
    number = f"{branch.credit:+.2g}" if branch.credit else "0"
    meter = f'<span class="meter"><i class="{tone}" style="width:{share:.0f}%"></i></span>{number}'
    title = f"adds {branch.credit:+.3g} to the credit of the sampled token, weight in the gradient {branch.weight:.3g}"
    return (
        f'<li class="row">{pill}<div>{_taken(branch.token, branch.continuation, separator)}{kind}</div>'
        f'<span class="number" title="{title}">{meter}</span></li>'
    )


def _taken(token: str, rest: str, separator: str) -> str:
    return f'<code class="taken">{escape(token) or "◦"}</code>{separator}<code>{escape(rest)}</code>'


def _curve(curve: Curve) -> str:
    """The mean reward of the updates that were kept."""
    stride = math.ceil(len(curve) / _POINTS)
    points = [*curve[:-1:stride], curve[-1]]
    updates, rewards = [update for update, _ in points], [reward for _, reward in points]
    low, high = min(rewards), max(rewards)
    span, width = (high - low) or 1.0, (updates[-1] - updates[0]) or 1

    def place(update: int, reward: float) -> tuple[float, float]:
        return 60 + 560 * (update - updates[0]) / width, 120 - 100 * (reward - low) / span

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, updates, rewards))
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#0072B2"/>'
        for x, y in map(place, updates, rewards)
        if len(points) <= 60
    )
    ticks = "".join(
        f'<text x="52" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        f'<line x1="60" x2="620" y1="{y:.1f}" y2="{y:.1f}" stroke="#eaeef2"/>'
        for value, y in ((low, 120), (high, 20))[: 1 + (high > low)]
    )
    drawing = (
        '<svg viewBox="0 0 640 150" role="img" aria-label="Mean reward of the kept updates" font-size="12" '
        f'fill="#57606a" font-family="system-ui, sans-serif">{ticks}'
        f'<polyline points="{line}" fill="none" stroke="#0072B2" stroke-width="2"/>{dots}'
        f'<text x="60" y="142">update {updates[0]:,}</text>'
        f'<text x="620" y="142" text-anchor="end">update {updates[-1]:,}</text></svg>'
    )
    series = {
        "label": "mean reward",
        "colour": "#0072B2",
        "x": updates,
        "mean": rewards,
        "low": rewards,
        "high": rewards,
    }
    box = [60 / 640, 20 / 150, 560 / 640, 100 / 150]
    data = {"box": box, "x": [updates[0], updates[-1]], "log": False, "unit": "updates", "series": [series]}
    rows = [[f"{update:,}", f"{reward:.4g}"] for update, reward in points[:: math.ceil(len(points) / 20)]]
    return html.panels(
        [html.plot("Mean reward of each update whose completions were kept", drawing, data, ["update", "reward"], rows)]
    )
