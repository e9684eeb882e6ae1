"""What the hook costs, as ratios measured in one run.

``python benchmarks/run.py [--quick] [--report FILE] [--no-fail]``.
Beside it runs the hook that a user would write inline (inline_hook.py, by ``python3 -c``). Both run on the interpreter
of ``.venv-bench``, which holds the agent as it ships: ``pip install .``, no extras. Both read the same pages, from a
server in a process of its own. CPU is user and system time of the child alone (wait4). README.md says more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
PAGES = REPOSITORY / "tests" / "pages"
VENV = REPOSITORY / ".venv-bench"
PYTHON = VENV / "bin" / "python"

BUSY_PAGE, IDLE_PAGE = "sglang-0.5.23-running-8.txt", "vllm-0.32.0-idle-after-traffic.txt"
ENGINE_PAGE_BYTES, LARGE_PAGE_BYTES = 85_000, 1024 * 1024
PARTS = ["polls", "start", "inject", "drains", "return"]
GRACE_S, LAST_READ_S, SETTLE_S = 30, 25.0, 5.0
#: Hooks that share one round of the return measurement, and how far apart they start: every start-up is over before
#: the first read, and no two of them read at the same moment.
BATCH, STAGGER_S = 13, 0.3


@dataclass
class Figure:
    """One line of the table. ``ratio`` is value / beside; ``limit`` bounds the ratio, else the value, else nothing."""

    name: str
    meaning: str
    unit: str
    value: float
    beside: float | None = None
    limit: float | None = None
    limits_ratio: bool = True
    samples: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        return None if not self.beside else self.value / self.beside

    @property
    def over(self) -> bool:
        measured = self.ratio if self.limits_ratio else self.value
        return self.limit is not None and (measured is None or measured > self.limit)


@dataclass
class Ended:
    """A child that has ended. ``peak_kib`` is its own peak (VmHWM): ru_maxrss also holds its parent's, by vfork."""

    cpu_s: float
    peak_kib: int
    ended_s: float
    log: list[str]


class Child:
    """A process, its CPU, its peak memory and the moment it ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self.started_s = time.monotonic()
        self._process = subprocess.Popen(
            command, env={}, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self._peak_kib, self._ended_s, self._cpu_s = 0, 0.0, 0.0
        self._waiter = threading.Thread(target=self._wait)
        self._waiter.start()

    def _wait(self) -> None:
        _, status, used = os.wait4(self._process.pid, 0)
        self._ended_s = time.monotonic()
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._cpu_s = used.ru_utime + used.ru_stime

    def look(self) -> None:
        """Note its peak memory so far."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return
        found = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
        self._peak_kib = max([self._peak_kib, *found])

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def join(self) -> Ended:
        self._waiter.join()
        assert self._process.stderr is not None
        log = self._process.stderr.read().decode(errors="replace").splitlines()
        self._process.stderr.close()
        return Ended(self._cpu_s, self._peak_kib, self._ended_s, log)


class Server:
    """page_server.py with a listener for each page; ``sent`` maps a port to when its last answer was sent."""

    def __init__(self, pages: Sequence[Path]) -> None:
        command = [sys.executable, "-I", str(HERE / "page_server.py"), ",".join(map(str, pages))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.ports = [int(self._process.stdout.readline()) for _ in pages]
        self.sent: dict[int, float] = {}
        self.requests: dict[int, int] = {}
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            port, count, sent = line.split()
            self.sent[int(port)], self.requests[int(port)] = float(sent), int(count)

    def close(self) -> None:
        """End it; every line it wrote is read."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()


def hook(port: int, engine: str, python: Path = PYTHON, log_format: str = "json") -> list[str]:
    url = f"http://127.0.0.1:{port}/metrics"
    command = [str(python), "-I", "-m", "drainagent", "hook", "--engine", engine, "--url", url]
    return [*command, "--grace", str(GRACE_S), "--log-format", log_format]


def inline(port: int, how: str) -> list[str]:
    return [str(PYTHON), "-c", (HERE / "inline_hook.py").read_text(), f"http://127.0.0.1:{port}/metrics", "25", how]


def install(python: str) -> None:
    """``.venv-bench``: the agent alone, from a copy of the tree so that no build is left in it."""
    if not PYTHON.exists():
        subprocess.run([python, "-m", "venv", str(VENV)], check=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            source = REPOSITORY / name
            (Path(folder) / name).write_text(source.read_text() if source.exists() else "")
        shutil.copytree(
            REPOSITORY / "drainagent", Path(folder) / "drainagent", ignore=shutil.ignore_patterns("__pycache__")
        )
        pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, folder], check=True)
        subprocess.run([*pip, "--force-reinstall", "--no-deps", folder], check=True)


def grown(page: bytes, size: int) -> bytes:
    """``page`` with more of its own histogram lines, under other model names, to ``size`` bytes."""
    filler = [line for line in page.splitlines(keepends=True) if b"_bucket{" in line and b'model_name="' in line]
    lines, length, copy = [page], len(page), 0
    while length < size:
        copy += 1
        for line in filler:
            more = line.replace(b'model_name="', b'model_name="copy-%d-' % copy)
            if length + len(more) > size:
                return b"".join(lines)
            lines.append(more)
            length += len(more)
    return b"".join(lines)


def drains(pages: Sequence[tuple[str, Path]], rounds: int) -> list[Figure]:
    """Whole busy drains of 25 s, all of a round at once."""
    found: dict[str, list[Ended]] = {}
    for _ in range(rounds):
        server = Server([path for _, path in pages for _ in range(3)])
        children: dict[str, Child] = {}
        for index, (name, _) in enumerate(pages):
            first, second, third = server.ports[3 * index : 3 * index + 3]
            children[f"hook {name}"] = Child(hook(first, "sglang", log_format="text"))
            children[f"lines {name}"] = Child(inline(second, "lines"))
            children[f"regex {name}"] = Child(inline(third, "regex"))
        end_s = time.monotonic() + LAST_READ_S - 0.5
        while time.monotonic() < end_s:
            time.sleep(0.5)
            for child in children.values():
                child.look()
        for key, child in children.items():
            found.setdefault(key, []).append(child.join())
        server.close()
        assert all(19 <= count <= 21 for count in server.requests.values()), server.requests
    figures = []
    # 0.5x of the hook that only splits lines is out of reach: what the agent imports costs more than half of all that
    # hook does. It is shown, and judged against the hook with an expression per gauge.
    limits: dict[tuple[str, str], float | None] = {
        ("85 kB", "lines"): 2.0,
        ("85 kB", "regex"): 2.0,
        ("1 MiB", "lines"): None,
        ("1 MiB", "regex"): 0.5,
    }
    for name, _ in pages:
        ours = found[f"hook {name}"]
        cpu = [one.cpu_s for one in ours]
        for how in ("lines", "regex"):
            beside = statistics.median(one.cpu_s for one in found[f"{how} {name}"])
            meaning = (
                f"CPU of a busy 25 s drain (20 reads, start and end included), page of {name}; beside the inline hook"
            )
            figures.append(
                Figure(
                    f"drain CPU, {name}, inline by {how}",
                    f"{meaning} that finds its gauges by {how}",
                    "s",
                    statistics.median(cpu),
                    beside,
                    limits[name, how],
                )
            )
            figures[-1].samples = cpu
        peak = [one.peak_kib / 1024 for one in ours]
        least = statistics.median(one.peak_kib / 1024 for one in found[f"lines {name}"])
        meaning = f"peak resident memory in the same drain, page of {name}; beside the inline hook"
        figures.append(Figure(f"peak memory, {name}", meaning, "MiB", max(peak), least, 2.0))
        figures[-1].samples = peak
    return figures


def polls(pages: Sequence[tuple[str, Path]]) -> list[Figure]:
    command = [str(PYTHON), "-I", str(HERE / "poll_cost.py"), *(str(path) for _, path in pages)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    figures = []
    for (name, _), line in zip(pages, lines, strict=True):
        cost = json.loads(line)
        meaning = f"CPU of one reading of a page of {name}; beside a full parse of it by prometheus-client"
        figures.append(Figure(f"poll CPU, {name}", meaning, "ms", cost["read_s"] * 1000, cost["parse_s"] * 1000, 0.1))
    return figures


def start_ups(count: int) -> list[Figure]:
    """CPU up to a SIGTERM 2.5 s into the settle, when the hook has long been waiting for its first read."""
    server = Server([PAGES / IDLE_PAGE])
    pythons = {"as it ships": PYTHON, "in the development environment": Path(sys.executable)}
    cpu: dict[str, list[float]] = {name: [] for name in (*pythons, "bare")}
    for _ in range(count):
        children = {name: Child(hook(server.ports[0], "vllm", python)) for name, python in pythons.items()}
        cpu["bare"].append(Child([str(PYTHON), "-I", "-c", "pass"]).join().cpu_s)
        time.sleep(2.5)
        for name, child in children.items():
            child.signal(signal.SIGTERM)
            cpu[name].append(child.join().cpu_s)
    server.close()
    figures = []
    for name in pythons:
        meaning = f"CPU until the hook waits for its first read, {name}; beside a bare interpreter (-I -c pass)"
        shipped = name == "as it ships"
        limit = 0.3 if shipped else None
        value, bare = statistics.median(cpu[name]), statistics.median(cpu["bare"])
        figures.append(Figure(f"start-up CPU, {name}", meaning, "s", value, bare, limit, limits_ratio=False))
        figures[-1].samples = cpu[name]
    return figures


DEPLOYMENT = """\
---
# Source: chart/templates/engine.yaml
apiVersion: apps/v1
kind: Deployment
metadata:
  name: engine-{index}
spec:
  template:
    metadata:
      labels:
        app: engine-{index}
    spec:
      containers:
        - name: main  # the engine
          image: mirror/vllm-openai:v0.10.0
          args:
            - --model
            - m
          env:
{env}
"""


def injections(count: int) -> list[Figure]:
    """The whole command on 10,000 lines of Helm output in which every document is edited."""
    env = "\n".join(f"            - name: SETTING_{index}\n              value: on-{index}" for index in range(40))
    lines: list[str] = []
    while len(lines) < 10_000:
        lines += DEPLOYMENT.format(index=len(lines), env=env).splitlines(keepends=True)
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chart.yaml"
        path.write_text("".join(lines), encoding="utf-8")
        command = [str(PYTHON), "-m", "drainagent", "inject", "-f", str(path), "--agent-image", "mirror/agent:1"]
        for _ in range(count):
            begun = time.monotonic()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            seconds.append(time.monotonic() - begun)
    meaning = f"drainagent inject, start to end, on {len(lines)} lines in which every document is a Deployment it edits"
    figure = Figure("inject, 10,000 lines", meaning, "s", statistics.median(seconds), None, 1.0, limits_ratio=False)
    figure.samples = seconds
    return [figure]


@contextmanager
def every_core_busy() -> Iterator[None]:
    command = [sys.executable, "-I", "-c", "while True: pass"]
    spinners = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def returns(batches: int, *, judge_tail: bool) -> list[Figure]:
    """From the end of the deciding read (its log line), and from its page's sending, to the process's end."""
    late_ms: list[float] = []
    since_page_ms: list[float] = []
    ready_s: list[float] = []
    early_ms: list[float] = []
    wall_ahead_s = time.time() - time.monotonic()
    with every_core_busy():
        for _ in range(batches):
            server = Server([PAGES / IDLE_PAGE] * BATCH)
            children = []
            for port in server.ports:
                children.append((port, Child(hook(port, "vllm"))))
                time.sleep(STAGGER_S)
            ends = [(port, child.started_s, child.join()) for port, child in children]
            server.close()
            for port, started_s, ended in ends:
                assert server.requests[port] == 2, (server.requests[port], ended.log)
                since_page_ms.append((ended.ended_s - server.sent[port]) * 1000)
                events = [json.loads(line) for line in ended.log]
                decided = next(event["time"] for event in reversed(events) if event["event"] == "read")
                late_ms.append((ended.ended_s + wall_ahead_s - _epoch_s(decided)) * 1000)
                ready_s.append(next(event["elapsed_s"] for event in events if event["event"] == "start"))
                early_ms.append((SETTLE_S + 1 - (server.sent[port] - started_s)) * 1000)
    late_ms.sort()
    n = len(late_ms)
    tail = late_ms[min(n - 1, -(-n * 99 // 100) - 1)]
    what = f"from the end of the deciding read to the process's end, every core busy, n = {n}"
    figures = [
        Figure("return, median", f"time {what}: median", "ms", statistics.median(late_ms), None, 20.0, False),
        Figure("return, p99", f"time {what}: 99th percentile", "ms", tail, None, 50.0 if judge_tail else None, False),
        Figure("return, worst", f"time {what}: the longest", "ms", late_ms[-1]),
        Figure(
            "return since the page",
            "the same from the sending of its page (with fetching, parsing and the socket table): median",
            "ms",
            statistics.median(since_page_ms),
        ),
        Figure("ready after", "latest first log line after the process's start, every core busy", "s", max(ready_s)),
    ]
    figures[0].samples = late_ms
    figures[-1].limit, figures[-1].limits_ratio = SETTLE_S, False
    meaning = "how much before 6 s from the process's start the second read came at the earliest, every core busy"
    figures.append(Figure("settle cut short by", meaning, "ms", max(0.0, *early_ms), None, 0.0, False))
    return figures


def _epoch_s(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339.replace("Z", "+00:00")).timestamp()


def show(figures: Sequence[Figure]) -> None:
    rows = [("", "value", "beside", "ratio", "limit", "")]
    for one in figures:
        limit = "" if one.limit is None else f"{one.limit:g}" + ("x" if one.limits_ratio else f" {one.unit}")
        rows.append(
            (
                one.name,
                f"{one.value:.3g} {one.unit}",
                "" if one.beside is None else f"{one.beside:.3g} {one.unit}",
                "" if one.ratio is None else f"{one.ratio:.3g}x",
                limit,
                "" if one.limit is None else "OVER" if one.over else "ok",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        print("  ".join([f"{row[0]:<{widths[0]}}", *(f"{row[i]:>{widths[i]}}" for i in range(1, 6))]).rstrip())
    print()
    for one in figures:
        print(f"{one.name}: {one.meaning}.")


def main() -> int:
    parser = argparse.ArgumentParser(description="What the hook costs, beside an inline hook and a bare interpreter.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats; the 99th percentile is shown, not judged")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the figures as JSON too")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    parser.add_argument("--only", action="append", choices=PARTS, help="repeatable")
    options = parser.parse_args()
    wanted = options.only or PARTS
    install(sys.executable)
    busy = (PAGES / BUSY_PAGE).read_bytes()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        pages = []
        for name, size in (("85 kB", ENGINE_PAGE_BYTES), ("1 MiB", LARGE_PAGE_BYTES)):
            path = Path(folder) / name.replace(" ", "")
            path.write_bytes(grown(busy, size))
            pages.append((name, path))
        if "polls" in wanted:
            figures += polls(pages)
        if "start" in wanted:
            figures += start_ups(3 if options.quick else 10)
        if "drains" in wanted:
            figures += drains(pages, 1 if options.quick else 3)
        if "inject" in wanted:
            figures += injections(3 if options.quick else 10)
        if "return" in wanted:
            figures += returns(2 if options.quick else 8, judge_tail=not options.quick)
    show(figures)
    if options.report is not None:
        document = [{**asdict(one), "ratio": one.ratio, "over": one.over} for one in figures]
        options.report.write_text(json.dumps({"quick": options.quick, "figures": document}, indent=2) + "\n")
    over = any(one.over for one in figures)
    return 1 if over and not options.no_fail else 0


if __name__ == "__main__":
    raise SystemExit(main())
