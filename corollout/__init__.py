"""corollout: unbiased, low-variance, token-level policy gradients for sequence generators."""

from typing import TYPE_CHECKING

from corollout.lazy import lazy_names

if TYPE_CHECKING:
    from corollout import estimators, policies
    from corollout.data import Batch, Columns
    from corollout.errors import CorolloutError, InputError, Interrupted, PolicyError, RewardError
    from corollout.estimators import estimate_gradient, make_estimator, pseudo_actions
    from corollout.noise import Noise
    from corollout.policies import Policy
    from corollout.rewards import Reward, WeightedRewards
    from corollout.rollouts import Engine
    from corollout.training import (
        Estimate,
        MLETrainer,
        Probe,
        Run,
        Schedule,
        Trainer,
        estimate,
        evaluate,
        fit,
        pretrain,
        probe_variance,
    )
else:  # PyTorch takes seconds to import: the command line must answer before
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "data": "Batch Columns",
            "errors": "CorolloutError InputError Interrupted PolicyError RewardError",
            "estimators": "estimate_gradient make_estimator pseudo_actions",
            "noise": "Noise",
            "policies": "Policy",
            "rewards": "Reward WeightedRewards",
            "rollouts": "Engine",
            "training": "Estimate MLETrainer Probe Run Schedule Trainer estimate evaluate fit pretrain probe_variance",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Columns",
    "CorolloutError",
    "Engine",
    "Estimate",
    "InputError",
    "Interrupted",
    "MLETrainer",
    "Noise",
    "Policy",
    "PolicyError",
    "Probe",
    "Reward",
    "RewardError",
    "Run",
    "Schedule",
    "Trainer",
    "WeightedRewards",
    "estimate",
    "estimate_gradient",
    "estimators",
    "evaluate",
    "fit",
    "make_estimator",
    "policies",
    "pretrain",
    "probe_variance",
    "pseudo_actions",
]
