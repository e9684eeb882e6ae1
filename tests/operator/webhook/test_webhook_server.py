"""The HTTPS server on loopback: real handshakes, renewals while connections run, bounds, a graceful end."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from admitted_pods import INJECTED, review

from drainagent.podspec import AgentImage, Delivery
from operator_glue.webhook import server as server_module
from operator_glue.webhook.certificates import Pair, make
from operator_glue.webhook.configuration import INJECT_PATH, VALIDATE_PATH
from operator_glue.webhook.envelope import Answer
from operator_glue.webhook.injection import Settings, inject_pod
from operator_glue.webhook.server import MAX_BODY, WebhookServer

SETTINGS = Settings(Delivery.INIT_CONTAINER, AgentImage("corp/agent:1"))
BODY = json.dumps(review(INJECTED["plain"][0])).encode()
_Result = TypeVar("_Result")


def pair() -> Pair:
    return make(["127.0.0.1", "localhost"], datetime.now(timezone.utc))


class Running:
    """A server in a loop of its own thread."""

    def __init__(self, **options: Any) -> None:
        self.seen: list[tuple[str, Answer, float]] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        decisions: dict[str, Any] = {INJECT_PATH: lambda request: inject_pod(request, SETTINGS), **options}
        self.server = WebhookServer(decisions, lambda *what: self.seen.append(what))
        self.run(self.server.start("127.0.0.1", 0))
        self.port = self.server.port

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def connect(self, served: Pair, host: str = "127.0.0.1") -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=served.ca)
        connection = http.client.HTTPSConnection(host, self.port, context=context, timeout=10)
        connection.connect()
        return connection

    def close(self) -> None:
        self.run(self.server.stop(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(**options: Any) -> Running:
        started.append(Running(**options))
        return started[-1]

    yield begin
    for item in started:
        item.close()


def post(connection: http.client.HTTPSConnection, body: bytes = BODY, path: str = INJECT_PATH) -> tuple[int, bytes]:
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read()


def allowed(connection: http.client.HTTPSConnection) -> dict[str, Any]:
    status, text = post(connection)
    assert status == 200, text
    response: dict[str, Any] = json.loads(text)["response"]
    assert response["allowed"] is True
    return response


def test_a_pod_is_answered_over_https(start: Callable[..., Running]) -> None:
    running, served = start(), pair()
    running.server.use(served.certificate, served.key)
    for host in ("127.0.0.1", "localhost"):  # without a server name, and with one
        connection = running.connect(served, host)
        assert "patch" in allowed(connection)
        assert "patch" in allowed(connection)  # kept alive
        connection.close()
    path, answer, elapsed_s = running.seen[0]
    assert (path, bool(answer.patch)) == (INJECT_PATH, True)
    assert 0 < elapsed_s < 5


def test_a_renewal_while_connections_run(start: Callable[..., Running]) -> None:
    running, old, new = start(), pair(), pair()
    running.server.use(old.certificate, old.key)
    kept = running.connect(old)
    allowed(kept)
    stop = threading.Event()
    failures: list[BaseException] = []
    answered = [0]
    both = Pair(old.ca + new.ca, "", "")

    def client() -> None:
        try:
            while not stop.is_set():
                connection = running.connect(both)
                allowed(connection)
                connection.close()
                answered[0] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(3)]
    for thread in threads:
        thread.start()
    for renewal in (new, old, new, old, new):
        before = answered[0]
        running.server.use(renewal.certificate, renewal.key)
        while answered[0] < before + 6 and not failures:
            stop.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert failures == []
    allowed(kept)  # of the first certificate, and still there
    kept.close()
    running.connect(new).close()
    with pytest.raises(ssl.SSLCertVerificationError):
        running.connect(old)


def test_a_pair_that_does_not_fit_changes_nothing(start: Callable[..., Running]) -> None:
    running, served = start(), pair()
    assert not running.server.has_certificate
    with pytest.raises((ssl.SSLError, ConnectionError)):
        running.connect(served)
    running.server.use(served.certificate, served.key)
    assert running.server.has_certificate
    for certificate, key in ((served.certificate, pair().key), ("x", "y"), ("", "")):
        with pytest.raises(ValueError, match="cannot be served"):
            running.server.use(certificate, key)
    connection = running.connect(served)
    allowed(connection)
    connection.close()


@pytest.mark.parametrize(
    ("body", "path", "status", "words"),
    [
        (b"{", INJECT_PATH, 400, b"the body is no JSON"),
        (b"[" * 100_000, INJECT_PATH, 400, b"the body is no JSON"),
        (b"\xff\xfe", INJECT_PATH, 400, b"the body is no JSON"),
        (b"{}", INJECT_PATH, 400, b"no AdmissionReview of admission.k8s.io/v1"),
        (BODY, VALIDATE_PATH, 404, b""),
        (BODY, "/", 404, b""),
        (b" " * (MAX_BODY + 1), INJECT_PATH, 413, b""),
    ],
)
def test_what_is_no_review(start: Callable[..., Running], body: bytes, path: str, status: int, words: bytes) -> None:
    running, served = start(), pair()
    running.server.use(served.certificate, served.key)
    connection = running.connect(served)
    got, text = post(connection, body, path)
    assert got == status
    assert words in text
    connection.close()


def test_a_body_that_does_not_come(start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_S", 0.2)
    running, served = start(), pair()
    running.server.use(served.certificate, served.key)
    connection = running.connect(served)
    connection.putrequest("POST", INJECT_PATH)
    connection.putheader("Content-Length", "10")
    connection.endheaders(b"{")
    assert connection.getresponse().status == 408
    connection.close()


def test_a_slow_answer_holds_up_nobody(start: Callable[..., Running]) -> None:
    gate = threading.Event()

    def slow(_: Any) -> Answer:
        gate.wait(20)
        return Answer()

    running, served = start(**{VALIDATE_PATH: slow}), pair()
    running.server.use(served.certificate, served.key)
    waiting = running.connect(served)
    waiting.request("POST", VALIDATE_PATH, BODY)
    other = running.connect(served)
    allowed(other)
    gate.set()
    assert waiting.getresponse().status == 200
    waiting.close()
    other.close()


def test_a_mistake_of_ours_is_allowed(start: Callable[..., Running]) -> None:
    def broken(_: Any) -> Answer:
        raise KeyError("x")

    running, served = start(**{VALIDATE_PATH: broken}), pair()
    running.server.use(served.certificate, served.key)
    connection = running.connect(served)
    status, text = post(connection, path=VALIDATE_PATH)
    assert (status, json.loads(text)["response"]["allowed"]) == (200, True)
    assert running.seen[0][1].mistake == "KeyError: 'x'"
    connection.close()


def test_a_graceful_end(start: Callable[..., Running]) -> None:
    """A connection that is used while we leave is answered, and asked to go; what runs is finished."""
    entered, gate = threading.Event(), threading.Event()

    def slow(_: Any) -> Answer:
        entered.set()
        gate.wait(20)
        return Answer()

    running, served = start(**{VALIDATE_PATH: slow}), pair()
    running.server.use(served.certificate, served.key)
    idle, busy = running.connect(served), running.connect(served)
    allowed(idle)
    stopping = asyncio.run_coroutine_threadsafe(running.server.stop(0.5), running.loop)
    while not running.server._is_leaving:
        time.sleep(0.01)
    idle.request("POST", INJECT_PATH, BODY)
    response = idle.getresponse()
    assert (response.status, response.getheader("Connection")) == (200, "close")
    response.read()
    busy.request("POST", VALIDATE_PATH, BODY)
    assert entered.wait(10)
    threading.Timer(0.8, gate.set).start()  # after the end of listening
    response = busy.getresponse()
    assert (response.status, json.loads(response.read())["response"]["allowed"]) == (200, True)
    stopping.result(10)
    with pytest.raises(ConnectionError):
        running.connect(served)
    idle.close()
    busy.close()
