"""Models and tokenizers by their names, with errors in a sentence; and references for adapters."""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from corollout.errors import InputError
from corollout.text import first_line


def load_model(name: str, options: dict[str, Any] | None = None) -> nn.Module:
    """The language model of a name or a folder."""
    try:
        config = AutoConfig.from_pretrained(name)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        return kind.from_pretrained(name, **(options or {}))
    except MemoryError:
        raise
    except Exception as error:  # of the network, of the hub, or whatever a damaged folder makes of the library
        raise InputError(f"the model {name!r} cannot be loaded: {first_line(error)}") from error


def load_tokenizer(model: str | nn.Module) -> Any:
    """The tokenizer that belongs to a model."""
    config: Any = getattr(model, "config", None)
    name = model if isinstance(model, str) else getattr(config, "_name_or_path", "")
    if not name:
        raise InputError("the model does not say where it is from: give its tokenizer as processing_class")
    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise InputError(f"the tokenizer of {name!r} cannot be loaded: {first_line(error)}") from error


def require_vocabulary(rows: int, tokenizer: Any) -> None:
    """Raise an error unless a model with so many tokens knows all of a tokenizer's."""
    if len(tokenizer) > rows:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model only {rows}: use the model's own tokenizer, or "
            f"model.resize_token_embeddings({len(tokenizer)})"
        )


def without_adapter(kind: Any, model: nn.Module, tokenizer: Any) -> nn.Module | None:
    """A policy that is the model without its adapter: it takes no memory of its own. None without an adapter."""
    adapted: Any = model
    if not hasattr(adapted, "disable_adapter"):
        return None

    class WithoutAdapter(kind):
        """The model as it was before the adapter."""

        def _run(self, *given: Any, **options: Any) -> torch.Tensor:
            with adapted.disable_adapter():
                return super()._run(*given, **options)

        def _plainly(self, *given: Any) -> torch.Tensor:
            with adapted.disable_adapter():
                return super()._plainly(*given)

        def requires_grad_(self, requires_grad: bool = True) -> nn.Module:
            return self  # its parameters are the trained model's

        def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {}

    return WithoutAdapter(model, tokenizer)
