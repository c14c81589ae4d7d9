"""Files that are damaged, crafted or wrong are refused in one sentence, or read as what they are.

Small valid files of each kind are made once. A case copies them, changes one or two of them, corrects their digests in
half of the cases where there are any, reads them and uses what was read. A worker process with a limit of memory runs
one case after the other; one that dies or hangs counts as a failure of its case, and another worker goes on.
"""

import json
import os
import select
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from tests.reliability.suite import Outcome, Suite, start

SECONDS, MEGABYTES = 30.0, 4_000  # of a case, of a worker
_PATIENCE = 60.0  # seconds after which a worker that says nothing is killed
_TOGETHER = 500  # cases of an outcome


class TooSlow(BaseException):
    """A case took too long."""


def run(cases: int, seed: int) -> Iterator[Outcome]:
    """Run cases 0 … cases − 1 in workers, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        yield from supervise("tests.reliability.readers", Path(folder), cases, seed)


def supervise(module: str, folder: Path, cases: int, *arguments: object) -> Iterator[Outcome]:
    """Run the cases of a module's workers: ``python -m MODULE FOLDER FIRST END …``, again after one that died or hung.

    A worker prints a line before each case, JSON of its number, what is tried and null, and one after it with what went
    wrong instead of null.
    """
    following, counts = 0, Counter[str]()
    while following < cases:
        command = [sys.executable, "-m", module, str(folder), str(following), str(cases), *map(str, arguments)]
        begun = None
        with start(command, megabytes=MEGABYTES) as worker:
            assert worker.stdout
            reader = _Lines(worker.stdout.fileno())
            while (line := reader.line(_PATIENCE)) is not None:
                number, what, failure = json.loads(line)
                if failure is None:
                    begun = (number, what)
                    continue
                begun, following = None, number + 1
                counts[what] += 1
                if failure:
                    yield Outcome(what, counts.pop(what), (f"case {number}: {failure}",))
                elif counts[what] == _TOGETHER:
                    yield Outcome(what, counts.pop(what))
            if worker.poll() is None and following < cases:
                worker.kill()
        if begun is not None:
            number, what = begun
            following, code = number + 1, worker.returncode
            failure = "hang" if code == -signal.SIGKILL else f"the process died with code {code}"
            yield Outcome(what, counts.pop(what, 0) + 1, (f"case {number}: {failure}",))
        elif following < cases:
            raise RuntimeError(f"no worker starts: {(folder / 'errors.txt').read_text()[-2000:]}")
    for what, count in counts.items():
        yield Outcome(what, count)


class _Lines:
    """Lines of a pipe, waited for with a limit of time."""

    def __init__(self, handle: int):
        self._handle, self._data, self._ready = handle, b"", select.poll()
        self._ready.register(handle, select.POLLIN)

    def line(self, seconds: float) -> bytes | None:
        """The next line; None at the end, and when nothing comes."""
        while b"\n" not in self._data:
            if not self._ready.poll(1000 * seconds) or not (data := os.read(self._handle, 1 << 16)):
                return None
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        return line


def prepare_worker(folder: Path, names: Iterable[str]) -> None:
    """Make valid files of these kinds unless an earlier worker has, and read them; errors go to a file."""
    from tests.reliability.kinds import KINDS

    errors = os.open(folder / "errors.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 2)
    signal.signal(signal.SIGALRM, _stop)
    warnings.simplefilter("ignore")
    for name in names:
        valid = folder / name
        if not valid.exists():
            making = folder / f"{name}, unfinished"
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            KINDS[name].make(making)
            making.rename(valid)
        # Whatever is compiled is compiled now; and valid files are read without an error.
        problem = _try(valid, folder / "case", name, None)
        assert not problem, f"{name}: {problem}"


def run_case(folder: Path, number: int, name: str, random: Random, source: str = "") -> None:
    """Run a case in a worker, and say what went wrong; ``source`` is what else the case depends on."""
    print(json.dumps([number, name, None]), flush=True)
    failure = _try(folder / name, folder / "case", name, random)
    print(json.dumps([number, name, f"{failure} ({source})" if failure and source else failure]), flush=True)


def _work(folder: Path, first: int, end: int, seed: int) -> None:
    from tests.reliability.kinds import KINDS

    prepare_worker(folder, KINDS)
    names = [name for name, kind in KINDS.items() for _ in range(kind.weight)]
    for number in range(first, end):
        random = Random(f"{seed}-{number}")
        run_case(folder, number, random.choice(names), random)


def _try(valid: Path, case: Path, name: str, random: Random | None) -> str:
    """What went wrong with a case; empty if nothing. Without ``random``, the files are left as they are."""
    from corollout.errors import CorolloutError
    from corollout.export.runtime import ExportError
    from tests.reliability.kinds import KINDS

    kind, said = KINDS[name], ""
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(valid, case)
    if random is not None:
        said = _mutate(case, name, random)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        kind.use(case, random or Random(0))
    except (CorolloutError, ExportError) as error:
        text = str(error)
        if random is None or not text or "\n" in text or len(text) > 2000 or "\ud800" in text:
            return f"{said}: the message is not one sentence: {text[:300]!r}"
    except TooSlow:
        return f"{said}: hang: more than {SECONDS} seconds"
    except BaseException as error:
        return f"{said}: {type(error).__name__}: {str(error)[:300]}{_place(error)}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


def _mutate(case: Path, name: str, random: Random) -> str:
    """Change one or two files, correct digests in half of the cases; say what was done."""
    from tests.reliability.kinds import KINDS
    from tests.reliability.mutations import mutate_file

    kind = KINDS[name]
    files = sorted(path for path in case.glob(kind.files) if path.is_file())
    chosen = random.sample(files, min(len(files), random.choice((1, 1, 1, 2))))
    for path in chosen:
        mutate_file(path, random)
    said = ", ".join(path.name for path in chosen)
    if kind.correct is not None and random.random() < 0.5:
        try:
            kind.correct(case)
            return f"{said}, with correct digests"
        except Exception:  # there is nothing left to correct
            return said
    return said


def _place(error: BaseException) -> str:
    """The innermost line of ours that an error went through."""
    place, trace = "", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if "/corollout/" in path:
            place = f" ({path.rpartition('/corollout/')[2]}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place


SUITE = Suite("readers", "Whatever a file contains, it is read as what it is or refused in one sentence", 95_000, run)


def _stop(*_: object) -> None:
    raise TooSlow


if __name__ == "__main__":
    _work(Path(sys.argv[1]), *map(int, sys.argv[2:]))
