# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
"""Calls of the public names with arguments that cannot be right: each is an error of ours, in one clear sentence.

Types are not checked here, as in a user's program.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from corollout import (
    Columns,
    CorolloutError,
    MLETrainer,
    Noise,
    Reward,
    Run,
    Schedule,
    Trainer,
    estimate,
    estimate_gradient,
    evaluate,
    fit,
    make_estimator,
    pretrain,
    probe_variance,
    pseudo_actions,
)
from corollout.events import TrainingWarning
from corollout.loggers import Lines, TensorBoard, make_logger, together
from corollout.policies import score_by_steps
from corollout.training.mle import LearningRateDecay, ScheduledSampling
from corollout.training.regularisation import KL
from tests.support.small_task import EOS, VOCAB, likeness, make_data, make_engine, make_policy

pytestmark = pytest.mark.usefixtures("unchecked")
NAN = math.nan


def adam(policy: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(policy.parameters(), lr=0.01)


def trainer(**options: Any) -> Trainer:
    engine = options.pop("engine", None) or make_engine(make_policy())
    given = {"data": make_data(), "reward": likeness, "estimator": "rloo-2", **options}
    given.setdefault("optimizer", adam(engine.policy))
    return Trainer(engine, **given)


def teacher(**options: Any) -> MLETrainer:
    engine = options.pop("engine", None) or make_engine(make_policy())
    return MLETrainer(engine, **{"data": make_data(), "optimizer": adam(engine.policy), **options})


def updated(policy: nn.Module | None = None, **options: Any) -> None:
    """Make an update."""
    engine = make_engine(make_policy() if policy is None else policy, **options.pop("engine", {}))
    updates = options.pop("updates", 1)
    trainer(engine=engine, batch_size=4, **options).train(updates=updates)


class Altered(nn.Module):
    """The usual policy with one of its methods replaced."""

    def __init__(self, **methods: Callable[..., Any]):
        super().__init__()
        self.inner = make_policy()
        self.methods = methods

    def __getattr__(self, name: str) -> Any:
        if name in ("encode", "start", "step", "score"):
            method = self.methods.get(name)
            return getattr(self.inner, name) if method is None else lambda *given: method(self.inner, *given)
        return super().__getattr__(name)


class InPlace(nn.Module):
    """A model whose step writes the new state over the old one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.output = nn.Embedding(VOCAB, 4), nn.GRUCell(4, 4), nn.Linear(4, VOCAB)

    def encode(self, context: torch.Tensor) -> torch.Tensor:
        return self.embedding(context).mean(1)

    def start(self, memory: torch.Tensor) -> torch.Tensor:
        return memory

    def step(self, state: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state.copy_(self.cell(self.embedding(tokens), state))
        return self.output(state), state

    def score(self, memory: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return score_by_steps(self, memory, tokens)


def by_batch(policy: Any, context: Any) -> Any:
    """Normalised over the batch."""
    return {name: part - part.mean(0) for name, part in policy.encode(context).items()}


def frozen() -> nn.Module:
    return make_policy().requires_grad_(False)


def skipping(sequences: list[list[int]]) -> list[None]:
    return [None] * len(sequences)


def batch() -> Any:
    return make_data().batch([0, 1])


def fitted(folder: Path, **options: Any) -> Any:
    def evaluation() -> dict[str, float]:
        return {"score": 0.0}

    with Run.create(folder / "run", {}) as run:
        given = {"trainer": trainer(), "run": run, "schedule": Schedule("updates", 2, 1), "evaluate": evaluation}
        return fit(**{**given, "metric": "score", **options})


LOGITS = torch.zeros(2, 3)
PI = torch.full((2, 3), 1 / 3)
POLICY = make_policy()

CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    # Engine
    "a model that is none": (
        lambda: make_engine(nn.Linear(2, 2)),
        "a policy needs the methods encode, start, step and",
    ),
    "no model": (lambda: make_engine(None), "NoneType has no encode and no start and no step and no score"),
    "bos as text": (
        lambda: make_engine(make_policy(), bos="<s>"),
        "bos must be a whole number and at least 0, not '<s>'",
    ),
    "negative eos": (lambda: make_engine(make_policy(), eos=-1), "eos must be a whole number and at least 0, not -1"),
    "eos None": (lambda: make_engine(make_policy(), eos=None), "eos must be a whole number and at least 0, not None"),
    "no length": (lambda: make_engine(make_policy(), max_length=0), "max_length must be a whole number and at least 1"),
    "half a length": (lambda: make_engine(make_policy(), max_length=2.5), "max_length must be a whole number"),
    "cold": (lambda: make_engine(make_policy(), temperature=0), "temperature must be a positive number, not 0"),
    "no mode": (lambda: make_engine(make_policy(), compile_step="fast"), "compile_step is a mode of torch.compile"),
    # Generation
    "context None": (lambda: make_engine(make_policy()).generate(None), "a context is a tensor with one row for each"),
    "context of another kind": (
        lambda: make_engine(make_policy()).generate(torch.zeros(2, 3)),
        "policy.encode failed for a tensor of shape",
    ),
    "another mode": (lambda: generate(mode="best"), "mode must be one of sample, greedy, beam, set, not 'best'"),
    "seed as text": (lambda: generate(seed="x"), "the seed must be a whole number, not 'x'"),
    "top_k 0": (lambda: generate(top_k=0), "top_k must be a whole number and at least 1, not 0"),
    "top_p NaN": (lambda: generate(top_p=NAN), "top_p must be above 0 and at most 1, not nan"),
    "too few prompts": (lambda: generate(prompts=[[1]]), "there are 1 prompts for 8 contexts"),
    "prompts as a number": (lambda: generate(prompts=3), "prompts must be a list of token ids for each context"),
    "one prompt for all": (lambda: generate(prompts=[2] * 8), "prompts must be a list of token ids for each context"),
    "prompts as text": (lambda: generate(prompts=["2"] * 8), "prompts must be a list of token ids for each context"),
    # Columns
    "no context": (lambda: Columns(answer=[1]), "a data set needs a column named 'context'; it has \\['answer'\\]"),
    "lengths": (lambda: Columns(context=[1, 2], answer=[1]), "columns of a data set must have the same length"),
    "a number as a column": (lambda: Columns(context=3), "the column 'context' must be a tensor, an array or a list"),
    "text as a column": (lambda: Columns(context="abc"), "the column 'context' must be a tensor, an array or a list"),
    "ids twice": (lambda: Columns(context=[1, 2], ids=[3, 3]), "ids must be 2 different whole numbers"),
    "ids as text": (lambda: Columns(context=[1, 2], ids=["a", "b"]), "ids must be 2 different whole numbers"),
    "position outside": (lambda: make_data().batch([99]), "there is no example 99: the data set has 8, counted from 0"),
    "negative position": (lambda: make_data().batch([-1]), "there is no example -1"),
    "positions as text": (lambda: make_data().batch("ab"), "a batch needs the positions of its examples"),
    "negative number": (lambda: make_data().first(-1), "the number of examples must be a whole number and at least 0"),
    "batches of none": (
        lambda: next(make_data().epoch(0, Noise(0))),
        "batch_size must be a whole number and at least 1",
    ),
    "data None": (lambda: trainer(data=None), "data must be Columns, a dict of columns, or a list of examples"),
    "data tensor": (lambda: trainer(data=torch.zeros(2, 1)), "not Tensor tensor\\(\\[\\[0.\\], \\[0.\\]\\]\\)"),
    "data text": (lambda: trainer(data="train.csv"), "data must be Columns, a dict of columns, or a list of examples"),
    "no data": (lambda: trainer(data=[]), "data must be Columns, .*, not an empty list"),
    "uneven examples": (
        lambda: trainer(data=[{"context": 1}, {"contexts": 2}]),
        "every example must be a dict with the same names",
    ),
    "empty columns": (lambda: trainer(data={"context": []}), "training needs at least one example"),
    # Reward
    "reward None": (lambda: trainer(reward=None), "reward must be a function that takes sequences"),
    "negative cache": (lambda: Reward(likeness, cache=-1), "cache must be a whole number and at least 0, not -1"),
    "half a worker": (lambda: Reward(likeness, workers=0.5), "workers must be a whole number and at least 0, not 0.5"),
    "time-out alone": (lambda: Reward(likeness, timeout=1.0), "a time-out needs worker processes"),
    "time-out as text": (
        lambda: Reward(likeness, workers=1, timeout="1 s"),
        "timeout must be a positive number of seconds",
    ),
    "lambda in workers": (lambda: Reward(lambda s: s, workers=1), "cannot be sent to worker processes"),
    "batches of 0": (lambda: Reward(likeness, batch_size=0), "batch_size must be a whole number and at least 1, not 0"),
    "too few examples": (lambda: Reward(likeness)([[1]], [], {}), "got 0 entries of 'examples' for 1 sequences"),
    "a column None": (lambda: Reward(likeness)([[1]], [0], {"target": None}), "needs a list of 'target', not None"),
    "reward NaN": (lambda: updated(reward=lambda s: [NAN] * len(s)), "returned nan .* return a finite number"),
    "reward of one number": (lambda: updated(reward=lambda s: 1.0), "returned a float"),
    "reward of another column": (lambda: updated(reward=lambda s, answer: s), "requires the parameter `answer`"),
    "rewards None": (
        lambda: updated(reward=skipping, updates=3),
        "returned None for all sequences of the first 3 updates",
    ),
    # Estimators
    "estimator None": (
        lambda: trainer(estimator=None),
        "estimator must be an Estimator or the name of one, .* not None",
    ),
    "estimator class": (lambda: trainer(estimator=Trainer), "estimator must be an Estimator or the name of one"),
    "estimator unknown": (lambda: make_estimator("arms"), "there is no estimator 'arms'"),
    "name None": (lambda: make_estimator(None), "the name of an estimator must be text such as 'rloo-4', not None"),
    "k as text": (lambda: make_estimator("rloo", k="4"), "k must be a whole number and at least 0, not '4'"),
    "one sample": (lambda: make_estimator("rloo-1"), "needs samples ≥ 2, not 1"),
    "another option": (lambda: make_estimator("arsm", tempo=3), "arsm has no option 'tempo'"),
    "logits in a list": (lambda: estimate_gradient([[0.0]], len), "logits must be a tensor, not a list"),
    "flat logits": (lambda: estimate_gradient(torch.zeros(3), len), "logits must be of shape \\[rows, V\\]"),
    "logits NaN": (lambda: estimate_gradient(LOGITS * NAN, len), "the logits of row 0 contain NaN"),
    "no reward": (lambda: estimate_gradient(LOGITS, None), "reward must be a function of actions and rows, not None"),
    "reward of nothing": (lambda: estimate_gradient(LOGITS, lambda a, r: None), "the reward must return a tensor of"),
    "short reward": (lambda: estimate_gradient(LOGITS, lambda a, r: a[:1].float()), "must have the shape"),
    "gradient by None": (
        lambda: estimate_gradient(LOGITS, len, None),
        "estimator must be an Estimator or the name of one",
    ),
    "references as floats": (lambda: pseudo_actions(LOGITS, PI, torch.zeros(1)), "references must be actions"),
    "references outside": (
        lambda: pseudo_actions(LOGITS, PI, torch.tensor([3])),
        "references must be actions from 0 to 2",
    ),
    "other pi": (lambda: pseudo_actions(LOGITS, PI[:1], torch.tensor([0])), "pi must have the shape of the logits"),
    "pi None": (lambda: pseudo_actions(LOGITS, None, torch.tensor([0])), "pi must be a tensor, not None"),
    # Trainers
    "a policy as engine": (
        lambda: Trainer(make_policy(), make_data(), likeness, "sc", None),
        "engine must be an Engine",
    ),
    "optimizer None": (lambda: trainer(optimizer=None), "optimizer must be one of torch.optim"),
    "optimizer of another model": (
        lambda: trainer(optimizer=adam(make_policy())),
        "none of the optimizer's parameters is a parameter of the engine's",
    ),
    "a frozen model": (
        lambda: trainer(engine=make_engine(frozen()), optimizer=adam(make_policy())),
        "no parameter of the policy requires",
    ),
    "an optimizer with a closure": (
        lambda: trainer(optimizer=torch.optim.LBFGS(POLICY.parameters()), engine=make_engine(POLICY)),
        "LBFGS computes its loss several times",
    ),
    "batch size 0": (lambda: trainer(batch_size=0), "batch_size must be a whole number and at least 1, not 0"),
    "batch size None": (lambda: trainer(batch_size=None), "batch_size must be a whole number and at least 1, not None"),
    "norm 0": (lambda: trainer(max_grad_norm=0), "max_grad_norm must be a positive number or None, not 0"),
    "norm as text": (lambda: trainer(max_grad_norm="1"), "max_grad_norm must be a positive number or None, not '1'"),
    "seed None": (lambda: trainer(seed=None), "the seed must be a whole number, not None"),
    "no device": (lambda: trainer(device="gpu"), "there is no device 'gpu': choose cpu, cuda"),
    "no GPU": (lambda: trainer(device="cuda:99"), "cannot compute on the device 'cuda:99'"),
    "another clock": (lambda: trainer(clock="sun"), "clock must be 'wall' or 'cpu', not 'sun'"),
    "events to None": (lambda: trainer(on_event=None), "on_event must be a function of an Event, not None"),
    "decay 1": (
        lambda: trainer(variance_decay=1.0),
        "the decay of the running variance must be in \\[0, 1\\), not 1.0",
    ),
    "probes as text": (lambda: trainer(probes="rloo-8"), "probes must be a list of names of estimators, not 'rloo-8'"),
    "probe_every": (lambda: trainer(probe_every=-1), "probe_every must be a whole number and at least 0, not -1"),
    "micro_batch": (lambda: trainer(micro_batch=0.5), "micro_batch must be at least 1 context"),
    "accumulate": (lambda: trainer(accumulate=0), "accumulate must be a whole number and at least 1, not 0"),
    "accumulate as text": (
        lambda: trainer(accumulate="2"),
        "accumulate must be a whole number and at least 1, not '2'",
    ),
    "average of text": (lambda: trainer(ema_decay="0.9"), "ema_decay must be a number in \\[0, 1\\), not '0.9'"),
    "imitation of text": (lambda: trainer(mle_weight="1"), "mle_weight must be 0 or positive, not '1'"),
    "imitation NaN": (lambda: trainer(mle_weight=NAN), "mle_weight must be 0 or positive, not nan"),
    "imitation of nothing": (lambda: trainer(mle_weight=1, mle_data=3), "data must be Columns, a dict of columns"),
    "weights of one reward": (lambda: trainer(reward_weights=[1.0]), "reward_weights are for several rewards"),
    "weights as a number": (
        lambda: trainer(reward=[likeness], reward_weights=2),
        "reward_weights must be a list of numbers, not 2",
    ),
    "weight of text": (
        lambda: trainer(reward=[likeness], reward_weights=["1"]),
        "the weight of reward 'likeness' must be a finite number, not '1'",
    ),
    "rewards of nothing": (lambda: trainer(reward=[None]), "a reward must be a function or a Reward, not None"),
    "samples_every": (lambda: trainer(samples_every=0.5), "samples_every must be a whole number and at least 0"),
    "decode": (lambda: trainer(decode="abc"), "decode must be a function of token ids, or the names of all tokens"),
    "scheduler": (lambda: trainer(scheduler="cosine"), "scheduler must be one of torch.optim.lr_scheduler"),
    "scheduler with a metric": (
        lambda: trainer(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(adam(POLICY))),
        "ReduceLROnPlateau waits for evaluations",
    ),
    "kl as text": (lambda: trainer(kl="0.1"), "kl must be a coefficient, or a KL with a target"),
    "entropy NaN": (lambda: trainer(entropy=NAN), "entropy must be a finite number, not nan"),
    "reference": (lambda: trainer(reference=nn.Linear(1, 1), kl=0.1), "the reference, a Linear, is not a policy"),
    "negative KL": (lambda: KL(-1.0), "the coefficient of KL must be 0 or positive, not -1.0"),
    "target of KL": (lambda: KL(0.1, target="5"), "the target of KL must be positive, not '5'"),
    "no end": (lambda: trainer().run(), "say when to stop: updates, epochs, tokens or seconds"),
    "updates NaN": (lambda: trainer().run(updates=NAN), "updates must be a number, 0 or more, not nan"),
    "updates as text": (lambda: trainer().train(updates="10"), "updates must be a number, 0 or more, not '10'"),
    # What the first update shows
    "eos outside": (lambda: updated(engine={"eos": VOCAB}), f"eos = {VOCAB} is not in the vocabulary"),
    "bos outside": (lambda: updated(engine={"bos": 99}), "policy.step failed for bos = 99: IndexError"),
    "logits only": (
        lambda: updated(Altered(step=lambda p, *given: p.step(*given)[0])),
        "must return a pair, .* it returned logits only",
    ),
    "step None": (lambda: updated(Altered(step=lambda p, *given: None)), "it returned a NoneType"),
    "encode fails": (
        lambda: updated(Altered(encode=lambda p, c: c.nothing)),
        "policy.encode failed for a tensor of shape",
    ),
    "score fails": (lambda: updated(Altered(score=lambda p, m, t: 1 / 0)), "policy.score failed: ZeroDivisionError"),
    "score of a list": (lambda: updated(Altered(score=lambda p, m, t: [1])), "policy.score must return logits"),
    "rows of a batch": (lambda: updated(Altered(encode=by_batch)), "the policy's rows depend on their batch"),
    "changing states": (
        lambda: updated(Altered(start=started, step=in_place, score=counted), estimator="reinforce"),
        "policy.step changes its state in place",
    ),
    "changing copies of states": (lambda: updated(InPlace(), estimator="rloo-4"), "step changes its state in place"),
    "no graph": (
        lambda: updated(Altered(score=lambda p, *given: p.score(*given).detach())),
        "policy.score returned logits without a gradient",
    ),
    "changing what the gradient needs": (
        lambda: estimate(make_engine(InPlace()), batch(), likeness, "sc", Noise(0)).backward(),
        "changes a tensor in place that the gradient needs",
    ),
    # Maximum likelihood
    "no graph of targets": (
        lambda: teacher(engine=make_engine(Altered(score=lambda p, *given: p.score(*given).detach()))).train(updates=1),
        "policy.score returned logits without a gradient",
    ),
    "no target": (lambda: teacher(target="answer"), "the data set has no column 'answer' to learn from"),
    "average 1": (lambda: teacher(ema_decay=1), "ema_decay must be a number in \\[0, 1\\), not 1"),
    "decay as a number": (lambda: teacher(decay=0.5), "decay must be a LearningRateDecay or None, not 0.5"),
    "growth": (lambda: LearningRateDecay(2.0), "the factor of a decay must be above 0 and at most 1, not 2.0"),
    "every 0": (lambda: LearningRateDecay(0.5, 0), "the epochs between decays must be a whole number and at least 1"),
    "sampling": (lambda: ScheduledSampling(1.5), "the highest probability must be a number in \\[0, 1\\], not 1.5"),
    "targets as text": (
        lambda: teacher(data={"context": torch.ones(1, 3).long(), "target": ["ab"]}).train(updates=1),
        "a target must be a list of token ids",
    ),
    "targets outside": (
        lambda: teacher(data={"context": torch.ones(1, 3).long(), "target": [[1, 77]]}).train(updates=1),
        "policy.hidden_states failed for target tokens up to 77: IndexError",
    ),
    "pretrain": (
        lambda: pretrain(make_engine(make_policy()), make_data(), None),
        "optimizer must be one of torch.optim",
    ),
    # Estimates, evaluations, probes
    "data as batch": (lambda: estimated(batch=make_data()), "batch must be a Batch, as data.batch"),
    "no batch": (lambda: estimated(batch=make_data().batch([])), "the batch is empty"),
    "noise as a number": (lambda: estimated(noise=3), "noise must be a Noise, as in Noise\\(seed\\), not 3"),
    "noise of text": (lambda: Noise("x"), "the seed must be a whole number, not 'x'"),
    "evaluation mode": (lambda: evaluated(mode="beam"), "mode must be 'greedy' or 'sample', not 'beam'"),
    "evaluation size": (lambda: evaluated(batch_size=-1), "batch_size must be a whole number and at least 1, not -1"),
    "evaluation device": (lambda: evaluated(device="tpu"), "device 'tpu'"),
    "evaluation of a policy": (lambda: evaluate(make_policy(), make_data(), likeness), "engine must be an Engine"),
    "evaluation of nothing": (lambda: evaluated(data=make_data().first(0)), "there is no example to evaluate on"),
    "one estimate": (lambda: probed(count=1), "a variance needs at least 2 estimates, not 1"),
    "probes None": (lambda: probed(count=None), "a variance needs at least 2 estimates, not None"),
    "probe of data": (lambda: probed(batch=make_data()), "batch must be a Batch"),
    # Runs
    "another unit": (lambda: Schedule("steps", 10, 1), "the unit of a schedule must be one of updates, epochs, tokens"),
    "no updates": (lambda: Schedule("updates", 0, 1), "training for 0 updates .* is not possible"),
    "total NaN": (lambda: Schedule("updates", NAN, 1), "training for nan updates .* is not possible"),
    "every as text": (lambda: Schedule("updates", 10, "1"), "is not possible: both must be positive"),
    "patience 0": (
        lambda: Schedule("updates", 10, 1, patience=0),
        "patience must be a whole number and at least 1, not 0",
    ),
    "saving": (
        lambda: Schedule("updates", 10, 1, save_seconds=-1),
        "save_seconds must be a number of seconds, 0 or more",
    ),
    "run None": (lambda: Run.open(None), "the directory of a run must be a path, not None"),
    "run nowhere": (lambda: Run.open("nowhere"), "nowhere is not a run directory"),
    "settings as text": (lambda: Run.create("x", "settings"), "the settings of a run must be a dict"),
    "settings None": (lambda: Run.create("x", {"seed": None}), "these settings cannot be written as TOML"),
    # Loggers
    "logger None": (
        lambda: make_logger(None),
        "the name of a logger must be text such as 'wandb:my-project', not None",
    ),
    "logger unknown": (lambda: make_logger("paper"), "there is no logger 'paper'"),
    "no folder": (lambda: TensorBoard(None), "the folder of event files must be a path, not None"),
    "lines": (lambda: Lines(seconds=-1), "seconds must be a number of seconds, 0 or more, not -1"),
    "together": (lambda: together(print, None), "callback 1 must be a function of an Event, not None"),
}


def generate(**options: Any) -> Any:
    return make_engine(make_policy()).generate(make_data().columns["context"], **options)


def estimated(**options: Any) -> Any:
    given = {"batch": batch(), "reward": likeness, "estimator": "sc", "noise": Noise(0), **options}
    return estimate(make_engine(make_policy()), **given)


def evaluated(**options: Any) -> Any:
    return evaluate(make_engine(make_policy()), **{"data": make_data(), "reward": likeness, **options})


def probed(**options: Any) -> Any:
    given = {"batch": batch(), "reward": likeness, "estimator": "sc", "count": 2, "noise": Noise(0), **options}
    return probe_variance(make_engine(make_policy()), **given)


def started(policy: Any, memory: Any) -> Any:
    return {
        "inner": policy.start(memory),
        "count": torch.zeros(len(next(iter(memory.values()))), 1, dtype=torch.float64),
    }


def counted(policy: Any, memory: Any, tokens: Any) -> Any:
    return endless(policy.score(memory, tokens)) * torch.arange(1, tokens.shape[1] + 1)[:, None]


def endless(logits: torch.Tensor) -> torch.Tensor:
    """No sequence ends, so that the engine keeps the states of all rows as they are."""
    return logits.index_fill(-1, torch.tensor([EOS]), -100.0)


def in_place(policy: Any, state: Any, tokens: Any) -> Any:
    logits, inner = policy.step(state["inner"], tokens)
    state["count"] += 1
    return endless(logits) * state["count"], {"inner": inner, "count": state["count"]}


@pytest.mark.filterwarnings("ignore::corollout.events.TrainingWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_is_one_clear_sentence(name: str):
    call, message = CALLS[name]
    with pytest.raises(CorolloutError) as error:
        call()
    said = str(error.value)
    assert re.search(message, said), said
    assert "\n" not in said
    assert len(said) < 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainer": make_policy()}, "trainer must be a Trainer or an MLETrainer, not a RecurrentPolicy"),
        ({"run": None}, "run must be a Run, as Run.create.* or a directory, not None"),
        ({"schedule": 10}, "schedule must be a Schedule, as in"),
        ({"evaluate": {"score": 1.0}}, "evaluate must be a function that returns named numbers"),
        ({"metric": None}, "metric must be the name of a number that evaluate returns, not None"),
        ({"metric": "reward"}, "evaluate must return a dict with a number for the metric 'reward'"),
    ],
)
def test_bad_calls_of_fit(tmp_path: Path, options: dict[str, Any], message: str):
    with pytest.raises(CorolloutError, match=message):
        fitted(tmp_path, **options)


def test_bad_records(tmp_path: Path):
    with Run.create(tmp_path / "run", {}) as run:
        for kind, record, message in (
            (None, {}, "the kind of a record must be text"),
            ("update", [1], "a record must be a dict"),
            ("update", {"kind": 1}, "must not have an entry 'kind'"),
            ("update", {"policy": object()}, "a record must be what JSON can hold"),
        ):
            with pytest.raises(CorolloutError, match=message):
                run.log(kind, record)
    assert run.records() == []


def test_what_the_first_update_warns_of():
    """A trainer that nobody listens to issues Python's warnings."""
    policy = make_policy()
    with torch.no_grad():
        policy.output.bias[EOS] = -100.0
    with pytest.warns(TrainingWarning, match="all sequences of the first update were cut at the maximal length"):
        updated(policy)
    with pytest.warns(TrainingWarning, match="all rewards of the first update were None"):
        updated(reward=skipping)


def test_data_may_be_a_dict_or_a_list_of_examples():
    data, rewards = make_data(), []
    columns = dict(data.columns)
    examples = [{name: column[i] for name, column in columns.items()} for i in range(len(data))]
    array = {**columns, "context": columns["context"].numpy()}
    for given in (Columns(**columns), columns, examples, array):
        made = trainer(data=given, batch_size=4)
        rewards.append(made.train(updates=2).history["reward"])
        assert torch.equal(made.data.columns["context"], columns["context"])
        assert evaluate(made.engine, given, likeness) == evaluate(made.engine, Columns(**columns), likeness)
    assert rewards == [rewards[0]] * 4


def test_training_in_one_call():
    made, other = trainer(batch_size=4), trainer(batch_size=4)
    result = made.train(updates=3)
    expected = list(other.run(updates=3))
    assert result.history["reward"] == [metrics.reward for metrics in expected]
    assert (result.made, result.updates, result.epochs, result.tokens) == (3, 3, 1, expected[-1].tokens)
    assert result.last is not None
    assert result.last.reward == expected[-1].reward
    assert re.match(r"3 updates, [\d,]+ tokens, .* seconds, reward .* → .*, gradient norm", str(result))
    again = made.train(updates=3)
    assert (again.made, again.last, again.updates) == (0, None, 3)
    assert "no update was made" in str(again)
    losses = teacher(batch_size=4).train(epochs=1)
    assert len(losses.history["loss"]) == 2
