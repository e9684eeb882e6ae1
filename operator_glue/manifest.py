"""A stream of YAML or JSON documents as kubectl reads it, and one that kubectl reads as it was meant. Pure.

The same reader as ``drainagent inject``; plain scalars are what kubectl's YAML library makes of them, which is not what
PyYAML does: ``y`` is a boolean, ``1:30`` a text, ``1e3`` a number. Source: go.yaml.in/yaml/v2 2.4.2, resolve.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from drainagent.workloads import objects
from drainagent.workstation.yaml_edit import (
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    duplicate_keys,
    read_stream,
    to_data,
)

_TAG = "tag:yaml.org,2002:"
_TRUE = frozenset(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"])
_FALSE = frozenset(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"])
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"([-+]?)(0[xXoObB]?)?([0-9a-fA-F]*)")
_BASES = {"": 10, "0": 8, "0x": 16, "0o": 8, "0b": 2}


@dataclass(frozen=True)
class Manifest:
    """An object and where it stands. ``repeated``: keys that a map has twice: the key, the lines of both."""

    line: int
    data: Any
    repeated: tuple[tuple[str, int, int], ...] = ()


def read_manifests(text: str) -> list[Manifest]:
    """The objects of a stream, those in Lists one by one. YamlError or CannotEdit, both ValueError, name the line."""
    found = []
    for document in read_stream(text):
        if document.root is None:
            continue
        _as_kubectl(document.root)
        data = to_data(document)
        repeated = tuple(duplicate_keys(document))
        items = [item for _, item in objects(data)] or [data]
        for item in items:
            found.append(Manifest(document.line, item, repeated))
            repeated = ()
    return found


def _as_kubectl(node: Node) -> None:
    """Tags each plain scalar in the tree with what kubectl takes it for; keys are text. ValueError: a key is null."""
    waiting = [(node, False)]
    while waiting:
        node, is_key = waiting.pop()
        if isinstance(node, MappingNode):
            waiting += [(part, part is entry[0]) for entry in node.entries for part in entry]
        elif isinstance(node, SequenceNode):
            waiting += [(item, False) for item in node.items]
        elif isinstance(node, ScalarNode) and node.plain and node.tag is None and not (is_key and node.value == "<<"):
            kind, node.value = _resolve(node.value)
            if is_key and kind == "null":
                raise ValueError(f"line {node.line}: a key is null, and must be a text")
            if is_key and kind == "float":
                node.value = f"{float(node.value):g}"
            node.tag = _TAG + ("str" if is_key else kind)


@lru_cache(maxsize=4096)
def _resolve(text: str) -> tuple[str, str]:
    """The tag of a plain scalar, and the value in a spelling that PyYAML reads as that."""
    if text in _TRUE or text in _FALSE:
        return "bool", "true" if text in _TRUE else "false"
    if text in _NULL:
        return "null", "null"
    plain = text.replace("_", "")
    if text[:1] in "+-0123456789":
        number = _integer(plain)
        if number is not None:
            return "int", str(number)
        if _FLOAT.fullmatch(plain):
            return "float", plain
    elif text[:1] == "." and _FLOAT.fullmatch(text):
        return "float", text
    return "str", text


def _integer(text: str) -> int | None:
    """strconv.ParseInt(text, 0, 64), and ParseUint: a leading 0 is octal."""
    match = _INTEGER.fullmatch(text)
    if match is None or not text.strip("+-"):
        return None
    sign, prefix, digits = match[1], (match[2] or "").lower(), match[3]
    if prefix in ("0x", "0o", "0b") and not digits:
        return None
    try:
        number = int(f"{sign}{digits or '0'}", _BASES[prefix])
    except ValueError:
        return None
    return number if -(2**63) <= number < 2**64 else None


# ---- writing


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes what kubectl would not take for text; writes data that is there twice twice."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


def _represent_text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else None if _resolve(text)[0] == "str" else "'"
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def write_manifests(found: Iterable[Any]) -> str:
    """A stream of documents, keys in their order."""
    return "---\n".join(
        yaml.dump(item, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1) for item in found
    )
