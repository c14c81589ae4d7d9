"""Tiny language models with random weights, and the slow twin of everything: whole sequences through the model."""

from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.rollouts import Engine
from corollout.types import Sequences

transformers: Any = pytest.importorskip("transformers")

END, START, PAD, VOCAB = 2, 1, 0, 23
SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
T5_SIZES = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}
BART_SIZES = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 64,
}  # fmt: skip
WINDOWED = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
CAPPED = {
    "head_dim": 4, "sliding_window": 4, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 3.0,
    "query_pre_attn_scalar": 4,
}  # fmt: skip
CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SIZES),
    "gpt-2": ("GPT2", {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "qwen-2": ("Qwen2", {**SIZES, **WINDOWED}),
    "gemma-2": ("Gemma2", {**SIZES, **CAPPED}),
}
WITH_ENCODER = {"t5": ("T5", T5_SIZES), "bart": ("Bart", BART_SIZES)}
MODELS = [*CAUSAL, *WITH_ENCODER]


def language_model(
    name: str, vocab: int = VOCAB, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any
) -> Any:
    """A model whose weights are large enough for every part of it to matter."""
    torch.manual_seed(seed)
    kind, sizes = {**CAUSAL, **WITH_ENCODER}[name]
    tokens = {"eos_token_id": END, "bos_token_id": START, "pad_token_id": PAD}
    if name in WITH_ENCODER:
        tokens["decoder_start_token_id"] = PAD if name == "t5" else END
    config = getattr(transformers, f"{kind}Config")(vocab_size=vocab, **{**sizes, **options}, **tokens)
    heads = {"GPT2": "LMHeadModel", "T5": "ForConditionalGeneration", "Bart": "ForConditionalGeneration"}
    model = getattr(transformers, f"{kind}{heads.get(kind, 'ForCausalLM')}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3 if dtype == torch.float64 else 0.1)
    return model.to(dtype).eval()


def policy_of(model: Any, tokenizer: Any = None) -> Any:
    from corollout.hf import CausalLMPolicy, Seq2SeqPolicy

    return (Seq2SeqPolicy if model.config.is_encoder_decoder else CausalLMPolicy)(model, tokenizer)


def plain_logits(policy: Any, prompt: list[int], answer: list[int]) -> Tensor:
    """The logits of an answer's tokens: the whole sequence through the model, by itself and without a cache."""
    model, head = policy.inner, torch.tensor([prompt])
    if model.config.is_encoder_decoder:
        read = torch.tensor([[policy.bos, *answer[:-1]]])
        return model(input_ids=head, attention_mask=torch.ones_like(head), decoder_input_ids=read).logits[0]
    tokens = torch.tensor([[*prompt, *answer]])
    return model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0, len(prompt) - 1 : -1]


def plain_rows(policy: Any, prompts: list[list[int]], sequences: Sequences, contexts: Tensor) -> Tensor:
    """The same for rows of sequences; zero beyond their ends."""
    rows, steps = sequences.tokens.shape
    parts = []
    for row in range(rows):
        length = int(sequences.lengths[row])
        logits = plain_logits(policy, prompts[int(contexts[row])], sequences.tokens[row, :length].tolist())
        parts.append(torch.nn.functional.pad(logits, (0, 0, 0, steps - length)))
    return torch.stack(parts)


def small_engine(model: Any, max_length: int = 5, **options: Any) -> Engine:
    return policy_of(model).engine(max_length, **options)


PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18], [4], [9, 3, 9], [20, 21, 22, 3, 4, 5]]


def padded(prompts: list[list[int]], left: bool = False) -> Tensor:
    width = max(map(len, prompts))
    gaps = [[-1] * (width - len(prompt)) for prompt in prompts]
    return torch.tensor([[*g, *p] if left else [*p, *g] for g, p in zip(gaps, prompts, strict=True)])
