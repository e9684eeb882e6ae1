"""Passes by hand: the controller and its caches at the fake API server, with a clock that stands still."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fake_api import BOUND_S, FakeApi, serving

from operator_glue import names
from operator_glue.facts import ClusterFacts
from operator_glue.kube import DEPLOYMENTS, EVENTS, MODEL_DEPLOYMENTS, PODS, SERVICES, WORKLOADS, Kube, Object, Resource
from operator_glue.model import API_VERSION, KIND
from operator_glue.runtime.ahead import Ahead
from operator_glue.runtime.cache import Changed, Reflector, Store
from operator_glue.runtime.controller import Caches, Controller, Outcome
from operator_glue.runtime.metrics import Metrics
from operator_glue.runtime.objects import Keeper
from operator_glue.runtime.process import _deployment_of_workload, _deployments_of
from operator_glue.runtime.reading import Reader
from operator_glue.runtime.recorder import Recorder

NAMESPACE, NAME = "models", "llama"
NOW = 1_800_000_000.0


def model_deployment(**changes: Any) -> Object:
    """One role, two replicas. ``changes``: of the role."""
    role = {"name": "server", "replicas": 2, "terminationGracePeriodSeconds": 60, **changes}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "model": {"name": "org/model"},
            "engine": {"name": "vLLM", "image": "corp/engine:1"},
            "roles": [role],
            "retirement": {"withoutRouter": "ProveFromMember"},
        },
    }


class Operator:
    """A replica of the operator that leads. ``now``: its clock, seconds."""

    def __init__(self, api: FakeApi, kube: Kube) -> None:
        self.api, self.kube, self.now = api, kube, NOW
        self.may_write: Callable[[], None] = lambda: None
        self.caches = Caches(
            deployments=Store(),
            pods=Store(_deployments_of),
            services=Store(_deployments_of),
            routers=Store(_deployments_of),
            workloads=Store(_deployment_of_workload),
        )
        self.stores: dict[Resource, Store] = {
            MODEL_DEPLOYMENTS: self.caches.deployments,
            PODS: self.caches.pods,
            SERVICES: self.caches.services,
            DEPLOYMENTS: self.caches.routers,
            WORKLOADS: self.caches.workloads,
        }

        def clock() -> float:
            return self.now

        def check() -> None:
            self.may_write()

        fenced = kube.fenced(check, BOUND_S)
        self.facts = ClusterFacts(inference_pool=False)
        self.ahead, self.metrics = Ahead(clock), Metrics()
        self.controller = Controller(
            kube=fenced,
            caches=self.caches,
            ahead=self.ahead,
            reader=Reader(lambda: self.facts),
            keeper=Keeper(fenced),
            recorder=Recorder(fenced, "operator-0", clock),
            metrics=self.metrics,
            clock=clock,
            may_write=check,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Its caches are filled when it returns."""
        reflectors = [
            Reflector(self.kube, resource, None, store, self._changed(resource), labels=_labels(resource))
            for resource, store in self.stores.items()
        ]
        self._tasks = [asyncio.ensure_future(reflector.run()) for reflector in reflectors]
        await self.api.until(lambda: all(reflector.is_synced for reflector in reflectors))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _changed(self, resource: Resource) -> Changed:
        """As the process does."""

        def changed(before: Object | None, after: Object | None) -> None:
            for thing in (before, after):
                if thing is not None and resource == PODS:
                    self.ahead.heard(str(thing["metadata"]["uid"]))
            thing = after or before
            assert thing is not None
            if resource in (SERVICES, DEPLOYMENTS):
                kind = {SERVICES: "Service", DEPLOYMENTS: "Deployment"}[resource]
                owner = next(iter(thing["metadata"].get("ownerReferences") or [{"uid": ""}]))["uid"]
                self.controller.keeper.heard(owner, thing, kind, gone=after is None)
            if resource == PODS and after is None:
                self.controller.forget_pod(str(thing["metadata"]["uid"]))
            if resource == MODEL_DEPLOYMENTS and after is None:
                self.controller.forget(str(thing["metadata"]["uid"]))
            self.api.tell()

        return changed

    # ---- what a test does

    async def work(self) -> Outcome:
        return await self.controller.work(NAMESPACE, NAME)

    async def heard(self, *resources: Resource) -> None:
        """Until the caches show what is at the API server, of all kinds or of these."""
        for resource in resources or self.stores:
            store = self.stores[resource]
            await self.api.until(lambda: _versions(store) == _versions(_selected(self.api, resource)))  # noqa: B023

    async def settled_work(self) -> Outcome:
        """A pass by what is there now."""
        await self.heard()
        return await self.work()


def _labels(resource: Resource) -> dict[str, str] | None:
    return None if resource in (MODEL_DEPLOYMENTS, WORKLOADS) else {names.MANAGED_BY_LABEL: names.MANAGED_BY}


def _selected(api: FakeApi, resource: Resource) -> list[Object]:
    wanted = (_labels(resource) or {}).items()
    return [item for item in api.all(resource) if wanted <= (item["metadata"].get("labels") or {}).items()]


def _versions(items: Iterable[Object]) -> set[tuple[str, str]]:
    return {(str(item["metadata"]["uid"]), str(item["metadata"]["resourceVersion"])) for item in items}


@asynccontextmanager
async def operating(folder: Path, *things: Object) -> AsyncIterator[tuple[FakeApi, Operator]]:
    """``things``: ModelDeployments that are there when the operator begins."""
    async with serving(folder) as (api, kube):
        for thing in things:
            api.make(MODEL_DEPLOYMENTS, thing)
        operator = Operator(api, kube)
        try:
            await operator.start()
            yield api, operator
        finally:
            await operator.stop()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


# ---- the cluster around it


def deployment(api: FakeApi) -> Object:
    found = api.get(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
    assert found is not None
    return found


def status(api: FakeApi) -> Object:
    return dict(deployment(api).get("status") or {})


def condition(api: FakeApi, kind: str) -> tuple[str, str, str]:
    """Status, reason, message."""
    (found,) = (one for one in status(api)["conditions"] if one["type"] == kind)
    return found["status"], found["reason"], found["message"]


def spec(api: FakeApi, **changes: Any) -> None:
    """Of the first role."""
    api.edit(MODEL_DEPLOYMENTS, NAMESPACE, NAME, lambda thing: thing["spec"]["roles"][0].update(changes))


def ordinals(api: FakeApi) -> list[int]:
    """Of the Pods that are there, in their order."""
    return sorted(int(pod["metadata"]["labels"][names.ORDINAL_LABEL]) for pod in api.all(PODS, NAMESPACE))


def pod_of(api: FakeApi, ordinal: int) -> Object:
    (found,) = (pod for pod in api.all(PODS) if pod["metadata"]["labels"].get(names.ORDINAL_LABEL) == str(ordinal))
    return found


def edit_pod(api: FakeApi, pod: Object, change: Callable[[Object], Any]) -> Object:
    return api.edit(PODS, NAMESPACE, str(pod["metadata"]["name"]), change)


def ready(api: FakeApi, *pods: Object) -> None:
    """They run and are Ready; without ``pods``, all that run not yet and are not being deleted."""
    for pod in pods or api.all(PODS, NAMESPACE):
        if not pods and (pod["status"].get("phase") != "Pending" or pod["metadata"].get("deletionTimestamp")):
            continue
        edit_pod(api, pod, lambda item: _start(item, True))


def started(api: FakeApi, pod: Object) -> Object:
    """It runs, and is not Ready yet."""
    return edit_pod(api, pod, lambda item: _start(item, False))


def _start(pod: Object, is_ready: bool) -> None:
    number = int(str(pod["metadata"]["uid"]).removeprefix("uid-"))
    pod["spec"]["nodeName"] = "node-0"
    pod["status"] = {
        "phase": "Running",
        "podIP": f"10.0.0.{number}",
        "podIPs": [{"ip": f"10.0.0.{number}"}],
        "conditions": [{"type": "Ready", "status": str(is_ready)}],
        "containerStatuses": [
            {
                "name": names.MAIN_CONTAINER,
                "containerID": f"containerd://{number}",
                "restartCount": 0,
                "started": True,
                "state": {"running": {"startedAt": "2027-01-15T07:00:00Z"}},
            }
        ],
    }


def ended(api: FakeApi) -> int:
    """The Pods that are being deleted are gone; how many there were."""
    those = [pod for pod in api.all(PODS) if pod["metadata"].get("deletionTimestamp")]
    for pod in those:
        api.drop(PODS, str(pod["metadata"]["namespace"]), str(pod["metadata"]["name"]))
    return len(those)


def events(api: FakeApi) -> list[tuple[str, str]]:
    """Reason and message of each that was told, in order."""
    return [(call.body["reason"], call.body["message"]) for call in api.asked("POST", EVENTS)]


def reasons(api: FakeApi) -> list[str]:
    return [reason for reason, _ in events(api)]


def owned(thing: Object, by: Object) -> Object:
    """``thing`` with ``by``, a ModelDeployment, as its controller."""
    found = copy.deepcopy(thing)
    metadata = by["metadata"]
    found["metadata"]["ownerReferences"] = [
        {"apiVersion": API_VERSION, "kind": KIND, "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    ]
    return found
