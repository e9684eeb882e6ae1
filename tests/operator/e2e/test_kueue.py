"""Replicas under Kueue: each is a group with a Workload of its own, whose quota is free when its Pods have ended.

Skipped where Kueue is not built (tests/cluster/setup.sh kueue, once).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from kube import CLUSTER, Kube

from e2e.stage import Operator, Stage

PROGRAM = CLUSTER.parent / "kueue.sh"
QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: e2e}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: e2e}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors:
    - name: e2e
      resources: [{name: cpu, nominalQuota: "2"}, {name: memory, nominalQuota: 8Gi}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: e2e}
spec: {clusterQueue: e2e}
"""


@pytest.fixture(scope="module")
def stage(kube: Kube, operator: Operator) -> Iterator[Stage]:
    done = subprocess.run([PROGRAM], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no Kueue: {done.stderr.strip()[:200]}")
    kube.apply(QUEUES)
    stage = Stage(kube, operator, "queued", "vllm-router")
    # Its definitions are new to the operator: it asks once a minute.
    operator.stop()
    operator.start()
    stage.apply(role(stage, 2))
    stage.settle(180)
    yield stage
    stage.remove()
    # Its queues while it is there to let go of them, then all of it.
    kube.run("delete", "localqueue/e2e", "clusterqueue/e2e", "resourceflavor/e2e", timeout=60)
    hooks = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
    kube.run("delete", hooks, "--selector", "app.kubernetes.io/name=kueue")
    names = kube.run("get", "crds,apiservices", "-o", "name").split()
    kube.run("delete", "namespace/kueue-system", *(name for name in names if "kueue.x-k8s.io" in name), timeout=120)


def role(stage: Stage, replicas: int) -> dict[str, object]:
    cpu = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    return stage.role(replicas=replicas, queueName="e2e", resources=cpu)


def workloads(stage: Stage) -> set[str]:
    return {one["metadata"]["name"] for one in stage.kube.find("workloads.kueue.x-k8s.io")}


def test_a_workload_goes_with_its_replica(stage: Stage) -> None:
    assert workloads(stage) == {"queued.server.0", "queued.server.1"}
    with stage.load("under Kueue: scale down 2 to 1"):
        stage.apply(role(stage, 1))
        stage.wait("scaled down", lambda: len(stage.pods()) == 1 and stage.is_settled())
    stage.wait("its Workload is gone", lambda: workloads(stage) == {"queued.server.0"})
    assert "RetirementCompleted" in stage.events()
    with stage.load("under Kueue: scale up 1 to 2"):
        stage.apply(role(stage, 2))
        stage.wait("scaled up", lambda: len(stage.pods()) == 2 and stage.is_settled())


def test_a_deleted_pod_is_replaced_in_its_group(stage: Stage) -> None:
    """It stays, held by Kueue's finalizer. It ended well, as engines do at SIGTERM, so that its group counts as done:
    its Workload goes first, and the successor is a new group."""
    pod = stage.pods()[1]["metadata"]
    with stage.load("under Kueue: kubectl delete pod"):
        stage.kube.delete(f"pod/{pod['name']}", wait=False)
        stage.wait("replaced", lambda: pod["uid"] not in stage.uids() and stage.is_settled())
    assert workloads(stage) == {"queued.server.0", "queued.server.1"}
    assert stage.events().count("ReplicasCreated") == 1


def test_a_pod_that_is_killed_is_replaced(stage: Stage) -> None:
    """Killed, it may have failed: then the successor joins the group, whose Workload and quota stay."""
    pod = stage.pods()[1]["metadata"]
    stage.kube.run("delete", "pod", pod["name"], "--grace-period=1", "--wait=false")
    stage.wait("replaced", lambda: pod["uid"] not in stage.uids() and stage.is_settled())
    assert workloads(stage) == {"queued.server.0", "queued.server.1"}


def test_removed(stage: Stage) -> None:
    stage.remove()
    assert workloads(stage) == set()
    assert stage.kube.find("pods", "drainagent.io/ordinal") == []
