"""The client of ``examples/reward_over_http.py`` against real services on this machine that fail in every way."""

import json
import threading
import time
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from typing import Any

import pytest

from corollout.errors import InputError, RewardError
from corollout.rewards import Reward
from examples import reward_over_http
from examples.reward_over_http import HttpReward, Service

LISTS = [[n] * (n % 5) for n in range(50)]


class Unreliable:
    """A service that answers request after request as it is told, and from then on well: the sums of sequences."""

    def __init__(self) -> None:
        self.plan: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.release = threading.Event()
        lock, told = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    told.requests.append(fields)
                    how = told.plan.pop(0) if told.plan else "well"
                rewards: list[Any] = [sum(tokens) for tokens in fields["sequences"]]
                if how == "hang":
                    told.release.wait(3)
                    return
                if how == "late":
                    time.sleep(0.15)
                if how == "disconnect":
                    self.connection.close()
                    return
                if how == "one too few":
                    rewards.pop()
                if how in ("nan", "true", "text", "skip"):
                    rewards[1] = {"nan": float("nan"), "true": True, "text": "2", "skip": None}[how]
                body = json.dumps({"rewards": rewards}).encode()
                body = {"page": b"<html>sorry</html>", "list": b"[1, 2]"}.get(how, body)
                self.send_response(int(how) if how.isdigit() else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if how == "half":
                    body = body[: len(body) // 2]
                for byte in body if how == "trickle" else ():
                    self.wfile.write(bytes([byte]))
                    if told.release.wait(0.05):
                        return
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """The client has hung up, as it should."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/score"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def service() -> Generator[Unreliable, None, None]:
    unreliable = Unreliable()
    yield unreliable
    unreliable.release.set()
    unreliable.server.shutdown()
    unreliable.server.server_close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_over_http, "FIRST_PAUSE", 0.01)


def sums(lists: list[list[int]]) -> list[int]:
    return [sum(tokens) for tokens in lists]


def test_batches_are_put_together_in_order(service: Unreliable):
    service.plan = ["late", "well", "late"]  # the first batch is not the first to be answered
    assert HttpReward(service.url, batch_size=7)(sequences=LISTS, other=LISTS) == sums(LISTS)
    assert sorted(len(request["sequences"]) for request in service.requests) == [1, *repeat(7, 7)]
    assert all(request.keys() == {"sequences"} for request in service.requests)


@pytest.mark.parametrize("failure", ["500", "503", "429", "disconnect", "half", "hang", "trickle"])
def test_what_may_be_gone_the_next_time_is_tried_again(service: Unreliable, failure: str):
    service.plan = [failure, failure]
    reward = HttpReward(service.url, batch_size=20, timeout=0.2)
    assert reward(sequences=LISTS) == sums(LISTS)
    assert len(service.requests) == 3 + 2


def test_a_late_answer_within_the_time_is_taken(service: Unreliable):
    service.plan = ["late"] * 3
    assert HttpReward(service.url, batch_size=20, timeout=5.0)(sequences=LISTS) == sums(LISTS)
    assert len(service.requests) == 3


@pytest.mark.parametrize("failure", ["503", "hang", "trickle", "disconnect"])
def test_it_gives_up_within_the_stated_time(service: Unreliable, failure: str):
    service.plan = [failure] * 10_000
    start = time.monotonic()
    with pytest.raises(ConnectionError) as error:
        HttpReward(service.url, batch_size=20, timeout=0.2, patience=0.5)(sequences=LISTS)
    assert 0.4 < time.monotonic() - start < 2.0
    last = {"503": "status 503", "disconnect": "RemoteDisconnected"}.get(failure, "no whole answer within")
    assert str(error.value).startswith(f"the reward service {service.url} gave no answer within 0.5 s: attempt ")
    assert last in str(error.value)


def test_a_service_that_is_not_there_is_named_and_found_when_it_is_back():
    with Service(lambda sequences: sums(sequences)) as service:
        url = service.url
        assert HttpReward(url)(sequences=LISTS) == sums(LISTS)
    with pytest.raises(ConnectionError, match=rf"{url} gave no answer within 0\.2 s.*ConnectionRefusedError"):
        HttpReward(url, patience=0.2)(sequences=LISTS)
    back = threading.Timer(0.3, service.start)
    back.start()
    try:
        assert HttpReward(url)(sequences=LISTS) == sums(LISTS)
    finally:
        back.join()
        service.close()


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        ("one too few", "answered 49 rewards for 50 sequences"),
        ("nan", "answered nan for sequence 1 of 50: a number or null was expected"),
        ("true", "answered True for sequence 1 of 50: a number or null was expected"),
        ("text", "answered '2' for sequence 1 of 50: a number or null was expected"),
        ("page", "answered something that is not JSON: '<html>sorry</html>'"),
        ("list", "answered JSON without a list \"rewards\": '[1, 2]'"),
        ("404", 'refused the request with status 404 Not Found: \'{"rewards": [0'),
    ],
)
def test_a_wrong_answer_is_an_error_at_once(service: Unreliable, failure: str, sentence: str):
    service.plan = [failure]
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the sentence is compared below)
        HttpReward(service.url)(sequences=LISTS)
    assert str(error.value).startswith(f"the reward service {service.url} {sentence}")
    assert len(service.requests) == 1


@pytest.mark.parametrize("url", ["localhost:8000/score", "ftp://localhost/score", "http://", ""])
def test_an_address_that_is_none_is_refused(url: str):
    with pytest.raises(InputError, match="begins with http:// or https://"):
        HttpReward(url)


def test_an_error_of_one_batch_ends_the_others(service: Unreliable):
    service.plan = ["page", *repeat("503", 1000)]
    start = time.monotonic()
    with pytest.raises(ValueError, match="not JSON"):
        HttpReward(service.url, batch_size=10, connections=2, patience=20.0)(sequences=LISTS)
    assert time.monotonic() - start < 5.0


def test_it_is_a_reward_in_this_process_and_in_workers(service: Unreliable):
    service.plan = ["skip"]
    with Reward(HttpReward(service.url, ("sequences", "examples")), name="service") as reward:
        scores = reward(LISTS, range(50), {"unused": [object()] * 50})
    assert scores.values.isnan().nonzero().flatten().tolist() == [1]
    assert service.requests[0]["examples"] == list(range(50))
    with Reward(HttpReward(service.url), workers=1, timeout=60.0) as reward:
        assert reward(LISTS, range(50), {}).values.tolist() == sums(LISTS)
    service.plan = ["page"]
    with pytest.raises(RewardError, match=r"reward 'service' raised ValueError: the reward service http.* not JSON"):
        Reward(HttpReward(service.url), name="service")(LISTS, range(50), {})


def test_the_tiny_service_refuses_what_it_cannot_score():
    with Service(lambda sequences: sums(sequences)) as service:
        with pytest.raises(ValueError, match=r"status 400 Bad Request: .*TypeError"):
            HttpReward(service.url, ("sequences", "target"))(sequences=LISTS, target=LISTS)
        lists = list(chain(LISTS, LISTS))
        assert HttpReward(service.url, batch_size=1)(sequences=lists) == sums(lists)
