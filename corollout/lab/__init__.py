"""The estimator lab: variance, bias and cost of gradient estimators, measured on a policy as it stands."""

from corollout.lab.advice import advise
from corollout.lab.defaults import biased_by_design, default_estimators
from corollout.lab.lab import ESTIMATES, REFERENCE, REFERENCE_ESTIMATES, ROUNDS, Lab, run_lab
from corollout.lab.measure import Measurement, Reference, make_reference, measure
from corollout.lab.policy_facts import PolicyFacts, policy_facts
from corollout.lab.spread import Spread
from corollout.lab.summary import KINDS, Interval, Kind, Row, summarise
from corollout.lab.timing import time_rounds

__all__ = [
    "ESTIMATES",
    "KINDS",
    "REFERENCE",
    "REFERENCE_ESTIMATES",
    "ROUNDS",
    "Interval",
    "Kind",
    "Lab",
    "Measurement",
    "PolicyFacts",
    "Reference",
    "Row",
    "Spread",
    "advise",
    "biased_by_design",
    "default_estimators",
    "make_reference",
    "measure",
    "policy_facts",
    "run_lab",
    "summarise",
    "time_rounds",
]
