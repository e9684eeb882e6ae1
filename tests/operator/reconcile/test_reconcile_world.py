"""plan_pods in a world of Pods, a kubelet, another hand and edits of the spec, from a cache that is behind."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

sys.path.insert(0, str(Path(__file__).parent))

from fake_pods import name, placed, pod

from operator_glue.reconcile.pods import WantedRole, is_ready, plan_pods
from operator_glue.retirement.data import Key
from operator_glue.retirement.members import member_of

Object = dict[str, Any]


class World(RuleBasedStateMachine):
    """One role. ``cache``: of the Pods, some steps old; creates are planned once more on the Pods as they are."""

    @initialize(replicas=st.integers(0, 4), size=st.integers(1, 3))
    def begin(self, replicas: int, size: int) -> None:
        self.pods: list[Object] = []
        self.cache: list[Object] = []
        self.replicas, self.size, self.hash = replicas, size, 1
        self.disturbed = False
        self.down_by_rollout: set[int] = set()

    def role(self) -> WantedRole:
        # The size is in the hash, as it is in the renderer's.
        return WantedRole("server", self.replicas, self.size, f"{self.hash}/{self.size}")

    # ---- the operator

    @rule()
    def a_pass(self) -> None:
        found = plan_pods([self.role()], placed(*self.cache).replicas, None, frozenset(), 0.0, {})
        taken = set()
        for delete in found.deletes:
            target = next((one for one in self.pods if one["metadata"]["uid"] == delete.uid), None)
            if target is not None:
                ordinal = int(target["metadata"]["labels"]["drainagent.io/ordinal"])
                if ordinal >= self.replicas and self._ran(target) and not self.disturbed:
                    raise AssertionError("what the spec does not want and runs is the protocol's")
                taken.add(ordinal)
                self._terminate(target)
        rolled = [event for event in found.events if event.reason == "ReplicaReplaced"]
        assert len(rolled) <= 1
        for label in found.labels:
            target = next((one for one in self.pods if one["metadata"]["uid"] == label.uid), None)
            if target is not None:
                target["metadata"]["labels"]["drainagent.io/serving"] = "true"
        if found.creates:
            live = plan_pods([self.role()], placed(*self.pods).replicas, None, frozenset(), 0.0, {})
            for one in live.creates:
                assert one.key.ordinal < self.replicas
                for index in one.indices:
                    self.pods.append(self._made(one.key, index))

    def _made(self, key: Key, index: int) -> Object:
        return pod(
            key.ordinal,
            index if self.size > 1 else None,
            size=self.size,
            hashed=self.role().spec_hash,
            ran=False,
        )

    def _ran(self, one: Object) -> bool:
        return not member_of(one).never_ran

    def _terminate(self, one: Object) -> None:
        one["metadata"].setdefault("deletionTimestamp", "2026-12-01T01:00:00Z")

    @rule()
    def the_cache_hears(self) -> None:
        self.cache = copy.deepcopy(self.pods)

    # ---- the kubelet

    @rule(at=st.integers(0, 20))
    def becomes_ready(self, at: int) -> None:
        for one in self.pods[at : at + 1]:
            if "deletionTimestamp" not in one["metadata"] and one["status"]["phase"] in ("Pending", "Running"):
                self._run(one)

    def _run(self, one: Object) -> None:
        one["status"] = {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "started": True, "state": {"running": {}}}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }

    @rule(at=st.integers(0, 20))
    def drains_to_its_end(self, at: int) -> None:
        self.pods = [
            one for number, one in enumerate(self.pods) if number != at or "deletionTimestamp" not in one["metadata"]
        ]

    # ---- another hand, and the user

    @rule(at=st.integers(0, 20), how=st.sampled_from(["delete", "fail", "unready", "label"]))
    def another_hand(self, at: int, how: str) -> None:
        for one in self.pods[at : at + 1]:
            self.disturbed = True
            if how == "delete":
                self._terminate(one)
            elif how == "fail":
                one["status"] = {"phase": "Failed"}
            elif how == "label":
                one["metadata"]["labels"].pop("drainagent.io/serving", None)
            elif one["status"].get("conditions"):
                one["status"]["conditions"] = [{"type": "Ready", "status": "False"}]

    @rule(at=st.integers(0, 20))
    def a_late_write_doubles_one(self, at: int) -> None:
        for one in self.pods[at : at + 1]:
            self.disturbed = True
            twin = copy.deepcopy(one)
            fresh = pod()
            twin["metadata"] |= {"name": name(fresh), "uid": fresh["metadata"]["uid"]}
            twin["metadata"]["creationTimestamp"] = "2026-12-01T00:00:09Z"
            self.pods.append(twin)

    @rule(replicas=st.integers(0, 4))
    def scaled_up(self, replicas: int) -> None:
        # Down is the protocol's; here the replicas that go are taken by it at once.
        self.replicas = max(self.replicas, replicas)

    @rule()
    def another_spec(self) -> None:
        self.hash += 1

    @rule(size=st.integers(1, 3))
    def another_size(self, size: int) -> None:
        self.size = size

    # ---- what holds

    @invariant()
    def never_two_in_one_place(self) -> None:
        if not hasattr(self, "pods") or self.disturbed:
            return
        places = [
            (member_of(one).index, one["metadata"]["labels"]["drainagent.io/ordinal"])
            for one in self.pods
            if not member_of(one).ended
        ]
        assert len(places) == len(set(places))

    @rule()
    def everybody_rests(self) -> None:
        """Then it comes to what is wanted: every replica there once, as the spec says, Ready and labelled."""
        for _ in range(30 * (self.replicas + 1)):
            self.the_cache_hears()
            self.a_pass()
            self.pods = [one for one in self.pods if "deletionTimestamp" not in one["metadata"]]
            for one in self.pods:
                if one["status"]["phase"] != "Failed":
                    self._run(one)
        wanted = {(ordinal, index) for ordinal in range(self.replicas) for index in range(self.size)}
        there = [
            (int(one["metadata"]["labels"]["drainagent.io/ordinal"]), member_of(one).index or 0) for one in self.pods
        ]
        assert sorted(there) == sorted(wanted)
        for one in self.pods:
            assert is_ready(member_of(one))
            assert one["metadata"]["annotations"]["drainagent.io/spec-hash"] == self.role().spec_hash
            assert member_of(one).serving == (member_of(one).index in (0, None))
        self.disturbed = False
        self.cache = copy.deepcopy(self.pods)


World.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
TestWorld = World.TestCase
