"""One contestant of ``benchmarks.runtime``, in a separate process: ``python runtime_worker.py NAME FOLDER SETTINGS``.

Nothing is imported here but what every Python has, so that what a contestant imports can be measured.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PYTORCH, PLAIN, COMPILED = "PyTorch", "NumPy", "NumPy and numba"
IMPORTS = {
    PYTORCH: ("corollout.tasks.captioning.model", "corollout.rollouts"),
    PLAIN: ("runtime",),
    COMPILED: ("runtime", "numba"),
}
MODES = ("greedy", "sample")
Generate = Callable[[Any, str], list[list[int]]]


def load_pytorch(folder: Path) -> Generate:
    """A captioner as PyTorch has it: the weights that a run keeps, and the engine."""
    import safetensors.torch
    import torch

    from corollout import Engine, Noise
    from corollout.tasks.captioning.model import CaptionPolicy
    from corollout.trees import Tree
    from corollout.types import Sampler

    torch.set_num_threads(1)
    model = json.loads((folder / "model.json").read_text("utf-8"))
    weights = safetensors.torch.load_file(folder / "policy.safetensors")
    sizes = [model["sizes"][name] for name in ("vocabulary", "features", "embedding", "hidden")]
    tree = Tree(weights["head.below"].numpy()) if "head.below" in weights else None
    policy = CaptionPolicy(*sizes, tree=tree)
    policy.load_state_dict(weights)
    engine = Engine(policy, bos=model["bos"], eos=model["eos"], max_length=model["longest"])

    @torch.no_grad()
    def generate(features: Any, mode: Any) -> list[list[int]]:
        memory = policy.encode(torch.from_numpy(features))
        return engine.sample(memory, torch.arange(len(features)), Sampler(mode), Noise(0)).trajectories.lists()

    return generate


def load_runtime(folder: Path, compiled: bool) -> Generate:
    captioner = importlib.import_module("runtime").Captioner.load(folder, compiled=compiled)

    def generate(features: Any, mode: Any) -> list[list[int]]:
        return [caption.tokens for caption in captioner.generate(features, mode)]

    return generate


def megabytes(entry: str) -> float:
    """Memory of this process: VmRSS is what is resident now, VmHWM the most that was."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{entry}:"))


def carry_out(name: str, folder: Path, batches: list[int], repetitions: int) -> dict[str, Any]:
    """Import, load, caption one image, then time batches of images in both modes."""
    sys.path.insert(0, str(folder))  # where the runtime is
    start = time.perf_counter()
    for module in IMPORTS[name]:
        importlib.import_module(module)
    imported = time.perf_counter()
    report: dict[str, Any] = {"import": imported - start, "resident_after_import": megabytes("VmRSS")}
    import numpy as np

    features = np.load(folder / "features.npy")
    start = time.perf_counter()
    generate = load_pytorch(folder) if name == PYTORCH else load_runtime(folder, name == COMPILED)
    report["load"] = time.perf_counter() - start
    start = time.perf_counter()
    generate(features[:1], "greedy")
    report["first"] = time.perf_counter() - start
    report["seconds"], report["captions"] = {}, {}
    for batch in batches:
        for mode in MODES:
            captions = generate(features[:batch], mode)  # warms up
            seconds = []
            for _ in range(repetitions):
                start = time.perf_counter()
                generate(features[:batch], mode)
                seconds.append(time.perf_counter() - start)
            report["seconds"][f"{mode}, batch {batch}"] = seconds
            report["captions"][f"{mode}, batch {batch}"] = captions
    return {**report, "resident": megabytes("VmRSS"), "peak": megabytes("VmHWM")}


if __name__ == "__main__":
    print(json.dumps(carry_out(sys.argv[1], Path(sys.argv[2]), *json.loads(sys.argv[3]))))
