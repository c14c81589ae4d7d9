"""Language models of transformers. Needs the extra ``hf``: ``pip install 'corollout[hf]'``."""

from typing import TYPE_CHECKING

from corollout.lazy import lazy_names

if TYPE_CHECKING:
    from corollout.hf.config import PolicyGradientConfig
    from corollout.hf.policies import CausalLMPolicy, Seq2SeqPolicy
    from corollout.hf.prompts import PromptColumn
    from corollout.hf.trainer import PolicyGradientTrainer
else:  # transformers takes seconds to import
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "config": "PolicyGradientConfig",
            "policies": "CausalLMPolicy Seq2SeqPolicy",
            "prompts": "PromptColumn",
            "trainer": "PolicyGradientTrainer",
        },
    )

__all__ = ["CausalLMPolicy", "PolicyGradientConfig", "PolicyGradientTrainer", "PromptColumn", "Seq2SeqPolicy"]
