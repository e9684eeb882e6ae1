"""Services and the router's objects: applied once, again when either side has changed, removed only where ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_api import FakeApi, serving
from passes import run

from operator_glue.kube import CLUSTER_ROLES, SERVICES, Conflict, Forbidden, KubeError, Object, Unreachable
from operator_glue.names import MANAGED_BY, MANAGED_BY_LABEL
from operator_glue.reconcile.objects import Named
from operator_glue.runtime.objects import FIELD_MANAGER, Keeper, Taken

UID, NAMESPACE = "u", "models"
Test = Callable[[FakeApi, Keeper], Awaitable[None]]


def service(port: int = 80, *, name: str = "s", uid: str | None = UID, kind: str = "ModelDeployment") -> Object:
    owners = [{"kind": kind, "name": "llama", "uid": uid, "controller": True}]
    metadata: Object = {"name": name, "namespace": NAMESPACE, "labels": {MANAGED_BY_LABEL: MANAGED_BY}}
    if uid is not None:
        metadata["ownerReferences"] = owners
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"port": port}}


def cluster_role(**labels: str) -> Object:
    return {"kind": "ClusterRole", "metadata": {"name": "models:llama", "labels": labels}, "rules": []}


def keeping(folder: Path, test: Test) -> None:
    async def body() -> None:
        async with serving(folder) as (api, kube):
            await test(api, Keeper(kube))

    run(body())


def stored(api: FakeApi, name: str = "s") -> Object:
    found = api.get(SERVICES, NAMESPACE, name)
    assert found is not None
    return found


def test_applied_once_and_again_when_it_is_another(tmp_path: Path) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        assert await keeper.apply(UID, NAMESPACE, service())
        assert not await keeper.apply(UID, NAMESPACE, service())
        assert [call.method for call in api.calls] == ["GET", "PATCH"]
        assert await keeper.apply(UID, NAMESPACE, service(81))
        assert stored(api)["spec"] == {"port": 81}
        assert [call.method for call in api.calls] == ["GET", "PATCH", "PATCH"]
        call = api.calls[-1]
        assert call.content_type == "application/apply-patch+yaml"
        assert dict(call.query) == {"fieldManager": FIELD_MANAGER, "force": "true"}

    keeping(tmp_path, test)


def test_what_the_watch_tells(tmp_path: Path) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        await keeper.apply(UID, NAMESPACE, service())
        assert not keeper.heard(UID, stored(api), "Service", gone=False), "as it was applied"
        assert not keeper.heard("another", stored(api), "Service", gone=False)
        assert not keeper.heard(UID, stored(api), "Deployment", gone=False)
        assert not await keeper.apply(UID, NAMESPACE, service())
        api.edit(SERVICES, NAMESPACE, "s", lambda thing: thing["spec"].update(port=99))
        assert keeper.heard(UID, stored(api), "Service", gone=False)
        assert not keeper.heard(UID, stored(api), "Service", gone=False), "told once"
        assert await keeper.apply(UID, NAMESPACE, service())
        assert stored(api)["spec"] == {"port": 80}
        last = stored(api)
        api.drop(SERVICES, NAMESPACE, "s")
        assert keeper.heard(UID, last, "Service", gone=True)
        assert await keeper.apply(UID, NAMESPACE, service())
        assert stored(api)["spec"] == {"port": 80}

    keeping(tmp_path, test)


def test_an_object_that_is_as_it_was_applied_is_no_news_after_it_was_applied_again(tmp_path: Path) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        await keeper.apply(UID, NAMESPACE, service())
        keeper.forget()
        assert await keeper.apply(UID, NAMESPACE, service())
        assert not keeper.heard(UID, stored(api), "Service", gone=False)

    keeping(tmp_path, test)


@pytest.mark.parametrize("uid", [UID, None])
def test_forgotten_is_applied_anew(tmp_path: Path, uid: str | None) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        await keeper.apply(UID, NAMESPACE, service())
        await keeper.apply("other", NAMESPACE, service(name="t", uid="other"))
        keeper.forget(uid)
        assert await keeper.apply(UID, NAMESPACE, service())
        assert await keeper.apply("other", NAMESPACE, service(name="t", uid="other")) is (uid is None)
        assert len(api.asked("PATCH", SERVICES)) == (4 if uid is None else 3)

    keeping(tmp_path, test)


@pytest.mark.parametrize(
    ("theirs", "owner"),
    [
        (service(uid="other"), "ModelDeployment llama"),
        (service(uid="helm", kind="Release"), "Release llama"),
        (service(uid=None), "nobody that it names"),
    ],
)
def test_what_is_anothers_is_left(tmp_path: Path, theirs: Object, owner: str) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        before = api.make(SERVICES, theirs)
        for _ in range(2):
            with pytest.raises(Taken, match=f"Service s is there already and belongs to {owner}"):
                await keeper.apply(UID, NAMESPACE, service(81))
        assert stored(api) == before
        assert api.writes == []
        assert await keeper.remove(UID, NAMESPACE, [Named("Service", "s")]) == 0
        assert stored(api) == before
        api.drop(SERVICES, NAMESPACE, "s")
        assert await keeper.apply(UID, NAMESPACE, service(81))

    keeping(tmp_path, test)


def test_what_was_taken_over_by_another_since_then_is_left(tmp_path: Path) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        await keeper.apply(UID, NAMESPACE, service())
        api.drop(SERVICES, NAMESPACE, "s")
        api.make(SERVICES, service(7, uid="other"))
        keeper.heard("other", stored(api), "Service", gone=False)
        keeper.heard(UID, service(), "Service", gone=True)
        with pytest.raises(Taken):
            await keeper.apply(UID, NAMESPACE, service())
        assert stored(api)["spec"] == {"port": 7}

    keeping(tmp_path, test)


@pytest.mark.parametrize("status", [403, 422, 409, 500, 0])
def test_what_is_refused_or_not_answered_is_applied_again(tmp_path: Path, status: int) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        api.fault("PATCH", SERVICES, status=status, lost=not status)
        with pytest.raises(KubeError) as refused:
            await keeper.apply(UID, NAMESPACE, service())
        assert isinstance(refused.value, Unreachable) is (status == 0)
        assert await keeper.apply(UID, NAMESPACE, service())
        assert not await keeper.apply(UID, NAMESPACE, service())

    keeping(tmp_path, test)


def test_removed_and_made_again(tmp_path: Path) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        await keeper.apply(UID, NAMESPACE, service())
        await keeper.apply(UID, NAMESPACE, service(name="t"))
        uid = stored(api)["metadata"]["uid"]
        assert await keeper.remove(UID, NAMESPACE, [Named("Service", "s"), Named("Service", "never was")]) == 1
        assert [thing["metadata"]["name"] for thing in api.all(SERVICES)] == ["t"]
        (call,) = api.asked("DELETE", SERVICES)
        assert call.body["preconditions"] == {"uid": uid}
        assert call.body["propagationPolicy"] == "Background"
        assert await keeper.remove(UID, NAMESPACE, [Named("Service", "s")]) == 0
        assert await keeper.apply(UID, NAMESPACE, service())

    keeping(tmp_path, test)


def test_what_is_being_deleted_is_waited_for_and_not_deleted_again(tmp_path: Path) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        held = service()
        held["metadata"]["finalizers"] = ["a/b"]
        api.make(SERVICES, held)
        for _ in range(3):
            assert await keeper.remove(UID, NAMESPACE, [Named("Service", "s")]) == 1
        assert len(api.asked("DELETE", SERVICES)) == 1
        api.edit(SERVICES, NAMESPACE, "s", lambda thing: thing["metadata"].pop("finalizers"))
        assert await keeper.remove(UID, NAMESPACE, [Named("Service", "s")]) == 0

    keeping(tmp_path, test)


def test_another_of_the_name_that_came_between_look_and_delete_stays(tmp_path: Path) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        await keeper.apply(UID, NAMESPACE, service())

        def replaced() -> None:
            api.drop(SERVICES, NAMESPACE, "s")
            api.make(SERVICES, service(7, uid="other"))

        api.fault("DELETE", SERVICES, before=replaced)
        with pytest.raises(Conflict):
            await keeper.remove(UID, NAMESPACE, [Named("Service", "s")])
        assert stored(api)["spec"] == {"port": 7}

    keeping(tmp_path, test)


def test_a_kind_that_may_not_be_seen_was_never_made(tmp_path: Path) -> None:
    async def test(api: FakeApi, keeper: Keeper) -> None:
        api.make(CLUSTER_ROLES, cluster_role(**{MANAGED_BY_LABEL: MANAGED_BY}))
        api.fault("GET", CLUSTER_ROLES, status=403)
        assert await keeper.remove(UID, NAMESPACE, [Named("ClusterRole", "models:llama")]) == 0
        api.fault("GET", SERVICES, status=403)
        with pytest.raises(Forbidden):
            await keeper.apply(UID, NAMESPACE, service())

    keeping(tmp_path, test)


def test_in_no_namespace_the_label_says_whose_it_is(tmp_path: Path) -> None:
    """No object there can have an owner in a namespace."""

    async def test(api: FakeApi, keeper: Keeper) -> None:
        ours = cluster_role(**{MANAGED_BY_LABEL: MANAGED_BY})
        api.make(CLUSTER_ROLES, cluster_role(team="a"))
        with pytest.raises(Taken, match="ClusterRole models:llama"):
            await keeper.apply(UID, NAMESPACE, ours)
        assert await keeper.remove(UID, NAMESPACE, [Named("ClusterRole", "models:llama")]) == 0
        api.drop(CLUSTER_ROLES, "", "models:llama")
        assert await keeper.apply(UID, NAMESPACE, ours)
        assert api.all(CLUSTER_ROLES)[0]["metadata"].get("namespace") is None
        assert await keeper.remove(UID, NAMESPACE, [Named("ClusterRole", "models:llama")]) == 1
        assert api.all(CLUSTER_ROLES) == []

    keeping(tmp_path, test)
