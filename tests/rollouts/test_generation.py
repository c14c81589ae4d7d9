"""``Engine.generate``: every mode, filters against a slow twin, prompts against sequences that go on from them."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.synchronisations import CONTEXTS, Case, cases
from corollout import Engine, InputError, Noise
from corollout.policies.protocol import evaluation_mode
from corollout.rollouts.generation import Filters
from corollout.types import Sampler

CASES = {case.name: case for case in cases()}
SOFTMAX = [case for case in CASES.values() if case.name != "captions, tree"]
CAPTIONS = CASES["captions"]


def engine_of(case: Case, **options: Any) -> Engine:
    options = {"max_length": 8, **options}
    return Engine(case.policy, bos=case.bos, eos=case.eos, **options)  # pyright: ignore


@pytest.mark.parametrize("sampler", [Sampler("sample", 3), Sampler("greedy"), Sampler("beam", 3), Sampler("set", 3)])
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_sequences_are_those_of_the_engine(case: Case, sampler: Sampler):
    engine = engine_of(case)
    drawn = engine.decode(case.contexts, torch.arange(CONTEXTS), sampler, Noise(5)).trajectories
    expected = list(zip(drawn.lists(), drawn.log_probs.tolist(), drawn.finished.tolist(), strict=True))
    found = engine.generate(case.contexts, mode=sampler.mode, count=sampler.count, seed=5)
    assert len(found) == CONTEXTS
    flat = [one for sequences in found for one in sequences]
    assert [one.tokens for one in flat] == [tokens for tokens, _, _ in expected]
    assert [one.log_probability for one in flat] == pytest.approx([value for _, value, _ in expected], abs=1e-5)
    assert [one.finished for one in flat] == [finished for _, _, finished in expected]
    assert engine.prompts is None
    assert engine.max_length == 8


def test_the_same_seed_gives_the_same_sequences_in_any_batch():
    engine = engine_of(CAPTIONS)
    together = engine.generate(CAPTIONS.contexts, count=4, seed=1)
    in_turn = engine.generate(CAPTIONS.contexts, count=4, seed=1, batch_size=2)
    assert [[one.tokens for one in some] for some in together] == [[one.tokens for one in some] for some in in_turn]
    other = engine.generate(CAPTIONS.contexts, count=4, seed=2)
    assert [[one.tokens for one in some] for some in together] != [[one.tokens for one in some] for some in other]


def slow_filter(row: list[float], temperature: float, top_k: int | None, top_p: float | None) -> list[float]:
    values = [value / temperature for value in row]
    if top_k is not None:
        least = sorted(values, reverse=True)[:top_k][-1]
        values = [value if value >= least else -math.inf for value in values]
    if top_p is not None:
        total = sum(map(math.exp, values))
        share, kept = 0.0, set()
        for value in sorted(values, reverse=True):
            if share < top_p:
                kept.add(value)
            share += math.exp(value) / total
        values = [value if value in kept else -math.inf for value in values]
    return values


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [None, 1, 3, 100])
@pytest.mark.parametrize("top_p", [None, 0.01, 0.5, 0.95, 1.0])
def test_filters_equal_their_slow_twin(temperature: float, top_k: int | None, top_p: float | None):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(40, 7, generator=generator, dtype=torch.float64) * 2
    logits[::4, 1] = logits[::4, 2]  # ties
    logits[1::4, 0] = -torch.inf
    found = Filters(temperature, top_k, top_p).filtered(logits)
    for row, values in zip(logits.tolist(), found.tolist(), strict=True):
        assert values == pytest.approx(slow_filter(row, temperature, top_k, top_p))


def test_filtered_draws_have_the_filtered_probabilities():
    """The first token of many samples, and its log-probability."""
    engine = engine_of(CAPTIONS, max_length=1)
    options: dict[str, Any] = {"temperature": 0.5, "top_k": 5, "top_p": 0.9}
    with torch.no_grad():
        state = engine.policy.start(engine.policy.encode(CAPTIONS.contexts[:1]))
        outputs, _ = engine.policy.step(state, torch.tensor([CAPTIONS.bos]))
    exact = Filters(**options).filtered(10 * outputs).softmax(1)[0]
    policy: Any = copy.deepcopy(CAPTIONS.policy)
    with torch.no_grad():
        policy.output *= 10
        policy.output_bias *= 10
    engine.use(policy)
    (drawn,) = engine.generate(CAPTIONS.contexts[:1], count=20_000, **options)
    tokens = [one.tokens[0] if one.tokens else CAPTIONS.eos for one in drawn]
    counts = torch.bincount(torch.tensor(tokens), minlength=9) / len(tokens)
    assert 2 <= int((exact > 0).sum()) <= 5
    torch.testing.assert_close(counts.double(), exact.double(), atol=0.015, rtol=0)
    assert drawn[0].log_probability == pytest.approx(float(exact[tokens[0]].log()), abs=1e-4)


@pytest.mark.parametrize("case", SOFTMAX, ids=lambda case: case.name)
def test_sequences_go_on_from_their_prompts(case: Case):
    """Greedy sequences, cut at different places, are continued as they were."""
    engine = engine_of(case)
    whole = engine.generate(case.contexts, mode="greedy")
    cuts = [number % 4 for number in range(CONTEXTS)]
    prompts = [one.tokens[:cut] for (one,), cut in zip(whole, cuts, strict=True)]
    assert len({len(prompt) for prompt in prompts}) > 2
    for mode, count in (("greedy", 1), ("beam", 1)):
        found = engine.generate(case.contexts, mode=mode, prompts=prompts, count=count)  # pyright: ignore
        for (before,), prompt, (after,) in zip(whole, prompts, found, strict=True):
            assert (prompt + after.tokens)[: len(before.tokens)] == before.tokens
    # A sample's log-probability is that of its new tokens.
    sampled = engine.generate(case.contexts, count=2, prompts=prompts, max_length=3, seed=4)
    assert all(len(one.tokens) <= 3 for some in sampled for one in some)
    for number, prompt in enumerate(prompts):
        for one in sampled[number]:
            scored = log_probability(engine, case.contexts[number : number + 1], prompt, one.tokens, one.finished)
            assert one.log_probability == pytest.approx(scored, abs=1e-4)


def log_probability(engine: Engine, context: Tensor, prompt: list[int], tokens: list[int], finished: bool) -> float:
    new = tokens + [engine.eos] * finished
    read = torch.tensor([[engine.bos, *prompt, *new][:-1]])
    with torch.no_grad(), evaluation_mode(engine.policy):
        logits = engine.policy.score(engine.policy.encode(context), read)[0].log_softmax(1)
    return sum(float(logits[len(prompt) + step, token]) for step, token in enumerate(new))


def test_contexts_may_be_nests():
    class Pair(torch.nn.Module):
        """The tokens are the numbers of the context, one after the other."""

        def encode(self, context: dict[str, Tensor]) -> Tensor:
            return torch.stack([context["first"], context["second"]], 1)

        def start(self, memory: Tensor) -> tuple[Tensor, Tensor]:
            return memory, torch.zeros(len(memory), dtype=torch.int64)

        def step(self, state: tuple[Tensor, Tensor], tokens: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            memory, step = state
            wanted = torch.where(step < 2, memory.gather(1, step.clamp(max=1)[:, None])[:, 0], 0)
            return torch.nn.functional.one_hot(wanted, 9).float() * 50, (memory, step + 1)

        def score(self, memory: Tensor, tokens: Tensor) -> Tensor:
            raise NotImplementedError

    engine = Engine(Pair(), bos=8, eos=0, max_length=5)
    context = {"first": torch.tensor([3, 4]), "second": torch.tensor([5, 6])}
    assert [one.tokens for (one,) in engine.generate(context)] == [[3, 5], [4, 6]]
    assert [one.tokens for (one,) in engine.generate(context, mode="greedy", max_length=1)] == [[3], [4]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "best"}, "mode must be one of sample, greedy, beam, set, not 'best'"),
        ({"count": 0}, "count must be a whole number and at least 1, not 0"),
        ({"mode": "greedy", "count": 2}, "greedy decoding has one sequence for each context, not 2"),
        ({"temperature": 0.0}, "temperature must be a positive number, not 0.0"),
        ({"temperature": math.nan}, "temperature must be a positive number, not nan"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, not 1.5"),
        ({"top_k": 0}, "top_k must be a whole number and at least 1, not 0"),
        ({"mode": "beam", "top_k": 3}, "temperature, top_k and top_p are for mode 'sample' or 'set', not 'beam'"),
        ({"max_length": 0}, "max_length must be a whole number and at least 1, not 0"),
        ({"count": 2.5}, "count must be a whole number and at least 1, not 2.5"),
        ({"temperature": "hot"}, "temperature must be a positive number, not 'hot'"),
        ({"prompts": [[True], [], [], [], [], []]}, "prompt 0 contains True: tokens are whole numbers from 0"),
        ({"prompts": [[1]]}, "there are 1 prompts for 6 contexts: give one for each"),
        ({"prompts": [[-1], [], [], [], [], []]}, "prompt 0 contains -1: tokens are whole numbers from 0"),
        ({"prompts": [["a"], [], [], [], [], []]}, "prompt 0 contains 'a': tokens are whole numbers from 0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options_are_told(options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        engine_of(CAPTIONS).generate(CAPTIONS.contexts, **options)


def test_other_bad_calls_are_told():
    tree = CASES["captions, tree"]
    with pytest.raises(InputError, match="need a policy whose outputs are the logits of all tokens"):
        engine_of(tree).generate(tree.contexts, temperature=0.5)
    for context in ("text", [], {}, None, 3):
        with pytest.raises(InputError, match="a context is a tensor with one row for each"):
            engine_of(CAPTIONS).generate(context)
    with pytest.raises(InputError, match="not a single number"):
        engine_of(CAPTIONS).generate(torch.tensor(3.0))
