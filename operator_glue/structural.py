"""What the API server does to a document of a CustomResourceDefinition before it looks at it. Pure.

Unknown fields are named, nulls are dropped where they are not allowed, defaults are filled in. Sources:
k8s.io/apiextensions-apiserver's pkg/apiserver/schema/{pruning,defaulting}, of Kubernetes 1.34.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from operator_glue.faults import Path

#: At the root these are the API server's own.
_META_FIELDS = ("apiVersion", "kind", "metadata")


def plain(value: Any) -> Any:
    """Fresh data as the API server gets it: a whole number has no point, one of more than 64 bits is none."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value) if abs(value) < 10**300 else float("inf")
    return value


def unknown_fields(value: Any, schema: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """The fields that the schema does not have."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            part = _part(schema, key)
            if not path and key in _META_FIELDS:
                continue
            if part is None:
                yield (*path, key)
            else:
                yield from unknown_fields(item, part, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown_fields(item, schema.get("items", {}), (*path, index))


def fill(value: Any, schema: Mapping[str, Any]) -> Any:
    """``value``, which is changed: nulls dropped, defaults filled in."""
    if isinstance(value, dict):
        for key in [key for key, item in value.items() if item is None and _part(schema, key) is not None]:
            del value[key]
        for key, part in schema.get("properties", {}).items():
            if key not in value and "default" in part:
                value[key] = plain(part["default"])
        for key, item in value.items():
            fill(item, _part(schema, key) or {})
    elif isinstance(value, list):
        for item in value:
            fill(item, schema.get("items", {}))
    return value


def _part(schema: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """The schema of a map's value; None when the map has no such field."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    if key in properties:
        found: Mapping[str, Any] = properties[key]
        return found
    rest = schema.get("additionalProperties")
    return rest if isinstance(rest, Mapping) else None
