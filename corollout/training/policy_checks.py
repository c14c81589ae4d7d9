"""Whether a policy does what the protocol asks: looked at once, on the sequences of the first update."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.data import Batch
from corollout.errors import PolicyError
from corollout.prefix_tree import PrefixTree
from corollout.rollouts import Engine, Mains, score_tolerance
from corollout.rollouts.policy_calls import call_encode
from corollout.training.scoring import BATCH, score_rows, wrong_shape
from corollout.types import Sequences, Trajectories, full_precision


@torch.no_grad()
def check_scores(engine: Engine, memory: Any, mains: Mains) -> None:
    """Refuse a policy whose ``score`` or ``hidden_states`` give other probabilities than its ``step``."""
    trajectories = mains.trajectories
    sampled = trajectories.token_log_probs
    if sampled is None or len(trajectories.tokens) == 0:
        return
    width = engine.output_width or 1
    rows = max(1, BATCH // (width * trajectories.tokens.shape[1]))
    part = Sequences(trajectories.tokens[:rows], trajectories.lengths[:rows], trajectories.finished[:rows])
    contexts = trajectories.contexts[:rows]
    outputs = score_rows(engine, memory, part, contexts)
    if outputs.shape[2] != width:
        raise wrong_shape(engine, outputs, part)
    _compare(engine, "policy.score", outputs, trajectories, sampled[:rows])
    model: Any = engine.model
    if hasattr(model, "hidden_states"):
        tree = PrefixTree.of(part, contexts, engine.bos)
        hidden = model.hidden_states(memory, tree)
        if not engine.head.logits_by_token:
            hidden = model.read_out(tree).logits(hidden, slice(None))
        _compare(engine, "policy.hidden_states", hidden[tree.node.clamp(min=0)], trajectories, sampled[:rows])


@torch.no_grad()
def check_rows(engine: Engine, batch: Batch, mains: Mains) -> None:
    """Refuse a policy whose rows depend on the other rows of their batch: one context is computed alone."""
    trajectories = mains.trajectories
    index = batch.shortest_context()
    rows = (trajectories.contexts == index).nonzero().squeeze(1)[:1]
    if trajectories.token_log_probs is None or len(batch) < 2 or len(rows) == 0:
        return
    length = int(trajectories.lengths[rows])
    alone = Sequences(trajectories.tokens[rows, :length], trajectories.lengths[rows], trajectories.finished[rows])
    memory = call_encode(engine.policy, batch.context[index : index + 1])
    outputs = score_rows(engine, memory, alone, torch.zeros_like(rows))
    logits = full_precision(engine.head.logits(outputs, alone.tokens))
    gap = (engine.head.log_probs(logits, alone.tokens) - trajectories.token_log_probs[rows, :length]).abs().max()
    if not float(gap) <= score_tolerance(outputs.dtype):
        raise PolicyError(
            f"the policy's rows depend on their batch: log-probabilities of example {int(batch.examples[index])} alone "
            f"differ by {float(gap):.3g} from those in a batch of {len(batch)}; look for a normalisation over the "
            f"batch, or for padding that is not masked"
        )


def _compare(
    engine: Engine, name: str, outputs: Tensor, trajectories: Trajectories, sampled: Float[Tensor, "row step"]
) -> None:
    """Log-probabilities of the tokens that were drawn: they are finite, and unaffected by a shift of the logits."""
    rows = len(sampled)
    tokens = trajectories.tokens[:rows]
    log_probs = engine.head.log_probs(full_precision(engine.head.logits(outputs, tokens)), tokens)
    gap = torch.where(trajectories.mask[:rows], (log_probs - sampled).abs(), 0.0)
    if not bool((gap <= score_tolerance(outputs.dtype)).all()):
        row, step = divmod(int(gap.nan_to_num(torch.inf).argmax()), gap.shape[1])
        raise PolicyError(
            f"{name} and policy.step disagree: for example {int(trajectories.examples[row])} the log-probability "
            f"of the token at step {step} differs by {float(gap[row, step]):.3g}; score(memory, tokens)[:, t] must be "
            f"what step returns after tokens 0 … t"
        )
