"""Real vLLM and SGLang, two replicas each, one engine at a time, behind the stock router that fronts it.

Skipped where tests/engines/setup.sh has not installed them. On two cores a replica takes half a minute to start.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_process import engines_dir
from kube import CLUSTER, Kube

from e2e.stage import Operator, Stage

Object = dict[str, Any]
IMAGE = "localhost/hostbase:rig"
START_S = 300.0
LOAD: dict[str, Any] = {"clients": 3, "shortest": 16, "longest": 64}
ROUTERS = {"vLLM": "vllm-router", "SGLang": "sglang-gateway"}
VENVS = {"vLLM": "venv-vllm", "SGLang": "venv-sglang"}
ENV = {
    "vLLM": {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
    },
    "SGLang": {"SGLANG_USE_CPU_ENGINE": "1"},
}
ARGS = {
    "vLLM": ["--dtype", "float32", "--max-model-len", "4096", "--enforce-eager"],
    "SGLang": [
        *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"),
        *("--context-length", "4096", "--max-total-tokens", "60000"),
    ],
}


def role(engine: str, replicas: int, **more: Any) -> Object:
    """As tests/cluster/engine-pod.sh runs them: this machine's /usr, interpreter and engines in an empty image."""
    folder = Path(engines_dir())
    venv = folder / VENVS[engine]
    python = (venv / "bin" / "python").resolve().parents[1]
    env = {
        "HOME": "/tmp",
        "PATH": f"{venv}/bin:/usr/bin:/bin",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **ENV[engine],
    }
    host = {"usr": "/usr", "python": str(python), "engines": str(folder)}
    empty = {"tmp": "/tmp", "shm": "/dev/shm"}
    return {
        "name": "server",
        "replicas": replicas,
        "terminationGracePeriodSeconds": 60,
        "extraArgs": [*ARGS[engine], "--served-model-name", "tiny"],
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "resources": {"requests": {"memory": "1Gi", "cpu": "100m"}},
        "volumeMounts": [
            *({"name": name, "mountPath": path, "readOnly": True} for name, path in host.items()),
            *({"name": name, "mountPath": path} for name, path in empty.items()),
        ],
        "template": {
            "spec": {
                "volumes": [
                    *({"name": name, "hostPath": {"path": path}} for name, path in host.items()),
                    {"name": "tmp", "emptyDir": {}},
                    {"name": "shm", "emptyDir": {"medium": "Memory"}},
                ]
            }
        },
        **more,
    }


@pytest.fixture(scope="module", params=["vLLM", "SGLang"])
def served(request: pytest.FixtureRequest, kube: Kube, operator: Operator) -> Iterator[tuple[Stage, str]]:
    """Two replicas that have each answered: SGLang shows no gauges before its first batch."""
    engine: str = request.param
    folder = Path(engines_dir())
    if not (folder / VENVS[engine] / "bin" / "python").exists():
        pytest.skip(f"no {engine} in {folder}")
    subprocess.run([CLUSTER.parent / "engine-pod.sh", "image"], check=True, stdout=subprocess.DEVNULL)
    stage = Stage(kube, operator, engine.lower(), ROUTERS[engine])
    stage.model = "tiny"
    apply(stage, engine, role(engine, 2))
    stage.settle(START_S)
    with stage.load(f"{engine}: two replicas", **LOAD):
        time.sleep(10)
    yield stage, engine
    stage.remove()


def apply(stage: Stage, engine: str, *roles: Object) -> None:
    folder = Path(engines_dir())
    body = stage.manifest(list(roles), model={"name": str(folder / "mid")}, engine={"name": engine, "image": IMAGE})
    body["spec"]["router"]["extraArgs"] += ["--request-timeout-secs", "600"]
    stage.kube.apply(body)


def test_scaled_down_under_load(served: tuple[Stage, str]) -> None:
    stage, engine = served
    before = stage.uids()
    with stage.load(f"{engine}: scale down 2 to 1", **LOAD):
        apply(stage, engine, role(engine, 1))
        time.sleep(0.5)
        stage.wait("scaled down", stage.is_settled)
    assert len(stage.uids()) == 1
    assert stage.uids() < before
    assert "RetirementCompleted" in stage.events()


def test_rolled_out_under_load(served: tuple[Stage, str]) -> None:
    """Back to two replicas, then each replaced in turn; the first one that goes has just been made."""
    stage, engine = served
    with stage.load(f"{engine}: scale up 1 to 2", **LOAD):
        apply(stage, engine, role(engine, 2))
        time.sleep(0.5)
        stage.settle(START_S)
    before = stage.uids()
    with stage.load(f"{engine}: rollout of two replicas", **LOAD):
        stage.kube.run("annotate", "mdep", stage.name, "drainagent.io/roll=1")
        stage.wait("rolled out", lambda: stage.is_settled() and not stage.uids() & before, 2 * START_S)
    stage.settle()


def test_pod_deleted_under_load(served: tuple[Stage, str]) -> None:
    stage, engine = served
    pod = stage.pods()[0]["metadata"]
    with stage.load(f"{engine}: kubectl delete pod", **LOAD):
        stage.kube.delete(f"pod/{pod['name']}")
        stage.wait("replaced", lambda: pod["uid"] not in stage.uids() and stage.is_settled(), START_S)
    stage.settle()


def test_evicted_under_load(served: tuple[Stage, str]) -> None:
    stage, engine = served
    pod = stage.pods()[0]
    with stage.load(f"{engine}: eviction", **LOAD):
        stage.evict(pod)
        stage.wait("replaced", lambda: pod["metadata"]["uid"] not in stage.uids() and stage.is_settled(), START_S)
    stage.settle()


def test_role_dropped_under_load(served: tuple[Stage, str]) -> None:
    """Two roles of one replica each, as memory allows; one goes."""
    stage, engine = served
    with stage.load(f"{engine}: replica 1 retired, another role made", **LOAD):
        apply(stage, engine, role(engine, 1), {**role(engine, 1), "name": "extra"})
        time.sleep(0.5)
        stage.settle(START_S)
        time.sleep(5)  # SGLang shows no gauges before its first batch
    with stage.load(f"{engine}: role dropped", **LOAD):
        apply(stage, engine, role(engine, 1))
        time.sleep(0.5)
        stage.wait("dropped", lambda: not stage.pods("extra") and stage.is_settled())
