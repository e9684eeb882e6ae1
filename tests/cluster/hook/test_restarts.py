"""A liveness probe that fails restarts the container: with the hook too, and no later than the window."""

from __future__ import annotations

import subprocess
import time

import pytest
from kube import CLUSTER

from drainagent.timeline import BACK_BEFORE_KILL_S
from hook.api import Answer
from hook.clients import PodLoad, stream
from hook.contract import KILL_PAST_GRACE_S, NODE_S
from hook.images import STANDIN
from hook.manifests import PORTS, busybox, engine_container, pod
from hook.replica import container_id, container_status
from hook.stage import LEAD_S, SPARE_S, Stage, sleep_until

PORT = PORTS["vllm"]
KILLED = 137
PROBE_PORT = 8099
PROBING = {"periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 3}
WEB = f"mkdir /tmp/www; touch /tmp/www/live; exec httpd -f -p {PROBE_PORT} -h /tmp/www"


@pytest.mark.seconds(14)
def test_a_liveness_restart_runs_the_hook_and_cuts_nothing(stage: Stage) -> None:
    probe = {"httpGet": {"path": "/live", "port": PROBE_PORT}, "initialDelaySeconds": 2, **PROBING}
    # What the probe asks can be made to fail by itself, so that the engine is well.
    containers = [busybox("beside", WEB), engine_container("vllm", image=STANDIN, livenessProbe=probe)]
    replica = stage.start(stage.inject(pod(stage.name("liveness"), containers, 30), "image-volume"))
    stage.curtain()
    kube = replica.place.kube
    fail_at = stage.turn(LEAD_S)
    load = PodLoad((stream(-3, 4), stream(-2, 9)), replica.address, PORT, fail_at)
    sleep_until(fail_at)
    now_s = time.time()
    kube.exec(replica.name, "rm", "/tmp/www/live", container="beside")
    seen = replica.seen(Answer(now_s, now_s, 200, {}), 30 + SPARE_S, object_stays=False)
    kube.exec(replica.name, "touch", "/tmp/www/live", container="beside")
    assert [answer.fault for answer in load.finish(SPARE_S)] == [None, None]
    hook = seen.hook
    assert hook is not None
    assert hook.started_s is not None
    assert hook.ended_s is not None
    assert seen.outcome["outcome"] == "idle", seen.text
    assert seen.since_s(hook.ended_s) >= 9
    assert hook.ended_s - hook.started_s <= 30 - BACK_BEFORE_KILL_S
    assert seen.sigterm_s is not None
    assert hook.ended_s - 0.1 <= seen.sigterm_s <= hook.ended_s + NODE_S
    again = replica.wait(
        "the restart", lambda c: container_status(c.object, "main").get("restartCount") == 1, 30
    ).object
    assert container_id(again, "main") != replica.container_id
    assert "outcome" in kube.logs(replica.name, "main", previous=True)
    stage.figures.add("liveness: hook's start to return", "requests until 9 s; G = 30", hook.ended_s - hook.started_s)


@pytest.mark.seconds(17)
def test_a_hung_engine_delays_its_own_restart_no_longer_than_the_window(stage: Stage) -> None:
    probe = {"httpGet": {"path": "/health", "port": PORT}, "initialDelaySeconds": 2, **PROBING}
    container = engine_container("vllm", image=STANDIN, livenessProbe=probe)
    replica = stage.start(stage.inject(pod(stage.name("hung"), [container], 15), "init-container"))
    stage.curtain()
    sleep_until(stage.turn())
    now_s = time.time()
    # It takes connections and answers nothing, and SIGTERM does not reach it.
    subprocess.run([CLUSTER, "inside", "kill", "-STOP", str(replica.process().pid)], check=True)
    seen = replica.seen(Answer(now_s, now_s, 200, {}), 15 + SPARE_S, object_stays=False)
    hook = seen.hook
    assert hook is not None
    assert hook.started_s is not None
    assert hook.ended_s is not None
    assert seen.outcome["outcome"] == "deadline", seen.text
    assert hook.ended_s - hook.started_s <= 15 - BACK_BEFORE_KILL_S
    assert seen.main.status == KILLED, seen.text
    assert seen.main.ended_s is not None
    delay_s = seen.main.ended_s - hook.started_s
    assert delay_s <= 15 + KILL_PAST_GRACE_S + NODE_S
    replica.wait("the restart", lambda c: container_status(c.object, "main").get("restartCount") == 1, 30)
    stage.figures.add("hung engine: hook's start to the container's end", "a failed liveness probe; G = 15", delay_s)
    stage.figures.add(
        "hung engine: to the hook's return", "a failed liveness probe; G = 15", hook.ended_s - hook.started_s
    )
