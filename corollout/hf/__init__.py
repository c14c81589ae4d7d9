"""Language models of transformers. Needs the extra ``hf``: ``pip install 'corollout[hf]'``."""

from typing import TYPE_CHECKING

from corollout.lazy import lazy_names

if TYPE_CHECKING:
    from corollout.hf.policies import CausalLMPolicy, Seq2SeqPolicy
    from corollout.hf.prompts import PromptColumn
else:  # transformers takes seconds to import
    __getattr__, __dir__ = lazy_names(__name__, {"policies": "CausalLMPolicy Seq2SeqPolicy", "prompts": "PromptColumn"})

__all__ = ["CausalLMPolicy", "PromptColumn", "Seq2SeqPolicy"]
