"""Maximum-likelihood training by teacher forcing: what policies learn before they are fine-tuned."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from corollout.data import Columns
from corollout.errors import InputError
from corollout.noise import Noise
from corollout.rollouts import Engine


def pretrain(
    engine: Engine,
    data: Columns,
    optimizer: torch.optim.Optimizer,
    *,
    target: str = "target",
    epochs: int = 1,
    batch_size: int = 64,
    clip: float | None = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[float]:
    """Fit the policy to a column of target sequences (lists of token ids without the end token).

    Yields the loss of each batch, in nats per token.
    """
    policy = engine.policy
    if not isinstance(policy, nn.Module):
        raise InputError("training needs a policy with parameters: an nn.Module")
    if target not in data.columns:
        raise InputError(f"the data set has no column {target!r} to learn from; it has {', '.join(data.columns)}")
    for epoch in range(epochs):
        for batch in data.epoch(batch_size, Noise(seed).fold(epoch), device):
            inputs, wanted = _teacher(engine, batch.columns[target], device)
            policy.train()
            logits = policy.score(policy.encode(batch.context), inputs)
            loss = cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(policy.parameters(), clip)
            optimizer.step()
            yield loss.item()


def _teacher(engine: Engine, targets: list[list[int]], device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and wanted outputs of teacher forcing, −1 where nothing is wanted; targets are cut at the limit."""
    wanted = [[*target, engine.eos][: engine.max_length] for target in targets]
    width = max(len(target) for target in wanted)
    outputs = torch.tensor([target + [-1] * (width - len(target)) for target in wanted], device=device)
    start = torch.full_like(outputs[:, :1], engine.bos)
    inputs = torch.cat([start, outputs[:, :-1]], 1)
    return torch.where(inputs < 0, engine.eos, inputs), outputs
