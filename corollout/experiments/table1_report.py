"""What the report of the paper's first table says of Karel."""

from corollout.reports.tables import NOTHING, TextTable, percent
from corollout.sweeps.report import Collected, Words
from corollout.sweeps.sweep import Sweep

_DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100)


def _lead(sweep: Sweep) -> str:
    data = sweep.data
    return (
        f"The reward is 1 for a program that is right on all examples of its task, else 0. A model learns from "
        f"{data.train:,} tasks with programs of {data.shortest} to {data.longest} tokens,"
    )


def _beam_table(found: Collected) -> TextTable:
    tops = {method.label: method.scores["test"].top for method in found.methods if "test" in method.scores}
    longest = max((len(top) for top in tops.values()), default=0)
    depths = [k for k in _DEPTHS if k <= longest]
    rows = [
        [label, *(percent(top[k - 1]) if k <= len(top) else NOTHING for k in depths)] for label, top in tops.items()
    ]
    note = (
        f"Share of test tasks in per cent for which one of the first k programs of a beam of {longest} is right on all "
        f"examples, mean over seeds."
    )
    return TextTable("Beam search, test", ["method", *(f"top {k}" for k in depths)], rows, [note])


TABLE1_WORDS = Words(
    title="Fine-tuning a Karel synthesiser",
    lead=_lead,
    paper={
        "MLE": {"validation": 13.6, "test": 12.76},
        "SC": {"validation": 12.51, "test": 12.12},
        "MC-0": {"validation": 12.64, "test": 12.56},
        "MC-2": {"validation": 13.56, "test": 12.76},
        "RL_beam": {"validation": 14.76, "test": 14.92},
        "ARSM": {"validation": 17.07, "test": 16.28},
    },
    paper_note=(
        "The paper's numbers, in per cent, are of other tasks, with programs of up to 45 tokens in worlds of up to 16 "
        "by 16, and of a model of 12 million weights. They are here for orientation: the order of methods may agree, "
        "no number has to."
    ),
    tables=lambda sweep, found: [_beam_table(found)],
)
