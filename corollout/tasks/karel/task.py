"""Karel as a task: data, engine, reward and evaluation from the settings of a run."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from corollout.data import Columns
from corollout.errors import InputError
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.karel.dataset import SPLITS, KarelData
from corollout.tasks.karel.language import END, START, TOKENS
from corollout.tasks.karel.metrics import GENERALIZATION, REWARDS, Evaluation, SolvesTask, evaluate_karel
from corollout.tasks.karel.model import KarelPolicy, pictures
from corollout.tasks.karel.settings import ModelSettings, scale
from corollout.tasks.task import Task, TaskSpec


class ShownPairs:
    """The column of contexts: pictures of the pairs that are shown, all but the last, made when they are needed."""

    def __init__(self, data: KarelData):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def gather(self, index: Int64[Tensor, " context"]) -> UInt8[Tensor, "context pair 2 side side"]:
        where = index.numpy()
        sides = (pictures(grids[where][:, :-1]) for grids in (self.data.inputs, self.data.outputs))
        return torch.from_numpy(np.stack(list(sides), 2))


def karel_columns(data: KarelData) -> Columns:
    """Tasks as columns: ``context`` for the encoder, ``task`` (its number) for the reward, ``target`` for teaching."""
    targets = [tokens[:length].tolist() for tokens, length in zip(data.tokens, data.lengths, strict=True)]
    ids = torch.from_numpy(np.array(data.ids))
    return Columns(ids=ids, context=ShownPairs(data), task=range(len(data)), target=targets)


class KarelTask(Task):
    """The three splits of a folder, and what is done with them."""

    name = "karel"
    metric = GENERALIZATION
    rewards: tuple[str, ...] = REWARDS

    def __init__(
        self,
        folder: Path,
        model: ModelSettings,
        device: str = "cpu",
        skip_bad: bool = False,
        warn: Callable[[str], None] = lambda text: None,
    ):
        self.folder, self.model, self.device = folder, model, device
        self._skip_bad, self._warn = skip_bad, warn

    @property
    def words(self) -> tuple[str, ...]:
        return TOKENS

    @property
    def mle_data(self) -> Columns:
        return self.train.columns

    def split(self, name: str) -> "Split":
        if name not in SPLITS:
            raise InputError(f"no split is called {name!r}: choose one of {', '.join(SPLITS)}")
        path = self.folder / f"{name}.jsonl"
        if not path.exists():
            raise InputError(
                f"{path} does not exist: name a folder with train.jsonl, val.jsonl and test.jsonl by --data, or make "
                f"one with `corollout data karel --out {self.folder}`"
            )
        side = self.model.largest_world + 2
        data = KarelData.open(path, side=side, skip_bad=self._skip_bad, warn=self._warn)
        if name == "train" and self.model.grammar:
            self._check_lengths(data, path)
        return Split(data)

    def _check_lengths(self, data: KarelData, path: Path) -> None:
        """A program that is cut off is none, so under the grammar it is impossible, and its loss infinite."""
        most = int(data.lengths.max(initial=0))
        if most >= self.model.max_length:
            raise InputError(
                f"{path} has a program of {most} tokens: with the grammar, programs and their end tokens must fit into "
                f"max_length, which is {self.model.max_length}; set it to {most + 1} or more"
            )

    def engine(self, seed: int = 0) -> Engine:
        """A new model with its engine."""
        torch.manual_seed(seed)
        m = self.model
        policy = KarelPolicy(
            m.largest_world + 2,
            m.channels,
            m.blocks,
            m.pair_width,
            m.embedding,
            m.hidden,
            m.layers,
            m.grammar,
            m.max_length,
        ).to(self.device)
        return Engine(policy, bos=START, eos=END, max_length=m.max_length)

    def reward(self, kind: str = "all", split: "Split | None" = None) -> Reward:
        """The reward of programs for the tasks of a split, by default for those to train on."""
        tasks = self.train if split is None else split
        return Reward(SolvesTask(tasks.data, kind), name=f"karel, {kind}")

    def evaluate(self, engine: Engine, split: "Split", beam: int = 0) -> Evaluation:
        return evaluate_karel(engine, split.data, split.columns, beam=beam, device=self.device)


class Split:
    """Tasks in both forms: as arrays and as columns."""

    def __init__(self, data: KarelData):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @cached_property
    def columns(self) -> Columns:
        return karel_columns(self.data)

    def first(self, count: int) -> "Split":
        """The first tasks only."""
        return Split(self.data.subset(min(count, len(self.data))))


KAREL = TaskSpec(
    ModelSettings,
    scale,
    lambda folder, model, device, warn: KarelTask(folder, model, device, warn=warn),
    GENERALIZATION,
)
