"""Reads of members on a real kubelet: rendered Pods with the stand-in engine and the real agent in them.

Whatever goes wrong with a read holds the removal with one reason of its own, and never reads idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from api_path import cutting_proxy, raw_config, through
from hook.images import STANDIN, STANDIN_WITH_AGENT, on_the_node
from kube import Kube as Kubectl
from kube import Object

from drainagent.podspec import Delivery
from operator_glue.facts import ClusterFacts
from operator_glue.kube import PODS, Kube
from operator_glue.member_read import read_member
from operator_glue.model import ModelDeployment
from operator_glue.render import replica_objects, role_plan
from operator_glue.retirement.classification import Answering, classify
from operator_glue.retirement.data import Member, MemberRead, Reading, Verdict
from operator_glue.retirement.judging import judge, proven
from operator_glue.retirement.members import member_of
from operator_glue.retirement.reasons import Reason

NAMESPACE = "drainagent-member-reads"
CUTS = 40
_T = TypeVar("_T")


def run(work: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run(work)


def rendered(name: str, *flags: str, image: str = STANDIN_WITH_AGENT, engine: str = "vLLM") -> Object:
    """A Pod as the operator renders it, with a fixed name and an image that is on the node."""
    deployment = ModelDeployment.model_validate(
        {
            "apiVersion": "drainagent.io/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": "llama", "namespace": NAMESPACE},
            "spec": {
                "model": {"name": "m"},
                "engine": {"name": engine, "image": image},
                "roles": [{"name": "serve", "extraArgs": list(flags), "resources": {"requests": {"cpu": "50m"}}}],
            },
        }
    )
    plan = role_plan(deployment, deployment.spec.roles[0], ClusterFacts(delivery=Delivery.IN_IMAGE))
    (pod,) = replica_objects(plan, 0)
    pod["metadata"] = {key: value for key, value in pod["metadata"].items() if key in ("labels", "annotations")}
    pod["metadata"]["name"] = name
    main = pod["spec"]["containers"][0]
    main["imagePullPolicy"] = "Never"
    main["startupProbe"] = {**main["startupProbe"], "periodSeconds": 1}
    del main["livenessProbe"]
    return pod


PODS_HERE = {
    "good": rendered("good"),
    "sglang": rendered("sglang", engine="SGLang"),
    "late": rendered("late", "--slow-metrics", "3"),
    "no-agent": rendered("no-agent", image=STANDIN),
    "restarts": rendered("restarts"),
    "same-name": rendered("same-name"),
    "stuck": rendered("stuck", "--stuck-gauge", "2"),
    "bare": rendered("bare", "--no-gauges"),
}


class Cluster:
    """The namespace with its Pods, kubectl for what a user does, and the operator's own client."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl

    def read(self, member: Member, *, command: tuple[str, ...] = (), kubeconfig: Path | None = None) -> MemberRead:
        argv = command or self.answering(member).command()

        async def work() -> MemberRead:
            kube = await Kube.connect(kubeconfig or self.kubectl.kubeconfig)
            try:
                return await read_member(kube, NAMESPACE, member, argv, time.time)
            finally:
                await kube.close()

        return run(work())

    def member(self, name: str) -> Member:
        async def work() -> Member:
            kube = await Kube.connect(self.kubectl.kubeconfig)
            try:
                return member_of(await kube.get(PODS, NAMESPACE, name))
            finally:
                await kube.close()

        return run(work())

    def answering(self, member: Member) -> Answering:
        found = classify([member], (), prove_from_member=False)
        assert isinstance(found, Answering), found
        return found

    def judged(self, member: Member, read: MemberRead, previous: Reading | None = None) -> Reading:
        return judge(read, member, self.answering(member), previous, prove_from_member=False)


SUMMARY: list[str] = []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    kubectl = Kubectl.of_cluster(NAMESPACE)
    on_the_node()
    kubectl.delete_namespace()
    kubectl.create_namespace()
    kubectl.apply(list(PODS_HERE.values()))
    for name in PODS_HERE:
        kubectl.wait(f"pod/{name}", timeout=120)
    yield Cluster(kubectl)
    kubectl.delete_namespace(wait=False)
    print("\n".join(["", *SUMMARY]))


def tell(case: str, what: object) -> None:
    SUMMARY.append(f"{case:44} {what}")


@pytest.mark.parametrize("name", ["good", "sglang"])
def test_two_reads_prove_an_idle_member(cluster: Cluster, name: str) -> None:
    member = cluster.member(name)
    if name == "sglang":  # before its first batch its page has no gauges, and is incomplete
        fresh = cluster.judged(member, cluster.read(member))
        assert fresh.reason is Reason.INCOMPLETE_ENVELOPE, fresh
        with _request(member, 30000, 1) as response:
            response.read()
    reading: Reading | None = None
    times = []
    for _ in range(10):
        read = cluster.read(member)
        times.append(read.ended_at - read.started_at)
        reading = cluster.judged(member, read, reading)
        if proven(reading):
            break
        time.sleep(1.05)
    assert reading is not None
    assert proven(reading), reading
    tell(f"idle member, {name}", f"proven; a read takes {min(times):.2f} to {max(times):.2f} s")


def test_a_running_request_is_busy(cluster: Cluster) -> None:
    member = cluster.member("good")
    with _request(member, 8000, 200) as response:
        response.readline()
        reading = cluster.judged(member, cluster.read(member))
    assert (reading.verdict, reading.reason) == (Verdict.BUSY, Reason.BUSY)
    tell("a running request", reading.message)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("late", Reason.LISTENER_UNCLEAR), ("stuck", Reason.BUSY), ("bare", Reason.INCOMPLETE_ENVELOPE)],
)
def test_an_engine_that_answers_otherwise(cluster: Cluster, name: str, reason: Reason) -> None:
    member = cluster.member(name)
    reading = cluster.judged(member, cluster.read(member))
    assert reading.reason is reason, reading
    tell(f"engine: {name}", f"{reason.word}: {reading.message}")


def test_a_container_without_the_agent(cluster: Cluster) -> None:
    member = cluster.member("no-agent")
    reading = cluster.judged(member, cluster.read(member))
    assert reading.reason is Reason.AGENT_MISSING, reading
    tell("no agent in the image", reading.message)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("/no/such/program",), Reason.AGENT_MISSING),
        (("python3", "-c", "import time; time.sleep(60)"), Reason.EXEC_TIMED_OUT),
        (
            ("python3", "-uc", "import time\nwhile True: print('x', end=''); time.sleep(0.2)"),
            Reason.EXEC_TIMED_OUT,
        ),
        (("python3", "-c", "print('x' * 2 ** 21)"), Reason.EXEC_TOO_LARGE),
        (("python3", "-c", "print('hello')"), Reason.NOT_AN_ENVELOPE),
        (("python3", "-c", "pass"), Reason.NOT_AN_ENVELOPE),
        (("python3", "-c", "raise SystemExit(9)"), Reason.EXEC_FAILED),
        (("python3", "-ISB", "/opt/drainagent", "check", "--json", "--no-such-option"), Reason.EXEC_FAILED),
    ],
    ids=["no program", "hangs", "drips", "too much", "no envelope", "nothing", "exit 9", "wrong usage"],
)
def test_a_command_that_does_otherwise(cluster: Cluster, command: tuple[str, ...], reason: Reason) -> None:
    member = cluster.member("good")
    read = cluster.read(member, command=command)
    reading = cluster.judged(member, read)
    assert reading.reason is reason, reading
    assert read.ended_at - read.started_at < 7
    tell(f"exec: {' '.join(command)[:36]!r}", f"{reason.word} after {read.ended_at - read.started_at:.1f} s")


def test_half_an_envelope_that_ends_in_success(cluster: Cluster) -> None:
    member = cluster.member("good")
    whole = cluster.read(member).answer
    assert isinstance(whole, bytes)
    half = whole[: len(whole) // 2].decode()
    reading = cluster.judged(member, cluster.read(member, command=("python3", "-c", f"print({half!r}, end='')")))
    assert reading.reason is Reason.EXEC_CUT, reading


def test_exec_that_rbac_refuses(cluster: Cluster, tmp_path: Path) -> None:
    kubectl = cluster.kubectl
    kubectl.run("create", "serviceaccount", "reader")
    kubectl.run("create", "role", "pods", "--verb=get,list", "--resource=pods")
    kubectl.run("create", "rolebinding", "pods", "--role=pods", f"--serviceaccount={NAMESPACE}:reader")
    token = kubectl.run("create", "token", "reader").strip()
    member = cluster.member("good")
    read = cluster.read(member, kubeconfig=_with_token(kubectl, token, tmp_path))
    reading = cluster.judged(member, read)
    assert reading.reason is Reason.EXEC_FORBIDDEN, reading
    assert "cannot" in reading.message
    tell("exec refused by RBAC", reading.message[:90])


def test_a_restart_between_two_reads(cluster: Cluster) -> None:
    member = cluster.member("restarts")
    first = cluster.judged(member, cluster.read(member))
    assert first.verdict is Verdict.IDLE, first
    with contextlib.suppress(Exception):  # the session ends with its container
        cluster.kubectl.exec("restarts", "python3", "-c", "import os; os.kill(1, 15)", timeout=20)
    _until(lambda: cluster.member("restarts").restarts == 1 and cluster.member("restarts").main_running)
    time.sleep(2)
    second = cluster.judged(member, cluster.read(member, command=cluster.answering(member).command()), first)
    assert second.reason is Reason.CONTAINER_RESTARTED, second
    assert second.idle_reads == 0
    tell("restart between two reads", second.message)


def test_another_pod_under_the_same_name(cluster: Cluster) -> None:
    member = cluster.member("same-name")
    first = cluster.judged(member, cluster.read(member))
    assert first.verdict is Verdict.IDLE, first
    cluster.kubectl.delete("pod/same-name", grace=1)
    gone = cluster.judged(member, cluster.read(member), first)
    assert gone.reason is Reason.MEMBER_GONE, gone
    cluster.kubectl.apply(PODS_HERE["same-name"])
    cluster.kubectl.wait("pod/same-name", timeout=60)
    second = cluster.judged(member, cluster.read(member), first)
    assert second.reason is Reason.MEMBER_REPLACED, second
    tell("another Pod under the same name", second.message[:90])


def test_sessions_that_are_cut(cluster: Cluster, tmp_path: Path) -> None:
    """By a proxy in front of the API server, after so many bytes of what it answers. TLS goes through whole."""
    member = cluster.member("good")
    with cutting_proxy(cluster.kubectl) as proxy:
        config = through(cluster.kubectl, proxy.port, tmp_path)
        proxy.bytes_left = None
        whole = cluster.judged(member, cluster.read(member, kubeconfig=config))
        assert whole.verdict is Verdict.IDLE, whole
        total = proxy.passed
        rng = random.Random(5)
        found: dict[str, int] = {}
        # Of the bytes of a read the session's are the middle, between the two looks at the Pod.
        middle = range(total * 35 // 100, total * 65 // 100)
        for at in range(CUTS):
            proxy.bytes_left = rng.choice(middle) if at % 2 else rng.randrange(total)
            reading = cluster.judged(member, cluster.read(member, kubeconfig=config))
            assert reading.verdict is Verdict.HELD, reading
            assert reading.reason is not None
            found[reading.reason.word] = found.get(reading.reason.word, 0) + 1
    assert set(found) <= {"ExecCut", "ExecFailed", "ExecTimedOut"}, found
    tell(f"{CUTS} cuts of {total} bytes", found)


def _request(member: Member, port: int, tokens: int) -> Any:
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": tokens, "stream": True}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{member.addresses[0]}:{port}/v1/completions", body, headers)
    return urllib.request.urlopen(request, timeout=60)


def _until(holds: Callable[[], bool], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def _with_token(kubectl: Kubectl, token: str, folder: Path) -> Path:
    config = raw_config(kubectl)
    config["users"][0]["user"] = {"token": token}
    path = folder / "token.kubeconfig"
    path.write_text(json.dumps(config))
    return path
