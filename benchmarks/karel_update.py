"""What does an ARSM update cost on Karel, and where? The engine against the straightforward way, on one thread.

An update is all from a batch of tasks to the gradient of the parameters: encode, sample, plan, complete the branches,
reward, score, backward; the optimizer's step, which both would have in common, is left out. There are two problems: the
small scale as it is, with programs of at most 12 tokens; and the same network on programs of the paper's lengths, up to
45 tokens, in larger worlds. The policies have learnt by maximum likelihood for a while: their rollouts are those of a
policy that knows something. Their weights are kept in the folder for temporary files, for the next time.

The opponent shares no prefix and drops no row: it completes all branches of all steps in one batch (or as many as the
engine allows at once), each from its start state on, its known tokens first, until the last row has ended. Everything
else is the same code, and so is the noise, so that the gradients must be equal: exactly the same sequences in float64,
all but one in a thousand in float32, where another size of a batch may round differently.
"""

import inspect
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from rich.progress import Progress
from torch import Tensor, nn

from benchmarks.harness import Contestant, Result, Target, Timing, figure, milliseconds, time_alternately
from corollout import Engine, Noise
from corollout.data import Batch, Columns
from corollout.errors import InputError
from corollout.estimators import ARS
from corollout.noise import MAIN, race
from corollout.policies import evaluation_mode, lstm, select
from corollout.rewards import Reward
from corollout.rollouts import Completions, Mains
from corollout.rollouts.watch import Look, Reads
from corollout.tasks.karel import model
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.metrics import SolvesTask
from corollout.tasks.karel.settings import ModelSettings
from corollout.tasks.karel.spec import KAREL
from corollout.tasks.karel.task import KarelTask, karel_split
from corollout.training.base import flat_gradient
from corollout.training.estimates import Estimate, estimate
from corollout.training.mle import MLETrainer
from corollout.types import Branches, Sampler, Sequences, Trajectories
from corollout.weights import read_weights, write_weights

SEED = 1
MOST_REWARD, LEAST_SPEEDUP = 0.05, 2.0
MOST_ROUNDED = 1e-3  # the fraction of sequences that rounding may change in float32
PARTS = {
    "sample": "sampling, encoder included",
    "plan": "planning",
    "complete": "branching",
    "reward": "reward",
    "score": "scoring",
    "backward": "backward",
}
OURS, THEIRS = "engine", "straightforward"
SMALL, LONG = "small scale", "the paper's lengths"


class Sizes(NamedTuple):
    model: ModelSettings
    tasks: int
    shortest: int
    longest: int
    mle_updates: int  # updates by maximum likelihood
    rate: float
    batch: int
    batches: int
    repetitions: int


def full_sizes() -> Sizes:
    small = KAREL.scale("small")
    limits, pretraining = small["data"], small["pretrain"]
    return Sizes(
        ModelSettings(**small["model"]),
        tasks=4000,
        shortest=limits["shortest"],
        longest=limits["longest"],
        mle_updates=3000,
        rate=pretraining["learning_rate"],
        batch=small["finetune"]["batch_size"],
        batches=10,
        repetitions=20,
    )


def long_sizes() -> Sizes:
    """The same network, but programs as long as the paper's; they are harder, so it is trained for longer."""
    sizes = full_sizes()
    model = replace(sizes.model, largest_world=8, max_length=48)
    return sizes._replace(model=model, longest=45, mle_updates=1500, repetitions=10)


QUICK = Sizes(
    ModelSettings(largest_world=4, channels=4, blocks=1, pair_width=32, embedding=16, hidden=32, max_length=9),
    tasks=8,
    shortest=5,
    longest=7,
    mle_updates=80,
    rate=2e-2,
    batch=4,
    batches=2,
    repetitions=2,
)


# --- the opponent --------------------------------------------------------------------------------------------------


class Straightforward(Engine):
    """Does what the engine does without keeping any state and without dropping any row."""

    memory: Any = None

    @torch.no_grad()
    def sample(
        self,
        memory: Any,
        examples: Int64[Tensor, " context"],
        sampler: Sampler,
        noise: Noise,
        reads: Reads | Look = "logits",
    ) -> Mains:
        if sampler != Sampler():
            raise InputError("the opponent samples one sequence for each context")
        self.memory = memory  # from which branches start again
        samples, contexts = torch.zeros_like(examples), torch.arange(len(examples))
        keys = noise.keys(examples, MAIN, samples)
        nothing = torch.zeros_like(examples)
        with evaluation_mode(self.policy):
            logits: list[Tensor] = []
            sequences, _ = self._run(memory, keys, nothing[:, None], nothing, logits.append)
        stacked = torch.stack(logits, 1)
        valid = torch.arange(stacked.shape[1]) < sequences.lengths[:, None]
        stacked = torch.where(valid[:, :, None], stacked, 0.0)
        chosen = stacked.gather(2, sequences.tokens[:, :, None]).squeeze(2) - stacked.logsumexp(2)
        trajectories = Trajectories(
            **vars(sequences),
            contexts=contexts,
            examples=examples,
            samples=samples,
            keys=keys,
            log_probs=torch.where(valid, chosen, 0.0).sum(1),
            logits=stacked,
        )
        return Mains(trajectories, [], len(examples) * len(logits))

    @torch.no_grad()
    def complete(self, mains: Mains, branches: Branches, noise: Noise) -> Completions:
        parents = mains.trajectories
        given = parents.tokens[branches.parent]
        given.scatter_(1, branches.step[:, None], branches.token[:, None])
        tokens = torch.full((len(branches), self.max_length), self.eos)
        lengths, finished = torch.zeros_like(branches.step), torch.zeros_like(branches.greedy)
        fed = 0
        with evaluation_mode(self.policy):
            for rows in torch.arange(len(branches)).split(self.max_rows) if len(branches) else ():
                parent = branches.parent[rows]
                memory = select(self.memory, parents.contexts[parent])
                done, steps = self._run(memory, parents.keys[parent], given[rows], branches.step[rows] + 1)
                tokens[rows, : done.tokens.shape[1]] = done.tokens
                lengths[rows], finished[rows] = done.lengths, done.finished
                fed += len(rows) * steps
        sequences = Sequences(tokens[:, : int(lengths.max()) if len(lengths) else 1], lengths, finished)
        return Completions(sequences, fed, fed)

    def _run(
        self,
        memory: Any,
        keys: Int64[Tensor, " row"],
        given: Int64[Tensor, "row step"],
        known: Int64[Tensor, " row"],
        keep: Callable[[Tensor], None] = lambda logits: None,
    ) -> tuple[Sequences, int]:
        """Sequences of which the first ``known`` tokens are given, and how many steps all rows have made."""
        state, inputs = self.policy.start(memory), torch.full_like(keys, self.bos)
        ended = torch.zeros_like(keys, dtype=torch.bool)
        columns = []
        for t in range(self.max_length):
            logits, state = self.policy.step(state, inputs)
            inputs = given[:, t].clone() if t < given.shape[1] else torch.zeros_like(inputs)
            free = (known <= t).nonzero().squeeze(1)
            if len(free):
                inputs[free] = race(logits[free], keys[free], torch.full_like(free, t))
            inputs = torch.where(ended, self.eos, inputs)
            columns.append(inputs)
            keep(logits)
            ended |= inputs == self.eos
            if bool(ended.all()):
                break
        tokens = torch.stack(columns, 1)
        ends = tokens == self.eos
        lengths = torch.where(ended, ends.long().argmax(1) + 1, tokens.shape[1])
        return Sequences(tokens, lengths, ended), len(columns)


# --- the problem ---------------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """A policy that has learnt something, batches of tasks, and what was noted of the updates."""

    sizes: Sizes
    engine: Engine
    data: KarelData
    batches: list[Batch]
    seconds: dict[str, list[dict[str, float]]] = field(default_factory=lambda: {OURS: [], THEIRS: []})

    @property
    def policy(self) -> nn.Module:
        assert isinstance(self.engine.policy, nn.Module)
        return self.engine.policy

    def contestant(self, name: str, dtype: torch.dtype = torch.float32) -> Engine:
        self.policy.to(dtype)
        kind = {OURS: Engine, THEIRS: Straightforward}[name]
        return kind(self.engine.policy, bos=self.engine.bos, eos=self.engine.eos, max_length=self.engine.max_length)

    def update(self, engine: Engine, number: int) -> Estimate:
        """The update of a number: its batch and its noise; the gradient is left in the parameters."""
        self.policy.zero_grad()
        batch = self.batches[number % len(self.batches)]
        done = estimate(engine, batch, Reward(SolvesTask(self.data)), ARS(), Noise(SEED).fold(number))
        done.backward()
        return done

    def turns(self, name: str) -> Callable[[], None]:
        """A call that makes the next update, by one of the two, and notes where its time went."""
        engine = self.contestant(name)

        def turn() -> None:
            self.seconds[name].append(self.update(engine, len(self.seconds[name])).seconds)

        return turn


def make_problem(sizes: Sizes, folder: Path | None = None) -> Problem:
    counts, largest = {"train": sizes.tasks}, sizes.model.largest_world
    data = generate(counts, seed=SEED, shortest=sizes.shortest, longest=sizes.longest, largest=largest)["train"]
    columns = karel_split(data).columns
    engine = KarelTask(Path(), sizes.model).engine(SEED)
    problem = Problem(sizes, engine, data, [])
    pretrain(problem, columns, folder or Path(tempfile.gettempdir()) / "corollout-benchmarks")
    order = torch.randperm(sizes.tasks, generator=torch.Generator().manual_seed(SEED))
    problem.batches = [columns.batch(part) for part in order.split(sizes.batch)[: sizes.batches]]
    return problem


def pretrain(problem: Problem, columns: Columns, folder: Path) -> None:
    """Give the policy its weights: from the folder, or by a short training."""
    sizes, policy = problem.sizes, problem.policy
    what = "".join(map(str, (sizes, SEED, inspect.getsource(model), inspect.getsource(lstm))))
    path = folder / f"karel-{blake2b(what.encode(), digest_size=8).hexdigest()}.safetensors"
    if path.exists():
        policy.load_state_dict(read_weights(path)[0])
        return
    optimizer = torch.optim.Adam(policy.parameters(), sizes.rate)
    for _ in MLETrainer(problem.engine, columns, optimizer, batch_size=64, seed=SEED).run(updates=sizes.mle_updates):
        pass
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(path, policy.state_dict(), {})


# --- checks and results --------------------------------------------------------------------------------------------


def check(problem: Problem, dtype: torch.dtype) -> dict[str, Any]:
    """Both make the same update, of which sizes are returned; in float32, rounding may change a sequence."""
    done, gradients = [], []
    for name in (OURS, THEIRS):
        done.append(problem.update(problem.contestant(name, dtype), 0))
        gradients.append(flat_gradient(problem.policy.parameters()).clone())
    ours, theirs = done
    problem.policy.float()
    pairs = [(ours.trajectories, theirs.trajectories), (ours.completed, theirs.completed)]
    same = all(len(a.tokens) == len(b.tokens) for a, b in pairs)
    changed = sum(x != y for a, b in pairs for x, y in zip(a.lists(), b.lists(), strict=False))
    count = len(ours.rewards)
    if not same or changed > (MOST_ROUNDED * count if dtype == torch.float32 else 0):
        raise AssertionError(f"{changed} of {count} sequences of the two ways differ in {dtype}")
    largest = float(gradients[0].abs().max())
    if largest == 0:
        raise AssertionError("no sequence was rewarded, so the gradients are zero, and there is nothing to compare")
    if changed == 0:
        tolerance = 1e-10 if dtype == torch.float64 else 1e-3
        torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=tolerance * largest)
    return {
        "sequences_that_rounding_changed": changed,
        "difference_of_the_gradients": float((gradients[1] - gradients[0]).abs().max()),
        "largest_entry_of_the_gradient": largest,
        "mean_reward": ours.mean_reward,
        "main_tokens": ours.cost.main_tokens,
        "rollouts": ours.cost.rollouts,
        "rollouts_per_step": ours.cost.rollouts / ours.cost.main_tokens,
        "tokens_computed": {OURS: ours.cost.tokens, THEIRS: theirs.cost.tokens},
    }


def split(problem: Problem, name: str) -> dict[str, float]:
    """The median seconds of each part; the first update warmed up."""
    noted = problem.seconds[name][1:]
    return {part: statistics.median(seconds[part] for seconds in noted) for part in PARTS}


def run(quick: bool, progress: Progress) -> Result:
    problems = {"quick": QUICK} if quick else {SMALL: full_sizes(), LONG: long_sizes()}
    results = {name: measure(name, sizes, quick, progress) for name, sizes in problems.items()}
    shares = {name: one.share for name, one in results.items()}
    speedups = {name: one.speedup for name, one in results.items()}
    judged = LONG if LONG in speedups else "quick"
    return {
        "benchmark": "karel_update",
        "quick": quick,
        "settings": {
            "estimator": "arsm",
            "dtype": "float32",
            **{name: {**sizes._asdict(), "model": vars(sizes.model)} for name, sizes in problems.items()},
        },
        "seeds": {"tasks, weights and noise": SEED},
        "timings": [{"problem": name, **timing.record()} for name, one in results.items() for timing in one.timings],
        "measurements": {
            "seconds_by_part": {name: one.parts for name, one in results.items()},
            "share_of_the_reward": shares,
            "speedup": speedups,
            "checks": {name: one.checks for name, one in results.items()},
        },
        "targets": [
            Target(
                f"the reward takes at most {MOST_REWARD:.0%} of an update",
                max(shares.values()),
                MOST_REWARD,
                False,
                not quick,
            ).record(),
            Target(
                f"an update is at least {LEAST_SPEEDUP:g} times as fast as the straightforward one ({judged})",
                speedups[judged],
                LEAST_SPEEDUP,
                True,
                not quick,
            ).record(),
        ],
        "table": [line for name, one in results.items() for line in table(name, one)],
    }


@dataclass(frozen=True)
class Measured:
    """One problem's timings."""

    parts: dict[str, dict[str, float]]
    timings: list[Timing]
    checks: dict[str, dict[str, Any]]

    @property
    def share(self) -> float:
        return self.parts[OURS]["reward"] / sum(self.parts[OURS].values())

    @property
    def speedup(self) -> float:
        ours, theirs = self.timings
        return theirs.median / ours.median


def measure(name: str, sizes: Sizes, quick: bool, progress: Progress) -> Measured:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            problem = make_problem(sizes, Path(folder) if quick else None)
        checks = {str(dtype).removeprefix("torch."): check(problem, dtype) for dtype in (torch.float64, torch.float32)}
    finally:
        torch.set_num_threads(threads)
    timings = time_alternately(
        [Contestant(way, 1, problem.turns(way)) for way in (OURS, THEIRS)],
        sizes.repetitions,
        progress,
        f"karel_update, {name}",
    )
    return Measured({way: split(problem, way) for way in (OURS, THEIRS)}, timings, checks)


def table(name: str, measured: Measured) -> list[dict[str, str]]:
    parts = measured.parts
    ours, theirs = measured.timings
    whole = sum(parts[OURS].values())
    lines = [
        (name, title, figure(mine * 1e3), f"{mine / whole:.1%}", figure(other * 1e3), f"{other / mine:.2f}")
        for title, mine, other in ((title, parts[OURS][part], parts[THEIRS][part]) for part, title in PARTS.items())
    ]
    lines.append(
        (name, "all (quartiles)", milliseconds(ours), "", milliseconds(theirs), f"{theirs.median / ours.median:.2f}")
    )
    columns = ("problem", "part", f"{OURS}, ms", "share", f"{THEIRS}, ms", "time / ours")
    return [dict(zip(columns, line, strict=True)) for line in lines]
