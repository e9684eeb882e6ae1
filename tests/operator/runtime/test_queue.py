"""The work queue: each key once, none twice at the same time, later after each failure. Time is passed in."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from operator_glue.runtime.queue import FIRST_RETRY_S, LAST_RETRY_S, WorkQueue


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def queue() -> tuple[WorkQueue[str], Clock]:
    clock = Clock()
    return WorkQueue(clock, jitter=lambda: 1.0), clock


def due(found: WorkQueue[str]) -> str | None:
    """The next one; None where none is due."""
    return found._next()[0]


def test_a_key_waits_once() -> None:
    found, _ = queue()
    for _ in range(3):
        found.add("a")
    assert len(found) == 1
    assert due(found) == "a"
    assert due(found) is None


def test_the_earlier_time_wins() -> None:
    found, clock = queue()
    found.add("a", 10)
    found.add("a", 2)
    found.add("a", 20)
    assert found._next() == (None, 2.0)
    clock.now_s = 2.0
    assert due(found) == "a"
    found.done("a")
    clock.now_s = 100.0
    assert due(found) is None


def test_what_is_in_work_waits_until_it_is_done() -> None:
    found, _ = queue()
    found.add("a")
    assert due(found) == "a"
    found.add("a")
    found.add("b")
    assert due(found) == "b"
    assert due(found) is None
    found.done("a")
    assert due(found) == "a"


def test_failures_wait_longer_until_one_is_forgotten() -> None:
    found, _ = queue()
    waits = [found.failed("a") for _ in range(10)]
    assert waits[:4] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S, 8 * FIRST_RETRY_S]
    assert waits[-1] == LAST_RETRY_S
    found.forget("a")
    assert found.failed("a") == FIRST_RETRY_S


def test_workers_that_wait_are_woken() -> None:
    async def whole() -> None:
        found, _ = queue()
        waiting = [asyncio.ensure_future(found.get()) for _ in range(3)]
        await asyncio.sleep(0)
        for key in "abc":
            found.add(key)
        assert sorted(await asyncio.gather(*waiting)) == ["a", "b", "c"]

    asyncio.run(whole())


_Step = st.tuples(st.sampled_from(["add", "get", "done", "fail", "time"]), st.sampled_from("ab"), st.integers(0, 5))


@given(st.lists(_Step, max_size=60))
def test_nothing_is_lost_and_nothing_is_done_twice_at_once(steps: list[tuple[str, str, int]]) -> None:
    found, clock = queue()
    wanted: set[str] = set()
    in_work: set[str] = set()
    for what, key, number in steps:
        if what == "add":
            found.add(key, number)
            wanted.add(key)
        elif what == "fail":
            found.failed(key)
            wanted.add(key)
        elif what == "time":
            clock.now_s += number
        elif what == "done" and key in in_work:
            found.done(key)
            in_work.discard(key)
        elif what == "get":
            got = due(found)
            if got is not None:
                assert got in wanted
                assert got not in in_work
                wanted.discard(got)
                in_work.add(got)
    for key in in_work:
        found.done(key)
    clock.now_s += 1000.0
    rest = set()
    while (got := due(found)) is not None:
        rest.add(got)
    assert rest == wanted
