"""Which objects beside the Pods a ModelDeployment has, and which of those there are it no longer needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple

from operator_glue import names
from operator_glue.facts import ClusterFacts
from operator_glue.model import ModelDeployment
from operator_glue.render import RolePlan
from operator_glue.render.picker import cluster_role_name, metrics_reader_name
from operator_glue.render.router_parts import ROUTER_COMPONENT, router_name
from operator_glue.render.routers import router_objects
from operator_glue.render.service import replica_service, role_service
from operator_glue.retirement.data import Key


class Named(NamedTuple):
    """An object by kind and name, in the deployment's namespace, or in none."""

    kind: str
    name: str


@dataclass(frozen=True)
class Wanted:
    """``objects``: in the order to make them in."""

    objects: tuple[dict[str, Any], ...]

    @property
    def named(self) -> frozenset[Named]:
        return frozenset(map(name_of, self.objects))


def name_of(thing: Mapping[str, Any]) -> Named:
    return Named(str(thing["kind"]), str(thing["metadata"]["name"]))


def wanted_objects(deployment: ModelDeployment, plans: Iterable[RolePlan], facts: ClusterFacts) -> Wanted:
    """Each role's Service and its replicas', then the router's objects."""
    objects: list[dict[str, Any]] = []
    for plan in plans:
        objects.append(role_service(deployment, plan.role))
        if plan.role.size > 1:
            objects += (replica_service(deployment, plan.role, ordinal) for ordinal in range(plan.role.replicas))
    return Wanted((*objects, *router_objects(deployment, facts)[0]))


def router_names(namespace: str, deployed: str) -> tuple[Named, ...]:
    """All that a router of any kind can have in front of the deployment of this name, in the order to remove it in:
    what serves first."""
    router, reader = router_name(deployed), metrics_reader_name(deployed)
    return (
        Named("Deployment", router),
        Named("Service", router),
        Named("InferencePool", router),
        Named("RoleBinding", router),
        Named("Role", router),
        Named("Secret", reader),
        Named("ServiceAccount", reader),
        Named("ServiceAccount", router),
        Named("ClusterRoleBinding", cluster_role_name(namespace, deployed, "router")),
        Named("ClusterRoleBinding", cluster_role_name(namespace, deployed, "router-metrics")),
        Named("ClusterRole", cluster_role_name(namespace, deployed, "router-metrics")),
    )


def services_to_remove(
    services: Iterable[Mapping[str, Any]], wanted: AbstractSet[Named], there: AbstractSet[Key]
) -> list[Mapping[str, Any]]:
    """Of the deployment's own Services, those of a role that was dropped or of a replica that is gone. ``there``:
    replicas of which Pods are left: they drain by these names."""
    roles = {key.role for key in there}
    found = []
    for service in services:
        labels = service["metadata"].get("labels") or {}
        role, ordinal = labels.get(names.COMPONENT_LABEL), labels.get(names.ORDINAL_LABEL)
        if name_of({"kind": "Service", **service}) in wanted or role in (None, ROUTER_COMPONENT):
            continue
        if role not in roles or (ordinal is not None and ordinal.isdecimal() and Key(role, int(ordinal)) not in there):
            found.append(service)
    return found
