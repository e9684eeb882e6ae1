"""The Services of a role: one that fronts it, and one per replica of several Pods that gives them names. Pure."""

from __future__ import annotations

from typing import Any

from operator_glue import names
from operator_glue.model import ModelDeployment, Role
from operator_glue.render.command import HTTP_PORT_NAME, front_port
from operator_glue.render.metadata import object_metadata


def role_service(deployment: ModelDeployment, role: Role) -> dict[str, Any]:
    """Fronts the declared port of the role's serving Pods: leaders alone, since only they bear the serving label."""
    deployed = deployment.metadata.name
    spec = {
        "selector": {**names.role_selector(deployed, role.name), names.SERVING_LABEL: names.SERVING},
        "ports": [_port(deployment, role)],
    }
    labels = names.role_labels(deployed, role.name)
    return _service(deployment, names.role_service_name(deployed, role.name), labels, spec)


def replica_service(deployment: ModelDeployment, role: Role, ordinal: int) -> dict[str, Any]:
    """Headless: names for the Pods of a replica, from their first moment to their last (they drain by them)."""
    deployed = deployment.metadata.name
    place = {names.ORDINAL_LABEL: str(ordinal)}
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {**names.role_selector(deployed, role.name), **place},
        "ports": [_port(deployment, role)],
    }
    labels = {**names.role_labels(deployed, role.name), **place}
    return _service(deployment, names.replica_name(deployed, role.name, ordinal), labels, spec)


def _service(deployment: ModelDeployment, name: str, labels: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    metadata = object_metadata(deployment, {"name": name}, labels)
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _port(deployment: ModelDeployment, role: Role) -> dict[str, Any]:
    port = front_port(deployment, role)
    return {"name": HTTP_PORT_NAME, "port": port, "targetPort": port}
