"""Both webhooks behind a real API server: the server runs on this machine, where the API server reaches it.

With ``--api-only`` the tests of Pods that controllers make are skipped.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from api.api_server import ApiServer, kube
from drainagent.podspec import AgentImage
from operator_glue.facts import ClusterFacts
from operator_glue.kube import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Kube
from operator_glue.webhook.configuration import (
    INJECT_PATH,
    INJECT_TIMEOUT_S,
    MUTATING_NAME,
    VALIDATE_PATH,
    VALIDATING_NAME,
    Address,
    mutating_configuration,
    validating_configuration,
)
from operator_glue.webhook.envelope import Answer
from operator_glue.webhook.injection import Settings, inject_pod
from operator_glue.webhook.keeper import OwnCertificates
from operator_glue.webhook.review import judge
from operator_glue.webhook.server import WebhookServer

sys.path.insert(0, str(Path(__file__).parents[1] / "webhook"))
admitted_pods = importlib.import_module("admitted_pods")

#: tests/cluster/README.md: where the API server reaches this machine.
HOST = "10.89.2.1"
NAME = f"webhooks-{uuid.uuid4().hex[:6]}"
FACTS = ClusterFacts(agent_image=AgentImage("localhost/agent:test", "Never"))
_Result = TypeVar("_Result")
pytestmark = pytest.mark.usefixtures("webhooks")


class Webhooks:
    """Server and keeper in a loop of their own thread, as the operator's process runs them."""

    def __init__(self, kubeconfig: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.seen: list[tuple[str, Answer, float]] = []
        self.port = 0
        self.cluster = self.run(Kube.connect(kubeconfig))
        self.run(self.serve())

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def serve(self) -> None:
        """Anew, at the same port."""
        settings = Settings.of(FACTS)
        self.server = WebhookServer(
            {VALIDATE_PATH: lambda found: judge(found, FACTS), INJECT_PATH: lambda found: inject_pod(found, settings)},
            lambda *what: self.seen.append(what),
        )
        await self.server.start(HOST, self.port)
        self.port = self.server.port
        self.keeper = OwnCertificates(
            self.cluster,
            NAME,
            "webhook-certificate",
            [HOST],
            [(VALIDATING_WEBHOOKS, VALIDATING_NAME), (MUTATING_WEBHOOKS, MUTATING_NAME)],
            self.server.use,
        )

    async def _stop(self) -> None:
        await self.server.stop(0)
        await self.cluster.close()

    def close(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


def patiently(holds: Callable[[], bool], what: str) -> None:
    """The API server learns of configurations, labels and schemas by its own watches."""
    until_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until_s, what
        time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(api: ApiServer) -> Iterator[Any]:
    found = kube.Kube(api.kube.kubeconfig, api.kube.kubectl, NAME)
    found.run("create", "namespace", NAME)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    found.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(account))
    yield found
    found.delete_namespace(wait=False)


@pytest.fixture(scope="module")
def webhooks(cluster: Any) -> Iterator[Webhooks]:
    running = Webhooks(cluster.kubeconfig)
    target = Address(f"https://{HOST}:{running.port}")
    validating = validating_configuration(target)
    # Other suites use this cluster too.
    only = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [NAME]}
    validating["webhooks"][0]["namespaceSelector"] = {"matchExpressions": [only]}
    mutating = mutating_configuration(target, "drainagent-system")
    for hook in mutating["webhooks"]:
        hook["namespaceSelector"]["matchExpressions"].append(only)
    cluster.apply([validating, mutating])
    try:
        running.run(running.keeper.check())
        patiently(lambda: "denied" in said(cluster, WRONG) or "is invalid" in said(cluster, WRONG), "it is not asked")
        yield running
    finally:
        cluster.run("delete", "validatingwebhookconfiguration", VALIDATING_NAME)
        cluster.run("delete", "mutatingwebhookconfiguration", MUTATING_NAME)
        running.close()


@pytest.fixture
def opted_in(cluster: Any) -> Iterator[None]:
    cluster.run("label", "namespace", NAME, "drainagent.io/inject=true")
    patiently(lambda: has_hook(created(cluster, plain("probe"))), "the namespace's label is not seen")
    yield
    cluster.run("label", "namespace", NAME, "drainagent.io/inject-")
    patiently(lambda: not has_hook(created(cluster, plain("probe"))), "the namespace's label is still seen")


def document(**role: Any) -> dict[str, Any]:
    return {
        "apiVersion": "drainagent.io/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "llama"},
        "spec": {
            "model": {"name": "m"},
            "engine": {"name": "vLLM", "image": "vllm/vllm-openai:v0.12.0"},
            "retirement": {"withoutRouter": "ProveFromMember"},
            "roles": [{"name": "serve", **role}],
        },
    }


WRONG = document(template={"metadata": {"labels": {"a b": "c"}}}, extraArgs=["--kv-transf", "{}", "--nnod=2"])
WRONG["spec"]["retirement"]["ignorePeers"] = ["10.0.0.0/33"]


def asked(cluster: Any, found: Any, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        cluster.command("apply", "-f", "-", *options),
        input=json.dumps(found),
        capture_output=True,
        text=True,
        check=False,
    )


def said(cluster: Any, found: Any, *options: str) -> str:
    """kubectl's stderr."""
    return asked(cluster, found, *options, "--dry-run=server").stderr


def plain(name: str, **metadata: Any) -> dict[str, Any]:
    """Grace 47 s, which is the Pod's own."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {
            "containers": [{"name": "main", "image": "localhost/none:1", "command": ["vllm", "serve", "m"]}],
            "terminationGracePeriodSeconds": 47,
        },
    }


def created(cluster: Any, found: Any, *options: str) -> Any:
    """As stored by a dry run."""
    return json.loads(
        cluster.run("create", "-f", "-", "-o", "json", "--dry-run=server", *options, stdin=json.dumps(found))
    )


def has_hook(found: Any) -> bool:
    return any("drainagent" in json.dumps(container.get("lifecycle")) for container in found["spec"]["containers"])


# ---- ModelDeployments


def test_kubectl_shows_each_sentence(cluster: Any) -> None:
    done = asked(cluster, WRONG)
    assert done.returncode == 1
    assert 'The ModelDeployment "llama" is invalid' in done.stderr
    assert (
        '* spec.retirement.ignorePeers[0]: Invalid value: "10.0.0.0/33": must be an address or a network' in done.stderr
    )
    assert '* spec.roles[0].template.metadata.labels: Invalid value: "a b"' in done.stderr
    assert cluster.find("mdep") == []


def test_warnings_reach_kubectls_stderr(cluster: Any) -> None:
    found = document(extraArgs=["--disable-log-stats", "--port", "81"])
    found["spec"]["retirement"] = {}
    told = said(cluster, found)
    text = told.replace("…\nWarning: …", " ")
    assert "Warning: spec.retirement.withoutRouter: without spec.router nothing proves" in text
    assert "Warning: spec.roles[0].extraArgs: --port moves the listener" in text
    assert "--disable-log-stats takes vLLM's gauges away" in text
    assert all(len(line) <= len("Warning: ") + 256 for line in told.splitlines())
    assert said(cluster, document()) == ""


def test_what_was_stored_before_can_be_changed_and_removed(cluster: Any, webhooks: Webhooks) -> None:
    webhooks.run(webhooks.server.stop(0))  # it is stored while nobody looks
    try:
        done = asked(cluster, WRONG)
        assert done.returncode == 0, done.stderr
    finally:
        webhooks.run(webhooks.serve())
        webhooks.run(webhooks.keeper.check())
    scaled = json.loads(json.dumps(WRONG))
    scaled["spec"]["roles"][0]["replicas"] = 3
    done = asked(cluster, scaled)
    assert done.returncode == 0, done.stderr
    assert "Warning: spec.retirement.ignorePeers[0]" in done.stderr
    worse = json.loads(json.dumps(scaled))
    worse["spec"]["retirement"]["ignorePeers"].append("x")
    done = asked(cluster, worse)
    assert done.returncode == 1
    assert "ignorePeers[1]" in done.stderr
    assert "ignorePeers[0]" not in done.stderr
    cluster.run("patch", "mdep", "llama", "--type=merge", "-p", '{"metadata":{"finalizers":["drainagent.io/test"]}}')
    cluster.run("delete", "mdep", "llama", "--wait=false")
    cluster.run("patch", "mdep", "llama", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert cluster.find("mdep") == []


# ---- Pods


@pytest.mark.usefixtures("opted_in")
def test_a_pod_gets_its_hook_with_its_own_grace(cluster: Any) -> None:
    for options in ((), ("--validate=strict",)):
        found = created(cluster, plain("a"), *options)
        argv = found["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert argv[-2:] == ["--grace", "47"]
        assert found["spec"]["initContainers"][0]["image"] == "localhost/agent:test"
    unset = plain("a")
    del unset["spec"]["terminationGracePeriodSeconds"]
    found = created(cluster, unset)
    assert found["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-2:] == ["--grace", "30"]
    cluster.apply(plain("a"))
    try:
        assert has_hook(cluster.get("pod/a"))
    finally:
        cluster.run("delete", "pod", "a", "--force", "--grace-period=0")


@pytest.mark.usefixtures("opted_in")
@pytest.mark.parametrize("name", admitted_pods.INJECTED)
def test_the_api_server_takes_what_we_make_of_a_platforms_pod(cluster: Any, webhooks: Webhooks, name: str) -> None:
    found = json.loads(json.dumps(admitted_pods.INJECTED[name][0]))
    del found["metadata"]["creationTimestamp"]
    found["metadata"] |= {"namespace": NAME}
    mounted = {mount["name"] for item in found["spec"]["containers"] for mount in item["volumeMounts"]}
    have = {volume["name"] for volume in found["spec"]["volumes"]}
    found["spec"]["volumes"] += [{"name": name, "emptyDir": {}} for name in mounted - have]
    before = len(webhooks.seen)
    assert has_hook(created(cluster, found))
    answers = [answer for _, answer, _ in webhooks.seen[before:]]
    assert all(answer.mistake is None for answer in answers)
    assert any(answer.patch for answer in answers)


@pytest.mark.usefixtures("opted_in")
def test_who_is_left_alone(cluster: Any) -> None:
    assert not has_hook(created(cluster, plain("a", labels={"drainagent.io/inject": "false"})))
    assert not has_hook(created(cluster, plain("a", annotations={"drainagent.io/inject": "false"})))
    other = plain("a")
    other["spec"]["containers"][0]["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", "15"]}}}
    told = said(cluster, other).replace("…\nWarning: …", " ")
    assert "Warning: drainagent.io/inject: the Pod gets no drain hook: container main has a preStop hook" in told
    assert "drainagent.io/replace-hook" in told
    assert created(cluster, other)["spec"]["containers"][0]["lifecycle"] == other["spec"]["containers"][0]["lifecycle"]
    short = {**plain("a")}
    short["spec"]["terminationGracePeriodSeconds"] = 5
    assert "terminationGracePeriodSeconds 5 is outside 15 to 3600" in said(cluster, short)


def test_opt_in_by_the_pod_alone(cluster: Any) -> None:
    assert not has_hook(created(cluster, plain("a")))
    assert has_hook(created(cluster, plain("a", labels={"drainagent.io/inject": "true"})))


@pytest.mark.usefixtures("opted_in")
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_pods_that_a_controller_makes(cluster: Any, kind: str) -> None:
    if not cluster.find("nodes"):
        pytest.skip("the API server alone is up")
    template = plain("x")
    template = {"metadata": {"labels": {"app": "made"}}, "spec": template["spec"]}
    spec: dict[str, Any] = {"replicas": 1, "selector": {"matchLabels": {"app": "made"}}, "template": template}
    if kind == "StatefulSet":
        spec["serviceName"] = "made"
    else:
        del template["spec"]["terminationGracePeriodSeconds"]
    cluster.apply({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "made"}, "spec": spec})
    try:
        patiently(lambda: bool(cluster.find("pods", "app=made")), "no Pod was made")
        (found,) = cluster.find("pods", "app=made")
        assert has_hook(found)
        argv = found["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert argv[-1] == ("47" if kind == "StatefulSet" else "30")
    finally:
        cluster.run("delete", kind, "made", "--cascade=foreground", "--wait=false")
        cluster.run("delete", "pods", "-l", "app=made", "--force", "--grace-period=0")


# ---- our absence


@pytest.mark.usefixtures("opted_in")
def test_a_pod_is_admitted_when_nobody_or_nothing_answers(cluster: Any, webhooks: Webhooks) -> None:
    webhooks.run(webhooks.server.stop(0))
    try:
        begun_s = time.monotonic()
        assert not has_hook(created(cluster, plain("a")))
        assert time.monotonic() - begun_s < INJECT_TIMEOUT_S + 1
        with socket.create_server((HOST, webhooks.port)):  # a process that hangs: nobody accepts
            begun_s = time.monotonic()
            assert not has_hook(created(cluster, plain("a")))
            assert INJECT_TIMEOUT_S - 0.5 < time.monotonic() - begun_s < INJECT_TIMEOUT_S + 2
    finally:
        webhooks.run(webhooks.serve())
        webhooks.run(webhooks.keeper.check())
    patiently(lambda: has_hook(created(cluster, plain("a"))), "it does not come back")


# ---- certificates


def test_the_secret_and_the_bundle(cluster: Any, webhooks: Webhooks) -> None:
    secret = cluster.get("secret/webhook-certificate")
    assert {key.partition("-")[2] for key in secret["data"]} == {"ca.crt", "tls.crt", "tls.key"}
    # The configuration is applied anew, without its bundle, as an upgrade does; then replaced.
    configuration = cluster.get(f"mutatingwebhookconfiguration/{MUTATING_NAME}")
    bundle = configuration["webhooks"][0]["clientConfig"]["caBundle"]
    for hook in configuration["webhooks"]:
        del hook["clientConfig"]["caBundle"]
    cluster.run("replace", "-f", "-", stdin=json.dumps(configuration))
    webhooks.run(webhooks.keeper.check())
    found = cluster.get(f"mutatingwebhookconfiguration/{MUTATING_NAME}")
    assert [hook["clientConfig"]["caBundle"] for hook in found["webhooks"]] == [bundle, bundle]
    version = cluster.get("secret/webhook-certificate")["metadata"]["resourceVersion"]
    webhooks.run(webhooks.keeper.check())
    assert cluster.get("secret/webhook-certificate")["metadata"]["resourceVersion"] == version
