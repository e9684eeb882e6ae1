"""From a ModelDeployment and the facts of its cluster to the objects that serve it. Pure: same input, same bytes.

``render`` gives all of them at once. The operator's process makes a plan once per role and takes replicas from it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from drainagent.podspec import Delivery
from operator_glue.facts import IMAGE_VOLUMES, NATIVE_SIDECARS, ClusterFacts
from operator_glue.model import EngineName, ModelDeployment, Role
from operator_glue.render.command import Listener, engine_command_line, is_direct_decoder, listener
from operator_glue.render.metadata import NO_UID
from operator_glue.render.pod import PodTemplates, pod_templates
from operator_glue.render.routers import router_objects
from operator_glue.render.service import replica_service, role_service
from operator_glue.render.spec_hash import spec_hash
from operator_glue.warnings import Warning

__all__ = [
    "RenderError",
    "Rendering",
    "RolePlan",
    "render",
    "replica_objects",
    "role_plan",
    "role_service",
    "spec_hash",
]


class RenderError(ValueError):
    """The resource cannot be rendered. ``path``: of the field; the message is a sentence."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path, self.message = path, message


@dataclass(frozen=True)
class Rendering:
    """``objects``: for each role in the spec's order its Service and its replicas, then the router's. Yours to change:
    no two share a part."""

    objects: tuple[dict[str, Any], ...]
    warnings: tuple[Warning, ...]


@dataclass(frozen=True)
class RolePlan:
    """What is computed once per role. ``listener``: None on a take-over role."""

    deployment: ModelDeployment
    role: Role
    spec_hash: str
    listener: Listener | None
    templates: PodTemplates
    warnings: tuple[Warning, ...]


def render(deployment: ModelDeployment, facts: ClusterFacts) -> Rendering:
    """All objects of a deployment. RenderError names the field that no Pod can be made of."""
    objects: list[dict[str, Any]] = []
    warnings = [*_owner_warnings(deployment), *_settings_warnings(facts)]
    with _collector_paused():
        for role in deployment.spec.roles:
            plan = role_plan(deployment, role, facts)
            warnings += plan.warnings
            objects.append(role_service(deployment, role))
            for ordinal in range(role.replicas):
                objects += replica_objects(plan, ordinal)
    router, router_warnings = router_objects(deployment, facts)
    return Rendering((*objects, *router), (*warnings, *router_warnings))


def role_plan(deployment: ModelDeployment, role: Role, facts: ClusterFacts) -> RolePlan:
    """``role`` is one of the deployment's. RenderError names the field that no Pod can be made of."""
    path = f"spec.roles[{deployment.spec.roles.index(role)}]"
    hashed, engine = spec_hash(deployment, role), listener(deployment, role, facts)
    try:
        templates = pod_templates(deployment, role, facts, engine, hashed)
    except ValueError as error:
        raise RenderError(path, str(error)) from None
    warnings = tuple(_role_warnings(deployment, role, facts, engine, path))
    return RolePlan(deployment, role, hashed, engine, templates, warnings)


def replica_objects(plan: RolePlan, ordinal: int) -> tuple[dict[str, Any], ...]:
    """The Pods of one replica, the leader first; before them the headless Service of a replica of several."""
    if plan.role.size == 1:
        return (plan.templates.pod(ordinal),)
    pods = (plan.templates.pod(ordinal, index) for index in range(plan.role.size))
    return (replica_service(plan.deployment, plan.role, ordinal), *pods)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Nothing that is made meanwhile is garbage. Ten thousand Pods take four times as long where Python's collector
    walks through all of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _owner_warnings(deployment: ModelDeployment) -> list[Warning]:
    if deployment.metadata.uid is not None:
        return []
    return [
        Warning(
            "metadata.uid",
            f"unset, since no cluster has seen this object: the owner references carry {NO_UID}; what is rendered here "
            f"is for reading and for a dry run, and the garbage collector would remove it where it is applied",
        )
    ]


def _settings_warnings(facts: ClusterFacts) -> list[Warning]:
    if facts.delivery is not Delivery.IMAGE_VOLUME or facts.kubernetes >= IMAGE_VOLUMES:
        return []
    return [
        Warning(
            "--delivery",
            f"Kubernetes {_version(facts.kubernetes)} has image volumes off by default (on from "
            f"{_version(IMAGE_VOLUMES)}): without its ImageVolume gate no engine Pod is admitted; "
            f"{Delivery.INIT_CONTAINER.value} works everywhere",
        )
    ]


def _role_warnings(
    deployment: ModelDeployment, role: Role, facts: ClusterFacts, engine: Listener | None, path: str
) -> list[Warning]:
    found = []
    if is_direct_decoder(deployment, role) and not facts.native_sidecars:
        found.append(
            Warning(
                path,
                f"Kubernetes {_version(facts.kubernetes)} has no native sidecars ({_version(NATIVE_SIDECARS)} has): "
                "the routing proxy of this direct decoder is a plain container, which stops at the delete, and a "
                "request in flight through it is reset while the engine behind it drains",
            )
        )
    for flag, since in engine_command_line(deployment, role, facts, 0).left_out:
        found.append(
            Warning(
                f"{path}.image" if role.image is not None else "spec.engine.image",
                f"role {role.name}: {flag} is not rendered, since vLLM has it from {_version(since)} on"
                + ("; KV that a decode half has still to fetch is lost at a delete" if "shutdown" in flag else ""),
            )
        )
    several = engine is not None and role.size > 1 and deployment.spec.engine.name is EngineName.VLLM
    if several and engine is not None and engine.command.balance != "internal":
        found.append(
            Warning(
                f"{path}.extraArgs",
                f"size {role.size}: the leader balances over all Pods of the replica and the others run with "
                f"--headless, which vLLM refuses beside {engine.command.balance} data-parallel balance",
            )
        )
    return found


def _version(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
