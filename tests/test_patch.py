"""Changes to plain data, and the RFC 6902 patch that is the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainagent.patch import Add, Change, Path, Remove, Replace, apply, json_patch

POD = {"spec": {"containers": [{"name": "a"}, {"name": "b"}], "volumes": None}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], POD),
        ([Add(("kind",), "Pod")], {**POD, "kind": "Pod"}),
        ([Replace((), 1)], 1),
        ([Replace(("spec",), {})], {"spec": {}}),
        ([Remove(("spec", "containers"))], {"spec": {"volumes": None}}),
        (
            [Add(("spec", "volumes"), [1]), Remove(("spec", "containers", 0))],
            {"spec": {"containers": [{"name": "b"}], "volumes": [1]}},
        ),
        (
            [
                Add(("spec", "containers", 2), "last"),
                Add(("spec", "containers", 0), 1),
                Remove(("spec", "containers", 0, "name")),
                Add(("spec", "containers", 0), 2),
                Replace(("spec", "containers", 1), "c"),
                Add(("spec", "containers", 1), 3),
            ],
            {"spec": {"containers": [1, 2, {}, 3, "c", "last"], "volumes": None}},
        ),
    ],
)
def test_apply(changes: list[Change], expected: Any) -> None:
    before = copy.deepcopy(POD)
    assert apply(POD, changes) == expected
    assert _json_patched(POD, json_patch(changes)) == expected
    assert before == POD


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([Add((), 1)], "the whole document can only be replaced"),
        ([Remove(())], "the whole document can only be replaced"),
        ([Add(("spec", "containers"), [])], "/spec/containers has a value already"),
        ([Add(("spec", "a", "b"), 1)], "there is no /spec/a"),
        ([Remove(("a~/b",))], "there is no /a~0~1b"),
        ([Replace(("spec", "a"), 1)], "there is no /spec/a"),
        ([Add(("spec", "containers", 3), 1)], "there is no /spec/containers/3"),
        ([Remove(("spec", "containers", 2))], "there is no /spec/containers/2"),
        ([Remove(("spec", "containers", -1))], "/spec/containers/-1: a list index below 0"),
        ([Add(("spec", 0), 1)], "there is no /spec/0"),
        ([Add(("spec", "containers", "0"), 1)], "there is no /spec/containers/0"),
        ([Add(("spec", "volumes", 0), 1)], "there is no /spec/volumes/0"),
        ([Remove(("spec",)), Add(("spec", "a"), 1)], "/spec/a lies inside /spec"),
        ([Add(("a", "b"), 1), Add(("a",), {})], "/a/b lies inside /a"),
        ([Add(("a",), 1), Add(("a",), 2)], "/a is changed twice"),
        ([Replace((), 1), Add(("a",), 2)], "/a lies inside the whole"),
    ],
)
def test_no_such_change(changes: list[Change], why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}$"):
        apply(POD, changes)


def test_nothing_is_shared() -> None:
    value = {"a": [1]}
    data: Any = {"old": [1]}
    result = apply(data, [Add(("new",), value)])
    result["new"]["a"].append(2)
    result["old"].append(2)
    patch = json_patch([Add(("new",), value)])
    patch[0]["value"]["a"].append(2)
    assert value == {"a": [1]}
    assert data == {"old": [1]}


def test_json_patch_escapes_and_orders() -> None:
    assert json_patch([Remove(("a/b", 1)), Add(("a/b", 0), 1), Add(("a/b", 2), 2), Replace(("~",), 3)]) == [
        {"op": "add", "path": "/a~1b/2", "value": 2},
        {"op": "remove", "path": "/a~1b/1"},
        {"op": "add", "path": "/a~1b/0", "value": 1},
        {"op": "replace", "path": "/~0", "value": 3},
    ]


_VALUES = st.recursive(
    st.none() | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("ab/~"), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def _changed(draw: st.DrawFn) -> tuple[Any, list[Change]]:
    data = draw(_VALUES)
    changes: list[Change] = []

    def visit(value: Any, path: Path) -> None:
        change = draw(st.sampled_from([Add, Replace, Remove, None, None, None]))
        if path:
            if change is Remove:
                return changes.append(Remove(path))
            if change is Replace or (change is Add and value is None and isinstance(path[-1], str)):
                return changes.append(change(path, draw(_VALUES)))
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(inner, (*path, key))
            changes.extend(Add((*path, key), 7) for key in draw(st.sampled_from([(), ("new",), ("new", "newer")])))
        elif isinstance(value, list):
            for index, inner in enumerate([*value, None]):
                changes.extend(Add((*path, index), number) for number in range(draw(st.integers(0, 2))))
                if index < len(value):
                    visit(inner, (*path, index))
        return None

    visit(data, ())
    return data, draw(st.permutations(changes))


@given(_changed())
def test_the_patch_in_order_gives_what_apply_gives(changed: tuple[Any, list[Change]]) -> None:
    data, changes = changed
    assert _json_patched(data, json_patch(changes)) == apply(data, changes)


def _json_patched(data: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902, as far as json_patch uses it."""
    whole = {"": copy.deepcopy(data)}
    for operation in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")]
        parent: Any = whole
        for part in parts[:-1]:
            parent = parent[int(part) if isinstance(parent, list) else part]
        key: Any = int(parts[-1]) if isinstance(parent, list) else parts[-1]
        if operation["op"] == "add" and isinstance(parent, list):
            assert key <= len(parent)
            parent.insert(key, operation["value"])
        elif operation["op"] == "remove":
            del parent[key]
        else:
            assert operation["op"] == "add" or key in parent or isinstance(parent, list)
            parent[key] = operation["value"]
    return whole[""]
