"""Gradient estimators: plans, and the maps from rewards to gradients. Pure tensor mathematics."""

from corollout.estimators.ars import ARS
from corollout.estimators.auto import Auto
from corollout.estimators.binary import ARM, DisARM
from corollout.estimators.branching import Branching
from corollout.estimators.estimator import Adaptive, Estimator, estimator_names, make_estimator
from corollout.estimators.pairs import Pairs
from corollout.estimators.plans import ContrastPlan, GroupPlan, Plan, SetPlan
from corollout.estimators.pseudo import PseudoActions, pseudo_actions
from corollout.estimators.score import GRPO, RLOO, BeamExpectation, MonteCarlo, Reinforce, SelfCritic
from corollout.estimators.sets import UnorderedSet
from corollout.estimators.single import estimate_gradient
from corollout.estimators.tree import BinaryTreeARSM, BinaryTreeDisARM
from corollout.estimators.values import Vine

__all__ = [
    "ARM",
    "ARS",
    "GRPO",
    "RLOO",
    "Adaptive",
    "Auto",
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
    "Vine",
    "estimate_gradient",
    "estimator_names",
    "make_estimator",
    "pseudo_actions",
]
