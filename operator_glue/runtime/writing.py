"""Issues what the protocol and the plans ask for, in their order.

A write that does not find what it was decided on ends the pass: the next one decides anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from operator_glue import names
from operator_glue.kube import (
    JSON_PATCH,
    MODEL_DEPLOYMENTS,
    PODS,
    WORKLOADS,
    Conflict,
    Invalid,
    Kube,
    NotFound,
    Object,
)
from operator_glue.model import Router
from operator_glue.reconcile.placing import controller_uid
from operator_glue.retirement.data import (
    ClearRetry,
    DeletePod,
    DeleteWorkload,
    Key,
    Member,
    RouteIn,
    RouteOut,
    SetServing,
    Write,
    WriteStatus,
)
from operator_glue.retirement.members import member_of
from operator_glue.retirement.persisted import to_status
from operator_glue.routers.asking import RouterAt
from operator_glue.routers.workers import route_in, route_out, worker_url
from operator_glue.runtime.ahead import Ahead
from operator_glue.runtime.metrics import Metrics

_log = logging.getLogger(__name__)


class Cut(Exception):  # noqa: N818 - how a pass ends, not a fault
    """The pass is over: something has changed since it was looked at. The message says what."""


class Writer:
    """For one pass over one ModelDeployment. ``thing``: it, as of the last write.

    ``may_write``: raises where the Lease is held no longer, for what does not go through the API server.
    """

    def __init__(
        self,
        kube: Kube,
        ahead: Ahead,
        metrics: Metrics,
        thing: Object,
        may_write: Callable[[], None],
    ) -> None:
        self._kube, self._ahead, self._metrics, self.thing = kube, ahead, metrics, thing
        self._may_write = may_write

    @property
    def namespace(self) -> str:
        return str(self.thing["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.thing["metadata"]["name"])

    # ---- the ModelDeployment itself

    async def write_status(self, status: Mapping[str, Any]) -> None:
        """The whole of it, under the resourceVersion that it was decided on."""
        if status == (self.thing.get("status") or {}):
            return
        await self._patch_self([{"op": "add", "path": "/status", "value": dict(status)}], "status")

    async def write_finalizers(self, finalizers: Sequence[str]) -> None:
        await self._patch_self([{"op": "add", "path": "/metadata/finalizers", "value": list(finalizers)}], None)

    async def _patch_self(self, operations: list[dict[str, Any]], subresource: str | None) -> None:
        version = self.thing["metadata"]["resourceVersion"]
        # A patch that names another version than the stored one is a conflict.
        locked = [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *operations]
        try:
            after = await self._kube.patch(
                MODEL_DEPLOYMENTS, self.namespace, self.name, locked, JSON_PATCH, subresource=subresource
            )
        except (Conflict, NotFound) as error:
            raise Cut(str(error)) from None
        after["metadata"].pop("managedFields", None)
        self._ahead.wrote(self.thing, after)
        self.thing = after

    # ---- the protocol's writes

    async def issue(
        self,
        writes: Sequence[Write],
        pods: Mapping[str, Object],
        router: Router | None,
        routers: Mapping[str, RouterAt],
        router_key: str | None,
        engine_port: Callable[[str], int],
    ) -> None:
        """``pods``: the deployment's, by UID. ``routers``: the router's Pods, by UID. ``engine_port``: of a role, where
        a router asks. Cut, KubeError."""
        for write in writes:
            if isinstance(write, WriteStatus):
                await self.write_status(merged(self.thing.get("status") or {}, to_status(write.persisted)))
            elif isinstance(write, SetServing):
                await self.set_serving(write, pods)
            elif isinstance(write, DeletePod):
                await self.delete_pod(write, pods)
            elif isinstance(write, DeleteWorkload):
                await self.delete_workload(write)
            elif isinstance(write, ClearRetry):
                await self._clear_retry(write)
            elif router is not None:
                await self._route(write, pods, router, routers, router_key, engine_port)

    async def set_serving(self, write: SetServing, pods: Mapping[str, Object]) -> None:
        path = f"/metadata/labels/{_pointer(names.SERVING_LABEL)}"
        change = (
            {"op": "add", "path": path, "value": names.SERVING} if write.serving else {"op": "remove", "path": path}
        )
        try:
            after = await self._kube.patch(PODS, self.namespace, write.name, [_has_uid(write.uid), change], JSON_PATCH)
        except (NotFound, Conflict, Invalid) as error:  # another Pod, or the label is as it is to be
            raise Cut(f"Pod {write.name}: {error}") from None
        self._wrote(pods.get(write.uid), after)

    async def delete_pod(self, write: DeletePod, pods: Mapping[str, Object]) -> None:
        """Gone already is done."""
        try:
            after = await self._kube.delete(
                PODS, self.namespace, write.name, uid=write.uid, resource_version=write.resource_version
            )
        except NotFound:
            return
        except Conflict as error:
            raise Cut(f"Pod {write.name}: {error}") from None
        self._metrics.pods.labels("delete").inc()
        if after.get("kind") == "Pod":
            self._wrote(pods.get(write.uid), after)

    async def delete_workload(self, write: DeleteWorkload) -> None:
        """Its quota is free as soon as it is deleted: the Pods are looked up live."""
        for member in await self.live(write.key):
            if not member.ended:
                raise Cut(f"Workload {write.name} stays: Pod {member.name} has not ended.")
        try:
            await self._kube.delete(WORKLOADS, self.namespace, write.name, uid=write.uid)
        except NotFound:
            return
        except Conflict as error:
            raise Cut(f"Workload {write.name}: {error}") from None

    async def live(self, key: Key) -> list[Member]:
        labels = {**names.role_selector(self.name, key.role), names.ORDINAL_LABEL: str(key.ordinal)}
        pods, _ = await self._kube.list(PODS, self.namespace, labels=labels)
        return [member_of(pod) for pod in pods if controller_uid(pod) == self.thing["metadata"]["uid"]]

    async def _clear_retry(self, write: ClearRetry) -> None:
        path = f"/metadata/annotations/{_pointer(names.RETRY_ANNOTATION)}"
        operations = [{"op": "test", "path": path, "value": write.value}, {"op": "remove", "path": path}]
        try:
            after = await self._kube.patch(MODEL_DEPLOYMENTS, self.namespace, self.name, operations, JSON_PATCH)
        except (NotFound, Conflict, Invalid) as error:  # it says something else by now
            raise Cut(str(error)) from None
        self._wrote(self.thing, after)
        self.thing = after

    async def _route(
        self,
        write: RouteOut | RouteIn,
        pods: Mapping[str, Object],
        router: Router,
        routers: Mapping[str, RouterAt],
        key: str | None,
        engine_port: Callable[[str], int],
    ) -> None:
        at = routers.get(write.router_uid)
        if at is None:
            return  # it has gone since; the next pass asks those that are there
        self._may_write()
        if isinstance(write, RouteOut):
            said = await route_out(at, key, router.name, write.handle)
            _log.info("router Pod %s asked to remove %s: %s", at.address, write.handle, said)
            return
        pod = pods.get(write.member_uid)
        address = ((pod or {}).get("status") or {}).get("podIP")
        if pod is None or not address:
            return
        url = worker_url(str(address), engine_port(str(pod["metadata"]["labels"][names.COMPONENT_LABEL])))
        said = await route_in(at, key, router.name, url)
        _log.info("router Pod %s asked to take %s: %s", at.address, url, said)

    # ---- Pods that are made

    async def create_pod(self, pod: Object) -> None:
        made = await self._kube.create(PODS, self.namespace, pod)
        made["metadata"].pop("managedFields", None)
        self._metrics.pods.labels("create").inc()
        self._ahead.wrote(None, made)

    def _wrote(self, before: Object | None, after: Object) -> None:
        after["metadata"].pop("managedFields", None)
        if before is not None and before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]:
            self._ahead.wrote(before, after)


def merged(status: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """``ours``: the protocol's part; what of it is null or empty goes."""
    found = {**status, **ours}
    return {key: value for key, value in found.items() if key not in ours or value not in (None, [])}


def _has_uid(uid: str) -> dict[str, str]:
    return {"op": "test", "path": "/metadata/uid", "value": uid}


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
