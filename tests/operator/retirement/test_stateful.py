"""The protocol in larger worlds than can be tried out: several roles, replicas of several Pods, many acts in a row."""

from __future__ import annotations

from dataclasses import replace

from explorer import REAL, ends
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model_cluster import Pod, Shape, World, actions, friendly, operator_pass, start

from operator_glue.model import RouterName

SHAPES = [
    Shape("vllm-router under Kueue", kueue=True),
    Shape("sglang-gateway", router=RouterName.SGLANG_GATEWAY),
    Shape("replicas of two Pods", size=2, kueue=True),
    Shape("no router", router=None),
    Shape("ProveFromMember", router=None, prove_from_member=True),
]


class Removal(RuleBasedStateMachine):
    """Every rule of model_cluster.RULES that a transition can break is looked at in it."""

    world: World

    @initialize(shape=st.sampled_from(SHAPES), replicas=st.integers(2, 4), routers=st.integers(1, 3), data=st.data())
    def begin(self, shape: Shape, replicas: int, routers: int, data: st.DataObject) -> None:
        pods = [
            Pod(str(1 + index + shape.size * (ordinal + 4 * role)), "ab"[role], ordinal, index, serving=index == 0)
            for role in range(2)
            for ordinal in range(replicas)
            for index in range(shape.size)
        ]
        wanted = {"a": data.draw(st.integers(0, replicas)), "b": data.draw(st.integers(0, replicas))}
        if data.draw(st.booleans()):
            del wanted["b"]
        self.world = start(shape, pods=tuple(pods), wanted=wanted, routers=routers)

    @rule(seconds=st.integers(1, 12))
    def left_alone(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world = friendly(operator_pass(self.world, REAL)[0])

    @rule(data=st.data())
    def a_pass(self, data: st.DataObject) -> None:
        self._act(data, replace(self.world, passes=1))

    @rule(data=st.data())
    @precondition(lambda self: len(self.world.persisted.retained) < 6)
    def another_hand(self, data: st.DataObject) -> None:
        self._act(data, replace(self.world, mischief=1, passes=1))

    @rule(data=st.data())
    def a_leap(self, data: st.DataObject) -> None:
        self._act(data, replace(self.world, jumps=1))

    def _act(self, data: st.DataObject, world: World) -> None:
        found = dict(actions(world, REAL))
        name = data.draw(st.sampled_from(sorted(found)), label="act")
        self.world = replace(found[name](), mischief=0, passes=0, jumps=0)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            ends(self.world)


Removal.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestRemoval = Removal.TestCase
