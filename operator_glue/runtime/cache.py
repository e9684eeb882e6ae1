"""A local copy of the objects of one kind, kept by a watch: nothing is polled that can be watched.

Begun by a list, continued where it was after a break, listed anew when the API server has forgotten that place.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing

from operator_glue.kube import Gone, Kube, KubeError, Object, Resource, Unreachable

#: Between two attempts to watch, doubling; ± a fifth, so that replicas do not come back in step.
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 30.0
#: Of HTTP: too much to do, or not well. Whatever else a watch is refused with may be due to the place that it is to
#: begin at, as where etcd was restored from a copy (504, "Too large resource version").
_PASSING = (429, 500, 502, 503)

Index = Callable[[Object], Iterable[str]]
#: Called with the object before and after a change; None: it was, or is, not there.
Changed = Callable[[Object | None, Object | None], None]

_log = logging.getLogger(__name__)


class Store:
    """Objects by namespace and name, and by whatever ``index`` says of each: its keys. Read-only for others."""

    def __init__(self, index: Index = lambda _: ()) -> None:
        self._index = index
        self._items: dict[tuple[str, str], Object] = {}
        self._by_key: dict[str, dict[tuple[str, str], Object]] = {}

    def get(self, namespace: str, name: str) -> Object | None:
        return self._items.get((namespace, name))

    def of(self, key: str) -> list[Object]:
        """Those with this key of the index."""
        return list(self._by_key.get(key, {}).values())

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Object) -> Object | None:
        """What was there before."""
        place = _place(item)
        before = self.remove(place)
        self._items[place] = item
        for key in self._index(item):
            self._by_key.setdefault(key, {})[place] = item
        return before

    def remove(self, place: tuple[str, str]) -> Object | None:
        before = self._items.pop(place, None)
        if before is not None:
            for key in self._index(before):
                those = self._by_key.get(key, {})
                those.pop(place, None)
                if not those:
                    self._by_key.pop(key, None)
        return before

    def places(self) -> set[tuple[str, str]]:
        return set(self._items)


def _place(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])


class Reflector:
    """Keeps ``store`` as the API server has it. ``is_synced``: it has been listed once."""

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        namespace: str | None,
        store: Store,
        changed: Changed,
        *,
        labels: Mapping[str, str] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
    ) -> None:
        self._kube, self._resource, self._namespace, self._store = kube, resource, namespace, store
        self._changed, self._labels, self._sleep, self._jitter = changed, labels, sleep, jitter
        self.is_synced = False

    async def run(self) -> None:
        """For ever; to be cancelled."""
        version, retry_s = "", FIRST_RETRY_S
        while True:
            began_at = version
            version, error = await self._follow(version)
            if isinstance(error, Gone) and began_at:
                _log.info("%s are listed anew: %s", self._resource.plural, error)
            elif error is None:
                if version == began_at:  # nothing came, as from a server that is going away
                    await self._sleep(FIRST_RETRY_S * self._jitter())
            else:
                retry_s = FIRST_RETRY_S if version != began_at else min(2 * retry_s, LAST_RETRY_S)
                _log.warning("%s are not watched for %.0f s: %s", self._resource.plural, retry_s, error)
                await self._sleep(retry_s * self._jitter())

    async def _follow(self, version: str) -> tuple[str, KubeError | None]:
        """One list, if need be, and one watch: where to go on (empty: with a list), and what ended it."""
        try:
            if not version:
                version = await self._list()
            watch = self._kube.watch(self._resource, self._namespace, version, labels=self._labels)
            async with aclosing(watch) as events:
                async for kind, item in events:
                    version = str(item["metadata"]["resourceVersion"])
                    self._take(kind, item)
        except KubeError as error:
            is_passing = isinstance(error, Unreachable) or error.status in _PASSING
            return version if is_passing else "", error
        except (KeyError, TypeError, AttributeError) as error:  # what came was no watch's
            return "", KubeError(f"an event without its object's {error}")
        return version, None

    async def _list(self) -> str:
        items, version = await self._kube.list(self._resource, self._namespace, labels=self._labels)
        found = {_place(item): item for item in items}
        for place in self._places() - set(found):
            self._forget(place)
        for item in found.values():
            self._keep(item)
        self.is_synced = True
        return version

    def _places(self) -> set[tuple[str, str]]:
        """Of this namespace: a store can be of several."""
        return {place for place in self._store.places() if self._namespace in (None, place[0])}

    def _take(self, kind: str, item: Object) -> None:
        if kind in ("ADDED", "MODIFIED"):
            self._keep(item)
        elif kind == "DELETED":
            self._forget(_place(item))

    def _keep(self, item: Object) -> None:
        (item.get("metadata") or {}).pop("managedFields", None)
        before = self._store.put(item)
        if before is None or before["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            self._changed(before, item)

    def _forget(self, place: tuple[str, str]) -> None:
        before = self._store.remove(place)
        if before is not None:
            self._changed(before, None)
