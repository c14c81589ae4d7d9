"""Between text and tokens: prompts as strings or as messages of a chat, and completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from corollout.errors import InputError
from corollout.text import quoted
from corollout.training.samples import Message, Renderer

Prompt = str | Sequence[Mapping[str, Any]]  # text, or the messages of a chat
Completion = str | list[dict[str, str]]


class Text:
    """A tokenizer with what it takes to make prompts of tokens and completions of text."""

    def __init__(self, tokenizer: Any, chat_template: Mapping[str, Any] | None = None):
        if not callable(tokenizer) or not hasattr(tokenizer, "batch_decode"):
            raise InputError(f"processing_class must be a tokenizer of transformers, not {quoted(tokenizer)}")
        self.tokenizer: Any = tokenizer
        self._chat_template = dict(chat_template or {})

    def prompt_tokens(self, prompt: Prompt, number: int = 0) -> list[int]:
        """The tokens of a prompt; an error names it by its number."""
        if isinstance(prompt, str):
            tokens = self.tokenizer(prompt)["input_ids"]
        elif is_chat(prompt):
            if not getattr(self.tokenizer, "chat_template", None):
                raise InputError(
                    f"prompt {number} is a list of messages, but the tokenizer has no chat template: use plain "
                    f"strings, or set tokenizer.chat_template"
                )
            messages = [dict(message) for message in prompt]
            text = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **self._chat_template
            )
            tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            raise InputError(
                f"prompt {number} must be a string, or a list of messages with role and content, not {quoted(prompt)}"
            )
        if not tokens:
            raise InputError(f"prompt {number} is empty: it has no tokens")
        return list(tokens)

    def renderer(self, ends: tuple[int, ...]) -> Renderer:
        """Tokens as text, those of the tokenizer's own among them."""
        return Renderer(lambda ids: self.tokenizer.decode(ids), ends)

    def completions(self, sequences: Sequence[Sequence[int]], prompts: Sequence[Prompt]) -> list[Completion]:
        """What sequences say, as a string or a message, whichever their prompts are."""
        texts = self.tokenizer.batch_decode([list(tokens) for tokens in sequences], skip_special_tokens=True)
        return [
            [{"role": "assistant", "content": text}] if is_chat(prompt) else text
            for text, prompt in zip(texts, prompts, strict=True)
        ]


def messages_of(prompt: Prompt) -> list[Message]:
    """A prompt as it is kept with samples: what is not text, such as a picture, as Python writes it."""
    if isinstance(prompt, str):
        return [Message("", prompt)]
    return [Message(str(one["role"]), str(one["content"])) for one in prompt]


def is_chat(prompt: Any) -> bool:
    """Whether a prompt is the messages of a chat."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(message, Mapping) and {"role", "content"} <= message.keys() for message in prompt)
    )
