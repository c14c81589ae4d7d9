"""A toy task: sort a list of symbols. There is one reward, for the finished list.

It is learned in a minute, yet like real tasks: one wrong token spoils everything, and the reward does not say which.
"""

import torch

from corollout.data import Columns
from corollout.errors import InputError
from corollout.noise import Noise, bits
from corollout.policies import RecurrentPolicy, TokenEncoder
from corollout.rewards import Reward
from corollout.rollouts import Engine

END, START, FIRST_SYMBOL = 0, 1, 2


def sorting_data(count: int, symbols: int = 12, shortest: int = 4, longest: int = 8, seed: int = 0) -> Columns:
    """Random lists and the sorted ones. ``context`` is padded with −1, ``target`` is a list of tokens."""
    if symbols < 1 or not 1 <= shortest <= longest or count < 1:
        raise InputError(f"cannot make {count} lists of {shortest} to {longest} symbols out of {symbols}")
    keys = Noise(seed).keys(torch.arange(count))
    draws = bits(keys, torch.zeros_like(keys), longest + 1)
    lengths = shortest + draws[:, -1] % (longest - shortest + 1)
    values = FIRST_SYMBOL + draws[:, :-1] % symbols
    context = torch.where(torch.arange(longest) < lengths[:, None], values, -1)
    target = [sorted(row[:n]) for row, n in zip(context.tolist(), lengths.tolist(), strict=True)]
    return Columns(context=context, target=target)


def sorted_exactly(sequences: list[list[int]], target: list[list[int]]) -> list[float]:
    """1 for the sorted list, 0 for anything else."""
    return [float(sequence == expected) for sequence, expected in zip(sequences, target, strict=True)]


def sorting_reward() -> Reward:
    return Reward(sorted_exactly)


def sorting_engine(symbols: int = 12, longest: int = 8, hidden: int = 64, seed: int = 0) -> Engine:
    """An LSTM policy with its engine."""
    torch.manual_seed(seed)
    encoder = TokenEncoder(FIRST_SYMBOL + symbols, hidden // 2)
    policy = RecurrentPolicy(encoder, encoder.width, FIRST_SYMBOL + symbols, hidden)
    return Engine(policy, bos=START, eos=END, max_length=longest + 2)
