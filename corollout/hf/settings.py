"""The settings of ``corollout lm``: TRL's names where it has them. Neither PyTorch nor transformers is imported."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from corollout.config import Extra, argument, option, read_toml, required, switch
from corollout.errors import InputError

EXTRA = Extra("hf", ("transformers", "accelerate", "datasets", "peft"))
SETTINGS = "settings.toml"  # in the folder of a training
DATASET_HELP = (
    "Prompts: a file (.jsonl, .json, .csv, .parquet, or .txt with a prompt in each line), a folder of save_to_disk, or "
    "the name of a data set at the hub, with NAME:SPLIT for another split than train."
)
REWARD_HELP = (
    "Reward function, as package.module:function or path/to/file.py:function: called as "
    "f(prompts, completions, COLUMNS…, **kwargs), it returns a number for each completion. May be repeated."
)
Dtype = Literal["float32", "bfloat16", "auto"]
Schedule = Literal["linear", "cosine", "constant", "constant_with_warmup"]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model is used."""

    model: str = required("Language model: a name at the hub, a folder, or the folder of a training.")


@dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """Which prompts are read."""

    dataset: str | None = option(None, DATASET_HELP, metavar="<file|name>")
    dataset_config: str | None = option(None, "Configuration of a data set at the hub, if it has several.")
    prompt_column: str = option("prompt", "Column with the prompts: strings, or messages of a chat.")


@dataclass(frozen=True, kw_only=True)
class RewardSettings:
    """How completions are scored."""

    reward: tuple[str, ...] = option((), REWARD_HELP, metavar="<module:function>")
    reward_weights: tuple[float, ...] = option((), "A weight for each reward. [default: 1]")
    reward_workers: int = option(0, "Processes that run each reward function; 0 for none.", least=0, most=1024)
    reward_timeout: float | None = option(
        None, "Seconds that a batch may take in such a process.", least=1e-3, most=1e9
    )


@dataclass(frozen=True, kw_only=True)
class StopSettings:
    """Where completions end, besides the end token."""

    stop_strings: tuple[str, ...] = option(
        (),
        "A completion ends with the token that completes this text. May be repeated.",
        flags=("--stop",),
        metavar="<text>",
        one_by_one=True,
    )


@dataclass(frozen=True, kw_only=True)
class TrainSettings(StopSettings, RewardSettings, PromptSettings, ModelSettings):
    """The settings of ``lm train`` that a folder keeps."""

    eval_dataset: str | None = option(None, "Prompts to evaluate on, given as --dataset is.", metavar="<file|name>")
    estimator: str | None = option(
        None,
        "Gradient estimator, such as rloo-4, set-4:baseline=fitted, arsm:budget=64 or auto. [default: RLOO with "
        "--num-generations completions, or 4]",
    )
    num_generations: int | None = option(
        None, "Completions of a prompt, by which batch sizes count. [default: as many as the estimator draws]", least=1
    )
    max_completion_length: int = option(256, "Most tokens of a completion.", least=1, most=1_000_000)
    temperature: float = option(1.0, "Of the policy that is sampled and optimised.", least=1e-3, most=1_000)
    beta: float = option(0.0, "Coefficient of the divergence from the model at the start, in nats.", least=0, most=1e6)
    learning_rate: float = option(1e-6, "Highest learning rate of AdamW.", least=1e-12, most=1_000)
    lr_scheduler_type: Schedule = option("linear", "How the learning rate falls after the warm-up.")
    warmup_ratio: float | None = option(None, "Share of the steps in which the learning rate rises.", least=0, most=1)
    warmup_steps: int | None = option(None, "Steps in which the learning rate rises.", least=0)
    max_grad_norm: float = option(1.0, "Norm to which gradients are clipped; 0 for never.", least=0, most=1e30)
    per_device_train_batch_size: int | None = option(
        None,
        "Completions in a batch, a multiple of the number for a prompt. [default: those of 4 prompts]",
        least=1,
        most=10**9,
    )
    gradient_accumulation_steps: int = option(1, "Batches in an update.", least=1, most=10**9)
    num_train_epochs: float = option(3.0, "Passes over the prompts.", least=1e-6, most=1e9)
    max_steps: int | None = option(None, "Number of updates, instead of passes.", least=1, most=10**12)
    micro_batch_size: int | None = option(
        None, "Prompts that are scored at a time: less memory, the same gradient.", least=1
    )
    gradient_checkpointing: bool = switch("Compute layers again in the backward pass, to save memory.")
    bf16: bool = switch("Compute in bfloat16; the weights stay as they are.")
    dtype: Dtype = option("float32", "Type of the weights; auto: that of the files.")
    lora_rank: int | None = option(None, "Train an adapter (LoRA) of this rank instead of all weights.", least=1)
    lora_targets: tuple[str, ...] = option(
        (), "Names of the layers that get an adapter, as in q_proj,v_proj. [default: peft's for this kind of model]"
    )
    logging_steps: int = option(10, "Print metrics every so many updates.", least=1)
    save_steps: int = option(100, "Save a checkpoint every so many updates.", least=1)
    save_total_limit: int | None = option(2, "Checkpoints that are kept, the newest ones.", least=1)
    eval_steps: int | None = option(
        None, "Evaluate every so many updates. [default: as often as checkpoints are saved]", least=1
    )
    samples_steps: int = option(
        0, "Keep completions with the credit of every token every so many updates; 0 for never.", least=0
    )
    seed: int = option(0, "Seed of all sampling, and of the order of prompts.", least=0, most=2**32 - 1)
    report_to: str = option("none", "Service that gets the metrics, such as tensorboard or wandb.")
    use_cpu: bool = switch("Compute on the CPU although there is another device.")


# What may be given besides for a training that is resumed: its length, and what changes no weight.
FREE = ("max_steps", "num_train_epochs", "save_steps", "save_total_limit", "reward_workers", "reward_timeout")


@dataclass(frozen=True)
class Training:
    """The settings of ``lm train``."""

    training: TrainSettings
    out: Path = required("Folder of the training: checkpoints, settings, and at the end the model.")
    resume: bool = switch("Go on with the training in --out.")

    @classmethod
    def layers(cls, flags: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Settings between the defaults and the flags: those of the training that is resumed."""
        given = flags.get("training", {})
        if not flags.get("resume"):
            needed = [name for name in ("model", "dataset", "reward") if name not in given]
            if needed:
                names = " and ".join(f"--{name}" for name in needed)
                raise InputError(f"a training needs {names}: see corollout lm train --help")
            return []
        kept = kept_settings(Path(flags["out"]))
        changed = [name for name in given if name not in FREE and given[name] != kept.get(name)]
        if changed:
            names, free = (", ".join(f"--{name.replace('_', '-')}" for name in some) for some in (changed, FREE))
            raise InputError(f"a resumed training keeps its settings, but for {free}: leave out {names}")
        return [{"training": kept}]


def kept_settings(folder: Path) -> dict[str, Any]:
    """The table of settings in the folder of a training."""
    path = folder / SETTINGS
    if not path.is_file():
        raise InputError(f"{folder} is not the folder of a training: it has no {SETTINGS}")
    return read_toml(path)


@dataclass(frozen=True, kw_only=True)
class GenerateSettings(StopSettings, RewardSettings, PromptSettings, ModelSettings):
    """The settings of ``lm generate``."""

    prompt: tuple[str, ...] = option((), "A prompt, instead of --dataset. May be repeated.", one_by_one=True)
    chat: bool = switch("Make a message of the user of each --prompt, as models for chats expect.")
    count: int = option(3, "Number of prompts of the data set, from the first on.", least=1)
    sample: int = option(0, "Number of sampled completions of each prompt.", least=0, most=100_000)
    beam: int = option(0, "Beam size; shows all completions of the beam.", least=0, most=100_000)
    temperature: float = option(1.0, "Logits are divided by it before sampling.", least=1e-3, most=1_000)
    top_k: int | None = option(None, "Sample from this many most probable tokens only.", least=1)
    top_p: float | None = option(None, "Sample from the most probable tokens of this share only.", least=1e-9, most=1)
    max_completion_length: int = option(256, "Most tokens of a completion.", least=1, most=1_000_000)
    batch_size: int = option(8, "Prompts that are completed at a time.", least=1, most=100_000)
    seed: int = option(0, "Seed of the samples.")
    dtype: Dtype = option("auto", "Type of the weights; auto: that of the files.")
    use_cpu: bool = switch("Compute on the CPU although there is another device.")
    json: bool = switch("Print a JSON object for each completion, one per line.")


@dataclass(frozen=True, kw_only=True)
class InspectSettings(StopSettings, RewardSettings, PromptSettings):
    """The settings of ``lm inspect``: what a training has kept, or a fresh estimate."""

    folder: Path | None = argument("Folder of a training that has kept completions, by --samples-steps.", None)
    update: int | None = option(None, "Update to print, of those of FOLDER. [default: the last one]", least=1)
    model: str | None = option(
        None, "For a fresh estimate: a model's name at the hub, its folder, or the folder of a training."
    )
    estimator: str = option("rloo-4", "Gradient estimator, such as rloo-4 or arsm:budget=64.")
    examples: int = option(4, "Number of prompts of the data set, from the first on.", least=1)
    max_completion_length: int = option(64, "Most tokens of a completion.", least=1, most=1_000_000)
    temperature: float = option(1.0, "Of the policy that is sampled and optimised.", least=1e-3, most=1_000)
    batch_size: int = option(4, "Prompts of an estimate.", least=1, most=100_000)
    seed: int = option(0, "Seed of the samples.")
    dtype: Dtype = option("float32", "Type of the weights; auto: that of the files.")
    use_cpu: bool = switch("Compute on the CPU although there is another device.")
    html: Path | None = option(
        None,
        "File for the page. [default: completions.html in FOLDER; or here, numbered if there is one]",
        metavar="<file>",
    )
    json: bool = switch("Print everything as a JSON object for each update, one per line.")
