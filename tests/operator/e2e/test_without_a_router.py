"""No router: what the operator does by itself, what it holds, and what it makes of another hand's doings."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kube import Kube, KubectlError

from e2e.stage import Case, Operator, Stage
from e2e.streams import Stream, follow
from operator_glue.crd import custom_resource_definition

Made = Callable[[str], Stage]


@pytest.fixture
def made(kube: Kube, operator: Operator) -> Iterator[Made]:
    """ModelDeployments by name, removed at the end."""
    stages: list[Stage] = []

    def make(name: str) -> Stage:
        stages.append(Stage(kube, operator, name, None))
        return stages[-1]

    yield make
    for stage in stages:
        stage.remove()


def retirement(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = stage.status.get("retirement") or {}
    return found


def test_aborts_and_is_restored(made: Made) -> None:
    """Nothing outside of the replica proves that it is withdrawn: it stays, without its label, until it is wanted."""
    stage = made("aborts")
    stage.apply(stage.role(replicas=2))
    stage.settle()
    before = stage.uids()
    stage.apply(stage.role(replicas=1))
    stage.wait("aborted", lambda: retirement(stage).get("state") == "Aborted", 60)
    assert retirement(stage)["reason"] == "NoRouter"
    assert stage.condition("RetirementBlocked")["status"] == "True"
    assert stage.condition("RetirementBlocked")["reason"] == "NoRouter"
    assert stage.uids() == before
    labels = [pod["metadata"]["labels"].get("drainagent.io/serving") for pod in stage.pods()]
    assert labels == ["true", None]
    (role,) = stage.status["roles"]
    assert role["replicas"] == 2  # its capacity is still used
    stage.apply(stage.role(replicas=2))
    stage.wait("restored", stage.is_settled)
    assert stage.uids() == before
    assert all(pod["metadata"]["labels"].get("drainagent.io/serving") == "true" for pod in stage.pods())


def test_proved_from_the_member(made: Made) -> None:
    """A stream of 6 s straight to the replica that goes: it holds, and is finished."""
    stage = made("proves")
    proves = {"retirement": {"withoutRouter": "ProveFromMember"}}
    stage.apply(stage.role(replicas=2), **proves)
    stage.settle()
    target = stage.pods()[1]
    stream = Stream(time.time(), 800)
    thread = threading.Thread(target=follow, args=(stream, target["status"]["podIP"], 8000, "m"))
    thread.start()
    time.sleep(0.5)
    stage.apply(stage.role(replicas=1), **proves)
    reasons: set[str] = set()

    def is_down() -> bool:
        reasons.add(str(retirement(stage).get("reason")))
        return len(stage.uids()) == 1 and stage.is_settled()

    stage.wait("scaled down", is_down)
    thread.join()
    stage.report(Case("ProveFromMember: 2 to 1 with a stream of 16 s", 1, [stream] if stream.fault else []), 1)
    assert stream.fault is None, str(stream)
    assert {"EndpointListed", "Busy"} & reasons


def test_a_lost_member_takes_its_replica(made: Made) -> None:
    stage = made("several")
    stage.apply(stage.role(replicas=1, size=2, grace_s=15))
    stage.settle()
    before = stage.pods()
    by_index = {pod["metadata"]["labels"]["drainagent.io/member-index"]: pod["metadata"]["name"] for pod in before}
    assert sorted(by_index) == ["0", "1"]
    stage.kube.delete(f"pod/{by_index['1']}", wait=False)
    gone = {pod["metadata"]["uid"] for pod in before}
    stage.wait("replaced as a whole", lambda: not stage.uids() & gone and stage.is_settled())
    assert len(stage.uids()) == 2
    assert "MemberLost" in stage.events()


def test_another_hand(made: Made) -> None:
    """A label taken away comes back, a Pod that is not ours is left alone, nonsense in the status loses nothing."""
    stage = made("hands")
    stage.apply(stage.role(replicas=1))
    stage.settle()
    before = stage.uids()
    (pod,) = stage.pods()
    name = pod["metadata"]["name"]
    stage.kube.run("label", "pod", name, "drainagent.io/serving-")
    stage.wait("labelled again", lambda: stage.pods()[0]["metadata"]["labels"].get("drainagent.io/serving") == "true")
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if "serving" not in key}
    stranger = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "labels": {**labels, "drainagent.io/ordinal": "7"}},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]},
    }
    stage.kube.apply(stranger)
    stage.wait("told of", lambda: "ForeignPod" in stage.events())
    nonsense = {"status": {"retirement": {"roleName": "server", "replicaOrdinal": 0, "state": "Deleting"}}}
    stage.kube.run("patch", "mdep", "hands", "--subresource=status", "--type=merge", "-p", json.dumps(nonsense))
    stage.wait("told of", lambda: "StatusUnreadable" in stage.events())
    stage.wait("put right", lambda: not retirement(stage))
    assert stage.kube.get("pod/stranger")["metadata"].get("deletionTimestamp") is None
    assert before <= stage.uids()
    stage.kube.delete("pod/stranger", grace=0)


def test_made_before_the_definition_was_tightened(made: Made, kube: Kube) -> None:
    stage = made("older")
    loose = custom_resource_definition()
    schema = loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rules = schema.pop("x-kubernetes-validations")
    assert rules
    kube.apply(loose, server_side=True)
    wrong = [stage.role(replicas=1), stage.role("half", replicas=1, kind="Prefill")]
    try:

        def is_taken() -> bool:
            try:
                stage.apply(*wrong)
                return True
            except KubectlError:
                return False

        stage.wait("the looser definition is served", is_taken, 30)
    finally:
        kube.apply(custom_resource_definition(), server_side=True)
    stage.wait("refused", lambda: stage.condition("Progressing").get("reason") == "InvalidSpec", 30)
    assert "Server" in stage.condition("Progressing")["message"]
    assert "InvalidSpec" in stage.events()
    assert stage.pods() == []


def test_a_name_that_is_taken(made: Made, kube: Kube) -> None:
    stage = made("taken")
    kube.run("create", "service", "clusterip", "taken-server", "--tcp=80:80")
    try:
        before = kube.get("service/taken-server")["spec"]
        stage.apply(stage.role(replicas=1))
        stage.wait("told", lambda: stage.condition("Progressing").get("reason") == "NameTaken", 30)
        assert kube.get("service/taken-server")["spec"] == before
        stage.wait("its Pods serve all the same", lambda: stage.condition("Available").get("status") == "True")
    finally:
        kube.delete("service/taken-server")
    stage.wait("taken over once it is free", stage.is_settled)


def test_a_quota_refuses(made: Made, kube: Kube) -> None:
    stage = made("quota")
    there = len(kube.find("pods"))
    kube.run("create", "quota", "pods", f"--hard=pods={there + 1}")
    try:
        stage.apply(stage.role(replicas=2))
        stage.wait("told", lambda: stage.condition("Progressing").get("reason") == "Refused", 30)
        assert "exceeded quota" in stage.condition("Progressing")["message"]
        assert len(stage.pods()) == 1
    finally:
        kube.delete("quota/pods")
    stage.wait("made once there is room", stage.is_settled)
