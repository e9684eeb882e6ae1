"""Writes operator_glue/kubernetes_types.json: the types of Kubernetes' own that a ModelDeployment holds.

``python tests/operator/dump_kubernetes_types.py FILE``, where FILE is a Kubernetes API server's
``/openapi/v3/api/v1`` (``kubectl get --raw``); without it, that of the cluster of tests/cluster. What is written is
fit for a CustomResourceDefinition's schema but for its ``$ref``: operator_glue.crd puts the types in their places.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from operator_glue.crd import KUBERNETES_TYPES
from operator_glue.model import KUBERNETES_TYPE, ModelDeployment
from operator_glue.status import ModelDeploymentStatus

CLUSTER = Path(__file__).parents[1] / "cluster"
_REF = "#/components/schemas/"
_META = "io.k8s.apimachinery.pkg"

_INT_OR_STRING = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
#: As sigs.k8s.io/controller-tools writes them (pkg/crd/known_types.go).
_KNOWN: dict[str, dict[str, Any]] = {
    f"{_META}.api.resource.Quantity": {
        **_INT_OR_STRING,
        "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|"
        r"([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
    },
    f"{_META}.util.intstr.IntOrString": _INT_OR_STRING,
    f"{_META}.apis.meta.v1.Time": {"type": "string", "format": "date-time"},
    # What can be set of the metadata of a claim that a volume is made from.
    f"{_META}.apis.meta.v1.ObjectMeta": {
        "type": "object",
        "properties": {
            "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    },
}
#: Keywords that are kept. Enumerations are not: a later Kubernetes knows more values, and refuses the others itself.
_KEPT = (
    "type",
    "format",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
)


def convert(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of the OpenAPI document as one of a CustomResourceDefinition."""
    kept: dict[str, Any] = {}
    text = _first_sentence(str(schema.get("description", "")))
    if text:
        kept["description"] = text
    (reference,) = schema.get("allOf", [schema])  # a reference with a description beside it
    if "$ref" in reference:
        kept["$ref"] = reference["$ref"].removeprefix(_REF)
    kept |= {key: schema[key] for key in _KEPT if key in schema}
    # A required field's default of "", 0 or {} is the zero value of Go's type, and no default.
    if schema.get("default") or schema.get("default") is False:
        kept["default"] = schema["default"]
    if "properties" in schema:
        kept["properties"] = {name: convert(part) for name, part in sorted(schema["properties"].items())}
    for key in ("items", "additionalProperties"):
        if key in schema:
            kept[key] = convert(schema[key])
    return kept


def _first_sentence(text: str) -> str:
    """Up to the first full stop that a capital letter follows, without the list of an enumeration's values."""
    first = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z0-9)'\"`\]][.])\s+(?=[A-Z])", first, maxsplit=1)[0]


def types(document: Mapping[str, Any]) -> dict[str, Any]:
    """Each type that the model names and those that they refer to, by name."""
    schemas = document["components"]["schemas"]
    found: dict[str, Any] = {}
    waiting = sorted({name for model in (ModelDeployment, ModelDeploymentStatus) for name in _named(model)})
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _KNOWN.get(name) or convert(schemas[name])
            waiting += _references(found[name])
    return dict(sorted(found.items()))


def _named(model: type[ModelDeployment] | type[ModelDeploymentStatus]) -> Iterator[str]:
    for part in _parts(model.model_json_schema()):
        if KUBERNETES_TYPE in part:
            yield part[KUBERNETES_TYPE]["type"]


def _references(schema: Any) -> Iterator[str]:
    for part in _parts(schema):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _parts(item)


def read_cluster() -> str:
    """The document of the cluster that is up."""
    sys.path.insert(0, str(CLUSTER))
    kube = importlib.import_module("kube").Kube.of_cluster()
    return str(kube.run("get", "--raw", "/openapi/v3/api/v1"))


def text(document: Mapping[str, Any]) -> str:
    """The file's text."""
    release = document["info"]["version"]
    return json.dumps({"kubernetes": release, "types": types(document)}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    raw = Path(sys.argv[1]).read_text(encoding="utf-8") if sys.argv[1:] else read_cluster()
    KUBERNETES_TYPES.write_text(text(json.loads(raw)), encoding="utf-8")
    print(f"{KUBERNETES_TYPES}: {KUBERNETES_TYPES.stat().st_size} bytes")
