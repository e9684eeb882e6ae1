"""Which Pods are a ModelDeployment's, and where. Pure.

Whose a Pod is, its controller reference says, by UID; where it belongs, its labels do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from operator_glue import names
from operator_glue.render.router_parts import ROUTER_COMPONENT
from operator_glue.retirement.data import Key, Member, Replica, Workload
from operator_glue.retirement.members import member_of, replica_key


@dataclass(frozen=True)
class Placed:
    """``replicas``: by place. ``strangers``: Pods with the deployment's labels that are another's, by name: they are
    neither counted nor deleted. ``unplaced``: Pods of the deployment whose labels name no place: they are left alone
    until it is removed."""

    replicas: Mapping[Key, Replica]
    strangers: tuple[str, ...]
    unplaced: tuple[Member, ...]


def controller_uid(thing: Mapping[str, Any]) -> str | None:
    """The UID of what controls an object."""
    for reference in (thing.get("metadata") or {}).get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference.get("uid"))
    return None


def is_of_router(pod: Mapping[str, Any]) -> bool:
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(names.COMPONENT_LABEL) == ROUTER_COMPONENT)


def place(
    deployment: str,
    uid: str,
    pods: Iterable[Mapping[str, Any]],
    workloads: Iterable[Mapping[str, Any]] = (),
    member: Callable[[Mapping[str, Any]], Member] = member_of,
) -> Placed:
    """``deployment``, ``uid``: its name and UID. ``pods``: of its namespace, those that bear its labels or that it
    controls; a router's are left out. ``workloads``: Kueue's, of the namespace. ``member``: member_of, or what
    remembers its answers."""
    members: dict[Key, list[Member]] = {}
    strangers, unplaced = [], []
    for pod in pods:
        if is_of_router(pod):
            continue
        key = replica_key(pod, deployment)
        if controller_uid(pod) != uid:
            if key is not None:
                strangers.append(str(pod["metadata"]["name"]))
        elif key is None:
            unplaced.append(member(pod))
        else:
            members.setdefault(key, []).append(member(pod))
    found = {key: Replica(key, tuple(those)) for key, those in members.items()}
    for key, workload in _by_place(deployment, workloads, found).items():
        found[key] = Replica(key, found[key].members if key in found else (), workload)
    return Placed(found, tuple(sorted(strangers)), tuple(unplaced))


def _by_place(
    deployment: str, workloads: Iterable[Mapping[str, Any]], found: Mapping[Key, Replica]
) -> dict[Key, Workload]:
    """A Pod group's Workload has the group's name, ``<deployment>.<role>.<ordinal>``, and the group's Pods as owners:
    one whose Pods are all another's is another's."""
    placed: dict[Key, Workload] = {}
    prefix = f"{deployment}."
    for workload in workloads:
        metadata = workload["metadata"]
        role, dot, ordinal = str(metadata["name"]).removeprefix(prefix).rpartition(".")
        if not str(metadata["name"]).startswith(prefix) or not dot or not ordinal.isdecimal() or not ordinal.isascii():
            continue
        key = Key(role, int(ordinal))
        owners = {str(owner.get("uid")) for owner in metadata.get("ownerReferences") or ()}
        ours = {member.uid for member in found[key].members} if key in found else set()
        if not owners or key not in found or ours & owners:
            placed[key] = Workload(str(metadata["uid"]), str(metadata["name"]), str(metadata["resourceVersion"]))
    return placed
