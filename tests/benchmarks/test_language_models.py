"""Data-to-text with language models: the data, the slots, the reward, and tiny runs of every step."""

import csv
import gzip
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.language_models import compare, pretraining, report, runs
from benchmarks.language_models.compare import Comparison
from benchmarks.language_models.e2e import Example, parse_slots, read_e2e
from benchmarks.language_models.likelihood import Group
from benchmarks.language_models.matcher_accuracy import foreign_share, matcher_accuracy
from benchmarks.language_models.pretraining import LOSSES, PretrainingSettings, batches_of_epoch, make_model, tokenized
from benchmarks.language_models.problem import RewardCounter, reward_function
from benchmarks.language_models.reward import TextReward, mix
from benchmarks.language_models.settings import RunSettings
from benchmarks.language_models.slots import SlotMatcher, wrong_values
from benchmarks.language_models.summary import Estimate, MethodSummary
from benchmarks.language_models.tokenizer import train_tokenizer
from benchmarks.language_models.words import (
    DEV_TOPICS,
    LENGTHS,
    TOPICS,
    WordsExample,
    WordsScorer,
    exact_words,
    rows,
)
from corollout.errors import InputError

ROWS = [
    ("name[The Mill], eatType[pub], food[French], near[Café Rouge]", "The Mill is a French pub near Café Rouge."),
    ("name[The Mill], eatType[pub], food[French], near[Café Rouge]", "Near Café Rouge is a French pub, The Mill."),
    ("name[Aromi], area[riverside], familyFriendly[no]", "Aromi is by the river and not family-friendly."),
    ("name[Aromi], area[riverside], familyFriendly[no]", "No children at Aromi, which is on the riverside."),
    ("name[Cotto], priceRange[cheap], customer rating[5 out of 5]", "Cotto is cheap and highly rated."),
    ("name[Cotto], priceRange[cheap], customer rating[5 out of 5]", "Cotto has low prices, and 5 out of 5 stars."),
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("e2e")
    with gzip.open(folder / "trainset.csv.gz", "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("mr", "ref"), *ROWS])
    with (folder / "devset.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("mr", "ref"), *ROWS[:4]])
    return folder


@pytest.fixture(scope="module")
def examples(data: Path) -> list[Example]:
    return read_e2e(data / "trainset.csv.gz")


@pytest.fixture(scope="module")
def tokenizer(examples: list[Example]) -> Any:
    return train_tokenizer((text for one in examples for text in (one.prompt, *one.references)), 300)


# data


def test_references_are_grouped_by_meaning_representation(examples: list[Example], data: Path) -> None:
    assert [len(one.references) for one in examples] == [2, 2, 2]
    assert examples[0].slots == {"name": "The Mill", "eatType": "pub", "food": "French", "near": "Café Rouge"}
    assert [one.mr for one in read_e2e(data / "devset.csv")] == [one.mr for one in examples[:2]]


@pytest.mark.parametrize("mr", ["name", "name[The Mill] food[French]", "colour[red]", "name[A], name[B]", "name[A]]"])
def test_what_is_not_a_meaning_representation_is_said(mr: str) -> None:
    with pytest.raises(InputError, match="is not a meaning representation"):
        parse_slots(mr)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n", "needs the columns mr and ref, not a, b"),
        (b"mr,ref\n", "has no rows"),
        (b"mr,ref\nname[A],\n", "line 2: the meaning representation or the reference is empty"),
        (b"\xff\xfe", "must be UTF-8 text"),
        (b"\x1f\x8bxx", "must be UTF-8 text, plain or compressed by gzip"),
    ],
)
def test_files_that_are_not_e2e_data(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "data.csv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_e2e(tmp_path / "data.csv")


# slots


@pytest.mark.parametrize(
    ("text", "slot", "values"),
    [
        ("prices under £20", "priceRange", {"cheap", "less than £20"}),
        ("it costs £20-25", "priceRange", {"moderate", "£20-25"}),
        ("moderately expensive, it is", "priceRange", {"moderate", "£20-25"}),
        ("prices above 30", "priceRange", {"high", "more than £30"}),
        ("a high price range and an average customer rating", "priceRange", {"high", "more than £30"}),
        ("a high price range and an average customer rating", "customer rating", {"average", "3 out of 5"}),
        ("rated 1 out of 5 stars, with high prices", "customer rating", {"low", "1 out of 5"}),
        ("a highly rated place", "customer rating", {"high", "5 out of 5"}),
        ("families are welcome", "familyFriendly", {"yes"}),
        ("it isn't suitable for kids", "familyFriendly", {"no"}),
        ("not expensive, and child friendly", "familyFriendly", {"yes"}),
        ("adults only", "familyFriendly", {"no"}),
        ("in the centre of the city", "area", {"city centre"}),
        ("by the river", "area", {"riverside"}),
        ("a coffee shop near Café Rouge", "eatType", {"coffee shop"}),
        ("burgers and French fries", "food", {"Fast food"}),
        ("the mill near cafe rouge", "near", {"Café Rouge"}),
        ("it is a place", "food", set()),
    ],
)
def test_values_that_a_text_realises(examples: list[Example], text: str, slot: str, values: set[str]) -> None:
    assert SlotMatcher(examples).values(text)[slot] == values


def test_missing_and_wrong_slots_cost_the_same(examples: list[Example]) -> None:
    matcher, slots = SlotMatcher(examples), examples[0].slots
    assert matcher.counts(ROWS[0][1], slots) == (4, 0, 0)
    assert matcher.counts("The Mill is a pub near Café Rouge.", slots) == (3, 1, 0)
    assert matcher.counts("The Mill is a cheap French pub near Café Rouge.", slots) == (4, 0, 1)
    assert matcher.f1("The Mill is a cheap French pub near Café Rouge.", slots) == pytest.approx(8 / 9)
    assert matcher.f1("", slots) == 0.0


def test_a_place_may_be_name_and_neighbour_and_every_place_a_restaurant() -> None:
    assert wrong_values("near", {"Ranch"}, {"name": "Ranch"}) == set()
    assert wrong_values("eatType", {"pub", "restaurant"}, {"eatType": "pub"}) == set()
    assert wrong_values("priceRange", {"cheap", "less than £20"}, {"priceRange": "cheap"}) == set()
    assert wrong_values("food", {"French"}, {}) == {"French"}


def test_the_matcher_is_measured_on_human_references(examples: list[Example]) -> None:
    matcher = SlotMatcher(examples)
    accuracy = matcher_accuracy(examples, matcher)
    assert accuracy["all"] == {"slots": 20, "recall": 1.0, "wrong": 0.0}
    assert foreign_share(examples, matcher) == 0.0
    swapped = [examples[0]._replace(references=examples[1].references)]
    assert matcher_accuracy(swapped, matcher)["food"]["recall"] == 0.0
    assert foreign_share([*swapped, *examples[1:]], matcher) > 0


# reward


def test_the_reward_is_half_agreement_and_half_coverage(examples: list[Example]) -> None:
    reward = TextReward(examples, examples)
    best, other = reward.scores([ROWS[0][1], ROWS[0][1]], [0, 1])
    assert best.reward == mix(best.cider, 1.0) == pytest.approx(0.5 * (1 - math.exp(-best.cider / 2)) + 0.5)
    assert best.reward > other.reward
    counter = RewardCounter()
    function = reward_function(reward, counter)
    values = function(completions=[ROWS[0][1]], completion_ids=[[1, 2, 3]], example=[0], prompts=["…"])
    assert values == [best.reward]
    assert (counter.calls, counter.tokens, counter.take_mean(), counter.take_mean()) == (1, 3, best.reward, None)


def test_the_number_of_words_is_scored() -> None:
    scorer = WordsScorer([WordsExample("…", 4)])
    texts = ["one two three four", "one two three", "one\n two  three four five.", "", "word " * 9]
    scores = scorer.scores(texts, [0] * len(texts))
    assert [score.reward for score in scores] == [1.0, 0.75, 0.75, 0.0, 0.0]
    assert [score.exact for score in scores] == [1.0, 0.0, 0.0, 0.0, 0.0]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    assert (
        exact_words(chats, [4] * len(texts)) == exact_words(texts, [4] * len(texts)) == [one.reward for one in scores]
    )


def test_topics_of_the_development_set_are_new() -> None:
    assert not set(TOPICS) & set(DEV_TOPICS)
    assert len({str(row) for row in rows(TOPICS)}) == len(TOPICS) * len(LENGTHS)


# maximum likelihood

TINY = PretrainingSettings(
    vocab_size=300,
    hidden_size=16,
    layers=2,
    heads=2,
    intermediate_size=24,
    prompts=2,
    references=1,
    epochs=2,
    updates_between_evaluations=3,
)


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
def test_sharing_prompts_changes_no_likelihood(examples: list[Example], tokenizer: Any, kind: Any) -> None:
    model = make_model(replace(TINY, kind=kind), tokenizer)
    groups = tokenized(examples, tokenizer)
    together = LOSSES[kind](model, groups)
    apart = [LOSSES[kind](model, [Group(group.prompt, [one])]) for group in groups for one in group.references]
    assert together.tokens == sum(loss.tokens for loss in apart)
    torch.testing.assert_close(together.total, torch.stack([loss.total for loss in apart]).sum())
    if kind == "causal":
        prompt, reference = groups[0].prompt, groups[0].references[0]
        scores = model(torch.tensor([prompt + reference])).logits.log_softmax(-1)[0]
        plain = -sum(scores[len(prompt) + i - 1, token] for i, token in enumerate(reference))
        torch.testing.assert_close(plain, apart[0].total)


def test_an_epoch_has_every_reference_once(examples: list[Example], tokenizer: Any) -> None:
    groups = tokenized(examples, tokenizer)
    batches = batches_of_epoch(groups, TINY, 0)
    seen = sorted(str(one) for batch in batches for group in batch for one in group.references)
    assert seen == sorted(str(one) for group in groups for one in group.references)
    assert batches_of_epoch(groups, TINY, 0) == batches != batches_of_epoch(groups, TINY, 1)


def test_pretraining_that_is_stopped_ends_with_the_same_weights(data: Path, tmp_path: Path) -> None:
    files = data / "trainset.csv.gz", data / "devset.csv"
    whole = pretraining.pretrain(*files, tmp_path / "whole", TINY, lambda line: None)

    def stop(line: str) -> None:
        if line.startswith("update"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretraining.pretrain(*files, tmp_path / "parts", TINY, stop)
    parts = pretraining.pretrain(*files, tmp_path / "parts", TINY, lambda line: None)
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()


# runs


@pytest.fixture
def comparison(data: Path, tmp_path: Path) -> Comparison:
    files = data / "trainset.csv.gz", data / "devset.csv"
    model = pretraining.pretrain(*files, tmp_path / "causal", TINY, lambda line: None)
    base = RunSettings(
        "", 0.0, 0, 60.0, model, *files, prompts=2, completions=2, max_completion_length=4, evaluations=2,
        most_updates=2,
    )  # fmt: skip
    return Comparison(tmp_path, base, ("TRL RLOO", "TRL GRPO"), (1e-4, 1e-3), (0, 1), 60.0, 60.0)


@pytest.mark.filterwarnings("default")  # of the libraries that are compared
def test_the_comparison_chooses_rates_trains_and_reports(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")

    def run_here(settings: RunSettings, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = runs.run_file(folder, settings)
        if not path.exists():
            runs.run(settings, path)
        return path

    monkeypatch.setattr(compare, "run_in_process", run_here)
    chosen = compare.choose_rates(comparison, lambda line: None)
    assert set(chosen) == {"TRL RLOO", "TRL GRPO"}
    assert set(chosen.values()) <= {1e-4, 1e-3}
    lines: list[str] = []
    compare.train(comparison, "causal", lines.append)
    assert len(lines) == 4
    record = runs.evaluations(runs.run_file(comparison.folder("causal"), comparison.runs("causal")[0]))
    assert [one["updates"] for one in record] == [0, 2]
    assert record[-1]["reward_calls"] == 2 * 2 * 2
    assert 8 <= record[-1]["tokens"] <= 2 * 2 * 2 * 4
    folder = comparison.out / "report"
    report.write_report(comparison, folder)
    assert {"table.md", "report.json", "causal.png", "causal-greedy.png"} <= {one.name for one in folder.iterdir()}
    assert "TRL RLOO" in (folder / "table.md").read_text("utf-8")


def test_rates_are_chosen_before_long_runs(comparison: Comparison) -> None:
    with pytest.raises(InputError, match="run the step choose-rates first"):
        comparison.runs("causal")


# summary


def evaluation(seconds: float, reward: float) -> dict[str, Any]:
    scores = {"reward": reward, "cider": 1.0, "coverage": 1.0}
    return {
        "seconds": seconds,
        "tokens": 10 * seconds,
        "reward_calls": seconds,
        "updates": 1,
        "sampled": scores,
        "greedy": scores,
    }


def test_means_intervals_and_the_cost_to_reach_a_reward() -> None:
    seeds = [[evaluation(0, 0.0), evaluation(10, 0.4), evaluation(20, 0.5)] for _ in range(2)]
    seeds[1][1] = evaluation(10, 0.6)
    one = MethodSummary("m", seeds)
    assert [reward.mean for reward in one.rewards("greedy")] == pytest.approx([0.0, 0.5, 0.5])
    assert one.rewards("greedy")[1].half_width == pytest.approx(12.7062 * 0.1, rel=1e-4)
    assert one.cost_to_reach(0.25, "sampled", "tokens") == pytest.approx(50)
    assert one.cost_to_reach(0.0, "sampled", "seconds") == 0
    assert one.cost_to_reach(0.7, "sampled", "seconds") is None
    assert Estimate.of([0.5]) == Estimate(0.5, None)
