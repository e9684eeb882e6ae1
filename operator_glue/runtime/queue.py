"""Keys that wait for work: each once, none with two workers at the same time, those that failed later each time."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 60.0
K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """``clock``: seconds that do not go back. ``jitter``: a factor on each back-off."""

    def __init__(
        self,
        clock: Callable[[], float],
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
    ) -> None:
        self._clock, self._jitter = clock, jitter
        #: When each key is due. The heap may hold more: what is not here as it is there was put off or is done.
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._in_work: set[K] = set()
        self._failures: dict[K, int] = {}
        self._changed = asyncio.Event()

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Due then, or when it was due before, if that is earlier. One that is in work is due when that is done."""
        at = self._clock() + max(0.0, after_s)
        if self._due.get(key, at + 1.0) <= at:
            return
        self._due[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))
        self._changed.set()

    def failed(self, key: K) -> float:
        """Due again later each time; in how many seconds."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        after_s: float = min(FIRST_RETRY_S * 2.0 ** min(count, 20), LAST_RETRY_S) * self._jitter()
        self.add(key, after_s)
        return after_s

    def forget(self, key: K) -> None:
        """It has not failed."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next one that is due; to be told ``done``."""
        while True:
            key, wait_s = self._next()
            if key is not None:
                return key
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)

    def done(self, key: K) -> None:
        self._in_work.discard(key)
        self._changed.set()

    def __len__(self) -> int:
        """Those that are due now, and wait."""
        now = self._clock()
        return sum(at <= now for key, at in self._due.items() if key not in self._in_work)

    def _next(self) -> tuple[K | None, float | None]:
        """A key to work on; else in how many seconds to look again (None: when something changes)."""
        now, later = self._clock(), []
        found: K | None = None
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            at, _, key = entry
            if self._due.get(key) != at:
                continue
            if key in self._in_work:
                later.append(entry)
                continue
            del self._due[key]
            self._in_work.add(key)
            found = key
            break
        for entry in later:
            heapq.heappush(self._heap, entry)
        if found is not None:
            return found, 0.0
        waiting = [at for key, at in self._due.items() if key not in self._in_work]
        return None, max(0.0, min(waiting) - now) if waiting else None
