"""What does a deployed captioner cost? The NumPy runtime of an export against PyTorch, one thread, both heads.

A captioner of COCO's size with random weights, whose words are as unequally frequent as those of a language, is
exported. Every contestant is a separate process, which imports, loads, captions one image, and then batches of
images. PyTorch is corollout's engine with the weights of a run. All must say the same captions. Files are in the
operating system's cache. A first round, in which numba compiles its loops and keeps them beside the export, is not
counted, but its first caption is reported.

Resident memory includes pages of files that are mapped: of the weights, those that were used.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from rich.progress import Progress

from benchmarks import runtime_worker
from benchmarks.harness import Result, Target, Timing, figure
from benchmarks.runtime_worker import COMPILED, MODES, PLAIN, PYTORCH
from benchmarks.tree_head import node_biases
from corollout import Engine
from corollout.tasks.captioning.export import write_export
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.trees import balanced_tree

SEED = 1
END = 0
CONTESTANTS = (PYTORCH, PLAIN, COMPILED)
LEAST_IMPORT, LEAST_MEMORY, LEAST_EQUAL = 3.0, 2.0, 0.95
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Sizes(NamedTuple):
    vocab: int
    width: int
    hidden: int
    longest: int
    batches: tuple[int, ...]
    heads: tuple[str, ...]
    repetitions: int  # in a process
    rounds: int  # processes; of several, the first is not counted


FULL = Sizes(9488, 2048, 512, 16, (1, 64), ("softmax", "tree"), 5, 6)
QUICK = Sizes(60, 8, 16, 6, (1, 4), ("tree",), 2, 1)


def make_policy(head: str, sizes: Sizes) -> CaptionPolicy:
    """Zipf's law, a tenth of all words being ends, and hidden states that matter as in a policy that was trained."""
    torch.manual_seed(SEED)
    words = -1.1 * torch.arange(1, sizes.vocab + 1.0, dtype=torch.float64).log()
    words[END] = words[1:].logsumexp(0) + math.log(0.1 / 0.9)
    tree = balanced_tree(sizes.vocab) if head == "tree" else None
    policy = CaptionPolicy(sizes.vocab, sizes.width, sizes.hidden, sizes.hidden, tree=tree)
    with torch.no_grad():
        if policy.head is None:
            policy.output_bias.copy_(words)
            policy.output.mul_(110)
        else:
            policy.head.bias.copy_(torch.from_numpy(node_biases(policy.head.tree, words.softmax(0).numpy())))
            policy.head.weight.mul_(110)
    return policy


def make_folder(folder: Path, head: str, sizes: Sizes) -> None:
    """An export with the same weights as PyTorch keeps them, and features, beside it."""
    policy = make_policy(head, sizes)
    words = ["<end>", *(f"w{number}" for number in range(1, sizes.vocab - 1)), "<unk>"]
    write_export(folder, Engine(policy, bos=END, eos=END, max_length=sizes.longest), words)
    safetensors.torch.save_file(policy.state_dict(), folder / "policy.safetensors")
    generator = np.random.default_rng(SEED)
    np.save(folder / "features.npy", generator.standard_normal((max(sizes.batches), sizes.width), np.float32))


def measured(name: str, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """What a process of this contestant says."""
    settings = json.dumps([sizes.batches, sizes.repetitions])
    command = [sys.executable, runtime_worker.__file__, name, str(folder), settings]
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": root}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    if done.returncode:
        raise AssertionError(f"'{name}' failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def equal_share(reports: dict[str, dict[str, Any]]) -> float:
    """The share of captions that are PyTorch's, of the contestant that agrees least."""
    shares = []
    for one in reports.values():
        pairs = [
            (ours, theirs)
            for case, captions in reports[PYTORCH]["captions"].items()
            for ours, theirs in zip(one["captions"][case], captions, strict=True)
        ]
        shares.append(statistics.mean(ours == theirs for ours, theirs in pairs))
    if min(shares) < LEAST_EQUAL:
        raise AssertionError(f"only {min(shares):.1%} of the captions are those of PyTorch")
    return min(shares)


def measure(sizes: Sizes, progress: Progress) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What all processes say, by head and contestant, round by round."""
    task = progress.add_task("runtime", total=len(sizes.heads) * len(CONTESTANTS) * sizes.rounds)
    reports: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for head in sizes.heads:
            make_folder(Path(temporary) / head, head, sizes)
            reports[head] = {name: [] for name in CONTESTANTS}
            for _ in range(sizes.rounds):
                for name, results in reports[head].items():
                    results.append(measured(name, Path(temporary) / head, sizes))
                    progress.advance(task)
    progress.remove_task(task)
    return reports


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    reports = measure(sizes, progress)
    cases = [f"{mode}, batch {batch}" for batch in sizes.batches for mode in MODES]
    measurements: dict[str, Any] = {}
    timings: list[dict[str, Any]] = []
    table: list[dict[str, str]] = []
    targets: list[Target] = []
    for head, contestants in reports.items():
        by_name: dict[str, Any] = {}
        for name, rounds in contestants.items():
            counted = rounds[1:] or rounds
            middle = {
                part: statistics.median(one[part] for one in counted)
                for part in ("import", "load", "first", "resident_after_import", "resident", "peak")
            }
            rates = {}
            for case in cases:
                timing = Timing(f"{head}, {name}, {case}", 1, [s for one in counted for s in one["seconds"][case]])
                # The end is a token as well, unless the caption was cut.
                tokens = sum(min(len(caption) + 1, sizes.longest) for caption in counted[0]["captions"][case])
                timings.append({**timing.record(), "tokens": tokens})
                rates[case] = tokens / timing.median
            by_name[name] = {**middle, "first_in_the_first_round": rounds[0]["first"], "tokens_a_second": rates}
            table.append(
                {
                    "head": head,
                    "contestant": name,
                    "import, s": figure(middle["import"]),
                    "load, s": figure(middle["load"]),
                    "first caption, s": figure(middle["first"]),
                    "resident, MB": figure(middle["resident"]),
                    **{f"tokens/s, {case}": figure(rate) for case, rate in rates.items()},
                }
            )
        measurements[head] = {
            **by_name,
            "equal_captions": equal_share({name: rounds[-1] for name, rounds in contestants.items()}),
        }
        for part, label, bound in (
            ("import", "time to import", LEAST_IMPORT),
            ("resident", "resident memory", LEAST_MEMORY),
        ):
            targets.append(
                Target(
                    f"PyTorch takes at least {bound:g} times the {label} of NumPy alone ({head})",
                    by_name[PYTORCH][part] / by_name[PLAIN][part],
                    bound,
                    at_least=True,
                    judged=not quick,
                )
            )
    return {
        "benchmark": "runtime",
        "quick": quick,
        "settings": {**sizes._asdict(), "dtype": "float32", "threads": 1},
        "seeds": {"weights and features": SEED},
        "timings": timings,
        "measurements": measurements,
        "targets": [target.record() for target in targets],
        "table": table,
    }
