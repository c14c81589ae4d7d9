"""The rollout engine: main trajectories, then all branches of all steps together. It knows tokens, not text.

No prefix is computed twice: sequences of a context that begin alike share what they have in common, a branch starts
from its parent's state at its step, and all branches advance together in time, so that at step t one call of the policy
serves the branches that are under way and those that start there. A row that has ended is dropped at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError, PolicyError
from corollout.noise import BRANCH, COPY, MAIN, Noise
from corollout.policies.protocol import Head, Policy, concat, evaluation_mode, head_of, select
from corollout.policies.screening import Screening
from corollout.prefix_tree import merge
from corollout.rollouts.output import Checks, Output, longest
from corollout.rollouts.prefixes import Prefixes, have_common_starts, places_of, spawn
from corollout.rollouts.search import Slots, search
from corollout.rollouts.states import States
from corollout.rollouts.watch import Look, Origin, Reads, SoftmaxWatch, TreeWatch, Watch
from corollout.types import Branches, Sampler, Sequences, Trajectories, full_precision

# Integers for each context, main trajectory, branch, or row of a chunk of those
Contexts = Int64[Tensor, " context"]
Rows = Int64[Tensor, " row"]
OfBranches = Int64[Tensor, " branch"]
Chunk = Int64[Tensor, " chunk"]

_TOKENS = 1 << 32  # more than a vocabulary has: state · _TOKENS + token is one number


@dataclass(frozen=True)
class Mains:
    """Main trajectories with what is needed to branch off them."""

    trajectories: Trajectories
    prefixes: list[Prefixes]  # one for each chunk of rows
    tokens: int  # generated
    logits: Float[Tensor, "prefix vocab"] | None = None  # of a softmax, step by step, if there are not too many


@dataclass(frozen=True)
class Completions:
    """Completed branches: whole sequences, prefix included."""

    sequences: Sequences
    tokens: int  # generated, not counting prefixes
    unshared: int  # what they would be if no two branches shared a prefix


class Engine:
    """Samples sequences from a policy.

    ``bos`` is fed first; a sequence ends with ``eos`` or after ``max_length`` tokens. At most ``max_rows`` rows are
    computed at once: a bound on memory that changes no result. With ``share_noise`` a branch is completed with the
    noise that its parent had at the same steps (common random numbers), otherwise with noise of its own; both are
    unbiased.
    """

    def __init__(
        self, policy: Policy, *, bos: int, eos: int, max_length: int, max_rows: int = 4096, share_noise: bool = True
    ):
        if min(bos, eos) < 0 or min(max_length, max_rows) < 1:
            raise InputError(
                f"the engine needs bos and eos ≥ 0, not {bos} and {eos}, and max_length and max_rows ≥ 1, not "
                f"{max_length} and {max_rows}"
            )
        self.policy = policy
        self.head: Head = head_of(policy)
        self.bos, self.eos = bos, eos
        self.max_length, self.max_rows = max_length, max_rows
        self.share_noise = share_noise
        self.output_width: int | None = None  # of the policy's outputs, once it has put out something

    @torch.no_grad()
    def decode(self, context: Any, examples: Contexts, sampler: Sampler, noise: Noise) -> Mains:
        """Main trajectories for some contexts, without a gradient: encode them, then sample."""
        with evaluation_mode(self.policy):
            memory = self.policy.encode(context)
        return self.sample(memory, examples, sampler, noise)

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
            out = Output(len(contexts), self.max_length, self.eos, examples.device)
            prefixes = [
                self._run_mains(memory, contexts, origin, rows, sampler, out, watch)
                for rows in self._chunks(len(contexts), examples.device)
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
            return Mains(trajectories, prefixes, sum(sum(prefix.sizes) for prefix in prefixes), logits)

    @torch.no_grad()
    def complete(self, mains: Mains, branches: Branches, noise: Noise) -> Completions:
        """The branches' whole sequences."""
        parents = mains.trajectories
        self._check(parents, branches)
        keys = self._branch_keys(parents, branches, noise)
        with evaluation_mode(self.policy):
            branches = self._finish_tokens(mains, branches, keys)
            out = Output(len(branches), self.max_length, self.eos, branches.parent.device)
            width = parents.tokens.shape[1]
            before = torch.arange(width, device=branches.parent.device) < branches.step[:, None]
            out.tokens[:, :width] = torch.where(before, parents.tokens[branches.parent], self.eos)
            # In the order of their steps, the rows of a chunk are under way at the same time.
            order = branches.step.argsort(stable=True)
            chunks = self._chunks(len(branches), order.device)
            screening = Screening.offered_by(self.policy, len(branches))
            tokens = sum(self._run_branches(mains, branches, order[chunk], keys, out, screening) for chunk in chunks)
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
            with evaluation_mode(self.policy):
                again, _ = self.policy.step(state, tokens[:, 0])
            logits = full_precision(self.head.logits(again[:, None], tokens[:, 1:]))
            gap = self.head.log_probs(logits, tokens[:, 1:])[:, 0] - trajectories.token_log_probs[rows, 1]
            if not float(gap.abs().max()) <= score_tolerance(again.dtype):
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
        self, memory: Any, contexts: Rows, origin: Origin, rows: Chunk, sampler: Sampler, out: "Output", watch: Watch
    ) -> Prefixes:
        """Generate a chunk of rows. Each step computes the distinct prefixes; a row knows the place of its own."""
        first_row, shared = int(rows[0]), sampler.count > 1
        place, first = merge(contexts[rows], contexts[rows], rows.new_zeros(len(rows)))
        state = self.policy.start(select(memory, contexts[rows[first]]))
        read = torch.full_like(first, self.bos)
        places = torch.zeros(len(rows), self.max_length, dtype=torch.int64, device=rows.device)
        prefixes: Prefixes | None = None
        parents: Tensor | None = None
        checks = Checks(self.head.logits_by_token)
        for t in range(self.max_length):
            outputs, state = self._step(state, read)
            if prefixes is None:
                prefixes = Prefixes(range(first_row, first_row + len(rows)), places, States.like(state), [], [])
            prefixes.states.add(state, len(read), parents)
            prefixes.sizes.append(len(read))
            if self.head.keeps_outputs:
                prefixes.outputs.append(outputs)
            places[rows - first_row, t] = place
            index = place if len(read) < len(rows) else None
            greedy = sampler.mode == "greedy"
            choice = self.head.choose(outputs, origin.keys[rows], torch.full_like(rows, t), greedy, index)
            watch.see(rows, t, choice, index)
            checks.add(t, choice.valid, index, rows)
            going = out.write(rows, t, choice.tokens)
            if len(going) == 0:
                break
            if not shared:
                parents = going if len(going) < len(rows) else None
                rows, read = rows[going], choice.tokens[going]
                place = torch.arange(len(rows), device=rows.device)
            else:
                rows, tokens, place = rows[going], choice.tokens[going], place[going]
                after, first = merge(contexts[rows], place, tokens)
                parents, read, place = place[first], tokens[first], after
            state = state if parents is None else select(state, parents)
        checks.report(lambda of: origin.examples[of])
        assert prefixes is not None
        return prefixes

    # --- branches ------------------------------------------------------------------------------------------------

    def _run_branches(
        self,
        mains: Mains,
        branches: Branches,
        chunk: Chunk,
        keys: OfBranches,
        out: "Output",
        screening: Screening | None,
    ) -> int:
        """Complete a chunk of branches, given in the order of their steps; return the number of tokens generated.

        ``place`` is a row's place in the state, before ``tokens`` are fed. Rows at one place with one token go on as
        one, as long as they draw the same tokens.
        """
        generated = 0
        rows = tokens = place = chunk[:0]
        state, size = None, 0  # so many places
        greedy_too = bool(branches.greedy[chunk].any())
        shared = have_common_starts(mains.prefixes, mains.trajectories, branches, chunk)
        # The chunk's branches of step t are chunk[starts[t] : starts[t + 1]].
        starts = torch.searchsorted(
            branches.step[chunk].contiguous(), torch.arange(self.max_length + 1, device=chunk.device)
        ).tolist()
        checks = Checks(self.head.logits_by_token)
        for t in range(int(branches.step[chunk[0]]), self.max_length):
            fresh = chunk[starts[t] : starts[t + 1]]
            if len(fresh):
                fresh, origin, count, states = spawn(mains.prefixes, t, fresh, branches.parent, shared)
                rows, tokens = torch.cat([rows, fresh]), torch.cat([tokens, branches.token[fresh]])
                place, size = torch.cat([place, size + origin]), size + count
                state = concat([*([] if state is None else [state]), *states])
            if len(rows) == 0:
                if starts[t + 1] == len(chunk):
                    break
                continue
            going = out.write(rows, t, tokens)
            if len(going) == 0:
                rows = tokens = place = chunk[:0]
                state, size = None, 0
                continue
            if len(going) < len(rows):
                rows, tokens, place = rows[going], tokens[going], place[going]
            read = tokens
            if shared:
                codes, meeting = (place * _TOKENS + tokens).unique(return_inverse=True)
                place, read, state = meeting, codes % _TOKENS, select(state, codes // _TOKENS)
            elif len(rows) < size:
                place, state = torch.arange(len(rows), device=rows.device), select(state, place)
            size = len(read)
            generated += size
            index = place if shared else None
            greedy = branches.greedy[rows] if greedy_too else False
            drawing = keys[rows], torch.full_like(rows, t + 1), greedy, index
            if screening is None:
                outputs, state = self._step(state, read)
                tokens, _, valid = self.head.choose(outputs, *drawing)
            else:
                hidden, read_out, state = self.policy.step_hidden(state, read)  # pyright: ignore[reportAttributeAccessIssue]
                tokens, valid = screening.choose(hidden, read_out, *drawing)
            checks.add(t + 1, valid, index, rows)
        checks.report(lambda of: mains.trajectories.examples[branches.parent[of]])
        return generated

    def _branch_keys(self, parents: Trajectories, branches: Branches, noise: Noise) -> OfBranches:
        examples, samples = parents.examples[branches.parent], parents.samples[branches.parent]
        if not self.share_noise:
            return noise.keys(examples, BRANCH, samples, branches.step, branches.token, branches.copy)
        if not bool(branches.copy.any()):
            return parents.keys[branches.parent]
        copies = noise.keys(examples, COPY, samples, branches.copy)
        return torch.where(branches.copy == 0, parents.keys[branches.parent], copies)

    def _check(self, parents: Trajectories, branches: Branches) -> None:
        if not len(branches):
            return
        if not bool(((branches.step >= 0) & (branches.step < parents.lengths[branches.parent])).all()):
            raise InputError("a branch starts at a step that its main trajectory does not have")
        if int(branches.token.min()) < 0 and not self.head.keeps_outputs:
            raise InputError(f"a branch starts with token {int(branches.token.min())}: tokens are counted from 0")

    def _finish_tokens(self, mains: Mains, branches: Branches, keys: OfBranches) -> Branches:
        """The branches with their first tokens completed, where those are partial walks down a tree."""
        token = branches.token.clone()
        partial = (token < 0).nonzero().squeeze(1)
        for prefix in mains.prefixes if len(partial) else ():
            for t, outputs in enumerate(prefix.outputs):
                at_step = partial[branches.step[partial] == t]
                selected, index = places_of(prefix, t, at_step, branches.parent, alone=len(mains.prefixes) == 1)
                if len(selected):
                    steps = torch.full_like(selected, t)
                    token[selected] = self.head.finish(
                        outputs[index], branches.token[selected], keys[selected], steps, branches.greedy[selected]
                    )
        return replace(branches, token=token)

    # --- searches ------------------------------------------------------------------------------------------------

    def _search(self, memory: Any, examples: Contexts, size: int, noise: Noise, replacement: bool) -> Mains:
        """Beam search, or a sample without replacement, of as many contexts at once as ``max_rows`` allows."""
        contexts = torch.arange(len(examples), device=examples.device)
        parts = [
            search(
                self.head,
                self.policy.start(select(memory, chunk)),
                self._step,
                examples[chunk],
                bos=self.bos,
                eos=self.eos,
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

    def _chunks(self, rows: int, device: torch.device) -> Sequence[Chunk]:
        return torch.arange(rows, device=device).split(self.max_rows) if rows else ()

    def _step(self, state: Any, tokens: Rows) -> tuple[Float[Tensor, "row width"], Any]:
        """The policy's step, checked for its shape."""
        outputs, state = self.policy.step(state, tokens)
        if outputs.ndim != 2 or len(outputs) != len(tokens):
            raise PolicyError(
                f"policy.step returned logits of shape {list(outputs.shape)} for {len(tokens)} rows; "
                f"it must return [rows, V]"
            )
        self.output_width = outputs.shape[1]
        return outputs, state


def score_tolerance(dtype: torch.dtype) -> float:
    """How far two computations of the same log-probability may be apart."""
    return 1e-3 if dtype in (torch.float32, torch.float64) else 5e-2
