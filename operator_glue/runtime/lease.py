"""Leader election by a Lease, with a fence: who has not renewed it lately writes nothing.

kubernetes_asyncio's own compares the holder's wall clock with ours, goes on until a renewal fails and does not release.
Here nobody's wall clock is compared. A contender takes the Lease when it has seen the record unchanged for the record's
whole duration, by its own clock. A holder counts from the moment before the request of its last successful renewal was
sent, and ``check`` is asked just before each write. So:

    a write is sent before    renewal + HELD_S
    and ended before          renewal + HELD_S + WRITE_S = renewal + LEASE_S
    another takes over after  renewal + LEASE_S

A process that is stopped and goes on writes nothing, since its clock went on. What no fence on this side can hold is a
stop between the check and the first byte, and a request that waits inside of the API server for longer than its client
does: such a write has UID and resourceVersion as preconditions, or makes a Pod that is found doubled and removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from operator_glue.kube import LEASES, Conflict, Kube, KubeError, NotFound, Object

#: Kubernetes' own components use 15, 10 and 2 (client-go, component-base's defaults).
LEASE_S, HELD_S, RENEW_S = 15.0, 10.0, 2.0
#: So that what was sent in time has ended before another holds the Lease.
WRITE_S = LEASE_S - HELD_S
#: Of one question about the Lease itself.
ASK_S = 5.0
RETRY_S = 1.0

_log = logging.getLogger(__name__)


class NotLeading(KubeError):  # noqa: N818 - as Kubernetes' errors are called here
    """The Lease is held no longer, so nothing is written."""


class Act(Enum):
    """What a contender does about the record that it sees."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True)
class Sight:
    """A record as it was seen, and since when it is unchanged, by our own clock. ``version``: its resourceVersion, None
    where there is none."""

    version: str | None
    holder: str
    duration_s: float
    transitions: int
    since_s: float


def sight(before: Sight | None, record: Mapping[str, Any] | None, now_s: float) -> Sight:
    """What another hand wrote there can be anything: no holder is nobody, no sensible duration is ours."""
    if record is None:
        return Sight(None, "", LEASE_S, 0, now_s)
    spec, version = record.get("spec"), str(record["metadata"]["resourceVersion"])
    spec = spec if isinstance(spec, Mapping) else {}
    holder, duration, transitions = (
        spec.get("holderIdentity"),
        spec.get("leaseDurationSeconds"),
        spec.get("leaseTransitions"),
    )
    since_s = before.since_s if before is not None and before.version == version else now_s
    return Sight(
        version,
        holder if isinstance(holder, str) else "",
        float(duration) if isinstance(duration, int) and not isinstance(duration, bool) and duration > 0 else LEASE_S,
        transitions if isinstance(transitions, int) and not isinstance(transitions, bool) and transitions >= 0 else 0,
        since_s,
    )


def decide(seen: Sight, identity: str, now_s: float) -> Act:
    """Nobody's: at once. Another's: when it has not changed for its whole duration."""
    if seen.version is None:
        return Act.CREATE
    if seen.holder == identity:
        return Act.RENEW
    if not seen.holder or now_s - seen.since_s >= seen.duration_s:
        return Act.TAKE
    return Act.WAIT


def record_of(identity: str, transitions: int, duration_s: float, at: datetime) -> dict[str, Any]:
    """A Lease's spec."""
    stamp = at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": int(duration_s),
        "acquireTime": stamp,
        "renewTime": stamp,
        "leaseTransitions": transitions,
    }


def boot_time_s() -> float:
    """Counts while the machine is suspended, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Lease:
    """``identity``: of this process, not of its Pod alone: a container that began anew is another one.

    ``clock``: seconds that go on while the process is stopped. ``now``: for the record's times, which nobody compares.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float] = boot_time_s,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube, self._namespace, self._name, self._identity = kube, namespace, name, identity
        self._clock, self._now, self._sleep = clock, now, sleep
        self._seen: Sight | None = None
        self._record: Object | None = None
        self._sent_s: float | None = None

    @property
    def epoch(self) -> int:
        """Grows with each holder."""
        return 0 if self._seen is None else self._seen.transitions

    def is_held(self) -> bool:
        return self._sent_s is not None and self._clock() - self._sent_s < HELD_S

    def check(self) -> None:
        """NotLeading where it is not held: to be called just before each write."""
        if not self.is_held():
            raise NotLeading("the Lease is not held any more")

    async def acquire(self) -> None:
        """Until it is held."""
        while not self.is_held():
            try:
                if await self._turn():
                    return
            except KubeError as error:
                _log.warning("Lease %s: %s", self._name, error)
            await self._sleep(RETRY_S)

    async def keep(self) -> None:
        """Renews until it is lost."""
        while self.is_held():
            await self._sleep(RENEW_S)
            if not self.is_held():  # stopped meanwhile: what others have done since is not known
                break
            try:
                if not await self._turn() and self._seen is not None and self._seen.holder != self._identity:
                    break
            except KubeError as error:
                _log.warning("Lease %s is not renewed: %s", self._name, error)
        self._sent_s = None

    async def release(self) -> None:
        """The next one takes it at once."""
        if not self.is_held() or self._record is None or self._seen is None:
            return
        self._sent_s = None
        spec = record_of("", self._seen.transitions, 1, self._now())
        try:
            await self._within(self._kube.replace(LEASES, self._namespace, self._name, {**self._record, "spec": spec}))
        except KubeError as error:
            _log.warning("Lease %s is not released: %s", self._name, error)

    async def _turn(self) -> bool:
        """One look, and one write where it is due; whether the write was taken."""
        try:
            record: Object | None = await self._within(self._kube.get(LEASES, self._namespace, self._name))
        except NotFound:
            record = None
        self._see(record)
        assert self._seen is not None
        act = decide(self._seen, self._identity, self._clock())
        if act is Act.WAIT:
            return False
        transitions = self._seen.transitions + (act is Act.TAKE)
        spec = record_of(self._identity, transitions, LEASE_S, self._now())
        sent_s = self._clock()
        try:
            if record is None:
                body = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": spec,
                }
                record = await self._within(self._kube.create(LEASES, self._namespace, body))
            else:
                if act is Act.RENEW:
                    spec["acquireTime"] = (record.get("spec") or {}).get("acquireTime") or spec["acquireTime"]
                record = await self._within(
                    self._kube.replace(LEASES, self._namespace, self._name, {**record, "spec": spec})
                )
        except (Conflict, NotFound):  # another was faster
            return False
        self._see(record)
        self._sent_s = sent_s
        return True

    def _see(self, record: Object | None) -> None:
        self._seen, self._record = sight(self._seen, record, self._clock()), record

    async def _within(self, call: Awaitable[Object]) -> Object:
        try:
            return await asyncio.wait_for(call, ASK_S)
        except asyncio.TimeoutError:
            raise KubeError(f"no answer within {ASK_S:g} s") from None
