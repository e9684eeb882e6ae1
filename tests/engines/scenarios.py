"""What is tried on which engine, and what must come of it. Data alone: run.py carries it out.

Times in requests are seconds from the delete. The engines' speed on a CPU varies between machines, so sizes are chosen
to end soon and graces so that they end within G - 5 even where a prefill takes five times as long as here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from engine_process import EngineSetup
from load import ClientPlan, Request

#: How clients leave, which decides how soon after the last response the hook can know (the suite checks medians).
Leaving = Literal["close", "keep"]

#: Median bounds in seconds from the later of the last byte and the settle's end to the hook's return (issue 3).
MEDIAN_BOUND_S: dict[tuple[str, Leaving], float] = {
    ("vllm", "close"): 2.2,
    ("sglang", "close"): 2.2,
    ("vllm", "keep"): 7.5,
    ("sglang", "keep"): 4.5,
}

#: An engine whose idle connections outlive every trial here.
LONG_KEEP_ALIVE = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60", "SGLANG_TIMEOUT_KEEP_ALIVE": "60"}
#: When an idle engine's hook is back: two reads, 5 and 6 s after its start, and up to the 2 s that a read may take.
IDLE_RETURN_S = (5.9, 8.2)
IDLE_READS = 2


@dataclass(frozen=True)
class Expect:
    """``returned_s``: bounds of the return, from the delete. ``last_line``: words of the log's last line.

    ``missing``: the log names an expected gauge that the page lacks.
    """

    outcome: str = "idle"
    returned_s: tuple[float, float] | None = None
    reads: int | None = None
    last_line: tuple[str, ...] = ()
    missing: bool = False


AT_ONCE = Expect(returned_s=IDLE_RETURN_S, reads=IDLE_READS)


@dataclass(frozen=True)
class Scenario:
    """One situation. ``trials``: how often, in the short and in the full form; 0 leaves it out.

    ``fresh``: an engine that has served nothing yet. ``sigterm``: SIGTERM to the engine when the hook returns, SIGKILL
    at G; without it the requests that it would have met are counted. ``stuck``: work before the trial until the gauges
    are above zero with nothing running. ``contrast``: a second hook, ``--gauges-only``, over the same load.
    ``leaving``: which median the trial counts to.
    """

    name: str
    what: str
    clients: tuple[ClientPlan, ...] = ()
    grace_s: float = 60
    expect: Expect = Expect()
    leaving: Leaving | None = None
    trials: tuple[int, int] = (1, 3)
    fresh: bool = False
    sigterm: bool = False
    stuck: bool = False
    contrast: bool = False
    hook_args: tuple[str, ...] = ()


def closing(*requests: Request, bytes_per_s: int | None = None) -> ClientPlan:
    return ClientPlan(requests, "close", bytes_per_s)


def holding(*requests: Request) -> ClientPlan:
    return ClientPlan(requests, "hold")


def probing(*requests: Request) -> ClientPlan:
    return ClientPlan(requests, "probe")


STREAMS = (closing(Request(-1, 20, 250)), closing(Request(0.5, 300, 200)), closing(Request(2, 20, 200)))
HELD = (holding(Request(-1, 20, 200)), holding(Request(2, 20, 200)))
ENDLESS = (closing(Request(-1, 20, 3900)), closing(Request(1, 20, 3900)))
LONG = (closing(Request(1, 3500, 8, stream=False)), closing(Request(3, 2500, 20)))
LATE = (
    closing(Request(-1, 20, 60)),
    closing(Request(3, 20, 100)),
    closing(Request(4, 20, 60, stream=False)),
    closing(Request(4.8, 20, 100)),
)
POOL = tuple(
    holding(Request(-2 + n, 20, 40), Request(0.5 + n, 20, 60), Request(3.0 + n / 2, 20, 60 + 20 * n)) for n in range(3)
)
#: A large answer that is soon made: what its client has not read yet is the engine's to send. vLLM's is the larger one.
BYTES_PER_S = {"vllm": 120_000, "sglang": 40_000}
PROBE = ClientPlan(only_probes=True)


#: Not on an engine's first batch: there SGLang's page has no gauges yet, and the bare rule waits.
QUIET = Scenario(
    "quiet-long",
    "a quiet engine that a long prompt reaches late",
    (closing(Request(2.5, 3500, 5, stream=False)),),
    grace_s=120,
    contrast=True,
    leaving="close",
)


def common(engine: str) -> tuple[Scenario, ...]:
    """What both engines go through, on an engine that has served before."""
    large = Request(1, 2000, 5, stream=False, logprobs=5, echo=True)
    slow = (closing(large, bytes_per_s=BYTES_PER_S[engine]),)
    return (
        Scenario("idle", "nothing runs, nobody comes", expect=AT_ONCE, trials=(1, 2)),
        Scenario("streams-end", "streams that end", STREAMS, leaving="close"),
        replace(QUIET, trials=(0, 2)) if engine == "vllm" else QUIET,
        Scenario("late", "requests that arrive late in the settle", LATE, leaving="close"),
        Scenario("long-prefill", "prompts of 2,500 and 3,500 tokens", LONG, leaving="close", grace_s=120),
        Scenario(
            "slow-reader", "a client that reads slowly through a small buffer", slow, leaving="close", grace_s=120
        ),
        Scenario("keep-idle", "clients that keep an idle connection open", HELD, leaving="keep", trials=(1, 4)),
        Scenario("pool", "clients that send one request after the other over one connection", POOL, leaving="keep"),
        Scenario(
            "probe",
            "streams that end, and a health probe a second",
            (*STREAMS, PROBE),
            # SGLang's /health takes most of a second: there the connections are never gone and its counter decides.
            leaving="close" if engine == "vllm" else "keep",
        ),
        Scenario(
            "endless",
            "streams that do not end by the deadline, then SIGTERM",
            ENDLESS,
            grace_s=15,
            expect=Expect("deadline"),
            sigterm=True,
            trials=(1, 2),
        ),
    )


VLLM: tuple[tuple[EngineSetup, tuple[Scenario, ...]], ...] = (
    (
        EngineSetup("vllm", "vllm"),
        (
            Scenario(
                "linger-no-tracking",
                "a connection kept in use by probes, no load tracking: nothing can tell, so the hook waits",
                (probing(Request(-1, 20, 150)),),
                grace_s=15,
                expect=Expect("deadline", last_line=("127.0.0.1",)),
                trials=(1, 1),
            ),
            *common("vllm"),
        ),
    ),
    (
        # TLS here and not on an engine of its own: each start costs most of a minute.
        EngineSetup("vllm-tls-load", "vllm", ("--enable-server-load-tracking",), LONG_KEEP_ALIVE, tls=True),
        (
            Scenario(
                "quiet-logprobs",
                "the first logprobs requests of an engine's life: the gauges read zero for long",
                (
                    closing(Request(2.5, 3500, 5, stream=False, logprobs=5)),
                    closing(Request(2.5, 3700, 5, stream=False, logprobs=5)),
                ),
                grace_s=180,
                fresh=True,
                contrast=True,
                leaving="close",
                trials=(1, 2),
            ),
            Scenario("linger-held", "idle connections that outlive the trial: /load decides", HELD, leaving="keep"),
            Scenario(
                "linger-probed",
                "a connection kept in use by probes: /load decides",
                (probing(Request(-1, 20, 350)),),
                leaving="keep",
            ),
            Scenario(
                "pool",
                "pool clients, their connections open to the end: /load decides",
                POOL,
                leaving="keep",
                trials=(0, 2),
            ),
            Scenario("tls", "streams over TLS that end", STREAMS, leaving="close", trials=(0, 2)),
            Scenario(
                "tls-sigterm",
                "streams over TLS that end, then SIGTERM",
                STREAMS,
                leaving="close",
                sigterm=True,
                trials=(1, 1),
            ),
        ),
    ),
    (
        EngineSetup("vllm-two", "vllm", ("--data-parallel-size", "2", "--api-server-count", "2")),
        (
            Scenario(
                "no-gauges",
                "two API servers before the first request: no gauge has a sample",
                fresh=True,
                expect=Expect(returned_s=IDLE_RETURN_S, reads=IDLE_READS, missing=True),
                trials=(1, 1),
            ),
            Scenario("two-servers", "two API servers: streams that end", STREAMS, grace_s=20, expect=Expect("any")),
            Scenario(
                "stuck",
                "two API servers: gauges stuck above zero with nothing running, then SIGTERM",
                grace_s=15,
                expect=Expect("deadline", last_line=("unchanged for",)),
                stuck=True,
                sigterm=True,
                trials=(1, 1),
            ),
        ),
    ),
)

SGLANG: tuple[tuple[EngineSetup, tuple[Scenario, ...]], ...] = (
    (
        EngineSetup("sglang", "sglang", ("--enable-metrics", "--skip-server-warmup")),
        (
            Scenario(
                "no-gauges",
                "before the first batch: the page has no gauge",
                fresh=True,
                expect=Expect(returned_s=IDLE_RETURN_S, reads=IDLE_READS, missing=True),
                trials=(1, 1),
            ),
            *common("sglang"),
        ),
    ),
    (
        EngineSetup("sglang-tls", "sglang", ("--enable-metrics", "--skip-server-warmup"), LONG_KEEP_ALIVE, tls=True),
        (
            Scenario(
                "tls-held", "TLS, idle connections that outlive the trial: the counter decides", HELD, leaving="keep"
            ),
            Scenario(
                "linger-probed",
                "TLS, a connection kept in use by probes: the counter decides",
                (probing(Request(-1, 20, 350)),),
                leaving="keep",
            ),
            Scenario(
                "tls-sigterm",
                "TLS: streams that end, then SIGTERM",
                STREAMS,
                leaving="close",
                sigterm=True,
                trials=(1, 1),
            ),
        ),
    ),
    (
        EngineSetup("sglang-bare", "sglang", ("--skip-server-warmup",)),
        (
            Scenario(
                "no-metrics-idle",
                "no --enable-metrics, nobody connected: nothing to measure",
                expect=Expect("unmeasurable", returned_s=(4.9, 6.0), last_line=("404",)),
                trials=(1, 1),
            ),
            Scenario(
                "no-metrics",
                "no --enable-metrics: waits while clients are connected, then SIGTERM",
                STREAMS,
                expect=Expect("unmeasurable", last_line=("404",)),
                sigterm=True,
                leaving="close",
                trials=(1, 1),
            ),
        ),
    ),
)

SUITE = (*VLLM, *SGLANG)
