"""The rule of the drain window: (timeline, state, now) to what to do next, and (state, a read's judgement) to the next
state. Pure: times are seconds since the hook's process start and are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from drainagent.reasons import Outcome, Reason, Verdict
from drainagent.timeline import IDLE_READS, LEADER_READ_PLACES_S, Timeline, next_slot_s
from drainagent.verdict import Judgement

_NO_ANSWER = {Reason.CONNECTION_REFUSED, Reason.UNREACHABLE, Reason.TIMED_OUT}
#: A leader counts as gone when it was unreachable or silent this many reads in a row.
LEADER_GONE_READS = 3


@dataclass(frozen=True)
class Wait:
    """Do nothing until ``until_s``."""

    until_s: float


@dataclass(frozen=True)
class Read:
    """Start a read now; it may take ``bound_s`` in total."""

    bound_s: float


@dataclass(frozen=True)
class Return:
    """The window is over. ``cause`` completes the log's last line."""

    outcome: Outcome
    cause: str


@dataclass(frozen=True)
class Unchanged:
    """A gauge's value and the number of consecutive reads that found it."""

    value: float
    reads: int


@dataclass(frozen=True)
class WindowState:
    """What the window remembers between reads."""

    reads: int = 0
    idle_streak: int = 0
    next_read_s: float | None = None
    last: Judgement | None = None
    unchanged: Mapping[str, Unchanged] = field(default_factory=dict)


def next_action(timeline: Timeline, state: WindowState, now_s: float) -> Wait | Read | Return:
    """What the hook does at ``now_s``. Reads keep a fixed grid from the settle's end; none overlaps another."""
    if now_s < timeline.settle_until_s:
        return Wait(timeline.settle_until_s)
    if state.idle_streak >= IDLE_READS:
        return Return(Outcome.IDLE, _idle_cause(state))
    last = state.last
    if last is not None and last.verdict is Verdict.UNMEASURABLE and not last.clients_left:
        return Return(Outcome.UNMEASURABLE, f"{_word(last)}: {last.url}: {last.message}")
    deadline_s = timeline.no_read_after_s
    if deadline_s is not None and now_s >= deadline_s:
        return Return(Outcome.DEADLINE, _deadline_cause(state))
    due_s = timeline.settle_until_s if state.next_read_s is None else state.next_read_s
    if now_s >= due_s:
        return Read(timeline.read_bound_s(now_s))
    return Wait(due_s if deadline_s is None else min(due_s, deadline_s))


def after_read(
    timeline: Timeline, state: WindowState, judgement: Judgement, started_s: float, ended_s: float
) -> WindowState:
    """The state once a read's judgement is in; the next read is due on the grid of reads."""
    unchanged = {}
    for gauge in judgement.gauges:
        before = state.unchanged.get(gauge.name)
        same = before is not None and before.value == gauge.sum
        unchanged[gauge.name] = Unchanged(gauge.sum, before.reads + 1 if before is not None and same else 1)
    return WindowState(
        reads=state.reads + 1,
        idle_streak=state.idle_streak + 1 if judgement.verdict is Verdict.IDLE else 0,
        next_read_s=next_slot_s(timeline.settle_until_s, started_s, ended_s),
        last=judgement,
        unchanged=unchanged,
    )


def _word(judgement: Judgement) -> str:
    return judgement.reason.word if judgement.reason is not None else judgement.verdict.value


def _idle_cause(state: WindowState) -> str:
    last = state.last
    return f"{IDLE_READS} idle reads in a row" + (f": {last.message}" if last is not None else "")


def _deadline_cause(state: WindowState) -> str:
    """Names each gauge and value, what is in flight with its peers, and which gauge never moved."""
    last = state.last
    if last is None:
        return "the grace leaves no time for a read"
    words = []
    for name, gauge in state.unchanged.items():
        if gauge.value > 0:
            stuck = f" (unchanged for {gauge.reads} reads)" if gauge.reads > 1 and gauge.reads == state.reads else ""
            words.append(f"{name} {gauge.value:g}{stuck}")
    zero = [name for name, gauge in state.unchanged.items() if gauge.value == 0]
    if zero:
        words.append(", ".join(zero) + " 0")
    words.append(f"in flight: {last.in_flight}")
    clients = last.in_flight.clients
    if clients is not None and clients.peers:
        words.append("peers " + ", ".join(clients.peers))
    return f"{_word(last)}: {last.message} Last read: " + "; ".join(words)


# A follower's window: its leader's listener instead of its own gauges.


@dataclass(frozen=True)
class LeaderState:
    """What a follower remembers of its leader between reads."""

    answered: bool = False
    failures: int = 0
    reads: int = 0
    next_read_s: float | None = None
    gone: str | None = None
    last_fault: str | None = None
    watchable: bool = True


def next_leader_action(timeline: Timeline, state: LeaderState, now_s: float) -> Wait | Read | Return:
    """As ``next_action``, for a follower: it returns when the leader's listener is gone, never because it is idle."""
    if state.gone is not None and now_s >= timeline.settle_until_s:
        return Return(Outcome.IDLE if state.answered else Outcome.UNMEASURABLE, state.gone)
    if not state.watchable:
        # A leader that was named wrongly cannot be watched: wait as long as there is, so that nothing is cut.
        if timeline.no_read_after_s is None:
            return Wait(math.inf)
        end_s = max(timeline.settle_until_s, timeline.no_read_after_s)
        return Return(Outcome.DEADLINE, "the leader cannot be watched") if now_s >= end_s else Wait(end_s)
    first_s = timeline.settle_until_s + LEADER_READ_PLACES_S[0]
    window = WindowState(reads=state.reads, next_read_s=first_s if state.next_read_s is None else state.next_read_s)
    action = next_action(timeline, window, now_s)
    if isinstance(action, Return):
        if not state.reads:
            return Return(Outcome.DEADLINE, action.cause)
        last = "still answers" if state.last_fault is None else f"did not answer the last read ({state.last_fault})"
        return Return(Outcome.DEADLINE, f"the leader's listener {last}")
    return action


def after_leader_read(
    timeline: Timeline, state: LeaderState, fault: Reason | None, detail: str, started_s: float, ended_s: float
) -> LeaderState:
    """``fault``: why the read of the leader gave no answer, None when it answered anything at all over HTTP."""
    place_s, next_place_s = (
        LEADER_READ_PLACES_S[number % len(LEADER_READ_PLACES_S)] for number in (state.reads, state.reads + 1)
    )
    state = replace(
        state,
        reads=state.reads + 1,
        next_read_s=next_slot_s(timeline.settle_until_s, started_s - place_s, ended_s) + next_place_s,
        last_fault=detail if fault in _NO_ANSWER else None,
    )
    if fault is Reason.CONNECTION_REFUSED:
        gone = "the leader's listener is gone" if state.answered else "the leader never answered: the settle only"
        return replace(state, gone=f"{gone} ({detail})")
    if fault not in _NO_ANSWER:
        # A broken answer is an answer: something listens there.
        return replace(state, answered=True, failures=0)
    failures = state.failures + 1
    if failures < LEADER_GONE_READS:
        return replace(state, failures=failures)
    gone = "the leader is gone" if state.answered else "the leader never answered: the settle only"
    return replace(state, failures=failures, gone=f"{gone} ({detail}, {failures} reads in a row)")
