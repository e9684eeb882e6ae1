"""What `install` prints, on a real API server: it is taken, its rights suffice, its policies refuse what they are to.

The policies' tests want a whole cluster; with ``--api-only`` they are skipped. What is in no namespace has names of its
own here, since other suites install the operator on this cluster too.
"""

from __future__ import annotations

import copy
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.api_server import ApiServer, kube
from drainagent.podspec import AGENT_HOME, ENGINE_PYTHON, OWN_PYTHON, PYTHON_OPTIONS
from operator_glue import install
from operator_glue.install import Settings, manifests

GOLDEN = Path(__file__).parents[1] / "golden-routers"
SUFFIX = uuid.uuid4().hex[:6]
OPERATOR, MODELS = f"install-{SUFFIX}", f"install-{SUFFIX}-models"
SETTINGS = Settings(namespace=OPERATOR, namespaces=(MODELS,))
#: Not on this cluster.
ELSEWHERE = {"Issuer", "Certificate"}
#: tests/cluster/README.md.
BUSYBOX = "localhost/busybox:rig"
AS_OPERATOR = f"--as={SETTINGS.account}"

CHECK = [ENGINE_PYTHON, PYTHON_OPTIONS, AGENT_HOME, "check", "--json", "--engine", "vllm"]
URL = "http://127.0.0.1:8000/metrics"


def patiently(holds: Callable[[], bool], what: str) -> None:
    """The API server learns of policies and rights by its own watches."""
    until_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until_s, what
        time.sleep(0.3)


@pytest.fixture(scope="module")
def operator(api: ApiServer) -> Iterator[Any]:
    """kubectl in the operator's namespace, which is there with the account, as is the namespace of models."""
    found = kube.Kube(api.kube.kubeconfig, api.kube.kubectl, OPERATOR)
    mine = [item for item in manifests(SETTINGS) if item["kind"] in ("Namespace", "ServiceAccount")]
    found.apply([*mine, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MODELS}}], server_side=True)
    yield found
    for name in (OPERATOR, MODELS):
        kube.Kube(api.kube.kubeconfig, api.kube.kubectl, name).delete_namespace(wait=False)


@pytest.fixture(scope="module")
def models(operator: Any) -> Iterator[Any]:
    """kubectl where models are served: the operator has its rights there, and the policies are in force."""
    one = kube.Kube(operator.kubeconfig, operator.kubectl, MODELS)
    if one.run("get", "nodes", "-o", "name") == "":
        pytest.skip("no Pod runs here: tests/cluster/cluster.sh up, without --api-only")
    kinds = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    kinds |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    found = [renamed(item) for item in manifests(SETTINGS) if item["kind"] in kinds]
    containers = [
        {"name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "3600"]}
        for name in ("main", "other")
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "replica"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers},
    }
    try:
        one.apply([item for item in found if item["metadata"].get("namespace") != OPERATOR], server_side=True)
        one.run("wait", "--for=create", "serviceaccount/default", "--timeout=30s")
        one.apply(pod)
        one.wait("pod/replica")
        patiently(lambda: "denied request" in said(one, ["true"]), "the exec policy is not in force")
        patiently(lambda: "denied request" in created(one, a_role("probe")), "the policy of rights is not in force")
        yield one
    finally:
        for item in found:
            if "namespace" not in item["metadata"]:
                one.run("delete", item["kind"], item["metadata"]["name"], "--ignore-not-found")


def renamed(item: dict[str, Any]) -> dict[str, Any]:
    """An object of no namespace under a name of this run, and so what refers to it."""
    found = copy.deepcopy(item)
    if "namespace" not in found["metadata"]:
        found["metadata"]["name"] += f"-{SUFFIX}"
        if found["kind"] == "ClusterRoleBinding":
            found["roleRef"]["name"] += f"-{SUFFIX}"
        if found["kind"] == "ValidatingAdmissionPolicyBinding":
            found["spec"]["policyName"] += f"-{SUFFIX}"
    return found


def said(models: Any, command: list[str], *options: str, container: str = "main", account: bool = True) -> str:
    """What kubectl says to an exec, '' when it went well."""
    options = (*([AS_OPERATOR] if account else []), *options)
    try:
        models.run("exec", "replica", f"--container={container}", *options, "--", *command, stdin="")
    except kube.KubectlError as error:
        return str(error.stderr)
    return ""


def created(models: Any, item: dict[str, Any]) -> str:
    """What kubectl says to a creation by the operator (a dry run)."""
    try:
        models.run("create", "-f", "-", AS_OPERATOR, "--dry-run=server", stdin=json.dumps(item))
    except kube.KubectlError as error:
        return str(error.stderr)
    return ""


def a_role(name: str) -> dict[str, Any]:
    rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules,
    }


# ---- it is taken


@pytest.mark.parametrize(
    "settings",
    [
        Settings(namespace=OPERATOR),
        SETTINGS,
        Settings(namespace=OPERATOR, inject_only=True),
        Settings(namespace=OPERATOR, cert_manager=True),
        Settings(namespace=OPERATOR, llm_d=False, kueue=False, image_pull_secrets=("pull",), replicas=1),
    ],
    ids=["default", "namespaced", "inject-only", "cert-manager", "least"],
)
def test_the_api_server_takes_every_object(operator: Any, settings: Settings) -> None:
    found = [item for item in manifests(settings) if item["kind"] not in ELSEWHERE]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": found})
    for options in (["--namespace="], ["--namespace=", "--server-side", "--force-conflicts"]):  # in their own ones
        done = operator.run(
            "apply", "-f", "-", "--dry-run=server", "--validate=strict", "-o", "name", *options, stdin=text
        )
        assert len(done.splitlines()) == len(found)


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, cert_manager=True)], ids=["own", "cert-manager"])
def test_its_pods_are_let_into_a_restricted_namespace(operator: Any, settings: Settings) -> None:
    (deployment,) = (item for item in manifests(settings) if item["kind"] == "Deployment")
    pod = {"apiVersion": "v1", "kind": "Pod", **deployment["spec"]["template"]}
    pod["metadata"] = {**pod["metadata"], "name": "operator"}
    labels = operator.get(f"namespace/{OPERATOR}")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    operator.run("create", "-f", "-", "--dry-run=server", "--validate=strict", stdin=json.dumps(pod))


# ---- what it may run


@pytest.mark.parametrize(
    "command",
    [
        [*CHECK, "--url", URL],
        [*CHECK, "--url", URL, "--url", "https://[::1]:8001/metrics", "--ignore-peer", "10.0.0.0/8"],
        [OWN_PYTHON, *CHECK[1:-1], "sglang", "--url", URL],
    ],
    ids=["one-page", "pages-and-peers", "own-python"],
)
def test_the_agents_check_is_let_pass(models: Any, command: list[str]) -> None:
    """And fails in the container, which has no agent: so far it came."""
    refused = said(models, command)
    assert "denied request" not in refused
    assert f'exec: "{command[0]}"' in refused


@pytest.mark.parametrize(
    ("command", "options", "container"),
    [
        (["cat", "/etc/passwd"], (), "main"),
        (["sh", "-c", " ".join(CHECK)], (), "main"),
        (["sh"], ("--stdin",), "main"),
        ([*CHECK, "--url", URL], (), "other"),
        ([*CHECK, "--url", URL], ("--stdin",), "main"),
        ([*CHECK, "--url", URL], ("--stdin", "--tty"), "main"),
        ([*CHECK[:4], *CHECK[5:], "--url", URL], (), "main"),
        ([*CHECK, "--url", "http://10.89.0.1:8000/metrics"], (), "main"),
        ([*CHECK, "--url", "http://127.0.0.1:8000@10.89.0.1/metrics"], (), "main"),
        ([*CHECK, "--url", URL, "--wait", "3600"], (), "main"),
        ([*CHECK, f"--url {URL}"], (), "main"),
        ([*CHECK, "--url", f"{URL}\n"], (), "main"),
        (["/tmp/python3", *CHECK[1:], "--url", URL], (), "main"),
        (["python3", "-c", "1", *CHECK[2:], "--url", URL], (), "main"),
    ],
    ids=[
        "another",
        "shell",
        "shell-stdin",
        "container",
        "stdin",
        "tty",
        "no-json",
        "elsewhere",
        "user-in-url",
        "wait",
        "one-word",
        "newline",
        "another-python",
        "python-code",
    ],
)
def test_anything_else_is_refused(models: Any, command: list[str], options: tuple[str, ...], container: str) -> None:
    refused = said(models, command, *options, container=container)
    assert f"ValidatingAdmissionPolicy '{install.NAME}-exec-{SUFFIX}'" in refused
    assert "denied request: the operator " in refused


def test_nobody_else_is_held_to_it(models: Any) -> None:
    assert said(models, ["true"], account=False) == ""


# ---- what it may write


def test_no_cluster_role_but_its_own_is_written(models: Any) -> None:
    assert created(models, a_role(f"drainagent.io:{MODELS}:llama:router-metrics")) == ""
    assert "denied request: the operator writes no ClusterRole" in created(models, a_role("admin-of-mine"))
    for arguments in (
        ("delete", "clusterrole", "cluster-admin"),
        ("delete", "clusterrolebinding", "cluster-admin"),
        ("label", "clusterrole", "system:auth-delegator", "a=b"),  # it holds what is in there
    ):
        with pytest.raises(kube.KubectlError, match="denied request: the operator writes no ClusterRole"):
            models.run(*arguments, AS_OPERATOR, "--dry-run=server")


@pytest.mark.parametrize("file", ["llm-d-router-elects", "vllm-router-server"])
def test_its_rights_suffice_for_every_object_of_a_router(models: Any, file: str) -> None:
    """For real, since the API server looks a binding's role up: nobody gives more than he holds."""
    text = (GOLDEN / f"{file}.yaml").read_text()
    text = text.replace("namespace: models", f"namespace: {MODELS}").replace(":models:", f":{MODELS}:")
    objects = [item for item in yaml.safe_load_all(text) if item["kind"] != "InferencePool"]  # not on this cluster
    for item in objects:
        item["metadata"].pop("ownerReferences", None)  # the garbage collector knows no such owner
        if item["kind"] == "Deployment":
            item["spec"]["replicas"] = 0
    apply = ("apply", "--server-side", "--field-manager=test", "-f", "-", "-o", "name", AS_OPERATOR)
    try:
        done = models.run(*apply, stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        assert len(done.splitlines()) == len(objects)
    finally:
        for item in objects:
            models.run("delete", item["kind"], item["metadata"]["name"], AS_OPERATOR, "--ignore-not-found")
