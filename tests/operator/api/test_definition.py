"""The CustomResourceDefinition on a real API server, and kubectl in front of it."""

from __future__ import annotations

import importlib
import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.api_server import ApiServer, kube
from operator_glue.crd import KUBERNETES_TYPES, custom_resource_definition
from operator_glue.manifest import read_manifests, write_manifests
from operator_glue.retirement.data import Baseline, Key, Operation, Persisted, Reading, State, Verdict
from operator_glue.retirement.persisted import from_status, to_status
from operator_glue.retirement.reasons import Reason
from operator_glue.status import ModelDeploymentStatus
from operator_glue.structural import plain

sys.path.insert(0, str(Path(__file__).parents[1]))
dump = importlib.import_module("dump_kubernetes_types")

TIME = "2026-01-02T03:04:05Z"
GOOD: dict[str, Any] = {
    "apiVersion": "drainagent.io/v1alpha1",
    "kind": "ModelDeployment",
    "spec": {
        "model": {"name": "org/model"},
        "engine": {"name": "SGLang", "image": "i"},
        "roles": [{"name": "prefill", "kind": "Prefill"}, {"name": "decode", "kind": "Decode"}],
    },
}


def test_kubectl_applies_it_in_both_ways(api: ApiServer) -> None:
    text = json.dumps(custom_resource_definition())
    for options in ([], ["--server-side", "--force-conflicts"]):
        api.kube.run("apply", "-f", "-", "--dry-run=server", *options, stdin=text)


def test_the_types_of_kubernetes_are_this_servers(api: ApiServer) -> None:
    """Run dump_kubernetes_types.py when this fails."""
    document = json.loads(api.kube.run("get", "--raw", "/openapi/v3/api/v1"))
    kept = KUBERNETES_TYPES.read_text(encoding="utf-8")
    if json.loads(kept)["kubernetes"] != document["info"]["version"]:
        pytest.skip(f"they are of Kubernetes {json.loads(kept)['kubernetes']}")
    assert dump.text(document) == kept


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("mdep", ["A model served by replicas of an inference engine", "spec\t<Object> -required-"]),
        (
            "mdep.spec.roles",
            ["told apart by their names", "name\t<string> -required-", "enum: Server, Prefill, Decode"],
        ),
        ("mdep.spec.roles.terminationGracePeriodSeconds", ["15 to 3600 seconds", "30 when unset"]),
        ("mdep.spec.roles.template.spec.affinity.nodeAffinity", ["node affinity scheduling rules for the pod"]),
        ("mdep.spec.router.name", ["ENUM:", "llm-d-router", "fronts SGLang"]),
        ("mdep.status.retirement", ["replicaOrdinal\t<integer> -required-", "targetMemberUIDs\t<[]string>"]),
    ],
)
def test_kubectl_explains_it(api: ApiServer, field: str, words: list[str]) -> None:
    told = api.kube.run("explain", field)
    flat = " ".join(told.split())
    for word in words:
        assert " ".join(word.split()) in flat, told


@pytest.fixture
def stored(api: ApiServer) -> Iterator[dict[str, Any]]:
    name = f"stored-{uuid.uuid4().hex[:8].translate(str.maketrans('0123456789', 'ghijklmnop'))}"
    (found,) = api.kube.apply({**GOOD, "metadata": {"name": name}})
    yield found
    api.kube.run("delete", "mdep", name)


def retirement(state: str) -> dict[str, Any]:
    return {
        "roleName": "decode",
        "replicaOrdinal": 0,
        "state": state,
        "reason": "Busy",
        "message": "12 requests run",
        "observedGeneration": 1,
        "targetMemberUIDs": ["a", "b"],
        "targetWorkloadUID": "w",
        "startedAt": TIME,
        "deadline": TIME,
        "phaseStartedAt": TIME,
        "lastConsumedRetryToken": "t",
        "routers": [{"podUID": "r", "process": "containerd://1", "targetListedAt": TIME}],
        "readings": [
            {"podUID": "a", "sampledAt": TIME, "verdict": "busy", "reason": "GaugesAboveZero", "idleReads": 0}
        ],
    }


def test_a_status_is_stored_and_shown(api: ApiServer, stored: dict[str, Any]) -> None:
    condition = {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": TIME}
    status = {
        "observedGeneration": 1,
        "phase": "Ready",
        "ready": "prefill 1/1, decode 1/1",
        "roles": [{"name": "decode", "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}],
        "conditions": [condition],
        "retirement": retirement("Draining"),
        "retained": [retirement("Aborted")],
    }
    typed = ModelDeploymentStatus.model_validate(status)
    written = typed.model_dump(by_alias=True, mode="json", exclude_unset=True)
    assert written == status
    patch = json.dumps({"status": written})
    name = stored["metadata"]["name"]
    api.kube.run("patch", "mdep", name, "--subresource=status", "--type=merge", "-p", patch)
    assert ModelDeploymentStatus.model_validate(api.kube.get(f"mdep/{name}")["status"]) == typed
    header, line = api.kube.run("get", "mdep", name).splitlines()
    assert header.split() == ["NAME", "PHASE", "READY", "RETIREMENT", "AGE"]
    assert line.split()[1:7] == ["Ready", "prefill", "1/1,", "decode", "1/1", "Draining"]
    assert "org/model" in api.kube.run("get", "mdep", name, "-o", "wide")


def test_what_the_protocol_persists_comes_back_as_it_was(api: ApiServer, stored: dict[str, Any]) -> None:
    at = 1_800_000_000.123456
    operation = Operation(
        key=Key("decode", 0),
        generation=1,
        wanted=0,
        member_uids=("a", "b"),
        workload_uid="w",
        state=State.DRAINING,
        reason=Reason.BUSY,
        message="12 requests run",
        started_at=at,
        deadline=at + 300,
        phase_started_at=at + 0.5,
        draining_at=at + 0.5,
        withdrawn_at=at + 0.25,
        endpoint_gone_at=None,
        proven_at=at + 0.5,
        retry_token="t",
        routers=(Baseline("r", "containerd://1", at, at + 1, at + 2, 2, 7.0), Baseline("s", "1.5")),
        routed_out=("r",),
        readings=(Reading("a", at, Verdict.IDLE, None, "", at, 2, 1, True, "f", "s"),),
        waiting=3,
    )
    aborted = replace(operation, key=Key("decode", 1), state=State.ABORTED, released=True, wanted=None)
    persisted = Persisted(operation, (aborted,))
    name = stored["metadata"]["name"]
    patch = json.dumps({"status": to_status(persisted)})
    api.kube.run("patch", "mdep", name, "--subresource=status", "--type=merge", "-p", patch)
    assert from_status(api.kube.get(f"mdep/{name}")["status"]) == (persisted, ())


@pytest.mark.parametrize(
    ("path", "value"),
    [("phase", "Happy"), ("retirement", {"roleName": "a", "state": "Draining"}), ("roles", [{"name": "a"}])],
)
def test_a_status_that_is_none_is_refused(api: ApiServer, stored: dict[str, Any], path: str, value: Any) -> None:
    patch = json.dumps({"status": {path: value}})
    with pytest.raises(kube.KubectlError):
        api.kube.run("patch", "mdep", stored["metadata"]["name"], "--subresource=status", "--type=merge", "-p", patch)


#: Plain scalars whose meaning depends on the YAML library.
SCALARS = """
    y Y n N yes No on OFF true False ~ null Null 0 00 010 0o10 08 0x1F 0X1f 0b11 -0b11 +0b1 0x 1_000 _1 1e3 1E-3 1. .5
    -.5 +12 -12 12e 1:30 1:30:00 190:20:30 2026-01-02 2026-01-02T03:04:05Z 1.2.3 1.0 -0 +0 0.0 = . .. - +1.5e+3
    9223372036854775807 9223372036854775808 18446744073709551615 18446744073709551616 1e400x 0777 0888 0_7
"""


def test_manifests_are_read_as_kubectl_reads_them(api: ApiServer) -> None:
    lines = [f"  k{index}: {word}\n" for index, word in enumerate(word for word in SCALARS.split() if word != "-")]
    keys = "".join(f"  ? {word}\n  : x\n" for word in ("y", "1", "1.5", "true", "abc"))
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n{''.join(lines)}more:\n{keys}"
    arguments = ("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-")
    read = json.loads(api.kube.run(*arguments, stdin=text))
    (found,) = read_manifests(text)
    assert plain(found.data["data"]) == plain(read["data"])
    assert found.data["more"] == read["more"]


def test_text_is_written_so_that_kubectl_reads_it_as_text(api: ApiServer) -> None:
    data = {f"k{index}": word for index, word in enumerate([*SCALARS.split(), "", "a\nb", " x ", "é", "#", "a: b"])}
    text = write_manifests([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}])
    answer = api.kube.run("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=text)
    assert json.loads(answer)["data"] == data
