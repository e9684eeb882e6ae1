"""Which Pods are made and deleted beside the protocol: creation, lost members, doubled ones, rollout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_pods import DEPLOYMENT, UID, name, placed, pod

from operator_glue import names
from operator_glue.reconcile.placing import place
from operator_glue.reconcile.pods import PodPlan, Rollout, Shape, WantedRole, plan_pods, shape
from operator_glue.retirement.data import Key, Replica

NOW = 1000.0


def role(replicas: int = 1, size: int = 1, spec_hash: str = "h1", role_name: str = "server") -> WantedRole:
    return WantedRole(role_name, replicas, size, spec_hash)


def plan(*pods: Any, roles: list[WantedRole] | None = None, running: Key | None = None, **more: Any) -> PodPlan:
    kept, not_before = more.pop("kept", frozenset()), more.pop("not_before", {})
    return plan_pods(roles or [role(**more)], placed(*pods).replicas, running, kept, NOW, not_before)


def deleted(found: PodPlan) -> set[str]:
    return {one.name for one in found.deletes}


def made(found: PodPlan) -> list[tuple[int, tuple[int, ...]]]:
    return [(one.key.ordinal, one.indices) for one in found.creates]


def reasons(found: PodPlan) -> list[str]:
    return [event.reason for event in found.events]


# ---- shapes

SHAPES = [
    ([], Shape.ABSENT),
    ([pod()], Shape.WHOLE),
    ([pod(ready=False)], Shape.WHOLE),
    ([pod(terminating=True)], Shape.ENDING),
    ([pod(phase="Failed")], Shape.ENDING),
    ([pod(phase="Failed", terminating=True, kueue=True)], Shape.ABSENT),
    ([pod(phase="Failed", kueue=True)], Shape.ENDING),
    ([pod(phase="Succeeded", terminating=True, kueue=True)], Shape.ENDING),
    ([pod(index=0, size=2), pod(index=1, size=2)], Shape.WHOLE),
    ([pod(index=0, size=2)], Shape.LOST),
    ([pod(index=0, size=2, ran=False)], Shape.PARTIAL),
    ([pod(index=0, size=2), pod(index=1, size=2, terminating=True)], Shape.LOST),
    ([pod(index=0, size=2), pod(index=1, size=2, phase="Failed")], Shape.LOST),
    ([pod(index=0, size=2, terminating=True), pod(index=1, size=2, terminating=True)], Shape.ENDING),
    # Of two in one place, one goes: that is no loss.
    ([pod(), pod(terminating=True)], Shape.WHOLE),
]


@pytest.mark.parametrize(("pods", "found"), SHAPES)
def test_shapes(pods: list[Any], found: Shape) -> None:
    assert shape(placed(*pods).replicas.get(Key("server", 0)) or Replica(Key("server", 0), ())) is found


def test_labels_that_cannot_be_read() -> None:
    odd = pod(index=0)
    odd["metadata"]["labels"][names.MEMBER_INDEX_LABEL] = "first"
    found = plan(odd)
    assert (found.deletes, found.creates, reasons(found)) == ((), (), ["MemberUnreadable"])


# ---- creation


def test_made_when_nothing_is_left() -> None:
    assert made(plan(replicas=2)) == [(0, (0,)), (1, (0,))]
    assert made(plan(pod(0), replicas=2)) == [(1, (0,))]
    assert made(plan(replicas=1, size=3)) == [(0, (0, 1, 2))]


@pytest.mark.parametrize(
    "there", [pod(terminating=True), pod(phase="Failed"), pod(phase="Succeeded", terminating=True)]
)
def test_not_made_while_a_pod_is_left(there: Any) -> None:
    found = plan(there)
    assert found.creates == ()
    assert deleted(found) == (set() if "deletionTimestamp" in there["metadata"] else {name(there)})


def test_made_beside_what_kueue_alone_holds() -> None:
    """It goes when its successor joins the group (evidence §9)."""
    assert made(plan(pod(phase="Failed", terminating=True, kueue=True))) == [(0, (0,))]


def test_a_group_that_kueue_counts_as_done_goes_first() -> None:
    """Its Pods go with its Workload; a successor of the same group would be one too many."""
    ended = [pod(0, n, size=2, phase="Succeeded", terminating=True, kueue=True) for n in range(2)]
    there = placed(*ended, workloads=[workload("llama.server.0", ended[0]["metadata"]["uid"])])
    found = plan_pods([role(1, 2)], there.replicas, None, frozenset(), NOW, {})
    assert [one.name for one in found.workloads] == ["llama.server.0"]
    assert found.creates == ()
    running = placed(ended[0], pod(0, 1, size=2, terminating=True), workloads=[workload("llama.server.0")])
    assert plan_pods([role(1, 2)], running.replicas, None, frozenset(), NOW, {}).workloads == ()


def test_a_pass_that_was_cut_between_two_members_is_completed() -> None:
    assert made(plan(pod(0, 0, size=3, ran=False), size=3)) == [(0, (1, 2))]


def test_put_off_after_it_ended_again_and_again() -> None:
    found = plan(not_before={Key("server", 0): NOW + 20})
    assert (found.creates, found.due) == ((), NOW + 20)
    assert made(plan(not_before={Key("server", 0): NOW})) == [(0, (0,))]


def test_what_is_not_wanted_is_the_protocols() -> None:
    found = plan(pod(0), pod(1), pod(2, ready=False), replicas=1)
    assert (found.deletes, found.creates, found.labels) == ((), (), ())


def test_what_ended_of_the_unwanted_is_cleared_away() -> None:
    ended = pod(1, phase="Failed")
    assert deleted(plan(pod(0), ended, replicas=1)) == {name(ended)}
    assert deleted(plan(pod(0), ended, replicas=1, running=Key("server", 1))) == set()


# ---- lost and doubled members


@pytest.mark.parametrize("wanted", [1, 0])
def test_a_lost_member_takes_its_whole_replica(wanted: int) -> None:
    """Of an unwanted one too: it serves nobody."""
    alive = [pod(0, 0, size=3), pod(0, 1, size=3)]
    found = plan(*alive, roles=[role(wanted, 3)])
    assert deleted(found) == {name(one) for one in alive}
    assert "MemberLost" in reasons(found)
    assert found.creates == ()


def test_not_of_the_replica_whose_removal_runs() -> None:
    found = plan(pod(1, 0, size=2), roles=[role(0, 2)], running=Key("server", 1))
    assert found.deletes == ()


def test_of_two_in_one_place_the_younger_goes() -> None:
    old, young = pod(created="2026-12-01T00:00:00Z"), pod(created="2026-12-01T00:00:05Z")
    found = plan(young, old)
    assert deleted(found) == {name(young)}
    assert reasons(found) == ["DoubledMember"]


# ---- labels


def test_a_label_that_was_taken_away_comes_back() -> None:
    bare = pod(serving=False)
    (label,) = plan(bare).labels
    assert (label.name, label.serving) == (name(bare), True)
    assert plan(bare, kept=frozenset({Key("server", 0)})).labels == ()
    assert plan(bare, running=Key("server", 0)).labels == ()
    assert plan(pod(serving=False, terminating=True)).labels == ()


def test_followers_have_none() -> None:
    assert plan(pod(0, 0, size=2), pod(0, 1, size=2), size=2).labels == ()


# ---- rollout


def test_one_at_a_time_from_the_highest() -> None:
    pods = [pod(n) for n in range(3)]
    found = plan(*pods, replicas=3, spec_hash="h2")
    assert deleted(found) == {name(pods[2])}
    assert reasons(found) == ["ReplicaReplaced"]
    assert found.rollouts == {"server": Rollout.GOING}


def test_those_that_are_not_ready_go_first() -> None:
    pods = [pod(0), pod(1, ready=False), pod(2)]
    assert deleted(plan(*pods, replicas=3, spec_hash="h2")) == {name(pods[1])}


@pytest.mark.parametrize(
    ("successor", "rollout"),
    [
        ([], Rollout.GOING),
        ([pod(2, terminating=True)], Rollout.GOING),
        ([pod(2, hashed="h2", ready=False)], Rollout.SUCCESSOR_NOT_READY),
        ([pod(2, hashed="h2", ran=False)], Rollout.SUCCESSOR_NOT_READY),
    ],
)
def test_the_next_waits_for_the_successor(successor: list[Any], rollout: Rollout) -> None:
    found = plan(pod(0), pod(1), *successor, replicas=3, spec_hash="h2")
    assert found.deletes == ()
    assert found.rollouts == {"server": rollout}


def test_a_rollout_that_broke_is_mended_by_the_next() -> None:
    """The one that never got Ready is the first that the next spec replaces."""
    pods = [pod(0), pod(1, hashed="h2", ready=False)]
    assert deleted(plan(*pods, replicas=2, spec_hash="h3")) == {name(pods[1])}


def test_a_rollout_leaves_removals_alone() -> None:
    pods = [pod(n) for n in range(4)]
    found = plan(*pods, replicas=3, spec_hash="h2", running=Key("server", 2), kept=frozenset({Key("server", 1)}))
    assert deleted(found) == {name(pods[0])}


def test_of_several_pods_all_go_together() -> None:
    pods = [pod(0, 0, size=2), pod(0, 1, size=2)]
    assert deleted(plan(*pods, size=2, spec_hash="h2")) == {name(one) for one in pods}


def test_another_number_of_replicas_replaces_none() -> None:
    pods = [pod(n) for n in range(2)]
    found = plan(*pods, replicas=3)
    assert (found.deletes, made(found)) == ((), [(2, (0,))])


def test_a_pod_without_a_hash_is_replaced_once() -> None:
    """As one that was made before there was a hook."""
    bare = pod()
    del bare["metadata"]["annotations"]
    assert deleted(plan(bare)) == {name(bare)}


# ---- whose they are


def test_strangers_are_told_of_and_not_counted() -> None:
    stranger = pod(5, owner="somebody else")
    found = place(DEPLOYMENT, UID, [stranger, pod(0)])
    assert found.strangers == (name(stranger),)
    assert list(found.replicas) == [Key("server", 0)]


def test_ours_without_a_place() -> None:
    lost = pod()
    lost["metadata"]["labels"][names.ORDINAL_LABEL] = "many"
    found = place(DEPLOYMENT, UID, [lost])
    assert [one.name for one in found.unplaced] == [name(lost)]
    assert found.replicas == {}


def test_the_routers_pods_are_no_replicas() -> None:
    assert place(DEPLOYMENT, UID, [pod(role="router", owner="a ReplicaSet")]).strangers == ()


def workload(label: str, *owners: str) -> dict[str, Any]:
    references = [{"kind": "Pod", "uid": owner} for owner in owners]
    return {"metadata": {"name": label, "uid": f"w-{label}", "resourceVersion": "1", "ownerReferences": references}}


def test_workloads_by_their_groups_name() -> None:
    one = pod(1)
    found = place(
        DEPLOYMENT,
        UID,
        [one, pod(2)],
        [
            workload("llama.server.1", one["metadata"]["uid"]),
            workload("llama.server.2", "a Pod of somebody else"),
            workload("llama.server.7"),
            workload("llama.server"),
            workload("other.server.1"),
            workload("llama.server.x"),
        ],
    )
    assert {key.ordinal: replica.workload is not None for key, replica in found.replicas.items()} == {
        1: True,
        2: False,
        7: True,
    }


@pytest.mark.parametrize(
    ("routed", "goes"),
    [(None, True), ({"10.0.0.1", "10.0.0.2"}, True), ({"10.0.0.1"}, False), (set(), False), ({"NAME"}, True)],
)
def test_the_next_waits_for_the_router_to_take_the_successor(routed: set[str] | None, goes: bool) -> None:
    """A router takes an engine some time after it is Ready. The one that goes itself need not be listed."""
    old, new = pod(0), pod(1, hashed="h2")
    new["status"]["podIP"] = "10.0.0.2"
    new["status"]["conditions"][0]["lastTransitionTime"] = "1970-01-01T00:16:00Z"  # 40 s ago
    if routed == {"NAME"}:
        routed = {name(new)}
    found = plan_pods([role(2, 1, "h2")], placed(old, new).replicas, None, frozenset(), NOW, {}, routed)
    assert deleted(found) == ({name(old)} if goes else set())
    assert found.rolls is goes
    assert found.rollouts["server"] is (Rollout.GOING if goes else Rollout.SUCCESSOR_NOT_ROUTED)
    assert (found.due is None) is goes
    new["status"]["conditions"][0]["lastTransitionTime"] = "1970-01-01T00:14:00Z"  # 160 s ago: not for ever
    late = plan_pods([role(2, 1, "h2")], placed(old, new).replicas, None, frozenset(), NOW, {}, routed)
    assert deleted(late) == {name(old)}
