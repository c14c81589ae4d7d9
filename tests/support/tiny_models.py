"""A folder with a tiny language model and its tokenizer, as users have them."""

from pathlib import Path
from typing import Any

import torch

from tests.support.language_models import language_model, transformers

WORDS = ["<pad>", "<s>", "</s>", *"abcdefghijklmnopqrst"]
CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def make_tokenizer() -> Any:
    import tokenizers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def save_tiny_model(folder: Path, name: str = "llama", chats: bool = False) -> Path:
    """A model with random weights in a folder."""
    language_model(name, dtype=torch.float32).save_pretrained(folder)
    tokenizer = make_tokenizer()
    if chats:
        tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return folder
