"""vllm-router's and sglang-gateway's own API, asked Pod by Pod.

Paths and bodies as vllm-router 0.1.17 and sglang-router 0.3.2 take them. Nothing here raises for what a router does: a
view says its fault, and a change answers a line for the log, since no answer to it proves anything.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import httpx

from operator_glue.model import RouterName
from operator_glue.retirement.data import View, ViewFault
from operator_glue.retirement.reasons import Reason
from operator_glue.retirement.withdrawal import plain_address
from operator_glue.routers.worker_list import read_workers

#: Of one question, with the connection: httpx bounds each socket operation, and not the whole (evidence §6).
TOTAL_S = 5.0
#: The specification's.
MAX_BODY_BYTES = 4 * 1024 * 1024
#: Of an answer, for the log.
_SHOWN = 200

_T = TypeVar("_T")


@dataclass(frozen=True)
class RouterAt:
    """A Pod of the router, and where it is asked: at its own address, never through a Service."""

    pod_uid: str
    address: str
    port: int


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes


async def ask_all(
    pods: Iterable[RouterAt],
    key: str | None,
    router: RouterName,
    clock: Callable[[], float],
    total_s: float = TOTAL_S,
) -> tuple[View, ...]:
    """A view of each, at the same time: as long as the slowest, at most ``total_s``."""
    return tuple(await asyncio.gather(*(ask(pod, key, router, clock, total_s) for pod in pods)))


async def ask(
    pod: RouterAt, key: str | None, router: RouterName, clock: Callable[[], float], total_s: float = TOTAL_S
) -> View:
    """``clock``: seconds since the epoch, for when the question was sent."""
    taken_at = clock()
    answer = await _within(total_s, _exchange(pod, key, "GET", "/workers"))
    if isinstance(answer, ViewFault):
        return View(pod.pod_uid, taken_at, answer)
    if answer.status in (401, 403):
        shown = "without a key" if key is None else "with its key"
        detail = f"it answered {answer.status}, asked {shown}"
        return View(pod.pod_uid, taken_at, ViewFault(Reason.ROUTER_REFUSED, detail))
    if answer.status != 200:
        detail = f"it answered {answer.status} in place of its list"
        return View(pod.pod_uid, taken_at, ViewFault(Reason.ROUTER_UNREADABLE, detail))
    found = read_workers(router, answer.body)
    if isinstance(found, ViewFault):
        return View(pod.pod_uid, taken_at, found)
    return View(pod.pod_uid, taken_at, listed=frozenset(found.handles), workers=found.handles)


async def route_out(pod: RouterAt, key: str | None, router: RouterName, handle: str, total_s: float = TOTAL_S) -> str:
    """Asks it to remove a worker. ``handle``: RouteOut's. The answer, for the log."""
    if router is RouterName.VLLM_ROUTER:
        exchange = _exchange(pod, key, "POST", f"/remove_worker?url={quote(handle, safe='')}")
    else:
        exchange = _exchange(pod, key, "DELETE", f"/workers/{quote(handle, safe='')}")
    return _shown(await _within(total_s, exchange))


async def route_in(
    pod: RouterAt, key: str | None, router: RouterName, worker_url: str, total_s: float = TOTAL_S
) -> str:
    """Asks it to take a worker: a decoder or a server, since the protocol takes no half of a pair out. For the log.

    vllm-router answers 400 to one that it has, sglang-gateway 202 always, and both take the worker in once it answers.
    """
    if router is RouterName.VLLM_ROUTER:
        exchange = _exchange(pod, key, "POST", f"/add_worker?url={quote(worker_url, safe='')}")
    else:
        exchange = _exchange(pod, key, "POST", "/workers", {"url": worker_url})
    return _shown(await _within(total_s, exchange))


def worker_url(address: str, port: int) -> str:
    """As vllm-router's discovery names an engine, and sglang-gateway's on IPv4."""
    return f"http://{_host(address)}:{port}"


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


async def _exchange(
    pod: RouterAt, key: str | None, method: str, path: str, body: dict[str, str] | None = None
) -> _Answer | ViewFault:
    if plain_address(pod.address) is None:  # a name would be looked up
        return ViewFault(Reason.ROUTER_UNREACHABLE, f"{pod.address[:50]!r} is no address")
    # identity: a body that unpacks to more than the bound is not unpacked. close: the next process is another one.
    headers: dict[bytes, bytes] = {b"accept-encoding": b"identity", b"connection": b"close"}
    if key is not None:
        headers[b"authorization"] = b"Bearer " + key.encode(errors="surrogateescape")
    try:
        # No TLS is spoken here, so no certificates are loaded.
        async with httpx.AsyncClient(trust_env=False, verify=False, follow_redirects=False, timeout=None) as client:
            url = f"http://{_host(pod.address)}:{pod.port}{path}"
            async with client.stream(method, url, headers=headers, json=body) as response:
                found = bytearray()
                async for piece in response.aiter_raw():
                    found += piece
                    if len(found) > MAX_BODY_BYTES:
                        return ViewFault(Reason.ROUTER_UNREADABLE, f"it answered with more than {MAX_BODY_BYTES} bytes")
                return _Answer(response.status_code, bytes(found))
    except httpx.LocalProtocolError:
        # Its message would show the key.
        return ViewFault(Reason.ROUTER_REFUSED, "its key has characters that no header can have")
    except (httpx.ProtocolError, httpx.DecodingError):
        return ViewFault(Reason.ROUTER_UNREADABLE, "it broke off its answer, or answered with something else than HTTP")
    except httpx.TransportError as error:
        return ViewFault(Reason.ROUTER_UNREACHABLE, f"at {_host(pod.address)}:{pod.port}: {_cause(error)}")


async def _within(total_s: float, exchange: Awaitable[_T]) -> _T | ViewFault:
    try:
        return await asyncio.wait_for(exchange, total_s)
    except asyncio.TimeoutError:
        return ViewFault(Reason.ROUTER_UNREACHABLE, f"it has not answered in full within {total_s:g} s")


def _cause(error: BaseException) -> str:
    """The system's word for it, which httpx wraps several times."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _shown(answer: _Answer | ViewFault) -> str:
    if isinstance(answer, ViewFault):
        return answer.detail
    return f"{answer.status} {answer.body[:_SHOWN].decode(errors='replace')}".strip()
