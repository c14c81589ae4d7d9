"""Run the reliability proof: ``python -m tests.reliability [SUITE …] [--share 0.01] [--jobs 2] [--out FOLDER]``.

What a suite has found goes to FOLDER/SUITE.json when it ends, so that suites can be run one by one. The table of counts
is printed at the end; ``table.md`` in FOLDER is written when all suites have run in full. The exit code is 1 if
anything failed.
"""

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from corollout.reports.manifest import manifest
from tests.reliability.results import page, read_results, run_suite, table

# The longest first, so that two at a time end at about the same time.
NAMES = ("readers", "command_lines", "guided", "signals", "kills", "numerics", "endurance", "ranks", "disks", "writers")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(NAMES)}. [default: all]")
    parser.add_argument("--share", type=float, default=1.0, help="Share of the cases.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of everything random.")
    parser.add_argument("--jobs", type=int, default=1, help="Suites at the same time.")
    parser.add_argument("--out", type=Path, help="Folder for the results and the table.")
    given = parser.parse_args()
    if unknown := set(given.suites) - set(NAMES):
        parser.error(f"unknown suite {min(unknown)}: choose from {', '.join(NAMES)}")
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        settings = (given.share, given.seed, manifest(), given.out)
        jobs = [pool.submit(run_suite, name, *settings) for name in given.suites or NAMES]
        results = [job.result() for job in jobs]
    print(table(results))
    if given.out is not None:
        known = read_results(given.out, NAMES)
        if len(known) == len(NAMES) and all(one.share == 1 and one.seed == given.seed for one in known):
            (given.out / "table.md").write_text(page(known))
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
