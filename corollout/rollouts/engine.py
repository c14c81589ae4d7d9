"""The rollout engine: main trajectories, then all branches of all steps together. It knows tokens, not text.

No prefix is computed twice: sequences of a context that begin alike share what they have in common, a branch starts
from its parent's state at its step, and all branches advance together in time, so that at step t one call of the policy
serves the branches that are under way and those that start there. Rows that have ended are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.arguments import require_count
from corollout.errors import InputError, PolicyError
from corollout.noise import BRANCH, COPY, MAIN, Noise
from corollout.policies.protocol import Head, Policy, concat, evaluation_mode, head_of, require_policy, select
from corollout.policies.screening import Screening
from corollout.policies.tempered import Tempered, require_temperature
from corollout.rollouts.compiling import compiled_step
from corollout.rollouts.going_on import GoingOn, with_ended, without_ended
from corollout.rollouts.output import Checks, Output, longest
from corollout.rollouts.policy_calls import call_encode, call_step
from corollout.rollouts.prefixes import Prefixes, Starts
from corollout.rollouts.search import Slots, search
from corollout.rollouts.states import StepStates
from corollout.rollouts.stops import Stops
from corollout.rollouts.watch import Look, Origin, Reads, SoftmaxWatch, TreeWatch, Watch
from corollout.types import Branches, Decoded, Sampler, Sequences, Trajectories, full_precision

# Integers for each context, main trajectory, branch, or row of a chunk of those
Contexts = Int64[Tensor, " context"]
Rows = Int64[Tensor, " row"]
OfBranches = Int64[Tensor, " branch"]
Chunk = Int64[Tensor, " chunk"]


@dataclass(frozen=True)
class Mains:
    """Main trajectories with what is needed to branch off them."""

    trajectories: Trajectories
    prefixes: list[Prefixes]  # one for each chunk of rows
    tokens: int  # generated
    logits: Float[Tensor, "prefix vocab"] | None = None  # of a softmax, step by step, if there are not too many

    def states(self, sizes: Sequence[int]) -> list[Any] | None:
        """The policy's states after the prefixes of each step, if all are kept and there are so many."""
        kept = self.prefixes[0].states if len(self.prefixes) == 1 else None
        return kept.steps if isinstance(kept, StepStates) and tuple(kept.sizes) == tuple(sizes) else None


@dataclass(frozen=True)
class Completions:
    """Completed branches: whole sequences, prefix included."""

    sequences: Sequences
    tokens: int  # generated, not counting prefixes
    unshared: int  # what they would be if no two branches shared a prefix


class _About(NamedTuple):
    """Whether, among some branches, there are any of these."""

    partial: bool  # walks down a tree
    copies: bool
    own_noise: bool
    greedy: bool
    alike: bool  # perhaps


class Engine:
    """Samples sequences from a policy.

    ``bos`` is fed first; a sequence ends with ``eos``, or one of them if they are several, or after ``max_length``
    tokens. At most ``max_rows`` rows are computed at once: a bound on memory that changes no result. With
    ``share_noise`` a branch is completed with the noise that its parent had at the same steps (common random numbers)
    unless its estimator says ``noise="own"``, otherwise always with noise of its own; both are unbiased.

    ``stops`` says of the tokens of some sequences whether they stop there, without an end token: main trajectories,
    branches and searches alike, so that all of this is about the process that stops.

    The ``temperature`` is part of the policy: what is sampled, optimised and scored is p ∝ exp(logits / temperature).

    Two options are for GPUs. Rows that have ended are dropped every ``drop_every`` steps, and computed along until
    then: the host has to wait for their number, and meanwhile gives the device no work. ``compile_step`` is a mode of
    ``torch.compile`` for the policy's step: "default", "reduce-overhead" (CUDA graphs), "max-autotune". Neither changes
    a result, except that compiled operations round differently.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        bos: int,
        eos: int | Sequence[int],
        max_length: int,
        max_rows: int = 4096,
        share_noise: bool = True,
        drop_every: int = 1,
        compile_step: str | None = None,
        temperature: float | int = 1.0,
        stops: Stops | None = None,
    ):
        ends: tuple[int, ...] = tuple(eos) if isinstance(eos, Sequence) else (eos,)
        if not ends:
            raise InputError("eos must be a token, or a list of the tokens that end a sequence, not an empty list")
        for name, token in (("bos", bos), *(("eos", end) for end in ends)):
            require_count(name, token, least=0)
        for name, count in (("max_length", max_length), ("max_rows", max_rows), ("drop_every", drop_every)):
            require_count(name, count)
        require_temperature(temperature)
        self.temperature, self.compile_step = temperature, compile_step
        self.use(policy)
        self.bos, self.ends, self.stops = bos, ends, stops
        self.eos: int = ends[0]
        self.max_length, self.max_rows = max_length, max_rows
        self.share_noise = share_noise
        self.drop_every = drop_every
        self.output_width: int | None = None  # of the policy's outputs, once it has put out something
        self.prompts: Int64[Tensor, "context token"] | None = None  # that sequences begin with, if there are any

    def use(self, policy: Policy, temperature: float | int | None = None) -> None:
        """Sample from this policy, at another temperature if one is given, with the settings as they are."""
        require_policy(policy)
        if temperature is not None:
            require_temperature(temperature)
            self.temperature = temperature
        self.policy = policy
        self.model: Policy = policy if self.temperature == 1 else Tempered(policy, self.temperature)
        """What is computed: the policy, at the temperature."""
        self.head: Head = head_of(self.model)
        self._compiled_step = None if self.compile_step is None else compiled_step(self.model, self.compile_step)

    def generate(
        self,
        context: Any,
        *,
        mode: Literal["sample", "greedy", "beam", "set"] = "sample",
        count: int = 1,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        prompts: Sequence[Sequence[int]] | None = None,
        max_length: int | None = None,
        batch_size: int = 256,
        examples: Sequence[int] | None = None,
    ) -> list[list[Decoded]]:
        """Sequences for each of some contexts: a tensor with a row for each, or a nest of such tensors.

        There are ``count`` for each: samples, the best of a beam, or a set without replacement, best first; or the
        greedy one. A sequence comes without its end token, with its log-probability, and whether it has ended.
        ``temperature``, ``top_k`` and ``top_p`` change the distribution that samples and sets are drawn from (their
        log-probabilities are by that distribution). ``prompts`` are tokens that each context's sequences begin with;
        they may differ in length, and are not repeated in the results. ``max_length`` counts new tokens.

        The same seed gives the same sequences, whatever else is in the batch: noise is drawn by the numbers of
        contexts, which are 0, 1, … unless ``examples`` are others.
        """
        from corollout.rollouts.generation import Filters, generate  # which knows the engine

        filters = Filters(temperature, top_k, top_p)
        length = self.max_length if max_length is None else max_length
        sampler, noise = Sampler(mode, count), Noise(seed)
        return generate(self, context, sampler, noise, filters, prompts, length, batch_size, examples)

    @torch.no_grad()
    def decode(
        self, context: Any, examples: Contexts, sampler: Sampler, noise: Noise, reads: Reads | Look = "logits"
    ) -> Mains:
        """Main trajectories for some contexts, without a gradient: encode them, then :meth:`sample`."""
        with evaluation_mode(self.policy):
            memory = call_encode(self.policy, context)
        return self.sample(memory, examples, sampler, noise, reads)

    @torch.no_grad()
    def sample(
        self, memory: Any, examples: Contexts, sampler: Sampler, noise: Noise, reads: Reads | Look = "logits"
    ) -> Mains:
        """Main trajectories, ``sampler.count`` for each context (a beam may find fewer), ordered by context.

        ``reads`` says what they keep of the logits of a softmax: all of them, the greedy tokens, nothing but the
        probabilities of tokens, or what a function notes of them, chunk by chunk.
        """
        with evaluation_mode(self.policy):
            if sampler.mode in ("beam", "set"):
                return self._search(memory, examples, sampler.count, noise, replacement=sampler.mode == "beam")
            contexts = torch.arange(len(examples), device=examples.device).repeat_interleave(sampler.count)
            samples = torch.arange(sampler.count, device=examples.device).repeat(len(examples))
            origin = Origin(examples[contexts], samples, noise.keys(examples[contexts], MAIN, samples))
            if self.head.logits_by_token:
                watch = TreeWatch(origin, self.max_length)
            else:
                watch = SoftmaxWatch(origin, self.max_length, reads)
            rows = len(contexts)
            out = Output(rows, self.max_length, self.ends, examples.device, self.stops)
            prefixes = [
                self._run_mains(
                    memory, contexts, origin, range(first, min(first + self.max_rows, rows)), sampler, out, watch
                )
                for first in range(0, rows, self.max_rows)
            ]
            sequences = out.sequences()
            trajectories = Trajectories(
                **vars(sequences),
                **vars(origin),
                **watch.finish(self.head, sequences),
                contexts=contexts,
                decisions=self.head.decisions(sequences.tokens),
            )
            logits = watch.by_prefix() if len(prefixes) == 1 else None
            return Mains(trajectories, prefixes, sum(prefix.tokens for prefix in prefixes), logits)

    @torch.no_grad()
    def complete(self, mains: Mains, branches: Branches, noise: Noise) -> Completions:
        """The branches' whole sequences."""
        parents = mains.trajectories
        if len(branches) == 0:
            return Completions(Output(0, self.max_length, self.ends, branches.parent.device).sequences(), 0, 0)
        about = self._look_at(parents, branches)
        keys = self._branch_keys(parents, branches, about, noise)
        with evaluation_mode(self.policy):
            if about.partial:
                branches = self._finish_tokens(mains, branches, keys)
            out = Output(len(branches), self.max_length, self.ends, branches.parent.device, self.stops)
            width = parents.tokens.shape[1]
            before = torch.arange(width, device=branches.parent.device) < branches.step[:, None]
            out.tokens[:, :width] = torch.where(before, parents.tokens[branches.parent], self.eos)
            # In the order of their steps, the rows of a chunk are under way at the same time.
            order = branches.step.argsort(stable=True)
            screening = Screening.offered_by(self.model, len(branches))
            tokens = sum(
                self._run_branches(mains, branches, about, chunk, keys, out, screening)
                for chunk in order.split(self.max_rows)
            )
        sequences = out.sequences()
        return Completions(sequences, tokens, int((sequences.lengths - 1 - branches.step).sum()))

    @torch.no_grad()
    def check_states(self, mains: Mains) -> None:
        """Refuse a policy that changes states in place: branches would start from what their parents became."""
        trajectories = mains.trajectories
        for prefix in mains.prefixes:
            rows = torch.arange(prefix.rows.start, prefix.rows.stop, device=trajectories.tokens.device)
            rows = rows[trajectories.lengths[rows] > 1]
            if len(rows) == 0 or trajectories.token_log_probs is None:
                continue
            state = prefix.states.at(0, prefix.place[rows - prefix.rows.start, 0])
            tokens = trajectories.tokens[rows, :2]
            before = trajectories.token_log_probs[rows, 1]
            # The kept state may be a copy that no later step saw: so the same state is read twice.
            for _ in range(2):
                with evaluation_mode(self.policy):
                    again, _ = call_step(self.model.step, state, tokens[:, 0], self.bos)
                logits = full_precision(self.head.logits(again[:, None], tokens[:, 1:]))
                gap = self.head.log_probs(logits, tokens[:, 1:])[:, 0] - before
                if float(gap.abs().max()) <= score_tolerance(again.dtype):
                    continue
                raise PolicyError(
                    "policy.step changes its state in place: from a state that was kept, the same token later gives "
                    "different logits; return a new state instead"
                )

    def score_inputs(self, sequences: Sequences) -> Int64[Tensor, "row step"]:
        """What ``policy.score`` reads to give the logits of every token of the sequences."""
        start = torch.full_like(sequences.tokens[:, :1], self.bos)
        return torch.cat([start, sequences.tokens[:, :-1]], 1)

    # --- main trajectories ---------------------------------------------------------------------------------------

    def _run_mains(
        self, memory: Any, contexts: Rows, origin: Origin, rows: range, sampler: Sampler, out: Output, watch: Watch
    ) -> Prefixes:
        """Generate a chunk of rows. Each step computes the distinct prefixes; a row knows the place of its own."""
        row = torch.arange(rows.start, rows.stop, device=contexts.device)
        # The rows of a context are consecutive, and start from one place.
        first_context, shared = rows.start // sampler.count, sampler.count > 1
        place, size = contexts[row] - first_context, (rows.stop - 1) // sampler.count + 1 - first_context
        state, read = self._start(memory, first_context + torch.arange(size, device=row.device))
        prefixes = Prefixes(rows, torch.zeros(len(rows), self.max_length, dtype=torch.int64, device=row.device))
        following = GoingOn(None, place, None, read, size)
        counts = [following.prefixes]
        ended: Tensor | None = None  # if some of the rows may have ended
        checks = Checks(self.head.logits_by_token)
        for t in range(self.max_length):
            _, place, parents, read, _, continued = following
            outputs, state = self._step(state, read)
            prefixes.add(t, row, place, state, len(read), parents, continued)
            if self.head.keeps_outputs:
                prefixes.outputs.append(outputs)
            index = place if len(read) < len(row) else None
            greedy = sampler.mode == "greedy"
            choice = self.head.choose(outputs, origin.keys[row], torch.full_like(row, t), greedy, index)
            watch.see(row, t, choice, index, ended)
            checks.add(t, choice.valid, index, row, ended)
            ended = out.write(row, t, choice.tokens, ended)
            if t + 1 == self.max_length:
                break
            if self._drops(t):
                following = without_ended(ended, place, len(read), choice.tokens, shared, contexts[row])
                row, ended = row[following.rows], None
                if len(row) == 0:
                    break
            else:
                following = with_ended(ended, place, len(read), choice.tokens, shared)
            counts.append(following.prefixes)
            state = state if following.parents is None else select(state, following.parents)
        checks.report(lambda of: origin.examples[of])
        prefixes.tokens = _total(counts)
        return prefixes

    # --- branches ------------------------------------------------------------------------------------------------

    def _run_branches(
        self,
        mains: Mains,
        branches: Branches,
        about: "_About",
        chunk: Chunk,
        keys: OfBranches,
        out: Output,
        screening: Screening | None,
    ) -> int:
        """Complete a chunk of branches, given in the order of their steps; return the number of tokens generated.

        ``place`` is a row's place in the state, before ``tokens`` are fed. Rows at one place with one token go on as
        one, as long as they draw the same tokens.
        """
        counts: list[int | Tensor] = []
        row = tokens = place = chunk[:0]
        ended: Tensor | None = None  # if some of the rows may have ended
        state, size = None, 0  # so many places
        starts = Starts(mains.prefixes, mains.trajectories, branches, chunk, self.max_length, about.alike)
        checks = Checks(self.head.logits_by_token)
        for t in range(starts.first, self.max_length):
            fresh = starts.rows(t)
            if len(fresh):
                fresh, origin, count, states = starts.spawn(t)
                row, tokens = torch.cat([row, fresh]), torch.cat([tokens, branches.token[fresh]])
                place, size = torch.cat([place, size + origin]), size + count
                state = concat([*([] if state is None else [state]), *states])
                if ended is not None:
                    ended = torch.cat([ended, torch.zeros_like(fresh, dtype=torch.bool)])
            if len(row) == 0:
                if t >= starts.last:
                    break
                continue
            ended = out.write(row, t, tokens, ended)
            if t + 1 == self.max_length:
                break
            if self._drops(t):
                following = without_ended(ended, place, size, tokens, starts.shared)
                row, ended = row[following.rows], None
            else:
                following = with_ended(ended, place, size, tokens, starts.shared)
            place, read, size = following.place, following.read, len(following.read)
            if size == 0:
                tokens, state = read, None
                continue
            state = state if following.parents is None else select(state, following.parents)
            counts.append(following.prefixes)
            index = place if starts.shared else None
            greedy = branches.greedy[row] if about.greedy else False
            drawing = keys[row], torch.full_like(row, t + 1), greedy, index
            if screening is None:
                outputs, state = self._step(state, read)
                tokens, _, valid = self.head.choose(outputs, *drawing)
            else:
                hidden, read_out, state = self.model.step_hidden(state, read)  # pyright: ignore[reportAttributeAccessIssue]
                tokens, valid = screening.choose(hidden, read_out, *drawing)
            checks.add(t + 1, valid, index, row, ended)
        checks.report(lambda of: mains.trajectories.examples[branches.parent[of]])
        return _total(counts)

    def _branch_keys(self, parents: Trajectories, branches: Branches, about: "_About", noise: Noise) -> OfBranches:
        examples, samples = parents.examples[branches.parent], parents.samples[branches.parent]
        keys = parents.keys[branches.parent]
        if about.copies:
            keys = torch.where(branches.copy == 0, keys, noise.keys(examples, COPY, samples, branches.copy))
        if self.share_noise and not about.own_noise:
            return keys
        own = noise.keys(examples, BRANCH, samples, branches.step, branches.token, branches.copy)
        return torch.where(branches.own_noise, own, keys) if self.share_noise else own

    def _look_at(self, parents: Trajectories, branches: Branches) -> "_About":
        """What has to be known of branches before they are completed; refuse those that cannot be."""
        outside = (branches.step < 0) | (branches.step >= parents.lengths[branches.parent])
        partial, copies = branches.token < 0, branches.copy > 0
        flags = (outside, partial, copies, branches.own_noise, branches.greedy, parents.samples > 0)
        facts = torch.stack([flag.any() for flag in flags])
        misplaced, some_partial, some_copies, some_own, some_greedy, several = facts.tolist()
        if misplaced:
            raise InputError("a branch starts at a step that its main trajectory does not have")
        if some_partial and not self.head.keeps_outputs:
            raise InputError(f"a branch starts with token {int(branches.token.min())}: tokens are counted from 0")
        return _About(some_partial, some_copies, some_own, some_greedy, alike=several or some_copies)

    def _finish_tokens(self, mains: Mains, branches: Branches, keys: OfBranches) -> Branches:
        """The branches with their first tokens completed, where those are partial walks down a tree."""
        token, step = branches.token.clone(), branches.step
        partial = (token < 0).nonzero().squeeze(1)
        for prefix in mains.prefixes:
            alone = len(mains.prefixes) == 1
            selected, place = prefix.places(partial, branches.parent, step[partial], alone)
            sizes = [0, *map(len, prefix.outputs[:-1])]
            first = torch.tensor(sizes, device=step.device).cumsum(0)
            outputs = torch.cat(prefix.outputs)
            for some, index in zip(selected.split(self.max_rows), place.split(self.max_rows), strict=True):
                output = outputs[first[step[some]] + index]
                token[some] = self.head.finish(output, token[some], keys[some], step[some], branches.greedy[some])
        return replace(branches, token=token)

    # --- searches ------------------------------------------------------------------------------------------------

    def _search(self, memory: Any, examples: Contexts, size: int, noise: Noise, replacement: bool) -> Mains:
        """Beam search, or a sample without replacement, of as many contexts at once as ``max_rows`` allows."""
        contexts = torch.arange(len(examples), device=examples.device)
        parts = [
            search(
                self.head,
                *self._start(memory, chunk),
                self._step,
                examples[chunk],
                ends=self.ends,
                stops=self.stops,
                max_length=self.max_length,
                size=size,
                noise=None if replacement else noise,
            )
            for chunk in contexts.split(max(1, self.max_rows // size))
        ]
        slots = Slots.join([part for part, _ in parts])
        context, slot, number = slots.ranking()
        lengths, log_probs = slots.length[context, slot], slots.log_prob[context, slot]
        tokens = slots.tokens[context, slot][:, : longest(lengths)]
        trajectories = Trajectories(
            tokens=tokens,
            lengths=lengths,
            finished=slots.ended[context, slot],
            stopped=None if self.stops is None else slots.stopped[context, slot],
            contexts=context,
            examples=examples[context],
            samples=number,
            keys=noise.keys(examples[context], MAIN, number),
            log_probs=log_probs,
            logits=log_probs.new_zeros(*tokens.shape, 0),
            decisions=self.head.decisions(tokens),
        )
        return Mains(trajectories, [], sum(generated for _, generated in parts))

    # --- common --------------------------------------------------------------------------------------------------

    def _start(self, memory: Any, contexts: Contexts) -> tuple[Any, Contexts]:
        """The states of some contexts before their first tokens, and what is read first."""
        state = self.policy.start(select(memory, contexts))
        read = torch.full_like(contexts, self.bos)
        for token in () if self.prompts is None else self.prompts[contexts].unbind(1):
            _, state = self._step(state, read)
            read = token
        return state, read

    def _drops(self, t: int) -> bool:
        """Whether rows that have ended are dropped after step t."""
        return (t + 1) % self.drop_every == 0

    def _step(self, state: Any, tokens: Rows) -> tuple[Float[Tensor, "row width"], Any]:
        """The policy's step, checked for its shape."""
        outputs, state = call_step(self._compiled_step or self.model.step, state, tokens, self.bos)
        if outputs.shape[1] != self.output_width:
            self.output_width = outputs.shape[1]
            vocab = self.head.vocab(self.output_width)
            if vocab is not None and (end := max(self.ends)) >= vocab:
                raise InputError(
                    f"eos = {end} is not in the vocabulary: the policy has logits for the tokens 0 to {vocab - 1}"
                )
        return outputs, state


def _total(counts: list[int | Tensor]) -> int:
    """The sum of some numbers, of which those on a device are waited for once."""
    known = [count for count in counts if isinstance(count, int)]
    asked = [count for count in counts if isinstance(count, Tensor)]
    return sum(known) + (int(torch.stack(asked).sum()) if asked else 0)


def score_tolerance(dtype: torch.dtype) -> float:
    """How far two computations of the same log-probability may be apart."""
    return 1e-3 if dtype in (torch.float32, torch.float64) else 5e-2
