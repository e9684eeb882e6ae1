"""The answer to ``GET /workers`` of vllm-router and sglang-gateway, as addresses. Pure.

Shapes as vllm-router 0.1.17 and sglang-router 0.3.2 gave them (the tests keep their bodies). Both list all workers at
once, with their number; neither has pages. Whatever cannot be compared with a Pod's address makes the whole list
unreadable, which holds: a worker under a name may be the target.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from operator_glue.model import RouterName
from operator_glue.retirement.data import ViewFault
from operator_glue.retirement.reasons import Reason
from operator_glue.retirement.withdrawal import plain_address

_RANK = re.compile(r"@[0-9]+\Z")
_SCHEME = re.compile(r"\A(?:https?|grpcs?)://", re.IGNORECASE)
_PORT = re.compile(r"\A[0-9]{1,5}\Z")
_BRACKETED = re.compile(r"\A\[([^\[\]]*)\](?::([0-9]{1,5}))?\Z")


@dataclass(frozen=True)
class WorkerList:
    """``handles``: by address, what the router's API removes its workers by: URLs or ids. ``unhealthy``: addresses of
    workers that it lists and sends nothing to."""

    handles: Mapping[str, tuple[str, ...]]
    unhealthy: frozenset[str] = frozenset()


def read_workers(router: RouterName, body: bytes) -> WorkerList | ViewFault:
    """The list in ``body``; ROUTER_UNREADABLE where any of it is not as it has to be."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return _unreadable(f"{len(body)} bytes that are no JSON")
    workers = document.get("workers") if isinstance(document, dict) else None
    if not isinstance(workers, list):
        return _unreadable("JSON without a list of workers")
    total = document.get("total", len(workers))
    if isinstance(total, bool) or total != len(workers):
        return _unreadable(f"a list of {len(workers)} workers that says it has {str(total)[:20]}")
    handles: dict[str, list[str]] = {}
    unhealthy = set()
    for worker in workers:
        url = worker.get("url") if isinstance(worker, dict) else None
        if not isinstance(url, str):
            return _unreadable("a worker without a URL")
        address = address_of(url)
        if address is None:
            return _unreadable(f"a worker that is not named by an address: {url[:100]!r}")
        handle = _handle(router, worker, url)
        if handle is None:
            return _unreadable(f"a worker without an id: {url[:100]!r}")
        if worker.get("is_healthy") is False:
            unhealthy.add(address)
        of_address = handles.setdefault(address, [])
        if handle not in of_address:
            of_address.append(handle)
    found = {address: tuple(of_address) for address, of_address in handles.items()}
    return WorkerList(found, frozenset(unhealthy))


def address_of(url: str) -> str | None:
    """The address in a worker's URL, in its one spelling; None where it has none.

    ``http://10.0.0.1:8000``, with or without the scheme, a port, and vllm-router's rank (``@1``); IPv6 in brackets, or
    without them as sglang-gateway writes it (``http://fd00::1:8000``, where what follows the last colon is the port).
    """
    rest = _RANK.sub("", _SCHEME.sub("", url, count=1)).rstrip("/")
    if bracketed := _BRACKETED.match(rest):
        address = plain_address(bracketed[1])
        return address if address is not None and ":" in bracketed[1] else None
    host, colon, port = rest.rpartition(":")
    if colon and _PORT.match(port):
        address = plain_address(host)
        if address is not None:
            return address
    return plain_address(rest)


def _handle(router: RouterName, worker: Mapping[str, Any], url: str) -> str | None:
    if router is RouterName.VLLM_ROUTER:
        # It removes all ranks by the URL without one; with one it answers 200 and removes nothing.
        return _RANK.sub("", url)
    handle = worker.get("id")
    return handle if isinstance(handle, str) and handle else None


def _unreadable(what: str) -> ViewFault:
    return ViewFault(Reason.ROUTER_UNREADABLE, f"it answered with {what}")
