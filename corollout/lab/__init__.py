"""The estimator lab: variance, bias and cost of gradient estimators, measured at the current weights of a policy."""

from typing import TYPE_CHECKING

from corollout.lazy import lazy_names

if TYPE_CHECKING:
    from corollout.lab.advice import advise
    from corollout.lab.lab import Lab, run_lab
    from corollout.lab.measurement import make_reference, measure, policy_facts, time_rounds
    from corollout.lab.summary import summarise
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "advice": "advise",
            "lab": "Lab run_lab",
            "measurement": "make_reference measure policy_facts time_rounds",
            "summary": "summarise",
        },
    )

__all__ = ["Lab", "advise", "make_reference", "measure", "policy_facts", "run_lab", "summarise", "time_rounds"]
