"""A chat model learns to write sentences of an exact length, with credit for every token.

    python examples/language_model.py [MODEL] [FOLDER]

MODEL is a name or a folder; FOLDER gets checkpoints, the weights, and ``completions.html``, a page that shows where
completions went wrong. Needs the extra ``hf``, and minutes or hours, as the model is small or large.
"""

import sys
from typing import Any

from corollout.hf import PolicyGradientConfig, PolicyGradientTrainer

TOPICS = "rivers", "bread", "winter", "trains", "music", "bees", "chess", "bridges", "coffee", "libraries"


def right_length(completions: list[Any], words: list[int], **_: Any) -> list[float]:
    """Near 1 if the number of words is nearly right; columns of the data arrive by their names."""
    counts = [len(messages[-1]["content"].split()) for messages in completions]
    return [max(0.0, 1 - abs(count - wanted) / wanted) for count, wanted in zip(counts, words, strict=True)]


def main(model: str = "HuggingFaceTB/SmolLM2-135M-Instruct", folder: str = "sentences", **options: Any) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": f"Write a sentence about {topic} in {words} words."}], "words": words}
        for topic in TOPICS
        for words in range(5, 13)
    ]
    settings = {"max_steps": 200, "max_completion_length": 32, "learning_rate": 1e-5} | options
    args = PolicyGradientConfig(folder, estimator="rloo-4", samples_steps=10, report_to="none", **settings)
    trainer = PolicyGradientTrainer(model, right_length, args, train_dataset=rows)
    trainer.train()
    trainer.save_model()
    print(f"The weights are in {folder}; what was written, and the credit of every token: {folder}/completions.html")


if __name__ == "__main__":
    main(*sys.argv[1:])
