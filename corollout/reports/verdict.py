"""Which method is best, and which ones cannot be told apart from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from corollout.reports.run_results import SplitScore, pooled_interval
from corollout.tasks.task import Metric, mean_interval


@dataclass(frozen=True)
class Verdict:
    """The method with the highest score on a split.

    Others are tied with it if the 95 % interval of the paired difference contains 0 or, without scores of the same
    examples, if their intervals overlap; without intervals nothing is known.
    """

    split: str
    best: str
    tied: list[str]
    unknown: list[str]


def decide(split: str, scores: Mapping[str, Sequence[SplitScore]], metric: Metric) -> Verdict:
    """Compare the method with the highest mean over seeds with all others."""
    means = {label: float(np.mean([one.value for one in own])) for label, own in scores.items()}
    best = max(means, key=lambda label: means[label])
    tied, unknown = [], []
    for label in scores:
        if label == best:
            continue
        differs = _differs(scores[best], scores[label], metric)
        if differs is None:
            unknown.append(label)
        elif not differs:
            tied.append(label)
    return Verdict(split, best, tied, unknown)


def _differs(best: Sequence[SplitScore], other: Sequence[SplitScore], metric: Metric) -> bool | None:
    """Whether a score is higher than another beyond the noise; None if that is not known."""
    first, second = _by_example(best), _by_example(other)
    if first is not None and second is not None and first.shape == second.shape:
        interval = mean_interval(first - second)
        return interval and interval[0] > 0
    ends = pooled_interval(best, metric), pooled_interval(other, metric)
    if ends[0] is None or ends[1] is None:
        return None
    return ends[0][0] > ends[1][1]


def _by_example(splits: Sequence[SplitScore]) -> np.ndarray | None:
    """The score of each example, averaged over seeds."""
    scores = [one.scores for one in splits if one.scores is not None]
    if len(scores) < len(splits) or len({len(row) for row in scores}) != 1:
        return None
    return np.mean(scores, axis=0)
