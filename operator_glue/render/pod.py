"""A role's Pods: one template for leaders and one for followers, built once, and a Pod of an ordinal from it. Pure."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drainagent.patch import apply
from drainagent.podspec import (
    ENGINE_PYTHON,
    OWN_PYTHON,
    Delivery,
    Hook,
    Injection,
    changes_to_inject,
    restricted_context,
)
from drainagent.url import DEFAULT_METRICS_PATH, ListenerUrl
from operator_glue import names
from operator_glue.facts import ClusterFacts
from operator_glue.model import EngineName, ModelDeployment, Role, RoleKind
from operator_glue.render.command import (
    HTTP_PORT_NAME,
    Listener,
    engine_command_line,
    engine_of,
    front_port,
    grace_s,
    image_of,
    is_direct_decoder,
    main_env,
)
from operator_glue.render.llm_d import llm_d_role, routing_proxy
from operator_glue.render.metadata import object_metadata

#: Loading a model may take this long before the kubelet starts it again.
START_UP_BUDGET_S = 60 * 60
#: SGLang's /health takes most of a second where the engine runs on a CPU (measured), and more where it is busy; a
#: restart costs every running request, so it takes a minute of silence.
_STARTUP = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": START_UP_BUDGET_S // 5}
_READINESS = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3}
_LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6}
HEALTH_PATH = "/health"

#: The name of the port that the engine of a direct decoder has to itself.
ENGINE_PORT_NAME = "engine"
#: Our labels on a Pod are all there are of these.
_OURS = f"{names.DOMAIN}/"

#: In a template, the ordinal of the replica it was built for.
_TEMPLATE_ORDINAL = 0


@dataclass(frozen=True)
class PodTemplates:
    """What all Pods of a role have in common. ``leader`` and ``follower`` make such a Pod of ordinal 0, anew each time.

    ``follower`` is None on replicas of one Pod. ``leader_url``: what followers watch, of ordinal 0's leader.
    """

    deployment: str
    role: str
    size: int
    queued: bool
    leader: Callable[[], dict[str, Any]]
    follower: Callable[[], dict[str, Any]] | None
    leader_url: ListenerUrl | None

    def pod(self, ordinal: int, index: int = 0) -> dict[str, Any]:
        """A member's Pod, which shares nothing with any other."""
        pod = self.leader() if index == 0 or self.follower is None else self.follower()
        metadata, spec = pod["metadata"], pod["spec"]
        replica = names.replica_name(self.deployment, self.role, ordinal)
        metadata["generateName"] = f"{replica}-"
        labels = metadata["labels"]
        labels[names.ORDINAL_LABEL] = str(ordinal)
        if self.queued:
            labels[names.POD_GROUP_NAME_LABEL] = names.pod_group_name(self.deployment, self.role, ordinal)
        if self.size == 1:
            return pod
        labels[names.MEMBER_INDEX_LABEL] = str(index)
        spec["hostname"], spec["subdomain"] = names.member_hostname(replica, index), replica
        main = spec["containers"][0]
        leader = names.leader_address(replica)
        values = {names.LEADER_ADDRESS_ENV: leader, names.MEMBER_INDEX_ENV: str(index)}
        for variable in main["env"][:3]:
            variable["value"] = values.get(variable["name"], variable["value"])
        if index > 0 and self.leader_url is not None:
            main["lifecycle"]["preStop"]["exec"]["command"][-1] = str(_at(self.leader_url, leader))
        return pod


def pod_templates(
    deployment: ModelDeployment, role: Role, facts: ClusterFacts, engine: Listener | None, spec_hash: str
) -> PodTemplates:
    """``engine``: the role's listener, None for a take-over role. ValueError, a sentence: a name we need is taken."""
    replica = names.replica_name(deployment.metadata.name, role.name, _TEMPLATE_ORDINAL)
    leader_url = None
    if role.size > 1 and engine is not None:
        leader_url = ListenerUrl(engine.scheme, names.leader_address(replica), engine.port)

    def member(index: int) -> Callable[[], dict[str, Any]]:
        return _maker(_template(deployment, role, facts, engine, spec_hash, index, leader_url))

    return PodTemplates(
        deployment=deployment.metadata.name,
        role=role.name,
        size=role.size,
        queued=role.queue_name is not None,
        leader=member(0),
        follower=member(1) if role.size > 1 else None,
        leader_url=leader_url,
    )


def _maker(data: Any) -> Callable[[], Any]:
    """Makes the data anew at each call: dicts and lists of its own, strings and numbers shared.

    Compiled, as if the data stood in the source: a tenth of what copy.deepcopy takes, and half of its memory.
    """
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    source = ast.fix_missing_locations(ast.Expression(ast.Lambda(nothing, _display(data))))
    maker: Callable[[], Any] = eval(compile(source, "<Pod>", "eval"), {})
    return maker


def _display(data: Any) -> ast.expr:
    """Nothing but displays and constants. What the model holds in its free fields need not be plain dicts and lists."""
    if isinstance(data, Mapping):
        return ast.Dict([ast.Constant(str(key)) for key in data], [_display(value) for value in data.values()])
    if isinstance(data, (list, tuple)):
        return ast.List([_display(item) for item in data], ast.Load())
    if isinstance(data, str):
        return ast.Constant(str(data))
    if data is None or isinstance(data, (bool, int, float)):
        return ast.Constant(data)
    raise ValueError(f"{type(data).__name__} {data!r} is nothing that a Kubernetes object can hold")


def _at(url: ListenerUrl, host: str) -> ListenerUrl:
    return ListenerUrl(url.scheme, host, url.port, url.path)


def _template(
    deployment: ModelDeployment,
    role: Role,
    facts: ClusterFacts,
    engine: Listener | None,
    spec_hash: str,
    index: int,
    leader_url: ListenerUrl | None,
) -> dict[str, Any]:
    """The Pod of member ``index`` of the replica with ordinal 0."""
    replica = names.replica_name(deployment.metadata.name, role.name, _TEMPLATE_ORDINAL)
    overlay = role.template.spec.model_dump(by_alias=True, exclude_none=True)
    volumes = overlay.pop("volumes", [])
    spec: dict[str, Any] = {}
    grace = grace_s(role)
    if grace is not None:
        spec["terminationGracePeriodSeconds"] = grace
    if role.size > 1:
        spec["hostname"], spec["subdomain"] = names.member_hostname(replica, index), replica
    spec.update(overlay)
    if overlay.get("hostNetwork"):
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"  # else no name of the cluster resolves there
    spec["containers"] = [_main(deployment, role, facts, engine, index)]
    if volumes:
        spec["volumes"] = volumes
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(deployment, role, engine, spec_hash, index),
        "spec": spec,
    }
    if engine is None:
        return pod
    if index == 0 and is_direct_decoder(deployment, role):
        proxy = routing_proxy(deployment, role, facts, engine, restricted_context(pod))
        if facts.native_sidecars:
            spec["initContainers"] = [proxy]
        else:
            spec["containers"].append(proxy)
    injection = _injection(deployment, role, facts, engine, index, leader_url)
    hooked: dict[str, Any] = apply(pod, changes_to_inject(pod, injection))
    return hooked


def _injection(
    deployment: ModelDeployment,
    role: Role,
    facts: ClusterFacts,
    engine: Listener,
    index: int,
    leader_url: ListenerUrl | None,
) -> Injection:
    loopback = "::1" if facts.pod_ip_family == 6 else "127.0.0.1"
    urls = tuple(str(ListenerUrl(engine.scheme, loopback, port)) for port in engine.ports)
    hook = Hook(
        engine=engine_of(deployment),
        urls=urls if index == 0 else (),
        grace_s=str(grace_s(role)),
        leader=() if index == 0 else ("--leader", str(leader_url)),
        python=OWN_PYTHON if facts.own_python else ENGINE_PYTHON,
    )
    image = None if facts.delivery is Delivery.IN_IMAGE else facts.agent_image
    return Injection(0, hook, facts.delivery, image, recorded=False)


def _metadata(
    deployment: ModelDeployment, role: Role, engine: Listener | None, spec_hash: str, index: int
) -> dict[str, Any]:
    """Labels and annotations: the user's, then ours, which win."""
    overlay = role.template.metadata
    labels = {key: value for key, value in overlay.labels.items() if not key.startswith(_OURS)}
    labels[names.NAME_LABEL] = engine_of(deployment).option
    labels |= names.role_labels(deployment.metadata.name, role.name)
    labels[names.ROLE_KIND_LABEL] = role.kind.value
    labels[names.ORDINAL_LABEL] = str(_TEMPLATE_ORDINAL)
    if role.size > 1:
        labels[names.MEMBER_INDEX_LABEL] = str(index)
    if index == 0:
        labels[names.SERVING_LABEL] = names.SERVING
    llm_d = llm_d_role(deployment, role)
    if llm_d is not None:
        labels[names.LLM_D_ROLE_LABEL] = llm_d
    annotations = {**overlay.annotations, names.SPEC_HASH_ANNOTATION: spec_hash}
    if engine is not None and index == 0:
        annotations |= {
            names.SCRAPE_ANNOTATION: "true",
            names.SCHEME_ANNOTATION: engine.scheme,
            names.PORT_ANNOTATION: str(engine.port),
            names.PATH_ANNOTATION: DEFAULT_METRICS_PATH,
        }
        if role.kind is RoleKind.PREFILL and deployment.spec.engine.name is EngineName.SGLANG:
            annotations[names.BOOTSTRAP_PORT_ANNOTATION] = str(engine.bootstrap_port)
    if role.queue_name is not None:
        labels[names.QUEUE_NAME_LABEL] = role.queue_name
        labels[names.POD_GROUP_NAME_LABEL] = names.pod_group_name(
            deployment.metadata.name, role.name, _TEMPLATE_ORDINAL
        )
        annotations[names.POD_GROUP_TOTAL_COUNT_ANNOTATION] = str(role.size)
        annotations[names.POD_GROUP_SERVING_ANNOTATION] = "true"
    naming = {"generateName": names.replica_name(deployment.metadata.name, role.name, _TEMPLATE_ORDINAL) + "-"}
    return object_metadata(deployment, naming, labels, annotations)


def _main(
    deployment: ModelDeployment, role: Role, facts: ClusterFacts, engine: Listener | None, index: int
) -> dict[str, Any]:
    """The engine's container."""
    line = engine_command_line(deployment, role, facts, index)
    replica = names.replica_name(deployment.metadata.name, role.name, _TEMPLATE_ORDINAL)
    main: dict[str, Any] = {
        "name": names.MAIN_CONTAINER,
        "image": image_of(deployment, role),
        "command": list(line.command),
    }
    if line.args:
        main["args"] = list(line.args)
    ports = _ports(deployment, role, engine)
    if ports:
        main["ports"] = ports
    env = main_env(deployment, role, names.leader_address(replica), index)
    if env:
        main["env"] = env
    if role.resources is not None:
        main["resources"] = role.resources
    if role.volume_mounts:
        main["volumeMounts"] = list(role.volume_mounts)
    if engine is not None and engine.probed and index == 0:
        get = {"path": HEALTH_PATH, "port": engine.port, "scheme": engine.scheme.upper()}
        main["startupProbe"] = {"httpGet": get, **_STARTUP}
        main["readinessProbe"] = {"httpGet": get, **_READINESS}
        main["livenessProbe"] = {"httpGet": get, **_LIVENESS}
    return main


def _ports(deployment: ModelDeployment, role: Role, engine: Listener | None) -> list[dict[str, Any]]:
    """Followers declare them too, though nothing listens there: Kueue takes Pods of one shape for one set."""
    if engine is None:
        return list(role.ports)
    declared = front_port(deployment, role)
    if is_direct_decoder(deployment, role):
        others = [item for item in role.ports if item.get("containerPort") != declared]
        return [{"name": ENGINE_PORT_NAME, "containerPort": engine.port}, *others]
    return list(role.ports) or [{"name": HTTP_PORT_NAME, "containerPort": declared}]
