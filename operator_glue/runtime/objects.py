"""Keeps the objects beside the Pods as they are rendered: by server-side apply, when either has changed."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from operator_glue.kube import (
    APPLY_PATCH,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    INFERENCE_POOLS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Forbidden,
    Kube,
    NotFound,
    Object,
    Resource,
)
from operator_glue.names import MANAGED_BY, MANAGED_BY_LABEL
from operator_glue.reconcile.objects import Named, name_of
from operator_glue.reconcile.placing import controller_uid

FIELD_MANAGER = MANAGED_BY
RESOURCES: Mapping[str, Resource] = {
    "Deployment": DEPLOYMENTS,
    "Service": SERVICES,
    "InferencePool": INFERENCE_POOLS,
    "ServiceAccount": SERVICE_ACCOUNTS,
    "Secret": SECRETS,
    "Role": ROLES,
    "RoleBinding": ROLE_BINDINGS,
    "ClusterRole": CLUSTER_ROLES,
    "ClusterRoleBinding": CLUSTER_ROLE_BINDINGS,
}

_log = logging.getLogger(__name__)


class Taken(Exception):  # noqa: N818 - a finding, not a fault of ours
    """An object's name belongs to somebody else. The message is a sentence."""


class Keeper:
    """Of all deployments. What is as it was applied is not applied again, until it is heard to have changed."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        #: By the deployment's UID and the object: a digest of what was applied, and the version that came of it.
        self._applied: dict[str, dict[Named, tuple[str, str]]] = {}

    async def apply(self, uid: str, namespace: str, thing: Object) -> bool:
        """Whether it had to be. ``uid``: the deployment's. Taken, KubeError."""
        named, digest = name_of(thing), _digest(thing)
        known = self._applied.setdefault(uid, {})
        if named in known and known[named][0] == digest:
            return False
        resource = RESOURCES[named.kind]
        if named not in known:
            await self._check_owner(resource, uid, namespace, named)
        made = await self._kube.patch(resource, namespace, named.name, thing, APPLY_PATCH, field_manager=FIELD_MANAGER)
        known[named] = (digest, str(made["metadata"]["resourceVersion"]))
        return True

    async def _check_owner(self, resource: Resource, uid: str, namespace: str, named: Named) -> None:
        try:
            found = await self._kube.get(resource, namespace, named.name)
        except NotFound:
            return
        if not is_ours(resource, found, uid):
            raise Taken(f"{named.kind} {named.name} is there already and belongs to {_owner(found)}.")

    def heard(self, uid: str, thing: Object, kind: str, *, gone: bool) -> bool:
        """The watch told of an object of the deployment; whether it is not as it was applied."""
        known, named = self._applied.get(uid, {}), Named(kind, str(thing["metadata"]["name"]))
        if named in known and not gone and known[named][1] == thing["metadata"]["resourceVersion"]:
            return False
        return known.pop(named, None) is not None or gone

    def forget(self, uid: str | None = None) -> None:
        """Applies anew, what nobody watches too. None: of all deployments."""
        if uid is None:
            self._applied.clear()
        else:
            self._applied.pop(uid, None)

    async def remove(self, uid: str, namespace: str, named: Iterable[Named]) -> int:
        """Those that are there and are the deployment's, in this order; how many there were."""
        removed = 0
        for one in named:
            removed += await self._remove(uid, namespace, one)
            self._applied.get(uid, {}).pop(one, None)
        return removed

    async def _remove(self, uid: str, namespace: str, one: Named) -> bool:
        resource = RESOURCES[one.kind]
        try:
            found = await self._kube.get(resource, namespace, one.name)
            if not is_ours(resource, found, uid):
                return False
            if found["metadata"].get("deletionTimestamp") is None:
                await self._kube.delete(resource, namespace, one.name, uid=str(found["metadata"]["uid"]))
        except NotFound:
            return False
        except Forbidden as error:  # installed without the rights for a router that it then never made
            _log.debug("%s %s: %s", one.kind, one.name, error)
            return False
        return True


def is_ours(resource: Resource, thing: Mapping[str, Any], uid: str) -> bool:
    """Of an object in no namespace its name tells: it has the deployment's in it, with colons between."""
    if not resource.namespaced:
        return (thing["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGED_BY
    return controller_uid(thing) == uid


def _owner(thing: Mapping[str, Any]) -> str:
    for reference in thing["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return f"{reference.get('kind')} {reference.get('name')}"
    return "nobody that it names"


def _digest(thing: Object) -> str:
    return hashlib.sha256(json.dumps(thing, sort_keys=True).encode()).hexdigest()
