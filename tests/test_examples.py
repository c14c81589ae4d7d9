"""The examples run, and print what a reader should see."""

import importlib
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PRINTED = {
    "own_model": ["update   1: reward", "of lists never seen before are right", "->"],
    "own_reward_with_workers": ["right 0.", "short -", "mean reward of the most probable formulas"],
    "discrete_vae": ["arsm", "Gumbel-softmax 0.5", "figure: "],
    "reward_over_http": ["scored", "the service goes away for a second; the training waits", "sorted right: "],
    "schedule_and_kl": ["fine-tuned freely", "fine-tuned with kl, schedule, average", "sorted right"],
}


def test_every_example_is_tried():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTED, "language_model"}


@pytest.mark.filterwarnings("ignore:.*:UserWarning:transformers")
@pytest.mark.filterwarnings("ignore::corollout.events.TrainingWarning")  # quick runs end before much is learned
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    example: Any = importlib.import_module(f"examples.{name}")
    figure = {"out": tmp_path / "figure.png"} if name == "discrete_vae" else {}
    example.main(quick=True, **figure)
    text = capsys.readouterr().out
    assert all(words in text for words in PRINTED[name])
    assert all(path.stat().st_size > 10_000 for path in figure.values())


@pytest.mark.filterwarnings("ignore:.*:UserWarning:transformers")
def test_the_example_with_a_language_model_leaves_weights_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("transformers")
    from examples.language_model import main
    from tests.support.tiny_models import save_tiny_model

    model, out = save_tiny_model(tmp_path / "model", chats=True), tmp_path / "sentences"
    main(str(model), str(out), max_steps=2, max_completion_length=4, use_cpu=True, disable_tqdm=True)
    assert f"{out}/completions.html" in capsys.readouterr().out
    assert "<html" in (out / "completions.html").read_text("utf-8")
    assert (out / "model.safetensors").read_bytes() != (model / "model.safetensors").read_bytes()
