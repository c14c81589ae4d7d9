"""What does an update cost on captions at COCO's size, and where? V = 9488, 50 images, at most 16 words, one thread.

An update is all from a batch of images to the gradient of the parameters: sample, plan, complete the branches, reward,
score, backward. Planning is the search for pseudo-actions and the sums of their coefficients. The network is the
paper's; its weights are random, but its output has the frequencies of words, and its entropy is measured and reported.
References are drawn in the same way. The methods are ARS-20, as in the paper, full ARSM (K = V) with a budget of
rollouts, REINFORCE as a measure of what an update costs at least, and full ARSM without a budget, once.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from rich.progress import Progress

from benchmarks.harness import Contestant, Result, Target, figure, milliseconds, time_alternately
from corollout import Engine, Noise
from corollout.data import Batch, Columns
from corollout.estimators import make_estimator
from corollout.rewards import Reward
from corollout.tasks.captioning.metrics import CiderReward
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.text_metrics import References
from corollout.training.estimates import Estimate, estimate

SEED = 1
END = 0
MOST_PLANNING = 0.05
PARTS = {
    "sample": "sampling",
    "plan": "planning",
    "complete": "branching",
    "reward": "reward",
    "score": "scoring",
    "backward": "backward",
}
ARS20, BUDGETED, PLAIN, FULL = "ars-20", "arsm:budget=2000", "reinforce", "arsm"


class Sizes(NamedTuple):
    vocab: int
    width: int
    hidden: int
    images: int
    longest: int
    repetitions: int
    without_budget: bool


LARGE = Sizes(9488, 2048, 512, 50, 16, 5, True)
QUICK = Sizes(60, 8, 16, 4, 6, 2, False)


@dataclass
class Problem:
    """A policy, a batch of images and their reward, and what was noted of the updates."""

    engine: Engine
    policy: CaptionPolicy
    batch: Batch
    reward: Reward
    done: dict[str, list[Estimate]] = field(default_factory=dict)

    def update(self, name: str, number: int) -> Estimate:
        self.policy.zero_grad()
        made = estimate(self.engine, self.batch, self.reward, make_estimator(name), Noise(SEED).fold(number))
        made.backward()
        return made

    def turns(self, name: str) -> Callable[[], None]:
        self.done[name] = []

        def turn() -> None:
            made = self.update(name, len(self.done[name]))
            self.done[name].append(made)

        return turn


def make_policy(vocab: int, width: int, hidden: int, scale: float = 110) -> CaptionPolicy:
    """The paper's network with random weights; the larger the scale, the lower its entropy."""
    torch.manual_seed(SEED)
    policy = CaptionPolicy(vocab, width, hidden, hidden)
    with torch.no_grad():
        # Zipf's law, and hidden states that matter as much as in a policy that was trained.
        policy.output_bias.copy_(-1.1 * torch.arange(1, vocab + 1.0).log())
        policy.output_bias[END] = policy.output_bias[1:].logsumexp(0) + math.log(0.1 / 0.9)
        policy.output.mul_(scale)
    return policy


def draw_captions(policy: CaptionPolicy, *shape: int) -> list[Any]:
    """Nested lists of words, drawn by their frequencies."""
    words = torch.multinomial(policy.output_bias[1:].softmax(0), math.prod(shape), replacement=True) + 1
    return words.view(shape).tolist()


def make_problem(sizes: Sizes) -> Problem:
    policy = make_policy(sizes.vocab, sizes.width, sizes.hidden)
    engine = Engine(policy, bos=END, eos=END, max_length=sizes.longest)
    images = range(sizes.images)
    data = Columns(context=torch.randn(sizes.images, sizes.width), image=images)
    said = draw_captions(policy, sizes.images, 5, 10)
    references = References([[[*words, END] for words in group] for group in said])
    return Problem(engine, policy, data.batch(images), Reward(CiderReward(references, end=END)))


@torch.no_grad()
def entropy(made: Estimate) -> float:
    """Nats a token, where the main trajectories are."""
    p = made.trajectories.logits.log_softmax(2)
    return float(-(p.exp() * p).sum(2)[made.trajectories.mask].mean())


def summary(done: list[Estimate]) -> dict[str, Any]:
    """Median seconds of each part, and counts of one update."""
    parts = {part: statistics.median(made.seconds[part] for made in done) for part in PARTS}
    whole, cost = sum(parts.values()), done[-1].cost
    return {
        "seconds_by_part": parts,
        "seconds": whole,
        "updates_per_second": 1 / whole,
        "share_of_planning": parts["plan"] / whole,
        "rollouts_per_step": cost.rollouts / cost.main_tokens,
        "tokens": cost.tokens,
        "entropy": entropy(done[-1]),
    }


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else LARGE
    problem = make_problem(sizes)
    timings = time_alternately(
        [Contestant(name, 1, problem.turns(name)) for name in (ARS20, BUDGETED, PLAIN)],
        sizes.repetitions,
        progress,
        "caption_update",
    )
    if sizes.without_budget:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        problem.turns(FULL)()
        torch.set_num_threads(threads)
    summaries = {name: summary(done[1:] or done) for name, done in problem.done.items()}  # the first one warmed up
    by_name = {timing.name: timing for timing in timings}
    return {
        "benchmark": "caption_update",
        "quick": quick,
        "settings": {**sizes._asdict(), "dtype": "float32"},
        "seeds": {"weights, references and noise": SEED},
        "timings": [timing.record() for timing in timings],
        "measurements": summaries,
        "targets": [
            Target(
                f"pseudo-actions and their coefficients take at most {MOST_PLANNING:.0%} of an update ({ARS20})",
                summaries[ARS20]["share_of_planning"],
                MOST_PLANNING,
                False,
                not quick,
            ).record()
        ],
        "table": [
            {
                "method": name,
                "rollouts a step": figure(one["rollouts_per_step"]),
                "ms (quartiles)": milliseconds(by_name[name]) if name in by_name else figure(one["seconds"] * 1e3),
                "updates / s": figure(one["updates_per_second"]),
                **{title: f"{one['seconds_by_part'][part] / one['seconds']:.1%}" for part, title in PARTS.items()},
            }
            for name, one in summaries.items()
        ],
    }
