"""Gradient estimates from start to end, training loops, and their diagnostics."""

from corollout.training.estimate import Estimate, estimate
from corollout.training.evaluation import evaluate, rewards_of
from corollout.training.finetuning import Metrics, Trainer
from corollout.training.fit import Schedule, fit
from corollout.training.mle import MLEMetrics, MLETrainer, pretrain
from corollout.training.runs import Run
from corollout.training.variance import Probe, RunningVariance, flat_gradient, probe_variance

__all__ = [
    "Estimate",
    "MLEMetrics",
    "MLETrainer",
    "Metrics",
    "Probe",
    "Run",
    "RunningVariance",
    "Schedule",
    "Trainer",
    "estimate",
    "evaluate",
    "fit",
    "flat_gradient",
    "pretrain",
    "probe_variance",
    "rewards_of",
]
