"""One bounded question to a Pod of a router, at its own address: never through a Service, a proxy or a name.

Nothing here raises for what a router does: an answer, or why there is none.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import httpx

from operator_glue.retirement.data import ViewFault
from operator_glue.retirement.reasons import Reason
from operator_glue.retirement.withdrawal import plain_address

#: Of one question, with the connection: httpx bounds each socket operation, and not the whole (evidence §6).
TOTAL_S = 5.0
#: The specification's.
MAX_BODY_BYTES = 4 * 1024 * 1024
_T = TypeVar("_T")


@dataclass(frozen=True)
class RouterAt:
    """A Pod of the router, and where it is asked: at its own address, never through a Service."""

    pod_uid: str
    address: str
    port: int


@dataclass(frozen=True)
class Answer:
    """``status``: of HTTP."""

    status: int
    body: bytes


def host(address: str) -> str:
    """An address as a URL has it."""
    return f"[{address}]" if ":" in address else address


async def exchange(
    pod: RouterAt, key: str | None, method: str, path: str, body: dict[str, str] | None = None
) -> Answer | ViewFault:
    """``key``: shown as a bearer token. ``body``: sent as JSON."""
    if plain_address(pod.address) is None:  # a name would be looked up
        return ViewFault(Reason.ROUTER_UNREACHABLE, f"{pod.address[:50]!r} is no address")
    # identity: a body that unpacks to more than the bound is not unpacked. close: the next process is another one.
    headers: dict[bytes, bytes] = {b"accept-encoding": b"identity", b"connection": b"close"}
    if key is not None:
        headers[b"authorization"] = b"Bearer " + key.encode(errors="surrogateescape")
    try:
        # No TLS is spoken here, so no certificates are loaded.
        async with httpx.AsyncClient(trust_env=False, verify=False, follow_redirects=False, timeout=None) as client:
            url = f"http://{host(pod.address)}:{pod.port}{path}"
            async with client.stream(method, url, headers=headers, json=body) as response:
                found = bytearray()
                async for piece in response.aiter_raw():
                    found += piece
                    if len(found) > MAX_BODY_BYTES:
                        return ViewFault(Reason.ROUTER_UNREADABLE, f"it answered with more than {MAX_BODY_BYTES} bytes")
                return Answer(response.status_code, bytes(found))
    except httpx.LocalProtocolError:
        # Its message would show the key.
        return ViewFault(Reason.ROUTER_REFUSED, "its key has characters that no header can have")
    except (httpx.ProtocolError, httpx.DecodingError):
        return ViewFault(Reason.ROUTER_UNREADABLE, "it broke off its answer, or answered with something else than HTTP")
    except httpx.TransportError as error:
        return ViewFault(Reason.ROUTER_UNREACHABLE, f"at {host(pod.address)}:{pod.port}: {_cause(error)}")


async def within(total_s: float, exchange: Awaitable[_T]) -> _T | ViewFault:
    """What it gives, or that it did not in so many seconds."""
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
