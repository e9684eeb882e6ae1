"""What a read says, and when reads in a row prove a member idle: numbers alone, whatever the envelope's verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainagent.catalogue import SGLANG, VLLM, Engine
from drainagent.envelope import END, SCHEMA
from operator_glue.retirement.classification import Answering
from operator_glue.retirement.data import Member, MemberRead, ReadFault, Reading, Verdict
from operator_glue.retirement.judging import judge, proven
from operator_glue.retirement.reasons import Reason

URL = "http://127.0.0.1:8000/metrics"
MEMBER = Member("uid", "pod", "1", 0, False, False, False, False, True, 0, "f", ("10.0.0.1",), 30)
AT = 1_800_000_000.0


def answering(engine: Engine = VLLM, engines: int = 1, *, load_trusted: bool = True) -> Answering:
    return Answering("uid", engine, engines, (URL,), load_trusted, ("python3",))


def document(engine: Engine = VLLM, engines: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "agentVersion": "0",
        "engine": engine.name,
        "url": URL,
        "processStartTime": 1.5,
        "verdict": "busy",
        "reason": None,
        "message": "",
        "complete": True,
        "engines": {"expected": engines, "shown": engines},
        "gauges": [{"name": name, "sum": 0.0, "series": engines, "seriesDigest": "d"} for name in engine.expected],
        "missing": [],
        "inFlight": in_flight(),
        **changes,
        "end": END,
    }


def in_flight(connections: Any = 0, unacked: Any = 0, unread: Any = 0, counter: Any = None) -> dict[str, Any]:
    return {"connections": connections, "unackedBytes": unacked, "unreadBytes": unread, "counter": counter}


def load(value: Any) -> dict[str, Any]:
    return {"source": "load", "value": value}


def line(found: dict[str, Any]) -> bytes:
    return (json.dumps(found, separators=(",", ":")) + "\n").encode()


def read(answer: bytes | ReadFault, at: float = AT, **changes: Any) -> MemberRead:
    return replace(MemberRead("uid", at, at + 0.3, MEMBER, MEMBER, answer), **changes)


def judged(
    answer: bytes | ReadFault | dict[str, Any],
    previous: Reading | None = None,
    *,
    at: float = AT,
    by: Answering | None = None,
    prove: bool = False,
    **changes: Any,
) -> Reading:
    found = line(answer) if isinstance(answer, dict) else answer
    return judge(read(found, at, **changes), MEMBER, by or answering(), previous, prove_from_member=prove)


def row(*answers: dict[str, Any], by: Answering | None = None) -> Reading:
    reading: Reading | None = None
    for index, answer in enumerate(answers):
        reading = judged(answer, reading, at=AT + index, by=by)
    assert reading is not None
    return reading


IDLE = document()
BUSY = document(gauges=[{"name": name, "sum": 1.0, "series": 1, "seriesDigest": "d"} for name in VLLM.expected])
LOAD_ZERO = document(reason="ConnectionsOpen", inFlight=in_flight(2, counter=load(0)))


def test_two_idle_reads_prove_it_whatever_the_verdict_says() -> None:
    one = row(IDLE)
    assert (one.verdict, one.reason, one.idle_reads) == (Verdict.IDLE, Reason.IDLE_ONCE, 1)
    assert not proven(one)
    assert proven(row(IDLE, IDLE))


@pytest.mark.parametrize("between", [BUSY, document(complete=False, missing=["x"]), document(engine=SGLANG)])
def test_any_other_read_ends_the_row(between: dict[str, Any]) -> None:
    assert row(IDLE, between, IDLE).idle_reads == 1
    assert row(IDLE, between).idle_reads == 0


def test_a_read_that_begins_too_soon_changes_nothing() -> None:
    first = row(IDLE)
    assert judged(IDLE, first, at=AT + 0.9) is first
    assert judged(BUSY, first, at=AT + 0.9) is first
    assert proven(judged(IDLE, first, at=AT + 1.0))


def test_load_alone_takes_six_reads() -> None:
    assert not proven(row(*[LOAD_ZERO] * 5))
    assert proven(row(*[LOAD_ZERO] * 6))
    assert not proven(row(*[LOAD_ZERO] * 4, IDLE))
    assert proven(row(*[LOAD_ZERO] * 4, IDLE, IDLE))
    assert not proven(row(*[LOAD_ZERO] * 9, by=answering(load_trusted=False)))


def test_a_negative_load_is_never_used_again() -> None:
    negative = document(reason="ConnectionsOpen", inFlight=in_flight(2, counter=load(-1)))
    reading = row(negative, *[LOAD_ZERO] * 9)
    assert (reading.verdict, reading.load_distrusted) == (Verdict.BUSY, True)
    assert proven(row(negative, IDLE, IDLE))


def test_another_set_of_series_begins_the_row_anew() -> None:
    gauges = [{"name": name, "sum": 0.0, "series": 1, "seriesDigest": "other"} for name in VLLM.expected]
    for changed in (document(gauges=gauges), document(processStartTime=2.5)):
        reading = row(IDLE, changed)
        assert (reading.reason, reading.idle_reads, proven(reading)) == (Reason.SERIES_CHANGED, 1, False)
        assert proven(row(IDLE, changed, changed))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (BUSY, Reason.BUSY),
        (document(gauges=[]), Reason.INCOMPLETE_ENVELOPE),
        (document(complete=False), Reason.INCOMPLETE_ENVELOPE),
        (document(missing=["vllm:num_requests_running"]), Reason.INCOMPLETE_ENVELOPE),
        (document(gauges="none"), Reason.NOT_AN_ENVELOPE),
        (document(gauges=IDLE["gauges"] * 2), Reason.NOT_AN_ENVELOPE),
        (document(gauges=[{**IDLE["gauges"][0], "sum": -1.0}]), Reason.INVALID_SAMPLE),
        (document(gauges=[{**IDLE["gauges"][0], "sum": "0"}]), Reason.INVALID_SAMPLE),
        (document(reason="InvalidSample"), Reason.INVALID_SAMPLE),
        (document(reason="ConnectionRefused"), Reason.LISTENER_UNMEASURABLE),
        (document(reason="TLSFailed"), Reason.LISTENER_UNMEASURABLE),
        (document(reason="HTTPError"), Reason.LISTENER_UNMEASURABLE),
        (document(reason="NoListener"), Reason.LISTENER_UNMEASURABLE),
        (document(reason="TimedOut"), Reason.LISTENER_UNCLEAR),
        (document(reason="PageCut"), Reason.LISTENER_UNCLEAR),
        (document(reason="NotAMetricsPage"), Reason.LISTENER_UNCLEAR),
        (document(reason="OfALaterAgent"), Reason.LISTENER_UNCLEAR),
        (document(reason=7), Reason.NOT_AN_ENVELOPE),
        (document(engine=SGLANG), Reason.WRONG_ENGINE),
        (document(url="http://127.0.0.1:8001/metrics"), Reason.WRONG_ENGINE),
        ({**IDLE, "engines": {"expected": 2, "shown": 2}}, Reason.ENGINES_MISSING),
        (document(inFlight=None), Reason.NOT_AN_ENVELOPE),
        (document(inFlight=in_flight(3)), Reason.BUSY),
        (document(inFlight=in_flight(0, 10)), Reason.BUSY),
        (document(inFlight=in_flight(1, 0, 10, load(0))), Reason.BUSY),
        (document(inFlight=in_flight(1, 0, 0, load(2))), Reason.BUSY),
        (document(inFlight=in_flight(None, None, None)), Reason.IN_FLIGHT_UNREADABLE),
        (document(inFlight=in_flight("0")), Reason.INVALID_SAMPLE),
        (document(schema="drainagent.io/check/v2"), Reason.NOT_AN_ENVELOPE),
    ],
)
def test_what_holds(found: dict[str, Any], reason: Reason) -> None:
    reading = judged(found)
    assert reading.reason is reason, reading
    assert reading.verdict is not Verdict.IDLE
    assert reading.message


def test_engines_and_their_series() -> None:
    two = answering(engines=2)
    assert judged(document(engines=2), by=two).verdict is Verdict.IDLE
    assert judged(document(), by=two).reason is Reason.ENGINES_MISSING
    few = document(engines=2)
    few["gauges"][1]["series"] = 1  # the other engine's is not there
    assert judged(few, by=two).reason is Reason.ENGINES_MISSING
    # SGLang with priorities: the total and one series for each priority.
    sglang = document(engine=SGLANG)
    for gauge in sglang["gauges"]:
        gauge["series"] = 4
    assert judged(sglang, by=answering(SGLANG)).verdict is Verdict.IDLE


def test_sglangs_counter_says_that_connections_wait_for_nothing() -> None:
    counter = {"source": "httpRequestsActive", "value": 0}
    found = document(engine=SGLANG, inFlight=in_flight(2, counter=counter))
    assert proven(row(found, found, by=answering(SGLANG)))
    busy = document(engine=SGLANG, inFlight=in_flight(2, counter={**counter, "value": 1}))
    assert row(busy, by=answering(SGLANG)).reason is Reason.BUSY


@pytest.mark.parametrize(
    "part",
    [
        in_flight(1, counter=load(0)),
        in_flight(1, counter={"source": "httpRequestsActive", "value": 0}),
        in_flight(0, 5),
    ],
)
def test_from_the_member_itself_only_an_empty_table_counts(part: dict[str, Any]) -> None:
    assert judged(document(inFlight=part), prove=True).reason is Reason.CLIENTS_CONNECTED
    assert judged(document(inFlight=in_flight(None, None, None)), prove=True).reason is Reason.IN_FLIGHT_UNREADABLE
    assert judged(IDLE, prove=True).verdict is Verdict.IDLE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"before": None}, Reason.MEMBER_GONE),
        ({"after": None}, Reason.MEMBER_GONE),
        ({"before": replace(MEMBER, uid="another")}, Reason.MEMBER_REPLACED),
        ({"after": replace(MEMBER, uid="another")}, Reason.MEMBER_REPLACED),
        ({"after": replace(MEMBER, terminating=True)}, Reason.MEMBER_TERMINATING),
        ({"before": replace(MEMBER, restarts=1)}, Reason.CONTAINER_RESTARTED),
        ({"after": replace(MEMBER, restarts=1)}, Reason.CONTAINER_RESTARTED),
        ({"after": replace(MEMBER, main_running=False)}, Reason.CONTAINER_NOT_RUNNING),
        ({"before": replace(MEMBER, fingerprint="g")}, Reason.MEMBER_CHANGED),
        ({"after": replace(MEMBER, fingerprint="g")}, Reason.MEMBER_CHANGED),
    ],
)
def test_a_member_that_is_not_what_it_was(changes: dict[str, Any], reason: Reason) -> None:
    assert judged(IDLE, **changes).reason is reason


def test_a_read_that_failed_says_why() -> None:
    fault = ReadFault(Reason.EXEC_FORBIDDEN, "no")
    reading = judged(fault)
    assert (reading.verdict, reading.reason, reading.message) == (Verdict.HELD, Reason.EXEC_FORBIDDEN, "no")
    assert judged(fault, before=None, after=None).reason is Reason.EXEC_FORBIDDEN


def test_cut_anywhere_it_never_reads_idle() -> None:
    whole = line(IDLE)
    reasons = {judged(whole[:end]).reason for end in range(len(whole))}
    assert reasons == {Reason.EXEC_CUT, Reason.NOT_AN_ENVELOPE}
    assert judged(whole).verdict is Verdict.IDLE
    assert judged(whole + b"more\n").verdict is not Verdict.IDLE
    assert judged(b"noise\n" + whole).verdict is not Verdict.IDLE
    assert judged(whole + whole).verdict is not Verdict.IDLE


def test_what_a_later_agent_adds_is_left_aside() -> None:
    assert judged(document(more=1, inFlight={**in_flight(), "queued": 3})).verdict is Verdict.IDLE


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*IDLE, "other"]), ANYTHING))
def test_arbitrary_fields_never_raise(changes: dict[str, Any]) -> None:
    found = {**IDLE, **changes, "end": END}
    reading = judged(line(found))
    if reading.verdict is Verdict.IDLE:  # none of what counts was changed to anything else
        counts = ("schema", "engine", "url", "complete", "missing", "inFlight", "gauges")
        assert all(found[name] == IDLE[name] for name in counts if name != "inFlight")


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_read_idle(answer: bytes) -> None:
    assert judged(answer).verdict is Verdict.HELD
