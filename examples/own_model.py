"""A model and a reward of your own, from nothing to a trained policy: ``python examples/own_model.py``

The task: read a list of three symbols and write it backwards. The model is told only whether the whole list was right,
never which symbol was wrong. Two things have to be written for that: a model with four methods, and a reward function.
"""

import argparse

import torch
from torch import Tensor, nn

from corollout import Columns, Engine, Trainer, evaluate
from corollout.policies import score_by_steps

END, START, FIRST, SYMBOLS, LENGTH = 0, 1, 2, 5, 3


# 1. The model. It is an ordinary module; the four methods below are all that the library calls.
class Reverser(nn.Module):
    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.cell = nn.GRUCell(width, width)
        self.output = nn.Linear(width, vocab)

    def encode(self, context: Tensor) -> Tensor:
        """Read the contexts, once each, however many sequences are generated for them."""
        return self.reader(self.embedding(context))[1][0]

    def start(self, memory: Tensor) -> Tensor:
        """The state before the first token. A state is a tensor with rows first, or any nest of such tensors."""
        return memory

    def step(self, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """A token for each row in; the logits of the next token and the new state out."""
        state = self.cell(self.embedding(tokens), state)
        return self.output(state), state

    def score(self, memory: Tensor, tokens: Tensor) -> Tensor:
        """The logits of whole sequences, with gradient. This way is right for every model; there are faster ones."""
        return score_by_steps(self, memory, tokens)


# 2. The reward: lists of token ids in, a number for each out. The column ``wanted`` of the data arrives by its name.
def is_reversed(sequences: list[list[int]], wanted: list[list[int]]) -> list[float]:
    return [float(tokens == right) for tokens, right in zip(sequences, wanted, strict=True)]


def make_data(count: int, seed: int) -> Columns:
    """``context`` goes to ``encode``; whatever else there is goes to the reward."""
    lists = torch.randint(FIRST, FIRST + SYMBOLS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    return Columns(context=lists, wanted=lists.flip(1).tolist())


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is tiny: more threads would only wait for each other
    train, test = make_data(2_000, seed=0), make_data(200, seed=1)

    # 3. The engine knows how to generate: what a sequence begins and ends with, and how long it may get.
    model = Reverser(FIRST + SYMBOLS, width=64)
    engine = Engine(model, bos=START, eos=END, max_length=LENGTH + 1)

    # 4. The trainer puts everything together. "arsm" gives every token its own share of the reward; try "rloo-8", which
    #    gives all tokens of a sequence the same. A budget bounds the number of branches of an update.
    trainer = Trainer(
        engine, train, is_reversed, "arsm:budget=600", torch.optim.Adam(model.parameters(), lr=3e-3), batch_size=32
    )
    print(f"chance: one list in {SYMBOLS**LENGTH} is right; before training: {evaluate(engine, test, is_reversed):.1%}")
    for metrics in trainer.run(updates=20 if quick else 400):
        if metrics.update % 50 == 0 or metrics.update == 1:
            print(
                f"update {metrics.update:3d}: reward {metrics.reward:.2f}, entropy {metrics.entropy:.2f} nats a token, "
                f"{metrics.tokens:,} tokens, {metrics.seconds:.0f} s"
            )
    print(f"after training: {evaluate(engine, test, is_reversed):.1%} of lists never seen before are right")

    # 5. Use it. Sequences come with their log-probabilities.
    contexts = test.columns["context"][:3]
    for context, (answer, *_) in zip(contexts.tolist(), engine.generate(contexts, mode="greedy"), strict=True):
        print(f"  {context} -> {answer.tokens}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few updates only: to see that it runs")
    main(**vars(parser.parse_args()))
