"""Single writes of a pass: each done as it was decided, or the pass is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, serving
from fake_router import HOST, FakeRouter, routing
from passes import NAME, NAMESPACE, NOW, model_deployment, owned, run

from operator_glue import names
from operator_glue.kube import MODEL_DEPLOYMENTS, PODS, WORKLOADS, Forbidden, Kube, KubeError, Object
from operator_glue.model import Router
from operator_glue.retirement.data import (
    ClearRetry,
    DeletePod,
    DeleteWorkload,
    Key,
    RouteIn,
    RouteOut,
    SetServing,
    Write,
)
from operator_glue.routers.asking import RouterAt
from operator_glue.runtime.ahead import Ahead
from operator_glue.runtime.metrics import Metrics
from operator_glue.runtime.writing import Cut, Writer, merged

KEY = Key("server", 1)
ROUTER = Router.model_validate({"name": "vllm-router", "image": "corp/router:1"})


@dataclass
class Rig:
    """A ModelDeployment and its Pod ``pod``, as they were seen."""

    api: FakeApi
    kube: Kube
    ahead: Ahead = field(default_factory=lambda: Ahead(lambda: NOW))
    metrics: Metrics = field(default_factory=Metrics)
    routers: dict[str, RouterAt] = field(default_factory=dict)
    leads: bool = True

    def __post_init__(self) -> None:
        self.thing = self.api.make(MODEL_DEPLOYMENTS, model_deployment())
        self.pod = self.api.make(PODS, owned(_pod("b"), self.thing))
        self.writer = Writer(self.kube, self.ahead, self.metrics, self.thing, self._may_write)

    def _may_write(self) -> None:
        if not self.leads:
            raise KubeError("the Lease is held no longer")

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    async def issue(self, *writes: Write, router: Router | None = ROUTER) -> None:
        await self.writer.issue(writes, {self.uid: self.pod}, router, self.routers, None, lambda _: 8000)

    def stored(self) -> Object | None:
        return self.api.get(PODS, NAMESPACE, "b")

    def label(self, value: str | None) -> None:
        def change(pod: Object) -> None:
            pod["metadata"]["labels"].pop(names.SERVING_LABEL, None)
            if value is not None:
                pod["metadata"]["labels"][names.SERVING_LABEL] = value

        self.api.edit(PODS, NAMESPACE, "b", change)

    def replaced(self) -> None:
        """Another Pod of the same name."""
        self.api.drop(PODS, NAMESPACE, "b")
        self.api.make(PODS, owned(_pod("b"), self.thing))


def _pod(name: str, **status: Any) -> Object:
    labels = {
        **names.role_labels(NAME, "server"),
        names.ORDINAL_LABEL: "1",
        names.SERVING_LABEL: names.SERVING,
    }
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"nodeName": "node-0", "containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.7", **status},
    }


def writing(folder: Path, test: Callable[[Rig], Awaitable[None]]) -> None:
    async def body() -> None:
        async with serving(folder) as (api, kube):
            await test(Rig(api, kube))

    run(body())


def is_serving(pod: Object | None) -> bool:
    assert pod is not None
    return names.SERVING_LABEL in pod["metadata"]["labels"]


# ---- the label


def test_the_label_is_taken_and_given_back(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.issue(SetServing(rig.uid, "b", False))
        assert not is_serving(rig.stored())
        assert not is_serving(rig.ahead.latest(rig.pod)), "as the next pass sees it"
        rig.pod = rig.ahead.latest(rig.pod)
        await rig.issue(SetServing(rig.uid, "b", True))
        assert is_serving(rig.stored())

    writing(tmp_path, test)


@pytest.mark.parametrize("what", ["gone", "replaced", "without it"])
def test_a_label_that_is_not_as_it_was_seen_ends_the_pass(tmp_path: Path, what: str) -> None:
    async def test(rig: Rig) -> None:
        if what == "gone":
            rig.api.drop(PODS, NAMESPACE, "b")
        elif what == "replaced":
            rig.replaced()
        else:
            rig.label(None)
        with pytest.raises(Cut, match="Pod b"):
            await rig.issue(SetServing(rig.uid, "b", False), DeletePod(rig.uid, "b", None))
        assert rig.api.asked("DELETE", PODS) == []
        assert what != "replaced" or is_serving(rig.stored())

    writing(tmp_path, test)


# ---- deletes


def test_a_pod_is_deleted_as_it_was_seen(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        version = str(rig.pod["metadata"]["resourceVersion"])
        await rig.issue(DeletePod(rig.uid, "b", version))
        assert rig.ahead.latest(rig.pod)["metadata"].get("deletionTimestamp")
        assert rig.metrics.registry.get_sample_value("drainagent_pod_writes_total", {"write": "delete"}) == 1
        rig.api.drop(PODS, NAMESPACE, "b")
        await rig.issue(DeletePod(rig.uid, "b", version))
        assert rig.metrics.registry.get_sample_value("drainagent_pod_writes_total", {"write": "delete"}) == 1

    writing(tmp_path, test)


@pytest.mark.parametrize("is_versioned", [True, False])
@pytest.mark.parametrize("what", ["edited", "replaced"])
def test_another_pod_than_was_seen_is_not_deleted(tmp_path: Path, what: str, is_versioned: bool) -> None:
    async def test(rig: Rig) -> None:
        version = str(rig.pod["metadata"]["resourceVersion"]) if is_versioned else None
        if what == "edited":
            rig.label("again")
        else:
            rig.replaced()
        write = DeletePod(rig.uid, "b", version)
        if what == "edited" and not is_versioned:
            await rig.issue(write)
            return
        with pytest.raises(Cut, match="Pod b"):
            await rig.issue(write)
        pod = rig.stored()
        assert pod is not None
        assert not pod["metadata"].get("deletionTimestamp")

    writing(tmp_path, test)


def test_a_delete_that_is_forbidden_is_told(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.api.fault("DELETE", PODS, status=403, message="may not")
        with pytest.raises(Forbidden, match="may not"):
            await rig.issue(DeletePod(rig.uid, "b", None))

    writing(tmp_path, test)


def workload(rig: Rig) -> DeleteWorkload:
    made = rig.api.make(WORKLOADS, {"metadata": {"name": f"{NAME}.server.1", "namespace": NAMESPACE}})
    return DeleteWorkload(str(made["metadata"]["uid"]), f"{NAME}.server.1", KEY)


def test_a_workload_goes_only_when_no_pod_of_it_runs(tmp_path: Path) -> None:
    """Its quota is given away at once, so that the API server itself is asked, not a cache."""

    async def test(rig: Rig) -> None:
        write = workload(rig)
        with pytest.raises(Cut, match="Pod b has not ended"):
            await rig.issue(write)
        assert len(rig.api.all(WORKLOADS)) == 1
        rig.api.edit(PODS, NAMESPACE, "b", lambda pod: pod["status"].update(phase="Succeeded"))
        await rig.issue(write)
        assert rig.api.all(WORKLOADS) == []
        await rig.issue(write)  # gone already is done

    writing(tmp_path, test)


def test_anothers_pods_do_not_hold_a_workload_and_a_new_one_of_its_name_stays(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        write = workload(rig)
        rig.api.drop(PODS, NAMESPACE, "b")
        rig.api.make(PODS, _pod("theirs"))
        rig.api.drop(WORKLOADS, NAMESPACE, write.name)
        workload(rig)
        with pytest.raises(Cut, match="Workload"):
            await rig.issue(write)
        assert len(rig.api.all(WORKLOADS)) == 1

    writing(tmp_path, test)


# ---- the ModelDeployment


def test_a_status_that_is_the_same_is_not_written(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.writer.write_status({"phase": "Ready"})
        await rig.writer.write_status({"phase": "Ready"})
        assert len(rig.api.writes) == 1
        await rig.writer.write_status({"ready": "1/1"})
        stored = rig.api.get(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        assert stored is not None
        assert stored["status"] == {"ready": "1/1"}, "the whole of it"
        assert "managedFields" not in rig.writer.thing["metadata"]

    writing(tmp_path, test)


def test_two_writes_in_a_row_are_each_over_the_last(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.writer.write_finalizers(["a/b"])
        await rig.writer.write_status({"phase": "Ready"})
        latest = rig.ahead.latest(rig.thing)
        assert latest["status"] == {"phase": "Ready"}
        assert latest["metadata"]["finalizers"] == ["a/b"]

    writing(tmp_path, test)


def retry(rig: Rig, value: str) -> None:
    note = {names.RETRY_ANNOTATION: value, "team": "a"}
    rig.api.edit(MODEL_DEPLOYMENTS, NAMESPACE, NAME, lambda thing: thing["metadata"].update(annotations=note))


def test_a_retry_that_was_taken_is_cleared_and_a_newer_one_is_not(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        with pytest.raises(Cut):
            await rig.issue(ClearRetry("server:1:a"))  # there is none
        retry(rig, "server:1:b")
        with pytest.raises(Cut):
            await rig.issue(ClearRetry("server:1:a"))
        await rig.issue(ClearRetry("server:1:b"))
        stored = rig.api.get(MODEL_DEPLOYMENTS, NAMESPACE, NAME)
        assert stored is not None
        assert stored["metadata"]["annotations"] == {"team": "a"}
        await rig.writer.write_status({"phase": "Ready"})  # over what that left

    writing(tmp_path, test)


# ---- routers


def test_a_router_is_told(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        async with routing(FakeRouter(hears=False)) as router:
            rig.routers = {"r": RouterAt("r", HOST, router.port)}
            out, back = RouteOut("r", "http://10.0.0.7:8000"), RouteIn("r", rig.uid)
            await rig.issue(back)
            assert router.listed == ["http://10.0.0.7:8000"]
            await rig.issue(out)
            assert router.listed == []
            router.status = 500
            await rig.issue(out, back)  # no answer proves anything

    writing(tmp_path, test)


def test_who_is_not_there_is_not_told(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        async with routing(FakeRouter(hears=False)) as router:
            rig.routers = {"r": RouterAt("r", HOST, router.port)}
            await rig.issue(RouteOut("another", "x"), RouteIn("another", rig.uid), RouteIn("r", "no Pod"))
            await rig.issue(RouteOut("r", "x"), router=None)
            rig.pod["status"].pop("podIP")
            await rig.issue(RouteIn("r", rig.uid))
            assert router.asked == []
            rig.leads = False
            with pytest.raises(KubeError, match="Lease"):
                await rig.issue(RouteOut("r", "x"))
            assert router.asked == []

    writing(tmp_path, test)


# ---- the rest


def test_what_of_the_protocols_part_is_empty_goes() -> None:
    before = {"phase": "Ready", "retirement": {"x": 1}, "retained": [1], "empty": None}
    assert merged(before, {"retirement": None, "retained": []}) == {"phase": "Ready", "empty": None}
    assert merged(before, {"retirement": {"y": 2}, "retained": [3]}) == {
        "phase": "Ready",
        "empty": None,
        "retirement": {"y": 2},
        "retained": [3],
    }


def test_a_pod_that_was_made_is_seen_by_the_next_pass(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.writer.create_pod(owned({**_pod(""), "metadata": {"generateName": "c-"}}, rig.thing))
        (made,) = rig.ahead.over([], lambda _: True)
        assert made["metadata"]["name"].startswith("c-")
        assert "managedFields" not in made["metadata"]
        assert rig.metrics.registry.get_sample_value("drainagent_pod_writes_total", {"write": "create"}) == 1

    writing(tmp_path, test)
