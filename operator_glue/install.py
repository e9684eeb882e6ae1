"""What is applied to install the operator: its rights, its Deployment, its webhooks and what holds it to its own. Pure.

Its rights are one table (RULES). Where RBAC cannot say what is meant (a command, a prefix of a name), a
ValidatingAdmissionPolicy says it, for the operator's own account alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from drainagent import __version__
from drainagent.catalogue import ENGINES
from drainagent.podspec import (
    AGENT_HOME,
    ENGINE_PYTHON,
    OWN_PYTHON,
    PYTHON_OPTIONS,
    AgentImage,
    Delivery,
    restricted_context,
)
from drainagent.url import DEFAULT_METRICS_PATH
from operator_glue import names
from operator_glue.crd import custom_resource_definition
from operator_glue.facts import AGENT_IMAGE, ROUTING_PROXY_IMAGE
from operator_glue.model import GROUP, PLURAL
from operator_glue.webhook.configuration import (
    MUTATING_NAME,
    SYSTEM_NAMESPACES,
    VALIDATING_NAME,
    Service,
    mutating_configuration,
    validating_configuration,
)

Object = dict[str, Any]

#: Of the Deployment, its ServiceAccount, its roles and its Lease.
NAME = "drainagent-operator"
LEASE = NAME
WEBHOOK_SERVICE = "drainagent-webhook"
METRICS_SERVICE = "drainagent-metrics"
#: Of the operator's own pairs, or of cert-manager's.
WEBHOOK_SECRET = "drainagent-webhook-certificate"

#: Where `run` listens.
METRICS_PORT, HEALTH_PORT, WEBHOOK_PORT = 8080, 8081, 9443
METRICS_PORT_NAME, HEALTH_PORT_NAME, WEBHOOK_PORT_NAME = "metrics", "health", "webhook"
LIVENESS_PATH, READINESS_PATH = "/healthz", "/readyz"
#: What `run` learns its own place from, and of its address the family of the cluster's Pod network.
_PLACE = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
#: Where cert-manager's Secret is mounted.
CERTIFICATES = "/certificates"

#: images/operator's user.
USER = 65532
#: The webhook server lingers for 5 s and then ends what is being answered; a pass that runs ends with its next write.
GRACE_S = 30
#: It takes 110 MiB once everything is imported (images/README.md); the rest is for its copies of Pods.
_REQUESTS = {"cpu": "100m", "memory": "256Mi"}

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_KUEUE = "kueue.x-k8s.io"
_POOLS = "inference.networking.k8s.io"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class Settings:
    """How it is installed. ValueError, a sentence, where two of them do not go together.

    ``namespaces``: those that are watched, all when there is none. ``cert_manager``: it makes the webhooks'
    certificate, in place of the operator. ``inject_only``: the webhook that gives Pods a hook, and nothing else.
    ``llm_d``, ``kueue``: with the rights for llm-d-router's objects, for Workloads. ``policies``: with what holds the
    account to less than RBAC can say (Kubernetes 1.30 or newer). The rest is ClusterFacts' (operator_glue.facts).
    """

    namespace: str = "drainagent-system"
    image: str = f"drainagent/operator:{__version__}"
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    replicas: int = 2
    namespaces: tuple[str, ...] = ()
    cert_manager: bool = False
    inject_only: bool = False
    llm_d: bool = True
    kueue: bool = True
    policies: bool = True
    delivery: Delivery = Delivery.INIT_CONTAINER
    agent_image: AgentImage = AGENT_IMAGE
    own_python: bool = False
    routing_proxy_image: str = ROUTING_PROXY_IMAGE
    mesh_classic_sidecar: bool = False

    def __post_init__(self) -> None:
        for name in (self.namespace, *self.namespaces):
            if not _LABEL.fullmatch(name):  # it stands in a policy's expression too
                raise ValueError(f"{name!r} is no name of a namespace")
        if self.namespace in (*SYSTEM_NAMESPACES, "default"):
            raise ValueError(f"namespace {self.namespace} is no place for the operator: it wants one of its own")
        if self.inject_only and self.namespaces:
            raise ValueError("inject-only watches nothing: namespaces opt in by their label")
        if self.replicas < 1:
            raise ValueError(f"{self.replicas} replicas would do nothing")

    @property
    def account(self) -> str:
        """As the API server calls it."""
        return f"system:serviceaccount:{self.namespace}:{NAME}"


# ---- rights


class Scope(Enum):
    """Where a right holds. WATCHED: in the watched namespaces. OWN: in the operator's own. CLUSTER: outside of any."""

    CLUSTER = "cluster"
    WATCHED = "watched"
    OWN = "own"


class Needed(Enum):
    """What takes a right: serving models, llm-d-router or Kueue beside it, or webhooks whose certificate is ours."""

    MODELS = "models"
    LLM_D = "llm-d"
    KUEUE = "kueue"
    OWN_CERTIFICATE = "own certificate"
    OWN_CERTIFICATE_AND_MODELS = "own certificate, models"


@dataclass(frozen=True)
class Rule:
    """``group`` is empty for the core. ``resources``: plurals, or paths (no resources then, and no group).

    ``held``: never used, which is why an audit log does not show it; the API server wants it of whoever gives it to
    somebody else.
    """

    scope: Scope
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    needed: Needed
    why: str
    names: tuple[str, ...] = ()
    held: bool = False


_READ = ("get", "list", "watch")
#: Server-side apply wants both, and the owner is looked up before the first and before a delete.
_KEEP = ("get", "create", "patch", "delete")
_WATCH_AND_KEEP = (*_READ, "create", "patch", "delete")
_M, _L, _K = Needed.MODELS, Needed.LLM_D, Needed.KUEUE
_C, _W, _O = Scope.CLUSTER, Scope.WATCHED, Scope.OWN

RULES: tuple[Rule, ...] = (
    Rule(
        _W, GROUP, (PLURAL,), ("list", "watch", "patch"), _M, "its finalizer, and the retry annotation that it clears"
    ),
    Rule(_W, GROUP, (f"{PLURAL}/status",), ("patch",), _M, "the status, under optimistic lock"),
    Rule(_W, GROUP, (f"{PLURAL}/finalizers",), ("update",), _M, "owner references that block a deletion", held=True),
    Rule(_W, "", ("pods",), (*_READ, "create", "patch", "delete"), _M, "replicas; the serving label is patched"),
    Rule(
        _W,
        "",
        ("pods/exec",),
        ("get", "create"),
        _M,
        "the agent's check: a websocket takes get, and create too from Kubernetes 1.35 on",
    ),
    Rule(_W, "", ("services",), _WATCH_AND_KEEP, _M, "of roles, replicas and routers"),
    Rule(_W, "", ("serviceaccounts",), _KEEP, _M, "the router's"),
    Rule(_W, "", ("secrets",), ("get",), _M, "the key of the router's API, which it is asked with"),
    Rule(_W, "", ("events",), ("create",), _M, "what is told on a ModelDeployment"),
    Rule(_W, "apps", ("deployments",), _WATCH_AND_KEEP, _M, "the router's"),
    Rule(_W, _RBAC, ("roles", "rolebindings"), _KEEP, _M, "what the router may do: read Pods"),
    Rule(
        _W, "discovery.k8s.io", ("endpointslices",), ("list",), _M, "whether a withdrawn replica is out of each Service"
    ),
    Rule(_W, _KUEUE, ("workloads",), ("list", "watch", "delete"), _K, "a replica's Workload goes with it"),
    Rule(_W, _POOLS, ("inferencepools",), _KEEP, _L, "the picker's"),
    Rule(_W, _POOLS, ("inferencepools",), ("list", "watch"), _L, "the picker watches its own", held=True),
    Rule(_W, "", ("secrets",), ("create", "patch", "delete"), _L, "the token for the picker's metrics page"),
    *(
        Rule(
            _W, group, ("inferenceobjectives", "inferencemodelrewrites"), _READ, _L, "the picker reads them", held=True
        )
        for group in ("llm-d.ai", "inference.networking.x-k8s.io")
    ),
    Rule(
        _W,
        "coordination.k8s.io",
        ("leases",),
        ("get", "create", "update"),
        _L,
        "several pickers elect a leader",
        held=True,
    ),
    Rule(_W, "", ("events",), ("patch",), _L, "and tell of it", held=True),
    Rule(
        _C,
        _RBAC,
        ("clusterroles", "clusterrolebindings"),
        _KEEP,
        _L,
        "who may read the picker's metrics page; a policy holds it to names of its own",
    ),
    Rule(_C, "authentication.k8s.io", ("tokenreviews",), ("create",), _L, "the picker asks who reads", held=True),
    Rule(_C, "authorization.k8s.io", ("subjectaccessreviews",), ("create",), _L, "and whether it may", held=True),
    Rule(_C, "", (DEFAULT_METRICS_PATH,), ("get",), _L, "the one right of the account that reads", held=True),
    Rule(_O, "coordination.k8s.io", ("leases",), ("create",), _M, "RBAC knows no name before there is one"),
    Rule(_O, "coordination.k8s.io", ("leases",), ("get", "update"), _M, "one replica leads", (LEASE,)),
    Rule(_O, "", ("secrets",), ("create",), Needed.OWN_CERTIFICATE, "RBAC knows no name before there is one"),
    Rule(
        _O,
        "",
        ("secrets",),
        ("get", "update"),
        Needed.OWN_CERTIFICATE,
        "the webhooks' certificate, which replicas share",
        (WEBHOOK_SECRET,),
    ),
    Rule(
        _C,
        _ADMISSION,
        ("mutatingwebhookconfigurations",),
        ("get", "patch"),
        Needed.OWN_CERTIFICATE,
        "its CA",
        (MUTATING_NAME,),
    ),
    Rule(
        _C,
        _ADMISSION,
        ("validatingwebhookconfigurations",),
        ("get", "patch"),
        Needed.OWN_CERTIFICATE_AND_MODELS,
        "its CA",
        (VALIDATING_NAME,),
    ),
)

#: Scope ("cluster", "watched", "own"), group, resource with its subresource (or a path), verb, the object's name or "".
Right = tuple[str, str, str, str, str]


def rules(settings: Settings) -> tuple[Rule, ...]:
    """Those of RULES that these settings need."""
    needed = {
        Needed.MODELS: not settings.inject_only,
        Needed.LLM_D: settings.llm_d and not settings.inject_only,
        Needed.KUEUE: settings.kueue and not settings.inject_only,
        Needed.OWN_CERTIFICATE: not settings.cert_manager,
        Needed.OWN_CERTIFICATE_AND_MODELS: not (settings.cert_manager or settings.inject_only),
    }
    return tuple(rule for rule in RULES if needed[rule.needed])


def granted(settings: Settings) -> set[Right]:
    """Every verb that the operator's account is given."""
    return {right for rule in rules(settings) for right in _rights(rule)}


def held(settings: Settings) -> set[Right]:
    """Those of ``granted`` that it never uses itself."""
    used = {right for rule in rules(settings) if not rule.held for right in _rights(rule)}
    return granted(settings) - used


def _rights(rule: Rule) -> Iterator[Right]:
    for resource in rule.resources:
        for verb in rule.verbs:
            for name in rule.names or ("",):
                yield rule.scope.value, rule.group, resource, verb, name


def _policy_rule(rule: Rule) -> Object:
    if rule.resources[0].startswith("/"):
        return {"nonResourceURLs": list(rule.resources), "verbs": list(rule.verbs)}
    found: Object = {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}
    if rule.names:
        found["resourceNames"] = list(rule.names)
    return found


def _rbac(settings: Settings) -> Iterator[Object]:
    by_scope = {
        scope: [_policy_rule(rule) for rule in rules(settings) if rule.scope is scope]
        for scope in (Scope.WATCHED, Scope.CLUSTER, Scope.OWN)
    }
    if by_scope[Scope.WATCHED]:
        for namespace in dict.fromkeys(settings.namespaces) or (None,):
            yield from _role(settings, NAME, namespace, by_scope[Scope.WATCHED])
    if by_scope[Scope.CLUSTER]:
        yield from _role(settings, f"{NAME}-cluster", None, by_scope[Scope.CLUSTER])
    if by_scope[Scope.OWN]:
        yield from _role(settings, f"{NAME}-own", settings.namespace, by_scope[Scope.OWN])


def _role(settings: Settings, name: str, namespace: str | None, held_rules: Sequence[Object]) -> Iterator[Object]:
    """``namespace`` None: in no namespace, and so in all of them."""
    kind = "ClusterRole" if namespace is None else "Role"
    yield {**_head(f"{_RBAC}/v1", kind, name, namespace), "rules": list(held_rules)}
    yield {
        **_head(f"{_RBAC}/v1", f"{kind}Binding", name, namespace),
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": settings.namespace}],
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
    }


# ---- what RBAC cannot say

#: In CEL's raw string, so without a quote. One word a space: the words themselves are held to have none.
_ENGINES = "|".join(engine.option for engine in ENGINES)
_AGENTS = "|".join(f"{python} {PYTHON_OPTIONS} {AGENT_HOME}" for python in (ENGINE_PYTHON, OWN_PYTHON))
_URL = rf"https?://(127\.0\.0\.1|\[::1\]):[0-9]{{1,5}}{DEFAULT_METRICS_PATH}"
_PEER = r"[0-9A-Fa-f:.]+(/[0-9.]+)?"
#: What operator_glue.retirement.classification.Answering.command makes, and nothing else.
CHECK_COMMAND = rf"^({_AGENTS}) check --json --engine ({_ENGINES})( --url {_URL})+( --ignore-peer {_PEER})*$"

#: Of operator_glue.render.picker.cluster_role_name.
_CLUSTER_PREFIX = f"{names.DOMAIN}:"


def _policies(settings: Settings) -> Iterator[Object]:
    if not settings.policies or settings.inject_only:
        return
    yield from _policy(
        settings,
        f"{NAME}-exec",
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"], "resources": ["pods/exec"]},
        {
            f"has(object.container) && object.container == '{names.MAIN_CONTAINER}'": (
                f"the operator runs commands in the container {names.MAIN_CONTAINER} alone"
            ),
            "!(has(object.stdin) && object.stdin) && !(has(object.tty) && object.tty)": (
                "the operator gives its commands no standard input and no terminal"
            ),
            "has(object.command) && object.command.all(word, !word.contains(' ')) && "
            f"object.command.join(' ').matches(r'{CHECK_COMMAND}')": (
                "the operator runs no command but the agent's check --json of an engine on loopback"
            ),
        },
    )
    if settings.llm_d:
        yield from _policy(
            settings,
            f"{NAME}-cluster-rights",
            {
                "apiGroups": [_RBAC],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["clusterroles", "clusterrolebindings"],
            },
            {
                f"request.name.startsWith('{_CLUSTER_PREFIX}')": (
                    f"the operator writes no ClusterRole and no ClusterRoleBinding but its own, {_CLUSTER_PREFIX}…"
                )
            },
        )


def _policy(settings: Settings, name: str, rule: Object, expressions: Mapping[str, str]) -> Iterator[Object]:
    """``expressions``: CEL, each with what is said where it does not hold."""
    yield {
        **_head(f"{_ADMISSION}/v1", "ValidatingAdmissionPolicy", name, None),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [
                {"name": "the-operator", "expression": f"request.userInfo.username == '{settings.account}'"}
            ],
            "validations": [
                {"expression": expression, "message": message, "reason": "Forbidden"}
                for expression, message in expressions.items()
            ],
        },
    }
    yield {
        **_head(f"{_ADMISSION}/v1", "ValidatingAdmissionPolicyBinding", name, None),
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }


# ---- the objects


def manifests(settings: Settings) -> list[Object]:
    """In the order to apply them in. Fresh data with each call."""
    return [
        _namespace(settings),
        *([] if settings.inject_only else [custom_resource_definition()]),
        {**_head("v1", "ServiceAccount", NAME, settings.namespace), "automountServiceAccountToken": False},
        *_rbac(settings),
        *_policies(settings),
        _service(settings, WEBHOOK_SERVICE, WEBHOOK_PORT_NAME, 443),
        _service(settings, METRICS_SERVICE, METRICS_PORT_NAME, METRICS_PORT),
        _network_policy(settings),
        *_certificate(settings),
        *_disruption_budget(settings),
        _deployment(settings),
        *_webhooks(settings),
    ]


def _head(
    api_version: str,
    kind: str,
    name: str,
    namespace: str | None,
    labels: Mapping[str, str] | None = None,
) -> Object:
    metadata: Object = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    metadata["labels"] = {**_selector(), **(labels or {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _selector() -> dict[str, str]:
    return {names.NAME_LABEL: NAME}


def _namespace(settings: Settings) -> Object:
    return _head("v1", "Namespace", settings.namespace, None, {"pod-security.kubernetes.io/enforce": "restricted"})


def _service(settings: Settings, name: str, port_name: str, port: int) -> Object:
    spec = {
        "selector": _selector(),
        "ports": [{"name": port_name, "port": port, "targetPort": port_name, "protocol": "TCP"}],
    }
    return {**_head("v1", "Service", name, settings.namespace), "spec": spec}


def _network_policy(settings: Settings) -> Object:
    """In by its three ports, from anywhere: the API server and the kubelets are no Pods. Out to anywhere: it asks the
    API server and each router Pod, at whatever port the user gave that."""
    ports = [{"protocol": "TCP", "port": name} for name in (WEBHOOK_PORT_NAME, METRICS_PORT_NAME, HEALTH_PORT_NAME)]
    spec = {
        "podSelector": {"matchLabels": _selector()},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": ports}],
        "egress": [{}],
    }
    return {**_head("networking.k8s.io/v1", "NetworkPolicy", NAME, settings.namespace), "spec": spec}


def _disruption_budget(settings: Settings) -> Iterator[Object]:
    if settings.replicas > 1:  # of one alone it would keep its node from being drained for ever
        spec = {"minAvailable": 1, "selector": {"matchLabels": _selector()}}
        yield {**_head("policy/v1", "PodDisruptionBudget", NAME, settings.namespace), "spec": spec}


def _certificate(settings: Settings) -> Iterator[Object]:
    if not settings.cert_manager:
        return
    version, host = "cert-manager.io/v1", f"{WEBHOOK_SERVICE}.{settings.namespace}.svc"
    yield {**_head(version, "Issuer", WEBHOOK_SERVICE, settings.namespace), "spec": {"selfSigned": {}}}
    yield {
        **_head(version, "Certificate", WEBHOOK_SERVICE, settings.namespace),
        "spec": {
            "secretName": WEBHOOK_SECRET,
            "dnsNames": [host],
            "issuerRef": {"kind": "Issuer", "name": WEBHOOK_SERVICE},
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
            "usages": ["digital signature", "server auth"],
        },
    }


def _webhooks(settings: Settings) -> Iterator[Object]:
    """Last: until the Deployment answers, they fail open."""
    target = Service(settings.namespace, WEBHOOK_SERVICE)
    annotations = {}
    if settings.cert_manager:
        annotations["cert-manager.io/inject-ca-from"] = f"{settings.namespace}/{WEBHOOK_SERVICE}"
    if not settings.inject_only:
        yield validating_configuration(target, annotations=annotations)
    yield mutating_configuration(target, settings.namespace, annotations=annotations)


def run_arguments(settings: Settings) -> list[str]:
    """``run`` and its options, each in one word. What is as `run` has it by itself is left out, but for the agent: it
    is the first thing to look for."""
    words = ["run", f"--delivery={settings.delivery.value}"]
    if settings.delivery is not Delivery.IN_IMAGE:
        image = settings.agent_image
        words += [f"--agent-image={image.reference}", f"--agent-image-pull-policy={image.pull_policy}"]
        words += [f"--agent-image-pull-secret={name}" for name in image.pull_secrets]
    if settings.own_python:
        words.append("--own-python")
    if settings.mesh_classic_sidecar:
        words.append("--mesh-classic-sidecar")
    if settings.cert_manager:
        words.append(f"--certificates={CERTIFICATES}")
    if settings.inject_only:
        return [*words, "--inject-only"]
    if settings.routing_proxy_image != ROUTING_PROXY_IMAGE:
        words.append(f"--routing-proxy-image={settings.routing_proxy_image}")
    words += [f"--namespace={namespace}" for namespace in dict.fromkeys(settings.namespaces)]
    return [
        *words,
        *([] if settings.llm_d else ["--no-llm-d"]),
        *([] if settings.kueue else ["--no-kueue"]),
    ]


def _deployment(settings: Settings) -> Object:
    spec = {
        "replicas": settings.replicas,
        "selector": {"matchLabels": _selector()},
        "template": {
            "metadata": {
                "labels": _selector(),
                "annotations": {
                    names.SCRAPE_ANNOTATION: "true",
                    names.SCHEME_ANNOTATION: "http",
                    names.PORT_ANNOTATION: str(METRICS_PORT),
                    names.PATH_ANNOTATION: DEFAULT_METRICS_PATH,
                },
            },
            "spec": _pod(settings),
        },
    }
    return {**_head("apps/v1", "Deployment", NAME, settings.namespace), "spec": spec}


def _pod(settings: Settings) -> Object:
    """Fit for the restricted Pod security standard."""
    ports = {METRICS_PORT_NAME: METRICS_PORT, HEALTH_PORT_NAME: HEALTH_PORT, WEBHOOK_PORT_NAME: WEBHOOK_PORT}
    container: Object = {
        "name": "operator",
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": run_arguments(settings),
        "env": [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in _PLACE.items()],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()],
        "resources": {"requests": dict(_REQUESTS)},
        # A busy loop is no reason to start anew: what it knows, it would have to learn again.
        "livenessProbe": {**_ask(LIVENESS_PATH), "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**_ask(READINESS_PATH), "periodSeconds": 5, "failureThreshold": 2},
        "securityContext": restricted_context({}),
    }
    pod: Object = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _selector()},
            }
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ],
        "containers": [container],
    }
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    if settings.cert_manager:
        container["volumeMounts"] = [{"name": "certificates", "mountPath": CERTIFICATES, "readOnly": True}]
        pod["volumes"] = [{"name": "certificates", "secret": {"secretName": WEBHOOK_SECRET}}]
    return pod


def _ask(path: str) -> Object:
    return {"httpGet": {"path": path, "port": HEALTH_PORT_NAME}, "timeoutSeconds": 5}
