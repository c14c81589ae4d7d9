"""``corollout evaluate``: how good the weights of a run are."""

import json
import os

import typer

from corollout.cli.settings import Evaluating
from corollout.cli.tables import evaluation_table
from corollout.cli.terminal import Terminal
from corollout.launch import is_first
from corollout.training.start import evaluate_run, save_evaluation


def evaluate(settings: Evaluating) -> None:
    """Compute all metrics of a run's task, with 95 % intervals: for greedy decoding, and for a beam.

    The numbers are also written to evaluation-SPLIT.json in the run's directory, unless it is read-only.
    """
    s = settings
    task, result = evaluate_run(s.run, s.split, s.beam, s.weights, s.device, s.data)
    if settings.json:
        typer.echo(json.dumps(result.numbers()))
    else:
        Terminal().print(evaluation_table(result, settings.split, task.metric))
    if not is_first():
        return
    if os.access(settings.run, os.W_OK):
        save_evaluation(settings.run, settings.split, settings.weights, result)
    else:  # the run may be somebody else's
        warning = f"warning: the numbers are not saved, because {settings.run} is read-only"
        Terminal(stderr=True, soft_wrap=True).print(warning)
