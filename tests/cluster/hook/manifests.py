"""Plain manifests of the stand-in engine, and `drainagent inject` run on them as a user runs it."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Literal

import yaml
from kube import Object

from hook.images import AGENT, BUSYBOX, STANDIN, STANDIN_WITH_AGENT

Engine = Literal["vllm", "sglang"]
Delivery = Literal["in-image", "init-container", "image-volume"]
ENGINES: tuple[Engine, ...] = ("vllm", "sglang")
DELIVERIES: tuple[Delivery, ...] = ("in-image", "init-container", "image-volume")
PORTS: dict[Engine, int] = {"vllm": 8000, "sglang": 30000}
#: A share of a busy machine: without a request a Pod's weight is 2 of 1024, and the hook's start in it takes seconds.
SHARE: Object = {"requests": {"cpu": "50m"}}
#: Enough to stream visibly, and cheap with many streams on two cores.
TOKENS_PER_S = 10

_COMMANDS: dict[Engine, list[str]] = {
    "vllm": ["vllm", "serve", "m"],
    "sglang": ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--host", "0.0.0.0", "--enable-metrics"],
}


def engine_container(engine: Engine, *arguments: str, image: str = STANDIN_WITH_AGENT, **more: Any) -> Object:
    """As a user writes it, but for the access log: it says when the page was read, whatever the hook says."""
    health = {"path": "/health", "port": PORTS[engine]}
    return {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": [*_COMMANDS[engine], "--access-log", "--tokens-per-second", str(TOKENS_PER_S), *arguments],
        "ports": [{"containerPort": PORTS[engine]}],
        "resources": SHARE,
        "startupProbe": {"httpGet": health, "periodSeconds": 1, "failureThreshold": 60},
        # Not every second: in step with the hook's reads the kubelet would be a client of the engine at each of them.
        "readinessProbe": {"httpGet": health, "periodSeconds": 5},
        **more,
    }


def busybox(name: str, script: str, **more: Any) -> Object:
    command = ["sh", "-c", script]
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": command,
        "resources": SHARE,
        **more,
    }


def pod(name: str, containers: Sequence[Object], grace_s: int | None = None, **spec: Any) -> Object:
    if grace_s is not None:
        spec["terminationGracePeriodSeconds"] = grace_s
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"automountServiceAccountToken": False, "containers": list(containers), **spec},
    }


def deployment(pod: Object, replicas: int = 1) -> Object:
    name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }


def service(name: str, port: int, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": port}], **spec},
    }


def delivery_options(delivery: Delivery) -> list[str]:
    image = [] if delivery == "in-image" else ["--agent-image", AGENT, "--agent-image-pull-policy", "Never"]
    return ["--delivery", delivery, *image]


def image_of(delivery: Delivery) -> str:
    return STANDIN_WITH_AGENT if delivery == "in-image" else STANDIN


def inject(manifest: Object, *options: str) -> tuple[str, str]:
    """The manifest with the hook, and what inject concluded. AssertionError, in its words, when it asks or refuses."""
    text = yaml.safe_dump(manifest, sort_keys=False)
    command = [sys.executable, "-m", "drainagent", "inject", "-f", "-", *options]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"inject: exit status {done.returncode}: {done.stderr}"
    return done.stdout, done.stderr


def with_hook_arguments(manifest: Object, *arguments: str, left_out: Sequence[str] = ()) -> Object:
    """The same with more arguments for its hook, as a user adds them by hand, or without some (and their values)."""
    edited = copy.deepcopy(manifest)
    spec = edited["spec"] if edited["kind"] == "Pod" else edited["spec"]["template"]["spec"]
    for container in spec["containers"]:
        exec_ = container.get("lifecycle", {}).get("preStop", {}).get("exec")
        if exec_ is not None:
            for option in left_out:
                at = exec_["command"].index(option)
                del exec_["command"][at : at + 2]
            exec_["command"] += arguments
    return edited
