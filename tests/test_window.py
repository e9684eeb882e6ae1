"""The window's rule on a fake clock: the real loop and the real windows, with reads that are made up."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainagent.hook import LeaderWindow, ReplicaWindow, Window, drain
from drainagent.page import GaugeReading
from drainagent.reasons import Outcome, Reason, Verdict
from drainagent.report import Report
from drainagent.settings import HookSettings
from drainagent.sockets import Clients
from drainagent.timeline import Timeline, timeline
from drainagent.url import ListenerUrl
from drainagent.verdict import Fault, InFlight, Judgement
from drainagent.window import (
    LeaderState,
    Return,
    Wait,
    WindowState,
    after_leader_read,
    after_read,
    next_action,
    next_leader_action,
)

URL = "http://127.0.0.1:8000/metrics"


def judged(verdict: Verdict, *, clients_left: bool = False, running: float | None = None) -> Judgement:
    gauges = () if running is None else (GaugeReading("vllm:num_requests_running", running, ()),)
    return Judgement(URL, verdict, None, "As made up.", gauges=gauges, clients_left=clients_left)


BUSY, IDLE = judged(Verdict.BUSY, running=2), judged(Verdict.IDLE, running=0)
LOST, LEFT = judged(Verdict.UNMEASURABLE), judged(Verdict.UNMEASURABLE, clients_left=True)


@dataclass
class Step:
    """A read: what it finds, for how long it would like to take, and how late the sleep before it wakes up."""

    judgement: Judgement | Exception
    takes_s: float = 0.01
    late_s: float = 0.0


@dataclass
class Made:
    """A read as it was made."""

    started_s: float
    ended_s: float
    bound_s: float
    step: Step


@dataclass
class World:
    """A clock, and reads from a script."""

    steps: Iterator[Step]
    now_s: float = 0.2
    made: list[Made] = field(default_factory=list)
    lines: list[tuple[float, str]] = field(default_factory=list)
    late_s: float = 0.0

    def elapsed_s(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        assert for_s >= 0
        # A real clock goes on by itself; this one must not stand still when a sleep is too short to add up.
        self.now_s = max(self.now_s + for_s, math.nextafter(self.now_s, math.inf)) + self.late_s
        self.late_s = 0.0

    def read(self, bound_s: float) -> Step:
        step = next(self.steps)
        started_s = self.now_s
        self.now_s += min(step.takes_s, bound_s)
        self.made.append(Made(started_s, self.now_s, bound_s, step))
        self.late_s = step.late_s
        return step

    def run(self, window: Window, schedule: Timeline, *, as_json: bool = False) -> Return:
        report = Report(
            lambda line: self.lines.append((self.now_s, line)), self.elapsed_s, lambda: "now", as_json=as_json
        )
        report.start(schedule, "it", ())
        end = drain(window, schedule, self.elapsed_s, self.sleep, report)
        report.outcome(end)
        return end


class Replica(ReplicaWindow):
    def __init__(self, schedule: Timeline, world: World) -> None:
        super().__init__(schedule, None, list, HookSettings())  # type: ignore[arg-type]
        self._world = world

    def _read(self, bound_s: float, *, always_clients: bool) -> Judgement:  # noqa: ARG002
        step = self._world.read(bound_s)
        if isinstance(step.judgement, Exception):
            raise step.judgement
        return step.judgement


class Follower(LeaderWindow):
    def __init__(self, schedule: Timeline, world: World) -> None:
        super().__init__(schedule, ListenerUrl("http", "leader", 8000))
        self._world = world

    def _read(self, leader: ListenerUrl, bound_s: float) -> Fault | None:  # noqa: ARG002
        step = self._world.read(bound_s)
        if isinstance(step.judgement, Exception):
            raise step.judgement
        reason = step.judgement.reason
        return None if reason is None else Fault(reason)


def replica(grace_s: float | None, steps: Sequence[Step], settle_s: float = 5) -> tuple[World, Return]:
    """Run a replica's window; the last step repeats."""
    schedule = timeline(grace_s, settle_s)
    world = World(itertools.chain(steps, itertools.repeat(steps[-1])))
    return world, world.run(Replica(schedule, world), schedule)


def starts(world: World) -> list[float]:
    return [made.started_s for made in world.made]


# ---------------------------------------------------------------------------------------------------------------------
# The table of the timeline


def test_an_idle_replica_is_back_at_6_s_whatever_its_grace() -> None:
    for grace_s in (15, 30, 3600, None):
        world, end = replica(grace_s, [Step(IDLE)])
        assert starts(world) == [5, 6]
        assert world.now_s == pytest.approx(6.01)
        assert end.outcome is Outcome.IDLE


@pytest.mark.parametrize("grace_s", [15, 15.5, 30, 60, 3600])
def test_a_busy_replica_is_read_once_a_second_until_g_minus_5(grace_s: float) -> None:
    world, end = replica(grace_s, [Step(BUSY)])
    assert starts(world) == [float(at_s) for at_s in range(5, math.ceil(grace_s - 5))]
    assert world.now_s == grace_s - 5
    assert end.outcome is Outcome.DEADLINE


def test_without_a_grace_it_waits_for_idle_alone() -> None:
    world, end = replica(None, [*[Step(BUSY)] * 5000, Step(IDLE)])
    assert len(world.made) == 5002
    assert starts(world)[-1] == 5 + 5001
    assert end.outcome is Outcome.IDLE


def test_a_settle_up_to_the_deadline_leaves_no_read() -> None:
    world, end = replica(15, [Step(IDLE)], settle_s=12)
    assert (world.made, world.now_s, end.outcome) == ([], 10, Outcome.DEADLINE)
    assert "no time for a read" in end.cause


@pytest.mark.parametrize("grace_s", [9, 6, 1, 0, -5, -1e300])
def test_a_grace_without_room_for_a_read(grace_s: float) -> None:
    world, end = replica(grace_s, [Step(IDLE)])
    assert (world.made, world.now_s, end.outcome) == ([], 5, Outcome.DEADLINE)


@pytest.mark.parametrize(
    ("takes_s", "expected"),
    [(0.99, [5, 6, 7, 8, 9]), (1.5, [5, 7, 9]), (2.0, [5, 8]), (9, [5, 8])],
)
def test_reads_that_take_long_keep_the_grid_and_never_overlap(takes_s: float, expected: list[float]) -> None:
    world, _ = replica(15, [Step(BUSY, takes_s=takes_s)])
    assert starts(world) == expected
    assert world.now_s <= 12


def test_a_last_read_of_two_seconds_is_over_before_g_minus_3() -> None:
    world, end = replica(15, [*[Step(BUSY)] * 4, Step(IDLE, takes_s=9)])
    assert world.made[-1].started_s == 9
    assert world.now_s == 11
    assert end.outcome is Outcome.DEADLINE


def test_unmeasurable_ends_at_once_and_waits_for_clients() -> None:
    world, end = replica(30, [Step(LOST)])
    assert (starts(world), end.outcome) == ([5], Outcome.UNMEASURABLE)
    world, end = replica(30, [Step(LEFT), Step(LEFT), Step(LOST)])
    assert (starts(world), end.outcome) == ([5, 6, 7], Outcome.UNMEASURABLE)
    world, end = replica(15, [Step(LEFT)])
    assert (world.now_s, end.outcome) == (10, Outcome.DEADLINE)


def test_an_unmeasurable_read_between_idle_ones_breaks_the_row() -> None:
    world, end = replica(30, [Step(IDLE), Step(LEFT), Step(IDLE), Step(BUSY), Step(IDLE)])
    assert len(world.made) == 6
    assert end.outcome is Outcome.IDLE


def test_a_read_that_raises_is_busy() -> None:
    world, end = replica(15, [Step(IDLE), Step(RuntimeError("broken")), Step(IDLE), Step(ValueError("broken"))])
    assert len(world.made) == 5
    assert end.outcome is Outcome.DEADLINE
    assert "InternalError" in end.cause


def test_stopped_over_the_deadline_it_reads_no_more() -> None:
    world, end = replica(15, [Step(BUSY), Step(BUSY, late_s=100)])
    assert starts(world) == [5, 6]
    assert end.outcome is Outcome.DEADLINE


def test_stopped_over_the_deadline_after_one_idle_read_it_is_not_idle() -> None:
    world, end = replica(15, [Step(BUSY), Step(IDLE, late_s=100)])
    assert len(world.made) == 2
    assert end.outcome is Outcome.DEADLINE


@pytest.mark.parametrize(
    ("late_s", "expected"),
    [(2.25, [5, 8.25, 9]), (2.875, [5, 8.875])],  # the next slot, 9 or 10, and at 10 no read starts any more
)
def test_stopped_for_a_while_it_makes_up_for_no_read(late_s: float, expected: list[float]) -> None:
    world, _ = replica(15, [Step(BUSY, late_s=late_s), Step(BUSY)])
    assert starts(world) == expected


# ---------------------------------------------------------------------------------------------------------------------
# Any sequence of reads

JUDGEMENTS = st.sampled_from([BUSY, IDLE, IDLE, LOST, LEFT, RuntimeError("broken")])
PROMPT = st.builds(Step, JUDGEMENTS, st.floats(0.001, 5))
LATE = st.builds(Step, JUDGEMENTS, st.floats(0.001, 5), st.just(0.0) | st.floats(0, 0.3) | st.floats(0, 40))
GRACES = st.integers(15, 60) | st.floats(15, 120)


def reasons_to_return(made: Sequence[Made]) -> list[Outcome | None]:
    """After each read, what its judgement and those before it allow besides the deadline."""
    found: list[Outcome | None] = []
    for number, one in enumerate(made):
        judgement = one.step.judgement
        before = made[number - 1].step.judgement if number else None
        if judgement is IDLE and before is IDLE:
            found.append(Outcome.IDLE)
        else:
            found.append(Outcome.UNMEASURABLE if judgement is LOST else None)
    return found


def holds(world: World, end: Return, schedule: Timeline) -> None:
    """What holds for any sequence, clock jumps forward included."""
    assert schedule.no_read_after_s is not None
    slots = []
    for made in world.made:
        assert schedule.settle_until_s <= made.started_s < schedule.no_read_after_s
        assert made.bound_s <= 2
        slots.append(math.floor(made.started_s - schedule.settle_until_s + 1e-6))
    assert slots == sorted(set(slots)), "one read a slot"
    assert all(one.ended_s <= other.started_s for one, other in itertools.pairwise(world.made))
    allowed = reasons_to_return(world.made)
    assert not any(allowed[:-1]), "it should have returned earlier"
    if end.outcome is Outcome.DEADLINE:
        assert world.now_s >= schedule.no_read_after_s
        assert not allowed or allowed[-1] is None
    else:
        assert end.outcome is allowed[-1]
        assert world.now_s == world.made[-1].ended_s, "it returns with the read that decides"


@given(GRACES, st.lists(PROMPT, min_size=1, max_size=40), st.floats(5, 20))
@settings(max_examples=300, deadline=None)
def test_any_reads_on_a_clock_that_is_on_time(grace_s: float, steps: list[Step], settle_s: float) -> None:
    schedule = timeline(grace_s, settle_s)
    world, end = replica(grace_s, steps, settle_s)
    holds(world, end, schedule)
    assert world.now_s <= grace_s - 3
    for made in world.made:
        slot = made.started_s - schedule.settle_until_s
        assert slot == pytest.approx(round(slot), abs=1e-6)
    for one, other in itertools.pairwise(world.made):
        assert 0 <= other.started_s - one.ended_s <= 1 + 1e-6, "the first slot that is not past"
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(world.lines)]
    assert all(gap <= 10 + 2 + 1e-9 for gap in gaps), "a line at least every 10 s, and never amid a read"


@given(GRACES, st.lists(LATE, min_size=1, max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_reads_on_a_machine_that_is_late(grace_s: float, steps: list[Step]) -> None:
    schedule = timeline(grace_s)
    world, end = replica(grace_s, steps)
    holds(world, end, schedule)
    if world.made and end.outcome is Outcome.DEADLINE:
        # Nothing but the last sleep's lateness, or the last read, keeps it past G - 5.
        late_s = world.made[-1].step.late_s
        assert world.now_s <= max(grace_s - 5 + late_s, grace_s - 3)


@given(st.lists(st.sampled_from([BUSY, LEFT, RuntimeError("broken")]), min_size=1), GRACES)
@settings(max_examples=50, deadline=None)
def test_never_back_before_g_minus_5_while_it_is_busy(judgements: list[Judgement | Exception], grace_s: float) -> None:
    world, end = replica(grace_s, [Step(one) for one in judgements])
    assert world.now_s >= grace_s - 5
    assert end.outcome is Outcome.DEADLINE


@given(st.integers(15, 300), st.data())
@settings(max_examples=100, deadline=None)
def test_idle_exactly_after_two_idle_reads(grace_s: int, data: st.DataObject) -> None:
    reads = data.draw(st.lists(st.booleans(), min_size=1, max_size=grace_s - 10))
    world, end = replica(grace_s, [Step(IDLE if idle else BUSY) for idle in reads])
    first = next((at for at in range(1, len(reads)) if reads[at - 1] and reads[at]), None)
    if first is None and reads[-1] and len(reads) < grace_s - 10:
        first = len(reads)
    assert end.outcome is (Outcome.DEADLINE if first is None else Outcome.IDLE)
    assert len(world.made) == (grace_s - 10 if first is None else first + 1)


@given(st.floats(0, 10_000), st.floats(15, 3600), st.lists(st.tuples(JUDGEMENTS, st.floats(0, 3)), max_size=5))
def test_the_rule_decides_at_any_moment(
    now_s: float, grace_s: float, past: list[tuple[Judgement | Exception, float]]
) -> None:
    """Whatever the state and the time, what it wants is in the future, or now."""
    schedule, state, ended_s = timeline(grace_s), WindowState(), 5.0
    for judgement, took_s in past:
        ended_s += took_s
        if isinstance(judgement, Judgement):
            state = after_read(schedule, state, judgement, ended_s - took_s, ended_s)
    action = next_action(schedule, state, now_s)
    if isinstance(action, Wait):
        assert now_s < action.until_s <= max(now_s + 1, schedule.settle_until_s) + 16
    elif isinstance(action, Return):
        assert now_s >= 5
    else:
        assert 5 <= now_s < grace_s - 5
        assert 0 < action.bound_s <= 2


# ---------------------------------------------------------------------------------------------------------------------
# What the last line says


def cause_of(*judgements: Judgement) -> str:
    return replica(15, [Step(one) for one in judgements])[1].cause


def test_the_deadline_names_gauges_and_what_never_moved() -> None:
    def page(running: float, waiting: float) -> Judgement:
        gauges = (GaugeReading("running", running, ()), GaugeReading("waiting", waiting, ()))
        return Judgement(URL, Verdict.BUSY, Reason.GAUGES_ABOVE_ZERO, "running is up.", gauges=gauges)

    assert "running 3 (unchanged for 5 reads)" in cause_of(page(3, 0))
    assert "waiting 0" in cause_of(page(3, 0))
    assert "running 3;" in cause_of(page(2, 0), page(3, 0))
    assert "unchanged" not in cause_of(page(3, 0), page(2, 0), page(3, 0))
    assert "unchanged" not in cause_of(page(3, 0), judged(Verdict.BUSY), page(3, 0))
    assert "waiting 1 (unchanged for 5 reads)" in cause_of(page(0, 1))


def test_the_deadline_names_the_peers_of_connections() -> None:
    left = InFlight(Clients(2, 7, 0, ("10.0.0.1:5", "[fd00::1]:6")))
    cause = cause_of(Judgement(URL, Verdict.BUSY, Reason.CONNECTIONS_OPEN, "Two are open.", in_flight=left))
    assert "ConnectionsOpen" in cause
    assert "2 connections" in cause
    assert "7 B unacknowledged" in cause
    assert "10.0.0.1:5, [fd00::1]:6" in cause


def test_json_lines_for_every_read_and_text_for_every_change() -> None:
    for as_json in (True, False):
        schedule = timeline(30)
        world = World(iter([*[Step(BUSY)] * 4, *[Step(IDLE)] * 2]))
        world.run(Replica(schedule, world), schedule, as_json=as_json)
        if as_json:
            events = [json.loads(line)["event"] for _, line in world.lines]
            assert events == ["start", "settled", *["read"] * 6, "outcome"]
        else:
            assert len(world.lines) == 5


def test_a_line_every_ten_seconds() -> None:
    world, _ = replica(120, [Step(BUSY)], settle_s=40)
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(world.lines)]
    assert max(gaps) <= 10.01


# ---------------------------------------------------------------------------------------------------------------------
# A follower's window


def leader_read(reason: Reason | None) -> Judgement:
    return Judgement(URL, Verdict.BUSY, reason, "As made up.")


ANSWERED = leader_read(None)
REFUSED, UNREACHABLE = leader_read(Reason.CONNECTION_REFUSED), leader_read(Reason.UNREACHABLE)
TIMED_OUT, BROKEN = leader_read(Reason.TIMED_OUT), leader_read(Reason.HTTP_ERROR)


def follower(grace_s: float | None, steps: Sequence[Step]) -> tuple[World, Return]:
    schedule = timeline(grace_s)
    world = World(itertools.chain(steps, itertools.repeat(steps[-1])))
    return world, world.run(Follower(schedule, world), schedule)


LEADERS: tuple[tuple[list[Judgement], int, Outcome, str], ...] = (
    ([REFUSED], 1, Outcome.UNMEASURABLE, "never answered: the settle only"),
    ([UNREACHABLE], 3, Outcome.UNMEASURABLE, "never answered: the settle only"),
    ([TIMED_OUT, UNREACHABLE, REFUSED], 3, Outcome.UNMEASURABLE, "never answered: the settle only"),
    ([ANSWERED, REFUSED], 2, Outcome.IDLE, "gone"),
    ([ANSWERED, TIMED_OUT, UNREACHABLE, TIMED_OUT], 4, Outcome.IDLE, "gone"),
    ([TIMED_OUT, TIMED_OUT, ANSWERED, TIMED_OUT, TIMED_OUT, REFUSED], 6, Outcome.IDLE, "gone"),
    ([ANSWERED], 20, Outcome.DEADLINE, "still answers"),
    ([BROKEN], 20, Outcome.DEADLINE, "still answers"),
    ([TIMED_OUT, TIMED_OUT, BROKEN], 20, Outcome.DEADLINE, "still answers"),
)


@pytest.mark.parametrize(("reads", "count", "outcome", "says"), LEADERS)
def test_leaders(reads: list[Judgement], count: int, outcome: Outcome, says: str) -> None:
    world, end = follower(30, [Step(one) for one in reads])
    assert len(world.made) == count
    assert end.outcome is outcome
    assert says in end.cause


def test_a_read_of_the_leader_that_raises_proves_nothing() -> None:
    world, end = follower(15, [Step(ANSWERED), Step(RuntimeError("broken"))])
    assert (len(world.made), end.outcome) == (5, Outcome.DEADLINE)


@given(
    GRACES,
    st.lists(
        st.builds(Step, st.sampled_from([ANSWERED, REFUSED, TIMED_OUT, UNREACHABLE, BROKEN]), st.floats(0.001, 3)),
        min_size=1,
    ),
)
@settings(max_examples=200, deadline=None)
def test_any_leader(grace_s: float, steps: list[Step]) -> None:
    schedule = timeline(grace_s)
    assert schedule.no_read_after_s is not None
    world, end = follower(grace_s, steps)
    assert all(5 <= at_s < grace_s - 5 for at_s in starts(world))
    slots = [math.floor(at_s - 5 + 1e-6) for at_s in starts(world)]
    assert slots == sorted(set(slots))
    assert world.now_s <= grace_s - 3
    found = [made.step.judgement for made in world.made]
    answered = any(one in (ANSWERED, BROKEN) for one in found)
    lost = [one in (TIMED_OUT, UNREACHABLE) for one in found]
    if end.outcome is Outcome.DEADLINE:
        assert world.now_s >= grace_s - 5
        assert REFUSED not in found
        assert not all(lost[-3:]) or len(lost) < 3
        assert ("still answers" in end.cause) == (bool(found) and found[-1] in (ANSWERED, BROKEN))
    else:
        assert found[-1] is REFUSED or (len(lost) >= 3 and all(lost[-3:]))
        assert end.outcome is (Outcome.IDLE if answered else Outcome.UNMEASURABLE)


@given(st.floats(0, 1, exclude_max=True))
def test_a_follower_does_not_keep_its_leader_from_two_reads_alone(leader_reads_at_s: float) -> None:
    """Whatever lies between their starts: of four reads of a leader, two in a row meet no read of its follower's."""
    world, _ = follower(30, [Step(ANSWERED, 0.1)])
    visits = [(made.started_s - 0.05, made.started_s + 0.15) for made in world.made]
    reads_s = [5 + leader_reads_at_s + number for number in range(19)]
    alone = [not any(begin_s <= at_s <= end_s for begin_s, end_s in visits) for at_s in reads_s]
    for four in zip(*(alone[number:] for number in range(4)), strict=False):
        assert (True, True) in itertools.pairwise(four)


@pytest.mark.parametrize(("grace_s", "end_s"), [(15, 10), (30, 25), (6, 5), (-5, 5)])
def test_a_leader_that_cannot_be_watched_waits_to_the_deadline(grace_s: float, end_s: float) -> None:
    schedule = timeline(grace_s)
    world = World(iter(()))
    end = world.run(LeaderWindow(schedule, None), schedule)
    assert (world.now_s, end.outcome) == (end_s, Outcome.DEADLINE)


def test_a_leader_that_cannot_be_watched_and_no_grace_waits_without_end() -> None:
    action = next_leader_action(timeline(None), LeaderState(watchable=False), 1e6)
    assert isinstance(action, Wait)
    assert action.until_s == math.inf


@given(st.lists(st.sampled_from([None, Reason.TIMED_OUT, Reason.UNREACHABLE]), max_size=12))
def test_three_in_a_row(faults: list[Reason | None]) -> None:
    state, row = LeaderState(), 0
    for number, fault in enumerate(faults):
        state = after_leader_read(timeline(30), state, fault, "as made up", 5.0 + number, 5.1 + number)
        row = 0 if fault is None else row + 1
        assert (state.gone is not None) == (row >= 3)
        if row >= 3:
            return


def sleeper(limit: int) -> Callable[[float], None]:
    """Ends a loop that has no end by itself."""
    counted = itertools.count()

    def sleep(for_s: float) -> None:
        assert for_s <= 3600
        if next(counted) >= limit:
            raise KeyboardInterrupt

    return sleep


def test_a_wait_without_end_is_made_of_sleeps_that_have_one() -> None:
    schedule = timeline(None)
    report = Report(lambda _: None, lambda: 10.0, lambda: "now")
    with pytest.raises(KeyboardInterrupt):
        drain(LeaderWindow(schedule, None), schedule, lambda: 10.0, sleeper(50), report)
