"""The envelope of check --json: its fields are a contract (drainagent.io/check/v1)."""

from __future__ import annotations

import json

from drainagent import __version__
from drainagent.catalogue import VLLM
from drainagent.envelope import END, MAX_BYTES, envelope
from drainagent.page import GaugeReading
from drainagent.reasons import Reason, Verdict
from drainagent.sockets import Clients
from drainagent.verdict import Counter, InFlight, Judgement

FIELDS = [
    "schema",
    "agentVersion",
    "engine",
    "url",
    "sampledAt",
    "processStartTime",
    "verdict",
    "reason",
    "message",
    "complete",
    "engines",
    "gauges",
    "missing",
    "inFlight",
    "end",
]


def line(judgement: Judgement) -> str:
    return envelope(
        judgement,
        engine=VLLM,
        sampled_at="2026-11-30T00:00:00.000Z",
        process_start_time_s=1.5,
        engines_expected=2,
        engines_shown=1,
    )


def test_fields_in_order_and_the_end_last() -> None:
    text = line(Judgement("http://127.0.0.1:8000/metrics", Verdict.IDLE, None, "Idle.", complete=True))
    document = json.loads(text)
    assert list(document) == FIELDS
    assert document["schema"] == "drainagent.io/check/v1"
    assert document["agentVersion"] == __version__
    assert document["engines"] == {"expected": 2, "shown": 1}
    assert text.endswith(f'"end":"{END}"}}\n')
    assert text.count("\n") == 1


def test_what_was_not_read_is_null() -> None:
    document = json.loads(line(Judgement("u", Verdict.UNKNOWN, Reason.TIMED_OUT, "Late.")))
    assert document["reason"] == "TimedOut"
    assert document["inFlight"] == {"connections": None, "unackedBytes": None, "unreadBytes": None, "counter": None}


def test_gauges_and_in_flight() -> None:
    gauge = GaugeReading("vllm:num_requests_running", 3.0, ((("engine", "0"),), (("engine", "1"),)))
    in_flight = InFlight(Clients(2, 10, 0, ("1.2.3.4:5",)), Counter("load", 2))
    document = json.loads(
        line(Judgement("u", Verdict.BUSY, Reason.GAUGES_ABOVE_ZERO, "Busy.", gauges=(gauge,), in_flight=in_flight))
    )
    assert document["gauges"] == [
        {"name": "vllm:num_requests_running", "sum": 3.0, "series": 2, "seriesDigest": gauge.series_digest}
    ]
    assert document["inFlight"] == {
        "connections": 2,
        "unackedBytes": 10,
        "unreadBytes": 0,
        "counter": {"source": "load", "value": 2},
    }


def test_series_digest_is_of_the_label_sets_alone() -> None:
    sets = ((("engine", "0"),), (("engine", "1"),))
    assert GaugeReading("a", 1.0, sets).series_digest == GaugeReading("a", 2.0, sets[::-1]).series_digest
    assert GaugeReading("a", 1.0, sets).series_digest != GaugeReading("a", 1.0, sets[:1]).series_digest


def test_bounded_whatever_a_page_says() -> None:
    text = line(Judgement("u" * 2048, Verdict.UNKNOWN, Reason.INVALID_SAMPLE, "\u2028" * 100_000))
    assert len(text) <= MAX_BYTES
    json.loads(text)
