"""A metrics page's bytes to the samples we sum, or one fault. Pure.

Only lines that name one of our families are looked at, by a search for the name: a foreign line that a parser would
dislike hides nothing, and a page of a mebibyte costs a few searches instead of a parse. What is looked at is read
strictly: a line of ours that is not plainly a finite number of 0 or more makes the page busy, never idle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drainagent.catalogue import ENGINES, PROCESS_START_TIME, Engine, Gauge
from drainagent.text import printable

# The text exposition format: blanks and tabs separate tokens; a label value is quoted, with \\, \" and \n escaped.
_BLANKS = b" \t\r"
_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(
    rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*|"(?:[^"\\]|\\.)*")[ \t]*(?:=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*)?(?:,|(?=\}))'
)
# Go and Python both read this form alike; what only one of them reads (0x1p4, 1_000, Infinity) is no number here.
# Neither pattern can match a run of digits in two ways: a page must not cost more than its length.
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(rb"[^ \t]+")
_TIMESTAMP = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_MAX_NUMBER_BYTES = 64
_QUOTED_LINE_CHARS = 120
# Bounds that no engine comes near, so that no page can cost more than its read: beyond them it cannot be read.
_MAX_LINE_BYTES = 64 * 1024
_MAX_SERIES = 10_000
_MAX_JSON_BYTES = 256 * 1024

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class GaugeReading:
    """One gauge on one page: the sum over all its series, and the label sets (sorted) that carried it."""

    name: str
    sum: float
    label_sets: tuple[Labels, ...]

    @property
    def series_digest(self) -> str:
        """Identifies the set of label sets: the first 16 hex digits of its SHA-256."""
        import hashlib

        return hashlib.sha256(repr(sorted(set(self.label_sets))).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Page:
    """What a complete page says of our families."""

    is_metrics: bool
    framed: bool
    engines: tuple[Engine, ...]
    gauges: tuple[GaugeReading, ...]
    expected: tuple[str, ...]
    missing: tuple[str, ...]
    bad_samples: tuple[str, ...]
    request_counter: float | None
    engines_shown: int | None
    process_start_time_s: float | None

    @property
    def complete(self) -> bool:
        """Every expected gauge is present."""
        return self.is_metrics and not self.missing


@dataclass(frozen=True)
class HalfPage:
    """The bytes are, or may be, only the beginning of a page. ``why`` completes "the page is cut short: "."""

    why: str


@dataclass(frozen=True)
class _Sample:
    labels: Labels
    value: float | None
    line: str


def read_page(body: bytes, engine: Engine | None = None, *, framed: bool = True) -> Page | HalfPage:
    """Read a whole body.

    ``engine``: whose gauges are expected; None: those of the engines whose names the page carries (both when none).
    The gauges of either engine are summed wherever they stand, so that a wrong ``engine`` cannot read busy as idle.
    ``framed``: HTTP itself said where the body ends (Content-Length or chunks). A body that only the connection's end
    ended may have been cut between two lines: it counts as whole only when it carries every expected gauge and all of
    them in equally many series, and its request counter counts as absent, so that idle takes "no client connected".
    """
    carried = tuple(known for known in ENGINES if known.prefix.encode() in body)
    expected = _expected((engine,) if engine is not None else carried or ENGINES)
    if not carried and _is_no_page(body):
        if not framed and not body.strip():
            return HalfPage("nothing says where it ends, and nothing came")
        return Page(False, framed, (), (), expected, expected, (), None, None, None)
    if not body.endswith(b"\n"):
        return HalfPage("its last line does not end")
    gauges: list[GaugeReading] = []
    bad: list[str] = []
    for known in carried:
        families = _families(body, [name for gauge in known.gauges for name in (gauge.name, *gauge.former)])
        gauges.extend(reading for gauge in known.gauges if (reading := _gauge(families, gauge, bad)) is not None)
    present = {reading.name for reading in gauges}
    missing = tuple(name for name in expected if name not in present)
    counter = _request_counter(body, carried, bad) if framed else None
    if not framed and (missing or len({len(one.label_sets) for one in gauges if one.name in expected}) > 1):
        return HalfPage("nothing says where it ends, and not every gauge is on it")
    return Page(
        is_metrics=bool(carried) or _starts_as_metrics(body),
        framed=framed,
        engines=carried,
        gauges=tuple(gauges),
        expected=expected,
        missing=missing,
        bad_samples=tuple(bad),
        request_counter=counter,
        engines_shown=_engines_shown(carried, gauges),
        process_start_time_s=_single(body, PROCESS_START_TIME),
    )


def _expected(engines: Sequence[Engine]) -> tuple[str, ...]:
    return tuple(name for engine in engines for name in engine.expected)


def _is_no_page(body: bytes) -> bool:
    """Empty, HTML or JSON. Anything else may be a metrics page, or the beginning of one."""
    text = body.strip()
    if not text or text[:1] in b"<[":
        return True
    if text[:1] != b"{" or len(text) > _MAX_JSON_BYTES:
        return False
    import json

    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _starts_as_metrics(body: bytes) -> bool:
    line = body.lstrip()[:4096].split(b"\n", 1)[0].strip(_BLANKS)
    if line.startswith(b"#"):
        return True
    parsed = _parse(line)
    return parsed is not None and _number(parsed.value) is not None


def _gauge(families: Mapping[str, Sequence[_Sample]], gauge: Gauge, bad: list[str]) -> GaugeReading | None:
    samples = [sample for name in (gauge.name, *gauge.former) for sample in families.get(name, ())]
    if not samples:
        return None
    total = _sum(samples, gauge.name, bad)
    return GaugeReading(gauge.name, total, tuple(sorted(sample.labels for sample in samples)))


def _request_counter(body: bytes, carried: tuple[Engine, ...], bad: list[str]) -> float | None:
    """Requests on every route but the control routes; None when the page has no counter that can be trusted."""
    totals: list[float] = []
    for engine in carried:
        if engine.request_counter is None or any(name.encode() in body for name in engine.counter_untrusted_with):
            continue
        samples = _families(body, [engine.request_counter]).get(engine.request_counter, [])
        work = [s for s in samples if dict(s.labels).get("endpoint") not in engine.control_routes]
        total = _sum(work, engine.request_counter, bad)
        if samples:
            totals.append(total)
    return sum(totals) if totals else None


def _sum(samples: Sequence[_Sample], name: str, bad: list[str]) -> float:
    """The sum of what can be read; what cannot, and a sum past every number, is added to ``bad``."""
    bad.extend(sample.line for sample in samples if sample.value is None)
    total = sum((sample.value for sample in samples if sample.value is not None), 0.0)
    if math.isfinite(total):
        return total
    bad.append(f"the sum of {name} is no finite number")
    return 0.0


def _engines_shown(carried: tuple[Engine, ...], gauges: Sequence[GaugeReading]) -> int | None:
    shown = {
        (engine.name, dict(labels).get(engine.engine_label))
        for engine in carried
        for gauge in gauges
        if gauge.name.startswith(engine.prefix)
        for labels in gauge.label_sets
    }
    return len(shown) or None


def _single(body: bytes, name: str) -> float | None:
    """The value of a family of one sample; None when it is absent, doubled or no number."""
    values = [sample.value for sample in _families(body, [name]).get(name, ())]
    return values[0] if len(values) == 1 else None


def _families(body: bytes, names: Sequence[str]) -> dict[str, list[_Sample]]:
    """The samples of each family in ``names``, every line that may be one and cannot be read among them.

    One search for what the names begin with alike finds them all: searching is what a page of a mebibyte costs.
    """
    found: dict[str, list[_Sample]] = {}
    wanted = {name.encode(): name for name in names}
    stem = _common_beginning(list(wanted))
    lines = 0
    at = body.find(stem)
    while at != -1:
        start = body.rfind(b"\n", 0, at) + 1
        end = body.find(b"\n", at)
        end = end if end != -1 else len(body)
        at = body.find(stem, end)
        if end - start > _MAX_LINE_BYTES:
            family = next((wanted[name] for name in wanted if body.find(name, start, end) != -1), None)
            _add(found, family, _unreadable(body[start : start + _QUOTED_LINE_CHARS]))
            continue
        line = body[start:end].strip(_BLANKS)
        if line.startswith(b"#"):
            continue
        token = _NAME.match(line)
        if token is not None and token.group() not in wanted:
            continue  # another family, which names ours in a label value or begins with our name
        lines += 1
        if lines > _MAX_SERIES:
            _add(found, names[0], _unreadable(b"more than %d lines like this: %s" % (_MAX_SERIES, line)))
            break
        parsed = _parse(line)
        if parsed is not None:
            sample = _Sample(parsed.labels, _number(parsed.value), _unreadable(line).line)
            _add(found, wanted.get(parsed.name), sample)
        else:
            _add(found, next((wanted[name] for name in wanted if name in line), None), _unreadable(line))
    return found


def _add(found: dict[str, list[_Sample]], family: str | None, sample: _Sample) -> None:
    if family is not None:
        found.setdefault(family, []).append(sample)


def _common_beginning(names: Sequence[bytes]) -> bytes:
    first, last = min(names), max(names)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]


def _unreadable(line: bytes) -> _Sample:
    text = line[:_QUOTED_LINE_CHARS].decode("utf-8", "backslashreplace")
    return _Sample((), None, printable(text))


@dataclass(frozen=True)
class _Parsed:
    name: bytes
    labels: Labels
    value: bytes


def _parse(line: bytes) -> _Parsed | None:
    """A sample line without blanks around it, to its parts; None when it is none.

    The name stands before the labels or, in text format 1.0.0, quoted and first among them.
    """
    token = _NAME.match(line)
    name = token.group() if token is not None else b""
    at = _skip_blanks(line, token.end() if token is not None else 0)
    labels: dict[str, str] = {}
    if line[at : at + 1] == b"{":
        at = _skip_blanks(line, at + 1)
        while line[at : at + 1] != b"}":
            label = _LABEL.match(line, at)
            if label is None:
                return None
            key, value = label.groups()
            text = _unescape(key.strip(b'"'))
            if value is None and name:
                return None
            if value is None:
                name = text.encode()
            elif text in labels:
                return None
            else:
                labels[text] = _unescape(value)
            at = _skip_blanks(line, label.end())
        at += 1
    elif token is not None and at == token.end():
        return None
    rest = _WORD.findall(line, at)
    if not name or not 1 <= len(rest) <= 2 or (len(rest) == 2 and _TIMESTAMP.fullmatch(rest[1]) is None):
        return None
    return _Parsed(name, tuple(sorted(labels.items())), rest[0])


def _skip_blanks(line: bytes, at: int) -> int:
    while line[at : at + 1] in (b" ", b"\t"):
        at += 1
    return at


def _number(text: bytes) -> float | None:
    """A finite number of 0 or more, else None."""
    if len(text) > _MAX_NUMBER_BYTES or _NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    return value if 0 <= value < math.inf else None


def _unescape(value: bytes) -> str:
    if b"\\" in value:
        value = re.sub(rb"\\(.)", lambda m: b"\n" if m.group(1) == b"n" else m.group(1), value)
    return value.decode("utf-8", "replace")
