"""A cache for decoders whose encoder's keys and values are kept elsewhere."""

from types import SimpleNamespace
from typing import Any

from torch import Tensor
from transformers import EncoderDecoderCache


class KnownEncoder(EncoderDecoderCache):
    """A cache that says of every layer that the encoder's keys and values are known, and shows none: attention has the
    prompts' (``corollout.hf.attention``). Keys and values of the decoder's own tokens pass through.
    """

    def __init__(self, like: Tensor):
        empty = like.new_zeros(1, 1, 0, 1)
        self.is_updated = _Always(True)
        layers = _Always(SimpleNamespace(keys=empty, values=empty))
        self.cross_attention_cache = SimpleNamespace(layers=layers)
        self.self_attention_cache = _Passing()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class _Always:
    """A mapping that has the same for every layer."""

    def __init__(self, value: Any):
        self._value = value

    def get(self, _: int) -> Any:
        return self._value

    __getitem__ = get


class _Passing:
    """A cache that keeps nothing."""

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        return 0
