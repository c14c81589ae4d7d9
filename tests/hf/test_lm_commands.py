"""``corollout lm`` with a tiny model: completions, a training that is stopped and resumed, and mistakes."""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.cli.terminal import Terminal
from corollout.config import Command, Extra, read_toml
from corollout.data import Columns
from corollout.errors import InputError, Interrupted
from corollout.hf import PromptColumn
from corollout.hf.terminal import extremes, show_samples
from corollout.lab.lab import LARGE_SOFTMAX, default_estimators
from corollout.lab.on_language_model import lab_of_language_model
from corollout.lab.settings import LanguageModelLabSettings
from corollout.reports.report import open_report
from corollout.rollouts import Engine
from corollout.training.samples import Message, SampledContext, SampledSequence, Samples
from tests.support.commands import invoke, output, refusal
from tests.support.language_models import language_model, small_engine
from tests.support.tiny_models import save_tiny_model

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
REWARDS = """
import os
def late(completions, letter=None, **_):
    return [sum(map(ord, completion)) / 100 for completion in completions]
def short(completions, **_):
    return [-len(completion.split()) / 10 for completion in completions]
def constant(completions, **_):
    return [1.0] * len(completions)
"""
# Accelerate warns about machines without accelerators; what is printed is checked below.
pytestmark = pytest.mark.filterwarnings("ignore")
FAST = ["--max-completion-length", "4", "--learning-rate", "1e-2", "--use-cpu", "--estimator", "rloo-2"]
FAST += ["--per-device-train-batch-size", "4"]
TRAIN = ["lm", "train", "--model", "model", "--dataset", "prompts.jsonl", "--reward", "rewards_of_lm:late", *FAST]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, prompts and rewards."""
    folder = tmp_path_factory.mktemp("lm")
    save_tiny_model(folder / "model")
    lines = [json.dumps({"prompt": f"a b {letter}", "letter": letter}) for letter in "defghi"]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    (folder / "rewards_of_lm.py").write_text(REWARDS)
    return folder


@pytest.fixture
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return made


def records(*arguments: object) -> list[dict[str, Any]]:
    text = output("lm", "generate", "--model", "model", "--max-completion-length", "5", "--json", *arguments)
    return [json.loads(line) for line in text.splitlines()]


# Completions


def test_completions_of_prompts_are_scored(folder: Path):
    rewards = ["--reward", "rewards_of_lm:late", "--reward", "rewards_of_lm.py:short", "--reward-weights", "2,1"]
    drawn = records("--dataset", "prompts.jsonl", "--count", "2", "--sample", "3", *rewards)
    assert [(one["number"], one["rank"]) for one in drawn] == [(n, rank) for n in range(2) for rank in range(3)]
    for one in drawn:
        late, short = sum(map(ord, one["completion"])) / 100, -len(one["completion"].split()) / 10
        assert one["rewards"] == pytest.approx({"late": late, "short": short})
        assert one["reward"] == pytest.approx(2 * late + short)
        assert one["log_probability"] < 0
    assert drawn[0]["prompt"] == "a b d"


def test_completions_do_not_depend_on_their_batch(folder: Path):
    arguments = ["--dataset", "prompts.jsonl", "--count", "5", "--sample", "2", "--seed", "3", "--top-k", "9"]
    whole, parts = records(*arguments), records(*arguments, "--batch-size", "2")
    assert [one["completion"] for one in whole] == [one["completion"] for one in parts]
    assert len({one["completion"] for one in whole}) > 2
    assert [one["completion"] for one in records(*arguments, "--seed", "4")] != [one["completion"] for one in whole]


def test_greedy_and_beam_for_prompts_with_commas(folder: Path):
    greedy = records("--prompt", "a, b", "--prompt", "c")
    assert [one["prompt"] for one in greedy] == ["a, b", "c"]
    beam = records("--prompt", "a, b", "--beam", "3")
    assert [one["rank"] for one in beam] == [0, 1, 2]
    assert beam[0]["log_probability"] >= greedy[0]["log_probability"] - 1e-5
    text = output("lm", "generate", "--model", "model", "--prompt", "c d", "--max-completion-length", "3")
    assert all(part in text for part in ("prompt 0", "c d", "log-probability"))


# Training


def weights(folder: str | Path) -> bytes:
    return Path(folder, "model", "model.safetensors").read_bytes()


def test_a_training_says_how_it_goes_and_leaves_a_model(folder: Path):
    arguments = [*TRAIN, "--max-steps", "2", "--logging-steps", "1", "--eval-dataset", "prompts.jsonl"]
    result = invoke(*arguments, "--eval-steps", "2", "--samples-steps", "1", "--out", "done", "--beta", "0.1")
    assert result.exit_code == 0, result.output
    for part in ("step 1/2: reward", "kl", "step 2/2, evaluation: reward"):
        assert part in result.stderr
    assert "{'" not in result.output
    assert "Model: done/model" in result.stdout
    assert weights("done") != Path("model", "model.safetensors").read_bytes()
    assert sorted(os.listdir("done")) == ["checkpoint-2", "completions.html", "model", "samples.jsonl", "settings.toml"]
    assert read_toml(Path("done/settings.toml"))["estimator"] == "rloo-2"
    again = json.loads(
        output("lm", "generate", "--model", "done", "--prompt", "c", "--json", "--max-completion-length", 3)
    )
    assert again["tokens"] <= 3
    before = weights("done")
    assert "done is not empty" in refusal(*arguments, "--out", "done")
    assert weights("done") == before


def test_a_training_that_is_stopped_reaches_the_same_bits(folder: Path, monkeypatch: pytest.MonkeyPatch):
    options = ["--max-steps", "4", "--save-steps", "2", "--samples-steps", "1"]
    output(*TRAIN, *options, "--out", "whole")
    assert len({Path("whole", f"checkpoint-{step}", "model.safetensors").read_bytes() for step in (2, 4)}) == 2
    from corollout.hf.trainer import PolicyGradientTrainer

    step = PolicyGradientTrainer.training_step

    def signalled(self: Any, *given: Any, **more: Any) -> Any:
        if self.state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *given, **more)

    monkeypatch.setattr(PolicyGradientTrainer, "training_step", signalled)
    error = invoke(*TRAIN, *options, "--out", "part").exception
    assert isinstance(error, Interrupted)
    assert "after update 3, which is saved in part. Continue with: corollout lm train --resume --out part" in str(error)
    monkeypatch.setattr(PolicyGradientTrainer, "training_step", step)
    assert sorted(path.name for path in Path("part").iterdir() if path.is_dir()) == ["checkpoint-2", "checkpoint-3"]
    assert "the training in part is not finished" in refusal("lm", "generate", "--model", "part", "--prompt", "a")

    # Killed while a checkpoint was written.
    shutil.copytree("part/checkpoint-2", "part/checkpoint-4")
    os.truncate("part/checkpoint-4/trainer_state.json", 100)
    result = invoke("lm", "train", "--resume", "--out", "part")
    assert result.exit_code == 0, result.output
    assert "continued after step 3 of 4" in result.stderr
    assert weights("part") == weights("whole")
    for name in ("samples.jsonl", "completions.html"):
        assert Path("part", name).read_bytes() == Path("whole", name).read_bytes()


def test_a_training_that_was_killed_before_its_first_checkpoint_begins_again(folder: Path):
    options = ["--max-steps", "2", "--samples-steps", "1"]
    output(*TRAIN, *options, "--out", "never-stopped")
    shutil.copytree("never-stopped", "killed")
    shutil.rmtree("killed/checkpoint-2")
    shutil.rmtree("killed/model")
    output("lm", "train", "--resume", "--out", "killed")
    assert weights("killed") == weights("never-stopped") != Path("model", "model.safetensors").read_bytes()


@pytest.mark.prove
def test_a_training_that_is_killed_again_and_again_reaches_the_same_bits(folder: Path):
    options = ["--max-steps", "60", "--save-steps", "1", "--samples-steps", "7", "--beta", "0.01"]
    output(*TRAIN, *options, "--out", "in-one-go")
    draw, kills = random.Random(0), 0
    for attempt in range(40):
        arguments = [*TRAIN, *options] if attempt == 0 else ["lm", "train", "--resume"]
        command = [sys.executable, "-m", "corollout", *arguments, "--out", "killed-often"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
            assert process.stderr is not None
            if attempt < 8:
                process.stderr.readline()  # the training has begun
                time.sleep(0.5 * draw.random())
                process.kill()
            process.communicate()
        if process.returncode == 0:
            break
        kills += 1
    assert kills > 3
    assert weights("killed-often") == weights("in-one-go")
    for name in ("samples.jsonl", "completions.html"):
        assert Path("killed-often", name).read_bytes() == Path("in-one-go", name).read_bytes()


def test_a_finished_training_can_be_made_longer(folder: Path):
    output(*TRAIN, "--max-steps", "1", "--out", "longer", "--lr-scheduler-type", "constant")
    before = weights("longer")
    output("lm", "train", "--resume", "--out", "longer")
    assert weights("longer") == before
    message = "keeps its settings, but for --max-steps"
    assert message in refusal("lm", "train", "--resume", "--out", "longer", "--learning-rate", "1e-3")
    output("lm", "train", "--resume", "--out", "longer", "--max-steps", "2", "--learning-rate", "1e-2")
    assert weights("longer") != before
    assert read_toml(Path("longer/settings.toml"))["max_steps"] == 2


def test_an_adapter_is_merged_into_an_ordinary_model(folder: Path):
    targets = ["--lora-rank", "2", "--lora-targets", "q_proj,v_proj", "--save-steps", "1"]
    output(*TRAIN, *targets, "--max-steps", "2", "--out", "lora")
    assert {"config.json", "model.safetensors"} <= set(os.listdir("lora/model"))
    assert "adapter_model.safetensors" in os.listdir("lora/checkpoint-2")
    done = weights("lora")
    assert done != Path("model", "model.safetensors").read_bytes()
    shutil.rmtree("lora/checkpoint-2")
    shutil.rmtree("lora/model")
    output("lm", "train", "--resume", "--out", "lora")
    assert weights("lora") == done


# The lab

LAB = ["lm", "lab", "--model", "model", "--dataset", "prompts.jsonl", "--reward", "rewards_of_lm:late", "--use-cpu"]
LAB += ["--estimates", "8", "--reference", "rloo-2", "--reference-estimates", "8", "--rounds", "1", "--examples", "2"]
LAB += ["--max-completion-length", "4"]


def test_a_lab_prints_and_writes_everything(folder: Path):
    arguments = [*LAB, "--out", "lab", "--batches", "2"]
    text = output(*arguments, "--estimators", "rloo-2,arsm:budget=4")
    for part in ("model", "Gradient estimates", "rloo-2", "Report: lab/report.html"):
        assert part in text
    numbers = open_report(Path("lab")).numbers
    assert (numbers["model"], numbers["dataset"]) == ("model", "prompts.jsonl")
    rows = numbers["points"][0]["rows"]
    assert [row["estimator"] for row in rows] == ["rloo-2", "arsm:budget=4"]
    assert all(row["variance"]["value"] > 0 for row in rows)
    Path("others.jsonl").write_text(Path("prompts.jsonl").read_text().replace("a b", "b a"))
    message = "lab/points/model holds a lab with other settings (prompts: "
    assert message in refusal(*arguments, "--dataset", "others.jsonl")
    assert "is not empty and holds no earlier lab" in refusal(*LAB, "--out", "model")
    assert "a lab needs a reward" in refusal("lm", "lab", "--model", "model", "--dataset", "x", "--out", "new")


def test_gradients_of_large_models_are_sketched(folder: Path, monkeypatch: pytest.MonkeyPatch):
    settings = LanguageModelLabSettings(
        model="model", dataset="prompts.jsonl", reward=("rewards_of_lm:late",), estimators=("rloo-2",), examples=2,
        estimates=8, reference="rloo-2", reference_estimates=8, rounds=1, max_completion_length=3, use_cpu=True,
        out=Path("exact"),
    )  # fmt: skip
    exact = lab_of_language_model(settings).points[0].lab
    monkeypatch.setattr("corollout.lab.measurement.WIDTH", 2048)
    sketched = lab_of_language_model(replace(settings, out=Path("sketched"))).points[0].lab
    assert sketched.rows[0].variance.value == pytest.approx(exact.rows[0].variance.value, rel=0.1)
    assert sketched.rows[0].variance.value != exact.rows[0].variance.value
    assert (sketched.settings["sketch"], exact.settings.get("sketch")) == (2048, None)
    assert Path("sketched/points/model/reference.safetensors").stat().st_size < 8 * 2048 * 4 + 1000


def test_the_default_estimators_do_not_need_all_logits(monkeypatch: pytest.MonkeyPatch):
    engine = small_engine(language_model("llama", vocab=300, dtype=torch.float32), 3)
    reads: list[Any] = []
    decode = Engine.decode

    def decode_and_note(self: Any, *given: Any) -> Any:
        reads.append(given[-1])
        return decode(self, *given)

    monkeypatch.setattr(Engine, "decode", decode_and_note)
    batch = Columns(context=PromptColumn([[3, 4], [5]])).batch([0, 1])
    assert default_estimators(engine, batch) == LARGE_SOFTMAX
    assert reads == ["tokens"]


# Where did it go wrong?


def test_what_a_training_has_kept_is_shown_and_becomes_a_page(folder: Path):
    output(*TRAIN, "--max-steps", "2", "--samples-steps", "1", "--out", "kept")
    text = output("lm", "inspect", "kept")
    records = [json.loads(line) for line in Path("kept/samples.jsonl").read_text().splitlines()]
    assert all(part in text for part in ("update 2, by RLOO-2", "raised: ", "lowered: ", "Page: kept/completions.html"))
    assert "update 1, by RLOO-2" in output("lm", "inspect", "kept", "--update", "1", "--html", "first.html")
    assert "Where did it go wrong?" in Path("first.html").read_text()
    shown = [json.loads(line) for line in output("lm", "inspect", "kept", "--json").splitlines()]
    assert shown == records
    assert "first.html exists" in refusal("lm", "inspect", "kept", "--html", "first.html")
    assert "update 7 has kept no completions: those that have are 1, 2" in refusal(
        "lm", "inspect", "kept", "--update", 7
    )
    Path("kept/completions.html").write_text("mine")
    assert "is not such a page, and nothing is overwritten" in refusal("lm", "inspect", "kept")
    assert Path("kept/completions.html").read_text() == "mine"


def test_a_fresh_estimate_is_shown_and_becomes_a_page(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    fresh = ["lm", "inspect", "--model", folder / "model", "--dataset", folder / "prompts.jsonl", "--use-cpu"]
    fresh += ["--reward", "rewards_of_lm:late", "--max-completion-length", "4", "--examples", "2"]
    (record,) = [json.loads(line) for line in output(*fresh, "--estimator", "arsm:budget=6", "--json").splitlines()]
    assert [context["example"] for context in record["contexts"]] == [0, 1]
    assert sum(one["branch_count"] for context in record["contexts"] for one in context["sequences"]) > 0
    assert "a fresh estimate, by RLOO-4" in output(*fresh)
    assert sorted(os.listdir()) == ["completions-2.html", "completions.html"]


def test_tokens_are_marked_by_their_credit():
    assert extremes([0.5, -1.0, 0.0, 2.0, 0.1, 0.2]) == ([3, 0, 5], [1])
    assert extremes([0.0, 0.0]) == ([], [])
    sequence = SampledSequence([3, 4], ["up", " \x1b[31mdown"], 0.5, -1.0, False, None, [1.0, -1.0], [0.5, 0.5])
    context = SampledContext(0, {}, [sequence], [Message("user", "hi")], 1, teaches=False)
    console = Terminal(width=100, record=True, file=io.StringIO(), force_terminal=True)
    console.print(show_samples(Samples(3, "", [context])))
    text = console.export_text()
    for part in (
        "user: hi",
        "It teaches nothing",
        "up \\x1b[31mdown",
        "raised: 'up' +1",
        "lowered: '\\x1b[31mdown' -1",
    ):
        assert part in text


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--model", "model"], "there is nothing to complete: give --prompt or --dataset"),
        (["generate", "--model", "model", "--prompt", "a", "--dataset", "x"], "--prompt and --dataset exclude"),
        (["generate", "--model", "model", "--prompt", "a", "--beam", "2", "--sample", "2"], "--beam and --sample"),
        (["generate", "--model", "model", "--prompt", "a", "--top-k", "2"], "are for samples: add --sample"),
        (["generate", "--model", "model", "--prompt", "a", "--chat", *FAST[:2]], "the tokenizer has no chat template"),
        (["generate", "--model", "model", "--prompt", "a"], "the model's context window has 64 tokens"),
        (["generate", "--model", "no/model", "--prompt", "a"], "'no/model' cannot be loaded"),
        (["generate", "--model", "prompts.jsonl", "--prompt", "a"], "'prompts.jsonl' cannot be loaded"),
        (["train", "--out", "new"], "a training needs --model and --dataset and --reward"),
        (["train", "--out", "new", "--resume"], "new is not the folder of a training"),
        ([*TRAIN[1:], "--out", "new", "--reward", "rewards_of_lm:nothing"], "has no 'nothing'"),
        ([*TRAIN[1:], "--out", "new", "--reward-weights", "1,2"], "2 reward weights for 1 rewards"),
        ([*TRAIN[1:], "--out", "new", "--estimator", "magic"], "magic"),
        ([*TRAIN[1:], "--out", "new", "--warmup-steps", "2", "--warmup-ratio", "0.1"], "exclude each other"),
        ([*TRAIN[1:], "--out", "new", "--eval-steps", "2"], "give --eval-dataset"),
        ([*TRAIN[1:], "--out", "new", "--lora-targets", "x"], "give --lora-rank"),
        ([*TRAIN[1:], "--out", "new", "--lora-rank", "2", "--lora-targets", "x"], "this training cannot begin: Target"),
        ([*TRAIN[1:], "--out", "new", "--report-to", "nobody"], "this training cannot begin: "),
        ([*TRAIN[1:], "--out", "new", "--prompt-column", "text"], "has no column 'text': it has prompt, letter"),
        (["inspect"], "name the folder of a training, or give --model and --dataset and --reward as well"),
        (["inspect", "--model", "model"], "or give --dataset and --reward as well"),
        (["inspect", "model"], "model has no samples.jsonl: train with --samples-steps, or give --model"),
        (["inspect", "model", "--model", "x"], "leave out --model, or FOLDER"),
        ([*TRAIN[1:], "--out", "prompts.jsonl"], "prompts.jsonl is not a folder"),
    ],
)
def test_mistakes_are_a_sentence_and_leave_nothing(
    folder: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert message in refusal("lm", *arguments)
    assert not Path("new").exists()


def test_without_its_packages_a_command_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch):
    extra = Extra("hf", ("corollout", "no_such_package"))
    target = Command("corollout.cli.lm:generate", "corollout.hf.settings:GenerateSettings", extra=extra)
    monkeypatch.setattr("corollout.cli.root.COMMANDS", {"lm": target})
    message = "this command needs the package no_such_package: pip install 'corollout[hf]'"
    assert refusal("lm", "--model", "a") == message


def test_a_setting_that_is_kept_must_be_one(folder: Path):
    Path("broken").mkdir()
    Path("broken/settings.toml").write_text("model = 3\n")
    with pytest.raises(InputError, match=r"the settings: training.model must be text"):
        raise invoke("lm", "train", "--resume", "--out", "broken").exception  # pyright: ignore


def test_completions_stop_at_a_text(made: Path):
    model = str(made / "model")
    given = ["lm", "generate", "--model", model, "--prompt", "a b", "--sample", "30", "--stop", "c", "--json"]
    lines = output(*given, "--max-completion-length", "12", "--use-cpu").splitlines()
    texts = [json.loads(line)["completion"] for line in lines]
    assert any(text.endswith("c") for text in texts)
    assert all("c" not in text[:-1] for text in texts)
