"""The policy protocol and reference policies."""

from corollout.policies.protocol import Policy, concat, detach, evaluation_mode, score_by_steps, select
from corollout.policies.recurrent import RecurrentPolicy, TokenEncoder
from corollout.policies.transformer import TransformerPolicy

__all__ = [
    "Policy",
    "RecurrentPolicy",
    "TokenEncoder",
    "TransformerPolicy",
    "concat",
    "detach",
    "evaluation_mode",
    "score_by_steps",
    "select",
]
