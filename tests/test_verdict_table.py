"""The verdict table of the drain window, row by row, in its three columns.

The hook: "idle" (it returns on the second such read), "ends" (at once: nothing to measure) or "busy" (it reads on).
The check: its verdict. The retirement read: what one who reads the check's envelope makes of it, "idle", "busy" or
"held". Rows about HTTP are read from a listener of ours that misbehaves; the others are plain data.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from misbehaving import (
    BUSY,
    HTML,
    IDLE,
    JSON,
    Behaviour,
    Listener,
    Peer,
    answer,
    chunked,
    closed_port,
    cut,
    drip,
    flood,
    half_handshake,
    http,
    late,
    redirect,
    reset,
    say,
    serve,
    silent,
    tls,
)

from drainagent import sockets
from drainagent.catalogue import ENGINES, SGLANG, VLLM, Engine
from drainagent.check import Checker, check_command, until_idle
from drainagent.envelope import envelope
from drainagent.page import HalfPage, Page, read_page
from drainagent.procfs import read_tables
from drainagent.reader import Reader
from drainagent.reasons import Outcome, Reason, Verdict
from drainagent.sockets import Clients
from drainagent.targets import Target
from drainagent.timeline import timeline
from drainagent.url import ListenerUrl
from drainagent.verdict import Fault, Judgement, LoadRule, Reading, combine, judge
from drainagent.window import Return, WindowState, after_read, next_action

#: For reads that come to an end, and for those that are ended.
BOUND_S, SHORT_S = 2.0, 0.3
EXIT_STATUS = {Verdict.IDLE: 0, Verdict.BUSY: 1, Verdict.UNKNOWN: 3, Verdict.UNMEASURABLE: 3}
UNKNOWN, UNMEASURABLE = Verdict.UNKNOWN, Verdict.UNMEASURABLE
PAGE = http(IDLE)
PAGES = Path(__file__).parent / "pages"


def hook_column(judgement: Judgement) -> str:
    """What the window makes of two such reads in a row."""
    schedule, state = timeline(30), WindowState()
    for at_s in (5.0, 6.0):
        action = next_action(schedule, state, at_s)
        if isinstance(action, Return):
            assert action.outcome is Outcome.UNMEASURABLE
            assert state.reads == 1
            return "ends"
        state = after_read(schedule, state, judgement, at_s, at_s + 0.1)
    action = next_action(schedule, state, 6.2)
    if not isinstance(action, Return):
        return "busy"
    assert action.outcome is Outcome.IDLE
    return "idle"


def retirement_column(line: str) -> str:
    """The retirement read goes on only with an idle and complete member."""
    document = json.loads(line)
    if document["verdict"] == "busy":
        return "busy"
    return "idle" if document["verdict"] == "idle" and document["complete"] is True else "held"


def as_envelope(judgement: Judgement) -> str:
    return envelope(
        judgement,
        engine=VLLM,
        sampled_at="2026-01-01T00:00:00.000Z",
        process_start_time_s=None,
        engines_expected=None,
        engines_shown=None,
    )


# Rows about HTTP.


@dataclass(frozen=True)
class Row:
    """``slow``: a read takes its whole bound. ``client``: somebody else is connected meanwhile."""

    name: str
    behaviour: Behaviour
    hook: str
    check: Verdict
    retirement: str
    reason: Reason | None
    listener: dict[str, Any] = field(default_factory=dict)
    slow: bool = False
    client: bool = False

    def __str__(self) -> str:
        return self.name


def idle(name: str, behaviour: Behaviour, **more: Any) -> Row:
    return Row(name, behaviour, "idle", Verdict.IDLE, "idle", None, **more)


def busy(name: str, behaviour: Behaviour, reason: Reason, **more: Any) -> Row:
    return Row(name, behaviour, "busy", Verdict.BUSY, "busy", reason, **more)


def incomplete(name: str, behaviour: Behaviour) -> Row:
    return Row(name, behaviour, "idle", Verdict.IDLE, "held", Reason.GAUGES_MISSING)


def unknown(name: str, behaviour: Behaviour, reason: Reason, **more: Any) -> Row:
    return Row(name, behaviour, "busy", UNKNOWN, "held", reason, **more)


def unmeasurable(name: str, behaviour: Behaviour, reason: Reason, **more: Any) -> Row:
    return Row(name, behaviour, "busy" if more.get("client") else "ends", UNMEASURABLE, "held", reason, **more)


def no_page(name: str, behaviour: Behaviour) -> Row:
    return Row(name, behaviour, "idle", UNKNOWN, "held", Reason.NOT_A_METRICS_PAGE)


def idle_with(value: str) -> Behaviour:
    return answer(IDLE + b'vllm:num_requests_waiting{engine="1"} %s\n' % value.encode())


ROWS = [
    # complete page, every expected gauge on it and zero, nothing in flight
    idle("complete", answer(IDLE)),
    idle("in chunks", say(chunked(IDLE))),
    idle("with TLS", answer(IDLE), listener={"tls": tls()}),
    idle("late, within the bound", late(PAGE, 0.1)),
    idle("with a foreign line that no parser likes", answer(b"!!{ NaN x\n" + IDLE)),
    # any sample above zero, or something in flight
    busy("gauge above zero", answer(BUSY), Reason.GAUGES_ABOVE_ZERO),
    busy("above zero beside a negative", answer(BUSY + b"vllm:num_requests_running -3\n"), Reason.GAUGES_ABOVE_ZERO),
    busy("gauge of the other engine above zero", answer(IDLE + b"sglang:num_queue_reqs 1\n"), Reason.GAUGES_ABOVE_ZERO),
    busy("client connected", answer(IDLE), Reason.CONNECTIONS_OPEN, client=True),
    busy("client connected, no gauge", answer(b"up 1\n"), Reason.CONNECTIONS_OPEN, client=True),
    busy("client connected, no metrics page", answer(HTML), Reason.CONNECTIONS_OPEN, client=True),
    # any sample of ours that is not a finite number >= 0
    unknown("NaN", idle_with("NaN"), Reason.INVALID_SAMPLE),
    unknown("+Inf", idle_with("+Inf"), Reason.INVALID_SAMPLE),
    unknown("-Inf", idle_with("-Inf"), Reason.INVALID_SAMPLE),
    unknown("negative", idle_with("-1"), Reason.INVALID_SAMPLE),
    unknown("too large for a number", idle_with("1e999"), Reason.INVALID_SAMPLE),
    unknown("word", idle_with("none"), Reason.INVALID_SAMPLE),
    unknown("no value", idle_with(""), Reason.INVALID_SAMPLE),
    # some or all expected gauges absent, the rest zero, nothing in flight
    incomplete("one gauge absent", answer(b"vllm:num_requests_running 0\n")),
    incomplete("all gauges absent", answer(b"# HELP up Up.\nup 1\n")),
    incomplete("HELP and TYPE without a sample", answer(b"# TYPE vllm:num_requests_running gauge\n")),
    # read exceeds its total time
    unknown("late", late(PAGE, 60), Reason.TIMED_OUT, slow=True),
    unknown("header drips", drip(PAGE), Reason.TIMED_OUT, slow=True),
    unknown("body drips", drip(PAGE, at_once=len(PAGE) - 100), Reason.TIMED_OUT, slow=True),
    unknown("accepts and is silent", silent, Reason.TIMED_OUT, slow=True),
    unknown("half a TLS handshake", half_handshake, Reason.TIMED_OUT, slow=True, listener={"https": True}),
    # connection refused, TLS handshake failure, HTTP status >= 400 (refused: below)
    unmeasurable("TLS fails", cut(http(status="400 Bad Request")), Reason.TLS_FAILED, listener={"https": True}),
    unmeasurable("client certificate", answer(IDLE), Reason.TLS_FAILED, listener={"tls": tls(client_certificate=True)}),
    unmeasurable("404", say(http(b"no\n", status="404 Not Found")), Reason.HTTP_ERROR),
    unmeasurable("500 with a page", say(http(IDLE, status="500 Internal Server Error")), Reason.HTTP_ERROR),
    unmeasurable("503", say(http(status="503 Service Unavailable")), Reason.HTTP_ERROR),
    unmeasurable("404, client connected", say(http(status="404 Not Found")), Reason.HTTP_ERROR, client=True),
    # body cut short, reset, bad encoding, last line without a newline, over the size bound
    unknown("body cut", cut(PAGE[:-30]), Reason.PAGE_CUT),
    unknown("chunk cut", cut(chunked(IDLE)[:-5]), Reason.PAGE_CUT),
    unknown("length is longer", cut(http(IDLE, length=9999)), Reason.PAGE_CUT),
    unknown("length is shorter", cut(http(IDLE, length=len(IDLE) - 1)), Reason.PAGE_CUT),
    unknown("unframed and cut", cut(http(b"vllm:num_requests_running 0\n", length=None)), Reason.PAGE_CUT),
    unknown("no newline", answer(IDLE[:-1]), Reason.PAGE_CUT),
    unknown("bad chunk", cut(http(b"zz\r\n", "Transfer-Encoding: chunked", length=None)), Reason.PROTOCOL_ERROR),
    unknown("no HTTP", cut(b"220 mail.example\r\n\r\n"), Reason.PROTOCOL_ERROR),
    unknown("header without end", flood(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"), Reason.PROTOCOL_ERROR),
    unknown("reset on accept", Peer.reset, Reason.CONNECTION_RESET),
    unknown("reset before the answer", reset(), Reason.CONNECTION_RESET),
    unknown("reset in the body", reset(PAGE[:-30]), Reason.CONNECTION_RESET),
    unknown("closed without an answer", cut(b""), Reason.CONNECTION_RESET),
    unknown("gzip", say(http(b"\x1f\x8b", "Content-Encoding: gzip")), Reason.BAD_ENCODING),
    unknown("over the size bound", flood(http(length=1 << 40), b"# more\n"), Reason.PAGE_TOO_LARGE),
    # 200 that is no metrics page
    no_page("HTML", answer(HTML)),
    no_page("JSON", answer(JSON)),
    no_page("empty", answer(b"")),
    # redirect: at most one, same host and port
    idle("redirect", serve(redirect("/real"), {"/real": say(PAGE)})),
    busy("redirect to a busy page", serve(redirect("/real"), {"/real": say(http(BUSY))}), Reason.GAUGES_ABOVE_ZERO),
    unmeasurable("redirect in a loop", serve(redirect("/metrics")), Reason.HTTP_ERROR),
    unmeasurable("redirect elsewhere", serve(redirect("http://192.0.2.99/metrics")), Reason.HTTP_ERROR),
]  # fmt: skip


def noticed(row: Row, listener: Listener) -> None:
    """Until the listener has closed what the last reader left: to another reader that is a client."""
    end = time.monotonic() + 5
    while row.check is Verdict.IDLE and time.monotonic() < end:
        found = sockets.clients(read_tables() or (), urlsplit(str(listener.url)).port or 0)
        if found.connections <= row.client:
            return
        time.sleep(0.005)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(row: Row) -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(Listener(row.behaviour, **row.listener))
        if row.client:
            stack.enter_context(listener.connect())
        target = Target(listener.url, VLLM)
        bound_s = SHORT_S if row.slow else BOUND_S

        hook = judge(Reader(read_tables).read(target, bound_s), LoadRule(), must_decide=True)
        assert (hook_column(hook), hook.reason) == (row.hook, row.reason), hook.message

        noticed(row, listener)
        checker = Checker([target], Reader(read_tables), bound_s)
        check = checker.read()
        line = checker.envelope(check)
        assert (check.verdict, check.reason) == (row.check, row.reason), check.message
        assert retirement_column(line) == row.retirement

        if not row.slow:
            noticed(row, listener)
            result = CliRunner().invoke(check_command, ["--engine", "vllm", "--url", str(listener.url), "--json"])
            assert result.exit_code == EXIT_STATUS[row.check]
            for name in ("verdict", "reason", "complete", "missing"):
                assert json.loads(result.stdout)[name] == json.loads(line)[name]


@pytest.mark.parametrize("clients_left", [False, True])
def test_refused(clients_left: bool) -> None:
    """While somebody is still served on that port there is something to wait for; --gauges-only knows of nobody."""
    with Listener(answer(IDLE)) as listener, contextlib.ExitStack() as stack:
        if clients_left:
            stack.enter_context(listener.connect())
        # One read sees to it that the listener has the client before it goes.
        before = Reader(read_tables).read(Target(listener.url), 5)
        assert before.clients is not None
        assert before.clients.connections == clients_left
        listener.stop_listening()
        reading = Reader(read_tables).read(Target(listener.url), BOUND_S)
        judgement = judge(reading, LoadRule(), must_decide=True)
        assert (judgement.verdict, judgement.reason) == (UNMEASURABLE, Reason.CONNECTION_REFUSED)
        assert hook_column(judgement) == ("busy" if clients_left else "ends")
        assert retirement_column(as_envelope(judge(reading, LoadRule()))) == "held"

        bare = Reader(read_tables, gauges_only=True).read(Target(listener.url), BOUND_S)
        assert hook_column(judge(bare, LoadRule(), gauges_only=True, must_decide=True)) == "ends"


@pytest.mark.parametrize("status", ["404 Not Found", "503 Service Unavailable"])
def test_http_error_under_gauges_only_ends_the_hook_whoever_is_connected(status: str) -> None:
    with Listener(say(http(status=status))) as listener, listener.connect():
        reading = Reader(read_tables, gauges_only=True).read(Target(listener.url), BOUND_S)
    assert hook_column(judge(reading, LoadRule(), gauges_only=True, must_decide=True)) == "ends"


# Rows about what is on the page and in flight: plain data.

NOBODY = Clients(0, 0, 0)
ONE = Clients(1, 0, 0, ("10.0.0.9:50000",))
SOME, NONE_THERE = b"vllm:num_requests_running 0\n", Reason.ALL_GAUGES_MISSING
SGLANG_IDLE = b"".join(b'%s{dp_rank="0"} 0.0\n' % name.encode() for name in SGLANG.expected)


def counted(active: str, endpoint: str = "/v1/chat/completions") -> bytes:
    return SGLANG_IDLE + b'sglang:http_requests_active{endpoint="%s",method="POST"} %s\n' % (
        endpoint.encode(),
        active.encode(),
    )


@dataclass(frozen=True)
class Data:
    """A page, who is connected, and how often in a row /load was 0."""

    name: str
    body: bytes
    clients: Clients | None
    columns: tuple[str, Verdict, str]
    reason: Reason | None
    load: LoadRule | None = None
    gauges_only: bool = False
    engine: Engine | None = None

    def __str__(self) -> str:
        return self.name


ALL_IDLE = ("idle", Verdict.IDLE, "idle")
ALL_BUSY = ("busy", Verdict.BUSY, "busy")
NOT_KNOWN = ("busy", UNKNOWN, "held")
HELD_INCOMPLETE = ("idle", Verdict.IDLE, "held")

DATA = [
    # Nothing in flight, by the first of the two rules that holds.
    Data("no client", IDLE, NOBODY, ALL_IDLE, None),
    Data("no client, counter lags", counted("2"), NOBODY, ALL_IDLE, None),
    Data("client, counter zero", counted("0"), ONE, ALL_IDLE, None),
    Data("client, counter counts control routes alone", counted("3", "/health"), ONE, ALL_IDLE, None),
    Data("client, counter", counted("1"), ONE, ALL_BUSY, Reason.REQUESTS_IN_FLIGHT),
    Data("client, unknown route", counted("1", "/v9/new"), ONE, ALL_BUSY, Reason.REQUESTS_IN_FLIGHT),
    Data("client, counter is no number", counted("NaN"), ONE, NOT_KNOWN, Reason.INVALID_SAMPLE),
    Data("client without a counter", IDLE, ONE, ALL_BUSY, Reason.CONNECTIONS_OPEN),
    Data("counter zero, unread bytes", counted("0"), Clients(1, 0, 9), ALL_BUSY, Reason.BYTES_IN_FLIGHT),
    Data("counter zero, unacknowledged bytes", counted("0"), Clients(1, 9, 0), ALL_BUSY, Reason.BYTES_IN_FLIGHT),
    Data("no client, unacknowledged bytes", IDLE, Clients(0, 9, 0), ALL_BUSY, Reason.BYTES_IN_FLIGHT),
    Data("client, /load 0 five times", IDLE, ONE, ALL_BUSY, Reason.CONNECTIONS_OPEN, LoadRule(5)),
    Data("client, /load 0 six times", IDLE, ONE, ALL_IDLE, None, LoadRule(6)),
    Data("client, /load was negative", IDLE, ONE, ALL_BUSY, Reason.CONNECTIONS_OPEN, LoadRule(distrusted=True)),
    Data("unread bytes, /load 0 six times", IDLE, Clients(1, 0, 1), ALL_BUSY, Reason.BYTES_IN_FLIGHT, LoadRule(6)),
    Data("gauge above zero, nobody there", BUSY, NOBODY, ALL_BUSY, Reason.GAUGES_ABOVE_ZERO),
    Data("gauge above zero, /load 0 six times", BUSY, ONE, ALL_BUSY, Reason.GAUGES_ABOVE_ZERO, LoadRule(6)),
    # Complete and zero, but neither connections nor a counter can be read.
    Data("no table, no counter", IDLE, None, NOT_KNOWN, Reason.IN_FLIGHT_UNREADABLE),
    Data("no table, counter zero", counted("0"), None, ALL_IDLE, None),
    Data("no table, counter", counted("1"), None, ALL_BUSY, Reason.REQUESTS_IN_FLIGHT),
    Data("no table, /load 0 six times", IDLE, None, ALL_IDLE, None, LoadRule(6)),
    Data("no table, /load 0 once", IDLE, None, ALL_BUSY, Reason.REQUESTS_IN_FLIGHT, LoadRule(1)),
    Data("no table, no gauge", b"up 1\n", None, NOT_KNOWN, Reason.IN_FLIGHT_UNREADABLE),
    Data("no table, HTML", HTML, None, NOT_KNOWN, Reason.IN_FLIGHT_UNREADABLE),
    # Absent gauges.
    Data("none of the asked engine's", SGLANG_IDLE, NOBODY, HELD_INCOMPLETE, Reason.GAUGES_MISSING, engine=VLLM),
    Data("former names", SGLANG_IDLE.replace(b"inflight", b"infight"), NOBODY, ALL_IDLE, None),
    # --gauges-only: the bare rule.
    Data("bare: zero", IDLE, None, ALL_IDLE, None, gauges_only=True),
    Data("bare: zero, client", IDLE, ONE, ALL_IDLE, None, gauges_only=True),
    Data("bare: zero, counter", counted("3"), ONE, ALL_IDLE, None, gauges_only=True),
    Data("bare: above zero", BUSY, NOBODY, ALL_BUSY, Reason.GAUGES_ABOVE_ZERO, gauges_only=True),
    Data("bare: some absent", SOME, None, HELD_INCOMPLETE, Reason.GAUGES_MISSING, gauges_only=True),
    Data("bare: all absent", b"up 1\n", NOBODY, NOT_KNOWN, NONE_THERE, gauges_only=True),
    Data("bare: an unexpected one", b"vllm:num_requests_swapped 0\n", NOBODY, NOT_KNOWN, NONE_THERE, gauges_only=True),
    Data("bare: other engine", SGLANG_IDLE, NOBODY, NOT_KNOWN, NONE_THERE, gauges_only=True, engine=VLLM),
    Data("bare: HTML", HTML, NOBODY, NOT_KNOWN, Reason.NOT_A_METRICS_PAGE, gauges_only=True),
    Data("bare: NaN", b"vllm:num_requests_running NaN\n", None, NOT_KNOWN, Reason.INVALID_SAMPLE, gauges_only=True),
]  # fmt: skip


def page_in(body: bytes, engine: Engine | None = None) -> Page:
    page = read_page(body, engine)
    assert not isinstance(page, HalfPage)
    return page


def columns(reading: Reading, load: LoadRule, gauges_only: bool) -> tuple[tuple[str, Verdict, str], Reason | None]:
    hook = judge(reading, load, gauges_only=gauges_only, must_decide=True)
    check = judge(reading, load, gauges_only=gauges_only)
    assert hook.reason == check.reason
    return (hook_column(hook), check.verdict, retirement_column(as_envelope(check))), check.reason


@pytest.mark.parametrize("row", DATA, ids=str)
def test_data(row: Data) -> None:
    load = None if row.load is None else 0
    reading = Reading("http://127.0.0.1:8000/metrics", page_in(row.body, row.engine), row.clients, load)
    assert columns(reading, row.load or LoadRule(), row.gauges_only) == (row.columns, row.reason)


def test_absent_gauges_are_named() -> None:
    for body, absent in ((b"up 1\n", VLLM.expected), (b"vllm:num_requests_running 0\n", VLLM.expected[1:])):
        judgement = judge(Reading("u", page_in(body, VLLM), NOBODY), LoadRule(), must_decide=True)
        assert judgement.missing == absent
        assert all(name in judgement.message for name in absent)
    judgement = judge(Reading("u", page_in(HTML, VLLM), NOBODY), LoadRule(), must_decide=True)
    assert "no metrics page" in judgement.message


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.word)
def test_every_fault(reason: Reason) -> None:
    """No fault is ever idle, whoever is connected; only four of them end the hook, and only when nobody is."""
    ends = {Reason.CONNECTION_REFUSED, Reason.UNREACHABLE, Reason.TLS_FAILED, Reason.HTTP_ERROR}
    for clients in (None, NOBODY, ONE, Clients(0, 5, 0)):
        reading = Reading("u", Fault(reason, "it went wrong"), clients)
        (hook, check, retirement), _ = columns(reading, LoadRule(), gauges_only=False)
        # Where the table cannot be read, a listener that answers with an error may have clients.
        unknown = clients is None and reason in {Reason.TLS_FAILED, Reason.HTTP_ERROR}
        somebody = unknown or (clients is not None and clients != NOBODY)
        assert hook == ("ends" if reason in ends and not somebody else "busy")
        assert (check, retirement) == (UNMEASURABLE if reason in ends else UNKNOWN, "held")


# Recorded pages: of their gauges, and of their counter where clients are connected.

BUSY_PAGES = (
    "sglang-0.5.14-running-4",
    "sglang-0.5.14-stale-nonzero-idle-12s",
    "sglang-0.5.23-dp2-running-8",
    "sglang-0.5.23-pd-decode-transfer-queue-nonzero",
    "sglang-0.5.23-pd-prefill-inflight-nonzero",
    "sglang-0.5.23-running-8",
    "vllm-0.32.0-dp2-api2-running-8",
    "vllm-0.32.0-dp2-api2-stuck-nonzero-idle",
    "vllm-0.32.0-pd-decode-during-decode",
    "vllm-0.32.0-running-8",
    "vllm-0.32.0-stale-multiproc-dir-restart",
)
#: Zero gauges over a request that runs: SGLang's counter says so, vLLM's connection does.
COUNTED_PAGES = (
    "sglang-0.5.23-pd-decode-during-decode",
    "sglang-0.5.23-pd-decode-during-prefill",
    "sglang-0.5.23-pd-prefill-during-decode",
    "sglang-0.5.23-pd-prefill-during-prefill",
)
INCOMPLETE_PAGES = (
    "llmd-router-0.10.0-pool-not-synced",
    "sglang-0.5.23-fresh",
    "sglang-0.5.23-fresh-no-warmup",
    "vllm-0.32.0-disable-log-stats",
    "vllm-0.32.0-dp2-api2-fresh",
    "vllm-0.32.0-fresh-multiproc-dir",
)


@pytest.mark.parametrize("name", sorted(path.stem for path in PAGES.glob("*.txt")))
def test_recorded_page(name: str) -> None:
    page = page_in((PAGES / f"{name}.txt").read_bytes())
    url = "http://127.0.0.1:8000/metrics"
    alone, _ = columns(Reading(url, page, NOBODY), LoadRule(), gauges_only=False)
    served, why = columns(Reading(url, page, ONE), LoadRule(), gauges_only=False)
    if name in BUSY_PAGES:
        assert (alone, served, why) == (ALL_BUSY, ALL_BUSY, Reason.GAUGES_ABOVE_ZERO)
        return
    assert alone == (HELD_INCOMPLETE if name in INCOMPLETE_PAGES else ALL_IDLE)
    if name in COUNTED_PAGES:
        assert (served, why) == (ALL_BUSY, Reason.REQUESTS_IN_FLIGHT)
    elif name.startswith("sglang"):
        assert served == alone
    else:
        assert (served, why) == (ALL_BUSY, Reason.CONNECTIONS_OPEN)


def test_every_recorded_page_cut_anywhere_is_never_idle() -> None:
    """Cut between two lines without framing, or within a line: half a page proves nothing."""
    for engine in ENGINES:
        body = (
            PAGES / f"{engine.option}-{'0.32.0' if engine is VLLM else '0.5.23'}-idle-after-traffic.txt"
        ).read_bytes()
        last = max(body.rindex(b"\n" + name.encode() + b"{") for name in engine.expected)
        for at in range(1, last, 499):
            assert isinstance(read_page(body[:at], engine, framed=False), HalfPage)
            line_end = body.rindex(b"\n", 0, at + 1) + 1 if b"\n" in body[: at + 1] else 0
            if line_end:
                assert isinstance(read_page(body[:line_end], engine, framed=False), HalfPage)


# Several listeners in one container.

REFUSED = Reading("http://127.0.0.1:1/metrics", Fault(Reason.CONNECTION_REFUSED, "nothing listens there"), NOBODY)
GONE_BUT_SERVING = Reading("http://127.0.0.1:2/metrics", Fault(Reason.HTTP_ERROR, "HTTP status 404"), ONE)
SILENT = Reading("http://127.0.0.1:3/metrics", Fault(Reason.TIMED_OUT, "no answer"), NOBODY)
IS_IDLE = Reading("http://127.0.0.1:4/metrics", page_in(IDLE, VLLM), NOBODY)
IS_BUSY = Reading("http://127.0.0.1:5/metrics", page_in(BUSY, VLLM), NOBODY)
LACKS_GAUGES = Reading("http://127.0.0.1:6/metrics", page_in(b"up 1\n", VLLM), NOBODY)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([IS_IDLE, IS_IDLE], ALL_IDLE),
        ([IS_IDLE, IS_BUSY], ALL_BUSY),
        ([IS_BUSY, SILENT, REFUSED], ALL_BUSY),
        ([IS_IDLE, SILENT], NOT_KNOWN),
        ([IS_IDLE, LACKS_GAUGES], HELD_INCOMPLETE),
        ([IS_IDLE, REFUSED], ALL_IDLE),
        ([REFUSED, IS_BUSY], ALL_BUSY),
        ([REFUSED, SILENT], NOT_KNOWN),
        ([REFUSED, REFUSED], ("ends", UNMEASURABLE, "held")),
        ([REFUSED, GONE_BUT_SERVING], ("busy", UNMEASURABLE, "held")),
        ([IS_IDLE, GONE_BUT_SERVING], ALL_BUSY),
    ],
)
def test_several(readings: Sequence[Reading], expected: tuple[str, Verdict, str]) -> None:
    for order in (readings, readings[::-1]):
        hook = combine([judge(reading, LoadRule(), must_decide=True) for reading in order])
        check = combine([judge(reading, LoadRule()) for reading in order])
        assert (hook_column(hook), check.verdict, retirement_column(as_envelope(check))) == expected
        if REFUSED in order and expected[1] is not UNMEASURABLE:
            assert REFUSED.url in check.message


def test_several_read_at_once() -> None:
    with Listener(answer(IDLE)) as one, Listener(answer(IDLE)) as other:
        refused = ListenerUrl("http", "127.0.0.1", closed_port())
        targets = [Target(url, VLLM) for url in (one.url, refused, other.url)]
        readings = Reader(read_tables).read_all(targets, 5)
        judgement = combine([judge(reading, LoadRule(), must_decide=True) for reading in readings])
    assert hook_column(judgement) == "idle"
    assert judgement.complete
    assert str(refused) in judgement.message


# vLLM's /load over several reads, from a listener with a client that keeps its connection.


@pytest.mark.parametrize(
    ("loads", "reads"),
    [
        ([0] * 9, 7),
        ([2, 1, 0, 0, 0, 0, 0, 0, 0], 9),
        ([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], 13),
        ([0, 0, 0, -1, *([0] * 20)], None),
    ],
)
def test_load_rule_over_reads(loads: Sequence[int], reads: int | None) -> None:
    """Idle is six zeros in a row, and the second such read: never after a negative value."""
    left = list(loads)
    clock_s = [0.0]

    def say_load(peer: Peer) -> None:
        say(http(b'{"server_load": %d}' % left.pop(0)))(peer)

    def sleep(seconds: float) -> None:
        clock_s[0] += seconds

    with Listener(serve(say(PAGE), {"/load": say_load})) as listener, listener.connect():
        checker = Checker([Target(listener.url, VLLM, load_tracking=True)], Reader(read_tables))
        judgement = until_idle(checker.read, len(loads) - 1, lambda: clock_s[0], sleep)
    assert judgement.verdict is (Verdict.BUSY if reads is None else Verdict.IDLE)
    assert len(loads) - len(left) == (reads or len(loads))
