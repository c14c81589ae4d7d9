"""A program that several processes run: all calls of processes to each other; each writes what it got."""

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from corollout.errors import ProcessError
from corollout.processes import joined, processes


def main() -> None:
    out, mode = Path(sys.argv[1]), sys.argv[2]
    results: dict[str, Any] = {}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends all when one has ended; the others have a word to say
    with joined(timeout=4):
        group = processes()
        rank = group.rank
        results["who"] = [rank, group.size, group.is_first, processes() is group]
        if mode == "all":
            exchange(group, results)
        else:
            group.during = "update 17"
            if rank == 1:
                lose(mode)
            try:
                group.add([torch.ones(3)])
            except ProcessError as error:
                results |= {"error": str(error), "is_teller": error.is_teller}
                (out / f"{rank}.json").write_text(json.dumps(results))
                raise
        (out / f"{rank}.json").write_text(json.dumps(results))


def lose(mode: str) -> None:
    if mode == "killed":
        os.kill(os.getpid(), 9)
    if mode == "stuck":
        while True:
            torch.ones(1).sum()
    if mode == "failing":
        raise ValueError("a reward that is no number")
    if mode == "elsewhere":
        processes().gather(torch.zeros(1))


def exchange(group: Any, results: dict[str, Any]) -> None:
    rank = group.rank
    gathered = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool):
        mine = (torch.arange(rank * 6).reshape(rank, 2, 3) + 10 * rank).to(dtype)
        parts = group.gather(mine.transpose(1, 2))  # not contiguous
        gathered.append([[str(part.dtype), list(part.shape), part.double().flatten().tolist()] for part in parts])
    results["gathered"] = gathered
    results["empty"] = [list(part.shape) for part in group.gather(torch.zeros(0, 4))]
    results["values"] = group.gather_values({"rank": rank, "third": (rank + 1) / 3, "inf": [math.inf, None, "ä"]})
    results["first"] = group.from_first([rank, 0.1 + 0.2, {"long": "x" * (1000 if rank == 0 else 3)}])
    noise = torch.Generator().manual_seed(rank)
    tensors = [torch.randn(size, generator=noise, dtype=torch.float64) for size in ((3, 5), (1,), (), (0, 2))]
    tensors += [torch.full((7,), float(rank + 1), dtype=dtype) for dtype in (torch.bfloat16, torch.float16)]
    tensors += [torch.full((2,), 2**60 // 3 + rank), torch.randn(100_001, generator=noise)]
    tensors[0].requires_grad_()
    group.add(tensors)
    results["sums"] = [[str(tensor.dtype), tensor.double().flatten().tolist()] for tensor in tensors[:-1]]
    results["large"] = tensors[-1].view(torch.int32).tolist()[::1000]
    group.add([])
    results["waiting"] = group.waiting


if __name__ == "__main__":
    main()
