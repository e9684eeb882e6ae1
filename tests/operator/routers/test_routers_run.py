"""The rendered command lines, run: the real routers find fake engines at a fake API server.

Skipped where tests/cluster/engines/setup.sh has not installed the routers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import EVENT_GAP_S, EVENTS, api_server, engine, ready_pod

from operator_glue import names
from operator_glue.render.router_parts import serving_selector

sys.path.insert(0, str(Path(__file__).parents[1]))

from test_routers import HALVES, KEY, SERVER, container, deployment, real_python

SECRET = "-the-key"
READY_S = 60
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
FIRST, SECOND = "127.0.0.1", "127.0.0.2"


@dataclass
class Running:
    """A router in front of two engines. ``seen``: what each was asked, with its Authorization."""

    process: subprocess.Popen[bytes]
    container: dict[str, Any]
    port: int
    engine_port: int
    asked: list[str]
    seen: dict[str, list[tuple[str, str | None]]] = field(default_factory=lambda: {FIRST: [], SECOND: []})

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(FIRST, self.port, timeout=60)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def chat(self, key: str | None = None, *, stream: bool = False) -> tuple[int, str]:
        return self.ask("POST", "/v1/chat/completions", {**CHAT, "stream": stream}, key)

    def probe(self, name: str) -> int:
        return self.ask("GET", self.container[name]["httpGet"]["path"])[0]

    def wait_ready(self) -> None:
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.probe("readinessProbe") == 200:
                    return
            time.sleep(0.2)
        pytest.fail("the router does not get ready")


def free_port() -> int:
    with socket.create_server((FIRST, 0)) as one:
        return int(one.getsockname()[1])


@contextlib.contextmanager
def running(router: str, roles: list[dict[str, Any]], folder: Path, *, key: bool) -> Iterator[Running]:
    """In front of halves the second engine is a decoder; else it is withdrawn."""
    programs = real_python(router).parent
    labels = [{**serving_selector("llama"), names.ROLE_KIND_LABEL: role.get("kind", "Server")} for role in roles]
    if len(labels) == 1:
        labels.append({names.INSTANCE_LABEL: "llama", names.ROLE_KIND_LABEL: "Server"})
    pods = [ready_pod(f"pod-{address}", address, own) for address, own in zip((FIRST, SECOND), labels, strict=True)]
    asked: list[str] = []
    seen: dict[str, list[tuple[str, str | None]]] = {FIRST: [], SECOND: []}
    with contextlib.ExitStack() as stack:
        engine_port = stack.enter_context(engine(FIRST, 0, seen[FIRST]))
        stack.enter_context(engine(SECOND, engine_port, seen[SECOND]))
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(stack.enter_context(api_server(pods, asked))))
        port = free_port()
        own = ["--port", str(port), "--prometheus-port", str(free_port()), "--service-discovery-port", str(engine_port)]
        more: dict[str, Any] = {"apiKeySecretRef": KEY} if key else {}
        rendered = container(deployment(router, roles, extraArgs=own, **more))
        values = {"NAMESPACE": "models", "OPENAI_API_KEY": SECRET, "ROUTER_API_KEY": SECRET}
        environment = {item["name"]: values.get(item["name"], str(folder)) for item in rendered["env"]}
        words = [
            re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], word)
            for word in (*rendered["command"], *rendered["args"])
        ]
        log = stack.enter_context((folder / "log").open("wb"))
        process = stack.enter_context(
            subprocess.Popen(
                [programs / words[0], *words[1:]],
                env={"PATH": os.environ["PATH"], **environment, "KUBECONFIG": str(kubeconfig)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        )
        try:
            router_process = Running(process, rendered, port, engine_port, asked, seen)
            router_process.wait_ready()
            yield router_process
        finally:
            process.kill()


def _kubeconfig(port: int) -> str:
    settings = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://{FIRST}:{port}"}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    return json.dumps(settings)


@pytest.mark.parametrize("router", ["vllm-router", "sglang-gateway"])
def test_it_finds_the_serving_pods_and_finishes_a_stream_after_sigterm(router: str, tmp_path: Path) -> None:
    with running(router, SERVER, tmp_path, key=False) as one:
        assert one.probe("livenessProbe") == 200
        status, listed = one.ask("GET", "/workers")
        assert (status, [worker["url"] for worker in json.loads(listed)["workers"]]) == (
            200,
            [f"http://{FIRST}:{one.engine_port}"],
        )
        assert one.chat()[0] == 200
        assert [path for path in one.asked if not path.startswith("/api/v1/namespaces/models/pods?")] == []

        answers: list[tuple[int, str]] = []
        client = threading.Thread(target=lambda: answers.append(one.chat(stream=True)))
        client.start()
        time.sleep(EVENTS * EVENT_GAP_S / 2)
        one.process.send_signal(signal.SIGTERM)
        client.join()
        ((status, text),) = answers
        assert (status, text.count("data: {"), "[DONE]" in text) == (200, EVENTS, True)
        assert one.process.wait(60) == 0
        assert one.seen[SECOND] == []


@pytest.mark.parametrize("router", ["vllm-router", "sglang-gateway"])
def test_it_tells_the_halves_apart(router: str, tmp_path: Path) -> None:
    with running(router, HALVES, tmp_path, key=False) as one:
        _, listed = one.ask("GET", "/workers")
        kinds = {worker["url"]: worker["worker_type"] for worker in json.loads(listed)["workers"]}
        assert kinds == {
            f"http://{FIRST}:{one.engine_port}": "prefill",
            f"http://{SECOND}:{one.engine_port}": "decode",
        }
        assert one.chat()[0] == 200
        assert one.seen[FIRST]
        assert one.seen[SECOND]


def test_sglang_gateway_asks_for_the_key_but_on_its_probes(tmp_path: Path) -> None:
    with running("sglang-gateway", SERVER, tmp_path, key=True) as one:
        assert (one.probe("livenessProbe"), one.probe("readinessProbe")) == (200, 200)
        assert [one.ask("GET", "/workers", key=key)[0] for key in (None, "other", SECRET)] == [401, 401, 200]
        assert [one.chat(key)[0] for key in (None, "other", SECRET)] == [401, 401, 200]


@pytest.mark.parametrize(
    ("roles", "shown"),
    # In front of halves the client's own key goes no further; else it does, and the router's does not.
    [pytest.param(SERVER, "Bearer mine", id="server"), pytest.param(HALVES, f"Bearer {SECRET}", id="halves")],
)
def test_vllm_router_asks_for_no_key(roles: list[dict[str, Any]], shown: str, tmp_path: Path) -> None:
    with running("vllm-router", roles, tmp_path, key=True) as one:
        assert [one.ask("GET", "/workers")[0], one.chat()[0], one.chat("mine")[0]] == [200, 200, 200]
        last = [authorization for path, authorization in one.seen[FIRST] if path == "/v1/chat/completions"][-1]
        assert last == shown
