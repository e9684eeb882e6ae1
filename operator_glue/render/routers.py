"""The router in front of the engines. Pure.

Here vllm-router and sglang-gateway; llm-d-router is in operator_glue.render.picker. What is said of the two was seen on
vllm-router 0.1.17 and sglang-router 0.3.2 (PyPI), in front of fake engines that they found at a fake API server
(docs/routers.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from drainagent.podspec import restricted_context
from drainagent.url import DEFAULT_METRICS_PATH
from operator_glue import names
from operator_glue.facts import ClusterFacts
from operator_glue.model import ModelDeployment, RoleKind, Router, RouterName
from operator_glue.render import router_parts as parts
from operator_glue.render.command import HALVES, HTTP_PORT_NAME, field_env
from operator_glue.render.picker import picker_objects, picker_warnings
from operator_glue.render.router_parts import Args, Engines, Given, engines_of
from operator_glue.warnings import Warning

#: Where clients ask, and the operator for the list of engines.
ROUTER_PORT = 8080
#: Both routers' default.
METRICS_PORT = 29000

#: How long a deleted router goes on as before: until its endpoint is gone everywhere, clients come.
SLEEP_S = 5
#: The hook's sleep action is on by default from here on (Kubernetes' PodLifecycleSleepAction gate).
SLEEP_ACTION = (1, 30)

_SCRATCH = "/tmp"
#: Of vllm-router's program in its image: clients show a key that it has somebody else check, probes and the operator
#: cannot.
_ASKS_CLIENTS = "--api-key-validation-urls"
#: Whoever gives one of them says who the engines are, so that a withdrawn one may be asked all the same.
_WHO = (
    "--worker-urls",
    "--selector",
    "--prefill-selector",
    "--decode-selector",
    "--prefill",
    "--decode",
    "--service-discovery-namespace",
    "--pool-name",
    "--pool-namespace",
    "--endpoint-selector",
)


@dataclass(frozen=True)
class _Program:
    """What differs between the two. ``any_address``: of an IPv6 cluster. ``ipv6``: it reaches engines there.

    ``drain_flag``: bounds its wait for requests in flight after SIGTERM; None: it waits without a bound.
    """

    command: tuple[str, ...]
    halves_flag: str
    api_key_env: str
    any_address: str
    ipv6: bool
    drain_flag: str | None
    scratch: bool


_PROGRAMS = {
    RouterName.VLLM_ROUTER: _Program(
        command=("vllm-router",),  # its image has no entry point
        halves_flag="--vllm-pd-disaggregation",
        # In front of halves it shows the engines this variable, whatever --api-key says.
        api_key_env="OPENAI_API_KEY",
        any_address="::",
        ipv6=True,
        drain_flag=None,
        scratch=False,
    ),
    RouterName.SGLANG_GATEWAY: _Program(
        command=("python3", "-m", "sglang_router.launch_router"),
        halves_flag="--pd-disaggregation",
        api_key_env="ROUTER_API_KEY",
        any_address="[::]",  # it does not start on ::
        ipv6=False,
        drain_flag="--shutdown-grace-period-secs",
        scratch=True,  # it fetches the model's tokenizer, and warns where it cannot keep it
    ),
}


def router_objects(
    deployment: ModelDeployment, facts: ClusterFacts
) -> tuple[tuple[dict[str, Any], ...], tuple[Warning, ...]]:
    """The router's objects, in the order to create them in; none without a router. No two share a part."""
    router = deployment.spec.router
    if router is None:
        return (), ()
    given = Given.read(router.extra_args)
    engines = engines_of(deployment, facts, given)
    program = _PROGRAMS.get(router.name)
    if program is None:
        objects = picker_objects(deployment, facts, router, given, engines)
        warnings = picker_warnings(deployment, facts, engines)
    else:
        objects = _objects(deployment, facts, router, program, given, engines)
        warnings = _warnings(facts, router, program, given, engines)
    # By way of JSON: what the model holds need not be plain lists and strings.
    plain = tuple(json.loads(json.dumps(item)) for item in objects)
    return plain, (*_shared_warnings(router, given, engines), *warnings)


def _objects(
    deployment: ModelDeployment,
    facts: ClusterFacts,
    router: Router,
    program: _Program,
    given: Given,
    engines: Engines,
) -> list[dict[str, Any]]:
    port, metrics = given.port("--port", ROUTER_PORT), given.port("--prometheus-port", METRICS_PORT)
    ports = {HTTP_PORT_NAME: port, parts.METRICS_PORT_NAME: metrics}
    env: list[dict[str, Any]] = [field_env(parts.NAMESPACE_ENV, "metadata.namespace")]
    if router.api_key_secret_ref is not None:
        reference = router.api_key_secret_ref.model_dump(by_alias=True)
        env.append({"name": program.api_key_env, "valueFrom": {"secretKeyRef": reference}})
    container: dict[str, Any] = {
        "name": parts.ROUTER_CONTAINER,
        "image": router.image,
        "command": list(program.command),
        "args": _args(deployment, facts, router, program, given, engines),
        "ports": parts.container_ports(ports),
        "env": env,
        "resources": parts.REQUESTS,
        # Ready when it has a healthy engine (of each half), so that a new router takes over from then on only.
        "readinessProbe": {**_ask("/readiness", port, given), "periodSeconds": 2, "failureThreshold": 3},
        "livenessProbe": {**_ask("/liveness", port, given), "periodSeconds": 10, "failureThreshold": 6},
        "lifecycle": {"preStop": _sleep(facts)},
        "securityContext": restricted_context({}),
    }
    pod: dict[str, Any] = {"containers": [container]}
    if program.scratch:
        env.append({"name": "HOME", "value": _SCRATCH})
        container["volumeMounts"] = [{"name": "scratch", "mountPath": _SCRATCH}]
        pod["volumes"] = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}]
    return [
        *parts.account_and_rights(
            deployment, router, [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
        ),
        parts.service(deployment, router, ports),
        parts.router_deployment(
            deployment,
            router,
            pod,
            # A request may take through the router what a replica would give it.
            grace_s=SLEEP_S + engines.longest_grace_s + parts.EXIT_S,
            rolling={"maxSurge": 1, "maxUnavailable": 0},
            annotations={
                names.SCRAPE_ANNOTATION: "true",
                names.SCHEME_ANNOTATION: "http",
                names.PORT_ANNOTATION: str(metrics),
                names.PATH_ANNOTATION: DEFAULT_METRICS_PATH,
            },
        ),
    ]


def _args(
    deployment: ModelDeployment,
    facts: ClusterFacts,
    router: Router,
    program: _Program,
    given: Given,
    engines: Engines,
) -> list[str]:
    args, six = Args(given), facts.pod_ip_family == 6
    args.add("--host", program.any_address if six else "0.0.0.0")
    args.add("--port", str(ROUTER_PORT))
    args.add("--prometheus-host", "::" if six else "0.0.0.0")
    args.add("--prometheus-port", str(METRICS_PORT))
    if program.drain_flag is not None:
        args.add(program.drain_flag, str(engines.longest_grace_s))
    if router.api_key_secret_ref is not None:
        args.add_joined("--api-key", f"$({program.api_key_env})")  # a key may begin with a dash
    args.add("--service-discovery")
    serving = [f"{label}={value}" for label, value in parts.serving_selector(deployment.metadata.name).items()]
    if engines.halves:
        args.add(program.halves_flag)
        args.add("--prefill-selector", *serving, f"{names.ROLE_KIND_LABEL}={RoleKind.PREFILL.value}")
        args.add("--decode-selector", *serving, f"{names.ROLE_KIND_LABEL}={RoleKind.DECODE.value}")
    else:
        args.add("--selector", *serving)
    # Not the selectors last: a word that the user's own begin with would be taken for one of theirs.
    args.add("--service-discovery-namespace", f"$({parts.NAMESPACE_ENV})")
    args.add("--service-discovery-port", str(engines.ports[0]))
    return [*args.words, *router.extra_args]


def _ask(path: str, port: int, given: Given) -> dict[str, Any]:
    if _ASKS_CLIENTS in given:
        return {"tcpSocket": {"port": port}, "timeoutSeconds": 5}
    return {"httpGet": {"path": path, "port": port}, "timeoutSeconds": 5}


def _sleep(facts: ClusterFacts) -> dict[str, Any]:
    if facts.kubernetes >= SLEEP_ACTION:
        return {"sleep": {"seconds": SLEEP_S}}
    return {"exec": {"command": ["sleep", str(SLEEP_S)]}}


def _shared_warnings(router: Router, given: Given, engines: Engines) -> Iterator[Warning]:
    name, asked = router.name.value, engines.ports[0]
    for flag in _WHO:
        if flag in given:
            yield Warning(
                "spec.router.extraArgs",
                f"{flag} says which engines {name} asks, in place of the label {names.SERVING_LABEL}: taking that away "
                f"may withdraw no replica any more, and its retirement aborts then",
            )
    for routed in engines.roles:
        if routed.moved:
            yield Warning(
                f"{routed.path}.extraArgs",
                f"role {routed.role.name} moves its listener away from port {routed.ports[0]}, where {name} looks for "
                f"it; a port declared in ports moves both",
            )
        elif routed.ports[0] != asked:
            yield Warning(
                f"{routed.path}.ports",
                f"role {routed.role.name} listens on port {routed.ports[0]}, and {name} asks every engine on the same "
                f"one, {asked}: it does not reach this role",
            )
    kinds = {routed.role.kind for routed in engines.roles}
    for kind in HALVES:
        if engines.halves and kind not in kinds:
            yield Warning("spec.roles", f"no role is {kind.value}: {name} serves no request without one")


def _warnings(
    facts: ClusterFacts, router: Router, program: _Program, given: Given, engines: Engines
) -> Iterator[Warning]:
    name = router.name.value
    for routed in engines.roles:
        if routed.tls:
            yield Warning(
                f"{routed.path}.extraArgs",
                f"role {routed.role.name} serves TLS, and {name} speaks plain HTTP to engines: it does not reach this "
                f"role",
            )
        if len(routed.ports) > 1:
            yield Warning(
                f"{routed.path}.extraArgs",
                f"role {routed.role.name} listens on {len(routed.ports)} ports, and {name} asks a Pod on one, "
                f"{engines.ports[0]}: the others get no request",
            )
    if facts.pod_ip_family == 6 and not program.ipv6:
        yield Warning(
            "spec.router.name",
            f"{name} 0.3.2 writes IPv6 addresses without brackets: it reaches no engine where Pods have IPv6 addresses",
        )
    if "--api-key" in given:
        yield Warning(
            "spec.router.extraArgs", "--api-key: the key stands in the Pod for all to read; apiKeySecretRef does not"
        )
    elif router.api_key_secret_ref is not None and router.name is RouterName.VLLM_ROUTER:
        shown = "with every request, whoever sends it" if engines.halves else "with its own questions alone"
        yield Warning(
            "spec.router.apiKeySecretRef",
            f"{name} asks no client for the key, and its own API stays open: it shows the key to the engines, {shown}",
        )
    if router.name is RouterName.SGLANG_GATEWAY and "--dp-aware" in given:
        yield Warning(
            "spec.router.extraArgs",
            f"--dp-aware: {name} 0.3.2 answers that it removes a worker of one rank and keeps it, so that retirements "
            "abort",
        )
    if _ASKS_CLIENTS in given:
        yield Warning(
            "spec.router.extraArgs",
            f"{_ASKS_CLIENTS}: {name} asks the operator for a key too, which has none, so that retirements abort",
        )
