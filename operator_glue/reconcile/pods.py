"""Which Pods are made and deleted beside the retirement protocol: creation, lost members, rollout. Pure.

A replica is made, lost and replaced as one. What the spec no longer wants is the protocol's alone
(operator_glue.retirement.step); here are the replicas that it does want, and the remains of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from operator_glue import names
from operator_glue.retirement.classification import deployed_size
from operator_glue.retirement.data import DeletePod, DeleteWorkload, Event, Key, Member, Replica, SetServing
from operator_glue.retirement.persisted import epoch_s

#: Between two questions to the routers whether they have taken a replica.
ROUTED_PERIOD_S = 1.0
#: So long after a replica is Ready a rollout goes on though no router has taken it.
UNROUTED_S = 120.0
#: What Kueue holds an ended Pod of a serving group by, until its successor joins the group (evidence §9).
KUEUE_FINALIZER = "kueue.x-k8s.io/managed"


@dataclass(frozen=True)
class WantedRole:
    """A role of the spec. ``spec_hash``: what its Pods bear when they are as the spec says."""

    name: str
    replicas: int
    size: int
    spec_hash: str


@dataclass(frozen=True)
class CreateReplica:
    """The members to make; all of them but where a pass was cut between two."""

    key: Key
    indices: tuple[int, ...]


class Shape(Enum):
    """What there is of a replica."""

    ABSENT = "no Pod of it is left"
    ENDING = "all its Pods are ending"
    PARTIAL = "some of its Pods are still to be made"
    LOST = "it has lost a member"
    UNREADABLE = "a member's labels cannot be read"
    WHOLE = "all its members are there"


class Rollout(Enum):
    """Where the rollout of a role stands."""

    DONE = "every replica is as the spec says"
    GOING = "a replica is being replaced"
    SUCCESSOR_NOT_READY = "the next one waits for a replica to be Ready"
    SUCCESSOR_NOT_ROUTED = "the next one waits for the router to take a replica"


@dataclass(frozen=True)
class PodPlan:
    """``deletes``: by UID; ``workloads``: once their Pods have ended, looked up live. ``creates``: to be issued only
    after the Pods were listed from the API server itself and planned for anew. ``due``: when a creation that was put
    off is to be looked at again. ``rollouts``: by role; ``rolls``: one of the deletes is a rollout's."""

    deletes: tuple[DeletePod, ...] = ()
    creates: tuple[CreateReplica, ...] = ()
    workloads: tuple[DeleteWorkload, ...] = ()
    labels: tuple[SetServing, ...] = ()
    events: tuple[Event, ...] = ()
    rollouts: Mapping[str, Rollout] = field(default_factory=dict)
    rolls: bool = False
    due: float | None = None


def is_ready(member: Member) -> bool:
    """Its condition Ready, and not terminating: that stays Ready while its hook runs."""
    if member.terminating or member.ended:
        return False
    conditions = (member.pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def is_replica_ready(replica: Replica) -> bool:
    """All its members are there and Ready."""
    return _are_ready(replica) and shape(replica) is Shape.WHOLE


def _are_ready(replica: Replica) -> bool:
    return all(is_ready(member) for member in replica.members if not member.ended)


def is_as_specified(replica: Replica, spec_hash: str) -> bool:
    return all(_hash(member) == spec_hash for member in replica.members if not member.ended)


def shape(replica: Replica) -> Shape:
    """Ended Pods that Kueue alone holds count as none."""
    alive = [member for member in replica.members if not member.ended]
    if not alive:
        return Shape.ABSENT if all(map(_is_left_behind, replica.members)) else Shape.ENDING
    if any(member.index is None for member in alive):
        return Shape.UNREADABLE
    if all(member.terminating for member in alive):
        return Shape.ENDING
    # One that goes because another stands in its place is no loss.
    staying = {member.index for member in alive if not member.terminating}
    alive = [member for member in alive if not (member.terminating and member.index in staying)]
    size = max(deployed_size(member) or 1 for member in alive)
    missing = set(range(size)) - {member.index for member in alive}
    remains = any(not _is_left_behind(member) for member in replica.members if member.ended)
    if any(member.terminating for member in alive) or (remains and size > 1):
        return Shape.LOST
    if missing:
        return Shape.PARTIAL if all(member.never_ran for member in alive) else Shape.LOST
    return Shape.WHOLE


def plan_pods(
    roles: Sequence[WantedRole],
    replicas: Mapping[Key, Replica],
    running: Key | None,
    kept: AbstractSet[Key],
    now: float,
    not_before: Mapping[Key, float],
    routed: AbstractSet[str] | None = None,
) -> PodPlan:
    """``running``: the replica whose removal runs, which is the protocol's; ``kept``: those it keeps as Aborted or
    restores. ``not_before``: when a replica whose Pods end again and again is made anew. ``routed``: addresses or names
    of the engines that the router sends requests to; None: there is none, or it was not asked, which whoever sees
    ``rolls`` has to do, and to plan anew."""
    draft = _Draft()
    wanted = {Key(role.name, ordinal): role for role in roles for ordinal in range(role.replicas)}
    shapes = {key: shape(replica) for key, replica in replicas.items()}
    for key, replica in replicas.items():
        if key != running:
            draft.deletes += _remains(replica)
            if shapes[key] is Shape.LOST:
                _lost(draft, replica)
            if len(replica.members) > 1:
                _doubled(draft, replica)
    for key, role in wanted.items():
        if key == running:
            continue
        replica = replicas.get(key) or Replica(key, ())
        found = shapes.get(key, Shape.ABSENT)
        if found is Shape.UNREADABLE:
            draft.events.append(
                Event("MemberUnreadable", f"Replica {key}: a Pod's labels were changed; it is left alone.", True, True)
            )
        elif found is Shape.ENDING:
            draft.workloads += _done_groups(replica)
        elif found is Shape.ABSENT:
            at = not_before.get(key, now)
            if at > now:
                draft.due.append(at)
            else:
                draft.creates.append(CreateReplica(key, tuple(range(role.size))))
        elif found is Shape.PARTIAL and is_as_specified(replica, role.spec_hash):
            there = {member.index for member in replica.members if not member.ended}
            draft.creates.append(CreateReplica(key, tuple(sorted(set(range(role.size)) - there))))
        elif found is Shape.WHOLE and key not in kept:
            draft.labels += _unlabelled(replica)
    draft.routed, draft.now = routed, now
    rollouts = {role.name: _roll(draft, role, replicas, shapes, running, kept) for role in roles}
    if Rollout.SUCCESSOR_NOT_ROUTED in rollouts.values():
        draft.due.append(now + ROUTED_PERIOD_S)
    return PodPlan(
        deletes=tuple(dict.fromkeys(draft.deletes)),
        creates=tuple(draft.creates),
        workloads=tuple(draft.workloads),
        labels=tuple(draft.labels),
        events=tuple(draft.events),
        rollouts=rollouts,
        rolls=draft.rolls,
        due=min(draft.due, default=None),
    )


@dataclass
class _Draft:
    deletes: list[DeletePod] = field(default_factory=list)
    creates: list[CreateReplica] = field(default_factory=list)
    workloads: list[DeleteWorkload] = field(default_factory=list)
    labels: list[SetServing] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    due: list[float] = field(default_factory=list)
    routed: AbstractSet[str] | None = None
    now: float = 0.0
    rolls: bool = False


def _hash(member: Member) -> str | None:
    annotations = (member.pod.get("metadata") or {}).get("annotations") or {}
    found = annotations.get(names.SPEC_HASH_ANNOTATION)
    return found if isinstance(found, str) else None


def _is_left_behind(member: Member) -> bool:
    """Kueue replaces a failed Pod of a group. One that ended well it counts as done, and deletes a successor as one too
    many (seen on Kueue 0.17.0; an engine ends with status 0 at SIGTERM)."""
    return _is_held_by_kueue(member) and (member.pod.get("status") or {}).get("phase") == "Failed"


def _is_held_by_kueue(member: Member) -> bool:
    finalizers = (member.pod.get("metadata") or {}).get("finalizers") or []
    return member.ended and member.terminating and finalizers == [KUEUE_FINALIZER]


def _done_groups(replica: Replica) -> Iterator[DeleteWorkload]:
    """Of a replica whose Pods Kueue counts as done: with its Workload they go, and the successor is a new group."""
    members, workload = replica.members, replica.workload
    if workload is None or not members or not all(map(_is_held_by_kueue, members)):
        return
    if not all(map(_is_left_behind, members)):
        yield DeleteWorkload(workload.uid, workload.name, replica.key)


def _remains(replica: Replica) -> Iterator[DeletePod]:
    """Ended Pods: an ordinal's successor is made when none is left."""
    return (DeletePod(one.uid, one.name, None) for one in replica.members if one.ended and not one.terminating)


def _delete(members: Sequence[Member]) -> list[DeletePod]:
    return [DeletePod(one.uid, one.name, None) for one in members if not one.terminating]


def _lost(draft: _Draft, replica: Replica) -> None:
    """The rest of a replica that has lost a member: its engine spans them all, so that nothing of it serves on."""
    rest = _delete([member for member in replica.members if not member.ended])
    if rest:
        draft.deletes += rest
        draft.events.append(
            Event("MemberLost", f"Replica {replica.key} has lost a member; its other {len(rest)} are deleted.", True)
        )


def _doubled(draft: _Draft, replica: Replica) -> None:
    """Of two Pods in one place the younger goes, as another operator's late write may have made it."""
    places: dict[int, list[Member]] = {}
    for member in replica.members:
        if member.index is not None and not member.ended and not member.terminating:
            places.setdefault(member.index, []).append(member)
    for index, those in places.items():
        for late in sorted(those, key=_age)[1:]:
            draft.deletes.append(DeletePod(late.uid, late.name, None))
            draft.events.append(
                Event("DoubledMember", f"Replica {replica.key} has two Pods of index {index}; {late.name} goes.", True)
            )


def _age(member: Member) -> tuple[str, str]:
    return str((member.pod.get("metadata") or {}).get("creationTimestamp")), member.uid


def _is_routed(replica: Replica, draft: _Draft) -> bool:
    """A router takes an engine some time after it is Ready (sglang-gateway 0.3.2 seconds after, real engine on two
    cores): the last old replica that goes before that leaves clients without any."""
    if draft.routed is None:
        return True
    leaders = [member for member in replica.members if member.index == 0 and not member.ended]
    return all(
        member.name in draft.routed or bool(draft.routed & set(member.addresses)) or _is_long_ready(member, draft)
        for member in leaders
    )


def _is_long_ready(member: Member, draft: _Draft) -> bool:
    """A router that never takes it holds no rollout for ever."""
    for one in (member.pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Ready" and one.get("lastTransitionTime"):
            return draft.now - epoch_s(str(one["lastTransitionTime"])) > UNROUTED_S
    return True


def _unlabelled(replica: Replica) -> list[SetServing]:
    """Of a replica that is wanted and that no removal is kept of: another hand took the label, or the status."""
    return [
        SetServing(member.uid, member.name, True)
        for member in replica.members
        if member.index == 0 and not member.ended and not member.terminating and not member.serving
    ]


def _roll(
    draft: _Draft,
    role: WantedRole,
    replicas: Mapping[Key, Replica],
    shapes: Mapping[Key, Shape],
    running: Key | None,
    kept: AbstractSet[Key],
) -> Rollout:
    """One replica at a time: the next goes when every other is there and, where it is new, Ready."""
    outdated: list[tuple[bool, int, Replica]] = []
    ready: list[Replica] = []
    waits = not_ready = False
    for ordinal in range(role.replicas):
        key = Key(role.name, ordinal)
        if key == running or key in kept:
            continue
        replica = replicas.get(key) or Replica(key, ())
        found = shapes.get(key, Shape.ABSENT)
        if found in (Shape.WHOLE, Shape.PARTIAL) and not is_as_specified(replica, role.spec_hash):
            outdated.append((found is Shape.WHOLE and _are_ready(replica), -ordinal, replica))
        elif found is Shape.WHOLE:
            not_ready |= not _are_ready(replica)
            ready.append(replica)
        elif found is not Shape.UNREADABLE:
            waits = True
    if not outdated:
        return Rollout.GOING if waits else Rollout.DONE
    if waits or not_ready:
        return Rollout.SUCCESSOR_NOT_READY if not_ready else Rollout.GOING
    # Those that serve nobody first, then the highest ordinal.
    serves, _, replica = min(outdated, key=lambda one: one[:2])
    if serves and not all(_is_routed(one, draft) for one in ready):
        return Rollout.SUCCESSOR_NOT_ROUTED
    draft.rolls = True
    draft.deletes += _delete([member for member in replica.members if not member.ended])
    draft.events.append(
        Event("ReplicaReplaced", f"Replica {replica.key} is not as the spec says: it drains, then its successor comes.")
    )
    return Rollout.GOING
