"""What is looked up for the protocol: of the API server and the routers as they are now, and what counts as nothing."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, serving
from fake_router import HOST, FakeRouter, routing
from passes import NAME, NAMESPACE, NOW, model_deployment, owned, run

from operator_glue import names
from operator_glue.kube import ENDPOINT_SLICES, PODS, SECRETS, Forbidden, KubeError, Object
from operator_glue.model import ModelDeployment, Router
from operator_glue.reconcile.placing import Placed, place
from operator_glue.render.router_parts import ROUTER_COMPONENT, ROUTER_CONTAINER
from operator_glue.retirement.data import Key, Look, Looked, Operation, State
from operator_glue.retirement.reasons import Reason
from operator_glue.runtime.looking import KEY_S, Looker, Target, is_listed, router_pod, routers_at

UID = "uid-of-llama"
KEY = Key("server", 1)


def owner() -> Object:
    thing = model_deployment()
    thing["metadata"]["uid"] = UID
    return thing


def pod(name: str, ordinal: int = 1, *, ip: str | None = None, ready: bool = True, component: str = "server") -> Object:
    """A serving one of the role; ``ip`` None: it has none."""
    own = {**names.role_labels(NAME, component), names.ORDINAL_LABEL: str(ordinal), names.SERVING_LABEL: names.SERVING}
    return owned(
        {
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "labels": own},
            "spec": {"nodeName": "node-0", "containers": []},
            "status": {"podIP": ip, "phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
        },
        owner(),
    )


def router_of(name: str, ip: str | None = HOST, **status: Any) -> Object:
    found = pod(name, ip=ip, component=ROUTER_COMPONENT)
    found["status"].update(status)
    return found


def placed(*pods: Object) -> Placed:
    return place(NAME, UID, [{**one, "metadata": {**one["metadata"], "resourceVersion": "1"}} for one in pods])


def target(there: Placed | None = None, router: Object | None = None, *, runs: bool = True) -> Target:
    thing = owner()
    if router is not None:
        thing["spec"]["router"] = {"name": "vllm-router", "image": "corp/router:1", **router}
    operation = Operation(
        key=KEY,
        generation=1,
        wanted=1,
        member_uids=("uid-b",),
        workload_uid=None,
        state=State.DRAINING,
        reason=Reason.WITHDRAWN,
        message="",
        started_at=NOW,
        deadline=NOW + 300,
        phase_started_at=NOW,
    )
    deployment = ModelDeployment.model_validate(thing)
    return Target(NAMESPACE, UID, deployment, there or placed(), operation if runs else None)


Test = Callable[[FakeApi, Looker], Awaitable[None]]


def looking(folder: Path, test: Test, clock: Callable[[], float] = lambda: NOW) -> None:
    async def body() -> None:
        async with serving(folder) as (api, kube):
            await test(api, Looker(kube, clock))

    run(body())


def test_nothing_is_looked_up_that_was_not_asked_for(tmp_path: Path) -> None:
    async def test(api: FakeApi, looker: Looker) -> None:
        found = await looker.look_up(target(placed(pod("a", 0, ip="10.0.0.1")), {}), Look())
        assert found == Looked()
        assert api.calls == []

    looking(tmp_path, test)


def test_live_are_the_replicas_own_pods_of_the_api_server(tmp_path: Path) -> None:
    async def test(api: FakeApi, looker: Looker) -> None:
        theirs = pod("theirs")
        theirs["metadata"]["ownerReferences"][0]["uid"] = "another"
        for one in (pod("a", 0), pod("b", 1), theirs, router_of("r")):
            api.make(PODS, one)
        found = await looker.look_up(target(), Look(live=True))
        assert found.live is not None
        assert [member.name for member in found.live] == ["b"]
        api.fault("GET", PODS, status=500)
        with pytest.raises(KubeError):
            await looker.look_up(target(), Look(live=True))

    looking(tmp_path, test)


# ---- endpoints


def piece(service: str, *endpoints: Object, namespace: str = NAMESPACE) -> Object:
    labels = {"kubernetes.io/service-name": service}
    metadata = {"name": f"{service}-x", "namespace": namespace, "labels": labels}
    return {"metadata": metadata, "addressType": "IPv4", "endpoints": list(endpoints)}


BY_UID: Object = {"addresses": ["10.9.9.9"], "targetRef": {"kind": "Pod", "uid": "uid-b"}}
BY_ADDRESS: Object = {"addresses": ["10.0.0.2"], "conditions": {"ready": False}}
ANOTHERS: Object = {"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "uid": "uid-a"}}


@pytest.mark.parametrize(
    ("slices", "listed"),
    [
        ([], False),
        ([piece("s", ANOTHERS)], False),
        ([piece("s", ANOTHERS, BY_UID)], True),
        ([piece("s", BY_ADDRESS)], True),
        ([piece("s"), piece("t", BY_ADDRESS)], True),
        ([piece(f"{NAME}-server-1", BY_UID)], False),
        ([{"metadata": {"name": "by hand"}, "endpoints": [BY_UID]}], True),
        ([{"metadata": {"name": "empty"}, "endpoints": None}], False),
        ([piece("s", {"addresses": None, "targetRef": None})], False),
    ],
)
def test_whom_the_slices_name(slices: list[Object], listed: bool) -> None:
    """The replica's own headless Service names its Pods to the end and fronts nobody."""
    replica = placed(pod("b", 1, ip="10.0.0.2")).replicas[KEY]
    assert is_listed(slices, f"{NAME}-server-1", replica.members) is listed


def test_a_pod_without_an_address_is_not_named_by_an_empty_one() -> None:
    replica = placed(pod("b", 1, ip="")).replicas[KEY]
    assert not is_listed([piece("s", {"addresses": [""]})], "own", replica.members)


def test_endpoints_are_those_of_the_namespace_now(tmp_path: Path) -> None:
    async def test(api: FakeApi, looker: Looker) -> None:
        there = placed(pod("b", 1, ip="10.0.0.2"))
        api.make(ENDPOINT_SLICES, piece("s", BY_ADDRESS, namespace="another"))
        found = await looker.look_up(target(there), Look(endpoints=True))
        assert found.endpoints is not None
        assert (found.endpoints.taken_at, found.endpoints.listed) == (NOW, False)
        api.make(ENDPOINT_SLICES, piece("s", BY_ADDRESS))
        found = await looker.look_up(target(there), Look(endpoints=True))
        assert found.endpoints is not None
        assert found.endpoints.listed
        api.fault("GET", ENDPOINT_SLICES, status=403)
        with pytest.raises(Forbidden):
            await looker.look_up(target(there), Look(endpoints=True))

    looking(tmp_path, test)


# ---- neighbours


def test_neighbours_are_all_pods_of_those_nodes(tmp_path: Path) -> None:
    async def test(api: FakeApi, looker: Looker) -> None:
        for name, namespace, node in (("x", "models", "n1"), ("y", "kube-system", "n1"), ("z", "models", "n2")):
            body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"nodeName": node}}
            api.make(PODS, body)
        found = await looker.look_up(target(), Look(neighbours=("n1",)))
        assert found.neighbours is not None
        assert sorted(one["metadata"]["name"] for one in found.neighbours) == ["x", "y"]
        found = await looker.look_up(target(), Look(neighbours=("n1", "n2")))
        assert found.neighbours is not None
        assert len(found.neighbours) == 3
        for status in (403, 500):
            api.fault("GET", PODS, status=status, skip=1)
            found = await looker.look_up(target(), Look(neighbours=("n1", "n2")))
            assert found.neighbours is None, "who declares a port there is not known"

    looking(tmp_path, test)


# ---- routers


def test_each_pod_of_the_router_gives_a_view_or_why_not(tmp_path: Path) -> None:
    async def test(api: FakeApi, looker: Looker) -> None:
        async with routing(FakeRouter(lambda: ["http://10.0.0.1:8000", "http://10.0.0.2:8000"])) as router:
            for one in (
                router_of("answers"),
                router_of("new", None),
                router_of("over", phase="Succeeded"),
                router_of("crashed", phase="Failed"),
            ):
                api.make(PODS, one)
            api.make(PODS, pod("engine", ip="10.0.0.1"))
            engines = placed(pod("a", 0, ip="10.0.0.1"), pod("b", 1, ip="10.0.0.2", ready=False), pod("c", 2, ip=None))
            ask = target(engines, {"extraArgs": [f"--port={router.port}"]})
            found = await looker.look_up(ask, Look(views=True))
            assert found.router_pods is not None
            assert [one.name for one in found.router_pods] == ["answers", "new"]
            views = {view.pod_uid: view for view in found.views}
            assert views["uid-answers"].listed == {"10.0.0.1", "10.0.0.2"}
            assert views["uid-answers"].fault is None
            fault = views["uid-new"].fault
            assert fault is not None
            assert fault.reason is Reason.ROUTER_UNREACHABLE
            assert len(views) == 2
            assert router.keys == [None]
            assert found.serving_names == {"a", "c"}
            assert found.serving_addresses == {"10.0.0.1"}
            router.status = 503
            found = await looker.look_up(ask, Look(views=True))
            fault = found.views[0].fault
            assert fault is not None
            assert fault.reason is Reason.ROUTER_UNREADABLE

    looking(tmp_path, test)


def test_who_is_sent_requests(tmp_path: Path) -> None:
    """Whom every Pod of the router lists as healthy; one that does not answer sends nobody anything."""

    async def test(api: FakeApi, looker: Looker) -> None:
        async with routing(FakeRouter(lambda: ["http://10.0.0.1:8000", "http://10.0.0.2:8000"])) as router:
            deployed = target(router={"extraArgs": [f"--port={router.port}"]}).deployment
            assert await looker.routed(NAMESPACE, deployed) is None  # no Pod of it
            api.make(PODS, router_of("answers"))
            assert await looker.routed(NAMESPACE, deployed) == frozenset({"10.0.0.1", "10.0.0.2"})
            router.unhealthy = {"http://10.0.0.2:8000"}
            assert await looker.routed(NAMESPACE, deployed) == frozenset({"10.0.0.1"})
            api.make(PODS, router_of("new", None))
            assert await looker.routed(NAMESPACE, deployed) == frozenset()
        assert await looker.routed(NAMESPACE, target().deployment) is None

    looking(tmp_path, test)


def test_without_a_router_none_is_asked(tmp_path: Path) -> None:
    async def test(api: FakeApi, looker: Looker) -> None:
        found = await looker.look_up(target(), Look(views=True))
        assert (found.router_pods, found.views) == (None, ())
        assert api.calls == []

    looking(tmp_path, test)


def secret(**data: str) -> Object:
    return {"metadata": {"name": "keys", "namespace": NAMESPACE}, "data": data}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


ROUTER = Router.model_validate(
    {"name": "vllm-router", "image": "corp/router:1", "apiKeySecretRef": {"name": "keys", "key": "key"}}
)


def test_a_key_is_shown_and_read_again_when_it_may_have_changed(tmp_path: Path) -> None:
    now = [NOW]

    async def test(api: FakeApi, looker: Looker) -> None:
        async with routing(FakeRouter()) as router:
            api.make(PODS, router_of("r"))
            api.make(SECRETS, secret(key=encoded("first")))
            reference = {"name": "keys", "key": "key"}
            ask = target(router={"extraArgs": [f"--port={router.port}"], "apiKeySecretRef": reference})
            await looker.look_up(ask, Look(views=True))
            api.edit(SECRETS, NAMESPACE, "keys", lambda item: item.update(data={"key": encoded("second")}))
            now[0] += KEY_S - 1
            await looker.look_up(ask, Look(views=True))
            now[0] += 1
            await looker.look_up(ask, Look(views=True))
            now[0] -= 100  # a clock that was set back
            await looker.look_up(ask, Look(views=True))
            assert router.keys == ["Bearer first", "Bearer first", "Bearer second", "Bearer second"]
            assert len(api.asked("GET", SECRETS)) == 3

    looking(tmp_path, test, lambda: now[0])


@pytest.mark.parametrize(
    "data",
    [None, {}, {"other": "eA=="}, {"key": "no base64!"}, {"key": base64.b64encode(b"\xff\xfe").decode()}],
    ids=["no data", "empty", "another key", "no base64", "no UTF-8"],
)
def test_a_key_that_cannot_be_read_is_none(tmp_path: Path, data: Any) -> None:
    """The router then says that it wants one."""

    async def test(api: FakeApi, looker: Looker) -> None:
        assert await looker.key(NAMESPACE, ROUTER) is None
        now[0] += KEY_S
        api.make(SECRETS, {**secret(), "data": data})
        assert await looker.key(NAMESPACE, ROUTER) is None
        now[0] += KEY_S
        api.edit(SECRETS, NAMESPACE, "keys", lambda item: item.update(data={"key": encoded("k")}))
        assert await looker.key(NAMESPACE, ROUTER) == "k"

    now = [NOW]
    looking(tmp_path, test, lambda: now[0])


def test_a_key_that_may_not_be_read_is_none(tmp_path: Path) -> None:
    """Else no pass over the deployment would come to its end, not even to make a Pod."""

    async def test(api: FakeApi, looker: Looker) -> None:
        api.make(SECRETS, secret(key=encoded("k")))
        api.fault("GET", SECRETS, status=403)
        assert await looker.key(NAMESPACE, ROUTER) is None

    looking(tmp_path, test)


def test_a_key_of_an_api_server_that_says_nothing_is_no_observation(tmp_path: Path) -> None:
    async def test(api: FakeApi, looker: Looker) -> None:
        api.make(SECRETS, secret(key=encoded("k")))
        api.fault("GET", SECRETS, status=500)
        with pytest.raises(KubeError):
            await looker.key(NAMESPACE, ROUTER)
        assert await looker.key(NAMESPACE, ROUTER) == "k"

    looking(tmp_path, test)


def container(started_at: str | None, *, name: str = ROUTER_CONTAINER, restarts: int = 0) -> Object:
    state: Object = {"waiting": {"reason": "CrashLoopBackOff"}}
    if started_at is not None:
        state = {"running": {"startedAt": started_at}}
    return {"name": name, "containerID": f"containerd://{restarts}", "state": state}


@pytest.mark.parametrize(
    ("statuses", "process", "started_at"),
    [
        ([container("2027-01-15T08:00:00Z")], "containerd://0", NOW),
        ([container("2027-01-15T08:00:00Z", name="sidecar")], None, None),
        ([container(None)], None, None),
        ([], None, None),
        (None, None, None),
    ],
)
def test_the_process_of_a_routers_pod(statuses: Any, process: str | None, started_at: float | None) -> None:
    found = router_pod(router_of("r", containerStatuses=statuses))
    assert (found.process, found.started_at) == (process, started_at)
    assert (found.uid, found.name, found.terminating) == ("uid-r", "r", False)


def test_a_routers_pod_that_is_being_deleted() -> None:
    ending = router_of("r")
    ending["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert router_pod(ending).terminating


@pytest.mark.parametrize(
    ("name", "args", "port"),
    [
        ("vllm-router", [], 8080),
        ("vllm-router", ["--port", "9000"], 9000),
        ("sglang-gateway", ["--port=9001"], 9001),
        ("vllm-router", ["--port=soon"], 8080),
        ("llm-d-router", [], 9090),
        ("llm-d-router", ["--metrics-port=9092"], 9092),
    ],
)
def test_where_a_router_is_asked(name: str, args: list[str], port: int) -> None:
    router = Router.model_validate({"name": name, "image": "corp/router:1", "extraArgs": args})
    (found,) = routers_at(router, [router_of("r", "10.0.0.9"), router_of("new", None)])
    assert (found.pod_uid, found.address, found.port) == ("uid-r", "10.0.0.9", port)
