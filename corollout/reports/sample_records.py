"""Samples read back from JSON that may come from somebody else: every entry has its type, or is a sentence."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.files import read_bytes
from corollout.reports.typed import build
from corollout.training.runs import SAMPLES, Run
from corollout.training.samples import Message, SampledBranch, SampledContext, SampledSequence, Samples


def read_samples(run: Run) -> list[Samples]:
    """What a run has kept; an ``InputError`` if a record is something else."""
    return [samples_of(record, run.directory / SAMPLES, line) for line, record in enumerate(run.samples(), start=1)]


def read_samples_file(path: Path) -> list[Samples]:
    """The records of a file ``samples.jsonl``. A last line that a killed process left without its end is ignored."""
    records = []
    for number, line in enumerate(read_bytes(path).split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number} is damaged: it is not valid JSON ({error})") from error
        records.append(samples_of(record, path, number))
    return records


def samples_of(record: Any, path: Path, line: int) -> Samples:
    """A record of a file, with all its parts."""
    try:
        return _samples(record)
    except (InputError, AttributeError, KeyError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise InputError(f"{path}, line {line} is damaged: {reason}") from error


def _samples(record: Mapping[str, Any]) -> Samples:
    contexts = []
    for context in record["contexts"]:
        sequences = [_sequence(sequence) for sequence in context["sequences"]]
        prompt = [build(Message, message) for message in context.get("prompt", [])]
        contexts.append(build(SampledContext, {**context, "sequences": sequences, "prompt": prompt}))
    return build(Samples, {**record, "contexts": contexts})


def _sequence(record: Mapping[str, Any]) -> SampledSequence:
    branches = [build(SampledBranch, branch) for branch in record.get("branches", [])]
    one = build(SampledSequence, {**record, "branches": branches})
    if not len(one.tokens) == len(one.pieces) == len(one.credit) == len(one.probability):
        raise InputError("a sequence needs as many pieces, credits and probabilities as tokens")
    if one.entropy and len(one.entropy) != len(one.tokens):
        raise InputError("a sequence needs as many entropies as tokens, or none")
    if any(not 0 <= branch.step < len(one.tokens) for branch in one.branches):
        raise InputError("a branch must depart from a token of its sequence")
    return one
