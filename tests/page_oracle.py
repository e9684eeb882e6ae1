"""What prometheus-client's own parser reads on a page, in our terms: the other side of every differential test.

Shared by tests/test_page.py and tests/fuzz/fuzz_page.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from drainagent.catalogue import ENGINES, SGLANG, Engine, Gauge
from drainagent.page import HalfPage, Page, read_page
from drainagent.reasons import Reason, Verdict
from drainagent.sockets import Clients
from drainagent.verdict import Fault, LoadRule, Reading, judge

GAUGES: tuple[Gauge, ...] = tuple(gauge for engine in ENGINES for gauge in engine.gauges)
#: Every name that counts as a gauge, to the gauge it counts as.
GAUGE_OF: dict[str, str] = {name: gauge.name for gauge in GAUGES for name in (gauge.name, *gauge.former)}
COUNTER = "sglang:http_requests_active"


@dataclass(frozen=True)
class Expected:
    """``values``: each gauge's samples; ``work``: the request counter's samples on routes that do work."""

    values: dict[str, list[float]]
    work: list[float]
    counted: bool

    @property
    def sums(self) -> dict[str, float]:
        return {name: sum(values) for name, values in self.values.items()}

    @property
    def series(self) -> dict[str, int]:
        return {name: len(values) for name, values in self.values.items()}

    @property
    def busy_gauges(self) -> bool:
        """A sample of a gauge is above zero, or no number of 0 or more at all."""
        return any(value != 0 for values in self.values.values() for value in values)

    @property
    def busy_counter(self) -> bool:
        return any(value != 0 for value in self.work)


def expected(body: bytes) -> Expected | None:
    """prometheus-client's reading; None when it rejects the page."""
    try:
        families = list(text_string_to_metric_families(body.decode("utf-8", "replace")))
    except Exception:  # its parser raises IndexError and others too on what it does not understand
        return None
    found: dict[str, list[float]] = {}
    work: list[float] = []
    counted = False
    for name, sample in ((_written_name(family, one), one) for family in families for one in family.samples):
        if name in GAUGE_OF:
            found.setdefault(GAUGE_OF[name], []).append(_float(sample.value))
        elif name == COUNTER:
            counted = True
            if sample.labels.get("endpoint") not in SGLANG.control_routes:
                work.append(_float(sample.value))
    return Expected(found, work, counted)


def _written_name(family: Metric, sample: Sample) -> str:
    """The parser adds _total to the samples of a counter that lacks it; this takes it off again."""
    added = family.type == "counter" and sample.name == family.name + "_total"
    return family.name if added and family.name in {*GAUGE_OF, COUNTER} else sample.name


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # the parser keeps whole numbers of any length
        return math.inf


def judged(
    body: bytes, engine: Engine | None = None, *, framed: bool = True, connections: int = 1, gauges_only: bool = False
) -> Verdict:
    """The hook's verdict on the page while ``connections`` clients are connected and owe and are owed no bytes."""
    page = read_page(body, engine, framed=framed)
    found = Fault(Reason.PAGE_CUT, page.why) if isinstance(page, HalfPage) else page
    clients = None if gauges_only else Clients(connections, 0, 0)
    reading = Reading("http://127.0.0.1:1/metrics", found, clients)
    return judge(reading, LoadRule(), gauges_only=gauges_only, must_decide=True).verdict


def faults(body: bytes, engines: Sequence[Engine | None] = (None, *ENGINES)) -> list[str]:
    """What is wrong with our reading of ``body``, in words: nothing, for any bytes whatever."""
    wrong: list[str] = []
    theirs = expected(body)
    for engine in engines:
        for framed in (True, False):
            page = read_page(body, engine, framed=framed)
            where = f"engine={engine and engine.option}, framed={framed}"
            if isinstance(page, HalfPage):
                if framed and body.endswith(b"\n"):
                    wrong.append(f"{where}: a whole framed page called half")
                continue
            if framed and body.strip() and page.is_metrics and not body.endswith(b"\n"):
                wrong.append(f"{where}: half a page called whole")
            if theirs is not None:
                wrong.extend(f"{where}: {what}" for what in _differences(page, theirs))
            idle = any(
                judged(body, engine, framed=framed, gauges_only=gauges_only) is Verdict.IDLE
                for gauges_only in (False, True)
            )
            if theirs is not None and theirs.busy_gauges and idle:
                wrong.append(f"{where}: idle, though a conforming parser reads {theirs.values}")
    return wrong


def _differences(page: Page, theirs: Expected) -> list[str]:
    """Stricter is allowed (a bad sample is never idle); anything else has to agree."""
    wrong = []
    ours = {gauge.name: gauge.sum for gauge in page.gauges}
    bad = bool(page.bad_samples)
    if theirs.busy_gauges and not bad and not any(ours.values()):
        wrong.append(f"no gauge above zero, theirs {theirs.values}")
    if theirs.busy_counter and not bad and page.request_counter == 0:
        wrong.append(f"no request in flight, theirs {theirs.work}")
    if not bad:
        series = {gauge.name: len(gauge.label_sets) for gauge in page.gauges}
        if series != theirs.series:
            wrong.append(f"series {series}, theirs {theirs.series}")
        elif any(not math.isclose(ours[name], total, rel_tol=1e-9) for name, total in theirs.sums.items()):
            wrong.append(f"sums {ours}, theirs {theirs.sums}")
    return wrong
