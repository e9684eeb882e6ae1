"""The protocol's part of the status, to and from plain data. Pure.

Times are RFC 3339 with microseconds. What another hand wrote there that cannot be read counts as nothing written: an
operation then begins anew, and nothing is deleted on a proof that nobody made.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from pydantic import ValidationError

from operator_glue.retirement.data import Baseline, Key, Operation, Persisted, Reading, State, Verdict
from operator_glue.retirement.reasons import Reason, reason_by_word
from operator_glue.status import MemberReading, Retirement, RouterView

#: What the status keeps of a message.
_MESSAGE_CHARS, _READING_CHARS = 2048, 1024


def rfc3339(at: float) -> str:
    """Seconds since the epoch, to the microsecond."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def epoch_s(text: str) -> float:
    """ValueError when it is no RFC 3339 time."""
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return at.timestamp()


def from_status(status: Mapping[str, Any] | None) -> tuple[Persisted, tuple[str, ...]]:
    """What is persisted, and a sentence for each part that could not be read."""
    faults: list[str] = []
    fields = status if isinstance(status, Mapping) else {}

    def read(value: Any, where: str) -> Operation | None:
        try:
            return _operation(Retirement.model_validate(value))
        except (ValidationError, ValueError, TypeError, OverflowError) as error:
            what = f"{error.error_count()} fields" if isinstance(error, ValidationError) else str(error)
            faults.append(f"{where} was written by another hand and cannot be read ({what}); it is begun anew.")
            return None

    items = fields.get("retained")
    found = (read(value, f"status.retained[{at}]") for at, value in enumerate(items if isinstance(items, list) else ()))
    retained = tuple(op for op in found if op is not None and op.state is State.ABORTED)
    value = fields.get("retirement")
    operation = None if value is None else read(value, "status.retirement")
    if operation is not None and operation.state is State.COMPLETED:
        operation = None
    if operation is not None and operation.state is State.ABORTED and operation.reason is not Reason.TARGET_GONE:
        operation = None  # shown there, kept in retained
    return Persisted(operation, retained), tuple(faults)


def to_status(persisted: Persisted) -> dict[str, Any]:
    """``retirement`` and ``retained``, each null or empty where there is nothing."""
    shown = persisted.operation or (persisted.retained[-1] if persisted.retained else None)
    return {
        "retirement": None if shown is None else _dump(shown),
        "retained": [_dump(op) for op in persisted.retained],
    }


def _at(text: str | None) -> float | None:
    return None if text is None else epoch_s(text)


def _needed(value: str | None, name: str) -> float:
    if value is None:
        raise ValueError(f"{name} is missing")
    return epoch_s(value)


def _operation(read: Retirement) -> Operation:
    reason = reason_by_word(read.reason)
    if reason is None:
        raise ValueError(f"reason {read.reason!r} is none of ours")
    return Operation(
        key=Key(read.role_name, read.replica_ordinal),
        generation=read.observed_generation or 0,
        wanted=read.wanted_replicas,
        member_uids=tuple(sorted(read.target_member_uids)),
        workload_uid=read.target_workload_uid,
        state=State(read.state.value),
        reason=reason,
        message=read.message or "",
        started_at=_needed(read.started_at, "startedAt"),
        deadline=_needed(read.deadline, "deadline"),
        phase_started_at=_needed(read.phase_started_at, "phaseStartedAt"),
        draining_at=_at(read.draining_at),
        withdrawn_at=_at(read.withdrawn_at),
        endpoint_gone_at=_at(read.endpoint_gone_at),
        proven_at=_at(read.proven_at),
        retry_token=read.last_consumed_retry_token,
        routers=tuple(
            Baseline(
                one.pod_uid,
                one.process,
                _at(one.target_listed_at),
                _at(one.absent_at),
                _at(one.last_absent_at),
                one.absences,
                one.attempts,
            )
            for one in read.routers
        ),
        routed_out=tuple(read.routed_out),
        readings=tuple(
            Reading(
                one.pod_uid,
                epoch_s(one.sampled_at),
                Verdict(one.verdict),
                reason_by_word(one.reason),
                one.message or "",
                _at(one.idle_since),
                one.idle_reads,
                one.outright_reads,
                one.load_distrusted,
                one.fingerprint,
                one.series,
            )
            for one in read.readings
        ),
        waiting=read.waiting,
        released=read.released,
    )


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)


def _dump(op: Operation) -> dict[str, Any]:
    status = Retirement(
        role_name=op.key.role,
        replica_ordinal=op.key.ordinal,
        state=op.state,
        reason=op.reason.word,
        message=op.message[:_MESSAGE_CHARS],
        observed_generation=op.generation,
        target_member_uids=list(op.member_uids),
        target_workload_uid=op.workload_uid,
        started_at=rfc3339(op.started_at),
        deadline=rfc3339(op.deadline),
        phase_started_at=rfc3339(op.phase_started_at),
        wanted_replicas=op.wanted,
        withdrawn_at=_time(op.withdrawn_at),
        endpoint_gone_at=_time(op.endpoint_gone_at),
        proven_at=_time(op.proven_at),
        draining_at=_time(op.draining_at),
        waiting=op.waiting,
        released=op.released,
        last_consumed_retry_token=op.retry_token,
        routed_out=list(op.routed_out),
        routers=[
            RouterView(
                pod_uid=one.pod_uid,
                process=one.process,
                target_listed_at=_time(one.listed_at),
                absent_at=_time(one.absent_at),
                last_absent_at=_time(one.last_absent_at),
                absences=one.absences,
                attempts=None if one.attempts is None else int(one.attempts),
            )
            for one in op.routers
        ],
        readings=[
            MemberReading(
                pod_uid=one.pod_uid,
                sampled_at=rfc3339(one.sampled_at),
                verdict=one.verdict.value,
                reason=None if one.reason is None else one.reason.word,
                message=one.message[:_READING_CHARS],
                idle_since=_time(one.idle_since),
                idle_reads=one.idle_reads,
                outright_reads=one.outright_reads,
                load_distrusted=one.load_distrusted,
                fingerprint=one.fingerprint,
                series=one.series,
            )
            for one in op.readings
        ],
    )
    # replicaOrdinal is 0 on the first replica and is written all the same; what is None is left out.
    return status.model_dump(by_alias=True, exclude_none=True, mode="json")
