"""Changes to plain data (dicts with string keys, lists, scalars): what they give, and the same as RFC 6902. Pure.

Every path of one list of changes names a place in the original document, so the order of the changes means nothing,
but for what is added to one map or at one list index: that keeps its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: A string is a map's key, an integer a list's index.
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Add:
    """A map key that is new or has null, or an item before the one that has this index (the length: at the end)."""

    path: Path
    value: Any


@dataclass(frozen=True)
class Replace:
    """Another value at a place that exists. The empty path is the whole document."""

    path: Path
    value: Any


@dataclass(frozen=True)
class Remove:
    """A map key or a list item that exists, with its value."""

    path: Path


Change = Add | Replace | Remove


def apply(data: Any, changes: Sequence[Change]) -> Any:
    """New data that shares nothing with ``data`` or the changes. Keys keep their order, added ones come last.

    ValueError: a path names no such place, an added key has a value, or a change lies inside another's place.
    """
    _check(changes)
    return _applied(data, list(changes), 0)


def json_patch(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """RFC 6902 operations that give what ``apply`` gives when they are applied in order. ValueError as in ``apply``."""
    _check(changes)
    return [_operation(change) for change in _last_index_first(list(changes), 0)]


def pointer(path: Path) -> str:
    """RFC 6901."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _check(changes: Sequence[Change]) -> None:
    places: set[Path] = set()
    for change in changes:
        path = change.path
        if any(isinstance(part, int) and part < 0 for part in path):
            raise ValueError(f"{pointer(path)}: a list index below 0")
        if not path and not isinstance(change, Replace):
            raise ValueError("the whole document can only be replaced")
        if _at_list_index(change):
            continue
        if path in places:
            raise ValueError(f"{pointer(path)} is changed twice")
        places.add(path)
    for change in changes:
        for length in range(len(change.path)):
            if change.path[:length] in places:
                raise ValueError(f"{pointer(change.path)} lies inside {pointer(change.path[:length]) or 'the whole'}")


def _at_list_index(change: Change) -> bool:
    """It takes the place of nothing: it goes between two items."""
    return isinstance(change, Add) and isinstance(change.path[-1], int)


def _grouped(changes: list[Change], depth: int) -> dict[str | int, list[Change]]:
    groups: dict[str | int, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.path[depth], []).append(change)
    return groups


def _applied(data: Any, changes: list[Change], depth: int) -> Any:
    if not changes:
        return _copy(data)
    if isinstance(changes[0], Replace) and len(changes[0].path) == depth:
        return _copy(changes[0].value)
    groups = _grouped(changes, depth)
    if isinstance(data, dict) and all(isinstance(part, str) for part in groups):
        return _applied_to_map(data, groups, depth)
    if isinstance(data, list) and all(isinstance(part, int) for part in groups):
        return _applied_to_list(data, groups, depth)
    raise _no_such_place(changes[0].path[: depth + 1])


def _applied_to_map(data: dict[Any, Any], groups: dict[str | int, list[Change]], depth: int) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key, value in data.items():
        group = groups.pop(key, []) if isinstance(key, str) else []
        change = group[0] if group and len(group[0].path) == depth + 1 else None
        if isinstance(change, Remove):
            continue
        if isinstance(change, Add):
            if value is not None:
                raise ValueError(f"{pointer(change.path)} has a value already")
            result[key] = _copy(change.value)
        else:
            result[key] = _applied(value, group, depth + 1)
    for key, group in groups.items():
        if not isinstance(group[0], Add) or len(group[0].path) != depth + 1:
            raise _no_such_place(group[0].path[: depth + 1])
        result[key] = _copy(group[0].value)
    return result


def _applied_to_list(data: list[Any], groups: dict[str | int, list[Change]], depth: int) -> list[Any]:
    result = []
    for index in range(len(data) + 1):
        added, others = _parted(groups.pop(index, []), depth)
        result += [_copy(change.value) for change in added]
        if index < len(data):
            if not (others and isinstance(others[0], Remove) and len(others[0].path) == depth + 1):
                result.append(_applied(data[index], others, depth + 1))
        elif others:
            raise _no_such_place(others[0].path[: depth + 1])
    for group in groups.values():
        raise _no_such_place(group[0].path[: depth + 1])
    return result


def _parted(changes: list[Change], depth: int) -> tuple[list[Add], list[Change]]:
    """What is added before a list item, and what is done to the item itself."""
    added: list[Add] = []
    others: list[Change] = []
    for change in changes:
        if isinstance(change, Add) and len(change.path) == depth + 1:
            added.append(change)
        else:
            others.append(change)
    return added, others


def _no_such_place(path: Path) -> ValueError:
    return ValueError(f"there is no {pointer(path)}")


def _copy(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _copy(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_copy(item) for item in data]
    return data


def _last_index_first(changes: list[Change], depth: int) -> Iterator[Change]:
    """In an order in which no operation moves an item that a later one names."""
    here = [change for change in changes if len(change.path) == depth]
    yield from here
    groups = _grouped([change for change in changes if len(change.path) > depth], depth)
    for part in sorted(groups, key=lambda part: -part if isinstance(part, int) else 0):
        added, others = _parted(groups[part], depth) if isinstance(part, int) else ([], groups[part])
        yield from _last_index_first(others, depth + 1)
        yield from reversed(added)


def _operation(change: Change) -> dict[str, Any]:
    if isinstance(change, Remove):
        return {"op": "remove", "path": pointer(change.path)}
    return {"op": type(change).__name__.lower(), "path": pointer(change.path), "value": _copy(change.value)}
