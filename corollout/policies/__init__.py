"""The policy protocol and reference policies."""

from corollout.policies.protocol import Policy, concat, detach, evaluation_mode, score_by_steps, select
from corollout.policies.recurrent import RecurrentPolicy, TokenEncoder
from corollout.policies.transformer import TransformerPolicy
from corollout.policies.tree_head import TreeHead

__all__ = [
    "Policy",
    "RecurrentPolicy",
    "TokenEncoder",
    "TransformerPolicy",
    "TreeHead",
    "concat",
    "detach",
    "evaluation_mode",
    "score_by_steps",
    "select",
]
