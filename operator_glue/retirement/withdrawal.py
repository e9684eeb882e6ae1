"""What the routers' own lists prove of the target's withdrawal. Pure.

Here vllm-router and sglang-gateway, whose lists are addresses; llm-d-router is in operator_glue.retirement.picker_view.
Numbers are of the specification and of ../shared/spec/evidence.md §5, or were measured on vllm-router 0.1.17 and
sglang-router 0.3.2 in front of a real API server (tests/operator/protocol/test_router_withdrawal.py).

What an absence needs once the router's API was asked to remove the target, its discovery being blind:

- A watch that broke: the router lists the Pods anew after about 61 s, as they are then. The target is without its label
  then and is not taken up again (both routers, watched beyond the end of their blindness).
- A watch that hangs delivers what it held, in order. Where the target became ready anew in that time with its label
  still on, vllm-router takes it up once more and drops it by the next event, too soon for polls 3 ms apart to see it
  (its log does); without such an event, and sglang-gateway in any case, never. What is sent in those milliseconds is
  work like any other: the reads see it, and so does the hook, whose window takes late requests.
- sglang-gateway removes in the background: the first list without the target is not the end of its jobs.

So it needs a second look at least a second later, and the protocol looks again after its idle reads. Waiting out the
blindness (61 s) or the longest hang (295 s, the routers' client's read time-out) is beyond the budget and buys the
milliseconds alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from operator_glue.model import RouterName
from operator_glue.retirement.data import Baseline, Looked, Member, Operation, RouteOut, RouterPod, View, Withdrawal
from operator_glue.retirement.picker_view import judge_picker, missing_picker_baseline
from operator_glue.retirement.reasons import Reason

#: An older view is no view (the specification).
VIEW_MAX_AGE_S = 15.0
#: A process that began after the label went is believed from this age on (evidence §5b; both routers here list their
#: engines within 2 s of their start).
FRESH_PROCESS_AGE_S = 6.0
#: Between two absences that count as two.
ABSENCES_APART_S = 1.0
#: vllm-router's discovery drops a target in milliseconds: after this long it is blind, and its API is asked.
BLIND_AFTER_S = 3.0

#: Where several Pods hold, the reason that is told: a listing first, then what was not seen, then what is awaited.
_ORDER = (
    Reason.ROUTER_LISTS_TARGET,
    Reason.ROUTER_TERMINATING,
    Reason.ROUTER_UNREACHABLE,
    Reason.ROUTER_REFUSED,
    Reason.ROUTER_UNREADABLE,
    Reason.ROUTER_STALE,
    Reason.ROUTER_NEVER_LISTED,
    Reason.ROUTER_RESTARTED,
    Reason.WAITING_FOR_ROUTERS,
)

_Hold = tuple[Reason, str]


@dataclass(frozen=True)
class _Judged:
    """What one Pod of the router says. ``hold``: None where it proves the target's absence."""

    hold: _Hold | None
    baseline: Baseline | None
    route_out: tuple[RouteOut, ...] = ()


def judge_views(
    router: RouterName, operation: Operation, targets: Sequence[Member], looked: Looked, now: float
) -> Withdrawal:
    """Whether every Pod of the router is without the target. ``targets``: the members that are still there."""
    if router is RouterName.LLM_D_ROUTER:
        return judge_picker(operation, targets, looked, now)
    if looked.router_pods is None:
        message = "The Pods of the router could not be looked up."
        return Withdrawal(False, False, Reason.ROUTER_MISSING, message, operation.routers)
    judged = [_judge(router, operation, targets, looked, pod, now) for pod in looked.router_pods]
    holds = [one.hold for one in judged if one.hold is not None]
    if not judged:
        holds.append((Reason.ROUTER_MISSING, Reason.ROUTER_MISSING.sentence))
    unknown = [member.name for member in targets if not member.addresses]
    if unknown or not targets:
        name = f"Pod {unknown[0]} of the replica" if unknown else "The replica"
        holds.append((Reason.ROUTER_NEVER_LISTED, f"{name} has no address to look for in the router's lists."))
    reason, message = _first(holds) or (
        Reason.WITHDRAWN,
        f"{len(judged)} of {len(judged)} Pods of the router are without {', '.join(sorted(_addresses(targets)))}.",
    )
    return Withdrawal(
        proven=not holds,
        listed=any(hold[0] is Reason.ROUTER_LISTS_TARGET for hold in holds),
        reason=reason,
        message=message,
        baselines=tuple(one.baseline for one in judged if one.baseline is not None),
        route_out=tuple(write for one in judged for write in one.route_out),
    )


def missing_baseline(
    router: RouterName,
    operation: Operation,
    targets: Sequence[Member],
    looked: Looked,
    now: float,
) -> tuple[Reason, str] | None:
    """What is lacking before the label may go: a Pod of the router that was not seen to list the target in its present
    process. ``operation`` bears the baselines of this pass."""
    if router is RouterName.LLM_D_ROUTER:
        return missing_picker_baseline(operation, targets, looked, now)
    if not looked.router_pods:
        return Reason.ROUTER_MISSING, Reason.ROUTER_MISSING.sentence
    seen = {baseline.pod_uid for baseline in operation.routers if baseline.listed_at is not None}
    names = ", ".join(member.name for member in targets)
    holds: list[_Hold] = []
    for pod in looked.router_pods:
        fault = _fault(pod, _view(pod, looked), now)
        if fault is not None:
            holds.append(fault)
        elif pod.uid not in seen:
            message = f"Pod {pod.name} of the router was not yet seen to list the replica ({names})."
            holds.append((Reason.ROUTER_NEVER_LISTED, message))
    return _first(holds)


def not_restored(operation: Operation, targets: Sequence[Member], looked: Looked) -> tuple[str, ...]:
    """Pods of the router, by UID, whose API was asked to remove the target, and that do not list its leader again.

    One that is no longer there has nothing to restore.
    """
    if looked.router_pods is None:
        return operation.routed_out
    here = {pod.uid: pod for pod in looked.router_pods}
    addresses = _addresses(member for member in targets if member.index == 0)
    return tuple(
        uid
        for uid in operation.routed_out
        if uid in here and not ((view := _view(here[uid], looked)) and not view.fault and view.listed & addresses)
    )


def plain_address(text: str) -> str | None:
    """An IP address in its one spelling; None for anything else, a zone too."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if "%" in text:
            return None
        return str(address.ipv4_mapped or address)
    return str(address)


# ---- one Pod of the router


def _judge(
    router: RouterName, operation: Operation, targets: Sequence[Member], looked: Looked, pod: RouterPod, now: float
) -> _Judged:
    view = _view(pod, looked)
    before = next((one for one in operation.routers if one.pod_uid == pod.uid), None)
    if pod.process is None:
        message = f"Which process runs in Pod {pod.name} of the router is not known."
        return _Judged(_fault(pod, view, now) or (Reason.ROUTER_RESTARTED, message), before)
    if before is None or before.process != pod.process:
        before = Baseline(pod.uid, pod.process)
    fault = _fault(pod, view, now)
    if view is None or fault is not None:
        return _Judged(fault, before)
    addresses = _addresses(targets)
    listed = sorted(view.listed & addresses)
    if listed:
        # An old baseline's absences go with this.
        baseline = Baseline(pod.uid, pod.process, listed_at=view.taken_at)
        since = "its serving label is on" if operation.withdrawn_at is None else _ago(operation.withdrawn_at, now)
        message = f"Pod {pod.name} of the router lists {', '.join(listed)} among {len(view.listed)}; {since}."
        hold = (Reason.ROUTER_LISTS_TARGET, message)
        return _Judged(hold, baseline, tuple(_removals(router, operation, pod, view, listed, now)))
    return _judge_absence(operation, looked, pod, view, before, addresses)


def _ago(withdrawn_at: float, now: float) -> str:
    return f"its serving label went {now - withdrawn_at:.1f} s ago"


def _judge_absence(
    operation: Operation, looked: Looked, pod: RouterPod, view: View, before: Baseline, addresses: frozenset[str]
) -> _Judged:
    withdrawn_at = operation.withdrawn_at
    none_seen = replace(before, absent_at=None, last_absent_at=None, absences=0)
    if withdrawn_at is None or view.taken_at < withdrawn_at:
        message = f"Pod {pod.name} of the router was last asked before the serving label went."
        return _Judged((Reason.WAITING_FOR_ROUTERS, message), none_seen)
    if before.absent_at is None or before.absent_at < withdrawn_at:
        before = none_seen
    if before.listed_at is not None:
        baseline = _absent_once_more(before, view)
        if pod.uid in operation.routed_out and baseline.absences < 2:
            message = (
                f"Pod {pod.name} of the router was asked to remove the replica and lists it no more; a second look "
                f"after {ABSENCES_APART_S:g} s has to agree."
            )
            return _Judged((Reason.WAITING_FOR_ROUTERS, message), baseline)
        return _Judged(None, baseline)
    if pod.started_at is None or pod.started_at <= withdrawn_at:
        message = f"Pod {pod.name} of the router does not list the replica, and was never seen to."
        return _Judged((Reason.ROUTER_NEVER_LISTED, message), none_seen)
    age_s = view.taken_at - pod.started_at
    expected = _plain(looked.serving_addresses) - addresses
    if age_s < FRESH_PROCESS_AGE_S:
        message = f"Pod {pod.name} of the router began {age_s:.1f} s ago; from {FRESH_PROCESS_AGE_S:g} s on it counts."
        return _Judged((Reason.ROUTER_RESTARTED, message), none_seen)
    if view.listed != expected:
        message = (
            f"Pod {pod.name} of the router began anew and lists {len(view.listed)} replicas, {len(expected)} serve: "
            f"{len(expected - view.listed)} are missing, {len(view.listed - expected)} too many."
        )
        return _Judged((Reason.ROUTER_RESTARTED, message), none_seen)
    baseline = _absent_once_more(before, view)
    if baseline.absences < 2:
        message = (
            f"Pod {pod.name} of the router began anew and lists the {len(expected)} replicas that are left; a second "
            f"look after {ABSENCES_APART_S:g} s has to agree."
        )
        return _Judged((Reason.ROUTER_RESTARTED, message), baseline)
    return _Judged(None, baseline)


def _absent_once_more(before: Baseline, view: View) -> Baseline:
    """Two are enough for any rule: a third does not change what is persisted."""
    if before.last_absent_at is None:
        return replace(before, absent_at=view.taken_at, last_absent_at=view.taken_at, absences=1)
    if before.absences < 2 and view.taken_at - before.last_absent_at >= ABSENCES_APART_S:
        return replace(before, last_absent_at=view.taken_at, absences=2)
    return before


def _removals(
    router: RouterName, operation: Operation, pod: RouterPod, view: View, listed: Iterable[str], now: float
) -> Iterator[RouteOut]:
    """Asked for again at each pass: an answer proves nothing."""
    if operation.withdrawn_at is None:
        return
    if router is RouterName.VLLM_ROUTER and now - operation.withdrawn_at < BLIND_AFTER_S:
        return
    for address in listed:
        for handle in view.workers.get(address, ()):
            yield RouteOut(pod.uid, handle)


# ---- what all of them share


def _view(pod: RouterPod, looked: Looked) -> View | None:
    return next((view for view in looked.views if view.pod_uid == pod.uid), None)


def _fault(pod: RouterPod, view: View | None, now: float) -> _Hold | None:
    """Why there is no view of this Pod."""
    if view is None or view.fault is not None:
        detail = "it was not asked" if view is None or view.fault is None else view.fault.detail
        if pod.terminating:
            return Reason.ROUTER_TERMINATING, f"Pod {pod.name} of the router is ending and shows no list: {detail}."
        reason = Reason.ROUTER_UNREACHABLE if view is None or view.fault is None else view.fault.reason
        return reason, f"Pod {pod.name} of the router: {detail}."
    age_s = now - view.taken_at
    if not 0 <= age_s <= VIEW_MAX_AGE_S:
        message = f"The list of Pod {pod.name} of the router is {age_s:.1f} s old, {VIEW_MAX_AGE_S:g} s at most count."
        return Reason.ROUTER_STALE, message
    return None


def _addresses(members: Iterable[Member]) -> frozenset[str]:
    return _plain(address for member in members for address in member.addresses)


def _plain(addresses: Iterable[str]) -> frozenset[str]:
    return frozenset(plain_address(address) or address for address in addresses)


def _first(holds: Sequence[_Hold]) -> _Hold | None:
    """By the fixed order of reasons, then by the order of the Pods."""
    return min(holds, key=lambda hold: _ORDER.index(hold[0]) if hold[0] in _ORDER else -1, default=None)
