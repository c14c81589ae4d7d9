"""The last layer of a policy, logits = hidden · weightᵀ + bias, fused with the gradient that comes back through it.

A batch has rows × steps × V logits, and autograd would keep several tensors of that size. Here a chunk of prefixes at a
time is read out, turned into the gradient with respect to its logits, and multiplied back: three matrix products for
each chunk and no tensor larger than a chunk, as in cut cross-entropy (Wijmans et al. 2024) for the likelihood.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.types import full_precision

# Logits of a chunk.
CHUNK = 1 << 22


@dataclass(frozen=True)
class ReadOut:
    """The weights of the last layer. Where ``allowed`` is False for a prefix and a token, the logit is −inf.

    With a ``softcap`` c, logits l become c tanh(l / c), as in Gemma 2.
    """

    weight: Float[Tensor, "vocab width"]
    bias: Float[Tensor, " vocab"] | None = None
    allowed: Bool[Tensor, "prefix vocab"] | None = None
    softcap: float | None = None

    @property
    def masks(self) -> bool:
        """Whether some logits are −inf."""
        return self.allowed is not None or (self.bias is not None and bool((self.bias == -torch.inf).any()))

    def logits(
        self, hidden: Float[Tensor, "some width"], which: Int64[Tensor, " some"] | slice
    ) -> Float[Tensor, "some vocab"]:
        """The logits of some prefixes, without gradient."""
        with torch.no_grad():
            weight = self.weight.detach().t()
            if self.bias is None:
                logits = hidden.detach() @ weight
            else:
                logits = torch.addmm(self.bias.detach(), hidden.detach(), weight)
            if self.softcap is not None:
                logits = logits.div_(self.softcap).tanh_().mul_(self.softcap)
            return logits if self.allowed is None else logits.masked_fill_(~self.allowed[which], -torch.inf)


@dataclass(frozen=True)
class PrefixCredits:
    """A gradient with respect to the logits of prefixes, as :class:`corollout.estimators.plans.Credits` has it for
    tokens: S[prefix, token] = Σ value, g = S − c Σ_v S_v.
    """

    prefix: Int64[Tensor, " entry"]
    token: Int64[Tensor, " entry"]
    value: Float[Tensor, " entry"]
    centre: str

    def chunks(self, vocab: int) -> "Iterator[tuple[Int64[Tensor, ' some'], PrefixCredits]]":
        """Prefixes that have credits, a chunk at a time, and their credits by position in the chunk."""
        if len(self.prefix) == 0:
            return
        # Entries of a prefix come in runs, if an estimator has many of them: the runs are sorted, not the entries.
        run, lengths = self.prefix.unique_consecutive(return_counts=True)
        starts = lengths.cumsum(0) - lengths
        order = run.argsort(stable=True)
        run, lengths, starts = run[order], lengths[order], starts[order]
        prefix, place = run.unique_consecutive(return_inverse=True)
        size = max(1, CHUNK // vocab)
        ends = torch.searchsorted(place, torch.arange(0, len(prefix) + size, size, device=place.device)).tolist()
        for number, some in enumerate(prefix.split(size)):
            runs = slice(ends[number], ends[number + 1])
            local = (place[runs] - number * size).repeat_interleave(lengths[runs])
            entries = _ranges(starts[runs], lengths[runs])
            yield some, PrefixCredits(local, self.token[entries], self.value[entries], self.centre)


def _ranges(starts: Int64[Tensor, " run"], lengths: Int64[Tensor, " run"]) -> Int64[Tensor, " entry"]:
    """The numbers from each start on, as many as its length."""
    before = lengths.cumsum(0) - lengths
    shift = (starts - before).repeat_interleave(lengths)
    return shift.add_(torch.arange(len(shift), device=starts.device))


def read_out_backward(
    hidden: Float[Tensor, "prefix width"],
    read_out: ReadOut,
    credits: PrefixCredits,
    scale: float,
    known: Float[Tensor, "prefix vocab"] | None = None,
    log_probs: Float[Tensor, " entry"] | None = None,
) -> None:
    """Back-propagate ``scale`` times the credits through the read-out and everything before it.

    ``known`` are the logits, if somebody has computed them already. The log-probabilities of the credits' tokens are
    written to ``log_probs``, if that is given and the credits are ordered by prefix.
    """
    vocab = len(read_out.weight)
    weight = read_out.weight.detach()
    d_hidden = torch.zeros_like(hidden)
    d_weight, d_bias = sum_of_gradients(read_out.weight), sum_of_gradients(read_out.bias)
    with torch.no_grad():
        values, first = hidden.detach(), 0
        cap = read_out.softcap
        needs_logits = credits.centre == "policy" or read_out.masks or cap is not None
        for some, part in credits.chunks(vocab):
            everything = len(some) == len(values)
            x = values if everything else values[some]
            logits = None
            if needs_logits:
                logits = read_out.logits(x, some) if known is None else known if everything else known[some]
                logits = full_precision(logits)
            if log_probs is not None and logits is not None:
                chosen = logits[part.prefix, part.token] - logits.logsumexp(1)[part.prefix]
                log_probs[first : first + len(chosen)] = chosen
                first += len(chosen)
            g = _gradient(replace(part, value=scale * part.value), logits, len(some), vocab, full_precision(x[:0]))
            if cap is not None and logits is not None:
                g = g * (1 - (logits.clamp(-cap, cap) / cap) ** 2)
            g = g.to(weight.dtype)
            if everything:
                torch.mm(g, weight, out=d_hidden)
            else:
                d_hidden[some] = g @ weight
            if d_weight is not None:
                d_weight.addmm_(g.t(), x)
            if d_bias is not None:
                d_bias += g.sum(0)
    roots = [
        (tensor, gradient)
        for tensor, gradient in ((hidden, d_hidden), (read_out.weight, d_weight), (read_out.bias, d_bias))
        if tensor is not None and gradient is not None and tensor.requires_grad
        if not (tensor.is_leaf and gradient is tensor.grad)
    ]
    if not roots:
        return
    torch.autograd.backward([tensor for tensor, _ in roots], [gradient for _, gradient in roots])


def has_plain_gradient(tensor: Tensor) -> bool:
    """Whether the gradient with respect to a tensor goes to its ``.grad`` and nowhere else."""
    if not tensor.requires_grad or not tensor.is_leaf or type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    return not any(getattr(tensor, name) for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))


def sum_of_gradients(tensor: Tensor | None) -> Tensor | None:
    """What gradients with respect to a tensor are to be added to: its ``.grad`` itself, where that is all.

    A gradient as large as the vocabulary then exists once. Autograd would add another one to it, and a third where the
    embedding is the same matrix.
    """
    if tensor is None or not tensor.requires_grad:
        return None
    if not has_plain_gradient(tensor):
        return torch.zeros_like(tensor)
    if tensor.grad is None:
        tensor.grad = torch.zeros_like(tensor)
    return tensor.grad


def _gradient(
    credits: PrefixCredits, logits: Tensor | None, rows: int, vocab: int, like: Tensor
) -> Float[Tensor, "prefix vocab"]:
    """The credits of a chunk as a dense gradient."""
    value = credits.value.to(like.dtype)
    total = like.new_zeros(rows).index_add_(0, credits.prefix, value)
    if credits.centre == "policy" and logits is not None:
        g = logits.softmax(1).mul_(-total[:, None])
    elif credits.centre == "uniform":
        g = (-total / vocab)[:, None].repeat(1, vocab)
    else:
        g = like.new_zeros(rows, vocab)
    g.view(-1).scatter_add_(0, credits.prefix * vocab + credits.token, value)
    if credits.centre == "uniform" and logits is not None:
        g.masked_fill_(logits == -torch.inf, 0.0)
    return g
