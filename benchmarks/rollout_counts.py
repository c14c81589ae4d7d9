"""Record how many rollouts and tokens each example takes, visit after visit, while a policy is fine-tuned.

    python -m benchmarks.rollout_counts RUN ESTIMATOR --examples 2048 --epochs 4

``RUN`` is a pre-training of ``corollout pretrain``, whose best weights and task are used. One line is added to
``results/bench/rollout_counts.jsonl`` for each call. ``benchmarks.imbalance`` divides these examples among processes.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from jaxtyping import Int64
from torch import Tensor, nn

from corollout.estimators import make_estimator
from corollout.files import read_text
from corollout.noise import Noise
from corollout.training.estimates import Estimate, estimate
from corollout.training.optimizers import make_adam
from corollout.training.run_weights import open_run

RECORDED = Path(__file__).parents[1] / "results" / "bench" / "rollout_counts.jsonl"
SEED = 1
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True)
class Visit:
    """What each example took when it came round once; a list has a number for each example, always in one order."""

    main_tokens: list[int]
    main_longest: list[int]  # tokens of the longest main trajectory
    branches: list[int]
    branch_tokens: list[int]  # generated after the tokens at which the branches depart
    branch_longest: list[int]


@dataclass(frozen=True)
class Recording:
    """The visits of one fine-tuning."""

    name: str
    estimator: str
    batch_size: int
    learning_rate: float
    longest: int  # the maximal length of a sequence
    mean_rewards: list[float]  # of each epoch
    visits: list[Visit]

    @property
    def label(self) -> str:
        return f"{self.name}, {self.estimator}"


def read_recordings(path: Path = RECORDED) -> list[Recording]:
    """All recordings of a file."""
    records = [json.loads(line) for line in read_text(path).splitlines()]
    return [Recording(**{**record, "visits": [Visit(**visit) for visit in record["visits"]]}) for record in records]


def visit_of(sample: Estimate) -> dict[str, Int64[Tensor, " context"]]:
    """What each context of an estimate took."""
    mains, branches = sample.trajectories, sample.plan.branches
    owner, count = mains.contexts[branches.parent], sample.contexts
    generated = sample.completed.lengths - branches.step - 1
    return {
        "main_tokens": _sums(mains.lengths, mains.contexts, count),
        "main_longest": _largest(mains.lengths, mains.contexts, count),
        "branches": owner.bincount(minlength=count),
        "branch_tokens": _sums(generated, owner, count),
        "branch_longest": _largest(generated, owner, count),
    }


def _sums(values: Tensor, owner: Tensor, count: int) -> Tensor:
    return values.new_zeros(count).scatter_add(0, owner, values)


def _largest(values: Tensor, owner: Tensor, count: int) -> Tensor:
    return values.new_zeros(count).scatter_reduce(0, owner, values, "amax")


def record(run: Path, name: str, estimator: str, examples: int, epochs: int, batch_size: int, rate: float) -> Recording:
    """Fine-tune a run's best weights in memory and note what every example takes."""
    task, engine = open_run(run)
    data, reward, noise = task.train.columns.first(examples), task.weighted_reward(""), Noise(SEED)
    policy: Any = engine.policy
    optimizer, chosen = make_adam(policy.parameters(), rate), make_estimator(estimator)
    position = {example: index for index, example in enumerate(data.ids.tolist())}
    visits: list[Visit] = []
    rewards: list[float] = []
    for epoch in range(epochs):
        noted = {field: torch.zeros(len(data), dtype=torch.int64) for field in Visit.__dataclass_fields__}
        total = 0.0
        for batch in data.epoch(batch_size, noise.fold(0, epoch)):
            optimizer.zero_grad()
            sample = estimate(engine, batch, reward, chosen, noise.fold(1, epoch))
            sample.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            chosen = sample.updated(chosen)
            total += sample.mean_reward * len(batch)
            rows = torch.tensor([position[example] for example in batch.examples.tolist()])
            for field, values in visit_of(sample).items():
                noted[field][rows] = values
        visits.append(Visit(**{field: values.tolist() for field, values in noted.items()}))
        rewards.append(round(total / len(data), 4))
    return Recording(name, estimator, batch_size, rate, engine.max_length, rewards, visits)


def main(
    run: Annotated[Path, typer.Argument(help="Directory of a pre-training.")],
    estimator: Annotated[str, typer.Argument(help="Such as arsm, or rloo-8.")],
    name: Annotated[str, typer.Option(help="What tables and figures call the problem.")] = "Karel",
    examples: Annotated[int, typer.Option(help="How many of the training examples.")] = 2048,
    epochs: Annotated[int, typer.Option(help="How often each example comes round.")] = 4,
    batch_size: Annotated[int, typer.Option()] = 32,
    learning_rate: Annotated[float, typer.Option()] = 3e-4,
    out: Annotated[Path, typer.Option(help="File to which a line is added.")] = RECORDED,
) -> None:
    """Record the rollouts and tokens of every example while a policy is fine-tuned."""
    recording = record(run, name, estimator, examples, epochs, batch_size, learning_rate)
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(recording), separators=(",", ":")) + "\n")
    print(f"{recording.label}: mean reward by epoch {recording.mean_rewards}; added to {out}.")


if __name__ == "__main__":
    typer.run(main)
