"""The hook's lines: where they go, and what each says. Writing never blocks, fails or delays the hook."""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable
from typing import Any

from drainagent.envelope import in_flight_object
from drainagent.timeline import Timeline
from drainagent.verdict import Judgement
from drainagent.window import Return

#: A line at least this often, so that whoever follows the log knows that the hook lives.
HEARTBEAT_S = 10.0
#: A pipe takes a line of up to PIPE_BUF bytes (4096 on Linux) whole or not at all.
_MAX_LINE_BYTES = 4000
#: Where the kubelet looks when a container sets no terminationMessagePath (Kubernetes API, Container), and its bound.
TERMINATION_LOG = "/dev/termination-log"
_MAX_TERMINATION_BYTES = 4096
_OUTCOME_WAIT_S = 0.05


class LineWriter:
    """Whole lines to the container's log, else to stderr; a line that neither takes at once is dropped."""

    def __init__(self, log_fd: int | None, stderr_fd: int = 2) -> None:
        self._fds = [fd for fd in (log_fd, _own(stderr_fd)) if fd is not None]

    def write(self, line: str) -> None:
        data = _one_line(line)
        while self._fds:
            fd = self._fds[0]
            try:
                # A descriptor that others share may block, and its O_NONBLOCK is not ours to set: ask first.
                poll = select.poll()
                poll.register(fd, select.POLLOUT)
                ready = dict(poll.poll(0)).get(fd, 0)
                if ready & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                    raise BrokenPipeError
                if ready & select.POLLOUT:
                    os.write(fd, data)
                return
            except BlockingIOError:
                return
            except OSError:
                self._fds.pop(0)


def _own(fd: int) -> int:
    """The same pipe opened anew, so that O_NONBLOCK is ours alone; ``fd`` itself where that cannot be had, and for a
    file, which cannot block and whose offset others share.
    """
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return fd


def _one_line(line: str) -> bytes:
    data = line.encode("utf-8", "backslashreplace")
    if len(data) >= _MAX_LINE_BYTES:
        data = data[: _MAX_LINE_BYTES - 4].decode("utf-8", "ignore").encode() + "…".encode()
    return bytes(byte if byte >= 32 else 32 for byte in data) + b"\n"


def write_termination_log(text: str, path: str = TERMINATION_LOG) -> None:
    """Into the file the kubelet made for the container; where there is none, nothing is made."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode()[:_MAX_TERMINATION_BYTES])
        finally:
            os.close(fd)
    except OSError:
        pass


class Report:
    """Says what the window does, in text or as JSON objects, a line per state change and at least every 10 s.

    ``elapsed_s``: seconds since the hook's process start. ``now_rfc3339``: the wall clock, for the reader alone.
    As JSON every read has its line.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        elapsed_s: Callable[[], float],
        now_rfc3339: Callable[[], str],
        *,
        as_json: bool = False,
        termination_log: Callable[[str], None] | None = None,
    ) -> None:
        self._write, self._elapsed_s, self._now = write, elapsed_s, now_rfc3339
        self._json, self._termination_log = as_json, termination_log
        self._last_line_s = 0.0
        self._last_state: object = None
        self._last: Judgement | None = None
        self._said_outcome = False
        self._outcome_lock = threading.Lock()
        self._phase = "start"

    @property
    def next_heartbeat_s(self) -> float:
        return self._last_line_s + HEARTBEAT_S

    @property
    def due(self) -> bool:
        """The next read gets a line whatever it finds."""
        return self._json or self._elapsed_s() >= self.next_heartbeat_s

    def start(self, timeline: Timeline, what: str, wrong: tuple[str, ...]) -> None:
        """``what``: the engine or leader and where it is read."""
        if timeline.back_by_s is None:
            until = "no deadline of its own"
        else:
            until = f"no read after {timeline.no_read_after_s:g} s, back by {timeline.back_by_s:g} s"
        plan = f"keeps serving for {timeline.settle_until_s:g} s, then reads {what} once a second; {until}"
        for sentence in wrong:
            self._line("start", sentence, {**self._judged(None), "reason": "WrongArgument"})
        self._line("start", plan, self._judged(None))

    def settled(self) -> None:
        self._phase = "settled"
        self._line("settled", "the settle is over; reading", self._judged(None))

    def still_waiting(self) -> None:
        self._line(self._phase, "waiting", self._judged(self._last))

    def read(self, judgement: Judgement) -> None:
        self._last, self._phase = judgement, "read"
        state = (judgement.verdict, judgement.reason, judgement.url)
        if self.due or state != self._last_state:
            word = f" {judgement.reason.word}" if judgement.reason is not None else ""
            text = f"{judgement.verdict.value}{word}: {judgement.message} In flight: {judgement.in_flight}"
            self._line("read", text, self._judged(judgement))
        self._last_state = state

    def outcome(self, end: Return) -> None:
        """The last line; said once, whoever comes first (the loop or the watchdog)."""
        # Bounded: the watchdog must not wait for a loop that is stuck here, nor cut off one that is just writing.
        if not self._outcome_lock.acquire(timeout=_OUTCOME_WAIT_S):
            return
        try:
            self._say_outcome(end)
        finally:
            self._outcome_lock.release()

    def _say_outcome(self, end: Return) -> None:
        if self._said_outcome:
            return
        self._said_outcome = True
        waited_s = round(self._elapsed_s(), 3)
        members = {"outcome": end.outcome.value, "waited_s": waited_s, **self._judged(self._last)}
        text = f"outcome {end.outcome.value} after {waited_s:.1f} s: {end.cause}"
        if not self._json:
            self._write(self._as_text(text))
        if self._json or self._termination_log is not None:
            document = self._as_json("outcome", text, members)
            if self._json:
                self._write(document.rstrip("\n"))
            if self._termination_log is not None:
                self._termination_log(document)

    def _judged(self, judgement: Judgement | None) -> dict[str, Any]:
        if judgement is None:
            return {"verdict": None, "reason": None, "gauges": {}, "in_flight": None}
        return {
            "verdict": judgement.verdict.value,
            "reason": None if judgement.reason is None else judgement.reason.word,
            "gauges": {gauge.name: gauge.sum for gauge in judgement.gauges},
            "in_flight": in_flight_object(judgement.in_flight),
        }

    def _line(self, event: str, text: str, members: dict[str, Any]) -> None:
        self._last_line_s = self._elapsed_s()
        if self._json:
            self._write(self._as_json(event, text, members).rstrip("\n"))
        else:
            self._write(self._as_text(text))

    def _as_text(self, text: str) -> str:
        return f"drainagent: {self._elapsed_s():6.1f} s: {text}"

    def _as_json(self, event: str, text: str, members: dict[str, Any]) -> str:
        import json  # a text log needs none

        document = {"time": self._now(), "elapsed_s": round(self._elapsed_s(), 3), "event": event, **members}
        for bound in (1500, 200, 0):
            line = json.dumps({**document, "message": text[:bound]}, allow_nan=False)
            if len(line) < _MAX_LINE_BYTES:
                break
        return line + "\n"
