"""``corollout inspect``: a gradient estimate for one task, with all that was rolled out for it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corollout.cli.drawing import token_style
from corollout.cli.generate import SPLIT, WEIGHTS
from corollout.cli.training import RUN
from corollout.errors import InputError
from corollout.experiments.inspection import Branch, Inspection, MainSequence, Step, inspect_run
from corollout.reports.inspection import inspection_page
from corollout.reports.manifest import manifest
from corollout.tasks.karel.language import TOKENS, decode


def inspect(
    run: RUN,
    split: SPLIT = "val",
    task: Annotated[int, typer.Option(help="Number of the task, from 0.")] = 0,
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
    """Show how a gradient comes about: the program sampled, where others branch off it, and what their rewards do."""
    found = inspect_run(run, split=split, number=task, estimator=estimator, seed=seed, weights=weights)
    if html is not None:
        _write(html, inspection_page(found, manifest(seed=seed)))
    if as_json:
        typer.echo(json.dumps(record(found)))
        return
    console = Console(highlight=False)
    title = f"[bold]{split}, task {task}[/bold] [dim]id {found.id}[/dim]   {found.estimator}, seed {seed}"
    console.rule(title, align="left")
    console.print(Padding(_report(found, most), (1, 2, 1, 2)))
    if html is not None:
        console.print(f"Page: {html}", soft_wrap=True)


def record(found: Inspection) -> dict[str, object]:
    """All of it but the vectors, whose norms are given, with tokens by name."""
    return {
        "split": found.split,
        "task": found.task,
        "id": found.id,
        "estimator": found.estimator,
        "reward": found.reward,
        "seed": found.seed,
        "reference": decode(found.reference),
        "mains": [
            {
                "tokens": decode(main.sequence),
                "reward": main.reward,
                "probability": main.probability,
                "weight": main.weight,
                "gradient_norm": main.norm,
                "steps": [_step_record(step) for step in main.steps],
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


def _step_record(step: Step) -> dict[str, object]:
    return {
        "token": TOKENS[step.token],
        "probability": step.probability,
        "advantage": step.advantage,
        "gradient_norm": step.norm,
        "raised_most": _named(step.raised),
        "lowered_most": _named(step.lowered),
        "branches": [
            {
                "token": TOKENS[branch.token],
                "kind": branch.kind,
                "coefficient_norm": branch.norm,
                "reward": branch.reward,
                "tokens": decode(branch.sequence),
            }
            for branch in step.branches
        ],
    }


def _named(entry: tuple[int, float] | None) -> tuple[str, float] | None:
    return None if entry is None else (TOKENS[entry[0]], entry[1])


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, "utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _report(found: Inspection, most: int) -> Group:
    reference = Text("reference  ", "dim").append_text(_words(decode(found.reference)))
    parts: list[RenderableType] = [reference, ""]
    # Whole sequences that are only compared with each other need a line each, trees more room.
    parts += [_samples(found)] if found.is_flat else [_tree(main, most) for main in found.mains]
    if found.note:
        parts += [Text(found.note, "dim"), ""]
    return Group(*parts, _totals(found))


def _samples(found: Inspection) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("reward", "advantage", "weight", "‖g‖", "probability"):
        table.add_column(heading, justify="right", vertical="top")
    table.add_column("program", ratio=1)
    for main in found.mains:
        assert main.advantage is not None
        table.add_row(
            _reward(main.reward),
            f"{main.advantage:+.3g}",
            f"{main.weight:.3g}",
            f"{main.norm:.3g}",
            f"{main.probability:.2g}",
            _words(decode(main.sequence)),
        )
    return table


def _tree(main: MainSequence, most: int) -> Group:
    head = Text("main program", "bold").append("   reward ").append_text(_reward(main.reward))
    head.append(f"   probability {main.probability:.2g}   rollouts {main.rollouts}")
    if main.advantage is not None:
        head.append(f"   advantage {main.advantage:+.3g}")
    if main.weight is not None and main.weight != 1:
        head.append(f"   weight {main.weight:.3g}")
    lines: list[RenderableType] = [head]
    width = max(len(TOKENS[step.token]) for step in main.steps)
    for number, step in enumerate(main.steps):
        lines.append(_step(number, step, width, main.advantage is None))
        if step.branches:
            lines.append(_branches(number, step, most))
    return Group(*lines, "")


def _step(number: int, step: Step, width: int, with_advantage: bool) -> Text:
    name = TOKENS[step.token]
    line = Text(f"{number:3}  ", "dim").append(name.ljust(width), token_style(name))
    line.append(f"  p {step.probability:.3f}")
    if step.advantage is not None and with_advantage:
        line.append(f"  A {step.advantage:+.2f}")
    line.append(f"  ‖g‖ {step.norm:.2g}", "dim" if step.is_zero else "bold")
    for arrow, entry, colour in (("↑", step.raised, "green"), ("↓", step.lowered, "red")):
        if entry is not None:
            line.append(f"  {arrow} {TOKENS[entry[0]]} {entry[1]:+.2g}", colour)
    return line


def _branches(number: int, step: Step, most: int) -> Padding:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    ordered = sorted(step.branches, key=lambda branch: -branch.norm)
    shown = ordered[:most] if most else ordered
    for place, branch in enumerate(shown):
        last = place == len(ordered) - 1
        grid.add_row("└" if last else "├", _action(branch), _reward(branch.reward), *_rest(number, branch))
    if len(shown) < len(ordered):
        grid.add_row("└", Text(f"{len(ordered) - len(shown)} more", "dim"))
    return Padding(grid, (0, 0, 0, 5))


def _action(branch: Branch) -> Text:
    name = TOKENS[branch.token]
    text = Text(name, token_style(name))
    return text if branch.kind == "pseudo-action" else text.append(f" ({branch.kind})", "dim")


def _rest(number: int, branch: Branch) -> tuple[Text, Text]:
    after = decode(branch.sequence[number + 1 :])
    return Text(f"‖C‖ {branch.norm:.2g}"), Text("… ", "dim").append_text(_words(after))


def _words(names: list[str]) -> Text:
    return Text(" ").join(Text(name, token_style(name)) for name in names)


def _reward(reward: float) -> Text:
    return Text(f"{reward:g}", "bold green" if reward > 0 else "red")


def _totals(found: Inspection) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row("rollouts", f"{found.cost.rollouts}, {found.rollouts_per_step:.2f} per step")
    what = "reward" if len(found.mains) == 1 else "mean reward"
    grid.add_row(what, f"{found.mean_reward:.3g}")
    grid.add_row("gradient", f"‖g‖ {found.norm:.3g}; exactly zero at {found.zero_steps} of {found.steps} steps")
    grid.add_row("cost", f"{found.cost.tokens} tokens generated, {found.cost.reward_calls} different programs run")
    return grid
