"""Edits YAML text in place: bytes that no change needs stay as they are. Knows nothing of Kubernetes.

PyYAML (libyaml) reads the text and says where each value stands; each change becomes splices of the text there. The
edited text is read again and must give what drainagent.patch.apply gives, so a wrong splice ends in CannotEdit.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

from drainagent.patch import Add, Change, Path, Remove, apply, pointer

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 200
_MOST_ALIASED = 1_000_000
_TAG = "tag:yaml.org,2002:"
_BREAKS = r"\r\n\x85\u2028\u2029"
_BREAK = re.compile(rf"\r\n|[{_BREAKS}]")
_SPACE = re.compile(rf"[ \t{_BREAKS}]*")
_SPACE_OR_COMMENT = re.compile(rf"(?:[ \t{_BREAKS}]+|#[^{_BREAKS}]*)*")
_WORD = re.compile(r"\S*")


class YamlError(ValueError):
    """The text is not YAML: "line 12, column 5: what"; line and column of the whole stream, from 1."""


class CannotEdit(ValueError):  # noqa: N818
    """The document is YAML, but can't be edited in place; the message is "line 12: why"."""


@dataclass(slots=True)
class Node:
    """A value and where it stands: offsets in its document's text, its anchor and tag included.

    ``line`` is that of the whole stream, from 1. A block collection ends where its last value ends, a block scalar
    after its last line, without the line break.
    """

    start: int
    end: int
    line: int
    anchor: str | None
    tag: str | None
    aliased: bool = field(default=False, kw_only=True)


@dataclass(slots=True)
class ScalarNode(Node):
    """``unended``: a block scalar in a last line without a break, which a next line would change."""

    value: str
    plain: bool
    unended: bool


@dataclass(slots=True)
class MappingNode(Node):
    flow: bool
    entries: list[tuple[Node, Node]]


@dataclass(slots=True)
class SequenceNode(Node):
    flow: bool
    items: list[Node]


@dataclass(slots=True)
class AliasNode(Node):
    """``anchor`` is the name it refers to."""

    target: Node


@dataclass(slots=True)
class Document:
    """A slice of the stream, from its ``---`` (the first: from the beginning) to the next one's, and its line from 1.

    ``root`` is None when there is nothing but comments.
    """

    start: int
    end: int
    line: int
    root: Node | None


def read_stream(text: str) -> list[Document]:
    """All documents; their slices joined are the text. YamlError."""
    try:
        return _Reader(text).documents()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.problem, error.context) if part)
        line, column = (mark.line, mark.column) if mark else (0, 0)
        raise YamlError(f"line {line + 1}, column {column + 1}: {what}") from None
    except yaml.reader.ReaderError as error:
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise _unreadable(text, max(text.find(chr(code)), 0)) from None
    except UnicodeEncodeError as error:
        raise _unreadable(text, text.find(error.object[error.start])) from None


def _unreadable(text: str, position: int) -> YamlError:
    starts = [0, *(match.end() for match in _BREAK.finditer(text, 0, position))]
    what = f"the character U+{ord(text[position]):04X} is not allowed"
    return YamlError(f"line {len(starts)}, column {position - starts[-1] + 1}: {what}")


class _Reader:
    """Composes nodes from events: PyYAML's own nodes don't say where an alias stands."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._skipped = int(text.startswith("\ufeff"))  # libyaml counts no byte order mark
        self._next = _LOADER(text[self._skipped :]).get_event
        self._start = 0  # of the document, in the stream
        self._anchors: dict[str, Node] = {}

    def documents(self) -> list[Document]:
        documents: list[Document] = []
        self._next()
        while not isinstance(event := self._next(), yaml.StreamEndEvent):
            mark = event.start_mark
            if documents:
                self._start = documents[-1].end = mark.index + self._skipped
            self._anchors = {}
            root = self._node(self._next(), 0)
            empty = isinstance(root, ScalarNode) and root.start == root.end
            line = mark.line + 1 if documents else 1
            documents.append(Document(self._start, len(self._text), line, None if empty else root))
            self._next()
        if not documents and self._text:
            documents.append(Document(0, len(self._text), 1, None))
        return documents

    def _node(self, event: Any, depth: int) -> Node:
        mark, shift = event.start_mark, self._skipped - self._start
        start, end, line = mark.index + shift, event.end_mark.index + shift, mark.line + 1
        kind, anchor = type(event), event.anchor
        node: Node
        if kind is yaml.ScalarEvent:
            unended = False
            if event.style in {"|", ">"}:
                end, unended = self._block_scalar_end(start, end)
            node = ScalarNode(start, end, line, anchor, event.tag, event.value, event.implicit[0], unended)
        elif kind is yaml.AliasEvent:
            if anchor not in self._anchors:
                raise YamlError(f"line {line}, column {mark.column + 1}: there is no anchor &{anchor}")
            target = self._anchors[anchor]
            target.aliased = True
            return AliasNode(start, end, line, anchor, None, target)
        elif depth == _DEEPEST:
            raise YamlError(f"line {line}, column {mark.column + 1}: nested deeper than {_DEEPEST} levels")
        elif kind is yaml.MappingStartEvent:
            node = MappingNode(start, end, line, anchor, event.tag, bool(event.flow_style), [])
        else:
            node = SequenceNode(start, end, line, anchor, event.tag, bool(event.flow_style), [])
        if anchor is not None:
            self._anchors[anchor] = node
        if isinstance(node, MappingNode):
            self._entries(node, depth + 1)
        elif isinstance(node, SequenceNode):
            self._items(node, depth + 1)
        return node

    def _entries(self, node: MappingNode, depth: int) -> None:
        while type(event := self._next()) is not yaml.MappingEndEvent:
            key = self._node(event, depth)
            value = self._node(self._next(), depth)
            if value.start == value.end:  # libyaml may place it at the next token, behind comments
                blank = _SPACE_OR_COMMENT.match(self._text, key.end + self._start)
                colon = blank.end() if blank else 0
                value.start = value.end = colon + 1 - self._start if self._text.startswith(":", colon) else key.end
            node.entries.append((key, value))
            node.end = value.end
        self._close(node, event)

    def _items(self, node: SequenceNode, depth: int) -> None:
        while type(event := self._next()) is not yaml.SequenceEndEvent:
            item = self._node(event, depth)
            node.items.append(item)
            node.end = item.end
        self._close(node, event)

    def _close(self, node: Node, event: Any) -> None:
        if event.start_mark.index < event.end_mark.index:  # a bracket; a block ends at the next token, behind comments
            node.end = event.end_mark.index + self._skipped - self._start

    def _block_scalar_end(self, start: int, end: int) -> tuple[int, bool]:
        """Before the break of the last line. Blank lines after it belong to the text only when it keeps them."""
        text = self._text[start + self._start : end + self._start]
        header = _BREAK.search(text)
        if not header:
            return end, False
        indicators = text[: header.start()].partition("#")[0]
        last = _break_before(text, len(text))
        if last == len(text):
            return end, "-" not in indicators
        while "+" not in indicators and header.start() < (before := _break_before(text, last)) < last:
            last = before
        return start + last, False


def _break_before(text: str, position: int) -> int:
    """Where the line break that ends at ``position`` starts; ``position`` itself when there is none."""
    if text.startswith("\r\n", position - 2) and position >= 2:
        return position - 2
    return position - 1 if position and _BREAK.match(text, position - 1) else position


# ---- data


def to_data(document: Document) -> Any:
    """Dicts, lists and scalars as PyYAML's SafeLoader reads them, but timestamps as text; None for no root.

    Merge keys are resolved. Of a key that is there twice the last counts (see duplicate_keys). An alias gives the
    same object as its anchor. CannotEdit: a tag, a key or a merge that has no plain data, or endless aliases.
    """
    return None if document.root is None else _Data().of(document.root)


def duplicate_keys(document: Document) -> list[tuple[str, int, int]]:
    """Keys that a mapping has twice: the key, the lines of the first and the second."""
    found = []
    for node in _nodes(document.root) if document.root else ():
        lines: dict[Any, int] = {}
        for key, _ in node.entries if isinstance(node, MappingNode) else ():
            name = _scalar(key) if isinstance(key, ScalarNode) else None
            if name in lines:
                found.append((str(name), lines[name], key.line))
            elif isinstance(key, ScalarNode) and not _is_merge(key):
                lines[name] = key.line
    return found


def _nodes(node: Node) -> Iterator[Node]:
    """The node and all in it, keys too."""
    yield node
    if isinstance(node, MappingNode):
        for key, value in node.entries:
            yield from _nodes(key)
            yield from _nodes(value)
    elif isinstance(node, SequenceNode):
        for item in node.items:
            yield from _nodes(item)


class _Data:
    def __init__(self) -> None:
        self._anchored: dict[int, Any] = {}
        self._left = _MOST_ALIASED

    def of(self, node: Node) -> Any:
        if isinstance(node, ScalarNode):
            data = _scalar(node)
        elif isinstance(node, MappingNode):
            data = self._mapping(node)
        elif isinstance(node, SequenceNode):
            if node.tag not in (None, "!", _TAG + "seq"):
                raise CannotEdit(f"line {node.line}: the tag {_short(node.tag)} on a list is not known")
            data = [self.of(item) for item in node.items]
        else:
            return self._alias(node)
        if node.aliased:
            self._anchored[id(node)] = data
        return data

    def _alias(self, node: Node) -> Any:
        assert isinstance(node, AliasNode)
        if id(node.target) not in self._anchored:
            raise CannotEdit(f"line {node.line}: *{node.anchor} stands inside of what it refers to")
        data = self._anchored[id(node.target)]
        waiting = [data]
        while waiting:
            value = waiting.pop()
            self._left -= 1
            if self._left < 0:
                raise CannotEdit(f"line {node.line}: the aliases up to *{node.anchor} expand to too many values")
            waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return data

    def _mapping(self, node: MappingNode) -> dict[Any, Any]:
        if node.tag not in (None, "!", _TAG + "map"):
            raise CannotEdit(f"line {node.line}: the tag {_short(node.tag)} on a map is not known")
        data: dict[Any, Any] = {}
        merged: list[dict[Any, Any]] = []
        for key, value in node.entries:
            if _is_merge(key):
                merged += self._merged(key, value)
                continue
            name = self.of(key)
            if isinstance(name, (dict, list)):
                raise CannotEdit(f"line {key.line}: a key that is a map or a list")
            data[name] = self.of(value)
        if not merged:
            return data
        return {name: value for part in (*merged, data) for name, value in part.items()}

    def _merged(self, key: Node, value: Node) -> list[dict[Any, Any]]:
        """Those that count less come first."""
        data = self.of(value)
        maps = list(reversed(data)) if isinstance(data, list) else [data]
        if not all(isinstance(part, dict) for part in maps):
            raise CannotEdit(f"line {key.line}: << merges what is no map")
        return maps


def _is_merge(key: Node) -> bool:
    return isinstance(key, ScalarNode) and key.plain and key.value == "<<"


def _scalar(node: ScalarNode) -> Any:
    if node.tag is None:
        return _plain(node.value) if node.plain else node.value
    if node.tag in ("!", _TAG + "str", _TAG + "timestamp"):
        return node.value
    if node.tag in (_TAG + "int", _TAG + "float", _TAG + "bool", _TAG + "null"):
        try:
            return _construct(node.tag, node.value)
        except (ValueError, KeyError, IndexError):
            raise CannotEdit(f"line {node.line}: {node.value!r} is no {_short(node.tag)}") from None
    raise CannotEdit(f"line {node.line}: the tag {_short(node.tag)} is not known")


def _short(tag: str | None) -> str:
    return (tag or "").replace(_TAG, "!!")


@lru_cache(maxsize=4096)
def _plain(text: str) -> Any:
    """A plain scalar's value. What PyYAML's pattern takes but its conversion doesn't (0x_) is text."""
    for tag, pattern in yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], ()):
        if pattern.match(text):
            if tag.endswith((":timestamp", ":value", ":merge")):
                return text
            try:
                return _construct(tag, text)
            except (ValueError, IndexError):
                return text
    return text


def _construct(tag: str, text: str) -> Any:
    return yaml.SafeLoader("").construct_object(yaml.ScalarNode(tag, text))


# ---- editing


def edit(text: str, document: Document, changes: Sequence[Change]) -> str:
    """The document's new text; ``text`` is the document's own, its slice of the stream.

    CannotEdit, and ValueError as in drainagent.patch.apply, for values that JSON doesn't have too.
    """
    if len(text) != document.end - document.start:
        raise ValueError("this is not the document's text")
    if not changes:
        return text
    data = to_data(document)
    expected = apply(data, changes)
    if document.root is None:
        raise CannotEdit(f"line {document.line}: the document is empty")
    editor = _Editor(text, document)
    editor.change(_Slot(document.root), data, list(changes))
    edited = editor.edited()
    _check(text, edited, expected, document)
    return edited


def _check(text: str, edited: str, expected: Any, document: Document) -> None:
    where = f"line {document.line}: the document can't be edited in place"
    if _break_before(text, len(text)) < len(text) and _break_before(edited, len(edited)) == len(edited):
        raise CannotEdit(f"{where}: its last line would run into the next document")
    try:
        documents = read_stream(edited)
        data = to_data(documents[0]) if len(documents) == 1 else None
    except (YamlError, CannotEdit) as error:
        raise CannotEdit(f"{where}: after the edit it would not be readable ({error})") from None
    if len(documents) != 1:
        raise CannotEdit(f"{where}: after the edit it would be {len(documents)} documents")
    path = _difference(data, expected, ())
    if path is not None:
        raise CannotEdit(f"{where}: after the edit {pointer(path) or 'it'} would read differently than it should")


def _difference(data: Any, expected: Any, path: Path) -> Path | None:
    """The first place that differs, in type or key order too."""
    if type(data) is not type(expected):
        return path
    if isinstance(data, dict):
        if len(data) != len(expected):
            return path
        for (key, value), (expected_key, expected_value) in zip(data.items(), expected.items(), strict=True):
            if key != expected_key or type(key) is not type(expected_key):
                return (*path, str(expected_key))
            if (found := _difference(value, expected_value, (*path, str(key)))) is not None:
                return found
        return None
    if isinstance(data, list):
        if len(data) != len(expected):
            return path
        for index, (item, expected_item) in enumerate(zip(data, expected, strict=True)):
            if (found := _difference(item, expected_item, (*path, index))) is not None:
                return found
        return None
    same = data == expected or (data != data and expected != expected)  # noqa: PLR0124 - not a number
    return None if same else path


@dataclass(frozen=True)
class _Layout:
    """Of a flow collection whose entries stand on their own lines: their indent, and how much deeper the next is."""

    indent: str
    unit: str


@dataclass(frozen=True)
class _Slot:
    """Where a value stands. ``head``: after the ":" or "-" before it, None for the root and in a flow list.

    ``column``: of the key or dash. ``depth``: its path's length. ``siblings``: the mapping it is in.
    """

    node: Node
    head: int | None = None
    column: int = 0
    depth: int = 0
    item: bool = False
    flow: bool = False
    layout: _Layout | None = None
    siblings: MappingNode | None = None


@dataclass(frozen=True)
class _Added:
    """What is added to a list before ``index``, or to a map (``key``) at its end."""

    index: int
    key: str | None
    value: Any


@dataclass(frozen=True)
class _Style:
    """Columns from a key to a map and to a list below it, and from a dash to the map or list in its line."""

    to_map: int
    to_list: int
    to_item: int


class _Editor:
    """Collects the splices that the changes of one document need."""

    def __init__(self, text: str, document: Document) -> None:
        self._text = text
        self._document = document
        self._floor = int(text.startswith("\ufeff"))
        breaks = list(_BREAK.finditer(text, self._floor))
        self._line_starts = [self._floor, *(found.end() for found in breaks)]
        self._newline = breaks[0].group() if breaks else "\n"
        #: start, end, order among those at one position, replacement
        self._splices: list[tuple[int, int, int, str]] = []
        self._samples: tuple[list[tuple[int, int]], ...] | None = None

    def edited(self) -> str:
        parts: list[str] = []
        position = 0
        # What is inserted at a position stands before what is taken away from there on.
        for start, end, _, replacement in sorted(self._splices, key=lambda splice: splice[:3]):
            if start < position:
                raise CannotEdit(f"line {self._line(start)}: two changes overlap here")
            parts += (self._text[position:start], replacement)
            position = end
        return "".join(parts) + self._text[position:]

    # ---- where things stand

    def _splice(self, start: int, end: int, replacement: str, depth: int = 1000) -> None:
        """``depth`` orders lines that are inserted at one position: what is nested deeper comes first."""
        self._splices.append((start, end, -depth, replacement))

    def _line(self, position: int) -> int:
        return self._document.line + bisect_right(self._line_starts, position) - 1

    def _line_start(self, position: int) -> int:
        return self._line_starts[bisect_right(self._line_starts, position) - 1]

    def _line_end(self, position: int) -> int:
        """Before the line break, behind a comment."""
        index = bisect_right(self._line_starts, position)
        if index == len(self._line_starts):
            return len(self._text)
        return _break_before(self._text, self._line_starts[index])

    def _same_line(self, first: int, second: int) -> bool:
        return self._line_start(first) == self._line_start(second)

    def _column(self, position: int) -> int:
        return position - self._line_start(position)

    def _begins_line(self, position: int) -> bool:
        return not self._text[self._line_start(position) : position].strip(" ")

    def _next_visible(self, position: int) -> int:
        """In the same line, or its end."""
        while self._text.startswith((" ", "\t"), position):
            position += 1
        return position

    def _next_token(self, position: int) -> int:
        return _SPACE_OR_COMMENT.match(self._text, position).end()  # type: ignore[union-attr]

    def _properties_end(self, node: Node) -> int:
        end = node.start
        for _ in range((node.anchor is not None) + (node.tag is not None)):
            end = _WORD.match(self._text, self._next_token(end)).end()  # type: ignore[union-attr]
        return end

    def _content(self, node: Node) -> int:
        """Where the first key, dash or bracket is."""
        end = self._properties_end(node)
        return node.start if end == node.start else self._next_token(end)

    def _spans(self, node: MappingNode | SequenceNode) -> list[tuple[int, int]]:
        """Where each entry starts (its key, its "?", its dash) and its value ends."""
        values = [value for _, value in node.entries] if isinstance(node, MappingNode) else node.items
        position = self._content(node)
        if node.flow:
            if self._text[position] not in "{[":
                raise CannotEdit(f"line {node.line}: a pair in a flow list without braces")
            position = self._next_token(position + 1)
        spans: list[tuple[int, int]] = []
        for value in values:
            if spans:
                position = self._next_token(spans[-1][1])
                if node.flow and self._text.startswith(",", position):
                    position = self._next_token(position + 1)
            spans.append((position, value.end))
        return spans

    # ---- changes

    def change(self, slot: _Slot, data: Any, changes: list[Change]) -> None:
        """Does ``changes`` to the value in ``slot`` and inside of it. ``data``: what it is now."""
        node = slot.node
        if len(changes[0].path) == slot.depth:
            change = changes[0]
            assert not isinstance(change, Remove)
            return self._replace(slot, change.value)
        if isinstance(node, AliasNode):
            raise CannotEdit(f"line {node.line}: {pointer(changes[0].path)} is reached by the alias *{node.anchor}")
        self._refuse_aliased(node)
        if isinstance(node, MappingNode):
            return self._change_map(slot, node, data, changes)
        assert isinstance(node, SequenceNode)
        return self._change_list(slot, node, data, changes)

    def _refuse_aliased(self, node: Node) -> None:
        if node.aliased:
            raise CannotEdit(f"line {node.line}: a change here would change every *{node.anchor} too")

    def _refuse_aliased_inside(self, *nodes: Node) -> None:
        for node in nodes:
            for inner in _nodes(node):
                self._refuse_aliased(inner)

    def _change_map(self, slot: _Slot, node: MappingNode, data: dict[Any, Any], changes: list[Change]) -> None:
        spans = self._spans(node)
        layout = self._layout(node, spans)
        removed: set[int] = set()
        added: list[_Added] = []
        for name, group in _grouped(changes, slot.depth):
            assert isinstance(name, str)
            index = self._find(node, name)
            change = group[0] if len(group[0].path) == slot.depth + 1 else None
            if index is None:
                if name in data:
                    raise CannotEdit(f"line {node.line}: {pointer(group[0].path)} is there only by a merge key (<<)")
                assert isinstance(change, Add)
                added.append(_Added(len(spans), name, change.value))
                continue
            key, value = node.entries[index]
            if isinstance(change, Remove):
                self._refuse_aliased_inside(key, value)
                removed.add(index)
                continue
            head = self._next_token(key.end) + 1
            if not self._text.startswith(":", head - 1) and not node.flow:
                raise CannotEdit(f'line {key.line}: a key without a ":"')
            column = self._column(spans[index][0])
            inner = _Slot(value, head, column, slot.depth + 1, flow=node.flow, layout=layout, siblings=node)
            self.change(inner, data[name], group)
        self._change_entries(slot, node, spans, removed, added)

    def _find(self, node: MappingNode, name: str) -> int | None:
        found = []
        for index, (key, _) in enumerate(node.entries):
            scalar = key.target if isinstance(key, AliasNode) else key
            if isinstance(scalar, ScalarNode) and scalar.value == name and _scalar(scalar) == name:
                found.append(index)
        if len(found) > 1:
            first, second = (node.entries[index][0].line for index in found[:2])
            raise CannotEdit(f"line {second}: the key {name!r} is there twice, the first in line {first}")
        return found[0] if found else None

    def _change_list(self, slot: _Slot, node: SequenceNode, data: list[Any], changes: list[Change]) -> None:
        spans = self._spans(node)
        layout = self._layout(node, spans)
        removed: set[int] = set()
        added: list[_Added] = []
        for index, group in sorted(_grouped(changes, slot.depth)):
            assert isinstance(index, int)
            inside: list[Change] = []
            for change in group:
                if len(change.path) > slot.depth + 1 or not isinstance(change, (Add, Remove)):
                    inside.append(change)
                elif isinstance(change, Add):
                    added.append(_Added(index, None, change.value))
                else:
                    self._refuse_aliased_inside(node.items[index])
                    removed.add(index)
            if inside:
                start = spans[index][0]
                head, column = (None, 0) if node.flow else (start + 1, self._column(start))
                inner = _Slot(node.items[index], head, column, slot.depth + 1, item=True, flow=node.flow, layout=layout)
                self.change(inner, data[index], inside)
        self._change_entries(slot, node, spans, removed, added)

    def _change_entries(
        self,
        slot: _Slot,
        node: MappingNode | SequenceNode,
        spans: list[tuple[int, int]],
        removed: set[int],
        added: list[_Added],
    ) -> None:
        if not removed and not added:
            return
        if spans and len(removed) == len(spans):
            if added:
                self._replace(slot, _collection(node, added))
            elif node.flow:
                self._empty_flow(node, spans)
            else:
                self._empty_block(slot, node, spans)
        elif node.flow:
            if spans:
                self._change_flow(node, spans, removed, added)
            else:
                self._fill_flow(slot, node, added)
        else:
            self._remove_lines(spans, removed)
            self._add_lines(slot, node, spans, removed, added)

    # ---- block collections

    def _remove_lines(self, spans: list[tuple[int, int]], removed: set[int]) -> None:
        leading = True  # nothing before is kept
        joined = -1  # where a "- " line goes on
        for index, (start, end) in enumerate(spans):
            if index not in removed:
                leading = False
                continue
            line_end = self._line_end(end)
            if start == joined or not self._begins_line(start):
                joined = _SPACE.match(self._text, line_end).end()  # type: ignore[union-attr]
                self._splice(start, joined, "")
            elif leading and self._line_start(spans[0][0]) == self._floor:
                first, behind = self._line_start(start), bisect_right(self._line_starts, end)
                self._splice(first, self._line_starts[behind], "")
            else:
                self._splice(_break_before(self._text, self._line_start(start)), line_end, "")

    def _empty_block(self, slot: _Slot, node: MappingNode | SequenceNode, spans: list[tuple[int, int]]) -> None:
        nothing = _flow(_collection(node, []), "", None)
        content = self._content(node)
        if slot.head is None or self._same_line(slot.head, content):
            self._splice(content, node.end, nothing)
        else:
            end = self._properties_end(node)
            at = slot.head if end == node.start else end
            self._splice(at, at, " " + nothing)
            self._remove_lines(spans, set(range(len(spans))))

    def _add_lines(
        self,
        slot: _Slot,
        node: MappingNode | SequenceNode,
        spans: list[tuple[int, int]],
        removed: set[int],
        added: list[_Added],
    ) -> None:
        column = self._column(spans[0][0])
        kept = next(index for index in range(len(spans)) if index not in removed)
        for entry in added:
            if entry.key is None and entry.index <= kept:
                self._add_first(slot, node, spans[0][0], entry.value)
                continue
            end = spans[entry.index - 1][1]
            at = self._line_end(end)
            self._refuse_unended(node, at)
            siblings = node if isinstance(node, MappingNode) else None
            style = self._style(end, column, siblings)
            if entry.key is None:
                lines = _block_item(entry.value, column, style)
            else:
                lines = _block_entry(entry.key, entry.value, column, style)
            self._splice(at, at, "".join(self._newline + line for line in lines), slot.depth)

    def _add_first(self, slot: _Slot, node: Node, dash: int, value: Any) -> None:
        column = self._column(dash)
        lines = _block_item(value, column, self._style(dash, column, None))
        if not self._begins_line(dash):
            self._splice(dash, dash, self._newline.join(lines)[column:] + self._newline + " " * column)
        elif slot.head is None and self._line_start(dash) == self._floor:
            self._splice(self._floor, self._floor, "".join(line + self._newline for line in lines))
        else:
            end = self._properties_end(node)
            at = _break_before(self._text, self._line_start(dash))
            if slot.head is not None:
                at = self._line_end(slot.head if end == node.start else end)
            self._splice(at, at, "".join(self._newline + line for line in lines))

    def _refuse_unended(self, node: Node, at: int) -> None:
        if at != len(self._text):
            return
        while isinstance(node, (MappingNode, SequenceNode)) and not node.flow:
            node = node.entries[-1][1] if isinstance(node, MappingNode) else node.items[-1]
        if isinstance(node, ScalarNode) and node.unended:
            raise CannotEdit(
                f"line {node.line}: this text block ends the file without a line break, "
                "so a line after it would change it; end the file with a line break"
            )

    # ---- flow collections

    def _layout(self, node: MappingNode | SequenceNode, spans: list[tuple[int, int]]) -> _Layout | None:
        if not node.flow or not spans or self._same_line(self._content(node), spans[0][0]):
            return None
        indent = self._text[self._line_start(spans[0][0]) : spans[0][0]]
        closing = self._text[self._line_start(node.end - 1) : node.end - 1]
        outer = closing[: len(closing) - len(closing.lstrip(" \t"))]
        unit = indent[len(outer) :] if indent.startswith(outer) and indent != outer else "  "
        return _Layout(indent, unit)

    def _flow_entry(self, entry: _Added, layout: _Layout | None) -> str:
        value = _flow(entry.value, self._newline, layout)
        return value if entry.key is None else f"{_quoted(entry.key)}: {value}"

    def _change_flow(
        self,
        node: MappingNode | SequenceNode,
        spans: list[tuple[int, int]],
        removed: set[int],
        added: list[_Added],
    ) -> None:
        kept = next(index for index in range(len(spans)) if index not in removed)
        for index in removed:
            start, end = spans[index]
            self._splice(*((start, spans[index + 1][0]) if index < kept else (spans[index - 1][1], end)), "")
        layout = self._layout(node, spans)
        comma = "," + (self._newline + layout.indent if layout else " ")
        for entry in added:
            text = self._flow_entry(entry, layout)
            if entry.index <= kept:
                self._splice(spans[kept][0], spans[kept][0], text + comma)
            else:
                at = spans[entry.index - 1][1]
                self._splice(at, at, comma + text)

    def _fill_flow(self, slot: _Slot, node: MappingNode | SequenceNode, added: list[_Added]) -> None:
        at = self._content(node) + 1
        outer = slot.layout
        if outer and at == node.end - 1:
            text = _flow(_collection(node, added), self._newline, outer)
            self._splice(at, at, text[1:-1])
            return
        text = ", ".join(self._flow_entry(entry, None) for entry in added)
        self._splice(at, at, text + " " if self._text.startswith("#", at) else text)

    def _empty_flow(self, node: MappingNode | SequenceNode, spans: list[tuple[int, int]]) -> None:
        opened, (first, _), (_, last) = self._content(node) + 1, spans[0], spans[-1]
        if opened < first:
            self._splice(opened, node.end - 1, "")
            return
        comma = self._next_token(last)
        self._splice(first, comma + 1 if self._text.startswith(",", comma) else last, "")

    # ---- whole values

    def _replace(self, slot: _Slot, value: Any) -> None:
        node = slot.node
        self._refuse_aliased_inside(node)
        collection = isinstance(node, (MappingNode, SequenceNode))
        block = isinstance(node, (MappingNode, SequenceNode)) and not node.flow
        if slot.flow or (collection and not block) or not (isinstance(value, (dict, list)) and value):
            text = _flow(value, self._newline, slot.layout) if slot.flow else self._inline(node, value)
            self._replace_inline(slot, block, text)
            return
        below = slot.head is not None and not self._same_line(slot.head, self._content(node))
        if slot.item or slot.head is None or (block and not below):
            empty = node.start == node.end
            column = slot.column + 2 if empty else self._column(node.start)
            lines = _block(value, column, self._style(node.start, column, None))
            self._splice(node.start, node.end, " " * empty + self._newline.join(lines)[column:])
            return
        style = self._style(node.start, slot.column, slot.siblings)
        column = slot.column + (style.to_list if isinstance(value, list) else style.to_map)
        text = "".join(self._newline + line for line in _block(value, column, style))
        if block:
            self._replace_below(slot, "", text)
        else:
            assert slot.head is not None
            if slot.head < node.end:
                behind = self._next_visible(node.end)
                self._splice(slot.head, behind, " " if self._text.startswith("#", behind) else "")
            at = self._line_end(node.end)
            self._splice(at, at, text, slot.depth)

    def _replace_inline(self, slot: _Slot, block: bool, text: str) -> None:
        node = slot.node
        if block and slot.head is not None and not self._same_line(slot.head, self._content(node)):
            self._replace_below(slot, " " + text, "")
        elif node.start == node.end:
            colon = slot.head is not None and slot.head <= node.start
            self._splice(node.start, node.end, f" {text}" if colon else f": {text}")
        else:
            self._splice(node.start, node.end, text)

    def _replace_below(self, slot: _Slot, text: str, lines: str) -> None:
        """Takes the lines of a block collection below its key or dash away."""
        node, head = slot.node, slot.head
        assert head is not None
        end = self._properties_end(node)
        self._splice(head, end if end > node.start and self._same_line(head, end) else head, text)
        self._splice(self._line_end(head), self._line_end(node.end), lines)

    def _inline(self, node: Node, value: Any) -> str:
        if not (isinstance(value, (dict, list)) and value):
            return _flow(value, "", None) if isinstance(value, (dict, list)) else _block_scalar(value)
        assert isinstance(node, (MappingNode, SequenceNode))
        layout = self._layout(node, self._spans(node))
        if layout:
            layout = _Layout(layout.indent.removesuffix(layout.unit), layout.unit)
        return _flow(value, self._newline, layout)

    # ---- style

    def _style(self, position: int, column: int, siblings: MappingNode | None) -> _Style:
        """As next to it: lists first as its siblings have them, then as the nearest in the document."""
        if self._samples is None:
            self._samples = self._measured()
        maps, lists, items = self._samples
        own = None
        for _, value in siblings.entries if siblings else ():
            if isinstance(value, SequenceNode) and not value.flow:
                dash = self._content(value)
                own = self._column(dash) - column if self._begins_line(dash) else own
        below_key = _nearest(lists, position, 0) if own is None else own
        return _Style(_nearest(maps, position, 2), below_key, _nearest(items, position, 2))

    def _measured(self) -> tuple[list[tuple[int, int]], ...]:
        maps: list[tuple[int, int]] = []
        lists: list[tuple[int, int]] = []
        items: list[tuple[int, int]] = []
        for node in _nodes(self._document.root) if self._document.root else ():
            if not isinstance(node, (MappingNode, SequenceNode)) or node.flow:
                continue
            content = self._content(node)
            column = self._column(content)
            if isinstance(node, SequenceNode):
                for item in node.items:
                    if isinstance(item, (MappingNode, SequenceNode)) and not item.flow:
                        inner = self._content(item)
                        if not self._begins_line(inner):
                            dash = self._text.rfind("-", self._line_start(inner), inner)
                            items.append((inner, inner - dash))
                continue
            for _, value in node.entries:
                if isinstance(value, (MappingNode, SequenceNode)) and not value.flow:
                    inner = self._content(value)
                    if self._begins_line(inner):
                        samples = lists if isinstance(value, SequenceNode) else maps
                        samples.append((inner, self._column(inner) - column))
        return sorted(maps), sorted(lists), sorted(items)


def _nearest(samples: list[tuple[int, int]], position: int, default: int) -> int:
    index = bisect_left(samples, (position, 0))
    around = samples[max(index - 1, 0) : index + 1]
    return min(around, key=lambda sample: abs(sample[0] - position))[1] if around else default


def _grouped(changes: list[Change], depth: int) -> list[tuple[Any, list[Change]]]:
    groups: dict[str | int, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.path[depth], []).append(change)
    return list(groups.items())


def _collection(node: MappingNode | SequenceNode, added: list[_Added]) -> Any:
    if isinstance(node, MappingNode):
        return {entry.key: entry.value for entry in added}
    return [entry.value for entry in added]


# ---- values as text

#: What every reader takes for text: it starts like a word, a path or an option, and has no ": " and no " #".
_CLEARLY_TEXT = re.compile(r"-{0,2}[A-Za-z_/](?:[A-Za-z0-9_./@%+=,~-]|:(?=[A-Za-z0-9_/])| (?=[A-Za-z0-9_/]))*")
_NOT_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf", "infinity"}
#: JSON allows these in a string as they are, YAML doesn't, or reads some of them as line breaks.
_ESCAPED = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def _quoted(text: str) -> str:
    """JSON, and YAML with the same meaning."""
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError("a number that JSON doesn't have")
    text = repr(value)
    # YAML 1.1 takes 1e+16 for text.
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _flow_scalar(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return _number(value)
    if value is None or isinstance(value, (bool, int)):
        return json.dumps(value)
    raise ValueError(f"a {type(value).__name__}, which JSON doesn't have")


#: Printable ASCII with quotes or backslashes to escape, and no single quote.
_READS_BETTER_SINGLE = re.compile(r"(?=.*[\"\\\\])[ !-&(-~]+")


def _block_scalar(value: Any) -> str:
    if isinstance(value, str) and _CLEARLY_TEXT.fullmatch(value) and value.lstrip("-").lower() not in _NOT_TEXT:
        return value
    if isinstance(value, str) and _READS_BETTER_SINGLE.fullmatch(value):
        return f"'{value}'"
    return _flow_scalar(value)


def _flow(value: Any, newline: str, layout: _Layout | None) -> str:
    """JSON. ``layout``: each entry on a line; its indent is that of the line where the value starts."""
    if not isinstance(value, (dict, list)):
        return _flow_scalar(value)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if not value:
        return opening + closing
    inner = _Layout(layout.indent + layout.unit, layout.unit) if layout else None
    if isinstance(value, dict):
        entries = [f"{_quoted(_key(key))}: {_flow(item, newline, inner)}" for key, item in value.items()]
    else:
        entries = [_flow(item, newline, inner) for item in value]
    if not layout or not inner:
        return opening + ", ".join(entries) + closing
    comma = f",{newline}{inner.indent}"
    return f"{opening}{newline}{inner.indent}{comma.join(entries)}{newline}{layout.indent}{closing}"


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"a key that is a {type(key).__name__}, which JSON doesn't have")  # noqa: TRY004
    return key


def _block(value: Any, column: int, style: _Style) -> list[str]:
    """The lines of a map or list with entries, the first indented too."""
    if isinstance(value, dict):
        return [line for key, item in value.items() for line in _block_entry(_key(key), item, column, style)]
    return [line for item in value for line in _block_item(item, column, style)]


def _block_entry(key: str, value: Any, column: int, style: _Style) -> list[str]:
    head = " " * column + _block_scalar(key) + ":"
    if not isinstance(value, (dict, list)):
        return [f"{head} {_block_scalar(value)}"]
    if not value:
        return [f"{head} {_flow(value, '', None)}"]
    return [head, *_block(value, column + (style.to_list if isinstance(value, list) else style.to_map), style)]


def _block_item(value: Any, column: int, style: _Style) -> list[str]:
    dash = " " * column + "-"
    if not isinstance(value, (dict, list)):
        return [f"{dash} {_block_scalar(value)}"]
    if not value:
        return [f"{dash} {_flow(value, '', None)}"]
    first, *rest = _block(value, column + style.to_item, style)
    return [dash + first[column + 1 :], *rest]
