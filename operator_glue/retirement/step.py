"""The retirement protocol: one pass, as a function. Pure.

``look`` says what the edges have to look up, ``step`` what follows from it: the next status, the writes in their order,
the reason, when to look again. States are levels. Each pass begins at the persisted state from what is there now, the
status is written before whatever rests on it, and every write can be issued again, so that an operator that is killed
between any two writes comes to the same end. ``PROTOCOL`` is the whole of it as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from operator_glue.retirement.classification import Answering, Unanswerable, classify, node_names
from operator_glue.retirement.data import (
    Baseline,
    Blocked,
    ClearRetry,
    DeletePod,
    DeleteWorkload,
    Event,
    Key,
    Look,
    Member,
    Observation,
    Operation,
    Persisted,
    Reading,
    ReadOrder,
    Replica,
    RouteIn,
    SetServing,
    State,
    Step,
    Withdrawal,
    Write,
    WriteStatus,
)
from operator_glue.retirement.judging import judge, proven
from operator_glue.retirement.reasons import Effect, Reason
from operator_glue.retirement.retry import RetryRequest, read_retry
from operator_glue.retirement.withdrawal import judge_views, missing_baseline, not_restored
from operator_glue.status import MAX_RETAINED

# ---- the specification's budgets (../shared/spec/retirement.md), in seconds

#: Admitted, Disqualified and Withdrawing together.
WITHDRAWING_BUDGET_S = 30.0
DRAINING_BUDGET_S = 240.0
#: Admitted to Draining.
WHOLE_BUDGET_S = 300.0
SETTLING_BUDGET_S = 30.0
#: After the deletes, beyond G: from then on RetirementBlocked names the Pod.
DELETE_PENDING_AFTER_GRACE_S = 60.0
#: Evidence that is older when the deletes are to be issued is read anew.
EVIDENCE_MAX_AGE_S = 15.0
#: ProveFromMember: how long no EndpointSlice has to have named the replica.
ENDPOINT_GONE_S = 10.0
#: Between two reads of a member, two questions to a router.
READ_PERIOD_S = 1.0
#: ... while it is busy: an exec costs the API server and the node more than a question.
BUSY_READ_PERIOD_S = 2.0


@dataclass(frozen=True)
class Row:
    """A state: what it means, what it waits for, its budget in seconds (None: none), what follows, and at the bound."""

    state: State
    means: str
    waits_for: str
    budget_s: float | None
    then: str
    at_the_bound: str


PROTOCOL = (
    Row(
        State.ADMITTED,
        "The reservation is written. The replica still has its serving label.",
        "a replica that can answer (classification), and each Pod of the router seen to list it; then the label is "
        "taken away",
        WITHDRAWING_BUDGET_S,
        "Disqualified once the label is seen gone",
        "Aborted, still serving unless the label had gone",
    ),
    Row(
        State.DISQUALIFIED,
        "The label is gone. A router may still serve it.",
        "the routers' views",
        WITHDRAWING_BUDGET_S,
        "Withdrawing; Admitted when the label comes back",
        "Aborted, withdrawn",
    ),
    Row(
        State.WITHDRAWING,
        "The routers are asked, and told where their discovery does not hear.",
        "every Pod of the router without it, by that router's rules; without a router and with ProveFromMember, no "
        f"EndpointSlice with it for {ENDPOINT_GONE_S:g} s; without either, nothing ends it",
        WITHDRAWING_BUDGET_S,
        "Draining; Admitted when the label comes back",
        "Aborted, withdrawn",
    ),
    Row(
        State.DRAINING,
        "Nothing new reaches it. The answering member is read.",
        "two idle reads (six where vLLM's /load alone says so), then every router's view once more",
        DRAINING_BUDGET_S,
        "Deleting; Withdrawing when a router lists it again; Admitted when the label comes back",
        "Aborted, withdrawn",
    ),
    Row(
        State.DELETING,
        "The evidence is written, then all its Pods are deleted.",
        "every captured Pod gone; the Workload is deleted once each of them is terminal or gone",
        None,
        "Settling; Draining when a pass was cut before the first delete, since what was proven may hold no longer",
        f"never aborts; {DELETE_PENDING_AFTER_GRACE_S:g} s after G RetirementBlocked says DeletePending",
    ),
    Row(
        State.SETTLING,
        "The Pods are gone.",
        "the Workload gone, and with it the quota free",
        SETTLING_BUDGET_S,
        "Completed",
        "Completed, with the reason CapacityReleaseUnobserved",
    ),
    Row(State.COMPLETED, "Clears the field.", "", None, "", ""),
    Row(
        State.ABORTED,
        "The replica, its Workload and its capacity stay. No other removal is held.",
        "a retry token, a change of the role's replicas, its removal or return, the replica's disappearance",
        None,
        "Admitted; nothing once the replica is gone",
        "",
    ),
)

#: One phase with one budget; a replica in them can be kept as it is.
_WITHDRAWAL_PHASE = (State.ADMITTED, State.DISQUALIFIED, State.WITHDRAWING)
_ABORTABLE = (*_WITHDRAWAL_PHASE, State.DRAINING)


def look(persisted: Persisted, seen: Observation, now: float) -> Look:
    """What to look up for the step that follows."""
    restoring = [op for op in persisted.retained if _wanted(op.key, seen) and op.routed_out]
    op = _running(persisted)
    if op is not None and op.state is State.DELETING:
        return Look(views=bool(restoring), live=not _is_issued(op, _captured(op, seen)))
    if op is None or op.state not in _ABORTABLE:
        return Look(views=bool(restoring))
    alive = _alive(op, seen)
    if _wanted(op.key, seen):
        return Look(views=bool(restoring or op.routed_out))
    reads: tuple[ReadOrder, ...] = ()
    if op.state is State.DRAINING:
        answering = classify(alive, (), prove_from_member=_proves_from_member(seen))
        if isinstance(answering, Answering) and _read_due_at(op) <= now:
            member = next(member for member in alive if member.uid == answering.member_uid)
            reads = (ReadOrder(member, answering.command(seen.ignore_peers if _proves_from_member(seen) else ())),)
    return Look(
        views=seen.router is not None,
        endpoints=_proves_from_member(seen) and op.state is not State.ADMITTED,
        reads=reads,
        neighbours=node_names(alive),
    )


def step(persisted: Persisted, seen: Observation, now: float) -> Step:
    """One pass. ``seen.looked`` holds what ``look`` asked for."""
    draft = _Draft(persisted, seen, now)
    _settle_retained(draft)
    _take_retry(draft)
    op = _running(draft.persisted)
    if op is not None and op == _running(persisted):  # one just admitted was not looked up
        _advance(draft, op)
    if _running(draft.persisted) is None:
        _admit_next(draft)
    _count_waiting(draft)
    _remove_what_never_ran(draft)
    _delete_left_workloads(draft)
    return draft.answer()


class _Draft:
    """The answer while it is put together. Effects are issued after the status, in the order they were added."""

    def __init__(self, persisted: Persisted, seen: Observation, now: float) -> None:
        self.before, self.persisted, self.seen, self.now = persisted, persisted, seen, now
        self.effects: list[Write] = []
        self.events: list[Event] = []
        self.blocked: Blocked | None = None
        self._due: list[float] = []

    def look_again(self, at: float) -> None:
        self._due.append(at)

    def put(self, op: Operation | None) -> None:
        self.persisted = replace(self.persisted, operation=op)

    def event(self, reason: str, message: str, *, warning: bool = False, lasts: bool = False) -> None:
        self.events.append(Event(reason, message, warning, lasts))

    def answer(self) -> Step:
        status = (WriteStatus(self.persisted),) if self.persisted != self.before else ()
        held = [op for op in self.persisted.retained if not op.released]
        shown = self.persisted.operation or (held[-1] if held else None)
        blocked = self.blocked
        if blocked is None and held:
            kept = ", ".join(str(op.key) for op in held)
            blocked = Blocked(held[-1].reason, f"Aborted and kept: {kept}. {held[-1].message}")
        return Step(
            persisted=self.persisted,
            writes=(*status, *self.effects),
            events=tuple(self.events),
            reason=None if shown is None else shown.reason,
            message="" if shown is None else shown.message,
            blocked=blocked,
            look_again_at=min(self._due, default=None),
        )


# ---- what is wanted and what is there


def _wanted(key: Key, seen: Observation) -> bool:
    return key.ordinal < seen.roles.get(key.role, 0)


def _replica(key: Key, seen: Observation) -> Replica:
    return seen.replicas.get(key) or Replica(key, ())


def _captured(op: Operation, seen: Observation) -> tuple[Member, ...]:
    """Its Pods that are still in the API server, by index: the leader first."""
    members = (member for member in _replica(op.key, seen).members if member.uid in op.member_uids)
    return tuple(sorted(members, key=_by_index))


def _by_index(member: Member) -> tuple[bool, int, str]:
    return member.index is None, member.index or 0, member.name


def _alive(op: Operation, seen: Observation) -> tuple[Member, ...]:
    return tuple(member for member in _captured(op, seen) if not member.ended)


def _running(persisted: Persisted) -> Operation | None:
    op = persisted.operation
    return None if op is None or op.state is State.ABORTED else op


def _proves_from_member(seen: Observation) -> bool:
    return seen.router is None and seen.prove_from_member


# ---- admission


def _candidates(draft: _Draft) -> list[Key]:
    """Unwanted replicas that run and are not kept as Aborted: roles in the spec's order, those that were dropped
    first, and of a role the highest ordinal first."""
    seen = draft.seen
    kept = {op.key for op in draft.persisted.retained if not op.released}
    found = [
        key
        for key, replica in seen.replicas.items()
        if key.ordinal >= seen.roles.get(key.role, 0) and key not in kept and _can_be_admitted(replica)
    ]
    places = {role: place for place, role in enumerate(seen.roles)}
    found.sort(key=lambda key: (places.get(key.role, -1), key.role, -key.ordinal))
    if found and len(draft.persisted.retained) >= MAX_RETAINED:
        # The oldest one gives way and is a candidate again: without taking turns, lower ordinals would wait for ever.
        last = draft.persisted.retained[-1].key
        order = [key for key in found if (key.role, -key.ordinal) > (last.role, -last.ordinal)]
        return order + [key for key in found if key not in set(order)]
    return found


def _can_be_admitted(replica: Replica) -> bool:
    alive = [member for member in replica.members if not member.ended]
    # Where one is terminating, another hand deletes the replica; it drains by its hook.
    return bool(alive) and not any(member.terminating for member in alive) and not _never_ran(alive)


def _never_ran(alive: list[Member]) -> bool:
    return all(member.never_ran for member in alive)


def _admit_next(draft: _Draft) -> None:
    found = _candidates(draft)
    if found:
        key = found[0]
        previous = next((op for op in draft.persisted.retained if op.key == key), None)
        _admit(draft, key, previous, None if previous is None else previous.retry_token)


def _admit(draft: _Draft, key: Key, previous: Operation | None, retry_token: str | None) -> None:
    """Writes the reservation. ``previous``: the Aborted one that it takes the place of; what is known of the routers
    stays, since a process that listed the replica once did."""
    replica, now, seen = _replica(key, draft.seen), draft.now, draft.seen
    alive = [member for member in replica.members if not member.ended]
    why = "the role was dropped" if key.role not in seen.roles else f"{seen.roles[key.role]} are wanted"
    reason = Reason.ADMITTED if previous is None or previous.retry_token == retry_token else Reason.RETRIED
    retained = tuple(op for op in draft.persisted.retained if op.key != key)
    draft.persisted = Persisted(
        Operation(
            key=key,
            generation=seen.generation,
            wanted=seen.roles.get(key.role),
            member_uids=tuple(sorted(member.uid for member in alive)),
            workload_uid=None if replica.workload is None else replica.workload.uid,
            state=State.ADMITTED,
            reason=reason,
            message=f"Replica {key} is to be removed: {why}.",
            started_at=now,
            deadline=now + WHOLE_BUDGET_S,
            phase_started_at=now,
            retry_token=retry_token,
            routers=() if previous is None else previous.routers,
            routed_out=() if previous is None else previous.routed_out,
        ),
        retained,
    )
    draft.event("RetirementAdmitted", f"Replica {key} is to be removed: {why}; {len(alive)} Pods.")
    draft.look_again(now)


def _count_waiting(draft: _Draft) -> None:
    op = _running(draft.persisted)
    if op is None:
        return
    waiting = sum(key != op.key for key in _candidates(draft))
    if waiting > op.waiting:
        draft.event(
            "RetirementWaiting", f"{waiting} more to remove; they wait for the removal of {op.key} ({op.state.value})."
        )
    if waiting != op.waiting:
        draft.put(replace(op, waiting=waiting))


# ---- kept as Aborted


def _settle_retained(draft: _Draft) -> None:
    """Aborted ones whose replica is gone, is wanted again, or of which the spec says something new."""
    ended = draft.persisted.operation
    if ended is not None and ended.state is State.ABORTED and _replica(ended.key, draft.seen).workload is None:
        draft.put(None)
    kept = []
    for op in draft.persisted.retained:
        new: Operation | None = op
        if not _alive(op, draft.seen):
            new = None
        elif _wanted(op.key, draft.seen):
            new = _restore(draft, op)
        elif op.wanted != draft.seen.roles.get(op.key.role):
            new = replace(op, released=True)
        if new is not None:
            kept.append(new)
    draft.persisted = replace(draft.persisted, retained=tuple(kept))


def _restore(draft: _Draft, op: Operation) -> Operation | None:
    """Gives a replica that is wanted again its label and its routing back. None: it has them."""
    now = draft.now
    if op.reason is not Reason.SCALED_UP_AGAIN:
        state = State.ABORTED if op.state is State.ABORTED else State.ADMITTED
        op = replace(
            _proof_dropped(op),
            state=state,
            reason=Reason.SCALED_UP_AGAIN,
            message=f"The spec names replica {op.key} again: its serving label and its routing are being restored.",
            phase_started_at=now,
            wanted=draft.seen.roles.get(op.key.role),
            released=True,
        )
    unlabelled = [m for m in _alive(op, draft.seen) if m.index == 0 and not m.serving and not m.terminating]
    unrouted = not_restored(op, _alive(op, draft.seen), draft.seen.looked) if op.routed_out else ()
    given_up = bool(unrouted) and not unlabelled and now >= op.phase_started_at + WITHDRAWING_BUDGET_S
    if not unlabelled and (not unrouted or given_up):
        draft.event("RetirementCancelled", f"The spec names replica {op.key} again; it serves as before.")
        if given_up:
            draft.event(
                "RoutingNotRestored",
                f"{len(unrouted)} Pods of the router do not list replica {op.key} again after "
                f"{WITHDRAWING_BUDGET_S:g} s.",
                warning=True,
            )
        return None
    draft.effects += [SetServing(member.uid, member.name, True) for member in unlabelled]
    if not unlabelled:
        leaders = [member for member in _alive(op, draft.seen) if member.index == 0]
        draft.effects += [RouteIn(uid, leader.uid) for uid in unrouted for leader in leaders]
    draft.look_again(now + READ_PERIOD_S)
    return op


# ---- retry


def _take_retry(draft: _Draft) -> None:
    """The annotation: taken, cleared when it was taken before, left alone and reported when it says nothing here."""
    text = draft.seen.retry
    if text is None:
        return
    request = read_retry(text)
    if isinstance(request, str):
        draft.event("RetryIgnored", request, warning=True, lasts=True)
        return
    op = _running(draft.persisted)
    if op is not None and op.key == request.key:
        if op.retry_token == request.token:
            draft.effects.append(ClearRetry(text))
        return  # it may be wanted once this one has ended
    kept = next((one for one in draft.persisted.retained if one.key == request.key), None)
    if kept is None:
        draft.event(
            "RetryIgnored", f"{text!r} names no removal that was aborted and is kept.", warning=True, lasts=True
        )
    elif kept.retry_token == request.token:
        draft.effects.append(ClearRetry(text))
    elif op is None and not _wanted(request.key, draft.seen):
        _retry(draft, kept, request, text)


def _retry(draft: _Draft, kept: Operation, request: RetryRequest, text: str) -> None:
    _admit(draft, kept.key, kept, request.token)
    draft.effects.append(ClearRetry(text))


# ---- the operation that runs


def _advance(draft: _Draft, op: Operation) -> None:
    if op.state in _ABORTABLE:
        _advance_abortable(draft, op)
    elif op.state is State.DELETING:
        _delete(draft, op)
    else:
        _await_release(draft, op)


def _advance_abortable(draft: _Draft, op: Operation) -> None:
    """Admitted to Draining: what is the same in all of them, and the state's own part."""
    seen, now, alive = draft.seen, draft.now, _alive(op, draft.seen)
    if not alive:
        message = f"Every Pod of replica {op.key} was ended by another hand in {op.state.value}."
        draft.put(replace(op, state=State.ABORTED, reason=Reason.TARGET_GONE, message=message))
        draft.event("RetirementAborted", message)
        draft.look_again(now)
        return
    if _wanted(op.key, seen):
        draft.put(_restore(draft, op))
        if draft.persisted.operation is not None:
            draft.look_again(now + READ_PERIOD_S)
        return
    if op.reason is Reason.SCALED_UP_AGAIN:  # and unwanted again before all was restored
        _admit(draft, op.key, op, op.retry_token)
        return
    op = _begun_by(op, now)
    bound = min(op.deadline, op.phase_started_at + _budget_s(op.state))
    if now >= bound:
        _abort(draft, op, alive)
        return
    op = _with_workload(op, seen)
    if op.state is State.ADMITTED:
        new, effects = _admitted(draft, op, alive)
    elif any(member.serving for member in alive):
        message = f"Replica {op.key} bears its serving label again."
        new, effects = (
            replace(
                _proof_dropped(op),
                state=State.ADMITTED,
                reason=Reason.WITHDRAWING,
                message=message,
                # Out of Draining the phase is a new one.
                phase_started_at=now if op.state is State.DRAINING else op.phase_started_at,
                withdrawn_at=None,
            ),
            [],
        )
    else:
        new, effects = _STEPS[op.state](draft, op, alive)
    draft.put(new)
    draft.effects += effects
    _tell(draft, op, new)
    draft.look_again(min(bound, now if new.state is not op.state else _next_look_at(new, now)))


def _begun_by(op: Operation, now: float) -> Operation:
    """Without times ahead of the clock, which was set back or which another hand wrote: they would extend a budget."""
    started_at = min(op.started_at, now)
    return replace(
        op,
        started_at=started_at,
        deadline=min(op.deadline, started_at + WHOLE_BUDGET_S),
        phase_started_at=min(op.phase_started_at, now),
    )


def _budget_s(state: State) -> float:
    return DRAINING_BUDGET_S if state is State.DRAINING else WITHDRAWING_BUDGET_S


def _next_look_at(op: Operation, now: float) -> float:
    if op.state is State.ADMITTED and op.reason.effect is Effect.REFUSES:
        return op.deadline
    return max(_read_due_at(op), now + READ_PERIOD_S / 10) if op.state is State.DRAINING else now + READ_PERIOD_S


def _read_due_at(op: Operation) -> float:
    if not op.readings:
        return op.phase_started_at
    last = op.readings[-1]
    return last.sampled_at + (READ_PERIOD_S if last.idle_reads else BUSY_READ_PERIOD_S)


def _with_workload(op: Operation, seen: Observation) -> Operation:
    """Kueue may make the Workload after the Pods."""
    workload = _replica(op.key, seen).workload
    return replace(op, workload_uid=workload.uid) if op.workload_uid is None and workload is not None else op


def _proof_dropped(op: Operation) -> Operation:
    """What was proven no longer holds. What is known of the routers' processes does."""
    return replace(
        op,
        readings=(),
        proven_at=None,
        draining_at=None,
        endpoint_gone_at=None,
        routers=tuple(Baseline(one.pod_uid, one.process, one.listed_at) for one in op.routers),
    )


def _held(op: Operation, reason: Reason, message: str) -> Operation:
    return replace(op, reason=reason, message=message)


def _tell(draft: _Draft, before: Operation, after: Operation) -> None:
    if after.state is not before.state:
        draft.event(f"Retirement{after.state.value}", after.message)
    elif after.reason is not before.reason and after.reason.effect in (Effect.HOLDS, Effect.REFUSES):
        draft.event("RetirementHeld", f"{after.reason.word}: {after.message}")


def _abort(draft: _Draft, op: Operation, alive: tuple[Member, ...]) -> None:
    """Members, Workload and capacity stay. Kept for this replica alone."""
    now = draft.now
    whole = now >= op.deadline
    spent = f"{WHOLE_BUDGET_S if whole else _budget_s(op.state):g} s for {'the whole' if whole else op.state.value}"
    serving = any(member.serving for member in alive)
    stays = "It stays and serves on." if serving else "It stays, withdrawn: without its serving label."
    message = f"{spent} are spent. {op.message} {stays}"
    aborted = replace(op, state=State.ABORTED, message=message, wanted=draft.seen.roles.get(op.key.role))
    retained = [one for one in draft.persisted.retained if one.key != op.key]
    draft.persisted = Persisted(None, (*retained[-(MAX_RETAINED - 1) :], aborted))
    draft.event("RetirementAborted", f"Replica {op.key}: {op.reason.word}: {message}", warning=True)
    draft.look_again(now)


_Advanced = tuple[Operation, list[Write]]


def _unanswerable(draft: _Draft, alive: tuple[Member, ...]) -> tuple[Reason, str] | Answering:
    """Who answers for the replica as it is deployed, or what holds it."""
    terminating = [member.name for member in alive if member.terminating]
    if terminating:
        return Reason.MEMBER_TERMINATING, f"{terminating[0]} is being deleted by another hand."
    found = classify(alive, draft.seen.looked.neighbours, prove_from_member=_proves_from_member(draft.seen))
    return (found.reason, found.message) if isinstance(found, Unanswerable) else found


def _missing(draft: _Draft, op: Operation) -> tuple[Reason, str] | None:
    here = {member.uid for member in _alive(op, draft.seen)}
    gone = [uid for uid in op.member_uids if uid not in here]
    if gone:
        return Reason.MEMBER_GONE, f"{len(gone)} of {len(op.member_uids)} Pods of replica {op.key} are gone."
    return None


def _admitted(draft: _Draft, op: Operation, alive: tuple[Member, ...]) -> _Advanced:
    """What can be told before anything is touched, then the label."""
    hold = _missing(draft, op) or _unanswerable(draft, alive)
    if isinstance(hold, tuple):
        return _held(op, *hold), []
    serving = [member for member in alive if member.serving]
    if draft.seen.router is not None:
        view = _views(draft, op, alive)
        op = replace(op, routers=view.baselines)
        lacking = missing_baseline(draft.seen.router, op, alive, draft.seen.looked, draft.now)
        if lacking is not None:
            # A retry finds the label gone: a process that never listed the replica can be seen to only with it.
            leaders = [member for member in alive if member.index == 0 and not member.serving]
            return _held(op, *lacking), [SetServing(member.uid, member.name, True) for member in leaders]
    if serving:
        message = f"The serving label of replica {op.key} is being taken away."
        return (
            replace(op, reason=Reason.WITHDRAWING, message=message, withdrawn_at=None),
            [SetServing(member.uid, member.name, False) for member in serving],
        )
    message = f"The serving label of replica {op.key} is gone."
    return (
        replace(
            op,
            state=State.DISQUALIFIED,
            reason=Reason.WAITING_FOR_ROUTERS,
            message=message,
            withdrawn_at=op.withdrawn_at or draft.now,
        ),
        [],
    )


def _views(draft: _Draft, op: Operation, alive: tuple[Member, ...]) -> Withdrawal:
    """What the router's Pods say. Without a router the endpoints say it, where ProveFromMember lets them."""
    seen, now = draft.seen, draft.now
    if seen.router is not None:
        return judge_views(seen.router, op, alive, seen.looked, now)
    if not seen.prove_from_member:
        message = f"{Reason.NO_ROUTER.sentence} spec.retirement.withoutRouter: ProveFromMember asks the replica itself."
        return Withdrawal(False, False, Reason.NO_ROUTER, message, ())
    endpoints = seen.looked.endpoints
    if endpoints is None or endpoints.listed or endpoints.taken_at < (op.withdrawn_at or now):
        listed = endpoints is not None and endpoints.listed
        message = f"An EndpointSlice {'names' if listed else 'may name'} replica {op.key}."
        return Withdrawal(False, listed, Reason.ENDPOINT_LISTED, message, ())
    gone_s = endpoints.taken_at - (op.endpoint_gone_at if op.endpoint_gone_at is not None else endpoints.taken_at)
    message = f"No EndpointSlice has named replica {op.key} for {gone_s:.0f} of {ENDPOINT_GONE_S:g} s."
    reason = Reason.WITHDRAWN if gone_s >= ENDPOINT_GONE_S else Reason.ENDPOINT_LISTED
    return Withdrawal(gone_s >= ENDPOINT_GONE_S, False, reason, message, ())


def _view_taken_at(draft: _Draft) -> float:
    """When the earliest of this pass's views was taken."""
    looked = draft.seen.looked
    times = [view.taken_at for view in looked.views]
    if looked.endpoints is not None:
        times.append(looked.endpoints.taken_at)
    return min(times, default=draft.now)


def _kept_of_views(draft: _Draft, op: Operation, view: Withdrawal) -> _Advanced:
    """The baselines, and the removals to ask for; whom they were asked of is kept, to undo them after a scale-up."""
    endpoints = draft.seen.looked.endpoints
    gone_at = op.endpoint_gone_at
    if endpoints is not None:
        gone_at = None if endpoints.listed else gone_at if gone_at is not None else endpoints.taken_at
    asked = dict.fromkeys((*op.routed_out, *(write.router_uid for write in view.route_out)))
    return (
        replace(op, routers=view.baselines, endpoint_gone_at=gone_at, routed_out=tuple(asked)),
        list(view.route_out),
    )


def _disqualified(draft: _Draft, op: Operation, alive: tuple[Member, ...]) -> _Advanced:
    new, effects = _withdrawing(draft, op, alive)
    return (new if new.state is not op.state else replace(new, state=State.WITHDRAWING)), effects


def _withdrawing(draft: _Draft, op: Operation, alive: tuple[Member, ...]) -> _Advanced:
    view = _views(draft, op, alive)
    op, effects = _kept_of_views(draft, op, view)
    hold = _missing(draft, op) or _unanswerable(draft, alive)
    if isinstance(hold, tuple):
        return _held(op, *hold), effects
    if not view.proven:
        return _held(op, view.reason, view.message), effects
    return (
        replace(
            op,
            state=State.DRAINING,
            reason=Reason.WITHDRAWN,
            message=f"Replica {op.key} is withdrawn: {view.message}",
            phase_started_at=draft.now,
            draining_at=draft.now,
            proven_at=_view_taken_at(draft),
            readings=(),
        ),
        effects,
    )


def _draining(draft: _Draft, op: Operation, alive: tuple[Member, ...]) -> _Advanced:
    now, looked = draft.now, draft.seen.looked
    view = _views(draft, op, alive)
    op, effects = _kept_of_views(draft, op, view)
    if view.listed:
        return (
            replace(
                _proof_dropped(op),
                state=State.WITHDRAWING,
                reason=view.reason,
                message=f"Replica {op.key} is listed again: {view.message}",
                phase_started_at=now,
            ),
            effects,
        )
    answering = _unanswerable(draft, alive)
    hold = _missing(draft, op) or (answering if isinstance(answering, tuple) else None)
    if hold is None and not view.proven:
        hold = view.reason, view.message
    if hold is not None or not isinstance(answering, Answering):
        # Reads count only while the withdrawal is seen to hold.
        readings = tuple(replace(one, idle_since=None, idle_reads=0, outright_reads=0) for one in op.readings)
        return replace(_held(op, *(hold or (op.reason, op.message))), readings=readings), effects
    member = next(one for one in alive if one.uid == answering.member_uid)
    reading, read_ended_at = next((one for one in op.readings if one.pod_uid == member.uid), None), None
    for read in looked.reads:
        # Only what was read after the withdrawal was proven says something.
        if read.pod_uid == member.uid and op.draining_at is not None and read.started_at >= op.draining_at:
            reading = judge(read, member, answering, reading, prove_from_member=_proves_from_member(draft.seen))
            read_ended_at = read.ended_at
    if reading is None:
        return op, effects
    op = replace(op, readings=(reading,))
    if not proven(reading):
        return _held(op, reading.reason or Reason.IDLE_ONCE, reading.message), effects
    read_at = reading.sampled_at if read_ended_at is None else read_ended_at
    if _view_taken_at(draft) < read_at or not _is_fresh(reading, member, now):
        return _held(op, Reason.PROVING_AGAIN, Reason.PROVING_AGAIN.sentence), effects
    op = replace(
        op,
        state=State.DELETING,
        reason=Reason.DRAINED,
        message=f"Replica {op.key} is withdrawn and idle ({reading.message}); its {len(alive)} Pods are being deleted.",
        phase_started_at=now,
        proven_at=_view_taken_at(draft),
    )
    return op, [*effects, *_deletes(_captured(op, draft.seen))]


def _is_fresh(reading: Reading, member: Member, now: float) -> bool:
    return now - reading.sampled_at <= EVIDENCE_MAX_AGE_S and reading.fingerprint == member.fingerprint


def _deletes(captured: tuple[Member, ...]) -> list[Write]:
    """All members together, as they were seen: a label that came back, a restart, another hand's edit or delete since
    then ends the pass, and nothing is deleted twice from a stale cache."""
    return [
        DeletePod(member.uid, member.name, member.resource_version) for member in captured if not member.terminating
    ]


_STEPS: Mapping[State, Callable[[_Draft, Operation, tuple[Member, ...]], _Advanced]] = {
    State.DISQUALIFIED: _disqualified,
    State.WITHDRAWING: _withdrawing,
    State.DRAINING: _draining,
}


def _delete(draft: _Draft, op: Operation) -> None:
    """Never aborts. Where nothing is deleted yet (a pass that was cut between the status and the deletes), what was
    proven is proven anew."""
    now, captured, looked = draft.now, _captured(op, draft.seen), draft.seen.looked
    if not _is_issued(op, captured):
        if looked.live is None:
            draft.look_again(now)
            return
        captured = tuple(sorted((one for one in looked.live if one.uid in op.member_uids), key=_by_index))
    op = _with_workload(op, draft.seen)
    # Of an ordinal that is wanted again a successor takes the Workload over, and Kueue then lets go of what has ended.
    if not captured or (_wanted(op.key, draft.seen) and all(member.ended for member in captured)):
        message = f"The Pods of replica {op.key} are gone."
        new = replace(
            op, state=State.SETTLING, reason=Reason.WAITING_FOR_RELEASE, message=message, phase_started_at=now
        )
        draft.put(new)
        _tell(draft, op, new)
        draft.look_again(now)
        return
    if not _is_issued(op, captured):
        message = f"Nothing of replica {op.key} is deleted yet, so what was proven is proven anew."
        new = replace(
            op,
            state=State.DRAINING,
            reason=Reason.EVIDENCE_STALE,
            message=message,
            readings=(),
            # No budget is extended by a restart of ours.
            phase_started_at=op.draining_at if op.draining_at is not None else op.started_at,
            draining_at=now,
        )
        draft.put(new)
        _tell(draft, op, new)
        draft.look_again(now)
        return
    draft.effects += _deletes(captured)
    pending_at = op.phase_started_at + max(member.grace_s for member in captured) + DELETE_PENDING_AFTER_GRACE_S
    new = op
    if now >= pending_at:
        names = ", ".join(member.name for member in captured)
        message = f"Deleted at {_since(op, now)} and still there: {names}."
        new = _held(op, Reason.DELETE_PENDING, message)
        draft.blocked = Blocked(new.reason, new.message)
    else:
        new = _held(op, Reason.WAITING_FOR_PODS, f"The Pods of replica {op.key} are deleted and drain by their hooks.")
        draft.look_again(pending_at)
    draft.put(new)
    _tell(draft, op, new)


def _since(op: Operation, now: float) -> str:
    return f"{now - op.phase_started_at:.0f} s ago"


def _is_issued(op: Operation, captured: tuple[Member, ...]) -> bool:
    """Whether the first delete has been taken: all follow it."""
    return len(captured) < len(op.member_uids) or any(member.terminating for member in captured)


def _await_release(draft: _Draft, op: Operation) -> None:
    """Settling: what the Workload held is free once it is gone. The cache has to have heard of the Pods' end, else it
    would name the replica to be removed once more."""
    workload = _replica(op.key, draft.seen).workload
    left = _alive(op, draft.seen)
    bound = op.phase_started_at + SETTLING_BUDGET_S
    freed = op.workload_uid is None or workload is None or workload.uid != op.workload_uid
    freed |= _wanted(op.key, draft.seen)  # a successor has it
    if freed and not left:
        draft.event("RetirementCompleted", f"Replica {op.key} is gone and its capacity is free.")
    elif draft.now >= bound:
        what = f"its Workload {workload.name}" if workload is not None else f"{len(left)} Pods in the operator's cache"
        draft.event(
            Reason.CAPACITY_RELEASE_UNOBSERVED.word,
            f"Replica {op.key} is gone; {what} stayed for {SETTLING_BUDGET_S:g} s.",
            warning=True,
        )
    else:
        draft.look_again(bound)
        return
    draft.put(None)
    draft.look_again(draft.now)


# ---- beside the operation


def _unwanted(draft: _Draft) -> Iterator[Replica]:
    wanted = draft.seen.roles
    return (replica for key, replica in draft.seen.replicas.items() if key.ordinal >= wanted.get(key.role, 0))


def _remove_what_never_ran(draft: _Draft) -> None:
    """Replicas without work: all at once, and only as they were seen. On a conflict it may have started."""
    op = _running(draft.persisted)
    for replica in _unwanted(draft):
        alive = [member for member in replica.members if not member.ended]
        if alive and _never_ran(alive) and (op is None or op.key != replica.key):
            draft.effects += [
                DeletePod(member.uid, member.name, member.resource_version)
                for member in sorted(alive, key=_by_index)
                if not member.terminating
            ]


def _delete_left_workloads(draft: _Draft) -> None:
    """Of unwanted replicas whose Pods have all ended, whoever ended them: never before, since a Workload's quota is
    given away as soon as it is deleted."""
    for replica in _unwanted(draft):
        if replica.workload is not None and all(member.ended for member in replica.members):
            draft.effects.append(DeleteWorkload(replica.workload.uid, replica.workload.name, replica.key))
