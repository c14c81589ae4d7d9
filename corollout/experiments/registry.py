"""The experiments by the name under which ``corollout reproduce`` runs them."""

from dataclasses import dataclass

from corollout.errors import InputError
from corollout.experiments.settings import ColdStartSettings, SweepSettings, Table2Settings


@dataclass(frozen=True)
class ExperimentEntry:
    """What the command line knows of an experiment before it runs."""

    experiment: str  # import path of a corollout.experiments.experiment.Experiment
    help: str
    # A settings class with at least ``out``, the folder of everything, to which ``report`` is added, and
    # ``report_only``.
    settings: type = SweepSettings


_HERE = "corollout.experiments"
EXPERIMENTS: dict[str, ExperimentEntry] = {
    "table1": ExperimentEntry(
        f"{_HERE}.table1:TABLE1",
        "Table 1: Karel by maximum likelihood, then fine-tuned by every method with its best learning rate.",
    ),
    "table2": ExperimentEntry(
        f"{_HERE}.table2:TABLE2",
        "Table 2: captions by maximum likelihood, then fine-tuned on CIDEr-D by every method. The upper half has a "
        "softmax over all words; the lower half a binary tree of them.",
        Table2Settings,
    ),
    "curves-karel": ExperimentEntry(
        f"{_HERE}.curves:KAREL_CURVES",
        "Karel: estimators of the paper and later ones, at equal seconds and at equal tokens.",
    ),
    "curves-captions": ExperimentEntry(
        f"{_HERE}.curves:CAPTION_CURVES",
        "Captions: estimators of the paper and later ones, at equal seconds and at equal tokens.",
    ),
    "coldstart": ExperimentEntry(
        f"{_HERE}.cold_start:COLD_START",
        "Learn from random weights with thousands of actions, where one full ARSM update may take longer than the "
        "whole budget.",
        ColdStartSettings,
    ),
}


def find_entry(name: str) -> ExperimentEntry:
    if name not in EXPERIMENTS:
        raise InputError(f"unknown experiment {name!r}: choose one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
