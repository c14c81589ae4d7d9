"""The last layer of a language model: what it makes logits of, as a ``ReadOut``."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.errors import InputError
from corollout.policies.read_out import ReadOut


class OutputLayer:
    """logits = softcap(scale · hidden · weightᵀ + bias), with whatever of these a model has."""

    def __init__(self, model: Any):
        layer = model.get_output_embeddings()
        if layer is None or not isinstance(getattr(layer, "weight", None), Tensor):
            raise InputError(f"{type(model).__name__} has no output layer that is a matrix: it is not a language model")
        if hasattr(layer, "base_layer"):
            raise InputError(
                "the adapter changes the output layer, which is fused with the gradient here: leave it out of "
                "target_modules"
            )
        self._model, config = model, model.config
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.scale = 1.0
        if getattr(config, "logit_scale", None) is not None:  # Cohere
            self.scale *= config.logit_scale
        if getattr(config, "logits_scaling", None) is not None:  # Granite
            self.scale /= config.logits_scaling
        if getattr(config, "scale_decoder_outputs", False):  # T5
            self.scale *= config.d_model**-0.5

    @property
    def weight(self) -> Float[Tensor, "vocab width"]:
        return self._model.get_output_embeddings().weight

    @property
    def bias(self) -> Float[Tensor, " vocab"] | None:
        bias = getattr(self._model.get_output_embeddings(), "bias", None)
        added = getattr(self._model, "final_logits_bias", None)  # BART
        if added is None:
            return bias
        return added[0] if bias is None else bias + added[0]

    def hidden(self, hidden: Float[Tensor, "some width"]) -> Float[Tensor, "some width"]:
        """What the ``ReadOut`` reads."""
        return hidden if self.scale == 1 else hidden * self.scale

    def read_out(self) -> ReadOut:
        return ReadOut(self.weight, self.bias, softcap=self.softcap)

    def logits(self, hidden: Float[Tensor, "some width"]) -> Float[Tensor, "some vocab"]:
        """With gradient."""
        logits = torch.nn.functional.linear(self.hidden(hidden), self.weight, self.bias)
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()
