"""A replica's removal through the real edges: writes to the API server, a router's list, the envelope by exec."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_api import Call, FakeApi, Refused
from fake_router import HOST, FakeRouter, routing
from passes import (
    NAME,
    NAMESPACE,
    Operator,
    condition,
    deployment,
    edit_pod,
    ended,
    model_deployment,
    operating,
    pod_of,
    ready,
    reasons,
    run,
    spec,
    status,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "retirement"))

from model_cluster import envelope

from operator_glue import names
from operator_glue.kube import MODEL_DEPLOYMENTS, PODS, KubeError, Object, Resource
from operator_glue.render.router_parts import ROUTER_COMPONENT, ROUTER_CONTAINER
from operator_glue.retirement.step import WHOLE_BUDGET_S, WITHDRAWING_BUDGET_S
from operator_glue.runtime.writing import Cut

#: More than the removal of a replica takes, a second each.
PASSES = 40


class Cluster:
    """Two replicas behind one Pod of vllm-router. ``busy``: the engine of the last one has a request."""

    def __init__(self, api: FakeApi, operator: Operator, router: FakeRouter) -> None:
        self.api, self.operator, self.router = api, operator, router
        self.busy = False
        #: Whose watches are held.
        self.behind: set[Resource] = set()
        #: States of the removal as they were shown, each once.
        self.states: list[str] = []
        router.found = self._found
        api.exec = self._exec

    def _found(self) -> list[str]:
        """As its discovery does: serving, Ready, not ending."""
        return [
            f"http://{pod['status']['podIP']}:8000"
            for pod in self.api.all(PODS)
            if pod["metadata"]["labels"].get(names.SERVING_LABEL) == names.SERVING
            and pod["metadata"].get("deletionTimestamp") is None
            and pod["status"].get("podIP")
        ]

    def _exec(self, _: Object, command: list[str]) -> bytes:
        assert "check" in command
        return envelope(self.busy, 0)

    async def start(self) -> None:
        await self.operator.settled_work()
        ready(self.api)
        self.api.make(PODS, _router_pod(deployment(self.api)))
        await self.operator.settled_work()
        await self.operator.heard()
        assert ordinals_of(self.api) == [0, 1]

    async def second(self) -> None:
        """A pass by what the caches show, a second after the last one; one that failed is begun anew by the next."""
        await self.operator.heard(*(resource for resource in self.operator.stores if resource not in self.behind))
        with suppress(Cut, KubeError):
            await self.operator.work()
        state = (status(self.api).get("retirement") or {}).get("state")
        if state is not None and state not in self.states[-1:]:
            self.states.append(state)
        self.operator.now += 1

    async def seconds(self, count: int, *, ends: bool = True) -> None:
        """``ends``: Pods that are deleted are gone by the next."""
        for _ in range(count):
            await self.second()
            if ends:
                ended(self.api)

    async def gone(self) -> None:
        """Until the last replica is gone, and nothing more of it is said."""
        for _ in range(PASSES):
            await self.seconds(1)
            if ordinals_of(self.api) == [0] and "retirement" not in status(self.api):
                break


def _router_pod(thing: Object) -> Object:
    """Of the router's ReplicaSet, not of the deployment itself."""
    return {
        "metadata": {
            "name": f"{NAME}-router-0",
            "namespace": NAMESPACE,
            "labels": names.role_labels(str(thing["metadata"]["name"]), ROUTER_COMPONENT),
            "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "uid-r", "controller": True}],
        },
        "spec": {"nodeName": "node-0", "containers": []},
        "status": {
            "phase": "Running",
            "podIP": HOST,
            "containerStatuses": [
                {
                    "name": ROUTER_CONTAINER,
                    "containerID": "containerd://router",
                    "state": {"running": {"startedAt": "2027-01-15T07:00:00Z"}},
                }
            ],
        },
    }


def ordinals_of(api: FakeApi) -> list[int]:
    """Of the engines' Pods."""
    engines = [pod for pod in api.all(PODS) if names.ORDINAL_LABEL in pod["metadata"]["labels"]]
    return sorted(int(pod["metadata"]["labels"][names.ORDINAL_LABEL]) for pod in engines)


def removing(folder: Path, test: Callable[[Cluster], Awaitable[None]], **retirement: Any) -> None:
    """``test`` begins with two replicas that serve. ``retirement``: of the spec, and then there is no router."""

    async def body() -> None:
        async with routing(FakeRouter()) as router:
            thing = model_deployment()
            if retirement:
                thing["spec"]["retirement"] = retirement
            else:
                args = [f"--port={router.port}"]
                thing["spec"]["router"] = {"name": "vllm-router", "image": "corp/router:1", "extraArgs": args}
            async with operating(folder, thing) as (api, operator):
                cluster = Cluster(api, operator, router)
                await cluster.start()
                await test(cluster)

    run(body())


def is_serving(pod: Object) -> bool:
    return bool(pod["metadata"]["labels"].get(names.SERVING_LABEL) == names.SERVING)


def test_withdrawn_read_idle_and_deleted(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        api = cluster.api
        victim = pod_of(api, 1)["metadata"]["name"]
        spec(api, replicas=1)
        before = len(api.calls)
        await cluster.seconds(PASSES)
        assert cluster.states == ["Admitted", "Disqualified", "Draining", "Deleting", "Settling"]
        assert ordinals_of(api) == [0]
        said = [
            (call.method, call.subresource)
            for call in api.calls[before:]
            if call.resource == PODS and call.name == victim and (call.is_write or call.subresource == "exec")
        ]
        assert said == [("PATCH", ""), ("GET", "exec"), ("GET", "exec"), ("DELETE", "")]
        (delete,) = api.asked("DELETE", PODS)
        assert set(delete.body["preconditions"]) == {"uid", "resourceVersion"}
        assert cluster.router.asked == [], "its discovery heard"
        assert "retirement" not in status(api)
        for reason in ("RetirementAdmitted", "RetirementCompleted"):
            assert reasons(api).count(reason) == 1

    removing(tmp_path, test)


def test_a_router_whose_discovery_is_deaf_is_told(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.router.hears = False
        url = f"http://{pod_of(cluster.api, 1)['status']['podIP']}:8000"
        cluster.router.listed = cluster.router.found()
        assert url in cluster.router.listed
        spec(cluster.api, replicas=1)
        await cluster.seconds(PASSES)
        assert ordinals_of(cluster.api) == [0]
        assert len(cluster.router.asked) >= 1
        assert url not in cluster.router.listed

    removing(tmp_path, test)


def test_no_router_is_told_anything_without_the_lease(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.router.hears = False
        cluster.router.listed = cluster.router.found()
        spec(cluster.api, replicas=1)
        while not cluster.router.asked and len(cluster.states) < 3:
            await cluster.second()
        asked = list(cluster.router.asked)

        def refuse() -> None:
            raise KubeError("the Lease is held no longer")

        cluster.operator.may_write = refuse
        writes = len(cluster.api.writes)
        await cluster.seconds(5)
        assert cluster.router.asked == asked
        assert len(cluster.api.writes) == writes

    removing(tmp_path, test)


def test_a_busy_engine_is_waited_for_and_kept_in_the_end(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        api = cluster.api
        cluster.busy = True
        spec(api, replicas=1)
        await cluster.seconds(30)
        assert cluster.states[-1] == "Draining"
        assert status(api)["retirement"]["reason"] == "Busy"
        cluster.operator.now += WHOLE_BUDGET_S
        await cluster.seconds(3)
        assert cluster.states[-1] == "Aborted"
        assert ordinals_of(api) == [0, 1]
        assert not is_serving(pod_of(api, 1)), "withdrawn"
        assert condition(api, "RetirementBlocked")[0] == "True"
        held = cluster.operator.metrics.registry.get_sample_value(
            "drainagent_retirement_held",
            {"namespace": NAMESPACE, "name": NAME, "role": "server", "ordinal": "1", "reason": "Busy"},
        )
        assert held == 1
        # Asked for again when its request has ended.
        cluster.busy = False
        token = {names.RETRY_ANNOTATION: "server:1:again"}
        api.edit(MODEL_DEPLOYMENTS, NAMESPACE, NAME, lambda thing: thing["metadata"].update(annotations=token))
        await cluster.seconds(PASSES)
        assert ordinals_of(api) == [0]
        assert condition(api, "RetirementBlocked")[0] == "False"
        assert deployment(api)["metadata"]["annotations"] == {}

    removing(tmp_path, test)


def test_scaled_up_again_it_serves_as_before(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        api = cluster.api
        cluster.busy = True
        spec(api, replicas=1)
        await cluster.seconds(10)
        assert not is_serving(pod_of(api, 1))
        spec(api, replicas=2)
        await cluster.seconds(10)
        assert is_serving(pod_of(api, 1))
        assert "retirement" not in status(api)
        assert status(api)["ready"] == "server 2/2"
        assert "RetirementCancelled" in reasons(api)
        assert api.asked("DELETE", PODS) == []

    removing(tmp_path, test)


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        (b"", "NotAnEnvelope"),
        (b"Traceback (most recent call last):\n", "NotAnEnvelope"),
        (envelope(False, 0)[:-10], "ExecCut"),
        (b"x" * 2_000_000, "ExecTooLarge"),
        (Refused(403, "pods/exec is forbidden"), "ExecForbidden"),
        (Refused(500, "container not found"), "ExecFailed"),
    ],
    ids=["nothing", "a traceback", "cut", "too large", "forbidden", "refused"],
)
def test_an_engine_that_cannot_be_read_is_not_deleted(tmp_path: Path, out: bytes | Refused, reason: str) -> None:
    async def test(cluster: Cluster) -> None:
        def answer(_pod: Object, _command: list[str]) -> bytes:
            if isinstance(out, Refused):
                raise out
            return out

        cluster.api.exec = answer
        spec(cluster.api, replicas=1)
        await cluster.seconds(12)
        assert status(cluster.api)["retirement"]["reason"] == reason
        assert ordinals_of(cluster.api) == [0, 1]
        assert cluster.api.asked("DELETE", PODS) == []

    removing(tmp_path, test)


@pytest.mark.parametrize("answer", [503, 401])
def test_a_router_that_cannot_be_asked_keeps_it_serving(tmp_path: Path, answer: int) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.router.status = answer
        spec(cluster.api, replicas=1)
        await cluster.seconds(int(WITHDRAWING_BUDGET_S) + 5)
        assert cluster.states == ["Admitted", "Aborted"]
        assert is_serving(pod_of(cluster.api, 1))
        assert cluster.api.asked("DELETE", PODS) == []
        assert condition(cluster.api, "RetirementBlocked")[0] == "True"

    removing(tmp_path, test)


def test_without_a_router_by_the_member_and_the_slices(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        spec(cluster.api, replicas=1)
        await cluster.seconds(PASSES)
        assert ordinals_of(cluster.api) == [0]
        assert "RetirementCompleted" in reasons(cluster.api)

    removing(tmp_path, test, withoutRouter="ProveFromMember")


def test_by_default_without_a_router_it_stays(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        spec(cluster.api, replicas=1)
        await cluster.seconds(int(WITHDRAWING_BUDGET_S) + 5)
        assert cluster.states[-1] == "Aborted"
        assert status(cluster.api)["retirement"]["reason"] == "NoRouter"
        assert ordinals_of(cluster.api) == [0, 1]

    removing(tmp_path, test, withoutRouter="Abort")


def test_a_label_that_another_hand_puts_back_between_look_and_delete_is_the_end_of_the_pass(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        api = cluster.api

        def put_back() -> None:
            label = {names.SERVING_LABEL: names.SERVING}
            edit_pod(api, pod_of(api, 1), lambda pod: pod["metadata"]["labels"].update(label))

        api.fault("DELETE", PODS, before=put_back)
        spec(api, replicas=1)
        while "Deleting" not in cluster.states:
            await cluster.second()
        assert ordinals_of(api) == [0, 1]
        assert pod_of(api, 1)["metadata"].get("deletionTimestamp") is None
        await cluster.second()
        assert cluster.states[-1] != "Deleting", "what was proven holds no longer"
        await cluster.seconds(PASSES)
        assert ordinals_of(api) == [0]

    removing(tmp_path, test)


def test_with_a_cache_that_is_seconds_behind_it_comes_to_the_same_end(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        api, victim = cluster.api, pod_of(cluster.api, 1)["metadata"]["name"]
        spec(api, replicas=1)
        for _ in range(6):
            api.hold(PODS)
            cluster.behind = {PODS}
            await cluster.seconds(7)
            api.release(PODS)
            cluster.behind = set()
            await cluster.second()
        assert ordinals_of(api) == [0]
        assert "retirement" not in status(api)
        kinds = kinds_of(api, victim)
        assert kinds.count("DELETE") == 1
        assert kinds[: kinds.index("DELETE")].count("exec") >= 2, kinds

    removing(tmp_path, test)


def kinds_of(api: FakeApi, pod: str) -> list[str]:
    """Of the writes to a Pod and the reads of its engine, in their order."""
    calls = [call for call in api.calls if call.resource == PODS and call.name == pod]
    return [call.subresource or call.method for call in calls if call.subresource or call.is_write]


@pytest.mark.parametrize(
    "status_", [0, 500, 409], ids=["the answer is lost", "a fault of the API server", "a conflict"]
)
def test_whichever_write_fails_it_comes_to_the_same_end(tmp_path: Path, status_: int) -> None:
    """And is deleted only after it was withdrawn and read idle twice, by Pods of what was seen."""
    fails = 0

    async def test(cluster: Cluster) -> None:
        api, victim = cluster.api, pod_of(cluster.api, 1)["metadata"]["name"]

        def takes(call: Call) -> bool:
            return call.is_write and call.resource in (PODS, MODEL_DEPLOYMENTS)

        api.fault_where(takes, status=status_, lost=not status_, skip=fails)
        spec(api, replicas=1)
        await cluster.gone()
        assert ordinals_of(api) == [0], f"write {fails}"
        assert "retirement" not in status(api), f"write {fails}"
        assert is_serving(pod_of(api, 0))
        kinds = kinds_of(api, victim)
        assert kinds[: kinds.index("DELETE")].count("exec") >= 2, kinds
        assert kinds.index("PATCH") < kinds.index("exec")
        writes.append(sum(takes(call) for call in api.calls))

    writes = [1_000]
    while fails < min(writes[-1], 20):
        folder = tmp_path / str(fails)
        folder.mkdir()
        removing(folder, test)
        fails += 1
    assert fails > 5
