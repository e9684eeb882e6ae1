"""Passes over a ModelDeployment, killed at every write, with caches that are behind and answers that are lost."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_kube import FakeKube, Killed

from drainagent.podspec import AgentImage
from operator_glue.facts import ClusterFacts
from operator_glue.kube import MODEL_DEPLOYMENTS, PODS, SERVICES, KubeError, Object
from operator_glue.names import ROLL_ANNOTATION
from operator_glue.reconcile.removal import FINALIZER
from operator_glue.retirement.members import member_of
from operator_glue.runtime.ahead import Ahead
from operator_glue.runtime.cache import Store
from operator_glue.runtime.controller import FIRST_REMAKE_S, Caches, Controller, Outcome
from operator_glue.runtime.metrics import Metrics
from operator_glue.runtime.objects import Keeper
from operator_glue.runtime.process import _deployments_of
from operator_glue.runtime.reading import Reader
from operator_glue.runtime.recorder import Recorder
from operator_glue.runtime.writing import Cut

NS, NAME = "models", "llama"


def spec(*roles: Object, **more: Any) -> Object:
    return {
        "model": {"name": "m"},
        "engine": {"name": "vLLM", "image": "engine:1"},
        "roles": list(roles),
        **more,
    }


def role(replicas: int = 2, **more: Any) -> Object:
    return {"name": "server", "replicas": replicas, **more}


class World:
    """A cluster, and the operator's process in it, which can end and begin anew."""

    def __init__(self, body: Object) -> None:
        self.kube = FakeKube()
        self.now = 1_800_000_000.0
        self.generation = 1
        thing = {
            "metadata": {"name": NAME, "generation": 1, "creationTimestamp": "2026-12-01T00:00:00Z"},
            "spec": body,
        }
        self.kube.put(MODEL_DEPLOYMENTS, NS, thing)
        self.facts = ClusterFacts()
        self.begin()

    def begin(self) -> None:
        self.caches = Caches(Store(), Store(_deployments_of), Store(_deployments_of), Store(_deployments_of), Store())
        self.ahead = Ahead(lambda: self.now)
        self.controller = Controller(
            kube=self.kube,
            caches=self.caches,
            ahead=self.ahead,
            reader=Reader(lambda: self.facts),
            keeper=Keeper(self.kube),
            recorder=Recorder(self.kube, "test", lambda: self.now),
            metrics=Metrics(),
            clock=lambda: self.now,
            may_write=lambda: None,
        )
        self.kube.sync(self.caches)

    def work(self) -> Outcome | str:
        """A pass; 'killed', 'cut' or 'error' where it did not come to its end."""
        try:
            return asyncio.run(self.controller.work(NS, NAME))
        except Killed:
            self.kube.die_before = -1
            self.begin()
            return "killed"
        except Cut:
            return "cut"
        except KubeError:
            self.kube.lose = -1
            return "error"

    def settle(self, passes: int = 12) -> None:
        for _ in range(passes):
            self.kube.kubelet()
            self.kube.sync(self.caches)
            self.now += 1.0
            self.work()

    @property
    def thing(self) -> Object:
        return self.kube.things["modeldeployments", NS, NAME]

    @property
    def status(self) -> Object:
        found: Object = self.thing.get("status") or {}
        return found

    def edit(self, change: Callable[[Object], None]) -> None:
        thing = self.thing
        change(thing["spec"])
        self.generation += 1
        thing["metadata"]["generation"] = self.generation
        thing["metadata"]["resourceVersion"] += "e"

    def places(self) -> list[tuple[str, str]]:
        return sorted(
            (str(pod["metadata"]["labels"]["drainagent.io/ordinal"]), str(member_of(pod).index))
            for pod in self.kube.pods()
            if not member_of(pod).terminating
        )

    def condition(self, kind: str) -> Object:
        found: Object = next(one for one in self.status["conditions"] if one["type"] == kind)
        return found

    def events(self) -> list[str]:
        return [str(t["reason"]) for (plural, _, _), t in self.kube.things.items() if plural == "events"]


def test_made_and_said_to_be() -> None:
    world = World(spec(role()))
    world.settle()
    assert world.places() == [("0", "0"), ("1", "0")]
    assert world.thing["metadata"]["finalizers"] == [FINALIZER]
    assert world.status["phase"] == "Ready"
    assert world.status["ready"] == "server 2/2"
    assert world.status["observedGeneration"] == 1
    assert world.condition("Available")["status"] == "True"
    assert world.condition("Progressing")["reason"] == "Complete"
    assert "ReplicasCreated" in world.events()
    writes = len(world.kube.writes)
    world.settle(3)
    assert len(world.kube.writes) == writes  # nothing to do is nothing written


def test_a_cache_that_is_behind_makes_nothing_twice() -> None:
    world = World(spec(role(3)))
    for _ in range(6):  # the watch says nothing all the while
        world.work()
    assert world.places() == [("0", "0"), ("1", "0"), ("2", "0")]


ROUTED = {"router": {"name": "vllm-router", "image": "router:1"}}
SHAPES = {
    "two replicas": spec(role(2)),
    "replicas of two Pods": spec(role(2, size=2)),
    "behind a router": spec(role(1), **ROUTED),
}


def writes_of(body: Object) -> int:
    world = World(body)
    world.settle()
    return len(world.kube.writes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("when", ["die_before", "lose"])
def test_ended_at_any_write_it_comes_to_the_same(shape: str, when: str) -> None:
    """And nothing is doubled on the way."""
    body = SHAPES[shape]
    calm = World(body)
    calm.settle()
    for number in range(writes_of(body)):
        world = World(body)
        setattr(world.kube, when, number)
        for _ in range(14):
            world.work()
            assert len(world.places()) == len(set(world.places())), (number, world.places())
            world.kube.kubelet()
            world.kube.sync(world.caches)
            world.now += 1.0
        assert world.places() == calm.places(), number
        assert world.status["phase"] == "Ready", number
        kinds = {place for place in world.kube.things if place[0] not in ("pods", "events")}
        assert kinds == {place for place in calm.kube.things if place[0] not in ("pods", "events")}, number


@pytest.mark.parametrize("when", ["die_before", "lose"])
def test_rolled_out_though_it_ends_at_any_write(when: str) -> None:
    """One at a time: two of three always serve."""

    def run(number: int) -> World:
        world = World(spec(role(3)))
        world.settle()
        world.edit(lambda body: body["roles"][0].update(env=[{"name": "A", "value": "1"}]))
        world.kube.writes.clear()
        setattr(world.kube, when, number)
        for _ in range(30):
            world.kube.sync(world.caches)
            world.work()
            ready = sum(member_of(pod).main_running and not member_of(pod).terminating for pod in world.kube.pods())
            assert ready >= 2, number
            assert len(world.places()) == len(set(world.places()))
            world.kube.kubelet()
            world.now += 15.0
        return world

    calm = run(-1)
    assert calm.status["phase"] == "Ready"
    for number in range(len(calm.kube.writes)):
        world = run(number)
        assert world.status["phase"] == "Ready", number
        assert len({pod["metadata"]["annotations"]["drainagent.io/spec-hash"] for pod in world.kube.pods()}) == 1


@pytest.mark.parametrize("when", ["die_before", "lose"])
def test_removed_though_it_ends_at_any_write(when: str) -> None:
    """Pods first, then the router; the finalizer last."""

    def run(number: int) -> World:
        world = World(spec(role(2), **ROUTED))
        world.settle()
        world.thing["metadata"]["deletionTimestamp"] = "2026-12-01T02:00:00Z"
        world.thing["metadata"]["resourceVersion"] += "e"
        world.kube.writes.clear()
        setattr(world.kube, when, number)
        for _ in range(14):
            world.kube.sync(world.caches)
            world.work()
            if world.kube.pods():
                assert ("deployments", NS, "llama-router") in world.kube.things
                assert ("modeldeployments", NS, NAME) in world.kube.things
            world.kube.kubelet()
            world.now += 1.0
        return world

    calm = run(-1)
    for number in range(-1, len(calm.kube.writes)):
        world = run(number)
        left = {place[0] for place in world.kube.things}
        assert left <= {"events", "services"}, number  # services go by their owner


def test_another_release_adopts_what_is_there() -> None:
    """Another agent image changes what a new Pod gets, and replaces none; roll does."""
    world = World(spec(role(2)))
    world.settle()
    before = {pod["metadata"]["uid"] for pod in world.kube.pods()}
    world.facts = ClusterFacts(agent_image=AgentImage("agent:2"))
    world.begin()
    world.settle()
    assert {pod["metadata"]["uid"] for pod in world.kube.pods()} == before
    world.thing["metadata"]["annotations"] = {ROLL_ANNOTATION: "1"}
    world.thing["metadata"]["resourceVersion"] += "e"
    world.settle(30)
    pods = world.kube.pods()
    assert not {pod["metadata"]["uid"] for pod in pods} & before
    assert {pod["spec"]["initContainers"][0]["image"] for pod in pods} == {"agent:2"}


def test_scaled_up_and_a_lost_pod_replaced() -> None:
    world = World(spec(role(1)))
    world.settle()
    world.edit(lambda body: body["roles"][0].update(replicas=3))
    world.settle()
    assert [ordinal for ordinal, _ in world.places()] == ["0", "1", "2"]
    victim = world.kube.pods()[0]["metadata"]
    del world.kube.things["pods", NS, victim["name"]]
    world.settle()
    assert [ordinal for ordinal, _ in world.places()] == ["0", "1", "2"]
    assert victim["uid"] not in {pod["metadata"]["uid"] for pod in world.kube.pods()}


def test_pods_that_end_again_and_again_are_made_later_each_time() -> None:
    world = World(spec(role(1)))
    made: list[float] = []
    for _ in range(120):
        world.kube.sync(world.caches)
        before = len(world.kube.pods())
        world.work()
        if len(world.kube.pods()) > before:
            made.append(world.now)
        for pod in world.kube.pods():
            pod["status"] = {"phase": "Failed"}
            pod["spec"]["nodeName"] = "n1"
            pod["metadata"]["resourceVersion"] += "f"
        world.kube.kubelet()
        world.now += 1.0
    gaps = [later - earlier for earlier, later in itertools.pairwise(made)]
    assert gaps[1] >= FIRST_REMAKE_S
    assert gaps == sorted(gaps)


def _half(body: Object) -> None:
    body["roles"].append({"name": "half", "kind": "Prefill", "replicas": 1})


def _unknown_router(body: Object) -> None:
    body["router"] = {"name": "envoy", "image": "envoy:1"}


@pytest.mark.parametrize("change", [_half, _unknown_router])
def test_a_spec_that_is_refused_changes_nothing(change: Callable[[Object], None]) -> None:
    """As of an object that was made before the definition was tightened."""
    world = World(spec(role(2)))
    world.settle()
    before = world.places()
    world.edit(change)
    world.edit(lambda body: body["roles"][0].update(replicas=0))
    writes = len(world.kube.writes)
    world.settle(3)
    assert world.places() == before
    assert world.condition("Progressing")["reason"] == "InvalidSpec"
    assert world.condition("Progressing")["status"] == "False"
    assert set(world.kube.writes[writes:]) == {"patch modeldeployments", "create events"}


def test_a_quota_is_told_and_tried_again() -> None:
    world = World(spec(role(2)))
    world.kube.refuse = {"pods"}
    outcome = world.work()
    assert isinstance(outcome, Outcome)
    assert "exceeded quota" in str(outcome.trouble)
    assert world.condition("Progressing")["reason"] == "Refused"
    world.kube.refuse = set()
    world.settle()
    assert world.status["phase"] == "Ready"


def test_a_service_of_somebody_else_stays_theirs() -> None:
    world = World(spec(role(1)))
    theirs = world.kube.put(SERVICES, NS, {"kind": "Service", "metadata": {"name": "llama-server"}, "spec": {"a": 1}})
    world.settle()
    assert world.kube.things["services", NS, "llama-server"] == theirs
    assert world.condition("Progressing")["reason"] == "NameTaken"
    assert world.places() == [("0", "0")]


def test_another_hands_pods_are_left_alone() -> None:
    world = World(spec(role(1)))
    labels = {"app.kubernetes.io/instance": NAME, "app.kubernetes.io/component": "server", "drainagent.io/ordinal": "4"}
    world.kube.put(PODS, NS, {"metadata": {"name": "theirs", "labels": labels}, "spec": {}, "status": {}})
    world.settle()
    assert ("pods", NS, "theirs") in world.kube.things
    assert "ForeignPod" in world.events()
    assert world.status["roles"] == [{"name": "server", "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}]


@pytest.mark.parametrize(
    "nonsense",
    [
        {"retirement": {"state": "Deleting"}},
        {"retirement": "soon", "retained": 7},
        {"conditions": "all well"},
        {"conditions": [7, {"type": "Available", "status": "True"}, {"type": "Theirs", "status": "True"}]},
        {"roles": None, "phase": "Great", "ready": 3},
    ],
)
def test_a_status_that_says_nonsense_loses_nothing(nonsense: Object) -> None:
    world = World(spec(role(1)))
    world.settle()
    before = world.places()
    world.thing["status"] = nonsense
    world.thing["metadata"]["resourceVersion"] += "e"
    world.settle()
    assert world.places() == before
    assert world.status["phase"] == "Ready"
    assert "retirement" not in world.status
    assert {one["type"] for one in world.status["conditions"]} >= {"Available", "Progressing", "RetirementBlocked"}


def test_a_conflict_ends_the_pass_before_anything_else() -> None:
    world = World(spec(role(1)))
    world.thing["metadata"]["resourceVersion"] += "newer"
    assert world.work() == "cut"
    assert world.kube.pods() == []


def test_a_dropped_role_leaves_no_service() -> None:
    """Its replica never ran, so that it leaves at once."""
    world = World(spec(role(1), {"name": "extra", "replicas": 1}))
    world.work()
    world.edit(lambda body: body["roles"].pop())
    for _ in range(5):
        world.kube.sync(world.caches)
        world.work()
    assert ("services", NS, "llama-extra") not in world.kube.things
    assert world.places() == [("0", "0")]
