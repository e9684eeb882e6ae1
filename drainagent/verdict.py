"""One reading of one listener to a verdict and its reason: the table in docs/verdicts.md, as code. Pure.

Hook and check differ in one thing: the hook has to decide, so what is unknown counts as busy; the check says unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from drainagent.page import GaugeReading, Page
from drainagent.reasons import Reason, Verdict
from drainagent.sockets import Clients

#: vLLM's /load has to be exactly 0 on this many consecutive reads: clients of some routes drive it below the truth.
LOAD_READS = 6

# Sums over listeners stay numbers that JSON can carry.
_LARGEST = 1e300

#: What a listener does that leaves nothing to measure (the hook may end); every other fault is a page that may come.
UNMEASURABLE = frozenset({Reason.CONNECTION_REFUSED, Reason.UNREACHABLE, Reason.TLS_FAILED, Reason.HTTP_ERROR})


@dataclass(frozen=True)
class Fault:
    """Why there is no page. ``detail`` names the cause in words: a status, an address, an error."""

    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return self.detail or self.reason.sentence


@dataclass(frozen=True)
class Reading:
    """All that one read of one listener found. None: could not be read, or was not asked for."""

    url: str
    page: Page | Fault
    clients: Clients | None = None
    load: int | None = None


@dataclass(frozen=True)
class LoadRule:
    """vLLM's ``/load`` over a window: reads in a row at exactly 0, and whether a negative value ended its use."""

    zeros: int = 0
    distrusted: bool = False

    def after(self, load: int | None) -> LoadRule:
        """The rule once one more read found ``load`` (None: not read)."""
        if self.distrusted or (load is not None and load < 0):
            return LoadRule(distrusted=True)
        return LoadRule(self.zeros + 1 if load == 0 else 0)

    @property
    def proves_idle(self) -> bool:
        return self.zeros >= LOAD_READS


@dataclass(frozen=True)
class Counter:
    """The engine's own count of requests in its HTTP server: ``httpRequestsActive`` (SGLang) or ``load`` (vLLM)."""

    source: str
    value: float


@dataclass(frozen=True)
class InFlight:
    """Requests in flight as one reading saw them; None where not read."""

    clients: Clients | None = None
    counter: Counter | None = None

    def __str__(self) -> str:
        words: list[str] = []
        if self.clients is not None:
            words.append(f"{self.clients.connections} connection{'s' * (self.clients.connections != 1)}")
            if self.clients.unacked_bytes:
                words.append(f"{self.clients.unacked_bytes} B unacknowledged")
            if self.clients.unread_bytes:
                words.append(f"{self.clients.unread_bytes} B unread")
        if self.counter is not None:
            words.append(f"{self.counter.source} {self.counter.value:g}")
        return ", ".join(words) or "not read"


@dataclass(frozen=True)
class Judgement:
    """One reading judged. ``message`` is a sentence with the numbers; ``complete``: every expected gauge present."""

    url: str
    verdict: Verdict
    reason: Reason | None
    message: str
    complete: bool = False
    gauges: tuple[GaugeReading, ...] = ()
    missing: tuple[str, ...] = ()
    in_flight: InFlight = field(default_factory=InFlight)
    clients_left: bool = False


def judge(reading: Reading, load_rule: LoadRule, *, gauges_only: bool = False, must_decide: bool = False) -> Judgement:
    """The verdict on one reading.

    ``load_rule``: the rule with this reading's ``load`` already in it. ``gauges_only``: the seed's bare rule, nothing
    but gauges counts. ``must_decide``: the hook's reading of the table, where unknown is busy.
    """
    found = _judge(reading, load_rule, gauges_only=gauges_only, must_decide=must_decide)
    if must_decide and found.verdict is Verdict.UNKNOWN:
        return replace(found, verdict=Verdict.BUSY)
    return found


def _judge(reading: Reading, load_rule: LoadRule, *, gauges_only: bool, must_decide: bool) -> Judgement:
    page = reading.page
    in_flight = InFlight() if gauges_only else _in_flight(reading)
    if isinstance(page, Fault):
        verdict = Verdict.UNMEASURABLE if page.reason in UNMEASURABLE else Verdict.UNKNOWN
        return Judgement(
            reading.url,
            verdict,
            page.reason,
            f"{page}.",
            in_flight=in_flight,
            clients_left=not gauges_only and _may_serve(page.reason, in_flight.clients),
        )

    def judged(verdict: Verdict, reason: Reason | None, message: str) -> Judgement:
        return Judgement(reading.url, verdict, reason, message, page.complete, page.gauges, page.missing, in_flight)

    above = [gauge for gauge in page.gauges if gauge.sum > 0]
    if above:
        counts = ", ".join(f"{gauge.name} is {gauge.sum:g}" for gauge in above)
        return judged(Verdict.BUSY, Reason.GAUGES_ABOVE_ZERO, f"{counts}.")
    if page.bad_samples:
        return judged(
            Verdict.UNKNOWN,
            Reason.INVALID_SAMPLE,
            f"This sample is not a finite number of 0 or more: {page.bad_samples[0]}",
        )
    if gauges_only:
        if not page.is_metrics:
            return judged(Verdict.UNKNOWN, Reason.NOT_A_METRICS_PAGE, Reason.NOT_A_METRICS_PAGE.sentence)
        if len(page.missing) == len(page.expected):
            return judged(Verdict.UNKNOWN, Reason.ALL_GAUGES_MISSING, Reason.ALL_GAUGES_MISSING.sentence)
        if not page.framed:
            return judged(Verdict.UNKNOWN, Reason.PAGE_CUT, "Nothing says where the page ends: it may be cut short.")
    else:
        work = _work_in_flight(in_flight, load_rule)
        if work is not None:
            return judged(*work)
    if not page.is_metrics and not must_decide:
        return judged(Verdict.UNKNOWN, Reason.NOT_A_METRICS_PAGE, Reason.NOT_A_METRICS_PAGE.sentence)
    if not page.is_metrics:
        return judged(Verdict.IDLE, Reason.NOT_A_METRICS_PAGE, "This is no metrics page; nothing is in flight.")
    otherwise = "; requests in flight were not looked at" if gauges_only else " and nothing is in flight"
    if page.missing:
        names = ", ".join(page.missing)
        whose = f" (the page is {' and '.join(engine.name for engine in page.engines)}'s)" if page.engines else ""
        message = f"Every gauge on the page is zero{otherwise}; absent: {names}{whose}."
        return judged(Verdict.IDLE, Reason.GAUGES_MISSING, message)
    return judged(Verdict.IDLE, None, f"Every gauge is zero{otherwise}.")


def _may_serve(reason: Reason, found: Clients | None) -> bool:
    """Clients may be waiting at a listener that cannot be measured. Nobody connects anew to one that refuses; one that
    answers with an error may have any number of them, so that a table which cannot be read counts as clients.
    """
    if found is None:
        return reason in {Reason.HTTP_ERROR, Reason.TLS_FAILED}
    return found.connections > 0 or found.unacked_bytes > 0


def _in_flight(reading: Reading) -> InFlight:
    if isinstance(reading.page, Page) and reading.page.request_counter is not None:
        return InFlight(reading.clients, Counter("httpRequestsActive", reading.page.request_counter))
    return InFlight(reading.clients, None if reading.load is None else Counter("load", reading.load))


def _work_in_flight(in_flight: InFlight, load_rule: LoadRule) -> tuple[Verdict, Reason, str] | None:
    """None when no request is in flight, by the first rule that holds: no client, or the engine's counter."""
    clients, counter = in_flight.clients, in_flight.counter
    if clients is not None:
        if clients.connections == 0 and clients.unacked_bytes == 0:
            return None
        if clients.unacked_bytes or clients.unread_bytes:
            return (
                Verdict.BUSY,
                Reason.BYTES_IN_FLIGHT,
                f"{_bytes(clients)} (peers {_named(clients)}).",
            )
    if counter is not None and counter.value > 0:
        return Verdict.BUSY, Reason.REQUESTS_IN_FLIGHT, f"{counter.source} is {counter.value:g}."
    if counter is not None and (counter.source != "load" or load_rule.proves_idle):
        return None
    if counter is not None and clients is None and not load_rule.distrusted:
        return (
            Verdict.BUSY,
            Reason.REQUESTS_IN_FLIGHT,
            f"/load has been 0 on {load_rule.zeros} of the {LOAD_READS} reads in a row that prove it.",
        )
    if clients is None:
        return Verdict.UNKNOWN, Reason.IN_FLIGHT_UNREADABLE, Reason.IN_FLIGHT_UNREADABLE.sentence
    many = "s" * (clients.connections != 1)
    message = f"{clients.connections} client connection{many} open (peers {_named(clients)})"
    if counter is not None and not load_rule.distrusted:
        message += f"; /load has been 0 on {load_rule.zeros} of the {LOAD_READS} reads in a row that prove it"
    elif load_rule.distrusted:
        message += "; /load was negative once and is not used"
    return Verdict.BUSY, Reason.CONNECTIONS_OPEN, message + "."


def _bytes(clients: Clients) -> str:
    unacked = f"{clients.unacked_bytes} bytes are not acknowledged by clients" if clients.unacked_bytes else ""
    unread = f"{clients.unread_bytes} bytes are not read by the engine" if clients.unread_bytes else ""
    return " and ".join(part for part in (unacked, unread) if part)


def _named(clients: Clients) -> str:
    more = clients.connections - len(clients.peers)
    return ", ".join(clients.peers) + (f" and {more} more" if more > 0 else "")


def judge_all(
    readings: Sequence[Reading],
    load_rules: Mapping[str, LoadRule],
    *,
    gauges_only: bool = False,
    must_decide: bool = False,
) -> tuple[Judgement, Mapping[str, LoadRule]]:
    """One judgement of a read of all listeners, and the rules (by URL) to judge the next read with."""
    rules = {one.url: load_rules.get(one.url, LoadRule()).after(one.load) for one in readings}
    judged = [judge(one, rules[one.url], gauges_only=gauges_only, must_decide=must_decide) for one in readings]
    return combine(judged), rules


def combine(judgements: Sequence[Judgement]) -> Judgement:
    """One judgement for several listeners of one container, read at once.

    One busy means busy; one unknown, unknown. A listener that cannot be measured is named and left out while another
    can; ``unmeasurable`` only when all are (and then the one whose clients are still there speaks).
    """
    if len(judgements) == 1:
        return judgements[0]
    for verdict in (Verdict.BUSY, Verdict.UNKNOWN, Verdict.IDLE):
        chosen = [one for one in judgements if one.verdict is verdict]
        if chosen:
            break
    else:
        chosen = sorted(judgements, key=lambda one: not one.clients_left)
    spokesman = chosen[0]
    left_out = [one for one in judgements if one.verdict is Verdict.UNMEASURABLE and one is not spokesman]
    message = spokesman.message + "".join(f" Left out: {one.url}: {one.message}" for one in left_out)
    served = next((one for one in left_out if one.clients_left), None)
    if spokesman.verdict is Verdict.IDLE and served is not None:
        # Left out of the measurement, but somebody is served there.
        spokesman = replace(spokesman, verdict=Verdict.BUSY, reason=Reason.CONNECTIONS_OPEN)
        message = f"Clients are connected to {served.url}, which cannot be measured: {served.message}"
    return replace(
        spokesman,
        message=message,
        complete=all(one.complete for one in judgements if one not in left_out),
        gauges=_merged(judgements),
        missing=tuple(dict.fromkeys(name for one in judgements for name in one.missing)),
        in_flight=_total(judgements),
        clients_left=any(one.clients_left for one in judgements),
    )


def _merged(judgements: Sequence[Judgement]) -> tuple[GaugeReading, ...]:
    merged: dict[str, GaugeReading] = {}
    for gauge in (gauge for one in judgements for gauge in one.gauges):
        known = merged.get(gauge.name)
        merged[gauge.name] = (
            gauge
            if known is None
            else GaugeReading(
                gauge.name, min(known.sum + gauge.sum, _LARGEST), tuple(sorted(known.label_sets + gauge.label_sets))
            )
        )
    return tuple(merged.values())


def _total(judgements: Sequence[Judgement]) -> InFlight:
    clients = [one.in_flight.clients for one in judgements if one.in_flight.clients is not None]
    counters = [one.in_flight.counter for one in judgements if one.in_flight.counter is not None]
    total = Clients(
        sum(one.connections for one in clients),
        sum(one.unacked_bytes for one in clients),
        sum(one.unread_bytes for one in clients),
        tuple(peer for one in clients for peer in one.peers),
    )
    return InFlight(
        total if clients else None,
        Counter(counters[0].source, min(sum(one.value for one in counters), _LARGEST)) if counters else None,
    )
