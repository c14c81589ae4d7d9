"""Estimators of the paper beside those that came after it: how they learn, at equal seconds and at equal tokens.

Data, models and training are those of the two tables, at every scale.
"""

from dataclasses import replace

from corollout.estimators import Auto, make_estimator
from corollout.experiments.table1 import TABLE1
from corollout.experiments.table2 import TABLE2
from corollout.sweeps.sweep import MLE, Model, Sweep
from corollout.sweeps.variance_analysis import VARIANCE

RLOO = "RLOO"  # the method that the others are compared with


def choosing_methods(sweep: Sweep) -> list[str]:
    """Methods that choose their estimator anew while they train."""
    return [method for method in sweep.methods if isinstance(make_estimator(sweep.estimator(method)), Auto)]


# What chooses as it goes has no variance before it has chosen.
_VARIANCE = replace(
    VARIANCE, methods=lambda sweep: [method for method in sweep.methods if method not in choosing_methods(sweep)]
)

_LATER = {
    "REINFORCE-fit": "reinforce:baseline=fitted",
    "RLOO-fit": "rloo-8:baseline=fitted",
    "SET-2": "set-2:baseline=fitted",
    "SET-8": "set-8:baseline=fitted",
    "AUTO": "auto",
}

KAREL_CURVES = replace(
    TABLE1,
    name="curves-karel",
    title="Learning curves, Karel",
    methods={"REINFORCE": "reinforce", "SC": "sc", RLOO: "rloo-8", "ARSM": "arsm", **_LATER},
    analyses=(_VARIANCE,),
)

CAPTION_CURVES = replace(
    TABLE2,
    name="curves-captions",
    title="Learning curves, captions",
    methods={
        "REINFORCE": "reinforce",
        "SC": "sc",
        RLOO: "rloo-8",
        "ARS-20": "ars-20",
        **_LATER,
    },
    analyses=(_VARIANCE,),
    models=(Model(MLE, "mle"),),
    starts={},
)
