"""A replica of two Pods: the follower stays until its leader's listener is gone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hook.clients import stream
from hook.contract import check_window
from hook.images import STANDIN
from hook.manifests import PORTS, engine_container, pod, service
from hook.replica import Replica
from hook.stage import SPARE_S, Stage

PORT = PORTS["vllm"]
GRACE_S = 25


@dataclass(frozen=True)
class Group:
    leading: Replica
    following: Replica


def start_group(stage: Stage, grace_s: int, how: str, *arguments: str) -> Group:
    """A leader behind a headless Service, and a follower that watches it."""
    name = stage.name("group")
    leader_name = f"{name}.{name}.{stage.place.kube.namespace}.svc"
    stage.apply(service(name, PORT, clusterIP="None", publishNotReadyAddresses=True))
    leader = pod(name, [engine_container("vllm", *arguments, image=STANDIN)], grace_s, hostname=name, subdomain=name)
    # It stands for an engine without a listener; the stand-in has one all the same, and no client asks it.
    member = engine_container("vllm", "--headless", image=STANDIN)
    if how == "--leader-env":
        member["env"] = [{"name": "LWS_LEADER_ADDRESS", "value": leader_name}]
    option = (how, f"http://{leader_name}:{PORT}/metrics" if how == "--leader" else "LWS_LEADER_ADDRESS")
    leading = stage.start(stage.inject(leader, "image-volume"))
    following = stage.start(stage.inject(pod(f"{name}-1", [member], grace_s), "image-volume", *option))
    return Group(leading, following)


@pytest.mark.seconds(13)
@pytest.mark.parametrize("how", ["--leader", "--leader-env"])
def test_a_follower_outlives_its_leader_while_both_terminate(stage: Stage, how: str) -> None:
    group = start_group(stage, GRACE_S, how)
    stage.curtain()
    deleted = []

    def delete_the_other(_: float) -> None:
        deleted.append(stage.place.api.delete_pod(group.following.name))

    # Quiet when both are deleted: a follower that asks its leader for idleness would go first.
    seen = stage.leave(group.leading, GRACE_S, (stream(1, 5), stream(4, 12)), port=PORT, meanwhile=delete_the_other)
    check_window(seen, GRACE_S, stage.figures)
    assert seen.lost == []
    follower = group.following.seen(deleted[0], GRACE_S + SPARE_S)
    assert follower.hook is not None
    assert follower.hook.ended_s is not None
    assert follower.sigterm_s is not None
    assert seen.sigterm_s is not None
    assert seen.main.ended_s is not None
    assert follower.outcome["outcome"] == "idle", follower.text
    after_s = follower.sigterm_s - seen.sigterm_s
    assert after_s > 0, f"the follower was stopped {-after_s:.3f} s before its leader"
    # Refused on one read, or silent on three.
    assert follower.hook.ended_s - seen.main.ended_s <= 9
    stage.figures.add(f"follower by {how}: leader's SIGTERM to its own", "both deleted at once", after_s)


@pytest.mark.seconds(12)
def test_a_follower_does_not_hold_its_leader(stage: Stage) -> None:
    """A page that takes as long as a busy engine's, and no load tracking: what is connected is in flight."""
    group = start_group(stage, 15, "--leader", "--slow-metrics", "0.15", "--no-enable-server-load-tracking")
    stage.curtain()

    def delete_the_other(_: float) -> None:
        stage.place.api.delete_pod(group.following.name)

    seen = stage.leave(group.leading, 15, meanwhile=delete_the_other)
    assert seen.outcome["outcome"] == "idle", seen.text
