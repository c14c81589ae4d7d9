"""The card of a run: what it says is true, its code works, and nobody else's file is overwritten."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.training import Run, Schedule, fit
from corollout.training.base import BaseTrainer
from corollout.training.card import CARD, is_card
from corollout.weights import read_weights
from tests.support.small_task import make_mle_trainer, make_policy, make_trainer


def score() -> dict[str, float]:
    return {"score": 0.25, "score_low": 0.2, "score_high": 0.3}


def make_run(directory: Path, trainer: BaseTrainer[Any], config: dict[str, Any] | None = None) -> str:
    """The card of a new run."""
    with Run.create(directory, config or {}) as run:
        fit(trainer, run, Schedule("updates", 3, 1), score, "score")
    return (directory / CARD).read_text()


def code(text: str) -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return block


def test_the_card_of_a_run_made_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = {"estimator": "rloo-2", "data": {"folder": "/home/me/data"}, "inputs": {"data": "abc"}}
    text = make_run(tmp_path / "mine", make_trainer("rloo-2", samples_every=1), config)
    count = sum(p.numel() for p in make_policy().parameters())
    for part in (
        "# mine\n",
        f"A `RecurrentPolicy` with {count:,} weights, fine-tuned on the reward `likeness` with RLOO-2, by corollout",
        "| start | 0 | 0.250 | 0.200–0.300 |",
        "Cost: 3 updates, ",
        "12 training examples with the columns `context`, `target`. From the folder `data`. Digest",
        'estimator = "rloo-2"',
        f"torch {torch.__version__}",
        "| `samples.jsonl` |",
    ):
        assert part in text
    assert "/home/me" not in text
    policy = make_policy(1)
    monkeypatch.chdir(tmp_path / "mine")
    exec(code(text), {"policy": policy})
    best, _ = read_weights(tmp_path / "mine" / "best.safetensors")
    assert all(torch.equal(best[name], tensor) for name, tensor in policy.state_dict().items())


def test_the_card_of_maximum_likelihood(tmp_path: Path):
    text = make_run(tmp_path / "mle", make_mle_trainer())
    assert "trained by maximum likelihood" in text
    assert "samples.jsonl" not in text


def test_only_an_unchanged_card_is_written_again(tmp_path: Path):
    text = make_run(tmp_path / "run", make_trainer())
    path = tmp_path / "run" / CARD

    def finish_again() -> str:
        (tmp_path / "run" / "summary.json").unlink()
        with Run.open(tmp_path / "run", resume=True) as run:
            fit(make_trainer(), run, Schedule("updates", 3, 1), score, "score")
        return path.read_text()

    assert is_card(path)
    path.write_text(text.replace("# run", "# my run"))
    assert not is_card(path)
    assert finish_again().startswith("# my run")
    path.write_bytes(b"\xff\xfe mine")
    assert not is_card(path)
    path.unlink()
    assert finish_again() == text
