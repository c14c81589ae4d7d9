"""The seconds of one update of a language model on so many GPUs, on paper: formulas and what they assume.

Nothing here was measured on GPUs. ``docs/scaling.md`` has the formulas in words; every number of an assumption is a
field below, so that it can be replaced by one's own.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.imbalance import Counts, Prices, simulate

HALF = 2  # bytes of a weight that computes, in bfloat16
GRADIENT = 4  # bytes of a gradient, in float32
STATE = 16  # bytes of a weight with its gradient and both moments of Adam, all in float32
ADAM = 28  # bytes that Adam reads and writes for a weight
BUCKET = 2**25  # bytes that are added in one message


@dataclass(frozen=True)
class Machine:
    """One GPU, its neighbours and the network: an H100 SXM in nodes of 8, with 400 Gbit/s for each GPU."""

    flops: float = 989e12  # in bfloat16, dense
    used_flops: float = 0.4  # the share of them that large products reach
    bandwidth: float = 3.35e12  # bytes a second, of its memory
    used_bandwidth: float = 0.6
    memory: float = 80e9
    used_memory: float = 0.9
    host: float = 3e-4  # seconds in which Python and PyTorch start the kernels of a layer for a step
    node: int = 8
    local: float = 0.7 * 450e9  # bytes a second between GPUs of a node, each way
    network: float = 0.7 * 50e9  # bytes a second of each GPU between nodes
    latency: float = 5e-6  # seconds of a message between two GPUs
    agreement: float = 5e-5  # seconds of a message between two hosts, by TCP
    meetings: int = 8  # calls in which the ranks of an update agree on small things, by a ring of such messages

    @property
    def speed(self) -> float:
        return self.flops * self.used_flops

    @property
    def reading(self) -> float:
        return self.bandwidth * self.used_bandwidth


@dataclass(frozen=True)
class Shape:
    """A language model."""

    name: str
    parameters: float
    layers: int
    cached: int  # bytes of keys and values for a token, in bfloat16
    tensors: int  # of weights
    sharded: bool  # what the optimizer changes, by FSDP2 over all GPUs; otherwise every GPU has all of it


SHAPES = (
    Shape("1.5 B", 1.54e9, 28, 2 * 28 * 2 * 128 * 2, tensors=338, sharded=False),
    Shape("8 B", 8.03e9, 32, 2 * 32 * 8 * 128 * 2, tensors=291, sharded=True),
)


@dataclass(frozen=True)
class Work:
    """An update: its contexts, and what is generated for each of them on average."""

    name: str
    sequences: int  # main trajectories of a context: all are scored
    branches: float  # of a context, on average; they depart half-way, and are not scored
    contexts: int = 1024
    prompt: int = 512
    completion: int = 512


WORKS = (Work("rloo-8", 8, 0.0), Work("arsm:budget=8192", 1, 8.0))


class Update(NamedTuple):
    """Seconds of an update, from one meeting of the ranks to the next."""

    steps: float  # of generating: what a step takes however few rows it has; mean over GPUs
    tokens: float  # of generating: what grows with the rows, and the prompts
    score: float
    communicate: float
    optimizer: float
    wait: float  # for the GPU that has most to generate and score

    @property
    def total(self) -> float:
        return sum(self)


def all_reduce(size: float, gpus: int, machine: Machine) -> float:
    """Seconds to add so many bytes: within nodes, then each GPU its part between nodes, by trees for the latency.

    2 (l − 1)/l · size/local + 2 (m − 1)/m · size/(l · network) + 2 log₂ N · latency a bucket; l GPUs in each of m nodes
    """
    return 2 * all_gather(size, gpus, machine, hops=math.log2(gpus) * math.ceil(size / BUCKET))


def all_gather(size: float, gpus: int, machine: Machine, hops: float) -> float:
    """Seconds to collect so many bytes on every GPU, or to scatter sums of them, in so many steps."""
    local = min(gpus, machine.node)
    nodes = math.ceil(gpus / machine.node)
    inside = (local - 1) / local * size / machine.local
    between = (nodes - 1) / nodes * size / local / machine.network
    return inside + between + hops * machine.latency


def state_bytes(shape: Shape, gpus: int) -> float:
    """What a GPU holds before anything is generated.

    A replica has everything in float32, and a copy of its weights that computes. With shards, weights and their
    gradients are whole in bfloat16, and what the optimizer changes is divided.
    """
    return shape.parameters * (2 * HALF + STATE / gpus if shape.sharded else STATE + HALF)


def waves(shape: Shape, work: Work, gpus: int, machine: Machine) -> int | None:
    """In how many parts a GPU generates its rows, so that their keys and values fit; None if the model does not."""
    free = machine.memory * machine.used_memory - state_bytes(shape, gpus)
    rows = max(work.sequences, work.branches)
    row = shape.cached * (work.prompt / rows + work.completion)  # a prompt is held once for its context
    if free < row * rows:
        return None
    return math.ceil(math.ceil(work.contexts / gpus) * rows * row / free)


def prices(shape: Shape, work: Work, counts: Counts, parts: int, machine: Machine) -> tuple[Prices, Prices]:
    """What a context, a step, a main token and a branch token of the recorded run cost: generated, and scored.

    Recorded lengths and numbers of branches are stretched to those of ``work``.
    """
    stretch = work.completion / counts.mean_length
    forward = 2 * shape.parameters / machine.speed
    token = forward + shape.cached * (work.prompt + work.completion / 2) / machine.reading
    step = max(shape.layers * machine.host, HALF * shape.parameters / machine.reading)
    branches = work.branches / counts.mean_branches if work.branches else 0.0
    mains = work.sequences / counts.sequences
    generating = Prices(
        forward * work.prompt, parts * step * stretch, token * stretch * mains, token * stretch * branches
    )
    return generating, Prices(3 * forward * work.prompt, 0.0, 3 * forward * stretch * mains, 0.0)


def communicate(shape: Shape, gpus: int, machine: Machine) -> float:
    """Gradients are added once; with shards they are scattered, and weights gathered, one tensor after the other."""
    if gpus == 1:
        return 0.0
    agreeing = machine.meetings * (gpus - 1) * machine.agreement
    if not shape.sharded:
        return agreeing + all_reduce(GRADIENT * shape.parameters, gpus, machine)
    hops = shape.tensors * (gpus - 1)  # a ring for each tensor
    scatter = all_gather(GRADIENT * shape.parameters, gpus, machine, hops)
    return agreeing + scatter + all_gather(HALF * shape.parameters, gpus, machine, hops)


def update(
    shape: Shape, work: Work, counts: Counts, gpus: int, division: str, batches: int, machine: Machine | None = None
) -> Update | None:
    """The seconds of an update; None if the model does not fit, or if there are fewer contexts than GPUs."""
    machine = machine or Machine()
    parts = waves(shape, work, gpus, machine)
    if parts is None or work.contexts < gpus:
        return None
    generating, scoring = prices(shape, work, counts, parts, machine)
    together = Prices(*(a + b for a, b in zip(generating, scoring, strict=True)))
    per_gpu = work.contexts // gpus
    load = simulate(counts, gpus, per_gpu, batches, division, together)
    scored = simulate(counts, gpus, per_gpu, batches, division, scoring).mean
    steps = simulate(counts, gpus, per_gpu, batches, division, Prices(0.0, generating.step, 0.0, 0.0)).mean
    optimizer = ADAM * shape.parameters / machine.reading / (gpus if shape.sharded else 1)
    return Update(
        steps=steps,
        tokens=load.mean - steps - scored,
        score=scored,
        communicate=communicate(shape, gpus, machine),
        optimizer=optimizer,
        wait=load.most - load.mean,
    )
