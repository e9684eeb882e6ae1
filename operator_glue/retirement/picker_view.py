"""What llm-d's endpoint pickers prove of the target's withdrawal, by their metrics pages. Pure.

The rules are of the specification's evidence (../shared/spec/evidence.md §5b), measured there on llm-d-router 0.10.0
and the Gateway API inference extension's picker 1.5.0. The program itself was not to be had here: these rules ran on
its recorded pages (tests/pages) and against a stand-in.

A page lists members by Pod name, so that a member replaced under its name would never be seen absent; Pods' names are
generated here and never used twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from operator_glue.retirement.data import Baseline, Looked, Member, Operation, RouterPod, View, ViewFault, Withdrawal
from operator_glue.retirement.reasons import Reason

#: Who is listed: of both pickers, and of llm-d's from 0.9.0 on.
_LISTS = {
    "inference_pool_per_pod_queue_size": "model_server_pod",
    "llm_d_epp_per_endpoint_queue_size": "model_server_endpoint",
}
#: How many are: tells an empty pool from one that was never read. The older name beside the newer one.
_READY = ("llm_d_epp_ready_endpoints", "inference_pool_ready_pods")
#: Dispatches, by Pod; each picker has one or both of the names, with the same values.
_ATTEMPTS = {
    "llm_d_epp_scheduler_attempts": "endpoint_name",
    "inference_extension_scheduler_attempts": "pod_name",
}
_LEADS = "leader_election_master_status"
_PROCESS_START = "process_start_time_seconds"
#: From a picker's name for a member to its Pod: one entry for each target port; bare before the extension's 1.1.
_RANK = re.compile(r"-rank-[0-9]+$", re.ASCII)

#: An older view is no view; a process that began after the label went counts from this age on; between two absences
#: (the specification and its evidence).
VIEW_MAX_AGE_S, FRESH_PROCESS_AGE_S, ABSENCES_APART_S = 15.0, 6.0, 1.0

#: Where several Pods hold, the reason that is told.
_ORDER = (
    Reason.ROUTER_LISTS_TARGET,
    Reason.RECENT_DISPATCH,
    Reason.ROUTER_TERMINATING,
    Reason.ROUTER_UNREACHABLE,
    Reason.ROUTER_REFUSED,
    Reason.ROUTER_UNREADABLE,
    Reason.ROUTER_DISAGREES,
    Reason.ROUTER_STALE,
    Reason.ROUTER_NOT_SYNCED,
    Reason.ROUTER_NEVER_LISTED,
    Reason.ROUTER_RESTARTED,
    Reason.WAITING_FOR_ROUTERS,
)
_Hold = tuple[Reason, str]


# ---- the page


@dataclass(frozen=True)
class PickerPage:
    """``listed``: members as the page names them. ``ready``: None where the family is absent. ``attempts``: by Pod.
    ``leads``: None where the picker elects no leader. ``process_start_s``: seconds since the epoch."""

    listed: frozenset[str]
    ready: int | None
    attempts: dict[str, float]
    leads: bool | None
    process_start_s: float


def read_page(body: bytes, pool: str) -> PickerPage | ViewFault:
    """``pool``: the InferencePool's name; another pool's series are another's."""
    if not body.endswith(b"\n"):
        return _unreadable(f"its page of {len(body)} bytes does not end in a line's end")
    families: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families(body.decode("utf-8")):
            families.setdefault(family.name, []).extend(family.samples)  # one that is in parts is whole together
    except (ValueError, KeyError, IndexError) as error:  # the parser's own, for what is no metrics page
        return _unreadable(f"its answer is no metrics page ({str(error)[:100]!r})")
    starts = [sample.value for sample in families.get(_PROCESS_START, ())]
    if len(starts) != 1 or not 0 < starts[0] < math.inf:
        return _unreadable(f"its page has no {_PROCESS_START}")
    lists = {
        name: frozenset(
            sample.labels.get(label, "") for sample in families.get(name, ()) if sample.labels.get("name") == pool
        )
        for name, label in _LISTS.items()
        if name in families
    }
    ready = [sample.value for name in _READY for sample in families.get(name, ()) if sample.labels.get("name") == pool]
    if any(not (math.isfinite(value) and value >= 0) for value in ready):
        return _unreadable(f"its number of ready endpoints is {ready[0]}")
    if len(set(lists.values())) > 1:
        counts = ", ".join(f"{name} has {len(members)}" for name, members in lists.items())
        return ViewFault(Reason.ROUTER_DISAGREES, f"its page's two lists differ: {counts}")
    listed = next(iter(lists.values()), frozenset())
    if ready and min(ready) > 0 and not listed:
        # The extension's 1.6.0 lists nobody. The number lags a list that has just become empty by 5 s.
        return ViewFault(Reason.ROUTER_UNREADABLE, f"its page counts {max(ready):g} ready endpoints and lists none")
    leads = [sample.value for sample in families.get(_LEADS, ())]
    attempts: dict[str, float] = {}
    for name, label in _ATTEMPTS.items():
        found: dict[str, float] = {}
        # The parser leaves a counter's suffix where its TYPE line does not stand right before it.
        for sample in (*families.get(name, ()), *families.get(f"{name}_total", ())):
            if sample.name == f"{name}_total":
                pod = sample.labels.get(label, "")
                found[pod] = found.get(pod, 0.0) + sample.value
        for pod, value in found.items():
            attempts[pod] = max(value, attempts.get(pod, 0.0))
    return PickerPage(
        listed=listed,
        ready=int(max(ready)) if ready else None,
        attempts=attempts,
        leads=bool(max(leads)) if leads else None,
        process_start_s=starts[0],
    )


def _unreadable(detail: str) -> ViewFault:
    return ViewFault(Reason.ROUTER_UNREADABLE, detail)


def pods_named(entry: str) -> frozenset[str]:
    """The Pods that an entry of the list can be: a Pod's own name may end as a rank does."""
    return frozenset({entry, _RANK.sub("", entry)})


# ---- the proof


@dataclass(frozen=True)
class _Judged:
    hold: _Hold | None
    baseline: Baseline | None


def judge_picker(operation: Operation, targets: Sequence[Member], looked: Looked, now: float) -> Withdrawal:
    """Whether every picker Pod is without the target, twice, and sent it nothing in between."""
    if looked.router_pods is None:
        message = "The Pods of the router could not be looked up."
        return Withdrawal(False, False, Reason.ROUTER_MISSING, message, operation.routers)
    judged = [_judge(operation, targets, looked, pod, now) for pod in looked.router_pods]
    holds = [one.hold for one in judged if one.hold is not None]
    if not judged:
        holds.append((Reason.ROUTER_MISSING, Reason.ROUTER_MISSING.sentence))
    names = ", ".join(sorted(member.name for member in targets))
    reason, message = _first(holds) or (
        Reason.WITHDRAWN,
        f"{len(judged)} of {len(judged)} picker Pods are without {names} and sent it nothing.",
    )
    return Withdrawal(
        proven=not holds,
        listed=any(hold[0] in (Reason.ROUTER_LISTS_TARGET, Reason.RECENT_DISPATCH) for hold in holds),
        reason=reason,
        message=message,
        baselines=tuple(one.baseline for one in judged if one.baseline is not None),
    )


def missing_picker_baseline(
    operation: Operation, targets: Sequence[Member], looked: Looked, now: float
) -> tuple[Reason, str] | None:
    """Before the label may go: a picker Pod that was not seen to list the target in its present process. A standby that
    shows no list picks nobody, and is judged by the list that it makes later."""
    if not looked.router_pods:
        return Reason.ROUTER_MISSING, Reason.ROUTER_MISSING.sentence
    seen = {baseline.pod_uid for baseline in operation.routers if baseline.listed_at is not None}
    names = ", ".join(member.name for member in targets)
    holds: list[_Hold] = []
    for pod in looked.router_pods:
        view = _view(pod, looked)
        fault = _fault(pod, view, now)
        if fault is not None:
            holds.append(fault)
        elif view is not None and pod.uid not in seen and not _is_bare_standby(view):
            message = f"Picker Pod {pod.name} was not yet seen to list the replica ({names})."
            holds.append((Reason.ROUTER_NEVER_LISTED, message))
    return _first(holds)


def _judge(operation: Operation, targets: Sequence[Member], looked: Looked, pod: RouterPod, now: float) -> _Judged:
    before = next((one for one in operation.routers if one.pod_uid == pod.uid), None)
    view = _view(pod, looked)
    fault = _fault(pod, view, now)
    if fault is not None or view is None:
        return _Judged(fault, before)
    process = repr(view.process_start_s)
    if before is None or before.process != process:
        before = Baseline(pod.uid, process)
    names = {member.name for member in targets}
    listed = sorted(entry for entry in view.listed if pods_named(entry) & names)
    if listed:
        since = "its serving label is on"
        if operation.withdrawn_at is not None:
            since = f"its serving label went {now - operation.withdrawn_at:.1f} s ago"
        message = f"Picker Pod {pod.name} lists {', '.join(listed)} among {len(view.listed)}; {since}."
        hold = (Reason.ROUTER_LISTS_TARGET, message)
        return _Judged(hold, Baseline(pod.uid, process, listed_at=view.taken_at))
    return _judge_absence(operation, looked, pod, view, before, names)


def _judge_absence(
    operation: Operation, looked: Looked, pod: RouterPod, view: View, before: Baseline, names: set[str]
) -> _Judged:
    withdrawn_at = operation.withdrawn_at
    none_seen = Baseline(before.pod_uid, before.process, before.listed_at)
    if withdrawn_at is None or view.taken_at < withdrawn_at:
        message = f"Picker Pod {pod.name} was last asked before the serving label went."
        return _Judged((Reason.WAITING_FOR_ROUTERS, message), none_seen)
    if before.absent_at is None or before.absent_at < withdrawn_at:
        before = none_seen
    age_s = view.taken_at - max(withdrawn_at, view.process_start_s or 0.0)
    if _is_bare_standby(view):
        # It picks nobody now, and a list that it makes as the leader it makes of the labels as they are then.
        if age_s < FRESH_PROCESS_AGE_S:
            message = f"Standby {pod.name} shows no list; {FRESH_PROCESS_AGE_S:g} s after the label went it counts."
            return _Judged((Reason.WAITING_FOR_ROUTERS, message), none_seen)
    elif view.ready_endpoints is None:
        message = f"Picker Pod {pod.name} does not say how many endpoints are ready: its pool may not be read yet."
        return _Judged((Reason.ROUTER_NOT_SYNCED, message), none_seen)
    elif before.listed_at is None:
        hold = _fresh_process(withdrawn_at, looked, pod, view, age_s, names)
        if hold is not None:
            return _Judged(hold, none_seen)
    attempts = sum(value for name, value in view.attempts.items() if name in names)
    if before.attempts is not None and attempts != before.attempts:
        message = (
            f"Picker Pod {pod.name} sent {attempts - before.attempts:g} requests to the replica since it was asked."
        )
        again = replace(none_seen, absent_at=view.taken_at, last_absent_at=view.taken_at, absences=1, attempts=attempts)
        return _Judged((Reason.RECENT_DISPATCH, message), again)
    if before.last_absent_at is None:
        baseline = replace(before, absent_at=view.taken_at, last_absent_at=view.taken_at, absences=1, attempts=attempts)
    elif before.absences < 2 and view.taken_at - before.last_absent_at >= ABSENCES_APART_S:
        baseline = replace(before, last_absent_at=view.taken_at, absences=2)
    else:
        baseline = before
    if baseline.absences < 2:
        message = (
            f"Picker Pod {pod.name} is without the replica; a second page after {ABSENCES_APART_S:g} s has to agree."
        )
        return _Judged((Reason.WAITING_FOR_ROUTERS, message), baseline)
    return _Judged(None, baseline)


def _fresh_process(
    withdrawn_at: float, looked: Looked, pod: RouterPod, view: View, age_s: float, names: set[str]
) -> _Hold | None:
    """A process that never listed the target: only one that began after the label went, by what it lists."""
    if view.process_start_s is None or view.process_start_s <= withdrawn_at:
        return Reason.ROUTER_NEVER_LISTED, f"Picker Pod {pod.name} does not list the replica, and was never seen to."
    if age_s < FRESH_PROCESS_AGE_S:
        message = f"Picker Pod {pod.name} began {age_s:.1f} s ago; from {FRESH_PROCESS_AGE_S:g} s on it counts."
        return Reason.ROUTER_RESTARTED, message
    left = looked.serving_names - names
    unknown = [entry for entry in view.listed if not pods_named(entry) & left]
    lacking = left - {name for entry in view.listed for name in pods_named(entry)}
    if unknown or lacking:
        message = (
            f"Picker Pod {pod.name} began anew and lists {len(view.listed)} members, {len(left)} serve: "
            f"{len(lacking)} are missing, {len(unknown)} too many."
        )
        return Reason.ROUTER_RESTARTED, message
    return None


def _is_bare_standby(view: View) -> bool:
    """One that does not lead and shows neither a list nor a number: llm-d's with its gate off, the extension's."""
    return view.leads is False and view.ready_endpoints is None and not view.listed


def _view(pod: RouterPod, looked: Looked) -> View | None:
    return next((view for view in looked.views if view.pod_uid == pod.uid), None)


def _fault(pod: RouterPod, view: View | None, now: float) -> _Hold | None:
    if pod.terminating:
        # It refuses its page and goes on picking from a frozen view for its 30 s drain.
        return Reason.ROUTER_TERMINATING, f"Picker Pod {pod.name} is ending, and picks from a frozen list until it has."
    if view is None or view.fault is not None:
        detail = "it was not asked" if view is None or view.fault is None else view.fault.detail
        reason = Reason.ROUTER_UNREACHABLE if view is None or view.fault is None else view.fault.reason
        return reason, f"Picker Pod {pod.name}: {detail}."
    age_s = now - view.taken_at
    if not 0 <= age_s <= VIEW_MAX_AGE_S:
        message = f"The page of picker Pod {pod.name} is {age_s:.1f} s old, {VIEW_MAX_AGE_S:g} s at most count."
        return Reason.ROUTER_STALE, message
    return None


def _first(holds: Iterable[_Hold]) -> _Hold | None:
    return min(holds, key=lambda hold: _ORDER.index(hold[0]) if hold[0] in _ORDER else -1, default=None)
