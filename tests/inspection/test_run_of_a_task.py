"""Samples and the card of a run that a command made for a task."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.training import Run
from corollout.training.base import policy_module
from corollout.training.card import CARD
from corollout.training.run_weights import open_run
from corollout.training.settings import FinetuneSettings, MachineSettings
from corollout.training.start import create_finetuning, resume_run
from tests.support.small_task import weights


def test_the_card_of_a_task_and_samples_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, karel_run: Path):
    run = tmp_path / "tuned"
    settings = FinetuneSettings(
        estimator="arsm", budget=2.0, evaluate_every=2.0, batch_size=2, train_eval_examples=2, samples_every=2
    )
    create_finetuning(run, karel_run, settings, MachineSettings())
    events = []
    resume_run(run, events.append)
    text = (run / CARD).read_text()
    assert "for the task `karel`, fine-tuned on the reward" in text
    assert re.search(r"\| best \| [02] \| \d+\.\d \| \d+\.\d–\d+\.\d \|", text)
    assert "corollout finetune --resume --out ." in text
    monkeypatch.chdir(run)
    namespace: dict[str, Any] = {}
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(block, namespace)
    assert torch.equal(weights(namespace["engine"].policy), weights(policy_module(open_run(run)[1])))
    # Tokens have the names of the task.
    samples = Run.open(run).samples()
    assert [record["update"] for record in samples] == [1, 2]
    pieces, names = samples[0]["contexts"][0]["sequences"][0]["pieces"], namespace["task"].tokens
    assert pieces
    assert set(pieces) <= set(names)
    assert json.loads(json.dumps([dict(e.record) for e in events if e.kind == "samples"])) == samples
    assert "samples_every = 2" in (run / "config.toml").read_text()
