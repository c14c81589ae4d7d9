"""The rollout engine: main trajectories, then all branches of all steps together. It knows tokens, not text.

No prefix is ever computed twice: a branch starts from its parent's state at its step, and all branches advance
together in time, so that at step t one call of the policy serves the branches that are under way and those that
start there. A row that has ended is dropped at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError, PolicyError
from corollout.noise import BRANCH, COPY, MAIN, Noise
from corollout.policies.protocol import Head, Policy, check_valid, concat, evaluation_mode, head_of, select
from corollout.rollouts.search import Slots, search
from corollout.types import Branches, Sampler, Sequences, Trajectories

# Integers for each context, main trajectory, branch, or row of a chunk of those
Contexts = Int64[Tensor, " context"]
Rows = Int64[Tensor, " row"]
OfBranches = Int64[Tensor, " branch"]
Chunk = Int64[Tensor, " chunk"]


@dataclass(frozen=True)
class Prefixes:
    """The states of main trajectories: at each step, which rows were under way and their state after its logits."""

    rows: list[Rows]  # ascending
    states: list[Any]
    outputs: list[Tensor]  # what the policy put out, if its head wants to see it again


@dataclass(frozen=True)
class Mains:
    """Main trajectories with what is needed to branch off them."""

    trajectories: Trajectories
    prefixes: list[Prefixes]  # one for each chunk of rows
    tokens: int  # generated


@dataclass(frozen=True)
class Completions:
    """Completed branches: whole sequences, prefix included."""

    sequences: Sequences
    tokens: int  # generated, not counting prefixes


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

    @torch.no_grad()
    def decode(self, context: Any, examples: Contexts, sampler: Sampler, noise: Noise) -> Mains:
        """Main trajectories for some contexts, without a gradient: encode them, then sample."""
        with evaluation_mode(self.policy):
            memory = self.policy.encode(context)
        return self.sample(memory, examples, sampler, noise)

    @torch.no_grad()
    def sample(self, memory: Any, examples: Contexts, sampler: Sampler, noise: Noise) -> Mains:
        """Main trajectories, ``sampler.count`` for each context (a beam may find fewer), ordered by context."""
        with evaluation_mode(self.policy):
            if sampler.mode in ("beam", "set"):
                return self._search(memory, examples, sampler.count, noise, replacement=sampler.mode == "beam")
            contexts = torch.arange(len(examples), device=examples.device).repeat_interleave(sampler.count)
            samples = torch.arange(sampler.count, device=examples.device).repeat(len(examples))
            keys = noise.keys(examples[contexts], MAIN, samples)
            out = _Output(len(contexts), self.max_length, self.eos, examples.device)
            prefixes, logits, tokens = [], [], 0
            greedy = sampler.mode == "greedy"
            for rows in self._chunks(len(contexts), examples.device):
                prefix, chunk_logits = self._run_mains(memory, contexts, examples, rows, keys, greedy, out)
                prefixes.append(prefix)
                logits.append(chunk_logits)
                tokens += sum(len(alive) for alive in prefix.rows)
            sequences = out.sequences()
            stacked = _stack_logits(logits, prefixes, sequences)
            chosen = self.head.log_probs(stacked, sequences.tokens) if logits else stacked.sum(2)
            mask = torch.arange(chosen.shape[1], device=chosen.device) < sequences.lengths[:, None]
            trajectories = Trajectories(
                **vars(sequences),
                contexts=contexts,
                examples=examples[contexts],
                samples=samples,
                keys=keys,
                log_probs=torch.where(mask, chosen, 0.0).sum(1),
                logits=stacked,
                decisions=self.head.decisions(sequences.tokens),
            )
            return Mains(trajectories, prefixes, tokens)

    @torch.no_grad()
    def complete(self, mains: Mains, branches: Branches, noise: Noise) -> Completions:
        """The branches' whole sequences."""
        parents = mains.trajectories
        self._check(parents, branches)
        keys = self._branch_keys(parents, branches, noise)
        with evaluation_mode(self.policy):
            branches = self._finish_tokens(mains, branches, keys)
            out = _Output(len(branches), self.max_length, self.eos, branches.parent.device)
            width = parents.tokens.shape[1]
            before = torch.arange(width, device=branches.parent.device) < branches.step[:, None]
            out.tokens[:, :width] = torch.where(before, parents.tokens[branches.parent], self.eos)
            # In the order of their steps, the rows of a chunk are under way at the same time.
            order = branches.step.argsort(stable=True)
            chunks = self._chunks(len(branches), order.device)
            tokens = sum(self._run_branches(mains, branches, order[chunk], keys, out) for chunk in chunks)
        return Completions(out.sequences(), tokens)

    @torch.no_grad()
    def check_states(self, mains: Mains) -> None:
        """Refuse a policy that changes states in place: branches would start from what their parents became."""
        for prefix in mains.prefixes:
            if len(prefix.rows) < 2:
                continue
            rows = prefix.rows[1]
            index = torch.searchsorted(prefix.rows[0], rows)
            tokens = mains.trajectories.tokens
            with evaluation_mode(self.policy):
                again, _ = self.policy.step(select(prefix.states[0], index), tokens[rows, 0])
                logits = self.head.logits(again[:, None], tokens[rows, 1:2])
            gap = self.head.gap(logits, mains.trajectories.logits[rows, 1:2], tokens[rows, 1:2])
            if float(gap.max()) > score_tolerance(again.dtype):
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
        self, memory: Any, contexts: Rows, examples: Contexts, rows: Chunk, keys: Rows, greedy: bool, out: "_Output"
    ) -> tuple[Prefixes, list[Tensor]]:
        state = self.policy.start(select(memory, contexts[rows]))
        tokens = torch.full_like(rows, self.bos)
        prefix, logits = Prefixes([], [], []), []
        for t in range(self.max_length):
            outputs, state = self._step(state, tokens)
            tokens, logits_t, valid = self.head.choose(outputs, keys[rows], torch.full_like(rows, t), greedy)
            check_valid(valid, t, lambda rows=rows: examples[contexts[rows]])
            prefix.rows.append(rows)
            prefix.states.append(state)
            if self.head.keeps_outputs:
                prefix.outputs.append(outputs)
            logits.append(logits_t)
            going = out.write(rows, t, tokens)
            if len(going) == 0:
                break
            if len(going) < len(rows):
                rows, tokens, state = rows[going], tokens[going], select(state, going)
        return prefix, logits

    # --- branches ------------------------------------------------------------------------------------------------

    def _run_branches(self, mains: Mains, branches: Branches, chunk: Chunk, keys: OfBranches, out: "_Output") -> int:
        """Complete a chunk of branches, given in the order of their steps; return the number of tokens generated."""
        generated = 0
        rows, tokens, state = chunk[:0], chunk[:0], None
        greedy_too = bool(branches.greedy[chunk].any())
        # The chunk's branches of step t are chunk[starts[t] : starts[t + 1]].
        starts = torch.searchsorted(
            branches.step[chunk].contiguous(), torch.arange(self.max_length + 1, device=chunk.device)
        ).tolist()
        for t in range(int(branches.step[chunk[0]]), self.max_length):
            fresh = chunk[starts[t] : starts[t + 1]]
            fresh = fresh[out.write(fresh, t, branches.token[fresh])]
            parts = [] if state is None else [state]
            if len(fresh):
                fresh, fresh_states = _spawn(mains.prefixes, t, fresh, branches.parent)
                parts += fresh_states
                rows, tokens = torch.cat([rows, fresh]), torch.cat([tokens, branches.token[fresh]])
            if len(rows) == 0:
                if starts[t + 1] == len(chunk):
                    break
                continue
            outputs, state = self._step(concat(parts), tokens)
            generated += len(rows)
            greedy = branches.greedy[rows] if greedy_too else False
            tokens, _, valid = self.head.choose(outputs, keys[rows], torch.full_like(rows, t + 1), greedy)
            check_valid(valid, t + 1, lambda rows=rows: mains.trajectories.examples[branches.parent[rows]])
            going = out.write(rows, t + 1, tokens)
            if len(going) < len(rows):
                rows, tokens, state = rows[going], tokens[going], select(state, going) if len(going) else None
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
            for t, (rows, outputs) in enumerate(zip(prefix.rows, prefix.outputs, strict=True)):
                at_step = partial[branches.step[partial] == t]
                selected, index = _with_parents_in(rows, at_step, branches.parent)
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
        tokens = slots.tokens[context, slot][:, : _longest(lengths)]
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
        return outputs, state


def score_tolerance(dtype: torch.dtype) -> float:
    """How far two computations of the same log-probability may be apart."""
    return 1e-3 if dtype in (torch.float32, torch.float64) else 5e-2


class _Output:
    """Sequences being generated."""

    def __init__(self, rows: int, max_length: int, eos: int, device: torch.device):
        self.eos = eos
        self.tokens = torch.full((rows, max_length), eos, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finished = torch.zeros(rows, dtype=torch.bool, device=device)

    def write(self, rows: Rows, t: int, tokens: Rows) -> Int64[Tensor, " going"]:
        """Write token t of some rows; return the positions, among those, of the rows that continue."""
        self.tokens[rows, t] = tokens
        ends = tokens == self.eos
        if t + 1 == self.tokens.shape[1]:
            self.lengths[rows], self.finished[rows] = t + 1, ends
            return rows[:0]
        if bool(ends.any()):
            self.lengths[rows[ends]], self.finished[rows[ends]] = t + 1, True
        return (~ends).nonzero().squeeze(1)

    def sequences(self) -> Sequences:
        return Sequences(self.tokens[:, : _longest(self.lengths)], self.lengths, self.finished)


def _longest(lengths: Rows) -> int:
    return int(lengths.max()) if len(lengths) else 1


def _spawn(
    prefixes: list[Prefixes], t: int, fresh: Int64[Tensor, " fresh"], parent: OfBranches
) -> tuple[Int64[Tensor, " fresh"], list[Any]]:
    """The states from which branches start at step t, chunk by chunk, and the branches in the same order."""
    ordered, states = [], []
    for prefix in prefixes:
        if t >= len(prefix.rows):
            continue
        selected, index = _with_parents_in(prefix.rows[t], fresh, parent)
        if len(selected):
            ordered.append(selected)
            states.append(select(prefix.states[t], index))
    return torch.cat(ordered), states


def _with_parents_in(
    rows: Rows, branches: Int64[Tensor, " some"], parent: OfBranches
) -> tuple[Int64[Tensor, " selected"], Int64[Tensor, " selected"]]:
    """Those of some branches whose parents are among the rows, which ascend, and the parents' positions there."""
    index = torch.searchsorted(rows, parent[branches]).clamp_(max=len(rows) - 1)
    is_in = rows[index] == parent[branches]
    return branches[is_in], index[is_in]


def _stack_logits(
    logits: list[list[Tensor]], prefixes: list[Prefixes], sequences: Sequences
) -> Float[Tensor, "row step vocab"]:
    """The logits of all rows and steps in one tensor."""
    rows, steps = sequences.tokens.shape
    if not logits:
        return torch.zeros(rows, steps, 0, device=sequences.tokens.device)
    stacked = logits[0][0].new_zeros(rows, steps, logits[0][0].shape[1])
    for chunk, prefix in zip(logits, prefixes, strict=True):
        for t, (logits_t, alive) in enumerate(zip(chunk, prefix.rows, strict=True)):
            stacked[alive, t] = logits_t
    return stacked
