"""What was written and has not come back by the watch yet, laid over a cache that is behind (expectations).

A resourceVersion is opaque: it tells whether an object is the one that was written over, not which of two is newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from operator_glue.kube import Object

#: No watch is behind for so long without having broken, and then its objects are listed anew.
FORGET_S = 60.0


@dataclass(frozen=True)
class _Written:
    """``over``: the versions that it was written over. ``unheard``: it was made, and no watch has told of it yet."""

    item: Object
    over: frozenset[str]
    until: float
    unheard: bool


class Ahead:
    """``clock``: seconds that do not go back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[str, _Written] = {}

    def wrote(self, before: Object | None, after: Object) -> None:
        """``before``: as it was shown when it was written over; None: it was made."""
        uid, former = _uid(after), self._written.get(_uid(after))
        over = frozenset() if before is None else frozenset({_version(before)})
        if before is not None and former is not None:
            over |= former.over | {_version(former.item)}
        unheard = before is None or (former is not None and former.unheard)
        self._written[uid] = _Written(after, over, self._clock() + FORGET_S, unheard)

    def heard(self, uid: str) -> None:
        """The watch told of an object: one that was made is in the cache, or was."""
        known = self._written.get(uid)
        if known is not None and known.unheard:
            self._written[uid] = replace(known, unheard=False)

    def latest(self, item: Object) -> Object:
        known = self._written.get(_uid(item))
        if known is None:
            return item
        # What is being deleted is never whole again: what shows it whole is older, whoever wrote it in between.
        is_behind = _version(item) in known.over or (_is_ending(known.item) and not _is_ending(item))
        if is_behind and self._clock() < known.until:
            return known.item
        del self._written[_uid(item)]
        return item

    def over(self, items: Iterable[Object], is_among: Callable[[Object], bool]) -> list[Object]:
        """``items`` of a cache, each at its latest, and those that were made since and that ``is_among`` takes."""
        found = {_uid(item): self.latest(item) for item in items}
        now = self._clock()
        for uid, known in list(self._written.items()):
            if now >= known.until:
                del self._written[uid]
            elif known.unheard and uid not in found and is_among(known.item):
                found[uid] = known.item
        return list(found.values())


def _uid(item: Object) -> str:
    return str(item["metadata"]["uid"])


def _is_ending(item: Object) -> bool:
    return item["metadata"].get("deletionTimestamp") is not None


def _version(item: Object) -> str:
    return str(item["metadata"]["resourceVersion"])
