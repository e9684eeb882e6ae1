"""An API server in memory with the calls of operator_glue.kube.Kube, one kubelet's worth of life, and faults.

Preconditions, resourceVersions, finalizers, generateName and a Pod's two-step deletion are as on the real one
(tests/operator/e2e runs there). ``caches`` is what the operator's reflectors would hold: as old as the last ``sync``.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any

from operator_glue.kube import Conflict, Forbidden, Invalid, Kube, NotFound, Object, Resource, Unreachable
from operator_glue.runtime.controller import Caches

Objects = list[Object]


class Killed(BaseException):
    """The process ends here. No handler of the operator's catches it."""


class FakeKube(Kube):
    """``die_before``: the number of the write before which the process ends. ``lose``: of the write whose answer is
    lost. ``refuse``: kinds that a quota refuses. ``writes``: made so far."""

    def __init__(self) -> None:
        self.things: dict[tuple[str, str, str], Object] = {}
        self._numbers = itertools.count(1)
        self.writes: list[str] = []
        self.die_before = self.lose = -1
        self.refuse: set[str] = set()
        self.failed = lambda _: None

    # ---- as Kube

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        found = self.things.get(self._place(resource, namespace, name))
        if found is None:
            raise NotFound(f"{resource.plural} {name} not found", 404)
        return copy.deepcopy(found)

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> tuple[Objects, str]:
        del fields
        found = [
            copy.deepcopy(thing)
            for (plural, where, _), thing in self.things.items()
            if plural == resource.plural
            and namespace in (None, where)
            and (labels or {}).items() <= (thing["metadata"].get("labels") or {}).items()
        ]
        return found, "1"

    async def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        def make() -> Object:
            if resource.plural in self.refuse:
                raise Forbidden("exceeded quota: pods", 403)
            thing = copy.deepcopy(body)
            metadata = thing["metadata"]
            number = next(self._numbers)
            metadata.setdefault("name", f"{metadata.get('generateName', '')}{number:05x}")
            metadata |= {"uid": f"uid-{number}", "namespace": namespace, "creationTimestamp": f"2026-{number:06d}"}
            place = self._place(resource, namespace, metadata["name"])
            if place in self.things:
                raise Conflict("there already", 409)
            return self._store(place, thing)

        return self._write(f"create {resource.plural}", make)

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Any,
        kind: str = "",
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> Object:
        del kind, subresource
        place = self._place(resource, namespace, name)

        def change() -> Object:
            if field_manager is not None:  # server-side apply
                thing = copy.deepcopy(body)
                before = self.things.get(place)
                number = next(self._numbers)
                uid = before["metadata"]["uid"] if before else f"uid-{number}"
                thing["metadata"] |= {"uid": uid, "namespace": namespace}
                return self._store(place, thing)
            if place not in self.things:
                raise NotFound(f"{resource.plural} {name} not found", 404)
            thing = copy.deepcopy(self.things[place])
            for operation in body:
                _apply(thing, operation)
            if thing["metadata"]["resourceVersion"] != self.things[place]["metadata"]["resourceVersion"]:
                raise Conflict("the object has been modified", 409)
            return self._store(place, thing)

        return self._write(f"patch {resource.plural}", change)

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str, resource_version: str | None = None
    ) -> Object:
        place = self._place(resource, namespace, name)

        def remove() -> Object:
            found = self.things.get(place)
            if found is None:
                raise NotFound(f"{resource.plural} {name} not found", 404)
            if found["metadata"]["uid"] != uid:
                raise Conflict("another UID", 409)
            if resource_version not in (None, found["metadata"]["resourceVersion"]):
                raise Conflict("another version", 409)
            is_bound_pod = resource.plural == "pods" and bool(found["spec"].get("nodeName"))
            if is_bound_pod or found["metadata"].get("finalizers"):
                thing = copy.deepcopy(found)
                thing["metadata"].setdefault("deletionTimestamp", "2026-12-01T00:00:00Z")
                return {**self._store(place, thing), "kind": found.get("kind", "Pod")}
            del self.things[place]
            return {**copy.deepcopy(found), "kind": "Status"}

        return self._write(f"delete {resource.plural}", remove)

    def _write(self, what: str, effect: Any) -> Object:
        number = len(self.writes)
        if number == self.die_before:
            raise Killed
        result: Object = effect()
        self.writes.append(what)
        if number == self.lose:
            raise Unreachable("no answer")
        return result

    def _place(self, resource: Resource, namespace: str | None, name: str) -> tuple[str, str, str]:
        return resource.plural, str(namespace) if resource.namespaced else "", name

    def _store(self, place: tuple[str, str, str], thing: Object) -> Object:
        before = self.things.get(place)
        if before is not None and _bare(before) == _bare(thing):
            return copy.deepcopy(before)  # nothing changed, so no new version
        thing["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.things[place] = thing
        gone = thing["metadata"].get("deletionTimestamp") and not thing["metadata"].get("finalizers")
        if gone and place[0] != "pods":
            del self.things[place]
        return copy.deepcopy(thing)

    # ---- others

    def put(self, resource: Resource, namespace: str, thing: Object) -> Object:
        """By another hand."""
        number = next(self._numbers)
        thing["metadata"] = {"uid": f"uid-{number}", "namespace": namespace, **thing["metadata"]}
        return self._store(self._place(resource, namespace, thing["metadata"]["name"]), thing)

    def pods(self) -> Objects:
        return [thing for (plural, _, _), thing in self.things.items() if plural == "pods"]

    def kubelet(self) -> None:
        """Pods that were made are bound, run and are Ready; those that are deleted have drained and are gone."""
        for place, thing in list(self.things.items()):
            if place[0] == "deployments.apps" or thing.get("kind") == "Deployment":
                self._store(place, {**copy.deepcopy(thing), "status": {"readyReplicas": 1}})
            if place[0] != "pods":
                continue
            if thing["metadata"].get("deletionTimestamp"):
                del self.things[place]
            elif "nodeName" not in thing["spec"]:
                bound = copy.deepcopy(thing)
                bound["spec"]["nodeName"] = "n1"
                bound["status"] = {
                    "phase": "Running",
                    "podIP": f"10.0.0.{int(thing['metadata']['uid'].rpartition('-')[2]) % 250}",
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{"name": "main", "started": True, "state": {"running": {}}}],
                }
                self._store(place, bound)

    def sync(self, caches: Caches) -> None:
        """The watches have told of everything."""
        stores = {
            "modeldeployments": caches.deployments,
            "pods": caches.pods,
            "services": caches.services,
            "deployments": caches.routers,
            "workloads": caches.workloads,
        }
        for plural, store in stores.items():
            there = {(where, name): thing for (kind, where, name), thing in self.things.items() if kind == plural}
            for place in store.places() - set(there):
                store.remove(place)
            for thing in there.values():
                store.put(copy.deepcopy(thing))


def _bare(thing: Object) -> Object:
    metadata = {key: value for key, value in thing["metadata"].items() if key != "resourceVersion"}
    return {**thing, "metadata": metadata}


def _apply(thing: Object, operation: Mapping[str, Any]) -> None:
    """One operation of a JSON patch, of those that the operator makes."""
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    where: Any = thing
    for part in path:
        if part not in where:
            raise Invalid("the path is not there", 422)
        where = where[part]
    if operation["op"] == "test":
        if where.get(last) != operation["value"]:
            raise Invalid("the test failed", 422)
    elif operation["op"] == "remove":
        if last not in where:
            raise Invalid("nothing to remove", 422)
        del where[last]
    else:
        where[last] = copy.deepcopy(operation["value"])
