"""The operator's process: it joins caches, passes, the Lease, webhooks and pages, and ends in order.

Every replica keeps its caches and answers webhooks; the one that holds the Lease works. Who loses it ends, and begins
anew as a contender: nothing that was under way can go on by mistake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from operator_glue.facts import ClusterFacts
from operator_glue.install import HEALTH_PORT, LEASE, METRICS_PORT, WEBHOOK_PORT, WEBHOOK_SECRET, WEBHOOK_SERVICE
from operator_glue.kube import (
    DEPLOYMENTS,
    INFERENCE_POOLS,
    MODEL_DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    PODS,
    SERVICES,
    VALIDATING_WEBHOOKS,
    WORKLOADS,
    Kube,
    KubeError,
    Object,
    Resource,
)
from operator_glue.model import KIND
from operator_glue.names import INSTANCE_LABEL, MANAGED_BY, MANAGED_BY_LABEL
from operator_glue.runtime.ahead import Ahead
from operator_glue.runtime.cache import Reflector, Store
from operator_glue.runtime.controller import Caches, Controller
from operator_glue.runtime.http import Pages
from operator_glue.runtime.lease import WRITE_S, Lease, NotLeading
from operator_glue.runtime.metrics import Metrics
from operator_glue.runtime.objects import Keeper
from operator_glue.runtime.queue import WorkQueue
from operator_glue.runtime.reading import Reader
from operator_glue.runtime.recorder import Recorder
from operator_glue.runtime.writing import Cut
from operator_glue.webhook.configuration import INJECT_PATH, MUTATING_NAME, VALIDATE_PATH, VALIDATING_NAME
from operator_glue.webhook.envelope import Answer
from operator_glue.webhook.injection import Settings as InjectSettings
from operator_glue.webhook.injection import inject_pod
from operator_glue.webhook.keeper import CHECK_S, MountedCertificates, OwnCertificates
from operator_glue.webhook.review import judge
from operator_glue.webhook.server import Decide, WebhookServer

#: Every ModelDeployment is looked at anew, and what nobody watches is applied anew.
RESYNC_S = 600.0
#: Whether llm-d's and Kueue's definitions are there: they may be installed later. To watch definitions would be a right
#: on all of them.
DISCOVERY_S = 60.0
#: After a pass that found something changed: the watch tells of it within so long, mostly.
CUT_S = 0.2
#: Passes at the same time.
WORKERS = 8
#: For passes that are under way at the end: a member read takes 5 s at most.
LAST_PASSES_S = 10.0

Key = tuple[str, str]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """``own_namespace``: of the Lease and the webhooks' certificate. ``namespaces``: that are watched; empty: all.

    ``webhooks``: they are served. ``certificates``: a folder that cert-manager's Secret is mounted at; None: its own.
    ``inject_only``: nothing but the mutating webhook. ``llm_d``, ``kueue``: it has the rights for their objects.
    ``host`` None: every address.
    """

    facts: ClusterFacts
    own_namespace: str
    identity: str
    namespaces: tuple[str, ...] = ()
    webhooks: bool = True
    certificates: Path | None = None
    inject_only: bool = False
    llm_d: bool = True
    kueue: bool = True
    health_port: int = HEALTH_PORT
    metrics_port: int = METRICS_PORT
    webhook_port: int = WEBHOOK_PORT
    workers: int = WORKERS
    host: str | None = None


@dataclass
class Process:
    """``kube``: not fenced."""

    kube: Kube
    options: Options
    metrics: Metrics = field(default_factory=Metrics)
    clock: Callable[[], float] = time.time
    _facts: ClusterFacts = field(init=False)
    _reflectors: list[Reflector] = field(default_factory=list)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _server: WebhookServer | None = None
    _discovered: bool = False
    _status: int = 0

    def __post_init__(self) -> None:
        self._facts = self.options.facts
        self.kube.failed = lambda error: self.metrics.api_errors.labels(str(error.status)).inc()
        self.queue: WorkQueue[Key] = WorkQueue(time.monotonic)
        identity = f"{self.options.identity}_{uuid.uuid4().hex[:8]}"
        self.lease = Lease(self.kube, self.options.own_namespace, LEASE, identity)
        self.caches = Caches(
            deployments=Store(),
            pods=Store(_deployments_of),
            services=Store(_deployments_of),
            routers=Store(_deployments_of),
            workloads=Store(_deployment_of_workload),
        )
        self.ahead = Ahead(time.monotonic)
        fenced = self.kube.fenced(self.lease.check, WRITE_S)
        self.controller = Controller(
            kube=fenced,
            caches=self.caches,
            ahead=self.ahead,
            reader=Reader(lambda: self._facts),
            keeper=Keeper(fenced),
            recorder=Recorder(fenced, self.options.identity, self.clock),
            metrics=self.metrics,
            clock=self.clock,
            may_write=self.lease.check,
        )

    async def run(self) -> int:
        """Until SIGTERM or SIGINT: 0. 1: the Lease was lost, or a part of it ended by a mistake."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        pages = Pages(self.metrics.registry, self._unready)
        await pages.start(self.options.health_port, self.options.metrics_port, self.options.host)
        if self.options.webhooks:
            await self._start_webhooks()
        status = await self._work_until(stop)
        await self._end(pages)
        return status or self._status

    async def _work_until(self, stop: asyncio.Event) -> int:
        if self.options.inject_only:
            self._discovered = True
            await stop.wait()
            return 0
        self._spawn("discovery", self._discover())
        for resource, store, changed in (
            (MODEL_DEPLOYMENTS, self.caches.deployments, self._deployment_changed),
            (PODS, self.caches.pods, self._pod_changed),
            (SERVICES, self.caches.services, self._object_changed("Service")),
            (DEPLOYMENTS, self.caches.routers, self._object_changed("Deployment")),
        ):
            self._reflect(resource, store, changed)
        working = asyncio.ensure_future(self._lead())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
            return 0
        stopping.cancel()
        _log.error("the Lease is lost: this process ends and begins anew")
        return 1

    async def _end(self, pages: Pages) -> None:
        """The Lease first, so that another replica goes on at once; webhooks are still answered for a while."""
        await self.lease.release()
        self.metrics.leading.set(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop()
        await pages.stop()

    # ---- leading

    async def _lead(self) -> None:
        """Returns when the Lease is lost. Cancelled: passes that are under way end first."""
        await self._synced()
        await self.lease.acquire()
        _log.info("leading, epoch %d", self.lease.epoch)
        self.metrics.leading.set(1)
        stopping = asyncio.Event()
        workers = [asyncio.ensure_future(self._work(stopping)) for _ in range(self.options.workers)]
        resync = asyncio.ensure_future(self._resync())
        try:
            await self.lease.keep()
        finally:
            stopping.set()
            resync.cancel()
            # A key that nobody has wakes each worker that waits.
            _, late = await asyncio.wait(workers, timeout=LAST_PASSES_S if self.lease.is_held() else 0)
            for worker in late:
                worker.cancel()
            await asyncio.gather(*workers, resync, return_exceptions=True)

    async def _synced(self) -> None:
        while self._unready_caches():
            await asyncio.sleep(0.1)

    async def _work(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            getting = asyncio.ensure_future(self.queue.get())
            ending = asyncio.ensure_future(stopping.wait())
            await asyncio.wait({getting, ending}, return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            if not getting.done():
                getting.cancel()
                return
            key = getting.result()
            self.metrics.queue.set(len(self.queue))
            try:
                await self._pass(key)
            finally:
                self.queue.done(key)

    async def _pass(self, key: Key) -> None:
        began_s = time.monotonic()
        about = {"object": "/".join(key)}
        try:
            outcome = await self.controller.work(*key)
        except Cut as cut:
            _log.debug("the pass is begun anew: %s", cut, extra=about)
            self.metrics.pass_errors.labels("changed").inc()
            self.queue.add(key, CUT_S)
            return
        except NotLeading:
            return
        except KubeError as error:
            after_s = self.queue.failed(key)
            self.metrics.pass_errors.labels("api").inc()
            _log.warning("tried again in %.1f s: %s", after_s, error, extra=about)
            return
        except Exception:
            after_s = self.queue.failed(key)
            self.metrics.pass_errors.labels("mistake").inc()
            _log.exception("a mistake of the operator's; tried again in %.1f s", after_s, extra=about)
            return
        finally:
            self.metrics.passes.observe(time.monotonic() - began_s)
        if outcome.trouble is not None:
            self.queue.failed(key)
        else:
            self.queue.forget(key)
        if outcome.due is not None:
            self.queue.add(key, max(0.0, outcome.due - self.clock()))

    async def _resync(self) -> None:
        while True:
            for thing in self.caches.deployments:
                self.queue.add(_key(thing))
            await asyncio.sleep(RESYNC_S)
            self.controller.keeper.forget()

    # ---- caches

    def _reflect(
        self, resource: Resource, store: Store, changed: Callable[[Object | None, Object | None], None]
    ) -> None:
        labels = None if resource in (MODEL_DEPLOYMENTS, WORKLOADS) else {MANAGED_BY_LABEL: MANAGED_BY}
        for namespace in self.options.namespaces or (None,):
            reflector = Reflector(self.kube, resource, namespace, store, changed, labels=labels)
            self._reflectors.append(reflector)
            self._spawn(f"watch of {resource.plural}", reflector.run())

    def _deployment_changed(self, before: Object | None, after: Object | None) -> None:
        thing = after or before
        assert thing is not None
        self.queue.add(_key(thing))
        if after is None:
            self.controller.forget(str(thing["metadata"]["uid"]))

    def _pod_changed(self, before: Object | None, after: Object | None) -> None:
        for pod in (before, after):
            if pod is not None:
                self.ahead.heard(str(pod["metadata"]["uid"]))
                self._add(_deployments_of(pod))
        if before is not None and after is None:
            self.controller.forget_pod(str(before["metadata"]["uid"]))

    def _object_changed(self, kind: str) -> Callable[[Object | None, Object | None], None]:
        def changed(before: Object | None, after: Object | None) -> None:
            thing = after or before
            assert thing is not None
            owner = next(
                (one["uid"] for one in thing["metadata"].get("ownerReferences") or () if one.get("controller")), ""
            )
            is_news = self.controller.keeper.heard(str(owner), thing, kind, gone=after is None)
            if is_news or kind == "Deployment":  # its status says whether the router is Ready
                self._add(_deployments_of(thing))

        return changed

    def _workload_changed(self, before: Object | None, after: Object | None) -> None:
        for workload in (before, after):
            if workload is not None:
                self._add(_deployment_of_workload(workload))

    def _add(self, keys: list[str]) -> None:
        for key in keys:
            namespace, _, name = key.partition("/")
            if self.caches.deployments.get(namespace, name) is not None:
                self.queue.add((namespace, name))

    async def _discover(self) -> None:
        """Which definitions of others are there."""
        watched = False
        while True:
            try:
                pools = self.options.llm_d and await self.kube.serves(INFERENCE_POOLS)
                if pools != self._facts.inference_pool:
                    self._facts = replace(self._facts, inference_pool=pools)
                    for thing in self.caches.deployments:
                        self.queue.add(_key(thing))
                if self.options.kueue and not watched and await self.kube.serves(WORKLOADS):
                    watched = True
                    self._reflect(WORKLOADS, self.caches.workloads, self._workload_changed)
                self._discovered = True
            except KubeError as error:
                _log.warning("what the cluster serves is not known: %s", error)
            await asyncio.sleep(DISCOVERY_S if self._discovered else 1.0)

    def _unready_caches(self) -> str | None:
        if not self._discovered:
            return "what the cluster serves is not known yet"
        if not all(reflector.is_synced for reflector in self._reflectors):
            return "the caches are not filled yet"
        return None

    def _unready(self) -> str | None:
        if self._server is not None and not self._server.has_certificate:
            return "the webhooks have no certificate yet"
        return self._unready_caches()

    # ---- webhooks

    async def _start_webhooks(self) -> None:
        settings = InjectSettings.of(self._facts)
        decisions: dict[str, Decide] = {INJECT_PATH: lambda request: inject_pod(request, settings)}
        configurations = [(MUTATING_WEBHOOKS, MUTATING_NAME)]
        if not self.options.inject_only:
            decisions[VALIDATE_PATH] = lambda request: judge(request, self._facts)
            configurations.append((VALIDATING_WEBHOOKS, VALIDATING_NAME))
        self._server = server = WebhookServer(decisions, self._answered)
        await server.start(self.options.host, self.options.webhook_port)
        keeper: OwnCertificates | MountedCertificates
        if self.options.certificates is not None:
            keeper = MountedCertificates(self.options.certificates, server.use)
        else:
            service = f"{WEBHOOK_SERVICE}.{self.options.own_namespace}.svc"
            keeper = OwnCertificates(
                self.kube,
                self.options.own_namespace,
                WEBHOOK_SECRET,
                (service, f"{service}.cluster.local"),
                configurations,
                server.use,
            )
        self._spawn("certificates", self._keep_certificates(keeper.check))

    async def _keep_certificates(self, check: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(CHECK_S if await self._checked(check) else 2.0)

    async def _checked(self, check: Callable[[], Awaitable[None]]) -> bool:
        try:
            await check()
            return True
        except KubeError as error:
            _log.warning("the webhooks' certificate: %s", error)
            return False

    def _answered(self, path: str, answer: Answer, seconds: float) -> None:
        webhook = "inject" if path == INJECT_PATH else "validate"
        said = "mistake" if answer.mistake is not None else "denied" if answer.faults else "allowed"
        self.metrics.webhooks.labels(webhook, said).inc()
        self.metrics.webhook_seconds.labels(webhook).observe(seconds)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """For as long as the process: one that ends by a mistake is logged, and its part is not done any more, which no
        restart of the part would put right: the process ends."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if not done.cancelled() and done.exception() is not None:
                _log.critical("the %s ended by a mistake", name, exc_info=done.exception())
                self._status = 1
                signal.raise_signal(signal.SIGTERM)

        task.add_done_callback(ended)


def _key(thing: Object) -> Key:
    return str(thing["metadata"]["namespace"]), str(thing["metadata"]["name"])


def _deployments_of(thing: Object) -> list[str]:
    """``namespace/name`` of the ModelDeployments that an object bears the label of or is controlled by."""
    metadata = thing["metadata"]
    found = [str((metadata.get("labels") or {}).get(INSTANCE_LABEL) or "")]
    found += [
        str(owner.get("name"))
        for owner in metadata.get("ownerReferences") or ()
        if owner.get("controller") and owner.get("kind") == KIND
    ]
    return [f"{metadata['namespace']}/{name}" for name in dict.fromkeys(found) if name]


def _deployment_of_workload(workload: Object) -> list[str]:
    """A Pod group is named ``<deployment>.<role>.<ordinal>``."""
    metadata = workload["metadata"]
    name, _, rest = str(metadata["name"]).partition(".")
    return [f"{metadata['namespace']}/{name}"] if rest.count(".") == 1 else []


async def run(kubeconfig: Path | None, options: Options) -> int:
    """The process' exit status."""
    kube = await Kube.connect(kubeconfig)
    try:
        release = await kube.server_version()
        options = replace(options, facts=replace(options.facts, kubernetes=release))
        return await Process(kube, options).run()
    finally:
        await kube.close()
