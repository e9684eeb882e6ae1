"""Passes of the controller at a fake API server: caches that are kept and that are behind, answers lost and late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_api import Call, FakeApi
from passes import (
    NAME,
    NAMESPACE,
    NOW,
    Operator,
    condition,
    deployment,
    edit_pod,
    ended,
    model_deployment,
    operating,
    ordinals,
    owned,
    pod_of,
    ready,
    reasons,
    run,
    spec,
    started,
    status,
)

from operator_glue import names
from operator_glue.kube import (
    DEPLOYMENTS,
    EVENTS,
    MODEL_DEPLOYMENTS,
    PODS,
    SERVICES,
    KubeError,
    Object,
    Unreachable,
)
from operator_glue.reconcile.removal import FINALIZER
from operator_glue.runtime.controller import CREATIONS, FIRST_REMAKE_S, REMOVAL_S, Outcome
from operator_glue.runtime.lease import NotLeading
from operator_glue.runtime.writing import Cut

Body = Callable[[FakeApi, Operator], Awaitable[None]]


def passes(folder: Path, thing: Object, body: Body) -> None:
    async def test() -> None:
        async with operating(folder, thing) as (api, operator):
            await body(api, operator)

    run(test())


async def settled(api: FakeApi, operator: Operator) -> None:
    """All Pods are there and Ready, and a pass has said so."""
    await operator.settled_work()
    ready(api)
    await operator.settled_work()
    assert status(api)["phase"] == "Ready"
    await operator.heard()


def pod_writes(api: FakeApi) -> list[str]:
    return [call.method for call in api.writes if call.resource == PODS]


# ---- creation


def test_from_nothing_to_ready(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await operator.work()
        assert deployment(api)["metadata"]["finalizers"] == [FINALIZER]
        assert status(api)["phase"] == "Pending"
        assert [item["metadata"]["name"] for item in api.all(SERVICES)] == [f"{NAME}-server"]
        ready(api)
        assert await operator.settled_work() == Outcome()
        assert (status(api)["phase"], status(api)["ready"]) == ("Ready", "server 2/2")
        writes = len(api.writes)
        await operator.settled_work()
        assert len(api.writes) == writes, "what is as it is to be is not written"
        assert reasons(api) == ["ReplicasCreated"]

    passes(tmp_path, model_deployment(), body)


def test_a_silent_watch_makes_nothing_twice(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        api.hold(PODS, MODEL_DEPLOYMENTS, SERVICES)
        for _ in range(4):
            await operator.work()
        assert ordinals(api) == [0, 1]
        assert pod_writes(api) == ["POST", "POST"]
        assert len(api.asked("PATCH", SERVICES)) == 1
        assert len(api.asked("PATCH", MODEL_DEPLOYMENTS, "status")) == 1
        api.release(PODS, MODEL_DEPLOYMENTS, SERVICES)
        await operator.settled_work()
        assert pod_writes(api) == ["POST", "POST"]

    passes(tmp_path, model_deployment(), body)


def test_an_operator_that_knows_nothing_of_the_last_ones_writes_asks_before_it_makes_any(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        other = Operator(api, operator.kube)
        await other.start()
        api.hold(PODS, SERVICES)
        await operator.work()
        await other.heard(MODEL_DEPLOYMENTS)
        await other.work()
        await other.stop()
        assert pod_writes(api) == ["POST", "POST"]

    passes(tmp_path, model_deployment(), body)


@pytest.mark.parametrize("is_behind", [True, False], ids=["the watch is silent", "the watch tells"])
@pytest.mark.parametrize("skip", [0, 1])
def test_a_creations_answer_is_lost(tmp_path: Path, skip: int, is_behind: bool) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        if is_behind:
            api.hold(PODS)
        api.fault("POST", PODS, lost=True, skip=skip)
        with pytest.raises(Unreachable):
            await operator.work()
        if not is_behind:
            await operator.heard()
        await operator.work()
        assert ordinals(api) == [0, 1]
        assert pod_writes(api) == ["POST", "POST"]

    passes(tmp_path, model_deployment(), body)


def test_no_creation_outlives_its_pass(tmp_path: Path) -> None:
    """Else the next pass would make what is being made."""

    async def body(api: FakeApi, operator: Operator) -> None:
        errors: list[KubeError] = []

        def failed(error: KubeError) -> None:
            errors.append(error)
            api.tell()

        operator.controller.kube.failed = failed
        api.fault_where(lambda call: is_creation(call, "0"), lost=True)
        late = api.gate("POST", PODS)
        work = asyncio.ensure_future(operator.work())
        await api.until(lambda: late.waiting == 1 and ordinals(api) == [0])
        await api.until(lambda: bool(errors))
        for _ in range(20):
            await asyncio.sleep(0)
        done_early = work.done()
        late.release()
        with pytest.raises(Unreachable):
            await work
        assert not done_early
        assert ordinals(api) == [0, 1]
        await operator.settled_work()
        assert pod_writes(api) == ["POST", "POST"]

    def is_creation(call: Call, ordinal: str) -> bool:
        return bool(
            call.method == "POST"
            and call.resource == PODS
            and call.body["metadata"]["labels"][names.ORDINAL_LABEL] == ordinal
        )

    passes(tmp_path, model_deployment(), body)


def test_without_an_answer_no_further_creation_is_begun(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        api.fault("POST", PODS, status=500, times=1_000)
        with pytest.raises(KubeError):
            await operator.work()
        assert len(api.asked("POST", PODS)) <= CREATIONS
        api.forgive()
        await operator.settled_work()
        assert ordinals(api) == list(range(30))

    passes(tmp_path, model_deployment(replicas=30), body)


def test_a_replica_of_several_pods_is_completed_where_it_was_cut(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        api.fault("POST", PODS, status=500, skip=1)
        with pytest.raises(KubeError):
            await operator.work()
        assert len(api.all(PODS)) == 1
        await operator.settled_work()
        found = sorted(pod["metadata"]["labels"][names.MEMBER_INDEX_LABEL] for pod in api.all(PODS))
        assert found == ["0", "1", "2"]

    passes(tmp_path, model_deployment(replicas=1, size=3), body)


@pytest.mark.parametrize(("status_", "message"), [(403, "exceeded quota: gpus"), (409, "the quota was modified")])
def test_a_quota_is_told_once_and_asked_once_a_pass(tmp_path: Path, status_: int, message: str) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        api.fault("POST", PODS, status=status_, message=message, times=1_000)
        outcome = await operator.work()
        assert message in str(outcome.trouble), "to be tried later each time"
        assert len(api.asked("POST", PODS)) <= CREATIONS
        asked = len(api.asked("POST", PODS))
        holds, reason, told = condition(api, "Progressing")
        assert (holds, reason) == ("False", "Refused")
        assert message in told
        await operator.settled_work()
        assert len(api.asked("POST", PODS)) <= 2 * asked
        assert len(reasons(api)) <= CREATIONS
        api.forgive()
        outcome = await operator.settled_work()
        assert outcome.trouble is None
        assert ordinals(api) == list(range(12))
        assert condition(api, "Progressing")[:2] == ("True", "Creating")

    passes(tmp_path, model_deployment(replicas=12), body)


def test_of_a_quota_that_suffices_for_some_those_are_made(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        api.fault("POST", PODS, status=403, skip=1, times=1_000)
        await operator.work()
        assert len(ordinals(api)) == 1
        assert sorted(reasons(api)) == ["CreateRefused", "ReplicasCreated"]
        assert status(api)["roles"][0]["replicas"] == 1

    passes(tmp_path, model_deployment(), body)


def test_a_replica_that_ends_before_it_was_ready_is_made_later(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await operator.settled_work()
        for _ in range(2):
            api.drop(PODS, NAMESPACE, str(pod_of(api, 0)["metadata"]["name"]))
            outcome = await operator.settled_work()
        assert outcome.due == NOW + FIRST_REMAKE_S
        assert ordinals(api) == []
        operator.now = outcome.due
        await operator.settled_work()
        assert ordinals(api) == [0]

    passes(tmp_path, model_deployment(replicas=1), body)


def test_no_lease_no_write(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        def refuse() -> None:
            raise NotLeading("for the test")

        operator.may_write = refuse
        with pytest.raises(NotLeading):
            await operator.work()
        assert api.writes == []
        operator.may_write = lambda: None
        await operator.work()
        await operator.heard()
        spec(api, replicas=3)
        await operator.heard()
        writes = len(api.writes)
        operator.may_write = refuse
        with pytest.raises(NotLeading):
            await operator.work()
        assert len(api.writes) == writes

    passes(tmp_path, model_deployment(), body)


# ---- passes that are cut


@pytest.mark.parametrize("subresource", ["", "status"])
def test_another_hand_was_faster_with_the_object_itself(tmp_path: Path, subresource: str) -> None:
    """The finalizer, and the status after the Pods were made."""

    async def body(api: FakeApi, operator: Operator) -> None:
        theirs = {"team": "a"}

        def annotate() -> None:
            api.edit(MODEL_DEPLOYMENTS, NAMESPACE, NAME, lambda thing: thing["metadata"].update(annotations=theirs))

        api.fault("PATCH", MODEL_DEPLOYMENTS, subresource=subresource, before=annotate)
        with pytest.raises(Cut):
            await operator.work()
        assert ordinals(api) == ([0, 1] if subresource else [])
        assert deployment(api)["metadata"]["annotations"] == theirs
        await operator.settled_work()
        assert pod_writes(api) == ["POST", "POST"]
        assert status(api)["ready"] == "server 0/2"
        assert deployment(api)["metadata"]["annotations"] == theirs

    passes(tmp_path, model_deployment(), body)


def test_a_status_that_is_not_answered_is_written_again(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        api.fault("PATCH", MODEL_DEPLOYMENTS, subresource="status", lost=True)
        with pytest.raises(Unreachable):
            await operator.work()
        said = status(api)
        assert said["ready"] == "server 0/2"
        api.hold(PODS)
        await operator.heard(MODEL_DEPLOYMENTS)
        await operator.work()
        assert status(api) == said
        assert pod_writes(api) == ["POST", "POST"]

    passes(tmp_path, model_deployment(), body)


def test_what_is_gone_by_then_is_no_fault(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        api.hold(MODEL_DEPLOYMENTS)
        api.drop(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        with pytest.raises(Cut):
            await operator.work()
        api.release(MODEL_DEPLOYMENTS)
        await operator.heard()
        assert await operator.work() == Outcome()
        assert ordinals(api) == []

    passes(tmp_path, model_deployment(), body)


def test_events_that_are_refused_stop_nothing(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        api.fault("POST", EVENTS, status=403, times=1_000)
        await settled(api, operator)

    passes(tmp_path, model_deployment(), body)


# ---- more and fewer replicas


def test_scaled_up(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        before = {pod["metadata"]["uid"] for pod in api.all(PODS)}
        spec(api, replicas=4)
        api.hold(PODS)
        await operator.heard(MODEL_DEPLOYMENTS)
        await operator.work()
        await operator.work()
        assert ordinals(api) == [0, 1, 2, 3]
        assert before < {pod["metadata"]["uid"] for pod in api.all(PODS)}
        assert pod_writes(api) == ["POST"] * 4
        assert status(api)["ready"] == "server 2/4"

    passes(tmp_path, model_deployment(), body)


def test_a_replica_that_never_ran_goes_at_once_as_it_was_seen(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await operator.settled_work()
        victim = pod_of(api, 1)["metadata"]
        spec(api, replicas=1)
        await operator.settled_work()
        assert ordinals(api) == [0]
        (call,) = api.asked("DELETE", PODS)
        conditions = {"uid": victim["uid"], "resourceVersion": victim["resourceVersion"]}
        assert call.body["preconditions"] == conditions
        assert "retirement" not in status(api)
        assert status(api)["ready"] == "server 0/1"

    passes(tmp_path, model_deployment(), body)


def test_of_what_was_only_just_made_too_though_no_watch_has_told_of_it(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        api.hold(PODS)
        await operator.work()
        spec(api, replicas=1)
        await operator.heard(MODEL_DEPLOYMENTS)
        for _ in range(3):
            await operator.work()
        assert ordinals(api) == [0]
        assert pod_writes(api) == ["POST", "POST", "DELETE"]
        api.release(PODS)
        await operator.settled_work()
        assert pod_writes(api) == ["POST", "POST", "DELETE"]
        assert status(api)["roles"] == [{"name": "server", "replicas": 1, "readyReplicas": 0, "updatedReplicas": 1}]

    passes(tmp_path, model_deployment(), body)


def test_a_replica_that_has_started_by_now_is_not_deleted(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await operator.settled_work()
        await operator.heard()
        spec(api, replicas=1)
        await operator.heard()
        api.hold(PODS)
        started(api, pod_of(api, 1))
        with pytest.raises(Cut):
            await operator.work()
        assert ordinals(api) == [0, 1]
        api.release(PODS)
        outcome = await operator.settled_work()
        assert ordinals(api) == [0, 1]
        assert not pod_of(api, 1)["metadata"].get("deletionTimestamp")
        assert status(api)["retirement"]["state"] == "Admitted"
        assert outcome.due is not None

    passes(tmp_path, model_deployment(), body)


def test_scaled_down_and_up_again_before_anything_happened(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        api.hold(PODS)
        for replicas in (1, 2):
            spec(api, replicas=replicas)
            await operator.heard(MODEL_DEPLOYMENTS)
            await operator.work()
            operator.now += 1
        for _ in range(3):
            await operator.work()
            await operator.heard(MODEL_DEPLOYMENTS)
            operator.now += 1
        assert "retirement" not in status(api)
        assert status(api)["phase"] == "Ready"
        serving = [pod["metadata"]["labels"].get(names.SERVING_LABEL) for pod in api.all(PODS)]
        assert serving == [names.SERVING] * 2
        assert "DELETE" not in pod_writes(api)

    passes(tmp_path, model_deployment(), body)


# ---- rollout


def roll(api: FakeApi) -> None:
    spec(api, env=[{"name": "A", "value": "1"}])


def test_rolled_out_one_at_a_time(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        old = {pod["metadata"]["uid"] for pod in api.all(PODS)}
        roll(api)
        for _ in range(20):
            await operator.settled_work()
            serving = [pod for pod in api.all(PODS) if not pod["metadata"].get("deletionTimestamp")]
            assert len(serving) >= 2
            assert len({pod["metadata"]["labels"][names.ORDINAL_LABEL] for pod in serving}) == len(serving)
            if not ended(api):
                ready(api)
            operator.now += 30
        await operator.settled_work()
        assert status(api)["phase"] == "Ready"
        assert not old & {pod["metadata"]["uid"] for pod in api.all(PODS)}
        assert pod_writes(api).count("DELETE") == 3

    passes(tmp_path, model_deployment(replicas=3), body)


def test_one_at_a_time_by_a_silent_watch_too(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        api.hold(PODS)
        roll(api)
        await operator.heard(MODEL_DEPLOYMENTS)
        for _ in range(4):
            await operator.work()
        assert pod_writes(api).count("DELETE") == 1

    passes(tmp_path, model_deployment(), body)


def test_one_at_a_time_though_the_kubelet_wrote_between_the_look_and_the_delete(tmp_path: Path) -> None:
    """Replica 0 is not Ready and goes first. It was Ready by then: what the cache shows of it next is neither what was
    seen nor what the delete left, and by that alone replica 1 would be the next to go."""

    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        edit_pod(api, pod_of(api, 0), lambda pod: pod["status"]["conditions"][0].update(status="False"))
        roll(api)
        await operator.heard()
        api.hold(PODS)
        late = edit_pod(api, pod_of(api, 0), lambda pod: pod["status"]["conditions"][0].update(status="True"))
        await operator.work()
        assert [call.name for call in api.asked("DELETE", PODS)] == [late["metadata"]["name"]]
        # The watch has come as far as the kubelet's write.
        operator.caches.pods.put(late)
        await operator.work()
        assert len(api.asked("DELETE", PODS)) == 1

    passes(tmp_path, model_deployment(), body)


# ---- what is refused, what another hand does


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["roles"].append({"name": "half", "kind": "Prefill"}),
        lambda spec: spec.update(roles=[]),
        lambda spec: spec["roles"][0].update(replicas=-1, size=0),
        lambda spec: spec["roles"][0].update(extraArgs=["--model", "other"]),
        lambda spec: spec.update(roles="none"),
        lambda spec: spec.clear(),
    ],
)
def test_by_a_spec_that_is_refused_nothing_is_touched(tmp_path: Path, change: Callable[[Object], Any]) -> None:
    """As one can be stored while the webhook is away."""

    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        pods, services = api.all(PODS), api.all(SERVICES)
        api.edit(MODEL_DEPLOYMENTS, NAMESPACE, NAME, lambda thing: change(thing["spec"]))
        writes = len(api.writes)
        for _ in range(3):
            assert await operator.settled_work() == Outcome()
        assert (api.all(PODS), api.all(SERVICES)) == (pods, services)
        assert {call.resource for call in api.writes[writes:]} == {MODEL_DEPLOYMENTS, EVENTS}
        assert condition(api, "Progressing")[:2] == ("False", "InvalidSpec")
        assert reasons(api).count("InvalidSpec") == 1
        assert status(api)["roles"][0]["readyReplicas"] == 2

    passes(tmp_path, model_deployment(), body)


def test_a_refused_spec_is_removed_all_the_same(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        api.edit(MODEL_DEPLOYMENTS, NAMESPACE, NAME, lambda thing: thing["spec"].clear())
        api.delete(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        await operator.settled_work()
        ended(api)
        await operator.settled_work()
        assert api.all(MODEL_DEPLOYMENTS) == []

    passes(tmp_path, model_deployment(), body)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"retirement": {"roleName": "server", "replicaOrdinal": 0, "state": "Deleting"}},
        {"retirement": {"roleName": "server", "replicaOrdinal": 0, "state": "Deleting", "reason": "Drained"}},
        {"retained": [{"roleName": "server", "replicaOrdinal": 1, "state": "Aborted", "reason": "none of ours"}]},
        {"retained": [{"roleName": "gone", "replicaOrdinal": 7, "state": "Draining"}], "phase": "Deleting"},
        {"observedGeneration": 99, "ready": "all", "roles": [{"name": "x", "replicas": 1}]},
    ],
)
def test_a_status_by_hand_deletes_nothing(tmp_path: Path, nonsense: Object) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        said = status(api)
        api.edit(MODEL_DEPLOYMENTS, NAMESPACE, NAME, lambda thing: thing["status"].update(nonsense))
        writes = len(pod_writes(api))
        await operator.settled_work()
        await operator.settled_work()
        assert len(pod_writes(api)) == writes
        assert status(api) == said
        assert ("StatusUnreadable" in reasons(api)) is bool({"retirement", "retained"} & set(nonsense))

    passes(tmp_path, model_deployment(), body)


def test_another_hands_pods_are_neither_counted_nor_deleted(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await operator.settled_work()
        theirs = dict(pod_of(api, 0)["metadata"])
        for key in ("ownerReferences", "uid", "resourceVersion", "name"):
            theirs.pop(key)
        api.make(PODS, {"metadata": {**theirs, "name": "theirs"}, "spec": {"containers": []}})
        ready(api)
        for _ in range(2):
            await operator.settled_work()
        assert status(api)["ready"] == "server 2/2"
        assert reasons(api).count("ForeignPod") == 1
        api.delete(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        for _ in range(3):
            await operator.settled_work()
            ended(api)
        assert [pod["metadata"]["name"] for pod in api.all(PODS)] == ["theirs"]
        assert api.all(MODEL_DEPLOYMENTS) == []

    passes(tmp_path, model_deployment(), body)


def test_two_of_one_name_and_one_that_came_after_another(tmp_path: Path) -> None:
    """In two namespaces they have nothing in common; of a former one the Pods are another's."""

    async def body(api: FakeApi, operator: Operator) -> None:
        other = model_deployment(replicas=1)
        other["metadata"]["namespace"] = "other"
        api.make(MODEL_DEPLOYMENTS, other)
        api.hold(PODS)
        await operator.heard(MODEL_DEPLOYMENTS)
        for _ in range(2):
            await operator.work()
            await operator.controller.work("other", NAME)
        assert (len(api.all(PODS, NAMESPACE)), len(api.all(PODS, "other"))) == (2, 1)
        api.release(PODS)
        await settled(api, operator)
        former = {pod["metadata"]["name"] for pod in api.all(PODS, NAMESPACE)}
        api.drop(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        await operator.heard()
        api.make(MODEL_DEPLOYMENTS, model_deployment())
        outcome = await operator.settled_work()
        assert "belongs to ModelDeployment" in str(outcome.trouble), "until the Service is gone with its owner"
        assert former < {pod["metadata"]["name"] for pod in api.all(PODS, NAMESPACE)}
        assert len(api.all(PODS, NAMESPACE)) == 4
        assert status(api)["ready"] == "server 0/2"
        assert len(api.all(PODS, "other")) == 1

    passes(tmp_path, model_deployment(), body)


def test_a_service_that_is_anothers_is_left_and_told(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        theirs = api.make(SERVICES, {"metadata": {"name": f"{NAME}-server", "namespace": NAMESPACE}, "spec": {"a": 1}})
        outcome = await operator.work()
        assert "belongs to nobody" in str(outcome.trouble)
        assert api.get(SERVICES, NAMESPACE, f"{NAME}-server") == theirs
        assert ordinals(api) == [0, 1]
        assert condition(api, "Progressing")[:2] == ("False", "NameTaken")
        api.drop(SERVICES, NAMESPACE, f"{NAME}-server")
        outcome = await operator.settled_work()
        assert outcome.trouble is None
        assert api.get(SERVICES, NAMESPACE, f"{NAME}-server") != theirs

    passes(tmp_path, model_deployment(), body)


def test_a_service_that_another_hand_changes_or_deletes_is_put_right(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        was = api.get(SERVICES, NAMESPACE, f"{NAME}-server")
        assert was is not None
        api.edit(SERVICES, NAMESPACE, f"{NAME}-server", lambda thing: thing["spec"].update(selector={"x": "y"}))
        await operator.settled_work()
        now = api.get(SERVICES, NAMESPACE, f"{NAME}-server")
        assert now is not None
        assert was["spec"]["selector"].items() <= now["spec"]["selector"].items()
        api.drop(SERVICES, NAMESPACE, f"{NAME}-server")
        await operator.settled_work()
        assert api.get(SERVICES, NAMESPACE, f"{NAME}-server") is not None

    passes(tmp_path, model_deployment(), body)


def test_a_service_that_is_refused_does_not_keep_the_pods_from_being_made(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        api.fault("PATCH", SERVICES, status=422, message="spec.ports: invalid")
        outcome = await operator.work()
        assert "spec.ports: invalid" in str(outcome.trouble)
        assert ordinals(api) == [0, 1]
        assert condition(api, "Progressing")[:2] == ("False", "Refused")
        assert (await operator.settled_work()).trouble is None

    passes(tmp_path, model_deployment(), body)


# ---- the end


def test_removed_to_the_end(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        spec(api, replicas=3)  # one that never ran
        await operator.settled_work()
        api.delete(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        api.hold(PODS)
        await operator.heard(MODEL_DEPLOYMENTS)
        for _ in range(2):
            await operator.work()
        assert pod_writes(api).count("DELETE") == 3, "asked for once each"
        assert ordinals(api) == [0, 1], "they drain"
        assert status(api)["phase"] == "Deleting"
        assert deployment(api)["metadata"]["finalizers"] == [FINALIZER]
        assert ended(api) == 2
        await operator.work()
        assert api.all(MODEL_DEPLOYMENTS) == []
        assert "Removed" in reasons(api)
        api.release(PODS)
        await operator.heard()
        assert await operator.work() == Outcome()
        assert ordinals(api) == []

    passes(tmp_path, model_deployment(), body)


def test_another_finalizer_stays(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await operator.settled_work()
        change = lambda thing: thing["metadata"].update(finalizers=["a/b", FINALIZER])  # noqa: E731
        api.edit(MODEL_DEPLOYMENTS, NAMESPACE, NAME, change)
        api.delete(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        for _ in range(3):
            await operator.settled_work()
        assert deployment(api)["metadata"]["finalizers"] == ["a/b"]
        writes = len(api.writes)
        assert await operator.settled_work() == Outcome()
        assert len(api.writes) == writes

    passes(tmp_path, model_deployment(), body)


@pytest.mark.parametrize("method", ["DELETE", "PATCH", "GET"])
@pytest.mark.parametrize("status_", [500, 409, 0])
def test_removed_though_a_call_fails(tmp_path: Path, method: str, status_: int) -> None:
    """``status_`` 0: the answer is lost."""

    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        api.delete(MODEL_DEPLOYMENTS, NAMESPACE, NAME)

        def takes(call: Call) -> bool:
            is_one = call.resource in (PODS, MODEL_DEPLOYMENTS, DEPLOYMENTS) and "watch" not in call.query
            return is_one and call.method == method

        api.fault_where(takes, status=status_, lost=not status_)
        failed = 0
        for _ in range(6):
            try:
                await operator.settled_work()
            except (KubeError, Cut):
                failed += 1
            ended(api)
        assert failed <= 1
        assert api.all(MODEL_DEPLOYMENTS) == []
        assert ordinals(api) == []

    passes(tmp_path, model_deployment(), body)


def test_the_router_goes_when_no_engine_runs(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await operator.settled_work()
        ready(api)
        assert api.get(DEPLOYMENTS, NAMESPACE, f"{NAME}-router") is not None
        theirs = owned({"metadata": {"name": "other", "namespace": NAMESPACE}, "spec": {}}, deployment(api))
        api.make(DEPLOYMENTS, theirs)
        api.delete(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        outcome = await operator.settled_work()
        assert api.get(DEPLOYMENTS, NAMESPACE, f"{NAME}-router") is not None, "answers go through it"
        assert outcome.due is None
        ended(api)
        outcome = await operator.settled_work()
        assert api.get(DEPLOYMENTS, NAMESPACE, f"{NAME}-router") is None
        assert outcome.due == NOW + REMOVAL_S
        await operator.settled_work()
        assert api.all(MODEL_DEPLOYMENTS) == []

    thing = model_deployment()
    thing["spec"]["router"] = {"name": "vllm-router", "image": "corp/router:1"}
    passes(tmp_path, thing, body)


def test_rights_for_a_router_that_was_never_asked_for_are_not_needed(tmp_path: Path) -> None:
    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)

        def is_others(call: Call) -> bool:
            assert call.resource is not None
            is_router = call.resource.plural.startswith(("cluster", "inference", "role", "secret"))
            return is_router and call.method == "GET"

        api.fault_where(is_others, status=403, times=1_000)
        api.delete(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        await operator.settled_work()
        ended(api)
        await operator.settled_work()
        assert api.all(MODEL_DEPLOYMENTS) == []

    passes(tmp_path, model_deployment(), body)


def test_what_was_known_of_it_is_forgotten_with_it(tmp_path: Path) -> None:
    """The next one of the same name is made from the start."""

    async def body(api: FakeApi, operator: Operator) -> None:
        await settled(api, operator)
        api.delete(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        for _ in range(3):
            await operator.settled_work()
            ended(api)
        api.drop(SERVICES, NAMESPACE, f"{NAME}-server")  # by its owner
        await operator.heard()
        api.make(MODEL_DEPLOYMENTS, model_deployment())
        await operator.settled_work()
        assert ordinals(api) == [0, 1]
        assert api.get(SERVICES, NAMESPACE, f"{NAME}-server") is not None

    passes(tmp_path, model_deployment(), body)
