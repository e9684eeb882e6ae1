"""What each engine exports about its work: the one place that names gauges, former names, routes and defaults. Pure.

Sources: the user's document ("the gauges are named once in the tree"), the engines' wheels by release and the pages
recorded from them (tests/pages).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gauge:
    """One gauge of requests in the engine. ``former``: names of earlier releases, which count as this gauge.

    ``expected``: a complete page carries it. The others are summed when present.
    """

    name: str
    counts: str
    expected: bool = True
    former: tuple[str, ...] = ()


@dataclass(frozen=True)
class Engine:
    """An engine's metrics page and listener, as the engine itself names and defaults them."""

    name: str
    option: str
    gauges: tuple[Gauge, ...]
    port: int
    engine_label: str
    request_counter: str | None = None
    control_routes: frozenset[str] = frozenset()
    load_path: str | None = None
    counter_untrusted_with: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        """What each of the engine's metric names starts with."""
        return self.option + ":"

    @property
    def expected(self) -> tuple[str, ...]:
        return tuple(gauge.name for gauge in self.gauges if gauge.expected)


VLLM = Engine(
    name="vLLM",
    option="vllm",
    port=8000,
    engine_label="engine",
    gauges=(
        Gauge("vllm:num_requests_running", "requests in the running batch"),
        Gauge("vllm:num_requests_waiting", "requests waiting, a decoder's for their KV included"),
        # 0.6.0 to 0.8.5
        Gauge("vllm:num_requests_swapped", "requests swapped out (releases to 0.8.5)", expected=False),
    ),
    # GET /load -> {"server_load": n}. Means something only with --enable-server-load-tracking and one API server.
    load_path="/load",
)

SGLANG = Engine(
    name="SGLang",
    option="sglang",
    port=30000,
    engine_label="dp_rank",
    gauges=(
        Gauge("sglang:num_running_reqs", "requests in the running batch"),
        Gauge("sglang:num_queue_reqs", "requests waiting"),
        Gauge(
            "sglang:num_prefill_bootstrap_queue_reqs",
            "prefill half: requests in the bootstrap queue",
            former=("sglang:num_prefill_prealloc_queue_reqs",),  # 0.4.9 to 0.5.11
        ),
        Gauge(
            "sglang:num_prefill_inflight_queue_reqs",
            "prefill half: requests whose KV is being sent",
            former=("sglang:num_prefill_infight_queue_reqs",),  # misspelt from 0.4.9 to 0.5.1
        ),
        Gauge("sglang:num_decode_prealloc_queue_reqs", "decode half: requests waiting for room for their KV"),
        Gauge("sglang:num_decode_transfer_queue_reqs", "decode half: requests whose KV is being received"),
        Gauge("sglang:num_grammar_queue_reqs", "requests whose grammar is being compiled (0.4.9 on)", expected=False),
        Gauge("sglang:num_decode_host_receive_queue_reqs", "decode half: host queue (0.5.21 on)", expected=False),
    ),
    # Requests in the HTTP server by route, from 0.5.8 on. Streams count to their end from 0.5.10 on only, and a page
    # does not say its release: where it carries the gauge name that 0.5.12 dropped, the counter is not trusted.
    request_counter="sglang:http_requests_active",
    # Probes, scrapes and questions about the server, by the paths that releases 0.4.3 to 0.5.23 serve them under.
    # A closed list: any other route, one of a later release included, counts as work.
    control_routes=frozenset(
        {
            "/",
            "/metrics",
            "/metrics/",
            "/health",
            "/health_generate",
            "/ready",
            "/ping",
            "/model_info",
            "/get_model_info",
            "/server_info",
            "/get_server_info",
            "/get_load",
            "/v1/loads",
            "/v1/models",
            "/v1/models/{model:path}",
            "/v1/models/{model}",
        }
    ),
    counter_untrusted_with=("sglang:num_prefill_prealloc_queue_reqs",),
)

ENGINES = (VLLM, SGLANG)

#: On every page that has Python's process collector; neither engine's own.
PROCESS_START_TIME = "process_start_time_seconds"


def engine_by_name(name: str) -> Engine | None:
    """The engine whose name or option word this is, in any case; None when there is none."""
    return next((engine for engine in ENGINES if name.lower() == engine.option), None)
