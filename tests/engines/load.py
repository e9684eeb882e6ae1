"""Clients of a real engine: each has one connection, sends its requests over it in turn and notes what came of each.

Times are seconds on the monotonic clock; ``Request.at_s`` alone counts from the delete.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Literal

CONNECT_S, READ_S = 5.0, 120.0
#: Token ids of the tiny models that are plain pieces of text.
FIRST_ID, LAST_ID = 10, 300


@dataclass(frozen=True)
class Request:
    """A completion to ask for: ``prompt`` random ids, so that no cache has met them, ``tokens`` generated ones."""

    at_s: float
    prompt: int = 20
    tokens: int = 100
    stream: bool = True
    logprobs: int | None = None
    #: With ``logprobs``: those of the prompt too, which makes a large answer soon.
    echo: bool = False

    def body(self) -> bytes:
        fields: dict[str, Any] = {
            "model": "tiny",
            "prompt": random.choices(range(FIRST_ID, LAST_ID), k=self.prompt),
            "max_tokens": self.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": self.stream,
        }
        if self.logprobs is not None:
            fields["logprobs"] = self.logprobs
        if self.echo:
            fields["echo"] = True
        return json.dumps(fields).encode()


@dataclass(frozen=True)
class ClientPlan:
    """One client.

    ``after`` its last response it closes its connection, holds it open until the engine closes it, or keeps it in use
    with a health probe a second. ``only_probes``: no completion at all, a probe a second on a connection of its own
    each, as the kubelet does. ``bytes_per_s``: a slow reader, with the smallest receive buffer there is.
    """

    requests: tuple[Request, ...] = ()
    after: Literal["close", "hold", "probe"] = "close"
    bytes_per_s: int | None = None
    only_probes: bool = False


@dataclass
class Answer:
    """What came of one request. ``fault`` None once the answer was seen to its proper end."""

    request: Request
    sent: float
    first_byte: float | None = None
    ended: float | None = None
    fault: str | None = "still running"
    received: int = 0

    @property
    def complete(self) -> bool:
        return self.fault is None

    def running_at(self, moment: float) -> bool:
        """Sent by then, and its client had neither its last byte nor an end of another kind."""
        return self.sent <= moment and (self.ended is None or self.ended > moment)


@dataclass(frozen=True)
class Target:
    port: int
    tls: bool = False


class Client(threading.Thread):
    """Runs one plan against ``target``, counting ``at_s`` from ``delete_at``, until ``stop``."""

    def __init__(self, plan: ClientPlan, target: Target, delete_at: float) -> None:
        super().__init__(daemon=True)
        self.plan, self.target, self.delete_at = plan, target, delete_at
        self.answers: list[Answer] = []
        self.probes: list[int | str] = []
        self._stop_asked = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        #: http.client lets go of its own reference when an answer ends with the connection.
        self._sock: socket.socket | None = None

    def stop(self) -> None:
        """End now: whatever is still running is abandoned, and the connection closed."""
        self._stop_asked.set()
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        if self.plan.only_probes:
            self._probe_every_second(reuse=False)
            return
        for request in self.plan.requests:
            if self._stop_asked.wait(max(0.0, self.delete_at + request.at_s - time.monotonic())):
                return
            self._ask(request)
        match self.plan.after:
            case "close":
                self._close()
            case "hold":
                self._hold()
            case "probe":
                self._probe_every_second(reuse=True)

    def _open(self) -> http.client.HTTPConnection:
        if self._connection is not None:
            return self._connection
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if self.plan.bytes_per_s:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.settimeout(CONNECT_S)
        sock.connect(("127.0.0.1", self.target.port))
        if self.target.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            sock = context.wrap_socket(sock)
        sock.settimeout(READ_S)
        connection = http.client.HTTPConnection("127.0.0.1", self.target.port)
        connection.sock = sock
        self._connection, self._sock = connection, sock
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = self._sock = None

    def _ask(self, request: Request) -> None:
        answer = Answer(request, time.monotonic())
        self.answers.append(answer)
        try:
            response = self._post(request)
            answer.first_byte = time.monotonic()
            fault = self._read(response, answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            fault = "abandoned" if self._stop_asked.is_set() else f"{type(error).__name__}: {error}"
        answer.ended = time.monotonic()
        answer.fault = fault
        if fault is not None:
            self._close()

    def _post(self, request: Request) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", "Host": f"127.0.0.1:{self.target.port}"}
        if self.plan.after == "close" and request is self.plan.requests[-1]:
            headers["Connection"] = "close"
        body = request.body()
        reused = self._connection is not None
        try:
            connection = self._open()
            connection.request("POST", "/v1/completions", body, headers)
            return connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # An idle connection that the engine has closed meanwhile: what any pool does.
            if not reused:
                raise
            self._close()
            connection = self._open()
            connection.request("POST", "/v1/completions", body, headers)
            return connection.getresponse()

    def _read(self, response: http.client.HTTPResponse, answer: Answer) -> str | None:
        """Read the whole answer; why it is no finished one, or None."""
        pieces = []
        while piece := response.read1(2048 if self.plan.bytes_per_s else 65536):
            pieces.append(piece)
            answer.received += len(piece)
            if self.plan.bytes_per_s:
                time.sleep(len(piece) / self.plan.bytes_per_s)
        text = b"".join(pieces)
        if response.status != http.client.OK:
            return f"status {response.status}: {text[:200]!r}"
        return stream_fault(text) if answer.request.stream else body_fault(text)

    def _hold(self) -> None:
        """Keep the idle connection open until the engine closes it."""
        connection = self._connection
        if connection is None or connection.sock is None:
            return
        connection.sock.settimeout(0.1)
        while not self._stop_asked.is_set():
            try:
                if not connection.sock.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self._close()

    def _probe_every_second(self, *, reuse: bool) -> None:
        while not self._stop_asked.is_set():
            started = time.monotonic()
            try:
                connection = self._open()
                connection.request("GET", "/health", headers={} if reuse else {"Connection": "close"})
                response = connection.getresponse()
                response.read()
                self.probes.append(response.status)
            except (OSError, http.client.HTTPException) as error:
                self.probes.append(type(error).__name__)
                self._close()
            if not reuse:
                self._close()
            self._stop_asked.wait(max(0.0, started + 1.0 - time.monotonic()))
        self._close()


def stream_fault(text: bytes) -> str | None:
    """Why these server-sent events are no finished completion, or None. A status of 200 alone says nothing."""
    finished = done = False
    for line in text.decode(errors="replace").splitlines():
        word, _, value = line.partition(":")
        value = value.strip()
        if word != "data" or not value:
            continue
        if value == "[DONE]":
            done = True
            continue
        event = json.loads(value)
        if "error" in event:
            return f"error event: {str(event['error'])[:120]}"
        for choice in event.get("choices", ()):
            reason = choice.get("finish_reason")
            if reason not in {None, "length", "stop"}:
                return f"finish_reason {reason}"
            finished = finished or reason is not None
    if not finished:
        return "stream ended without a finish_reason"
    return None if done else "stream ended without [DONE]"


def body_fault(text: bytes) -> str | None:
    """Why this JSON body is no finished completion, or None."""
    choices = json.loads(text).get("choices") or [{}]
    reason = choices[0].get("finish_reason")
    return None if reason in {"length", "stop"} else f"finish_reason {reason}"


@dataclass
class Load:
    """The clients of one trial."""

    plans: tuple[ClientPlan, ...]
    target: Target
    delete_at: float
    clients: list[Client] = field(init=False)

    def start(self) -> None:
        self.clients = [Client(plan, self.target, self.delete_at) for plan in self.plans]
        for client in self.clients:
            client.start()

    def stop(self) -> None:
        for client in self.clients:
            client.stop()
        for client in self.clients:
            client.join(5)

    @property
    def answers(self) -> list[Answer]:
        return [answer for client in self.clients for answer in client.answers]

    @property
    def planned(self) -> int:
        return sum(len(plan.requests) for plan in self.plans)

    def settled(self) -> bool:
        """Every request was sent and has ended."""
        answers = self.answers
        return len(answers) == self.planned and all(answer.ended is not None for answer in answers)


def earliest_s(plans: tuple[ClientPlan, ...]) -> float:
    """When the first request goes out, from the delete."""
    return min((request.at_s for plan in plans for request in plan.requests), default=0.0)
