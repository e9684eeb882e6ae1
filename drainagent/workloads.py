"""Where a Kubernetes object holds Pod templates. Pure; plain data in, paths out.

Sources: the API references of Kubernetes 1.34 (Pod, the apps and batch workloads, PodTemplate), LeaderWorkerSet 0.7,
JobSet, Volcano's Job, AIBrix' RoleSet and StormService, Argo's Rollout and OpenKruise (both at spec.template).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from drainagent.patch import Path


class Member(Enum):
    """Which Pods of a replica a template is for. BOTH: a replica's leader and its workers alike."""

    ONLY = "the replica's only Pod"
    LEADER = "leader"
    WORKER = "worker"
    BOTH = "leader and workers"


@dataclass(frozen=True)
class Place:
    """A Pod template's path in its object, and the member it is for."""

    path: Path
    member: Member = Member.ONLY


_EACH = "*"
_LWS = ("spec", "leaderWorkerTemplate")
_PLACES: tuple[tuple[str, ...], ...] = (
    ("spec", "template"),
    ("spec", "jobTemplate", "spec", "template"),
    ("template",),
    ("spec", "replicatedJobs", _EACH, "template", "spec", "template"),
    ("spec", "tasks", _EACH, "template"),
    ("spec", "roles", _EACH, "template"),
    ("spec", "template", "spec", "roles", _EACH, "template"),
    (*_LWS, "leaderTemplate"),
    (*_LWS, "workerTemplate"),
)

#: A Pod template at spec.template that allows neither preStop hooks nor init containers as they are used here.
_WITHOUT_HOOKS = ("serving.knative.dev/",)

#: Kinds of Kubernetes and of the tools around it that hold no Pods: passed on without a word.
_WITHOUT_PODS = """
APIService Certificate ClusterIssuer ClusterRole ClusterRoleBinding ConfigMap CustomResourceDefinition
Endpoints EndpointSlice ExternalSecret Gateway GatewayClass GRPCRoute HTTPRoute HorizontalPodAutoscaler
Ingress IngressClass Issuer Lease LimitRange MutatingWebhookConfiguration Namespace NetworkPolicy
PersistentVolume PersistentVolumeClaim PodDisruptionBudget PodMonitor PriorityClass PrometheusRule
ReferenceGrant ResourceClaimTemplate ResourceQuota Role RoleBinding RuntimeClass ScaledObject Secret Service
ServiceAccount ServiceMonitor StorageClass ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding
ValidatingWebhookConfiguration VerticalPodAutoscaler
"""
WITHOUT_PODS = frozenset(_WITHOUT_PODS.split())


def objects(document: Any) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The objects of a document: itself, or the items of a List (and of a DeploymentList and the like)."""
    if not isinstance(document, Mapping):
        return
    items = document.get("items")
    if str(document.get("kind", "")).endswith("List") and isinstance(items, Sequence) and not isinstance(items, str):
        for index, item in enumerate(items):
            for path, found in objects(item):
                yield ("items", index, *path), found
    else:
        yield (), document


def places(found: Mapping[str, Any]) -> tuple[Place, ...]:
    """Where this object holds Pod templates; empty when it holds none."""
    if str(found.get("apiVersion", "")).startswith(_WITHOUT_HOOKS):
        return ()
    if found.get("kind") == "Pod":
        return (Place(()),) if is_template(found) else ()
    paths = [path for pattern in _PLACES for path in _matches(found, pattern, ()) if is_template(at(found, path))]
    leaderless = (*_LWS, "leaderTemplate") not in paths
    return tuple(Place(path, _member(found, path, leaderless)) for path in paths)


def _member(found: Mapping[str, Any], path: Path, leaderless: bool) -> Member:
    if path[:-1] != _LWS:
        return Member.ONLY
    if at(found, (*_LWS, "size")) in (None, 1):
        return Member.ONLY
    if path[-1] == "leaderTemplate":
        return Member.LEADER
    return Member.BOTH if leaderless else Member.WORKER


def is_template(value: Any) -> bool:
    """It looks like a Pod template: a spec with containers."""
    spec = value.get("spec") if isinstance(value, Mapping) else None
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    return isinstance(containers, list) and any(isinstance(container, Mapping) for container in containers)


#: What is read of a Pod template and of its containers, and what it must be where it is there.
_MAP, _LIST, _MAPS = "a map", "a list", "a list of maps"
_TEMPLATE_SHAPE: tuple[tuple[Path, str], ...] = (
    (("metadata",), _MAP),
    (("metadata", "labels"), _MAP),
    (("metadata", "annotations"), _MAP),
    (("spec", "containers"), _MAPS),
    (("spec", "initContainers"), _MAPS),
    (("spec", "volumes"), _MAPS),
    (("spec", "imagePullSecrets"), _MAPS),
    (("spec", "securityContext"), _MAP),
)
_CONTAINER_SHAPE: tuple[tuple[Path, str], ...] = (
    (("command",), _LIST),
    (("args",), _LIST),
    (("env",), _MAPS),
    (("volumeMounts",), _MAPS),
    (("lifecycle",), _MAP),
    (("lifecycle", "preStop"), _MAP),
)


def shape_fault(template: Mapping[str, Any]) -> str | None:
    """The first part of a Pod template that is not what it must be, as a sentence; the API server would refuse it."""
    for path, wanted in _TEMPLATE_SHAPE:
        if not _is(at(template, path), wanted):
            return f"{'.'.join(map(str, path))} must be {wanted}"
    for index, container in enumerate(template["spec"]["containers"]):
        for path, wanted in _CONTAINER_SHAPE:
            if not _is(at(container, path), wanted):
                return f"spec.containers[{index}].{'.'.join(map(str, path))} must be {wanted}"
    return None


def _is(value: Any, wanted: str) -> bool:
    if value is None:
        return True
    if wanted == _MAP:
        return isinstance(value, Mapping)
    return isinstance(value, list) and (wanted == _LIST or all(isinstance(item, Mapping) for item in value))


def at(value: Any, path: Path) -> Any:
    """What stands at ``path``; None when nothing does."""
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def name_of(found: Mapping[str, Any]) -> str:
    """Kind and name as kubectl would show them, ``Deployment/llama``, and the namespace where it is written."""
    metadata = found.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name = metadata.get("name") or metadata.get("generateName")
    namespace = f" in {metadata['namespace']}" if metadata.get("namespace") else ""
    return f"{found.get('kind') or 'object'}/{name or '(no name)'}{namespace}"


def _matches(value: Any, pattern: tuple[str, ...], path: Path) -> Iterator[Path]:
    if not pattern:
        yield path
        return
    step, rest = pattern[0], pattern[1:]
    if step == _EACH:
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from _matches(item, rest, (*path, index))
    elif isinstance(value, Mapping) and value.get(step) is not None:
        yield from _matches(value[step], rest, (*path, step))
