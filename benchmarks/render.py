"""What rendering costs: every replica of the largest ModelDeployment as objects.

``python -m benchmarks.render [--quick] [--report FILE] [--no-fail]``, in an environment with the operator's
requirements. CPU is this process's own, each time in a fresh one: what an earlier rendering left behind (memory that is
there already, a large heap for Python's collector to walk) would count otherwise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.run import Figure, show
from operator_glue.facts import ClusterFacts
from operator_glue.model import MAX_REPLICAS, MAX_ROLES, ModelDeployment
from operator_glue.render import render, replica_objects, role_plan

MAX_CPU_S = 1.0
#: What a replica may cost more among many than among few. Linear is 1.
MAX_GROWTH = 1.5
FEW = MAX_REPLICAS // 4
ALONE = 2000


def deployment(replicas: int) -> ModelDeployment:
    """Ten roles of one Pod a replica, each with what such roles usually have."""
    role: dict[str, Any] = {
        "replicas": replicas,
        "queueName": "gpus",
        "terminationGracePeriodSeconds": 120,
        "extraArgs": ["--max-model-len", "32768", "--gpu-memory-utilization=0.9"],
        "env": [{"name": "HF_HOME", "value": "/models"}],
        "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "64Gi"}},
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        "template": {
            "metadata": {"labels": {"team": "search"}},
            "spec": {
                "nodeSelector": {"accelerator": "h100"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
            },
        },
    }
    return ModelDeployment.model_validate(
        {
            "apiVersion": "drainagent.io/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": "llama", "namespace": "models", "uid": "0a1b2c3d-0000-4000-8000-000000000001"},
            "spec": {
                "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
                "engine": {"name": "vLLM", "image": "vllm/vllm-openai:v0.32.0"},
                "roles": [{"name": f"role-{letter}", **role} for letter in "abcdefghij"[:MAX_ROLES]],
            },
        }
    )


def measure(replicas: int) -> dict[str, float]:
    """In this process: CPU seconds of one rendering, and of a replica that is taken from a plan by itself."""
    wanted, facts = deployment(replicas), ClusterFacts()
    begun_s = time.process_time()
    objects = render(wanted, facts).objects
    all_s = time.process_time() - begun_s
    assert len(objects) == MAX_ROLES * (replicas + 1)
    plan = role_plan(wanted, wanted.spec.roles[0], facts)
    begun_s = time.process_time()
    for ordinal in range(ALONE):
        replica_objects(plan, ordinal)
    return {"all_s": all_s, "alone_s": (time.process_time() - begun_s) / ALONE}


def measured(replicas: int, count: int) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "benchmarks.render", "--measure", str(replicas)]
    runs = (subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True) for _ in range(count))
    return [json.loads(run.stdout) for run in runs]


def figures(count: int) -> list[Figure]:
    few, many = measured(FEW, count), measured(MAX_REPLICAS, count)
    samples = [one["all_s"] for one in many]
    each_ms = [statistics.median(one["all_s"] for one in runs) * 1000 for runs in (few, many)]
    each_ms = [value / (MAX_ROLES * replicas) for value, replicas in zip(each_ms, (FEW, MAX_REPLICAS), strict=True)]
    whole = Figure(
        "render",
        f"CPU of rendering {MAX_ROLES} roles of {MAX_REPLICAS} replicas of one Pod as objects",
        "s",
        statistics.median(samples),
        None,
        MAX_CPU_S,
        limits_ratio=False,
        samples=samples,
    )
    return [
        whole,
        Figure(
            "render, a replica",
            f"CPU of one replica among {MAX_ROLES} x {MAX_REPLICAS}; beside one among {MAX_ROLES} x {FEW}",
            "ms",
            each_ms[1],
            each_ms[0],
            MAX_GROWTH,
        ),
        Figure(
            "a replica alone",
            "CPU of one replica taken from its role's plan, as the operator's process does",
            "ms",
            statistics.median(one["alone_s"] for one in many) * 1000,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="What rendering the largest ModelDeployment costs.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the figures as JSON too")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure)))
        return 0
    found = figures(3 if options.quick else 10)
    show(found)
    if options.report is not None:
        document = [{**asdict(one), "ratio": one.ratio, "over": one.over} for one in found]
        options.report.write_text(json.dumps({"quick": options.quick, "figures": document}, indent=2) + "\n")
    return 1 if any(one.over for one in found) and not options.no_fail else 0


if __name__ == "__main__":
    raise SystemExit(main())
