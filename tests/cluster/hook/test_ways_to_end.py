"""Deletes of other kinds: shorter, forced, repeated, evictions, and those of a Pod that has just changed."""

from __future__ import annotations

import pytest

from hook.clients import stream
from hook.contract import KILL_PAST_GRACE_S, NODE_S, STARTED_WITHIN_S, check_window
from hook.manifests import PORTS, engine_container, pod
from hook.stage import SPARE_S, Stage, sleep_until

PORT = PORTS["vllm"]
TOO_MANY_REQUESTS = 429


@pytest.mark.seconds(11)
def test_a_delete_with_a_shorter_grace_is_not_told_to_the_hook(stage: Stage) -> None:
    plain = pod(stage.name("shorter"), [engine_container("vllm")], 30)
    replica = stage.start(stage.inject(plain))
    stage.curtain()
    api = replica.place.api
    seen = stage.leave(
        replica, 30, (stream(-2, 7), stream(-1, 60)), port=PORT, delete=lambda: api.delete_pod(replica.name, 10)
    )
    check_window(seen, 30, stage.figures, "short")
    assert seen.hook is not None
    assert seen.hook.started_s is not None
    assert seen.main.ended_s is not None
    # The settle is kept, and what ends by then is whole.
    assert len(seen.lost) == 1
    sigterm_s = seen.since_s(seen.sigterm_s)
    assert 10 <= sigterm_s <= 10 + STARTED_WITHIN_S
    assert seen.main.ended_s - seen.hook.started_s <= 10 + 2 + KILL_PAST_GRACE_S + NODE_S
    # It gets no signal and goes with the container.
    assert seen.hook.ended_s is not None
    assert abs(seen.hook.ended_s - seen.main.ended_s) <= NODE_S
    assert not any(line["event"] == "outcome" for line in seen.hook_lines)
    stage.figures.add("--grace-period=10: delete to SIGTERM", "Pod's grace 30, the hook busy", sigterm_s)


@pytest.mark.seconds(3)
def test_a_forced_delete_leaves_no_time_for_anything(stage: Stage) -> None:
    plain = pod(stage.name("forced"), [engine_container("vllm")], 30)
    replica = stage.start(stage.inject(plain))
    stage.curtain()
    api = replica.place.api
    seen = stage.leave(
        replica,
        30,
        (stream(-2, 8),),
        port=PORT,
        delete=lambda: api.delete_pod(replica.name, 0),
        object_stays=False,
    )
    gone = replica.wait("the object's end", lambda c: c.kind == "DELETED", 5)
    assert seen.since_s(gone.at_s) <= 1
    gone_s = seen.since_s(seen.main.ended_s)
    assert gone_s <= 10, "a forced delete left a container for long"
    assert len(seen.lost) == 1
    stage.figures.add("--force: delete to the container's end", "as the first delete", gone_s)


@pytest.mark.seconds(12)
def test_a_forced_delete_during_the_hook_takes_the_object_and_leaves_the_window(stage: Stage) -> None:
    replica = stage.start(stage.inject(pod(stage.name("forced-later"), [engine_container("vllm")], 30)))
    stage.curtain()
    api = replica.place.api

    def force(delete_at: float) -> None:
        replica.hook()
        sleep_until(delete_at + 3)
        forced_s = api.delete_pod(replica.name, 0).sent_s
        gone = replica.wait("the object's end", lambda c: c.kind == "DELETED", 5)
        assert gone.at_s - forced_s <= 1

    seen = stage.leave(replica, 30, (stream(-2, 8),), port=PORT, meanwhile=force, object_stays=False)
    check_window(seen, 30, stage.figures)
    assert seen.lost == []
    assert seen.outcome["outcome"] == "idle", seen.text


@pytest.mark.seconds(11)
def test_a_second_delete_during_the_hook_changes_nothing_on_the_node(stage: Stage) -> None:
    plain = pod(stage.name("twice"), [engine_container("vllm")], 30)
    replica = stage.start(stage.inject(plain))
    stage.curtain()
    api = replica.place.api

    def again(delete_at: float) -> None:
        for at_s, grace_s in ((2, 60), (3, 1)):
            sleep_until(delete_at + at_s)
            assert api.delete_pod(replica.name, grace_s).status == 200

    seen = stage.leave(replica, 30, (stream(-2, 8), stream(4, 7)), port=PORT, meanwhile=again)
    check_window(seen, 30, stage.figures)
    assert seen.lost == []
    assert seen.outcome["outcome"] == "idle", seen.text


@pytest.mark.seconds(12)
def test_an_eviction_runs_the_hook_and_a_disruption_budget_holds_the_next(stage: Stage) -> None:
    name = stage.name("evicted")
    first = pod(name, [engine_container("vllm")], 30)
    second = pod(f"{name}-b", [engine_container("vllm")], 30)
    second["metadata"]["labels"] = first["metadata"]["labels"]
    kube, api = stage.place.kube, stage.place.api
    stage.apply(stage.inject(second))
    budget = {"minAvailable": 1, "selector": {"matchLabels": first["metadata"]["labels"]}}
    kube.apply({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": budget})
    replica, other = stage.start_all(stage.inject(first), 2)
    kube.wait(f"poddisruptionbudget/{name}", "jsonpath={.status.disruptionsAllowed}=1")
    stage.curtain()

    def evict_the_other(delete_at: float) -> None:
        for at_s in (0.5, 7):
            sleep_until(delete_at + at_s)
            assert api.evict(other.name).status == TOO_MANY_REQUESTS

    seen = stage.leave(
        replica,
        30,
        (stream(-2, 8), stream(3, 6)),
        port=PORT,
        delete=lambda: api.evict(replica.name),
        meanwhile=evict_the_other,
    )
    check_window(seen, 30, stage.figures)
    assert seen.lost == []
    kube.delete(f"poddisruptionbudget/{name}")
    last = stage.leave(other, 30, delete=lambda: api.evict(other.name))
    check_window(last, 30, stage.figures)


@pytest.mark.alone
def test_the_delete_of_a_pod_that_has_just_changed(stage: Stage) -> None:
    """The kubelet is up to 2 s late then; the settle counts from the hook's own start."""
    left = []
    stage.curtain()
    for _ in range(3):
        replica = stage.start(stage.inject(pod(stage.name("fresh"), [engine_container("vllm")], 15)))
        deleted = replica.place.api.delete_pod(replica.name)
        started_s = replica.hook().started_s
        assert started_s is not None
        meaning = "deleted on its first Ready"
        stage.figures.add(
            "Pod just ready: delete to the hook's process", meaning, started_s - deleted.sent_s, spread=True
        )
        left.append((replica, deleted))
    for replica, deleted in left:
        check_window(replica.seen(deleted, 15 + SPARE_S), 15)
