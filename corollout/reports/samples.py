"""The samples of a run on a page: before and after, the best and the worst, with the credit of every token."""

from collections.abc import Iterator, Sequence
from html import escape

from corollout.reports.credit import CSS, credit_key, reward_pill, reward_tone, small_number, token_strip
from corollout.reports.report import Html, Section
from corollout.reports.run_results import MethodRuns
from corollout.reports.sample_records import read_samples
from corollout.reports.tables import signed
from corollout.training.runs import Run
from corollout.training.samples import SampledBranch, SampledContext, SampledSequence, Samples

_SHOWN, _EXAMPLES = 4, 2  # sequences of a context, and contexts of a record, that are not folded away
_STYLE = """
.sampled { border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; margin: 0 0 .9rem; }
.sampled > .example { font-size: .88rem; color: var(--soft); margin: 0 0 .5rem; max-width: none;
                      overflow-wrap: anywhere; }
.sampled > .example b { color: var(--ink); }
.sequence { border-top: 1px solid var(--line); padding: .55rem 0; }
.sequence:last-child { padding-bottom: 0; }
.sequence .head { margin: 0 0 .25rem; gap: .1rem 1rem; }
.sequence .strip { font-size: .98rem; }
ol.steps { margin: .2rem 0 0; padding: 0 0 0 2.2rem; font-size: .9rem; }
ol.steps > li::marker { color: var(--soft); font-size: .8rem; }
ol.steps code { overflow-wrap: anywhere; white-space: pre-wrap; }
ol.steps > li > code { font-weight: 600; margin-right: .6rem; }
ol.steps ul { list-style: none; margin: .1rem 0 .3rem; padding: 0 0 0 .8rem; border-left: 2px solid var(--line); }
ol.steps ul li { padding: .08rem 0; }
.taken { border: 1px solid #d0d7de; border-radius: 4px; padding: 0 .3rem; background: var(--tint); }
.kind { color: var(--soft); font-size: .8rem; }
"""
_HELP = (
    "Sequences that an update sampled, with their rewards. A token's credit is how fast its log-probability grows "
    "along that update's gradient estimate. Branches are other continuations that were completed to find out what a "
    "token is worth; open a sequence to see them."
)


def sample_sections(groups: Sequence[MethodRuns]) -> list[Section]:
    """For each method that has samples, those of its first run."""
    sections = []
    for group in groups:
        records = read_samples(Run.open(group.runs[0]))
        if records:
            title = "Samples" if len(groups) == 1 else f"Samples of {group.label}"
            sections.append(Section(title, [Html(_content(records), CSS + _STYLE)], page_only=True))
    return sections


def _content(records: Sequence[Samples]) -> str:
    parts = [f'<p class="note">{escape(_HELP)}</p>', credit_key()]
    first, last = records[0], records[-1]
    parts.append(_record(first, f"Before: update {first.update:,}"))
    if last is not first:
        parts.append(_record(last, f"After: update {last.update:,}"))
    rewarded = [one for one in _sequences(records) if one[2].reward is not None]
    if rewarded:
        # Of equal rewards the newest: what the policy has become.
        best = max(rewarded, key=lambda one: (one[2].reward or 0.0, one[0].update))
        worst = max(rewarded, key=lambda one: (-(one[2].reward or 0.0), one[0].update))
        for name, (record, context, sequence) in (("Best", best), ("Worst", worst)):
            heading = f"<h3>{name} of all samples: update {record.update:,}</h3>"
            parts.append(heading + _context(record, context, [sequence], _largest([sequence])))
    return "".join(parts)


def _sequences(records: Sequence[Samples]) -> Iterator[tuple[Samples, SampledContext, SampledSequence]]:
    for record in records:
        for context in record.contexts:
            for sequence in context.sequences:
                yield record, context, sequence


def _largest(sequences: Sequence[SampledSequence]) -> float:
    return max((abs(value) for one in sequences for value in one.credit), default=0.0)


def _record(record: Samples, title: str) -> str:
    largest = _largest([one for context in record.contexts for one in context.sequences])
    contexts = [_context(record, context, context.sequences, largest) for context in record.contexts]
    return f"<h3>{escape(title)}</h3>{_folded(contexts, _EXAMPLES, 'examples of this update')}"


def _folded(parts: Sequence[str], shown: int, what: str) -> str:
    """The first parts, and the others folded away."""
    rest = "".join(parts[shown:])
    fold = f"<details><summary>{len(parts) - shown} more {what}</summary>{rest}</details>" if rest else ""
    return "".join(parts[:shown]) + fold


def _context(record: Samples, context: SampledContext, sequences: Sequence[SampledSequence], largest: float) -> str:
    columns = "; ".join(f"{name}: {value}" for name, value in context.columns.items())
    rewards = [one.reward for one in context.sequences if one.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    shown = [_sequence(one, mean, largest, record.separator) for one in sequences]
    example = f'<p class="example"><b>Example {context.example}</b> {escape(columns)}</p>'
    return f'<div class="sampled">{example}{_folded(shown, _SHOWN, "sequences of this example")}</div>\n'


def _sequence(one: SampledSequence, mean: float, largest: float, separator: str) -> str:
    facts = [f"log-probability {one.log_probability:.2f}"]
    facts += [] if one.advantage is None else [f"advantage {signed(one.advantage, 3)}"]
    facts += [] if one.finished else ["cut at the maximal length"]
    tone = reward_tone(one.reward, mean)
    head = f"<span>reward {reward_pill(one.reward, tone)}</span>{''.join(map(small_number, facts))}"
    pieces = [escape(piece) or "∅" for piece in one.pieces]
    if one.finished and not separator:
        pieces[-1] = f" {pieces[-1]}"  # the end token is no part of the text
    strip = token_strip(pieces, one.credit, one.probability, largest, separator)
    return f'<div class="sequence"><div class="head">{head}</div>{strip}{_steps(one)}</div>'


def _steps(one: SampledSequence) -> str:
    """Every token in words and numbers, with the branches that leave there."""
    branches: dict[int, list[SampledBranch]] = {}
    for branch in one.branches:
        branches.setdefault(branch.step, []).append(branch)
    lines = []
    for step, (piece, credit, chance) in enumerate(zip(one.pieces, one.credit, one.probability, strict=True)):
        below = "".join(_branch(branch, one.reward) for branch in branches.get(step, []))
        numbers = small_number(f"credit {signed(credit, 4)}, probability {chance:.3f}")
        lines.append(f"<li><code>{escape(piece)}</code>{numbers}{f'<ul>{below}</ul>' if below else ''}</li>")
    words = "Tokens"
    if one.branch_count:
        left = one.branch_count - len(one.branches)
        words += f" and {one.branch_count} branches" + (f", without {left} that differ less" if left else "")
    return f'<details><summary>{words}</summary><ol class="steps">{"".join(lines)}</ol></details>'


def _branch(branch: SampledBranch, reward: float | None) -> str:
    kind = "" if branch.kind == "pseudo-action" else f' <span class="kind">{escape(branch.kind)}</span>'
    pill = reward_pill(branch.reward, reward_tone(branch.reward, reward))
    token = f'<code class="taken">{escape(branch.token)}</code>'
    return f"<li>{pill} {token}{kind} <code>{escape(branch.continuation)}</code></li>"
