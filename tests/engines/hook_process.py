"""The real hook, started as the kubelet starts it, and what its JSON log must look like (cli.md)."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, Any

EVENTS = ("start", "settled", "read", "outcome")
OUTCOMES = ("idle", "deadline", "unmeasurable", "terminated")
FIELDS = ("time", "elapsed_s", "event", "verdict", "reason", "gauges", "in_flight")


@dataclass(frozen=True)
class Line:
    """One line of the hook's log, and when it arrived."""

    arrived: float
    text: str
    fields: dict[str, Any] | None


class HookProcess:
    """``python -I -m drainagent hook``: no environment, cwd /, stdin /dev/null; its log is read from its stderr."""

    def __init__(self, engine: str, url: str, grace_s: float, extra: tuple[str, ...] = ()) -> None:
        command = [sys.executable, "-I", "-m", "drainagent", "hook", "--engine", engine, "--url", url]
        command += ["--grace", f"{grace_s:g}", "--log-format", "json", *extra]
        self.lines: list[Line] = []
        self.returned: float | None = None
        self.asked = time.monotonic()
        self._process = subprocess.Popen(
            command, env={}, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._reader.start()
        self._waiter.start()

    def _read(self, stream: IO[bytes]) -> None:
        for raw in stream:
            arrived, text = time.monotonic(), raw.decode(errors="replace").rstrip("\n")
            try:
                fields = json.loads(text)
            except ValueError:
                fields = None
            self.lines.append(Line(arrived, text, fields if isinstance(fields, dict) else None))

    def _wait(self) -> None:
        self._process.wait()
        self.returned = time.monotonic()

    def wait(self, until: float) -> bool:
        """Whether it returned by then; its last line is read too."""
        self._waiter.join(max(0.0, until - time.monotonic()))
        if self._waiter.is_alive():
            return False
        self._reader.join(2)
        return True

    def kill(self) -> None:
        """End it, when it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._waiter.join(5)

    @property
    def status(self) -> int | None:
        return self._process.returncode

    @property
    def events(self) -> list[dict[str, Any]]:
        return [line.fields for line in self.lines if line.fields is not None]

    @property
    def reads(self) -> int:
        return sum(event.get("event") == "read" for event in self.events)

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1] if self.events else {}

    @property
    def outcome(self) -> str | None:
        outcome = self.last.get("outcome")
        return outcome if isinstance(outcome, str) else None


def contract_faults(hook: HookProcess, grace_s: float) -> list[str]:
    """Where the log is not what cli.md promises to scripts, and where it shows the timeline broken."""
    faults = [f"not a JSON object: {line.text[:200]!r}" for line in hook.lines if line.fields is None]
    events = hook.events
    if not events:
        return [*faults, "no log line on stderr"]
    for event in events:
        absent = ", ".join(name for name in FIELDS if name not in event)
        faults += [f"a {event.get('event')} line has no {absent}"] if absent else []
    names = [event.get("event") for event in events]
    faults += [f"unknown event {name!r}" for name in names if name not in EVENTS]
    if names[0] != "start" or names.count("settled") != 1 or names[-1] != "outcome" or names.count("outcome") != 1:
        faults.append("events are not start, settled, reads, outcome: " + ", ".join(map(str, names)))
    faults += time_faults(events, grace_s)
    last = events[-1]
    if last.get("outcome") not in OUTCOMES:
        faults.append(f"the last line's outcome is {last.get('outcome')!r}")
    if not isinstance(last.get("waited_s"), int | float):
        faults.append(f"the last line's waited_s is {last.get('waited_s')!r}")
    for event in events:
        gauges = event.get("gauges")
        if event.get("event") == "read" and gauges is not None and not isinstance(gauges, dict):
            faults.append(f"gauges are no object: {gauges!r}")
    return sorted(set(faults), key=faults.index)


def time_faults(events: list[dict[str, Any]], grace_s: float) -> list[str]:
    faults = []
    before = 0.0
    for event in events:
        elapsed, stamp = event.get("elapsed_s"), event.get("time")
        if not isinstance(elapsed, int | float) or elapsed < before:
            faults.append(f"elapsed_s {elapsed!r} after {before}")
            continue
        before = elapsed
        try:
            aware = datetime.datetime.fromisoformat(str(stamp).replace("Z", "+00:00")).tzinfo is not None
        except ValueError:
            aware = False
        if not aware:
            faults.append(f"time is not RFC 3339: {stamp!r}")
        if event.get("event") in {"settled", "read"} and elapsed < 5.0:
            faults.append(f"{event['event']} at {elapsed} s, inside the settle")
        if event.get("event") == "read" and elapsed > grace_s - 3.0:
            faults.append(f"a read ended at {elapsed} s, after G - 3")
    return faults
