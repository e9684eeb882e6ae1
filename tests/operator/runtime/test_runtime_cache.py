"""Caches kept by list and watch, at a fake API server whose watches end, break, are silent and say nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, serving
from passes import run

from operator_glue.kube import PODS, Kube, Object
from operator_glue.runtime.cache import FIRST_RETRY_S, LAST_RETRY_S, Reflector, Store


def pod(name: str, namespace: str = "a", **labels: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}


class Naps:
    """``sleep`` of a reflector: the seconds of each; one lasts until it is woken."""

    def __init__(self, api: FakeApi) -> None:
        self._api, self.taken, self._wake = api, list[float](), asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        self._api.tell()
        self._wake.clear()
        await self._wake.wait()

    async def next(self, count: int) -> None:
        """Until the reflector sleeps for the ``count``th time."""
        await self._api.until(lambda: len(self.taken) >= count)

    def wake(self) -> None:
        self._wake.set()


class Watcher:
    """A reflector, its store, and what it was told: (name, labels before, labels after)."""

    def __init__(self, api: FakeApi, kube: Kube, namespace: str | None, store: Store, **options: Any) -> None:
        self.api, self.store, self.naps = api, store, Naps(api)
        self.told: list[tuple[str, Any, Any]] = []
        self.reflector = Reflector(
            kube, PODS, namespace, store, self._changed, sleep=self.naps, jitter=lambda: 1.0, **options
        )
        self.task = asyncio.ensure_future(self.reflector.run())

    def _changed(self, before: Object | None, after: Object | None) -> None:
        thing = after or before
        assert thing is not None
        was, now = (None if one is None else one["metadata"]["labels"] for one in (before, after))
        self.told.append((thing["metadata"]["name"], was, now))
        self.api.tell()

    @property
    def names(self) -> set[str]:
        return {"/".join(place) for place in self.store.places()}

    async def shows(self, *names: str) -> None:
        await self.api.until(lambda: self.names == set(names))

    async def watches(self, count: int = 1) -> None:
        """Until the ``count``th watch was begun."""
        await self.api.until(lambda: len(self.api.watched(PODS)) >= count)


@asynccontextmanager
async def watching(
    folder: Path, *pods: Object, namespaces: tuple[str | None, ...] = (None,), **options: Any
) -> AsyncIterator[tuple[FakeApi, list[Watcher]]]:
    """One store, a reflector for each namespace."""
    async with serving(folder) as (api, kube):
        for one in pods:
            api.make(PODS, one)
        store = Store(lambda item: [str(item["metadata"]["labels"].get("key", "none"))])
        watchers = [Watcher(api, kube, namespace, store, **options) for namespace in namespaces]
        try:
            yield api, watchers
        finally:
            for watcher in watchers:
                watcher.task.cancel()
            ends = await asyncio.gather(*(watcher.task for watcher in watchers), return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends


def relabel(api: FakeApi, name: str, namespace: str = "a", **labels: str) -> None:
    api.edit(PODS, namespace, name, lambda item: item["metadata"].update(labels=labels))


def test_what_is_there_and_what_changes(tmp_path: Path) -> None:
    async def test() -> None:
        async with watching(tmp_path, pod("x", key="one")) as (api, (watcher,)):
            await watcher.watches()
            assert watcher.reflector.is_synced
            assert watcher.names == {"a/x"}
            api.make(PODS, pod("y"))
            relabel(api, "x", key="two")
            await api.until(lambda: len(watcher.told) == 3)
            assert watcher.told == [
                ("x", None, {"key": "one"}),
                ("y", None, {}),
                ("x", {"key": "one"}, {"key": "two"}),
            ]
            assert [item["metadata"]["name"] for item in watcher.store.of("two")] == ["x"]
            assert watcher.store.of("one") == []
            api.drop(PODS, "a", "x")
            await watcher.shows("a/y")
            assert watcher.told[3:] == [("x", {"key": "two"}, None)]
            assert watcher.store.of("two") == []
            found = watcher.store.get("a", "y")
            assert found is not None
            assert "managedFields" not in found["metadata"]
            assert len(api.asked("GET", PODS)) == 1
            assert watcher.naps.taken == []

    run(test())


def test_it_is_synced_only_once_it_was_listed(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (api, kube):
            api.make(PODS, pod("x"))
            gate = api.gate("GET", PODS)
            watcher = Watcher(api, kube, None, Store())
            await api.until(lambda: gate.waiting == 1)
            assert not watcher.reflector.is_synced
            gate.release()
            await watcher.watches()
            assert watcher.reflector.is_synced
            watcher.task.cancel()
            await asyncio.gather(watcher.task, return_exceptions=True)

    run(test())


def test_a_list_of_several_pages(tmp_path: Path) -> None:
    async def test() -> None:
        async with watching(tmp_path) as (api, (watcher,)):
            await watcher.watches()
            api.page = 2
            for at in range(5):
                api.make(PODS, pod(f"x{at}"))
            api.compact()
            api.end_watches(PODS)
            await watcher.watches(3)
            await watcher.shows(*(f"a/x{at}" for at in range(5)))
            asked = [call.query.get("continue") for call in api.asked("GET", PODS)]
            assert [token is not None for token in asked] == [False, False, True, True]

    run(test())


def test_a_list_that_expires_between_two_pages_is_begun_anew(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (api, kube):
            api.page = 2
            for at in range(3):
                api.make(PODS, pod(f"x{at}"))
            api.fault_where(lambda call: "continue" in call.query, status=410)
            watcher = Watcher(api, kube, None, Store())
            await watcher.naps.next(1)
            watcher.naps.wake()
            await watcher.shows("a/x0", "a/x1", "a/x2")
            watcher.task.cancel()
            await asyncio.gather(watcher.task, return_exceptions=True)

    run(test())


@pytest.mark.parametrize(
    ("rest", "is_cut"),
    [
        (b"", False),
        (b"", True),
        (b'{"type":"MODIFIED","object":{"metadata":{"na', False),
        (b'{"type":"MODIFIED","object":{"metadata":{"na', True),
    ],
    ids=["ended", "cut", "ended in mid line", "cut in mid line"],
)
def test_after_a_break_it_goes_on_where_it_was(tmp_path: Path, rest: bytes, is_cut: bool) -> None:
    async def test() -> None:
        async with watching(tmp_path, pod("x")) as (api, (watcher,)):
            await watcher.watches()
            api.make(PODS, pod("y"))
            await watcher.shows("a/x", "a/y")
            at = str(api.version)
            api.end_watches(PODS, rest, cut=is_cut)
            if rest or is_cut:
                await watcher.naps.next(1)
                assert watcher.naps.taken == [FIRST_RETRY_S]
                api.drop(PODS, "a", "x")
                watcher.naps.wake()
            else:
                await watcher.watches(2)
                api.drop(PODS, "a", "x")
            await watcher.watches(2)
            await watcher.shows("a/y")
            assert api.watched(PODS)[1] == at
            assert len(api.asked("GET", PODS)) == 1
            assert [name for name, *_ in watcher.told] == ["x", "y", "x"]

    run(test())


def test_a_bookmark_moves_the_place_to_go_on_at(tmp_path: Path) -> None:
    async def test() -> None:
        async with watching(tmp_path, pod("x"), labels={"mine": "1"}) as (api, (watcher,)):
            await watcher.watches()
            api.make(PODS, pod("another's"))
            api.bookmark(PODS)
            api.end_watches(PODS)
            await watcher.watches(2)
            assert api.watched(PODS)[1] == str(api.version)
            assert watcher.told == []

    run(test())


@pytest.mark.parametrize("is_event", [True, False], ids=["an event", "an HTTP status"])
def test_a_place_that_is_forgotten_is_listed_anew_and_what_has_gone_is_noticed(tmp_path: Path, is_event: bool) -> None:
    async def test() -> None:
        async with watching(tmp_path, pod("x"), pod("y", key="k"), pod("z")) as (api, (watcher,)):
            await watcher.watches()
            api.hold(PODS)
            api.drop(PODS, "a", "x")
            relabel(api, "y", key="new")
            api.make(PODS, pod("w"))
            if is_event:
                api.compact()
            else:
                api.fault_where(lambda call: "watch" in call.query, status=410)
            told = len(watcher.told)
            api.end_watches(PODS)
            await watcher.shows("a/w", "a/y", "a/z")
            news = watcher.told[told:]
            assert sorted(news) == [("w", None, {}), ("x", {}, None), ("y", {"key": "k"}, {"key": "new"})]
            assert [item["metadata"]["name"] for item in watcher.store.of("new")] == ["y"]
            assert watcher.store.of("k") == []
            assert watcher.naps.taken == []
            await watcher.watches(3)
            assert len(api.asked("GET", PODS)) == 2

    run(test())


def test_another_pod_of_the_same_name_is_a_change(tmp_path: Path) -> None:
    async def test() -> None:
        async with watching(tmp_path, pod("x", key="old")) as (api, (watcher,)):
            await watcher.watches()
            api.hold(PODS)
            api.drop(PODS, "a", "x")
            made = api.make(PODS, pod("x", key="new"))
            api.compact()
            api.end_watches(PODS)
            await api.until(lambda: len(watcher.told) == 2)
            assert watcher.told[1] == ("x", {"key": "old"}, {"key": "new"})
            found = watcher.store.get("a", "x")
            assert found is not None
            assert found["metadata"]["uid"] == made["metadata"]["uid"]

    run(test())


def test_what_loses_the_label_that_is_watched_is_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with watching(tmp_path, pod("x", mine="1"), pod("y"), labels={"mine": "1"}) as (api, (watcher,)):
            await watcher.watches()
            assert watcher.names == {"a/x"}
            relabel(api, "x")
            await watcher.shows()
            relabel(api, "y", mine="1")
            await watcher.shows("a/y")

    run(test())


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":null}\n',
        b'{"type":"ADDED","object":{}}\n',
        b'{"type":"ADDED","object":{"metadata":{}}}\n',
        b'{"type":"ADDED","object":{"metadata":"x"}}\n',
        b'{"type":"ADDED","object":{"metadata":[]}}\n',
        b'{"type":"DELETED","object":{"metadata":{"resourceVersion":"7"}}}\n',
        b'{"type":"ERROR","object":"x"}\n',
        b'{"type":"ERROR","object":{"code":"x"}}\n',
        b'{"type":"ERROR","object":{"code":500,"message":"etcd"}}\n',
        b"\xff\xfe\n",
        b"<html>" + b"x" * 3_000_000 + b"\n",
    ],
    ids=range(16),
)
def test_nonsense_is_no_end(tmp_path: Path, line: bytes) -> None:
    async def test() -> None:
        async with watching(tmp_path, pod("x")) as (api, (watcher,)):
            await watcher.watches()
            api.send(PODS, line)
            await watcher.naps.next(1)
            api.drop(PODS, "a", "x")
            api.make(PODS, pod("y"))
            watcher.naps.wake()
            await watcher.shows("a/y")

    run(test())


def test_an_unknown_kind_of_event_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with watching(tmp_path, pod("x")) as (api, (watcher,)):
            await watcher.watches()
            api.send(PODS, b'{"type":"PAINTED","object":{"metadata":{"resourceVersion":"101","name":"n"}}}\n')
            api.make(PODS, pod("y"))
            await watcher.shows("a/x", "a/y")
            assert watcher.naps.taken == []

    run(test())


def test_an_object_as_large_as_any(tmp_path: Path) -> None:
    """etcd takes 1.5 MiB; aiohttp's own bound on a line is 128 KiB."""

    async def test() -> None:
        async with watching(tmp_path) as (api, (watcher,)):
            await watcher.watches()
            api.make(PODS, pod("x", key="k" * 1_500_000))
            await watcher.shows("a/x")
            assert watcher.naps.taken == []

    run(test())


def test_two_namespaces_in_one_store(tmp_path: Path) -> None:
    async def test() -> None:
        pods = [pod("x", "a"), pod("x", "b"), pod("x", "c")]
        async with watching(tmp_path, *pods, namespaces=("a", "b")) as (api, watchers):
            first, second = watchers
            await first.watches(2)
            await first.shows("a/x", "b/x")
            api.hold(PODS)
            api.drop(PODS, "a", "x")
            api.make(PODS, pod("y", "b"))
            api.compact()
            api.end_watches(PODS)
            await first.shows("b/x", "b/y")
            assert [name for name, *_ in first.told] == ["x", "x"]
            assert [name for name, *_ in second.told] == ["x", "y"]
            assert {call.namespace for call in api.calls} == {"a", "b"}

    run(test())


def test_the_api_server_is_tried_later_each_time_until_it_answers(tmp_path: Path) -> None:
    async def test() -> None:
        async with watching(tmp_path, pod("x")) as (api, (watcher,)):
            await watcher.watches()
            api.make(PODS, pod("y"))
            await watcher.shows("a/x", "a/y")
            api.fault("GET", PODS, status=503, times=9)
            api.end_watches(PODS, cut=True)
            for count in range(1, 11):
                await watcher.naps.next(count)
                watcher.naps.wake()
            assert watcher.naps.taken[0] == FIRST_RETRY_S
            assert watcher.naps.taken[-1] == LAST_RETRY_S
            assert watcher.naps.taken == sorted(watcher.naps.taken)
            api.drop(PODS, "a", "x")
            await watcher.shows("a/y")
            assert watcher.reflector.is_synced
            api.end_watches(PODS, cut=True)
            await watcher.naps.next(11)
            assert watcher.naps.taken[-1] == FIRST_RETRY_S

    run(test())


def test_a_list_that_is_forbidden_is_asked_for_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (api, kube):
            api.make(PODS, pod("x"))
            api.fault("GET", PODS, status=403)
            watcher = Watcher(api, kube, None, Store())
            await watcher.naps.next(1)
            assert not watcher.reflector.is_synced
            watcher.naps.wake()
            await watcher.shows("a/x")
            watcher.task.cancel()
            await asyncio.gather(watcher.task, return_exceptions=True)

    run(test())


def test_a_watch_that_ends_at_once_is_not_begun_again_at_once(tmp_path: Path) -> None:
    """An API server that is going away, or a proxy, answers each watch with an empty 200."""

    async def test() -> None:
        async with watching(tmp_path, pod("x")) as (api, (watcher,)):
            await watcher.watches()
            api.end_watches(PODS)
            for count in (1, 2, 3):
                await watcher.watches(count + 1)
                api.end_watches(PODS)
                await watcher.naps.next(count)
                watcher.naps.wake()
            assert set(watcher.naps.taken) == {FIRST_RETRY_S}

    run(test())


def test_a_server_whose_every_watch_is_gone_is_not_listed_in_a_row(tmp_path: Path) -> None:
    async def test() -> None:
        async with watching(tmp_path, pod("x")) as (api, (watcher,)):
            await watcher.watches()
            api.fault_where(lambda call: "watch" in call.query, status=410, times=5)
            api.end_watches(PODS)
            for count in (1, 2, 3):
                await watcher.naps.next(count)
                watcher.naps.wake()
            api.drop(PODS, "a", "x")
            api.forgive()
            await watcher.shows()
            assert len(api.asked("GET", PODS)) <= 6

    run(test())


@pytest.mark.parametrize("status", [504, 400, 403])
def test_a_place_that_the_api_server_refuses_is_not_insisted_on(tmp_path: Path, status: int) -> None:
    """504 "Too large resource version": etcd was restored from a copy, and its versions have gone back."""

    async def test() -> None:
        async with watching(tmp_path, pod("x")) as (api, (watcher,)):
            await watcher.watches()
            api.make(PODS, pod("y"))
            await watcher.shows("a/x", "a/y")
            ahead = str(api.version)
            api.restore(50)
            api.drop(PODS, "a", "x")
            refused = lambda call: call.query.get("resourceVersion") == ahead  # noqa: E731
            api.fault_where(refused, status=status, times=1_000)
            api.end_watches(PODS, cut=True)
            for count in (1, 2):
                await watcher.naps.next(count)
                watcher.naps.wake()
            await watcher.shows("a/y")
            api.make(PODS, pod("z"))
            await watcher.shows("a/y", "a/z")

    run(test())
