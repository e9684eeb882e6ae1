"""What the retirement protocol asks to be looked up: reads of members, the routers' lists, endpoints, live Pods.

Proofs are of now: what is asked here is asked of the API server and the routers themselves, not of a cache.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from operator_glue import names
from operator_glue.kube import ENDPOINT_SLICES, PODS, SECRETS, Forbidden, Kube, KubeError, NotFound, Object
from operator_glue.member_read import read_member
from operator_glue.model import ModelDeployment, Router, RouterName
from operator_glue.reconcile.placing import Placed, controller_uid
from operator_glue.reconcile.pods import is_ready
from operator_glue.render.picker import METRICS_PORT as PICKER_METRICS_PORT
from operator_glue.render.picker import TOKEN_KEY, metrics_reader_name
from operator_glue.render.router_parts import ROUTER_COMPONENT, ROUTER_CONTAINER, Given, router_name
from operator_glue.render.routers import ROUTER_PORT
from operator_glue.retirement.data import Endpoints, Look, Looked, Member, Operation, RouterPod, View, ViewFault
from operator_glue.retirement.members import member_of
from operator_glue.retirement.persisted import epoch_s
from operator_glue.retirement.reasons import Reason
from operator_glue.routers.asking import RouterAt
from operator_glue.routers.picker import ask_pickers
from operator_glue.routers.workers import ask_all

#: A key that has changed is known after so long at the latest.
KEY_S = 15.0

_SERVICE_LABEL = "kubernetes.io/service-name"


@dataclass(frozen=True)
class Target:
    """The deployment that is looked at. ``operation``: that runs, or None."""

    namespace: str
    uid: str
    deployment: ModelDeployment
    placed: Placed
    operation: Operation | None


class Looker:
    """``clock``: seconds since the epoch."""

    def __init__(self, kube: Kube, clock: Callable[[], float]) -> None:
        self._kube, self._clock = kube, clock
        self._keys: dict[tuple[str, str, str], tuple[float, str | None]] = {}

    async def look_up(self, target: Target, ask: Look) -> Looked:
        """In the order that the proof needs: members first, then the routers. KubeError where the API server says
        nothing, which is no observation."""
        live = await self._live(target) if ask.live else None
        reads = await asyncio.gather(
            *(
                read_member(self._kube, target.namespace, order.member, order.command, self._clock)
                for order in ask.reads
            )
        )
        router_pods: tuple[RouterPod, ...] | None = None
        views: tuple[View, ...] = ()
        router = target.deployment.spec.router
        if ask.views and router is not None:
            router_pods, views = await self._ask_routers(target.namespace, target.deployment, router)
        endpoints = await self._endpoints(target) if ask.endpoints else None
        neighbours = await self._neighbours(ask.neighbours) if ask.neighbours else None
        serving = [
            member
            for replica in (target.placed.replicas.values() if ask.views else ())
            for member in replica.members
            if member.serving and is_ready(member)
        ]
        return Looked(
            router_pods=router_pods,
            views=views,
            serving_names=frozenset(member.name for member in serving),
            # Its primary address: a router lists no other.
            serving_addresses=frozenset(member.addresses[0] for member in serving if member.addresses),
            reads=tuple(reads),
            endpoints=endpoints,
            neighbours=neighbours,
            live=live,
        )

    async def _live(self, target: Target) -> tuple[Member, ...]:
        assert target.operation is not None
        key = target.operation.key
        labels = {
            **names.role_selector(target.deployment.metadata.name, key.role),
            names.ORDINAL_LABEL: str(key.ordinal),
        }
        pods, _ = await self._kube.list(PODS, target.namespace, labels=labels)
        return tuple(member_of(pod) for pod in pods if controller_uid(pod) == target.uid)

    # ---- routers

    async def routed(self, namespace: str, deployment: ModelDeployment) -> frozenset[str] | None:
        """Addresses or names of the engines that every Pod of the router sends requests to (Pods that end aside); None:
        there is no router, or no Pod of it."""
        router = deployment.spec.router
        if router is None:
            return None
        pods, views = await self._ask_routers(namespace, deployment, router)
        staying = {pod.uid for pod in pods if not pod.terminating}
        if not staying:
            return None
        each = [view.listed - view.unhealthy for view in views if view.pod_uid in staying]
        return frozenset.intersection(*each)

    async def _ask_routers(
        self, namespace: str, deployment: ModelDeployment, router: Router
    ) -> tuple[tuple[RouterPod, ...], tuple[View, ...]]:
        deployed = deployment.metadata.name
        labels = names.role_selector(deployed, ROUTER_COMPONENT)
        pods, _ = await self._kube.list(PODS, namespace, labels=labels)
        pods = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
        at = routers_at(router, pods)
        without = [
            View(
                str(pod["metadata"]["uid"]),
                self._clock(),
                ViewFault(Reason.ROUTER_UNREACHABLE, "it has no address yet"),
            )
            for pod in pods
            if not _address(pod)
        ]
        if router.name is RouterName.LLM_D_ROUTER:
            token = await self._key(namespace, metrics_reader_name(deployed), TOKEN_KEY)
            pool = Given.read(router.extra_args).values.get("--pool-name") or router_name(deployed)
            views = await ask_pickers(at, token, pool, self._clock)
        else:
            views = await ask_all(at, await self.key(namespace, router), router.name, self._clock)
        return tuple(map(router_pod, pods)), (*views, *without)

    async def key(self, namespace: str, router: Router) -> str | None:
        """The router's API key; None where it has none, or where it cannot be read: the router then says so."""
        reference = router.api_key_secret_ref
        return None if reference is None else await self._key(namespace, reference.name, reference.key)

    async def _key(self, namespace: str, secret: str, key: str) -> str | None:
        place, now = (namespace, secret, key), self._clock()
        read_at, known = self._keys.get(place, (float("-inf"), None))
        if 0 <= now - read_at < KEY_S:
            return known
        try:
            data = (await self._kube.get(SECRETS, namespace, secret)).get("data") or {}
            known = base64.b64decode(data[key]).decode() if key in data else None
        except (NotFound, Forbidden, ValueError):
            known = None
        self._keys[place] = (now, known)
        return known

    # ---- endpoints, neighbours

    async def _endpoints(self, target: Target) -> Endpoints:
        """In every Service's slices but those of the replica's own headless Service, which names its Pods to the end
        and fronts nobody."""
        assert target.operation is not None
        key, taken_at = target.operation.key, self._clock()
        own = names.replica_name(target.deployment.metadata.name, key.role, key.ordinal)
        replica = target.placed.replicas.get(key)
        members = replica.members if replica is not None else ()
        slices, _ = await self._kube.list(ENDPOINT_SLICES, target.namespace)
        return Endpoints(taken_at, is_listed(slices, own, members))

    async def _neighbours(self, nodes: Sequence[str]) -> list[Object] | None:
        """None where the operator may not see other namespaces: then who declares a port there is not known."""
        try:
            found: list[Object] = []
            for node in nodes:
                pods, _ = await self._kube.list(PODS, None, fields={"spec.nodeName": node})
                found += pods
            return found
        except KubeError:
            return None


def is_listed(slices: Sequence[Mapping[str, Any]], own_service: str, members: Sequence[Member]) -> bool:
    """Whether any of ``slices`` names one of ``members``, ready or not."""
    uids = {member.uid for member in members}
    addresses = {address for member in members for address in member.addresses}
    for piece in slices:
        if ((piece["metadata"].get("labels") or {}).get(_SERVICE_LABEL)) == own_service:
            continue
        for endpoint in piece.get("endpoints") or ():
            if (endpoint.get("targetRef") or {}).get("uid") in uids or addresses & set(endpoint.get("addresses") or ()):
                return True
    return False


def routers_at(router: Router, pods: Sequence[Mapping[str, Any]]) -> list[RouterAt]:
    """Where each Pod of the router is asked; those without an address are left out."""
    given = Given.read(router.extra_args)
    if router.name is RouterName.LLM_D_ROUTER:
        port = given.port("--metrics-port", PICKER_METRICS_PORT)
    else:
        port = given.port("--port", ROUTER_PORT)
    return [RouterAt(str(pod["metadata"]["uid"]), _address(pod), port) for pod in pods if _address(pod)]


def router_pod(pod: Mapping[str, Any]) -> RouterPod:
    metadata, status = pod["metadata"], pod.get("status") or {}
    process, started_at = None, None
    for one in status.get("containerStatuses") or ():
        if one.get("name") == ROUTER_CONTAINER:
            running = (one.get("state") or {}).get("running") or {}
            if running.get("startedAt"):
                process, started_at = one.get("containerID"), epoch_s(str(running["startedAt"]))
    return RouterPod(
        str(metadata["uid"]), str(metadata["name"]), metadata.get("deletionTimestamp") is not None, process, started_at
    )


def _address(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")
