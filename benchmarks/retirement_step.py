"""What one pass of the retirement protocol costs: its step function over every replica of the largest ModelDeployment.

``python -m benchmarks.retirement_step [--quick] [--report FILE] [--no-fail]``, in an environment with the operator's
requirements. CPU is this process's own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.run import Figure, show
from operator_glue.model import MAX_REPLICAS, MAX_ROLES, RouterName
from operator_glue.retirement.data import Key, Looked, Member, Observation, Persisted, Replica, RouterPod, View
from operator_glue.retirement.step import look, step

MAX_CPU_S = 0.1
#: What a replica may cost more among many than among few. Linear is 1.
MAX_GROWTH = 1.5
FEW = MAX_REPLICAS // 4
NOW = 1_800_000_000.0


def observation(replicas: int, wanted: int) -> Observation:
    """Ten roles of ``replicas`` replicas of one Pod that run, of which ``wanted`` are wanted, and one router Pod."""
    roles = [f"role-{letter}" for letter in "abcdefghij"[:MAX_ROLES]]
    here = {}
    for role in roles:
        for ordinal in range(replicas):
            uid = f"{role}-{ordinal}"
            member = Member(uid, uid, "1", 0, True, False, False, False, True, 0, "f", ("10.0.0.1",), 30)
            here[Key(role, ordinal)] = Replica(Key(role, ordinal), (member,))
    view = View("router", NOW, listed=frozenset({"10.0.0.1"}))
    looked = Looked((RouterPod("router", "router", False, "process", NOW - 1000),), (view,))
    return Observation(1, dict.fromkeys(roles, wanted), here, RouterName.VLLM_ROUTER, looked=looked)


def passes(replicas: int, wanted: int, count: int) -> list[float]:
    """CPU seconds of each of ``count`` passes, the first of which admits what there is to admit."""
    seen, persisted, samples = observation(replicas, wanted), Persisted(), []
    for at in range(count):
        begun_s = time.process_time()
        look(persisted, seen, NOW + at)
        persisted = step(persisted, seen, NOW + at).persisted
        samples.append(time.process_time() - begun_s)
    return samples


def figures(count: int) -> list[Figure]:
    found = []
    for name, what, part in (
        ("retirement, nothing to do", "all of them wanted", 1.0),
        ("retirement, one role's worth", "a tenth of each role unwanted", 0.9),
        ("retirement, all of it", "none of them wanted", 0.0),
    ):
        samples = passes(MAX_REPLICAS, int(MAX_REPLICAS * part), count)
        text = f"CPU of one pass over {MAX_ROLES} roles of {MAX_REPLICAS} replicas, {what}"
        found.append(
            Figure(name, text, "s", statistics.median(samples), None, MAX_CPU_S, limits_ratio=False, samples=samples)
        )
    few, many = (statistics.median(passes(replicas, 0, count)) for replicas in (FEW, MAX_REPLICAS))
    text = f"of one replica among {MAX_ROLES} x {MAX_REPLICAS}, none wanted; beside one among {MAX_ROLES} x {FEW}"
    each_us = [seconds * 1e6 / (MAX_ROLES * replicas) for seconds, replicas in ((few, FEW), (many, MAX_REPLICAS))]
    found.append(Figure("retirement, a replica", f"CPU {text}", "us", each_us[1], each_us[0], MAX_GROWTH))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What one pass of the retirement protocol costs.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the figures as JSON too")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    options = parser.parse_args()
    found = figures(5 if options.quick else 30)
    show(found)
    if options.report is not None:
        document = [{**asdict(one), "ratio": one.ratio, "over": one.over} for one in found]
        options.report.write_text(json.dumps({"quick": options.quick, "figures": document}, indent=2) + "\n")
    return 1 if any(one.over for one in found) and not options.no_fail else 0


if __name__ == "__main__":
    raise SystemExit(main())
