"""Runs on disk: what is checked before they exist, what they notice when they are resumed, and damaged files."""

import json
import shutil
from pathlib import Path

import pytest

from corollout.events import Event
from corollout.folders import FolderLock
from corollout.training.run_weights import open_run
from corollout.training.runs import Run
from corollout.training.settings import FinetuneSettings, MachineSettings
from corollout.training.start import create_finetuning, resume_run
from corollout.weights import read_weights, write_weights
from tests.support.commands import invoke, output, refusal
from tests.support.errors import refused
from tests.support.small_karel import small_run

SETTINGS = FinetuneSettings(estimator="rloo-2", batch_size=2, budget=2.0, evaluate_every=1.0, train_eval_examples=2)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture
def run(tmp_path: Path, start: Path) -> Path:
    """A fine-tuning that has only been created, on data of its own."""
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "val", "test"):
        shutil.copy(start.parent / f"{split}.jsonl", data)
    create_finetuning(tmp_path / "run", start, SETTINGS, MachineSettings(), data)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, start: Path) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    create_finetuning(run, start, SETTINGS, MachineSettings())
    resume_run(run)
    return run


def swap_lines(path: Path) -> None:
    first, second, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *others]))


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_resumed_run_notices_other_data(run: Path, split: str):
    swap_lines(run.parent / "data" / f"{split}.jsonl")
    said = refusal("finetune", "--resume", "--out", run)
    assert (
        said
        == f"the data of {run} changed after the run began: undo the change, or continue anyway with --accept-changes"
    )
    warnings: list[Event] = []
    assert resume_run(run, warnings.append, accept_changes=True)["updates"] == 2
    texts = [event.record["text"] for event in warnings if event.kind == "warning"]
    assert any("the data of" in text for text in texts)


def test_a_resumed_run_notices_another_reward(run: Path):
    config = run / "config.toml"
    config.write_text(config.read_text().replace('reward = "all"', 'reward = "held-out"'))
    assert "the reward of" in refusal("finetune", "--resume", "--out", run)
    assert "Best on the validation data" in output("finetune", "--resume", "--accept-changes", "--out", run)


def test_accepting_changes_is_for_resumed_runs(tmp_path: Path, start: Path):
    assert "add --resume" in refusal("finetune", start, "--out", tmp_path / "x", "--accept-changes")


@pytest.mark.parametrize("flags", ["--device cuda", "--device nonsense", "--device meta", "--batch-size 0"])
def test_a_run_that_cannot_train_is_not_created(tmp_path: Path, start: Path, flags: str):
    out = tmp_path / "run"
    said = refusal("finetune", start, "--out", out, *flags.split())
    assert flags.split()[0].removeprefix("--") in said
    assert not out.exists()
    data = start.parent
    refusal("pretrain", "karel", "--config", start / "config.toml", "--data", data, "--out", out, *flags.split())
    assert not out.exists()


def test_nothing_is_written_to_a_directory_that_another_process_writes_to(tmp_path: Path, start: Path):
    with FolderLock(tmp_path / "run"):
        assert "is in use by process" in refusal("finetune", start, "--out", tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "start.safetensors").write_text("mine")
    assert "is not empty" in refusal("finetune", start, "--out", tmp_path / "mine")
    assert (tmp_path / "mine" / "start.safetensors").read_text() == "mine"


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def test_damaged_weights_are_never_used(run: Path):
    resume_run(run)
    newest = run / "checkpoints" / "step-00000002"
    for weights in ("last", "step-2", "step-00000001"):
        open_run(run, weights)
    damage(newest / "tensors.safetensors")
    for weights in ("last", "step-00000002", "step-2"):
        refused("tensors.safetensors is damaged or cut off", open_run, run, weights)
    refused(r"no checkpoint step-00000007; it has step-00000001, step-00000002", open_run, run, "step-7")
    for name, weights in (("best", "best"), ("start", "start")):
        damage(run / f"{name}.safetensors")
        refused("its content does not match its digest", open_run, run, weights)


def test_weights_without_a_digest_must_be_named_as_a_file(run: Path, start: Path):
    tensors, _ = read_weights(start / "best.safetensors")
    write_weights(run / "own.safetensors", tensors)
    data = (run / "own.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    del header["__metadata__"]
    text = json.dumps(header).encode()
    (run / "own.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    open_run(run, str(run / "own.safetensors"))
    (run / "own.safetensors").rename(run / "best.safetensors")
    refused("it has no digest", open_run, run, "best")


DAMAGE = {
    "config.toml": ["", "task = 3", "kind = 1", 'task = "karel"', "machine = 3", "finetune = [1]"],
    "metrics.jsonl": ["[]", "3", '{"a": 1}', '{"kind": "update"}', '{"kind": "evaluation", "update": "x"}', "x"],
    "summary.json": ["[]", "{}", "3", "null", '{"updates": "x"}', "{", "[" * 100_000],
    "result.json": ["[]", '{"val": 3}', '{"val": {}}', '{"val": {"generalization": []}}', "{"],
    "evaluation-test.json": ["[]", "3", '{"generalization": "x"}', '{"generalization": 1, "count": "x"}'],
}


@pytest.mark.parametrize(("name", "content"), [(name, text) for name, texts in DAMAGE.items() for text in texts])
def test_damaged_files_of_a_run_are_refused(tmp_path: Path, finished: Path, name: str, content: str):
    """One sentence each, or a result that does not need the file; never anything else."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / name).write_text(f"{content}\n")
    commands = [["finetune", "--resume", "--out"], ["compare", "--out", tmp_path / "report"], ["evaluate"]]
    said = []
    for command in commands:
        try:
            output(*command, run)
        except AssertionError:
            said.append(refusal(*command, run))
    assert said
    assert all(str(run) in text or "task" in text for text in said)


def test_weights_that_solve_nothing_are_kept_by_their_loss(start: Path):
    """The best weights of a pre-training without any Generalization are not the random ones that it began with."""
    run = Run.open(start)
    evaluations = run.records("evaluation")
    assert {record["generalization"] for record in evaluations} == {0.0}
    losses = {record["update"]: record["loss"] for record in evaluations}
    best = int(read_weights(run.best)[1]["update"])
    assert losses[best] == min(losses.values()) < losses[0]


def test_starting_from_weights_that_solve_nothing_is_reported(tmp_path: Path, start: Path):
    events: list[Event] = []
    create_finetuning(tmp_path / "run", start, SETTINGS, MachineSettings(), on_event=events.append)
    (text,) = (event.record["text"] for event in events if event.kind == "warning")
    count = len(Run.open(start).records("evaluation"))
    assert f"in all {count} evaluations of {start} it had Generalization 0.0 %" in text
    shutil.copytree(start, tmp_path / "start")
    metrics = tmp_path / "start" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"generalization": 0.0', '"generalization": 0.5', 1))
    events.clear()
    create_finetuning(tmp_path / "other", tmp_path / "start", SETTINGS, MachineSettings(), on_event=events.append)
    assert "warning" not in {event.kind for event in events}
    shown = invoke("finetune", start, "--out", tmp_path / "shown", "--budget", 1, "--unit", "updates")
    assert f"in all {count} evaluations" in shown.stderr
