"""The timeline of a grace: the table of drain-window.md, and what holds for every grace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainagent.timeline import DEFAULT_GRACE_S, MAX_GRACE_S, MIN_GRACE_S, next_slot_s, timeline

ADMITTED = st.floats(MIN_GRACE_S, MAX_GRACE_S)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
NO_NUMBER = st.sampled_from([None, math.nan, math.inf, -math.inf])


@pytest.mark.parametrize(
    ("grace_s", "settle_until_s", "no_read_after_s", "back_by_s"),
    [(DEFAULT_GRACE_S, 5, 25, 27), (15, 5, 10, 12), (45, 5, 40, 42), (3600, 5, 3595, 3597), (60.5, 5, 55.5, 57.5)],
)
def test_the_table(grace_s: float, settle_until_s: float, no_read_after_s: float, back_by_s: float) -> None:
    found = timeline(grace_s)
    assert (found.settle_until_s, found.no_read_after_s, found.back_by_s) == (
        settle_until_s,
        no_read_after_s,
        back_by_s,
    )


@given(ADMITTED, st.floats(-10, 4000))
def test_an_admitted_grace(grace_s: float, settle_s: float) -> None:
    found = timeline(grace_s, settle_s)
    assert found.no_read_after_s == grace_s - 5
    assert found.back_by_s == grace_s - 3
    assert 5 <= found.settle_until_s <= grace_s - 5
    assert found.settle_until_s == max(5, min(settle_s, grace_s - 5))
    assert found.watchdog_s is not None
    assert grace_s - 3.5 <= found.watchdog_s < grace_s - 3


@given(FINITE, st.floats(5, 3600))
def test_any_finite_grace_keeps_the_settle_and_ends(grace_s: float, settle_s: float) -> None:
    found = timeline(grace_s, settle_s)
    assert found.settle_until_s >= 5
    assert found.back_by_s is not None
    assert found.watchdog_s is not None
    assert math.isfinite(found.watchdog_s)
    assert found.watchdog_s > 5
    assert found.back_by_s >= found.watchdog_s
    if grace_s >= 10:
        assert found.settle_until_s <= grace_s - 5
    else:
        assert found.settle_until_s == 5
        assert found.back_by_s <= 7


@given(NO_NUMBER, st.floats(0, 3600))
def test_no_grace_is_no_deadline(grace_s: float | None, settle_s: float) -> None:
    found = timeline(grace_s, settle_s)
    assert (found.grace_s, found.no_read_after_s, found.back_by_s, found.watchdog_s) == (None,) * 4
    assert found.settle_until_s == max(5, settle_s)
    assert found.read_bound_s(1e9) == 2


@given(ADMITTED, st.floats(0, 4000))
def test_a_read_that_starts_before_its_last_moment_is_over_before_the_watchdog(
    grace_s: float, started_s: float
) -> None:
    found = timeline(grace_s)
    bound_s = found.read_bound_s(started_s)
    assert 0 <= bound_s <= 2
    assert found.watchdog_s is not None
    if started_s <= grace_s - 5:
        assert started_s + bound_s < found.watchdog_s
        assert bound_s >= 1.7
    if started_s <= grace_s - 5.5:
        assert bound_s == 2


@given(st.floats(max_value=5))
def test_a_settle_is_never_shortened(settle_s: float) -> None:
    assert timeline(30, settle_s).settle_until_s == 5


def test_a_settle_that_is_no_number_is_the_usual_one() -> None:
    assert timeline(30, math.nan).settle_until_s == 5


@pytest.mark.parametrize(
    ("started_s", "ended_s", "due_s"),
    [
        (5.0, 5.01, 6.0),
        (6.0, 7.9, 8.0),  # a long read costs the slots it covers
        (6.0, 7.0, 8.0),
        (8.4, 8.41, 9.0),
        (8.9, 8.91, 10.0),  # a late one is no neighbour of the next
    ],
)
def test_the_next_slot_of_the_grid(started_s: float, ended_s: float, due_s: float) -> None:
    assert next_slot_s(5.0, started_s, ended_s) == due_s
