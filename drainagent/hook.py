"""The preStop hook: joins the window's rule with the clock, the reader, the log and the watchdog."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Thread
from typing import Protocol

from drainagent import procfs
from drainagent.clock import now_rfc3339
from drainagent.hook_options import read_hook_arguments
from drainagent.reader import Reader, listener_answers, resolve
from drainagent.reasons import Outcome, Reason, Verdict
from drainagent.report import LineWriter, Report, write_termination_log
from drainagent.settings import HookSettings, hook_settings
from drainagent.targets import Overrides, Target, discover, targets_for
from drainagent.timeline import READ_PERIOD_S, Timeline, timeline
from drainagent.url import ListenerUrl
from drainagent.verdict import Fault, InFlight, Judgement, LoadRule, judge_all
from drainagent.watchdog import Watchdog, arm_cpu_timer, disarm_kernel_alarm
from drainagent.window import (
    LeaderState,
    Read,
    Return,
    Wait,
    WindowState,
    after_leader_read,
    after_read,
    next_action,
    next_leader_action,
)


class Window(Protocol):
    """What the loop drives: the rule with its state, and the read that belongs to it."""

    def next_action(self, now_s: float) -> Wait | Read | Return: ...

    def read(self, bound_s: float, elapsed_s: Callable[[], float], report: Report) -> None: ...


def drain(
    window: Window,
    schedule: Timeline,
    elapsed_s: Callable[[], float],
    sleep: Callable[[float], None],
    report: Report,
    bound_cpu: Callable[[float], None] = lambda _: None,
) -> Return:
    """Drive ``window`` to its end. ``elapsed_s`` and ``sleep`` are the clock, passed in; raises what a read raises.

    ``bound_cpu``: called before each read with the seconds left until G - 3.
    """
    settled = False
    while True:
        now_s = elapsed_s()
        action = window.next_action(now_s)
        if not settled and now_s >= schedule.settle_until_s:
            settled = True
            report.settled()
        if isinstance(action, Return):
            return action
        if isinstance(action, Read):
            if schedule.back_by_s is not None:
                bound_cpu(schedule.back_by_s - now_s)
            window.read(action.bound_s, elapsed_s, report)
            continue
        if now_s >= report.next_heartbeat_s:
            report.still_waiting()
        sleep(max(0.0, min(action.until_s, report.next_heartbeat_s) - now_s))


class ReplicaWindow:
    """The window over this container's own listeners."""

    def __init__(
        self, schedule: Timeline, reader: Reader, find_targets: Callable[[], Sequence[Target]], settings: HookSettings
    ) -> None:
        self._schedule, self._reader, self._find_targets, self._settings = schedule, reader, find_targets, settings
        self._targets: Sequence[Target] = ()
        self._state = WindowState()
        self._load_rules: Mapping[str, LoadRule] = {}

    def next_action(self, now_s: float) -> Wait | Read | Return:
        return next_action(self._schedule, self._state, now_s)

    def read(self, bound_s: float, elapsed_s: Callable[[], float], report: Report) -> None:
        now_s = elapsed_s()
        end_s = self._schedule.no_read_after_s
        # Clients are looked at on a read that is already busy only where a line will name them.
        named = self._state.reads == 0 or report.due or (end_s is not None and now_s + READ_PERIOD_S >= end_s)
        try:
            judgement = self._read(bound_s, always_clients=named)
        except Exception as error:  # our own mistake must not end the hook
            judgement = Judgement("", Verdict.BUSY, Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        self._state = after_read(self._schedule, self._state, judgement, now_s, elapsed_s())
        report.read(judgement)

    def _read(self, bound_s: float, *, always_clients: bool) -> Judgement:
        if not self._targets:
            self._targets = self._find_targets()
        if not self._targets:
            # A wrong URL must not skip the wait: somebody may be served where nothing was looked for.
            verdict = Verdict.BUSY if self._settings.url_was_wrong else Verdict.UNMEASURABLE
            return Judgement("", verdict, Reason.NO_LISTENER, Reason.NO_LISTENER.sentence)
        readings = self._reader.read_all(self._targets, bound_s, always_clients=always_clients)
        judgement, self._load_rules = judge_all(
            readings, self._load_rules, gauges_only=self._settings.gauges_only, must_decide=True
        )
        if self._settings.url_was_wrong and judgement.verdict is Verdict.UNMEASURABLE:
            # Found in place of the wrong URL, so that it may be somebody else's listener.
            return replace(judgement, verdict=Verdict.BUSY)
        return judgement


class LeaderWindow:
    """The window of a follower, over its leader's listener."""

    def __init__(self, schedule: Timeline, leader: ListenerUrl | None) -> None:
        self._schedule, self._leader = schedule, leader
        self._state = LeaderState(watchable=leader is not None)
        self._resolver = BoundedResolver()

    def next_action(self, now_s: float) -> Wait | Read | Return:
        return next_leader_action(self._schedule, self._state, now_s)

    def read(self, bound_s: float, elapsed_s: Callable[[], float], report: Report) -> None:
        assert self._leader is not None  # next_leader_action reads only a leader that can be watched
        before = self._state
        started_s = elapsed_s()
        try:
            fault = self._read(self._leader, bound_s)
        except Exception as error:  # our own mistake is no proof that the leader is gone
            fault = Fault(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        reason, detail = (None, "") if fault is None else (fault.reason, str(fault))
        self._state = after_leader_read(self._schedule, before, reason, detail, started_s, elapsed_s())
        verdict = Verdict.BUSY if fault is None else Verdict.UNKNOWN
        message = "the leader's listener answers." if fault is None else f"{fault}."
        report.read(Judgement(str(self._leader), verdict, reason, message, in_flight=InFlight()))

    def _read(self, leader: ListenerUrl, bound_s: float) -> Fault | None:
        end_s = time.monotonic() + bound_s
        addresses = self._resolver.resolve(leader.host, leader.port, bound_s)
        if isinstance(addresses, Fault):
            return addresses
        fault: Fault | None = None
        for address in addresses:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return Fault(Reason.TIMED_OUT, f"no answer within {bound_s:.3g} s")
            fault = listener_answers(leader, address, left_s)
            if fault is None or fault.reason not in {Reason.CONNECTION_REFUSED, Reason.UNREACHABLE}:
                return fault
        return fault


class BoundedResolver:
    """Resolves names on a thread of its own: a resolver that hangs delays nothing, and is not asked a second time."""

    def __init__(self, resolve_name: Callable[[str, int], list[str]] = resolve) -> None:
        self._resolve_name = resolve_name
        self._pending: tuple[Thread, list[list[str] | Fault]] | None = None

    def resolve(self, host: str, port: int, bound_s: float) -> list[str] | Fault:
        if self._pending is None:
            answers: list[list[str] | Fault] = []
            thread = Thread(target=self._ask, args=(host, port, answers), daemon=True)
            thread.start()
        else:
            thread, answers = self._pending
        thread.join(bound_s)
        if not answers:
            self._pending = (thread, answers)
            return Fault(Reason.TIMED_OUT, f"the name {host} was not resolved within {bound_s:.3g} s")
        self._pending = None
        return answers[0]

    def _ask(self, host: str, port: int, answers: list[list[str] | Fault]) -> None:
        try:
            answers.append(self._resolve_name(host, port))
        except OSError as error:
            answers.append(Fault(Reason.UNREACHABLE, f"the name {host} does not resolve: {error}"))
        except Exception as error:
            answers.append(Fault(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}"))


class Terminated(BaseException):
    """The hook itself got SIGTERM or SIGINT."""


def run(arguments: Sequence[str], process_start_s: float) -> int:
    """The whole hook.

    ``arguments``: after the word ``hook``. ``process_start_s``: on the monotonic clock. Returns the exit status: 0, or
    2 after a wrong argument (the window is finished all the same).
    """
    gc.enable()
    options, wrong_arguments = read_hook_arguments(arguments)
    settings, wrong_values = hook_settings(options, os.environ, procfs.is_own_address)
    wrong = (*wrong_arguments, *wrong_values)
    schedule = timeline(settings.grace_s, settings.settle_s)
    exit_status = 2 if wrong else 0

    def elapsed_s() -> float:
        return time.monotonic() - process_start_s

    if any(url.tls for url in settings.urls):
        import ssl  # noqa: F401 - now, while the kernel's alarm still watches over imports

    port = settings.urls[0].port if settings.urls else None
    log_fd = procfs.container_log(port)
    writer = LineWriter(log_fd)
    report = Report(
        writer.write,
        elapsed_s,
        now_rfc3339,
        as_json=settings.log_json,
        termination_log=write_termination_log if settings.termination_log else None,
    )
    if schedule.watchdog_s is None:
        disarm_kernel_alarm()
    else:
        late = Return(Outcome.DEADLINE, "the watchdog ended the hook; its last read did not end in time")
        Watchdog(process_start_s + schedule.watchdog_s, exit_status, lambda: report.outcome(late)).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_terminated)
    try:
        if wrong and log_fd is not None:
            # The sentence on stderr too: the kubelet keeps a failed hook's stderr in its own log.
            for sentence in wrong:
                LineWriter(None).write(f"drainagent hook: {sentence}")
        report.start(schedule, _what(settings), wrong)
        window = _window(schedule, settings)
        end = drain(window, schedule, elapsed_s, time.sleep, report, arm_cpu_timer)
    except Terminated as end_signal:
        end = Return(Outcome.TERMINATED, f"the hook itself got {end_signal}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it ends now
    report.outcome(end)
    return exit_status


def _window(schedule: Timeline, settings: HookSettings) -> Window:
    if settings.watches_leader:
        return LeaderWindow(schedule, settings.leader)
    reader = Reader(procfs.read_tables, gauges_only=settings.gauges_only, ignored_peers=settings.ignored_peers)

    def find_targets() -> Sequence[Target]:
        processes = procfs.engine_processes()
        overrides = Overrides(settings.load_tracking, settings.api_servers)
        if settings.urls:
            return targets_for(settings.urls, settings.engine, processes, overrides)
        return discover(settings.engine, processes, procfs.read_tables() or (), overrides).targets

    return ReplicaWindow(schedule, reader, find_targets, settings)


def _what(settings: HookSettings) -> str:
    if settings.watches_leader:
        return f"its leader's listener {settings.leader}" if settings.leader else "nothing, as its leader is not known,"
    engine = settings.engine.name if settings.engine is not None else "the engine"
    where = ", ".join(str(url) for url in settings.urls) or "wherever its process listens"
    return f"{engine} at {where}"


def _raise_terminated(number: int, _: object) -> None:
    raise Terminated(signal.Signals(number).name)
