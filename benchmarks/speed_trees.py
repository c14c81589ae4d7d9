"""Two commits side by side: a checkout of the older one, and a worker process for each."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks import speed_worker

ROOT = Path(__file__).parents[1]


@contextmanager
def checked_out(commit: str) -> Generator[Path, None, None]:
    """The tree of a commit, in a temporary folder that is gone afterwards, also after Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="corollout-speed-") as folder:
        tree = Path(folder) / "tree"
        try:
            _git("worktree", "add", "--detach", str(tree), commit)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, capture_output=True, check=False)
            subprocess.run(["git", "worktree", "prune"], cwd=ROOT, capture_output=True, check=False)


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"git {' '.join(arguments)} failed: {done.stderr.strip()}")


class WorkerProcess:
    """A process of ``speed_worker`` with the package of one tree."""

    def __init__(self, tree: Path):
        self.tree = tree
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed with the process)
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", speed_worker.__file__],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for us, who end it
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()  # it may be in the middle of something
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Its answer; an error there is an error here."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"the process in {self.tree} has ended: {self._errors.read().strip()[-1000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"the process in {self.tree} failed: {answer['error'].strip()[-1000:]}")
        return answer

    def start(self, folder: Path, method: str, threads: int) -> None:
        package = Path(self.ask("start", folder=str(folder), method=method, threads=threads)["package"])
        if self.tree not in package.parents:
            raise AssertionError(f"the process in {self.tree} has imported {package}")
