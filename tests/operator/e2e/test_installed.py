"""The operator as it is installed: two replicas of its image, its own account, webhooks, and no right left unused.

What it was granted is held against what the API server's audit log says it asked for, over all that it did here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hook.images import AGENT, STANDIN
from kube import CLUSTER, Kube, KubectlError
from operator_image import OPERATOR
from operator_image import on_the_node as operator_on_the_node

from e2e.stage import Case, Operator, Stage
from operator_glue.install import LEASE, NAME, WEBHOOK_SECRET, Settings, granted, held

Object = dict[str, Any]
SYSTEM = Settings().namespace
#: Where definitions of others are needed, one that holds whatever is put there.
DEFINITIONS = {
    "inferencepools": ("inference.networking.k8s.io", "v1", "InferencePool"),
    "workloads": ("kueue.x-k8s.io", "v1beta1", "Workload"),
}


class Installed(Operator):
    """The Deployment in the cluster. ``log``: of both its Pods, as far as it was read."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        super().__init__(kube, folder)
        self.system = Kube(kube.kubeconfig, kube.kubectl, SYSTEM)
        self.log.touch()

    def install(self, *options: str) -> None:
        command = [sys.executable, "-m", "operator_glue", "install", *options]
        command += ["--image", OPERATOR, "--image-pull-policy", "Never"]
        command += ["--agent-image", AGENT, "--agent-image-pull-policy", "Never"]
        self.printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        self.system.run("apply", "--server-side", "-f", "-", stdin=self.printed)
        self.system.run("rollout", "status", f"deployment/{NAME}", "--timeout=120s", timeout=130)

    def uninstall(self) -> None:
        """But for the CustomResourceDefinition: other suites are at work with it."""
        rest = "---\n".join(one for one in self.printed.split("---\n") if "kind: CustomResourceDefinition" not in one)
        self.system.run("delete", "--ignore-not-found", "-f", "-", stdin=rest, timeout=120)

    def read_log(self) -> str:
        text = self.system.run("logs", "-l", f"app.kubernetes.io/name={NAME}", "--tail=-1", "--prefix")
        self.log.write_text(text)
        return text

    def holder(self) -> str:
        """The Pod that holds the Lease."""
        return str(self.system.get(f"lease/{LEASE}")["spec"].get("holderIdentity") or "").partition("_")[0]


def definition(plural: str) -> Object:
    group, version, kind = DEFINITIONS[plural]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1111"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@pytest.fixture(scope="module")
def installed(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """By the one command that the README has."""
    operator_on_the_node()
    kube.apply([definition(plural) for plural in DEFINITIONS], server_side=True)
    found = Installed(kube, tmp_path_factory.mktemp("installed"))
    found.system.delete_namespace(timeout=120)
    audit_log().write_text("")
    found.install()
    yield found
    found.uninstall()
    for plural in DEFINITIONS:
        kube.run("delete", "crd", f"{plural}.{DEFINITIONS[plural][0]}", "--ignore-not-found", "--wait=false")


def audit_log() -> Path:
    script = f'eval "$("{CLUSTER}" env)" && echo "$DRAINAGENT_RIG"'
    rig = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    return Path(rig) / "log" / "audit.log"


def used(lines: str) -> set[tuple[str, str, str, str]]:
    """Scope, group, resource with its subresource, verb; those that the API server allowed."""
    found = set()
    for line in lines.splitlines():
        event = json.loads(line)
        reference = event.get("objectRef")
        if reference is None or event.get("responseStatus", {}).get("code") == 403:
            continue
        resource = reference["resource"] + (f"/{reference['subresource']}" if "subresource" in reference else "")
        group, namespace = reference.get("apiGroup", ""), reference.get("namespace", "")
        scope = "own" if namespace == SYSTEM else "watched"
        if not namespace and resource in CLUSTER_SCOPED:
            scope = "cluster"
        found.add((scope, group, resource, event["verb"]))
        if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:
            found.add((scope, group, resource, "create"))  # server-side apply of what was not there
    return found


CLUSTER_SCOPED = {
    "clusterroles",
    "clusterrolebindings",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
}
#: Not seen here: a websocket takes create on pods/exec from Kubernetes 1.35 on; this cluster is older.
LATER = {("watched", "", "pods/exec", "create")}


@pytest.fixture(scope="module")
def stage(installed: Installed) -> Iterator[Stage]:
    found = Stage(installed.system, installed, "llama", "vllm-router")
    found.kube = Kube(installed.system.kubeconfig, installed.system.kubectl, "e2e-installed")
    key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"key": "secret"}}
    found.kube.apply(key)
    found.apply(found.role(replicas=2), **routed(found))
    found.settle()
    yield found
    found.remove()


def routed(stage: Stage) -> Object:
    router = stage.manifest([])["spec"]["router"]
    return {"router": {**router, "apiKeySecretRef": {"name": "key", "key": "key"}}}


def test_reads_well(stage: Stage) -> None:
    """kubectl get, describe and wait."""
    stage.kube.run("wait", "--for=condition=Available", "mdep/llama", "--timeout=60s")
    stage.kube.run("wait", "--for=condition=Progressing", "mdep/llama", "--timeout=60s")
    heads, row = stage.kube.run("get", "mdep", "llama").splitlines()
    assert heads.split() == ["NAME", "PHASE", "READY", "RETIREMENT", "AGE"]
    assert row.split()[:4] == ["llama", "Ready", "server", "2/2"]
    described = stage.kube.run("describe", "mdep", "llama")
    assert "ReplicasCreated" in described
    assert "Everything is as the spec says." in described


def test_pods_are_restricted(installed: Installed) -> None:
    """The namespace enforces the restricted standard, and its Pods run in it."""
    namespace = installed.system.get(f"namespace/{SYSTEM}")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    pods = installed.system.find("pods", f"app.kubernetes.io/name={NAME}")
    assert len(pods) == 2
    assert all(pod["status"]["containerStatuses"][0]["restartCount"] == 0 for pod in pods)


def test_scaled_down_by_the_one_that_leads(stage: Stage, installed: Installed) -> None:
    """And the leader goes in the middle of it, as in an upgrade: the other one goes on at once."""
    before = stage.uids()
    with stage.load("installed: scale down 2 to 1, the leader deleted in the middle"):
        stage.apply(stage.role(replicas=1), **routed(stage))
        stage.wait("begun", lambda: "retirement" in stage.status)
        leader = installed.holder()
        installed.system.delete(f"pod/{leader}", wait=False)
        stage.wait("ended", stage.is_settled)
    assert len(stage.uids()) == 1
    assert stage.uids() < before
    assert installed.holder() != leader
    assert installed.holder()


def test_refused_and_warned(stage: Stage) -> None:
    """By the webhook: kubectl shows both."""
    wrong = stage.manifest([stage.role(extraArgs=["--served-model-nam", "x", "--mod", "y"])])
    with pytest.raises(KubectlError, match=r"extraArgs"):
        stage.kube.run("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(wrong))
    warned = {**wrong, "metadata": {"name": "warned"}}
    warned["spec"] = {**wrong["spec"], "roles": [stage.role(extraArgs=["--disable-log-stats"])]}
    done = subprocess.run(
        stage.kube.command("apply", "--dry-run=server", "-f", "-"),
        input=json.dumps(warned),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--disable-log-stats" in done.stderr


def foreign_pod(name: str) -> Object:
    """As another platform renders it, opted in by its own label."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"drainagent.io/inject": "true"}},
        "spec": {
            "terminationGracePeriodSeconds": 45,
            "containers": [
                {"name": "engine", "image": STANDIN, "imagePullPolicy": "Never", "command": ["vllm", "serve", "m"]}
            ],
        },
    }


def test_injected(stage: Stage) -> None:
    (made,) = stage.kube.apply(foreign_pod("foreign"))
    hook = made["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[-2:] == ["--grace", "45"]
    assert made["spec"]["terminationGracePeriodSeconds"] == 45
    stage.kube.wait("pod/foreign")
    stage.kube.delete("pod/foreign")


def test_may_exec_nothing_else(stage: Stage) -> None:
    """Its account's one dangerous right, held to the agent's check."""
    (pod,) = stage.pods()
    account = f"--as=system:serviceaccount:{SYSTEM}:{NAME}"
    name = pod["metadata"]["name"]
    check = ["python3", "-ISB", "/opt/drainagent", "check", "--json", "--engine", "vllm"]
    check += ["--url", "http://127.0.0.1:8000/metrics"]
    assert '"end":"drainagent.io/end"' in stage.kube.run("exec", account, name, "-c", "main", "--", *check)
    for refused in (["cat", "/etc/passwd"], ["python3", "-c", "print(1)"], [*check[:3], "hook"]):
        with pytest.raises(KubectlError, match=r"ValidatingAdmissionPolicy|denied"):
            stage.kube.run("exec", account, name, "-c", "main", "--", *refused)
    with pytest.raises(KubectlError, match=r"ValidatingAdmissionPolicy|denied"):
        stage.kube.run("exec", account, "-i", name, "-c", "main", "--", *check, stdin="")


def test_every_other_path(stage: Stage, installed: Installed) -> None:
    """What is left of what it may do: llm-d's objects, a Workload, proof from the member, a Secret put right."""
    picker = Stage(stage.kube, installed, "picked", "llm-d-router")
    body = picker.manifest([picker.role(replicas=1)])
    body["spec"]["router"] = {"name": "llm-d-router", "image": "localhost/none:1"}
    stage.kube.apply(body)
    stage.wait("llm-d's objects", lambda: bool(stage.kube.find("inferencepools.inference.networking.k8s.io")))
    picker.wait("its Pod", lambda: any(is_ready(pod) for pod in picker.pods()))
    body["spec"]["roles"] = [picker.role(replicas=0)]
    stage.kube.apply(body)
    picker.wait("asked for its picker", lambda: (picker.status.get("retirement") or {}).get("state") == "Admitted")

    proves = Stage(stage.kube, installed, "proves", None)
    proves.apply(proves.role(replicas=2), retirement={"withoutRouter": "ProveFromMember"})
    proves.settle()
    workload = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": "proves.server.1"}}
    stage.kube.apply(workload)
    proves.apply(proves.role(replicas=1), retirement={"withoutRouter": "ProveFromMember"})
    proves.wait("scaled down", lambda: len(proves.uids()) == 1 and proves.is_settled())
    assert stage.kube.find("workloads.kueue.x-k8s.io") == []
    stage.report(Case("installed: llm-d's objects, a Workload, ProveFromMember"), 1)

    change = json.dumps({"data": {"0-tls.crt": "bm9uZQ=="}})
    stage.kube.run("-n", SYSTEM, "patch", "secret", WEBHOOK_SECRET, "--type=merge", "-p", change)
    picker.remove()
    proves.remove()
    cluster_wide = stage.kube.find("clusterroles,clusterrolebindings", "app.kubernetes.io/instance=picked")
    assert cluster_wide == []
    stage.wait("the Secret is put right", lambda: "made anew" in installed.read_log(), 90)


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def test_no_right_is_unused(stage: Stage, installed: Installed) -> None:
    """Every verb granted, against every verb that the API server logged: equal."""
    stage.remove()
    time.sleep(1)
    settings = Settings(image=OPERATOR)
    unused = {right[:4] for right in held(settings)}
    given = {right[:4] for right in granted(settings)} - (unused - used_names(settings))
    asked = used(audit_log().read_text())
    assert given - asked - LATER == set()
    assert asked - {right[:4] for right in granted(settings)} == set()
    assert "forbidden" not in installed.read_log()


def used_names(settings: Settings) -> set[tuple[str, ...]]:
    """Rights that are held for others and used as well."""
    return {right[:4] for right in granted(settings) - held(settings)}


def test_inject_only(stage: Stage, installed: Installed) -> None:
    """Installed anew as the webhook alone: it gives Pods the hook and has no other right."""
    installed.uninstall()
    installed.install("--inject-only")
    assert "kind: CustomResourceDefinition" not in installed.printed
    (made,) = stage.kube.apply(foreign_pod("injected"))
    assert "preStop" in made["spec"]["containers"][0]["lifecycle"]
    stage.kube.delete("pod/injected", wait=False)
    with pytest.raises(KubectlError, match=r"forbidden"):
        stage.kube.run("get", "pods", f"--as=system:serviceaccount:{SYSTEM}:{NAME}")
    assert "forbidden" not in installed.read_log()
