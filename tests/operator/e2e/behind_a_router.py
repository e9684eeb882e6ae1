"""What is done to a ModelDeployment behind a stock router while clients stream through it. A class, a file a router.

Each case leaves three replicas of the role server as it found them.
"""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import pytest

from e2e.stage import Case, Stage
from e2e.streams import Stream, follow


class BehindARouter:
    router: ClassVar[str]

    def test_created(self, stage: Stage) -> None:
        stage.kube.run("wait", "--for=condition=Available", "mdep/llama", "--timeout=60s")
        with stage.load("create, three replicas"):
            time.sleep(3)
        assert len(stage.pods()) == 3
        assert stage.events()[0] == "ReplicasCreated"

    def test_scale_down_and_up(self, stage: Stage) -> None:
        states: set[str] = set()
        before = stage.uids()

        def is_down() -> bool:
            states.add((stage.status.get("retirement") or {}).get("state", ""))
            return stage.is_settled()

        with stage.load("scale down 3 to 1"):
            stage.apply(stage.role(replicas=1))
            time.sleep(0.5)
            stage.wait("scaled down", is_down)
        assert {"Draining", "Deleting"} <= states
        assert len(stage.uids()) == 1
        assert stage.uids() < before
        assert "RetirementCompleted" in stage.events()
        with stage.load("scale up 1 to 3"):
            stage.apply(stage.role())
            time.sleep(0.5)
            stage.settle()
        assert len(stage.uids()) == 3

    def test_scaled_up_again_while_draining(self, stage: Stage) -> None:
        before = stage.uids()
        host, port = stage.front()
        # On every replica, so on the highest too: it stays in Draining while they run.
        long = [Stream(time.time(), 900) for _ in range(6)]
        threads = [threading.Thread(target=follow, args=(one, host, port, stage.model)) for one in long]
        for thread in threads:
            thread.start()
        time.sleep(1)
        stage.apply(stage.role(replicas=2))
        stage.wait("held by its streams", lambda: (stage.status.get("retirement") or {}).get("reason") == "Busy")
        with stage.load("scaled up again while draining"):
            stage.apply(stage.role())
            time.sleep(0.5)
            stage.settle()
        for thread in threads:
            thread.join()
        stage.report(Case("streams of 18 s across a cancelled removal", len(long), [x for x in long if x.fault]), 0)
        assert [str(one) for one in long if one.fault] == []
        assert stage.uids() == before
        assert "RetirementCancelled" in stage.events()

    @pytest.mark.parametrize("states", [("Withdrawing", "Draining"), ("Deleting",)], ids=" or ".join)
    def test_operator_killed_in_the_middle(self, stage: Stage, states: tuple[str, ...]) -> None:
        before = stage.uids()
        with stage.load(f"operator killed in a scale-down, {' or '.join(states)}"):
            stage.apply(stage.role(replicas=2))
            stage.wait("begun", lambda: (stage.status.get("retirement") or {}).get("state") in states)
            stage.operator.kill()
            time.sleep(1)
            stage.operator.start()
            time.sleep(1)
            stage.wait("ended the same", stage.is_settled)
        assert len(stage.uids()) == 2
        assert stage.uids() < before
        with stage.load("scale up 2 to 3"):
            stage.apply(stage.role())
            time.sleep(0.5)
            stage.settle()

    def test_pod_deleted(self, stage: Stage) -> None:
        pod = stage.pods()[1]["metadata"]
        with stage.load("kubectl delete pod"):
            stage.kube.delete(f"pod/{pod['name']}")
            stage.wait("replaced", lambda: pod["uid"] not in stage.uids() and stage.is_settled())
        assert len(stage.uids()) == 3

    def test_node_drained(self, stage: Stage) -> None:
        """By the Eviction API, a Pod at a time, as a drain does that a budget of one bounds."""
        before = stage.pods()
        with stage.load("eviction of every Pod, one at a time"):
            for pod in before:
                stage.evict(pod)
                uid = pod["metadata"]["uid"]
                stage.wait("replaced", lambda uid=uid: uid not in stage.uids() and stage.is_settled())  # type: ignore[misc]
                stage.settle()
        assert not stage.uids() & {pod["metadata"]["uid"] for pod in before}

    def test_evicted_together(self, stage: Stage) -> None:
        """All at once: nothing can serve what comes then, and what is under way is finished."""
        before = stage.pods()
        with stage.load("eviction of every Pod at once: what is under way") as load:
            threading.Thread(target=load.stop).start()
            for pod in before:
                stage.evict(pod)
            load.stop()
            stage.settle()

    def test_rollout(self, stage: Stage) -> None:
        """One at a time: two of three always serve."""
        before, least = stage.uids(), [3]

        def is_rolled() -> bool:
            ready = sum(
                any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
                and "deletionTimestamp" not in pod["metadata"]
                for pod in stage.pods()
            )
            least.append(ready)
            return stage.is_settled() and not stage.uids() & before

        with stage.load("rollout of three replicas"):
            stage.apply(stage.role(env=[{"name": "ROLLED", "value": "1"}]))
            stage.wait("rolled out", is_rolled, 240)
        assert min(least) == 2
        stage.settle()

    def test_rollout_of_two(self, stage: Stage) -> None:
        """By drainagent.io/roll. While one is replaced the other one serves alone: the router has to know the successor
        before that one goes, and a router takes a second to take it in once it is Ready."""
        env = [{"name": "ROLLED", "value": "1"}]
        # SGLang shows no gauges before its first batch: each replica has to have had one to be read as idle.
        with stage.load("before a rollout of two replicas"):
            time.sleep(1)
        stage.apply(stage.role(env=env, replicas=2))
        stage.settle()
        before = stage.uids()
        with stage.load("rollout of two replicas"):
            stage.kube.run("annotate", "mdep", stage.name, "drainagent.io/roll=1")
            stage.wait("rolled out", lambda: stage.is_settled() and not stage.uids() & before, 240)
        stage.apply(stage.role(env=env))
        stage.settle()

    def test_role_dropped(self, stage: Stage) -> None:
        env = [{"name": "ROLLED", "value": "1"}]
        stage.apply(stage.role(env=env), stage.role("extra", replicas=1))
        stage.settle()
        with stage.load("a role dropped"):
            stage.apply(stage.role(env=env))
            time.sleep(0.5)
            stage.wait("dropped", lambda: not stage.pods("extra") and stage.is_settled())
        assert not [one for one in stage.kube.find("services") if one["metadata"]["name"] == "llama-extra"]

    def test_outlives_the_window(self, stage: Stage) -> None:
        """A stream that still runs at G - 5 is cut, as the window says; it is listed."""
        stage.apply(stage.role(env=[{"name": "ROLLED", "value": "1"}]), stage.role("short", replicas=1, grace_s=15))
        stage.settle()
        (pod,) = stage.pods("short")
        port = 8000 if self.router == "vllm-router" else 30000
        outliving = Stream(time.time(), 3000)
        thread = threading.Thread(target=follow, args=(outliving, pod["status"]["podIP"], port, stage.model))
        thread.start()
        time.sleep(0.5)
        with stage.load("beside a stream that outlives G - 5"):
            stage.kube.delete(f"pod/{pod['metadata']['name']}")
            thread.join()
            stage.settle()
        stage.report(Case("a stream of 60 s, G = 15 s, Pod deleted", 1, [], [outliving]), 0)
        assert outliving.fault is not None
        # SGLang shows no gauges before its first batch: each replica has to have had one to be read as idle.
        with stage.load("after it"):
            time.sleep(2)
        stage.apply(stage.role(env=[{"name": "ROLLED", "value": "1"}]))
        stage.wait("dropped", lambda: not stage.pods("short") and stage.is_settled())

    def test_removed(self, stage: Stage) -> None:
        """Engine Pods drain, then the router goes, then the finalizer."""
        host, port = stage.front()
        last = Stream(time.time(), 250)
        thread = threading.Thread(target=follow, args=(last, host, port, stage.model))
        thread.start()
        time.sleep(0.5)
        stage.remove()
        thread.join()
        stage.report(Case("removed with a stream of 5 s under way", 1, [last] if last.fault else []), 3)
        assert last.fault is None, str(last)
        left = stage.kube.find(
            "pods,services,deployments,roles,rolebindings,serviceaccounts", "app.kubernetes.io/instance=llama"
        )
        assert [
            f"{one['kind']} {one['metadata']['name']}" for one in left if one["kind"] not in ("Pod", "ReplicaSet")
        ] == []
