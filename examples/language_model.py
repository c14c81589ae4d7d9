"""A language model that learns to answer with the word it is asked for, as with TRL, but with credit for every token.

    python examples/language_model.py

The model is tiny and has random weights, so that nothing is downloaded. With a real one, ``model`` is a name, such as
"HuggingFaceTB/SmolLM2-135M-Instruct", and neither tokenizer nor configuration is needed.
"""

import tempfile

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from corollout.hf import PolicyGradientConfig, PolicyGradientTrainer

WORDS = ["<pad>", "<s>", "</s>", "say", "apple", "pear", "plum", "fig", "grape", "lemon"]


def says_the_word(completions: list[str], word: list[str], **_: object) -> list[float]:
    """The share of the completion that is the word; columns of the data arrive by their names."""
    answers = [completion.split() for completion in completions]
    return [answer.count(one) / max(len(answer), 1) for answer, one in zip(answers, word, strict=True)]


def main(quick: bool = False) -> None:
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    rows = [{"prompt": f"say {word}", "word": word} for word in WORDS[4:]]
    with tempfile.TemporaryDirectory() as folder:
        args = PolicyGradientConfig(
            folder, estimator="arsm:budget=60", per_device_train_batch_size=6, max_completion_length=4,
            max_steps=5 if quick else 150, learning_rate=3e-3, lr_scheduler_type="constant", logging_steps=1.0,
            report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no",
        )  # fmt: skip
        trainer = PolicyGradientTrainer(
            LlamaForCausalLM(config), says_the_word, args, train_dataset=rows, processing_class=tokenizer
        )
        trainer.train()
    rewards = [record["reward"] for record in trainer.state.log_history if "reward" in record]
    print(f"mean reward {sum(rewards[:5]) / 5:.2f} -> {sum(rewards[-5:]) / 5:.2f}")
    answers = trainer.engine.generate(trainer.prompts(rows), mode="greedy")
    for row, (answer, *_) in zip(rows, answers, strict=True):
        print(f"{row['prompt']}: {tokenizer.decode(answer.tokens)}")


if __name__ == "__main__":
    main()
