"""The Kubernetes API, as the operator uses it: the one importer of a Kubernetes client.

kubernetes_asyncio brings configuration, tokens that are renewed, TLS and the session; objects go in and out as JSON has
them, since ours are rendered so. Nothing here decides. Every call has one total bound.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes_asyncio import client, config
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import ConfigException

Object = dict[str, Any]

#: Of one call, with its connection.
CALL_S = 30.0
#: Of one watch: the API server ends it then, and it is begun anew where it was. Beyond that it has gone silent.
WATCH_S, WATCH_SLACK_S = 300, 30.0
#: Of what a list is taken in.
PAGE = 500


class KubeError(Exception):
    """The API server said no, or nothing. The message is its own sentence. ``status``: of HTTP, 0: there is none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFound(KubeError):  # noqa: N818 - as Kubernetes calls them
    """404."""


class Conflict(KubeError):  # noqa: N818
    """409: it is there already, or a precondition does not hold."""


class Forbidden(KubeError):  # noqa: N818
    """401, 403."""


class Gone(KubeError):  # noqa: N818
    """410: a watch's resourceVersion is too old."""


class Invalid(KubeError):  # noqa: N818
    """400, 422: the object is refused."""


class Unreachable(KubeError):  # noqa: N818
    """No answer, or none in time."""


_BY_STATUS = {400: Invalid, 401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict, 410: Gone, 422: Invalid}


def _error(status: int, message: str) -> KubeError:
    return _BY_STATUS.get(status, KubeError)(message, status)


@dataclass(frozen=True)
class Resource:
    """``group`` is empty for the core."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        parts = ["api", self.version] if not self.group else ["apis", self.group, self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part is not None]
        return "/" + "/".join(quote(part, safe="") for part in parts)


PODS = Resource("", "v1", "pods")
SERVICES = Resource("", "v1", "services")
SECRETS = Resource("", "v1", "secrets")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts")
EVENTS = Resource("", "v1", "events")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", False)
CLUSTER_ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", False)
MODEL_DEPLOYMENTS = Resource("drainagent.io", "v1alpha1", "modeldeployments")
INFERENCE_POOLS = Resource("inference.networking.k8s.io", "v1", "inferencepools")
#: Kueue 0.17 serves v1beta2 too; v1beta1 is what releases from 0.2 on serve.
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta1", "workloads")
MUTATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", False)
VALIDATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", False)

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Exec:
    """An exec that has begun: frames as they come, each of a channel (1 stdout, 2 stderr, 3 the status)."""

    frames: AsyncIterator[tuple[int, bytes]]


class Kube:
    """A cluster. To be closed.

    ``failed``: called with each error that a call ends in, for metrics.
    """

    def __init__(self, api: client.ApiClient, call_s: float = CALL_S) -> None:
        self._api, self._call_s = api, call_s
        self._may_write: Callable[[], None] = lambda: None
        self._write_s = call_s
        self.failed: Callable[[KubeError], None] = lambda _: None

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None, *, call_s: float = CALL_S) -> Kube:
        """By ``kubeconfig``, else as a Pod of the cluster. KubeError, in a sentence, when there is neither."""
        settings = client.Configuration()
        try:
            if kubeconfig is not None:
                await config.load_kube_config(config_file=str(kubeconfig), client_configuration=settings)
            else:
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            raise KubeError(f"{kubeconfig or 'not in a cluster'}: {error}") from None
        # Proxies of the environment hold, as they do for kubectl.
        api = client.ApiClient(configuration=settings)
        return cls(api, call_s)

    def fenced(self, may_write: Callable[[], None], write_s: float) -> Kube:
        """The same cluster, where ``may_write`` is called just before each write is sent, and raises where it must
        not be; a write takes at most ``write_s`` seconds. It is closed with the one that it was made of."""
        other = Kube(self._api, self._call_s)
        other._may_write, other._write_s, other.failed = may_write, write_s, self.failed
        return other

    async def close(self) -> None:
        await self._api.close()

    # ---- objects

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        return await self._call("GET", resource.path(namespace, name))

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> tuple[list[Object], str]:
        """All of them, as the store has them now (no cache), and the list's resourceVersion."""
        items: list[Object] = []
        query: dict[str, str] = {**_selectors(labels, fields), "limit": str(PAGE)}
        while True:
            answer = await self._call("GET", resource.path(namespace), query)
            items += answer.get("items") or []
            metadata = answer.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            query["continue"] = metadata["continue"]

    async def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        return await self._call("POST", resource.path(namespace), body=body)

    async def replace(self, resource: Resource, namespace: str | None, name: str, body: Object) -> Object:
        """Under the resourceVersion that the object carries."""
        return await self._call("PUT", resource.path(namespace, name), body=body)

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Any,
        kind: str = MERGE_PATCH,
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> Object:
        """``kind``: JSON_PATCH, MERGE_PATCH (with metadata.resourceVersion: under it) or APPLY_PATCH."""
        query = {}
        if field_manager is not None:
            query = {"fieldManager": field_manager, **({"force": "true"} if kind == APPLY_PATCH else {})}
        return await self._call("PATCH", resource.path(namespace, name, subresource), query, body, kind)

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str, resource_version: str | None = None
    ) -> Object:
        """With preconditions; Conflict where one does not hold. The object's own grace period stands. The object as it
        ends, or a Status."""
        preconditions = {"uid": uid, **({} if resource_version is None else {"resourceVersion": resource_version})}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        body["propagationPolicy"] = "Background"
        return await self._call("DELETE", resource.path(namespace, name), body=body)

    async def server_version(self) -> tuple[int, int]:
        """(major, minor)."""
        answer = await self._call("GET", "/version")
        return int(answer["major"]), int("".join(filter(str.isdigit, str(answer["minor"]))))

    async def serves(self, resource: Resource) -> bool:
        """Whether its definition is there."""
        path = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
        try:
            answer = await self._call("GET", path)
        except NotFound:
            return False
        return any(item.get("name") == resource.plural for item in answer.get("resources") or ())

    # ---- watches

    async def watch(
        self,
        resource: Resource,
        namespace: str | None,
        resource_version: str,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """(type, object) from ``resource_version`` on, bookmarks among them, until the API server ends the watch.

        To be closed (contextlib.aclosing) before the cluster is. Gone: list anew. Unreachable: cut, or silent too long.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_S),
            **_selectors(labels, None),
        }
        url = f"{self._host}{resource.path(namespace)}?{urlencode(query)}"
        total = aiohttp.ClientTimeout(total=WATCH_S + WATCH_SLACK_S, sock_connect=self._call_s)
        try:
            async with self._session.get(url, headers=await self._headers(), timeout=total) as answer:
                if answer.status != 200:
                    raise _error(answer.status, _sentence(await answer.read(), answer.status))
                async for line in answer.content:
                    yield _event(line)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            raise Unreachable(f"the watch of {resource.plural} broke: {_named(error)}") from None

    # ---- exec

    @asynccontextmanager
    async def exec(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> AsyncIterator[Exec]:
        """Without standard input and terminal. The caller bounds the whole. KubeError when it is refused; aiohttp's
        errors and OSError where the session breaks."""
        query = [("container", container), ("stdout", "true"), ("stderr", "true"), ("stdin", "false"), ("tty", "false")]
        query += [("command", word) for word in command]
        url = f"{self._host}{PODS.path(namespace, pod, 'exec')}?{urlencode(query)}"
        headers = await self._headers()
        try:
            session = self._session.ws_connect(
                url, headers=headers, protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"), max_msg_size=2**22
            )
            async with session as socket:
                yield Exec(_frames(socket))
        except aiohttp.WSServerHandshakeError as error:
            raise await self._refused(url, headers, error) from None

    async def _refused(self, url: str, headers: dict[str, str], error: aiohttp.WSServerHandshakeError) -> KubeError:
        """A handshake's refusal carries no sentence; the same question without one does."""
        try:
            asked = self._session.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=2.0))
            async with asked as answer:
                if answer.status == error.status:
                    return _error(error.status, _sentence(await answer.read(), error.status))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            pass
        return _error(error.status, f"the exec was refused with HTTP status {error.status}")

    # ---- one call

    @property
    def _host(self) -> str:
        return str(self._api.configuration.host)

    @property
    def _session(self) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = self._api.rest_client.pool_manager
        return session

    async def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {"Accept": "application/json", "User-Agent": "drainagent-operator"}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        try:
            return await self._asked(method, path, query, body, content_type)
        except KubeError as error:
            self.failed(error)
            raise

    async def _asked(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content_type: str
    ) -> Object:
        headers = {**await self._headers(), "Content-Type": content_type}
        bound_s = self._call_s
        if method != "GET":
            self._may_write()
            bound_s = self._write_s
        try:
            answer = await self._api.rest_client.request(
                method,
                f"{self._host}{path}",
                query_params=dict(query or {}),
                headers=headers,
                body=body,
                _request_timeout=bound_s,
            )
        except ApiException as error:
            raise _error(error.status or 0, _sentence(error.body, error.status or 0)) from None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise Unreachable(f"{method} {path}: {_named(error)}") from None
        try:
            found = json.loads(answer.data)
        except ValueError:
            raise KubeError(f"{method} {path}: the answer is no JSON", answer.status) from None
        return found if isinstance(found, dict) else {}


def _selectors(labels: Mapping[str, str] | None, fields: Mapping[str, str] | None) -> dict[str, str]:
    return {
        name: ",".join(f"{key}={value}" if value else key for key, value in given.items())
        for name, given in (("labelSelector", labels), ("fieldSelector", fields))
        if given
    }


def _sentence(body: Any, status: int) -> str:
    """The API server's own sentence of a Status."""
    try:
        message = json.loads(body).get("message")
    except (ValueError, TypeError, AttributeError):
        message = None
    return str(message) if message else f"HTTP status {status}"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}{': ' if str(error) else ''}{str(error)[:300]}"


def _event(line: bytes) -> tuple[str, Object]:
    event = json.loads(line)
    kind, found = event["type"], event["object"]
    if kind == "ERROR":
        raise _error(int(found.get("code") or 0), str(found.get("message")))
    return str(kind), found


async def _frames(socket: aiohttp.ClientWebSocketResponse[bool]) -> AsyncIterator[tuple[int, bytes]]:
    """(channel, data). Channel 255 closes another one (v5) and is left out."""
    async for message in socket:
        if message.type is aiohttp.WSMsgType.ERROR:
            raise aiohttp.ClientConnectionError(str(message.data))
        data = message.data.encode() if isinstance(message.data, str) else bytes(message.data or b"")
        if data and data[0] != 255:
            yield data[0], data[1:]
