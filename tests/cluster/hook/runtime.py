"""What containerd says: when each process of a container started and ended, and with which status.

It is the kubelet's own source for these, and the only place where the hook (an exec in the container) has a start and
an end of its own. Moments are in seconds since the epoch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import IO, TypeVar

from kube import CLUSTER, Object

_T = TypeVar("_T")


@dataclass
class Process:
    """A process of a container: its first one, or an exec. ``pid`` is the node's."""

    started_s: float | None = None
    pid: int = 0
    ended_s: float | None = None
    status: int = 0


@dataclass
class Container:
    main: Process = field(default_factory=Process)
    #: In the order of their start: the hook, or what `kubectl exec` ran.
    execs: dict[str, Process] = field(default_factory=dict)


class Runtime:
    """containerd's events, from now on."""

    def __init__(self) -> None:
        self._containers: dict[str, Container] = {}
        self._changed = threading.Condition()
        self._told_of_probe = threading.Event()
        # A session of its own: ctr is in another PID namespace, where only its process group reaches it.
        self._ctr = subprocess.Popen(
            [CLUSTER, "ctr", "events"],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._ctr.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._ctr.stdout,), daemon=True)
        self._reader.start()
        self._subscribed()

    def _subscribed(self) -> None:
        """ctr does not say when it listens: something happens until it has told of it."""
        probe = "drainagent-probe"
        end = time.monotonic() + 20
        while not self._told_of_probe.wait(0.3):
            if time.monotonic() > end or self._ctr.poll() is not None:
                raise RuntimeError("containerd's events cannot be followed: cluster.sh ctr events")
            for verb in ("create", "remove"):
                subprocess.run([CLUSTER, "ctr", "namespaces", verb, probe], check=False, capture_output=True)

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            # 2026-11-30 18:55:23.098163494 +0000 UTC k8s.io /tasks/start {"container_id": ...}
            words = line.split(" ", 6)
            if len(words) == 7 and words[5].startswith("/tasks/"):
                with self._changed:
                    self._take(
                        words[5].removeprefix("/tasks/"), rfc3339_s(f"{words[0]}T{words[1]}"), json.loads(words[6])
                    )
                    self._changed.notify_all()
            elif "/namespaces/" in line:
                self._told_of_probe.set()

    def _take(self, topic: str, at_s: float, told: Object) -> None:
        if topic not in {"start", "exec-started", "exit"}:
            return
        container = self._containers.setdefault(told["container_id"], Container())
        if topic == "start":
            container.main.started_s, container.main.pid = at_s, told["pid"]
        elif topic == "exec-started":
            container.execs[told["exec_id"]] = Process(at_s, told["pid"])
        else:
            own = told["id"] == told["container_id"]
            process = container.main if own else container.execs.setdefault(told["id"], Process())
            ended = told["exited_at"]
            process.ended_s = ended["seconds"] + ended.get("nanos", 0) / 1e9
            process.status = told.get("exit_status", 0)

    def wait(self, what: str, container_id: str, wanted: Callable[[Container], _T | None], within_s: float) -> _T:
        """What ``wanted`` finds in the container; AssertionError, with ``what``, when that stays None."""
        end = time.monotonic() + within_s
        with self._changed:
            while True:
                found = wanted(self._containers.get(container_id, Container()))
                if found is not None:
                    return found
                left_s = end - time.monotonic()
                if left_s <= 0 or self._ctr.poll() is not None:
                    raise AssertionError(f"not within {within_s:g} s: {what}")
                self._changed.wait(min(left_s, 1.0))

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._ctr.pid, signal.SIGTERM)
        self._ctr.wait()
        self._reader.join(5)
        if self._ctr.stdout is not None:
            self._ctr.stdout.close()


def rfc3339_s(text: str) -> float:
    """Seconds since the epoch of a time in UTC, whatever its number of decimals."""
    whole, _, decimals = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp()
    return moment + (float(f"0.{decimals}") if decimals else 0.0)
