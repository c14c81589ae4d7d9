"""Trainings of tiny language models that several processes share, and what came of them: run by ``torchrun``.

python -m torch.distributed.run --nproc-per-node 2 -m tests.support.shared_trainings FOLDER NAME…
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from torch import Tensor
from torch.distributed.tensor import DTensor

from corollout.files import digest_of
from corollout.hf import PolicyGradientConfig, PolicyGradientTrainer
from corollout.processes import Processes, joined, processes
from corollout.weights import tensor_bytes
from tests.support.language_models import language_model
from tests.support.tiny_models import make_tokenizer

# Eight rows: of batches of six, the second one has a row for each of two processes, and none for the third.
ROWS = [{"prompt": f"{'b ' * (n % 3)}{letter}", "letter": letter} for n, letter in enumerate("cdefghij")]
BATCH = 6  # prompts of all processes

LORA = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
LAYERS = {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
SHARDED: dict[str, Any] = {"fsdp": True, "fsdp_config": LAYERS}
SAVED = {
    "estimator": "set-4:baseline=fitted", "max_steps": 4, "save_strategy": "steps", "save_steps": 2.0,
    "optim": "adamw_torch", "samples_steps": 1,
}  # fmt: skip
BEST = {
    "eval_strategy": "steps", "eval_steps": 2.0, "load_best_model_at_end": True, "samples_steps": 0,
    "metric_for_best_model": "completions/clipped_ratio", "greater_is_better": False, "learning_rate": 0.3,
}  # fmt: skip
# What differs from RLOO of a Llama model in double precision, whose updates are not clipped.
CASES: dict[str, dict[str, Any]] = {
    "rloo": {"estimator": "rloo-4"},
    "fitted": {"estimator": "set-4:baseline=fitted"},
    "budget": {"estimator": "arsm:budget=30,budget_per=update"},
    "accumulated": {"gradient_accumulation_steps": 2, "max_grad_norm": 0.01, "optim": "adamw_torch"},
    "t5": {"model": "t5", "beta": 0.1},
    "lora": {"lora": LORA, "beta": 0.1},
    "sharded": {**SHARDED, "max_grad_norm": 0.01, "optim": "adamw_torch"},
    "sharded lora": {**SHARDED, "lora": LORA, "beta": 0.1},
    "saved": SAVED,
    "continued": {**SAVED, "per_device_train_batch_size": BATCH},  # whatever it says, batches are those of before
    "sharded tied": {**SHARDED, "tied": True},
    "sharded checkpointed": {"fsdp": True, "fsdp_config": {**LAYERS, "activation_checkpointing": True}},
    "sharded best": {**SHARDED, **SAVED, **BEST},
    "sharded saved": {**SHARDED, **SAVED},
    "sharded continued": {**SHARDED, **SAVED},
    "auto": {"estimator": "auto:estimates=2", "max_steps": 1},
    "bf16": {"bf16": True, "gradient_checkpointing": True, "dtype": torch.float32},
    "sharded bf16": {**SHARDED, "bf16": True, "gradient_checkpointing": True, "dtype": torch.bfloat16},
    "first reads": {**SHARDED, "others_have_other_weights": True},
    "shrunk": {"estimator": "rloo-4:baseline=shrunk"},
    "reinforce": {"estimator": "reinforce"},
    "pairs": {"estimator": "pairs"},
    "grpo": {"estimator": "grpo-4"},
}


# In half precision, samples depend on what is computed together.
ROUNDED = [name for name in CASES if "bf16" in name]


def letters(completions: list[str], letter: list[str], log_metric: Any = None, **_: Any) -> list[float | None]:
    if log_metric is not None:
        log_metric("prompted", 1.0)
    counts = [completion.split().count(one) / 4 for completion, one in zip(completions, letter, strict=True)]
    return [
        None if completion.startswith("a a") else count for completion, count in zip(completions, counts, strict=True)
    ]


def words(completions: list[str], **_: Any) -> list[float]:
    return [len(completion.split()) / 10 for completion in completions]


class Watched(transformers.TrainerCallback):
    """Keeps the gradients of each update, whole."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
        named = [(name.replace("_checkpoint_wrapped_module.", ""), one) for name, one in model.named_parameters()]
        self.gradients.append({name: whole(one.grad).clone() for name, one in named if one.grad is not None})


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def make(name: str, folder: Path, size: int) -> tuple[Any, Watched, list[list[Any]]]:
    """The trainer of a case in one of ``size`` processes, and what collects its gradients and completions."""
    case = {"estimator": "rloo-4", **CASES[name]}
    if size == 1:
        case = {key: value for key, value in case.items() if not key.startswith("fsdp")}
    os.environ.pop("ACCELERATE_USE_FSDP", None)
    kind, lora, dtype = case.pop("model", "llama"), case.pop("lora", None), case.pop("dtype", torch.float64)
    watched, seen = Watched(), []
    options = {"tie_word_embeddings": True} if case.pop("tied", False) else {}
    seed = processes().rank if case.pop("others_have_other_weights", False) else 0

    def looking(completions: list[str], prompts: list[str], **_: Any) -> list[float]:
        seen.extend([list(pair) for pair in zip(prompts, completions, strict=True)])
        return [0.0] * len(completions)

    peft_config = None
    if lora is not None:
        import peft

        peft_config = peft.LoraConfig(**lora)
    settings: dict[str, Any] = {
        "per_device_train_batch_size": BATCH // size, "num_generations": 1, "max_completion_length": 4, "max_steps": 3,
        "learning_rate": 1e-2, "lr_scheduler_type": "constant", "report_to": "none", "use_cpu": True,
        "disable_tqdm": True, "logging_steps": 1.0, "save_strategy": "no", "optim": "sgd", "max_grad_norm": 0.0, **case,
    }  # fmt: skip
    trainer = PolicyGradientTrainer(
        language_model(kind, dtype=dtype, seed=seed, **options),
        [letters, words, looking],
        PolicyGradientConfig(str(folder), **settings),
        train_dataset=ROWS,
        eval_dataset=ROWS[:5],
        processing_class=make_tokenizer(),
        callbacks=[watched],
        peft_config=peft_config,
    )
    return trainer, watched, seen


def results(trainer: Any, watched: Watched, seen: list[list[Any]], together: Processes) -> dict[str, Any]:
    """What came of a training, the same in all processes."""
    weights = {name: one.detach().clone() for name, one in trainer.policy.model.named_parameters()}
    digests = together.gather_values(digest_of(tensor_bytes(one) for one in weights.values()))
    assert len(set(digests)) == 1, "the processes have different weights"
    logged = [{key: value for key, value in one.items() if "runtime" not in key and "per_second" not in key}
              for one in trainer.state.log_history]  # fmt: skip
    return {
        "completions": sorted(pair for part in together.gather_values(seen) for pair in part),
        "logged": logged,
        "gradients": watched.gradients,
        "weights": weights,
    }


def run(name: str, folder: Path, together: Processes) -> dict[str, Any]:
    """Train; what continues has a folder of its own, with a checkpoint: of shards, what this job has just saved."""
    if name == "sharded continued" and together.is_first:
        shutil.copytree(folder.parent / "sharded saved" / "checkpoint-2", folder / "checkpoint-2")
        shutil.copy(folder.parent / "sharded saved" / "samples.jsonl", folder)
    together.exchange([0])
    trainer, watched, seen = make(name, folder, together.size)
    trainer.evaluate()
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2") if "continued" in name else None)
    return results(trainer, watched, seen, together)


def save(path: Path, result: dict[str, Any]) -> None:
    tensors = {f"weights/{name}": one.contiguous() for name, one in result["weights"].items()}
    for step, gradients in enumerate(result["gradients"]):
        tensors |= {f"{step}/{name}": one.contiguous() for name, one in gradients.items()}
    safetensors.torch.save_file({name: one.clone() for name, one in tensors.items()}, path.with_suffix(".safetensors"))
    path.with_suffix(".json").write_text(json.dumps({key: result[key] for key in ("completions", "logged")}))


def load(path: Path) -> dict[str, Any]:
    tensors = safetensors.torch.load_file(path.with_suffix(".safetensors"))
    parts: dict[str, dict[str, Tensor]] = {}
    for name, one in tensors.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = one
    weights = parts.pop("weights")
    gradients = [parts[step] for step in sorted(parts, key=int)]
    return {**json.loads(path.with_suffix(".json").read_text()), "weights": weights, "gradients": gradients}


def run_case(name: str, folder: Path, together: Processes) -> None:
    """Train, and write what came of it; what the trainer writes is in a folder beside it."""
    result = run(name, folder / "output" / name, together)
    if together.is_first:
        save(folder / name, result)


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    with joined() as together:
        for name in names:
            run_case(name, folder, together)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
