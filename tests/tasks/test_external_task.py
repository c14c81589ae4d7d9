"""The task of docs/extending.md, in a module outside the package, in Python and through every command."""

import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from corollout.errors import InputError
from corollout.events import ignore
from corollout.rollouts.decoding import decode, decode_scored
from corollout.tasks.task import Evaluation, Task, find_task, mean_interval, open_task, task_names
from corollout.training import Run, Schedule, Trainer, fit
from corollout.training.mle import MLETrainer
from corollout.types import Sampler
from tests.support.commands import output, refusal

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
(MODULE,) = re.findall(r"## A task of your own.*?```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the task's module, and some that are not right."""
    modules = {"reverse": MODULE, "clashing": MODULE.replace("hidden: int", "epochs: int"), "empty": ""}
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the working directory is added
    yield tmp_path
    for name in modules:
        sys.modules.pop(name, None)


@pytest.fixture
def task(folder: Path) -> Task:
    return open_task({"task": "reverse:TASK", "model": {"hidden": 16}})


def test_a_task_is_found_by_import_path_and_entry_point(folder: Path, monkeypatch: pytest.MonkeyPatch):
    spec = find_task("reverse:TASK")
    assert (spec.name, spec.rewards, spec.scale("tiny")) == ("reverse", ("reward",), {})
    assert spec.metric.text(0.25) == "reward 0.250"
    entry = importlib.metadata.EntryPoint("reverse", "reverse:TASK", "corollout.tasks")
    monkeypatch.setattr("corollout.tasks.spec.entry_points", importlib.metadata.EntryPoints([entry]).select)
    assert find_task("reverse") is spec
    assert task_names()[-1] == "reverse"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("revers", "unknown task 'revers': choose one of karel, captions"),
        (None, "unknown task None"),
        ("nowhere.task", "cannot import 'nowhere.task'"),
        ("reverse:TASKS", "the module 'reverse' has no 'TASKS'"),
        ("reverse:Reverse", "'reverse:Reverse' is not a task: name a corollout.tasks.task.TaskSpec"),
        ("json.decoder", "the module 'json.decoder' has no 'TASK'"),
    ],
)
def test_tasks_that_do_not_exist(folder: Path, name: object, said: str):
    with pytest.raises(InputError, match=said):
        find_task(name)


def test_settings_are_those_of_the_task(folder: Path):
    with pytest.raises(InputError, match="unknown key 'width'"):
        open_task({"task": "reverse:TASK", "model": {"width": 3}})
    task = open_task({"task": "reverse:TASK", "data": {"folder": "here"}})
    assert (task.folder, task.device, task.model.hidden) == (Path("here"), "cpu", 32)


def test_the_default_evaluation_is_the_mean_reward(task: Task):
    engine, val = task.engine(), task.val.first(30)

    def rewards(sampler: Sampler) -> np.ndarray:
        best = [sequences[0] for sequences in decode(engine, val.columns, sampler, batch_size=7)]
        pairs = zip(best, val.columns.columns["target"], strict=True)
        return np.array([np.mean([a == b for a, b in zip([*s, *[-1] * 4], t, strict=False)]) for s, t in pairs])

    result = task.evaluate(engine, val, beam=3)
    assert isinstance(result, Evaluation)
    greedy, beam = rewards(Sampler("greedy")), rewards(Sampler("beam", 3))
    np.testing.assert_allclose(result.scores, greedy)
    low, high = mean_interval(greedy) or (0, 0)
    numbers = {"mean_reward": greedy.mean(), "mean_reward_low": low, "mean_reward_high": high}
    assert result.numbers() == pytest.approx({**numbers, "beam_mean_reward": beam.mean()})
    assert task.evaluate(engine, val).numbers() == pytest.approx(numbers)
    best = ["reward, best of beam", f"{beam.mean():.3f}"]
    assert [row[:2] for row in result.rows()] == [["reward", f"{greedy.mean():.3f}"], best]
    with pytest.raises(InputError, match="no example"):
        task.evaluate(engine, val.first(0))


def test_the_default_view_shows_any_example(task: Task):
    engine, view = task.engine(), task.view("val", task.val, 5)
    (outputs,) = decode_scored(engine, task.val.first(1).columns, Sampler("sample", 4))
    example = {"context": task.val.columns.columns["context"][5].tolist()}
    target = [str(token) for token in reversed(example["context"])]
    assert view.identity() == {"split": "val", "example": 5, "id": 5}
    assert json.loads(json.dumps(view.record())) == {**example, "target": target}
    records = view.output_records(outputs)
    for record, one in zip(records, outputs, strict=True):
        assert record["reward"] == sum(a == b for a, b in zip(record["tokens"], target, strict=False)) / 4
        assert record["tokens"] == list(map(str, one.tokens))
    console = Console(width=100)
    with console.capture() as capture:
        console.print(view.show_outputs(outputs, Sampler("sample", 4)))
    for part in ("target", "sequences, sample", "reward", "log-probability", " ".join(records[0]["tokens"])):
        assert part in capture.get()
    assert view.heading().plain == "val, example 5"
    assert f"<td>{example['context']}</td>" in view.html()
    assert view.tokens_html([3]) == '<code><span class="token">3</span></code>'
    with pytest.raises(InputError, match="the split val has only the examples 0 to 199, not 200"):
        task.view("val", task.val, 200)


def test_it_learns_from_the_default_columns(task: Task):
    engine = task.engine()
    before = task.evaluate(engine, task.val).scores.mean()
    optimizer = torch.optim.Adam(engine.policy.parameters(), 0.02)  # pyright: ignore[reportAttributeAccessIssue]
    for _ in MLETrainer(engine, task.mle_data, optimizer, batch_size=50).run(updates=60):
        pass
    assert task.evaluate(engine, task.val).scores.mean() > before + 0.1


def test_it_works_with_every_command(folder: Path):
    def corollout(arguments: str) -> str:
        return output(*arguments.split())

    assert "--hidden <int>" in corollout("pretrain reverse:TASK --help")
    best = corollout("pretrain reverse:TASK --out mle --hidden 12 --epochs 2 --batch-size 100")
    assert "Best on the validation data: reward 0." in best
    assert "hidden = 12" in (folder / "mle" / "config.toml").read_text()
    corollout("finetune mle --out rloo --estimator rloo-2 --unit updates --budget 2 --batch-size 3 --evaluate-every 1")
    corollout("finetune --resume --out rloo")
    assert "reward" in corollout("evaluate rloo --beam 2")
    assert 0 <= json.loads(corollout("evaluate rloo --json --beam 0"))["mean_reward"] <= 1
    outputs = [json.loads(line) for line in corollout("generate rloo --count 2 --sample 2 --json").splitlines()]
    assert [one["id"] for one in outputs] == [0, 0, 1, 1]
    assert {"tokens", "reward", "log_probability"} <= outputs[0].keys()
    assert "val, example 1" in corollout("generate rloo --number 1")
    assert json.loads(corollout("inspect rloo --estimator arsm --json"))["estimator"]
    corollout("inspect rloo --html page.html")
    assert "<html" in (folder / "page.html").read_text()
    assert "RLOO-2" in corollout("compare mle rloo --out comparison")
    assert (folder / "comparison" / "report.html").exists()
    few = "--estimates 8 --reference-estimates 8 --rounds 1 --batches 0 --examples 3"
    assert "ARSM" in corollout(f"lab rloo --estimators rloo-2,arsm {few}").upper()


def make_run(directory: str, config: dict[str, object], estimator: str = "rloo-2") -> None:
    """A run made in Python."""
    model = config.get("model")
    task = open_task({"task": "reverse:TASK", "model": model if isinstance(model, dict) else {}})
    engine, reward = task.engine(), task.reward("reward")
    optimizer = torch.optim.Adam(engine.policy.parameters(), 0.01)  # pyright: ignore[reportAttributeAccessIssue]
    trainer = Trainer(engine, task.train.columns, reward, estimator, optimizer, batch_size=4, on_event=ignore)
    val = task.val.first(20)
    with Run.create(directory, config) as run:
        schedule = Schedule("updates", 2, 1)
        fit(trainer, run, schedule, lambda: task.evaluate(engine, val).numbers(), "mean_reward", on_event=ignore)


def test_a_run_made_in_python_works_with_every_command(folder: Path):
    make_run("mine", {"task": "reverse:TASK", "model": {"hidden": 12}})
    assert 0 <= json.loads(output("evaluate", "mine", "--json", "--beam", 0, "--device", "cpu"))["mean_reward"] <= 1
    assert json.loads(output("generate", "mine", "--count", 1, "--json"))["id"] == 0
    assert json.loads(output("inspect", "mine", "--json"))["estimator"] == "rloo-2"
    few = "--estimates 8 --reference-estimates 8 --rounds 1 --batches 0 --examples 3"
    assert "RLOO-2" in output("lab", "mine", "--estimators", "rloo-2", *few.split()).upper()
    assert "RLOO-2" in output("compare", "mine")
    output("finetune", "mine", "--out", "tuned", "--estimator", "sc", "--budget", 1, "--batch-size", 3)
    said = "mine was made in Python, and is continued there: open it with Run.open('mine', resume=True)"
    assert said in refusal("finetune", "--resume", "--out", "mine")


def test_a_split_that_the_task_does_not_have(folder: Path, task: Task):
    output("pretrain", "reverse:TASK", "--out", "mle", "--epochs", "1")
    for command in ("evaluate", "generate", "inspect"):
        said = refusal(command, "mle", "--split", "tests")
        assert said == "there is no split 'tests': choose one of train, val, test"
    task.split = lambda name: 1 / 0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ZeroDivisionError):  # what fails for a split that there is, is told as it is
        task.named_split("val")


def test_a_run_without_a_task_can_be_compared(folder: Path):
    """Its settings may be anything."""
    for seed, estimator in ((0, "rloo-2"), (1, "rloo-2"), (0, "sc")):
        make_run(f"{estimator}-{seed}", {"seed": seed, "data": "digits", "model": "small"}, estimator)
    shown = output("compare", "rloo-2-0", "rloo-2-1", "sc-0")
    assert "Means over 2 seeds, but 1 for SC" in " ".join(shown.split()) or "One seed, but 2 for" in shown
    for line in (
        ["evaluate"],
        ["generate"],
        ["inspect"],
        ["lab"],
        ["export", "--out", "x"],
        ["finetune", "--out", "x"],
    ):
        said = refusal(line[0], "sc-0", *line[1:])
        assert said.startswith("sc-0 was made without a task, which has the data, the model and the reward")
        assert not (folder / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("reverse:TASK --scale tiny", "the task reverse has no scales: leave out --scale"),
        ("clashing:TASK", "two options --epochs"),
        ("empty:TASK", "'empty' has no 'TASK'"),
        ("nowhere.at.all", "cannot import 'nowhere"),
    ],
)
def test_mistakes_with_such_a_task_are_errors(folder: Path, arguments: str, message: str):
    assert message in refusal("pretrain", *arguments.split(), "--out", "x")
    assert not (folder / "x").exists()
