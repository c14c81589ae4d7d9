"""The settings of ``corollout demo`` and ``corollout reproduce``."""

from dataclasses import dataclass
from pathlib import Path

from corollout.config import option, required, switch
from corollout.tasks.spec import SCALES


@dataclass(frozen=True)
class DemoSettings:
    """The settings of ``demo``."""

    out: Path = option(Path("demo"), "Folder for the results; each demo makes a folder of its own in it.")
    seconds: float = option(30.0, "Seconds of CPU time that each method may train.", least=1e-3)
    tokens: int | None = option(None, "Tokens that each method may generate, as a budget instead of seconds.", least=1)
    epochs: int | None = option(None, "Maximum number of epochs of maximum likelihood. [default: 16]", least=1)
    estimates: int = option(20, "Gradient estimates for each method's variance.", least=3)
    seed: int = option(0, "Seed of all random numbers.")
    jobs: int = option(2, "Runs at the same time.", least=1)


@dataclass(frozen=True)
class SweepSettings:
    """Settings of ``corollout reproduce``; those that are not given are the folder's, or else the scale's."""

    out: Path = required("Folder for data, runs and report; give it again to continue.")
    scale: str | None = option(None, "Sizes and budgets. [default: small]", choices=SCALES)
    seeds: tuple[int, ...] = option((), "Seeds. [default: from the scale]")
    methods: tuple[str, ...] = option((), "Methods, as in ARSM,RLOO. [default: all]", metavar="<name,…>")
    data: Path | None = option(None, "Folder of existing data. [default: generated data]")
    jobs: int = option(2, "Runs at the same time.", least=1)
    threads: int | None = option(None, "Threads of each run. [default: 1]", least=1)
    device: str | None = option(None, "Where to compute: cpu, cuda, cuda:1 and so on. [default: cpu]")
    report_only: bool = switch("Only report what is done so far.")


@dataclass(frozen=True)
class Table2Settings(SweepSettings):
    vectors: Path | None = option(None, "File of word vectors in GloVe's format; without it there is no tree_WV.")


@dataclass(frozen=True)
class ColdStartSettings:
    """Settings of ``corollout reproduce coldstart``."""

    out: Path = required("Folder for results and report; give it again to continue.")
    scale: str | None = option(None, "Sizes and seconds. [default: small]", choices=("tiny", "small"))
    seeds: tuple[int, ...] = option((), "Seeds. [default: from the scale]")
    jobs: int = option(2, "Runs at the same time.", least=1)
    report_only: bool = switch("Only report what is done so far.")
