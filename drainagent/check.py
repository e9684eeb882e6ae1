"""The manual drain check: the hook's reading and judgement, for a person, a script or the retirement read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import click

from drainagent import number, procfs
from drainagent.clock import now_rfc3339
from drainagent.envelope import envelope
from drainagent.hook_options import shown
from drainagent.page import Page
from drainagent.reader import CHECK_PAGE_BOUND_BYTES, HOOK_PAGE_BOUND_BYTES, Reader
from drainagent.reasons import Reason, Verdict
from drainagent.settings import read_api_servers, read_engine, read_network, read_own_url
from drainagent.targets import Discovery, Overrides, Target, discover, targets_for
from drainagent.timeline import IDLE_READS, MAX_GRACE_S, READ_BOUND_S, READ_PERIOD_S, next_slot_s
from drainagent.verdict import Judgement, LoadRule, Reading, judge_all

_EXIT_STATUS = {Verdict.IDLE: 0, Verdict.BUSY: 1, Verdict.UNKNOWN: 3, Verdict.UNMEASURABLE: 3}

#: As a shell counts a process that SIGINT ended.
_INTERRUPTED = 130

_T = TypeVar("_T")


@dataclass
class Checker:
    """Reads the targets again and again, and keeps vLLM's ``/load`` rule over the reads."""

    targets: Sequence[Target]
    reader: Reader
    read_bound_s: float = READ_BOUND_S
    readings: Sequence[Reading] = ()
    _load_rules: Mapping[str, LoadRule] = field(default_factory=dict)

    def read(self) -> Judgement:
        if not self.targets:
            return Judgement("", Verdict.UNMEASURABLE, Reason.NO_LISTENER, Reason.NO_LISTENER.sentence)
        self.readings = self.reader.read_all(self.targets, self.read_bound_s)
        judgement, self._load_rules = judge_all(self.readings, self._load_rules, gauges_only=self.reader.gauges_only)
        return judgement

    def envelope(self, judgement: Judgement) -> str:
        """The judgement as the versioned line (``cli.md``, "The envelope")."""
        pages = [reading.page for reading in self.readings if isinstance(reading.page, Page)]
        engines = {target.engine for target in self.targets if target.engine is not None}
        engines |= {engine for page in pages for engine in page.engines} if not engines else set()
        expected = [target.engines_expected for target in self.targets if target.engines_expected is not None]
        shown = [page.engines_shown for page in pages if page.engines_shown is not None]
        starts = [page.process_start_time_s for page in pages if page.process_start_time_s is not None]
        return envelope(
            judgement,
            engine=engines.pop() if len(engines) == 1 else None,
            sampled_at=now_rfc3339(),
            process_start_time_s=starts[0] if len(starts) == 1 else None,
            engines_expected=sum(expected) if expected else None,
            engines_shown=sum(shown) if shown else None,
        )


def until_idle(
    read: Callable[[], Judgement],
    wait_s: float,
    clock_s: Callable[[], float],
    sleep: Callable[[float], None],
    reads_wanted: int = IDLE_READS,
) -> Judgement:
    """Read once a second, start to start, until ``reads_wanted`` idle reads in a row or ``wait_s`` seconds are over.

    The last judgement. A single idle read at the very end is not enough, and is given back as busy.
    """
    started_s = clock_s()
    streak = 0
    while True:
        read_started_s = clock_s()
        judgement = read()
        streak = streak + 1 if judgement.verdict is Verdict.IDLE else 0
        if streak >= reads_wanted:
            return judgement
        due_s = next_slot_s(started_s, read_started_s, clock_s())
        if due_s > started_s + wait_s:
            if judgement.verdict is Verdict.IDLE:
                return replace(judgement, verdict=Verdict.BUSY, message="Idle on the last read only: one is no proof.")
            return judgement
        sleep(max(0.0, due_s - clock_s()))


def _value(read: Callable[[str], _T]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A click callback from a reader that raises ValueError with the whole sentence."""

    def convert(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        try:
            return tuple(map(read, value)) if isinstance(value, tuple) else None if value is None else read(value)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    return convert


def _wait_seconds(text: str) -> float:
    value = number(text)
    if value is None or not 0 <= value <= MAX_GRACE_S:
        raise ValueError(f"--wait {shown(text)} must be a number of seconds from 0 to {MAX_GRACE_S}")
    return value


@click.command("check")
@click.option("--engine", metavar="vllm|sglang", callback=_value(read_engine), help="Unset: found.")
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    callback=_value(lambda text: read_own_url(text, procfs.is_own_address)),
    help="A metrics page on an address of this Pod (or machine); repeatable. Unset: found.",
)
@click.option("--confirm", is_flag=True, help="Two reads one second apart; idle only when both are.")
@click.option("--watch", is_flag=True, help="A read a second, a line each, until you stop it.")
@click.option("--wait", "wait_s", metavar="SECONDS", callback=_value(_wait_seconds), help="Wait for two idle reads.")
@click.option("--json", "as_json", is_flag=True, help="The versioned envelope, one line.")
@click.option("--gauges-only", is_flag=True, help="Gauges alone; requests in flight are not looked at.")
@click.option(
    "--load-tracking/--no-load-tracking",
    default=None,
    help="vLLM runs with --enable-server-load-tracking (without it /load is always 0). Unset: found.",
)
@click.option("--api-servers", metavar="N", callback=_value(read_api_servers), help="vLLM's API servers. Unset: found.")
@click.option(
    "--ignore-peer",
    "ignored_peers",
    multiple=True,
    metavar="CIDR",
    callback=_value(read_network),
    help="Connections from here are no requests; repeatable.",
)
def check_command(
    engine: Any,
    urls: Any,
    confirm: bool,
    watch: bool,
    wait_s: float | None,
    as_json: bool,
    gauges_only: bool,
    load_tracking: bool | None,
    api_servers: int | None,
    ignored_peers: Any,
) -> None:
    """Say whether this replica is idle, and why.

    Without options it finds the engine by itself: its process and command line in /proc, else the usual ports. One
    read of its metrics page and of its connections, at most 2 s; nothing is changed.

    On vLLM a client that keeps its connection open makes a single check busy (ConnectionsOpen): only six reads in a row
    of vLLM's own counter can say that it waits for nothing. --wait 10 makes them.

    \b
    Exit status:
      0  idle
      1  busy
      2  wrong usage
      3  unknown or unmeasurable: the reason says why
    """
    if sum((confirm, watch, wait_s is not None)) > 1:
        raise click.UsageError("--confirm, --watch and --wait exclude each other")
    found = _find(urls, engine, Overrides(load_tracking, api_servers))
    bound = CHECK_PAGE_BOUND_BYTES if as_json else HOOK_PAGE_BOUND_BYTES
    checker = Checker(found.targets, Reader(procfs.read_tables, bound, gauges_only, ignored_peers))
    if not as_json:
        for conclusion in found.conclusions:
            click.echo(f"found: {conclusion}")

    def say(judgement: Judgement, line: bool) -> None:
        if as_json:
            sys.stdout.write(checker.envelope(judgement))
            sys.stdout.flush()
        else:
            click.echo(_line(judgement) if line else _paragraph(judgement))

    if watch:

        def watched() -> Judgement:
            judgement = checker.read()
            say(judgement, True)
            return replace(judgement, verdict=Verdict.BUSY) if judgement.verdict is Verdict.IDLE else judgement

        try:
            until_idle(watched, float("inf"), time.monotonic, time.sleep)
        except KeyboardInterrupt:
            return
    try:
        judgement = _read(checker, confirm, wait_s)
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    say(judgement, False)
    raise SystemExit(_EXIT_STATUS[judgement.verdict])


def _read(checker: Checker, confirm: bool, wait_s: float | None) -> Judgement:
    if confirm:
        judgement = checker.read()
        if judgement.verdict is Verdict.IDLE:
            time.sleep(READ_PERIOD_S)
            judgement = checker.read()
        return judgement
    if wait_s is not None:
        return until_idle(checker.read, wait_s, time.monotonic, time.sleep)
    return checker.read()


def _find(urls: Any, engine: Any, overrides: Overrides) -> Discovery:
    processes = procfs.engine_processes()
    if urls:
        return Discovery(targets_for(urls, engine, processes, overrides), ())
    return discover(engine, processes, procfs.read_tables() or (), overrides)


def _paragraph(judgement: Judgement) -> str:
    lines = [f"read: {judgement.url}"] if judgement.url else []
    width = max((len(gauge.name) for gauge in judgement.gauges), default=0)
    for gauge in judgement.gauges:
        many = "series" if len(gauge.label_sets) != 1 else "one series"
        count = "" if len(gauge.label_sets) == 1 else f"{len(gauge.label_sets)} "
        lines.append(f"  {gauge.name:<{width}}  {gauge.sum:g}  ({count}{many})")
    lines.extend(f"  {name}  absent" for name in judgement.missing)
    lines.append(f"in flight: {judgement.in_flight}")
    word = f" ({judgement.reason.word})" if judgement.reason is not None else ""
    lines.append(f"{judgement.verdict.value}{word}: {judgement.message}")
    return "\n".join(lines)


def _line(judgement: Judgement) -> str:
    word = f" {judgement.reason.word}" if judgement.reason is not None else ""
    gauges = " ".join(f"{gauge.name}={gauge.sum:g}" for gauge in judgement.gauges)
    return f"{now_rfc3339()} {judgement.verdict.value}{word}  {gauges}  {judgement.in_flight}"
