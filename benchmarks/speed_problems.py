"""The problems of ``benchmarks.speed``, written to a folder from which processes of two commits read the same.

Karel is the small scale as it is, programs of at most 12 tokens, with a policy that has learnt by maximum likelihood
for a while. Captions have the paper's network and a vocabulary of 7,696 words: random weights, but with
words by Zipf's law, about two nats a word, and captions of eleven words on average. Nothing is downloaded.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from benchmarks import caption_update, karel_update
from benchmarks.caption_update import END
from corollout.data import shuffled
from corollout.noise import Noise
from corollout.tasks.captioning.model import CaptionPolicy

SEED = 1
KAREL, CAPTIONS = "Karel small", "captions"
WORDS = 10  # of a reference and, on average, of a caption to learn from; the end is one more
LENGTH = 11.0  # tokens of a sampled caption on average, its end included
SCALE = 190.0  # of the output's weights: an entropy of about two nats a token


class Sizes(NamedTuple):
    karel: karel_update.Sizes
    vocab: int
    width: int
    hidden: int
    images: int
    longest: int


def full_sizes() -> Sizes:
    return Sizes(karel_update.full_sizes(), vocab=7696, width=2048, hidden=512, images=50, longest=16)


QUICK = Sizes(karel_update.QUICK, vocab=60, width=8, hidden=16, images=4, longest=6)


def write_problems(folder: Path, sizes: Sizes, weights: Path | None = None) -> dict[str, dict[str, Any]]:
    """Write both problems, each in a folder of its name; return their settings.

    Karel's policy is trained in the folder for temporary files, or in ``weights``, unless it is there already.
    """
    settings = {
        KAREL: _write_karel(folder / KAREL, sizes, weights),
        CAPTIONS: _write_captions(folder / CAPTIONS, sizes),
    }
    for name, values in settings.items():
        (folder / name / "settings.json").write_text(json.dumps(values))
    return settings


def _write_karel(folder: Path, sizes: Sizes, weights: Path | None) -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        problem = karel_update.make_problem(sizes.karel, weights)
    finally:
        torch.set_num_threads(threads)
    count = sizes.karel.batch * sizes.karel.batches
    chosen = shuffled(torch.from_numpy(np.array(problem.data.ids)), Noise(SEED))[:count].numpy()
    data = problem.data
    folder.mkdir()
    np.savez(
        folder / "tasks.npz",
        tokens=data.tokens[chosen],
        lengths=data.lengths[chosen],
        input_cells=data.inputs.cells[chosen],
        input_hero=data.inputs.hero[chosen],
        output_cells=data.outputs.cells[chosen],
        output_hero=data.outputs.hero[chosen],
        ids=data.ids[chosen],
    )
    _write_weights(folder, problem.policy)
    pairs = data.examples - 1  # the last is held out
    return {"task": "karel", "model": asdict(sizes.karel.model), "batch_size": sizes.karel.batch, "pairs": pairs}


def _write_captions(folder: Path, sizes: Sizes) -> dict[str, Any]:
    policy = caption_update.make_policy(sizes.vocab, sizes.width, sizes.hidden, SCALE)
    features = torch.randn(sizes.images, sizes.width)
    entropy = set_length(policy, features, sizes.longest, min(LENGTH, 0.7 * sizes.longest))
    references = caption_update.draw_captions(policy, sizes.images, 5, WORDS)
    lengths = torch.randint(WORDS - 3, WORDS + 4, (sizes.images,)).tolist()
    long = caption_update.draw_captions(policy, sizes.images, WORDS + 3)
    targets = [words[:length] for words, length in zip(long, lengths, strict=True)]
    folder.mkdir()
    safetensors.torch.save_file({"features": features}, folder / "features.safetensors")
    (folder / "captions.json").write_text(json.dumps({"references": references, "targets": targets}))
    _write_weights(folder, policy)
    model = {"vocab": sizes.vocab, "width": sizes.width, "embedding": sizes.hidden, "hidden": sizes.hidden}
    values = {"task": "captions", "model": model, "batch_size": sizes.images, "longest": sizes.longest, "end": END}
    return {**values, "entropy": entropy}


@torch.no_grad()
def set_length(policy: CaptionPolicy, features: Tensor, longest: int, length: float) -> float:
    """Give captions an expected length by the logit of their end; return the nats a word before that.

    The logit is the same in all states. Where it is b, and the others' sum is that of exp(l), a caption ends with the
    probability σ(b − l): b is found by bisection on captions that do not end.
    """
    policy.output[END], policy.output_bias[END] = 0.0, -1e4
    state, words = policy.start(policy.encode(features)), torch.full((len(features),), END)
    others, entropies = [], []
    for _ in range(longest):
        logits, state = policy.step(state, words)
        p = logits.softmax(1)
        others.append(logits.logsumexp(1).double())
        entropies.append(-p.xlogy(p).sum(1).mean())
        words = torch.multinomial(p, 1).squeeze(1)
    sums = torch.stack(others)
    low, high = float(sums.min()) - 20, float(sums.max()) + 20
    for _ in range(50):
        middle = (low + high) / 2
        going = (sums - middle).sigmoid().cumprod(0)[:-1].sum(0).mean() + 1
        low, high = (middle, high) if going > length else (low, middle)
    policy.output_bias[END] = low
    return float(torch.stack(entropies).mean())


def _write_weights(folder: Path, policy: torch.nn.Module) -> None:
    weights = {name: tensor.contiguous() for name, tensor in policy.state_dict().items()}
    safetensors.torch.save_file(weights, folder / "policy.safetensors")
