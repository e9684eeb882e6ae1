"""Own writes over a cache that is behind: in every order of writes and of what the watch tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from operator_glue.kube import Object
from operator_glue.runtime.ahead import FORGET_S, Ahead

UID = "u"


def item(version: int, *, ending: bool = False, uid: str = UID, label: str = "ours") -> Object:
    """``version``: how often it was written; as the API server counts, though nothing here reads it as a number."""
    metadata: Object = {"uid": uid, "name": uid, "resourceVersion": f"v{version}", "labels": {"is": label}}
    if ending:
        metadata["deletionTimestamp"] = "2026-12-01T00:00:00Z"
    return {"metadata": metadata}


def is_ours(found: Object) -> bool:
    return bool(found["metadata"]["labels"]["is"] == "ours")


@dataclass
class Cluster:
    """One object: its versions at the API server (None: gone), how many of them the cache has heard of, and ``now``."""

    versions: list[Object | None]
    heard: int = 0
    now: float = 0.0

    @property
    def cached(self) -> list[Object]:
        last = self.versions[self.heard - 1] if self.heard else None
        return [] if last is None else [last]

    def place(self, found: Object) -> int:
        return self.versions.index(found)


#: What is done to the object in a row. It is made by us or is there; each further write is ours or another hand's.
WRITES = ("patch", "delete", "their patch", "their delete", "gone")


def histories() -> Iterator[tuple[str, ...]]:
    def further(done: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield done
        if len(done) == 4 or done[-1] == "gone":
            return
        ending = {"delete", "their delete"} & set(done)
        for write in WRITES:
            if write == "gone" and not ending:
                continue
            if ending and write in ("delete", "their delete"):
                continue
            yield from further((*done, write))

    yield from further(("make",))
    yield from further(("there",))


def orders(history: tuple[str, ...]) -> Iterator[tuple[bool, ...]]:
    """Of writes (True) and of what is heard of them (False), which comes later."""

    def further(done: tuple[bool, ...]) -> Iterator[tuple[bool, ...]]:
        writes, heard = done.count(True), done.count(False)
        if writes == heard == len(history):
            yield done
            return
        if writes < len(history):
            yield from further((*done, True))
        if heard < writes:
            yield from further((*done, False))

    yield from further(())


@pytest.mark.parametrize("history", list(histories()), ids=" ".join)
def test_own_writes_are_seen_and_nothing_goes_back(history: tuple[str, ...]) -> None:
    for order in orders(history):
        cluster = Cluster([])
        ahead = Ahead(lambda: cluster.now)  # noqa: B023
        alone, written, deleted = True, -1, False
        for is_write in order:
            if is_write:
                write = history[len(cluster.versions)]
                mine = _write(cluster, ahead, write)
                if mine:
                    written, deleted = len(cluster.versions) - 1, deleted or write == "delete"
                elif write != "there":
                    alone = False
            else:
                cluster.heard += 1
                ahead.heard(UID)
            told = f"{history} in the order {order}, {cluster.heard} heard"
            shown = ahead.over(cluster.cached, is_ours)
            assert len(shown) <= 1, told
            if cluster.cached:
                assert shown, told
                assert cluster.place(shown[0]) >= cluster.heard - 1, f"older than the cache: {told}"
            if alone and written >= 0:
                assert shown, f"a write of ours is not seen: {told}"
                assert cluster.place(shown[0]) >= written, f"a write of ours is not seen: {told}"
            if cluster.heard and cluster.versions[cluster.heard - 1] is None:
                assert not shown, f"it is gone: {told}"
            if shown and deleted:
                assert shown[0]["metadata"].get("deletionTimestamp"), f"our delete is not seen: {told}"


def _write(cluster: Cluster, ahead: Ahead, write: str) -> bool:
    """Whether it is a write of ours that was done: what is not shown is not written over."""
    last = cluster.versions[-1] if cluster.versions else None
    ending = write.endswith("delete") or (last is not None and "deletionTimestamp" in last["metadata"])
    after = None if write == "gone" else item(len(cluster.versions) + 1, ending=ending)
    shown = ahead.over(cluster.cached, is_ours)
    cluster.versions.append(after)
    if write == "make" and after is not None:
        ahead.wrote(None, after)
        return True
    if write in ("patch", "delete") and shown and after is not None:
        ahead.wrote(shown[0], after)
        return True
    return False


def test_an_answer_that_comes_after_the_watch_changes_nothing() -> None:
    ahead = Ahead(lambda: 0.0)
    ahead.heard(UID)
    ahead.wrote(None, item(1))
    assert ahead.over([item(2)], is_ours) == [item(2)]
    assert ahead.over([], is_ours) == []


def test_what_was_made_is_forgotten_in_the_end_though_no_watch_tells_of_it() -> None:
    cluster = Cluster([])
    ahead = Ahead(lambda: cluster.now)
    ahead.wrote(None, item(1))
    cluster.now = FORGET_S - 1
    assert ahead.over([], is_ours) == [item(1)]
    cluster.now = FORGET_S
    assert ahead.over([], is_ours) == []
    ahead.wrote(item(1), item(2))
    cluster.now += FORGET_S
    assert ahead.latest(item(1)) == item(1)


def test_only_what_is_asked_for_is_added() -> None:
    ahead = Ahead(lambda: 0.0)
    ahead.wrote(None, item(1, label="another deployment's"))
    assert ahead.over([], is_ours) == []
    assert ahead.over([item(1, uid="other")], is_ours) == [item(1, uid="other")]


def test_a_pod_that_another_hand_edited_meanwhile_is_still_seen_to_be_deleted() -> None:
    """The kubelet's write came between what was seen and our delete, which no resourceVersion was asked for."""
    ahead = Ahead(lambda: 0.0)
    ahead.wrote(item(1), item(3, ending=True))
    assert ahead.latest(item(1)) == item(3, ending=True)
    assert ahead.latest(item(2)) == item(3, ending=True)
    assert ahead.latest(item(4, ending=True)) == item(4, ending=True)
