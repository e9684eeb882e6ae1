"""The CustomResourceDefinition, made from the typed resource (operator_glue.model, operator_glue.status). Pure.

pydantic's JSON schema becomes a structural one: types in their places instead of references, no null beside a type,
and those defaults alone that say something. Types of Kubernetes' own come from kubernetes_types.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from operator_glue.model import GROUP, KIND, KUBERNETES_TYPE, PLURAL, SHORT_NAME, SINGULAR, VERSION, ModelDeployment
from operator_glue.status import ModelDeploymentStatus

KUBERNETES_TYPES = Path(__file__).with_name("kubernetes_types.json")

Schema = dict[str, Any]

_TYPE_META = {
    "apiVersion": "The API group and version of the resource.",
    "kind": "The kind of the resource.",
}
_COLUMNS = (
    ("Phase", ".status.phase", "string", 0, "The deployment in a word."),
    ("Ready", ".status.ready", "string", 0, "Ready and wanted replicas of each role."),
    ("Retirement", ".status.retirement.state", "string", 0, "The removal under way, or kept."),
    ("Engine", ".spec.engine.name", "string", 1, "The inference engine."),
    ("Router", ".spec.router.name", "string", 1, "The router in front of the replicas."),
    ("Model", ".spec.model.name", "string", 1, "The model."),
    ("Held", ".status.retirement.reason", "string", 1, "Why the removal is where it is."),
    ("Age", ".metadata.creationTimestamp", "date", 0, ""),
)
#: In this order in every schema; what is not here comes last.
_ORDER = ("description", "type", "format", "nullable", "default", "enum", "required", "properties")


def custom_resource_definition() -> Schema:
    """The whole object, as it is applied. Fresh data with each call."""
    columns = [
        {"name": name, "jsonPath": path, "type": kind, "priority": priority, "description": text}
        for name, path, kind, priority, text in _COLUMNS
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [
                        {key: value for key, value in column.items() if value not in (0, "")} for column in columns
                    ],
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


def schema(*, kubernetes_types: bool = True) -> Schema:
    """The resource's structural schema. Fresh data with each call.

    Without ``kubernetes_types``, of the types of Kubernetes' own no more than what is ours: their bounds.
    """
    found: Schema = json.loads(_schema_text(kubernetes_types))
    return found


@cache
def _schema_text(kubernetes_types: bool) -> str:
    types = _types() if kubernetes_types else {}
    root = _structural(ModelDeployment.model_json_schema(), types)
    for name, text in _TYPE_META.items():
        root["properties"][name] = {"description": text, "type": "string"}
    root["properties"]["metadata"] = {"type": "object"}
    status = _structural(ModelDeploymentStatus.model_json_schema(), types)
    root["properties"]["status"] = status
    root["required"] = ["spec"]
    return json.dumps(root)


# ---- from pydantic's JSON schema


def _structural(document: Schema, types: Mapping[str, Schema]) -> Schema:
    """A model's JSON schema as a structural schema."""
    return _part(document, document.get("$defs", {}), types)


def _part(given: Schema, definitions: Mapping[str, Schema], types: Mapping[str, Schema]) -> Schema:
    """One schema. What stands beside a reference or a choice counts more than what is in it."""
    found: Schema = {}
    if "$ref" in given:
        found = _part(definitions[given["$ref"].rpartition("/")[2]], definitions, types)
    elif "anyOf" in given:
        (chosen,) = (choice for choice in given["anyOf"] if choice != {"type": "null"})
        found = _part(chosen, definitions, types)
    for key, value in given.items():
        if key == "properties":
            found[key] = {name: _part(part, definitions, types) for name, part in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            found[key] = _part(value, definitions, types)
        elif key == "description":
            found[key] = " ".join(value.split())
        elif key == KUBERNETES_TYPE:
            found = {**_kubernetes(types.get(value["type"], {}), value["bounds"]), **found}
        # additionalProperties: false is not structural; the API server prunes or refuses unknown fields anyway.
        elif key not in ("$ref", "anyOf", "$defs", "title", "additionalProperties"):
            found[key] = value
    _set_default(found)
    return {key: found[key] for key in sorted(found, key=_rank)}


def _rank(key: str) -> int:
    return _ORDER.index(key) if key in _ORDER else len(_ORDER)


def _set_default(found: Schema) -> None:
    """{} for a part in which something has a default; an empty list or map is no default to write."""
    default = found.pop("default", None)
    if isinstance(default, dict) and any("default" in part for part in found.get("properties", {}).values()):
        found["default"] = {}
    elif not isinstance(default, dict | list) and default is not None:
        found["default"] = default


# ---- types of Kubernetes' own


@cache
def _types() -> dict[str, Schema]:
    found: dict[str, Schema] = json.loads(KUBERNETES_TYPES.read_text(encoding="utf-8"))["types"]
    return found


def _kubernetes(given: Schema, bounds: Mapping[str, Mapping[str, int]]) -> Schema:
    found: Schema = _in_place(given)
    for field, keywords in bounds.items():
        found.setdefault("properties", {}).setdefault(field, {}).update(keywords)
    return found


def _in_place(given: Any) -> Any:
    """Fresh data, types in the place of references."""
    if isinstance(given, list):
        return [_in_place(item) for item in given]
    if not isinstance(given, dict):
        return given
    found = {key: _in_place(value) for key, value in given.items() if key != "$ref"}
    return _in_place(_types()[given["$ref"]]) | found if isinstance(given.get("$ref"), str) else found
