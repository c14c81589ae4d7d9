"""``corollout inspect``: a gradient estimate for one example, with all that was rolled out for it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corollout.cli.generate import SPLIT, WEIGHTS
from corollout.cli.training import RUN
from corollout.errors import InputError
from corollout.inspection.credit import Branch, Inspection, MainSequence, Step, inspect_run
from corollout.inspection.page import inspection_page
from corollout.reports.manifest import manifest
from corollout.reports.tables import reward_text
from corollout.tasks.karel.show import TOKENS
from corollout.tasks.views import CaptionSubject, KarelSubject, Subject

_TONES = {"good": "bold green", "bad": "red", "even": "bold"}


def inspect(
    run: RUN,
    split: SPLIT = "val",
    number: Annotated[int, typer.Option("--number", "--task", help="Number of the task or image, from 0.")] = 0,
    estimator: Annotated[
        str | None,
        typer.Option(help="arsm, ars-5, mc-2, rloo-8, …  [default: the run's own, or arsm]", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all sampling.")] = 0,
    weights: WEIGHTS = "best",
    most: Annotated[
        int, typer.Option(min=0, help="Print so many branches of a step, those that count most; 0 for all.")
    ] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as a JSON object.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="<file>", help="Write a page with everything.", show_default=False)
    ] = None,
) -> None:
    """Show how a gradient comes about: what is sampled, where other sequences branch off, and what their rewards do."""
    found = inspect_run(run, split=split, number=number, estimator=estimator, seed=seed, weights=weights)
    if html is not None:
        _write(html, inspection_page(found, manifest(seed=seed)))
    if as_json:
        typer.echo(json.dumps(record(found)))
        return
    console = Console(highlight=False)
    title = Text(f"{split}, {found.subject.noun} {number}", "bold").append(f" id {found.id}", "not bold dim")
    console.rule(title.append(f"   {found.estimator}, seed {seed}", "not bold not dim"), align="left")
    console.print(Padding(_report(found, most), (1, 2, 1, 2)))
    if html is not None:
        console.print(f"Page: {html}", soft_wrap=True)


def record(found: Inspection) -> dict[str, object]:
    """All of it but the vectors, whose norms are given, with tokens by name."""
    subject = found.subject
    return {
        "split": found.split,
        subject.noun: found.number,
        "id": found.id,
        "estimator": found.estimator,
        "reward": found.reward,
        "seed": found.seed,
        **subject.record(),
        "mains": [
            {
                "tokens": subject.words(main.sequence),
                "reward": main.reward,
                "probability": main.probability,
                "weight": main.weight,
                "gradient_norm": main.norm,
                "steps": [_step_record(subject, step) for step in main.steps],
            }
            for main in found.mains
        ],
        "totals": {
            "rollouts": found.cost.rollouts,
            "rollouts_per_step": found.rollouts_per_step,
            "tokens": found.cost.tokens,
            "reward_calls": found.cost.reward_calls,
            "mean_reward": found.mean_reward,
            "gradient_norm": found.norm,
            "steps": found.steps,
            "zero_steps": found.zero_steps,
        },
    }


def _step_record(subject: Subject, step: Step) -> dict[str, object]:
    return {
        "token": _name(subject, step.token),
        "probability": step.probability,
        "advantage": step.advantage,
        "gradient_norm": step.norm,
        "raised_most": _named(subject, step.raised),
        "lowered_most": _named(subject, step.lowered),
        "branches": [
            {
                "token": _name(subject, branch.token),
                "kind": branch.kind,
                "coefficient_norm": branch.norm,
                "reward": branch.reward,
                "tokens": subject.words(branch.sequence),
            }
            for branch in step.branches
        ],
    }


def _name(subject: Subject, token: int) -> str:
    return subject.words([token])[0]


def _named(subject: Subject, entry: tuple[int, float] | None) -> tuple[str, float] | None:
    return None if entry is None else (_name(subject, entry[0]), entry[1])


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, "utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _report(found: Inspection, most: int) -> Group:
    parts: list[RenderableType] = [_subject(found.subject), ""]
    # Whole sequences that are only compared with each other need a line each, trees more room.
    parts += [_samples(found)] if found.is_flat else [_tree(found, main, most) for main in found.mains]
    if found.note:
        parts += [Text(found.note, "dim"), ""]
    return Group(*parts, _totals(found))


def _subject(subject: Subject) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    if isinstance(subject, KarelSubject):
        grid.add_row("reference", _words(subject, subject.reference))
    if isinstance(subject, CaptionSubject):
        grid.add_row("image", str(subject.photo or subject.name))
        grid.add_row("references", Text("\n".join(subject.references), "dim"))
    return grid


def _samples(found: Inspection) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("reward", "advantage", "weight", "‖g‖", "probability"):
        table.add_column(heading, justify="right", vertical="top")
    table.add_column(found.subject.written, ratio=1)
    for main in found.mains:
        assert main.advantage is not None
        table.add_row(
            _reward(found, main),
            f"{main.advantage:+.3g}",
            f"{main.weight:.3g}",
            f"{main.norm:.3g}",
            f"{main.probability:.2g}",
            _words(found.subject, main.sequence),
        )
    return table


def _tree(found: Inspection, main: MainSequence, most: int) -> Group:
    head = Text(f"main {found.subject.written}", "bold").append("   reward ", "not bold")
    head.append_text(_reward(found, main))
    head.append(f"   probability {main.probability:.2g}   rollouts {main.rollouts}", "not bold")
    if main.advantage is not None:
        head.append(f"   advantage {main.advantage:+.3g}", "not bold")
    if main.weight is not None and main.weight != 1:
        head.append(f"   weight {main.weight:.3g}", "not bold")
    lines: list[RenderableType] = [head]
    if found.subject.prose:
        lines.append(Padding(_words(found.subject, main.sequence), (0, 0, 0, 5)))
    width = max(map(len, found.subject.words(main.sequence)))
    for number, step in enumerate(main.steps):
        lines.append(_step(found.subject, number, step, width, main.advantage is None))
        if step.branches:
            lines.append(_branches(found, main, number, step, most))
    return Group(*lines, "")


def _step(subject: Subject, number: int, step: Step, width: int, with_advantage: bool) -> Text:
    name = _name(subject, step.token)
    line = Text(f"{number:3}  ", "dim").append(name.ljust(width), TOKENS[subject.kind(name)])
    line.append(f"  p {step.probability:.3f}")
    if step.advantage is not None and with_advantage:
        line.append(f"  A {step.advantage:+.2f}")
    line.append(f"  ‖g‖ {step.norm:.2g}", "dim" if step.is_zero else "bold")
    for arrow, entry, colour in (("↑", step.raised, "green"), ("↓", step.lowered, "red")):
        if entry is not None:
            line.append(f"  {arrow} {_name(subject, entry[0])} {entry[1]:+.2g}", colour)
    return line


def _branches(found: Inspection, main: MainSequence, number: int, step: Step, most: int) -> Padding:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right", "left"):
        grid.add_column(no_wrap=True, justify=justify)
    grid.add_column(ratio=1)
    ordered = sorted(step.branches, key=lambda branch: -branch.norm)
    shown = ordered[:most] if most else ordered
    for place, branch in enumerate(shown):
        mark = "└" if place == len(ordered) - 1 else "├"
        weight = Text(f"‖C‖ {branch.norm:.2g}")
        grid.add_row(
            mark, _action(found.subject, branch), _reward(found, main, branch), weight, _rest(found, number, branch)
        )
    if len(shown) < len(ordered):
        grid.add_row("└", Text(f"{len(ordered) - len(shown)} more", "dim"))
    return Padding(grid, (0, 0, 0, 5))


def _action(subject: Subject, branch: Branch) -> Text:
    text = _words(subject, [branch.token])
    return text if branch.kind == "pseudo-action" else text.append(f" ({branch.kind})", "dim")


def _rest(found: Inspection, number: int, branch: Branch) -> Text:
    """How a branch goes on; of a sentence, also how it began."""
    subject = found.subject
    after = _words(subject, branch.sequence[number + 1 :])
    if not subject.prose:
        return Text("… ", "dim").append_text(after)
    before, taken = Text(" ".join(subject.words(branch.sequence[:number])), "dim"), _name(subject, branch.token)
    return Text(" ").join(part for part in (before, Text(taken, "bold underline"), after) if part)


def _words(subject: Subject, tokens: Sequence[int]) -> Text:
    return Text(" ").join(Text(name, TOKENS[subject.kind(name)]) for name in subject.words(tokens))


def _reward(found: Inspection, main: MainSequence, branch: Branch | None = None) -> Text:
    return Text(reward_text((branch or main).reward), _TONES[found.tone(main, branch)])


def _totals(found: Inspection) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row("rollouts", f"{found.cost.rollouts}, {found.rollouts_per_step:.2f} per step")
    what = "reward" if len(found.mains) == 1 else "mean reward"
    grid.add_row(what, f"{found.mean_reward:.3g} ({found.reward})")
    grid.add_row("gradient", f"‖g‖ {found.norm:.3g}; exactly zero at {found.zero_steps} of {found.steps} steps")
    judged = f"{found.cost.reward_calls} different {found.subject.written}s judged"
    grid.add_row("cost", f"{found.cost.tokens} tokens generated, {judged}")
    return grid
