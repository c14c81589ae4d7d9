"""Command lines with one thing wrong: an input, a number, the place to write to, or a signal in the middle.

Unlike altered ones, which may still make sense, most of these must be refused, and leave nothing behind.
"""

import os
import random
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from corollout.config import Option, options_of
from tests.reliability.altered_commands import QUICK, USUAL, WORK, commands

# Inputs of command lines, in the folder that `command_lines.make_folder` makes, and the lines that read them.
READS = {
    "evaluate RUN --beam 0": "karel-run/config.toml karel-run/best.safetensors captions-run/config.toml",
    "generate RUN --count 1": "karel-run/config.toml karel-run/best.safetensors",
    "inspect RUN --estimator rloo-2": "karel-run/config.toml karel-run/best.safetensors",
    "finetune RUN --out new --unit updates --budget 1 --evaluate-every 1 --batch-size 2 --threads 1": (
        "karel-run/config.toml karel-run/best.safetensors"
    ),
    "compare RUN --out new": "tuned-run/metrics.jsonl tuned-run/config.toml",
    "compare report": "report/report.json",
    "export RUN --out new": "captions-run/config.toml captions-run/best.safetensors",
    "data check FILE": "karel/train.jsonl karel/val.jsonl karel/test.jsonl",
    "data check captions": "captions/meta.json captions/vocabulary.txt captions/tokens.npy captions/features.npy",
    "data neighbours captions -k 1": "captions/meta.json captions/names.txt captions/ids.npy captions/captions.npy",
    "pretrain karel --data karel --config config.toml --epochs 1 --threads 1 --out new": (
        "config.toml karel/train.jsonl"
    ),
    "pretrain captions --data captions --config captions.toml --epochs 1 --threads 1 --out new": (
        "captions.toml captions/meta.json captions/vocabulary.txt"
    ),
    "score --refs refs.json --hyps hyps.json --no-meteor": "refs.json hyps.json",
    "data captions --captions refs.json --features features.npy --names names.txt --out new": (
        "refs.json features.npy names.txt"
    ),
    "tree show tree.safetensors --data captions": "tree.safetensors captions/vocabulary.txt",
    "tree build --data captions --from huffman --out new": "captions/meta.json captions/tokens.npy",
    "lm generate --model lm --dataset prompts.jsonl --max-completion-length 3": "lm/config.json prompts.jsonl",
    "lm generate --model lm --dataset prompts.csv --max-completion-length 3": "prompts.csv lm/tokenizer.json",
    "lm train --model lm --dataset prompts.jsonl --reward scores.py:score --max-steps 1 --max-completion-length 3 "
    "--out new": "lm/config.json lm/model.safetensors prompts.jsonl scores.py",
    "karel run @program --world world.json": "program world.json",
}
TEXT = (".json", ".jsonl", ".toml", ".txt", "")
WRITES: tuple[str, ...] = (
    "data karel --scale tiny --train 200 --val 9 --test 9 --longest 9 --out OUT",
    "data captions --generate --train-images 300 --val-images 9 --test-images 9 --out OUT",
    "pretrain karel --data karel --config config.toml --epochs 1 --threads 1 --out OUT",
    "finetune karel-run --unit updates --budget 1 --evaluate-every 1 --batch-size 2 --threads 1 --out OUT",
    "export captions-run --out OUT",
    "compare karel-run tuned-run --out OUT",
    "inspect karel-run --estimator rloo-2 --html OUT",
    "lm train --model lm --dataset prompts.jsonl --reward scores.py:score --max-steps 2 --save-steps 1 "
    "--max-completion-length 3 --out OUT",
    "lab karel-run --examples 2 --estimates 8 --reference-estimates 8 --rounds 1 --batches 0 --estimators rloo-2,sc "
    "--out OUT",
)
LARGE_OR_SMALL = {
    "huge": ("inf", "1e400", "9" * 400, "1" + "0" * 30),
    "negative": ("-1", "-7", "-1e9", "nan", "-inf"),
}
DISK = "disk"  # a file system of its own, in the folder of a case


@dataclass(frozen=True)
class BadCase:
    """A command line, what is wrong with it, and how the folder is spoilt before it runs.

    If it ``must_fail``, its exit code is not 0, and there is nothing at ``out`` afterwards.
    """

    wrong: str
    arguments: list[str]
    spoil: Callable[[Path], None] = lambda folder: None
    must_fail: bool = True
    out: str = "new"
    disk: str = ""  # options of the small disk: "ro", or a number of free pages
    signal: tuple[int, float] | None = None  # its number, and after how many seconds it comes


def make_bad_case(seed: int, number: int) -> BadCase:
    draw = random.Random(f"bad {seed}-{number}")
    kinds = ("missing", "truncated", "type", "encoding", "huge", "negative", "read-only", "full disk", "killed")
    wrong = kinds[number % len(kinds)]
    if wrong in LARGE_OR_SMALL:
        return _wrong_number(wrong, draw)
    if wrong in ("read-only", "full disk", "killed"):
        line = draw.choice(WRITES)
        if wrong == "killed":
            when = int(draw.choice((signal.SIGINT, signal.SIGTERM))), draw.random() ** 2 / 2
            return BadCase(wrong, line.replace("OUT", "new").split(), must_fail=False, signal=when)
        disk = "ro" if wrong == "read-only" else str(draw.randrange(4))
        # A folder of a run or a lab may keep what was complete.
        return BadCase(wrong, line.replace("OUT", f"{DISK}/new").split(), must_fail=disk == "ro", disk=disk)
    line = draw.choice(list(READS))
    file = draw.choice(READS[line].split())
    arguments = line.replace("RUN", file.split("/")[0]).replace("FILE", file).split()
    if wrong == "encoding" and not file.endswith(TEXT[:4]) and "." in file:
        wrong = "truncated"
    return BadCase(wrong, arguments, _spoiler(wrong, file, draw), must_fail=wrong in ("missing", "type"))


def _wrong_number(wrong: str, draw: random.Random) -> BadCase:
    """An option that wants a number gets one that it cannot have."""
    while True:
        name = draw.choice(list(commands()))
        options = [option for option in options_of(commands()[name]) if _is_bounded(option, wrong)]
        if options:
            break
    option = draw.choice(options)
    first = name.split()[0]
    words = draw.choice(USUAL.get(name) or USUAL[first]).split()
    flag = option.flags[0] if option.flags else f"--{option.name.replace('_', '-')}"
    quick = (QUICK.get(name) or QUICK.get(first, "")).split()
    return BadCase(wrong, [*name.split(), *quick, *words, flag, draw.choice(LARGE_OR_SMALL[wrong])])


def _is_bounded(option: Option, wrong: str) -> bool:
    if option.type not in (int, float) or option.is_list or option.positional:
        return False
    return wrong == "huge" or (option.least is not None and option.least >= 0) or option.name in WORK


def _spoiler(wrong: str, file: str, draw: random.Random) -> Callable[[Path], None]:
    where, encoding = draw.random(), draw.choice(("utf-16", "utf-32", "latin-1", "cp500"))

    def spoil(folder: Path) -> None:
        path = folder / file
        data = path.read_bytes()
        path.unlink()
        if wrong == "type":
            path.mkdir()
        elif wrong == "truncated":
            path.write_bytes(data[: int(where * len(data))])
        elif wrong == "encoding":
            path.write_bytes((data.decode("utf-8") + "é").encode(encoding, "replace"))

    return spoil


@contextmanager
def small_disk(folder: Path, options: str) -> Generator[None, None, None]:
    """A disk in a folder that is read-only or full, if there is to be one; only root may mount it."""
    disk = folder / DISK
    disk.mkdir()
    if not options:
        disk.rmdir()
        yield
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", disk], capture_output=True, check=False)
    if mounted.returncode:  # not root: a folder that cannot be written is all that we can offer
        disk.chmod(0o555)
        try:
            yield
        finally:
            disk.chmod(0o755)
        return
    try:
        pages = os.statvfs(disk).f_blocks - os.statvfs(disk).f_bfree
        change = "ro" if options == "ro" else f"size={(pages + int(options) + 1) * 4096}"
        subprocess.run(["mount", "-o", f"remount,{change}", disk], check=True, capture_output=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def left_behind(case: BadCase, folder: Path) -> list[str]:
    """What a refused command has left where it would have written: half-made things, or anything if all was refused."""
    place = folder / DISK if case.disk else folder
    if case.must_fail:
        return [case.out] if os.path.lexists(place / case.out) else []
    hidden = [path for path in place.rglob(".temporary-*") if path.is_file()]
    return [] if case.signal else [str(path.relative_to(folder)) for path in hidden]
