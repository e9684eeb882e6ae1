"""The metrics page of llm-d's endpoint pickers, asked Pod by Pod.

Plain HTTP, as the picker serves it; the token is that of an account which may read the page and nothing else
(operator_glue.render.picker).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from drainagent.url import DEFAULT_METRICS_PATH
from operator_glue.retirement.data import View, ViewFault
from operator_glue.retirement.picker_view import read_page
from operator_glue.retirement.reasons import Reason
from operator_glue.routers.asking import TOTAL_S, RouterAt, exchange, within

#: What the picker answers to a reader: no token, no rights, a bad token or an API server that is away (evidence §5b).
_REFUSALS = {401: "no token", 403: "no right to read it", 500: "a bad token, or its API server is away"}


async def ask_pickers(
    pods: Iterable[RouterAt], token: str | None, pool: str, clock: Callable[[], float], total_s: float = TOTAL_S
) -> tuple[View, ...]:
    """A view of each, at the same time: as long as the slowest, at most ``total_s``."""
    return tuple(await asyncio.gather(*(ask_picker(pod, token, pool, clock, total_s) for pod in pods)))


async def ask_picker(
    pod: RouterAt, token: str | None, pool: str, clock: Callable[[], float], total_s: float = TOTAL_S
) -> View:
    """``pool``: its InferencePool. ``clock``: seconds since the epoch, for when the question was sent."""
    taken_at = clock()
    answer = await within(total_s, exchange(pod, token, "GET", DEFAULT_METRICS_PATH))
    if isinstance(answer, ViewFault):
        return View(pod.pod_uid, taken_at, answer)
    if answer.status in _REFUSALS:
        detail = f"it answered {answer.status} in place of its page: {_REFUSALS[answer.status]}"
        return View(pod.pod_uid, taken_at, ViewFault(Reason.ROUTER_REFUSED, detail))
    if answer.status != 200:
        detail = f"it answered {answer.status} in place of its page"
        return View(pod.pod_uid, taken_at, ViewFault(Reason.ROUTER_UNREADABLE, detail))
    page = read_page(answer.body, pool)
    if isinstance(page, ViewFault):
        return View(pod.pod_uid, taken_at, page)
    return View(
        pod.pod_uid,
        taken_at,
        listed=page.listed,
        process_start_s=page.process_start_s,
        ready_endpoints=page.ready,
        attempts=page.attempts,
        leads=page.leads,
    )
