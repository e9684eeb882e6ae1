"""What a person sees of the hook: the container's log, the Pod's status, the kubelet's event."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

import pytest

from hook.clients import stream
from hook.contract import check_status, check_window
from hook.images import STANDIN
from hook.manifests import PORTS, deployment, engine_container, pod, service, with_hook_arguments
from hook.replica import is_ready
from hook.stage import Stage

WRONG_ARGUMENT = 2
NO_SUCH_FILE = 2


@pytest.mark.seconds(10)
def test_the_text_log_is_what_kubectl_logs_shows(stage: Stage) -> None:
    plain = deployment(pod(stage.name("text"), [engine_container("vllm", image=STANDIN)], 30))
    replica = stage.start(stage.inject(plain, "init-container", json_log=False))
    stage.curtain()
    command = replica.place.kube.command("logs", "--follow", replica.name, "--container", "main")
    follow = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    seen = stage.leave(replica, 30)
    lines = [line for line in follow.communicate(timeout=20)[0].splitlines() if line.startswith("drainagent:")]
    check_window(seen, 30, stage.figures)
    assert "keeps serving for 5 s" in lines[0]
    assert "no read after 25 s, back by 27 s" in lines[0]
    assert "the settle is over" in lines[1]
    assert "outcome idle after" in lines[-1]
    assert "outcome" not in "".join(lines[:-1])


@pytest.mark.seconds(10)
def test_the_outcome_is_in_the_status_of_the_pod(stage: Stage) -> None:
    plain = pod(stage.name("status"), [engine_container("vllm")], 30)
    replica = stage.start(with_hook_arguments(stage.inject(plain, json_log=False), "--termination-log"))
    stage.curtain()
    seen = stage.leave(replica, 30)
    check_window(seen, 30, stage.figures)
    check_status(seen, 0)
    assert seen.terminated is not None
    message = json.loads(seen.terminated["message"])
    assert message["outcome"] == "idle"
    assert 6 <= message["waited_s"] <= 8
    # Foreseen outcomes are no failures of a hook.
    assert replica.place.kube.events(replica.name, "FailedPreStopHook") == []


WRONG = [
    # The stream ends at 8 s: the window is finished, and the request with it.
    pytest.param(("--engine", "vlm"), (), "idle", "--engine", id="engine"),
    pytest.param(("--url", "http://192.0.2.1:8000/metrics"), ("--url",), "idle", "--url", id="url"),
    pytest.param(("--grace", "thirty"), (), "idle", "--grace", id="grace"),
    pytest.param(("--gracee", "30"), (), "idle", "--gracee", id="unknown"),
    # Nothing can be watched: the whole window.
    pytest.param(("--leader", "no url"), (), "deadline", "--leader", id="leader"),
]


@pytest.mark.seconds(13)
@pytest.mark.parametrize(("arguments", "left_out", "outcome", "named"), WRONG)
def test_a_wrong_argument_is_an_event_and_a_sentence_and_no_request_is_lost(
    stage: Stage, arguments: Sequence[str], left_out: Sequence[str], outcome: str, named: str
) -> None:
    plain = pod(stage.name("wrong"), [engine_container("vllm")], 25)
    replica = stage.start(with_hook_arguments(stage.inject(plain), *arguments, left_out=left_out))
    stage.curtain()
    seen = stage.leave(replica, 25, (stream(-2, 3), stream(-1, 8)), port=PORTS["vllm"])
    check_window(seen, 25, stage.figures)
    assert seen.lost == []
    assert seen.hook is not None
    assert seen.hook.status == WRONG_ARGUMENT
    assert seen.outcome["outcome"] == outcome, seen.text
    if outcome == "deadline":
        assert seen.since_s(seen.hook.ended_s) >= 20
    first = seen.hook_lines[0]
    assert first["reason"] == "WrongArgument"
    assert named in first["message"]
    (event,) = replica.place.kube.events(replica.name, "FailedPreStopHook")
    assert (event["type"], event["message"]) == ("Warning", "PreStopHook failed")


@pytest.mark.seconds(3)
def test_what_an_image_without_the_agent_costs(stage: Stage) -> None:
    """`--delivery in-image` believes that the image has it: there is no hook then and no settle."""
    plain = pod(stage.name("missing"), [engine_container("vllm", image=STANDIN)], 20)
    replica = stage.start(stage.inject(plain, "in-image"))
    stage.curtain()
    seen = stage.leave(replica, 20, (stream(-2, 3), stream(-1, 8), stream(1, 3)), port=PORTS["vllm"])
    assert seen.hook is not None
    assert seen.hook.status == NO_SUCH_FILE
    assert len(seen.lost) == 3
    assert len(replica.place.kube.events(replica.name, "FailedPreStopHook")) == 1
    stage.figures.add("no agent in the image: lost", "--delivery in-image, of 3", len(seen.lost), "requests")
    stage.figures.add("no agent in the image: delete to SIGTERM", "the engine's line", seen.since_s(seen.sigterm_s))


@pytest.mark.seconds(13)
def test_the_endpoint_slice_during_the_window(stage: Stage) -> None:
    """Routers that follow EndpointSlices hear at once; those that follow the Pod's own condition hear nothing."""
    name = stage.name("slice")
    plain = pod(name, [engine_container("vllm")], 30)
    stage.apply(service(name, PORTS["vllm"]))
    replica = stage.start(stage.inject(plain))
    stage.curtain()
    seen = stage.leave(replica, 30, (stream(-2, 8),), port=PORTS["vllm"])
    check_window(seen, 30, stage.figures)
    assert seen.lost == []
    change = replica.place.slices.wait(
        "the endpoint terminating",
        lambda c: (
            c.object["metadata"]["labels"].get("kubernetes.io/service-name") == name
            and any(endpoint["conditions"].get("terminating") for endpoint in c.object["endpoints"] or ())
        ),
        1,
    )
    (endpoint,) = change.object["endpoints"]
    assert endpoint["conditions"] == {"ready": False, "serving": True, "terminating": True}
    heard_s = seen.since_s(change.at_s)
    assert heard_s <= 5, f"routers heard {heard_s:.3f} s after the delete: after the settle"
    stage.figures.add("delete to the EndpointSlice", "ready false, serving true, terminating true", heard_s)
    deleted = replica.wait("the delete", lambda c: "deletionTimestamp" in c.object["metadata"], 1)
    conditions = deleted.object["status"]["conditions"]
    assert any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    assert not is_ready(deleted.object)
