"""Completions in the terminal, with the tokens in colour that an update raises and lowers most."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from corollout.reports.tables import reward_text
from corollout.text import shortened
from corollout.training.samples import SampledContext, SampledSequence, Samples

_MARKED = 3  # tokens in each colour
_RAISED, _LOWERED = "bold blue", "bold dark_orange"
_PROMPT = 400  # characters


def samples_heading(samples: Samples) -> str:
    """What is shown, in a line."""
    parts = [f"update {samples.update}" if samples.update else "a fresh estimate"]
    if samples.estimator:
        parts.append(f"by {samples.estimator}")
    if samples.reward is not None:
        parts.append(f"mean reward {samples.reward:.4g}")
    return ", ".join(parts)


def show_samples(samples: Samples) -> Group:
    """Every prompt with its completions: tokens of the highest credit blue, of the lowest one orange."""
    return Group(*(part for context in samples.contexts for part in _context(context, samples.separator)))


def _context(context: SampledContext, separator: str) -> Iterator[RenderableType]:
    prompt = "\n".join(f"{one.role}: {one.content}" if one.role else one.content for one in context.prompt)
    yield Text(f"prompt {context.example}", "bold")
    yield Padding(Text(shortened(prompt.strip(), _PROMPT), "dim"), (0, 2, 1, 2))
    if not context.teaches:
        yield Padding(Text("It teaches nothing: the gradient of its completions is zero.", "yellow"), (0, 2, 1, 2))
    for sequence in context.sequences:
        yield Padding(_completion(sequence, separator), (0, 2, 1, 2))


def _completion(sequence: SampledSequence, separator: str) -> Text:
    raised, lowered = extremes(sequence.credit)
    text = Text()
    for number, piece in enumerate(sequence.pieces):
        style = _RAISED if number in raised else _LOWERED if number in lowered else ""
        text.append(piece + (separator if number + 1 < len(sequence.pieces) else ""), style)
    rewards = {"reward": sequence.reward, **(sequence.rewards if len(sequence.rewards) > 1 else {})}
    facts = [f"{name} {'none' if value is None else reward_text(value)}" for name, value in rewards.items()]
    text.append(f"\n{', '.join(facts)}", "cyan")
    for name, numbers, style in (("raised", raised, _RAISED), ("lowered", lowered, _LOWERED)):
        if numbers:
            marked = (f"{sequence.pieces[number].strip()!r} {sequence.credit[number]:+.2g}" for number in numbers)
            text.append(f"; {name}: ", "cyan").append(", ".join(marked), style)
    return text


def extremes(credit: list[float]) -> tuple[list[int], list[int]]:
    """The tokens with the highest positive and the lowest negative credit, those first that are farthest from 0."""
    order = sorted(range(len(credit)), key=lambda number: credit[number])
    return (
        [number for number in reversed(order[-_MARKED:]) if credit[number] > 0],
        [number for number in order[:_MARKED] if credit[number] < 0],
    )
