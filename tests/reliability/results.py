"""One suite of the reliability proof, run and counted; and the page of all suites, each with its commit."""

import importlib
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.reliability.suite import Suite


@dataclass(frozen=True)
class Result:
    """What a suite has found: cases by what was tried, the failures, how long it took, and what it was run on."""

    name: str
    promise: str
    counts: dict[str, int]
    failures: list[str]
    seconds: float
    seed: int
    share: float
    commit: str | None
    date: str
    machine: str

    @property
    def cases(self) -> int:
        return sum(self.counts.values())


def find_suite(name: str) -> Suite:
    return importlib.import_module(f"tests.reliability.{name}").SUITE


def run_suite(name: str, share: float, seed: int, facts: dict[str, Any], out: Path | None) -> Result:
    """Run a suite, and write what it found to a file of its own, which the page is made from."""
    suite = find_suite(name)
    cases = math.ceil(share * suite.cases)
    counts: dict[str, int] = {}
    failures: list[str] = []
    began = shown = time.monotonic()
    for outcome in suite.run(cases, seed):
        counts[outcome.what] = counts.get(outcome.what, 0) + outcome.cases
        for failure in outcome.failures:
            failures.append(f"{outcome.what}: {failure}")
            print(f"FAILED {name}: {failures[-1]}", file=sys.stderr, flush=True)
        if time.monotonic() > shown + 30:
            shown = time.monotonic()
            print(f"{name}: {sum(counts.values()):,} of {cases:,}", file=sys.stderr, flush=True)
    seconds, machine = time.monotonic() - began, f"{facts['machine']['cores']} cores of {facts['machine']['cpu']}"
    made = (seed, share, facts["commit"], facts["date"], machine)
    result = Result(name, suite.promise, dict(sorted(counts.items())), failures, round(seconds, 1), *made)
    if out is not None:
        (out / f"{name}.json").write_text(json.dumps(asdict(result), indent=2, ensure_ascii=False) + "\n")
    return result


def read_results(out: Path, names: Sequence[str]) -> list[Result]:
    """The results in a folder of those suites that have run there."""
    paths = [out / f"{name}.json" for name in names]
    return [Result(**json.loads(path.read_text())) for path in paths if path.exists()]


def table(results: Sequence[Result]) -> str:
    lines = ["| suite | promise | cases | failures | minutes | commit |", "|---|---|---:|---:|---:|---|"]
    for one in results:
        cells = [one.name, one.promise, f"{one.cases:,}", str(len(one.failures)), f"{one.seconds / 60:.1f}"]
        lines.append(f"| {' | '.join([*cells, str(one.commit)])} |")
    return "\n".join(lines)


def page(results: Sequence[Result]) -> str:
    """The table, and what each suite tried how often."""
    failures, machines = sum(len(one.failures) for one in results), sorted({one.machine for one in results})
    about = (
        f"`python -m tests.reliability --jobs 2 --out results/reliability`, seed {results[0].seed}, "
        f"{'; '.join(machines)}, {min(one.date for one in results)[:10]}: {sum(one.cases for one in results):,} cases, "
        f"{failures} failures."
    )
    parts = []
    for one in results:
        tried = [f"| {what} | {count:,} |" for what, count in one.counts.items()]
        parts.append("\n".join([f"## {one.name}\n", "| tried | cases |", "|---|---:|", *tried]))
    return "\n\n".join(["# Reliability", about, table(results), *parts]) + "\n"
