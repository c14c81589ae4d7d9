"""Language models of transformers as policies: each prompt is computed once, and so is each distinct prefix.

A context is Int64[row, position], the tokens of a prompt; −1 is padding, on either side. What comes out of a policy is
the same as a forward pass of each whole sequence, to rounding: a policy compares itself with one when it is made.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from corollout.errors import CorolloutError, InputError, PolicyError
from corollout.hf.activations import kept_bytes, most_activations
from corollout.hf.attention import Attention, Prompts, StepAttention, WholeAttention
from corollout.hf.checkpointing import checkpointed
from corollout.hf.embedding import embedding_by_rows
from corollout.hf.encoder_cache import KnownEncoder
from corollout.hf.inside import Inside, attending
from corollout.hf.output_layer import OutputLayer
from corollout.hf.states import Memory, State
from corollout.hf.stop_strings import StopStrings
from corollout.policies.protocol import GraphSizes, evaluation_mode
from corollout.policies.read_out import ReadOut
from corollout.prefix_tree import Layout, PrefixTree
from corollout.rollouts import Engine
from corollout.text import quoted, shortened

Context = Int64[Tensor, "row position"]
Rows = Int64[Tensor, " row"]
Tokens = Int64[Tensor, " row"]

_MEASURED = 8  # tokens of which activations are measured

# How far a policy may be from its model's own forward pass, relative to the largest logit.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}


class LanguageModelPolicy(nn.Module, ABC):
    """What policies of both kinds have in common."""

    _crossing: bool

    def __init__(self, model: nn.Module, tokenizer: Any = None):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        adapted: Any = model
        inner: Any = adapted.get_base_model() if hasattr(model, "get_base_model") else model
        self._inner = (inner,)  # a tuple: it must not be registered as a module a second time
        self._output = OutputLayer(inner)
        self._inside = Inside.of(self._decoder)
        self.eos = end_tokens(inner, tokenizer)
        self.max_positions: int | None = getattr(inner.config, "max_position_embeddings", None)
        self._compare()

    @property
    def inner(self) -> Any:
        """The model of transformers, without what an adapter puts around it."""
        return self._inner[0]

    @property
    def read_out_weight(self) -> Float[Tensor, "vocab width"]:
        """The matrix that makes logits."""
        return self._output.weight

    @property
    def device(self) -> torch.device:
        return self._output.weight.device

    @property
    @abstractmethod
    def _decoder(self) -> nn.Module: ...

    @property
    @abstractmethod
    def bos(self) -> int:
        """The token that sequences begin with, as an ``Engine`` wants it."""

    @abstractmethod
    def encode(self, context: Context) -> Memory: ...

    @abstractmethod
    def _decode(self, tokens: Tokens, positions: Tokens, attention: Attention) -> Float[Tensor, "token width"]:
        """The decoder's last hidden states for one flat row of tokens."""

    @abstractmethod
    def _first_tokens(self, memory: Memory, number: Rows, tokens: Tokens) -> Tokens:
        """What is read for the start token of sequences."""

    @abstractmethod
    def _first_positions(self, prompts: Prompts) -> Int64[Tensor, " prompt"]:
        """At which position sequences of each prompt start."""

    def engine(self, max_length: int, *, stop_strings: Sequence[str] | None = None, **options: Any) -> Engine:
        """An engine that samples from this policy: ``max_length`` counts generated tokens. A sequence stops with the
        token that completes one of the ``stop_strings`` in its text.
        """
        if stop_strings is not None:
            options["stops"] = StopStrings(stop_strings, self.tokenizer)
        return Engine(self, bos=self.bos, eos=self.eos, max_length=max_length, **options)

    def prompt_room(self, max_length: int) -> int | None:
        """The most tokens that a prompt may have if so many are generated; None if there is no limit."""
        most = self.max_positions
        if most is None or self.inner.config.is_encoder_decoder:
            return most
        if max_length >= most:
            raise InputError(
                f"max_completion_length is {max_length}, but the model's context window has {most} tokens, "
                f"prompt included: lower it"
            )
        return most - max_length

    def graph_sizes(self, context: Context) -> GraphSizes:
        """Graphs whose activations take little memory beside the weights."""
        return GraphSizes((context >= 0).sum(1).tolist(), self._tokens_at_once)

    @cached_property
    def _tokens_at_once(self) -> int:
        length = min(_MEASURED, self.max_positions or _MEASURED)
        context = torch.zeros(1, length, dtype=torch.int64, device=self._output.weight.device)
        with evaluation_mode(self):
            kept = kept_bytes(lambda: self.encode(context), self.model.parameters())
        return most_activations(self.model) * length // max(kept, 1)

    def start(self, memory: Memory) -> State:
        return State(
            memory, memory.number, torch.empty(len(memory.number), 0, dtype=torch.int64, device=memory.number.device)
        )

    def step(self, state: State, tokens: Tokens) -> tuple[Float[Tensor, "row vocab"], State]:
        hidden, state = self._step(state, tokens)
        return self._output.logits(hidden), state

    def step_hidden(self, state: State, tokens: Tokens) -> tuple[Float[Tensor, "row width"], ReadOut, State]:
        hidden, state = self._step(state, tokens)
        return self._output.hidden(hidden), self._output.read_out(), state

    def _step(self, state: State, tokens: Tokens) -> tuple[Float[Tensor, "row width"], State]:
        memory, steps = state.memory, state.path.shape[1]
        if steps == 0:
            tokens = self._first_tokens(memory, state.number, tokens)
        places = memory.store.places(len(tokens), tokens.device)
        after = State(memory, state.number, torch.cat([state.path, places[:, None]], 1))
        attention = StepAttention(memory.store, memory.prompts, state.number, after.path, self._crossing)
        positions = self._first_positions(memory.prompts)[state.number] + steps
        with torch.no_grad():
            return self._decode(tokens, positions, attention), after

    def score(self, memory: Memory, tokens: Int64[Tensor, "row step"]) -> Float[Tensor, "row step vocab"]:
        rows, steps = tokens.shape
        lengths = torch.full((rows,), steps, dtype=torch.int64, device=tokens.device)
        tree = PrefixTree.chains(tokens, lengths)
        return self._output.logits(self._hidden(memory, tree))[tree.node]

    def hidden_states(self, memory: Memory, tree: PrefixTree) -> Float[Tensor, "prefix width"]:
        return self._output.hidden(self._hidden(memory, tree))

    def read_out(self, tree: PrefixTree) -> ReadOut:
        return self._output.read_out()

    def _hidden(self, memory: Memory, tree: PrefixTree) -> Float[Tensor, "prefix width"]:
        layout = tree.layout()
        number = memory.number[layout.contexts]
        first = tree.sizes[0]
        roots = self._first_tokens(memory, memory.number[tree.context[:first]], tree.token[:first])
        tokens = torch.cat([roots, tree.token[first:]])
        attention = WholeAttention(layout, memory.prompts, number, self._crossing)
        positions = self._first_positions(memory.prompts)[memory.number[tree.context]] + layout.depth
        return self._decode(tokens, positions, attention)

    def _run(
        self, tokens: Tokens, positions: Tokens, attention: Attention, **options: Any
    ) -> Float[Tensor, "token width"]:
        mask = _anything(tokens)
        with (
            attending(self._inside, attention, positions),
            checkpointed(self._inside, attention, positions),
            embedding_by_rows(self.inner.get_input_embeddings()),
        ):
            outputs = self._decoder(input_ids=tokens[None], attention_mask=mask, use_cache=False, **options)
        return outputs.last_hidden_state[0]

    @torch.no_grad()
    def _compare(self) -> None:
        """Refuse a model that gives other logits in this way than in its own."""
        weight = self._output.weight
        vocab = len(weight)
        numbers = torch.arange(7, device=weight.device) * 5 % max(vocab - 3, 1) + min(2, vocab - 1)
        prompts, answers = [numbers[:4], numbers[4:6]], numbers[[5, 0, 3, 6]]
        context = torch.full((2, 4), -1, device=weight.device)
        for row, prompt in enumerate(prompts):
            context[row, : len(prompt)] = prompt
        with evaluation_mode(self), _as_policy_errors(type(self.inner).__name__):
            whole = torch.stack([self._plainly(prompt, answers) for prompt in prompts])
            read = torch.cat([torch.full((2, 1), self.bos, device=weight.device), answers[:-1].repeat(2, 1)], 1)
            memory = self.encode(context)
            ours = self.score(memory, read)
            state, steps = self.start(memory), []
            for token in read.unbind(1):
                logits, state = self.step(state, token)
                steps.append(logits)
        scale = max(1.0, float(whole.abs().max()))
        gap = max(float((one - whole).abs().max()) for one in (ours, torch.stack(steps, 1))) / scale
        if not gap <= _TOLERANCE.get(weight.dtype, 0.1):
            raise PolicyError(
                f"{type(self.inner).__name__} computes its attention or its logits in a way that this policy does not "
                f"know: its logits differ by {gap:.2g} of the largest one from those of its own forward pass"
            )

    @abstractmethod
    def _plainly(
        self, prompt: Int64[Tensor, " position"], answer: Int64[Tensor, " step"]
    ) -> Float[Tensor, "step vocab"]:
        """The logits of an answer by the model's own forward pass."""


class CausalLMPolicy(LanguageModelPolicy):
    """A decoder-only language model: ``CausalLMPolicy(AutoModelForCausalLM.from_pretrained(name), tokenizer)``."""

    _crossing = False

    @property
    def _decoder(self) -> nn.Module:
        inner = self.inner
        return getattr(inner, inner.base_model_prefix)

    @property
    def bos(self) -> int:
        return self.eos[0]  # whatever it is: sequences begin with the last token of their prompts

    def encode(self, context: Context) -> Memory:
        real = context >= 0
        lengths = _lengths(real, self.max_positions)
        tokens = context[real]  # one prompt after the other
        is_last = torch.zeros_like(tokens, dtype=torch.bool)
        is_last[lengths.cumsum(0) - 1] = True
        before, last = tokens[~is_last], tokens[is_last]
        layout = Layout.of_lengths(lengths - 1)
        if len(before) == 0:  # nothing but last tokens: something has to be read all the same, and is not seen
            before, layout = last, Layout.of_lengths(lengths)
        attention = WholeAttention(layout)
        self._decode(before, layout.place, attention)
        number = torch.arange(len(lengths), device=tokens.device)
        return Memory(attention.as_prompts(lengths - 1), last, number)

    def _decode(self, tokens: Tokens, positions: Tokens, attention: Attention) -> Float[Tensor, "token width"]:
        return self._run(tokens, positions, attention, position_ids=positions[None])

    def _first_tokens(self, memory: Memory, number: Rows, tokens: Tokens) -> Tokens:
        return memory.last[number]

    def _first_positions(self, prompts: Prompts) -> Int64[Tensor, " prompt"]:
        return prompts.lengths

    def _plainly(
        self, prompt: Int64[Tensor, " position"], answer: Int64[Tensor, " step"]
    ) -> Float[Tensor, "step vocab"]:
        tokens = torch.cat([prompt, answer])[None]
        return self.inner(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0, len(prompt) - 1 : -1]


class Seq2SeqPolicy(LanguageModelPolicy):
    """A language model with an encoder: ``Seq2SeqPolicy(AutoModelForSeq2SeqLM.from_pretrained(name), tokenizer)``."""

    _crossing = True

    @property
    def _decoder(self) -> nn.Module:
        return self.inner.get_decoder()

    @property
    def bos(self) -> int:
        start = self.inner.config.decoder_start_token_id
        if start is None:
            raise InputError(
                f"{type(self.inner).__name__} has no decoder_start_token_id in its configuration: set it to the token "
                f"that answers begin with"
            )
        return start

    def encode(self, context: Context) -> Memory:
        real = context >= 0
        lengths = _lengths(real, None)
        encoded_layout = Layout.of_lengths(lengths)
        tokens = encoded_layout.spread(context[real])
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        encoded = self.inner.get_encoder()(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
        # A look of the start tokens at the encoder's output shows the keys and values of every layer.
        starts = Layout.of_lengths(torch.ones_like(lengths))
        attention = WholeAttention(starts, crossing=True, encoded=encoded_layout)
        zeros = torch.zeros_like(lengths)
        self._run(
            zeros + self.bos,
            zeros,
            attention,
            encoder_hidden_states=encoded[mask][None],
            encoder_attention_mask=_anything(tokens),
        )
        number = torch.arange(len(lengths), device=tokens.device)
        return Memory(attention.as_prompts(lengths), zeros, number)

    def _decode(self, tokens: Tokens, positions: Tokens, attention: Attention) -> Float[Tensor, "token width"]:
        width = self._output.weight.shape[1]
        nothing = self._output.weight.new_zeros(1, 1, width)
        return self._run(
            tokens,
            positions,
            attention,
            encoder_hidden_states=nothing,
            encoder_attention_mask=_anything(tokens),
            past_key_values=KnownEncoder(nothing),
        )

    def _first_tokens(self, memory: Memory, number: Rows, tokens: Tokens) -> Tokens:
        return tokens

    def _first_positions(self, prompts: Prompts) -> Int64[Tensor, " prompt"]:
        return torch.zeros_like(prompts.lengths)

    def _plainly(
        self, prompt: Int64[Tensor, " position"], answer: Int64[Tensor, " step"]
    ) -> Float[Tensor, "step vocab"]:
        read = torch.cat([answer.new_tensor([self.bos]), answer[:-1]])[None]
        inputs = {"input_ids": prompt[None], "attention_mask": torch.ones_like(prompt)[None]}
        return self.inner(**inputs, decoder_input_ids=read).logits[0]


@contextmanager
def _as_policy_errors(name: str) -> Generator[None, None, None]:
    """Inside, whatever a model raises says that it is of a kind that these policies do not know."""
    try:
        yield
    except CorolloutError:
        raise
    except Exception as error:
        raise PolicyError(
            f"{name} cannot be used as a policy: its attention is not that of the other models of transformers "
            f"({type(error).__name__}: {shortened(str(error), 200)})"
        ) from error


def _anything(like: Tensor) -> Tensor:
    """A mask of four dimensions, which models pass on as it is, and nobody reads."""
    return torch.empty(1, 1, 1, 1, device=like.device)


def _lengths(real: Tensor, most: int | None) -> Int64[Tensor, " row"]:
    lengths = real.sum(1)
    if not bool((lengths > 0).all()):
        number = int((lengths == 0).nonzero()[0])
        raise InputError(f"prompt {number} of the batch has no tokens: a prompt needs at least one")
    if most is not None and int(lengths.max()) > most:
        raise InputError(
            f"a prompt has {int(lengths.max())} tokens, but the model's context window has {most}: shorten the prompt"
        )
    return lengths


def end_tokens(model: Any, tokenizer: Any = None) -> tuple[int, ...]:
    """The tokens that end a sequence, by the model's generation settings, its configuration or the tokenizer."""
    sources = [getattr(model, "generation_config", None), model.config, tokenizer]
    for source in sources:
        given = getattr(source, "eos_token_id", None)
        if given is not None:
            tokens = tuple(given) if isinstance(given, list | tuple) else (given,)
            if tokens and all(isinstance(token, int) for token in tokens):
                return tokens
            raise InputError(f"eos_token_id must be a token or a list of tokens, not {quoted(given)}")
    raise InputError("neither model nor tokenizer says which token ends a sequence: set model.config.eos_token_id")
