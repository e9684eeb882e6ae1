"""Pods as other platforms create them, written by hand after their charts, samples and controllers (2025).

As the API server hands them to a webhook: with its defaults.
"""

from __future__ import annotations

import copy
from typing import Any

Pod = dict[str, Any]
TOKEN = {"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
VOLUMES: list[Any] = [
    {"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
]


def pod(*containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    """``spec`` beside the containers; metadata annotations as annotations=…"""
    annotations = spec.pop("annotations", None)
    metadata: dict[str, Any] = {"generateName": "llama-6d9f-", "namespace": "models", "labels": labels or {"app": "a"}}
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "creationTimestamp": None},
        "spec": {
            "containers": [
                {
                    "imagePullPolicy": "IfNotPresent",
                    "resources": {},
                    "terminationMessagePath": "/dev/termination-log",
                    "volumeMounts": [TOKEN],
                    **container,
                }
                for container in copy.deepcopy(containers)
            ],
            "dnsPolicy": "ClusterFirst",
            "restartPolicy": "Always",
            "securityContext": {},
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "volumes": copy.deepcopy(VOLUMES),
            **spec,
        },
        "status": {},
    }


def review(found: Any, *, operation: str = "CREATE", before: Any = None, **more: Any) -> dict[str, Any]:
    """An AdmissionReview of an object."""
    kind = str(found.get("kind", "Pod")) if isinstance(found, dict) else "Pod"
    group, version = ("", "v1") if kind == "Pod" else ("drainagent.io", "v1alpha1")
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": group, "version": version, "kind": kind},
        "resource": {"group": group, "version": version, "resource": f"{kind.lower()}s"},
        "operation": operation,
        "namespace": "models",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": found,
        "oldObject": before,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


VLLM_IMAGE = "vllm/vllm-openai:v0.11.0"
LWS_LABELS = {
    "leaderworkerset.sigs.k8s.io/name": "vllm",
    "leaderworkerset.sigs.k8s.io/group-index": "0",
    "leaderworkerset.sigs.k8s.io/worker-index": "1",
}


def lws_env(index: int) -> list[dict[str, str]]:
    return [
        {"name": "LWS_LEADER_ADDRESS", "value": "vllm-0.vllm.models"},
        {"name": "LWS_GROUP_SIZE", "value": "2"},
        {"name": "LWS_WORKER_INDEX", "value": str(index)},
    ]


def lws_pod(index: int, container: dict[str, Any]) -> Pod:
    labels = {**LWS_LABELS, "leaderworkerset.sigs.k8s.io/worker-index": str(index)}
    return pod({**container, "env": lws_env(index)}, labels=labels)


SGLANG_NODE = {
    "name": "sglang",
    "image": "lmsysorg/sglang:v0.5.9",
    "command": ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "16", "--enable-metrics"],
    "args": ["--dist-init-addr", "$(LWS_LEADER_ADDRESS):20000", "--nnodes", "2", "--node-rank", "$(LWS_WORKER_INDEX)",
             "--host", "0.0.0.0", "--port", "30000"],
}  # fmt: skip
VLLM = {"name": "main", "image": VLLM_IMAGE, "command": ["vllm", "serve", "m"]}

#: With a hook afterwards: (Pod, what the hook's argv ends in).
INJECTED: dict[str, tuple[Pod, list[str]]] = {
    "plain": (pod(VLLM), ["--url", "http://127.0.0.1:8000/metrics", "--grace", "30"]),
    "plain, an image's entry point": (
        pod({"name": "vllm", "image": VLLM_IMAGE, "args": ["--model", "m", "--port", "8001"]}),
        ["--url", "http://127.0.0.1:8001/metrics", "--grace", "30"],
    ),
    "KServe InferenceService, raw deployment": (
        pod(
            {
                "name": "kserve-container",
                "image": VLLM_IMAGE,
                "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
                "args": ["--port", "8080", "--model", "/mnt/models", "--served-model-name", "llama"],
                "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                "volumeMounts": [{"name": "kserve-provision-location", "mountPath": "/mnt/models", "readOnly": True}],
            },
            labels={"serving.kserve.io/inferenceservice": "llama", "component": "predictor"},
            annotations={"internal.serving.kserve.io/storage-initializer-sourceuri": "hf://meta-llama/x"},
            initContainers=[{"name": "storage-initializer", "image": "kserve/storage-initializer:v0.15.2"}],
            terminationGracePeriodSeconds=300,
        ),
        ["--url", "http://127.0.0.1:8080/metrics", "--grace", "300"],
    ),
    "KServe LLMInferenceService": (
        pod(
            {
                "name": "main",
                "image": "ghcr.io/llm-d/llm-d-cuda:v0.3.0",
                "command": ["vllm", "serve", "/mnt/models", "--served-model-name", "llama", "--port", "8000"],
                "args": ["--enable-ssl-refresh", "--ssl-certfile", "/etc/ssl/kserve/tls.crt", "--ssl-keyfile",
                         "/etc/ssl/kserve/tls.key"],
            },
            labels={"app.kubernetes.io/part-of": "llminferenceservice", "kserve.io/component": "workload"},
            terminationGracePeriodSeconds=60,
        ),
        ["--url", "https://127.0.0.1:8000/metrics", "--grace", "60"],
    ),
    "production-stack": (
        pod(
            {
                "name": "vllm",
                "image": "lmcache/vllm-openai:2025-03-28",
                "command": ["vllm", "serve", "m", "--host", "0.0.0.0", "--port", "8000", "--no-enable-prefix-caching"],
                "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "livenessProbe": {"httpGet": {"path": "/health", "port": 8000}},
            },
            labels={"environment": "test", "helm-release-name": "vllm", "model": "llama"},
        ),
        ["--url", "http://127.0.0.1:8000/metrics", "--grace", "30"],
    ),
    "AIBrix, without its own preStop": (
        pod(
            {"name": "vllm-openai", "image": VLLM_IMAGE, "command": [
                "python3", "-m", "vllm.entrypoints.openai.api_server", "--port", "8000", "--model", "m"]},
            {"name": "aibrix-runtime", "image": "aibrix/runtime:v0.4.0", "command": ["aibrix_runtime"]},
            labels={"model.aibrix.ai/name": "llama", "model.aibrix.ai/port": "8000"},
        ),
        ["--url", "http://127.0.0.1:8000/metrics", "--grace", "30"],
    ),
    "LeaderWorkerSet, a Ray leader": (
        lws_pod(0, {"name": "vllm-leader", "image": VLLM_IMAGE, "command": ["sh", "-c",
            "bash /vllm-workspace/examples/online_serving/multi-node-serving.sh leader "
            "--ray_cluster_size=$(LWS_GROUP_SIZE); python3 -m vllm.entrypoints.openai.api_server --port 8080 --model m "
            "--tensor-parallel-size 8"]}),
        ["--url", "http://127.0.0.1:8080/metrics", "--grace", "30"],
    ),
    "LeaderWorkerSet, vLLM's headless worker": (
        lws_pod(1, {**VLLM, "args": ["--headless", "--data-parallel-size", "16", "--port", "8000"]}),
        ["--url", "http://127.0.0.1:8000/metrics", "--grace", "30", "--leader-env", "LWS_LEADER_ADDRESS"],
    ),
    "LeaderWorkerSet, SGLang's leader": (
        lws_pod(0, SGLANG_NODE), ["--url", "http://127.0.0.1:30000/metrics", "--grace", "30"],
    ),
    "LeaderWorkerSet, SGLang's worker": (
        lws_pod(1, SGLANG_NODE),
        ["--url", "http://127.0.0.1:30000/metrics", "--grace", "30", "--leader-env", "LWS_LEADER_ADDRESS"],
    ),
    "a script, told by annotations": (
        pod({"name": "e", "image": "corp/sglang:1", "command": ["/start.sh"]},
            annotations={
                "drainagent.io/engine": "sglang", "drainagent.io/port": "9000", "drainagent.io/container": "e"}),
        ["--url", "http://127.0.0.1:9000/metrics", "--grace", "30"],
    ),
    "a follower outside of a LeaderWorkerSet": (
        pod({**VLLM, "args": ["--headless"]}, annotations={"drainagent.io/leader-env": "HEAD"}),
        ["--grace", "30", "--leader-env", "HEAD"],
    ),
    "another preStop, to be replaced": (
        pod({**VLLM, "lifecycle": {"preStop": {"sleep": {"seconds": 15}}}},
            annotations={"drainagent.io/replace-hook": "true"}),
        ["--grace", "30"],
    ),
}  # fmt: skip

#: Left as they are with a warning: (Pod, words of the warning).
LEFT: dict[str, tuple[Pod, str]] = {
    "Knative, KServe's serverless mode": (
        pod(
            {**VLLM, "name": "kserve-container", "lifecycle": {
                "preStop": {"httpGet": {"path": "/wait-for-drain", "port": 8022}}}},
            {"name": "queue-proxy", "image": "knative/queue:v1.18.0"},
        ),
        "container kserve-container has a preStop hook of its own (httpGet)",
    ),
    "AIBrix, with its own preStop": (
        pod(
            {
                "name": "vllm-openai",
                "image": VLLM_IMAGE,
                "command": ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"],
                "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "while true; do sleep 5; done"]}}},
            },
        ),
        "drainagent.io/replace-hook",
    ),
    "LeaderWorkerSet, a Ray worker": (
        lws_pod(1, {"name": "w", "image": "rayproject/ray:2.44", "command": ["ray", "start", "--block"]}),
        "drainagent inject on the LeaderWorkerSet sees both",
    ),
    "a script": (pod({"name": "e", "image": "corp/sglang:1", "command": ["/start.sh"]}), "drainagent.io/engine"),
    "a grace below 15": (pod(VLLM, terminationGracePeriodSeconds=10), "10 is outside 15 to 3600: raise it in the Pod"),
    "a grace above 3600": (pod(VLLM, terminationGracePeriodSeconds=7200), "7200 is outside 15 to 3600"),
    "no gauges": (pod({**VLLM, "args": ["--disable-log-stats"]}), "--disable-log-stats"),
    "two engines": (pod(VLLM, {**VLLM, "name": "two", "args": ["--port", "1"]}), "drainagent.io/container"),
    "a follower that nobody leads": (pod({**VLLM, "args": ["--headless"]}), "annotation drainagent.io/leader-env"),
    "a wrong engine": (pod(VLLM, annotations={"drainagent.io/engine": "tgi"}), "must be vllm or sglang"),
    "a wrong port": (pod(VLLM, annotations={"drainagent.io/port": "70000"}), "must be a port"),
    "a wrong variable": (pod(VLLM, annotations={"drainagent.io/leader-env": "a b"}), "no name of a variable"),
    "the agent's volume is taken": (pod(VLLM, volumes=[{"name": "drainagent", "emptyDir": {}}]), "is not ours: rename"),
}  # fmt: skip

#: Left as they are without a word to the user.
SILENT: dict[str, Pod] = {
    "a router": pod({"name": "router", "image": "lmcache/lmstack-router:v0.1.5", "command": ["vllm-router"]}),
    "a web server": pod({"name": "web", "image": "nginx"}),
    "opted out by its label": pod(VLLM, labels={"drainagent.io/inject": "false"}),
    "opted out by inject's annotation": pod(VLLM, annotations={"drainagent.io/inject": "false"}),
    "a static Pod's mirror": pod(VLLM, annotations={"kubernetes.io/config.mirror": "x"}),
    "LeaderWorkerSet, before its own webhook": pod(SGLANG_NODE, labels=LWS_LABELS),
    "its hook is there": pod({**VLLM, "lifecycle": {"preStop": {"exec": {"command": [
        "python3", "-m", "drainagent", "hook", "--grace", "30"]}}}}),
}  # fmt: skip
