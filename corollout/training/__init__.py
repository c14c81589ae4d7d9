"""Gradient estimates from start to end, training loops, and their diagnostics."""

from corollout.training.diagnostics import Probe, RunningVariance, flat_gradient, probe_variance
from corollout.training.estimate import Estimate, estimate
from corollout.training.evaluation import evaluate, rewards_of
from corollout.training.fit import Schedule, fit
from corollout.training.loop import Metrics, Trainer
from corollout.training.mle import TeacherForcing, TeachingMetrics, pretrain
from corollout.training.runs import Run

__all__ = [
    "Estimate",
    "Metrics",
    "Probe",
    "Run",
    "RunningVariance",
    "Schedule",
    "TeacherForcing",
    "TeachingMetrics",
    "Trainer",
    "estimate",
    "evaluate",
    "fit",
    "flat_gradient",
    "pretrain",
    "probe_variance",
    "rewards_of",
]
