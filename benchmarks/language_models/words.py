"""Sentences with an exact number of words: a reward that anybody can verify, for a chat model that is taught already.

    reward = max(0, 1 − |words − wanted| / wanted)

Words are what white space separates. Topics of the development set do not occur in training.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

TOPICS = (
    "rivers", "bread", "winter", "trains", "music", "bees", "chess", "bridges", "coffee", "mountains", "libraries",
    "dogs", "the moon", "rain", "gardens", "bicycles", "whales", "maps", "honey", "castles", "deserts", "clocks",
    "soup", "painting", "volcanoes", "ships", "horses", "markets", "forests", "football", "stars", "apples", "islands",
    "robots", "kites", "doctors", "paper", "lakes", "owls", "dancing",
)  # fmt: skip
DEV_TOPICS = ("teachers", "snow", "cats", "harbours", "cheese", "planets", "violins", "roses")
LENGTHS = range(5, 13)


class WordsExample(NamedTuple):
    prompt: str
    wanted: int


class WordsScore(NamedTuple):
    reward: float
    exact: float  # 1 if the number is right


class WordsScorer:
    """Scores texts for some examples."""

    measures = WordsScore._fields

    def __init__(self, examples: Sequence[WordsExample]):
        self.examples = examples

    @property
    def prompts(self) -> list[str]:
        return [example.prompt for example in self.examples]

    def scores(self, texts: Sequence[str], indices: Sequence[int]) -> list[WordsScore]:
        return [score(text, self.examples[index].wanted) for text, index in zip(texts, indices, strict=True)]


def score(text: str, wanted: int) -> WordsScore:
    away = abs(len(text.split()) - wanted)
    return WordsScore(max(0.0, 1 - away / wanted), float(away == 0))


def messages(topic: str, wanted: int) -> list[dict[str, str]]:
    """The request as a chat."""
    return [{"role": "user", "content": f"Write one sentence about {topic} with exactly {wanted} words."}]


def rows(topics: Sequence[str]) -> list[dict[str, Any]]:
    """A data set of chats with the column ``wanted``."""
    return [{"prompt": messages(topic, wanted), "wanted": wanted} for topic in topics for wanted in LENGTHS]


def word_examples(tokenizer: Any, topics: Sequence[str]) -> list[WordsExample]:
    """The chats as plain strings, which every trainer reads alike."""
    return [
        WordsExample(
            tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False), row["wanted"]
        )
        for row in rows(topics)
    ]


def exact_words(completions: Sequence[Any], wanted: Sequence[int], **_: Any) -> list[float]:
    """The same reward for data with chats, as a function that trainers and commands take."""
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [score(text, number).reward for text, number in zip(texts, wanted, strict=True)]
