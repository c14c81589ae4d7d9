"""Training: one update of fine-tuning and of pre-training, the run around them, probes and evaluation."""

from corollout.training.estimates import Estimate, estimate
from corollout.training.evaluation import evaluate
from corollout.training.finetuning import Trainer
from corollout.training.fit import Schedule, fit
from corollout.training.mle import MLETrainer, pretrain
from corollout.training.probes import Probe, probe_variance
from corollout.training.runs import Run

__all__ = [
    "Estimate",
    "MLETrainer",
    "Probe",
    "Run",
    "Schedule",
    "Trainer",
    "estimate",
    "evaluate",
    "fit",
    "pretrain",
    "probe_variance",
]
