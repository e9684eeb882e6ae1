"""The status of a ModelDeployment, typed: what the operator writes and ``kubectl explain`` shows. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from operator_glue.model import MAX_ROLES, Kubernetes, MapList, Part, SetList

#: Aborted operations that are kept, each for its replica.
MAX_RETAINED = 32
#: A router's Pods and a replica's answering members that an operation keeps a reading of.
MAX_ROUTER_PODS, MAX_MEMBERS = 64, 64

_UID = Annotated[str, Field(max_length=64)]
_Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
_CONDITION = "io.k8s.apimachinery.pkg.apis.meta.v1.Condition"


def _camel(name: str) -> str:
    """``target_member_uids`` is targetMemberUIDs."""
    return to_camel(name).replace("Uid", "UID")


class _Status(Part):
    model_config = ConfigDict(alias_generator=_camel, extra="ignore")


class Phase(str, Enum):
    """The deployment in a word."""

    PENDING = "Pending"
    PROGRESSING = "Progressing"
    READY = "Ready"
    DEGRADED = "Degraded"
    DELETING = "Deleting"


class RetirementState(str, Enum):
    """Where the removal of a replica stands."""

    ADMITTED = "Admitted"
    DISQUALIFIED = "Disqualified"
    WITHDRAWING = "Withdrawing"
    DRAINING = "Draining"
    DELETING = "Deleting"
    SETTLING = "Settling"
    COMPLETED = "Completed"
    ABORTED = "Aborted"


class RoleStatus(_Status):
    """A role's replicas, counted."""

    name: Annotated[str, Field(max_length=40)]
    """The role's name."""
    replicas: Annotated[int, Field(ge=0)]
    """Replicas there are, those that retire or terminate among them."""
    ready_replicas: Annotated[int, Field(ge=0)]
    """Replicas whose Pods are all Ready."""
    updated_replicas: Annotated[int, Field(ge=0)]
    """Replicas that are as the spec says."""


class RouterView(_Status):
    """What a router's Pod said of the target. Kept, so that a restart of the operator keeps the baseline."""

    pod_uid: _UID
    """The router's Pod."""
    process: Annotated[str, Field(max_length=256)]
    """Tells its process from the next one: its container's id, or when the process began as its page says."""
    target_listed_at: _Time | None = None
    """When that process last listed the target."""
    absent_at: _Time | None = None
    """When it was first seen without the target since then."""
    last_absent_at: _Time | None = None
    """When it was last seen without the target."""
    absences: Annotated[int, Field(ge=0)] = 0
    """Views in a row without the target."""
    attempts: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] | None = None
    """llm-d-router's dispatches to the target by absentAt."""


class MemberReading(_Status):
    """The last reading of a member that answers for the replica."""

    pod_uid: _UID
    """The member."""
    sampled_at: _Time
    """When it was read."""
    verdict: Annotated[str, Field(max_length=32)]
    """idle, busy or held."""
    reason: Annotated[str, Field(max_length=64)] | None = None
    """Why, in a word."""
    message: Annotated[str, Field(max_length=1024)] | None = None
    """Why, in a sentence."""
    idle_since: _Time | None = None
    """When the first of the idle reads in a row began."""
    idle_reads: Annotated[int, Field(ge=0)] = 0
    """Idle reads in a row, this one included."""
    outright_reads: Annotated[int, Field(ge=0)] = 0
    """The last of them that did not rest on vLLM's /load alone."""
    load_distrusted: bool = False
    """vLLM's /load was negative once, and is not used."""
    fingerprint: Annotated[str, Field(max_length=128)] = ""
    """Of the member: its container, restarts, addresses and annotations. The same in all of the reads."""
    series: Annotated[str, Field(max_length=128)] = ""
    """Of the engine's process and its gauges' series. The same in all of the reads."""


class Retirement(_Status):
    """The removal of a replica that the spec no longer wants."""

    role_name: Annotated[str, Field(max_length=40)]
    """The role of the replica."""
    replica_ordinal: Annotated[int, Field(ge=0)]
    """The replica's place in its role, from 0."""
    state: RetirementState
    """Admitted and Disqualified: being withdrawn. Withdrawing: until no router lists the replica. Draining: until it
    has read idle twice. Deleting: until its Pods are gone. Settling: until its capacity is released. Aborted: it
    stays, until the spec says something new of it or a retry is asked for."""
    reason: Annotated[str, Field(max_length=64)] | None = None
    """Why it is there or is held, in a word."""
    message: Annotated[str, Field(max_length=2048)] | None = None
    """Why it is there or is held, in a sentence with the numbers."""
    observed_generation: Annotated[int, Field(json_schema_extra={"format": "int64"})] | None = None
    """The generation of the spec that asked for it."""
    target_member_uids: list[_UID] = Field(default_factory=list, max_length=MAX_MEMBERS)
    """The Pods of the replica, sorted."""
    target_workload_uid: _UID | None = None
    """Its Workload, under Kueue."""
    started_at: _Time | None = None
    """When it was admitted."""
    deadline: _Time | None = None
    """When it aborts, unless the replica is being deleted by then."""
    phase_started_at: _Time | None = None
    """When its phase began: Admitted, Disqualified and Withdrawing are one."""
    wanted_replicas: Annotated[int, Field(ge=0)] | None = None
    """The role's replicas in the spec then; unset when the role was not there."""
    withdrawn_at: _Time | None = None
    """When the serving label was first seen gone."""
    endpoint_gone_at: _Time | None = None
    """When first no EndpointSlice named it (ProveFromMember)."""
    proven_at: _Time | None = None
    """When the views were taken that last proved it withdrawn."""
    draining_at: _Time | None = None
    """When its engine was first to be read."""
    waiting: Annotated[int, Field(ge=0)] = 0
    """Other removals that wait for this one."""
    released: bool = False
    """Of an aborted one: the spec has said something new of it, and it is begun anew."""
    last_consumed_retry_token: Annotated[str, Field(max_length=253)] | None = None
    """The last token of drainagent.io/retirement-retry that was taken."""
    routed_out: Annotated[list[_UID], Field(max_length=MAX_ROUTER_PODS), SetList()] = Field(default_factory=list)
    """Pods of the router whose API was asked to remove it."""
    routers: Annotated[list[RouterView], MapList(("podUID",))] = Field(default_factory=list, max_length=MAX_ROUTER_PODS)
    """The last view of each router Pod."""
    readings: Annotated[list[MemberReading], MapList(("podUID",))] = Field(default_factory=list, max_length=MAX_MEMBERS)
    """The last reading of each answering member."""


class ModelDeploymentStatus(_Status):
    """What the operator has made of it so far."""

    observed_generation: Annotated[int, Field(json_schema_extra={"format": "int64"})] | None = None
    """The generation of the spec that this is about."""
    phase: Phase | None = None
    """The deployment in a word."""
    ready: Annotated[str, Field(max_length=1024)] | None = None
    """Ready and wanted replicas of each role, such as prefill 2/2, decode 3/4."""
    roles: Annotated[list[RoleStatus], MapList()] = Field(default_factory=list, max_length=2 * MAX_ROLES)
    """Each role's replicas, counted; those of a role that the spec has dropped too, until they are gone."""
    conditions: Annotated[list[Annotated[Any, Kubernetes(_CONDITION)]], MapList(("type",))] = Field(
        default_factory=list, max_length=16
    )
    """Available, Progressing and RetirementBlocked."""
    retirement: Retirement | None = None
    """The removal that is under way, or the newest that was aborted and is kept."""
    retained: list[Retirement] = Field(default_factory=list, max_length=MAX_RETAINED)
    """The removals that were aborted, each kept until the spec says something new of its replica."""
