"""What the protocol is told and what it answers: plain frozen data. Pure.

Times are seconds since the epoch, in UTC. UIDs are Kubernetes'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from operator_glue.model import RouterName
from operator_glue.retirement.reasons import Reason
from operator_glue.status import RetirementState

State = RetirementState


class Key(NamedTuple):
    """A replica's place: the role's name and the ordinal."""

    role: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.role}/{self.ordinal}"


# ---- what is there


@dataclass(frozen=True)
class Member:
    """A Pod of a replica, as the cache shows it (operator_glue.retirement.members makes it of a Pod).

    ``index``: its place in the replica; 0 on a replica of one Pod; None where the label is no number.
    ``serving``: has the serving label. ``terminating``: has a deletion timestamp. ``ended``: holds nothing any more:
    terminal, or terminating and never bound to a node. ``never_ran``: no container of it ever started, or its
    scheduling gate is still on. ``main_running``, ``restarts``: of the container main. ``fingerprint``: what must not
    change between two reads: main's container id and restart count, the Pod's address, its annotations.
    ``addresses``: of the Pod. ``pod``: the object, for what is asked rarely.
    """

    uid: str
    name: str
    resource_version: str
    index: int | None
    serving: bool
    terminating: bool
    ended: bool
    never_ran: bool
    main_running: bool
    restarts: int
    fingerprint: str
    addresses: tuple[str, ...]
    grace_s: int
    pod: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Workload:
    """Kueue's, of one replica. ``resource_version``: as the cache shows it."""

    uid: str
    name: str
    resource_version: str


@dataclass(frozen=True)
class Replica:
    """``members``: every Pod that bears the role and the ordinal, ended ones too."""

    key: Key
    members: tuple[Member, ...]
    workload: Workload | None = None


# ---- what was looked up for the operation that runs


@dataclass(frozen=True)
class RouterPod:
    """A Pod of the router, from the API: Ready or not, terminating or not, but not terminal.

    ``process``: tells one process in it from the next: the container's id. ``started_at``: when that process began, of
    the container's status; None where it does not run.
    """

    uid: str
    name: str
    terminating: bool
    process: str | None
    started_at: float | None


@dataclass(frozen=True)
class ViewFault:
    """Why there is no view. ``reason`` is one of the Router… ones; ``detail`` names the cause in words."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class View:
    """What a Pod of the router says of itself, asked at its own address.

    ``taken_at``: when the question was sent. ``listed``: who it lists: addresses of Pods (vllm-router, sglang-gateway)
    or names of Pods (llm-d-router). ``workers``: by address, the handles to remove a worker by: URLs (vllm-router) or
    ids (sglang-gateway). ``unhealthy``: of ``listed``, those that it sends nothing to. llm-d-router only:
    ``process_start_s`` of the page; ``ready_endpoints``, None where the family is absent; ``attempts``: by Pod name,
    the sum of its dispatches; ``leads``: None where no leader is elected.
    """

    pod_uid: str
    taken_at: float
    fault: ViewFault | None = None
    listed: frozenset[str] = frozenset()
    workers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unhealthy: frozenset[str] = frozenset()
    process_start_s: float | None = None
    ready_endpoints: int | None = None
    attempts: Mapping[str, float] = field(default_factory=dict)
    leads: bool | None = None


@dataclass(frozen=True)
class ReadFault:
    """Why there is no envelope: one of the Exec…, AgentMissing, Member…, Container… reasons, and the cause in words."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class MemberRead:
    """One exec of the agent in a member. ``started_at``, ``ended_at``: of the whole read, by the operator's clock.

    ``before``, ``after``: the member as the API server (not the cache) showed it before and after the exec; None where
    it was not there. ``answer``: the envelope as it came, bytes of standard output, or why there is none.
    """

    pod_uid: str
    started_at: float
    ended_at: float
    before: Member | None
    after: Member | None
    answer: bytes | ReadFault


@dataclass(frozen=True)
class Endpoints:
    """EndpointSlices, asked at ``taken_at``: whether any names a target member (``listed``), ready or not."""

    taken_at: float
    listed: bool


@dataclass(frozen=True)
class Looked:
    """What the edges looked up in this pass, as ``look`` asked them to. None or empty: not asked for.

    ``router_pods``: every Pod of the router; ``views``: one for each of them. ``serving_names`` and
    ``serving_addresses``: of the deployment's Pods that bear the serving label and are Ready and not terminating, which
    is what a router that began anew has to list. ``neighbours``: all Pods on the node of a member with hostNetwork.
    ``live``: the target's Pods that are in the API server, not in a cache.
    """

    router_pods: tuple[RouterPod, ...] | None = None
    views: tuple[View, ...] = ()
    serving_names: frozenset[str] = frozenset()
    serving_addresses: frozenset[str] = frozenset()
    reads: tuple[MemberRead, ...] = ()
    endpoints: Endpoints | None = None
    neighbours: Sequence[Mapping[str, Any]] | None = None
    live: tuple[Member, ...] | None = None


@dataclass(frozen=True)
class Observation:
    """All that one pass is told of one ModelDeployment.

    ``roles``: the wanted replicas of each role of the spec; a role that is not there was dropped. ``replicas``: those
    there are, by place; one of whose Pods none is left but whose Workload is, too. ``retry``: the annotation
    drainagent.io/retirement-retry as it stands.
    """

    generation: int
    roles: Mapping[str, int]
    replicas: Mapping[Key, Replica]
    router: RouterName | None = None
    prove_from_member: bool = False
    ignore_peers: tuple[str, ...] = ()
    retry: str | None = None
    looked: Looked = field(default_factory=Looked)


# ---- what is persisted


@dataclass(frozen=True)
class Baseline:
    """What is kept of a Pod of the router (status.retirement.routers).

    ``process``: the one it is about: RouterPod.process, or the page's process start for llm-d-router.
    ``listed_at``: when that process was last seen to list the target; None: never. ``absent_at``: when it was first
    seen without it since then; ``absences``: views in a row without it, at least a second apart. ``attempts``:
    llm-d-router's dispatches to the target at ``absent_at``.
    """

    pod_uid: str
    process: str
    listed_at: float | None = None
    absent_at: float | None = None
    last_absent_at: float | None = None
    absences: int = 0
    attempts: float | None = None


class Verdict(str, Enum):
    """What the protocol makes of one read. HELD: it says nothing, the reason why."""

    IDLE = "idle"
    BUSY = "busy"
    HELD = "held"


@dataclass(frozen=True)
class Reading:
    """What is kept of a member that answers (status.retirement.readings).

    ``sampled_at``: when its last read began. ``idle_since``: when the first idle read of the present row began.
    ``idle_reads``: idle reads in a row. ``outright_reads``: those of them in a row, at the end of it, that did not rest
    on vLLM's /load alone. ``load_distrusted``: /load was negative once. ``fingerprint`` and ``series``: of the row: the
    member's, and a digest of its gauges' series and its engine's process; every read of a row has the same.
    """

    pod_uid: str
    sampled_at: float
    verdict: Verdict
    reason: Reason | None
    message: str
    idle_since: float | None = None
    idle_reads: int = 0
    outright_reads: int = 0
    load_distrusted: bool = False
    fingerprint: str = ""
    series: str = ""


@dataclass(frozen=True)
class Operation:
    """The removal of one replica (status.retirement, and each of status.retained).

    ``wanted``: the role's replicas in the spec when it was admitted; None: the role was not there. ``member_uids``:
    sorted. ``phase_started_at``: Admitted, Disqualified and Withdrawing are one phase. ``draining_at``: when Draining
    began, kept through Deleting. ``withdrawn_at``: when the serving label was first seen gone; None while it is on.
    ``endpoint_gone_at``: when first no EndpointSlice was seen to name it. ``proven_at``: when the view was taken that
    last completed the proof of withdrawal; None while it does not hold. ``routed_out``: Pods of the router, by UID,
    whose API was asked to remove the target. ``retry_token``: the last one that was taken. ``waiting``: other removals
    that wait for this one. ``released``, of an Aborted one: the spec has said something new of it, so that it is
    admitted again.
    """

    key: Key
    generation: int
    wanted: int | None
    member_uids: tuple[str, ...]
    workload_uid: str | None
    state: State
    reason: Reason
    message: str
    started_at: float
    deadline: float
    phase_started_at: float
    draining_at: float | None = None
    withdrawn_at: float | None = None
    endpoint_gone_at: float | None = None
    proven_at: float | None = None
    retry_token: str | None = None
    routers: tuple[Baseline, ...] = ()
    routed_out: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    waiting: int = 0
    released: bool = False


@dataclass(frozen=True)
class Persisted:
    """The part of the status that is the protocol's.

    ``operation``: the one that runs, or that has just ended as TargetGone. ``retained``: Aborted ones, oldest first,
    each kept for its replica (status.retirement shows the newest of them while none runs).
    """

    operation: Operation | None = None
    retained: tuple[Operation, ...] = ()


@dataclass(frozen=True)
class Withdrawal:
    """What the views of one pass say of the target (operator_glue.retirement.withdrawal).

    ``proven``: every Pod of the router is without it, by that router's rules. ``listed``: one lists it (or has just
    sent it a request). ``reason``, ``message``: of the first Pod that holds; where none does, WITHDRAWN. ``baselines``:
    what to keep, one for each Pod of the router there is. ``route_out``: removals to ask the router's API for.
    """

    proven: bool
    listed: bool
    reason: Reason
    message: str
    baselines: tuple[Baseline, ...]
    route_out: tuple[RouteOut, ...] = ()


# ---- what is answered


@dataclass(frozen=True)
class WriteStatus:
    """Under optimistic lock: on a conflict nothing that follows is issued, and the pass begins anew."""

    persisted: Persisted


@dataclass(frozen=True)
class SetServing:
    """Puts the serving label on or takes it off, of the Pod with this UID alone."""

    uid: str
    name: str
    serving: bool


@dataclass(frozen=True)
class RouteOut:
    """Asks a Pod of the router to remove a worker. ``handle``: a URL (vllm-router) or an id (sglang-gateway)."""

    router_uid: str
    handle: str


@dataclass(frozen=True)
class RouteIn:
    """Asks a Pod of the router to take the member with this UID as a worker again."""

    router_uid: str
    member_uid: str


@dataclass(frozen=True)
class DeletePod:
    """With the UID as a precondition, and the resourceVersion where it is given. Gone already is done; a conflict ends
    the pass. No grace period is given: the Pod's own stands."""

    uid: str
    name: str
    resource_version: str | None


@dataclass(frozen=True)
class DeleteWorkload:
    """With the UID as a precondition. Just before, the edge lists the replica's Pods from the API server, not from a
    cache, and refuses as by a conflict where one of them has not ended."""

    uid: str
    name: str
    key: Key


@dataclass(frozen=True)
class ClearRetry:
    """Takes the annotation drainagent.io/retirement-retry away, where it still has this value."""

    value: str


Write = WriteStatus | SetServing | RouteOut | RouteIn | DeletePod | DeleteWorkload | ClearRetry


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event on the ModelDeployment. ``reason``: CamelCase. ``lasts``: it says how things are, in each
    pass for as long as they are so, and not what has happened."""

    reason: str
    message: str
    warning: bool = False
    lasts: bool = False


@dataclass(frozen=True)
class Blocked:
    """The condition RetirementBlocked, where it is true."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Step:
    """The answer of one pass.

    ``writes``: in the order to issue them in; the status before whatever rests on it. ``events``: once the writes are
    issued. ``look_again_at``: when the next pass is due though nothing changes; None: when something does.
    ``reason``, ``message``: of the operation that runs or is kept; None where there is none.
    """

    persisted: Persisted
    writes: tuple[Write, ...] = ()
    events: tuple[Event, ...] = ()
    reason: Reason | None = None
    message: str = ""
    blocked: Blocked | None = None
    look_again_at: float | None = None


@dataclass(frozen=True)
class ReadOrder:
    """A member to read, and the command that its agent is run with."""

    member: Member
    command: tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """What the edges are to look up before the next step, for the operation that is persisted.

    ``reads``: members to read, first. ``views``: then ask every Pod of the router, so that a view is later than the
    reads. ``endpoints``: likewise read the EndpointSlices. ``neighbours``: nodes whose Pods to list. ``live``: list the
    target's Pods, since a cache may not have heard of a delete yet.
    """

    views: bool = False
    endpoints: bool = False
    reads: tuple[ReadOrder, ...] = ()
    neighbours: tuple[str, ...] = ()
    live: bool = False
