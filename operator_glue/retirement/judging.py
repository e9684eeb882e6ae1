"""What a read of a member says, and when reads in a row prove it idle. Pure.

The numbers of the envelope are judged here; the verdict in it is not looked at. Whatever cannot be read holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from drainagent.envelope import END, MAX_BYTES, SCHEMA
from drainagent.reasons import Reason as AgentReason
from drainagent.timeline import IDLE_READS, READ_PERIOD_S
from drainagent.verdict import LOAD_READS, UNMEASURABLE
from operator_glue.retirement.classification import Answering
from operator_glue.retirement.data import Member, MemberRead, ReadFault, Reading, Verdict
from operator_glue.retirement.reasons import Reason

#: The agent's reasons under which the numbers speak for themselves. Under any other one there is no whole page.
_NUMBERS_SPEAK = frozenset(
    reason.word
    for reason in (
        AgentReason.GAUGES_ABOVE_ZERO,
        AgentReason.REQUESTS_IN_FLIGHT,
        AgentReason.CONNECTIONS_OPEN,
        AgentReason.BYTES_IN_FLIGHT,
        AgentReason.IN_FLIGHT_UNREADABLE,
        AgentReason.GAUGES_MISSING,
        AgentReason.ALL_GAUGES_MISSING,
    )
)
_UNMEASURABLE = frozenset({*(reason.word for reason in UNMEASURABLE), AgentReason.NO_LISTENER.word})
#: Of the member's own words, in a message.
_SHOWN_CHARS = 300

_Hold = tuple[Reason, str]


def judge(
    read: MemberRead, captured: Member, answering: Answering, previous: Reading | None, *, prove_from_member: bool
) -> Reading:
    """The reading after one more read.

    ``captured``: the member as it was when the read was ordered. ``previous``: the reading before it, of the same
    operation. A read that began less than a second after the last one that is kept changes nothing.
    """
    if previous is not None and 0 <= read.started_at - previous.sampled_at < READ_PERIOD_S:
        return previous
    before = previous if previous is not None else Reading(captured.uid, 0.0, Verdict.HELD, None, "")
    start = replace(
        before, pod_uid=captured.uid, sampled_at=read.started_at, idle_since=None, idle_reads=0, outright_reads=0
    )
    found = _identity(read, captured) or _document(read.answer)
    if not isinstance(found, Mapping):
        return _held(start, *found)
    declared = _declared(found, answering)
    if declared is not None:
        return _held(start, *declared)
    work = _gauges(found, answering)
    if work is None:
        work, outright, distrusted = _in_flight(found, answering, start.load_distrusted, prove_from_member)
        start = replace(start, load_distrusted=distrusted)
    if work is not None:
        return _held(start, *work)
    series = _series(found)
    same = previous is not None and previous.idle_reads > 0
    if previous is not None and same and (previous.fingerprint, previous.series) != (captured.fingerprint, series):
        message = "The engine's process or its gauges' series are not those of the read before; the row begins anew."
        return replace(
            start,
            verdict=Verdict.IDLE,
            reason=Reason.SERIES_CHANGED,
            message=message,
            idle_since=read.started_at,
            idle_reads=1,
            outright_reads=int(outright),
            fingerprint=captured.fingerprint,
            series=series,
        )
    reads = previous.idle_reads + 1 if previous is not None and same else 1
    outright_reads = (previous.outright_reads if previous is not None and same else 0) + 1 if outright else 0
    reading = replace(
        start,
        verdict=Verdict.IDLE,
        reason=None,
        message="",
        idle_since=previous.idle_since if previous is not None and same else read.started_at,
        idle_reads=reads,
        outright_reads=outright_reads,
        fingerprint=captured.fingerprint,
        series=series,
    )
    done = proven(reading)
    wanted = f"{reads} reads in a row" if outright else f"{reads} of {LOAD_READS} reads in a row, by vLLM's /load alone"
    return replace(
        reading,
        reason=None if done else Reason.IDLE_ONCE,
        message=f"Every gauge is zero and nothing is in flight on {wanted}.",
    )


def proven(reading: Reading) -> bool:
    """Two idle reads in a row, or six where vLLM's /load alone says that nothing is in flight."""
    return reading.verdict is Verdict.IDLE and (
        reading.outright_reads >= IDLE_READS or reading.idle_reads >= LOAD_READS
    )


def _held(start: Reading, reason: Reason, message: str) -> Reading:
    busy = reason in (Reason.BUSY, Reason.CLIENTS_CONNECTED)
    return replace(
        start,
        verdict=Verdict.BUSY if busy else Verdict.HELD,
        reason=reason,
        message=message,
        fingerprint="",
        series="",
    )


def _identity(read: MemberRead, captured: Member) -> _Hold | None:
    """Whether the member is the captured one, ran all the time and is what it was."""
    if read.before is None and isinstance(read.answer, ReadFault):
        return read.answer.reason, read.answer.detail  # it could not be looked up, or is not there
    for when, member in (("before", read.before), ("after", read.after)):
        if member is None:
            return Reason.MEMBER_GONE, f"Pod {captured.name} was not there {when} the read."
        if member.uid != captured.uid:
            message = f"Pod {captured.name} has the UID {member.uid} {when} the read, and {captured.uid} was captured."
            return Reason.MEMBER_REPLACED, message
        if member.terminating:
            return Reason.MEMBER_TERMINATING, f"Pod {captured.name} was being deleted {when} the read."
        if member.restarts:
            times = f"{member.restarts} time{'s' * (member.restarts != 1)}"
            return Reason.CONTAINER_RESTARTED, f"Container main of Pod {captured.name} has restarted {times}."
        if not member.main_running:
            return Reason.CONTAINER_NOT_RUNNING, f"Container main of Pod {captured.name} did not run {when} the read."
        if member.fingerprint != captured.fingerprint:
            message = f"Pod {captured.name} had another container, address or annotation {when} the read."
            return Reason.MEMBER_CHANGED, message
    return None


def _document(answer: bytes | ReadFault) -> Mapping[str, Any] | _Hold:
    """The envelope, whole: one line that ends in its mark."""
    if isinstance(answer, ReadFault):
        return answer.reason, answer.detail
    if len(answer) > MAX_BYTES:
        return Reason.EXEC_TOO_LARGE, f"The envelope has {len(answer)} bytes, over the bound of {MAX_BYTES}."
    shown = ascii(answer[:_SHOWN_CHARS].decode("utf-8", "replace"))
    if not answer.startswith(b"{"):
        return Reason.NOT_AN_ENVELOPE, f"The member answered {shown}."
    if not answer.endswith(f'"end":"{END}"}}\n'.encode()):
        return Reason.EXEC_CUT, f"The envelope ends before its end, after {len(answer)} bytes."
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return Reason.NOT_AN_ENVELOPE, f"The member answered {shown}."
    if answer.count(b"\n") != 1 or not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return Reason.NOT_AN_ENVELOPE, f"The member's answer is no {SCHEMA}: {shown}."
    return found


def _declared(found: Mapping[str, Any], answering: Answering) -> _Hold | None:
    """Whether the engine and the listener answered that the member declares, with a whole page."""
    reason, message = found.get("reason"), str(found.get("message") or "")[:_SHOWN_CHARS]
    if reason is not None and not isinstance(reason, str):
        return Reason.NOT_AN_ENVELOPE, "The envelope's reason is no word."
    if reason in _UNMEASURABLE:
        return Reason.LISTENER_UNMEASURABLE, f"{reason}: {message}"
    if reason == AgentReason.INVALID_SAMPLE.word:
        return Reason.INVALID_SAMPLE, message or Reason.INVALID_SAMPLE.sentence
    if reason is not None and reason not in _NUMBERS_SPEAK:
        return Reason.LISTENER_UNCLEAR, f"{reason[:64]}: {message}"
    if found.get("engine") != answering.engine.name or found.get("url") not in answering.urls:
        return (
            Reason.WRONG_ENGINE,
            f"{str(found.get('engine'))[:64]} at {str(found.get('url'))[:200]} answered; the member declares "
            f"{answering.engine.name} at {', '.join(answering.urls)}.",
        )
    return None


def _count(value: Any) -> float | None:
    """A finite number of 0 or more; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _gauges(found: Mapping[str, Any], answering: Answering) -> _Hold | None:
    """None when every expected gauge is there for every engine, each at zero."""
    items = found.get("gauges")
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        return Reason.NOT_AN_ENVELOPE, "The envelope's gauges are no list of gauges."
    known = {gauge.name for gauge in answering.engine.gauges}
    sums, series = {}, {}
    for item in items:
        name, value, count = item.get("name"), _count(item.get("sum")), _count(item.get("series"))
        if value is None or count is None or not isinstance(item.get("seriesDigest"), str):
            return Reason.INVALID_SAMPLE, f"Gauge {str(name)[:100]} is {ascii(item)[:200]}."
        if not isinstance(name, str) or name not in known or name in sums:
            return (
                Reason.NOT_AN_ENVELOPE,
                f"Gauge {str(name)[:100]} is not one of {answering.engine.name}'s, or doubled.",
            )
        sums[name], series[name] = value, count
    above = ", ".join(f"{name} is {value:g}" for name, value in sums.items() if value > 0)
    if above:
        return Reason.BUSY, f"{above}."
    missing = [name for name in answering.engine.expected if name not in sums]
    if missing or found.get("complete") is not True or found.get("missing") != []:
        named = ", ".join(missing) or str(found.get("missing"))[:200]
        return Reason.INCOMPLETE_ENVELOPE, f"Absent: {named}."
    engines = found.get("engines")
    shown = engines.get("shown") if isinstance(engines, Mapping) else None
    if shown is None and answering.engines == 1:
        shown = 1  # a page without the engine's label
    few = [name for name in answering.engine.expected if series[name] < answering.engines]
    if shown != answering.engines or few:
        message = f"The page shows {shown} engines, and the command line starts {answering.engines}"
        return Reason.ENGINES_MISSING, f"{message}; too few series: {', '.join(few)}." if few else f"{message}."
    return None


def _in_flight(
    found: Mapping[str, Any], answering: Answering, distrusted: bool, prove_from_member: bool
) -> tuple[_Hold | None, bool, bool]:
    """(what is in flight or None, whether that rests on more than /load, whether /load is distrusted from now on)."""
    part = found.get("inFlight")
    if not isinstance(part, Mapping):
        return (Reason.NOT_AN_ENVELOPE, "The envelope has no inFlight."), False, distrusted
    counter = part.get("counter")
    source, value = (counter.get("source"), counter.get("value")) if isinstance(counter, Mapping) else (None, None)
    if source == "load" and isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
        distrusted = True
    tables = [part.get(name) for name in ("connections", "unackedBytes", "unreadBytes")]
    counts = [_count(item) for item in tables]
    if any(item is not None and count is None for item, count in zip(tables, counts, strict=True)):
        return (Reason.INVALID_SAMPLE, f"The envelope's inFlight is {ascii(dict(part))[:200]}."), False, distrusted
    connections, unacked, unread = counts
    if connections is not None and unacked is not None and unread is not None:
        if connections == 0 and unacked == 0:
            return None, True, distrusted
        if prove_from_member:
            message = f"{connections:g} client connections, {unacked:g} B unacknowledged."
            return (Reason.CLIENTS_CONNECTED, message), False, distrusted
        if unacked or unread:
            message = f"{unacked:g} B unacknowledged, {unread:g} B unread on {connections:g} connections."
            return (Reason.BUSY, message), False, distrusted
    elif prove_from_member:
        return (Reason.IN_FLIGHT_UNREADABLE, "The member's socket table could not be read."), False, distrusted
    held = "" if connections is None else f"{connections:g} client connections are open"
    number = _count(value)
    if source == "httpRequestsActive" and number is not None:
        if number == 0:
            return None, True, distrusted
        return (Reason.BUSY, f"{source} is {number:g}."), False, distrusted
    if source == "load" and number is not None and number > 0:
        return (Reason.BUSY, f"/load is {number:g}."), False, distrusted
    if source == "load" and number == 0 and answering.load_trusted and not distrusted:
        return None, False, distrusted
    if held:
        why = (
            "; /load was negative once and is not used" if distrusted else ", and no counter says they wait for nothing"
        )
        return (Reason.BUSY, f"{held}{why}."), False, distrusted
    return (Reason.IN_FLIGHT_UNREADABLE, Reason.IN_FLIGHT_UNREADABLE.sentence), False, distrusted


def _series(found: Mapping[str, Any]) -> str:
    """What has to be the same in all reads of a row: the engine's process, and each gauge's set of series."""
    gauges = sorted((str(item.get("name")), str(item.get("seriesDigest"))) for item in found["gauges"])
    start = found.get("processStartTime")
    return blake2b(repr((start, gauges)).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
