"""The API server without kubectl, for what needs its moment known: deletes, evictions, watches, followed logs.

Every moment is in seconds since the epoch: this machine's clock is the node's.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kube import Kube, Object

ANSWER_WITHIN_S = 30.0
#: A watch or a followed log may be silent this long.
SILENT_WITHIN_S = 900.0


@dataclass(frozen=True)
class Answer:
    """One request to the API server: when it went out, when its answer was there, and the answer."""

    sent_s: float
    answered_s: float
    status: int
    object: Object


class Api:
    """The API server and the namespace of a Kube."""

    def __init__(self, kube: Kube) -> None:
        config = yaml.safe_load(kube.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        address = urllib.parse.urlsplit(cluster["server"])
        self._address = (address.hostname or "", address.port or 443)
        self.namespace = kube.namespace
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        with tempfile.TemporaryDirectory() as folder:
            pair = Path(folder) / "pair.pem"
            pair.write_bytes(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
            self._tls.load_cert_chain(pair)

    def request(self, method: str, path: str, body: Object | None = None) -> Answer:
        """The connection is there before the moment that is noted."""
        connection = self._connect(ANSWER_WITHIN_S)
        try:
            sent_s = time.time()
            connection.request(
                method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            found = json.loads(response.read())
            return Answer(sent_s, time.time(), response.status, found)
        finally:
            connection.close()

    def delete_pod(self, name: str, grace_s: int | None = None) -> Answer:
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return self.request("DELETE", self.path("pods", name), options)

    def evict(self, name: str) -> Answer:
        metadata = {"name": name, "namespace": self.namespace}
        body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        return self.request("POST", self.path("pods", f"{name}/eviction"), body)

    def path(self, resource: str, name: str = "") -> str:
        group = "apis/discovery.k8s.io" if resource == "endpointslices" else "api"
        return f"/{group}/v1/namespaces/{self.namespace}/{resource}" + (f"/{name}" if name else "")

    def lines(self, path: str, take: Callable[[str, float], None]) -> Lines:
        """Follows what the API server sends, line by line, in a thread of its own."""
        return Lines(self._connect(SILENT_WITHIN_S), path, take)

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(*self._address, timeout=timeout_s, context=self._tls)
        connection.connect()
        return connection


class Lines(threading.Thread):
    """A response that goes on, handed over line by line with the moment of its arrival."""

    def __init__(self, connection: http.client.HTTPSConnection, path: str, take: Callable[[str, float], None]) -> None:
        super().__init__(daemon=True)
        self._connection, self._path, self._take = connection, path, take
        #: Why there are no lines, once that is known.
        self.fault: str | None = None
        self._socket = connection.sock
        self.start()

    def run(self) -> None:
        try:
            self._connection.request("GET", self._path)
            response = self._connection.getresponse()
            if response.status != http.client.OK:
                self.fault = f"GET {self._path}: {response.status} {response.read().decode(errors='replace')}"
                return
            while line := response.readline():
                self._take(line.decode(errors="replace").rstrip("\n"), time.time())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.fault = f"GET {self._path}: {type(error).__name__}: {error}"
        finally:
            self._connection.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.join(5)


@dataclass(frozen=True)
class Change:
    """An object as a watch told it. ``kind``: ADDED, MODIFIED or DELETED."""

    at_s: float
    kind: str
    object: Object


class Watch:
    """Every change to the objects of one resource, from now on."""

    def __init__(self, api: Api, resource: str) -> None:
        self._changes: list[Change] = []
        self._changed = threading.Condition()
        path = api.path(resource)
        version = api.request("GET", path).object["metadata"]["resourceVersion"]
        query = urllib.parse.urlencode({"watch": "1", "resourceVersion": version, "timeoutSeconds": "3600"})
        self._lines = api.lines(f"{path}?{query}", self._take)

    def _take(self, line: str, at_s: float) -> None:
        told: dict[str, Any] = json.loads(line)
        with self._changed:
            self._changes.append(Change(at_s, told["type"], told["object"]))
            self._changed.notify_all()

    def wait(self, what: str, wanted: Callable[[Change], bool], within_s: float) -> Change:
        """The first change, past ones included, that is ``wanted``. AssertionError, with ``what``, when none comes."""
        end = time.monotonic() + within_s
        seen = 0
        with self._changed:
            while True:
                while seen < len(self._changes):
                    change = self._changes[seen]
                    seen += 1
                    if wanted(change):
                        return change
                left_s = end - time.monotonic()
                if left_s <= 0 or not self._lines.is_alive():
                    raise AssertionError(f"not within {within_s:g} s: {what} {self._lines.fault or ''}".rstrip())
                self._changed.wait(min(left_s, 1.0))

    def close(self) -> None:
        self._lines.close()
