"""Karel as a task."""

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from corollout.data import Columns, Split
from corollout.errors import InputError
from corollout.files import digest_of, file_digest, os_errors
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.karel.dataset import SPLITS, KarelData, find_file
from corollout.tasks.karel.language import END, START, TOKENS
from corollout.tasks.karel.metrics import GENERALIZATION, REWARDS, KarelEvaluation, SolvesTask, evaluate_karel
from corollout.tasks.karel.model import KarelPolicy, pictures
from corollout.tasks.karel.settings import ModelSettings
from corollout.tasks.karel.spec import KAREL
from corollout.tasks.karel.view import KarelView
from corollout.tasks.task import DataFile, Task


class ShownPairs:
    """The column of contexts: pictures of all pairs of worlds but the last, made on demand."""

    def __init__(self, data: KarelData):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def gather(self, index: Int64[Tensor, " context"]) -> UInt8[Tensor, "context pair 2 side side"]:
        rows = index.numpy()
        sides = (pictures(grids[rows, :-1]) for grids in (self.data.inputs, self.data.outputs))
        return torch.from_numpy(np.stack(list(sides), 2))


def karel_split(data: KarelData) -> Split:
    """Tasks with the columns ``context`` for the encoder, ``task`` (an index) for the reward and ``target`` for MLE."""
    targets = [tokens[:length].tolist() for tokens, length in zip(data.tokens, data.lengths, strict=True)]
    ids = torch.from_numpy(np.array(data.ids))
    return Split(Columns(ids=ids, context=ShownPairs(data), task=range(len(data)), target=targets), data)


class KarelTask(Task):
    """Program synthesis from the files train, val and test of a folder."""

    metric = GENERALIZATION
    rewards = REWARDS
    model: ModelSettings

    @property
    def tokens(self) -> tuple[str, ...]:
        return TOKENS

    def split(self, name: str) -> Split:
        if name not in SPLITS:
            raise InputError(f"unknown split {name!r}: choose one of {', '.join(SPLITS)}")
        path = None if self.folder is None else find_file(self.folder, name)
        if path is None:
            raise InputError(f"there is no {name}.jsonl or {name}.json in {self.folder}: {KAREL.data_help}")
        data = KarelData.open(path, side=self.model.largest_world + 2, on_event=self.on_event)
        longest = int(data.lengths.max(initial=0))
        if name == "train" and len(data) and (shortest := int(data.lengths.min())) >= self.model.max_length:
            raise InputError(
                f"no program of {path} fits into --max-length {self.model.max_length} with its end token: the shortest "
                f"has {shortest} tokens; set it to {longest + 1} for all programs to fit"
            )
        # Under the grammar a truncated program is impossible, and its loss infinite.
        if name == "train" and self.model.grammar and longest >= self.model.max_length:
            raise InputError(
                f"{path} has a program of {longest} tokens: with the grammar, programs and their end tokens must fit "
                f"into max_length, which is {self.model.max_length}; set it to {longest + 1} or more"
            )
        return karel_split(data)

    def data_digest(self) -> str:
        assert self.folder is not None
        paths = [find_file(self.folder, name) for name in ("train", "val")]
        with os_errors(f"read the data in {self.folder}"):
            return digest_of(file_digest(path).encode() for path in paths if path is not None)

    def data_files(self) -> list[DataFile]:
        files = []
        for split in SPLITS:
            path = None if self.folder is None else find_file(self.folder, split)
            if path is not None:
                with os_errors(f"read {path}"):
                    digest = file_digest(path)
                files.append(DataFile(split, path.name, len(KarelData.open(path, on_event=self.on_event)), digest))
        return files

    def engine(self, seed: int = 0) -> Engine:
        torch.manual_seed(seed)
        m = self.model
        sizes = (m.channels, m.blocks, m.pair_width, m.embedding, m.hidden, m.layers)
        policy = KarelPolicy(m.largest_world + 2, *sizes, m.grammar, m.max_length).to(self.device)
        return Engine(policy, bos=START, eos=END, max_length=m.max_length)

    def reward(self, name: str = REWARDS[0], split: Split | None = None) -> Reward:
        data = (self.train if split is None else split).data
        return Reward(SolvesTask(data, name), name=f"karel, {name}")

    def evaluate(self, engine: Engine, split: Split, beam: int = 0) -> KarelEvaluation:
        return evaluate_karel(engine, split, beam=beam, device=self.device)

    def view(self, split_name: str, split: Split, index: int) -> KarelView:
        return KarelView(split_name, split, index)
