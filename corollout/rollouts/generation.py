"""Generating sequences to look at: any decoder, any number of contexts, and prompts of any length.

Training knows one distribution, the policy's. Here it may be sharpened or cut off first, as is usual for text.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from corollout.arguments import require_count
from corollout.errors import InputError, PolicyError
from corollout.noise import Noise
from corollout.policies.protocol import (
    Choice,
    Greedy,
    Ints,
    Numbers,
    Outputs,
    Ranked,
    SharedOutputs,
    Softmax,
    evaluation_mode,
    select,
    tensors_in,
)
from corollout.policies.tempered import require_temperature
from corollout.rollouts.engine import Engine
from corollout.rollouts.policy_calls import call_encode
from corollout.text import quoted
from corollout.types import Decoded, Sampler, full_precision

Mode = Literal["sample", "greedy", "beam", "set"]
Logits = Float[Tensor, "row vocab"]


@dataclass(frozen=True)
class Filters(Softmax):
    """A softmax that is drawn from after its logits were divided by the ``temperature`` and cut off.

    Of each row only the ``top_k`` most probable tokens are kept, and of these the most probable ones that together have
    at least the probability ``top_p``; equally probable ones are kept or left out together.
    """

    temperature: float | int = 1.0
    top_k: int | None = None
    top_p: float | int | None = None

    def __post_init__(self) -> None:
        require_temperature(self.temperature)
        if self.top_k is not None:
            require_count("top_k", self.top_k)
        if self.top_p is not None and not (isinstance(self.top_p, int | float) and 0 < self.top_p <= 1):
            raise InputError(f"top_p must be above 0 and at most 1, not {quoted(self.top_p)}")

    def filtered(self, outputs: Outputs) -> Logits:
        logits = full_precision(outputs) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[1]:
            least = logits.topk(self.top_k, 1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None:
            ordered = logits.sort(1, descending=True).values
            shares = ordered.softmax(1)
            # The last token that is needed is the first at which those before it do not suffice any more.
            needed = (shares.cumsum(1) - shares < self.top_p).sum(1, keepdim=True).clamp(min=1)
            logits = logits.masked_fill(logits < ordered.gather(1, needed - 1), -torch.inf)
        return logits

    def choose(
        self, outputs: SharedOutputs, keys: Ints, steps: Ints, greedy: Greedy, index: Ints | None = None
    ) -> Choice:
        return super().choose(self.filtered(outputs), keys, steps, greedy, index)

    def perturbed(
        self, outputs: Outputs, log_prob: Numbers, rank: Numbers, keys: Ints, steps: Ints, count: int
    ) -> Ranked:
        return super().perturbed(self.filtered(outputs), log_prob, rank, keys, steps, count)


@torch.no_grad()
def generate(
    engine: Engine,
    context: Any,
    sampler: Sampler,
    noise: Noise,
    filters: Filters,
    prompts: Sequence[Sequence[int]] | None,
    max_length: int,
    batch_size: int,
    examples: Sequence[int] | None = None,
) -> list[list[Decoded]]:
    """See :meth:`Engine.generate`."""
    _check(engine, sampler, filters)
    require_count("max_length", max_length)
    require_count("batch_size", batch_size)
    tensor = _first_tensor(context)
    prompts = _checked_prompts(prompts, len(tensor))
    keys = torch.arange(len(tensor)) if examples is None else torch.tensor(examples, dtype=torch.int64)
    if len(keys) != len(tensor):
        raise InputError(f"there are {len(keys)} examples for {len(tensor)} contexts: give a number for each")
    drawing = copy.copy(engine)
    drawing.max_length = max_length
    if filters != Filters():
        drawing.head = filters
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    results: list[list[Decoded]] = [[] for _ in prompts]
    with evaluation_mode(engine.policy):
        # Contexts whose prompts are equally long, together.
        for length in lengths.unique().tolist():
            for numbers in (lengths == length).nonzero().squeeze(1).split(batch_size):
                chosen = numbers.to(tensor.device)
                drawing.prompts = torch.tensor([prompts[n] for n in numbers], dtype=torch.int64, device=tensor.device)
                memory = call_encode(engine.policy, select(context, chosen))
                drawn = drawing.sample(memory, keys[numbers].to(tensor.device), sampler, noise, "tokens").trajectories
                for number, sequence in zip(numbers[drawn.contexts.cpu()].tolist(), drawn.decoded(), strict=True):
                    results[number].append(sequence)
    return results


def _first_tensor(context: Any) -> Tensor:
    """The first tensor of a context, which has a row for each of several contexts."""
    try:
        tensor = next(iter(tensors_in(context)), None)
    except PolicyError:  # something in it is not a nest of tensors
        tensor = None
    if tensor is None or tensor.ndim == 0:
        given = "a single number" if tensor is not None else quoted(context)
        raise InputError(
            f"a context is a tensor with one row for each sequence to generate, or a nest of such tensors, not {given}"
        )
    return tensor


def _check(engine: Engine, sampler: Sampler, filters: Filters) -> None:
    if sampler.mode not in get_args(Mode):
        raise InputError(f"mode must be one of {', '.join(get_args(Mode))}, not {quoted(sampler.mode)}")
    require_count("count", sampler.count)
    if sampler.mode == "greedy" and sampler.count != 1:
        raise InputError(f"greedy decoding has one sequence for each context, not {sampler.count}: choose another mode")
    if filters == Filters():
        return
    if sampler.mode not in ("sample", "set"):
        raise InputError(f"temperature, top_k and top_p are for mode 'sample' or 'set', not {quoted(sampler.mode)}")
    if type(engine.head) is not Softmax:
        raise InputError("temperature, top_k and top_p need a policy whose outputs are the logits of all tokens")


def _checked_prompts(prompts: Sequence[Sequence[int]] | None, contexts: int) -> list[list[int]]:
    if prompts is None:
        return [[] for _ in range(contexts)]
    listed = (list, tuple, Tensor, np.ndarray)
    if not isinstance(prompts, listed) or any(not isinstance(prompt, listed) for prompt in prompts):
        raise InputError(
            f"prompts must be a list of token ids for each context, as in [[2, 5], []], not {quoted(prompts)}"
        )
    if len(prompts) != contexts:
        raise InputError(f"there are {len(prompts)} prompts for {contexts} contexts: give one for each, [] for none")
    lists = [prompt.tolist() if isinstance(prompt, Tensor | np.ndarray) else list(prompt) for prompt in prompts]
    for number, prompt in enumerate(lists):
        if wrong := [token for token in prompt if type(token) is not int or token < 0]:
            raise InputError(f"prompt {number} contains {quoted(wrong[0])}: tokens are whole numbers from 0")
    return lists
