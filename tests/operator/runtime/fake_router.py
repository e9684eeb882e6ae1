"""A Pod of vllm-router on the loopback: its list of workers, as its discovery or its API made it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

HOST = "127.0.0.1"


@dataclass
class FakeRouter:
    """``found``: URLs that its discovery finds now; ``hears`` False: it has stopped at ``listed``; ``unhealthy``: those
    that it lists as such. ``status``: of its answers, 200 unless told. ``keys``: the Authorization of each question.
    ``asked``: what it was asked to change."""

    found: Callable[[], list[str]] = list
    hears: bool = True
    listed: list[str] = field(default_factory=list)
    status: int = 200
    port: int = 0
    keys: list[str | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    unhealthy: set[str] = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization"))
        if self.hears:
            self.listed = self.found()
        if request.method == "GET" and request.path == "/workers" and self.status == 200:
            workers = [{"url": url, "is_healthy": url not in self.unhealthy} for url in self.listed]
            return web.Response(body=json.dumps({"workers": workers, "total": len(workers)}))
        if request.method == "POST" and self.status == 200:
            self.asked.append(str(request.rel_url))
            (url,) = parse_qs(urlsplit(str(request.rel_url)).query)["url"]
            if request.path == "/remove_worker":
                self.listed = [one for one in self.listed if one != url]
            elif url not in self.listed:
                self.listed.append(url)
        return web.Response(status=self.status)


@asynccontextmanager
async def routing(router: FakeRouter) -> AsyncIterator[FakeRouter]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", router.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    router.port = runner.addresses[0][1]
    try:
        yield router
    finally:
        await runner.cleanup()
