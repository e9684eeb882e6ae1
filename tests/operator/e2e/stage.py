"""A namespace of the real cluster, the operator that watches it, and the ModelDeployments in it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hook.images import AGENT, STANDIN
from kube import Kube, KubectlError

from e2e.router_images import ROUTERS, image_of
from e2e.streams import Load, Stream

Object = dict[str, Any]
#: Of any step: a replica drains for at most G = 30 s here, and another starts in a few.
STEP_S = 120.0
#: What the summary is made of, when a runner wants it (run.py).
REPORT = os.environ.get("DRAINAGENT_E2E_REPORT")
ENGINES = {"vllm-router": "vLLM", "sglang-gateway": "SGLang", "llm-d-router": "vLLM"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


class Operator:
    """The operator as a process on this machine, watching one namespace."""

    def __init__(self, kube: Kube, folder: Path, *flags: str) -> None:
        self._kube, self._flags, self.log = kube, flags, folder / f"operator-{kube.namespace}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.metrics_port, self.health_port = free_port(), free_port()
        command = [sys.executable, "-m", "operator_glue", "run", "--kubeconfig", str(self._kube.kubeconfig)]
        command += ["--namespace", self._kube.namespace, "--operator-namespace", self._kube.namespace]
        command += ["--agent-image", AGENT, "--agent-image-pull-policy", "Never", "--host", "127.0.0.1"]
        command += ["--metrics-port", str(self.metrics_port), "--health-port", str(self.health_port), *self._flags]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """As a node that dies would: nothing is released."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def metric(self, name: str) -> float:
        """The sum over its series; 0.0 where there is none."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


@dataclass
class Case:
    """What one case did. ``expected``: streams that were still running at G - 5: they are cut and listed."""

    name: str
    requests: int = 0
    lost: list[Stream] = field(default_factory=list)
    expected: list[Stream] = field(default_factory=list)


class Stage:
    """One ModelDeployment behind one router. ``pods_seen``: UIDs of all its engine Pods so far."""

    def __init__(self, kube: Kube, operator: Operator, name: str, router: str | None) -> None:
        self.kube, self.operator, self.name, self.router = kube, operator, name, router
        self.pods_seen: set[str] = set()
        self.model = "m"

    # ---- the spec

    def manifest(self, roles: list[Object], **spec: Any) -> Object:
        engine = ENGINES.get(self.router or "", "vLLM")
        body: Object = {
            "model": {"name": self.model},
            "engine": {"name": engine, "image": STANDIN},
            "roles": roles,
        }
        if self.router in ROUTERS:
            extra = ["--policy", "round_robin"]
            body["router"] = {"name": self.router, "image": image_of(self.router), "extraArgs": extra}
        body |= spec
        return {
            "apiVersion": "drainagent.io/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": self.name},
            "spec": body,
        }

    def apply(self, *roles: Object, **spec: Any) -> None:
        self.kube.apply(self.manifest(list(roles), **spec))

    def role(self, name: str = "server", replicas: int = 3, grace_s: int = 30, **more: Any) -> Object:
        return {"name": name, "replicas": replicas, "terminationGracePeriodSeconds": grace_s, **more}

    # ---- what is there

    def get(self) -> Object:
        return self.kube.get(f"mdep/{self.name}")

    @property
    def status(self) -> Object:
        found: Object = self.get().get("status") or {}
        return found

    def condition(self, kind: str) -> Object:
        found = [one for one in self.status.get("conditions") or () if one["type"] == kind]
        return found[0] if found else {}

    def pods(self, role: str | None = None) -> list[Object]:
        """Engine Pods, by name."""
        selector = f"app.kubernetes.io/instance={self.name},drainagent.io/ordinal"
        if role is not None:
            selector += f",app.kubernetes.io/component={role}"
        found = sorted(self.kube.find("pods", selector), key=lambda pod: str(pod["metadata"]["name"]))
        self.pods_seen |= {pod["metadata"]["uid"] for pod in found}
        return found

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods()}

    def events(self) -> list[str]:
        """Reasons, each once, oldest first."""
        uid = self.get()["metadata"]["uid"]
        found = [one for one in self.kube.events(self.name) if one["involvedObject"].get("uid") == uid]
        return list(dict.fromkeys(str(event["reason"]) for event in found))

    def deleted(self) -> int:
        """Engine Pods that have gone so far."""
        return len(self.pods_seen - self.uids())

    # ---- waiting

    def wait(self, what: str, holds: Callable[[], bool], within_s: float = STEP_S) -> None:
        until = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > until:
                tail = "".join(self.operator.log.read_text(errors="replace").splitlines(keepends=True)[-15:])
                raise AssertionError(f"{what}: not within {within_s:g} s; {json.dumps(self.status)[:3000]}\n{tail}")
            time.sleep(0.25)

    def is_settled(self) -> bool:
        """Everything is as the spec says, and no removal runs."""
        thing = self.get()
        status = thing.get("status") or {}
        self.pods()
        return bool(
            status.get("observedGeneration") == thing["metadata"]["generation"]
            and status.get("phase") == "Ready"
            and all(role["replicas"] == role["readyReplicas"] for role in status.get("roles") or ())
            and "retirement" not in status
        )

    def settle(self, within_s: float = STEP_S) -> None:
        # The operator has to have seen the spec first, and the router the replicas.
        self.wait("settled", self.is_settled, within_s)
        if self.router is not None:
            self.wait("listed by the router", self._is_listed)

    def _is_listed(self) -> bool:
        """Every replica that serves, and no other."""
        host, port = self.front()
        try:
            with urllib.request.urlopen(f"http://{host}:{port}/workers", timeout=5) as answer:
                workers = json.load(answer)["workers"]
        except OSError:  # kube-proxy has not heard of the Service yet
            return False
        listed = {str(worker["url"]).partition("//")[2].partition(":")[0] for worker in workers}
        return listed == {pod["status"]["podIP"] for pod in self.pods()}

    def evict(self, pod: Object) -> None:
        """By the Eviction API, as a drain of its node does."""
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{self.kube.namespace}/pods/{name}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.kube.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))

    # ---- load

    def front(self) -> tuple[str, int]:
        service = self.kube.get(f"service/{self.name}-router")
        return service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"]

    @contextmanager
    def load(self, case: str, **options: Any) -> Iterator[Load]:
        """Streams through the router for as long as the block; nothing may be lost of them."""
        host, port = self.front()
        before = self.deleted()
        with Load(host, port, model=self.model, **options) as load:
            time.sleep(1.0)
            try:
                yield load
            finally:  # what was lost is told of a case that fails, too
                load.stop()
                self.report(Case(case, len(load.streams), load.lost), self.deleted() - before)
        assert not load.lost, f"{len(load.lost)} of {len(load.streams)} lost: {'; '.join(map(str, load.lost[:5]))}"

    def report(self, case: Case, deletes: int) -> None:
        if REPORT is None:
            return
        line = {
            "case": f"{self.router or 'no router'}: {case.name}",
            "deletes": deletes,
            "requests": case.requests,
            "lost": [str(stream) for stream in case.lost],
            "expected": [str(stream) for stream in case.expected],
        }
        with Path(REPORT).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def remove(self) -> None:
        try:
            self.kube.delete(f"mdep/{self.name}", timeout=120)
        except KubectlError as error:
            if "NotFound" not in error.stderr:
                raise
