"""Delete Pods with real engines under load, and say whether each expectation held. See README.md.

python tests/cluster/engines/run.py [--engine vllm|sglang] [--case NAME...] [--short] [--retry] [--report FILE] [--list]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engines"))

from engine_process import installed as engine_installed
from kube import Kube, KubectlError
from load import Answer, Target, earliest_s
from suite import VERSIONS as ENGINE_VERSIONS
from suite import attempts, ignore_signals, interrupt_on_signals, report_dir

from drainagent import __version__
from drainagent.timeline import BACK_BEFORE_KILL_S, LAST_READ_BEFORE_KILL_S, SETTLE_S
from engines.cases import SUITE, Case
from engines.pods import CONCLUDED, OUTCOME, PORT, Pod, PodLoad, Story, describe, elapsed_s, story
from engines.routers import VERSIONS as ROUTER_VERSIONS
from engines.routers import Drop, RouterProcess
from engines.routers import installed as router_installed

HERE = Path(__file__).resolve().parent
#: evidence.md §8 has 0.94 s at worst under load; two cores that are shared with other work have more.
SIGTERM_WITHIN_S = 3.0
#: A line at least every 10 s, and up to the 2 s that a read may take.
SILENCE_S = 12.5
#: kubectl needs about this long before the API server has the delete.
KUBECTL_S = 0.15
#: How long requests on the replica that stays may go on after the other is gone.
REST_S = 60.0


@dataclass
class Trial:
    """What one trial showed; ``None`` where it does not apply. Times are seconds from the delete.

    ``lost``: requests that could finish by G - 5 and did not, on account of the deleted replica's end.
    ``lost_by_router``: requests that failed while that replica still served everything, or were sent on to it after
    its SIGTERM. ``retried``: it broke and was made once more; the second one counts.
    """

    case: str
    what: str
    engine: str
    router: str | None
    hook: str
    delivery: str | None
    grace_s: int
    outcome: str | None = None
    reads: int = 0
    first_read_s: float | None = None
    reasons: list[str] = field(default_factory=list)
    returned_s: float | None = None
    last_byte_s: float | None = None
    sigterm_s: float | None = None
    sigterm_after_return_s: float | None = None
    gone_s: float | None = None
    dropped_s: float | None = None
    requests: int = 0
    on_deleted: int = 0
    met: int = 0
    finished: int = 0
    lost: int = 0
    lost_by_router: int = 0
    ready_s: float | None = None
    faults: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    retried: bool = False
    log: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        return not self.broken


def run_trial(kube: Kube, case: Case, directory: Path) -> Trial:
    """One trial with Pods of its own; they are gone afterwards."""
    delivery = None if case.hook == "none" else case.delivery
    trial = Trial(case.name, case.what, case.engine, case.router, case.hook, delivery, case.grace_s)
    names = [f"{case.engine}-{uuid.uuid4().hex[:5]}" for _ in range(2 if case.router else 1)]
    pods = [Pod(kube, case, name) for name in names]
    router: RouterProcess | None = None
    began = time.monotonic()
    try:
        for pod in pods:
            pod.create()
        for pod in pods:
            pod.wait_ready()
        trial.ready_s = round(time.monotonic() - began, 1)
        if case.hook != "none":
            trial.broken += [
                f"inject did not say {words!r}" for words in CONCLUDED[case.engine] if words not in pods[0].said
            ]
        if case.router:
            router = RouterProcess(case.router, kube, PORT[case.engine], directory, f"{case.router}-{case.name}")
            router.wait_members([pod.ip for pod in pods])
        delete_under_load(trial, case, pods[0], router)
    except (RuntimeError, KubectlError, subprocess.SubprocessError) as error:
        trial.broken.append(f"not tried: {error}")
    finally:
        if router is not None:
            router.stop()
        for pod in pods:
            pod.remove()
            if pod.log is not None:
                lines = "\n".join(line.text for line in pod.log.lines)
                (directory / f"{case.engine}-{case.name}-{pods.index(pod)}.log").write_text(lines)
    return trial


def delete_under_load(trial: Trial, case: Case, pod: Pod, router: RouterProcess | None) -> None:
    assert pod.log is not None
    planned = time.monotonic() + 0.5 - min(0.0, earliest_s(case.clients))
    # From here on: 0 on the wall clock.
    wall = time.time() - time.monotonic()
    target = Target(PORT[case.engine] if router is None else router.port)
    load = PodLoad(case.clients, target, planned, pod.ip if router is None else "127.0.0.1")
    began = time.time()
    drop = None if router is None else Drop(router, pod.ip)
    load.start()
    try:
        time.sleep(max(0.0, planned - KUBECTL_S - time.monotonic()))
        if router is not None and case.view_held_s:
            router.api.hold()
        pod.kube.delete(f"pod/{pod.name}", wait=False)
        deleted = time.monotonic()
        if drop is not None:
            drop.start()
        if router is not None and case.view_held_s:
            time.sleep(max(0.0, deleted + case.view_held_s - time.monotonic()))
            router.api.release()
        if not pod.log.wait(wall + deleted + case.grace_s + 15):
            trial.broken.append("the container was still there 15 s after G")
        wait_for(lambda: len(load.answers) == load.planned, REST_S)
        wait_for(load.settled, 3 if router is None else REST_S)
    finally:
        load.stop()
        if drop is not None:
            drop.stop()
    told = story(case.engine, pod.log, began)
    if told.hook:
        # kubectl comes back a moment after the API server has the delete; the hook is never earlier than that.
        deleted = min(deleted, told.hook[0].at - elapsed_s(told.hook[0]) - wall)
    if drop is not None and drop.at is not None:
        trial.dropped_s = round(drop.at - deleted, 2)
    judge(trial, case, told, load, wall + deleted, wall)
    if case.hook != "none" and pod.kube.events(pod.name, "FailedPreStopHook"):
        trial.broken.append("the kubelet's event FailedPreStopHook")


def judge(trial: Trial, case: Case, told: Story, load: PodLoad, deleted: float, wall: float) -> None:
    """Fill ``trial`` and name each expectation that did not hold. ``deleted``: since the epoch, as the log's times."""

    def since(moment: float | None) -> float | None:
        return None if moment is None else round(moment - deleted, 2)

    broken, answers = trial.broken, load.answers
    trial.log = [line.text for line in told.hook]
    trial.reads, trial.outcome, trial.reasons = len(told.reads), told.outcome, list(told.reasons)
    trial.first_read_s = since(told.reads[0]) if told.reads else None
    trial.returned_s, trial.sigterm_s, trial.gone_s = since(told.returned), since(told.sigterm), since(told.ended)
    trial.requests, trial.on_deleted = len(answers), told.answered
    if len(answers) != load.planned:
        broken.append(f"{len(answers)} of {load.planned} requests were sent")
    if told.answered < case.reaches:
        broken.append(
            f"the deleted replica answered {told.answered} requests, {case.reaches} are needed to show anything"
        )
    if told.sigterm is None:
        broken.append("the engine's log has no SIGTERM")
        return
    if told.returned is not None:
        trial.sigterm_after_return_s = round(told.sigterm - told.returned, 3)
    sigterm = told.sigterm - wall
    ends = [answer.ended for answer in answers if answer.complete and answer.ended is not None]
    trial.last_byte_s = since(wall + max(ends)) if ends else None
    trial.met = sum(answer.running_at(sigterm) for answer in answers) if case.router is None else met(answers, sigterm)
    trial.finished = sum(answer.complete for answer in answers)
    fair = deleted - wall + case.grace_s - LAST_READ_BEFORE_KILL_S
    lost: list[str] = []
    for answer in answers:
        if answer.complete:
            continue
        fault = describe(answer, deleted - wall)
        if (answer.fault or "").startswith("status 4"):
            broken.append("refused as wrong, so that nothing was shown: " + fault)
        if case.router is not None and not answer.running_at(sigterm):
            trial.lost_by_router += 1
            fault = "by the router: " + fault
        elif sigterm < fair or not answer.running_at(sigterm):
            lost.append(fault)
        trial.faults.append(fault)
    trial.lost = len(lost)
    if case.hook == "none":
        if trial.lost < case.cut:
            broken.append(f"{trial.lost} lost without a hook: at least {case.cut} would show what the hook is for")
        if told.hook:
            broken.append("a hook's line in the log of a Pod without one")
        return
    judge_log(trial, case, told, deleted)
    if case.hook == "drainagent":
        broken += ["lost: " + fault for fault in lost]
        if case.router is None and trial.met and sigterm < fair:
            broken.append(f"{trial.met} requests were met by SIGTERM, before G - 5")
        if trial.outcome != "idle":
            broken.append(f"outcome {trial.outcome}, not idle")
        if case.shows and not set(case.shows).intersection(told.reasons):
            broken.append("no read was busy by what is in flight alone: nothing was shown")


def met(answers: list[Answer], sigterm: float) -> int:
    """Behind a router: those that were running and did not come to their end. The others' replica goes on."""
    return sum(answer.running_at(sigterm) and not answer.complete for answer in answers)


def judge_log(trial: Trial, case: Case, told: Story, deleted: float) -> None:
    """The log tells the story: the start, the settle's end, what was busy, the outcome; and the times hold."""
    broken, texts = trial.broken, [line.text for line in told.hook]
    for words in ("keeps serving for 5 s", "the settle is over"):
        if sum(words in text for text in texts) != 1:
            broken.append(f"{words!r} is not once in the log")
    if sum(OUTCOME.search(text) is not None for text in texts) != 1 or not OUTCOME.search(texts[-1] if texts else ""):
        broken.append("the outcome is not the hook's last line, once")
    broken += [
        f"{after.at - before.at:.1f} s without a line"
        for before, after in zip(told.hook, told.hook[1:], strict=False)
        if after.at - before.at > SILENCE_S
    ]
    if any(0 <= elapsed_s(line) < SETTLE_S for line in told.hook[1:]):
        broken.append("a line of a read inside the settle")
    if len(told.reads) < 2:
        broken.append(f"{len(told.reads)} reads in the engine's own log")
    elif told.reads[0] - deleted < SETTLE_S:
        broken.append(f"a read {told.reads[0] - deleted:.2f} s after the delete, inside the settle")
    if trial.returned_s is None:
        return
    if trial.returned_s > case.grace_s - BACK_BEFORE_KILL_S:
        broken.append(f"back at {trial.returned_s:.2f} s, after G - 3")
    after = trial.sigterm_after_return_s
    if after is not None and not 0 <= after <= SIGTERM_WITHIN_S:
        broken.append(f"SIGTERM {after:.2f} s after the hook's last line")


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.05)
    return condition()


HEADER = (
    f"{'engine / case':38} {'G':>4} {'outcome':9} {'reads':>5} {'back at':>8} {'SIGTERM':>8} {'gone':>7} {'sent':>5} "
    f"{'on it':>5} {'met':>4} {'lost':>4} {'router':>6}  held"
)


def row(trial: Trial) -> str:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    name = f"{trial.router or trial.engine} / {trial.case}"
    return (
        f"{name:38} {trial.grace_s:4g} {trial.outcome or '-':9} {trial.reads:5} {seconds(trial.returned_s):>8} "
        f"{seconds(trial.sigterm_s):>8} {seconds(trial.gone_s):>7} {trial.requests:5} {trial.on_deleted:5} "
        f"{trial.met:4} {trial.lost:4} {trial.lost_by_router:6}  {'yes' if trial.held else 'NO'}"
    )


def key(trial: dict[str, Any]) -> tuple[str, str]:
    return trial["router"] or trial["engine"], trial["case"]


def write_report(path: Path, arguments: argparse.Namespace, kube: Kube, trials: list[Trial], seconds: float) -> None:
    shown: list[dict[str, Any]] = [{**asdict(trial), "held": trial.held} for trial in trials]
    if arguments.add and path.exists():
        anew = {key(trial) for trial in shown}
        before = json.loads(path.read_text())
        seconds += before["seconds"]
        shown = [trial for trial in before["trials"] if key(trial) not in anew] + shown
    with contextlib.suppress(KubectlError, subprocess.SubprocessError):
        node = kube.find("nodes")[0]["status"]["nodeInfo"]
        versions = {"kubelet": node["kubeletVersion"], "containerRuntime": node["containerRuntimeVersion"]}
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        report: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "form": "short" if arguments.short else "full",
            "versions": {"drainagent": __version__, **ENGINE_VERSIONS, **ROUTER_VERSIONS, **versions},
            "machine": {"cores": os.cpu_count(), "cpu": platform.machine(), "memory_gib": round(memory)},
            "seconds": round(seconds),
            "held": all(trial["held"] or trial.get("retried") for trial in shown),
            "trials": shown,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Real engines in Pods while they are deleted.")
    parser.add_argument("--engine", choices=sorted(ENGINE_VERSIONS))
    parser.add_argument(
        "--case", nargs="+", metavar="NAME", help="NAME, ENGINE/NAME or ROUTER/NAME, as --list shows them"
    )
    parser.add_argument(
        "--short", action="store_true", help="each engine once, vLLM without the hook too, one router: under 8 minutes"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="default: .report/engine-pods.json beside this file"
    )
    parser.add_argument("--add", action="store_true", help="keep the trials that the report has of other cases")
    parser.add_argument("--retry", action="store_true", help="what broke is tried once more, and that counts")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="flock it around each trial, beside other suites")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    return parser.parse_args(words)


def names(case: Case) -> set[str]:
    return {case.name, f"{case.router or case.engine}/{case.name}"}


def chosen(arguments: argparse.Namespace) -> Iterator[Case]:
    for case in SUITE:
        if arguments.engine not in {None, case.engine}:
            continue
        if arguments.case:
            if names(case).intersection(arguments.case):
                yield from [case] * max(1, case.trials[0] if arguments.short else case.trials[1])
        else:
            yield from [case] * case.trials[0 if arguments.short else 1]


@contextlib.contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(words: list[str]) -> int:
    arguments = parse(words)
    plan = list(chosen(arguments))
    if not plan:
        print("no such case: see --list", file=sys.stderr)
        return 2
    if arguments.list:
        lines = [f"{(case.router or case.engine) + '/' + case.name:28} {case.what}" for case in plan]
        print("\n".join(dict.fromkeys(lines)))
        return 0
    lacking = {str(case.engine) for case in plan if not engine_installed(case.engine)}
    lacking |= {str(case.router) for case in plan if case.router and not router_installed(case.router)}
    if lacking:
        print(f"not installed: {', '.join(sorted(lacking))}; see README.md", file=sys.stderr)
        return 2
    try:
        kube = Kube.of_cluster(f"engines-{uuid.uuid4().hex[:6]}")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    interrupt_on_signals()
    began, directory = time.monotonic(), report_dir(HERE)
    path = arguments.report or directory / "engine-pods.json"
    subprocess.run([HERE.parent / "engine-pod.sh", "image"], check=True, stdout=subprocess.DEVNULL)
    kube.create_namespace()
    trials: list[Trial] = []
    print(HEADER, flush=True)
    try:
        for case in plan:
            make = alone(arguments.lock)(partial(run_trial, kube, case, directory))
            for trial in attempts(make, retry=arguments.retry):
                trials.append(trial)
                print(row(trial), flush=True)
                for fault in trial.broken or trial.faults:
                    print(f"    {fault}", flush=True)
    finally:
        ignore_signals()
        write_report(path, arguments, kube, trials, time.monotonic() - began)
        kube.delete_namespace(wait=False)
    broken = sum(not trial.held and not trial.retried for trial in trials)
    retried = sum(trial.retried for trial in trials)
    print(f"\n{len(trials)} trials, {broken} with a broken expectation, {retried} tried again; {path}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
