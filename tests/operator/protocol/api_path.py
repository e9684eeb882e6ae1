"""A way to the API server that can be cut: after so many bytes, or for as long as wanted."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kube import Kube as Kubectl


def raw_config(kubectl: Kubectl) -> dict[str, Any]:
    """The kubeconfig, whole."""
    found: dict[str, Any] = json.loads(kubectl.run("config", "view", "--raw", "-o", "json"))
    return found


def through(kubectl: Kubectl, port: int, folder: Path) -> Path:
    """A kubeconfig for the API server by way of a port of this machine."""
    config = raw_config(kubectl)
    server = config["clusters"][0]["cluster"]
    server["tls-server-name"] = server["server"].removeprefix("https://").partition(":")[0]
    server["server"] = f"https://127.0.0.1:{port}"
    path = folder / "proxy.kubeconfig"
    path.write_text(json.dumps(config))
    return path


class CuttingProxy:
    """``bytes_left``: of the API server's answers, until every connection is cut; None: no end. ``passed``: so far."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.bytes_left: int | None = None
        self.passed = 0
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
                threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if answers:
                    with self._lock:
                        self.passed += len(data)
                        if self.bytes_left is not None:
                            data = data[: self.bytes_left]
                            self.bytes_left -= len(data)
                sink.sendall(data)
                if answers and self.bytes_left == 0:
                    break
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextlib.contextmanager
def cutting_proxy(kubectl: Kubectl) -> Iterator[CuttingProxy]:
    """In front of kubectl's API server, as long as the block lasts."""
    host, _, port = raw_config(kubectl)["clusters"][0]["cluster"]["server"].removeprefix("https://").partition(":")
    proxy = CuttingProxy((host, int(port or 443)))
    try:
        yield proxy
    finally:
        proxy.close()
