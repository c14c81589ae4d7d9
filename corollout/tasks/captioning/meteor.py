"""METEOR by the public Java program, which has tables of stems and synonyms, in a process with a time limit."""

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Timer

import numpy as np

from corollout.errors import CorolloutError

_PACKAGE, _PROGRAM = "pycocoevalcap", "meteor-1.5.jar"
_SECONDS, _SECONDS_PER_CAPTION = 120.0, 1.0  # it takes a few seconds to start, and then about 0.01 for a caption


class MeteorError(CorolloutError):
    """METEOR is not available; the message says why."""


def score_meteor(
    references: Sequence[Sequence[Sequence[str]]], hypotheses: Sequence[Sequence[str]]
) -> tuple[float, np.ndarray]:
    """METEOR of a corpus and of each caption."""
    folder = _folder()
    pairs = zip(references, hypotheses, strict=True)
    lines = [_line("SCORE", *map(_text, group), _text(caption)) for group, caption in pairs]
    try:
        process = subprocess.Popen(
            _command(), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise MeteorError(f"its Java program does not start ({error.strerror or error})") from error
    seconds, late = _SECONDS + _SECONDS_PER_CAPTION * len(lines), Event()
    timer = Timer(seconds, lambda: (late.set(), process.kill()))  # a process that was killed answers nothing
    timer.start()
    try:
        statistics = [_ask(process, line, 1)[0].decode("utf-8") for line in lines]
        *each, corpus = map(float, _ask(process, _line("EVAL", *statistics), len(lines) + 1))
    except (OSError, ValueError) as error:
        reason = f"it did not finish within {seconds:.0f} seconds" if late.is_set() else error
        raise MeteorError(f"its Java program failed ({reason})") from error
    finally:
        timer.cancel()
        process.kill()
        process.communicate()
    return corpus, np.array(each, np.float64)


def _folder() -> Path:
    """The folder of the program, with its tables."""
    package = importlib.util.find_spec(_PACKAGE)
    if package is None:
        raise MeteorError(f"the Python package {_PACKAGE}, which includes its program, is not installed")
    if shutil.which("java") is None:
        raise MeteorError("Java is not installed")
    folder = Path(*(package.submodule_search_locations or [""])[:1]) / "meteor"
    if not (folder / _PROGRAM).is_file():
        raise MeteorError(f"the Python package {_PACKAGE} does not include its program {_PROGRAM}")
    return folder


def _command() -> list[str]:
    return ["java", "-Xmx2G", "-jar", _PROGRAM, "-", "-", "-stdio", "-l", "en", "-norm"]


def _text(words: Sequence[str]) -> str:
    """Words in one line, in which the program's separator does not occur."""
    return " ".join(" ".join(words).replace("|||", "").split())


def _line(*parts: str) -> bytes:
    try:
        return " ||| ".join(parts).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise MeteorError(f"a caption is not valid Unicode ({error.reason})") from error


def _ask(process: "subprocess.Popen[bytes]", line: bytes, count: int) -> list[bytes]:
    """Send a line to the program and read so many answers."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(line)
    process.stdin.flush()
    answers = [process.stdout.readline().strip() for _ in range(count)]
    if not all(answers):
        raise ValueError("it ended without an answer")
    return answers
