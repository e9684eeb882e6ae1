"""llm-d's endpoint pickers: pages recorded from the real ones, and the rules of evidence §5b as a table."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from operator_glue.model import RouterName
from operator_glue.retirement.data import (
    Baseline,
    Key,
    Looked,
    Member,
    Operation,
    RouterPod,
    State,
    View,
    ViewFault,
    Withdrawal,
)
from operator_glue.retirement.picker_view import PickerPage, pods_named, read_page
from operator_glue.retirement.reasons import Reason
from operator_glue.retirement.withdrawal import judge_views, missing_baseline
from operator_glue.routers.asking import MAX_BODY_BYTES, RouterAt
from operator_glue.routers.picker import ask_picker

PAGES = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parent / "picker-pages").glob("*.txt"))}
AT = 1_800_000_000.0
BEGAN = AT - 1000.0


def page(name: str, pool: str = "pool-a") -> PickerPage:
    found = read_page(PAGES[name], pool)
    assert isinstance(found, PickerPage), found
    return found


def fault(body: bytes, pool: str = "pool-a") -> Reason:
    found = read_page(body, pool)
    assert isinstance(found, ViewFault), found
    assert found.detail
    return found.reason


THREE = frozenset({"eng-0-rank-0", "eng-1-rank-0", "eng-2-rank-0"})


@pytest.mark.parametrize(
    ("name", "listed", "ready", "leads"),
    [
        ("llmd-router-0.10.0-3-members", THREE, 3, None),
        ("llmd-router-0.10.0-after-withdrawal", THREE - {"eng-1-rank-0"}, 2, None),
        ("llmd-router-0.10.0-0-members", frozenset(), 0, None),
        ("llmd-router-0.10.0-pool-not-synced", frozenset(), None, None),
        ("llmd-router-0.10.0-ha-standby", THREE - {"eng-1-rank-0"}, 2, False),
        ("llmd-router-0.10.0-ha-standby-gate-off", frozenset(), None, False),
        ("gaie-1.5.0-3-members", THREE, 3, True),
        ("gaie-1.5.0-ha-standby", frozenset(), None, False),
    ],
)
def test_recorded_pages(name: str, listed: frozenset[str], ready: int | None, leads: bool | None) -> None:
    found = page(name)
    assert (found.listed, found.ready, found.leads) == (listed, ready, leads)
    assert found.process_start_s > 1.79e9


def test_attempts_are_by_pod_and_not_doubled_by_the_older_name() -> None:
    assert page("llmd-router-0.10.0-3-members").attempts == {"eng-0": 11.0, "eng-1": 9.0, "eng-2": 16.0}
    assert page("gaie-1.5.0-3-members").attempts == {"eng-2": 1.0}


def test_another_pools_members_are_not_ours() -> None:
    found = page("llmd-router-0.10.0-3-members", "pool-b")
    assert (found.listed, found.ready) == (frozenset(), None)


WHOLE = PAGES["llmd-router-0.10.0-3-members"]


def test_a_page_that_is_none() -> None:
    assert fault(b"") is Reason.ROUTER_UNREADABLE
    assert fault(b"<html>\n") is Reason.ROUTER_UNREADABLE
    assert fault(WHOLE[:-1]) is Reason.ROUTER_UNREADABLE
    assert fault(b"a 1\n") is Reason.ROUTER_UNREADABLE
    assert fault(b"\xff\n") is Reason.ROUTER_UNREADABLE


def test_two_lists_that_differ() -> None:
    line = b'llm_d_epp_per_endpoint_queue_size{model_server_endpoint="eng-1-rank-0",name="pool-a"} 0\n'
    assert WHOLE.count(line) == 1
    assert fault(WHOLE.replace(line, b"")) is Reason.ROUTER_DISAGREES


def test_a_family_in_parts_is_whole_together() -> None:
    lines = WHOLE.decode().splitlines()
    lists = [line for line in lines if "_queue_size{model_server" in line]
    other = [line for line in lines if line not in lists]
    mixed = [line for pair in zip(lists[:3], lists[3:], strict=True) for line in pair]
    found = read_page("\n".join([*other, *mixed, ""]).encode(), "pool-a")
    assert isinstance(found, PickerPage)
    assert found.listed == THREE


def test_a_picker_that_lists_nobody_and_counts_some() -> None:
    lines = [line for line in WHOLE.splitlines(keepends=True) if b"_queue_size{model_server" not in line]
    assert fault(b"".join(lines)) is Reason.ROUTER_UNREADABLE


@given(st.integers(0, len(WHOLE) - 1))
def test_half_a_page_never_lists_fewer(end: int) -> None:
    """What tells it from a whole page is the process's start, which comes after the lists."""
    found = read_page(WHOLE[:end], "pool-a")
    assert isinstance(found, ViewFault) or found == page("llmd-router-0.10.0-3-members")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_page(body: bytes) -> None:
    assert isinstance(read_page(body, "pool-a"), ViewFault)


def test_a_pods_name_can_end_as_a_rank_does() -> None:
    assert pods_named("eng-0-rank-1") == {"eng-0-rank-1", "eng-0"}
    assert pods_named("eng-0") == {"eng-0"}


# ---- the proof


def member(name: str) -> Member:
    return Member(name, name, "1", 0, False, False, False, False, True, 0, "f", ("10.0.0.1",), 30)


TARGET = member("eng-1")
POD = RouterPod("p", "picker-p", False, "container", BEGAN)
OPERATION = Operation(
    Key("serve", 1), 1, 1, ("eng-1",), None, State.WITHDRAWING, Reason.WAITING_FOR_ROUTERS, "", AT - 9, AT + 291, AT - 9
)
WITHDRAWN = replace(OPERATION, withdrawn_at=AT - 8)
LEFT = frozenset({"eng-0-rank-0", "eng-2-rank-0"})
LISTED_ONCE = (Baseline("p", repr(BEGAN), listed_at=AT - 9),)


def view(listed: frozenset[str] = LEFT, at: float = AT, attempts: float = 5.0, **changes: object) -> View:
    found = View(
        "p", at, listed=listed, process_start_s=BEGAN, ready_endpoints=len(listed), attempts={"eng-1": attempts}
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def looked(*views: View, pods: tuple[RouterPod, ...] = (POD,)) -> Looked:
    return Looked(pods, views, serving_names=frozenset({"eng-0", "eng-2", "eng-1"}))


def judged(
    operation: Operation, *views: View, now: float | None = None, pods: tuple[RouterPod, ...] = (POD,)
) -> Withdrawal:
    at = max((one.taken_at for one in views), default=AT) if now is None else now
    return judge_views(RouterName.LLM_D_ROUTER, operation, [TARGET], looked(*views, pods=pods), at)


def after(operation: Operation, *views: View) -> Withdrawal:
    """One pass after another."""
    found = None
    for one in views:
        found = judged(operation, one)
        operation = replace(operation, routers=found.baselines)
    assert found is not None
    return found


def test_absent_twice_a_second_apart_proves_it_where_it_was_listed_before() -> None:
    operation = replace(WITHDRAWN, routers=LISTED_ONCE)
    once = after(operation, view())
    assert (once.proven, once.reason) == (False, Reason.WAITING_FOR_ROUTERS)
    assert after(operation, view(), view(at=AT + 0.9)).proven is False
    twice = after(operation, view(), view(at=AT + 1.0))
    assert (twice.proven, twice.reason) == (True, Reason.WITHDRAWN)


def test_a_dispatch_in_between_begins_it_anew_and_one_to_another_does_not() -> None:
    operation = replace(WITHDRAWN, routers=LISTED_ONCE)
    sent = after(operation, view(), view(at=AT + 1, attempts=6))
    assert (sent.proven, sent.listed, sent.reason) == (False, True, Reason.RECENT_DISPATCH)
    assert after(operation, view(), view(at=AT + 1, attempts=6), view(at=AT + 2, attempts=6)).proven
    other = view(at=AT + 1, attempts=5)
    assert after(operation, view(), replace(other, attempts={"eng-1": 5.0, "eng-0": 99.0})).proven


def test_first_seen_absence_proves_nothing() -> None:
    found = after(WITHDRAWN, view(), view(at=AT + 1), view(at=AT + 2))
    assert (found.proven, found.reason) == (False, Reason.ROUTER_NEVER_LISTED)


def test_a_listing_by_any_rank_holds() -> None:
    operation = replace(WITHDRAWN, routers=LISTED_ONCE)
    found = after(operation, view(), view(LEFT | {"eng-1-rank-3"}, AT + 1))
    assert (found.proven, found.listed, found.reason) == (False, True, Reason.ROUTER_LISTS_TARGET)
    assert found.baselines == (Baseline("p", repr(BEGAN), listed_at=AT + 1),)


def test_another_process_knows_nothing_of_the_one_before() -> None:
    operation = replace(WITHDRAWN, routers=LISTED_ONCE)
    other = view(process_start_s=AT - 9)  # before the label went
    assert after(operation, other).reason is Reason.ROUTER_NEVER_LISTED
    young = view(process_start_s=AT - 5)
    assert after(operation, young).reason is Reason.ROUTER_RESTARTED
    old = [view(process_start_s=AT - 7, at=AT + at) for at in range(2)]
    assert after(operation, old[0]).reason is Reason.WAITING_FOR_ROUTERS
    assert after(operation, *old).proven
    short = replace(old[0], listed=frozenset({"eng-0-rank-0"}))
    assert after(operation, short).reason is Reason.ROUTER_RESTARTED
    more = replace(old[0], listed=LEFT | {"eng-7-rank-0"})
    assert after(operation, more).reason is Reason.ROUTER_RESTARTED


def test_a_pool_that_may_not_be_read_yet() -> None:
    operation = replace(WITHDRAWN, routers=LISTED_ONCE)
    found = after(operation, *(view(frozenset(), AT + at, ready_endpoints=None) for at in range(3)))
    assert (found.proven, found.reason) == (False, Reason.ROUTER_NOT_SYNCED)


def test_an_empty_pool_that_is_read_is_empty() -> None:
    operation = replace(WITHDRAWN, routers=LISTED_ONCE)
    assert after(operation, view(frozenset()), view(frozenset(), AT + 1)).proven


def test_a_standby_that_shows_no_list_counts_six_seconds_after_the_label() -> None:
    bare = [view(frozenset(), AT + at, ready_endpoints=None, leads=False) for at in range(2)]
    assert after(WITHDRAWN, *bare).proven
    young = replace(WITHDRAWN, withdrawn_at=AT - 2)
    assert after(young, *bare).reason is Reason.WAITING_FOR_ROUTERS
    admitted = replace(OPERATION, routers=after(OPERATION, bare[0]).baselines)
    assert missing_baseline(RouterName.LLM_D_ROUTER, admitted, [TARGET], looked(bare[0]), AT) is None


def test_a_standby_that_lists_is_asked_as_any() -> None:
    operation = replace(WITHDRAWN, routers=LISTED_ONCE)
    assert after(operation, view(leads=False), view(at=AT + 1, leads=False)).proven
    assert after(WITHDRAWN, view(leads=False)).reason is Reason.ROUTER_NEVER_LISTED


def test_one_that_ends_is_unknown_whatever_it_says() -> None:
    operation = replace(WITHDRAWN, routers=LISTED_ONCE)
    ending = replace(POD, terminating=True)
    found = judged(operation, view(), pods=(ending,))
    assert (found.proven, found.reason) == (False, Reason.ROUTER_TERMINATING)
    assert judged(operation, pods=(ending,), now=AT).reason is Reason.ROUTER_TERMINATING


@pytest.mark.parametrize(
    ("views", "now", "reason"),
    [
        ((), AT, Reason.ROUTER_UNREACHABLE),
        ((View("p", AT, ViewFault(Reason.ROUTER_REFUSED, "401")),), AT, Reason.ROUTER_REFUSED),
        ((view(at=AT - 16),), AT, Reason.ROUTER_STALE),
        ((view(at=AT - 8.5),), AT, Reason.WAITING_FOR_ROUTERS),
    ],
)
def test_no_view_holds(views: tuple[View, ...], now: float, reason: Reason) -> None:
    found = judged(replace(WITHDRAWN, routers=LISTED_ONCE), *views, now=now)
    assert (found.proven, found.reason) == (False, reason)


def test_no_picker_at_all_holds() -> None:
    assert judged(WITHDRAWN, pods=(), now=AT).reason is Reason.ROUTER_MISSING


def test_every_picker_has_to_agree() -> None:
    other = replace(POD, uid="q", name="picker-q")
    operation = replace(WITHDRAWN, routers=(*LISTED_ONCE, Baseline("q", repr(BEGAN), listed_at=AT - 9)))
    both = (POD, other)
    first = judged(operation, view(), view(pod_uid="q"), pods=both)
    operation = replace(operation, routers=first.baselines)
    listing = view(LEFT | {"eng-1-rank-0"}, AT + 1, pod_uid="q")
    assert judged(operation, view(at=AT + 1), listing, pods=both).reason is Reason.ROUTER_LISTS_TARGET
    assert judged(operation, view(at=AT + 1), pods=both).reason is Reason.ROUTER_UNREACHABLE
    assert judged(operation, view(at=AT + 1), view(at=AT + 1, pod_uid="q"), pods=both).proven


def test_before_the_label_goes_each_picker_is_to_list_it() -> None:
    at_first = judged(OPERATION, view())
    operation = replace(OPERATION, routers=at_first.baselines)
    lacking = missing_baseline(RouterName.LLM_D_ROUTER, operation, [TARGET], looked(view()), AT)
    assert lacking is not None
    assert lacking[0] is Reason.ROUTER_NEVER_LISTED
    listing = view(LEFT | {"eng-1-rank-0"})
    operation = replace(OPERATION, routers=judged(OPERATION, listing).baselines)
    assert missing_baseline(RouterName.LLM_D_ROUTER, operation, [TARGET], looked(listing), AT) is None


# ---- the edge


def asked(token: str | None = "t") -> View:
    return asyncio.run(ask_picker(RouterAt("p", "10.0.0.9", 9090), token, "pool-a", lambda: AT, 0.5))


@respx.mock
def test_the_page_is_asked_with_the_token() -> None:
    route = respx.get("http://10.0.0.9:9090/metrics").mock(httpx.Response(200, content=WHOLE))
    found = asked()
    assert (found.listed, found.ready_endpoints, found.fault) == (THREE, 3, None)
    assert route.calls.last.request.headers["authorization"] == "Bearer t"


@respx.mock
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, Reason.ROUTER_REFUSED),
        (403, Reason.ROUTER_REFUSED),
        (500, Reason.ROUTER_REFUSED),
        (404, Reason.ROUTER_UNREADABLE),
        (301, Reason.ROUTER_UNREADABLE),
    ],
)
def test_another_status(status: int, reason: Reason) -> None:
    respx.get("http://10.0.0.9:9090/metrics").mock(httpx.Response(status, headers={"location": "http://10.0.0.8/"}))
    found = asked().fault
    assert found is not None
    assert found.reason is reason
    assert str(status) in found.detail


@respx.mock
def test_unreachable_and_too_much() -> None:
    respx.get("http://10.0.0.9:9090/metrics").mock(side_effect=httpx.ConnectError("refused"))
    found = asked().fault
    assert found is not None
    assert found.reason is Reason.ROUTER_UNREACHABLE
    respx.get("http://10.0.0.9:9090/metrics").mock(httpx.Response(200, content=b"x" * (MAX_BODY_BYTES + 1)))
    found = asked().fault
    assert found is not None
    assert found.reason is Reason.ROUTER_UNREADABLE
