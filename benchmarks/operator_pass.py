"""What one pass of the operator costs beside the protocol: placing, planning and counting the largest ModelDeployment.

``python -m benchmarks.operator_pass [--quick] [--no-fail]``, in an environment with the operator's requirements. CPU is
this process's own. The bound is ours: while a pass computes, a webhook waits, which the API server gives 2 s.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.run import Figure, show
from operator_glue.facts import ClusterFacts
from operator_glue.model import API_VERSION, KIND, MAX_REPLICAS, MAX_ROLES, ModelDeployment
from operator_glue.reconcile.conditions import Seen, status_of
from operator_glue.reconcile.placing import place
from operator_glue.reconcile.pods import WantedRole, plan_pods
from operator_glue.render import role_plan
from operator_glue.retirement.data import Member
from operator_glue.retirement.members import member_of

MAX_CPU_S = 1.0
NOW = 1_800_000_000.0


def deployment() -> ModelDeployment:
    roles = [{"name": f"role-{letter}", "replicas": MAX_REPLICAS} for letter in "abcdefghij"[:MAX_ROLES]]
    metadata = {"name": "llama", "namespace": "models", "uid": "u"}
    spec = {"model": {"name": "m"}, "engine": {"name": "vLLM", "image": "engine:1"}, "roles": roles}
    return ModelDeployment.model_validate({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})


def running(body: ModelDeployment) -> tuple[list[dict[str, Any]], list[WantedRole]]:
    """Every Pod as it is rendered, Ready, and the roles."""
    pods, roles = [], []
    for role in body.spec.roles:
        plan = role_plan(body, role, ClusterFacts())
        roles.append(WantedRole(role.name, role.replicas, role.size, plan.spec_hash))
        for ordinal in range(role.replicas):
            pod = plan.templates.pod(ordinal)
            pod["metadata"] |= {
                "uid": f"{role.name}-{ordinal}",
                "name": f"{role.name}-{ordinal}",
                "resourceVersion": "1",
            }
            pod["status"] = {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "main", "started": True, "state": {"running": {}}}],
            }
            pods.append(pod)
    return pods, roles


def passes(count: int) -> tuple[float, list[float]]:
    """CPU seconds of the first pass, which has every Pod to read, and of each that follows."""
    pods, roles = running(deployment())
    known: dict[str, Member] = {}

    def remembered(pod: Mapping[str, Any]) -> Member:
        uid = pod["metadata"]["uid"]
        if uid not in known:
            known[uid] = member_of(pod)
        return known[uid]

    samples: list[float] = []
    status: dict[str, Any] = {}
    for _ in range(count + 1):
        begun_s = time.process_time()
        placed = place("llama", "u", pods, (), remembered)
        plan = plan_pods(roles, placed.replicas, None, frozenset(), NOW, {})
        seen = Seen(1, roles, placed.replicas, plan.rollouts, None, None, None)
        status = status_of(status, seen, NOW)
        samples.append(time.process_time() - begun_s)
        assert (plan.creates, plan.deletes) == ((), ())
    return samples[0], samples[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description="What one pass of the operator costs beside the protocol.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    options = parser.parse_args()
    first, rest = passes(5 if options.quick else 30)
    what = f"CPU of a pass over {MAX_ROLES} roles of {MAX_REPLICAS} replicas with nothing to do"
    found = [
        Figure("operator, first pass", f"{what}, every Pod new", "s", first, None, MAX_CPU_S, limits_ratio=False),
        Figure(
            "operator, a pass", what, "s", statistics.median(rest), None, MAX_CPU_S, limits_ratio=False, samples=rest
        ),
    ]
    show(found)
    return 1 if any(one.over for one in found) and not options.no_fail else 0


if __name__ == "__main__":
    raise SystemExit(main())
