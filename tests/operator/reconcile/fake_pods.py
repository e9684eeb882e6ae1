"""Pods of a ModelDeployment as the API gives them, with what the plans look at and no more."""

from __future__ import annotations

import itertools
from typing import Any

from operator_glue import names
from operator_glue.reconcile.placing import Placed, place
from operator_glue.reconcile.pods import KUEUE_FINALIZER

Object = dict[str, Any]
DEPLOYMENT, UID = "llama", "uid-llama"
_numbers = itertools.count()


def pod(
    ordinal: int = 0,
    index: int | None = None,
    *,
    role: str = "server",
    size: int = 1,
    hashed: str = "h1",
    ready: bool = True,
    ran: bool = True,
    serving: bool | None = None,
    phase: str = "Running",
    terminating: bool = False,
    kueue: bool = False,
    owner: str = UID,
    created: str = "2026-12-01T00:00:00Z",
) -> Object:
    """``index`` None: of a replica of one Pod. ``serving`` None: as it is made."""
    number = next(_numbers)
    labels = {
        names.INSTANCE_LABEL: DEPLOYMENT,
        names.COMPONENT_LABEL: role,
        names.ORDINAL_LABEL: str(ordinal),
        names.MANAGED_BY_LABEL: names.MANAGED_BY,
    }
    if index is not None:
        labels[names.MEMBER_INDEX_LABEL] = str(index)
    if serving if serving is not None else not index:
        labels[names.SERVING_LABEL] = names.SERVING
    metadata: Object = {
        "name": f"p{number}",
        "uid": f"u{number:06d}",
        "namespace": "models",
        "resourceVersion": str(number),
        "labels": labels,
        "annotations": {names.SPEC_HASH_ANNOTATION: hashed},
        "creationTimestamp": created,
        "ownerReferences": [{"kind": "ModelDeployment", "name": DEPLOYMENT, "uid": owner, "controller": True}],
    }
    if terminating:
        metadata["deletionTimestamp"] = "2026-12-01T01:00:00Z"
    if kueue:
        metadata["finalizers"] = [KUEUE_FINALIZER]
    main: Object = {"name": "main", "env": [{"name": names.REPLICA_SIZE_ENV, "value": str(size)}]}
    status: Object = {"phase": phase if ran else "Pending"}
    if ran:
        status["containerStatuses"] = [{"name": "main", "started": True, "restartCount": 0, "state": {"running": {}}}]
        status["conditions"] = [{"type": "Ready", "status": str(ready and phase == "Running")}]
    return {"metadata": metadata, "spec": {"nodeName": "n1", "containers": [main]}, "status": status}


def placed(*pods: Object, workloads: list[Object] | None = None) -> Placed:
    return place(DEPLOYMENT, UID, pods, workloads or [])


def name(thing: Object) -> str:
    return str(thing["metadata"]["name"])
