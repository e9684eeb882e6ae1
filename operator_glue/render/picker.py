"""llm-d-router: the endpoint picker, what it may do, its InferencePool, and an account that may read its metrics. Pure.

The gateway in front is the user's. Sources: llm-d-router 0.10.0's chart, the flags of its pkg/epp/server/options.go and
the health checks of its cmd/epp/runner/health.go; the picker was not run with these objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from drainagent.podspec import restricted_context
from drainagent.url import DEFAULT_METRICS_PATH
from operator_glue import names
from operator_glue.facts import ClusterFacts
from operator_glue.model import EngineName, ModelDeployment, Router
from operator_glue.render import router_parts as parts
from operator_glue.render.command import engine_of, field_env
from operator_glue.render.router_parts import Args, Engines, Given
from operator_glue.warnings import Warning

#: The picker's own defaults.
PICKER_PORT, PICKER_PORT_NAME = 9002, "grpc"
HEALTH_PORT, HEALTH_PORT_NAME = 9003, "grpc-health"
METRICS_PORT = 9090
#: Its default --drain-timeout: so long it goes on picking after SIGTERM. It needs no sleep before that.
DRAIN_S = 30

INFERENCE_POOL = "inference.networking.k8s.io/v1"
INFERENCE_POOL_CRD = "inferencepools.inference.networking.k8s.io"
#: An InferencePool's bound.
MAX_TARGET_PORTS = 8
#: Of the Secret with the token for the metrics page.
TOKEN_KEY = "token"

_ONE_BY_ONE = {"maxSurge": 1, "maxUnavailable": 0}
#: Of pickers that elect a leader one alone is ever Ready: waiting for the next one to be would be for ever.
_ALL_AT_ONCE = {"maxSurge": "100%", "maxUnavailable": "100%"}


def metrics_reader_name(deployment: str) -> str:
    """Of the ServiceAccount that may read the metrics page, and of the Secret with its token."""
    return f"{parts.router_name(deployment)}-metrics"


def cluster_role_name(namespace: str, deployment: str, purpose: str) -> str:
    """Of an object that is in no namespace. No other name has colons, so that no two deployments share one."""
    return f"{names.DOMAIN}:{namespace}:{deployment}:{purpose}"


def picker_objects(
    deployment: ModelDeployment, facts: ClusterFacts, router: Router, given: Given, engines: Engines
) -> list[dict[str, Any]]:
    """In the order to create them in. They may share parts."""
    elects = router.replicas > 1 and given.values.get("--ha-enable-leader-election") != "false"
    port, metrics = given.port("--grpc-port", PICKER_PORT), given.port("--metrics-port", METRICS_PORT)
    health = given.port("--grpc-health-port", HEALTH_PORT)
    ports = {PICKER_PORT_NAME: port, HEALTH_PORT_NAME: health, parts.METRICS_PORT_NAME: metrics}
    # Without an election every check of its health is about its pool, which is no reason to restart it: a restart
    # loses its view, and with it what a retirement has proven.
    alive: dict[str, Any] = {"tcpSocket": {"port": health}}
    if elects:
        alive = {"grpc": {"port": health, "service": "liveness"}}
    container = {
        "name": parts.ROUTER_CONTAINER,
        "image": router.image,
        "args": _args(deployment, router, given, engines, elects),
        "ports": parts.container_ports(ports),
        "env": [
            field_env(parts.NAMESPACE_ENV, "metadata.namespace"),
            field_env("POD_NAME", "metadata.name"),
        ],
        "resources": parts.REQUESTS,
        "readinessProbe": {
            "grpc": {"port": health, "service": "readiness"},
            "timeoutSeconds": 5,
            "periodSeconds": 2,
            "failureThreshold": 3,
        },
        "livenessProbe": {**alive, "timeoutSeconds": 5, "periodSeconds": 10, "failureThreshold": 6},
        "securityContext": restricted_context({}),
    }
    objects = [
        *parts.account_and_rights(deployment, router, _rights(elects)),
        *_metrics_rights(deployment, router),
        parts.service(deployment, router, {PICKER_PORT_NAME: port, parts.METRICS_PORT_NAME: metrics}),
        parts.router_deployment(
            deployment,
            router,
            {"containers": [container]},
            # A request's stream through the picker lasts as long as its response.
            grace_s=DRAIN_S + engines.longest_grace_s + parts.EXIT_S,
            rolling=_ALL_AT_ONCE if elects else _ONE_BY_ONE,
        ),
    ]
    if facts.inference_pool:
        objects.append(_pool(deployment, router, port, engines))
    return objects


def _args(deployment: ModelDeployment, router: Router, given: Given, engines: Engines, elects: bool) -> list[str]:
    args = Args(given)
    if "--endpoint-selector" not in given:  # refused beside a pool
        args.add_joined("--pool-name", parts.router_name(deployment.metadata.name))
        args.add_joined("--pool-namespace", f"$({parts.NAMESPACE_ENV})")
    args.add_joined("--grpc-port", str(PICKER_PORT))
    args.add_joined("--grpc-health-port", str(HEALTH_PORT))
    args.add_joined("--metrics-port", str(METRICS_PORT))
    args.add_joined("--metrics-endpoint-auth", "true")
    args.add_joined("--tracing", "false")  # else it looks for a collector on localhost
    if elects:
        args.add_joined("--ha-enable-leader-election", "true")
    config = _config(deployment, engines)
    if config is not None and "--config-file" not in given:  # refused beside a text
        args.add("--config-text", config)
    return [*args.words, *router.extra_args]


def _config(deployment: ModelDeployment, engines: Engines) -> str | None:
    """How it picks, as YAML; None: as it does by itself.

    With the scorers and weights it has by itself; of halves, the prefill half always prefills.
    """
    tls, sglang = any(routed.tls for routed in engines.roles), deployment.spec.engine.name is EngineName.SGLANG
    if not (engines.halves or tls or sglang):
        return None
    plugins: list[dict[str, Any]] = []
    if engines.halves:
        decider = "always-disagg-pd-decider"
        plugins += [
            {"type": decider},  # before the handler that names it
            {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": decider}}},
            {"type": "prefill-filter"},
            {"type": "decode-filter"},
        ]
    scorers = {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}
    plugins += [{"type": name} for name in (*scorers, "max-score-picker")]
    if tls:
        parameters = {"scheme": "https", "path": DEFAULT_METRICS_PATH, "insecureSkipVerify": True}
        plugins.append({"type": "metrics-data-source", "parameters": parameters})
    if sglang:
        plugins.append(
            {"type": "core-metrics-extractor", "parameters": {"defaultEngine": engine_of(deployment).option}}
        )
    profiles = {"default": scorers}
    if engines.halves:  # decoders by their load alone, as in llm-d's guide
        load = {name: weight for name, weight in scorers.items() if name != "prefix-cache-scorer"}
        profiles = {"prefill": scorers, "decode": load}
    config = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
        "schedulingProfiles": [
            {
                "name": profile,
                "plugins": [
                    *([{"pluginRef": f"{profile}-filter"}] if engines.halves else []),
                    *({"pluginRef": name, "weight": weight} for name, weight in weights.items()),
                    {"pluginRef": "max-score-picker"},
                ],
            }
            for profile, weights in profiles.items()
        ],
    }
    return str(yaml.safe_dump(json.loads(json.dumps(config)), sort_keys=False))  # by way of JSON: no aliases


def _rights(elects: bool) -> list[dict[str, Any]]:
    read = ["get", "list", "watch"]
    objectives = ["inferenceobjectives", "inferencemodelrewrites"]  # read where they are installed
    rights = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": read},
        {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"], "verbs": read},
        {"apiGroups": ["llm-d.ai", "inference.networking.x-k8s.io"], "resources": objectives, "verbs": read},
    ]
    if elects:
        rights += [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        ]
    return rights


def _metrics_rights(deployment: ModelDeployment, router: Router) -> list[dict[str, Any]]:
    """That the picker may ask the API server who reads its metrics page, and an account that may do nothing but that.

    A namespace's Role can say neither.
    """
    namespace, deployed = parts.namespace_of(deployment), deployment.metadata.name
    reader, reading = metrics_reader_name(deployed), cluster_role_name(namespace, deployed, "router-metrics")
    account = parts.owned(deployment, router, "v1", "ServiceAccount", reader)
    token = parts.owned(deployment, router, "v1", "Secret", reader, {"kubernetes.io/service-account.name": reader})
    picker = parts.router_name(deployed)
    delegating = cluster_role_name(namespace, deployed, "router")
    return [
        _cluster_binding(deployment, router, delegating, "system:auth-delegator", picker),
        {**account, "automountServiceAccountToken": False},
        {**token, "type": "kubernetes.io/service-account-token"},
        {
            **_unowned(deployment, router, "ClusterRole", reading),
            "rules": [{"nonResourceURLs": [DEFAULT_METRICS_PATH], "verbs": ["get"]}],
        },
        _cluster_binding(deployment, router, reading, reading, reader),
    ]


def _cluster_binding(deployment: ModelDeployment, router: Router, name: str, role: str, account: str) -> dict[str, Any]:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": parts.namespace_of(deployment)}
    return {
        **_unowned(deployment, router, "ClusterRoleBinding", name),
        "subjects": [subject],
        "roleRef": {"apiGroup": parts.RBAC, "kind": "ClusterRole", "name": role},
    }


def _unowned(deployment: ModelDeployment, router: Router, kind: str, name: str) -> dict[str, Any]:
    """The head of an object of no namespace. Kubernetes' owner references do not reach there."""
    metadata = {"name": name, "labels": parts.labels(deployment, router)}
    return {"apiVersion": f"{parts.RBAC}/v1", "kind": kind, "metadata": metadata}


def _pool(deployment: ModelDeployment, router: Router, port: int, engines: Engines) -> dict[str, Any]:
    name = parts.router_name(deployment.metadata.name)
    spec = {
        "selector": {"matchLabels": parts.serving_selector(deployment.metadata.name)},
        "targetPorts": [{"number": number} for number in engines.ports[:MAX_TARGET_PORTS]],
        # A gateway that picks by itself while no picker answers asks engines that no picker's view shows, and prefill
        # halves too.
        "endpointPickerRef": {"name": name, "port": {"number": port}, "failureMode": "FailClose"},
    }
    return {**parts.owned(deployment, router, INFERENCE_POOL, "InferencePool", name), "spec": spec}


def picker_warnings(deployment: ModelDeployment, facts: ClusterFacts, engines: Engines) -> Iterator[Warning]:
    if not facts.inference_pool:
        yield Warning(
            "spec.router.name",
            f"this cluster has no CustomResourceDefinition {INFERENCE_POOL_CRD} ({INFERENCE_POOL}, of the Gateway API "
            f"inference extension): the InferencePool is left out, and the endpoint picker does not get ready without "
            f"it",
        )
    if deployment.metadata.namespace is None:
        yield Warning(
            "metadata.namespace",
            f"unset: what the endpoint picker needs outside of a namespace is written for {parts.NO_NAMESPACE}",
        )
    if engines.halves and deployment.spec.engine.name is EngineName.SGLANG:
        yield Warning(
            "spec.router.name",
            "llm-d-router has a proxy in the decoder's Pod hand requests to the prefill half; it is rendered for vLLM "
            "alone, so that SGLang's halves need sglang-gateway",
        )
    secure = ", ".join(routed.role.name for routed in engines.roles if routed.tls)
    plain = ", ".join(routed.role.name for routed in engines.roles if not routed.tls)
    if secure:
        yield Warning(
            "spec.roles", f"role {secure} serves TLS: the gateway has to speak TLS to the Pods that are picked for it"
        )
    if secure and plain:
        yield Warning(
            "spec.roles",
            f"the endpoint picker reads all engines' metrics by one scheme, https here, and role {plain} does not "
            f"serve it: those are picked without their load",
        )
    for routed in engines.roles:
        if len(routed.ports) > MAX_TARGET_PORTS:
            yield Warning(
                f"{routed.path}.extraArgs",
                f"role {routed.role.name} listens on {len(routed.ports)} ports and an InferencePool takes "
                f"{MAX_TARGET_PORTS}: the others get no request",
            )
