"""Run the real hook against the real engines and say whether each expectation held. See README.md.

python tests/engines/run.py [--engine vllm|sglang] [--scenario NAME...] [--short] [--retry] [--report FILE] [--list]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trustme
from engine_process import EngineProcess, EngineSetup, installed
from hook_process import HookProcess, contract_faults
from load import ClientPlan, Load, Request, earliest_s
from scenarios import MEDIAN_BOUND_S, SUITE, Leaving, Scenario
from suite import VERSIONS, attempts, ignore_signals, interrupt_on_signals, report_dir

from drainagent import __version__
from drainagent.page import Page, read_page
from drainagent.timeline import BACK_BEFORE_KILL_S, LAST_READ_BEFORE_KILL_S, SETTLE_S

HERE = Path(__file__).resolve().parent
#: The kubelet's SIGTERM follows the hook's end by 12 to 25 ms.
SIGTERM_AFTER_S = 0.02
#: How long requests may go on after the hook returned, to see whether they were ones it should have waited for.
REST_S = 60.0
STUCK_BURSTS = 6


@dataclass
class Trial:
    """What one trial showed; ``None`` where it does not apply. Times are seconds from the delete.

    ``untried``: why its situation could not be made, which says nothing about the hook. ``retried``: it broke and was
    made once more; the second one counts.
    """

    engine: str
    setup: str
    scenario: str
    what: str
    grace_s: float
    outcome: str | None = None
    reason: str | None = None
    reads: int = 0
    returned_s: float | None = None
    last_byte_s: float | None = None
    after_last_s: float | None = None
    leaving: Leaving | None = None
    requests: int = 0
    met: int = 0
    lost: int | None = None
    engine_gone_after_s: float | None = None
    contrast_returned_s: float | None = None
    contrast_met: int | None = None
    note: str = ""
    last_line: str = ""
    broken: list[str] = field(default_factory=list)
    untried: str = ""
    retried: bool = False
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def held(self) -> bool:
        return not self.broken


class Bench:
    """Keeps one engine running at a time, as the scenarios ask for it."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.every_cpu = run_dir, os.sched_getaffinity(0)
        self.engine: EngineProcess | None = None
        self.certificate = (run_dir / "cert.pem", run_dir / "key.pem")
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        issued.private_key_and_cert_chain_pem.write_to_path(str(self.certificate[1]))
        for blob in issued.cert_chain_pems:
            blob.write_to_path(str(self.certificate[0]))
        # Clients, hook and HTTP servers share a CPU; the engine's workers spin on the other one.
        os.sched_setaffinity(0, {min(self.every_cpu)})

    def ready(self, setup: EngineSetup, *, fresh: bool) -> EngineProcess:
        """The engine of ``setup``, started when need be."""
        engine = self.engine
        if engine is None or engine.setup is not setup or not engine.alive() or (fresh and engine.used):
            self.stop()
            print(f"starting {setup.name} ({VERSIONS[setup.engine]}) {' '.join(setup.flags)}", flush=True)
            engine = self.engine = EngineProcess(setup, self.run_dir, self.every_cpu, self.certificate)
            print(f"  up after {engine.start_took_s:.0f} s", flush=True)
        return engine

    def stop(self) -> None:
        if self.engine is not None:
            engine, self.engine = self.engine, None
            engine.stop()


def run_trial(bench: Bench, setup: EngineSetup, scenario: Scenario) -> Trial:
    """One trial of ``scenario``; its hook and clients are gone afterwards."""
    engine = bench.ready(setup, fresh=scenario.fresh)
    trial = Trial(setup.engine, setup.name, scenario.name, scenario.what, scenario.grace_s, leaving=scenario.leaving)
    wait_quiet(engine)
    if scenario.stuck:
        trial.note = make_stuck(engine)
        if not trial.note:
            trial.untried = trial.note = f"the gauges did not stick in {STUCK_BURSTS} bursts"
            return trial
    engine.used = engine.used or bool(scenario.clients) or scenario.stuck
    served_before = engine.pages_served()
    delete_at = time.monotonic() + 0.2 - min(0.0, earliest_s(scenario.clients))
    load = Load(scenario.clients, engine.target, delete_at)
    hooks: list[HookProcess] = []
    try:
        load.start()
        time.sleep(max(0.0, delete_at - time.monotonic()))
        hook = HookProcess(setup.engine, engine.url, scenario.grace_s, scenario.hook_args)
        hooks.append(hook)
        contrast = None
        if scenario.contrast:
            # Half a period later, so that the two hooks' reads, which are connections too, do not meet.
            time.sleep(0.45)
            contrast = HookProcess(setup.engine, engine.url, scenario.grace_s, ("--gauges-only",))
            hooks.append(contrast)
        kill_at = hook.asked + scenario.grace_s
        in_time = hook.wait(kill_at)
        served = engine.pages_served() - served_before
        if scenario.sigterm:
            terminate(engine, load, trial, kill_at)
        elif hook.returned is not None and hook.returned < kill_at - LAST_READ_BEFORE_KILL_S:
            wait_for(load.settled, REST_S)
        if contrast is not None:
            contrast.wait(kill_at)
    finally:
        for each in hooks:
            each.kill()
        load.stop()
    judge(trial, scenario, hook, load, in_time=in_time)
    if contrast is None and served != hook.reads:
        trial.broken.append(f"the engine served its page {served} times, the log has {hook.reads} reads")
    if contrast is not None and contrast.returned is not None:
        trial.contrast_returned_s = round(contrast.returned - contrast.asked, 2)
        trial.contrast_met = sum(answer.running_at(contrast.returned) for answer in load.answers)
        trial.note = (
            f"--gauges-only: {contrast.outcome} at {trial.contrast_returned_s:.1f} s, meets {trial.contrast_met}"
        )
    return trial


def terminate(engine: EngineProcess, load: Load, trial: Trial, kill_at: float) -> None:
    """SIGTERM as the kubelet sends it, SIGKILL at G; waits for the engine and for what its clients make of it."""
    time.sleep(SIGTERM_AFTER_S)
    termed = time.monotonic()
    engine.terminate()
    gone = engine.wait_gone(max(kill_at, termed + 2))
    if gone is not None:
        trial.engine_gone_after_s = round(gone - termed, 2)
    engine.kill()
    wait_for(load.settled, 2)


def judge(trial: Trial, scenario: Scenario, hook: HookProcess, load: Load, *, in_time: bool) -> None:
    """Fill ``trial`` and name each expectation that did not hold."""
    broken, expect, grace_s = trial.broken, scenario.expect, scenario.grace_s
    trial.outcome, trial.reads = hook.outcome, hook.reads
    trial.reason = hook.last.get("reason")
    trial.last_line = hook.lines[-1].text if hook.lines else ""
    trial.log = hook.events
    answers = load.answers
    trial.requests = len(answers)
    if not in_time or hook.returned is None:
        broken.append("the hook was not back by G")
        return
    returned_s = hook.returned - hook.asked
    trial.returned_s = round(returned_s, 2)
    met = [answer for answer in answers if answer.running_at(hook.returned)]
    trial.met = len(met)
    ends = [answer.ended for answer in answers if answer.ended is not None and answer.ended <= hook.returned]
    if ends and not met:
        trial.last_byte_s = round(max(ends) - hook.asked, 2)
        trial.after_last_s = round(returned_s - max(max(ends) - hook.asked, SETTLE_S), 2)
    deadline_s = grace_s - LAST_READ_BEFORE_KILL_S
    unfair = [answer for answer in answers if not answer.complete and (answer not in met or returned_s < deadline_s)]
    trial.lost = sum(not answer.complete for answer in answers) if scenario.sigterm else len(unfair)
    broken += [f"a request that could have finished was lost: {answer.fault}" for answer in unfair]
    if met and returned_s < deadline_s:
        broken.append(f"{len(met)} requests still running at the return, before G - 5")
    if returned_s > grace_s - BACK_BEFORE_KILL_S:
        broken.append(f"back at {returned_s:.2f} s, after G - 3")
    if hook.status != 0:
        broken.append(f"exit status {hook.status}")
    if expect.outcome not in {trial.outcome, "any"}:
        broken.append(f"outcome {trial.outcome}, not {expect.outcome}")
    if expect.outcome == "deadline" and not returned_s >= deadline_s:
        broken.append(f"back at {returned_s:.2f} s, before G - 5")
    if expect.returned_s is not None and not expect.returned_s[0] <= returned_s <= expect.returned_s[1]:
        broken.append(f"back at {returned_s:.2f} s, not within {expect.returned_s[0]} to {expect.returned_s[1]} s")
    if expect.reads not in {None, trial.reads}:
        broken.append(f"{trial.reads} reads, not {expect.reads}")
    broken += [f"the last line does not say {words!r}" for words in expect.last_line if words not in trial.last_line]
    if expect.missing and not any(event.get("reason") == "GaugesMissing" for event in hook.events):
        broken.append("the log names no missing gauge")
    broken += contract_faults(hook, grace_s)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def wait_quiet(engine: EngineProcess) -> None:
    """No client of an earlier trial is connected any more (the engine closes an idle connection in time)."""
    listener = f"0100007F:{engine.port:04X}"

    def quiet() -> bool:
        rows = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
        return not any((row.split()[1], row.split()[3]) == (listener, "01") for row in rows)

    wait_for(quiet, 70)


def make_stuck(engine: EngineProcess) -> str:
    """Bursts of streams until the page shows work where there is none; what it shows, or ''.

    Each step's numbers go to one of vLLM's API servers and the last writer wins. The second server is held up for a
    moment (SIGSTOP), as on a busy node: what it writes late stays.
    """
    servers = engine.api_servers()
    for _ in range(STUCK_BURSTS):
        plans = tuple(ClientPlan((Request(0.05 * n, 20, 50 + 10 * n),)) for n in range(8))
        burst = Load(plans, engine.target, time.monotonic())
        burst.start()
        time.sleep(1.2)
        try:
            os.kill(servers[-1], signal.SIGSTOP)
            time.sleep(6)
        finally:
            os.kill(servers[-1], signal.SIGCONT)
        wait_for(burst.settled, 60)
        burst.stop()
        time.sleep(2)
        shown = gauges(engine)
        if any(shown.values()):
            return "stuck at " + ", ".join(f"{name} {value:g}" for name, value in shown.items() if value)
    return ""


def gauges(engine: EngineProcess) -> dict[str, float]:
    """The gauges as the page shows them now."""
    import http.client

    from drainagent.catalogue import engine_by_name

    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Connection": "close"})
        page = read_page(connection.getresponse().read(), engine_by_name(engine.setup.engine), framed=True)
    assert isinstance(page, Page)
    return {gauge.name: gauge.sum for gauge in page.gauges}


def chosen(arguments: argparse.Namespace) -> Iterator[tuple[EngineSetup, Scenario]]:
    """The trials to make, in order: what needs a fresh engine stands first in its setup, what ends the engine last."""
    names = set(arguments.scenario or ())
    for setup, scenarios in SUITE:
        if arguments.engine not in {None, setup.engine}:
            continue
        wanted = [one for one in scenarios if not names or names & {one.name, f"{setup.name}/{one.name}"}]
        for ends in (False, True):
            for number in range(max((max(one.trials) for one in wanted), default=0)):
                for one in wanted:
                    if one.sigterm is ends and number < one.trials[0 if arguments.short else 1]:
                        yield setup, one


@dataclass(frozen=True)
class Median:
    engine: str
    leaving: Leaving
    trials: int
    median_s: float
    most_s: float
    bound_s: float

    @property
    def held(self) -> bool:
        return self.median_s <= self.bound_s


def medians(trials: list[Trial]) -> list[Median]:
    """From the last response to the hook's return, by engine and by how the clients leave."""
    found = []
    for (engine, leaving), bound_s in MEDIAN_BOUND_S.items():
        times = [
            trial.after_last_s
            for trial in trials
            if (trial.engine, trial.leaving) == (engine, leaving)
            and trial.after_last_s is not None
            and not trial.retried
        ]
        if times:
            median_s = round(statistics.median(times), 2)
            found.append(Median(engine, leaving, len(times), median_s, max(times), bound_s))
    return found


HEADER = (
    f"{'engine / scenario':34} {'G':>4} {'outcome':13} {'reads':>5} {'back at':>8} {'last byte':>9} {'after':>6} "
    f"{'met':>4} {'lost':>4}  held"
)


def row(trial: Trial) -> str:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    lost = "-" if trial.lost is None else str(trial.lost)
    held = "not tried" if trial.untried else "yes" if trial.held else "NO"
    return (
        f"{trial.setup + ' / ' + trial.scenario:34} {trial.grace_s:4g} {trial.outcome or '-':13} {trial.reads:5} "
        f"{seconds(trial.returned_s):>8} {seconds(trial.last_byte_s):>9} {seconds(trial.after_last_s):>6} "
        f"{trial.met:4} {lost:>4}  {held}" + (f"  {trial.note}" if trial.note else "")
    )


def machine() -> dict[str, Any]:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cores": os.cpu_count(), "cpu": names[0] if names else platform.machine(), "memory_gib": round(memory)}


def write_report(path: Path, arguments: argparse.Namespace, trials: list[Trial], seconds: float, cpus: int) -> None:
    summary = medians(trials)
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "form": "short" if arguments.short else "full",
        "versions": {"drainagent": __version__, **VERSIONS, "python": platform.python_version()},
        "machine": {**machine(), "cpus_used": cpus},
        "seconds": round(seconds),
        "held": all(trial.held or trial.retried for trial in trials) and all(median.held for median in summary),
        "medians": [{**asdict(median), "held": median.held} for median in summary],
        "trials": [{**asdict(trial), "held": trial.held} for trial in trials],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The real hook against the real engines.")
    parser.add_argument("--engine", choices=sorted(VERSIONS))
    parser.add_argument("--scenario", nargs="+", metavar="NAME", help="NAME or SETUP/NAME, as --list shows them")
    parser.add_argument("--short", action="store_true", help="each situation once, under 12 minutes for both engines")
    parser.add_argument("--retry", action="store_true", help="what broke is tried once more, and that counts")
    parser.add_argument("--report", type=Path, metavar="FILE", help="default: tests/engines/.report/engines.json")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    arguments = parse(words)
    plan = list(chosen(arguments))
    if not plan:
        print("no such scenario: see --list", file=sys.stderr)
        return 2
    if arguments.list:
        lines = [f"{setup.name + '/' + scenario.name:34} {scenario.what}" for setup, scenario in plan]
        print("\n".join(dict.fromkeys(lines)))
        return 0
    lacking = sorted({setup.engine for setup, _ in plan if not installed(setup.engine)})
    if lacking:
        print(f"not installed: {', '.join(lacking)}; run tests/engines/setup.sh NAME", file=sys.stderr)
        return 2
    interrupt_on_signals()
    began, cpus = time.monotonic(), len(os.sched_getaffinity(0))
    directory = report_dir(HERE)
    bench = Bench(directory)
    trials: list[Trial] = []
    print(HEADER)
    try:
        for setup, scenario in plan:
            for trial in attempts(partial(run_trial, bench, setup, scenario), retry=arguments.retry):
                trials.append(trial)
                print(row(trial), flush=True)
                for fault in trial.broken:
                    print(f"    {fault}", flush=True)
    finally:
        ignore_signals()
        bench.stop()
        write_report(arguments.report or directory / "engines.json", arguments, trials, time.monotonic() - began, cpus)
    return conclude(trials)


def conclude(trials: list[Trial]) -> int:
    print("\nfrom the later of the last byte and the settle's end to the hook's return:")
    summary = medians(trials)
    for median in summary:
        leaves = "close their connections" if median.leaving == "close" else "keep them open"
        print(
            f"  {median.engine:7} clients that {leaves:24} median {median.median_s:.2f} s of {median.trials} trials, "
            f"most {median.most_s:.2f} s, bound {median.bound_s} s: {'held' if median.held else 'BROKEN'}"
        )
    broken = sum(not trial.held and not trial.retried for trial in trials) + sum(not one.held for one in summary)
    untried, retried = sum(bool(trial.untried) for trial in trials), sum(trial.retried for trial in trials)
    print(
        f"{len(trials)} trials, {sum(trial.requests for trial in trials)} requests, {broken} expectations broken, "
        f"{untried} not tried, {retried} tried again"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt as reason:
        print(f"interrupted: {str(reason) or 'SIGINT'}", file=sys.stderr)
        sys.exit(130)
