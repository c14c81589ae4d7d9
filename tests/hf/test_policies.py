"""Language models as policies, against whole sequences through the models themselves."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.data import Columns
from corollout.errors import InputError, PolicyError
from corollout.estimators import make_estimator
from corollout.events import ignore
from corollout.noise import Noise
from corollout.prefix_tree import PrefixTree
from corollout.rollouts import Engine
from corollout.training import Estimate, Trainer, estimate
from corollout.training.base import flat_gradient
from corollout.types import Sampler
from tests.support.language_models import (
    END,
    MODELS,
    PROMPTS,
    VOCAB,
    language_model,
    padded,
    plain_logits,
    plain_rows,
    policy_of,
)

transformers: Any = pytest.importorskip("transformers")

from corollout.hf import PromptColumn  # noqa: E402
from corollout.hf.embedding import embedding_by_rows  # noqa: E402

# Models of transformers compute norms, rotations and some attention in single precision, whatever their weights are.
ERROR = 1e-5
ESTIMATORS = ["rloo-4", "arsm", "set-3:baseline=fitted", "sc", "pairs", "mc-2", "arsm:budget=20"]


@pytest.fixture(scope="module", params=MODELS)
def policy(request: pytest.FixtureRequest) -> Any:
    return policy_of(language_model(request.param))


def reward(sequences: list[list[int]]) -> list[float]:
    return [float(sum(sequence) % 5) + len(sequence) for sequence in sequences]


def batch_of(prompts: list[list[int]]) -> Any:
    return Columns(context=PromptColumn(prompts)).batch(range(len(prompts)))


def estimated(engine: Engine, name: str, **options: Any) -> tuple[Estimate, Tensor]:
    policy: Any = engine.policy
    policy.zero_grad()
    sample = estimate(engine, batch_of(PROMPTS), reward, name, Noise(3), **options)
    sample.backward()
    return sample, flat_gradient(policy.parameters())


def slow_gradient(engine: Engine, sample: Estimate) -> Tensor:
    """All logits of every sequence, through the model itself."""
    policy: Any = engine.policy
    policy.zero_grad()
    logits = plain_rows(policy, PROMPTS, sample.trajectories, sample.trajectories.contexts)
    gradient = sample.plan.gradient(sample.rewards, logits.detach())
    logits.backward(gradient=-gradient / len(PROMPTS))
    return flat_gradient(policy.parameters())


def assert_close(one: Tensor, other: Tensor, error: float = 10 * ERROR) -> None:
    scale = float(other.abs().max())
    assert scale > 1e-6
    assert float((one - other).abs().max()) < error * scale


# Equality


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_steps_are_those_of_whole_sequences_for_ragged_prompts(policy: Any, left: bool):
    answers = torch.tensor([[7, 3, 9, END], [4, 4, 4, 4], [11, 12, 13, 14], [3, END, 5, 5]])
    with torch.no_grad():
        state = policy.start(policy.encode(padded(PROMPTS, left)))
        read = torch.full((4,), policy.bos)
        for t in range(4):
            logits, state = policy.step(state, read)
            for row, prompt in enumerate(PROMPTS):
                expected = plain_logits(policy, prompt, answers[row].tolist())[t]
                torch.testing.assert_close(logits[row], expected, rtol=ERROR, atol=ERROR)
            read = answers[:, t]


def test_a_state_serves_several_continuations(policy: Any):
    with torch.no_grad():
        state = policy.start(policy.encode(padded(PROMPTS)))
        _, state = policy.step(state, torch.full((4,), policy.bos))
        chosen = state.select(torch.tensor([2, 0, 2]))
        _, one = policy.step(chosen, torch.tensor([5, 6, 7]))
        joined = type(one).concat([one.rewind(1), state])
        logits, _ = policy.step(joined, torch.tensor([8, 9, 10, 11, 12, 13, 14]))
    for row, (prompt, token) in enumerate(zip([2, 0, 2, 0, 1, 2, 3], range(8, 15), strict=True)):
        expected = plain_logits(policy, PROMPTS[prompt], [token, 0])[1]
        torch.testing.assert_close(logits[row], expected, rtol=ERROR, atol=ERROR)


def test_scores_and_trees_are_those_of_whole_sequences(policy: Any):
    engine = policy.engine(5)
    sampler = Sampler("sample", 6)
    mains = engine.decode(padded(PROMPTS), torch.arange(4), sampler, Noise(0))
    drawn = mains.trajectories
    expected = plain_rows(policy, PROMPTS, drawn, drawn.contexts)
    torch.testing.assert_close(drawn.logits[drawn.mask], expected[drawn.mask], rtol=ERROR, atol=ERROR)
    memory = policy.encode(padded(PROMPTS))
    tree = PrefixTree.of(drawn, drawn.contexts, engine.bos)
    hidden, read_out = policy.hidden_states(memory, tree), policy.read_out(tree)
    logits = read_out.logits(hidden, slice(None))[tree.node.clamp(min=0)]
    torch.testing.assert_close(logits[drawn.mask], expected[drawn.mask], rtol=ERROR, atol=ERROR)
    scored = policy.score(memory.select(drawn.contexts), engine.score_inputs(drawn))
    torch.testing.assert_close(scored[drawn.mask], expected[drawn.mask], rtol=ERROR, atol=ERROR)


def test_branches_are_drawn_from_whole_sequences(policy: Any):
    engine = policy.engine(5)
    batch = batch_of(PROMPTS)
    mains = engine.decode(batch.context, batch.examples, Sampler(), Noise(1))
    plan = make_estimator("arsm").plan(mains.trajectories, Noise(1))
    assert len(plan.branches) > 20
    completed = engine.complete(mains, plan.branches, Noise(1)).sequences
    contexts = mains.trajectories.contexts[plan.branches.parent]
    with torch.no_grad():
        logits = plain_rows(policy, PROMPTS, completed, contexts)
    keys = mains.trajectories.keys[plan.branches.parent]
    for row in range(len(completed.tokens)):
        for t in range(int(plan.branches.step[row]) + 1, int(completed.lengths[row])):
            choice = engine.head.choose(logits[row, t][None], keys[row][None], torch.tensor([t]), False)
            assert int(choice.tokens) == int(completed.tokens[row, t])


# Gradients


@pytest.mark.parametrize("name", [ESTIMATORS[0], *(pytest.param(n, marks=pytest.mark.prove) for n in ESTIMATORS[1:])])
def test_gradients_are_those_of_all_logits(policy: Any, name: str):
    engine = policy.engine(5)
    sample, gradient = estimated(engine, name, check_score=True)
    assert_close(gradient, slow_gradient(engine, sample))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_gradients_of_every_estimator(name: str):
    engine = policy_of(language_model("llama", seed=1)).engine(5, temperature=0.7 if name == "arsm" else 1.0)
    sample, gradient = estimated(engine, name, check_score=True)
    if engine.temperature == 1:
        assert_close(gradient, slow_gradient(engine, sample))
    _, in_parts = estimated(engine, name, micro_batch=1)
    assert_close(in_parts, gradient)


def test_checkpointed_layers_change_nothing(policy: Any):
    engine = policy.engine(5)
    _, whole = estimated(engine, "rloo-4")
    few = policy.__dict__.pop("_tokens_at_once")
    policy.inner.gradient_checkpointing_enable()
    try:
        _, again = estimated(engine, "rloo-4")
        assert policy.__dict__.pop("_tokens_at_once") > 1.2 * few  # less is kept; encoders are not computed again
    finally:
        policy.inner.gradient_checkpointing_disable()
    assert_close(again, whole)


@pytest.mark.parametrize("most", [1, 25, 40])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_graphs_of_bounded_size_change_nothing(name: str, most: int):
    policy = policy_of(language_model(name))
    engine, sizes = policy.engine(5), []
    whole, expected = estimated(engine, "rloo-8")
    run = policy._run

    def watched(tokens: Tensor, *given: Any, **options: Any) -> Tensor:
        if torch.is_grad_enabled():
            sizes.append(tokens.numel())
        return run(tokens, *given, **options)

    policy.__dict__.update(_tokens_at_once=most, _run=watched)
    sample, gradient = estimated(engine, "rloo-8")
    assert_close(gradient, expected)
    assert max(sizes) < 40 < whole.cost.scored_tokens <= sample.cost.scored_tokens == scored(policy, sizes)


def scored(policy: Any, sizes: list[int]) -> int:
    """What was scored, of what was computed with gradient: that is the prompts, too."""
    prompts = [1 if policy.inner.config.is_encoder_decoder else max(len(prompt) - 1, 1) for prompt in PROMPTS]
    return sum(sizes) - sum(prompts)


def test_without_trainable_weights_nothing_is_kept():
    policy = policy_of(language_model("llama"))
    policy.inner.requires_grad_(False)
    assert policy._tokens_at_once >= 1 << 27


@pytest.mark.parametrize("padding", [None, 3])
def test_the_gradient_of_an_embedding_is_added_row_by_row(padding: int | None):
    plain = torch.nn.Embedding(7, 4, padding_idx=padding, dtype=torch.float64)
    ours, tokens = copy.deepcopy(plain), torch.tensor([[3, 3, 0], [6, 0, 0]])
    factor = torch.randn(2, 3, 4, dtype=torch.float64)
    for _ in range(2):  # the second is added to the first
        (plain(tokens) * factor).sum().backward()
        with embedding_by_rows(ours):
            out = ours(tokens)
        assert type(out.grad_fn).__name__ == "_EmbeddingBackward"
        (out * factor).sum().backward()
    assert "forward" not in vars(ours)
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad)
    seen = []
    ours.weight.register_hook(seen.append)
    with embedding_by_rows(ours):
        (ours(tokens) * factor).sum().backward()
    assert len(seen) == 1  # whoever waits for the gradient gets it


def test_dropout_is_off(policy: Any):
    name = {"T5": "dropout_rate"}.get(type(policy.inner).__name__[:2], "attention_dropout")
    model = copy.deepcopy(policy.inner)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    setattr(model.config, name, 0.5)
    dropped = policy_of(model.train())
    _, expected = estimated(policy.engine(5), "rloo-4")
    _, gradient = estimated(dropped.engine(5), "rloo-4")
    assert_close(gradient, expected)
    assert model.training


def test_estimates_are_unbiased():
    """Against the exact gradient of the expected reward, with three tokens and all sequences of up to three."""
    model = language_model(
        "llama", vocab=3, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )
    policy = policy_of(model)
    engine, prompts = policy.engine(3), [[0, 1], [1]]
    values = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0)).tolist()

    def value(sequences: list[list[int]]) -> list[float]:
        firsts = [([*sequence, 2, 2][:2], len(sequence) % 3) for sequence in sequences]
        return [values[one][two][length] for (one, two), length in firsts]

    policy.zero_grad()
    total: Any = 0.0
    for prompt in prompts:
        for first in range(3):
            for second in range(3):
                for third in range(3):
                    sequence = [first, second, third]
                    if 2 in sequence:
                        sequence = sequence[: sequence.index(2) + 1]
                        if (second, third)[len(sequence) - 1 :] not in ((0, 0), (0,), ()):
                            continue  # one of those that end alike
                    logits = plain_logits(policy, prompt, sequence)
                    log_p = logits.log_softmax(1)[range(len(sequence)), sequence].sum()
                    total = total + log_p.exp() * value([[token for token in sequence if token != 2]])[0] / len(prompts)
    (-total).backward()
    exact = flat_gradient(policy.parameters())
    batch = Columns(context=PromptColumn(prompts)).batch([0, 1])
    for name, draws in (("rloo-2", 100), ("arsm", 60), ("set-2", 60)):
        gradients = []
        for seed in range(draws):
            policy.zero_grad()
            estimate(engine, batch, value, name, Noise(seed)).backward()
            gradients.append(flat_gradient(policy.parameters()))
        drawn = torch.stack(gradients)
        # Some directions: the exact gradient, and random ones.
        directions = torch.cat([exact[None] / exact.norm(), torch.randn(4, len(exact), dtype=exact.dtype)])
        seen = drawn @ directions.t()
        error = seen.std(0) / draws**0.5
        assert bool(((seen.mean(0) - directions @ exact).abs() < 4.5 * error).all()), name
        assert float(error[0]) < 0.5 * float(exact.norm())  # it could have failed


# What is computed


def test_prompts_and_shared_prefixes_are_computed_once():
    policy = policy_of(language_model("llama"))
    policy.graph_sizes(padded(PROMPTS))  # measures the activations of a few tokens, once
    counted: list[int] = []
    policy.inner.get_input_embeddings().register_forward_hook(lambda _, inputs, __: counted.append(inputs[0].numel()))
    sample, _ = estimated(policy.engine(5), "rloo-8")
    prompt_tokens = sum(len(prompt) - 1 for prompt in PROMPTS)
    assert sum(counted) == prompt_tokens + sample.cost.tokens + sample.cost.scored_tokens
    assert sample.cost.tokens < int(sample.trajectories.lengths.sum())


def test_places_of_the_store_are_used_again():
    policy = policy_of(language_model("llama"))
    with torch.no_grad():
        state = policy.start(policy.encode(padded(PROMPTS)))
        _, state = policy.step(state, torch.full((4,), policy.bos))
        store, logits = state.memory.store, torch.zeros(0)
        for _ in range(200):
            _, after = policy.step(state, torch.tensor([3, 4, 5, 6]))
            logits, _ = policy.step(after, torch.tensor([7, 7, 7, 7]))
    assert store._size <= 256
    expected = plain_logits(policy, PROMPTS[0], [3, 7, 0])[2]
    torch.testing.assert_close(logits[0], expected, rtol=ERROR, atol=ERROR)


def test_a_model_is_left_as_it_was():
    model = language_model("bart")
    before = {name: (config._attn_implementation) for name, config in (("whole", model.config),)}
    policy = policy_of(model)
    estimated(policy.engine(3), "rloo-2")
    assert model.config._attn_implementation == before["whole"]
    assert model.generate(input_ids=torch.tensor([[5, 6]]), max_new_tokens=3, do_sample=False).shape[0] == 1
    assert "forward" not in vars(model.model.decoder.embed_positions)


# Ends, precision, adapters


def test_any_of_several_end_tokens_ends_a_sequence():
    model = language_model("llama")
    model.generation_config.eos_token_id = [END, 7, 9]
    policy = policy_of(model)
    assert policy.eos == (END, 7, 9)
    engine = policy.engine(6)
    for mode in ("sample", "set", "beam"):
        drawn = engine.decode(padded(PROMPTS), torch.arange(4), Sampler(mode, 8), Noise(0)).trajectories
        last = drawn.tokens.gather(1, drawn.lengths[:, None] - 1).squeeze(1)
        is_end = torch.isin(last, torch.tensor(policy.eos))
        assert torch.equal(is_end, drawn.finished)
        assert set(last[drawn.finished].tolist()) > {END}
        assert not {END, 7, 9} & {token for sequence in drawn.lists() for token in sequence}


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_half_precision(name: str):
    policy = policy_of(language_model(name, dtype=torch.bfloat16))
    sample, gradient = estimated(policy.engine(5), "rloo-4", check_score=True)
    assert bool(gradient.isfinite().all())
    assert sample.trajectories.log_probs.dtype == torch.float32


def test_adapters_are_trained_and_nothing_else():
    peft = pytest.importorskip("peft")
    model = language_model("llama")
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    policy = policy_of(peft.get_peft_model(model, settings).double())
    engine = policy.engine(5)
    sample = estimate(engine, batch_of(PROMPTS), reward, "rloo-4", Noise(3), check_score=True)
    sample.backward()
    trained = {name for name, p in policy.named_parameters() if p.grad is not None}
    assert trained
    assert all("lora" in name for name in trained)
    assert_close(
        flat_gradient(p for p in policy.parameters() if p.requires_grad), slow_adapter_gradient(engine, sample)
    )


def slow_adapter_gradient(engine: Engine, sample: Estimate) -> Tensor:
    slow_gradient(engine, sample)
    policy: Any = engine.policy
    return flat_gradient(p for p in policy.parameters() if p.requires_grad)


def test_a_policy_is_trained_as_any_other():
    policy = policy_of(language_model("gpt-2", dtype=torch.float32))
    data = Columns(context=PromptColumn(PROMPTS))
    adam = torch.optim.Adam(policy.parameters(), 3e-3)

    def threes(sequences: list[list[int]]) -> list[float]:
        return [sequence.count(3) / 5 for sequence in sequences]

    trainer = Trainer(policy.engine(5), data, threes, "rloo-8", adam, batch_size=4, kl=0.001, on_event=ignore)
    rewards = trainer.train(updates=30).history["reward"]
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 1


# Refusals


def test_prompts_that_cannot_be_read_are_refused():
    policy = policy_of(language_model("gpt-2"))
    with pytest.raises(InputError, match="prompt 1 of the batch has no tokens"):
        policy.encode(torch.tensor([[4, 5], [-1, -1]]))
    with pytest.raises(InputError, match="65 tokens, but the model's context window has 64"):
        policy.encode(torch.full((1, 65), 3))
    with pytest.raises(InputError, match="prompt 1 must be a list of at least one token"):
        PromptColumn([[3], []])


def test_a_model_without_an_end_token_is_refused():
    model = language_model("llama")
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    with pytest.raises(InputError, match="which token ends a sequence"):
        policy_of(model)


def test_a_model_of_another_attention_is_refused():
    config = transformers.BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=1, n_head=2, eos_token_id=END)
    torch.manual_seed(0)
    model = transformers.BloomForCausalLM(config).double()
    with pytest.raises(PolicyError, match="BloomForCausalLM"):
        policy_of(model)


def test_a_model_without_attention_is_refused():
    config = transformers.MambaConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4, eos_token_id=END, time_step_rank=2
    )
    with pytest.raises(PolicyError, match="MambaForCausalLM"):
        policy_of(transformers.MambaForCausalLM(config).double())


def test_the_cache_of_a_model_is_not_needed():
    model = language_model("llama")
    model.config.use_cache = False
    _, gradient = estimated(policy_of(model).engine(5), "rloo-4")
    _, expected = estimated(policy_of(language_model("llama")).engine(5), "rloo-4")
    assert torch.equal(gradient, expected)
