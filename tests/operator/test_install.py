"""What `drainagent-operator install` prints: complete, restricted, and with no right that its settings do not need."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from drainagent import __version__
from drainagent.catalogue import VLLM
from drainagent.podspec import (
    AGENT_HOME,
    ENGINE_PYTHON,
    OWN_PYTHON,
    PYTHON_OPTIONS,
    AgentImage,
    Delivery,
    agent_of,
    pre_stop_of,
    read_hook,
)
from operator_glue import install
from operator_glue.cli import cli
from operator_glue.facts import ClusterFacts
from operator_glue.install import RULES, Scope, Settings, granted, held, manifests, run_arguments
from operator_glue.manifest import read_manifests, write_manifests
from operator_glue.names import MAIN_CONTAINER
from operator_glue.retirement.classification import Answering

sys.path.insert(0, str(Path(__file__).parent))

from golden_files import Shape, rendered, shapes

ROUTERS = Path(__file__).with_name("golden-routers")
SETTINGS = [
    Settings(
        namespaces=namespaces,
        inject_only=inject_only,
        cert_manager=cert_manager,
        llm_d=llm_d,
        kueue=kueue,
        policies=policies,
    )
    for namespaces, inject_only, cert_manager, llm_d, kueue, policies in itertools.product(
        [(), ("models", "more-models")], [False, True], [False, True], [False, True], [False, True], [False, True]
    )
    if not (inject_only and namespaces)
]
#: Everything said otherwise.
FULL = Settings(
    namespaces=("models", "more", "models"),
    cert_manager=True,
    llm_d=False,
    kueue=False,
    delivery=Delivery.IMAGE_VOLUME,
    agent_image=AgentImage("registry.corp/agent:1", "Always", ("pull", "this")),
    own_python=True,
    routing_proxy_image="registry.corp/proxy:1",
    mesh_classic_sidecar=True,
)
#: What a ClusterRole may say in a namespaced installation: nothing of what is in namespaces.
OUTSIDE = {"clusterroles", "clusterrolebindings", "tokenreviews", "subjectaccessreviews"}
OUTSIDE |= {"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}


def of_kind(found: Iterable[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [item for item in found if item["kind"] in kinds]


def only(found: Iterable[dict[str, Any]], kind: str) -> dict[str, Any]:
    (item,) = of_kind(found, kind)
    return item


def pod(settings: Settings) -> dict[str, Any]:
    spec: dict[str, Any] = only(manifests(settings), "Deployment")["spec"]["template"]["spec"]
    return spec


def places(found: Iterable[dict[str, Any]]) -> list[tuple[str, str | None, str]]:
    return [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in found]


# ---- everything


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_no_object_twice_and_each_before_what_names_it(settings: Settings) -> None:
    found = manifests(settings)
    assert len(set(places(found))) == len(found)
    kinds = [item["kind"] for item in found]
    assert kinds[0] == "Namespace"
    assert kinds[-1] == "MutatingWebhookConfiguration"
    assert kinds.index("ServiceAccount") < kinds.index("Deployment")
    for item in of_kind(found, "RoleBinding", "ClusterRoleBinding"):
        role = (item["roleRef"]["kind"], item["metadata"].get("namespace"), item["roleRef"]["name"])
        assert places(found).index(role) < found.index(item)
        assert item["subjects"] == [{"kind": "ServiceAccount", "name": install.NAME, "namespace": settings.namespace}]
    for item in of_kind(found, "ValidatingAdmissionPolicyBinding"):
        assert ("ValidatingAdmissionPolicy", None, item["spec"]["policyName"]) in places(found)


@pytest.mark.parametrize("settings", SETTINGS[:2], ids=str)
def test_it_is_read_as_it_was_written(settings: Settings) -> None:
    found = manifests(settings)
    assert [item.data for item in read_manifests(write_manifests(found))] == found


def test_each_call_gives_fresh_data() -> None:
    first = manifests(Settings())
    only(first, "Deployment")["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"].clear()
    assert manifests(Settings()) != first


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"namespace": "kube-system"}, "one of its own"),
        ({"namespace": "default"}, "one of its own"),
        ({"namespace": "a' || true || '"}, "no name of a namespace"),
        ({"namespaces": ("Models",)}, "no name of a namespace"),
        ({"namespaces": ("models\n",)}, "no name of a namespace"),
        ({"inject_only": True, "namespaces": ("models",)}, "watches nothing"),
        ({"replicas": 0}, "0 replicas"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Settings(**wrong)


# ---- the Pod


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_pod_is_restricted(settings: Settings) -> None:
    namespace, spec = only(manifests(settings), "Namespace"), pod(settings)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is True
    assert spec["enableServiceLinks"] is False
    assert "priorityClassName" not in spec
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    for volume in spec.get("volumes", ()):
        assert set(volume) == {"name", "secret"}


def test_every_port_is_named_and_reached_by_its_name() -> None:
    found = manifests(Settings())
    (container,) = pod(Settings())["containers"]
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}
    assert ports == {"metrics": 8080, "health": 8081, "webhook": 9443}
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "health"}
    services = {item["metadata"]["name"]: item["spec"]["ports"] for item in of_kind(found, "Service")}
    assert [(port["port"], port["targetPort"]) for port in services[install.WEBHOOK_SERVICE]] == [(443, "webhook")]
    assert [(port["port"], port["targetPort"]) for port in services[install.METRICS_SERVICE]] == [(8080, "metrics")]
    (rule,) = only(found, "NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for port in rule["ports"]} == set(ports)
    assert "from" not in rule


def test_every_selector_means_the_pods() -> None:
    found = manifests(Settings())
    labels = only(found, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [item["spec"]["selector"] for item in of_kind(found, "Service")]
    selectors += [
        only(found, kind)["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget")
    ]
    selectors.append(only(found, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"])
    selectors += [item["labelSelector"]["matchLabels"] for item in pod(Settings())["topologySpreadConstraints"]]
    for selector in selectors:
        assert selector.items() <= labels.items()


def test_one_replica_alone_keeps_no_node_from_being_drained() -> None:
    assert only(manifests(Settings()), "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    assert not of_kind(manifests(Settings(replicas=1)), "PodDisruptionBudget")


def test_the_image_is_this_releases_unless_another_is_named() -> None:
    assert pod(Settings())["containers"][0]["image"] == f"drainagent/operator:{__version__}"
    settings = Settings(image="registry.corp/op@sha256:0", image_pull_policy="Always", image_pull_secrets=("a", "b"))
    container = pod(settings)["containers"][0]
    assert (container["image"], container["imagePullPolicy"]) == ("registry.corp/op@sha256:0", "Always")
    assert pod(settings)["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]


def test_what_is_left_unsaid_is_what_the_renderer_has_by_itself() -> None:
    settings, facts = Settings(), ClusterFacts()
    for name in ("delivery", "agent_image", "own_python", "routing_proxy_image", "mesh_classic_sidecar"):
        assert getattr(settings, name) == getattr(facts, name)


def test_the_settings_are_passed_on() -> None:
    assert run_arguments(Settings()) == [
        "run",
        "--delivery=init-container",
        f"--agent-image=drainagent/agent:{__version__}",
        "--agent-image-pull-policy=IfNotPresent",
    ]
    settings = FULL
    assert run_arguments(settings) == [
        "run",
        "--delivery=image-volume",
        "--agent-image=registry.corp/agent:1",
        "--agent-image-pull-policy=Always",
        "--agent-image-pull-secret=pull",
        "--agent-image-pull-secret=this",
        "--own-python",
        "--mesh-classic-sidecar",
        "--certificates=/certificates",
        "--routing-proxy-image=registry.corp/proxy:1",
        "--namespace=models",
        "--namespace=more",
        "--no-llm-d",
        "--no-kueue",
    ]
    assert pod(settings)["containers"][0]["args"] == run_arguments(settings)
    in_image = run_arguments(Settings(delivery=Delivery.IN_IMAGE))
    assert in_image == ["run", "--delivery=in-image"]
    assert run_arguments(Settings(inject_only=True))[-1] == "--inject-only"


@pytest.mark.parametrize("settings", [*SETTINGS, FULL], ids=str)
def test_run_takes_every_option(settings: Settings) -> None:
    command, *options = run_arguments(settings)
    found = cli.commands[command].make_context(command, options)
    assert found.params["namespaces"] == tuple(dict.fromkeys(settings.namespaces))
    assert (found.params["inject_only"], found.params["delivery"]) == (settings.inject_only, settings.delivery.value)
    if not settings.inject_only:
        assert (found.params["llm_d"], found.params["kueue"]) == (settings.llm_d, settings.kueue)


def test_it_learns_its_own_name_namespace_and_address() -> None:
    (container,) = pod(Settings())["containers"]
    fields = {item["name"]: item["valueFrom"]["fieldRef"]["fieldPath"] for item in container["env"]}
    expected = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    assert fields == expected


# ---- certificates, webhooks


def test_the_webhooks_are_asked_by_the_service() -> None:
    found = manifests(Settings(namespace="serving"))
    for item in of_kind(found, "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        assert "annotations" not in item["metadata"]
        for hook in item["webhooks"]:
            service = hook["clientConfig"]["service"]
            assert (service["namespace"], service["name"], service["port"]) == ("serving", install.WEBHOOK_SERVICE, 443)
    assert ("Service", "serving", install.WEBHOOK_SERVICE) in places(found)
    assert not of_kind(found, "Issuer", "Certificate")
    assert "volumes" not in pod(Settings())


def test_cert_manager_makes_the_certificate_and_patches_its_ca_in() -> None:
    settings = Settings(namespace="serving", cert_manager=True)
    found = manifests(settings)
    certificate = only(found, "Certificate")
    assert certificate["spec"]["dnsNames"] == [f"{install.WEBHOOK_SERVICE}.serving.svc"]
    assert certificate["spec"]["issuerRef"]["name"] == only(found, "Issuer")["metadata"]["name"]
    for item in of_kind(found, "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        source = item["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
        assert source == f"serving/{certificate['metadata']['name']}"
    spec = pod(settings)
    (volume,), (mount,) = spec["volumes"], spec["containers"][0]["volumeMounts"]
    assert volume["secret"]["secretName"] == certificate["spec"]["secretName"]
    assert f"--certificates={mount['mountPath']}" in spec["containers"][0]["args"]
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    own = {right for right in granted(settings) if right[2] in ("secrets", "mutatingwebhookconfigurations")}
    assert {right[0] for right in own} == {"watched"}


def test_inject_only_installs_nothing_of_models() -> None:
    found = manifests(Settings(inject_only=True))
    kinds = {item["kind"] for item in found}
    assert not kinds & {"CustomResourceDefinition", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy"}
    assert {"MutatingWebhookConfiguration", "Deployment", "Service"} <= kinds
    assert granted(Settings(inject_only=True, cert_manager=True)) == set()
    assert {(right[0], right[2], right[4]) for right in granted(Settings(inject_only=True))} == {
        ("own", "secrets", ""),
        ("own", "secrets", install.WEBHOOK_SECRET),
        ("cluster", "mutatingwebhookconfigurations", "drainagent-inject"),
    }


# ---- rights


def role_rights(item: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    return {
        (group, resource, verb, name)
        for rule in item["rules"]
        for group in rule.get("apiGroups", [""])
        for resource in (*rule.get("resources", ()), *rule.get("nonResourceURLs", ()))
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_what_is_said_to_be_granted_is_what_the_roles_say(settings: Settings) -> None:
    found = manifests(settings)
    watched = {install.NAME: Scope.WATCHED, f"{install.NAME}-cluster": Scope.CLUSTER, f"{install.NAME}-own": Scope.OWN}
    said: dict[Scope, list[tuple[str | None, set[Any]]]] = {scope: [] for scope in Scope}
    for item in of_kind(found, "Role", "ClusterRole"):
        said[watched[item["metadata"]["name"]]].append((item["metadata"].get("namespace"), role_rights(item)))
    for scope in Scope:
        rights = {right[1:] for right in granted(settings) if right[0] == scope.value}
        namespaces: tuple[str | None, ...] = (None,)
        if scope is Scope.OWN:
            namespaces = (settings.namespace,)
        elif scope is Scope.WATCHED and settings.namespaces:
            namespaces = settings.namespaces
        assert said[scope] == ([(namespace, rights) for namespace in namespaces] if rights else [])


@pytest.mark.parametrize("settings", [one for one in SETTINGS if one.namespaces], ids=str)
def test_a_namespaced_installation_has_no_cluster_role_on_what_is_in_namespaces(settings: Settings) -> None:
    for item in of_kind(manifests(settings), "ClusterRole"):
        for rule in item["rules"]:
            assert set(rule.get("resources", ())) <= OUTSIDE
    roles = of_kind(manifests(settings), "Role")
    assert {item["metadata"]["namespace"] for item in roles} == {"models", "more-models"} | (
        {settings.namespace} if not settings.inject_only else set()
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.scope.value} {rule.resources[0]} {rule.verbs[0]}")
def test_no_rule_is_wide(rule: install.Rule) -> None:
    """Nothing with a star, no right over rights, and no name in a create, which RBAC would never match."""
    assert rule.why
    words = {rule.group, *rule.resources, *rule.verbs, *rule.names}
    assert "*" not in words
    assert not set(rule.verbs) & {"escalate", "bind", "impersonate", "deletecollection"}
    if rule.names:
        assert not set(rule.verbs) & {"create", "list", "watch"}


def test_no_right_is_given_twice() -> None:
    rights = [(rule.needed, right) for rule in RULES for right in install._rights(rule)]
    assert len(rights) == len({right for _, right in rights})


def test_what_is_not_wanted_is_not_granted() -> None:
    everything = {right[1] for right in granted(Settings())}
    assert {"kueue.x-k8s.io", "inference.networking.k8s.io", "llm-d.ai"} <= everything
    less = granted(Settings(kueue=False, llm_d=False))
    assert not {right[1] for right in less} & {"kueue.x-k8s.io", "inference.networking.k8s.io", "llm-d.ai"}
    assert not {right for right in less if right[2] in ("clusterroles", "tokenreviews", "/metrics")}
    assert {right[3] for right in less if right[:3] == ("watched", "", "secrets")} == {"get"}
    assert less < granted(Settings())


def test_what_is_held_alone_is_never_used() -> None:
    kept = {(right[2], right[3]) for right in held(Settings())}
    assert ("modeldeployments/finalizers", "update") in kept
    assert ("tokenreviews", "create") in kept
    assert not {resource for resource, _ in kept} & {"pods", "pods/exec", "secrets", "modeldeployments"}
    assert ("own", "coordination.k8s.io", "leases", "get", install.LEASE) in granted(Settings()) - held(Settings())


@pytest.mark.parametrize("file", sorted(ROUTERS.glob("*.yaml")), ids=lambda file: file.stem)
def test_it_holds_what_it_gives_to_routers(file: Path) -> None:
    """The API server lets nobody give more than he has."""
    rights = granted(Settings())
    roles = of_kind(yaml.safe_load_all(file.read_text()), "Role", "ClusterRole")
    assert roles
    for item in roles:
        scopes = ("watched", "cluster") if item["kind"] == "Role" else ("cluster",)
        for right in role_rights(item):
            assert any((scope, *right) in rights for scope in scopes), item


# ---- the policies


AGENTS = [(python, PYTHON_OPTIONS, AGENT_HOME) for python in (ENGINE_PYTHON, OWN_PYTHON)]
URL = "http://127.0.0.1:8000/metrics"
CHECK = [*AGENTS[0], "check", "--json", "--engine", "vllm", "--url", URL]


def allows(command: list[str]) -> bool:
    """As the policy's expression: no word with a space, and the pattern over them all."""
    text = " ".join(command)
    return all(" " not in word for word in command) and re.fullmatch(install.CHECK_COMMAND[:-1], text) is not None


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(
    ("urls", "peers"),
    [
        ((URL,), ()),
        (("https://127.0.0.1:8443/metrics", "https://127.0.0.1:8444/metrics"), ()),
        (("http://[::1]:30000/metrics",), ("10.0.0.0/8", "fd00::/8", "10.0.0.1", "10.0.0.0/255.0.0.0")),
    ],
)
def test_the_policy_lets_the_protocols_own_command_pass(
    agent: tuple[str, ...], urls: tuple[str, ...], peers: tuple[str, ...]
) -> None:
    answering = Answering("uid", VLLM, 1, urls, False, agent)
    assert allows(list(answering.command(peers)))


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_the_policy_lets_every_rendered_pod_be_read(shape: Shape) -> None:
    for item in of_kind(rendered(shape).objects, "Pod"):
        pre_stop = pre_stop_of(item["spec"]["containers"][0])
        hook, agent = read_hook(pre_stop), agent_of(pre_stop)
        if hook is not None and agent is not None and hook.urls:
            assert hook.engine is not None
            assert allows(list(Answering("uid", hook.engine, 1, hook.urls, False, agent).command()))


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "id"],
        ["cat", "/etc/passwd"],
        CHECK[:4],
        [*CHECK[:4], *CHECK[5:]],  # without --json
        [*AGENTS[0], "hook", *CHECK[4:]],
        ["python3", "-c", "import os", AGENT_HOME, *CHECK[3:]],
        ["/tmp/python3", *CHECK[1:]],
        [*CHECK, "--wait", "3600"],
        [*CHECK, ";", "id"],
        [*CHECK, "--url", "http://10.0.0.1:8000/metrics"],
        [*CHECK[:-1], "http://169.254.169.254/metrics"],
        [*CHECK[:-1], "http://127.0.0.1:80@10.0.0.1/metrics"],
        [*CHECK[:-1], "http://127.0.0.1.evil:80/metrics"],
        [*CHECK[:-1], "http://127.0.0.1:8000/shutdown"],
        [*CHECK[:-1], "http://127.0.0.1:8000/metrics?x"],
        [*CHECK, "--ignore-peer", "$(id)"],
        [*CHECK, "--ignore-peer 10.0.0.0/8"],
        [" ".join(CHECK)],
        [*CHECK[:-1], f"{URL}\n"],
        [],
    ],
)
def test_the_policy_lets_no_other_command_pass(command: list[str]) -> None:
    assert not allows(command)


def test_the_policies_are_about_the_operators_account_alone_and_fail_closed() -> None:
    found = of_kind(manifests(Settings(namespace="serving")), "ValidatingAdmissionPolicy")
    assert len(found) == 2
    for item in found:
        spec = item["spec"]
        (condition,) = spec["matchConditions"]
        account = f"system:serviceaccount:serving:{install.NAME}"
        assert condition["expression"] == f"request.userInfo.username == '{account}'"
        assert spec["failurePolicy"] == "Fail"
        assert all(check["message"] for check in spec["validations"])
    (rule,) = found[0]["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods/exec"], ["CONNECT"])
    assert f"object.container == '{MAIN_CONTAINER}'" in found[0]["spec"]["validations"][0]["expression"]


def test_the_policies_can_be_left_out_where_kubernetes_has_none() -> None:
    assert not of_kind(manifests(Settings(policies=False)), "ValidatingAdmissionPolicy")
    assert len(of_kind(manifests(Settings(llm_d=False)), "ValidatingAdmissionPolicy")) == 1
