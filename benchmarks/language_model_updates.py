"""Updates of a language model by TRL's RLOOTrainer or by our trainer: seconds and peak memory, in a fresh process.

The model has the shape of SmolLM2-135M and random weights, unless a folder with a model is given. With random weights
the end of a sequence is hardly ever drawn, so that completions have their full length. Seconds are those between the
ends of two updates; the first update only warms up. The peak is the high-water mark of resident memory from the first
update on, with everything that is resident: weights, gradients, optimizer and libraries.
"""

import contextlib
import io
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

SEED = 0
SMOLLM2_VOCAB = 49_152
TRL_RLOO = "TRL RLOO"
_PAD, _EOS = 0, 1
_PROCESS = Path("/proc/self")


class Point(NamedTuple):
    """An update's size. ``method`` is "TRL RLOO" or an estimator of ours."""

    method: str
    prompts: int = 4
    prompt_length: int = 38
    completions: int = 4
    max_completion_length: int = 24
    vocab: int = SMOLLM2_VOCAB
    layers: int = 30
    hidden: int = 576
    folder: str = ""  # of a model, instead of random weights


class Update(NamedTuple):
    seconds: list[float]
    peak: int  # bytes
    mean_length: float  # of the completions that the reward was given


def measure(point: Point, repetitions: int) -> Update:
    """To be run in a fresh process."""
    import transformers

    class Clock(transformers.TrainerCallback):
        """When each update ended."""

        ends: list[float]

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.ends = []
            (_PROCESS / "clear_refs").write_text("5")  # the high-water mark starts anew from what is in use

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

    clock, lengths = Clock(), []

    def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
        """A reward that costs nothing and differs between completions."""
        lengths.extend(map(len, completion_ids))
        return [sum(tokens) % 7 / 7 for tokens in completion_ids]

    torch.manual_seed(SEED)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        make_trainer(point, folder, reward, clock, repetitions + 1).train()
    seconds = [end - start for start, end in zip(clock.ends, clock.ends[1:], strict=False)]
    return Update(seconds, _status("VmHWM"), sum(lengths) / len(lengths))


def make_trainer(point: Point, folder: str, reward: Any, callback: Any, updates: int) -> Any:
    """TRL's trainer or ours with the same arguments; all that costs time without changing the method is off."""
    Dataset: Any = import_module("datasets").Dataset

    model, tokenizer = load(point)
    prompts = make_prompts(point, tokenizer, point.prompts * updates)
    arguments: dict[str, Any] = {
        "output_dir": folder,
        "seed": SEED,
        "per_device_train_batch_size": point.prompts * point.completions,
        "gradient_accumulation_steps": 1,
        "num_generations": point.completions,
        "max_completion_length": point.max_completion_length,
        "max_steps": updates,
        "learning_rate": 1e-6,
        "beta": 0.0,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    if point.method == TRL_RLOO:
        trl = import_module("trl")
        args, kind = trl.RLOOConfig(**arguments), trl.RLOOTrainer
    else:
        from corollout.hf import PolicyGradientConfig, PolicyGradientTrainer

        args, kind = PolicyGradientConfig(estimator=point.method, **arguments), PolicyGradientTrainer
    return kind(
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        callbacks=[callback],
    )


def load(point: Point) -> tuple[Any, Any]:
    """Model and tokenizer: those of the folder, or random weights and a tokenizer with a word for each token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    if point.folder:
        model = AutoModelForCausalLM.from_pretrained(point.folder, dtype=torch.float32)
        return model, AutoTokenizer.from_pretrained(point.folder, padding_side="left")
    heads = point.hidden // 64
    config = LlamaConfig(
        vocab_size=point.vocab,
        hidden_size=point.hidden,
        intermediate_size=point.hidden * 8 // 3,
        num_hidden_layers=point.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 3),
        max_position_embeddings=8_192,
        tie_word_embeddings=True,
        pad_token_id=_PAD,
        bos_token_id=None,
        eos_token_id=_EOS,
    )
    words = {"<pad>": _PAD, "</s>": _EOS, **{f"w{i}": i for i in range(2, point.vocab)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return LlamaForCausalLM(config), PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", padding_side="left"
    )


def make_prompts(point: Point, tokenizer: Any, count: int) -> list[str]:
    """Different prompts of exactly the wanted length, by the tokenizer of the model."""
    if not point.folder:
        draws = torch.randint(2, point.vocab, (count, point.prompt_length)).tolist()
        return [" ".join(f"w{token}" for token in row) for row in draws]
    long = [f"Story {i}: " + "once upon a time, " * point.prompt_length for i in range(count)]
    rows = [tokenizer(text)["input_ids"][: point.prompt_length] for text in long]
    return tokenizer.batch_decode(rows)


def _status(entry: str) -> int:
    lines = (_PROCESS / "status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{entry}:"))


def measure_freshly(point: Point, repetitions: int) -> Update:
    """``measure`` in a process of its own."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, point, repetitions).result()
