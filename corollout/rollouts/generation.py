"""Generating sequences to look at: any decoder, any number of contexts, and prompts of any length.

Training knows one distribution, the policy's. Here it may be sharpened or cut off first, as is usual for text.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.errors import InputError
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
)
from corollout.rollouts.engine import Engine
from corollout.text import quoted
from corollout.types import Decoded, Sampler, full_precision

Mode = Literal["sample", "greedy", "beam", "set"]
Logits = Float[Tensor, "row vocab"]


@dataclass(frozen=True)
class FilteredSoftmax(Softmax):
    """A softmax that is drawn from after its logits were divided by the ``temperature`` and cut off.

    Of each row only the ``top_k`` most probable tokens are kept, and of these the most probable ones that together have
    at least the probability ``top_p``; equally probable ones are kept or left out together.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def filtered(self, outputs: Outputs) -> Logits:
        logits = full_precision(outputs) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[1]:
            least = logits.topk(self.top_k, 1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None:
            ordered = logits.softmax(1).sort(1, descending=True).values
            # The last token that is needed is the first at which those before it do not suffice any more.
            needed = (ordered.cumsum(1) - ordered < self.top_p).sum(1, keepdim=True).clamp(min=1)
            least = logits.sort(1, descending=True).values.gather(1, needed - 1)
            logits = logits.masked_fill(logits < least, -torch.inf)
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
    *,
    mode: Mode = "sample",
    count: int = 1,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    max_length: int | None = None,
    batch_size: int = 256,
) -> list[list[Decoded]]:
    """See :meth:`Engine.generate`."""
    contexts = count_rows(context)
    _check(engine, mode, count, temperature, top_k, top_p, max_length, batch_size)
    prompts = _checked_prompts(prompts, contexts)
    drawing = copy.copy(engine)
    drawing.max_length = engine.max_length if max_length is None else max_length
    if (temperature, top_k, top_p) != (1.0, None, None):
        drawing.head = FilteredSoftmax(temperature, top_k, top_p)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    results: list[list[Decoded]] = [[] for _ in prompts]
    with evaluation_mode(engine.policy):
        for length in lengths.unique().tolist():
            for numbers in (lengths == length).nonzero().squeeze(1).split(batch_size):
                _generate(drawing, context, numbers, [prompts[n] for n in numbers], Sampler(mode, count), seed, results)
    return results


def _generate(
    engine: Engine,
    context: Any,
    numbers: Tensor,
    prompts: list[list[int]],
    sampler: Sampler,
    seed: int,
    results: list[list[Decoded]],
) -> None:
    """Some contexts whose prompts are equally long."""
    device = first_tensor(context).device
    examples = numbers.to(device)
    engine.prompts = torch.tensor(prompts, dtype=torch.int64, device=device).view(len(prompts), -1)
    memory = engine.policy.encode(select(context, examples))
    drawn = engine.sample(memory, examples, sampler, Noise(seed), "tokens").trajectories
    rows = zip(drawn.lists(), drawn.log_probs.tolist(), drawn.finished.tolist(), strict=True)
    for number, row in zip(drawn.examples.tolist(), rows, strict=True):
        results[number].append(Decoded(*row))


def first_tensor(context: Any) -> Tensor:
    """Some tensor of a context, which may be a nest of them."""
    if isinstance(context, Tensor):
        return context
    if isinstance(context, Mapping):
        parts = list(context.values())
    elif is_dataclass(context) and not isinstance(context, type):
        parts = [getattr(context, field.name) for field in fields(context)]
    else:
        parts = list(context) if isinstance(context, (list, tuple)) else []
    for part in parts:
        if isinstance(part, Tensor) or (part is not None and not isinstance(part, (str, bytes, int, float))):
            return first_tensor(part)
    raise InputError(
        f"a context is a tensor with one row for each sequence to generate, or a nest of such tensors, "
        f"not {quoted(context)}"
    )


def count_rows(context: Any) -> int:
    """The number of contexts in a context of several."""
    tensor = first_tensor(context)
    if tensor.ndim == 0:
        raise InputError("a context is a tensor with one row for each sequence to generate, not a single number")
    return len(tensor)


def _check(
    engine: Engine,
    mode: str,
    count: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    max_length: int | None,
    batch_size: int,
) -> None:
    if mode not in get_args(Mode):
        raise InputError(f"mode must be one of {', '.join(get_args(Mode))}, not {quoted(mode)}")
    for name, value in (("count", count), ("top_k", top_k), ("max_length", max_length), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    if mode == "greedy" and count != 1:
        raise InputError(f"greedy decoding has one sequence for each context, not {count}: choose another mode")
    if not 0 < temperature < float("inf"):
        raise InputError(f"temperature must be a positive number, not {temperature}")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"top_p must be above 0 and at most 1, not {top_p}")
    if (temperature, top_k, top_p) == (1.0, None, None):
        return
    if mode not in ("sample", "set"):
        raise InputError(f"temperature, top_k and top_p are for mode 'sample' or 'set', not {quoted(mode)}")
    if type(engine.head) is not Softmax:
        raise InputError("temperature, top_k and top_p need a policy whose outputs are the logits of all tokens")


def _checked_prompts(prompts: Sequence[Sequence[int]] | None, contexts: int) -> list[list[int]]:
    if prompts is None:
        return [[] for _ in range(contexts)]
    if len(prompts) != contexts:
        raise InputError(f"there are {len(prompts)} prompts for {contexts} contexts: give one for each, [] for none")
    lists = [prompt.tolist() if isinstance(prompt, Tensor) else list(prompt) for prompt in prompts]
    for number, prompt in enumerate(lists):
        if wrong := [token for token in prompt if not isinstance(token, int) or token < 0]:
            raise InputError(f"prompt {number} contains {quoted(wrong[0])}: tokens are whole numbers from 0")
    return lists
