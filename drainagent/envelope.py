"""The versioned envelope of ``drainagent check --json``, as the retirement read consumes it. Pure.

One line of JSON of at most 64 KiB whose last member marks its end, so that a stream cut anywhere is recognised.
"""

from __future__ import annotations

from typing import Any

from drainagent import __version__
from drainagent.catalogue import Engine
from drainagent.verdict import InFlight, Judgement

SCHEMA = "drainagent.io/check/v1"
END = "drainagent.io/end"
MAX_BYTES = 64 * 1024
_MESSAGE_CHARS = 2000


def in_flight_object(in_flight: InFlight) -> dict[str, Any]:
    """The ``inFlight`` member; each part null where it was not read."""
    clients, counter = in_flight.clients, in_flight.counter
    return {
        "connections": None if clients is None else clients.connections,
        "unackedBytes": None if clients is None else clients.unacked_bytes,
        "unreadBytes": None if clients is None else clients.unread_bytes,
        "counter": None if counter is None else {"source": counter.source, "value": counter.value},
    }


def envelope(
    judgement: Judgement,
    *,
    engine: Engine | None,
    sampled_at: str,
    process_start_time_s: float | None,
    engines_expected: int | None,
    engines_shown: int | None,
) -> str:
    """The line, with its newline.

    ``sampled_at``: RFC 3339 in UTC. ``engines_expected``: how many engines the page should show by the command line;
    ``engines_shown``: how many label values it shows; None where not known.
    """
    import json

    known = engines_expected is not None or engines_shown is not None
    document = {
        "schema": SCHEMA,
        "agentVersion": __version__,
        "engine": None if engine is None else engine.name,
        "url": judgement.url,
        "sampledAt": sampled_at,
        "processStartTime": process_start_time_s,
        "verdict": judgement.verdict.value,
        "reason": None if judgement.reason is None else judgement.reason.word,
        "message": judgement.message[:_MESSAGE_CHARS],
        "complete": judgement.complete,
        "engines": {"expected": engines_expected, "shown": engines_shown} if known else None,
        "gauges": [
            {
                "name": gauge.name,
                "sum": gauge.sum,
                "series": len(gauge.label_sets),
                "seriesDigest": gauge.series_digest,
            }
            for gauge in judgement.gauges
        ],
        "missing": list(judgement.missing),
        "inFlight": in_flight_object(judgement.in_flight),
        "end": END,
    }
    line = json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"
    if len(line) > MAX_BYTES:  # what could be long is bounded above, so only a broken bound can reach this
        raise ValueError(f"the envelope is {len(line)} bytes, over the bound of {MAX_BYTES}")
    return line
