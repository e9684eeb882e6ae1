"""The closed list of reasons a reading can have, with a sentence each. The docs' table is made from it."""

from __future__ import annotations

from enum import Enum


class Verdict(str, Enum):
    """What one reading says of the replica."""

    IDLE = "idle"
    BUSY = "busy"
    UNKNOWN = "unknown"
    UNMEASURABLE = "unmeasurable"


class Outcome(str, Enum):
    """How a hook ended."""

    IDLE = "idle"
    DEADLINE = "deadline"
    UNMEASURABLE = "unmeasurable"
    TERMINATED = "terminated"


class Reason(Enum):
    """Why a reading is what it is: the CamelCase word, and what it means for the one who reads it."""

    GAUGES_ABOVE_ZERO = ("GaugesAboveZero", "The engine's own gauges count requests.")
    REQUESTS_IN_FLIGHT = ("RequestsInFlight", "The engine's HTTP request counter is above zero.")
    CONNECTIONS_OPEN = (
        "ConnectionsOpen",
        "Clients are connected to the listener, and no counter of the engine says that they wait for nothing.",
    )
    BYTES_IN_FLIGHT = (
        "BytesInFlight",
        "Bytes are on their way: not yet acknowledged by a client, or not yet read by the engine.",
    )
    IN_FLIGHT_UNREADABLE = (
        "InFlightUnreadable",
        "Neither the socket table nor a request counter can be read, so idle gauges prove nothing.",
    )
    GAUGES_MISSING = ("GaugesMissing", "Expected gauges are not on the page; nothing in flight stands in for them.")
    ALL_GAUGES_MISSING = ("AllGaugesMissing", "No expected gauge is on the page, and gauges alone were asked for.")
    NOT_A_METRICS_PAGE = (
        "NotAMetricsPage",
        "The listener answered with something that is no metrics page.",
    )
    INVALID_SAMPLE = ("InvalidSample", "A sample of the engine's gauges is not a finite number of 0 or more.")
    PAGE_CUT = ("PageCut", "The page ended before its end.")
    PAGE_TOO_LARGE = ("PageTooLarge", "The page is larger than the bound on one read.")
    BAD_ENCODING = ("BadEncoding", "The body is encoded although none was asked for, or cannot be decoded.")
    PROTOCOL_ERROR = ("ProtocolError", "The listener's answer is not HTTP.")
    CONNECTION_RESET = ("ConnectionReset", "The listener took the connection and then broke it off.")
    TIMED_OUT = ("TimedOut", "The whole read did not end within its bound.")
    CONNECTION_REFUSED = ("ConnectionRefused", "Nothing listens there.")
    UNREACHABLE = ("Unreachable", "No connection could be made.")
    TLS_FAILED = ("TLSFailed", "The TLS handshake failed.")
    HTTP_ERROR = ("HTTPError", "The listener answered with an HTTP error, or redirected away from itself.")
    NO_LISTENER = ("NoListener", "No engine and no listener was found here.")
    OUT_OF_RESOURCES = ("OutOfResources", "No descriptor, memory or port was left for the read itself.")
    INTERNAL_ERROR = ("InternalError", "drainagent itself failed in this read; it counts as busy.")

    def __init__(self, word: str, sentence: str) -> None:
        self.word = word
        self.sentence = sentence
