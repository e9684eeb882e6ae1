"""What the lists of vllm-router and sglang-gateway prove: pass by pass, on plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from operator_glue.model import RouterName
from operator_glue.retirement import withdrawal
from operator_glue.retirement.data import (
    Baseline,
    Key,
    Looked,
    Member,
    Operation,
    RouteOut,
    RouterPod,
    State,
    View,
    ViewFault,
    Withdrawal,
)
from operator_glue.retirement.reasons import Reason
from operator_glue.retirement.withdrawal import judge_views, missing_baseline, not_restored, plain_address

VLLM, SGLANG = RouterName.VLLM_ROUTER, RouterName.SGLANG_GATEWAY
TARGET, OTHER, THIRD = "10.0.0.1", "10.0.0.2", "10.0.0.3"
START = 1000.0  # when the operation was admitted
GONE = 1010.0  # when the label was seen gone


def member(address: str | None = TARGET, index: int = 0) -> Member:
    return Member(
        uid=f"uid-{address}",
        name=f"llama-{index}",
        resource_version="1",
        index=index,
        serving=False,
        terminating=False,
        ended=False,
        never_ran=False,
        main_running=True,
        restarts=0,
        fingerprint="f",
        addresses=() if address is None else (address,),
        grace_s=30,
    )


def operation(*baselines: Baseline, withdrawn_at: float | None = GONE, routed_out: Iterable[str] = ()) -> Operation:
    return Operation(
        key=Key("server", 1),
        generation=1,
        wanted=1,
        member_uids=("uid-10.0.0.1",),
        workload_uid=None,
        state=State.WITHDRAWING,
        reason=Reason.WAITING_FOR_ROUTERS,
        message="",
        started_at=START,
        deadline=START + 300,
        phase_started_at=START,
        withdrawn_at=withdrawn_at,
        routers=baselines,
        routed_out=tuple(routed_out),
    )


def pod(
    uid: str = "a", *, process: str | None = "1", started_at: float | None = 0.0, ending: bool = False
) -> RouterPod:
    return RouterPod(uid, f"router-{uid}", ending, process, started_at)


def view(uid: str = "a", at: float = GONE + 1, listed: Iterable[str] = (OTHER,)) -> View:
    return View(uid, at, listed=frozenset(listed), workers={one: (f"http://{one}:8000",) for one in listed})


def fault(uid: str, reason: Reason, at: float = GONE + 1) -> View:
    return View(uid, at, ViewFault(reason, "connection refused"))


def looked(pods: Iterable[RouterPod], views: Iterable[View], serving: Iterable[str] = (OTHER,)) -> Looked:
    return Looked(router_pods=tuple(pods), views=tuple(views), serving_addresses=frozenset(serving))


def judged(op: Operation, seen: Looked, now: float = GONE + 1, router: RouterName = VLLM) -> Withdrawal:
    return judge_views(router, op, [member()], seen, now)


LISTED = Baseline("a", "1", listed_at=START)


def test_an_absence_of_a_process_that_listed_it_proves() -> None:
    found = judged(operation(LISTED), looked([pod()], [view()]))
    assert (found.proven, found.listed, found.reason) == (True, False, Reason.WITHDRAWN)
    assert found.message == "1 of 1 Pods of the router are without 10.0.0.1."
    assert found.baselines == (replace(LISTED, absent_at=GONE + 1, last_absent_at=GONE + 1, absences=1),)


def test_a_presence_is_kept_and_named() -> None:
    found = judged(operation(), looked([pod()], [view(listed=[TARGET, OTHER])]))
    assert (found.proven, found.listed, found.reason) == (False, True, Reason.ROUTER_LISTS_TARGET)
    assert found.message == "Pod router-a of the router lists 10.0.0.1 among 2; its serving label went 1.0 s ago."
    assert found.baselines == (Baseline("a", "1", listed_at=GONE + 1),)


def test_no_absence_counts_before_the_label_has_gone() -> None:
    for op, at in ((operation(LISTED, withdrawn_at=None), GONE + 1), (operation(LISTED), GONE - 0.1)):
        found = judged(op, looked([pod()], [view(at=at)]))
        assert (found.proven, found.reason, found.baselines) == (False, Reason.WAITING_FOR_ROUTERS, (LISTED,))


def test_one_taken_as_the_label_was_seen_gone_counts() -> None:
    assert judged(operation(LISTED), looked([pod()], [view(at=GONE)])).proven


@pytest.mark.parametrize(
    ("age_s", "proven"), [(0.0, True), (15.0, True), (15.01, False), (-0.01, False), (3600.0, False)]
)
def test_a_view_has_an_age(age_s: float, proven: bool) -> None:
    found = judged(operation(LISTED), looked([pod()], [view(at=GONE + 20)]), now=GONE + 20 + age_s)
    assert (found.proven, found.reason) == (proven, Reason.WITHDRAWN if proven else Reason.ROUTER_STALE)
    if not proven:
        assert f"{age_s:.1f} s old" in found.message
        assert found.baselines == (LISTED,)


@pytest.mark.parametrize("reason", [Reason.ROUTER_UNREACHABLE, Reason.ROUTER_REFUSED, Reason.ROUTER_UNREADABLE])
def test_a_fault_holds_by_its_reason_and_keeps_the_baseline(reason: Reason) -> None:
    absent = replace(LISTED, absent_at=GONE, last_absent_at=GONE, absences=1)
    found = judged(operation(absent), looked([pod()], [fault("a", reason)]))
    assert (found.proven, found.reason, found.baselines) == (False, reason, (absent,))
    assert found.message == "Pod router-a of the router: connection refused."


def test_a_pod_that_was_not_asked_holds() -> None:
    found = judged(operation(LISTED), looked([pod(), pod("b")], [view()]))
    assert (found.proven, found.reason) == (False, Reason.ROUTER_UNREACHABLE)
    assert found.message == "Pod router-b of the router: it was not asked."


def test_one_that_ends_without_an_answer_says_so_and_with_one_counts() -> None:
    ending = pod(ending=True)
    silent = judged(operation(LISTED), looked([ending], [fault("a", Reason.ROUTER_UNREACHABLE)]))
    assert (silent.proven, silent.reason) == (False, Reason.ROUTER_TERMINATING)
    assert judged(operation(LISTED), looked([ending], [view()])).proven


def test_without_a_pod_of_the_router_nothing_is_proven() -> None:
    found = judged(operation(LISTED), looked([], []))
    assert (found.proven, found.reason, found.baselines) == (False, Reason.ROUTER_MISSING, ())
    unknown = judged(operation(LISTED), Looked())
    assert (unknown.proven, unknown.reason, unknown.baselines) == (False, Reason.ROUTER_MISSING, (LISTED,))


def test_every_pod_has_to_be_without_it() -> None:
    both = [Baseline("a", "1", START), Baseline("b", "1", START)]
    found = judged(operation(*both), looked([pod("a"), pod("b")], [view("a"), view("b", listed=[TARGET])]))
    assert (found.proven, found.reason) == (False, Reason.ROUTER_LISTS_TARGET)
    assert "router-b" in found.message
    assert judged(operation(*both), looked([pod("a"), pod("b")], [view("a"), view("b")])).proven


def test_one_that_vanished_proves_and_holds_nothing() -> None:
    both = [Baseline("a", "1", START), Baseline("b", "1", START)]
    found = judged(operation(*both), looked([pod("b")], [view("b")]))
    assert found.proven
    assert [baseline.pod_uid for baseline in found.baselines] == ["b"]
    # The one that replaced it speaks for itself: it was there before the label went, and was never seen to list it.
    replaced = judged(operation(both[0]), looked([pod("c")], [view("c")]))
    assert (replaced.proven, replaced.reason) == (False, Reason.ROUTER_NEVER_LISTED)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 3, 0, 1)])
def test_the_first_reason_is_told_whatever_the_order_of_the_pods(order: tuple[int, ...]) -> None:
    every = [
        (pod("a"), view("a", listed=[TARGET])),
        (pod("b", ending=True), fault("b", Reason.ROUTER_UNREACHABLE)),
        (pod("c"), fault("c", Reason.ROUTER_UNREADABLE)),
        (pod("d"), view("d")),
    ]
    wanted = [
        Reason.ROUTER_LISTS_TARGET,
        Reason.ROUTER_TERMINATING,
        Reason.ROUTER_UNREADABLE,
        Reason.ROUTER_NEVER_LISTED,
    ]
    for first in range(4):
        some = [every[index] for index in order if index >= first]
        found = judged(operation(), looked([one for one, _ in some], [one for _, one in some]))
        assert (found.reason, found.listed) == (wanted[first], first == 0)


def test_a_first_sight_without_it_proves_nothing() -> None:
    found = judged(operation(), looked([pod()], [view()]))
    assert (found.proven, found.reason) == (False, Reason.ROUTER_NEVER_LISTED)
    assert found.baselines == (Baseline("a", "1"),)
    later = judged(operation(*found.baselines), looked([pod()], [view(at=GONE + 9)]), now=GONE + 9)
    assert (later.proven, later.reason) == (False, Reason.ROUTER_NEVER_LISTED)


def test_another_process_in_the_pod_has_no_part_in_what_the_first_one_listed() -> None:
    found = judged(operation(LISTED), looked([pod(process="2", started_at=START + 1)], [view()]))
    assert (found.proven, found.reason) == (False, Reason.ROUTER_NEVER_LISTED)
    assert found.baselines == (Baseline("a", "2"),)


def test_a_process_that_is_not_known_holds_whatever_it_answers() -> None:
    found = judged(operation(LISTED), looked([pod(process=None, started_at=None)], [view()]))
    assert (found.proven, found.reason, found.baselines) == (False, Reason.ROUTER_RESTARTED, (LISTED,))


# ---- a process that began after the label went


def passes(
    started_at: float, times: Iterable[float], listed: Iterable[str] = (OTHER,), serving: Iterable[str] = (OTHER,)
) -> list[tuple[bool, Reason]]:
    """What each pass says of one that began at ``started_at``, asked at ``times``."""
    op, answers = operation(LISTED), []
    for now in times:
        seen = looked([pod(process="2", started_at=started_at)], [view(at=now, listed=listed)], serving)
        found = judged(op, seen, now)
        op = replace(op, routers=found.baselines)
        answers.append((found.proven, found.reason))
    return answers


HELD, DONE = (False, Reason.ROUTER_RESTARTED), (True, Reason.WITHDRAWN)
NEVER = (False, Reason.ROUTER_NEVER_LISTED)


def test_it_is_believed_from_six_seconds_on_at_the_second_look() -> None:
    began = GONE + 2
    assert passes(began, [began + 1, began + 5.9, began + 6, began + 6.9, began + 7]) == [HELD] * 4 + [DONE]


def test_it_has_to_have_begun_after_the_label_went() -> None:
    assert passes(GONE, [GONE + 10, GONE + 11, GONE + 12]) == [NEVER] * 3
    assert passes(GONE + 0.01, [GONE + 10, GONE + 11]) == [HELD, DONE]


@pytest.mark.parametrize("listed", [(), (THIRD,), (OTHER, THIRD)])
def test_its_list_has_to_be_the_replicas_that_are_left(listed: tuple[str, ...]) -> None:
    assert passes(GONE + 1, [GONE + 8, GONE + 9, GONE + 10], listed) == [HELD] * 3


def test_the_target_is_not_among_those_that_are_left_though_the_cache_still_says_so() -> None:
    assert passes(GONE + 1, [GONE + 8, GONE + 9], serving=[TARGET, OTHER])[-1] == DONE


def test_the_last_replica_leaves_an_empty_list() -> None:
    assert passes(GONE + 1, [GONE + 8, GONE + 9], listed=(), serving=())[-1] == DONE


def test_a_list_that_differs_begins_the_count_anew() -> None:
    op = operation()
    answers = []
    for now, listed in ((GONE + 8, [OTHER]), (GONE + 9, [OTHER, THIRD]), (GONE + 10, [OTHER]), (GONE + 11, [OTHER])):
        found = judged(op, looked([pod(started_at=GONE + 1)], [view(at=now, listed=listed)]), now)
        op = replace(op, routers=found.baselines)
        answers.append(found.proven)
    assert answers == [False, False, False, True]


def test_absences_of_an_earlier_withdrawal_do_not_count_in_this_one() -> None:
    earlier = Baseline("a", "1", None, absent_at=GONE - 60, last_absent_at=GONE - 59, absences=2)
    found = judged(operation(earlier), looked([pod(started_at=GONE + 1)], [view(at=GONE + 8)]), now=GONE + 8)
    assert (found.proven, found.reason) == HELD
    assert found.baselines[0].absences == 1


def test_a_proof_holds_at_later_passes_without_a_new_status() -> None:
    op, seen = operation(LISTED), []
    for now in (GONE + 1, GONE + 2, GONE + 3, GONE + 9):
        found = judged(op, looked([pod()], [view(at=now)]), now)
        assert found.proven
        op = replace(op, routers=found.baselines)
        seen.append(found.baselines)
    assert seen[1] == seen[2] == seen[3]


def test_a_relisting_takes_the_proof_back() -> None:
    proven = replace(LISTED, absent_at=GONE + 1, last_absent_at=GONE + 2, absences=2)
    found = judged(operation(proven), looked([pod()], [view(at=GONE + 5, listed=[TARGET])]), now=GONE + 5)
    assert (found.proven, found.listed) == (False, True)
    assert found.baselines == (Baseline("a", "1", listed_at=GONE + 5),)


# ---- removal by the router's API


@pytest.mark.parametrize(
    ("router", "after_s", "asked"),
    [(SGLANG, 0.0, True), (VLLM, 0.0, False), (VLLM, 2.9, False), (VLLM, 3.0, True), (VLLM, 25.0, True)],
)
def test_when_the_api_is_asked(router: RouterName, after_s: float, asked: bool) -> None:
    now = GONE + after_s
    found = judged(operation(LISTED), looked([pod()], [view(at=now, listed=[TARGET, OTHER])]), now, router)
    assert found.route_out == ((RouteOut("a", f"http://{TARGET}:8000"),) if asked else ())


@pytest.mark.parametrize("router", [VLLM, SGLANG])
def test_the_api_is_not_asked_while_the_label_is_on(router: RouterName) -> None:
    found = judged(operation(withdrawn_at=None), looked([pod()], [view(listed=[TARGET])]), GONE + 60, router)
    assert found.route_out == ()


def test_every_handle_of_every_pod_that_lists_it_is_asked_for_again_at_each_pass() -> None:
    two = {TARGET: ("id-0", "id-1"), OTHER: ("id-2",)}
    views = [View(uid, GONE + 1, listed=frozenset(two), workers=two) for uid in ("a", "b")]
    op = operation(routed_out=["a", "b"])
    found = judged(op, looked([pod("a"), pod("b"), pod("c")], [*views, view("c")]), router=SGLANG)
    assert found.route_out == tuple(RouteOut(uid, handle) for uid in ("a", "b") for handle in ("id-0", "id-1"))


def test_after_it_an_absence_needs_a_second_look() -> None:
    op, answers = operation(LISTED, routed_out=["a"]), []
    for now in (GONE + 4, GONE + 4.9, GONE + 5):
        found = judged(op, looked([pod()], [view(at=now)]), now)
        op = replace(op, routers=found.baselines)
        answers.append((found.proven, found.reason))
    held = (False, Reason.WAITING_FOR_ROUTERS)
    assert answers == [held, held, DONE]


# ---- addresses


def test_a_target_without_an_address_is_not_proven_absent() -> None:
    for targets in ([], [member(None)], [member(), member(None, 1)]):
        found = judge_views(VLLM, operation(LISTED), targets, looked([pod()], [view()]), GONE + 1)
        assert (found.proven, found.reason) == (False, Reason.ROUTER_NEVER_LISTED)


def test_addresses_are_compared_in_one_spelling() -> None:
    target = replace(member(), addresses=("10.0.0.9", "FD00:0:0::1"))
    found = judge_views(VLLM, operation(), [target], looked([pod()], [view(listed=["fd00::1"])]), GONE + 1)
    assert found.listed


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("FD00::0001", "fd00::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.01", None),
        ("fe80::1%eth0", None),
        ("llama-0.llama", None),
        ("", None),
    ],
)
def test_an_address_has_one_spelling(text: str, plain: str | None) -> None:
    assert plain_address(text) == plain


# ---- before the label, and after a scale-up


def lacking(op: Operation, seen: Looked, now: float = GONE) -> Reason | None:
    found = missing_baseline(VLLM, op, [member()], seen, now)
    return None if found is None else found[0]


def test_what_is_lacking_before_the_label_may_go() -> None:
    both, views = [pod("a"), pod("b")], [view("a", GONE, [TARGET]), view("b", GONE)]
    assert lacking(operation(LISTED), looked(both[:1], views)) is None
    assert lacking(operation(LISTED), looked(both, views)) is Reason.ROUTER_NEVER_LISTED
    assert lacking(operation(LISTED, Baseline("b", "1", START)), looked(both, views)) is None
    assert lacking(operation(), looked([], [])) is Reason.ROUTER_MISSING
    assert lacking(operation(), Looked()) is Reason.ROUTER_MISSING
    silent = looked(both, [views[0], fault("b", Reason.ROUTER_REFUSED, GONE)])
    assert lacking(operation(LISTED, Baseline("b", "1", START)), silent) is Reason.ROUTER_REFUSED


def test_what_is_lacking_goes_by_the_present_process() -> None:
    seen = looked([pod(process="2")], [view()])
    op = replace(operation(LISTED), routers=judged(operation(LISTED), seen).baselines)
    assert lacking(op, seen, GONE + 1) is Reason.ROUTER_NEVER_LISTED


def test_who_does_not_list_it_again() -> None:
    # b lists a follower alone: requests go to the leader.
    op = operation(routed_out=["a", "b", "c", "gone"])
    seen = looked(
        [pod("a"), pod("b"), pod("c"), pod("d")],
        [view("a", listed=[TARGET]), view("b", listed=[THIRD]), fault("c", Reason.ROUTER_UNREACHABLE), view("d")],
    )
    assert not_restored(op, [member(), member(THIRD, 1)], seen) == ("b", "c")
    assert not_restored(op, [member()], Looked()) == op.routed_out


def test_llm_d_router_is_judged_by_its_own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Withdrawal(True, False, Reason.WITHDRAWN, "picker", ())
    monkeypatch.setattr(withdrawal, "judge_picker", lambda *_: answer)
    assert judge_views(RouterName.LLM_D_ROUTER, operation(), [member()], Looked(), GONE) is answer
