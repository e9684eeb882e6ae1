"""What the validating webhook says of ModelDeployments, and how both webhooks are registered."""

from __future__ import annotations

import base64
import copy
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from admitted_pods import review
from documents import broken_documents, valid_documents
from golden_files import FOLDER, Shape, shapes

from operator_glue import admission
from operator_glue.facts import ClusterFacts
from operator_glue.faults import Where
from operator_glue.render import render
from operator_glue.structural import plain
from operator_glue.webhook.configuration import (
    Address,
    Service,
    ca_patch,
    mutating_configuration,
    validating_configuration,
)
from operator_glue.webhook.envelope import Answer, respond
from operator_glue.webhook.review import judge, warnings

FACTS = ClusterFacts()


def document(**role: Any) -> dict[str, Any]:
    """As the API server hands it over."""
    return {
        "apiVersion": "drainagent.io/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {
            "name": "llama",
            "namespace": "models",
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "generation": 1,
            "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": {
            "model": {"name": "m"},
            "engine": {"name": "vLLM", "image": "vllm/vllm-openai:v0.12.0"},
            "retirement": {"withoutRouter": "ProveFromMember"},
            "roles": [{"name": "serve", "kind": "Server", "replicas": 1, "size": 1, **role}],
        },
    }


WRONG = document(extraArgs=["--model-pat=x"])
WRONG["spec"]["engine"] = {"name": "SGLang", "image": "i"}
SENTENCE = (
    'spec.roles[0].extraArgs[0]: Invalid value: "--model-pat=x": SGLang reads it as --model, which is set by the '
    "operator from spec.model.name; only a role that sets command owns its command line"
)


def judged(found: Any, before: Any = None) -> Answer:
    operation = "CREATE" if before is None else "UPDATE"
    return judge(review(found, operation=operation, before=before)["request"], FACTS)


def test_what_cel_cannot_say_is_denied() -> None:
    said = judged(WRONG)
    assert [fault.sentence for fault in said.faults] == [SENTENCE]
    peers = document()
    peers["spec"]["retirement"]["ignorePeers"] = ["10.0.0.0/33"]
    (fault,) = judged(peers).faults
    assert fault.sentence.startswith('spec.retirement.ignorePeers[0]: Invalid value: "10.0.0.0/33"')
    taken = document(template={"spec": {"volumes": [{"name": "drainagent", "emptyDir": {}}]}})
    assert "Forbidden" in judged(taken).faults[0].sentence


def test_an_update_is_denied_for_what_it_brings() -> None:
    scaled = copy.deepcopy(WRONG)
    scaled["spec"]["roles"][0]["replicas"] = 3
    said = judged(scaled, WRONG)
    assert said.faults == ()
    assert f"{SENTENCE} (as before this update)" in said.warnings
    scaled["spec"]["roles"][0]["extraArgs"].append("--model-p=y")
    assert ["[1]" in fault.path for fault in judged(scaled, WRONG).faults] == [True]
    assert judged(WRONG, document()).faults


def test_a_finalizer_can_always_be_removed() -> None:
    finalized = copy.deepcopy(WRONG)
    finalized["metadata"]["finalizers"] = ["drainagent.io/x"]
    assert judged(WRONG, finalized) == Answer()  # the spec is as it was
    deleted = copy.deepcopy(WRONG)
    deleted["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert judged(deleted, document()) == Answer()


@pytest.mark.parametrize(
    "change", [{"operation": "DELETE", "object": None}, {"operation": "CONNECT"}, {"object": {"kind": "Pod"}}]
)
def test_what_is_not_ours_to_judge(change: dict[str, Any]) -> None:
    assert judge({**review(WRONG)["request"], **change}, FACTS) == Answer()


def test_warnings_reach_the_user() -> None:
    found = document(extraArgs=["--disable-log-stats", "--port", "81"])
    written, _ = respond(review(found), lambda request: judge(request, FACTS))
    text = " ".join(part.strip("…") for part in written["response"]["warnings"])
    assert "spec.roles[0].extraArgs: --port moves the listener" in text
    assert "--disable-log-stats takes vLLM's gauges away" in text
    assert "metadata.uid" not in text


def test_another_releases_definition_is_a_warning() -> None:
    said = judged(document(size=999))
    assert said.faults == ()
    assert "spec.roles.0.size" in said.warnings[0]
    assert "is of another release" in said.warnings[0]


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_a_shape_is_taken_with_the_warnings_of_admission_and_renderer(shape: Shape) -> None:
    found = yaml.safe_load((FOLDER / f"{shape.name}.yaml").read_text())
    found["metadata"].setdefault("uid", "705ab4f5-6393-11e8-b7cc-42010a800002")
    said = judge(review(plain(found))["request"], shape.facts)
    assert said.faults == ()
    expected = {*admission.warnings(shape.deployment, shape.facts), *render(shape.deployment, shape.facts).warnings}
    assert set(warnings(shape.deployment, shape.facts)) == {item for item in expected if item.path != "metadata.uid"}
    assert len(said.warnings) == len(warnings(shape.deployment, shape.facts))


def test_the_largest_resource_is_judged_within_the_api_servers_patience() -> None:
    found = document()
    arguments = [f"--x{index}=1" for index in range(256)]
    found["spec"]["roles"] = [
        {"name": f"r{letter}", "kind": "Server", "replicas": 1024, "size": 64, "extraArgs": arguments}
        for letter in "abcdefghij"
    ]
    begun_s = time.process_time()
    assert judged(found).faults == ()
    assert time.process_time() - begun_s < 5


_SETTINGS = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))


@_SETTINGS
@given(document=valid_documents())
def test_what_is_right_is_taken(document: dict[str, Any]) -> None:
    written, answer = respond(review(document), lambda request: judge(request, FACTS))
    assert written["response"]["allowed"] is True
    assert answer.mistake is None


@_SETTINGS
@given(document=broken_documents())
def test_it_denies_what_validate_refuses_as_the_webhooks(document: dict[str, Any]) -> None:
    written, answer = respond(review(document), lambda request: judge(request, FACTS))
    ours = {fault.sentence for fault in admission.review(document).faults if fault.where is Where.WEBHOOK}
    assert {fault.sentence for fault in answer.faults} == ours or answer.mistake is not None
    assert written["response"]["allowed"] is not bool(answer.faults)


# ---- registrations


def test_registrations_fail_open_and_change_nothing_else() -> None:
    service = Service("drainagent-system", "webhook")
    for found in (validating_configuration(service), mutating_configuration(service, "drainagent-system")):
        for hook in found["webhooks"]:
            assert hook["failurePolicy"] == "Ignore"
            assert hook["sideEffects"] == "None"
            assert hook["timeoutSeconds"] <= 5
            assert hook["name"].count(".") >= 2
            assert "caBundle" not in hook["clientConfig"]
            assert hook["clientConfig"]["service"]["namespace"] == "drainagent-system"


@pytest.mark.parametrize(
    ("namespace", "labels", "pod", "met"),
    [
        ("models", {}, {}, []),
        ("models", {"drainagent.io/inject": "true"}, {}, ["namespace"]),
        ("models", {"drainagent.io/inject": "true"}, {"drainagent.io/inject": "true"}, ["namespace"]),
        ("models", {"drainagent.io/inject": "true"}, {"drainagent.io/inject": "false"}, []),
        ("models", {"drainagent.io/inject": "true"}, {"drainagent.io/inject": "off"}, []),
        ("models", {}, {"drainagent.io/inject": "true"}, ["pod"]),
        ("models", {"drainagent.io/inject": "false"}, {"drainagent.io/inject": "true"}, ["pod"]),
        ("models", {"drainagent.io/inject": "true"}, {"app.kubernetes.io/managed-by": "drainagent-operator"}, []),
        ("kube-system", {"drainagent.io/inject": "true"}, {"drainagent.io/inject": "true"}, []),
        ("kube-system", {}, {"drainagent.io/inject": "true"}, []),
        ("own", {"drainagent.io/inject": "true"}, {}, []),
        ("own", {}, {"drainagent.io/inject": "true"}, []),
    ],
)
def test_who_is_asked_about(namespace: str, labels: dict[str, str], pod: dict[str, str], met: list[str]) -> None:
    found = mutating_configuration(Address("https://10.0.0.1:9443"), "own")
    of_namespace = {**labels, "kubernetes.io/metadata.name": namespace}
    asked = [
        hook["name"].partition(".")[0]
        for hook in found["webhooks"]
        if _selects(hook["namespaceSelector"], of_namespace) and _selects(hook["objectSelector"], pod)
    ]
    assert asked == met


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """As Kubernetes: NotIn holds where the key is missing."""
    return all(
        (labels.get(item["key"]) in item["values"]) is (item["operator"] == "In")
        for item in selector["matchExpressions"]
    )


def test_the_ca_is_patched_where_it_differs() -> None:
    found = mutating_configuration(Address("https://10.0.0.1:9443"), "own")
    operations = ca_patch(found, "PEM")
    assert [operation["op"] for operation in operations] == ["test", "add", "test", "add"]
    encoded = base64.b64encode(b"PEM").decode()
    for hook in found["webhooks"]:
        hook["clientConfig"]["caBundle"] = encoded
    assert found == mutating_configuration(Address("https://10.0.0.1:9443"), "own", ca_bundle="PEM")
    assert ca_patch(found, "PEM") == []
    found["webhooks"][1]["clientConfig"]["caBundle"] = "other"
    assert ca_patch(found, "PEM") == [
        {"op": "test", "path": "/webhooks/1/name", "value": "pod.inject.drainagent.io"},
        {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": encoded},
    ]
    told = validating_configuration(Service("a", "b"), annotations={"cert-manager.io/inject-ca-from": "a/c"})
    assert told["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "a/c"}
