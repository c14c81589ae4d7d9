"""The card of a run, ``README.md`` in its directory: what it is, what it achieved, and how to use its weights."""

import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from corollout.config import toml_text
from corollout.errors import InputError
from corollout.files import digest_of, read_text, write_file
from corollout.provenance import machine, versions, without_paths
from corollout.tasks.spec import Metric, find_task
from corollout.text import visible
from corollout.training.base import BaseTrainer
from corollout.training.finetuning import Trainer
from corollout.training.run_metric import metric_of
from corollout.training.runs import CONFIG, METRICS, SAMPLES, Run, is_of_command

CARD = "README.md"
_MARK = re.compile(r"\n<!-- written by corollout, digest ([0-9a-f]+) -->\n$")
_COSTS = {"updates": "updates", "tokens": "tokens", "seconds": "seconds of updates", "reward_calls": "rewards computed"}
_FILES = {
    "best.safetensors": "the weights that were best in evaluations",
    CONFIG: "all settings",
    METRICS: "what every update and every evaluation measured",
    SAMPLES: "sampled sequences with their rewards and the credit of every token",
    "checkpoints": "from which the run can be resumed",
}
_FOR_A_TASK = """In this directory, where the data of the run is still in its place:

```python
from pathlib import Path

from corollout.training.run_weights import open_run

task, engine = open_run(Path("."))  # the best weights; engine.policy is the model
```

```bash
corollout evaluate .                     # on the test data
corollout generate .
corollout compare .                      # curves and samples, as a page
corollout {kind} {task}--resume --out .  # if it was interrupted
```
"""
_FOR_A_MODEL = """In this directory, with `policy` made as for the training (a `{policy}`):

```python
from pathlib import Path

from corollout.weights import read_weights

weights, _ = read_weights(Path("best.safetensors"))
policy.load_state_dict(weights)
```

`corollout.evaluate(engine, data, reward)` evaluates them, with `engine` made as for the training. A training that was
interrupted continues from its last checkpoint, with `Run.open(directory, resume=True)` in place of `Run.create`. A page
with curves and samples:

```bash
corollout compare .
```
"""


def write_card(run: Run, trainer: BaseTrainer[Any], summary: Mapping[str, Any]) -> None:
    """Write the card of a run at its end, unless there is a file of that name that is not an unchanged card."""
    path = run.directory / CARD
    if not path.exists() or is_card(path):
        text = visible(card(run, trainer, summary)).rstrip() + "\n"
        write_file(path, f"{text}\n<!-- written by corollout, digest {_digest(text)} -->\n")


def is_card(path: Path) -> bool:
    """Whether a file is a card as it was written."""
    try:
        text = read_text(path)
    except InputError:  # somebody else's, and not even UTF-8
        return False
    mark = _MARK.search(text)
    return mark is not None and mark[1] == _digest(text[: mark.start()])


def _digest(text: str) -> str:
    return digest_of([text.encode()])[:32]


def card(run: Run, trainer: BaseTrainer[Any], summary: Mapping[str, Any]) -> str:
    """The text of a run's card."""
    policy, kind = type(trainer.policy).__qualname__, run.config.get("kind")
    spec = find_task(run.config.get("task")) if is_of_command(run.config) else None
    size = sum(parameter.numel() for parameter in trainer.policy.parameters())
    how = "trained by maximum likelihood"
    if isinstance(trainer, Trainer):
        how = f"fine-tuned on the reward `{trainer.reward.name}` with {trainer.estimator.label}"
    if spec is None:
        about, use = "", _FOR_A_MODEL.format(policy=policy)
    else:
        about = f" for the task `{spec.name}`"
        use = _FOR_A_TASK.format(kind=kind, task=f"{run.config['task']} " if kind == "pretrain" else "")
    present = [f"| `{file}` | {what} |" for file, what in _FILES.items() if (run.directory / file).exists()]
    facts = [", ".join(f"{name} {value}" for name, value in part.items()) for part in (versions(), machine())]
    sections = {
        "Results": _results(run, metric_of(run), summary),
        "Data": _data(run, trainer),
        "Use": use,
        "Settings": f"```toml\n{toml_text(without_paths(run.config)).strip()}\n```",
        "Files": "\n".join(["| file | what |", "|---|---|", *present]),
        "Made with": f"{'; '.join(facts)}.",
    }
    title = f"# {run.directory.resolve().name}"
    lead = f"A `{policy}` with {size:,} weights{about}, {how}, by corollout {version('corollout')}."
    return "\n\n".join([title, lead, *(f"## {name}\n\n{text.strip()}" for name, text in sections.items())])


def _results(run: Run, metric: Metric, summary: Mapping[str, Any]) -> str:
    """The metric at the start, at its best and at the end, with intervals where they were recorded, and the cost."""
    evaluations, updates = run.records("evaluation"), run.records("update")
    shown = {
        "start": next((record for record in evaluations if record["update"] == 0), None),
        "best": next((record for record in evaluations if record["update"] == summary.get("best_update")), None),
        "last": evaluations[-1] if evaluations else None,
    }
    lines = [f"| weights | update | {metric.name}{metric.unit} | 95 % interval |", "|---|---:|---:|---:|"]
    for name, record in shown.items():
        if record is not None:
            ends = [_number(record, f"{metric.key}_{end}", metric) for end in ("low", "high")]
            interval = "–" if "–" in ends else "–".join(ends)
            lines.append(f"| {name} | {record['update']:,} | {_number(record, metric.key, metric)} | {interval} |")
    costs = {**(updates[-1] if updates else {}), **summary}
    known = [(costs[key], what) for key, what in _COSTS.items() if isinstance(costs.get(key), int | float)]
    spent = [f"{f'{count:,.0f}' if count >= 100 else f'{count:.3g}'} {what}" for count, what in known]
    early = " It stopped early, as evaluations no longer improved." if summary.get("stopped_early") else ""
    table = "\n".join(lines)
    return f"{table}\n\n{metric.name}: {metric.meaning}. The best weights are kept. Cost: {', '.join(spent)}.{early}"


def _number(record: Mapping[str, Any], key: str, metric: Metric) -> str:
    value = record.get(key)
    return "–" if value is None else metric.number(value)


def _data(run: Run, trainer: BaseTrainer[Any]) -> str:
    columns = ", ".join(f"`{name}`" for name in trainer.data.columns)
    lines = [f"{len(trainer.data):,} training examples with the columns {columns}."]
    folder = run.section("data").get("folder") if isinstance(run.config.get("data", {}), dict) else None
    lines += [f"From the folder `{Path(folder).name}`."] if isinstance(folder, str) else []
    digest = run.config["inputs"].get("data") if isinstance(run.config.get("inputs"), dict) else None
    lines += [f"Digest of training and validation data: `{digest}`."] if isinstance(digest, str) else []
    return " ".join(lines)
