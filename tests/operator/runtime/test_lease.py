"""The Lease's rules: the pure ones as a table, and contenders that are stopped, refused and left without answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from operator_glue.kube import Conflict, Kube, NotFound, Object, Resource, Unreachable
from operator_glue.runtime.lease import HELD_S, LEASE_S, RENEW_S, WRITE_S, Act, Lease, NotLeading, decide, sight

NOW = datetime(2026, 12, 1, tzinfo=timezone.utc)


def record(holder: Any, *, version: str = "1", duration: Any = 15, transitions: Any = 3) -> Object:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": transitions}
    return {"metadata": {"name": "x", "resourceVersion": version}, "spec": spec}


@pytest.mark.parametrize(
    ("found", "unchanged_s", "act"),
    [
        (None, 0.0, Act.CREATE),
        (record("me"), 0.0, Act.RENEW),
        (record("other"), 0.0, Act.WAIT),
        (record("other"), 14.9, Act.WAIT),
        (record("other"), 15.0, Act.TAKE),
        (record(""), 0.0, Act.TAKE),
        (record(None), 0.0, Act.TAKE),
        (record(7), 0.0, Act.TAKE),
        (record("other", duration=40), 39.9, Act.WAIT),
        (record("other", duration=40), 40.0, Act.TAKE),
        (record("other", duration=-1), 14.9, Act.WAIT),
        (record("other", duration="soon"), 15.0, Act.TAKE),
        (record("other", duration=None, transitions=-3), 15.0, Act.TAKE),
        ({"metadata": {"name": "x", "resourceVersion": "1"}}, 0.0, Act.TAKE),
        ({"metadata": {"name": "x", "resourceVersion": "1"}, "spec": "nonsense"}, 0.0, Act.TAKE),
    ],
)
def test_what_a_contender_does(found: Object | None, unchanged_s: float, act: Act) -> None:
    first = sight(None, found, 100.0)
    assert decide(sight(first, found, 100.0 + unchanged_s), "me", 100.0 + unchanged_s) is act


def test_a_change_begins_the_wait_anew() -> None:
    first = sight(None, record("other"), 100.0)
    renewed = sight(first, record("other", version="2"), 114.0)
    assert decide(renewed, "me", 120.0) is Act.WAIT
    assert decide(sight(renewed, record("other", version="2"), 129.0), "me", 129.0) is Act.TAKE


def test_a_write_that_is_sent_in_time_has_ended_before_another_may_hold() -> None:
    assert HELD_S + WRITE_S <= LEASE_S
    assert RENEW_S < HELD_S


class Store:
    """One Lease at an API server. ``fault``: of the next call, before or after it took effect."""

    def __init__(self) -> None:
        self.record: Object | None = None
        self.version = 0
        self.fault = ""

    def _took(self, result: Object) -> Object:
        if self.fault == "answer lost":
            self.fault = ""
            raise Unreachable("no answer")
        return result

    def _begin(self) -> None:
        if self.fault == "unreachable":
            self.fault = ""
            raise Unreachable("no way there")

    async def get(self, _: Resource, __: str | None, ___: str) -> Object:
        self._begin()
        if self.record is None:
            raise NotFound("none")
        return self._took(self.record)

    async def create(self, _: Resource, __: str | None, body: Object) -> Object:
        self._begin()
        if self.record is not None:
            raise Conflict("there")
        return self._took(self._store(body))

    async def replace(self, _: Resource, __: str | None, ___: str, body: Object) -> Object:
        self._begin()
        assert self.record is not None
        if body["metadata"]["resourceVersion"] != self.record["metadata"]["resourceVersion"]:
            raise Conflict("changed")
        return self._took(self._store(body))

    def _store(self, body: Object) -> Object:
        self.version += 1
        self.record = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.record


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def contender(store: Store, clock: Clock, name: str, sleep: Callable[[float], Awaitable[None]] | None = None) -> Lease:
    async def forbidden(_: float) -> None:
        raise AssertionError("a unit test does not sleep")

    kube: Kube = store  # type: ignore[assignment]
    return Lease(kube, "ns", "lease", name, clock=clock, now=lambda: NOW, sleep=sleep or forbidden)


def test_a_released_one_is_taken_at_once() -> None:
    store, clock = Store(), Clock()
    one, two = contender(store, clock, "one"), contender(store, clock, "two")
    asyncio.run(one.acquire())
    assert one.is_held()
    asyncio.run(one.release())
    assert not one.is_held()
    asyncio.run(two.acquire())
    assert two.is_held()
    assert two.epoch == one.epoch + 1


def test_whoever_was_stopped_writes_nothing() -> None:
    """No task of it has run meanwhile: its clock has."""
    store, clock = Store(), Clock()
    one = contender(store, clock, "one")
    asyncio.run(one.acquire())
    one.check()
    clock.now_s += HELD_S
    with pytest.raises(NotLeading):
        one.check()


def test_keep_renews_until_it_is_refused() -> None:
    store, clock = Store(), Clock()
    turns: list[float] = []

    async def sleep(seconds: float) -> None:
        clock.now_s += seconds
        turns.append(clock.now_s)
        if len(turns) == 5:  # another hand
            assert store.record is not None
            store._store({**store.record, "spec": {**store.record["spec"], "holderIdentity": "thief"}})

    one = contender(store, clock, "one", sleep)

    async def whole() -> None:
        await one.acquire()
        await one.keep()

    asyncio.run(whole())
    assert len(turns) == 5
    assert not one.is_held()


def test_keep_gives_up_when_nothing_is_answered() -> None:
    store, clock = Store(), Clock()

    async def sleep(seconds: float) -> None:
        clock.now_s += seconds
        store.fault = "unreachable"

    one = contender(store, clock, "one", sleep)

    async def whole() -> None:
        await one.acquire()
        began_s = clock.now_s
        await one.keep()
        assert clock.now_s - began_s == HELD_S

    asyncio.run(whole())


class Contenders(RuleBasedStateMachine):
    """Three of them; time goes on for all alike, whoever is stopped takes no turn."""

    @initialize()
    def begin(self) -> None:
        self.store, self.clock = Store(), Clock()
        self.all = [contender(self.store, self.clock, name) for name in ("one", "two", "three")]
        self.epochs: dict[int, str] = {}
        self.names = itertools.count()

    @rule(who=st.integers(0, 2), fault=st.sampled_from(["", "", "unreachable", "answer lost"]))
    def turn(self, who: int, fault: str) -> None:
        one = self.all[who]
        self.store.fault = fault
        with contextlib.suppress(Unreachable):
            asyncio.run(one._turn())
        self.store.fault = ""

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 4.9, 5.0, 9.9, 10.0, 14.9, 15.0, 60.0]))
    def time_goes_on(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule(who=st.integers(0, 2))
    def release(self, who: int) -> None:
        asyncio.run(self.all[who].release())

    @rule(who=st.integers(0, 2))
    def dies_and_begins_anew(self, who: int) -> None:
        self.all[who] = contender(self.store, self.clock, f"again-{next(self.names)}")

    @rule()
    def others_rest_and_one_takes_it(self) -> None:
        """Liveness: whoever goes on asking holds it in the end."""
        last = self.all[0]
        for _ in range(40):
            asyncio.run(last._turn())
            if last.is_held():
                return
            self.clock.now_s += 1.0
        raise AssertionError("never taken")

    @invariant()
    def one_at_most_holds_it(self) -> None:
        if not hasattr(self, "all"):
            return
        holders = [index for index, one in enumerate(self.all) if one.is_held()]
        assert len(holders) <= 1
        # Each holder's token is greater than any former one's.
        for index in holders:
            one = self.all[index]
            assert self.epochs.setdefault(one.epoch, one._identity) == one._identity


Contenders.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=40, deadline=None)
TestContenders = Contenders.TestCase
