"""A reward that lives behind an HTTP service: ``python examples/reward_over_http.py``

Rewards that need their own GPU, their own machine or their own language run as a service; every process of a training
asks it. Services are restarted, overloaded and cut off, so the client below sends batches, tries again with growing
pauses, and gives up after a stated time with one sentence. The script trains with a service on this machine, and takes
it away for a moment. In two terminals, or on two machines:

    python examples/reward_over_http.py --serve --host 0.0.0.0 --port 8000
    torchrun --nproc-per-node 2 examples/reward_over_http.py --url http://HOST:8000/score

Copy ``HttpReward``: what is sent and what is answered is between you and your service.
"""

import argparse
import json
import math
import random
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, count
from typing import Any
from urllib.parse import urlsplit

import torch

from corollout import Reward, Trainer, evaluate, pretrain
from corollout.errors import InputError
from corollout.processes import processes
from corollout.tasks.sorting import sorted_exactly, sorting_data, sorting_engine

# --- the client ----------------------------------------------------------------------------------------------------

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds between attempts: twice as many each time
BUSY = 429  # "too many requests": like an error of the server (5xx), it may be gone the next time


class _NoAnswer(Exception):
    """An attempt that may succeed when it is repeated."""


@dataclass(frozen=True)
class HttpReward:
    """Scores sequences by a service: POSTs ``{"sequences": […], …}``, expects ``{"rewards": […]}`` in the same order.

    A reward of null skips its sequence. An attempt without an answer, or with an error of the server, is repeated until
    ``patience`` seconds are over, so the service must not mind to be asked twice. An answer that is wrong (another
    number of rewards, NaN, no JSON, a refusal) is an error at once: asking again would not help.
    """

    url: str
    fields: tuple[str, ...] = ("sequences",)  # what is sent: with "completions" it scores texts of a language model
    batch_size: int = 64  # sequences in a request
    connections: int = 4  # requests at a time
    timeout: float = 10.0  # seconds for one attempt
    patience: float = 120.0  # seconds for a call of the reward, all attempts together

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise InputError(f"the address of a reward service begins with http:// or https://, unlike {self.url!r}")

    def __call__(self, **columns: Any) -> list[float | None]:
        start, stop = time.monotonic(), threading.Event()
        sent = {name: _plain(columns[name]) for name in self.fields}
        rows = range(0, len(sent[self.fields[0]]), self.batch_size)
        batches = [{name: values[row : row + self.batch_size] for name, values in sent.items()} for row in rows]
        with ThreadPoolExecutor(self.connections) as pool:
            try:
                scored = [pool.submit(self._scored, batch, start + self.patience, stop) for batch in batches]
                for done in wait(scored, return_when=FIRST_EXCEPTION).done:
                    done.result()
                # In the order of the batches, whichever was answered first.
                return list(chain.from_iterable(one.result() for one in scored))
            finally:
                stop.set()  # after an error, the other batches are given up
                pool.shutdown(cancel_futures=True)

    def _scored(self, batch: dict[str, list[Any]], deadline: float, stop: threading.Event) -> list[float | None]:
        """The rewards of one batch, by as many attempts as it takes."""
        body = json.dumps(batch, allow_nan=False).encode()
        jitter = random.Random()  # processes that failed together do not come back together
        for attempt in count():
            left = deadline - time.monotonic()
            try:
                return _rewards(self._post(body, min(self.timeout, left)), len(batch[self.fields[0]]))
            except _NoAnswer as error:
                pause = min(FIRST_PAUSE * 2 ** min(attempt, 10), LONGEST_PAUSE) * jitter.uniform(0.5, 1)
                if stop.wait(min(pause, max(deadline - time.monotonic(), 0.0))) or time.monotonic() >= deadline:
                    raise ConnectionError(
                        f"the reward service {self.url} gave no answer within {self.patience:g} s: attempt "
                        f"{attempt + 1} ended with {error}"
                    ) from None
            except ValueError as error:
                raise ValueError(f"the reward service {self.url} {error}") from None
        raise AssertionError  # count() does not end

    def _post(self, body: bytes, seconds: float) -> bytes:
        """What the service answers to one request, within so many seconds."""
        where, started = urlsplit(self.url), time.monotonic()
        make = HTTPSConnection if where.scheme == "https" else HTTPConnection
        connection = make(where.hostname or "", where.port, timeout=max(seconds, 1e-3))
        path = (where.path or "/") + (f"?{where.query}" if where.query else "")
        try:
            connection.connect()
            with _cut_after(connection.sock, seconds):
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
            if time.monotonic() - started >= seconds:  # cut, and nothing said how long the answer was to be
                raise TimeoutError
        except (OSError, HTTPException) as error:
            late = time.monotonic() - started >= seconds
            what = f"no whole answer within {seconds:.3g} s" if late else f"{type(error).__name__}: {error}"
            raise _NoAnswer(what) from None
        finally:
            connection.close()
        if answer.status >= 500 or answer.status == BUSY:
            raise _NoAnswer(f"status {answer.status} {answer.reason}")
        if answer.status != 200:
            raise ValueError(f"refused the request with status {answer.status} {answer.reason}: {_start_of(text)}")
        return text


@contextmanager
def _cut_after(connection: socket.socket, seconds: float) -> Generator[None, None, None]:
    """Inside, the connection is cut after so many seconds: a socket's own time-out begins anew with every byte."""

    def cut() -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _plain(values: Any) -> list[Any]:
    """A column as lists that JSON can hold."""
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def _rewards(text: bytes, expected: int) -> list[float | None]:
    """The rewards in an answer; raises ``ValueError`` with the end of a sentence if it is not as it should be."""
    try:
        answer = json.loads(text)
    except ValueError:
        raise ValueError(f"answered something that is not JSON: {_start_of(text)}") from None
    rewards = answer.get("rewards") if isinstance(answer, dict) else None
    if not isinstance(rewards, list):
        raise ValueError(f'answered JSON without a list "rewards": {_start_of(text)}')
    if len(rewards) != expected:
        raise ValueError(f"answered {len(rewards)} rewards for {expected} sequences")
    for number, reward in enumerate(rewards):
        if reward is not None and (type(reward) not in (int, float) or not math.isfinite(reward)):
            raise ValueError(f"answered {reward!r} for sequence {number} of {expected}: a number or null was expected")
    return rewards


def _start_of(text: bytes) -> str:
    shown = text[:80].decode("utf-8", "replace")
    return repr(shown + "…" if len(text) > 80 else shown)


# --- the service ---------------------------------------------------------------------------------------------------


class Service:
    """A tiny service that scores by a function: ``with Service(score) as service: … service.url``."""

    def __init__(self, score: Callable[..., Sequence[float | None]], host: str = "127.0.0.1", port: int = 0):
        self.score, self.host, self.port = score, host, port
        self.start()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/score"

    def start(self) -> None:
        score = self.score

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                try:
                    fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                    status, answer = 200, {"rewards": list(score(**fields))}
                except Exception as error:  # whatever a request makes the function do, the service goes on
                    status, answer = 400, {"error": f"{type(error).__name__}: {error}"}
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Not a line for each request."""

        self._server = ThreadingHTTPServer((self.host, self.port), Handler)
        self.port = self._server.server_address[1]  # the same again after a pause
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- the training --------------------------------------------------------------------------------------------------


def train(url: str, updates: int, service: Service | None) -> None:
    """Teach a policy to sort short lists by the rewards of a service, which goes away for a moment if it is ours."""
    torch.set_num_threads(1)
    is_first = processes().is_first  # of several that torchrun has started, one talks
    engine, data = sorting_engine(symbols=6, longest=4, hidden=32), sorting_data(512, 6, 2, 4)
    policy: Any = engine.policy
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for _ in pretrain(engine, data, optimizer, epochs=2):
        pass
    # Equal sequences of an example are asked for once, and not again: the service is deterministic.
    reward = Reward(HttpReward(url, ("sequences", "target"), patience=30.0), cache=100_000, name="service")
    trainer = Trainer(engine, data, reward, "rloo-4", optimizer, batch_size=64)
    for metrics in trainer.run(updates=updates):
        if metrics.update == updates // 2 and service is not None:
            print("the service goes away for a second; the training waits")
            service.close()
            threading.Timer(1.0, service.start).start()
        if metrics.update % (updates // 4) == 0 and is_first:
            print(f"update {metrics.update:3d}: reward {metrics.reward:.2f}, {metrics.reward_calls:,} lists scored")
    share = evaluate(engine, sorting_data(200, 6, 2, 4, seed=1), sorted_exactly)
    if is_first:
        print(f"sorted right: {share:.0%}")


def main(
    quick: bool = False, serve: bool = False, url: str | None = None, host: str = "127.0.0.1", port: int = 0
) -> None:
    if serve:
        with Service(sorted_exactly, host, port) as service:
            print(f"scoring at {service.url}; Ctrl-C ends it", flush=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    elif url is not None:
        train(url, 8 if quick else 200, None)
    else:
        with Service(sorted_exactly) as service:
            train(service.url, 8 if quick else 200, service)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few updates only: to see that it runs")
    parser.add_argument("--serve", action="store_true", help="score for others instead of training")
    parser.add_argument("--url", help="a service to train with, instead of one in this process")
    parser.add_argument("--host", default="127.0.0.1", help="where --serve listens; 0.0.0.0 for other machines")
    parser.add_argument("--port", type=int, default=0, help="where --serve listens; 0: any that is free")
    main(**vars(parser.parse_args()))
