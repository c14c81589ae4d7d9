"""Slow or risky rewards in worker processes, and two rewards at once: ``python examples/own_reward_with_workers.py``

The task: given a number, write a formula of the digits 1, 2 and 3 whose value it is. The reward *runs* what the model
has written. Programs of strangers (and an untrained model is one) may crash, hang or take long, so they run in worker
processes with a time-out. A second reward prefers short formulas; the objective is a weighted sum of both.
"""

import argparse
import ast

import torch
from torch import nn

from corollout import Columns, Engine, Reward, Trainer, evaluate
from corollout.policies import RecurrentPolicy

SYMBOLS = ["", "", "1", "2", "3", "+", "*"]  # by token id; 0 ends a formula and 1 starts it
END, START = 0, 1
LARGEST = 24


# A function that goes to worker processes must be importable there: at the top level of a module, as here.
def is_right(sequences: list[list[int]], number: list[int]) -> list[float | None]:
    """1 for a formula with the right value, less the further away it is, 0 for what is not a formula."""
    rewards: list[float | None] = []
    for tokens, wanted in zip(sequences, number, strict=True):
        value = run("".join(SYMBOLS[token] for token in tokens))
        rewards.append(0.0 if value is None else 0.5 ** abs(value - wanted))
    return rewards


def is_short(sequences: list[list[int]]) -> list[float]:
    """This one is quick: it may stay in the main process. The weight below decides how much it matters."""
    return [-float(len(tokens)) for tokens in sequences]


def run(formula: str) -> int | None:
    """The value of a formula; None if Python does not accept it."""
    try:
        tree = ast.parse(formula, mode="eval")
    except SyntaxError:
        return None
    return eval(compile(tree, "formula", "eval"), {"__builtins__": {}})


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    numbers = torch.arange(1, LARGEST + 1)
    data = Columns(context=nn.functional.one_hot(numbers - 1, LARGEST).float(), number=numbers.tolist())
    # A ready-made policy: an LSTM that starts from whatever its encoder makes of the context.
    policy = RecurrentPolicy(nn.Linear(LARGEST, 48), 48, vocab=len(SYMBOLS), hidden=96)
    engine = Engine(policy, bos=START, eos=END, max_length=8)

    # Two workers; a batch that takes more than ten seconds is an error that names its examples, not a hanging run.
    # The function is deterministic, so results may be kept: a formula that was seen before costs nothing.
    with Reward(is_right, workers=1 if quick else 2, timeout=10.0, cache=100_000) as right:
        trainer = Trainer(
            engine,
            data,
            {"right": right, "short": is_short},
            "rloo-16",
            torch.optim.Adam(policy.parameters(), lr=5e-3),
            batch_size=LARGEST,
            reward_weights=[1.0, 0.01],
            entropy=0.01,  # keeps the model trying: one nat of entropy is worth a hundredth of a right formula
        )
        for metrics in trainer.run(updates=5 if quick else 300):
            if metrics.update % 50 == 0 or metrics.update == 1:
                means = ", ".join(f"{name} {mean:.2f}" for name, mean in metrics.rewards.items())
                print(
                    f"update {metrics.update:3d}: {means}; {metrics.reward_calls:,} formulas scored, "
                    f"{metrics.seconds:.0f} s"
                )
        share = evaluate(engine, data, right)
    print(f"mean reward of the most probable formulas: {share:.2f}")
    best = engine.generate(data.columns["context"], mode="beam", count=4)
    for number, formulas in list(zip(numbers.tolist(), best, strict=True))[6:24:4]:
        formula = "".join(SYMBOLS[token] for token in formulas[0].tokens)
        print(f"  {number:2d}: {formula:8} = {run(formula)}")


if __name__ == "__main__":  # needed: the worker processes import this file, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few updates only: to see that it runs")
    main(**vars(parser.parse_args()))
