"""What the objects of every router are made of: names, the user's flags, the engines as a router sees them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drainagent.timeline import DEFAULT_GRACE_S
from operator_glue import names
from operator_glue.facts import ClusterFacts
from operator_glue.model import ModelDeployment, Role, Router
from operator_glue.render.command import HALVES, front_port, grace_s, is_direct_decoder, listener
from operator_glue.render.metadata import object_metadata

#: The component of the router's own objects; no role has this name.
ROUTER_COMPONENT = "router"
ROUTER_CONTAINER = "router"
METRICS_PORT_NAME = "metrics"
NAMESPACE_ENV = "NAMESPACE"
#: Where an object of no namespace has to name one and the deployment has none.
NO_NAMESPACE = "default"
RBAC = "rbac.authorization.k8s.io"

#: From the end of what a router drains to its own.
EXIT_S = 5
#: Enough not to be among the first that a full node evicts.
REQUESTS = {"requests": {"cpu": "100m", "memory": "256Mi"}}
#: A user that is in no image; what the routers run is readable for everybody.
_USER = 65532


def router_name(deployment: str) -> str:
    """Of the router's Deployment, Service, ServiceAccount, Role, RoleBinding and InferencePool."""
    return f"{deployment}-{ROUTER_COMPONENT}"


def router_selector(deployment: str) -> dict[str, str]:
    """What the router's Pods are told by."""
    return names.role_selector(deployment, ROUTER_COMPONENT)


def serving_selector(deployment: str) -> dict[str, str]:
    """What a router finds engines by: the Pods with a listener, until they are withdrawn."""
    return {names.INSTANCE_LABEL: deployment, names.SERVING_LABEL: names.SERVING}


def namespace_of(deployment: ModelDeployment) -> str:
    return deployment.metadata.namespace or NO_NAMESPACE


@dataclass(frozen=True)
class Given:
    """The flags in ``extraArgs`` by their whole names, each with its last value; '' where none follows."""

    values: Mapping[str, str]

    @classmethod
    def read(cls, words: Sequence[str]) -> Given:
        values = {}
        for word, following in zip(words, [*words, "--"][1:], strict=True):
            if word.startswith("--"):
                flag, equals, value = word.partition("=")
                values[flag] = value if equals or following.startswith("-") else following
        return cls(values)

    def __contains__(self, flag: str) -> bool:
        return flag in self.values

    def port(self, flag: str, default: int) -> int:
        value = self.values.get(flag, "")
        return int(value) if value.isdecimal() and 0 < int(value) < 65536 else default


@dataclass
class Args:
    """The operator's flags, each only where the user's do not hold it: vllm-router's image takes none twice."""

    given: Given
    words: list[str] = field(default_factory=list)

    def add(self, flag: str, *values: str) -> None:
        if flag not in self.given:
            self.words += [flag, *values]

    def add_joined(self, flag: str, value: str) -> None:
        """In one word: so Go wants its switches, and a value may begin with a dash."""
        if flag not in self.given:
            self.words.append(f"{flag}={value}")


@dataclass(frozen=True)
class RoutedRole:
    """Where a router asks a role's serving Pods. ``path``: of the role in the resource."""

    path: str
    role: Role
    ports: tuple[int, ...]
    tls: bool
    moved: bool


@dataclass(frozen=True)
class Engines:
    """``ports``: where the router asks every engine; ``halves``: they are Prefill and Decode."""

    roles: tuple[RoutedRole, ...]
    ports: tuple[int, ...]
    halves: bool
    longest_grace_s: int


def engines_of(deployment: ModelDeployment, facts: ClusterFacts, given: Given) -> Engines:
    """As the router with these flags sees them. Its port is the first role's."""
    roles = tuple(_routed(deployment, role, facts, index) for index, role in enumerate(deployment.spec.roles))
    ports = roles[0].ports
    if "--service-discovery-port" in given:
        ports = (given.port("--service-discovery-port", ports[0]),)
    longest_s = max(grace_s(role) or DEFAULT_GRACE_S for role in deployment.spec.roles)
    return Engines(roles, ports, roles[0].role.kind in HALVES, longest_s)


def _routed(deployment: ModelDeployment, role: Role, facts: ClusterFacts, index: int) -> RoutedRole:
    path, front, engine = f"spec.roles[{index}]", front_port(deployment, role), listener(deployment, role, facts)
    if engine is None or engine.moved:
        return RoutedRole(path, role, (front,), tls=False, moved=engine is not None)
    # A routing proxy has as many ports as the engine behind it, and speaks plain HTTP.
    ports = tuple(front + port - engine.port for port in engine.ports)
    return RoutedRole(path, role, ports, tls=engine.tls and not is_direct_decoder(deployment, role), moved=False)


def labels(deployment: ModelDeployment, router: Router) -> dict[str, str]:
    """What every object of the router bears."""
    return {names.NAME_LABEL: router.name.value, **names.role_labels(deployment.metadata.name, ROUTER_COMPONENT)}


def owned(
    deployment: ModelDeployment,
    router: Router,
    api_version: str,
    kind: str,
    name: str,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The head of an object that goes with the deployment."""
    metadata = object_metadata(deployment, {"name": name}, labels(deployment, router), annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def account_and_rights(
    deployment: ModelDeployment, router: Router, rules: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The router's ServiceAccount, and what it may do in its namespace."""
    name = router_name(deployment.metadata.name)
    return [
        owned(deployment, router, "v1", "ServiceAccount", name),
        {**owned(deployment, router, f"{RBAC}/v1", "Role", name), "rules": rules},
        {
            **owned(deployment, router, f"{RBAC}/v1", "RoleBinding", name),
            "subjects": [{"kind": "ServiceAccount", "name": name}],  # in the binding's own namespace
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        },
    ]


def service(deployment: ModelDeployment, router: Router, ports: Mapping[str, int]) -> dict[str, Any]:
    """``ports``: by name."""
    name = router_name(deployment.metadata.name)
    spec = {
        "selector": router_selector(deployment.metadata.name),
        "ports": [{"name": port_name, "port": port, "targetPort": port} for port_name, port in ports.items()],
    }
    return {**owned(deployment, router, "v1", "Service", name), "spec": spec}


def container_ports(ports: Mapping[str, int]) -> list[dict[str, Any]]:
    """``ports``: by name."""
    return [{"name": name, "containerPort": port} for name, port in ports.items()]


def router_deployment(
    deployment: ModelDeployment,
    router: Router,
    pod: Mapping[str, Any],
    *,
    grace_s: int,
    rolling: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """``pod``: the Pod's own part of its spec. ``annotations``: the Pods'. ``rolling``: how it is rolled out."""
    name = router_name(deployment.metadata.name)
    metadata: dict[str, Any] = {"labels": labels(deployment, router)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    spec = {
        "replicas": router.replicas,
        "selector": {"matchLabels": router_selector(deployment.metadata.name)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": dict(rolling)},
        "template": {
            "metadata": metadata,
            "spec": {
                "serviceAccountName": name,
                "terminationGracePeriodSeconds": grace_s,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": _USER,
                    "runAsGroup": _USER,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                **pod,
            },
        },
    }
    return {**owned(deployment, router, "apps/v1", "Deployment", name), "spec": spec}
