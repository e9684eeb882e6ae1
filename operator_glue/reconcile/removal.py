"""The end of a ModelDeployment: what is deleted in which order until its finalizer goes. Pure.

Engine Pods first, which drain by their hooks; the router when none of them runs, since it has to take their answers to
the clients; each Workload when its Pods have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from operator_glue.names import DOMAIN
from operator_glue.reconcile.placing import Placed
from operator_glue.retirement.data import DeletePod, DeleteWorkload

#: On every ModelDeployment whose Pods the operator has made.
FINALIZER = f"{DOMAIN}/drain"


@dataclass(frozen=True)
class RemovalPlan:
    """``router``: the router's objects are to go, those in no namespace among them. ``done``: nothing is left, and the
    finalizer goes once the router's objects have. ``running``: Pods that have not ended."""

    deletes: tuple[DeletePod, ...]
    workloads: tuple[DeleteWorkload, ...]
    router: bool
    done: bool
    running: int


def plan_removal(placed: Placed) -> RemovalPlan:
    replicas = placed.replicas
    members = [*placed.unplaced, *(member for replica in replicas.values() for member in replica.members)]
    running = [member for member in members if not member.ended]
    workloads = tuple(
        DeleteWorkload(replica.workload.uid, replica.workload.name, replica.key)
        for replica in replicas.values()
        if replica.workload is not None and all(member.ended for member in replica.members)
    )
    left = members or any(replica.workload is not None for replica in replicas.values())
    return RemovalPlan(
        deletes=tuple(DeletePod(one.uid, one.name, None) for one in members if not one.terminating),
        workloads=workloads,
        router=not running,
        done=not left,
        running=len(running),
    )
