"""The metadata that every rendered object bears. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operator_glue.model import API_VERSION, KIND, ModelDeployment

#: Stands where the cluster's uid would, when a manifest is rendered that no cluster has seen. Not to be applied: the
#: garbage collector removes what an owner of this uid owns.
NO_UID = "00000000-0000-0000-0000-000000000000"


def owner_references(deployment: ModelDeployment) -> list[dict[str, Any]]:
    """That the ModelDeployment controls the object."""
    return [
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": deployment.metadata.name,
            "uid": deployment.metadata.uid or NO_UID,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def object_metadata(
    deployment: ModelDeployment,
    naming: Mapping[str, str],
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """``naming``: name or generateName. The namespace is the deployment's, left out where it has none."""
    metadata: dict[str, Any] = dict(naming)
    if deployment.metadata.namespace is not None:
        metadata["namespace"] = deployment.metadata.namespace
    metadata["labels"] = dict(labels)
    if annotations:
        metadata["annotations"] = dict(annotations)
    metadata["ownerReferences"] = owner_references(deployment)
    return metadata
