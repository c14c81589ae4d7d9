"""Stop strings: main trajectories, branches and searches stop alike, and gradients are those of the stopped process."""

import copy
from typing import Any

import pytest
import torch

from corollout import Columns, InputError, Noise, estimate
from corollout.estimators import make_estimator
from corollout.training.base import flat_gradient
from corollout.types import Sampler
from tests.support.language_models import END, PROMPTS, language_model, padded, plain_logits, plain_rows, policy_of

transformers: Any = pytest.importorskip("transformers")
tokenizers: Any = pytest.importorskip("tokenizers")

from corollout.hf import PolicyGradientConfig, PolicyGradientTrainer, PromptColumn  # noqa: E402
from corollout.hf.stop_strings import StopStrings  # noqa: E402

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def tokenizer_of(vocab: int) -> Any:
    """Token i is the letter i, but for the end."""
    names = ["</s>" if token == END else LETTERS[token] for token in range(vocab)]
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({name: token for token, name in enumerate(names)}, unk_token="a")
    )
    words.decoder = tokenizers.decoders.Fuse()
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>")


def byte_tokenizer() -> Any:
    """A byte-level BPE with a few merges."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole = tokenizers.Tokenizer(tokenizers.models.BPE())
    whole.pre_tokenizer, whole.decoder = byte_level, tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=262, special_tokens=["</s>"], initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    whole.train_from_iterator(["hello hello été"], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole, eos_token="</s>", pad_token="</s>")


# Where a sequence stops


@pytest.mark.parametrize("strings", [["é"], ["ab"], ["\n\n", "été"], ["€a"]])
def test_stops_are_those_of_the_whole_text(strings: list[str]):
    tokenizer = byte_tokenizer()
    stops, generator = StopStrings(strings, tokenizer), torch.Generator().manual_seed(0)
    useful = tokenizer("".join(strings) + "ab")["input_ids"] + [tokenizer.eos_token_id]
    seen = 0
    for _ in range(40):
        picked = torch.randint(len(useful), (60,), generator=generator)
        row = [useful[index] for index in picked.tolist()]
        row[45:] = tokenizer(strings[0])["input_ids"]
        for length in range(1, len(row) + 1):
            text = tokenizer.decode(row[:length], skip_special_tokens=True)
            stop = any(one in text for one in strings)
            assert stops.of(row[:length]) == stop
            if stop:
                seen += 1
                break  # nothing goes on
    assert seen == 40


def test_only_the_last_tokens_become_text():
    class Counting:
        all_special_ids = (0,)
        tokens = 0

        def batch_decode(self, rows: list[list[int]], **_: Any) -> list[str]:
            self.tokens += sum(map(len, rows))
            return ["".join(LETTERS[token] for token in row if token) for row in rows]

    tokenizer = Counting()
    stops = StopStrings(["xyz"], tokenizer)
    for length in range(1, 1000):
        assert not stops.of([1] * length)
    assert tokenizer.tokens < 12_000
    assert stops.of([1] * 1000 + [23, 0, 24, 0, 25])


# What is sampled


@pytest.mark.parametrize("mode", ["sample", "set", "beam"])
def test_sequences_stop_and_keep_their_last_tokens(mode: Any):
    policy = policy_of(language_model("llama"), tokenizer_of(23))
    strings = ["d", "ee", "qr"]
    engine = policy.engine(6, stop_strings=strings)
    drawn = engine.decode(padded(PROMPTS), torch.arange(4), Sampler(mode, 12), Noise(0)).trajectories
    stopped = 0
    for row, sequence in enumerate(drawn.lists()):
        text = "".join(LETTERS[token] for token in sequence)
        whole = drawn.tokens[row, : drawn.lengths[row]].tolist()
        assert not any(one in text[:-1] for one in strings)
        stops = any(one in text for one in strings)
        assert whole == (sequence if stops or len(sequence) == 6 else [*sequence, END])
        assert bool(drawn.finished[row]) == (stops or whole[-1] == END)
        stopped += stops
    assert stopped > 3
    unbounded = policy.engine(6).decode(padded(PROMPTS), torch.arange(4), Sampler(mode, 12), Noise(0)).trajectories
    assert unbounded.lists() != drawn.lists()


def test_branches_stop_where_their_text_does():
    policy = policy_of(language_model("llama"), tokenizer_of(23))
    strings = ["d", "ee", "qr"]
    engine = policy.engine(5, stop_strings=strings)
    batch = Columns(context=PromptColumn(PROMPTS)).batch(range(4))
    mains = engine.decode(batch.context, batch.examples, Sampler(), Noise(1))
    plan = make_estimator("arsm").plan(mains.trajectories, Noise(1))
    completed = engine.complete(mains, plan.branches, Noise(1)).sequences
    contexts = mains.trajectories.contexts[plan.branches.parent]
    with torch.no_grad():
        logits = plain_rows(policy, PROMPTS, completed, contexts)
    keys = mains.trajectories.keys[plan.branches.parent]
    assert completed.stopped is not None
    assert bool(completed.stopped.any())
    for row in range(len(completed.tokens)):
        length = int(completed.lengths[row])
        tokens = completed.tokens[row, :length].tolist()
        ends = [
            any(one in "".join(LETTERS[token] for token in tokens[:t]) for one in strings) for t in range(length + 1)
        ]
        assert not any(ends[:-1])
        assert ends[-1] == bool(completed.stopped[row])
        assert bool(completed.finished[row]) == (ends[-1] or tokens[-1] == END)
        for t in range(int(plan.branches.step[row]) + 1, length):
            choice = engine.head.choose(logits[row, t][None], keys[row][None], torch.tensor([t]), False)
            assert int(choice.tokens) == tokens[t]


def test_generate_stops():
    policy = policy_of(language_model("llama"), tokenizer_of(23))
    sequences = policy.engine(8, stop_strings=["d", "k"]).generate(padded(PROMPTS), count=20)
    ended = [one for some in sequences for one in some if one.tokens and one.tokens[-1] in (3, 10)]
    assert len(ended) > 3
    assert all(one.finished for one in ended)
    assert not any({3, 10} & set(one.tokens[:-1]) for some in sequences for one in some)


def test_ended_rows_that_are_computed_along_change_nothing():
    policy = policy_of(language_model("llama"), tokenizer_of(23))
    drawn = [
        policy.engine(6, stop_strings=["d", "k"], drop_every=every)
        .decode(padded(PROMPTS), torch.arange(4), Sampler("sample", 8), Noise(0))
        .trajectories.lists()
        for every in (1, 3)
    ]
    assert drawn[0] == drawn[1]


def test_estimates_are_unbiased():
    """Against the exact gradient, with three tokens and all sequences of the process that stops after "ab"."""
    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    policy = policy_of(language_model("llama", vocab=3, **sizes), tokenizer_of(3))
    engine, prompts = policy.engine(3, stop_strings=["ab"]), [[0, 1], [1]]

    def value(sequences: list[list[int]]) -> list[float]:
        return [len(tokens) + 3.0 * (tokens[:1] == [0]) - 2.0 * (tokens == [0, 1]) for tokens in sequences]

    def expected(prompt: list[int], tokens: list[int], log_p: Any) -> Any:
        """The expected reward of what begins like this."""
        if tokens[-1:] == [END]:
            return log_p.exp() * value([tokens[:-1]])[0]
        if len(tokens) == 3 or tokens[-2:] == [0, 1]:
            return log_p.exp() * value([tokens])[0]
        scores = plain_logits(policy, prompt, [*tokens, 0])[-1].log_softmax(0)
        return sum(expected(prompt, [*tokens, token], log_p + scores[token]) for token in range(3))

    policy.zero_grad()
    total: Any = sum(expected(prompt, [], torch.zeros((), dtype=torch.float64)) for prompt in prompts)
    (-total / len(prompts)).backward()
    exact = flat_gradient(policy.parameters())
    batch = Columns(context=PromptColumn(prompts)).batch([0, 1])
    for name, draws in (("rloo-2", 80), ("arsm", 50), ("set-2", 50)):
        gradients = []
        for seed in range(draws):
            policy.zero_grad()
            estimate(engine, batch, value, name, Noise(seed)).backward()
            gradients.append(flat_gradient(policy.parameters()))
        directions = torch.cat([exact[None] / exact.norm(), torch.randn(4, len(exact), dtype=exact.dtype)])
        seen = torch.stack(gradients) @ directions.t()
        error = seen.std(0) / draws**0.5
        assert bool(((seen.mean(0) - directions @ exact).abs() < 4.5 * error).all()), name
        assert float(error[0]) < 0.5 * float(exact.norm())  # it could have failed


# The trainer, and refusals


def test_the_trainer_stops_completions(tmp_path: Any):
    given: list[list[int]] = []
    texts: list[str] = []

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        given.extend(copy.deepcopy(completion_ids))
        texts.extend(completions)
        return [float(len(ids)) for ids in completion_ids]

    arguments: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "max_steps": 1}
    args = PolicyGradientConfig(
        str(tmp_path), per_device_train_batch_size=64, num_generations=32, max_completion_length=5,
        stop_strings=["d", "k", "m", "xy"], **arguments,
    )  # fmt: skip
    model = language_model("llama", dtype=torch.float32)
    PolicyGradientTrainer(
        model, reward, args, [{"prompt": "hello"}, {"prompt": "cab"}], processing_class=tokenizer_of(23)
    ).train()
    stopped = [ids for ids, text in zip(given, texts, strict=True) if text[-1:] in ("d", "k", "m")]
    assert stopped
    assert all(ids[-1] != END for ids in stopped)  # what was sampled, and no more
    assert any(ids[-1] == END for ids in given)


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        (["a", ""], "contains an empty string"),
        ("a", "must be a list of strings"),
        ([], "must be a list of strings"),
        ([3], "must be a list of strings"),
    ],
)
def test_stop_strings_that_are_none_are_refused(strings: Any, message: str):
    with pytest.raises(InputError, match=message):
        StopStrings(strings, tokenizer_of(23))


def test_stop_strings_without_a_tokenizer_are_refused():
    with pytest.raises(InputError, match="stop_strings need a tokenizer"):
        policy_of(language_model("llama")).engine(3, stop_strings=["a"])
