"""What the process shows of itself over HTTP: /healthz and /readyz on one port, /metrics on another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from drainagent.url import DEFAULT_METRICS_PATH
from operator_glue.install import LIVENESS_PATH, READINESS_PATH

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages:
    """``unready``: why it is not ready, a sentence; None: it is.

    Healthy is whoever answers: the loop that does the work does that too.
    """

    def __init__(self, registry: CollectorRegistry, unready: Callable[[], str | None]) -> None:
        self._registry, self._unready = registry, unready
        self._runners: list[web.AppRunner] = []

    async def start(self, health_port: int, metrics_port: int, host: str | None = None) -> None:
        """``host`` None: every address. OSError when a port is taken."""
        await self._serve({LIVENESS_PATH: self._healthz, READINESS_PATH: self._readyz}, host, health_port)
        await self._serve({DEFAULT_METRICS_PATH: self._metrics}, host, metrics_port)

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _serve(self, handlers: Mapping[str, _Handler], host: str | None, port: int) -> None:
        application = web.Application(client_max_size=4096)
        for path, handler in handlers.items():
            application.router.add_get(path, handler)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, host, port).start()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        why = self._unready()
        return web.Response(text="ok\n") if why is None else web.Response(status=503, text=f"{why}\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
