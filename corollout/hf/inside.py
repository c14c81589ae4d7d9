"""Inside a model of transformers: a decoder that computes our attention.

Models of transformers ask a registry for the function that computes attention. Ours is registered there under a name of
its own, and used inside :func:`attending` only.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_layers import GradientCheckpointingLayer

from corollout.hf.attention import Attention, How

NAME = "corollout"

Positions = Int64[Tensor, " token"]

_current: ContextVar[Attention | None] = ContextVar("attention", default=None)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers calls: one flat row of tokens, [1, head, token, width] → [1, token, head, width]."""
    attention = _current.get()
    if attention is None:
        raise RuntimeError(f"the attention {NAME!r} works inside corollout.hf.inside.attending only")
    scaling = options.get("scaling")
    bias = options.get("position_bias")
    how = How(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=options.get("sliding_window"),
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
        bias=None if bias is None else bias[0, :, 0],
    )
    crosses = not getattr(module, "is_causal", True)
    out = attention.attend(module.layer_idx, crosses, query[0], key[0], value[0], how)
    return out.transpose(0, 1)[None].contiguous(), None


AttentionInterface.register(NAME, _attend)


@dataclass(frozen=True)
class Inside:
    """The places of a decoder where attention has to be told what it is about."""

    configs: list[Any]
    biases: list[Any]  # modules that add a bias by distance, as T5's
    positions: list[Any]  # embeddings of positions that count tokens themselves, as BART's
    checkpointed: list[nn.Module]  # layers that can be computed again in the backward pass

    @classmethod
    def of(cls, decoder: nn.Module) -> "Inside":
        modules = list(decoder.modules())
        configs = {id(m.config): m.config for m in modules if hasattr(m, "config")}
        return cls(
            list(configs.values()),
            [m for m in modules if getattr(m, "has_relative_attention_bias", False)],
            [m.embed_positions for m in modules if hasattr(m, "embed_positions")],
            [m for m in modules if isinstance(m, GradientCheckpointingLayer)],
        )


@contextmanager
def attending(inside: Inside, attention: Attention, positions: Positions) -> Generator[None, None, None]:
    """Inside, a decoder computes this attention for one flat row of tokens at these positions."""
    token = _current.set(attention)
    names = [config._attn_implementation for config in inside.configs]
    replaced: list[tuple[Any, str, Any]] = []  # with what was there: a layer that is computed again is inside twice

    def replace(module: Any, name: str, function: Callable[..., Any]) -> None:
        replaced.append((module, name, module.__dict__.get(name)))
        module.__dict__[name] = function

    try:
        for config in inside.configs:
            config._attn_implementation = NAME
        for module in inside.biases:
            replace(module, "compute_bias", _bias_by_distance(module, attention.most_distant))
        for module in inside.positions:
            replace(module, "forward", _at_positions(module, positions))
        yield
    finally:
        _current.reset(token)
        for config, name in zip(inside.configs, names, strict=True):
            config._attn_implementation = name
        for module, name, before in replaced:
            if before is None:
                del module.__dict__[name]
            else:
                module.__dict__[name] = before


def _bias_by_distance(module: Any, distances: int) -> Callable[..., Tensor]:
    def compute_bias(*_: Any, device: Any = None, **__: Any) -> Float[Tensor, "1 head 1 distance"]:
        weight = module.relative_attention_bias.weight
        back = -torch.arange(distances, device=weight.device)
        bucket = module._relative_position_bucket(
            back,
            bidirectional=False,
            num_buckets=module.relative_attention_num_buckets,
            max_distance=module.relative_attention_max_distance,
        )
        return module.relative_attention_bias(bucket).t()[None, :, None]

    return compute_bias


def _at_positions(module: Any, positions: Positions) -> Callable[..., Tensor]:
    original = module.forward

    def forward(*given: Any, **options: Any) -> Tensor:
        return original(*given, **{**options, "position_ids": positions})

    return forward
