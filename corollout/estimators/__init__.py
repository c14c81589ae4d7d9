"""Gradient estimators: plans and their linear maps from rewards to gradients. Pure tensor mathematics."""

from corollout.estimators.ars import ARS
from corollout.estimators.binary import ARM, DisARM
from corollout.estimators.branching import Branching
from corollout.estimators.pairs import Pairs
from corollout.estimators.plans import ContrastPlan, Estimator, GroupPlan, Plan
from corollout.estimators.pseudo import PseudoActions, pseudo_actions
from corollout.estimators.registry import NAMES, make_estimator
from corollout.estimators.score import RLOO, BeamExpectation, MonteCarlo, Reinforce, SelfCritic
from corollout.estimators.sets import SetPlan, UnorderedSet
from corollout.estimators.single import estimate_gradient
from corollout.estimators.tree import BinaryTreeARSM, BinaryTreeDisARM

__all__ = [
    "ARM",
    "ARS",
    "NAMES",
    "RLOO",
    "BeamExpectation",
    "BinaryTreeARSM",
    "BinaryTreeDisARM",
    "Branching",
    "ContrastPlan",
    "DisARM",
    "Estimator",
    "GroupPlan",
    "MonteCarlo",
    "Pairs",
    "Plan",
    "PseudoActions",
    "Reinforce",
    "SelfCritic",
    "SetPlan",
    "UnorderedSet",
    "estimate_gradient",
    "make_estimator",
    "pseudo_actions",
]
