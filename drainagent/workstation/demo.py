"""``drainagent demo``: the drain window on this machine, live: a stand-in engine under load, and the real hook process.

The stand-in (standin.py) and the hook are real processes, the clients real connections. Every figure that is printed
comes from the run. The first half of the module is pure: the load, what a line of the hook says, the chart, the sums.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal, get_args

import click

from drainagent.catalogue import Engine, engine_by_name
from drainagent.timeline import DEFAULT_GRACE_S, IDLE_READS, MAX_GRACE_S, MIN_GRACE_S, Timeline, timeline
from drainagent.workstation.plan import BoundError, check_bound

#: The load starts this long before the delete.
LEAD_S = 3.0
TOKENS_PER_S = 50.0
#: The long late prompt, and how long the engine is at it: one step, during which the gauges stay as they were (zero).
LONG_PROMPT_TOKENS = 3500
LONG_PREFILL_S = 4.2
PREFILL_TOKENS_PER_S = LONG_PROMPT_TOKENS / LONG_PREFILL_S
SHORT_PROMPT_TOKENS = 20
#: The slow reader's receive buffer: small, so that what it has not read yet stays with the engine's kernel.
SLOW_READER_BUFFER_BYTES = 4096
#: When /health is asked on both engines, in seconds from the delete.
HEALTH_AT_S = 3.0
#: A child that is asked to start or end and does not within this long fails the demo.
CHILD_BOUND_S = 15.0
#: A client gives up on a connection that is silent this long: longer than any prefill here.
CLIENT_TIMEOUT_S = 20.0

Outcome = Literal["finished", "cut", "refused"]


@dataclass(frozen=True)
class Planned:
    """One request of the load. ``ends_s`` is what its tokens come to when nothing stops it."""

    name: str
    starts_s: float
    ends_s: float
    prompt_tokens: int
    max_tokens: int
    #: The client reads so slowly that it is done at ``ends_s`` only, long after the engine.
    slow_reader: bool = False


@dataclass(frozen=True)
class Request:
    """What became of one request; times in seconds from the delete."""

    name: str
    start_s: float
    first_token_s: float | None
    end_s: float
    tokens: int
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Mark:
    """A moment that the chart shows as a line through all rows."""

    letter: str
    at_s: float
    text: str


def load(grace_s: float) -> tuple[Planned, ...]:
    """The same requests for both engines. All can finish by G - 5: a shorter grace gets shorter late streams.

    Three end in the settle as far as the engine is concerned, one of them with a client that reads on for seconds. Then
    the replica is quiet, and two late ones land: from a router that had not heard of the delete yet.
    """

    def stream(name: str, starts_s: float, ends_s: float) -> Planned:
        return Planned(name, starts_s, ends_s, SHORT_PROMPT_TOKENS, round((ends_s - starts_s) * TOKENS_PER_S))

    slow_ends_s = min(8.0, grace_s - 7.0)
    late_ends_s = min(12.0, grace_s - 6.5)
    slow = stream("slow reader", -2.4, 2.2)
    decoding_from_s = 2.6 + LONG_PREFILL_S
    long_ends_s = decoding_from_s + (late_ends_s - decoding_from_s) / 2
    return (
        stream("short 1", -2.8, 0.8),
        stream("short 2", -2.6, 1.6),
        Planned(slow.name, slow.starts_s, slow_ends_s, slow.prompt_tokens, slow.max_tokens, slow_reader=True),
        Planned(
            "late, long prompt",
            2.6,
            long_ends_s,
            LONG_PROMPT_TOKENS,
            round((long_ends_s - decoding_from_s) * TOKENS_PER_S),
        ),
        Planned(
            "late, short",
            3.0,
            late_ends_s,
            SHORT_PROMPT_TOKENS,
            round((late_ends_s - decoding_from_s) * TOKENS_PER_S),
        ),
    )


def kill_at_s(hook_back_s: float, grace_s: float) -> float:
    """When the kubelet kills, for a hook that was back after so long (evidence.md §8): whole seconds, 2 at least."""
    return hook_back_s + max(2.0, grace_s - math.floor(hook_back_s))


def within_reach(planned: Iterable[Planned], times: Timeline) -> set[str]:
    """The requests that can finish before the hook's last read may start, so that a hook must not lose them."""
    last_s = math.inf if times.no_read_after_s is None else times.no_read_after_s
    return {request.name for request in planned if request.ends_s <= last_s}


def describe_gauges(gauges: Mapping[str, float] | None) -> str:
    """Gauges above zero by their short name; the rest as one word."""
    if not gauges:
        return "no gauges"
    above = [f"{_short(name)} {value:g}" for name, value in gauges.items() if value != 0]
    return "gauges " + (", ".join(above) if above else "all 0")


def _short(name: str) -> str:
    return name.partition(":")[2].removeprefix("num_").removeprefix("requests_").removesuffix("_reqs")


def describe_in_flight(in_flight: Mapping[str, Any] | None) -> str:
    """What is in flight, in the order in which the hook looks at it; what it did not read is left out."""
    if not in_flight:
        return "in flight not read"
    parts = []
    connections = in_flight.get("connections")
    if connections is not None:
        parts.append(f"{connections} connection{'' if connections == 1 else 's'}")
    for key, word in (("unackedBytes", "unacknowledged"), ("unreadBytes", "unread")):
        if in_flight.get(key):
            parts.append(f"{in_flight[key]} bytes {word}")
    counter = in_flight.get("counter")
    if counter:
        value = counter.get("value")
        parts.append(f"{counter.get('source')} {value:g}" if isinstance(value, (int, float)) else "no counter")
    return ", ".join(parts) if parts else "in flight not read"


def describe_hook(line: Mapping[str, Any]) -> tuple[str, str]:
    """A line of the hook's log as (word, text)."""
    event, verdict = line.get("event"), line.get("verdict")
    reason = f" ({line['reason']})" if line.get("reason") else ""
    if event == "read":
        seen = f"{describe_gauges(line.get('gauges'))}; {describe_in_flight(line.get('in_flight'))}"
        return "read", f"{verdict or 'unknown':<5}{reason}  {seen}"
    if event == "settled":
        return "reads", "the settle is over: one read a second from here"
    if event == "start" and not reason:
        return "settle", "the hook runs: the engine serves as before, nothing is read yet"
    if event == "outcome":
        text = f"{line.get('outcome')} after {float(line.get('waited_s') or 0.0):.1f} s"
        return "outcome", text + (reason if line.get("outcome") != "idle" else "")
    return "hook", str(line.get("message") or event)


def gauges_alone_s(reads: Sequence[tuple[float, Mapping[str, float] | None]]) -> float | None:
    """When the gauges had read zero on consecutive reads: where a hook that knows nothing else returns."""
    idle = 0
    for at_s, gauges in reads:
        idle = idle + 1 if gauges and not any(gauges.values()) else 0
        if idle == IDLE_READS:
            return at_s
    return None


def chart(requests: Sequence[Request], marks: Sequence[Mark], width: int, span_s: tuple[float, float]) -> list[str]:
    """The requests as rows of time: ``.`` waits for its first token, ``=`` streams, ``x`` was lost; marks as lines.

    ``span_s``: the times of the first and the last column; what lies outside is drawn at the edge.
    """
    if not requests:
        return []
    names = max(len(request.name) for request in requests)
    notes = [f"{request.outcome} {request.end_s:.1f} s" for request in requests]
    columns = max(10, width - names - max(map(len, notes)) - 4)
    from_s, to_s = span_s
    per_s = (columns - 1) / max(to_s - from_s, 0.001)

    def column(at_s: float) -> int:
        return min(columns - 1, max(0, round((at_s - from_s) * per_s)))

    def row(label: str, cells: list[str], note: str = "") -> str:
        return f"{label:<{names}}  {''.join(cells)}  {note}".rstrip()

    head = [" "] * columns
    for mark in sorted(marks, key=lambda mark: mark.at_s):
        at = column(mark.at_s)
        # Two moments in one column: the later one's letter stands beside, or before when there is no room.
        free = next((c for c in [*range(at, columns), *range(at, -1, -1)] if head[c] == " "), at)
        head[free] = mark.letter
    lines = [row("", head)]
    for request, note in zip(requests, notes, strict=True):
        cells = [" "] * columns
        first_s = request.end_s if request.first_token_s is None else request.first_token_s
        for at in range(column(request.start_s), column(request.end_s) + 1):
            cells[at] = "." if at < column(first_s) or request.first_token_s is None else "="
        for mark in marks:
            cells[column(mark.at_s)] = "|"
        if request.outcome != "finished":
            cells[column(request.end_s)] = "x"
        lines.append(row(request.name, cells, note))
    lines.append(row("", _axis(from_s, to_s, columns, column)))
    return lines


def _axis(from_s: float, to_s: float, columns: int, column: Callable[[float], int]) -> list[str]:
    cells = [" "] * columns
    step_s = next((s for s in (1, 2, 5, 10, 30, 60, 300, 600) if (to_s - from_s) / s * 6 <= columns), 3600)
    for second in range(math.ceil(from_s / step_s) * step_s, math.floor(to_s) + 1, step_s):
        text = f"{second} s"
        at = column(second)
        if at + len(text) <= columns and all(cell == " " for cell in cells[max(0, at - 1) : at + len(text)]):
            cells[at : at + len(text)] = text
    return cells


def legend(marks: Iterable[Mark]) -> str:
    return "   ".join(f"{mark.letter} {mark.text} {mark.at_s:.1f} s" for mark in marks)


@dataclass(frozen=True)
class Side:
    """One engine's run: with the hook, or without."""

    requests: tuple[Request, ...]
    sigterm_s: float | None
    gone_s: float | None
    killed: bool
    health: str


def summary(hooked: Side, bare: Side) -> list[str]:
    """Both runs side by side."""

    def after(at_s: float | None) -> str:
        return "-" if at_s is None else f"{at_s:.1f} s"

    def count(side: Side, outcome: Outcome) -> str:
        return str(Counter(request.outcome for request in side.requests)[outcome])

    rows = [
        ("", "with the hook", "without a hook"),
        ("requests", str(len(hooked.requests)), str(len(bare.requests))),
        *[(outcome, count(hooked, outcome), count(bare, outcome)) for outcome in get_args(Outcome)],
        ("SIGTERM, from the delete", after(hooked.sigterm_s), after(bare.sigterm_s)),
        ("engine gone", *(after(side.gone_s) + (" (killed)" if side.killed else "") for side in (hooked, bare))),
        (f"/health at {HEALTH_AT_S:g} s", hooked.health, bare.health),
    ]
    return [f"{name:<25} {left:<16} {right}".rstrip() for name, left, right in rows]


# From here on: processes, sockets, clocks and the terminal.


@dataclass(frozen=True)
class _Happened:
    at_s: float
    word: str
    text: str
    colour: str | None = None


class _Screen:
    """Lines as they happen; on a terminal also one status line, rewritten in place."""

    _COLOURS: Mapping[str, str] = {
        "delete": "magenta",
        "settle": "blue",
        "reads": "blue",
        "outcome": "green",
        "SIGTERM": "magenta",
        "gone": "magenta",
    }

    def __init__(self, live: bool) -> None:
        self._live = live
        self._columns = shutil.get_terminal_size((100, 24)).columns
        self.width = min(140, max(60, self._columns))
        self._status = ""

    def line(self, text: str = "", **style: Any) -> None:
        self._wipe()
        click.echo(click.style(text, **style) if self._live and style else text)
        self._draw()

    def happened(self, event: _Happened) -> None:
        colour = event.colour or self._COLOURS.get(event.word)
        text = f"{event.at_s:6.1f} s  {event.word:<8} {event.text}"
        self.line(text, fg=colour) if colour else self.line(text)

    def status(self, text: str) -> None:
        text = text[: self._columns - 1]
        if self._live and text != self._status:
            self._wipe()
            self._status = text
            self._draw()

    def _wipe(self) -> None:
        if self._status:
            click.echo("\r" + " " * len(self._status) + "\r", nl=False)

    def _draw(self) -> None:
        if self._status:
            click.echo(self._status, nl=False)

    def end(self) -> None:
        self._wipe()
        self._status = ""


class DemoError(click.ClickException):
    """The demo could not be shown: a process of it did not start or end."""

    exit_code = 1


def _pump(stream: IO[str], take: Callable[[str], None]) -> threading.Thread:
    """Reads lines in a thread of its own until the other end closes."""

    def run() -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in stream:
                take(line.rstrip("\n"))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


class _EngineProcess:
    """A stand-in as a child process, its clients, and when it went."""

    def __init__(self, engine: Engine) -> None:
        argv = [sys.executable, "-I", "-m", "drainagent.workstation.standin", "--engine", engine.option]
        argv += ["--host", "127.0.0.1", "--port", "0", "--enable-metrics"]
        argv += ["--tokens-per-second", str(TOKENS_PER_S), "--prefill-tokens-per-second", str(PREFILL_TOKENS_PER_S)]
        # One step takes the whole long prompt, as vLLM's does with this flag.
        argv += ["--max-num-batched-tokens", "32768", "--exit-with-stdin"]
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,  # held open and never written to: it ends when this process does
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []
        self.port = 0
        self._listening = threading.Event()
        assert self.process.stdout is not None
        _pump(self.process.stdout, self._take)
        self.sigterm_s: float | None = None
        self.gone_s: float | None = None
        self.killed = False
        self.health = "not asked"
        self.requests: dict[str, Request] = {}
        self.streaming: set[str] = set()
        self.clients: list[threading.Thread] = []

    def _take(self, line: str) -> None:
        self.said.append(line)
        match = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
        if match:
            self.port = int(match[1])
            self._listening.set()

    def wait_until_it_listens(self) -> None:
        until_s = time.monotonic() + CHILD_BOUND_S
        while not self._listening.wait(0.1):
            if self.process.poll() is not None or time.monotonic() > until_s:
                raise DemoError("the stand-in engine did not start: " + " / ".join(self.said))

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def side(self, planned: Sequence[Planned]) -> Side:
        requests = tuple(self.requests[p.name] for p in planned if p.name in self.requests)
        return Side(requests, self.sigterm_s, self.gone_s, self.killed, self.health)


class _Demo:
    def __init__(self, engine: Engine, grace_s: float, screen: _Screen, hook_argv: Sequence[str] | None) -> None:
        self._engine = engine
        self._grace_s = grace_s
        self._screen = screen
        self._hook_argv = hook_argv
        self._planned = load(grace_s)
        self._events: queue.Queue[_Happened] = queue.Queue()
        self._zero_s = math.inf
        self._hook: subprocess.Popen[str] | None = None
        self._hook_back_s: float | None = None
        self._hook_said: list[str] = []
        self._reads: list[tuple[float, Mapping[str, float] | None]] = []
        self._children: list[subprocess.Popen[str]] = []

    def _now_s(self) -> float:
        return time.monotonic() - self._zero_s

    def _tell(self, word: str, text: str, colour: str | None = None) -> None:
        self._events.put(_Happened(self._now_s(), word, text, colour))

    def _sleep_until(self, at_s: float) -> None:
        time.sleep(max(0.0, at_s - self._now_s()))

    def run(self) -> int:
        try:
            hooked, bare = self._start(), self._start()
            hooked.wait_until_it_listens()
            bare.wait_until_it_listens()
            self._zero_s = time.monotonic() + LEAD_S
            for engine, told in ((hooked, True), (bare, False)):
                for planned in self._planned:
                    self._thread(engine, self._request, engine, planned, told)
                self._thread(engine, self._ask_health, engine)
            self._tell("load", "requests start on both engines")
            while self._now_s() < 0:
                self._show(hooked, min(0.1, max(0.0, -self._now_s())))
            self._delete(hooked, bare)
            self._follow(hooked, bare)
            return self._result(hooked, bare)
        finally:
            self._screen.end()
            for child in self._children:
                if child.poll() is None:
                    child.kill()
                    child.wait()

    def _start(self) -> _EngineProcess:
        engine = _EngineProcess(self._engine)
        self._children.append(engine.process)
        return engine

    @staticmethod
    def _thread(engine: _EngineProcess, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        engine.clients.append(thread)
        thread.start()

    # The delete, and what the kubelet does from there.

    def _delete(self, hooked: _EngineProcess, bare: _EngineProcess) -> None:
        self._tell("delete", "routers drop the replica; the kubelet starts the hook in the engine's container")
        bare.sigterm_s = self._now_s()
        bare.signal(signal.SIGTERM)
        self._tell("no hook", "the other engine gets SIGTERM at once", "yellow")
        argv = self._hook_argv or [sys.executable, "-I", "-m", "drainagent", "hook"]
        argv = [*argv, "--engine", self._engine.option, "--url", f"http://127.0.0.1:{hooked.port}/metrics"]
        argv += ["--grace", f"{self._grace_s:g}", "--log-format", "json"]
        # As the kubelet starts it: no terminal, the root as its directory; and here an empty environment too.
        self._hook = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={},
            cwd="/",
            start_new_session=True,
        )
        self._children.append(self._hook)
        assert self._hook.stderr is not None
        self._hook_reader = _pump(self._hook.stderr, self._take_hook_line)

    def _take_hook_line(self, line: str) -> None:
        self._hook_said.append(line)
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self._tell("hook", line)
            return
        word, text = describe_hook(value)
        colour = None
        if word == "read":
            self._reads.append((self._now_s(), value.get("gauges")))
            colour = "green" if value.get("verdict") == "idle" else "cyan"
        self._tell(word, text, colour)

    def _follow(self, hooked: _EngineProcess, bare: _EngineProcess) -> None:
        """Until both engines are gone and every client knows how its request ended."""
        assert self._hook is not None
        while True:
            self._show(hooked, 0.02)
            now_s = self._now_s()
            if self._hook_back_s is None and self._hook.poll() is not None:
                self._hook_back_s = now_s
                self._hook_reader.join(1.0)
                if not self._hook_said:
                    self._tell("hook", "it wrote no line to stderr: in a container entered by exec they are in its log")
                self._tell("return", f"the hook is back (status {self._hook.returncode})", "green")
            if hooked.sigterm_s is None and (self._hook_back_s is not None or now_s >= self._grace_s):
                hooked.sigterm_s = now_s
                hooked.signal(signal.SIGTERM)
                self._tell("SIGTERM", f"{len(hooked.streaming)} requests running on the engine")
            hook_s = self._grace_s if self._hook_back_s is None else self._hook_back_s
            self._watch(hooked, kill_at_s(hook_s, self._grace_s), "gone", None)
            self._watch(bare, kill_at_s(0.0, self._grace_s), "no hook", "yellow")
            gone = hooked.gone_s is not None and bare.gone_s is not None
            if gone and not any(client.is_alive() for client in hooked.clients + bare.clients):
                break
        if self._hook_back_s is None:
            # Alone it would outlive the container; with the container's process 1 it dies.
            self._hook.kill()
        self._show(hooked, 0.0)

    def _watch(self, engine: _EngineProcess, kill_s: float, word: str, colour: str | None) -> None:
        if engine.gone_s is not None:
            return
        if engine.process.poll() is not None:
            engine.gone_s = self._now_s()
            self._tell(word, "the engine was killed" if engine.killed else "the engine has exited", colour)
        elif self._now_s() >= kill_s and engine.sigterm_s is not None and not engine.killed:
            engine.killed = True
            engine.signal(signal.SIGKILL)

    # Clients.

    def _request(self, engine: _EngineProcess, planned: Planned, told: bool) -> None:
        self._sleep_until(planned.starts_s)
        engine.streaming.add(planned.name)
        if told and planned.starts_s > 0:
            self._tell("request", f"{planned.name!r} lands, from a router that had not heard of the delete", "white")
        start_s = self._now_s()
        first_s: list[float] = []
        tokens = 0
        outcome: Outcome = "cut"
        detail = ""
        try:
            for event in self._stream(engine.port, planned):
                if "error" in event:
                    detail = "an error event in the stream"
                    break
                first_s = first_s or [self._now_s()]
                tokens += 1
            if tokens == planned.max_tokens:
                outcome = "finished"
            detail = detail or ("" if outcome == "finished" else f"{tokens} of {planned.max_tokens} tokens")
        except ConnectionRefusedError:
            outcome, detail = "refused", "connection refused"
        except (OSError, http.client.HTTPException, ValueError) as error:
            detail = type(error).__name__
        end_s = self._now_s()
        engine.streaming.discard(planned.name)
        engine.requests[planned.name] = Request(
            planned.name, start_s, first_s[0] if first_s else None, end_s, tokens, outcome, detail
        )
        if told:
            end = f": {detail}" if detail else f", {tokens} tokens"
            self._tell("request", f"{planned.name!r} {outcome}{end}", "white" if outcome == "finished" else "red")

    def _stream(self, port: int, planned: Planned) -> Iterable[Mapping[str, Any]]:
        """The events of one stream. A slow reader takes them at the pace that ends at its ``ends_s``."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CLIENT_TIMEOUT_S)
        pace_s = (planned.ends_s - planned.starts_s) / planned.max_tokens if planned.slow_reader else 0.0
        connection.sock = socket.socket()
        if planned.slow_reader:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_READER_BUFFER_BYTES)
        connection.sock.settimeout(CLIENT_TIMEOUT_S)
        try:
            connection.sock.connect(("127.0.0.1", port))
            body = {"prompt": [1] * planned.prompt_tokens, "max_tokens": planned.max_tokens, "stream": True}
            headers = {"content-type": "application/json", "connection": "close"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise http.client.HTTPException(f"status {response.status}")
            number = 0
            while line := response.readline():
                if line.startswith(b"data: {"):
                    yield json.loads(line[len(b"data: ") :])
                    number += 1
                    if pace_s:
                        self._sleep_until(planned.starts_s + number * pace_s)
        finally:
            connection.close()

    def _ask_health(self, engine: _EngineProcess) -> None:
        self._sleep_until(HEALTH_AT_S)
        connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=2.0)
        try:
            connection.request("GET", "/health", headers={"connection": "close"})
            engine.health = str(connection.getresponse().status)
        except ConnectionRefusedError:
            engine.health = "refused"
        except (OSError, http.client.HTTPException) as error:
            engine.health = type(error).__name__
        finally:
            connection.close()

    # What is seen.

    def _show(self, hooked: _EngineProcess, wait_s: float) -> None:
        """Prints what has happened, waiting up to ``wait_s`` for something to."""
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=wait_s) if wait_s > 0 else self._events.get_nowait()
            while True:
                self._screen.happened(event)
                event = self._events.get_nowait()
        running = len(hooked.streaming)
        finished = sum(request.outcome == "finished" for request in hooked.requests.values())
        self._screen.status(f"{self._now_s():6.1f} s  running {running}, finished {finished}")

    def _result(self, hooked: _EngineProcess, bare: _EngineProcess) -> int:
        assert self._hook is not None
        screen = self._screen
        screen.end()
        with_hook, without = hooked.side(self._planned), bare.side(self._planned)
        marks = [
            Mark("D", 0.0, "delete"),
            *([] if self._hook_back_s is None else [Mark("R", self._hook_back_s, "hook returned")]),
            Mark("T", hooked.sigterm_s or 0.0, "SIGTERM"),
            Mark("E", hooked.gone_s or 0.0, "engine gone"),
        ]
        screen.line()
        screen.line("With the hook", bold=True)
        bare_marks = [
            Mark("T", bare.sigterm_s or 0.0, "delete and SIGTERM"),
            Mark("E", bare.gone_s or 0.0, "engine gone"),
        ]
        times_s = [mark.at_s for mark in (*marks, *bare_marks)]
        for request in (*with_hook.requests, *without.requests):
            times_s += [request.start_s, request.end_s]
        span_s = (min(times_s), max(times_s))
        for line in chart(with_hook.requests, marks, screen.width, span_s):
            screen.line(line)
        screen.line(legend(marks) + "   (. waits, = streams, x lost)")
        screen.line()
        screen.line("Without a hook", bold=True)
        for line in chart(without.requests, bare_marks, screen.width, span_s):
            screen.line(line)
        screen.line(legend(bare_marks))
        screen.line()
        for line in summary(with_hook, without):
            screen.line(line)
        screen.line()
        for line in self._remarks(with_hook, without):
            screen.line(line)
        reach = within_reach(self._planned, timeline(self._grace_s))
        lost = [
            request.name for request in with_hook.requests if request.outcome != "finished" and request.name in reach
        ]
        lost += sorted(reach - {request.name for request in with_hook.requests})
        if lost:
            screen.line(f"Lost, though there was time: {', '.join(lost)}.", fg="red")
        if self._hook_back_s is None or self._hook.returncode != 0:
            screen.line(f"The hook did not end as it should: {' / '.join(self._hook_said[-3:])}", fg="red")
            return 1
        return 1 if lost else 0

    def _remarks(self, hooked: Side, bare: Side) -> list[str]:
        lines = []
        alone_s = gauges_alone_s(self._reads)
        if alone_s is not None:
            running = sum(request.start_s < alone_s < request.end_s for request in hooked.requests)
            if running:
                lines.append(
                    f"The gauges had read zero twice by {alone_s:.1f} s: a hook that looks at nothing else returns "
                    f"there, and SIGTERM meets {running} running requests."
                )
        lost = sum(request.outcome != "finished" for request in bare.requests)
        if bare.health == "503":
            lines.append(
                f"Without a hook this engine drains by itself and lost {lost or 'none'}; its /health said 503 "
                "meanwhile, and only the kill ends what it drains."
            )
        elif lost:
            lines.append(f"Without a hook the engine lost {lost} of {len(bare.requests)}.")
        return lines


def run_demo(engine: Engine, grace_s: float, live: bool, hook_argv: Sequence[str] | None = None) -> int:
    """Runs the demo and gives its exit status. ``hook_argv``: another program in the hook's place, for tests."""
    screen = _Screen(live)
    screen.line(
        f"A stand-in {engine.name} engine (real HTTP and metrics page, simulated tokens) is deleted under load.",
        bold=True,
    )
    screen.line("The hook is the real process, started as the kubelet starts it. A second stand-in gets the same load")
    screen.line(f"and no hook. Grace {grace_s:g} s; times in seconds from the delete.")
    screen.line()
    return _Demo(engine, grace_s, screen, hook_argv).run()


@click.command("demo")
@click.option("--engine", type=click.Choice(["vllm", "sglang"]), default="vllm", show_default=True)
@click.option(
    "--grace",
    "grace_text",
    default=str(DEFAULT_GRACE_S),
    show_default=True,
    metavar="SECONDS",
    help=f"The Pod's terminationGracePeriodSeconds, {MIN_GRACE_S} to {MAX_GRACE_S}.",
)
@click.option("--plain", is_flag=True, help="Plain lines: no colour, no line that is rewritten.")
def demo_command(engine: str, grace_text: str, plain: bool) -> None:
    """See the drain window at work on this machine, in about 20 seconds.

    Starts a stand-in engine (a real HTTP server with the engine's own metrics page and simulated tokens), streams
    requests from it, and deletes it as the kubelet does: the real hook process first, SIGTERM when the hook returns,
    the kill at the end of the grace. A second stand-in gets the same requests and no hook.

    \b
    You see, in seconds from the delete:
      0        the delete; the hook starts
      0 to 5   the settle: late requests still land, the hook reads nothing
      from 5   one read a second: the gauges, what is in flight, the verdict
      return   after the second idle read, by 3 s before the kill at the latest
      SIGTERM  the engine exits

    and at the end which requests finished and which were cut, with the hook and without.

    Needs nothing but this package: no cluster, no GPU. Exit status: 0 when every request that could finish did, 1 when
    one was lost or the hook failed, 2 for a wrong argument.
    """
    chosen = engine_by_name(engine)
    assert chosen is not None
    try:
        grace_s = check_bound("grace", grace_text, MIN_GRACE_S, MAX_GRACE_S)
    except BoundError as error:
        raise click.UsageError(str(error)) from None
    # Their default action would leave the engines and the hook behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    live = not plain and sys.stdout.isatty()
    raise SystemExit(run_demo(chosen, grace_s, live))
