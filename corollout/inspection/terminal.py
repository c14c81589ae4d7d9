"""A gradient estimate in the terminal: main sequences step by step, with their branches below."""

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corollout.inspection.credit import Inspection
from corollout.reports.tables import reward_text
from corollout.training.credit import Branch, MainSequence, Step

_TONES = {"good": "bold green", "bad": "red", "even": "bold"}


def inspection_heading(inspection: Inspection) -> Text:
    return inspection.view.heading().append(f"   {inspection.estimator}, seed {inspection.seed}", "not bold not dim")


def show_inspection(inspection: Inspection, branches: int = 0) -> Group:
    """The example, the sequences and the totals, with at most so many branches of a step (0: all)."""
    flat = inspection.is_flat
    mains = [_samples(inspection)] if flat else [_tree(inspection, main, branches) for main in inspection.mains]
    note = [Text(inspection.note, "dim"), ""] if inspection.note else []
    return Group(inspection.view.show(), "", *mains, *note, _totals(inspection))


def _samples(inspection: Inspection) -> Table:
    """A line for each sequence."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("reward", "advantage", "weight", "‖g‖", "probability"):
        table.add_column(heading, justify="right", vertical="top")
    table.add_column(inspection.view.output_noun, ratio=1)
    for main in inspection.mains:
        assert main.advantage is not None
        table.add_row(
            _reward(inspection, main),
            f"{main.advantage:+.3g}",
            f"{main.weight:.3g}",
            f"{main.norm:.3g}",
            f"{main.probability:.2g}",
            inspection.view.tokens_text(main.sequence),
        )
    return table


def _tree(inspection: Inspection, main: MainSequence, most: int) -> Group:
    view = inspection.view
    head = Text.assemble((f"main {view.output_noun}", "bold"), "   reward ", _reward(inspection, main))
    head.append(f"   probability {main.probability:.2g}   rollouts {main.rollouts}")
    if main.advantage is not None:
        head.append(f"   advantage {main.advantage:+.3g}")
    if main.weight is not None and main.weight != 1:
        head.append(f"   weight {main.weight:.3g}")
    lines: list[RenderableType] = [head]
    if view.is_prose:
        lines.append(Padding(view.tokens_text(main.sequence), (0, 0, 0, 5)))
    width = max(map(len, view.tokens(main.sequence)))
    for index, step in enumerate(main.steps):
        lines.append(_step(inspection, index, step, width, with_advantage=main.advantage is None))
        if step.branches:
            lines.append(_branches(inspection, main, index, step, most))
    return Group(*lines, "")


def _step(inspection: Inspection, index: int, step: Step, width: int, with_advantage: bool) -> Text:
    token = inspection.view.tokens_text([step.token])
    line = Text(f"{index:3}  ", "dim").append_text(token).append(" " * (width - len(token)))
    line.append(f"  p {step.probability:.3f}")
    if step.advantage is not None and with_advantage:
        line.append(f"  A {step.advantage:+.2f}")
    line.append(f"  ‖g‖ {step.norm:.2g}", "dim" if step.is_zero else "bold")
    for arrow, colour, move in zip("↑↓", ("green", "red"), step.moves, strict=True):
        if move is not None:
            line.append(f"  {arrow} {inspection.view.tokens([move[0]])[0]} {move[1]:+.2g}", colour)
    return line


def _branches(inspection: Inspection, main: MainSequence, index: int, step: Step, most: int) -> Padding:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right", "left"):
        grid.add_column(no_wrap=True, justify=justify)
    grid.add_column(ratio=1)
    ordered = sorted(step.branches, key=lambda branch: -branch.norm)
    shown = ordered[:most] if most else ordered
    for branch in shown:
        token = inspection.view.tokens_text([branch.token])
        if branch.kind != "pseudo-action":
            token.append(f" ({branch.kind})", "dim")
        reward, rest = _reward(inspection, main, branch), _rest(inspection, index, branch)
        grid.add_row("└" if branch is ordered[-1] else "├", token, reward, f"‖C‖ {branch.norm:.2g}", rest)
    if len(shown) < len(ordered):
        grid.add_row("└", Text(f"{len(ordered) - len(shown)} more", "dim"))
    return Padding(grid, (0, 0, 0, 5))


def _rest(inspection: Inspection, index: int, branch: Branch) -> Text:
    """How a branch continues; if sequences are prose, the whole sentence."""
    view = inspection.view
    after = view.tokens_text(branch.sequence[index + 1 :])
    if not view.is_prose:
        return Text("… ", "dim").append_text(after)
    before = Text(" ".join(view.tokens(branch.sequence[:index])), "dim")
    taken = Text(view.tokens([branch.token])[0], "bold underline")
    return Text(" ").join(part for part in (before, taken, after) if part)


def _reward(inspection: Inspection, main: MainSequence, branch: Branch | None = None) -> Text:
    return Text(reward_text((branch or main).reward), _TONES[inspection.tone(main, branch)])


def _totals(inspection: Inspection) -> Table:
    totals, output = inspection.totals, inspection.view.output_noun
    name = "reward" if len(inspection.mains) == 1 else "mean reward"
    zero = f"exactly zero at {totals['zero_steps']} of {totals['steps']} steps"
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row("rollouts", f"{totals['rollouts']}, {totals['rollouts_per_step']:.2f} per step")
    grid.add_row(name, f"{totals['mean_reward']:.3g} ({inspection.reward})")
    grid.add_row("gradient", f"‖g‖ {inspection.norm:.3g}; {zero}")
    grid.add_row("cost", f"{totals['tokens']} tokens generated, {totals['reward_calls']} different {output}s scored")
    return grid
