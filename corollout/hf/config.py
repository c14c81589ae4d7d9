"""Settings of the trainer for language models: those of ``transformers.TrainingArguments``, and TRL's names."""

from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from corollout.arguments import require_count
from corollout.errors import InputError
from corollout.estimators import Estimator, make_estimator
from corollout.policies.tempered import require_temperature


@dataclass
class PolicyGradientConfig(TrainingArguments):
    """How a language model is fine-tuned on rewards.

    ``per_device_train_batch_size`` counts completions, as in TRL: it must be a multiple of ``num_generations``.
    """

    estimator: str | None = field(
        default=None,
        metadata={
            "help": "How gradients are estimated: rloo-4, set-4:baseline=fitted, arsm:budget=64, auto; by default rloo "
            "with num_generations samples"
        },
    )
    num_generations: int | None = field(
        default=None,
        metadata={
            "help": "Completions of a prompt, by which batch sizes count; by default as many as the estimator draws "
            "(an estimator that is named draws its own number)"
        },
    )
    max_completion_length: int = field(default=256, metadata={"help": "Most tokens of a completion"})
    temperature: float = field(default=1.0, metadata={"help": "Of the policy that is sampled and optimised"})
    stop_strings: list[str] | None = field(
        default=None, metadata={"help": "A completion ends as soon as its text contains one of these strings"}
    )
    beta: float = field(
        default=0.0, metadata={"help": "Coefficient of the divergence from the model at the start, in nats"}
    )
    entropy_weight: float = field(default=0.0, metadata={"help": "Coefficient of the entropy, in nats"})
    reward_weights: list[float] | None = field(
        default=None, metadata={"help": "A weight for each of several reward functions"}
    )
    reward_workers: int = field(default=0, metadata={"help": "Processes that run each reward function; 0: none"})
    reward_timeout: float | None = field(
        default=None, metadata={"help": "Seconds that a batch may take in such a process"}
    )
    micro_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Prompts that are scored at a time; by default as many as take little memory beside the weights"
        },
    )
    chat_template_kwargs: dict[str, Any] | None = field(
        default=None, metadata={"help": "Arguments for the tokenizer's chat template"}
    )
    model_init_kwargs: dict[str, Any] | None = field(
        default=None, metadata={"help": "Arguments for from_pretrained, if the model is given by its name"}
    )
    samples_steps: int = field(
        default=0, metadata={"help": "Keep completions with the credit of every token every so many steps; 0: never"}
    )
    learning_rate: float = field(default=1e-6, metadata={"help": "The initial learning rate"})
    logging_steps: float = field(default=10, metadata={"help": "Log every so many steps"})
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Must stay False: reward functions read the columns"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fp16:
            raise InputError("fp16 needs scaled losses, and there is no loss here: use bf16=True, or float32")
        require_count("max_completion_length", self.max_completion_length)
        require_temperature(self.temperature)
        drawn = self.make_estimator().sampler.count
        if self.num_generations is None:
            self.num_generations = drawn
        require_count("num_generations", self.num_generations)
        if self.per_device_train_batch_size % self.num_generations:
            raise InputError(
                f"per_device_train_batch_size counts completions: {self.per_device_train_batch_size} is not a multiple "
                f"of the {self.num_generations} of each prompt"
            )

    def make_estimator(self) -> Estimator:
        """The estimator that is named, or RLOO."""
        if self.estimator is not None:
            return make_estimator(self.estimator)
        require_count("num_generations", 2 if self.num_generations is None else self.num_generations, least=2)
        return make_estimator(f"rloo-{self.num_generations or 2}")

    @property
    def prompts_per_device(self) -> int:
        """Prompts in a batch."""
        return self.per_device_train_batch_size // (self.num_generations or 1)
