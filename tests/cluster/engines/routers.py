"""A stock router with Kubernetes discovery, a process on this machine, and the way to the API server that it takes."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from engine_process import free_port
from kube import Kube

from engines.cases import Router

VERSIONS: dict[Router, str] = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}
COMMAND: dict[Router, tuple[str, ...]] = {
    "vllm-router": ("bin/vllm-router",),
    "sglang-router": ("bin/python", "-m", "sglang_router.launch_router"),
}
START_S = 120


def routers_dir() -> Path:
    """Where setup.sh put them."""
    return Path(os.environ.get("DRAINAGENT_ROUTERS") or Path.home() / ".cache/drainagent/routers")


def installed(router: Router) -> bool:
    return (routers_dir() / f"venv-{router}" / f".ready-{VERSIONS[router]}").exists()


class ApiPath:
    """Connections to the API server through this process, so that what a router hears can be held up for a while.

    Held up, not cut: a watch that broke off blinds both routers for a minute, which is no matter of the drain.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self.release()
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._upstream, 5)
                far.settimeout(None)
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class RouterProcess:
    """``router`` in front of the Pods with the label app=engine in ``kube``'s namespace; its log is in ``run_dir``."""

    def __init__(self, router: Router, kube: Kube, engine_port: int, run_dir: Path, name: str) -> None:
        self.port = free_port()
        settings = kube.kubeconfig.read_text()
        address = kube.run("config", "view", "--output", "jsonpath={.clusters[0].cluster.server}").strip()
        host, _, port = address.removeprefix("https://").partition(":")
        self.api = ApiPath(host, int(port))
        kubeconfig = run_dir / f"{name}.kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(settings.replace(address, f"https://127.0.0.1:{self.api.port}"))
        self._kubeconfig = kubeconfig
        self.log = run_dir / f"{name}.log"
        venv = routers_dir() / f"venv-{router}"
        program, *rest = COMMAND[router]
        command = [str(venv / program), *rest, "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--service-discovery", "--selector", "app=engine", "--service-discovery-port", str(engine_port)]
        command += ["--service-discovery-namespace", kube.namespace, "--policy", "round_robin"]
        command += ["--prometheus-port", str(free_port())]
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**environment, "KUBECONFIG": str(kubeconfig)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def members(self) -> str:
        """Its own list of replicas, as text; '' when it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/workers")
            return connection.getresponse().read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return ""
        finally:
            connection.close()

    def wait_members(self, addresses: list[str]) -> None:
        """RuntimeError when it does not list all of them in time."""
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            listed = self.members()
            if all(f"//{address}:" in listed for address in addresses):
                return
            time.sleep(0.5)
        tail = self.log.read_text(errors="replace")[-2000:]
        raise RuntimeError(
            f"the router does not list {addresses}: {self.members()[:500]!r}; the end of its log:\n{tail}"
        )

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        self.api.close()
        self._kubeconfig.unlink(missing_ok=True)


class Drop(threading.Thread):
    """Notes when ``address`` left the router's own list (monotonic)."""

    def __init__(self, router: RouterProcess, address: str) -> None:
        super().__init__(daemon=True)
        self.at: float | None = None
        self._router, self._mark = router, f"//{address}:"
        self._stop_asked = threading.Event()

    def run(self) -> None:
        while not self._stop_asked.wait(0.05):
            listed = self._router.members()
            if listed and self._mark not in listed:
                self.at = time.monotonic()
                return

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(6)
