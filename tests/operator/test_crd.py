"""The CustomResourceDefinition is structural, small enough, documented, and what validate can check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from operator_glue.crd import custom_resource_definition, schema
from operator_glue.schema_check import KEYWORDS, LEFT_OUT

#: kubectl apply keeps what it applied in an annotation, and all annotations together may have so many bytes.
MOST_BYTES = 256 * 1024


def parts(part: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema in a schema, with its path."""
    yield path, part
    for name, value in part.get("properties", {}).items():
        yield from parts(value, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            yield from parts(part[key], f"{path}[{key}]")


def test_it_is_structural() -> None:
    for path, part in parts(schema()):
        assert "$ref" not in part, path
        assert "allOf" not in part, path
        assert "oneOf" not in part, path
        if part.get("x-kubernetes-int-or-string"):
            assert part["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
            assert "type" not in part, path
        else:
            assert "anyOf" not in part, path
            assert part["type"] in ("object", "array", "string", "integer", "boolean"), path
        assert ("items" in part) == (part.get("type") == "array"), path
        assert not ("properties" in part and "additionalProperties" in part), path


def test_keys_of_a_map_list_are_always_there() -> None:
    for path, part in parts(schema()):
        for key in part.get("x-kubernetes-list-map-keys", ()):
            item = part["items"]
            assert key in item.get("required", ()) or "default" in item["properties"][key], path


def test_validate_knows_every_keyword_of_the_spec() -> None:
    found = {key for _, part in parts(schema()["properties"]["spec"]) for key in part}
    assert found <= KEYWORDS | LEFT_OUT
    assert found >= KEYWORDS - {"x-kubernetes-int-or-string"}  # and no more than there are


def test_every_field_of_ours_says_what_it_is() -> None:
    for path, part in parts(schema(kubernetes_types=False)):
        if path and not path.endswith("]") and path != ".metadata" and "properties" in part | {"properties": {}}:
            is_ours = "description" in part or ".env[items]" in path or ".ports[items]" in path
            assert is_ours, path
            assert "\n" not in part.get("description", ""), path


def test_what_kubernetes_defines_is_there_with_its_first_sentences() -> None:
    role = schema()["properties"]["spec"]["properties"]["roles"]["items"]["properties"]
    affinity = role["template"]["properties"]["spec"]["properties"]["affinity"]["properties"]
    terms = affinity["nodeAffinity"]["properties"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["properties"]["nodeSelectorTerms"]["items"]["properties"]["matchExpressions"]["type"] == "array"
    assert role["resources"]["properties"]["limits"]["additionalProperties"]["x-kubernetes-int-or-string"] is True
    assert role["ports"]["items"]["properties"]["protocol"]["default"] == "TCP"
    secret = role["env"]["items"]["properties"]["valueFrom"]["properties"]["secretKeyRef"]["properties"]
    assert "default" not in secret["name"]  # "" is the zero value of Go's type
    assert affinity["podAffinity"]["description"].endswith(".")


def test_defaults_are_those_that_say_something() -> None:
    defaults = {path: part["default"] for path, part in parts(schema(kubernetes_types=False)) if "default" in part}
    spec, role = ".spec", ".spec.roles[items]"
    assert {path: value for path, value in defaults.items() if not path.startswith(".status")} == {
        f"{spec}.router.replicas": 1,
        f"{spec}.retirement": {},
        f"{spec}.retirement.withoutRouter": "Abort",
        f"{role}.kind": "Server",
        f"{role}.replicas": 1,
        f"{role}.size": 1,
    }


def test_status_is_typed() -> None:
    status = schema()["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert status["conditions"]["items"]["properties"]["lastTransitionTime"]["format"] == "date-time"
    assert set(status["retirement"]["properties"]) >= {
        "roleName",
        "replicaOrdinal",
        "observedGeneration",
        "targetMemberUIDs",
        "targetWorkloadUID",
        "state",
        "reason",
        "message",
        "startedAt",
        "deadline",
        "phaseStartedAt",
        "lastConsumedRetryToken",
    }
    assert "replicaOrdinal" in status["retirement"]["required"]
    assert status["retained"]["maxItems"] == 32
    assert status["retained"]["items"]["properties"] == status["retirement"]["properties"]


def test_kubectl_shows_phase_roles_and_retirement() -> None:
    found = custom_resource_definition()
    assert found["metadata"]["name"] == "modeldeployments.drainagent.io"
    assert found["spec"]["names"]["shortNames"] == ["mdep"]
    (version,) = found["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    columns = {column["name"]: column for column in version["additionalPrinterColumns"]}
    assert [name for name, column in columns.items() if not column.get("priority")] == [
        "Phase",
        "Ready",
        "Retirement",
        "Age",
    ]
    paths = {path for path, _ in parts(version["schema"]["openAPIV3Schema"])}
    for column in columns.values():
        assert column["jsonPath"] in paths or column["jsonPath"].startswith(".metadata."), column


def test_kubectl_can_apply_it() -> None:
    assert len(json.dumps(custom_resource_definition())) < MOST_BYTES


def test_each_call_gives_its_own() -> None:
    first = custom_resource_definition()
    first["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clear()
    assert schema()["properties"]
    assert custom_resource_definition() != first
