"""Signs of life in a job of several processes: who is alive, who has ended, who lags behind.

Each process writes a beat to the job's store (a key-value server of ``torch.distributed``) four times a second, from a
thread of its own: how often it has beaten, and how many calls it has made to the others. The first rank reads the beats
of all, the others only that of the first; who finds that a rank is lost writes a verdict to the store, which all adopt.
"""

import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from corollout.launch import address

INTERVAL = 0.25  # seconds between beats
CERTAIN = 6 * INTERVAL  # without a beat for so long, a process whose connections are closed has ended
CLOSED = 5.0  # seconds after which a store that refuses connections is lost
SILENCE = 30.0  # seconds without a beat after which a rank is lost, although no connection was closed
GRACE = 10.0  # seconds after a verdict in which a process that is stuck may still end by itself


@dataclass(frozen=True)
class Verdict:
    """Which rank was lost, and which one tells the user."""

    sentence: str
    teller: int


@dataclass
class _Beat:
    number: int = -1
    calls: int = 0
    since: float = field(default_factory=time.monotonic)  # when this process first read that number, by its own clock


class Heartbeat:
    """The beats of one process, and what it knows of the others'."""

    def __init__(self, store: Any, rank: int, size: int):  # a Store of torch.distributed
        self.rank, self.size = rank, size
        self.calls = 0  # written by the main thread
        self._store = store.clone()  # a connection of its own: a call that does not return blocks nobody else
        self._beats = {other: _Beat() for other in range(size) if other != rank}
        self._number, self._reached = 0, time.monotonic()
        self._verdict: Verdict | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="corollout-heartbeat", daemon=True)
        self._store.set(f"who/{rank}", json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        self._beat()

    def start(self) -> None:
        """Begin, once every rank has made its own."""
        self._read(self._beats)
        self._reached = time.monotonic()
        self._thread.start()

    def stop(self, reason: str = "") -> None:
        """End the beats; ``reason`` is what ended this process, if it leaves before the others expect it."""
        if not self._stopped.is_set():
            self._stopped.set()
            if not self._answers():
                return
            with suppress(RuntimeError):
                self._store.set(f"left/{self.rank}", json.dumps(reason))
            if self._thread.is_alive():  # Python must not end while it is in a call of PyTorch
                self._thread.join(2 * INTERVAL)

    def stop_silently(self) -> None:
        """End the beats of a process that has learned of a verdict."""
        self._stopped.set()

    def verdict(self) -> Verdict | None:
        """What was decided about this job, as far as this process has read it."""
        return self._verdict

    def silent(self) -> tuple[int | None, float] | None:
        """A rank without a beat for too long, or None for the store, and for how many seconds; None if all are well."""
        now = time.monotonic()
        if not self._thread.is_alive():
            return None
        if (age := now - self._reached) > SILENCE:
            return None, age
        ages = {rank: now - self._beats[rank].since for rank in self._watched()}
        rank = max(ages, key=lambda rank: ages[rank], default=None)
        return None if rank is None or ages[rank] <= SILENCE else (rank, ages[rank])

    def decide(self, sentence: str, teller: int | None = None) -> Verdict:
        """Write a verdict, unless another rank was faster: its verdict is then the one that counts.

        It is this rank that tells the user, unless it is another one.
        """
        mine = json.dumps({"sentence": sentence, "teller": self.rank if teller is None else teller})
        written = self._first_of("verdict", mine)
        self._verdict = Verdict(**json.loads(written))
        return self._verdict

    def claim(self, sentence: str) -> bool:
        """Whether this rank is the first to claim a sentence."""
        key = f"said/{hashlib.sha256(sentence.encode()).hexdigest()}"
        return self._first_of(key, str(self.rank)) == str(self.rank)

    def missing(self, patience: float = CERTAIN) -> list[int]:
        """The ranks that have left or give no sign of life within ``patience`` seconds."""
        end = time.monotonic() + patience
        if not self._answers():
            return []
        try:
            before = self._numbers(self._beats)
            while time.monotonic() < end and self._verdict is None:
                time.sleep(INTERVAL / 5)
                if left := [rank for rank in self._beats if self._store.check([f"left/{rank}"])]:
                    return left
            after = self._numbers(self._beats)
        except RuntimeError:  # the store is gone, which the machine of the first rank has
            return [0] if self.rank else []
        return [rank for rank in self._beats if after[rank][0] == before[rank][0]]

    def behind(self) -> list[int]:
        """The ranks that are alive but have made fewer calls than this one."""
        try:
            return [rank for rank, (_, calls) in self._numbers(self._beats).items() if calls < self.calls]
        except RuntimeError:
            return []

    def describe(self, rank: int) -> str:
        """A rank as a user finds it: "rank 1 (pid 4711 on node-3)"."""
        with suppress(RuntimeError, ValueError):
            if self._store.check([f"who/{rank}"]):
                who = json.loads(self._store.get(f"who/{rank}"))
                return f"rank {rank} (pid {who['pid']} on {who['host']})"
        return f"rank {rank}"

    def reason_of(self, rank: int) -> str | None:
        """Why a rank left: the text of its error, or "" if it just ended; None if it did not say that it leaves."""
        with suppress(RuntimeError, ValueError):
            if self._store.check([f"left/{rank}"]):
                return json.loads(self._store.get(f"left/{rank}"))
        return None

    def _first_of(self, key: str, value: str) -> str:
        """What was first written under a key; this value, if nobody can be asked."""
        if not self._answers():
            return value
        try:
            return self._store.compare_set(key, "", value).decode()
        except RuntimeError:
            return value

    def _answers(self) -> bool:
        """Whether the store answered a short while ago: a call would wait for ever where the network is cut."""
        return time.monotonic() - self._reached < CLOSED

    def _watched(self) -> Iterable[int]:
        return self._beats if self.rank == 0 else [0]

    def _run(self) -> None:
        decided = 0.0
        while not self._stopped.wait(INTERVAL):
            try:
                self._beat()
                self._read(self._watched())
                if self._verdict is None and self._store.check(["verdict"]):
                    self._verdict = Verdict(**json.loads(self._store.get("verdict")))
                self._reached = time.monotonic()
            except RuntimeError:  # nobody answers: not only slowly, which is seen by the time since it answered
                if self._verdict is None and time.monotonic() - self._reached > CLOSED:
                    lost = f"torchrun, or whoever keeps the store of the job at {address()}, has ended"
                    self._verdict = Verdict(lost, self.rank)
            if self._verdict is not None:
                decided = decided or time.monotonic()
                if time.monotonic() - decided > GRACE:  # the main thread is stuck, perhaps as the lost rank itself
                    os._exit(1)

    def _beat(self) -> None:
        self._number += 1
        self._store.set(f"beat/{self.rank}", json.dumps([self._number, self.calls]))

    def _read(self, ranks: Iterable[int]) -> None:
        for rank, (number, calls) in self._numbers(ranks).items():
            beat = self._beats[rank]
            if number != beat.number:
                beat.number, beat.since = number, time.monotonic()
            beat.calls = calls

    def _numbers(self, ranks: Iterable[int]) -> Mapping[int, tuple[int, int]]:
        ranks = list(ranks)
        values: list[Any] = self._store.multi_get([f"beat/{rank}" for rank in ranks]) if ranks else []
        return {rank: tuple(json.loads(value)) for rank, value in zip(ranks, values, strict=True)}
