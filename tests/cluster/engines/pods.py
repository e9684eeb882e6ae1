"""A real engine in a Pod, its hook put there by `drainagent inject` as a user would, and what its log tells."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from engine_process import engines_dir
from kube import Kube, KubectlError
from load import CONNECT_S, READ_S, Answer, Client, Load

from engines.cases import Case, Engine

ENGINE_POD = Path(__file__).resolve().parent.parent / "engine-pod.sh"
AGENT_IMAGE = os.environ.get("DRAINAGENT_AGENT_IMAGE", "localhost/drainagent/agent:0.1.0")
PORT: dict[Engine, int] = {"vllm": 8000, "sglang": 30000}
#: What `inject` has to conclude by itself.
CONCLUDED: dict[Engine, tuple[str, ...]] = {
    "vllm": ("vLLM on port 8000 (by its command line)", "--enable-server-load-tracking added"),
    "sglang": ("SGLang on port 30000 (by its command line)", "--enable-metrics added"),
}
#: The first line that each engine writes at SIGTERM.
SIGTERM_LINE: dict[Engine, str] = {"vllm": "[shutdown] API server: shutdown triggered", "sglang": "SIGTERM received."}
READY_S = 400
#: A container that will not start by waiting.
HOPELESS = {"ErrImageNeverPull", "CreateContainerError", "CreateContainerConfigError", "CrashLoopBackOff"}
OUTCOME = re.compile(r"outcome (\w+) after ([\d.]+) s: (.*)")
BUSY = re.compile(r"(?:busy|unknown) (\w+):")


def manifest(case: Case, name: str) -> tuple[str, str]:
    """The Pod for kubectl, and what `inject` said."""
    plain = subprocess.run(
        [ENGINE_POD, "yaml", case.engine, name, str(case.grace_s), engines_dir()],
        env={**os.environ, "APP": "engine"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    if case.hook == "none":
        return plain, ""
    command = [sys.executable, "-m", "drainagent", "inject", "-f", "-", "--agent-image", AGENT_IMAGE]
    command += ["--agent-image-pull-policy", "Never", "--delivery", case.delivery]
    done = subprocess.run(command, input=plain, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"inject: exit status {done.returncode}: {done.stderr}")
    text = done.stdout
    if case.hook == "gauges-only":
        last = f'- "{case.grace_s}"\n'
        indent, found, rest = text.partition(last)
        if not found:
            raise RuntimeError("the hook's --grace is not where it was")
        text = indent + found + " " * (len(indent) - len(indent.rstrip(" "))) + "- --gauges-only\n" + rest
    return text, done.stderr


@dataclass(frozen=True)
class Line:
    """``at``: when containerd had it, in seconds since the epoch."""

    at: float
    text: str


class Log:
    """`kubectl logs --follow` of one container; ``ended`` (since the epoch) once the container is gone."""

    def __init__(self, kube: Kube, pod: str) -> None:
        self.lines: list[Line] = []
        self.ended: float | None = None
        command = kube.command("logs", pod, "--container", "main", "--follow", "--timestamps")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            stamp, _, text = raw.decode(errors="replace").rstrip("\n").partition(" ")
            with contextlib.suppress(ValueError):
                # Nanoseconds, and a Z: neither is for Python 3.10.
                at = datetime.datetime.fromisoformat(stamp.rstrip("Z")[:26].ljust(26, "0") + "+00:00").timestamp()
                self.lines.append(Line(at, text))
        self.ended = time.time()

    def wait(self, until: float) -> bool:
        """Whether the container was gone by then (since the epoch)."""
        self._thread.join(max(0.0, until - time.time()))
        return self.ended is not None

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(10)
        self._thread.join(10)


@dataclass
class Pod:
    kube: Kube
    case: Case
    name: str
    said: str = ""
    ip: str = ""
    uid: str = ""
    log: Log | None = field(default=None, repr=False)

    def create(self) -> None:
        text, self.said = manifest(self.case, self.name)
        self.kube.apply(text)

    def wait_ready(self) -> None:
        """RuntimeError with the reason when it will not be."""
        until = time.monotonic() + READY_S
        waits: list[str] = []
        while time.monotonic() < until:
            status = self.kube.get(f"pod/{self.name}")["status"]
            conditions = {entry["type"]: entry["status"] for entry in status.get("conditions", ())}
            if conditions.get("Ready") == "True":
                self.ip = status["podIP"]
                self.log = Log(self.kube, self.name)
                return
            containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
            waits = [entry["state"].get("waiting", {}).get("reason", "") for entry in containers]
            if HOPELESS.intersection(waits) or any(entry["restartCount"] for entry in containers):
                break
            time.sleep(1)
        tail = ""
        with contextlib.suppress(KubectlError):
            tail = self.kube.run("logs", self.name, "--container", "main", "--tail", "20")
        raise RuntimeError(f"{self.name} did not get ready ({', '.join(filter(None, waits)) or 'time'}): {tail}")

    def remove(self) -> None:
        """At once, hook or not."""
        with contextlib.suppress(KubectlError, subprocess.TimeoutExpired):
            self.kube.delete(f"pod/{self.name}", grace=1, timeout=60)
        if self.log is not None:
            self.log.stop()


@dataclass(frozen=True)
class Story:
    """What the log of a deleted Pod's container tells. Times are since the epoch."""

    hook: tuple[Line, ...]
    reads: tuple[float, ...]
    answered: int
    sigterm: float | None
    ended: float | None

    @property
    def outcome_line(self) -> Line | None:
        return next((line for line in self.hook if OUTCOME.search(line.text)), None)

    @property
    def returned(self) -> float | None:
        """The hook's process ends within milliseconds of its last line."""
        return None if self.outcome_line is None else self.outcome_line.at

    @property
    def outcome(self) -> str | None:
        found = None if self.outcome_line is None else OUTCOME.search(self.outcome_line.text)
        return None if found is None else found[1]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it was busy, in order."""
        return tuple(found[1] for line in self.hook if (found := BUSY.search(line.text)))


def elapsed_s(line: Line) -> float:
    """The hook's own clock in one of its lines."""
    found = re.search(r"drainagent: +([\d.]+) s:", line.text)
    return float(found[1]) if found else -1.0


def story(engine: Engine, log: Log, since: float) -> Story:
    """From ``since`` on, the moment the load began."""
    lines = [line for line in list(log.lines) if line.at >= since]
    return Story(
        hook=tuple(line for line in lines if "drainagent: " in line.text),
        reads=tuple(line.at for line in lines if re.search(r'127\.0\.0\.1:\d+ - "GET /metrics', line.text)),
        answered=sum('"POST /v1/completions HTTP/1.1" 200' in line.text for line in lines),
        sigterm=next((line.at for line in lines if SIGTERM_LINE[engine] in line.text), None),
        ended=log.ended,
    )


class PodClient(Client):
    """A client of another address than this machine's own."""

    host = "127.0.0.1"

    def _open(self) -> http.client.HTTPConnection:
        if self._connection is None:
            sock = socket.create_connection((self.host, self.target.port), CONNECT_S)
            sock.settimeout(READ_S)
            self._connection = http.client.HTTPConnection(self.host, self.target.port)
            self._connection.sock = self._sock = sock
        return self._connection


@dataclass
class PodLoad(Load):
    host: str = "127.0.0.1"

    def start(self) -> None:
        self.clients = []
        for plan in self.plans:
            client = PodClient(plan, self.target, self.delete_at)
            client.host = self.host
            self.clients.append(client)
            client.start()


def describe(answer: Answer, delete_at: float) -> str:
    end = "never" if answer.ended is None else f"{answer.ended - delete_at:.1f} s"
    return f"sent at {answer.sent - delete_at:.1f} s, ended at {end}: {answer.fault}"
