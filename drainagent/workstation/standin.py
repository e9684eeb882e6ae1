"""The stand-in engine: a real HTTP server that behaves as vLLM or SGLang does while it works and when it is stopped.

Only the tokens are simulated. Sockets, streams, queue, metrics page, lagging gauges and the answer to SIGTERM are those
that evidence.md measured on vLLM 0.32.0 and SGLang 0.5.23; each constant below names the section it comes from.
One module, so that an image for clusters without GPUs needs this program and nothing else. It also stands in tests, in
a thread of the test's own process: ``with StandIn(Settings(engine=VLLM)) as engine: engine.url``.

What it leaves out: of the streams that vLLM meets at SIGTERM, 3 of 7 were seen to hang until the kill. Here none hangs:
every second one gets the error event, the others are cut.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import enum
import itertools
import json
import math
import os
import signal
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import h11
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from drainagent import __version__
from drainagent.catalogue import SGLANG, VLLM, Engine, engine_by_name

#: Both engines close a connection that has been idle this long after a response (evidence.md §2).
KEEP_ALIVE_S = 5.0
#: SGLang's request counter stays up this long after a stream's end (evidence.md §2).
COUNTER_LAG_S = 2.0
#: SGLang reports a decoding batch every so many steps (evidence.md §1).
DECODE_REPORT_STEPS = 40
#: SGLang notices this late that the client of a request without stream has gone (evidence.md §4).
UNSTREAMED_ABORT_S = 2.0
#: vLLM at SIGTERM: the error event, or the cut, comes this much later (evidence.md §4) ...
VLLM_ABORT_S = 0.3
#: ... and the process is gone after this (evidence.md §4: idle, exits in 0.4 s).
VLLM_EXIT_S = 0.4
#: vLLM with --shutdown-timeout exits 2 to 5 s after its last request (evidence.md §4): the least of it.
VLLM_DRAINED_EXIT_S = 2.0
#: With --shutdown-timeout a request 1 s after SIGTERM was answered in full, one 3 s after it with an empty stream
#: (evidence.md §4). Between the two nothing was measured: what comes later than the first figure gets the empty stream.
VLLM_LATE_ANSWERED_S = 1.0
#: SGLang, once told to stop, looks for running requests this often (evidence.md §4).
SGLANG_DRAIN_CHECK_S = 5.0

HEAD_LIMIT_BYTES = 64 << 10
BODY_LIMIT_BYTES = 32 << 20
#: Decides only how fast the stand-in is, not how it behaves.
DEFAULT_TOKENS_PER_SECOND = 50.0
DEFAULT_PREFILL_TOKENS_PER_SECOND = 5000.0
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_BATCHED_TOKENS = 2048
DEFAULT_OUTPUT_TOKENS = 16
#: A text prompt's length in tokens is its length in characters by this.
CHARACTERS_PER_TOKEN = 4

_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)


@dataclass(frozen=True)
class Settings:
    """How one stand-in behaves. Times in seconds; a port of 0 takes any free one."""

    engine: Engine
    host: str = "127.0.0.1"
    port: int = 0
    model: str = "stand-in"
    tokens_per_second: float = DEFAULT_TOKENS_PER_SECOND
    prefill_tokens_per_second: float = DEFAULT_PREFILL_TOKENS_PER_SECOND
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS
    load_tracking: bool = False
    log_stats: bool = True
    metrics: bool = True
    mode: str = "unified"
    shutdown_timeout_s: float = 0.0
    drain_check_s: float = SGLANG_DRAIN_CHECK_S
    exit_after_s: float | None = None
    exit_with_stdin: bool = False
    gauge_lag_s: float = 0.0
    stuck_gauge: float | None = None
    no_gauges: bool = False
    reset_metrics: bool = False
    slow_health_s: float = 0.0
    slow_metrics_s: float = 0.0
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    access_log: bool = False
    #: Where lifecycle and access lines go; None: nowhere.
    log: Callable[[str], None] | None = None


class _Kind(enum.Enum):
    TOKEN = "token"
    END = "end"
    ERROR = "error"
    CUT = "cut"
    GONE = "gone"


@dataclass(eq=False)
class _Job:
    """One request in the engine. What happens to it is told through ``events``; a slow reader never holds it up."""

    prompt_tokens: int
    max_tokens: int
    stream: bool
    arrived_s: float
    prefill_left: int
    generated: int = 0
    first_token_s: float | None = None
    last_token_s: float = 0.0
    dropped: bool = False
    events: asyncio.Queue[_Kind] = field(default_factory=asyncio.Queue)


class _Stats:
    """The counters and histograms that stand around the gauges on the engine's page."""

    def __init__(self, settings: Settings) -> None:
        engine, prefix = settings.engine, settings.engine.prefix
        self.registry = CollectorRegistry()
        self.is_vllm = engine is VLLM
        self.labels = (
            {"engine": "0", "model_name": settings.model}
            if self.is_vllm
            else {
                "engine_type": settings.mode,
                "model_name": settings.model,
                "moe_ep_rank": "0",
                "pp_rank": "0",
                "tp_rank": "0",
            }
        )
        # SGLang's front-end counts without ranks, as its pages show.
        front = self.labels if self.is_vllm else {"engine_type": settings.mode, "model_name": settings.model}
        ours = settings.log_stats
        self._prompt = self._counter(prefix + "prompt_tokens", "Number of prefill tokens processed.", front, ours)
        self._generated = self._counter(
            prefix + "generation_tokens", "Number of generation tokens processed.", front, ours
        )
        self._first = self._histogram(prefix + "time_to_first_token_seconds", "Time to first token.", front, ours)
        self._between = self._histogram(prefix + "inter_token_latency_seconds", "Time between tokens.", front, ours)
        self._whole = self._histogram(prefix + "e2e_request_latency_seconds", "Time of a whole request.", front, ours)
        self._ended: Counter | None = None
        self._http_active: dict[tuple[str, str], int] = {}
        if self.is_vllm:
            for collector in (ProcessCollector, PlatformCollector, GCCollector):
                collector(registry=self.registry)
            self._sizes = [
                self._histogram(prefix + "request_prompt_tokens", "Prefill tokens of a request.", front, ours, _TOKENS),
                self._histogram(
                    prefix + "request_generation_tokens", "Tokens generated for a request.", front, ours, _TOKENS
                ),
            ]
            self._http = Counter(
                "http_requests",
                "Requests by route.",
                ["handler", "method", "status"],
                registry=None,
            )
            self._http_time = Histogram(
                "http_request_duration_highr_seconds", "Latency of requests.", buckets=_SECONDS, registry=self.registry
            )
            self.registry.register(self._http)
            if ours:
                self._ended = Counter(
                    prefix + "request_success",
                    "Count of successfully processed requests.",
                    [*front, "finished_reason"],
                    registry=self.registry,
                )
                for reason in ("stop", "length", "abort", "error"):
                    self._ended.labels(**front, finished_reason=reason)
        else:
            self._sizes = [
                self._histogram(
                    prefix + "prompt_tokens_histogram", "Prefill tokens of a request.", front, ours, _TOKENS
                ),
                self._histogram(
                    prefix + "generation_tokens_histogram", "Tokens generated for a request.", front, ours, _TOKENS
                ),
            ]
            self._requests = self._counter(prefix + "num_requests", "Number of requests processed.", front, ours)
            self._http = Counter(
                prefix + "http_requests", "HTTP requests.", ["endpoint", "method"], registry=self.registry
            )
            self._http_answers = Counter(
                prefix + "http_responses",
                "HTTP responses.",
                ["endpoint", "method", "status_code"],
                registry=self.registry,
            )

    def _counter(self, name: str, text: str, labels: Mapping[str, str], kept: bool) -> Counter:
        counter = Counter(name, text, list(labels), registry=self.registry if kept else None)
        return counter.labels(**labels)

    def _histogram(
        self, name: str, text: str, labels: Mapping[str, str], kept: bool, buckets: Sequence[float] = _SECONDS
    ) -> Histogram:
        histogram = Histogram(name, text, list(labels), registry=self.registry if kept else None, buckets=buckets)
        return histogram.labels(**labels)

    def token(self, job: _Job, now_s: float) -> None:
        self._generated.inc()
        if job.first_token_s is None:
            job.first_token_s = now_s
            self._prompt.inc(job.prompt_tokens)
            self._first.observe(now_s - job.arrived_s)
        else:
            self._between.observe(now_s - job.last_token_s)
        job.last_token_s = now_s

    def ended(self, job: _Job, reason: str, now_s: float) -> None:
        if self._ended is not None:
            self._ended.labels(**self.labels, finished_reason=reason).inc()
        if not self.is_vllm:
            self._requests.inc()
        if reason == "length":
            self._whole.observe(now_s - job.arrived_s)
            for histogram, tokens in zip(self._sizes, (job.prompt_tokens, job.generated), strict=True):
                histogram.observe(tokens)

    def http_started(self, path: str, method: str) -> None:
        if not self.is_vllm:
            self._http.labels(path, method).inc()
            self._http_active[path, method] = self._http_active.get((path, method), 0) + 1

    def http_answered(self, path: str, method: str, status: int, took_s: float) -> None:
        if not self.is_vllm:
            self._http_answers.labels(path, method, str(status)).inc()
        # vLLM's own HTTP series leave out what asks about the server (recorded pages: /v1/completions alone).
        elif path.startswith("/v1/") and method == "POST":
            self._http.labels(path, method, f"{status // 100}xx").inc()
            self._http_time.observe(took_s)

    def http_ended(self, path: str, method: str) -> None:
        if not self.is_vllm:
            self._http_active[path, method] -= 1

    @property
    def http_active(self) -> Mapping[tuple[str, str], int]:
        return self._http_active


class _Gauges(Collector):
    """The engine's gauges as its scheduler last reported them: later than the truth, as on the real engines."""

    def __init__(self, settings: Settings, stats: _Stats) -> None:
        self._settings = settings
        self._stats = stats
        # (when, running, waiting). None: nothing reported yet, as with an SGLang before its first batch.
        self._reports: deque[tuple[float, tuple[int, int] | None]] = deque(
            [(-math.inf, (0, 0) if settings.engine is VLLM else None)]
        )
        self._started = False

    def report(self, running: int, waiting: int, now_s: float) -> None:
        if self._reports[-1][1] == (running, waiting):
            return
        self._reports.append((now_s, (running, waiting)))
        while len(self._reports) > 1 and self._reports[1][0] <= now_s - self._settings.gauge_lag_s:
            self._reports.popleft()

    @property
    def reported(self) -> bool:
        return self._reports[-1][1] is not None

    def _shown(self) -> tuple[float, float] | None:
        before_s = time.monotonic() - self._settings.gauge_lag_s
        shown: tuple[float, float] | None = None
        for when_s, values in self._reports:
            if when_s <= before_s:
                shown = values
        if self._settings.stuck_gauge is not None:
            shown = (self._settings.stuck_gauge, shown[1] if shown else 0)
        return shown

    def collect(self) -> Iterator[Metric]:
        settings, labels = self._settings, self._stats.labels
        engine = settings.engine
        shown = None if settings.no_gauges or not settings.log_stats else self._shown()
        if shown is not None:
            running, waiting, *others = engine.gauges
            yield _gauge(running.name, running.counts, [(labels, shown[0])])
            yield _gauge(waiting.name, waiting.counts, [(labels, shown[1])])
            for gauge in others:
                # On the recorded pages of the releases that are imitated: all of SGLang's, none but the two of vLLM's.
                if engine is SGLANG:
                    yield _gauge(gauge.name, gauge.counts, [(labels, 0.0)])
            yield from self._around(shown)
        if engine.request_counter is not None:
            samples = [
                ({"endpoint": path, "method": method}, float(value))
                for (path, method), value in self._stats.http_active.items()
            ]
            yield _gauge(engine.request_counter, "Number of currently active HTTP requests.", samples)

    def _around(self, shown: tuple[float, float]) -> Iterator[Metric]:
        """Neighbours that a careless reader takes for ours: a prefix match, a NaN, a count that is never reset."""
        labels, prefix = self._stats.labels, self._settings.engine.prefix
        if self._settings.engine is VLLM:
            yield _gauge(
                prefix + "num_requests_waiting_by_reason",
                "Number of requests waiting, by reason.",
                [({**labels, "reason": "capacity"}, shown[1]), ({**labels, "reason": "deferred"}, 0.0)],
            )
            yield _gauge(
                prefix + "engine_sleep_state", "Engine sleep state.", [({**labels, "sleep_state": "awake"}, 1.0)]
            )
            yield _gauge(
                prefix + "cache_config_info",
                "Information of the KV cache.",
                [({"block_size": "16", "cache_dtype": "auto", "engine": "0", "kv_cache_dtype_skip_layers": "[]"}, 1.0)],
            )
            return
        yield _gauge(prefix + "max_total_num_tokens", "Most tokens in the KV cache.", [(labels, 60000.0)])
        yield _gauge(prefix + "fwd_occupancy", "Share of time in forward passes.", [(labels, math.nan)])
        with_pid = {**labels, "pid": str(os.getpid())}
        yield _gauge(prefix + "num_retracted_reqs", "Requests retracted since the last report.", [(with_pid, 0.0)])
        yield _gauge(prefix + "num_paused_reqs", "Requests paused since the last report.", [(with_pid, 0.0)])


def _gauge(name: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    for labels, value in samples:
        family.add_sample(name, dict(labels), value)
    return family


class _WithoutCreated(Collector):
    """SGLang's page comes from several processes' files, where the client keeps no time of creation."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class _Scheduler:
    """Runs jobs in steps as the engine does: a bounded batch, the rest in a queue, and gauges set at its own times."""

    def __init__(self, settings: Settings, stats: _Stats, gauges: _Gauges) -> None:
        self._settings = settings
        self._stats = stats
        self._gauges = gauges
        self.waiting: deque[_Job] = deque()
        self.running: list[_Job] = []
        # In a prefill step of SGLang: neither waiting nor in the running batch.
        self._joining: list[_Job] = []
        self._wake = asyncio.Event()
        self._decode_steps = 0
        self._step_ends_s = 0.0

    @property
    def jobs(self) -> list[_Job]:
        return [*self.running, *self._joining, *self.waiting]

    def add(self, job: _Job) -> None:
        self.waiting.append(job)
        self._wake.set()

    def drop(self, job: _Job, kind: _Kind) -> None:
        """Its client left, or the engine aborts it. A job in a step leaves with the step's end, as in the engines."""
        if job.dropped or job not in self.jobs:
            return
        job.dropped = True
        job.events.put_nowait(kind)
        if job in self.waiting:
            self.waiting.remove(job)
        self._stats.ended(job, "abort", time.monotonic())
        self._wake.set()

    async def run(self) -> None:
        step = self._vllm_step if self._settings.engine is VLLM else self._sglang_step
        while True:
            if not self.jobs:
                self._wake.clear()
                await self._wake.wait()
                self._step_ends_s = 0.0
            await step()

    async def _take(self, step_s: float) -> None:
        """A step follows on the last one's due end, so that the rate is kept whatever the machine adds to each."""
        now_s = time.monotonic()
        self._step_ends_s = max(now_s, (self._step_ends_s or now_s) + step_s)
        await asyncio.sleep(self._step_ends_s - now_s)

    def _token(self, job: _Job) -> None:
        if job.dropped:
            return
        now_s = time.monotonic()
        job.generated += 1
        self._stats.token(job, now_s)
        job.events.put_nowait(_Kind.TOKEN)
        if job.generated >= job.max_tokens:
            self._stats.ended(job, "length", now_s)
            job.events.put_nowait(_Kind.END)

    def _leave(self) -> None:
        self.running = [job for job in self.running if not job.dropped and job.generated < job.max_tokens]

    async def _vllm_step(self) -> None:
        """One step decodes every running request and prefills what room is left; the gauges are set once it is back."""
        settings = self._settings
        while self.waiting and len(self.running) < settings.max_num_seqs:
            self.running.append(self.waiting.popleft())
        decoding = [job for job in self.running if job.prefill_left == 0]
        room = max(1, settings.max_num_batched_tokens - len(decoding))
        prefilling: list[tuple[_Job, int]] = []
        for job in self.running:
            if job.prefill_left and room:
                chunk = min(job.prefill_left, room)
                room -= chunk
                prefilling.append((job, chunk))
        prefill_s = sum(chunk for _, chunk in prefilling) / settings.prefill_tokens_per_second
        await self._take(max(prefill_s, 1 / settings.tokens_per_second))
        for job, chunk in prefilling:
            job.prefill_left -= chunk
            if job.prefill_left == 0:
                self._token(job)
        for job in decoding:
            self._token(job)
        self._leave()
        self._gauges.report(len(self.running), len(self.waiting), time.monotonic())

    async def _sglang_step(self) -> None:
        """Prefill first, decodes standing still; the report counts the batch *before* the new requests join."""
        settings = self._settings
        room = settings.max_num_seqs - len(self.running)
        if self.waiting and room > 0:
            self._joining = [self.waiting.popleft() for _ in range(min(room, len(self.waiting)))]
            self._gauges.report(len(self.running), len(self.waiting), time.monotonic())
            tokens = sum(job.prefill_left for job in self._joining)
            await self._take(max(tokens / settings.prefill_tokens_per_second, 1 / settings.tokens_per_second))
            for job in self._joining:
                job.prefill_left = 0
                self._token(job)
            self.running += self._joining
            self._joining = []
        else:
            await self._take(1 / settings.tokens_per_second)
            for job in self.running:
                self._token(job)
            self._decode_steps += 1
        self._leave()
        if not self.running and not self.waiting:
            self._gauges.report(0, 0, time.monotonic())
        elif self._decode_steps >= DECODE_REPORT_STEPS:
            self._decode_steps = 0
            self._gauges.report(len(self.running), len(self.waiting), time.monotonic())


class _HttpError(Exception):
    """The request cannot be served; carries the HTTP status and one sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _GoneError(Exception):
    """The client has left, or we cut the connection: nothing more can be sent."""


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    body: bytes

    def json(self) -> dict[str, Any]:
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise _HttpError(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise _HttpError(HTTPStatus.BAD_REQUEST, "the body is no JSON object")
        return value


class _Connection(asyncio.Protocol):
    """One client connection: requests one after the other. h11 speaks the protocol, this moves its bytes."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT_BYTES)
        # Of the request that is being read: a HEAD that goes wrong half-way is answered without a body too.
        self._method = ""
        self._data = asyncio.Event()
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._task: asyncio.Task[None] | None = None
        self._gone = False
        self.busy = False
        self.job: _Job | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._data.set()

    def eof_received(self) -> bool:
        # As the engines' server: a client that closes its sending side has gone.
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._server.connections.discard(self)
        self._leave()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def _leave(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._data.set()
        self._can_write.set()
        if self.job is not None:
            self._server.client_left(self.job)

    # ours

    def cut(self, reset: bool = False) -> None:
        """Close at once, what is not sent yet is lost; with ``reset`` as a TCP reset."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if reset and sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def close_if_idle(self) -> None:
        if not self.busy and self._transport is not None:
            self._transport.close()

    async def send(self, *events: h11.Event) -> None:
        await self._can_write.wait()
        if self._gone or self._transport is None or self._transport.is_closing():
            raise _GoneError
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))

    async def respond(self, request: _Request, status: HTTPStatus, body: bytes, kind: str = "application/json") -> None:
        head = self._head(status, kind, ("content-length", str(len(body))))
        await self.send(head, h11.Data(data=b"" if request.method == "HEAD" else body), h11.EndOfMessage())

    async def start_stream(self) -> None:
        await self.send(self._head(HTTPStatus.OK, "text/event-stream; charset=utf-8"))

    async def chunk(self, data: bytes) -> None:
        await self.send(h11.Data(data=data))

    async def end_stream(self) -> None:
        await self.send(h11.Data(data=b"data: [DONE]\n\n"), h11.EndOfMessage())

    def _head(self, status: HTTPStatus, kind: str, *more: tuple[str, str]) -> h11.Response:
        headers = [("date", formatdate(usegmt=True)), ("server", "uvicorn"), ("content-type", kind), *more]
        if self._http.their_state in (h11.ERROR, h11.SEND_BODY):
            # The request was not read to its end: where the next one begins, nobody knows.
            headers.append(("connection", "close"))
        return h11.Response(status_code=status, reason=status.phrase.encode(), headers=headers)

    async def _serve(self) -> None:
        try:
            while True:
                request = await self._read()
                self.busy = True
                await self._server.handle(self, request)
                self.busy = False
                if self._http.our_state is not h11.DONE or self._server.stopping:
                    break
                self._http.start_next_cycle()
                if not self._http.trailing_data[0]:
                    await self._more(KEEP_ALIVE_S)
        except _HttpError as error:
            with contextlib.suppress(_GoneError):
                await self.respond(_Request(self._method, "", b""), error.status, _error_body(error))
        except (_GoneError, ConnectionError, asyncio.TimeoutError):
            pass
        finally:
            self.busy = False
            if self._transport is not None:
                self._transport.close()

    async def _read(self) -> _Request:
        self._method = ""
        head = await self._event()
        assert isinstance(head, h11.Request)
        self._method = head.method.decode()
        if self._http.they_are_waiting_for_100_continue:
            await self.send(h11.InformationalResponse(status_code=100, reason=b"Continue", headers=[]))
        size = int(dict(head.headers).get(b"content-length", b"0"))
        body = bytearray()
        while size <= BODY_LIMIT_BYTES:
            event = await self._event()
            if not isinstance(event, h11.Data):
                return _Request(self._method, head.target.decode().partition("?")[0], bytes(body))
            body += event.data
            size = max(size, len(body))
        raise _HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is too long")

    async def _event(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                await self._more()
        except h11.RemoteProtocolError as error:
            raise _HttpError(HTTPStatus(error.error_status_hint), "Invalid HTTP request received.") from None
        return event

    async def _more(self, within_s: float | None = None) -> None:
        """Waits until the client has sent more."""
        if self._gone:
            raise _GoneError
        self._data.clear()
        await asyncio.wait_for(self._data.wait(), within_s)


def _error_body(error: _HttpError) -> bytes:
    message = {"object": "error", "message": str(error), "type": "BadRequestError", "code": error.status.value}
    return json.dumps({"error": message}).encode()


_Handler = Callable[[_Connection, _Request], Awaitable[int]]


class _Server:
    """The engine's routes, and what it does when it is told to stop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stats = _Stats(settings)
        self._gauges = _Gauges(settings, self.stats)
        self.stats.registry.register(self._gauges)
        self.scheduler = _Scheduler(settings, self.stats, self._gauges)
        self.connections: set[_Connection] = set()
        self.stopping = False
        self._stopping_since_s = 0.0
        self._load = 0
        self._ids = itertools.count(1)
        self._listener: asyncio.Server | None = None
        self._stop = asyncio.Event()
        self._routes = self._table()

    # life

    async def start(self) -> int:
        settings = self.settings
        context = None
        if settings.ssl_certfile is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: _Connection(self), settings.host, settings.port, ssl=context, backlog=2048
        )
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def run(self) -> None:
        """Serves until it has been told to stop and has done what the engine then does."""
        work = asyncio.create_task(self.scheduler.run())
        end = asyncio.create_task(self._vllm_end() if self.settings.engine is VLLM else self._sglang_end())
        try:
            # A scheduler that fails ends the engine too, with its traceback.
            await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
            for task in (work, end):
                if task.done():
                    task.result()
        finally:
            work.cancel()
            end.cancel()
            self.close()

    def terminate(self) -> None:
        if not self.stopping:
            self.log(f"SIGTERM with {len(self.scheduler.jobs)} requests in the engine")
            self.stopping = True
            self._stopping_since_s = time.monotonic()
            self._stop.set()

    def close(self) -> None:
        """What the end of a process does: no listener, and every connection closed with what is unsent lost."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.cut()

    async def _vllm_end(self) -> None:
        await self._stop.wait()
        settings = self.settings
        began_s = time.monotonic()
        if settings.shutdown_timeout_s > 0:
            while self.scheduler.jobs and time.monotonic() - began_s < settings.shutdown_timeout_s:
                await asyncio.sleep(0.05)
            drained = not self.scheduler.jobs
            self.log("drained" if drained else "the shutdown time-out is over")
            await self._exit_after(VLLM_DRAINED_EXIT_S if drained else VLLM_EXIT_S)
            return
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        await asyncio.sleep(VLLM_ABORT_S)
        for index, job in enumerate(self.scheduler.jobs):
            self.scheduler.drop(job, _Kind.ERROR if index % 2 == 0 or not job.stream else _Kind.CUT)
        await self._exit_after(VLLM_EXIT_S - VLLM_ABORT_S)

    async def _sglang_end(self) -> None:
        # The engine sleeps in this rhythm from its start, so that SIGTERM falls anywhere within a period.
        while not self.stopping or self.scheduler.jobs:
            await asyncio.sleep(self.settings.drain_check_s)
            if self.stopping:
                self.log(f"{len(self.scheduler.jobs)} requests remain")
        await self._exit_after(0.0)

    async def _exit_after(self, usual_s: float) -> None:
        own_s = self.settings.exit_after_s
        await asyncio.sleep(usual_s if own_s is None else own_s)

    def log(self, line: str) -> None:
        if self.settings.log is not None:
            self.settings.log(f"stand-in {self.settings.engine.name}: {line}")

    # requests

    def client_left(self, job: _Job) -> None:
        if self.settings.engine is SGLANG and not job.stream:
            asyncio.get_running_loop().call_later(UNSTREAMED_ABORT_S, self.scheduler.drop, job, _Kind.GONE)
        else:
            self.scheduler.drop(job, _Kind.GONE)

    async def handle(self, connection: _Connection, request: _Request) -> None:
        paths = {path for _, path in self._routes}
        method = "GET" if request.method == "HEAD" else request.method
        handler = self._routes.get((method, request.path))
        began_s = time.monotonic()
        if handler is None:
            status = HTTPStatus.METHOD_NOT_ALLOWED if request.path in paths else HTTPStatus.NOT_FOUND
            await connection.respond(request, status, json.dumps({"detail": status.phrase}).encode())
            self._access(request, status)
            return
        self.stats.http_started(request.path, method)
        try:
            try:
                status_code = await handler(connection, request)
            except _HttpError as error:
                status_code = error.status
                await connection.respond(request, error.status, _error_body(error))
            self.stats.http_answered(request.path, method, status_code, time.monotonic() - began_s)
            self._access(request, status_code)
        finally:
            streamed = connection.job is not None and connection.job.stream
            connection.job = None
            if streamed:
                asyncio.get_running_loop().call_later(COUNTER_LAG_S, self.stats.http_ended, request.path, method)
            else:
                self.stats.http_ended(request.path, method)

    def _access(self, request: _Request, status: int) -> None:
        if self.settings.access_log:
            self.log(f'"{request.method} {request.path}" {status}')

    def _table(self) -> dict[tuple[str, str], _Handler]:
        shared: dict[tuple[str, str], _Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._completions,
        }
        if self.settings.engine is VLLM:
            return {**shared, ("GET", "/load"): self._server_load, ("GET", "/version"): self._version}
        info: dict[tuple[str, str], _Handler] = {
            ("GET", "/model_info"): self._model_info,
            ("GET", "/get_model_info"): self._model_info,
            ("GET", "/health_generate"): self._health,
            ("POST", "/generate"): self._completions,
        }
        return {**shared, **info}

    async def _json(self, connection: _Connection, request: _Request, value: object) -> int:
        await connection.respond(request, HTTPStatus.OK, json.dumps(value).encode())
        return HTTPStatus.OK

    async def _health(self, connection: _Connection, request: _Request) -> int:
        await asyncio.sleep(self.settings.slow_health_s)
        failing = self.stopping and self.settings.engine is SGLANG
        status = HTTPStatus.SERVICE_UNAVAILABLE if failing else HTTPStatus.OK
        await connection.respond(request, status, b"", "text/plain; charset=utf-8")
        return status

    async def _metrics(self, connection: _Connection, request: _Request) -> int:
        if self.settings.reset_metrics:
            connection.cut(reset=True)
            raise _GoneError
        await asyncio.sleep(self.settings.slow_metrics_s)
        if not self.settings.metrics:
            await connection.respond(request, HTTPStatus.NOT_FOUND, b'{"detail":"Not Found"}')
            return HTTPStatus.NOT_FOUND
        await connection.respond(request, HTTPStatus.OK, self.page(), "text/plain; version=1.0.0; charset=utf-8")
        return HTTPStatus.OK

    def page(self) -> bytes:
        registry = self.stats.registry
        return generate_latest(registry if self.settings.engine is VLLM else _WithoutCreated(registry))

    async def _server_load(self, connection: _Connection, request: _Request) -> int:
        # Without the flag the engine answers all the same, with 0 whatever runs.
        return await self._json(connection, request, {"server_load": self._load if self.settings.load_tracking else 0})

    async def _models(self, connection: _Connection, request: _Request) -> int:
        owner = self.settings.engine.option
        model = {"id": self.settings.model, "object": "model", "created": int(time.time()), "owned_by": owner}
        return await self._json(connection, request, {"object": "list", "data": [model]})

    async def _version(self, connection: _Connection, request: _Request) -> int:
        return await self._json(connection, request, {"version": f"stand-in-{__version__}"})

    async def _model_info(self, connection: _Connection, request: _Request) -> int:
        value = {"model_path": self.settings.model, "tokenizer_path": self.settings.model, "is_generation": True}
        return await self._json(connection, request, value)

    async def _completions(self, connection: _Connection, request: _Request) -> int:
        body = request.json()
        prompt_tokens, max_tokens, stream = _work(request.path, body)
        if (
            self.settings.engine is VLLM
            and self.stopping
            and time.monotonic() - self._stopping_since_s > VLLM_LATE_ANSWERED_S
        ):
            return await self._empty(connection, stream)
        job = _Job(prompt_tokens, max_tokens, stream, time.monotonic(), prompt_tokens)
        connection.job = job
        self._load += 1
        try:
            self.scheduler.add(job)
            shape = _Shape(request.path, self.settings.model, f"standin-{next(self._ids)}", job)
            if stream:
                return await self._stream(connection, shape)
            return await self._whole(connection, request, shape)
        finally:
            self._load -= 1
            self.scheduler.drop(job, _Kind.GONE)

    async def _empty(self, connection: _Connection, stream: bool) -> int:
        if not stream:
            raise _HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "the engine is shutting down")
        await connection.start_stream()
        await connection.end_stream()
        return HTTPStatus.OK

    async def _whole(self, connection: _Connection, request: _Request, shape: _Shape) -> int:
        while (kind := await shape.job.events.get()) is _Kind.TOKEN:
            pass
        if kind is _Kind.ERROR:
            raise _HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "the engine is shutting down")
        if kind is not _Kind.END:
            raise _GoneError
        return await self._json(connection, request, shape.whole())

    async def _stream(self, connection: _Connection, shape: _Shape) -> int:
        await connection.start_stream()
        sent = 0
        while True:
            kind = await shape.job.events.get()
            if kind is _Kind.TOKEN:
                sent += 1
                await connection.chunk(_event(shape.part(sent)))
                continue
            if kind is _Kind.CUT:
                connection.cut()
            if kind in (_Kind.CUT, _Kind.GONE):
                raise _GoneError
            if kind is _Kind.ERROR:
                message = {"message": "EngineCore is shutting down", "type": "InternalServerError", "code": 500}
                await connection.chunk(_event({"error": message}))
            await connection.end_stream()
            return HTTPStatus.OK


def _event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


@dataclass(frozen=True)
class _Shape:
    """What an answer looks like on one route."""

    path: str
    model: str
    identity: str
    job: _Job

    _WORD = " token"

    def part(self, number: int) -> object:
        """The chunk that carries token ``number`` (from 1)."""
        last = number == self.job.max_tokens
        if self.path == "/generate":
            # SGLang's own route sends the whole text so far with every chunk.
            return self._generated(number, last)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None}
        choice |= {"delta": {"content": self._WORD}} if "chat" in self.path else {"text": self._WORD}
        kind = "chat.completion.chunk" if "chat" in self.path else "text_completion"
        return self._openai(kind, choice)

    def whole(self) -> object:
        text = self._WORD * self.job.generated
        if self.path == "/generate":
            return self._generated(self.job.generated, True)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if "chat" in self.path else {"text": text}
        answer = self._openai("chat.completion" if "chat" in self.path else "text_completion", choice)
        tokens = {"prompt_tokens": self.job.prompt_tokens, "completion_tokens": self.job.generated}
        return {**answer, "usage": {**tokens, "total_tokens": sum(tokens.values())}}

    def _openai(self, kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        created = int(time.time())
        return {"id": self.identity, "object": kind, "created": created, "model": self.model, "choices": [choice]}

    def _generated(self, number: int, last: bool) -> dict[str, Any]:
        meta = {
            "id": self.identity,
            "finish_reason": {"type": "length", "length": number} if last else None,
            "prompt_tokens": self.job.prompt_tokens,
            "completion_tokens": number,
        }
        return {"text": self._WORD * number, "meta_info": meta}


def _work(path: str, body: Mapping[str, Any]) -> tuple[int, int, bool]:
    """How many prompt tokens, how many tokens to generate, and whether as a stream."""
    if path == "/generate":
        prompt = body.get("input_ids") or body.get("text")
        sampling = body.get("sampling_params") or {}
        wanted = sampling.get("max_new_tokens") if isinstance(sampling, dict) else None
    elif "chat" in path:
        messages = body.get("messages")
        prompt = [m.get("content") for m in messages if isinstance(m, dict)] if isinstance(messages, list) else None
        wanted = body.get("max_completion_tokens", body.get("max_tokens"))
    else:
        prompt, wanted = body.get("prompt"), body.get("max_tokens")
    if prompt is None:
        raise _HttpError(HTTPStatus.BAD_REQUEST, "the request has no prompt")
    if wanted is None:
        wanted = DEFAULT_OUTPUT_TOKENS
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise _HttpError(HTTPStatus.BAD_REQUEST, f"the number of tokens must be 1 or more, not {wanted!r}")
    return max(1, _prompt_tokens(prompt)), wanted, body.get("stream") is True


def _prompt_tokens(prompt: object) -> int:
    if isinstance(prompt, str):
        return math.ceil(len(prompt) / CHARACTERS_PER_TOKEN)
    if isinstance(prompt, list):
        return sum(_prompt_tokens(item) for item in prompt)
    if isinstance(prompt, dict):
        # A part of a chat message.
        return _prompt_tokens(prompt.get("text", ""))
    return 1


class StandIn:
    """A stand-in in a thread of this process, for tests: ``with StandIn(settings) as engine: ... engine.url``.

    ``terminate()`` does what SIGTERM does to the process; ``stop()`` what its kill does.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stand-in", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: _Server | None = None
        self._main: asyncio.Task[None] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return _url(self._settings, self.port)

    def start(self) -> StandIn:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def terminate(self) -> None:
        if self._loop is not None and self._server is not None and self.alive:
            self._loop.call_soon_threadsafe(self._server.terminate)

    def stop(self) -> None:
        if self._loop is not None and self._main is not None and self.alive:
            with contextlib.suppress(RuntimeError):  # it ended by itself meanwhile
                self._loop.call_soon_threadsafe(self._main.cancel)
        self.wait(10.0)

    def wait(self, timeout_s: float) -> bool:
        """True once the engine has ended."""
        self._thread.join(timeout_s)
        return not self.alive

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> StandIn:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._server = _Server(self._settings)
        self.port = await self._server.start()
        self._ready.set()
        try:
            await self._server.run()
        finally:
            # One turn of the loop, so that the connections that were cut are closed.
            await asyncio.sleep(0)


def _url(settings: Settings, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    scheme = "https" if settings.ssl_certfile is not None else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError("must be a number of 0 or more")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m drainagent.workstation.standin",
        allow_abbrev=False,
        description="A stand-in for a vLLM or SGLang server: real HTTP, real metrics page, simulated tokens. "
        "A real engine's command line can be given too: options it does not know are named on stderr and left aside.",
    )
    add = parser.add_argument
    add("--engine", choices=["vllm", "sglang"], help="unset: the one that the command line names")
    add("--host", help="the address to listen on (vLLM's default: all IPv4 addresses; SGLang's: 127.0.0.1)")
    add("--port", type=int, help="the port; 0 takes a free one (vLLM's default: 8000; SGLang's: 30000)")
    add("--model", "--model-path", "--served-model-name", default="stand-in", help="the model's name")
    add("--ssl-certfile", help="serve TLS with this certificate")
    add("--ssl-keyfile", help="the certificate's key")
    work = parser.add_argument_group("work")
    work.add_argument("--tokens-per-second", type=_positive, default=DEFAULT_TOKENS_PER_SECOND, help="of one request")
    work.add_argument(
        "--prefill-tokens-per-second", type=_positive, default=DEFAULT_PREFILL_TOKENS_PER_SECOND, help="of the engine"
    )
    work.add_argument(
        "--max-num-seqs", "--max-running-requests", type=int, default=DEFAULT_MAX_NUM_SEQS, help="the largest batch"
    )
    work.add_argument(
        "--max-num-batched-tokens", type=int, default=DEFAULT_BATCHED_TOKENS, help="vLLM: the tokens of one step"
    )
    engines = parser.add_argument_group("the engines' own")
    engines.add_argument("--enable-server-load-tracking", action="store_true", help="vLLM: /load counts requests")
    engines.add_argument("--disable-log-stats", action="store_true", help="vLLM: a page without the engine's series")
    engines.add_argument(
        "--shutdown-timeout", type=_not_negative, default=0.0, help="vLLM: at SIGTERM finish what runs, this long"
    )
    engines.add_argument("--enable-metrics", action="store_true", help="SGLang: without it /metrics is 404")
    engines.add_argument("--disaggregation-mode", choices=["null", "prefill", "decode"], default="null")
    trouble = parser.add_argument_group("misbehaviour, for tests")
    trouble.add_argument(
        "--gauge-lag", type=_not_negative, default=0.0, metavar="SECONDS", help="the page shows gauges this old"
    )
    trouble.add_argument("--stuck-gauge", type=float, metavar="VALUE", help="the running gauge always reads this")
    trouble.add_argument("--no-gauges", action="store_true", help="the page carries no gauge of requests")
    trouble.add_argument("--reset-metrics", action="store_true", help="/metrics resets the connection")
    trouble.add_argument("--slow-health", type=_not_negative, default=0.0, metavar="SECONDS")
    trouble.add_argument("--slow-metrics", type=_not_negative, default=0.0, metavar="SECONDS")
    trouble.add_argument(
        "--drain-check",
        type=_positive,
        default=SGLANG_DRAIN_CHECK_S,
        metavar="SECONDS",
        help=f"SGLang: how often its own drain looks for running requests ({SGLANG_DRAIN_CHECK_S:g})",
    )
    trouble.add_argument(
        "--exit-after",
        type=_not_negative,
        metavar="SECONDS",
        help="how long it takes to exit once it has drained",
    )
    add("--access-log", action="store_true", help="a line for each request")
    add("--exit-with-stdin", action="store_true", help="exit at once when standard input ends: its parent has gone")
    return parser


def settings_from_argv(argv: Sequence[str]) -> tuple[Settings, list[str]]:
    """The settings of a command line, and what it holds that the stand-in does not know."""
    # Both engines take an underscore for a dash in an option's name.
    spelled = [
        word.partition("=")[0].replace("_", "-") + "".join(word.partition("=")[1:]) if word.startswith("--") else word
        for word in argv
    ]
    parser = _parser()
    given, unknown = parser.parse_known_args(spelled)
    named = given.engine or next((e for e in ("sglang", "vllm") if any(e in word for word in unknown)), None)
    engine = engine_by_name(named) if named else None
    if engine is None:
        parser.error("--engine is missing, and nothing else on the command line names vllm or sglang")
    if given.ssl_keyfile and not given.ssl_certfile:
        parser.error("--ssl-keyfile needs --ssl-certfile")
    if given.max_num_seqs < 1 or given.max_num_batched_tokens < 1:
        parser.error("--max-num-seqs and --max-num-batched-tokens must be 1 or more")
    settings = Settings(
        engine=engine,
        host=given.host or ("0.0.0.0" if engine is VLLM else "127.0.0.1"),
        port=engine.port if given.port is None else given.port,
        model=given.model,
        tokens_per_second=given.tokens_per_second,
        prefill_tokens_per_second=given.prefill_tokens_per_second,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        load_tracking=given.enable_server_load_tracking,
        log_stats=not given.disable_log_stats,
        metrics=engine is VLLM or given.enable_metrics,
        mode="unified" if given.disaggregation_mode == "null" else given.disaggregation_mode,
        shutdown_timeout_s=given.shutdown_timeout,
        drain_check_s=given.drain_check,
        exit_after_s=given.exit_after,
        exit_with_stdin=given.exit_with_stdin,
        gauge_lag_s=given.gauge_lag,
        stuck_gauge=given.stuck_gauge,
        no_gauges=given.no_gauges,
        reset_metrics=given.reset_metrics,
        slow_health_s=given.slow_health,
        slow_metrics_s=given.slow_metrics,
        ssl_certfile=given.ssl_certfile,
        ssl_keyfile=given.ssl_keyfile,
        access_log=given.access_log,
        log=_say,
    )
    return settings, unknown


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed log never stops the engine
        print(line, flush=True)


async def _serve_process(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    server = _Server(settings)
    # Before it listens: PID 1 of a container gets no default action.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.terminate)
    if settings.exit_with_stdin:
        # Nothing is ever written there, so that readable means ended; however the parent went.
        loop.add_reader(0, os._exit, 1)
    port = await server.start()
    server.log(f"listening on {_url(settings, port)}, pid {os.getpid()}")
    await server.run()
    server.log("exit")


def main(argv: Sequence[str] | None = None) -> int:
    settings, unknown = settings_from_argv(sys.argv[1:] if argv is None else argv)
    if unknown:
        print(f"stand-in: left aside: {' '.join(unknown)}", file=sys.stderr, flush=True)
    try:
        asyncio.run(_serve_process(settings))
    except OSError as error:
        print(f"stand-in: cannot listen on {settings.host} port {settings.port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
