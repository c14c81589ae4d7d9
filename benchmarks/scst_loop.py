"""Self-critical training of a captioner by an ordinary PyTorch loop, in the manner of self-critical.pytorch.

The opponent of ``benchmarks.speed``, as one would write it with care: the same network with plain operations, every row
sampled by itself until all have ended, log-probabilities of the drawn words times advantages, automatic
differentiation, clipping by norm, Adam. The baseline is the reward of the greedy caption ("sc") or that of an image's
other captions ("rloo"). Log-probabilities are either recorded while sampling, as in self-critical.pytorch, or computed
again with all words known, which makes larger products; the faster one counts.

This file needs nothing but PyTorch, so that it runs beside any version of the package.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear

# The rewards of sequences without their end, of the images with these indices, and whether each has ended.
RewardOf = Callable[[list[list[int]], list[int], list[bool]], Tensor]
Way = Literal["recorded", "second pass"]


class Captioner(nn.Module):
    """The FC model with a maxout LSTM; its parameters have the names of ``CaptionPolicy``."""

    shift: Tensor
    factor: Tensor
    embedding: Tensor
    from_input: Tensor
    recurrent: Tensor
    bias: Tensor
    output: Tensor
    output_bias: Tensor

    def __init__(self, weights: dict[str, Tensor]):
        super().__init__()
        width, embedded = weights["image.weight"].t().shape
        self.image = nn.Linear(width, embedded)
        for name, tensor in weights.items():
            if name in ("shift", "factor"):
                self.register_buffer(name, tensor)
            elif "." not in name:
                self.register_parameter(name, nn.Parameter(tensor.clone()))
        self.load_state_dict(weights)
        self.hidden = weights["recurrent"].shape[0]

    def start(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The state after the image, which is the first input."""
        nothing = features.new_zeros(len(features), self.hidden)
        x = self.inputs(self.image((features - self.shift) * self.factor))
        return self.cell(x, nothing, nothing)

    def inputs(self, vectors: Tensor) -> Tensor:
        """What inputs add to the gates."""
        return vectors @ self.from_input + self.bias.sum(0)

    def words(self, tokens: Tensor) -> Tensor:
        return self.inputs(embedding(tokens, self.embedding))

    def cell(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = torch.addmm(x, h, self.recurrent)
        o, i, f = gates[:, : 3 * self.hidden].sigmoid().chunk(3, 1)
        first, second = gates[:, 3 * self.hidden :].chunk(2, 1)
        c = f * c + i * torch.maximum(first, second)
        return o * c.tanh(), c

    def read_out(self, h: Tensor) -> Tensor:
        return linear(h, self.output, self.output_bias)


class Captions(NamedTuple):
    tokens: Tensor  # [row, step], with the end; whatever follows it is the end again
    mask: Tensor  # of a caption's words, and its end
    log_probs: Tensor | None  # [row, step], with graph, if they were recorded

    def lists(self, end: int) -> tuple[list[list[int]], list[bool]]:
        """Words without their end, and whether there was one."""
        counts = self.mask.sum(1).tolist()
        rows = [row[:count] for row, count in zip(self.tokens.tolist(), counts, strict=True)]
        finished = [row[-1] == end for row in rows]
        return [row[:-1] if done else row for row, done in zip(rows, finished, strict=True)], finished


class Loop:
    """Trains a captioner on images that are all in one batch."""

    def __init__(
        self,
        weights: dict[str, Tensor],
        features: Tensor,
        reward: RewardOf,
        *,
        baseline: Literal["sc", "rloo"],
        samples: int,
        way: Way,
        longest: int,
        end: int,
        learning_rate: float,
        max_grad_norm: float = 1.0,
        seed: int = 0,
    ):
        if baseline == "rloo" and samples < 2:
            raise ValueError("leave-one-out needs two samples of an image")
        self.captioner, self.features, self.reward = Captioner(weights), features, reward
        self.baseline, self.samples, self.way = baseline, samples, way
        self.longest, self.end, self.max_grad_norm = longest, end, max_grad_norm
        self.optimizer = torch.optim.Adam(self.captioner.parameters(), lr=learning_rate)
        self.images = [image for image in range(len(features)) for _ in range(samples)]
        self.generator = torch.Generator().manual_seed(seed)

    def update(self) -> dict[str, float]:
        """One update; what is usually logged of it."""
        self.captioner.eval()  # no dropout, as in ours
        if self.way == "recorded":
            captions = self.generate(greedy=False)
        else:
            with torch.no_grad():
                captions = self.generate(greedy=False)
        rewards = self.rewards(captions, self.images)
        loss = self.loss(captions, self.advantages(rewards))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.captioner.parameters(), self.max_grad_norm)
        self.optimizer.step()
        length = captions.mask.sum(1).double().mean()
        return {"reward": float(rewards.mean()), "length": float(length), "norm": float(norm)}

    def generate(self, greedy: bool) -> Captions:
        """A caption of every image, or as many as there are samples: step by step until all have ended."""
        h, c = self.captioner.start(self.features)
        if not greedy:
            h, c = (part.repeat_interleave(self.samples, 0) for part in (h, c))
        tokens = torch.full((len(h),), self.end)
        going = torch.ones(len(h), dtype=torch.bool)
        columns, masks, log_probs = [], [], []
        for _ in range(self.longest):
            h, c = self.captioner.cell(self.captioner.words(tokens), h, c)
            logits = self.captioner.read_out(h)
            if greedy:
                tokens = logits.argmax(1)
            else:
                all_log_probs = logits.log_softmax(1)
                p = all_log_probs.detach().exp()
                tokens = torch.multinomial(p, 1, generator=self.generator).squeeze(1)
                if torch.is_grad_enabled():
                    log_probs.append(all_log_probs.gather(1, tokens[:, None]).squeeze(1))
            tokens = torch.where(going, tokens, self.end)
            columns.append(tokens)
            masks.append(going)
            going = going & (tokens != self.end)
            if not bool(going.any()):
                break
        recorded = torch.stack(log_probs, 1) if log_probs else None
        return Captions(torch.stack(columns, 1), torch.stack(masks, 1), recorded)

    def rewards(self, captions: Captions, images: Sequence[int]) -> Tensor:
        sequences, finished = captions.lists(self.end)
        return self.reward(sequences, list(images), finished).float()

    def advantages(self, rewards: Tensor) -> Tensor:
        if self.baseline == "rloo":
            groups = rewards.view(-1, self.samples)
            return ((groups - groups.mean(1, keepdim=True)) * (self.samples / (self.samples - 1))).flatten()
        with torch.no_grad():
            greedy = self.generate(greedy=True)
        return rewards - self.rewards(greedy, range(len(self.features))).repeat_interleave(self.samples)

    def loss(self, captions: Captions, advantages: Tensor) -> Tensor:
        """Minus the mean over captions of advantage times log-probability."""
        log_probs = captions.log_probs if captions.log_probs is not None else self.score(captions.tokens)
        return -(advantages[:, None] * log_probs * captions.mask).sum() / len(advantages)

    def score(self, tokens: Tensor) -> Tensor:
        """Log-probabilities of tokens that are known: all inputs are projected at once, and so are all outputs."""
        h, c = self.captioner.start(self.features)
        h, c = (part.repeat_interleave(self.samples, 0) for part in (h, c))
        start = torch.full_like(tokens[:, :1], self.end)
        states: list[Any] = []
        for x in self.captioner.words(torch.cat([start, tokens[:, :-1]], 1).t()):
            h, c = self.captioner.cell(x, h, c)
            states.append(h)
        logits = self.captioner.read_out(torch.stack(states, 1))
        return -cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view(tokens.shape)
