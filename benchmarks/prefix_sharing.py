"""What does sharing prefixes save? ``Engine.complete`` against two ways of re-running the prefix of every branch.

The branches are those of ARSM on sampled trajectories of an LSTM decoder that never ends before T tokens. Opponents
complete them in one batch and drop rows that are done, as the engine does, but begin every branch from the start of
its sequence: ``complete_by_stepping`` token by token, ``complete_by_prefill`` with one call of ``nn.LSTM`` over all
prefixes of a length, so that no time goes into padding. The context's encoding is shared by all.

All draw with the same noise, so their sequences must be equal. In float32 a batch of another size may round
differently and, once in many thousand draws, tip one; equality is therefore demanded in float64, and in float32 up
to one sequence in a thousand.

An instrumented policy counts what each feeds to the model, also with a policy whose sequences end early.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Int64
from rich.progress import Progress
from torch import Tensor

from benchmarks.harness import Result, Target, Timing, best, milliseconds, time_alternately, with_threads
from corollout import Engine, Noise, Policy
from corollout.estimators import ARS
from corollout.noise import race
from corollout.policies import RecurrentPolicy, TokenEncoder
from corollout.policies.protocol import select
from corollout.rollouts import Mains
from corollout.types import Branches, Sequences

SEED = 1
BOS, EOS = 1, 2
NEVER, SOMETIMES = -1e4, 2.0  # logits added to the end token
LEAST_SPEEDUP = 1.7
MOST_ROUNDED = 1e-3  # the fraction of sequences that rounding may change in float32


class Sizes(NamedTuple):
    contexts: int
    vocab: int
    hidden: int
    layers: int
    length: int
    branches: int  # at most
    repetitions: int


# The paper's decoder for Karel programs, on which the target is judged, and a small one, of whose time less goes into
# the LSTM itself.
PAPER, SMALL = "LSTM 2 × 256", "LSTM 128"
FULL = {
    PAPER: Sizes(contexts=64, vocab=53, hidden=256, layers=2, length=20, branches=4000, repetitions=9),
    SMALL: Sizes(contexts=64, vocab=53, hidden=128, layers=1, length=20, branches=4000, repetitions=15),
}
QUICK = Sizes(contexts=8, vocab=11, hidden=16, layers=2, length=6, branches=150, repetitions=2)


class PrefillPolicy(Policy, Protocol):
    """A policy that can also read the beginnings of sequences at once."""

    def prefill(self, memory: Any, tokens: Int64[Tensor, "row step"], lengths: Int64[Tensor, " row"]) -> Any:
        """The state after the first ``lengths`` tokens of each row."""
        ...


class PrefillLSTM(RecurrentPolicy):
    """The reference LSTM decoder with fused passes over prefixes.

    One pass for each length, because it was faster than a single pass over a packed sequence.
    """

    def prefill(
        self, memory: dict[str, Tensor], tokens: Int64[Tensor, "row step"], lengths: Int64[Tensor, " row"]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        constant, recurrent = self.start(memory)
        x = self.embedding(tokens) + constant[:, None]
        after = tuple(torch.empty_like(part) for part in recurrent)
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero().squeeze(1)
            layered = tuple(part[rows].transpose(0, 1).contiguous() for part in recurrent)
            for part, last in zip(after, self.rnn(x[rows, :length], layered)[1], strict=True):
                part[rows] = last.transpose(0, 1)
        return constant, after


class CountingPolicy:
    """Hands everything to another policy and notes what it is fed.

    A state carries a hash of the context and of all tokens read so far, so that reading the same beginning a second
    time is noticed, and their number.
    """

    def __init__(self, policy: PrefillPolicy, eos: int, length: int):
        self.policy, self.eos, self.length = policy, eos, length
        self.fed: list[Tensor] = []  # the hashes after each call
        self.finished = 0  # tokens read by rows that had ended, or were complete
        self.noise = Noise(0)

    def encode(self, context: Tensor) -> tuple[Any, Tensor]:
        return self.policy.encode(context), torch.arange(len(context))

    def start(self, memory: tuple[Any, Tensor]) -> tuple[Any, Tensor, Tensor]:
        inner, history = memory
        return self.policy.start(inner), history, torch.zeros_like(history)

    def step(
        self, state: tuple[Any, Tensor, Tensor], tokens: Int64[Tensor, " row"]
    ) -> tuple[Tensor, tuple[Any, Tensor, Tensor]]:
        inner, history, count = state
        history, count = self._note(history, count, tokens)
        logits, inner = self.policy.step(inner, tokens)
        return logits, (inner, history, count)

    def prefill(
        self, memory: tuple[Any, Tensor], tokens: Int64[Tensor, "row step"], lengths: Int64[Tensor, " row"]
    ) -> tuple[Any, Tensor, Tensor]:
        inner, history = memory
        count = torch.zeros_like(history)
        for t in range(tokens.shape[1]):
            rows = (t < lengths).nonzero().squeeze(1)
            history[rows], count[rows] = self._note(history[rows], count[rows], tokens[rows, t])
        return self.policy.prefill(inner, tokens, lengths), history, count

    def score(self, memory: tuple[Any, Tensor], tokens: Int64[Tensor, "row step"]) -> Tensor:
        return self.policy.score(memory[0], tokens)

    def _note(self, history: Tensor, count: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        history, count = self.noise.keys(history, tokens), count + 1
        self.fed.append(history)
        # The start token and all but the last token are read: ``length`` tokens at most.
        self.finished += int(((tokens == self.eos) | (count > self.length)).sum())
        return history, count


class Problem(NamedTuple):
    """Sampled trajectories and branches to be completed."""

    engine: Engine
    memory: Any
    mains: Mains
    branches: Branches
    noise: Noise


Complete = Callable[[PrefillPolicy, Problem], Sequences]


def make_policy(sizes: Sizes, end_bias: float, dtype: torch.dtype) -> PrefillLSTM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        encoder = TokenEncoder(sizes.vocab, sizes.hidden)
        policy = PrefillLSTM(encoder, encoder.width, sizes.vocab, sizes.hidden, sizes.layers)
    with torch.no_grad():
        policy.output.bias[EOS] += end_bias
    return policy.to(dtype)


@torch.no_grad()
def make_problem(policy: Policy, sizes: Sizes) -> Problem:
    """Sample main trajectories and take ARSM's branches off them, or if there are too many, some evenly spaced."""
    noise = Noise(SEED)
    engine = Engine(policy, bos=BOS, eos=EOS, max_length=sizes.length)
    contexts = torch.randint(sizes.vocab, (sizes.contexts, 8), generator=torch.Generator().manual_seed(SEED))
    memory = policy.encode(contexts)
    estimator = ARS()
    mains = engine.sample(memory, torch.arange(sizes.contexts), estimator.sampler, noise)
    branches = estimator.plan(mains.trajectories, noise).branches
    kept = torch.linspace(0, len(branches) - 1, min(sizes.branches, len(branches))).long()
    return Problem(engine, memory, mains, branches.select(kept), noise)


# --- opponents -----------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """What both opponents begin with: beginnings written down, and rows that are not complete with them."""

    tokens: Int64[Tensor, "branch step"]  # prefix and the branch's own token, then end tokens
    lengths: Int64[Tensor, " branch"]
    keys: Int64[Tensor, " branch"]  # the engine shares the parents' noise with their branches
    memory: Any  # of the rows under way
    rows: Int64[Tensor, " row"]  # under way

    def sequences(self) -> Sequences:
        last = self.tokens.gather(1, self.lengths[:, None] - 1).squeeze(1)
        return Sequences(self.tokens[:, : int(self.lengths.max())], self.lengths, last == EOS)


def _begin(problem: Problem) -> _Work:
    parents, branches, length = problem.mains.trajectories, problem.branches, problem.engine.max_length
    positions = torch.arange(length)
    tokens = torch.full((len(branches), length), EOS)
    tokens[:, : parents.tokens.shape[1]] = parents.tokens[branches.parent]
    tokens = torch.where(positions < branches.step[:, None], tokens, EOS)
    tokens.scatter_(1, branches.step[:, None], branches.token[:, None])
    rows = ((branches.token != EOS) & (branches.step + 1 < length)).nonzero().squeeze(1)
    memory = select(problem.memory, parents.contexts[branches.parent[rows]])
    return _Work(tokens, branches.step + 1, parents.keys[branches.parent], memory, rows)


@torch.no_grad()
def complete_by_stepping(policy: PrefillPolicy, problem: Problem) -> Sequences:
    """All branches step from their start token; while a row is in its prefix, its next token is the known one."""
    work, steps = _begin(problem), problem.branches.step
    rows, state, inputs = work.rows, policy.start(work.memory), torch.full_like(work.rows, BOS)
    for t in range(problem.engine.max_length):
        logits, state = policy.step(state, inputs)
        free = (steps[rows] < t).nonzero().squeeze(1)
        drawn = rows[free]
        work.tokens[drawn, t] = race(logits[free], work.keys[drawn], torch.full_like(drawn, t))
        work.lengths[drawn] = t + 1
        going = ((work.tokens[rows, t] != EOS) | (steps[rows] >= t)).nonzero().squeeze(1)
        if len(going) < len(rows):
            rows, state = rows[going], select(state, going)
        if len(rows) == 0:
            break
        inputs = work.tokens[rows, t]
    return work.sequences()


@torch.no_grad()
def complete_by_prefill(policy: PrefillPolicy, problem: Problem) -> Sequences:
    """All prefixes are read by fused passes; then every row steps on from its branch's token, all of them together."""
    work, steps = _begin(problem), problem.branches.step
    rows = work.rows
    if len(rows) == 0:
        return work.sequences()
    prefixes = torch.cat([torch.full_like(work.tokens[rows, :1], BOS), work.tokens[rows, : int(steps[rows].max())]], 1)
    state = policy.prefill(work.memory, prefixes, steps[rows] + 1)
    position = steps[rows] + 1  # of the token that is drawn next
    inputs = problem.branches.token[rows]
    while len(rows):
        logits, state = policy.step(state, inputs)
        inputs = race(logits, work.keys[rows], position)
        work.tokens[rows, position] = inputs
        work.lengths[rows] = position + 1
        position = position + 1
        going = ((inputs != EOS) & (position < problem.engine.max_length)).nonzero().squeeze(1)
        if len(going) < len(rows):
            rows, position, inputs, state = rows[going], position[going], inputs[going], select(state, going)
    return work.sequences()


def complete_by_engine(policy: PrefillPolicy, problem: Problem) -> Sequences:
    """Ours; the engine has its own policy, which is the given one."""
    assert problem.engine.policy is policy
    return problem.engine.complete(problem.mains, problem.branches, problem.noise).sequences


CONTESTANTS: dict[str, Complete] = {
    "Engine.complete": complete_by_engine,
    "step the prefix": complete_by_stepping,
    "prefill the prefix": complete_by_prefill,
}


# --- checks and counts ---------------------------------------------------------------------------------------------


def differing(a: Sequences, b: Sequences) -> int:
    """How many sequences are not the same."""
    if a.tokens.shape != b.tokens.shape:
        return len(a.tokens)
    same = (a.tokens == b.tokens).all(1) & (a.lengths == b.lengths) & (a.finished == b.finished)
    return int((~same).sum())


def check(policy: PrefillPolicy, problem: Problem, allowed: float) -> dict[str, int]:
    """The opponents' sequences are the engine's, but for an allowed fraction; return how many are not."""
    ours = complete_by_engine(policy, problem)
    counts = {
        name: differing(ours, CONTESTANTS[name](policy, problem)) for name in ("step the prefix", "prefill the prefix")
    }
    for name, count in counts.items():
        if count > allowed * len(problem.branches):
            raise AssertionError(f"{count} of {len(problem.branches)} sequences of '{name}' differ from the engine's")
    return counts


def count(sizes: Sizes, end_bias: float) -> dict[str, Any]:
    """What each contestant feeds to the policy, in float64; the engine's must be exactly the tokens it generates."""
    counts: dict[str, Any] = {}
    for name, complete in CONTESTANTS.items():
        policy = CountingPolicy(make_policy(sizes, end_bias, torch.float64), EOS, sizes.length)
        problem = make_problem(policy, sizes)
        mains = torch.cat(policy.fed)
        policy.fed.clear()
        sequences = complete(policy, problem)
        fed = torch.cat(policy.fed)
        generated = int((sequences.lengths - problem.branches.step - 1).sum())
        counts[name] = {
            "branches": len(problem.branches),
            "ended": int(sequences.finished.sum()),
            "generated": generated,
            "fed": len(fed),
            "fed_again": len(fed) - len(torch.cat([mains, fed]).unique()) + len(mains.unique()),
            "fed_to_finished_rows": policy.finished,
        }
        if name == "Engine.complete":
            reported = problem.engine.complete(problem.mains, problem.branches, problem.noise).tokens
            _check_counts(counts[name], reported, problem, len(mains))
    return counts


def _check_counts(counts: dict[str, int], reported: int, problem: Problem, mains_fed: int) -> None:
    claims = {
        "the engine feeds as many tokens as it generates": counts["fed"] == counts["generated"],
        "the engine reports the tokens that it feeds": reported == counts["fed"],
        "so it does for the main trajectories": problem.mains.tokens == mains_fed,
        "nothing that was fed is fed again": counts["fed_again"] == 0,
        "a row that has ended is fed nothing": counts["fed_to_finished_rows"] == 0,
    }
    for claim, holds in claims.items():
        if not holds:
            raise AssertionError(f"not true: {claim} ({counts}, reported: {reported}, main tokens: {mains_fed})")


class Decoder(NamedTuple):
    """What was measured on one decoder."""

    timings: list[Timing]
    speedups: dict[str, float]
    counts: dict[str, Any]
    facts: dict[str, Any]

    def rows(self, name: str) -> list[dict[str, str]]:
        ours = best(self.timings, next(iter(CONTESTANTS)))
        return [
            {
                "decoder": name,
                "contestant": timing.name,
                "threads": str(timing.threads),
                "ms (quartiles)": milliseconds(timing),
                "time / ours": f"{timing.median / ours.median:.2f}",
                "generated": str(tally["generated"]),
                "fed": str(tally["fed"]),
                "fed again": str(tally["fed_again"]),
            }
            for timing in self.timings
            for tally in [self.counts["never ends early"][timing.name]]
        ]


def measure(sizes: Sizes, progress: Progress, name: str) -> Decoder:
    """Check that all contestants agree, count what they feed, and time them."""
    for end_bias in (NEVER, SOMETIMES):
        exact = make_policy(sizes, end_bias, torch.float64)
        check(exact, make_problem(exact, sizes), allowed=0)
    policy = make_policy(sizes, NEVER, torch.float32)
    problem = make_problem(policy, sizes)
    rounded = check(policy, problem, MOST_ROUNDED)
    counts = {"never ends early": count(sizes, NEVER), "ends early": count(sizes, SOMETIMES)}
    timings = time_alternately(
        [
            contestant
            for contestant_name, complete in CONTESTANTS.items()
            for contestant in with_threads(contestant_name, lambda complete=complete: complete(policy, problem))
        ],
        sizes.repetitions,
        progress,
        f"prefix_sharing, {name}",
    )
    ours, *opponents = (best(timings, contestant) for contestant in CONTESTANTS)
    facts = {
        "branches": len(problem.branches),
        "mean_step": float(problem.branches.step.double().mean()),
        "sequences_that_rounding_changed_in_float32": rounded,
    }
    return Decoder(timings, {o.name: o.median / ours.median for o in opponents}, counts, facts)


def run(quick: bool, progress: Progress) -> Result:
    decoders = {"quick": QUICK} if quick else FULL
    measured = {name: measure(sizes, progress, name) for name, sizes in decoders.items()}
    judged = next(iter(measured))
    return {
        "benchmark": "prefix_sharing",
        "quick": quick,
        "settings": {name: {**sizes._asdict(), "cell": "lstm", "dtype": "float32"} for name, sizes in decoders.items()},
        "seeds": {"weights, contexts and noise": SEED},
        "timings": [{"decoder": name, **t.record()} for name, decoder in measured.items() for t in decoder.timings],
        "measurements": {
            name: {**decoder.facts, "speedups": decoder.speedups, "counts": decoder.counts}
            for name, decoder in measured.items()
        },
        "targets": [
            Target(
                f"at least {LEAST_SPEEDUP:g} times as fast as the faster way of re-running prefixes ({judged})",
                min(measured[judged].speedups.values()),
                LEAST_SPEEDUP,
                at_least=True,
                judged=not quick,
            ).record()
        ],
        "table": [row for name, decoder in measured.items() for row in decoder.rows(name)],
    }
