"""``corollout demo``: four estimators fine-tune the same policy at the same cost."""

import copy
import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from corollout.data import Columns
from corollout.errors import InputError
from corollout.estimators import make_estimator
from corollout.noise import Noise
from corollout.reports import figures, html
from corollout.reports.manifest import manifest
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.sorting import sorting_data, sorting_engine, sorting_reward
from corollout.training import Metrics, Probe, Trainer, evaluate, pretrain, probe_variance

METHODS = {"ARSM": "arsm", "RLOO-4": "rloo-4", "self-critic": "sc", "REINFORCE": "reinforce"}
SYMBOLS, SHORTEST, LONGEST = 20, 5, 10
BATCH = 64
HEADER = (
    "method",
    "reward before",
    "reward after",
    "gradient variance",
    "variance × tokens",
    "rollouts per step",
    "updates",
    "seconds",
)
LEAD = (
    "A policy learns to sort lists of symbols from examples, briefly; then four estimators fine-tune it from the same "
    "weights, on a reward that is 1 for the right list and 0 for anything else, until each has generated the same "
    "number of tokens."
)
NOTES = (
    "Reward: share of held-out lists that a sampled sequence sorts, which is what is optimised, before and after "
    "fine-tuning. Gradient variance: trace of the covariance of independent estimates at the weights before "
    "fine-tuning, for one batch of contexts, ± its standard error; variance × tokens multiplies it by what an estimate "
    "costs, so that lower is better at equal cost. Rollouts per step: completed branches, greedy baselines included, "
    "for each token of the main trajectories. One seed and one small task: it shows how the methods work, not which is "
    "best."
)


@dataclass(frozen=True)
class Outcome:
    """What one method did."""

    name: str
    estimator: str
    before: float
    after: float
    probe: Probe
    history: list[Metrics]

    def cells(self) -> list[str]:
        last = self.history[-1]
        rollouts = sum(m.rollouts_per_step for m in self.history) / len(self.history)
        return [
            self.name,
            f"{self.before:.3f}",
            f"{self.after:.3f}",
            f"{self.probe.variance:.1f} ± {self.probe.variance_error:.1f}",
            f"{self.probe.variance * self.probe.tokens:,.0f}",
            f"{rollouts:.2f}",
            str(last.update),
            f"{last.seconds:.1f}",
        ]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; each run makes a folder of its own in it.")] = Path(
        "demo"
    ),
    tokens: Annotated[int, typer.Option(min=1, help="Tokens that each method may generate.")] = 600_000,
    pretraining: Annotated[int, typer.Option(min=1, help="Batches of maximum-likelihood training before.")] = 250,
    estimates: Annotated[int, typer.Option(min=3, help="Independent estimates for each method's variance.")] = 40,
    rate: Annotated[float, typer.Option(help="Learning rate of Adam, the same for all methods.")] = 5e-4,
    seed: Annotated[int, typer.Option(help="Seed of everything that is random.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads; a model this small is fastest with one.")] = 1,
) -> None:
    """Pre-train a small LSTM to sort lists, fine-tune it by ARSM, RLOO, self-critic and REINFORCE, and compare."""
    if not rate > 0:
        raise InputError(f"the learning rate must be positive, not {rate}")
    torch.set_num_threads(threads)
    console = Console()
    folder = _new_folder(out)
    train = sorting_data(20_000, SYMBOLS, SHORTEST, LONGEST, seed=2 * seed)
    held_out = sorting_data(1_000, SYMBOLS, SHORTEST, LONGEST, seed=2 * seed + 1)
    engine = sorting_engine(SYMBOLS, LONGEST, hidden=96, seed=seed)
    reward = sorting_reward()
    with _progress(console) as progress:
        _pretrain(engine, train, pretraining, seed, progress)
        before = evaluate(engine, held_out, reward, mode="sample", seed=seed)
        weights = copy.deepcopy(_policy(engine).state_dict())
        probes = _probe_all(engine, train, reward, estimates, seed, progress)
        outcomes = []
        for name, estimator in METHODS.items():
            _policy(engine).load_state_dict(weights)
            trainer = Trainer(
                engine,
                train,
                reward,
                make_estimator(estimator),
                torch.optim.Adam(_policy(engine).parameters(), lr=rate),
                batch_size=BATCH,
                seed=seed,
                directory=folder / estimator,
            )
            history = _finetune(trainer, name, tokens, progress)
            after = evaluate(engine, held_out, reward, mode="sample", seed=seed)
            outcomes.append(Outcome(name, estimator, before, after, probes[name], history))
    facts = manifest(
        seed=seed, tokens=tokens, pretraining=pretraining, estimates=estimates, learning_rate=rate, batch=BATCH
    )
    _write(folder, outcomes, facts)
    console.print(_table(outcomes, tokens))
    console.print(f"[dim]{NOTES}[/dim]", highlight=False)
    console.print(f"Report: {folder / 'report.html'}", highlight=False, soft_wrap=True)


def _new_folder(out: Path) -> Path:
    folder = out / datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; choose another with --out") from error
    return folder


def _policy(engine: Engine) -> torch.nn.Module:
    assert isinstance(engine.policy, torch.nn.Module)
    return engine.policy


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def _pretrain(engine: Engine, train: Columns, batches: int, seed: int, progress: Progress) -> None:
    task = progress.add_task("maximum likelihood", total=batches, note="")
    optimizer = torch.optim.Adam(_policy(engine).parameters(), lr=2e-3)
    epochs = -(-batches * BATCH // len(train))
    for number, loss in enumerate(pretrain(engine, train, optimizer, epochs=epochs, batch_size=BATCH, seed=seed), 1):
        progress.update(task, completed=number, note=f"{loss:.2f} nats a token")
        if number == batches:
            return


def _probe_all(
    engine: Engine, train: Columns, reward: Reward, estimates: int, seed: int, progress: Progress
) -> dict[str, Probe]:
    """The variance of each method at the same weights, on the same contexts."""
    task = progress.add_task("gradient variance", total=estimates * len(METHODS), note="")
    batch = train.batch(range(BATCH))
    probes = {}
    for name, estimator in METHODS.items():
        progress.update(task, note=name)
        method, noise = make_estimator(estimator), Noise(seed).fold(0)
        probes[name] = probe_variance(
            engine, batch, reward, method, estimates, noise, on_estimate=lambda: progress.advance(task)
        )
    progress.update(task, note="")
    return probes


def _finetune(trainer: Trainer, name: str, tokens: int, progress: Progress) -> list[Metrics]:
    task = progress.add_task(name, total=tokens, note="")
    history = []
    for metrics in trainer.run(tokens=tokens):
        history.append(metrics)
        note = f"reward {metrics.reward:.2f}, {metrics.rollouts_per_step:.1f} rollouts a step"
        progress.update(task, completed=min(metrics.tokens, tokens), note=note)
    return history


def _table(outcomes: list[Outcome], tokens: int) -> Table:
    table = Table(title=f"Sorting lists, {tokens:,} tokens for each method", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in HEADER:
        # Two words, two lines: it fits into 80 columns.
        table.add_column(
            heading.replace(" ", "\n", 1), justify="left" if heading == "method" else "right", no_wrap=True
        )
    for outcome in outcomes:
        table.add_row(*outcome.cells())
    return table


def _write(folder: Path, outcomes: list[Outcome], facts: dict[str, object]) -> None:
    """The figure, the page, and all numbers with their manifest."""
    series = [
        figures.Series(
            o.name,
            [m.tokens for m in o.history],
            [m.reward for m in o.history],
            [m.rollouts_per_step for m in o.history],
            o.probe.variance,
            o.probe.variance_error,
        )
        for o in outcomes
    ]
    figure = figures.comparison_figure(series, outcomes[0].before)
    figure.savefig(folder / "figure.png", dpi=160)
    rows = [  # each method's whole history is in its own folder
        {
            "name": o.name,
            "estimator": o.estimator,
            "reward_before": o.before,
            "reward_after": o.after,
            "probe": asdict(o.probe),
            "last_update": asdict(o.history[-1]),
        }
        for o in outcomes
    ]
    (folder / "results.json").write_text(json.dumps({"manifest": facts, "methods": rows}, indent=2) + "\n")
    sections = [
        ("Result", html.table(HEADER, [o.cells() for o in outcomes]) + html.paragraph(NOTES)),
        ("Figure", html.figure(figures.svg(figure))),
        ("How this was made", html.facts(facts)),
    ]
    (folder / "report.html").write_text(html.page("Four estimators, one policy", LEAD, sections))
