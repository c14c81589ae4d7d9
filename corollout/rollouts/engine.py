"""The rollout engine: main trajectories, then all branches of all steps together. It knows tokens, not text.

No prefix is ever computed twice: a branch starts from its parent's state at its step, and all branches advance
together in time, so that at step t one call of the policy serves the branches that are under way and those that
start there. A row that has ended is dropped at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.errors import InputError, PolicyError
from corollout.noise import BRANCH, COPY, MAIN, Noise
from corollout.policies.heads import Head, head_of
from corollout.policies.protocol import Policy, concat, evaluation_mode, select
from corollout.rollouts.search import search
from corollout.types import Branches, Sampler, Sequences, Trajectories


@dataclass(frozen=True)
class Prefixes:
    """The states of main trajectories: at each step, which rows were under way and their state after its logits."""

    rows: list[Int64[Tensor, " row"]]  # ascending
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
    tokens: int  # generated, prefixes not counted


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
        for name, value, least in (
            ("bos", bos, 0),
            ("eos", eos, 0),
            ("max_length", max_length, 1),
            ("max_rows", max_rows, 1),
        ):
            if value < least:
                raise InputError(f"the engine needs {name} ≥ {least}, not {value}")
        self.policy = policy
        self.head: Head = head_of(policy)
        self.bos, self.eos = bos, eos
        self.max_length, self.max_rows = max_length, max_rows
        self.share_noise = share_noise

    @torch.no_grad()
    def sample(self, memory: Any, examples: Int64[Tensor, " context"], sampler: Sampler, noise: Noise) -> Mains:
        """Main trajectories, ``sampler.count`` for each context (a beam may find fewer), ordered by context."""
        with evaluation_mode(self.policy):
            if sampler.mode in ("beam", "set"):
                return self._search(memory, examples, sampler.count, noise, replacement=sampler.mode == "beam")
            contexts = torch.arange(len(examples), device=examples.device).repeat_interleave(sampler.count)
            samples = torch.arange(sampler.count, device=examples.device).repeat(len(examples))
            keys = noise.keys(examples[contexts], MAIN, samples)
            out = _Sheet(len(contexts), self.max_length, self.eos, examples.device)
            prefixes, logits, tokens = [], [], 0
            for rows in self._chunks(len(contexts), examples.device):
                prefix, chunk_logits = self._run_mains(
                    memory, contexts, examples, rows, keys, sampler.mode == "greedy", out
                )
                prefixes.append(prefix)
                logits.append(chunk_logits)
                tokens += sum(len(alive) for alive in prefix.rows)
            sequences = out.sequences()
            stacked = _stack_logits(logits, prefixes, sequences)
            trajectories = Trajectories(
                **vars(sequences),
                contexts=contexts,
                examples=examples[contexts],
                samples=samples,
                keys=keys,
                log_probs=self._log_probs(stacked, sequences),
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
            branches = self._words(mains, branches, keys)
        out = _Sheet(len(branches), self.max_length, self.eos, branches.parent.device)
        before = torch.arange(self.max_length, device=branches.parent.device) < branches.step[:, None]
        width = parents.tokens.shape[1]
        out.tokens[:, :width] = torch.where(before[:, :width], parents.tokens[branches.parent], out.tokens[:, :width])
        # In the order of their steps, the rows of a chunk are under way at the same time.
        order = branches.step.argsort(stable=True)
        tokens = 0
        with evaluation_mode(self.policy):
            for chunk in self._chunks(len(branches), order.device):
                tokens += self._run_branches(mains, branches, order[chunk], keys, out)
        return Completions(out.sequences(), tokens)

    @torch.no_grad()
    def check_states(self, mains: Mains) -> None:
        """Refuse a policy that changes a state in place: branches would start from what their parents became."""
        for prefix in mains.prefixes:
            if len(prefix.rows) < 2:
                continue
            rows = prefix.rows[1]
            place = torch.searchsorted(prefix.rows[0], rows)
            tokens = mains.trajectories.tokens
            with evaluation_mode(self.policy):
                again, _ = self.policy.step(select(prefix.states[0], place), tokens[rows, 0])
                logits = self.head.logits(again[:, None], tokens[rows, 1:2])
            gap = self.head.gap(logits, mains.trajectories.logits[rows, 1:2], tokens[rows, 1:2])
            if float(gap.max()) > score_tolerance(again.dtype):
                raise PolicyError(
                    "policy.step changes its state in place: from a state that was kept, the same token gives other "
                    "logits later on; return a new state instead"
                )

    def score_inputs(self, sequences: Sequences) -> Int64[Tensor, "row step"]:
        """What ``policy.score`` reads to give the logits of every token of the sequences."""
        start = torch.full_like(sequences.tokens[:, :1], self.bos)
        return torch.cat([start, sequences.tokens[:, :-1]], 1)

    # --- main trajectories ---------------------------------------------------------------------------------------

    def _run_mains(
        self,
        memory: Any,
        contexts: Int64[Tensor, " row"],
        examples: Int64[Tensor, " context"],
        rows: Int64[Tensor, " chunk"],
        keys: Int64[Tensor, " row"],
        greedy: bool,
        out: "_Sheet",
    ) -> tuple[Prefixes, list[Tensor]]:
        state = self.policy.start(select(memory, contexts[rows]))
        tokens = torch.full_like(rows, self.bos)
        prefix, logits = Prefixes([], [], []), []
        for t in range(self.max_length):
            outputs, state = self._step(state, tokens)
            tokens, logits_t, sound = self.head.choose(outputs, keys[rows], torch.full_like(rows, t), greedy)
            _check_sound(sound, t, lambda rows=rows: examples[contexts[rows]])
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

    def _run_branches(
        self,
        mains: Mains,
        branches: Branches,
        chunk: Int64[Tensor, " chunk"],
        keys: Int64[Tensor, " branch"],
        out: "_Sheet",
    ) -> int:
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
            tokens, _, sound = self.head.choose(outputs, keys[rows], torch.full_like(rows, t + 1), greedy)
            _check_sound(sound, t + 1, lambda rows=rows: mains.trajectories.examples[branches.parent[rows]])
            going = out.write(rows, t + 1, tokens)
            if len(going) < len(rows):
                rows, tokens, state = rows[going], tokens[going], select(state, going) if len(going) else None
        return generated

    def _branch_keys(self, parents: Trajectories, branches: Branches, noise: Noise) -> Int64[Tensor, " branch"]:
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
            raise InputError("a branch starts at a step which its main trajectory does not have")
        if int(branches.token.min()) < 0 and not self.head.keeps_outputs:
            raise InputError(f"a branch starts with token {int(branches.token.min())}: tokens are counted from 0")

    def _words(self, mains: Mains, branches: Branches, keys: Int64[Tensor, " branch"]) -> Branches:
        """The branches with the words completed that were only begun."""
        token = branches.token.clone()
        begun = (token < 0).nonzero().squeeze(1)
        for prefix in mains.prefixes if len(begun) else ():
            for t, (rows, outputs) in enumerate(zip(prefix.rows, prefix.outputs, strict=True)):
                here = begun[branches.step[begun] == t]
                here, place = _among(rows, here, branches.parent)
                if len(here):
                    steps = torch.full_like(here, t)
                    token[here] = self.head.finish(
                        outputs[place], branches.token[here], keys[here], steps, branches.greedy[here]
                    )
        return replace(branches, token=token)

    # --- searches ------------------------------------------------------------------------------------------------

    def _search(
        self, memory: Any, examples: Int64[Tensor, " context"], size: int, noise: Noise, replacement: bool
    ) -> Mains:
        """The sequences that beam search finds, or that are drawn without replacement; no more contexts at once than
        ``max_rows`` allows."""
        contexts = torch.arange(len(examples), device=examples.device)
        parts = [
            (
                chunk,
                search(
                    self.head,
                    self.policy.start(select(memory, chunk)),
                    self._step,
                    lambda sound, t, owner, chunk=chunk: _check_sound(sound, t, lambda: examples[chunk][owner]),
                    examples[chunk],
                    bos=self.bos,
                    eos=self.eos,
                    max_length=self.max_length,
                    size=size,
                    noise=None if replacement else noise,
                ),
            )
            for chunk in contexts.split(max(1, self.max_rows // size))
        ]
        lengths = torch.cat([found.lengths for _, found in parts])
        context = torch.cat([chunk[found.context] for chunk, found in parts])
        number = torch.cat([found.number for _, found in parts])
        tokens = torch.cat([found.tokens for _, found in parts])[:, : max(int(lengths.max()), 1) if len(lengths) else 1]
        log_probs = torch.cat([found.log_probs for _, found in parts])
        trajectories = Trajectories(
            tokens=tokens,
            lengths=lengths,
            finished=torch.cat([found.ended for _, found in parts]),
            contexts=context,
            examples=examples[context],
            samples=number,
            keys=noise.keys(examples[context], MAIN, number),
            log_probs=log_probs,
            logits=log_probs.new_zeros(*tokens.shape, 0),
            decisions=self.head.decisions(tokens),
        )
        return Mains(trajectories, [], sum(found.generated for _, found in parts))

    # --- common --------------------------------------------------------------------------------------------------

    def _chunks(self, rows: int, device: torch.device) -> Iterator[Int64[Tensor, " chunk"]]:
        yield from torch.arange(rows, device=device).split(self.max_rows) if rows else ()

    def _step(self, state: Any, tokens: Int64[Tensor, " row"]) -> tuple[Float[Tensor, "row width"], Any]:
        """The policy's step, checked for its shape."""
        outputs, state = self.policy.step(state, tokens)
        if outputs.ndim != 2 or len(outputs) != len(tokens):
            raise PolicyError(
                f"policy.step returned logits of shape {list(outputs.shape)} for {len(tokens)} rows; "
                f"it must return [rows, V]"
            )
        return outputs, state

    def _log_probs(self, logits: Float[Tensor, "row step vocab"], sequences: Sequences) -> Float[Tensor, " row"]:
        if logits.shape[2] == 0:
            return logits.new_zeros(len(logits))
        chosen = self.head.log_probs(logits, sequences.tokens)
        place = torch.arange(chosen.shape[1], device=chosen.device)
        return torch.where(place < sequences.lengths[:, None], chosen, 0.0).sum(1)


def _check_sound(sound: Bool[Tensor, " row"], t: int, examples: Callable[[], Int64[Tensor, " row"]]) -> None:
    if not bool(sound.all()):
        raise PolicyError(
            f"policy.step returned NaN or +inf, or masked every token, "
            f"for example {int(examples()[~sound][0])} at step {t}"
        )


def score_tolerance(dtype: torch.dtype) -> float:
    """How far two computations of the same log-probability may be apart."""
    return 1e-3 if dtype in (torch.float32, torch.float64) else 5e-2


class _Sheet:
    """Sequences being written."""

    def __init__(self, rows: int, max_length: int, eos: int, device: torch.device):
        self.eos = eos
        self.tokens = torch.full((rows, max_length), eos, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finished = torch.zeros(rows, dtype=torch.bool, device=device)

    def write(self, rows: Int64[Tensor, " row"], t: int, tokens: Int64[Tensor, " row"]) -> Int64[Tensor, " going"]:
        """Write token t of some rows; return the positions, among those, of the rows that go on."""
        self.tokens[rows, t] = tokens
        ends = tokens == self.eos
        if t + 1 == self.tokens.shape[1]:
            self.lengths[rows], self.finished[rows] = t + 1, ends
            return rows[:0]
        if bool(ends.any()):
            self.lengths[rows[ends]], self.finished[rows[ends]] = t + 1, True
        return (~ends).nonzero().squeeze(1)

    def sequences(self) -> Sequences:
        width = max(int(self.lengths.max()), 1) if len(self.lengths) else 1
        return Sequences(self.tokens[:, :width], self.lengths, self.finished)


def _spawn(
    prefixes: list[Prefixes], t: int, fresh: Int64[Tensor, " fresh"], parent: Int64[Tensor, " branch"]
) -> tuple[Int64[Tensor, " fresh"], list[Any]]:
    """The states from which branches start at step t, chunk by chunk, and the branches in the same order."""
    ordered, states = [], []
    for prefix in prefixes:
        if t >= len(prefix.rows):
            continue
        here, place = _among(prefix.rows[t], fresh, parent)
        if len(here):
            ordered.append(here)
            states.append(select(prefix.states[t], place))
    return torch.cat(ordered), states


def _among(
    rows: Int64[Tensor, " row"], some: Int64[Tensor, " some"], parent: Int64[Tensor, " branch"]
) -> tuple[Int64[Tensor, " found"], Int64[Tensor, " found"]]:
    """Those of some branches whose parents are among the rows, which ascend, and where their parents stand there."""
    place = torch.searchsorted(rows, parent[some]).clamp_(max=len(rows) - 1)
    here = rows[place] == parent[some]
    return some[here], place[here]


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
