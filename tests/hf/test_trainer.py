"""The trainer for language models: scripts written for TRL, gradients, checkpoints and mistakes."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.data import Columns
from corollout.errors import InputError, RewardError
from corollout.noise import Noise
from corollout.reports.completions import write_completions_page
from corollout.reports.sample_records import read_samples_file
from corollout.training import estimate
from corollout.training.samples import Message
from tests.support.completions import make_samples
from tests.support.language_models import VOCAB, language_model, policy_of
from tests.support.tiny_models import CHAT, WORDS, make_tokenizer

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from corollout.hf import PolicyGradientConfig, PolicyGradientTrainer, PromptColumn  # noqa: E402
from corollout.hf.inspect import inspect_completions  # noqa: E402
from corollout.hf.samples_file import SamplesFile  # noqa: E402

# Accelerate and transformers warn about machines without accelerators and about themselves.
pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = [{"prompt": f"{'b ' * (n % 3)}{letter}", "letter": letter} for n, letter in enumerate("cdefghij")]


def count_letters(completions: list[str], letter: list[str], **_: Any) -> list[float]:
    return [completion.split().count(one) / 4 for completion, one in zip(completions, letter, strict=True)]


def short(completions: list[str], **_: Any) -> list[float | None]:
    return [None if not completion else -len(completion.split()) / 10 for completion in completions]


def make_trainer(
    folder: Path, rewards: Any = count_letters, model: Any = None, rows: Any = None, **options: Any
) -> Any:
    more = {name: options.pop(name) for name in ("peft_config", "eval_dataset", "callbacks") if name in options}
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 4, "max_steps": 2,
        "learning_rate": 1e-2, "lr_scheduler_type": "constant", "report_to": "none", "use_cpu": True,
        "disable_tqdm": True, "logging_steps": 1.0, "save_strategy": "no", **options,
    }  # fmt: skip
    if "estimator" in settings:
        settings.pop("num_generations")
    return PolicyGradientTrainer(
        model=language_model("llama", dtype=torch.float32) if model is None else model,
        reward_funcs=rewards,
        args=PolicyGradientConfig(str(folder), **settings),
        train_dataset=ROWS if rows is None else rows,
        processing_class=make_tokenizer(),
        **more,
    )


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def test_a_script_written_for_trl_trains(tmp_path: Path):
    seen: dict[str, Any] = {}

    def reward(prompts: Any, completions: Any, completion_ids: Any, letter: Any, **others: Any) -> list[float]:
        seen.update(prompts=prompts, completions=completions, ids=completion_ids, others=others)
        return count_letters(completions, letter)

    trainer = make_trainer(
        tmp_path, [reward, short], reward_weights=[1.0, 0.1], max_steps=50, logging_steps=10.0,
        per_device_train_batch_size=32, learning_rate=3e-2,
    )  # fmt: skip
    trainer.train()
    history = [record for record in trainer.state.log_history if "reward" in record]
    assert history[-1]["reward"] > history[0]["reward"] + 0.05
    names = "reward reward_std rewards/reward/mean rewards/short/mean frac_reward_zero_std completions/mean_length"
    names += " completions/clipped_ratio entropy num_tokens grad_norm learning_rate loss tokens_saved"
    assert set(names.split()) <= history[-1].keys()
    assert seen["prompts"][0] in {row["prompt"] for row in ROWS}
    assert {"trainer_state", "log_extra", "log_metric"} <= seen["others"].keys()
    for text, tokens in zip(seen["completions"], seen["ids"], strict=True):
        assert text.split() == [WORDS[token] for token in tokens if token > 2]


@pytest.mark.parametrize("estimator", ["rloo-4", "arsm:budget=30", "set-2:baseline=fitted", "reinforce"])
def test_a_step_follows_the_estimate_of_its_prompts(tmp_path: Path, estimator: str):
    trainer = make_trainer(
        tmp_path, estimator=estimator, max_steps=1, per_device_train_batch_size=8, optim="sgd", max_grad_norm=0.0
    )
    before = weights(trainer).clone()
    trainer.train()
    step = (before - weights(trainer)) / 1e-2
    twin = policy_of(language_model("llama", dtype=torch.float32))
    loader = make_trainer(tmp_path, estimator=estimator, per_device_train_batch_size=8)
    batch = loader._batch(next(iter(loader.get_train_dataloader())))
    sample = estimate(twin.engine(4), batch, loader.reward, loader.estimator, Noise(42).fold(0, 0))
    sample.backward()
    expected = torch.cat([p.grad.flatten() for p in twin.inner.parameters()])
    assert float(expected.abs().max()) > 1e-4
    assert float((step - expected).abs().max()) < 1e-3 * float(expected.abs().max())


def test_accumulation_and_micro_batches_change_nothing_but_rounding(tmp_path: Path):
    results = []
    for options in (
        {"per_device_train_batch_size": 16},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
        {"per_device_train_batch_size": 16, "micro_batch_size": 1, "gradient_checkpointing": True},
    ):
        trainer = make_trainer(tmp_path, optim="sgd", **options)
        trainer.train()
        results.append(weights(trainer))
    changed = float((results[0] - weights(make_trainer(tmp_path))).abs().max())
    assert changed > 1e-4
    for other in results[1:]:
        assert float((results[0] - other).abs().max()) < 1e-3 * changed


@pytest.mark.parametrize("estimator", ["rloo-4", pytest.param("set-4:baseline=fitted", marks=pytest.mark.prove)])
def test_a_training_that_is_resumed_reaches_the_same_bits(tmp_path: Path, estimator: str):
    options = {"estimator": estimator, "max_steps": 4, "save_strategy": "steps", "save_steps": 2.0, "beta": 0.01}
    whole = make_trainer(tmp_path / "whole", **options)
    whole.train()
    resumed = make_trainer(tmp_path / "whole", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert torch.equal(weights(whole), weights(resumed))
    assert whole.state.log_history[-2]["reward"] == resumed.state.log_history[-2]["reward"]


def test_evaluation_has_the_metrics_of_rewards(tmp_path: Path):
    trainer = make_trainer(tmp_path, eval_dataset=ROWS[:3], per_device_eval_batch_size=2)
    metrics = trainer.evaluate()
    assert {"eval_loss"} <= metrics.keys()
    record = trainer.state.log_history[-1]
    assert {"eval_reward", "eval_rewards/count_letters/mean", "eval_completions/mean_length"} <= record.keys()
    assert trainer.evaluate()["eval_loss"] == metrics["eval_loss"]


def test_chats_get_messages(tmp_path: Path):
    tokenizer_rows = [{"prompt": [{"role": "user", "content": "a b"}], "letter": "c"}] * 4
    kinds = []

    def reward(prompts: Any, completions: Any, **_: Any) -> list[float]:
        kinds.append((prompts[0][0]["role"], completions[0][0]["role"]))
        return [float(len(completion[0]["content"])) for completion in completions]

    trainer = make_trainer(tmp_path, reward, rows=tokenizer_rows)
    with pytest.raises(InputError, match="the tokenizer has no chat template"):
        trainer.train()
    trainer.text.tokenizer.chat_template = CHAT
    trainer.train()
    assert set(kinds) == {("user", "assistant")}


def test_a_reward_may_be_asynchronous_and_run_in_workers(tmp_path: Path):
    async def later(completions: list[str], **_: Any) -> list[float]:
        return [float("c" in completion) for completion in completions]

    make_trainer(tmp_path, later, max_steps=1).train()
    trainer = make_trainer(tmp_path, count_letters, max_steps=1, reward_workers=1, reward_timeout=60.0)
    trainer.train()
    trainer.reward.close()


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_an_adapter_is_trained(tmp_path: Path, beta: float):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    trainer = make_trainer(tmp_path, peft_config=settings, max_steps=3, beta=beta)
    frozen = trainer.model.get_base_model().lm_head.weight.clone()
    trainer.train()
    assert torch.equal(frozen, trainer.model.get_base_model().lm_head.weight)
    assert any(float(p.abs().max()) > 0 for name, p in trainer.model.named_parameters() if "lora_B" in name)
    if beta:
        divergences = [record["kl"] for record in trainer.state.log_history if "kl" in record]
        assert divergences[0] == pytest.approx(0, abs=1e-5)
        assert divergences[-1] != divergences[0]


def test_models_with_encoders_are_trained(tmp_path: Path):
    trainer = make_trainer(tmp_path, model=language_model("t5", dtype=torch.float32))
    before = weights(trainer).clone()
    trainer.train()
    assert not torch.equal(before, weights(trainer))


def test_samples_have_the_credit_of_every_token(tmp_path: Path):
    make_trainer(tmp_path, [count_letters, short], samples_steps=2, max_steps=4).train()
    records = read_samples_file(tmp_path / "samples.jsonl")
    assert [record.update for record in records] == [1, 2, 4]
    assert {record.estimator for record in records} == {"RLOO-4"}
    context = records[0].contexts[0]
    sequence = context.sequences[0]
    assert len(sequence.credit) == len(sequence.tokens) == len(sequence.entropy)
    assert sequence.rewards.keys() == {"count_letters", "short"}
    row = ROWS[context.example]
    assert (context.prompt, context.columns) == ([Message("", row["prompt"])], {"letter": row["letter"]})


def test_samples_of_a_resumed_training_are_those_of_one_that_was_not_stopped(tmp_path: Path):
    options: dict[str, Any] = {"samples_steps": 1, "max_steps": 3, "save_strategy": "steps", "save_steps": 2.0}
    make_trainer(tmp_path, **options).train()
    names = ("samples.jsonl", "completions.html")
    whole = [(tmp_path / name).read_bytes() for name in names]
    assert whole[0].count(b"\n") == whole[1].count(b'<option value="') - 1 - 5 - 3 == 3
    make_trainer(tmp_path, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [(tmp_path / name).read_bytes() for name in names] == whole


def test_an_update_of_several_batches_is_kept_once(tmp_path: Path):
    options: dict[str, Any] = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    make_trainer(tmp_path, samples_steps=1, **options).train()
    assert [record.update for record in read_samples_file(tmp_path / "samples.jsonl")] == [1, 2]


@pytest.mark.usefixtures("unchecked")
def test_files_of_somebody_else_are_left_alone(tmp_path: Path):
    for name in ("samples.jsonl", "completions.html"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("mine\n")
        with pytest.raises(InputError, match="exists, and nothing is overwritten"):
            make_trainer(folder, samples_steps=1).train()
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_text() == "mine\n"
    with pytest.raises(InputError, match=r"completions\.html was not written by a training"):
        SamplesFile(tmp_path / "completions", 2, {})  # resumed
    with pytest.raises(InputError, match=r"samples\.jsonl, line 1 is damaged"):
        SamplesFile(tmp_path / "samples", 2, {})


def test_the_page_has_the_first_update_and_the_last_ones(tmp_path: Path):
    file = SamplesFile(tmp_path, 0, {"model": "none"})
    for update in range(1, 21):
        file.add(make_samples(update))
    page = (tmp_path / "completions.html").read_text("utf-8")
    assert [int(update) for update in re.findall(r"<summary>Update (\d+)", page)] == [*range(20, 13, -1), 1]
    again = SamplesFile(tmp_path, 10, {"model": "none"})
    again.add(make_samples(11))
    assert [record.update for record in read_samples_file(tmp_path / "samples.jsonl")] == [*range(1, 12)]


@pytest.mark.parametrize("estimator", ["rloo-2", "arsm:budget=30"])
def test_an_estimate_is_inspected(tmp_path: Path, estimator: str):
    """By a policy or a trainer, for chats and plain prompts, without changing a weight."""
    policy = policy_of(language_model("llama", dtype=torch.float32), make_tokenizer())
    policy.tokenizer.chat_template = CHAT
    rows = [{"prompt": [{"role": "user", "content": "a b"}]}, *({"prompt": "b c d"} for _ in range(5))]

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(len(tokens)) for tokens in completion_ids]

    samples = inspect_completions(policy, rows, reward, estimator, max_completion_length=5, seed=3, batch_size=4)
    assert [context.example for context in samples.contexts] == [*range(6)]
    assert samples.contexts[0].prompt == [Message("user", "a b")]
    sequences = [one for context in samples.contexts for one in context.sequences]
    assert samples.reward == pytest.approx(sum(len(one.tokens) for one in sequences) / len(sequences))
    assert all(one.reward == len(one.tokens) for one in sequences)
    assert "".join(sequences[0].pieces).removesuffix("<end>") == policy.tokenizer.decode(
        [token for token in sequences[0].tokens if token != 2]
    )
    branches = [branch for one in sequences for branch in one.branches]
    assert bool(branches) == estimator.startswith("arsm")
    write_completions_page(tmp_path / "page.html", [samples], {"model": "tiny"}, new=True)
    assert (tmp_path / "page.html").read_text("utf-8").count('class="completion"') == len(sequences)
    trainer = make_trainer(tmp_path, reward, estimator=estimator, model=language_model("llama", dtype=torch.float32))
    before = weights(trainer).clone()
    assert len(trainer.inspect(rows[1:3]).contexts) == 2
    assert torch.equal(before, weights(trainer))


def test_auto_uses_one_of_its_candidates(tmp_path: Path):
    trainer = make_trainer(tmp_path, estimator="auto:estimates=2", per_device_train_batch_size=4, max_steps=1)
    before = trainer.generated_tokens
    trainer.train()
    assert trainer.estimator.chosen in trainer.estimator.candidates
    assert trainer.generated_tokens > before + 4 * 4


def test_what_goes_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def constant(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    said: list[str] = []
    monkeypatch.setattr("corollout.hf.trainer._LOGGER.warning", said.append)
    make_trainer(tmp_path, constant, max_steps=20, max_completion_length=2).train()
    assert any("the gradient has been exactly zero for 20 updates" in text for text in said)

    def nothing(completions: list[str], **_: Any) -> list[None]:
        return [None] * len(completions)

    with pytest.raises(RewardError, match="returned None for all sequences of the first 3 updates"):
        make_trainer(tmp_path, nothing, max_steps=4).train()


# Mistakes


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_device_train_batch_size": 6}, "not a multiple of the 4 of each prompt"),
        ({"fp16": True}, "fp16 needs scaled losses"),
        ({"temperature": 0.0}, "temperature must be a positive number"),
        ({"max_completion_length": 0}, "max_completion_length"),
        ({"num_generations": 1}, "num_generations"),
        ({"estimator": "rlo"}, "rlo"),
        ({"reward_weights": [1.0, 2.0]}, "2 reward weights for 1 rewards"),
        ({"rows": []}, "train_dataset has no rows"),
        ({"rows": [{"text": "a"}]}, "needs a column 'prompt'"),
        ({"rows": "prompts.jsonl"}, "must be a table of datasets, or a list of rows"),
        ({"rewards": "a-reward-model"}, "a reward must be a function"),
        ({"rewards": [short, short]}, "two of the reward functions are called 'short'"),
        ({"model": "no/such-model"}, "the model 'no/such-model' cannot be loaded"),
    ],
)
def test_mistakes_are_told_at_once(tmp_path: Path, options: dict[str, Any], message: str, monkeypatch: Any):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=message):
        make_trainer(tmp_path, **options)


def fails(completions: list[str], **_: Any) -> list[float]:
    raise ValueError("no such file")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rewards": fails}, RewardError, "reward 'fails' .*no such file"),
        ({"rewards": lambda completions, **_: [1.0]}, RewardError, "1"),
        ({"rewards": lambda completions, **_: [float("nan")] * len(completions)}, RewardError, "nan"),
        ({"rows": [{"prompt": 3}] * 4}, InputError, "prompt [0-3] must be a string, or a list of messages"),
        ({"rows": [{"prompt": ""}] * 4}, InputError, "prompt [0-3] is empty"),
        (
            {"rows": [{"prompt": "a " * 61, "letter": "a"}] * 4},
            InputError,
            "61 tokens, but with the completion only 60",
        ),
    ],
)
def test_mistakes_in_data_and_rewards_are_told_in_the_first_step(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        make_trainer(tmp_path, **options).train()


def test_a_vocabulary_that_does_not_fit_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=f"the tokenizer has {VOCAB} tokens, but the model only 20"):
        make_trainer(tmp_path, model=language_model("llama", vocab=20, dtype=torch.float32))


def test_prompts_of_the_trainer_are_those_of_a_column():
    columns = Columns(context=PromptColumn([[3, 4], [5]]))
    assert columns.batch([1, 0]).context.tolist() == [[5, -1], [3, 4]]


@pytest.mark.usefixtures("unchecked")
def test_a_tokenizer_is_needed_but_none_of_its_padding(tmp_path: Path):
    model = language_model("llama", vocab=VOCAB, dtype=torch.float32)
    args = PolicyGradientConfig(str(tmp_path), report_to="none", use_cpu=True)
    with pytest.raises(InputError, match="the model does not say where it is from: give its tokenizer"):
        PolicyGradientTrainer(model, short, args, [{"prompt": "a"}])
    with pytest.raises(InputError, match="processing_class must be a tokenizer of transformers"):
        PolicyGradientTrainer(model, short, args, [{"prompt": "a"}], processing_class="a-tokenizer")
    tokenizer, args.max_steps, args.max_completion_length = make_tokenizer(), 1, 4
    tokenizer.pad_token = None
    trainer = PolicyGradientTrainer(model, short, args, ROWS, processing_class=tokenizer)
    trainer.train()
    assert trainer.state.global_step == 1
