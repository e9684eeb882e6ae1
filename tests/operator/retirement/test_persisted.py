"""The protocol's status survives the API server, and what another hand wrote there loses nothing."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_glue.retirement.data import Baseline, Key, Operation, Persisted, Reading, State, Verdict
from operator_glue.retirement.persisted import epoch_s, from_status, rfc3339, to_status
from operator_glue.retirement.reasons import Reason
from operator_glue.status import ModelDeploymentStatus

# To the microsecond, as they are written.
TIMES = st.integers(min_value=10**15, max_value=4 * 10**15).map(lambda micros: micros / 1e6)
UIDS = st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=36)
MAYBE = st.none() | TIMES
COUNTS = st.integers(min_value=0, max_value=100)
TEXT = st.text(max_size=100)

BASELINES = st.builds(Baseline, UIDS, UIDS, MAYBE, MAYBE, MAYBE, COUNTS, st.none() | COUNTS.map(float))
READINGS = st.builds(
    Reading,
    UIDS,
    TIMES,
    st.sampled_from(Verdict),
    st.none() | st.sampled_from(Reason),
    TEXT,
    MAYBE,
    COUNTS,
    COUNTS,
    st.booleans(),
    UIDS,
    UIDS,
)


def operations(states: st.SearchStrategy[State]) -> st.SearchStrategy[Operation]:
    return st.builds(
        Operation,
        key=st.builds(Key, UIDS, st.integers(min_value=0, max_value=1023)),
        generation=st.integers(min_value=0, max_value=2**40),
        wanted=st.none() | COUNTS,
        member_uids=st.lists(UIDS, max_size=4).map(lambda uids: tuple(sorted(uids))),
        workload_uid=st.none() | UIDS,
        state=states,
        reason=st.sampled_from(Reason),
        message=TEXT,
        started_at=TIMES,
        deadline=TIMES,
        phase_started_at=TIMES,
        draining_at=MAYBE,
        withdrawn_at=MAYBE,
        endpoint_gone_at=MAYBE,
        proven_at=MAYBE,
        retry_token=st.none() | UIDS,
        routers=st.lists(BASELINES, max_size=3).map(tuple),
        routed_out=st.lists(UIDS, max_size=3, unique=True).map(tuple),
        readings=st.lists(READINGS, max_size=2).map(tuple),
        waiting=COUNTS,
        released=st.booleans(),
    )


RUNNING = operations(st.sampled_from([state for state in State if state not in (State.ABORTED, State.COMPLETED)]))
ABORTED = operations(st.just(State.ABORTED))


@given(st.none() | RUNNING, st.lists(ABORTED, max_size=3).map(tuple))
def test_it_survives_the_status(operation: Operation | None, retained: tuple[Operation, ...]) -> None:
    persisted = Persisted(operation, retained)
    written = json.loads(json.dumps(to_status(persisted)))
    assert from_status(written) == (persisted, ())
    ModelDeploymentStatus.model_validate(written)


@given(ABORTED)
def test_the_newest_that_is_kept_is_shown(kept: Operation) -> None:
    assert to_status(Persisted(None, (kept,)))["retirement"]["state"] == "Aborted"


def test_ordinal_0_is_written() -> None:
    op = Operation(Key("a", 0), 1, 0, (), None, State.ADMITTED, Reason.ADMITTED, "", 1.0, 301.0, 1.0)
    assert to_status(Persisted(op))["retirement"]["replicaOrdinal"] == 0


def test_one_whose_pods_were_ended_by_another_hand_is_not_kept_twice() -> None:
    gone = Operation(Key("a", 0), 1, 0, (), None, State.ABORTED, Reason.TARGET_GONE, "", 1.0, 301.0, 1.0)
    assert from_status(to_status(Persisted(gone))) == (Persisted(gone), ())


@given(TIMES)
def test_times_are_kept_to_the_microsecond(at: float) -> None:
    assert epoch_s(rfc3339(at)) == at


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(st.none() | st.fixed_dictionaries({}, optional={"retirement": JSON, "retained": JSON}))
def test_garbage_is_nothing_written(status: Any) -> None:
    persisted, faults = from_status(status)
    assert persisted == Persisted()
    assert all(fault.startswith("status.") for fault in faults)


GOOD = to_status(
    Persisted(
        Operation(Key("a", 1), 1, 0, ("u",), "w", State.DELETING, Reason.DRAINED, "m", 1.0, 301.0, 2.0, draining_at=2.0)
    )
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "Gone"),
        ("reason", "BecauseISaySo"),
        ("reason", None),
        ("startedAt", None),
        ("startedAt", "yesterday"),
        ("deadline", "2026-12-01T00:00:00"),
        ("phaseStartedAt", "0000-00-00T00:00:00Z"),
        ("replicaOrdinal", -1),
        ("roleName", 7),
    ],
)
def test_a_field_of_another_hand_begins_it_anew(field: str, value: Any) -> None:
    status = {"retirement": {**GOOD["retirement"], field: value}, "retained": []}
    persisted, faults = from_status(status)
    assert persisted.operation is None
    (fault,) = faults
    assert fault.startswith("status.retirement was written by another hand")
