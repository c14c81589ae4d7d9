"""Samples of a training: what they say is true of the estimate, they survive kills, and cost nothing when off."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corollout.errors import InputError, Interrupted
from corollout.events import Event
from corollout.noise import Noise
from corollout.training import Run, Schedule, estimate, fit
from corollout.training.metrics import TIMED
from corollout.training.samples import BRANCHES, CONTEXTS, SEQUENCES, Renderer, take_samples
from corollout.trees import balanced_tree
from tests.support.small_task import (
    EOS,
    VOCAB,
    likeness,
    make_data,
    make_engine,
    make_policy,
    make_trainer,
    make_tree_policy,
    weights,
)  # fmt: skip

NAMES = ["<eos>", "a", "b", "c", "d", "e"]


def samples_of(estimator: str, policy: Any = None, decode: Any = None, contexts: int = 6):
    """The samples of an estimate, and the estimate."""
    batch = make_data(contexts).batch(range(contexts))
    sample = estimate(make_engine(policy or make_policy()), batch, likeness, estimator, Noise(3))
    return take_samples(sample, batch, 7, Renderer(decode, (EOS,))), sample


@pytest.mark.parametrize(
    "estimator", ["arsm", "ars-2", "rloo-3", "sc", "mc-2", "vine-2", "set-3:baseline=fitted", "pairs"]
)
def test_samples_are_those_of_the_estimate(estimator: str):
    samples, sample = samples_of(estimator)
    assert (samples.update, samples.separator, len(samples.contexts)) == (7, " ", CONTEXTS)
    t, logits, gradient = sample.trajectories, sample.logits, sample.gradient
    row, branches, completed = 0, 0, sample.completed
    for position, context in enumerate(samples.contexts):
        assert context.example == 100 + position
        assert context.columns["target"] == make_data(6).columns["target"][position]
        for one in context.sequences:
            length = int(t.lengths[row])
            assert int(t.contexts[row]) == position
            assert one.tokens == t.tokens[row, :length].tolist()
            assert one.pieces == ["<end>" if token == EOS else str(token) for token in one.tokens]
            assert one.reward == pytest.approx(float(sample.rewards[row]), rel=1e-4)
            assert one.log_probability == pytest.approx(float(t.log_probs[row]), rel=1e-4)
            for step, token in enumerate(one.tokens):
                # A small step along the gradient changes the log-probability of the token by its credit.
                phi, g = logits[row, step], gradient[row, step]
                moved = [(phi + eps * g).log_softmax(0)[token] for eps in (1e-6, -1e-6)]
                assert one.credit[step] == pytest.approx(float(moved[0] - moved[1]) / 2e-6, rel=1e-3, abs=1e-6)
            for branch in one.branches:
                assert branch.step < length
                text = [*one.pieces[: branch.step], branch.token, *branch.continuation.split()]
                tokens = [EOS if piece == "<end>" else int(piece) for piece in text]
                assert tokens in [row[:n].tolist() for row, n in zip(completed.tokens, completed.lengths, strict=True)]
            branches += one.branch_count
            row += 1
    assert row == int((t.contexts < CONTEXTS).sum())
    assert branches == int((t.contexts[sample.plan.branches.parent] < CONTEXTS).sum())
    assert any(any(one.credit) for context in samples.contexts for one in context.sequences)


def test_credit_in_a_tree():
    samples, sample = samples_of("bt-arsm", make_tree_policy(balanced_tree(VOCAB)))
    decisions, logits, gradient = sample.trajectories.decisions, sample.logits, sample.gradient
    assert decisions is not None
    moved = [decisions.log_probs(logits + eps * gradient) for eps in (1e-6, -1e-6)]
    expected = (moved[0] - moved[1]) / 2e-6
    one = samples.contexts[0].sequences[0]
    assert one.credit == pytest.approx(expected[0, : len(one.tokens)].tolist(), rel=1e-3, abs=1e-6)


def test_what_is_kept_is_limited_and_branches_are_those_that_matter():
    samples, _ = samples_of("rloo-12")
    assert all(len(context.sequences) == SEQUENCES for context in samples.contexts)
    samples, _ = samples_of("mc-20")
    for context in samples.contexts:
        for one in context.sequences:
            assert len(one.branches) == min(BRANCHES, one.branch_count)
            assert [branch.step for branch in one.branches] == sorted(branch.step for branch in one.branches)
    assert any(one.branch_count > BRANCHES for context in samples.contexts for one in context.sequences)


def test_text_of_tokens():
    """Names, a decoder whose pieces depend on what is before them, and one whose text does not grow."""
    assert Renderer(NAMES, (EOS,)).pieces([1, 2, 0], finished=True) == ["a", "b", "<eos>"]

    def words(ids: list[int]) -> str:
        return " ".join(NAMES[token] for token in ids).replace("c d", "CD")

    renderer = Renderer(words, (EOS,))
    assert renderer.pieces([1, 2, 5, 0], finished=True) == ["a", " b", " e", "<end>"]
    assert renderer.pieces([3, 4, 1]) == ["", "CD", " a"]
    assert renderer.pieces([], finished=False) == []
    assert renderer.departure([1, 2, 5, 0], 1, finished=True) == (" b", " e <end>")
    assert renderer.departure([1, 2, 0], 2, finished=True) == ("<end>", "")
    assert renderer.departure([1, 2, 3, 4], 2) == (" ", "CD")
    samples, _ = samples_of("arsm", decode=words)
    assert samples.separator == ""
    one = samples.contexts[0].sequences[0]
    assert "".join(one.pieces).removesuffix("<end>") == words([token for token in one.tokens if token != EOS])


def as_bytes(ids: list[int]) -> str:
    """Tokens that are bytes, as byte-level tokenizers decode them."""
    return bytes(ids).decode(errors="replace")


def test_characters_that_are_spread_over_tokens():
    renderer = Renderer(as_bytes, (EOS,))
    assert renderer.pieces(list("aé😀b".encode()), False) == ["a", "", "é", "", "", "", "😀", "b"]
    cut = [*b"a", *"😀".encode()[:2]]
    assert "".join(renderer.pieces(cut)) == as_bytes(cut) == "a\N{REPLACEMENT CHARACTER}"
    assert renderer.departure(list("aé".encode()), 1) == ("", "é")
    for seed in range(20):  # anything at all
        ids = torch.randint(1, 256, (30,), generator=torch.Generator().manual_seed(seed)).tolist()
        assert "".join(renderer.pieces(ids)) == as_bytes(ids)
    # The slow way gives the same.
    ids = list("Grüße, 世界 👋🏽!\n".encode())
    assert renderer._exact_pieces(ids, as_bytes(ids)) == renderer.pieces(ids)


def test_contexts_whose_rewards_are_equal_are_known():
    def reward(sequences: list[list[int]], examples: list[int]) -> list[float]:
        return [len(tokens) * (example == 100) for tokens, example in zip(sequences, examples, strict=True)]

    for estimator in ("rloo-3", "arsm", "reinforce"):
        batch = make_data(6).batch(range(4))
        sample = estimate(make_engine(make_policy()), batch, reward, estimator, Noise(3))
        samples = take_samples(sample, batch, 1, Renderer(None, (EOS,)), "NAME")
        assert samples.estimator == "NAME"
        assert samples.reward == pytest.approx(sample.mean_reward, rel=1e-4)
        # REINFORCE's baseline knows the rewards of other contexts.
        assert [context.teaches for context in samples.contexts] == [True, *[estimator == "reinforce"] * 3]
        for number, context in enumerate(samples.contexts):
            assert context.equal_rewards == (estimator != "reinforce" and number > 0)
            assert context.teaches == any(any(one.credit) for one in context.sequences)


def test_each_of_several_rewards_is_kept():
    def length(sequences: list[list[int]]) -> list[float | None]:
        return [len(tokens) if tokens else None for tokens in sequences]

    batch = make_data(6).batch(range(2))
    rewards = {"likeness": likeness, "length": length}
    sample = estimate(make_engine(make_policy()), batch, rewards, "rloo-3", Noise(3))
    for context in take_samples(sample, batch, 1, Renderer(None, (EOS,))).contexts:
        for one in context.sequences:
            count = len([token for token in one.tokens if token != EOS])
            assert one.rewards["length"] == (count or None)
            assert one.reward == pytest.approx((one.rewards["likeness"] or 0) + count, rel=1e-4)
            assert one.log_probability == pytest.approx(float(np.log(one.probability).sum()), rel=1e-3)
            assert all(0 <= value <= np.log(VOCAB) + 1e-6 for value in one.entropy)


def test_sequences_that_are_kept_are_those_that_differ_most():
    batch = make_data(6).batch(range(1))
    sample = estimate(make_engine(make_policy()), batch, likeness, "rloo-12", Noise(3))
    (context,) = take_samples(sample, batch, 1, Renderer(None, (EOS,))).contexts
    rewards = sample.own_rewards - sample.own_rewards.mean()
    kept = sorted(abs(one.reward - float(sample.own_rewards.mean())) for one in context.sequences)
    assert kept == pytest.approx(sorted(rewards.abs().tolist())[-SEQUENCES:], rel=1e-3)
    assert context.sequence_count == 12


def test_logits_exist_for_a_few_sequences_at_a_time(monkeypatch: pytest.MonkeyPatch):
    whole, sample = samples_of("arsm")
    sizes: list[int] = []
    plain = type(sample).logits_of
    monkeypatch.setattr("corollout.training.credit._LOGITS", 2 * sample.trajectories.tokens.shape[1] * VOCAB)
    monkeypatch.setattr(
        type(sample), "logits_of", lambda one, rows: sizes.append(rows.stop - rows.start) or plain(one, rows)
    )
    assert samples_of("arsm")[0].contexts[0] == whole.contexts[0]
    assert sizes
    assert max(sizes) == 2


@pytest.mark.parametrize(
    ("decode", "said"),
    [
        (lambda ids: ids[99], r"decode raised IndexError for the tokens \[\d"),
        (lambda ids: ids, "decode must return a string, not"),
        (["a", "b"], "decode has names of 2 tokens, but the policy has drawn token"),
    ],
)
def test_a_decoder_that_fails_is_a_sentence(decode: Any, said: str):
    with pytest.raises(InputError, match=said):
        list(make_trainer("rloo-4", samples_every=1, decode=decode).run(updates=3))


def test_arguments_that_make_no_sense():
    with pytest.raises(InputError, match="samples_every must be a whole number and at least 0, not -1"):
        make_trainer(samples_every=-1)
    with pytest.raises(InputError, match="decode must be a function of token ids, or the names"):
        Renderer("abc", (EOS,))


def test_samples_change_nothing_else_and_come_when_they_should():
    plain, events = make_trainer("arsm"), []
    expected = [asdict(metrics) for metrics in plain.run(updates=5)]
    watched = make_trainer("arsm", samples_every=2, decode=NAMES, on_event=events.append)
    metrics = [asdict(metrics) for metrics in watched.run(updates=5)]
    assert torch.equal(weights(plain.policy), weights(watched.policy))
    for one, other in zip(metrics, expected, strict=True):
        assert {name: one[name] for name in one.keys() - TIMED} == {name: other[name] for name in one.keys() - TIMED}
    assert [event.record["update"] for event in events if event.kind == "samples"] == [1, 2, 4]


def test_time_for_samples_is_not_counted(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]

    def slow(*arguments: Any) -> Any:
        clock[0] += 1000.0
        return take_samples(*arguments)

    monkeypatch.setattr("corollout.training.finetuning.take_samples", slow)
    trainer = make_trainer(samples_every=1)
    trainer.now = lambda: clock[0]
    list(trainer.run(updates=2))
    assert (trainer.seconds, clock[0]) == (0.0, 2000.0)


def test_a_run_keeps_samples_and_a_resumed_one_has_the_same(tmp_path: Path):
    def train(directory: Path, stop_at: int | None = None) -> Run:
        def on_event(event: Event) -> None:
            if event.kind == "samples" and event.record["update"] == stop_at:
                raise Interrupted("killed")

        trainer = make_trainer("arsm", samples_every=2)
        with Run.open(directory, resume=True) if directory.exists() else Run.create(directory, {}) as run:
            fit(trainer, run, Schedule("updates", 8, 3), lambda: {"score": 1.0}, "score", on_event=on_event)
        return Run.open(directory)

    whole = train(tmp_path / "whole")
    assert [record["update"] for record in whole.samples()] == [1, 2, 4, 6, 8]
    assert whole.records("samples") == []
    killed = tmp_path / "killed"
    with pytest.raises(Interrupted):
        train(killed, stop_at=8)  # after the checkpoint of update 6, with the record of update 8
    path = killed / "samples.jsonl"
    assert len(Run.open(killed).samples()) == 5
    path.write_bytes(path.read_bytes() + b'{"update": 9, "contexts": [')  # the last line of a killed process
    assert len(Run.open(killed).samples()) == 5
    assert train(killed).samples() == whole.samples()
    assert path.read_bytes() == (tmp_path / "whole" / "samples.jsonl").read_bytes()
    path.write_text("{}\n")
    with pytest.raises(InputError, match=r"samples\.jsonl, line 1 is damaged"):
        Run.open(killed).samples()


def test_without_samples_there_is_no_file(tmp_path: Path):
    with Run.create(tmp_path / "run", {}) as run:
        fit(make_trainer(), run, Schedule("updates", 2, 1), lambda: {"score": 1.0}, "score")
    assert not (tmp_path / "run" / "samples.jsonl").exists()
    assert run.samples() == []


def test_columns_that_json_cannot_hold_are_kept_as_text():
    data = make_data(12)
    data.columns = {
        **data.columns,
        "thing": [{1, 2}] * 12,
        "tensors": [[torch.zeros(1)]] * 12,
        "long": ["x" * 9999] * 12,
    }
    events: list[Event] = []

    def reward(sequences: list[list[int]], target: list[list[int]], finished: list[bool]) -> list[float]:
        return likeness(sequences, target, finished)

    next(make_trainer(data=data, reward=reward, samples_every=1, on_event=events.append).run(updates=1))
    columns = json.loads(json.dumps(events[0].record))["contexts"][0]["columns"]
    assert (columns["thing"], columns["tensors"]) == ("{1, 2}", "[tensor([0.])]")
    assert len(columns["long"]) < 700
