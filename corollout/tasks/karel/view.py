"""How Karel tasks, and programs generated for them, are shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corollout.data import Split
from corollout.tasks.karel.grids import unpack
from corollout.tasks.karel.language import TOKENS, KarelSyntaxError, parse, token_kind
from corollout.tasks.karel.machine import STATUS, Programs, execute
from corollout.tasks.karel.metrics import judge_lists
from corollout.tasks.karel.show import CSS, TOKEN_STYLES, program_text, titled, world_svg
from corollout.tasks.karel.world import World, same_state
from corollout.tasks.views import ExampleView
from corollout.types import Decoded, Sampler

_WHEN = ("before", "after")
NBSP = "\N{NO-BREAK SPACE}"
RIGHT, NO_PROGRAM = "right", "no program"
_VERDICTS = {"ok": "wrong world", "crash": "crash", "timeout": "time-out", "syntax": NO_PROGRAM}
_COLOURS = {RIGHT: "green", "wrong world": "red", "crash": "red", "time-out": "yellow", NO_PROGRAM: "magenta"}


@dataclass(frozen=True)
class Attempt:
    """A program for a task, and how it did on each pair of worlds, the last of which is held out."""

    program: Decoded
    verdicts: list[str]
    reached: list[World]
    is_exact: bool  # equal to the reference program

    @property
    def solves(self) -> bool:
        return all(verdict == RIGHT for verdict in self.verdicts)


class KarelView(ExampleView):
    """A Karel task: its worlds, and the verdicts on programs."""

    example_noun, output_noun = "task", "program"
    is_graded = False
    token_styles = TOKEN_STYLES
    css = CSS

    def __init__(self, split_name: str, split: Split, index: int):
        super().__init__(split_name, split, index, TOKENS)
        data = split.data
        before, after = data.inputs[index], data.outputs[index]
        self.reference: list[int] = data.tokens[index, : data.lengths[index]].tolist()
        self.worlds = [(unpack(before[e]), unpack(after[e])) for e in range(data.examples)]  # the last is held out
        self.names = [*(f"example {e + 1}" for e in range(data.examples - 1)), "held out"]

    def heading(self) -> Text:
        return super().heading().append(f" id {self.id}", "dim")

    def record(self) -> dict[str, Any]:
        return {"reference": self.tokens(self.reference)}

    def token_style(self, token: str) -> str:
        return token_kind(token)

    def show(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim")
        grid.add_row("reference", self.tokens_text(self.reference))
        return grid

    def html(self) -> str:
        figures = []
        for name, pair in zip(self.names, self.worlds, strict=True):
            before, after = (world_svg(world, f"{name}, {when}") for world, when in zip(pair, _WHEN, strict=True))
            held = " held" if name == self.names[-1] else ""
            figures.append(
                f'<figure class="example{held}"><figcaption>{name}</figcaption>'
                f"<div>{before}<span>→</span>{after}</div></figure>"
            )
        reference = f"<p>Reference program: {self.tokens_html(self.reference)}</p>"
        return f'{reference}<div class="examples">{"".join(figures)}</div>'

    def attempts(self, programs: Sequence[Decoded]) -> list[Attempt]:
        """Run programs on all worlds of the task."""
        sequences = [program.tokens for program in programs]
        right = judge_lists(self.split.data, sequences, [self.index] * len(sequences)).right
        runs = execute(Programs.pack(sequences), self.split.data.inputs[np.full(len(sequences), self.index)])
        attempts = []
        for i, program in enumerate(programs):
            ends = zip(right[i], runs.status[i], strict=True)
            verdicts = [RIGHT if is_right else _VERDICTS[STATUS[status]] for is_right, status in ends]
            reached = [unpack(runs.grids[i, e]) for e in range(len(verdicts))]
            attempts.append(Attempt(program, verdicts, reached, program.tokens == self.reference))
        return attempts

    def output_records(self, outputs: Sequence[Decoded]) -> list[dict[str, Any]]:
        return [
            {
                "tokens": self.tokens(attempt.program.tokens),
                "log_probability": attempt.program.log_probability,
                "verdicts": attempt.verdicts,
                "solves": attempt.solves,
                "exact": attempt.is_exact,
            }
            for attempt in self.attempts(outputs)
        ]

    def show_outputs(self, outputs: Sequence[Decoded], sampler: Sampler) -> RenderableType:
        attempts = self.attempts(outputs)
        pairs = [_pair(name, pair, _WHEN) for name, pair in zip(self.names, self.worlds, strict=True)]
        parts: list[RenderableType] = [Columns(pairs, padding=(1, 4))]
        for rank, attempt in enumerate(attempts, 1):
            title = "program" if sampler.mode == "greedy" else f"program {rank} of {len(attempts)}, {sampler.mode}"
            program = Padding(self._program(attempt.program.tokens), (0, 0, 0, 2))
            parts += [Text(title, "bold"), program, self._verdicts(attempt), self._wrong(attempt)]
        if not all(attempt.is_exact for attempt in attempts):
            parts.append(Text(f"reference: {' '.join(self.tokens(self.reference))}", "dim"))
        return Group(*parts)

    def _program(self, tokens: list[int]) -> Text:
        try:
            return program_text(parse(tokens))
        except KarelSyntaxError as error:
            return Text(" ".join(self.tokens(tokens)) or "(empty)").append(f"\n{NO_PROGRAM}: {error}", "magenta")

    def _verdicts(self, attempt: Attempt) -> Text:
        verdicts = []
        for name, verdict in zip(self.names, attempt.verdicts, strict=True):
            # No line breaks inside a verdict.
            label = (f"{name}: ".replace(" ", NBSP), "dim")
            verdicts.append(Text.assemble(label, (verdict.replace(" ", NBSP), f"bold {_COLOURS[verdict]}")))
        text = Text("  ").join(verdicts)
        text.append("\nsolves the task" if attempt.solves else "\ndoes not solve the task", "bold")
        return text.append(f", and is {'' if attempt.is_exact else 'not '}the reference program")

    def _wrong(self, attempt: Attempt) -> RenderableType:
        """The worlds that the program should have reached, each beside the one that it did."""
        results = zip(self.names, self.worlds, attempt.reached, attempt.verdicts, strict=True)
        wrong = [
            _pair(f"{name}: {verdict}", (expected, reached), ("expected", "reached"))
            for name, (_, expected), reached, verdict in results
            if verdict != NO_PROGRAM and not same_state(expected, reached)
        ]
        return Padding(Columns(wrong, padding=(1, 4)), (1, 0, 0, 0)) if wrong else ""


def _pair(name: str, worlds: tuple[World, World], titles: tuple[str, str]) -> Group:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(*(titled(world, title) for world, title in zip(worlds, titles, strict=True)))
    return Group(Text(name, "bold underline"), grid, "")
