"""Withdrawal at the real vllm-router 0.1.17 and sglang-router 0.3.2, judged by judge_views and asked by the edge.

The routers are processes here, with the command line that is rendered, and find their engines at the real API server by
a path that can be held or cut. Engines are one fake server on 127.0.1.0/24; their Pods are objects alone, which no node
has and whose status is written here: neither router can tell. Skipped without the routers or a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from kube import Kube
from test_routers import KEY, SERVER, container, deployment, real_python

from operator_glue import names
from operator_glue.model import RouterName
from operator_glue.render.router_parts import serving_selector
from operator_glue.retirement.data import Key, Looked, Member, Operation, RouterPod, State, Withdrawal
from operator_glue.retirement.reasons import Reason
from operator_glue.retirement.withdrawal import judge_views, missing_baseline, not_restored
from operator_glue.routers.asking import RouterAt
from operator_glue.routers.workers import ask_all, route_in, route_out, worker_url

VLLM, SGLANG = RouterName.VLLM_ROUTER, RouterName.SGLANG_GATEWAY
BOTH = pytest.mark.parametrize("router", [VLLM, SGLANG], ids=["vllm-router", "sglang-gateway"])
NAMESPACE = "drainagent-withdrawal"
DEPLOYMENT = "llama"
SECRET = "the-key"
STAYS = "127.0.1.1"
START_S = 60
#: Both routers: 1 s, then 60 s before they list anew; measured 61 s.
BLIND_S = 61
EVENTS, EVENT_GAP_S = 20, 0.1
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}

SUMMARY: list[str] = []


def tell(case: str, router: RouterName, what: str) -> None:
    SUMMARY.append(f"{router.value:15} {case:46} {what}")


# ---- the engines and their Pods


class EngineServer(ThreadingHTTPServer):
    """All engines: told apart by the address they are asked at. ``requests``: how many each was sent; ``ended``: how
    many of them it has answered to the end."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        super().__init__(("0.0.0.0", 0), _Engine)
        self.port: int = self.server_address[1]


class _Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: EngineServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": "m", "object": "model"}], "model_path": "m", "dp_size": 2})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        address = self.connection.getsockname()[0]
        self.server.requests[address] += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(EVENTS):
            self._chunk(b'data: {"id": "1", "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n')
            time.sleep(EVENT_GAP_S)
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        self.server.ended[address] += 1

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


@dataclass
class Cluster:
    kube: Kube
    engines: EngineServer
    _next: int = 1

    def pod(self, address: str | None = None) -> Member:
        """A Pod that serves at an address of its own, Ready."""
        if address is None:
            self._next += 1
            address = f"127.0.1.{self._next}"
        name = "engine-" + address.replace(".", "-")
        labels = {**serving_selector(DEPLOYMENT), names.ROLE_KIND_LABEL: "Server"}
        (made,) = self.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels},
                "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]},
            }
        )
        self.ready(name, address, True)
        return Member(
            uid=made["metadata"]["uid"],
            name=name,
            resource_version="",
            index=0,
            serving=True,
            terminating=False,
            ended=False,
            never_ran=False,
            main_running=True,
            restarts=0,
            fingerprint="",
            addresses=(address,),
            grace_s=30,
        )

    def ready(self, name: str, address: str, on: bool) -> None:
        conditions = [{"type": "Ready", "status": str(on)}]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        self.kube.run(
            "patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
        )

    def flap(self, member: Member) -> None:
        for on in (False, True):
            self.ready(member.name, member.addresses[0], on)

    def serve(self, member: Member, on: bool) -> None:
        label = f"{names.SERVING_LABEL}={names.SERVING}" if on else f"{names.SERVING_LABEL}-"
        self.kube.run("label", "--overwrite", "pod", member.name, label)

    def delete(self, member: Member) -> None:
        self.kube.delete(f"pod/{member.name}", grace=0)

    def serving_addresses(self) -> frozenset[str]:
        selector = ",".join(f"{name}={value}" for name, value in serving_selector(DEPLOYMENT).items())
        return frozenset(pod["status"]["podIP"] for pod in self.kube.find("pods", selector))


# ---- the routers


class ApiPath:
    """Connections to the API server through this process: passed on, held up, or cut and refused."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._flows, self._away = threading.Event(), threading.Event()
        self._flows.set()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def cut(self, seconds: float) -> None:
        """An API server that is away for so long."""
        self._away.set()
        self._close()
        time.sleep(seconds)
        self._away.clear()

    def close(self) -> None:
        self.release()
        self._close()
        self._listener.close()

    def _close(self) -> None:
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._open.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._away.is_set():
                    near.close()
                    continue
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


class RouterProcess:
    """A router as its Pod runs it. ``pod``: what the API would say of that Pod."""

    def __init__(self, router: RouterName, cluster: Cluster, folder: Path, *flags: str, key: bool = False) -> None:
        self.router, self.cluster, self.key = router, cluster, SECRET if key else None
        self.port, kube = free_port(), cluster.kube
        address = kube.run("config", "view", "--output", "jsonpath={.clusters[0].cluster.server}").strip()
        host, _, port = address.removeprefix("https://").partition(":")
        self.api = ApiPath(host, int(port))
        name = f"{router.value}-{self.port}"
        self.kubeconfig = folder / f"{name}.kubeconfig"
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(kube.kubeconfig.read_text().replace(address, f"https://127.0.0.1:{self.api.port}"))
        own = ["--port", str(self.port), "--prometheus-port", str(free_port()), "--policy", "round_robin"]
        own += ["--service-discovery-port", str(cluster.engines.port), *flags]
        more: dict[str, Any] = {"apiKeySecretRef": KEY} if key else {}
        rendered = container(deployment(router.value, SERVER, extraArgs=own, **more))
        values = {"NAMESPACE": kube.namespace, "OPENAI_API_KEY": SECRET, "ROUTER_API_KEY": SECRET}
        environment = {item["name"]: values.get(item["name"], str(folder)) for item in rendered["env"]}
        self._words = [
            re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], word)
            for word in (*rendered["command"], *rendered["args"])
        ]
        self._environment = {"PATH": os.environ["PATH"], **environment, "KUBECONFIG": str(self.kubeconfig)}
        self.log = folder / f"{name}.log"
        self.uid = name
        self.start()

    def start(self) -> None:
        started_at = time.time()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [real_python(self.router.value).parent / self._words[0], *self._words[1:]],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.pod = RouterPod(self.uid, self.uid, False, f"process-{self._process.pid}", started_at)
        self.at = RouterAt(self.uid, "127.0.0.1", self.port)

    def terminate(self) -> None:
        self._process.terminate()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.stop()
        self.api.close()
        self.kubeconfig.unlink()

    def listed(self) -> frozenset[str]:
        (view,) = asyncio.run(ask_all([self.at], self.key, self.router, time.time))
        return view.listed

    def wait_listed(self, address: str, on: bool = True, within_s: float = START_S) -> float:
        """Seconds until it does, or does not."""
        began = time.monotonic()
        while time.monotonic() - began < within_s:
            if (address in self.listed()) == on:
                return time.monotonic() - began
            time.sleep(0.02)
        tail = self.log.read_text(errors="replace")[-3000:]
        pytest.fail(f"{self.router.value} {'does not list' if on else 'lists'} {address}; its log ends:\n{tail}")


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    for router in (VLLM, SGLANG):
        real_python(router.value)  # skips where it is not installed
    try:
        kube = Kube.of_cluster(NAMESPACE)
    except RuntimeError as error:
        pytest.skip(str(error))
    kube.delete_namespace()
    kube.create_namespace()
    engines = EngineServer()
    threading.Thread(target=engines.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    found = Cluster(kube, engines)
    try:
        found.pod(STAYS)
        yield found
    finally:
        engines.shutdown()
        engines.server_close()
        kube.delete_namespace(wait=False)
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print("\n", *SUMMARY, sep="\n")


@pytest.fixture(scope="module")
def running(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[RouterName, RouterProcess]]:
    """One of each for the cases that leave it as it was."""
    folder = tmp_path_factory.mktemp("routers")
    with contextlib.ExitStack() as stack:
        found = {}
        for router in (VLLM, SGLANG):
            found[router] = RouterProcess(router, cluster, folder)
            stack.callback(found[router].close)
        for one in found.values():
            one.wait_listed(STAYS)
        yield found


# ---- the operation, as the protocol drives it


@dataclass
class Removal:
    """One replica's removal up to its withdrawal. ``answers``: what the routers' APIs said."""

    cluster: Cluster
    routers: list[RouterProcess]
    target: Member
    pods: Callable[[], list[RouterPod]]
    key: str | None = None
    answers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        now = time.time()
        self.operation = Operation(
            key=Key("server", 1),
            generation=1,
            wanted=1,
            member_uids=(self.target.uid,),
            workload_uid=None,
            state=State.ADMITTED,
            reason=Reason.ADMITTED,
            message="",
            started_at=now,
            deadline=now + 300,
            phase_started_at=now,
        )

    @property
    def router(self) -> RouterName:
        return self.routers[0].router

    def looked(self) -> Looked:
        views = asyncio.run(ask_all([one.at for one in self.routers], self.key, self.router, time.time))
        return Looked(router_pods=tuple(self.pods()), views=views, serving_addresses=self.cluster.serving_addresses())

    def judge(self) -> Withdrawal:
        """One pass: the baselines are kept, what the API is to be asked for is asked."""
        self.last = self.looked()
        found = judge_views(self.router, self.operation, [self.target], self.last, time.time())
        asked = dict.fromkeys([*self.operation.routed_out, *(write.router_uid for write in found.route_out)])
        self.operation = replace(self.operation, routers=found.baselines, routed_out=tuple(asked))
        for write in found.route_out:
            at = next(one.at for one in self.routers if one.uid == write.router_uid)
            self.answers.append(asyncio.run(route_out(at, self.key, self.router, write.handle)))
        return found

    def admit(self) -> None:
        """Each router seen to list it, then the label taken away and seen gone."""
        for one in self.routers:
            one.wait_listed(self.target.addresses[0])
        self.judge()
        assert self.lacking() is None
        self.withdraw()

    def lacking(self) -> Reason | None:
        found = missing_baseline(self.router, self.operation, [self.target], self.last, time.time())
        return None if found is None else found[0]

    def withdraw(self) -> None:
        self.cluster.serve(self.target, False)
        self.operation = replace(self.operation, withdrawn_at=time.time())

    def until_proven(self, within_s: float = 25, every_s: float = 0.2) -> tuple[float, list[str]]:
        """Seconds from the label's going, and the reasons that held on the way."""
        reasons: list[str] = []
        began = self.operation.withdrawn_at or time.time()
        while time.time() - began < within_s:
            found = self.judge()
            if found.proven:
                return time.time() - began, reasons
            if not reasons or reasons[-1] != found.reason.word:
                reasons.append(found.reason.word)
            time.sleep(every_s)
        pytest.fail(f"not proven within {within_s} s: {found.reason.word}: {found.message}")

    def stays_proven(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self.judge().proven:
                return False
            time.sleep(0.05)
        return True


def removal(cluster: Cluster, *routers: RouterProcess, target: Member | None = None, key: bool = False) -> Removal:
    member = target or cluster.pod()
    return Removal(cluster, list(routers), member, lambda: [one.pod for one in routers], key=SECRET if key else None)


def stream_through(router: RouterProcess) -> str:
    """ok, when every event and its end came; else what did."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(CHAT), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()
    whole = text.count('"content": "x"') == EVENTS and "[DONE]" in text
    return "ok" if response.status == 200 and whole else f"{response.status} {text[:200]}"


class Load:
    """Streams through a router, a new one every ``gap_s``, until it is left. Each has to end in [DONE]."""

    def __init__(self, router: RouterProcess, gap_s: float = 0.1) -> None:
        self._router, self._gap_s = router, gap_s
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(64)
        self._answers: list[Any] = []
        self._sender = threading.Thread(target=self._send)

    def __enter__(self) -> Load:
        self._sender.start()
        time.sleep(1.5)  # some run on each engine
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sender.join()
        self._pool.shutdown()
        results = [answer.result() for answer in self._answers]
        self.sent = len(results)
        self.failed = [one for one in results if one != "ok"]

    def _send(self) -> None:
        while not self._over.wait(self._gap_s):
            self._answers.append(self._pool.submit(stream_through, self._router))


# ---- cases


@BOTH
def test_withdrawn_under_load_without_a_lost_request(
    router: RouterName, cluster: Cluster, running: dict[RouterName, RouterProcess]
) -> None:
    one = running[router]
    op = removal(cluster, one)
    one.wait_listed(op.target.addresses[0])
    with Load(one) as load:
        op.admit()
        engines, address = cluster.engines, op.target.addresses[0]
        running_then = engines.requests[address] - engines.ended[address]
        took_s, reasons = op.until_proven()
        reached = engines.requests[address]
        time.sleep(2)
        late = engines.requests[address] - reached
        assert op.judge().proven
    tell(
        "label removed, under load",
        router,
        f"proven after {took_s:.1f} s, API asked {len(op.answers)} times; {load.sent} streams, "
        f"{len(load.failed)} lost; {running_then} ran on the target as the label went, {late} came once it was proven",
    )
    assert load.failed == []
    assert (load.sent > 20, running_then >= 3, late) == (True, True, 0)
    assert engines.ended[address] == reached
    if router is VLLM:
        assert op.answers == []
    else:
        assert op.answers[0].startswith("202 ")
        assert "RouterListsTarget" in reasons


@BOTH
def test_an_answer_is_no_proof(router: RouterName, cluster: Cluster, running: dict[RouterName, RouterProcess]) -> None:
    at = running[router].at
    handle = "http://127.0.9.9:1" if router is VLLM else "7c42d24f-d54d-4f9a-b90a-4e77f3308fa0"
    answer = asyncio.run(route_out(at, None, router, handle))
    rank = ""
    if router is VLLM:
        handle = worker_url(STAYS, cluster.engines.port) + "@0"
        rank = f"; with a rank {asyncio.run(route_out(at, None, router, handle))[:3]}, and it stays listed"
        assert rank.startswith("; with a rank 200")
        assert STAYS in running[router].listed()
    tell("removal of an unknown worker", router, answer[:3] + rank)
    assert answer[:3] == ("200" if router is VLLM else "404")


@BOTH
def test_a_first_sight_without_it_proves_nothing(
    router: RouterName, cluster: Cluster, running: dict[RouterName, RouterProcess]
) -> None:
    op = removal(cluster, running[router], target=replace(cluster.pod(), addresses=("127.0.9.1",)))
    op.judge()
    before = op.lacking()
    op.withdraw()
    found = op.judge()
    time.sleep(1.2)
    again = op.judge()
    tell("never seen to list it", router, f"held: {found.reason.word}, at Admitted {before and before.word}")
    assert (before, found.proven, found.reason) == (Reason.ROUTER_NEVER_LISTED, False, Reason.ROUTER_NEVER_LISTED)
    assert not again.proven


@BOTH
def test_a_readiness_flap_after_the_apis_removal(
    router: RouterName, cluster: Cluster, running: dict[RouterName, RouterProcess]
) -> None:
    """Without the label it stays out; with the label still on vllm-router takes it in again."""
    one = running[router]
    op = removal(cluster, one)
    op.admit()
    op.until_proven()
    cluster.flap(op.target)
    assert op.stays_proven(2)

    labelled = removal(cluster, one)
    address = labelled.target.addresses[0]
    one.wait_listed(address)
    (view,) = labelled.looked().views
    for handle in view.workers[address]:
        asyncio.run(route_out(one.at, None, router, handle))
    one.wait_listed(address, on=False)
    cluster.flap(labelled.target)
    time.sleep(1)
    back = address in one.listed()
    tell("readiness flaps after the removal", router, f"stays out; with the label on: {'back' if back else 'out'}")
    assert back == (router is VLLM)


@BOTH
def test_a_watch_that_hung_delivers_a_flap_late(
    router: RouterName, cluster: Cluster, running: dict[RouterName, RouterProcess]
) -> None:
    """What an absence after the API's removal is worth while old events are still on their way."""
    one = running[router]
    op = removal(cluster, one)
    one.wait_listed(op.target.addresses[0])
    op.judge()
    one.api.hold()
    try:
        cluster.flap(op.target)
        op.withdraw()
        took_s, reasons = op.until_proven()
    finally:
        sender = threading.Timer(0.3, one.api.release)
        sender.start()
    seen = 0
    until = time.monotonic() + 3
    while time.monotonic() < until:
        seen += op.target.addresses[0] in one.listed()
    log = re.sub(r"\x1b\[[0-9;]*m", "", one.log.read_text(errors="replace"))
    added = len(re.findall(rf"Adding pod: {op.target.name} ", log))
    tell(
        "watch hangs, a flap is delivered late",
        router,
        f"proven after {took_s:.1f} s by its API; then taken in again {added - 1} times, listed in {seen} polls",
    )
    assert "RouterListsTarget" in reasons
    # Should the router do something else than what withdrawal.py is written for, it is found here.
    assert added - 1 == (1 if router is VLLM else 0)
    assert seen <= 1
    assert op.judge().proven


@BOTH
def test_force_deleted(router: RouterName, cluster: Cluster, running: dict[RouterName, RouterProcess]) -> None:
    """The API server sets the deletion timestamp first even at grace 0, and both routers go by that."""
    one = running[router]
    op = removal(cluster, one)
    address = op.target.addresses[0]
    one.wait_listed(address)
    cluster.delete(op.target)
    gone_s = one.wait_listed(address, on=False, within_s=5)
    tell("force-deleted, watch alive", router, f"dropped within {gone_s:.2f} s")


@BOTH
def test_two_router_pods_one_unreachable_or_ending(
    router: RouterName, cluster: Cluster, running: dict[RouterName, RouterProcess], tmp_path: Path
) -> None:
    one, two = running[router], RouterProcess(router, cluster, tmp_path)
    streams: list[str] = []
    try:
        op = removal(cluster, one, two)
        op.admit()
        op.until_proven()
        stream = threading.Thread(target=lambda: streams.append(stream_through(two)))
        stream.start()
        time.sleep(EVENTS * EVENT_GAP_S / 4)
        two.terminate()  # it closes its listener and finishes what runs
        time.sleep(EVENTS * EVENT_GAP_S / 4)
        held = [op.judge()]
        assert "connection refused" in held[0].message
        two.pod = replace(two.pod, terminating=True)
        held.append(op.judge())
        stream.join()
        two.stop()
        # Its Pod starts a new process: that one began after the label went.
        two.start()
        took_s, reasons = op.until_proven()
        age_s = time.time() - (two.pod.started_at or 0)
        gone = op.operation.routers
        op.pods = lambda: [one.pod]
        alone = op.judge()
    finally:
        two.close()
    tell(
        "two Pods, one silent, ending, begun anew",
        router,
        f"held: {held[0].reason.word}, {held[1].reason.word}, {', '.join(reasons)}; proven at its age of {age_s:.1f} s",
    )
    assert streams == ["ok"]
    assert [one.reason for one in held] == [Reason.ROUTER_UNREACHABLE, Reason.ROUTER_TERMINATING]
    assert "RouterRestarted" in reasons
    assert took_s > 0
    assert age_s >= 7
    assert (len(gone), alone.proven, len(alone.baselines)) == (2, True, 1)


@BOTH
def test_ranks_of_one_engine(router: RouterName, cluster: Cluster, tmp_path: Path) -> None:
    """One engine listed as ``@0`` and ``@1``. sglang-gateway accepts their removal and does not remove them: held."""
    flags = ("--intra-node-data-parallel-size", "2") if router is VLLM else ("--dp-aware",)
    one = RouterProcess(router, cluster, tmp_path, *flags)
    try:
        op = removal(cluster, one)
        address = op.target.addresses[0]
        one.wait_listed(address)
        op.judge()
        assert op.lacking() is None
        one.api.hold()
        op.withdraw()
        urls = json.dumps([dict(view.workers)[address] for view in op.last.views])
        if router is VLLM:
            took_s, _ = op.until_proven()
            what = f"watch hangs: proven after {took_s:.1f} s by the URL without a rank"
        else:
            for _ in range(5):
                found = op.judge()
                time.sleep(1)
            what = f"held: {found.reason.word}, {len(op.answers)} removals accepted ({op.answers[0][:3]})"
            assert found.reason is Reason.ROUTER_LISTS_TARGET
            assert urls.count("-") >= 8  # an id for each rank
    finally:
        one.close()
    tell("ranks of one engine", router, what)


@BOTH
def test_a_key(router: RouterName, cluster: Cluster, tmp_path: Path) -> None:
    one = RouterProcess(router, cluster, tmp_path, key=True)
    try:
        one.wait_listed(STAYS)
        refused = removal(cluster, one)
        one.wait_listed(refused.target.addresses[0])
        without = refused.judge().reason
        op = removal(cluster, one, target=refused.target, key=True)
        op.admit()
        took_s, _ = op.until_proven()
    finally:
        one.close()
    tell("with --api-key", router, f"without it {without.word}; with it proven after {took_s:.1f} s")
    assert without is (Reason.ROUTER_REFUSED if router is SGLANG else Reason.ROUTER_LISTS_TARGET)


@BOTH
def test_a_scale_up_restores_the_routing(
    router: RouterName, cluster: Cluster, running: dict[RouterName, RouterProcess]
) -> None:
    """Twice, so that a second withdrawal after a return is seen to work too; with a watch that hangs at first."""
    one = running[router]
    op = removal(cluster, one)
    address = op.target.addresses[0]
    told = []
    for held in (True, False):
        op.operation = replace(op.operation, withdrawn_at=None, routed_out=(), routers=())
        op.last = op.looked()
        one.wait_listed(address)
        op.judge()
        if held:
            one.api.hold()
        try:
            op.withdraw()
            op.until_proven()
            cluster.serve(op.target, True)
        finally:
            one.api.release()
        time.sleep(0.5)
        op.last = op.looked()
        lacking = not_restored(op.operation, [op.target], op.last)
        for _ in lacking:
            url = worker_url(address, cluster.engines.port)
            answer = asyncio.run(route_in(one.at, None, router, url))
            assert answer[:3] in ("200", "202"), answer
        waited_s = one.wait_listed(address, within_s=5)
        told.append(f"{len(op.answers)} removals, {len(lacking)} returns asked for, listed {waited_s:.1f} s later")
        assert not_restored(op.operation, [op.target], op.looked()) == ()
        op.answers.clear()
        before = cluster.engines.requests[address]
        with Load(one) as load:
            pass
        assert (load.failed, cluster.engines.requests[address] > before) == ([], True)
    tell("label back, and asked to take it in", router, "; again: ".join(told))


def test_a_watch_that_broke(cluster: Cluster, tmp_path: Path) -> None:
    """The API server away for 3 s: both routers are blind for a minute, at the same time here."""
    routers = [RouterProcess(router, cluster, tmp_path) for router in (VLLM, SGLANG)]
    try:
        ops = [removal(cluster, one) for one in routers]
        cancelled = [removal(cluster, one) for one in routers]
        deleted = cluster.pod()
        for one, op in zip(routers * 2, ops + cancelled, strict=True):
            one.wait_listed(deleted.addresses[0])
            one.wait_listed(op.target.addresses[0])
            op.judge()
            assert op.lacking() is None
        cutters = [threading.Thread(target=one.api.cut, args=(3,)) for one in routers]
        cut_at = time.time()
        for cutter in cutters:
            cutter.start()
        for cutter in cutters:
            cutter.join()
        cluster.delete(deleted)
        marker = cluster.pod()  # listed when discovery is back
        for one, op in zip(routers, ops, strict=True):
            op.withdraw()
            with Load(one) as load:
                held = op.judge()
                took_s, reasons = op.until_proven()
            tell(
                "watch cut (API server away 3 s)",
                one.router,
                f"held: {', '.join(reasons)}; proven after {took_s:.1f} s by its API; {load.sent} streams, "
                f"{len(load.failed)} lost",
            )
            assert (held.reason, load.failed) == (Reason.ROUTER_LISTS_TARGET, [])
            assert took_s > (3 if one.router is VLLM else 1)
        for one, op in zip(routers, cancelled, strict=True):
            op.withdraw()
            op.until_proven()
            cluster.serve(op.target, True)
            time.sleep(0.5)
            lacking = not_restored(op.operation, [op.target], op.looked())
            url = worker_url(op.target.addresses[0], cluster.engines.port)
            answers = [asyncio.run(route_in(one.at, None, one.router, url)) for _ in lacking]
            back_s = one.wait_listed(op.target.addresses[0], within_s=5)
            with Load(one) as load:
                pass
            tell(
                "... scaled up again meanwhile",
                one.router,
                f"{len(answers)} returns asked for ({answers[0][:3]}), listed {back_s:.1f} s later; "
                f"{load.sent} streams, {len(load.failed)} lost",
            )
            assert (len(answers), load.failed) == (1, [])
        for one, op in zip(routers, ops, strict=True):
            one.wait_listed(marker.addresses[0], within_s=BLIND_S + 20)
            blind_s = time.time() - cut_at
            assert op.stays_proven(2)
            stays = deleted.addresses[0] in one.listed()
            tell(
                "... and once its discovery is back",
                one.router,
                f"blind for {blind_s:.0f} s, the target stays out; a Pod deleted meanwhile: "
                f"{'still listed' if stays else 'gone'}",
            )
            assert blind_s > BLIND_S - 10
            assert stays
        for one, op in zip(routers, cancelled, strict=True):
            one.wait_listed(op.target.addresses[0], within_s=1)
            again = removal(cluster, one, target=op.target)
            again.admit()
            took_s, reasons = again.until_proven()
            tell("... and the one scaled up is removed after all", one.router, f"proven after {took_s:.1f} s")
    finally:
        for one in routers:
            one.close()
