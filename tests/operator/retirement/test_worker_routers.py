"""Asking vllm-router and sglang-gateway: bodies as the real ones gave them, and a server that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import respx

from operator_glue.model import RouterName
from operator_glue.retirement.data import View, ViewFault
from operator_glue.retirement.reasons import Reason
from operator_glue.routers import asking
from operator_glue.routers.asking import RouterAt
from operator_glue.routers.worker_list import WorkerList, address_of, read_workers
from operator_glue.routers.workers import ask, ask_all, route_in, route_out, worker_url

VLLM, SGLANG = RouterName.VLLM_ROUTER, RouterName.SGLANG_GATEWAY

#: vllm-router 0.1.17, two servers.
VLLM_BODY = (
    b'{"workers":[{"url":"http://127.0.0.1:40375","model_id":"unknown","worker_type":"regular","is_healthy":true,'
    b'"load":0,"connection_mode":"Http","priority":50,"cost":1.0},{"url":"http://127.0.0.2:40375","model_id":"unknown",'
    b'"worker_type":"regular","is_healthy":true,"load":0,"connection_mode":"Http","priority":50,"cost":1.0}],"total":2,'
    b'"stats":{"prefill_count":0,"decode_count":0,"regular_count":2}}'
)
#: ... with --intra-node-data-parallel-size 2, one server.
VLLM_RANKS_BODY = (
    b'{"workers":[{"url":"http://127.0.1.1:33835@1","model_id":"unknown","worker_type":"regular","is_healthy":true,'
    b'"load":0,"connection_mode":"Http","priority":50,"cost":1.0},{"url":"http://127.0.1.1:33835@0","model_id":"unknown"'
    b',"worker_type":"regular","is_healthy":true,"load":0,"connection_mode":"Http","priority":50,"cost":1.0}],"total":2,'
    b'"stats":{"prefill_count":0,"decode_count":0,"regular_count":2}}'
)
#: ... in front of halves.
VLLM_HALVES_BODY = (
    b'{"workers":[{"url":"http://127.0.1.1:39389","model_id":"unknown","worker_type":"prefill","is_healthy":true,'
    b'"load":0,"connection_mode":"Http","priority":50,"cost":1.0,"bootstrap_port":null},{"url":"http://127.0.1.2:39389",'
    b'"model_id":"unknown","worker_type":"decode","is_healthy":true,"load":0,"connection_mode":"Http","priority":50,'
    b'"cost":1.0}],"total":2,"stats":{"prefill_count":1,"decode_count":1,"regular_count":0}}'
)
#: sglang-router 0.3.2, two servers.
SGLANG_BODY = (
    b'{"workers":[{"id":"a630b4c2-e214-4d52-86cc-fcf3a4c9a142","url":"http://127.0.0.2:40375","model_id":"m",'
    b'"priority":50,"cost":1.0,"worker_type":"regular","is_healthy":true,"load":0,"connection_mode":"HTTP","metadata":'
    b'{"served_model_name":"m","model_path":"m"},"disable_health_check":false},{"id":"7c42d24f-d54d-4f9a-b90a-'
    b'4e77f3308fa0","url":"http://127.0.0.1:40375","model_id":"m","priority":50,"cost":1.0,"worker_type":"regular",'
    b'"is_healthy":true,"load":0,"connection_mode":"HTTP","metadata":{"model_path":"m","served_model_name":"m"},'
    b'"disable_health_check":false}],"total":2,"stats":{"prefill_count":0,"decode_count":0,"regular_count":2}}'
)
#: ... with --dp-aware, one server of two ranks.
SGLANG_RANKS_BODY = (
    b'{"workers":[{"id":"b83b43a7-e9c6-4ebb-b4c3-8f3e3d4e4114","url":"http://127.0.1.1:39193@1","model_id":"m",'
    b'"priority":50,"cost":1.0,"worker_type":"regular","is_healthy":true,"load":0,"connection_mode":"HTTP","metadata":'
    b'{"served_model_name":"m","dp_size":"2","model_path":"m"},"disable_health_check":false},{"id":"cd25f49d-3df1-4e2e-'
    b'adfe-bd2d8b1e14c5","url":"http://127.0.1.1:39193@0","model_id":"m","priority":50,"cost":1.0,"worker_type":'
    b'"regular","is_healthy":true,"load":0,"connection_mode":"HTTP","metadata":{"served_model_name":"m","dp_size":"2",'
    b'"model_path":"m"},"disable_health_check":false}],"total":2,"stats":{"prefill_count":0,"decode_count":0,'
    b'"regular_count":2}}'
)

BODIES: dict[str, tuple[RouterName, bytes, dict[str, tuple[str, ...]]]] = {
    "vllm": (
        VLLM,
        VLLM_BODY,
        {"127.0.0.1": ("http://127.0.0.1:40375",), "127.0.0.2": ("http://127.0.0.2:40375",)},
    ),
    "vllm-ranks": (VLLM, VLLM_RANKS_BODY, {"127.0.1.1": ("http://127.0.1.1:33835",)}),
    "vllm-halves": (
        VLLM,
        VLLM_HALVES_BODY,
        {"127.0.1.1": ("http://127.0.1.1:39389",), "127.0.1.2": ("http://127.0.1.2:39389",)},
    ),
    "sglang": (
        SGLANG,
        SGLANG_BODY,
        {
            "127.0.0.2": ("a630b4c2-e214-4d52-86cc-fcf3a4c9a142",),
            "127.0.0.1": ("7c42d24f-d54d-4f9a-b90a-4e77f3308fa0",),
        },
    ),
    "sglang-ranks": (
        SGLANG,
        SGLANG_RANKS_BODY,
        {"127.0.1.1": ("b83b43a7-e9c6-4ebb-b4c3-8f3e3d4e4114", "cd25f49d-3df1-4e2e-adfe-bd2d8b1e14c5")},
    ),
}


# ---- the list


@pytest.mark.parametrize("name", BODIES)
def test_a_real_list_is_read(name: str) -> None:
    router, body, handles = BODIES[name]
    assert read_workers(router, body) == WorkerList(handles)


@pytest.mark.parametrize("name", BODIES)
def test_a_list_that_is_cut_anywhere_is_none(name: str) -> None:
    router, body, _ = BODIES[name]
    assert [end for end in range(len(body)) if isinstance(read_workers(router, body[:end]), WorkerList)] == []


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1"),
        ("https://10.0.0.1:8443/", "10.0.0.1"),
        ("grpc://10.0.0.1:8000", "10.0.0.1"),
        ("10.0.0.1:8000", "10.0.0.1"),
        ("http://10.0.0.1", "10.0.0.1"),
        ("http://10.0.0.1:8000@3", "10.0.0.1"),
        ("http://10.0.0.1@3", "10.0.0.1"),
        ("http://[fd00::1]:8000", "fd00::1"),
        ("http://[FD00:0::1]:8000@12", "fd00::1"),
        ("http://[fd00::1]", "fd00::1"),
        ("http://fd00::1:8000", "fd00::1"),
        ("http://fd00:0:0:0:0:0:0:1:8000@0", "fd00::1"),
        ("http://[::ffff:10.0.0.1]:80", "10.0.0.1"),
        ("http://llama-0.llama:8000", None),
        ("http://localhost:8000", None),
        ("http://10.0.0.1:8000@a", None),
        ("http://user@10.0.0.1:8000", None),
        ("http://10.0.0.1:8000/v1", None),
        ("http://10.0.0.1:8000?x", None),
        ("http://10.0.0.01:8000", None),
        ("http://10.0.0.1:", None),
        ("http://[10.0.0.1]:8000", None),
        ("http://[fd00::1:8000", None),
        ("http://fe80::1%eth0:8000", None),
        ("http://", None),
        ("", None),
    ],
)
def test_an_address_is_found_in_a_url_or_none_is(url: str, address: str | None) -> None:
    assert address_of(url) == address


def _worker(**fields: Any) -> dict[str, Any]:
    return {"id": "i", "url": "http://10.0.0.1:8000", **fields}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "workers",
        {},
        {"workers": None},
        {"workers": {}},
        {"urls": ["http://10.0.0.1:8000"]},
        {"workers": [None]},
        {"workers": ["http://10.0.0.1:8000"]},
        {"workers": [{}]},
        {"workers": [_worker(url=None)]},
        {"workers": [_worker(url=["http://10.0.0.1:8000"])]},
        {"workers": [_worker(), _worker(url="http://llama-0:8000")]},
        {"workers": [_worker()], "total": 2},
        {"workers": [_worker()], "total": 0},
        {"workers": [_worker()], "total": True},
        {"workers": [_worker()], "total": "1"},
        {"workers": [], "total": None},
    ],
)
@pytest.mark.parametrize("router", [VLLM, SGLANG])
def test_what_is_no_list_is_unreadable(router: RouterName, document: Any) -> None:
    found = read_workers(router, json.dumps(document).encode())
    assert isinstance(found, ViewFault)
    assert found.reason is Reason.ROUTER_UNREADABLE
    assert len(found.detail) < 300


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"<html>", b"[" * 100_000, b'{"workers":[' + b"9" * 10_000])
def test_what_is_no_json_is_unreadable(body: bytes) -> None:
    assert isinstance(read_workers(VLLM, body), ViewFault)


@pytest.mark.parametrize("identity", [None, "", 7])
def test_sglang_gateways_workers_need_an_id(identity: Any) -> None:
    body = json.dumps({"workers": [_worker(id=identity)]}).encode()
    assert isinstance(read_workers(SGLANG, body), ViewFault)
    assert isinstance(read_workers(VLLM, body), WorkerList)


def test_an_empty_list_lists_nobody() -> None:
    assert read_workers(VLLM, b'{"workers":[],"total":0,"stats":{}}') == WorkerList({})


# ---- questions


HERE = RouterAt("uid", "10.0.0.9", 8080)


def asked(key: str | None = None, router: RouterName = VLLM, at: RouterAt = HERE, total_s: float = 5.0) -> View:
    return asyncio.run(ask(at, key, router, lambda: 1234.5, total_s))


@respx.mock
@pytest.mark.parametrize("name", BODIES)
def test_a_view(name: str) -> None:
    router, body, handles = BODIES[name]
    respx.get("http://10.0.0.9:8080/workers").respond(content=body)
    assert asked(router=router) == View("uid", 1234.5, listed=frozenset(handles), workers=handles)


@respx.mock
@pytest.mark.parametrize(("key", "shown"), [(None, None), ("s3cret", "Bearer s3cret"), ("clé", "Bearer clé")])
def test_the_key_is_shown(key: str | None, shown: str | None) -> None:
    route = respx.get("http://10.0.0.9:8080/workers").respond(content=VLLM_BODY)
    assert asked(key).fault is None
    sent = {name.lower(): value for name, value in route.calls.last.request.headers.raw}
    assert sent.get(b"authorization") == (None if shown is None else shown.encode())
    assert (sent[b"accept-encoding"], sent[b"connection"]) == (b"identity", b"close")


@respx.mock
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, Reason.ROUTER_REFUSED),
        (403, Reason.ROUTER_REFUSED),
        *((status, Reason.ROUTER_UNREADABLE) for status in (201, 204, 301, 307, 404, 429, 500, 503)),
    ],
)
def test_another_status_is_no_view_and_no_redirect_is_followed(status: int, reason: Reason) -> None:
    respx.get("http://10.0.0.9:8080/workers").respond(status, headers={"location": "/other"}, content=VLLM_BODY)
    other = respx.get("http://10.0.0.9:8080/other").respond(content=VLLM_BODY)
    fault = asked("s3cret").fault
    assert fault is not None
    assert (fault.reason, str(status) in fault.detail, "s3cret" in fault.detail) == (reason, True, False)
    assert not other.called


def test_a_key_that_no_header_can_have_is_not_told() -> None:
    with misbehaving(lambda _: None) as at:
        fault = asked("s3cret\n", at=at).fault
    assert fault is not None
    assert (fault.reason, "s3cret" in fault.detail) == (Reason.ROUTER_REFUSED, False)


@respx.mock
@pytest.mark.parametrize(
    ("router", "handle", "method", "path"),
    [
        (VLLM, "http://10.0.0.1:8000", "POST", "/remove_worker?url=http%3A%2F%2F10.0.0.1%3A8000"),
        (VLLM, "http://[fd00::1]:8000", "POST", "/remove_worker?url=http%3A%2F%2F%5Bfd00%3A%3A1%5D%3A8000"),
        (SGLANG, "a630b4c2-e214", "DELETE", "/workers/a630b4c2-e214"),
        (SGLANG, "../x?y", "DELETE", "/workers/..%2Fx%3Fy"),
    ],
)
def test_a_removal(router: RouterName, handle: str, method: str, path: str) -> None:
    route = respx.route(method=method).respond(202, text="queued")
    assert asyncio.run(route_out(HERE, "k", router, handle)) == "202 queued"
    request = route.calls.last.request
    assert (request.url.raw_path.decode(), request.headers["authorization"]) == (path, "Bearer k")


@respx.mock
@pytest.mark.parametrize(
    ("router", "path", "body"),
    [
        (VLLM, "/add_worker?url=http%3A%2F%2F10.0.0.1%3A8000", b""),
        (SGLANG, "/workers", {"url": "http://10.0.0.1:8000"}),
    ],
)
def test_a_return(router: RouterName, path: str, body: Any) -> None:
    route = respx.post().respond(400, text="exists " * 100)
    answer = asyncio.run(route_in(HERE, None, router, worker_url("10.0.0.1", 8000)))
    assert (answer.startswith("400 exists"), len(answer) <= 204) == (True, True)
    request = route.calls.last.request
    assert request.url.raw_path.decode() == path
    assert request.content == body if isinstance(body, bytes) else json.loads(request.content) == body


def test_a_workers_url() -> None:
    assert (worker_url("10.0.0.1", 1), worker_url("fd00::1", 2)) == ("http://10.0.0.1:1", "http://[fd00::1]:2")


# ---- a server that misbehaves


@contextlib.contextmanager
def misbehaving(serve: Callable[[socket.socket], object], host: str = "127.0.0.1") -> Iterator[RouterAt]:
    """Each connection is handed to ``serve`` once its request has come."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield RouterAt("uid", host, listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def sends(*pieces: bytes, every_s: float = 0.0) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)
            threading.Event().wait(every_s)

    return serve


def head(length: int | None, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", *headers, *([b"Content-Length: %d" % length] if length is not None else []), b"", b""]
    return b"\r\n".join(lines)


def drips(first: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Without an end, until the other side goes."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(piece)
            threading.Event().wait(0.02)

    return serve


def floods(first: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(b" " * 65536)

    return serve


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.parametrize(
    "serve",
    [
        pytest.param(sends(), id="closes"),
        pytest.param(sends(b"not http\r\n\r\n"), id="no HTTP"),
        pytest.param(sends(head(len(VLLM_BODY)) + VLLM_BODY[:-1]), id="cut body"),
        pytest.param(sends(head(None) + VLLM_BODY[:-1]), id="cut body without a length"),
        pytest.param(sends(head(None, b"Transfer-Encoding: chunked") + b"5\r\n{"), id="cut chunk"),
        pytest.param(sends(head(10, b"Content-Encoding: gzip") + b"0123456789"), id="bad gzip"),
        pytest.param(sends(head(None, b"Content-Encoding: gzip") + gzip.compress(VLLM_BODY)), id="gzip unasked"),
        pytest.param(sends(head(None, *[b"X: " + b"x" * 1000] * 200)), id="200 kB of headers"),
        pytest.param(floods(head(None)), id="flood"),
        pytest.param(floods(head(1 << 40)), id="flood with a length"),
    ],
)
def test_a_broken_answer_is_unreadable(serve: Callable[[socket.socket], None]) -> None:
    with misbehaving(serve) as at:
        fault = asked(at=at).fault
    assert fault is not None
    assert fault.reason is Reason.ROUTER_UNREADABLE, fault.detail


@pytest.mark.parametrize(
    "serve",
    [
        pytest.param(lambda _: threading.Event().wait(2), id="silent"),
        pytest.param(drips(head(1 << 20), b" "), id="dripping body"),
        pytest.param(drips(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), id="dripping headers"),
        pytest.param(drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="interim answers without an end"),
    ],
)
def test_the_whole_question_has_one_bound(serve: Callable[[socket.socket], None]) -> None:
    with misbehaving(serve) as at:
        began = time.monotonic()
        fault = asked(at=at, total_s=0.3).fault
        took_s = time.monotonic() - began
    assert fault is not None
    assert (fault.reason, fault.detail) == (
        Reason.ROUTER_UNREACHABLE,
        "it has not answered in full within 0.3 s",
    )
    assert took_s < 1.5


def test_a_refusal_and_a_reset_are_told_by_their_cause() -> None:
    with misbehaving(lambda _: None) as at:
        pass
    refused = asked(at=at).fault
    assert refused == ViewFault(Reason.ROUTER_UNREACHABLE, f"at 127.0.0.1:{at.port}: connection refused")
    with misbehaving(reset) as at:
        broken = asked(at=at).fault
    assert broken == ViewFault(Reason.ROUTER_UNREACHABLE, f"at 127.0.0.1:{at.port}: connection reset by peer")


def test_a_change_that_fails_is_a_line_for_the_log() -> None:
    with misbehaving(lambda _: None) as at:
        pass
    for answer in (
        asyncio.run(route_out(at, None, VLLM, "http://10.0.0.1:8000")),
        asyncio.run(route_in(at, None, SGLANG, "http://10.0.0.1:8000")),
    ):
        assert answer.endswith("connection refused")


@pytest.mark.parametrize("address", ["localhost", "10.0.0.1/x", "", "a b", "127.0.0.1:80"])
def test_what_is_no_address_is_unreachable(address: str) -> None:
    fault = asked(at=RouterAt("uid", address, 80), total_s=2).fault
    assert fault is not None
    assert fault.reason is Reason.ROUTER_UNREACHABLE, fault.detail


def test_no_proxy_and_no_certificate_file_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "[::1]")
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    with misbehaving(sends(head(None) + VLLM_BODY)) as at:
        assert asked(at=at).fault is None


def test_ipv6() -> None:
    with contextlib.ExitStack() as stack:
        try:
            at = stack.enter_context(misbehaving(sends(head(None) + VLLM_BODY), "::1"))
        except OSError:
            pytest.skip("no IPv6 on this machine")
        assert asked(at=at).fault is None


def test_one_that_is_silent_delays_no_other() -> None:
    with misbehaving(lambda _: threading.Event().wait(3)) as silent, misbehaving(sends(head(None) + VLLM_BODY)) as well:
        began = time.monotonic()
        views = asyncio.run(ask_all([silent, well, silent, well], None, VLLM, time.time, 0.5))
        took_s = time.monotonic() - began
    assert [view.fault is None for view in views] == [False, True, False, True]
    assert took_s < 1.5


def test_the_bounds_are_the_specifications() -> None:
    assert (asking.TOTAL_S, asking.MAX_BODY_BYTES) == (5.0, 4 * 1024 * 1024)


@respx.mock
def test_a_body_up_to_the_bound_is_read() -> None:
    padding = asking.MAX_BODY_BYTES - len(VLLM_BODY)
    route = respx.get("http://10.0.0.9:8080/workers")
    route.respond(stream=httpx.ByteStream(VLLM_BODY + b" " * padding))
    assert asked().fault is None
    route.respond(stream=httpx.ByteStream(VLLM_BODY + b" " * (padding + 1)))
    fault = asked().fault
    assert fault is not None
    assert fault.reason is Reason.ROUTER_UNREADABLE
