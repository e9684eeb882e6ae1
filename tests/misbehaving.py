"""A small HTTP server that answers as told, at socket level: well, late, in part, wrongly or not at all.

    with Listener(answer(IDLE)) as listener:
        ...  # read listener.url

A behaviour is called once for each accepted connection, on a thread of its own, and drives its ``Peer``. When it
returns or the client has gone, the connection is closed. Leaving the ``with`` ends every connection and thread.
"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock, Thread
from types import TracebackType

import trustme

from drainagent.url import ListenerUrl

IDLE = (
    b"# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
    b"# TYPE vllm:num_requests_running gauge\n"
    b'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n'
    b"# TYPE vllm:num_requests_waiting gauge\n"
    b'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
    b"# TYPE process_start_time_seconds gauge\n"
    b"process_start_time_seconds 1.7e+09\n"
)
BUSY = IDLE.replace(b'running{engine="0",model_name="m"} 0.0', b'running{engine="0",model_name="m"} 3.0')
HTML = b"<!DOCTYPE html><html><body>Welcome</body></html>\n"
JSON = b'{"status": "ok"}\n'


class Peer:
    """One accepted connection. Its methods raise OSError when the client or the listener has gone."""

    def __init__(self, sock: socket.socket, stopped: Event) -> None:
        self.sock, self.stopped = sock, stopped
        self.open = True
        self.requests: list[str] = []

    def request(self) -> str | None:
        """The path of the next request; "" for what is no HTTP; None when the client sends no more."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = self.sock.recv(65536)
            if not data:
                return None
            head += data
            if not b"GET ".startswith(head[:4]):
                break
        target = re.match(rb"GET (\S+) ", head)
        path = target.group(1).decode() if target else ""
        self.requests.append(head.decode("latin-1"))
        return path

    def first_request(self) -> None:
        """Wait for the first request; not again where ``serve`` has read it already."""
        if not self.requests:
            self.request()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def drip(self, data: bytes, every_s: float) -> None:
        for at in range(len(data)):
            self.send(data[at : at + 1])
            self.wait(every_s)

    def wait(self, seconds: float) -> None:
        if self.stopped.wait(seconds):
            raise OSError("the listener is leaving")

    def hold(self) -> None:
        """Say nothing until the client leaves."""
        while self.sock.recv(65536):
            pass

    def close(self) -> None:
        self.open = False
        self.sock.close()

    def reset(self) -> None:
        """Break the connection off: the client gets RST instead of an end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


Behaviour = Callable[[Peer], None]


# Answers, as bytes.


def http(
    body: bytes = b"",
    *headers: str,
    status: str = "200 OK",
    version: str = "1.1",
    length: int | None = -1,
) -> bytes:
    """A response. ``length``: of its Content-Length; -1 is the true one, None leaves the header out."""
    lines = [f"HTTP/{version} {status}", "Content-Type: text/plain; version=0.0.4; charset=utf-8", *headers]
    if length is not None:
        lines.append(f"Content-Length: {len(body) if length == -1 else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(body: bytes, size: int = 64) -> bytes:
    """The same in chunks. Its last five bytes are the end mark."""
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return http(framed + b"0\r\n\r\n", "Transfer-Encoding: chunked", length=None)


# Behaviours.


def answer(body: bytes) -> Behaviour:
    """Serve ``body`` well, for as many requests as the connection brings."""
    return serve(say(http(body)))


def serve(page: Behaviour, routes: Mapping[str, Behaviour] | None = None) -> Behaviour:
    """Call the behaviour of each request's path, ``page`` for any other, while they leave the connection open."""

    def behave(peer: Peer) -> None:
        while peer.open and (path := peer.request()) is not None:
            (routes or {}).get(path, page)(peer)

    return behave


def say(data: bytes) -> Behaviour:
    """Send ``data`` and leave the connection open."""

    def behave(peer: Peer) -> None:
        peer.first_request()
        peer.send(data)

    return behave


def cut(data: bytes) -> Behaviour:
    """Read the request, send ``data`` and close: a body cut short, or a page that only its end ends."""

    def behave(peer: Peer) -> None:
        peer.first_request()
        peer.send(data)
        peer.close()

    return behave


def reset(data: bytes = b"") -> Behaviour:
    """Read the request, send ``data`` and break off."""

    def behave(peer: Peer) -> None:
        peer.first_request()
        peer.send(data)
        peer.reset()

    return behave


def late(data: bytes, after_s: float) -> Behaviour:
    """Send ``data`` after a while."""

    def behave(peer: Peer) -> None:
        peer.first_request()
        peer.wait(after_s)
        peer.send(data)

    return behave


def drip(data: bytes, at_once: int = 0, every_s: float = 0.02) -> Behaviour:
    """Send the first ``at_once`` bytes, then the others one at a time."""

    def behave(peer: Peer) -> None:
        peer.first_request()
        peer.send(data[:at_once])
        peer.drip(data[at_once:], every_s)

    return behave


def flood(head: bytes, block: bytes) -> Behaviour:
    """Send ``head`` and then ``block`` without end."""

    def behave(peer: Peer) -> None:
        peer.first_request()
        peer.send(head)
        many = block * max(1, 65536 // len(block))
        while True:
            peer.send(many)

    return behave


def redirect(location: str, status: str = "302 Found") -> Behaviour:
    return say(http(b"", f"Location: {location}", status=status))


def silent(peer: Peer) -> None:
    """Take the connection and say nothing."""
    peer.hold()


def half_handshake(peer: Peer) -> None:
    """The beginning of a TLS server's hello, and no more (a listener without ``tls``)."""
    peer.sock.recv(65536)
    peer.send(b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03")
    peer.hold()


# The listener.


class Listener:
    """Listens on ``host``; "::" takes IPv4 too (as v4-mapped).

    ``https``: the scheme of ``url``, where it is not what ``tls`` says. ``accepts`` False: nothing leaves its backlog.
    ``options``: further socket options as (level, name, value).
    """

    def __init__(
        self,
        behaviour: Behaviour = silent,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
        https: bool | None = None,
        backlog: int = 64,
        accepts: bool = True,
        options: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self._behaviour, self._tls, self._accepts = behaviour, tls, accepts
        self._stopped, self._lock = Event(), Lock()
        self._peers: list[Peer] = []
        self._threads: list[Thread] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        for option in options:
            self._socket.setsockopt(*option)
        self._socket.bind((host, port))
        self._socket.listen(backlog)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        near = {"::": "127.0.0.1", "0.0.0.0": "127.0.0.1"}.get(host, host)
        scheme = "https" if (tls is not None if https is None else https) else "http"
        self.url = ListenerUrl(scheme, near, self.port)

    @property
    def requests(self) -> list[str]:
        """The heads of all requests so far."""
        with self._lock:
            return [request for peer in self._peers for request in peer.requests]

    def connect(
        self, host: str | None = None, data: bytes = b"", source: tuple[str, int] | None = None
    ) -> socket.socket:
        """A client's connection that sends ``data`` and then nothing."""
        sock = socket.create_connection((host or self.url.host, self.port), 5, source)
        sock.sendall(data)
        return sock

    def stop_listening(self) -> None:
        """Refuse new connections and keep the ones there are, as an engine does that is told to end."""
        _shut(self._socket)
        self._threads[0].join(10)
        self._socket.close()

    def __enter__(self) -> Listener:
        if self._accepts:
            self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        _shut(self._socket)
        with self._lock:
            for peer in self._peers:
                _shut(peer.sock)
        for thread in self._threads:
            thread.join(10)
        self._socket.close()
        assert not any(thread.is_alive() for thread in self._threads), "a behaviour does not end"

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            peer = Peer(sock, self._stopped)
            with self._lock:
                self._peers.append(peer)
                if self._stopped.is_set():
                    _shut(sock)
            self._start(self._drive, peer)

    def _drive(self, peer: Peer) -> None:
        # A broken connection is what most behaviours are for.
        with contextlib.suppress(OSError):
            if self._tls is not None:
                raw = peer.sock
                peer.sock = self._tls.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
                assert isinstance(peer.sock, ssl.SSLSocket)
                peer.sock.do_handshake()
            self._behaviour(peer)
        peer.close()


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Of TCP alone: ssl's own shutdown would take the TLS object from under the thread that uses it.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


@functools.cache
def tls(
    *, version: ssl.TLSVersion | None = None, client_certificate: bool = False, host: str = "127.0.0.1"
) -> ssl.SSLContext:
    """A server's context with a certificate that nobody trusts. ``client_certificate``: demanded."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if client_certificate:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def closed_port(host: str = "127.0.0.1") -> int:
    """A port on which nobody listens."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def fill(listener: Listener, most: int = 32) -> list[socket.socket]:
    """Connections that fill the backlog of a listener that accepts none: the next one is answered no more."""
    held = []
    for _ in range(most):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.settimeout(0.1)
        held.append(sock)
        try:
            sock.connect((listener.url.host, listener.port))
        except TimeoutError:
            return held
    raise AssertionError("the backlog does not fill")
