"""What the processes of a job say to each other, in real jobs under torchrun; and what one says that is alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.processes import joined, processes
from tests.support.torchrun import ROOT, torchrun

PROGRAM = ROOT / "tests" / "support" / "talking.py"


def talk(folder: Path, size: int, mode: str) -> tuple[int, str, list[dict[str, Any]]]:
    """Exit code, standard error, and the results of the ranks that wrote some."""
    done = torchrun(size, PROGRAM, folder, mode)
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return done.returncode, done.stderr, results


def test_a_process_that_is_alone_hears_itself() -> None:
    group = processes()
    assert (group.rank, group.size, group.is_first) == (0, 1, True)
    with joined() as same:
        assert same is group
    tensor = torch.arange(6.0).view(2, 3)
    assert [part.tolist() for part in group.gather(tensor)] == [tensor.tolist()]
    assert group.gather_values({"a": (1, 2.5)}) == [{"a": [1, 2.5]}]
    assert group.from_first((0.1, None)) == [0.1, None]
    group.add([tensor])
    assert tensor.sum() == 15
    with pytest.raises(ValueError, match="1 to 8 dimensions"):
        group.gather(torch.tensor(1.0))


def test_three_processes_hear_the_same(tmp_path: Path) -> None:
    code, text, results = talk(tmp_path, 3, "all")
    assert (code, len(results)) == (0, 3), text
    assert [result["who"] for result in results] == [[rank, 3, rank == 0, True] for rank in range(3)]
    for name in ("gathered", "empty", "values", "first", "sums", "large"):
        assert results[0][name] == results[1][name] == results[2][name], name
    assert all(0 < result["waiting"] < 60 for result in results)
    own = results[0]
    names = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "bool")
    for name, parts in zip(names, own["gathered"], strict=True):
        for rank, part in enumerate(parts):
            mine = (torch.arange(rank * 6).reshape(rank, 2, 3) + 10 * rank).to(getattr(torch, name)).transpose(1, 2)
            assert part == [f"torch.{name}", list(mine.shape), mine.double().flatten().tolist()]
    assert own["empty"] == [[0, 4]] * 3
    assert own["values"] == [
        {"rank": rank, "third": (rank + 1) / 3, "inf": [float("inf"), None, "ä"]} for rank in range(3)
    ]
    assert own["first"] == [0, 0.1 + 0.2, {"long": "x" * 1000}]
    sums = own["sums"]
    streams = [torch.Generator().manual_seed(rank) for rank in range(3)]
    for number, size in enumerate(((3, 5), (1,), (), (0, 2))):
        parts = [torch.randn(size, generator=stream, dtype=torch.float64) for stream in streams]
        assert sums[number] == ["torch.float64", pytest.approx(sum(parts).flatten().tolist(), rel=1e-15)]  # pyright: ignore
    assert sums[4:6] == [["torch.bfloat16", [6.0] * 7], ["torch.float16", [6.0] * 7]]
    assert sums[6] == ["torch.int64", [float(2**60 // 3 * 3 + 3)] * 2]


@pytest.mark.prove
def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    code, _, results = talk(tmp_path, 3, "killed")
    assert code != 0
    assert [result["who"][0] for result in results] == [0, 2]
    sentences = {result["error"] for result in results}
    assert len(sentences) == 1
    assert (sentence := sentences.pop()).startswith("rank 1 (pid "), sentence
    assert sentence.endswith(" ended during update 17")
    assert sum(result["is_teller"] for result in results) == 1


@pytest.mark.prove
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (
            "stuck",
            "rank 1 (pid * has not answered for 4 s during update 17; COROLLOUT_PROCESS_TIMEOUT sets how long to wait",
        ),
        ("failing", "rank 1 (pid * left the job during update 17: a reward that is no number"),
        ("elsewhere", "the ranks have gone apart during update 17: * they call add and gather and add"),
    ],
)
def test_a_rank_that_does_something_else_is_named(tmp_path: Path, mode: str, words: str) -> None:
    code, _, results = talk(tmp_path, 3, mode)
    assert code != 0
    assert [result["who"][0] for result in results] == [0, 2]
    start, end = words.split(" * ")
    for result in results:
        assert result["error"].startswith(start), result
        assert result["error"].endswith(end), result
    # A rank that fails tells its error itself.
    assert sum(result["is_teller"] for result in results) == (0 if mode == "failing" else 1)
