"""One read of one listener, over real sockets and this machine's own socket table: what it finds, within its bound."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from misbehaving import (
    BUSY,
    HTML,
    IDLE,
    JSON,
    Behaviour,
    Listener,
    Peer,
    answer,
    chunked,
    closed_port,
    cut,
    drip,
    fill,
    flood,
    half_handshake,
    http,
    late,
    redirect,
    reset,
    say,
    serve,
    silent,
    tls,
)

from drainagent.catalogue import SGLANG, VLLM
from drainagent.page import Page
from drainagent.procfs import read_tables
from drainagent.reader import Reader
from drainagent.reasons import Reason, Verdict
from drainagent.settings import read_network
from drainagent.sockets import Clients
from drainagent.targets import Target
from drainagent.url import ListenerUrl
from drainagent.verdict import Fault, LoadRule, Reading, judge

#: For reads that come to an end, and for those that are ended.
BOUND_S, SHORT_S = 2.0, 0.3
#: What a busy machine may add to a bound.
SLACK_S = 1.5
NOBODY = Clients(0, 0, 0)
PAGE = http(IDLE)
TLS_1_2, TLS_1_3 = tls(version=ssl.TLSVersion.TLSv1_2), tls(version=ssl.TLSVersion.TLSv1_3)
ASKS_BACK_1_2 = tls(version=ssl.TLSVersion.TLSv1_2, client_certificate=True)
ASKS_BACK_1_3 = tls(version=ssl.TLSVersion.TLSv1_3, client_certificate=True)
UPGRADE = http(b"", "Connection: upgrade", "Upgrade: x", status="101 Switching Protocols", length=None)


def read_url(url: ListenerUrl, reader: Reader | None = None, bound_s: float = BOUND_S, **target: Any) -> Reading:
    """One read, which has to end within its bound."""
    began_s = time.monotonic()
    reading = (reader or Reader(read_tables)).read(Target(url, VLLM, **target), bound_s)
    assert time.monotonic() - began_s < bound_s + SLACK_S
    return reading


def outcome(reading: Reading) -> Reason | bool:
    """The fault's reason; for a page, whether it is one of metrics."""
    return reading.page.reason if isinstance(reading.page, Fault) else reading.page.is_metrics


def page_of(reading: Reading) -> Page:
    assert isinstance(reading.page, Page), reading.page
    return reading.page


def clients_of(reading: Reading) -> Clients:
    assert reading.clients is not None
    return reading.clients


def soon(look: Callable[[], bool], within_s: float = 1) -> bool:
    """Whether it comes about: what the kernel and other threads do takes a moment."""
    end_s = time.monotonic() + within_s
    while not look():
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.001)
    return True


def eventually(look: Callable[[], bool]) -> None:
    assert soon(look, within_s=10), "it never came about"


@dataclass(frozen=True)
class Row:
    """What a listener does, and what a read of it finds: a reason, or a page (of metrics: True)."""

    name: str
    behaviour: Behaviour
    finds: Reason | bool
    listener: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def chunks(body: bytes) -> bytes:
    return http(body, "Transfer-Encoding: chunked", length=None)


ROWS = [
    # Pages.
    Row("complete", answer(IDLE), True),
    Row("complete in chunks", serve(say(chunked(IDLE))), True),
    Row("IPv6", answer(IDLE), True, {"host": "::1"}),
    Row("TLS 1.2", answer(IDLE), True, {"tls": TLS_1_2}),
    Row("TLS 1.3", answer(IDLE), True, {"tls": TLS_1_3}),
    Row("TLS for another name", answer(IDLE), True, {"tls": tls(host="engine.example")}),
    Row("HTTP/1.0", cut(http(IDLE, version="1.0")), True),
    Row("HTTP/1.0 that only the end ends", cut(http(IDLE, version="1.0", length=None)), True),
    Row("100 Continue first", cut(b"HTTP/1.1 100 Continue\r\n\r\n" + PAGE), True),
    Row("slow but in time", late(PAGE, 0.1), True),
    Row("HTML", answer(HTML), False),
    Row("JSON", answer(JSON), False),
    Row("empty", answer(b""), False),
    Row("no content", cut(http(status="204 No Content", length=None)), False),
    # Time.
    Row("too slow", late(PAGE, 60), Reason.TIMED_OUT),
    Row("header drips", drip(PAGE), Reason.TIMED_OUT),
    Row("body drips", drip(PAGE, at_once=len(PAGE) - 100), Reason.TIMED_OUT),
    Row("chunks drip", drip(chunked(IDLE, 1), at_once=200), Reason.TIMED_OUT),
    Row("TLS body drips", drip(PAGE, at_once=200), Reason.TIMED_OUT, {"tls": tls()}),
    Row("accepts and is silent", silent, Reason.TIMED_OUT),
    Row("silent where TLS is asked", silent, Reason.TIMED_OUT, {"https": True}),
    Row("half a TLS handshake", half_handshake, Reason.TIMED_OUT, {"https": True}),
    Row("1xx without end", flood(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"), Reason.PROTOCOL_ERROR),
    Row("chunks of one byte without end", flood(chunks(b""), b"1\r\n\n\r\n"), Reason.TIMED_OUT),
    # Half pages.
    Row("body cut", cut(PAGE[:-30]), Reason.PAGE_CUT),
    Row("chunk cut", cut(chunked(IDLE)[:-20]), Reason.PAGE_CUT),
    Row("chunks without their end mark", cut(chunked(IDLE)[:-5]), Reason.PAGE_CUT),
    Row("length is a lie: longer", cut(http(IDLE, length=len(IDLE) + 10)), Reason.PAGE_CUT),
    Row("length is a lie: shorter", cut(http(IDLE, length=len(IDLE) - 10)), Reason.PAGE_CUT),
    Row("no newline at the end", answer(IDLE[:-1]), Reason.PAGE_CUT),
    Row("cut between lines, unframed", cut(http(IDLE[: IDLE.index(b"# TYPE")], length=None)), Reason.PAGE_CUT),
    Row("cut before the first line, unframed", cut(http(length=None)), Reason.PAGE_CUT),
    Row("part of a page", cut(http(IDLE, status="206 Partial Content")), Reason.PAGE_CUT),
    # Connections that break off.
    Row("closed before the request", lambda _: None, Reason.CONNECTION_RESET),
    Row("closed before the answer", cut(b""), Reason.CONNECTION_RESET),
    Row("closed in the header", cut(PAGE[:40]), Reason.CONNECTION_RESET),
    Row("reset on accept", Peer.reset, Reason.CONNECTION_RESET),
    Row("reset before the answer", reset(), Reason.CONNECTION_RESET),
    Row("reset in the header", reset(PAGE[:40]), Reason.CONNECTION_RESET),
    Row("reset in the body", reset(PAGE[:-30]), Reason.CONNECTION_RESET),
    # Not HTTP, or not what was asked for.
    Row("bad chunk size", cut(chunks(b"zz\r\nvllm\r\n")), Reason.PROTOCOL_ERROR),
    Row("garbage status line", cut(b"220 mail.example ESMTP\r\n\r\n"), Reason.PROTOCOL_ERROR),
    Row("two lengths", cut(http(IDLE, "Content-Length: 3")), Reason.PROTOCOL_ERROR),
    Row("length of 5000 digits", cut(http(IDLE, "Content-Length: " + 5000 * "9", length=None)), Reason.PROTOCOL_ERROR),
    Row("header without end", flood(b"HTTP/1.1 200 OK\r\n", b"X-Flood: 1\r\n"), Reason.PROTOCOL_ERROR),
    Row("one header line without end", flood(b"HTTP/1.1 200 OK\r\nX: ", b"x"), Reason.PROTOCOL_ERROR),
    Row("switches protocols", cut(UPGRADE), Reason.PROTOCOL_ERROR),
    Row("gzip although identity was asked", say(http(b"\x1f\x8b\x08", "Content-Encoding: gzip")), Reason.BAD_ENCODING),
    Row("body without end", flood(http(length=1 << 40), b"# more\n"), Reason.PAGE_TOO_LARGE),
    Row("unframed body without end", flood(http(length=None), b"# more\n"), Reason.PAGE_TOO_LARGE),
    # HTTP errors.
    Row("503", serve(say(http(b"wait\n", status="503 Service Unavailable"))), Reason.HTTP_ERROR),
    Row("404 with a busy page", serve(say(http(BUSY, status="404 Not Found"))), Reason.HTTP_ERROR),
    Row("error whose body never comes", drip(http(IDLE, status="500 Oops"), at_once=120), Reason.HTTP_ERROR),
    Row("redirect in a loop", serve(redirect("/metrics")), Reason.HTTP_ERROR),
    Row("redirect to another host", serve(redirect("http://192.0.2.99/metrics")), Reason.HTTP_ERROR),
    Row("redirect to another port", serve(redirect("http://127.0.0.1:9/metrics")), Reason.HTTP_ERROR),
    Row("redirect to TLS", serve(redirect("https://127.0.0.1/metrics")), Reason.HTTP_ERROR),
    Row("redirect to nowhere", serve(redirect("http://[")), Reason.HTTP_ERROR),
    # TLS.
    Row("HTTP where TLS is asked", cut(http(b"", status="400 Bad Request")), Reason.TLS_FAILED, {"https": True}),
    Row("TLS 1.2 asks for a client certificate", answer(IDLE), Reason.TLS_FAILED, {"tls": ASKS_BACK_1_2}),
    Row("TLS 1.3 asks for a client certificate", answer(IDLE), Reason.TLS_FAILED, {"tls": ASKS_BACK_1_3}),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(row: Row) -> None:
    with Listener(row.behaviour, **row.listener) as listener:
        reading = read_url(listener.url, bound_s=SHORT_S if row.finds is Reason.TIMED_OUT else BOUND_S)
    assert outcome(reading) == row.finds, reading.page
    assert reading.clients == NOBODY
    assert reading.url == str(listener.url)


def test_tls_where_http_is_asked() -> None:
    # What the TLS server says to a plain request (an alert, an end, a reset) is its own affair.
    with Listener(answer(IDLE), tls=tls(), https=False) as listener:
        assert outcome(read_url(listener.url)) in {Reason.PROTOCOL_ERROR, Reason.CONNECTION_RESET}


def test_reset_on_accept_is_a_reset_whenever_it_is_noticed() -> None:
    """The RST may come during connect, before the connection's ends can be asked for, or later."""
    with Listener(Peer.reset) as listener:
        found = {outcome(read_url(listener.url)) for _ in range(50)}
    assert found == {Reason.CONNECTION_RESET}


@pytest.mark.parametrize(
    ("number", "verdict", "reason"),
    [
        (errno.ECONNREFUSED, Verdict.UNMEASURABLE, Reason.CONNECTION_REFUSED),
        (errno.EHOSTUNREACH, Verdict.UNMEASURABLE, Reason.UNREACHABLE),
        (errno.ENETUNREACH, Verdict.UNMEASURABLE, Reason.UNREACHABLE),
        (errno.ETIMEDOUT, Verdict.UNKNOWN, Reason.TIMED_OUT),
        (errno.ECONNRESET, Verdict.UNKNOWN, Reason.CONNECTION_RESET),
        (errno.ECONNABORTED, Verdict.UNKNOWN, Reason.CONNECTION_RESET),
        # Our own want says nothing of the listener, so it ends no hook.
        (errno.EMFILE, Verdict.UNKNOWN, None),
        (errno.ENFILE, Verdict.UNKNOWN, None),
        (errno.ENOBUFS, Verdict.UNKNOWN, None),
        (errno.ENOMEM, Verdict.UNKNOWN, None),
        (errno.EADDRNOTAVAIL, Verdict.UNKNOWN, None),
    ],
)
def test_connect_fails(monkeypatch: pytest.MonkeyPatch, number: int, verdict: Verdict, reason: Reason | None) -> None:
    def connect(address: tuple[str, int], *_: object, **__: object) -> socket.socket:
        # An address family that the machine lacks is no answer to the question whether anybody listens on the other.
        raise OSError(number if address[0] == "127.0.0.1" else errno.EAFNOSUPPORT, os.strerror(number))

    monkeypatch.setattr(socket, "create_connection", connect)
    reading = read_url(ListenerUrl("http", "127.0.0.1", 8000), Reader(lambda: None))
    assert judge(reading, LoadRule()).verdict is verdict
    assert reason is None or outcome(reading) is reason


def test_page_over_the_bound() -> None:
    page = IDLE + b"# filler\n" * 1000
    with Listener(answer(page)) as listener:
        small = Reader(read_tables, page_bound_bytes=len(page) - 1)
        exact = Reader(read_tables, page_bound_bytes=len(page))
        assert outcome(read_url(listener.url, small)) is Reason.PAGE_TOO_LARGE
        assert outcome(read_url(listener.url, exact)) is True


def test_redirect_to_a_path_of_the_same_listener() -> None:
    behaviour = serve(redirect("/real?x=1"), {"/real?x=1": say(http(BUSY))})
    with Listener(behaviour) as listener:
        reading = read_url(listener.url)
    assert [gauge.sum for gauge in page_of(reading).gauges] == [3, 0]
    assert reading.clients == NOBODY


def test_request() -> None:
    with Listener(answer(IDLE), host="::1") as listener:
        read_url(listener.url)
    [request] = listener.requests
    lines = request.lower().splitlines()
    assert lines[0] == "get /metrics http/1.1"
    assert f"host: [::1]:{listener.port}" in lines
    assert "accept-encoding: identity" in lines


@pytest.mark.parametrize("bound_s", [0.0, 0.001])
def test_no_time_at_all(bound_s: float) -> None:
    with Listener() as listener:
        assert outcome(read_url(listener.url, bound_s=bound_s)) is Reason.TIMED_OUT


def test_what_a_hostile_answer_says_is_quoted_in_part() -> None:
    encoded = http(IDLE, "Content-Encoding: " + 60_000 * "x")
    for said in (http(b"f" * 60_000 + b"\r\n", "Transfer-Encoding: chunked", length=None), encoded):
        with Listener(cut(said)) as listener:
            fault = read_url(listener.url).page
        assert isinstance(fault, Fault)
        assert len(str(fault)) < 2000


# Nobody listens, or elsewhere than asked.


def test_refused() -> None:
    url = ListenerUrl("http", "127.0.0.1", closed_port())
    reading = read_url(url)
    assert outcome(reading) is Reason.CONNECTION_REFUSED
    assert reading.clients == NOBODY
    assert outcome(read_url(url, Reader(lambda: None))) is Reason.CONNECTION_REFUSED


def own_address() -> str:
    """An address of this machine that is no loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has a loopback alone")
        return str(sock.getsockname()[0])


@pytest.mark.parametrize("asked", ["127.0.0.1", "localhost", "::1"])
@pytest.mark.parametrize("bound_to", ["127.0.0.1", "::1", "127.0.0.5", "own", "0.0.0.0", "::"])
def test_listener_is_found_where_it_is(asked: str, bound_to: str) -> None:
    host = own_address() if bound_to == "own" else bound_to
    reader = Reader(read_tables)
    with Listener(answer(BUSY), host=host) as listener:
        url = ListenerUrl("http", asked, listener.port)
        for _ in range(2):
            reading = read_url(url, reader)
            assert [gauge.sum for gauge in page_of(reading).gauges] == [3, 0]
            assert reading.clients == NOBODY
    assert outcome(read_url(url, reader)) is Reason.CONNECTION_REFUSED


def test_without_a_table_the_loopbacks_are_still_tried() -> None:
    with Listener(answer(IDLE), host="::1") as listener:
        reading = read_url(ListenerUrl("http", "127.0.0.1", listener.port), Reader(lambda: None))
    assert outcome(reading) is True
    assert reading.clients is None


def test_a_listener_that_comes_back_elsewhere_is_found_again() -> None:
    reader = Reader(read_tables)
    with Listener(answer(IDLE), host="127.0.0.5") as listener:
        url = ListenerUrl("http", "127.0.0.1", listener.port)
        assert outcome(read_url(url, reader)) is True
    assert outcome(read_url(url, reader)) is Reason.CONNECTION_REFUSED
    with Listener(answer(IDLE), host="127.0.0.6", port=listener.port):
        assert outcome(read_url(url, reader)) is True


# The environment.


@pytest.mark.parametrize("context", [None, tls()])
def test_environment_is_ignored(monkeypatch: pytest.MonkeyPatch, context: ssl.SSLContext | None) -> None:
    proxy = f"http://127.0.0.1:{closed_port()}"
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "REQUEST_METHOD"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "[::1]")
    monkeypatch.setenv("no_proxy", "[::1]")
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    monkeypatch.setenv("SSL_CERT_DIR", "/nowhere")
    monkeypatch.setenv("SSLKEYLOGFILE", "/nowhere/keys")
    for host in ("127.0.0.1", "::1"):
        with Listener(answer(IDLE), host=host, tls=context) as listener:
            assert outcome(read_url(listener.url)) is True


# Clients.


@contextlib.contextmanager
def clients(*sockets: socket.socket) -> Iterator[None]:
    try:
        yield
    finally:
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize(
    ("bound_to", "client_uses", "peer"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
        ("::1", "::1", "[::1]"),
        ("::", "::1", "[::1]"),
        ("::", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_clients_are_counted_and_we_are_not(bound_to: str, client_uses: str, peer: str) -> None:
    reader = Reader(read_tables)
    with Listener(answer(IDLE), host=bound_to) as listener:
        assert read_url(listener.url, reader).clients == NOBODY
        one, two = listener.connect(client_uses), listener.connect(client_uses)
        with clients(one, two):
            found = clients_of(read_url(listener.url, reader))
            assert (found.connections, found.unacked_bytes, found.unread_bytes) == (2, 0, 0)
            assert sorted(found.peers) == sorted(f"{peer}:{sock.getsockname()[1]}" for sock in (one, two))
        eventually(lambda: read_url(listener.url, reader).clients == NOBODY)


def test_our_own_connections_that_the_engine_has_not_noticed_are_no_clients() -> None:
    """A hung engine keeps every connection we gave up in CLOSE_WAIT, or in its backlog."""
    reader = Reader(read_tables)
    with Listener(lambda peer: peer.wait(60)) as hung:
        for _ in range(4):
            reading = read_url(hung.url, reader, bound_s=0.1)
            assert (outcome(reading), reading.clients) == (Reason.TIMED_OUT, NOBODY)
    with Listener(accepts=False) as never:
        for _ in range(4):
            reading = read_url(never.url, reader, bound_s=0.1)
            assert (outcome(reading), reading.clients) == (Reason.TIMED_OUT, NOBODY)


def test_a_client_that_got_our_old_port_is_counted() -> None:
    """A proxy in the same Pod may get the very 4-tuple that was ours a moment ago."""
    ours: list[tuple[str, int]] = []

    def serve_once(peer: Peer) -> None:
        ours.append(peer.sock.getpeername())
        say(PAGE)(peer)
        # Once we have closed: a reset leaves no TIME_WAIT, which would keep the port from everybody.
        peer.hold()
        peer.reset()

    def take(sock: socket.socket) -> bool:
        try:
            sock.bind(ours[0])
        except OSError:
            return False
        return True

    reader = Reader(read_tables)
    with Listener(serve_once) as listener:
        for _ in range(10):  # some other process may have been faster to take the port
            ours.clear()
            assert read_url(listener.url, reader).clients == NOBODY
            sock = socket.socket()
            with clients(sock):
                if not soon(functools.partial(take, sock)):
                    continue
                sock.connect((listener.host, listener.port))
                assert clients_of(read_url(listener.url, reader)).connections == 1
                return
    pytest.fail("the port of our own connection was never to be had")


def first_connection(first: Behaviour, others: Behaviour) -> Behaviour:
    seen: list[Peer] = []

    def behave(peer: Peer) -> None:
        seen.append(peer)
        (first if len(seen) == 1 else others)(peer)

    return behave


def test_unread_bytes() -> None:
    behaviour = first_connection(lambda peer: peer.wait(60), answer(IDLE))
    with Listener(behaviour) as listener, clients(listener.connect(data=b"x" * 1234)):
        found = clients_of(read_url(listener.url))
    assert (found.connections, found.unread_bytes) == (1, 1234)


def slow_reader(listener: Listener) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((listener.host, listener.port))
    sock.sendall(b"GET /stream HTTP/1.1\r\n\r\n")
    return sock


@pytest.mark.parametrize("engine_has_closed", [False, True])
def test_unacknowledged_bytes_of_a_slow_reader(engine_has_closed: bool) -> None:
    """The engine has finished, even closed (FIN_WAIT1), and the client has still to get its answer."""

    def stream(peer: Peer) -> None:
        peer.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                peer.sock.send(bytes(65536))
        peer.sock.setblocking(True)
        if engine_has_closed:
            peer.close()

    with Listener(serve(say(PAGE), {"/stream": stream})) as listener:
        sock = slow_reader(listener)
        with clients(sock):

            def found() -> Clients:
                return clients_of(read_url(listener.url))

            eventually(lambda: found().unacked_bytes > 1000 and found().connections == (not engine_has_closed))
            assert found().peers == (f"127.0.0.1:{sock.getsockname()[1]}",)
            sock.settimeout(10)
            while engine_has_closed and sock.recv(1 << 20):
                pass
            if engine_has_closed:
                eventually(lambda: found() == NOBODY)


def test_client_in_the_accept_queue() -> None:
    with Listener(accepts=False, backlog=8) as listener, clients(listener.connect(data=b"GET / HTTP/1.1\r\n\r\n")):
        reading = read_url(listener.url, bound_s=0.2)
    assert outcome(reading) is Reason.TIMED_OUT
    assert (clients_of(reading).connections, clients_of(reading).unread_bytes) == (1, 18)


def test_client_in_the_syn_backlog() -> None:
    """With TCP_DEFER_ACCEPT a connection without data stays in SYN_RECV (inode 0) while others are served."""
    defer = (socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
    for host in ("127.0.0.1", "::"):
        with Listener(answer(IDLE), host=host, options=[defer]) as listener, clients(listener.connect()):
            reading = read_url(listener.url)
        assert outcome(reading) is True
        assert clients_of(reading).connections == 1


def test_backlog_is_full() -> None:
    with Listener(accepts=False, backlog=0) as listener, clients(*fill(listener)):
        reading = read_url(listener.url, bound_s=SHORT_S)
        assert outcome(reading) is Reason.TIMED_OUT
        assert clients_of(reading).connections >= 1


@pytest.mark.parametrize("leave", [lambda sock: sock.shutdown(socket.SHUT_WR), socket.socket.close])
def test_client_in_close_wait(leave: Callable[[socket.socket], None]) -> None:
    """The client has sent its end, the engine has not read it: its request may still run."""
    with Listener(first_connection(lambda peer: peer.wait(60), answer(IDLE))) as listener:
        sock = listener.connect(data=b"GET / HTTP/1.1\r\n\r\n")
        with clients(sock):
            leave(sock)
            assert clients_of(read_url(listener.url)).connections == 1


@pytest.mark.parametrize(
    ("bound_to", "source", "ignored", "counted"),
    [
        ("127.0.0.1", "127.0.0.7", "127.0.0.7", 0),
        ("127.0.0.1", "127.0.0.7", "127.0.0.6", 1),
        ("127.0.0.1", "127.0.0.7", "127.0.0.6/31", 0),
        ("::", "127.0.0.7", "127.0.0.0/8", 0),
        ("::", "127.0.0.7", "::ffff:127.0.0.0/104", 0),
        ("::", "127.0.0.7", "::/0", 1),
        ("::1", "::1", "::1/128", 0),
        ("::1", "::1", "0.0.0.0/0", 1),
    ],
)
def test_ignored_peer(bound_to: str, source: str, ignored: str, counted: int) -> None:
    reader = Reader(read_tables, ignored_peers=[read_network(ignored)])
    host = "::1" if ":" in source else "127.0.0.1"
    with Listener(answer(IDLE), host=bound_to) as listener, clients(listener.connect(host, source=(source, 0))):
        assert clients_of(read_url(listener.url, reader)).connections == counted


def test_clients_of_a_listener_that_refuses() -> None:
    """An engine that was told to end takes no connection and still serves the ones it has."""
    with Listener(answer(IDLE)) as listener, clients(listener.connect()):
        assert clients_of(read_url(listener.url)).connections == 1
        listener.stop_listening()
        reading = read_url(listener.url)
        assert outcome(reading) is Reason.CONNECTION_REFUSED
        assert clients_of(reading).connections == 1


def test_gauges_only_looks_at_no_client() -> None:
    reader = Reader(read_tables, gauges_only=True)
    behaviour = serve(say(PAGE), {"/load": say(http(b'{"server_load": 3}'))})
    with Listener(behaviour) as listener, clients(listener.connect()):
        reading = read_url(listener.url, reader, load_tracking=True)
    assert outcome(reading) is True
    assert (reading.clients, reading.load) == (None, None)
    assert len(listener.requests) == 1


# Several listeners.


def test_several_at_once_inside_one_bound() -> None:
    with (
        Listener(answer(IDLE)) as idle,
        Listener(silent) as mute,
        Listener(drip(PAGE), host="::1") as slow,
        Listener(answer(BUSY), tls=tls()) as busy,
        clients(busy.connect()),
    ):
        refused = ListenerUrl("http", "127.0.0.1", closed_port())
        urls = [mute.url, idle.url, refused, slow.url, busy.url]
        began_s = time.monotonic()
        readings = Reader(read_tables).read_all([Target(url, VLLM) for url in urls], 1.0)
        assert time.monotonic() - began_s < 1.0 + SLACK_S
    assert [reading.url for reading in readings] == [str(url) for url in urls]
    assert [outcome(reading) for reading in readings] == [
        Reason.TIMED_OUT,
        True,
        Reason.CONNECTION_REFUSED,
        Reason.TIMED_OUT,
        True,
    ]
    assert [clients_of(reading).connections for reading in readings] == [0, 0, 0, 0, 1]


def test_several_on_one_port_do_not_count_each_other() -> None:
    """Several URLs of one listener: what one read holds open is no client to another."""
    reader = Reader(read_tables)
    with Listener(serve(late(PAGE, 0.2), {"/slow": late(PAGE, 0.6)}), host="::") as listener:
        urls = [ListenerUrl("http", host, listener.port) for host in ("127.0.0.1", "::1")]
        urls.append(ListenerUrl("http", "127.0.0.1", listener.port, "/slow"))
        readings = reader.read_all([Target(url, VLLM) for url in urls], 5)
    assert [outcome(reading) for reading in readings] == [True, True, True]
    assert [reading.clients for reading in readings] == [NOBODY, NOBODY, NOBODY]


def test_several_with_clients_again_and_again() -> None:
    """Reads at once share what the reader remembers: none may fall over another's closed connection."""
    reader = Reader(read_tables)
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(Listener(answer(IDLE))) for _ in range(4)]
        for listener in listeners:
            stack.enter_context(clients(*(listener.connect() for _ in range(15))))
        targets = [Target(listener.url, VLLM) for listener in listeners]
        for _ in range(25):
            readings = reader.read_all(targets, 5)
            assert [clients_of(reading).connections for reading in readings] == [15, 15, 15, 15]


# vLLM's /load.


@pytest.mark.parametrize(
    ("said", "load"),
    [
        (http(b'{"server_load": 0}'), 0),
        (http(b'{"server_load": 3}'), 3),
        (http(b'{"server_load": -2}'), -2),
        (http(b'{"server_load": 0.0}'), None),
        (http(b'{"server_load": false}'), None),
        (http(b'{"server_load": "0"}'), None),
        (http(b'{"server_load": null}'), None),
        (http(b'{"load": 0}'), None),
        (http(b"[0]"), None),
        (http(b"0"), None),
        (http(b""), None),
        (http(b"<html>"), None),
        (http(b'{"server_load": %s}' % (b"9" * 5000)), None),
        (http(b"[" * 60_000), None),
        (http(b'{"server_load": 0}' + b" " * 70_000), None),
        (http(b'{"server_load": 0}', status="404 Not Found"), None),
        (http(b'{"server_load": 0}', "Content-Encoding: br"), None),
        (http(b'{"server_load": 0}', "Location: http://127.0.0.1:9/", status="302 Found"), None),
        (http(b'{"server_load": \xff}'), None),
    ],
)
def test_load(said: bytes, load: int | None) -> None:
    with Listener(serve(say(PAGE), {"/load": say(said)})) as listener:
        reading = read_url(listener.url, load_tracking=True)
    assert outcome(reading) is True
    assert reading.load == load
    assert reading.clients == NOBODY


def test_load_over_a_second_connection() -> None:
    """The engine closes after each answer: both connections are ours."""
    page, load = http(IDLE, "Connection: close"), http(b'{"server_load": 0}', "Connection: close")

    with Listener(serve(cut(page), {"/load": cut(load)})) as listener:
        reading = read_url(listener.url, load_tracking=True)
    assert (outcome(reading), reading.load, reading.clients) == (True, 0, NOBODY)


@pytest.mark.parametrize(
    ("page", "tracking"), [(IDLE, False), (BUSY, True), (IDLE + b"vllm:num_requests_running x\n", True)]
)
def test_load_is_not_asked_for_in_vain(page: bytes, tracking: bool) -> None:
    with Listener(serve(say(http(page)), {"/load": say(http(b'{"server_load": 0}'))})) as listener:
        assert read_url(listener.url, load_tracking=tracking).load is None
        assert [request.split()[1] for request in listener.requests] == ["/metrics"]


def test_load_that_never_comes_stays_inside_the_bound() -> None:
    with Listener(serve(say(PAGE), {"/load": silent})) as listener:
        reading = read_url(listener.url, bound_s=SHORT_S, load_tracking=True)
    assert outcome(reading) is Reason.TIMED_OUT
    assert reading.clients == NOBODY


# The many small differences between answers.


def answered(status: int = 200, content: bytes = IDLE, **headers: str) -> Reading:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    with Listener(say(http(content, *lines, status=f"{status} Said"))) as listener:
        return read_url(listener.url)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 406, 429, 500, 501, 502, 503, 504, 599])
def test_http_error(status: int) -> None:
    reading = answered(status)
    assert outcome(reading) is Reason.HTTP_ERROR
    assert str(status) in str(reading.page)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
def test_redirect_away(status: int) -> None:
    for location in ("http://127.0.0.1:8001/metrics", "//[::1]:8000/metrics", "ftp://127.0.0.1:8000/", "http://[::1/"):
        assert outcome(answered(status, location=location)) is Reason.HTTP_ERROR


def test_redirect_without_a_location_is_followed_once_at_most() -> None:
    assert outcome(answered(302)) is Reason.HTTP_ERROR


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "identity, gzip", "x" * 50])
def test_encoding(encoding: str) -> None:
    assert outcome(answered(content_encoding=encoding)) is Reason.BAD_ENCODING


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
def test_no_encoding(encoding: str) -> None:
    assert outcome(answered(content_encoding=encoding)) is True


@pytest.mark.parametrize("content_type", ["text/html", "application/json", "application/openmetrics-text", "x"])
def test_content_type_decides_nothing(content_type: str) -> None:
    assert outcome(answered(content=BUSY, content_type=content_type)) is True


def test_sglang_page_read_as_vllm_keeps_its_counts() -> None:
    """A wrong engine must not make busy idle."""
    reading = answered(content=b"sglang:num_running_reqs 2\n")
    assert [(gauge.name, gauge.sum) for gauge in page_of(reading).gauges] == [("sglang:num_running_reqs", 2)]
    assert set(page_of(reading).missing) == set(VLLM.expected)
    assert not set(page_of(reading).missing) & set(SGLANG.expected)
