"""vllm-router's and sglang-gateway's own API, asked Pod by Pod.

Paths and bodies as vllm-router 0.1.17 and sglang-router 0.3.2 take them. Nothing here raises for what a router does: a
view says its fault, and a change answers a line for the log, since no answer to it proves anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from urllib.parse import quote

from operator_glue.model import RouterName
from operator_glue.retirement.data import View, ViewFault
from operator_glue.retirement.reasons import Reason
from operator_glue.routers.asking import TOTAL_S, Answer, RouterAt, exchange, host, within
from operator_glue.routers.worker_list import read_workers

#: Of an answer, for the log.
_SHOWN = 200


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
    answer = await within(total_s, exchange(pod, key, "GET", "/workers"))
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
    return View(
        pod.pod_uid, taken_at, listed=frozenset(found.handles), workers=found.handles, unhealthy=found.unhealthy
    )


async def route_out(pod: RouterAt, key: str | None, router: RouterName, handle: str, total_s: float = TOTAL_S) -> str:
    """Asks it to remove a worker. ``handle``: RouteOut's. The answer, for the log."""
    if router is RouterName.VLLM_ROUTER:
        asked = exchange(pod, key, "POST", f"/remove_worker?url={quote(handle, safe='')}")
    else:
        asked = exchange(pod, key, "DELETE", f"/workers/{quote(handle, safe='')}")
    return _shown(await within(total_s, asked))


async def route_in(
    pod: RouterAt, key: str | None, router: RouterName, worker_url: str, total_s: float = TOTAL_S
) -> str:
    """Asks it to take a worker: a decoder or a server, since the protocol takes no half of a pair out. For the log.

    vllm-router answers 400 to one that it has, sglang-gateway 202 always, and both take the worker in once it answers.
    """
    if router is RouterName.VLLM_ROUTER:
        asked = exchange(pod, key, "POST", f"/add_worker?url={quote(worker_url, safe='')}")
    else:
        asked = exchange(pod, key, "POST", "/workers", {"url": worker_url})
    return _shown(await within(total_s, asked))


def worker_url(address: str, port: int) -> str:
    """As vllm-router's discovery names an engine, and sglang-gateway's on IPv4."""
    return f"http://{host(address)}:{port}"


def _shown(answer: Answer | ViewFault) -> str:
    if isinstance(answer, ViewFault):
        return answer.detail
    return f"{answer.status} {answer.body[:_SHOWN].decode(errors='replace')}".strip()
