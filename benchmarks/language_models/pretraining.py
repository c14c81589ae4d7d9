"""Maximum likelihood from random weights: a small Llama and a T5-shaped model, saved as ordinary folders.

The learning rate falls linearly to zero, and the weights with the lowest loss on the development set are kept. The loop
can be stopped at any time and continues from its last evaluation.
"""

import json
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from benchmarks.language_models.e2e import Example, read_e2e
from benchmarks.language_models.likelihood import Group, causal_loss, seq2seq_loss, split_references
from benchmarks.language_models.tokenizer import train_tokenizer
from corollout.files import write_file, write_json

Kind = Literal["causal", "seq2seq"]
LOSSES = {"causal": causal_loss, "seq2seq": seq2seq_loss}


@dataclass(frozen=True)
class PretrainingSettings:
    """Sizes of the model and of a batch, and how long it is trained."""

    kind: Kind = "causal"
    vocab_size: int = 2_500
    hidden_size: int = 256
    layers: int = 6  # of T5: half of them in the encoder, half in the decoder
    heads: int = 4
    intermediate_size: int = 704
    context_window: int = 256
    prompts: int = 8  # in a batch
    references: int = 6  # of a prompt in a batch, at most
    learning_rate: float = 1.5e-3
    warmup_updates: int = 100
    epochs: float = 3.0
    patience: int = 5  # evaluations without a lower loss, after which training ends early
    updates_between_evaluations: int = 200
    dev_references: int = 2  # of each prompt, on which the loss is evaluated
    seed: int = 0


@dataclass
class Progress:
    """Where training is: what a checkpoint has beside tensors."""

    update: int = 0
    seconds: float = 0.0  # of training, without evaluations
    best_loss: float = float("inf")
    waited: int = 0  # evaluations since the best one
    evaluations: list[dict[str, float]] = field(default_factory=list)


def make_model(settings: PretrainingSettings, tokenizer: Any) -> Any:
    shared: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(settings.seed)
    if settings.kind == "causal":
        return LlamaForCausalLM(
            LlamaConfig(
                hidden_size=settings.hidden_size,
                intermediate_size=settings.intermediate_size,
                num_hidden_layers=settings.layers,
                num_attention_heads=settings.heads,
                num_key_value_heads=max(1, settings.heads // 2),
                max_position_embeddings=settings.context_window,
                bos_token_id=tokenizer.bos_token_id,
                **shared,
            )
        )
    return T5ForConditionalGeneration(
        T5Config(
            d_model=settings.hidden_size,
            d_kv=settings.hidden_size // settings.heads,
            d_ff=settings.intermediate_size,
            num_layers=settings.layers // 2,
            num_decoder_layers=settings.layers // 2,
            num_heads=settings.heads,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            **shared | {"decoder_start_token_id": tokenizer.pad_token_id},
        )
    )


def tokenized(examples: Sequence[Example], tokenizer: Any) -> list[Group]:
    """Prompts and references as tokens; a reference begins with a space, as the prompt does not end with one."""
    return [
        Group(
            tokenizer(example.prompt)["input_ids"],
            [
                [*ids, tokenizer.eos_token_id]
                for ids in tokenizer([f" {one}" for one in example.references])["input_ids"]
            ],
        )
        for example in examples
    ]


def batches_of_epoch(groups: Sequence[Group], settings: PretrainingSettings, epoch: int) -> list[list[Group]]:
    """All references once, in batches of rows of similar length, in an order that seed and epoch decide."""
    order = random.Random(f"{settings.seed} {epoch}")
    rows: list[Group] = []
    for prompt, references in groups:
        shuffled = order.sample(references, len(references))
        rows += split_references(Group(prompt, shuffled), settings.references)
    order.shuffle(rows)
    rows.sort(key=lambda row: row.length // 16)  # stable: random among rows of similar length
    batches = [rows[start : start + settings.prompts] for start in range(0, len(rows), settings.prompts)]
    order.shuffle(batches)
    return batches


@torch.no_grad()
def dev_loss(model: Any, groups: Sequence[Group], settings: PretrainingSettings) -> float:
    """Nats a token, on a few references of each prompt."""
    rows = sorted((Group(prompt, texts[: settings.dev_references]) for prompt, texts in groups), key=lambda g: g.length)
    losses = [LOSSES[settings.kind](model, rows[i : i + 32]) for i in range(0, len(rows), 32)]
    return float(sum(loss.total for loss in losses)) / sum(loss.tokens for loss in losses)


def pretrain(train: Path, dev: Path, out: Path, settings: PretrainingSettings, log: Callable[[str], object]) -> Path:
    """Train, or go on with it; return the folder of the best weights with the tokenizer."""
    model_folder = out / "model"
    if (model_folder / "config.json").exists():
        return model_folder
    out.mkdir(parents=True, exist_ok=True)
    examples = read_e2e(train)
    if not (out / "tokenizer" / "tokenizer_config.json").exists():
        texts = (text for example in examples for text in (example.prompt, *(f" {one}" for one in example.references)))
        train_tokenizer(texts, settings.vocab_size).save_pretrained(out / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(out / "tokenizer")
    train_groups, dev_groups = tokenized(examples, tokenizer), tokenized(read_e2e(dev), tokenizer)
    model = make_model(settings, tokenizer)
    log(f"{settings.kind}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} million weights")
    best = _train(model, train_groups, dev_groups, out, settings, log)
    model.load_state_dict(best)
    tokenizer.save_pretrained(model_folder)
    model.save_pretrained(model_folder)
    return model_folder


def _train(
    model: Any,
    train: Sequence[Group],
    dev: Sequence[Group],
    out: Path,
    settings: PretrainingSettings,
    log: Callable[[str], object],
) -> dict[str, Any]:
    """The loop; returns the best weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    progress, best = Progress(), _copy(model)
    if (out / "checkpoint.pt").exists():
        state = torch.load(out / "checkpoint.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        progress, best = Progress(**state["progress"]), state["best"]
    else:
        write_json(out / "settings.json", asdict(settings))
    in_epoch = len(batches_of_epoch(train, settings, 0))
    last = math.ceil(in_epoch * settings.epochs)
    batches, epoch = [], -1
    while progress.update < last and progress.waited < settings.patience:
        started = time.perf_counter()
        if epoch != progress.update // in_epoch:
            epoch = progress.update // in_epoch
            batches = batches_of_epoch(train, settings, epoch)
        rate = settings.learning_rate * min((progress.update + 1) / settings.warmup_updates, 1 - progress.update / last)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = LOSSES[settings.kind](model, batches[progress.update % in_epoch])
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        progress.update += 1
        progress.seconds += time.perf_counter() - started
        if progress.update % settings.updates_between_evaluations == 0 or progress.update == last:
            value = dev_loss(model, dev, settings)
            progress.waited = 0 if value < progress.best_loss else progress.waited + 1
            if value < progress.best_loss:
                progress.best_loss, best = value, _copy(model)
            progress.evaluations.append(
                {"update": progress.update, "seconds": progress.seconds, "loss": value, "rate": rate}
            )
            _save(out, model, optimizer, best, progress)
            log(f"update {progress.update} ({progress.update / in_epoch:.2f} epochs), {progress.seconds:.0f} s, "
                f"rate {rate:.2g}: {value:.4f} nats a token")  # fmt: skip
    return best


def _copy(model: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _save(out: Path, model: Any, optimizer: Any, best: dict[str, Any], progress: Progress) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": best}
    temporary = out / "checkpoint.temporary"
    torch.save({**state, "progress": asdict(progress)}, temporary)
    os.replace(temporary, out / "checkpoint.pt")
    write_file(out / "evaluations.jsonl", "".join(json.dumps(one) + "\n" for one in progress.evaluations))
