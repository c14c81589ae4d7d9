"""The log-likelihood of target sequences by teacher forcing, and its gradient."""

import math
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from corollout.data import Columns
from corollout.divided_work import batches, divided
from corollout.errors import InputError, PolicyError
from corollout.policies import evaluation_mode
from corollout.policies.protocol import SOFTMAX, head_of, policy_errors
from corollout.policies.read_out import PrefixCredits, read_out_backward
from corollout.prefix_tree import PrefixTree
from corollout.rollouts import Engine
from corollout.rollouts.policy_calls import call_backward, call_encode
from corollout.text import quoted
from corollout.types import full_precision

Tokens = Int64[Tensor, "row step"]


def teacher_forcing(engine: Engine, sequences: Any, device: torch.device | str) -> tuple[Tokens, Tokens]:
    """Inputs and targets of teacher forcing, −1 where there is no target; sequences are cut at the maximum length."""
    sequences = [tokens.tolist() if isinstance(tokens, Tensor) else tokens for tokens in sequences]
    for tokens in sequences:
        if not isinstance(tokens, list | tuple) or any(type(token) is not int or token < 0 for token in tokens):
            raise InputError(f"a target must be a list of token ids, whole numbers from 0, not {quoted(tokens)}")
    ended = [[*tokens, engine.eos][: engine.max_length] for tokens in sequences]
    width = max(len(tokens) for tokens in ended)
    targets = torch.tensor([tokens + [-1] * (width - len(tokens)) for tokens in ended], device=device)
    start = torch.full_like(targets[:, :1], engine.bos)
    inputs = torch.cat([start, targets[:, :-1]], 1)
    return torch.where(inputs < 0, engine.eos, inputs), targets


def likelihood_backward(engine: Engine, memory: Any, inputs: Tokens, targets: Tokens, weight: float) -> float:
    """Add the gradient of −``weight`` × Σ ln p(target token) to the parameters' ``.grad``; return the sum of ln p.

    The policy is taken without the engine's temperature, which is for rewards. Where it offers ``hidden_states``, only
    prefixes that have a target are computed, and chunks of the read-out are fused with their gradient.
    """
    policy: Any = engine.policy
    head, mask = head_of(policy), targets >= 0
    if not hasattr(policy, "hidden_states"):
        with policy_errors("policy.score", f" for target tokens up to {int(targets.max())}"):
            outputs = policy.score(memory, inputs)
        if outputs.ndim != 3 or outputs.shape[:2] != targets.shape:
            shapes = f"{list(outputs.shape)} for tokens of shape {list(targets.shape)}"
            raise PolicyError(f"policy.score returned logits of shape {shapes}")
        if head is SOFTMAX:
            _require_vocabulary(targets, outputs.shape[2])
            loss = cross_entropy(
                full_precision(outputs).flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum"
            )
        else:
            tokens = torch.where(mask, targets, 0)
            log_probs = full_precision(head.log_probs(head.logits(outputs, tokens), tokens))
            loss = -torch.where(mask, log_probs, 0.0).sum()
        call_backward(weight * loss)
        return -loss.item()
    tree = PrefixTree.chains(inputs, mask.sum(1))
    step, row = mask.t().nonzero(as_tuple=True)
    tokens = targets[row, step]
    with policy_errors("policy.hidden_states", f" for target tokens up to {int(tokens.max())}"):
        hidden = policy.hidden_states(memory, tree)
    if head is not SOFTMAX:
        logits = head.logits(hidden[:, None], tokens[:, None])
        loss = -full_precision(head.log_probs(logits, tokens[:, None])).sum()
        call_backward(weight * loss)
        return -loss.item()
    share = torch.full_like(tokens, weight, dtype=full_precision(hidden[:0]).dtype)
    credits = PrefixCredits(tree.node[row, step], tokens, share, "policy")
    log_probs, read_out = torch.empty_like(share), policy.read_out(tree)
    _require_vocabulary(targets, len(read_out.weight))
    read_out_backward(hidden, read_out, credits, -1.0, log_probs=log_probs)
    return log_probs.sum().item()


@torch.no_grad()
def mean_loss(engine: Engine, data: Columns, target: str, batch_size: int, device: torch.device | str) -> float:
    """−ln p of the target tokens of a data set, in nats per token, in evaluation mode.

    The processes of a job divide the data; all of them make this call, and get the same number.
    """
    policy, parts = engine.policy, batches(len(data), batch_size)
    head = head_of(policy)

    def loss_of(number: int) -> tuple[float, int]:
        batch = data.batch(torch.tensor(parts[number]), device)
        inputs, targets = teacher_forcing(engine, batch.columns[target], device)
        with evaluation_mode(policy):
            outputs = policy.score(call_encode(policy, batch.context), inputs)
        mask = targets >= 0
        tokens = torch.where(mask, targets, 0)
        log_probs = full_precision(head.log_probs(full_precision(head.logits(outputs, tokens)), tokens))
        return -log_probs[mask].sum().item(), int(mask.sum())

    losses, counts = zip(*divided(len(parts), loss_of), strict=True)
    return math.fsum(losses) / sum(counts)


def _require_vocabulary(targets: Tokens, vocab: int) -> None:
    if (largest := int(targets.max())) >= vocab:
        raise InputError(
            f"the target sequences have the token {largest}, but the policy has logits for 0 to {vocab - 1}"
        )
