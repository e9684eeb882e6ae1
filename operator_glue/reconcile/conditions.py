"""The status of a ModelDeployment, beside the retirement protocol's part: counts, phase, conditions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from operator_glue.reconcile.pods import Rollout, WantedRole, is_as_specified, is_replica_ready
from operator_glue.retirement.data import Blocked, Key, Operation, Replica
from operator_glue.retirement.persisted import rfc3339
from operator_glue.status import Phase

#: A condition's message is at most so long (Kubernetes' own bound).
_MESSAGE_CHARS = 32768


class Condition(Enum):
    """The conditions' types, with what each says when it is True."""

    AVAILABLE = ("Available", "Every role has all its replicas but one Ready, and at least one; so has the router.")
    PROGRESSING = ("Progressing", "The deployment is as the spec says, or on its way; False: something stops it.")
    RETIREMENT_BLOCKED = ("RetirementBlocked", "A replica that is to go does not, and somebody has to look.")

    def __init__(self, word: str, sentence: str) -> None:
        self.word, self.sentence = word, sentence


class Why(Enum):
    """The reasons of Available and Progressing, with what each means. RetirementBlocked has the protocol's."""

    READY_REPLICAS = ("ReadyReplicas", "Enough replicas are Ready.")
    TOO_FEW_REPLICAS = ("TooFewReplicas", "Too few replicas are Ready.")
    ROUTER_NOT_READY = ("RouterNotReady", "No Pod of the router is Ready.")
    COMPLETE = ("Complete", "Everything is as the spec says.")
    CREATING = ("Creating", "Replicas are being made, or are not Ready yet.")
    ROLLING_OUT = ("RollingOut", "Replicas are being replaced, one at a time.")
    RETIRING = ("Retiring", "A replica that the spec no longer wants is leaving.")
    SUCCESSOR_NOT_READY = ("SuccessorNotReady", "The rollout waits for a replica to be Ready.")
    INVALID_SPEC = ("InvalidSpec", "The spec is refused; nothing is made, changed or deleted until it is right.")
    NAME_TAKEN = ("NameTaken", "An object with a name that is needed belongs to somebody else.")
    REFUSED = ("Refused", "The API server refuses what is to be made.")
    DELETING = ("Deleting", "The deployment is being removed; its Pods drain by their hooks.")

    def __init__(self, word: str, sentence: str) -> None:
        self.word, self.sentence = word, sentence


@dataclass(frozen=True)
class Trouble:
    """What stops the deployment. ``why``: the reason of Progressing=False."""

    why: Why
    message: str


@dataclass(frozen=True)
class Seen:
    """``router_ready``: Pods of the router that are Ready; None: there is no router, or it has no Pods by the spec."""

    generation: int
    roles: Sequence[WantedRole]
    replicas: Mapping[Key, Replica]
    rollouts: Mapping[str, Rollout]
    router_ready: int | None
    operation: Operation | None
    blocked: Blocked | None
    trouble: Trouble | None = None
    deleting: bool = False


@dataclass(frozen=True)
class _Counts:
    name: str
    wanted: int
    there: int
    ready: int
    updated: int

    @property
    def is_available(self) -> bool:
        return self.ready >= max(self.wanted - 1, min(self.wanted, 1))

    @property
    def is_whole(self) -> bool:
        return self.ready >= self.wanted and self.updated >= self.wanted


def status_of(before: Mapping[str, Any], seen: Seen, now: float) -> dict[str, Any]:
    """The whole status. ``before``: as it stands; what is another's in it stays, and a condition that says the same
    keeps its time."""
    counts = _counts(seen)
    conditions = [
        _available(counts, seen),
        _progressing(counts, seen),
        _retirement_blocked(seen),
    ]
    return {
        **before,
        "observedGeneration": seen.generation,
        "phase": _phase(counts, seen, before).value,
        "ready": ", ".join(f"{one.name} {one.ready}/{one.wanted}" for one in counts)[:1024],
        "roles": [
            {
                "name": one.name,
                "replicas": one.there,
                "readyReplicas": one.ready,
                "updatedReplicas": one.updated,
            }
            for one in counts
        ],
        "conditions": _merged(before.get("conditions"), conditions, seen.generation, now),
    }


def _counts(seen: Seen) -> list[_Counts]:
    """The spec's roles in their order, then those that it has dropped and that still have Pods."""
    wanted = {role.name: role for role in seen.roles}
    there: dict[str, int] = {}
    ready: dict[str, int] = {}
    updated: dict[str, int] = {}
    for key, replica in seen.replicas.items():
        alive = [member for member in replica.members if not member.ended]
        if not alive:
            continue
        there[key.role] = there.get(key.role, 0) + 1
        ready[key.role] = ready.get(key.role, 0) + is_replica_ready(replica)
        role = wanted.get(key.role)
        if role is not None and key.ordinal < role.replicas and not any(member.terminating for member in alive):
            updated[key.role] = updated.get(key.role, 0) + is_as_specified(replica, role.spec_hash)
    every = [*wanted, *sorted(set(there) - set(wanted))]
    return [
        _Counts(
            name,
            wanted[name].replicas if name in wanted else 0,
            there.get(name, 0),
            ready.get(name, 0),
            updated.get(name, 0),
        )
        for name in every
    ]


_Said = tuple[Condition, bool, "Why | str", str]


def _available(counts: Sequence[_Counts], seen: Seen) -> _Said:
    few = [one for one in counts if not one.is_available]
    if few:
        told = ", ".join(f"{one.name} {one.ready} of {one.wanted}" for one in few)
        return Condition.AVAILABLE, False, Why.TOO_FEW_REPLICAS, f"Ready are {told}."
    if seen.router_ready == 0:
        return Condition.AVAILABLE, False, Why.ROUTER_NOT_READY, Why.ROUTER_NOT_READY.sentence
    told = ", ".join(f"{one.name} {one.ready} of {one.wanted}" for one in counts)
    return Condition.AVAILABLE, True, Why.READY_REPLICAS, f"Ready are {told}."


def _progressing(counts: Sequence[_Counts], seen: Seen) -> _Said:
    what = Condition.PROGRESSING
    if seen.deleting:
        left = sum(one.there for one in counts)
        return what, True, Why.DELETING, f"{left} replicas are left; they drain by their hooks."
    if seen.trouble is not None:
        return what, False, seen.trouble.why, seen.trouble.message
    stuck = [name for name, rollout in seen.rollouts.items() if rollout is Rollout.SUCCESSOR_NOT_READY]
    if stuck:
        message = f"The rollout of {', '.join(stuck)} waits for a replica to be Ready."
        return what, False, Why.SUCCESSOR_NOT_READY, message
    rolling = [one.name for one in counts if one.updated < min(one.there, one.wanted)]
    if rolling:
        return what, True, Why.ROLLING_OUT, f"Replicas of {', '.join(rolling)} are being replaced, one at a time."
    behind = [one for one in counts if not one.is_whole]
    if behind:
        told = ", ".join(f"{one.name} {one.ready} of {one.wanted}" for one in behind)
        return what, True, Why.CREATING, f"Ready are {told}."
    if seen.router_ready == 0:
        return what, True, Why.CREATING, Why.ROUTER_NOT_READY.sentence
    if seen.operation is not None:
        return what, True, Why.RETIRING, f"Replica {seen.operation.key} is leaving: {seen.operation.message}"
    return what, True, Why.COMPLETE, Why.COMPLETE.sentence


def _retirement_blocked(seen: Seen) -> _Said:
    if seen.blocked is not None:
        return Condition.RETIREMENT_BLOCKED, True, seen.blocked.reason.word, seen.blocked.message
    return Condition.RETIREMENT_BLOCKED, False, "NotBlocked", "No removal needs anybody."


def _phase(counts: Sequence[_Counts], seen: Seen, before: Mapping[str, Any]) -> Phase:
    if seen.deleting:
        return Phase.DELETING
    if (
        seen.trouble is None
        and seen.operation is None
        and all(one.is_whole for one in counts)
        and seen.router_ready != 0
    ):
        return Phase.READY
    if _available(counts, seen)[1]:
        return Phase.PROGRESSING if seen.trouble is None else Phase.DEGRADED
    # Before it has been available once, it is on its way.
    been = before.get("phase") in (Phase.READY.value, Phase.DEGRADED.value, Phase.PROGRESSING.value)
    return Phase.DEGRADED if been or seen.trouble is not None else Phase.PENDING


def _merged(before: Any, conditions: Sequence[_Said], generation: int, now: float) -> list[dict[str, Any]]:
    known = {one.get("type"): one for one in before or () if isinstance(one, Mapping)}
    ours = {condition.word for condition, *_ in conditions}
    found = [dict(one) for kind, one in known.items() if kind not in ours]
    for condition, holds, why, message in conditions:
        status, was = str(holds), known.get(condition.word) or {}
        since = was.get("lastTransitionTime") if was.get("status") == status else None
        found.append(
            {
                "type": condition.word,
                "status": status,
                "reason": why if isinstance(why, str) else why.word,
                "message": message[:_MESSAGE_CHARS],
                "observedGeneration": generation,
                # To the second, as Kubernetes keeps it.
                "lastTransitionTime": since or rfc3339(int(now)).replace(".000000", ""),
            }
        )
    return found
