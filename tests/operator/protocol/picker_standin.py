"""OUR STAND-IN of llm-d's endpoint picker: no program of llm-d's is in it, since none is to be had from a registry.

It watches Pods at the real API server and behaves as ../shared/spec/evidence.md §5b measured llm-d-router 0.10.0 and
the Gateway API inference extension's picker 1.5.0; its page is the recorded one with the lists put in. What it is not
asked for (gRPC, scoring, flow control, halves) it does not do.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from operator_glue.kube import PODS, Kube, KubeError

PAGE = Path(__file__).parents[1] / "retirement" / "picker-pages" / "llmd-router-0.10.0-3-members.txt"
POOL = "pool-a"
#: Measured: the number of ready endpoints is set every 5 s, and is absent for the first 5.1 s.
READY_EVERY_S = 5.0
#: Measured: 5 to 41 s after the API server is back. The least of it here, so that tests end.
BACK_OFF_S = 5.0
_DYNAMIC = ("_queue_size{model_server", "ready_pods{", "ready_endpoints{", "scheduler_attempts_total{", "process_start")


@dataclass
class PickerStandin:
    """One picker Pod's process. ``leads``: None where no leader is elected. ``bare``: a standby that shows no list.

    ``refuses``: the page answers with this status. ``frozen``: it got SIGTERM: refuses its page, and picks on.
    """

    kubeconfig: Path
    namespace: str
    labels: dict[str, str]
    token: str = "token"
    leads: bool | None = None
    bare: bool = False
    refuses: int = 0
    frozen: bool = False
    port: int = 0
    started_at: float = field(default_factory=time.time)
    view: dict[str, str] = field(default_factory=dict)
    ready: int | None = None
    attempts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(10)

    def pick(self) -> str | None:
        """As a gateway asks it: the Pod that a request goes to; None: it answers 503."""
        if self.bare or not self.view:
            return None
        pod = random.choice(sorted(self.view))
        self.attempts[pod] = self.attempts.get(pod, 0) + 1
        return pod

    # ---- its process

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._main = self._loop.create_task(self._serve())
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._main)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(asyncio.sleep(0.2))  # TLS connections close in the background
            self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        self.port = runner.addresses[0][1]
        self._started.set()
        try:
            tasks = [asyncio.ensure_future(work) for work in (self._discover(), self._count_ready())]
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await runner.cleanup()

    async def _count_ready(self) -> None:
        while True:
            await asyncio.sleep(READY_EVERY_S + 0.1 if self.ready is None else READY_EVERY_S)
            self.ready = len(self.view)

    async def _discover(self) -> None:
        """A list and a watch; while the API server is away what was known stays."""
        while True:
            kube = await Kube.connect(self.kubeconfig)
            try:
                pods, version = await kube.list(PODS, self.namespace, labels=self.labels)
                known = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if self._is_member(pod)}
                if not self.frozen:
                    self.view = known
                watch = kube.watch(PODS, self.namespace, version, labels=self.labels)
                async with contextlib.aclosing(watch):
                    async for kind, pod in watch:
                        self._hear(kind, pod)
            except KubeError:
                await asyncio.sleep(BACK_OFF_S)
            finally:
                await kube.close()

    def _hear(self, kind: str, pod: dict[str, Any]) -> None:
        if self.frozen or kind == "BOOKMARK":
            return
        name = pod["metadata"]["name"]
        self.view = {key: uid for key, uid in self.view.items() if key != name}
        if kind != "DELETED" and self._is_member(pod):
            self.view[name] = pod["metadata"]["uid"]

    def _is_member(self, pod: dict[str, Any]) -> bool:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        return ready and not pod["metadata"].get("deletionTimestamp")

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.frozen:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        if self.refuses:
            return web.Response(status=self.refuses)
        if request.headers.get("Authorization") is None:
            return web.Response(status=401)
        if request.headers["Authorization"] != f"Bearer {self.token}":
            return web.Response(status=403)
        return web.Response(text=self.page())

    def page(self) -> str:
        recorded = PAGE.read_text(encoding="utf-8").splitlines()
        lines = ["# drainagent's stand-in of llm-d's endpoint picker: not llm-d's program"]
        lines += [line for line in recorded if not any(part in line for part in _DYNAMIC) or line.startswith("#")]
        if not self.bare:
            for name in sorted(self.view):
                lines.append(f'inference_pool_per_pod_queue_size{{model_server_pod="{name}-rank-0",name="{POOL}"}} 0')
                lines.append(
                    f'llm_d_epp_per_endpoint_queue_size{{model_server_endpoint="{name}-rank-0",name="{POOL}"}} 0'
                )
            if self.ready is not None:
                lines.append(f'inference_pool_ready_pods{{name="{POOL}"}} {self.ready}')
                lines.append(f'llm_d_epp_ready_endpoints{{name="{POOL}"}} {self.ready}')
            for name, count in sorted(self.attempts.items()):
                rest = f'namespace="{self.namespace}",port="8000",status="success",target_model_name="m"'
                lines.append(f'llm_d_epp_scheduler_attempts_total{{endpoint_name="{name}",{rest}}} {count}')
        if self.leads is not None:
            lines.append(f'leader_election_master_status{{name="{POOL}"}} {int(self.leads)}')
        lines.append(f"process_start_time_seconds {self.started_at!r}")
        return "\n".join(lines) + "\n"
