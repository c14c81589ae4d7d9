"""Training: one update of fine-tuning and of pre-training, the run around them, probes and evaluation."""

from typing import TYPE_CHECKING

from corollout.lazy import lazy_names

if TYPE_CHECKING:
    from corollout.training.estimates import Estimate, estimate
    from corollout.training.evaluation import evaluate
    from corollout.training.finetuning import Trainer
    from corollout.training.loop import Schedule, fit
    from corollout.training.mle import MLETrainer, pretrain
    from corollout.training.probes import Probe, probe_variance
    from corollout.training.result import TrainingResult
    from corollout.training.runs import Run
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "estimates": "Estimate estimate",
            "evaluation": "evaluate",
            "finetuning": "Trainer",
            "loop": "Schedule fit",
            "mle": "MLETrainer pretrain",
            "probes": "Probe probe_variance",
            "result": "TrainingResult",
            "runs": "Run",
        },
    )

__all__ = [
    "Estimate",
    "MLETrainer",
    "Probe",
    "Run",
    "Schedule",
    "Trainer",
    "TrainingResult",
    "estimate",
    "evaluate",
    "fit",
    "pretrain",
    "probe_variance",
]
