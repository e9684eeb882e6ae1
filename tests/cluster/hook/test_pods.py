"""Pods of other shapes: users, read-only roots, shared PIDs, neighbours, other addresses, proxies."""

from __future__ import annotations

from typing import Any

import pytest

from hook.clients import epoch_s, stream
from hook.contract import check_status, check_window
from hook.images import STANDIN
from hook.manifests import (
    DELIVERIES,
    ENGINES,
    PORTS,
    SHARE,
    Delivery,
    Engine,
    busybox,
    engine_container,
    image_of,
    pod,
    with_hook_arguments,
)
from hook.stage import Stage

PORT = PORTS["vllm"]
PROXY_PORT = 9000
#: All can finish by G - 5 at G = 30; one is late.
LOAD = (stream(-3, 2), stream(-2, 8), stream(3, 7))
GRACE_S = 30

RESTRICTED_POD = {
    "runAsNonRoot": True,
    "runAsUser": 1234,
    "runAsGroup": 1234,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED_CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@pytest.mark.seconds(12)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_another_user_a_read_only_root_and_the_restricted_standard(stage: Stage, delivery: Delivery) -> None:
    stage.in_restricted_namespace()
    container = engine_container("vllm", image=image_of(delivery), securityContext=RESTRICTED_CONTAINER)
    plain = pod(stage.name("restricted"), [container], GRACE_S, securityContext=RESTRICTED_POD)
    replica = stage.start(with_hook_arguments(stage.inject(plain, delivery), "--termination-log"))
    stage.curtain()
    seen = stage.leave(replica, GRACE_S, LOAD, port=PORT)
    check_window(seen, GRACE_S, stage.figures)
    assert seen.lost == []
    assert seen.outcome["outcome"] == "idle", seen.text
    assert seen.terminated is not None
    assert '"outcome": "idle"' in seen.terminated["message"]


@pytest.mark.seconds(12)
@pytest.mark.parametrize(
    ("user", "shared", "delivery"),
    [
        pytest.param(0, False, "in-image", id="root"),
        pytest.param(0, True, "image-volume", id="root-shared"),
        pytest.param(1000, True, "init-container", id="other-shared"),
    ],
)
def test_root_and_a_shared_process_namespace(stage: Stage, user: int, shared: bool, delivery: Delivery) -> None:
    """With shared PIDs, PID 1 is the pause program, and its output is nobody's log."""
    container = engine_container("vllm", image=image_of(delivery), securityContext={"runAsUser": user})
    plain = pod(stage.name("user"), [container, busybox("beside", SLEEP)], GRACE_S, shareProcessNamespace=shared)
    replica = stage.start(stage.inject(plain, delivery))
    stage.curtain()
    seen = stage.leave(replica, GRACE_S, LOAD, port=PORT)
    check_window(seen, GRACE_S, stage.figures)
    check_status(seen, 0)
    assert seen.lost == []
    assert seen.outcome["outcome"] == "idle", seen.text


#: Ends at SIGTERM, as PID 1 too.
SLEEP = "trap 'exit 0' TERM; echo up; while :; do sleep 0.2; done"


@pytest.mark.seconds(12)
def test_a_second_container_is_stopped_at_once_and_the_engine_is_not(stage: Stage) -> None:
    plain = pod(stage.name("two"), [busybox("beside", SLEEP), engine_container("vllm")], GRACE_S)
    replica = stage.start(stage.inject(plain))
    beside = replica.process("beside")
    stage.curtain()
    seen = stage.leave(replica, GRACE_S, LOAD, port=PORT)
    check_window(seen, GRACE_S, stage.figures)
    assert seen.lost == []
    assert seen.since_s(beside.ended_s) <= 3


@pytest.mark.seconds(12)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_on_the_address_of_the_pod_alone(stage: Stage, engine: Engine) -> None:
    container = engine_container(engine, "--host", "$(POD_IP)")
    container["env"] = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    replica = stage.start(stage.inject(pod(stage.name("address"), [container], GRACE_S)))
    stage.curtain()
    seen = stage.leave(replica, GRACE_S, LOAD, port=PORTS[engine])
    check_window(seen, GRACE_S, stage.figures)
    assert seen.lost == []
    assert seen.outcome["outcome"] == "idle", seen.text
    assert f"listening on http://{replica.address}" in seen.text


#: What a mesh's proxy does to a connection, and nothing else. It ends at SIGTERM, as Envoy does when it is told to.
PROXY = f"""
import asyncio, signal

async def pipe(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()

async def serve(reader, writer):
    engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", {PORT})
    await asyncio.gather(pipe(reader, engine_writer), pipe(engine_reader, writer))

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await asyncio.start_server(serve, "0.0.0.0", {PROXY_PORT})
    await stop.wait()

asyncio.run(main())
"""


def proxy(**more: Any) -> dict[str, Any]:
    return {
        "name": "proxy",
        "image": STANDIN,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", PROXY],
        "resources": SHARE,
        "readinessProbe": {"tcpSocket": {"port": PROXY_PORT}, "periodSeconds": 1},
        **more,
    }


@pytest.mark.seconds(12)
def test_a_native_sidecar_proxy_serves_until_the_engine_has_gone(stage: Stage) -> None:
    container = engine_container("vllm", "--host", "127.0.0.1", image=STANDIN)
    # The kubelet does not reach it there.
    del container["startupProbe"], container["readinessProbe"]
    plain = pod(stage.name("sidecar"), [container], GRACE_S, initContainers=[proxy(restartPolicy="Always")])
    replica = stage.start(stage.inject(plain, "init-container"))
    replica.log.wait("listening on", 10)
    stage.curtain()
    seen = stage.leave(replica, GRACE_S, LOAD, port=PROXY_PORT)
    check_window(seen, GRACE_S, stage.figures)
    assert seen.lost == []
    assert seen.outcome["outcome"] == "idle", seen.text


@pytest.mark.seconds(8)
def test_a_classic_proxy_container_stops_at_the_delete_and_takes_the_requests_along(stage: Stage) -> None:
    """The documented loss: nothing that the engine's hook does helps behind a proxy that has gone."""
    plain = pod(stage.name("classic"), [proxy(), engine_container("vllm")], GRACE_S)
    replica = stage.start(stage.inject(plain))
    proxy_process = replica.process("proxy")
    stage.curtain()
    seen = stage.leave(replica, GRACE_S, LOAD, port=PROXY_PORT)
    check_window(seen, GRACE_S, stage.figures)
    running = [answer for answer in seen.answers if answer.request.at_s < 0]
    assert not any(answer.complete for answer in running), "the proxy stopped and a request through it lived"
    assert len(seen.lost) == len(seen.answers)
    cut_s = max(seen.since_s(epoch_s(answer.ended)) for answer in running if answer.ended is not None)
    meaning = "a plain container as a proxy in front; requests that could all finish by G - 5"
    stage.figures.add("classic proxy: requests", meaning, len(seen.answers), "requests")
    stage.figures.add("classic proxy: lost", meaning, len(seen.lost), "requests")
    stage.figures.add("classic proxy: delete to the proxy's end", meaning, seen.since_s(proxy_process.ended_s))
    stage.figures.add("classic proxy: delete to the last cut", meaning, cut_s)
