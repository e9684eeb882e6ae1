"""A small Kubernetes API server on the loopback, in the test's own loop: objects, watches, faults, no clock.

As Kubernetes 1.34 was seen to answer: a Pod on no node goes at once (MODIFIED, then DELETED) and is answered as a Pod,
other objects' deletes are answered with a Status, an expired watch is an ERROR event with the code 410. What a write
leaves as it was has no new resourceVersion.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

from aiohttp import WSMsgType, web

from operator_glue.kube import (
    APPLY_PATCH,
    DEPLOYMENTS,
    JSON_PATCH,
    MERGE_PATCH,
    MODEL_DEPLOYMENTS,
    PODS,
    Kube,
    Object,
    Resource,
)

HOST = "127.0.0.1"
#: A test that waits for longer has failed.
BOUND_S = 20.0
#: What has a subresource for its status.
WITH_STATUS = (MODEL_DEPLOYMENTS, PODS, DEPLOYMENTS)
STAMP = "2026-12-01T00:00:00Z"

Place = tuple[Resource, str, str]


class Refused(Exception):  # noqa: N818 - an answer
    """Answered with a Status. ``status``: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True)
class Call:
    """What was asked, as it came in. ``resource``: None for what is no object's path."""

    method: str
    resource: Resource | None
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    content_type: str
    body: Any

    @property
    def is_write(self) -> bool:
        return self.method != "GET"


@dataclass
class Gate:
    """Calls that wait where the API server has taken them and not begun them yet."""

    waiting: int = 0
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        self._open.set()


@dataclass
class _Fault:
    """``skip``: calls that are let through before. ``lost``: the write is done and its answer never comes."""

    takes: Callable[[Call], bool]
    refusal: Refused | None
    lost: bool
    skip: int
    times: int
    before: Callable[[], None] | None
    gate: Gate | None


@dataclass(frozen=True)
class _Event:
    version: int
    resource: Resource
    before: Object | None
    after: Object | None


@dataclass
class _Watch:
    """``at``: the last version that was sent. ``end``: how it is to end, None: not yet. ``raw``: lines to send."""

    resource: Resource
    namespace: str
    labels: str
    at: int
    end: bytes | None = None
    is_cut: bool = False
    raw: list[bytes] = field(default_factory=list)


#: Standard output of a command in a Pod; an exception: Refused.
Exec = Callable[[Object, list[str]], bytes]


class FakeApi:
    """``calls``: what was asked so far. ``version``: of the newest write; ``oldest``: that a watch can begin at."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.version, self.oldest = 100, 0
        #: Pages of a list are this long at most, whatever was asked for.
        self.page = 500
        self.exec: Exec = lambda _pod, _command: b""
        self._objects: dict[Place, Object] = {}
        self._history: list[_Event] = []
        self._faults: list[_Fault] = []
        self._watches: list[_Watch] = []
        self._begun: list[tuple[Resource, str]] = []
        self._held: set[Resource] = set()
        self._uids = itertools.count(1)
        self._waiting: list[asyncio.Future[None]] = []

    # ---- waiting for what happens

    def tell(self) -> None:
        """Something has happened: here, or in what watches."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, holds: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not holds():
                future = asyncio.get_running_loop().create_future()
                self._waiting.append(future)
                await future

        await asyncio.wait_for(wait(), BOUND_S)

    # ---- another hand

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return copy.deepcopy(self._objects.get((resource, namespace, name)))

    def all(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """By name."""
        found = [
            (place[2], item)
            for place, item in self._objects.items()
            if place[0] == resource and namespace in (None, place[1])
        ]
        return [copy.deepcopy(item) for _, item in sorted(found, key=lambda one: one[0])]

    def make(self, resource: Resource, body: Object) -> Object:
        return self._create(resource, str(body["metadata"].get("namespace") or ""), body)

    def edit(self, resource: Resource, namespace: str, name: str, change: Callable[[Object], Any]) -> Object:
        """Whatever ``change`` makes of it, status too."""
        after = copy.deepcopy(self._objects[resource, namespace, name])
        change(after)
        return copy.deepcopy(self._store((resource, namespace, name), after))

    def drop(self, resource: Resource, namespace: str, name: str) -> None:
        """Gone, whoever holds it."""
        self._gone((resource, namespace, name))

    def delete(self, resource: Resource, namespace: str, name: str) -> Object:
        """As a user's delete: with its finalizers, and a Pod's grace."""
        return self._delete((resource, namespace, name), {})

    # ---- faults

    def fault(
        self,
        method: str,
        resource: Resource,
        *,
        status: int = 0,
        message: str = "refused for the test",
        lost: bool = False,
        subresource: str | None = None,
        skip: int = 0,
        times: int = 1,
        before: Callable[[], None] | None = None,
    ) -> None:
        """``status`` 0 and not ``lost``: none, but ``before`` is called just before the call is begun."""

        def takes(call: Call) -> bool:
            same = call.method == method and call.resource == resource
            return same and subresource in (None, call.subresource)

        self.fault_where(takes, status=status, message=message, lost=lost, skip=skip, times=times, before=before)

    def fault_where(
        self,
        takes: Callable[[Call], bool],
        *,
        status: int = 0,
        message: str = "refused for the test",
        lost: bool = False,
        skip: int = 0,
        times: int = 1,
        before: Callable[[], None] | None = None,
    ) -> None:
        refusal = Refused(status, message) if status else None
        self._faults.append(_Fault(takes, refusal, lost, skip, times, before, None))

    def gate(self, method: str, resource: Resource, *, skip: int = 0, times: int = 1) -> Gate:
        """The next ``times`` calls after ``skip`` wait until it is released."""
        gate = Gate()
        takes = lambda call: call.method == method and call.resource == resource  # noqa: E731
        self._faults.append(_Fault(takes, None, False, skip, times, None, gate))
        return gate

    def forgive(self) -> None:
        """No fault is left."""
        self._faults.clear()

    def asked(self, method: str, resource: Resource, subresource: str = "") -> list[Call]:
        """Watches are no part of it."""
        return [
            call
            for call in self.calls
            if (call.method, call.resource, call.subresource) == (method, resource, subresource)
            and "watch" not in call.query
        ]

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.is_write]

    # ---- watches

    def watched(self, resource: Resource) -> list[str]:
        """The version that each watch so far was to begin at: those that run, that have ended, that were refused."""
        return [version for begun, version in self._begun if begun == resource]

    def hold(self, *resources: Resource) -> None:
        """Their watches are silent: whoever watches stays behind."""
        self._held |= set(resources)

    def release(self, *resources: Resource) -> None:
        self._held -= set(resources)
        self.tell()

    def end_watches(self, resource: Resource, rest: bytes = b"", *, cut: bool = False) -> None:
        """``rest``: what is still sent. ``cut``: the connection is closed, and the answer is not whole."""
        for watch in self._watches:
            if watch.resource == resource:
                watch.end, watch.is_cut = rest, cut
        self.tell()

    def send(self, resource: Resource, line: bytes) -> None:
        """To each that watches now."""
        for watch in self._watches:
            if watch.resource == resource:
                watch.raw.append(line)
        self.tell()

    def bookmark(self, resource: Resource) -> None:
        item = {"kind": "Bookmark", "metadata": {"resourceVersion": str(self.version)}}
        self.send(resource, _line("BOOKMARK", item))

    def compact(self) -> None:
        """No watch can begin at what has been so far."""
        self.version += 1
        self.oldest = self.version

    def restore(self, version: int) -> None:
        """As etcd from a copy: versions are given out from there on once more."""
        self.version = version
        self._history.clear()

    # ---- requests

    async def handle(self, request: web.Request) -> web.StreamResponse:
        call = await _call(request)
        self.calls.append(call)
        self.tell()
        try:
            return await self._answer(request, call)
        except Refused as refusal:
            return web.json_response(_status(refusal.status, refusal.message), status=refusal.status)
        finally:
            self.tell()

    async def _answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        if call.resource is None:
            return self._discovery(request)
        fault = self._fault(call)
        if fault is not None and fault.gate is not None:
            fault.gate.waiting += 1
            self.tell()
            await fault.gate._open.wait()
        if fault is not None and fault.before is not None:
            fault.before()
        if fault is not None and fault.refusal is not None:
            if "watch" in call.query:
                self._begun.append((call.resource, call.query["resourceVersion"]))
            raise fault.refusal
        if call.subresource == "exec":
            return await self._exec(request, call)
        if "watch" in call.query:
            return await self._watch(request, call)
        answer = self._do(call)
        if fault is not None and fault.lost:
            assert request.transport is not None
            request.transport.close()
        return web.json_response(answer, status=201 if call.method == "POST" else 200)

    def _fault(self, call: Call) -> _Fault | None:
        """The first that takes it; a fault that lets it through lets no other take it."""
        for fault in self._faults:
            if not fault.takes(call) or not fault.times:
                continue
            if fault.skip:
                fault.skip -= 1
            else:
                fault.times -= 1
                return fault
        return None

    def _discovery(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "34"})
        raise Refused(404, "the server could not find the requested resource")

    def _do(self, call: Call) -> Object:
        assert call.resource is not None
        place = (call.resource, call.namespace, call.name)
        if call.method == "POST":
            return self._create(call.resource, call.namespace, call.body)
        if call.method == "GET" and not call.name:
            return self._list(call.resource, call)
        if call.method == "PATCH" and call.content_type == APPLY_PATCH and place not in self._objects:
            return self._create(call.resource, call.namespace, call.body)
        found = self._objects.get(place)
        if found is None:
            raise Refused(404, f'{call.resource.plural} "{call.name}" not found')
        if call.method == "GET":
            return copy.deepcopy(found)
        if call.method == "DELETE":
            return self._delete(place, (call.body or {}).get("preconditions") or {})
        after = call.body if call.method == "PUT" else _patched(found, call)
        return self._update(place, found, after, call.subresource)

    # ---- objects

    def _create(self, resource: Resource, namespace: str, body: Object) -> Object:
        item = copy.deepcopy(body)
        metadata = item["metadata"]
        if not metadata.get("name"):
            metadata["name"] = f"{metadata['generateName']}{next(self._uids):05d}"
        if resource.namespaced:
            metadata["namespace"] = namespace
        place = (resource, namespace if resource.namespaced else "", str(metadata["name"]))
        if place in self._objects:
            raise Refused(409, f'{resource.plural} "{place[2]}" already exists')
        metadata.setdefault("uid", f"uid-{next(self._uids)}")
        metadata |= {"creationTimestamp": STAMP, "generation": 1, "managedFields": [{"manager": "fake"}]}
        if resource == PODS:
            item = {"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending"}, **item}
        return copy.deepcopy(self._store(place, item))

    def _update(self, place: Place, found: Object, after: Object, subresource: str) -> Object:
        after = copy.deepcopy(after)
        for key in ("resourceVersion", "uid"):
            if after["metadata"].get(key) not in (None, found["metadata"][key]):
                raise Refused(409, f"Operation cannot be fulfilled on {place[2]}: the object has been modified")
        if subresource == "status":
            after = {**copy.deepcopy(found), "status": after.get("status")}
        elif place[0] in WITH_STATUS:
            after.pop("status", None)
            if "status" in found:
                after["status"] = copy.deepcopy(found["status"])
        for key in ("uid", "creationTimestamp", "generation", "deletionTimestamp"):
            after["metadata"].pop(key, None)
            if key in found["metadata"]:
                after["metadata"][key] = found["metadata"][key]
        return copy.deepcopy(self._store(place, after))

    def _store(self, place: Place, item: Object) -> Object:
        before = self._objects.get(place)
        metadata = item["metadata"]
        if before is not None:
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
            if item == before:
                return before
            if item.get("spec") != before.get("spec"):
                metadata["generation"] += 1
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self._objects[place] = item
        self._emit(_Event(self.version, place[0], before, item))
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and _grace_s(item) == 0:
            return self._gone(place)
        return item

    def _delete(self, place: Place, preconditions: Mapping[str, str]) -> Object:
        item = copy.deepcopy(self._objects[place])
        metadata = item["metadata"]
        for key, value in preconditions.items():
            if metadata[key] != value:
                raise Refused(409, f"Precondition failed: {key} in precondition: {value}, in object: {metadata[key]}")
        if metadata.get("deletionTimestamp"):
            return item
        is_pod = place[0] == PODS
        if is_pod or metadata.get("finalizers"):
            metadata |= {
                "deletionTimestamp": STAMP,
                "deletionGracePeriodSeconds": _delete_grace_s(item) if is_pod else 0,
            }
            after = copy.deepcopy(self._store(place, item))
            return after if is_pod or place in self._objects else _success(place)
        self._gone(place)
        return _success(place)

    def _gone(self, place: Place) -> Object:
        before = self._objects.pop(place)
        self.version += 1
        last = copy.deepcopy(before)
        last["metadata"]["resourceVersion"] = str(self.version)
        self._emit(_Event(self.version, place[0], last, None))
        return last

    def _emit(self, event: _Event) -> None:
        self._history.append(event)
        self.tell()

    def _list(self, resource: Resource, call: Call) -> Object:
        items = [
            item
            for item in self.all(resource, call.namespace or None)
            if _matches(item, call.query.get("labelSelector", ""))
            and _has_fields(item, call.query.get("fieldSelector", ""))
        ]
        for item in items:  # items of a list have neither
            item.pop("kind", None)
            item.pop("apiVersion", None)
        version, first = self.version, 0
        if "continue" in call.query:
            version, first = map(int, call.query["continue"].split(":"))
        end = first + min(self.page, int(call.query.get("limit", self.page)))
        metadata = {"resourceVersion": str(version)}
        if end < len(items):
            metadata["continue"] = f"{version}:{end}"
        return {"kind": "List", "metadata": metadata, "items": items[first:end]}

    # ---- one watch

    async def _watch(self, request: web.Request, call: Call) -> web.StreamResponse:
        assert call.resource is not None
        version = call.query["resourceVersion"]
        at = int(version)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._begun.append((call.resource, version))
        if at < self.oldest:
            gone = _status(410, f"too old resource version: {at} ({self.oldest})")
            await response.write(_line("ERROR", gone))
            return response
        watch = _Watch(call.resource, call.namespace, call.query.get("labelSelector", ""), at)
        self._watches.append(watch)
        self.tell()
        try:
            await self._pump(watch, response)
            if watch.is_cut and request.transport is not None:
                request.transport.close()
        except ConnectionError:
            pass
        finally:
            self._watches.remove(watch)
        return response

    async def _pump(self, watch: _Watch, response: web.StreamResponse) -> None:
        while True:
            if watch.resource not in self._held:
                for line in self._lines(watch):
                    await response.write(line)
                while watch.raw:
                    await response.write(watch.raw.pop(0))
            if watch.end is not None:
                await response.write(watch.end)
                return
            if watch.resource not in self._held and (watch.at < self.version or watch.raw):
                continue  # while it was written
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def _lines(self, watch: _Watch) -> list[bytes]:
        found = []
        for event in self._history:
            item = event.after if event.after is not None else event.before
            assert item is not None
            if event.resource != watch.resource or event.version <= watch.at:
                continue
            if watch.namespace not in ("", item["metadata"].get("namespace")):
                continue
            was = event.before is not None and _matches(event.before, watch.labels)
            now = event.after is not None and _matches(event.after, watch.labels)
            kind = ("MODIFIED" if was else "ADDED") if now else "DELETED" if was else None
            if kind is not None:
                shown = copy.deepcopy(item)
                shown["metadata"]["resourceVersion"] = str(event.version)
                found.append(_line(kind, shown))
        watch.at = self.version
        return found

    # ---- exec

    async def _exec(self, request: web.Request, call: Call) -> web.StreamResponse:
        pod = self.get(PODS, call.namespace, call.name)
        if pod is None:
            raise Refused(404, f'pods "{call.name}" not found')
        out = self.exec(pod, request.query.getall("command", []))
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        await socket.send_bytes(b"\x01" + out)
        await socket.send_bytes(b"\x03" + json.dumps({"status": "Success"}).encode())
        await socket.close()
        async for message in socket:
            if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED):
                break
        return socket


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[FakeApi, Kube]]:
    """The API server, and the operator's client by a kubeconfig in ``folder``."""
    api = FakeApi()
    application = web.Application(client_max_size=2**24)
    application.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    port = runner.addresses[0][1]
    path = folder / "kubeconfig"
    path.write_text(json.dumps(_kubeconfig(f"http://{HOST}:{port}")))
    kube = await Kube.connect(path, call_s=BOUND_S)
    try:
        with patch.dict(os.environ, {"no_proxy": HOST, "NO_PROXY": HOST}):
            yield api, kube
    finally:
        await kube.close()
        for watch in list(api._watches):
            watch.end = b""
        api.tell()
        with suppress(asyncio.TimeoutError):
            await runner.cleanup()


def _kubeconfig(server: str) -> Object:
    """JSON is YAML."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": server}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        "users": [{"name": "fake", "user": {"token": "secret"}}],
    }


async def _call(request: web.Request) -> Call:
    resource, rest = _split(request.rel_url.raw_path)
    body = await request.read()
    namespace = ""
    if len(rest) > 1 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if resource is not None:
        resource = Resource(resource.group, resource.version, rest[0], _is_namespaced(resource.group, rest[0]))
    return Call(
        request.method,
        resource,
        namespace,
        rest[1] if len(rest) > 1 else "",
        rest[2] if len(rest) > 2 else "",
        dict(request.query),
        request.content_type,
        json.loads(body) if body else None,
    )


def _split(path: str) -> tuple[Resource | None, list[str]]:
    """Group and version, and what follows them."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        return Resource("", parts[1], ""), parts[2:]
    if parts[0] == "apis" and len(parts) > 3:
        return Resource(parts[1], parts[2], ""), parts[3:]
    return None, []


def _is_namespaced(group: str, plural: str) -> bool:
    return group != "admissionregistration.k8s.io" and not plural.startswith("clusterrole")


def _line(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _status(code: int, message: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def _success(place: Place) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": {"name": place[2]}}


def _grace_s(item: Object) -> int:
    """What is left of it while it is being deleted."""
    return int(item["metadata"].get("deletionGracePeriodSeconds") or 0)


def _delete_grace_s(pod: Object) -> int:
    """Of a Pod on no node, or that has ended, there is none."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(pod["spec"].get("terminationGracePeriodSeconds", 30))


def _matches(item: Object, selector: str) -> bool:
    """``a=b,c``: equal, or there."""
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        key, equal, value = term.partition("=")
        if key not in labels or (equal and labels[key] != value):
            return False
    return True


def _has_fields(item: Object, selector: str) -> bool:
    for term in filter(None, selector.split(",")):
        path, _, value = term.partition("=")
        found: Any = item
        for key in path.split("."):
            found = (found or {}).get(key)
        if found != value:
            return False
    return True


# ---- patches


def _patched(found: Object, call: Call) -> Object:
    item = copy.deepcopy(found)
    if call.content_type == JSON_PATCH:
        for operation in call.body:
            _apply_operation(item, operation)
        return item
    if call.content_type not in (MERGE_PATCH, APPLY_PATCH):
        raise Refused(415, f"the body of the request was in an unknown format: {call.content_type}")
    merged: Object = _merged(item, call.body)
    return merged


def _merged(into: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(into) if isinstance(into, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found


def _apply_operation(item: Object, operation: Mapping[str, Any]) -> None:
    """RFC 6902, on maps: ours touch no lists."""
    *path, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    at: Any = item
    try:
        for key in path:
            at = at[key]
        if operation["op"] == "test" and at[last] != operation["value"]:
            raise Refused(422, f"the server rejected our request: testing value {operation['path']} failed")
        if operation["op"] == "remove":
            del at[last]
        elif operation["op"] == "replace":
            _ = at[last]
    except KeyError:
        raise Refused(422, f"the server rejected our request: no path {operation['path']}") from None
    if operation["op"] in ("add", "replace"):
        at[last] = operation["value"]
