"""The pages for Kubernetes and Prometheus."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
import pytest
from passes import run

from operator_glue.runtime.http import Pages
from operator_glue.runtime.metrics import Metrics

HOST = "127.0.0.1"


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind((HOST, 0))
        other.bind((HOST, 0))
        return one.getsockname()[1], other.getsockname()[1]


@dataclass
class Shown:
    """``why``: it is not ready; None: it is."""

    metrics: Metrics
    pages: Pages
    health: int
    metrics_port: int
    session: aiohttp.ClientSession
    why: str | None = None

    async def ask(self, port: int, path: str, method: str = "GET") -> tuple[int, str]:
        async with self.session.request(method, f"http://{HOST}:{port}{path}") as answer:
            return answer.status, await answer.text()


def showing(test: Callable[[Shown], Awaitable[None]]) -> None:
    async def body() -> None:
        metrics, (health, port) = Metrics(), free_ports()
        pages = Pages(metrics.registry, lambda: shown.why)
        async with aiohttp.ClientSession() as session:
            shown = Shown(metrics, pages, health, port, session)
            await pages.start(health, port, HOST)
            try:
                await test(shown)
            finally:
                await pages.stop()

    run(body())


def test_healthy_and_ready() -> None:
    async def test(shown: Shown) -> None:
        assert await shown.ask(shown.health, "/healthz") == (200, "ok\n")
        assert await shown.ask(shown.health, "/readyz") == (200, "ok\n")
        shown.why = "the caches are not filled yet"
        assert await shown.ask(shown.health, "/readyz") == (503, "the caches are not filled yet\n")
        assert await shown.ask(shown.health, "/healthz") == (200, "ok\n")
        shown.why = None
        assert (await shown.ask(shown.health, "/readyz"))[0] == 200

    showing(test)


def test_metrics_as_prometheus_reads_them() -> None:
    async def test(shown: Shown) -> None:
        shown.metrics.leading.set(1)
        shown.metrics.pods.labels("create").inc(3)
        async with shown.session.get(f"http://{HOST}:{shown.metrics_port}/metrics") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            lines = (await answer.text()).splitlines()
        assert "drainagent_leading 1.0" in lines
        assert 'drainagent_pod_writes_total{write="create"} 3.0' in lines

    showing(test)


def test_each_page_is_on_its_own_port_and_is_read_only() -> None:
    async def test(shown: Shown) -> None:
        assert (await shown.ask(shown.health, "/metrics"))[0] == 404
        assert (await shown.ask(shown.metrics_port, "/healthz"))[0] == 404
        assert (await shown.ask(shown.health, "/"))[0] == 404
        assert (await shown.ask(shown.health, "/healthz", "POST"))[0] == 405
        assert (await shown.ask(shown.metrics_port, "/metrics", "DELETE"))[0] == 405

    showing(test)


def test_what_is_no_http_harms_nobody() -> None:
    async def test(shown: Shown) -> None:
        reader, writer = await asyncio.open_connection(HOST, shown.health)
        writer.write(b"\x16\x03\x01 no http\r\n\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        assert (await shown.ask(shown.health, "/healthz"))[0] == 200

    showing(test)


def test_a_port_that_is_taken_is_told() -> None:
    async def test(shown: Shown) -> None:
        other = Pages(shown.metrics.registry, lambda: None)
        with pytest.raises(OSError, match="address already in use"):
            await other.start(free_ports()[0], shown.metrics_port, HOST)
        await other.stop()

    showing(test)


def test_stopped_nothing_listens() -> None:
    async def test(shown: Shown) -> None:
        await shown.pages.stop()
        with pytest.raises(aiohttp.ClientConnectionError):
            await shown.ask(shown.health, "/healthz")

    showing(test)
