"""Ends the process by G - 3 whatever its own code does. The first code of ours to run in a hook; imports little.

Three stages. From the first line until the imports are done: the kernel's alarm with its default action, which needs
nothing of Python (a stuck import may hold the interpreter's lock). After that a thread and a signal handler, whichever
gets to run, that write the last line and exit with the hook's own status. Behind them, against code of ours that spins
in a thread with the interpreter's lock held: the kernel's timer on the CPU time this process uses, set anew before each
read. (A timer on real time would do it too, but would also kill a hook that was stopped over its deadline and could
still say how it ended.)
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

#: Fields of /proc/self/stat after the parenthesised name, counted from 0: field 22 of proc(5) is the start time.
_STARTTIME_AFTER_NAME = 19


def process_start_s() -> float:
    """When this process began, on the clock of ``time.monotonic()``.

    From /proc/self/stat (clock ticks since boot), the later end of the tick. Where that cannot be read: the moment that
    the CPU time used so far says at the latest.
    """
    try:
        with open("/proc/self/stat", "rb", buffering=0) as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        started_boot_s = (int(fields[_STARTTIME_AFTER_NAME]) + 1) / os.sysconf("SC_CLK_TCK")
        boot_minus_monotonic_s = _boot_minus_monotonic_s()
    except (OSError, ValueError, IndexError):
        return time.monotonic() - time.process_time()
    started_s = started_boot_s - boot_minus_monotonic_s
    # A clock that disagrees with itself (a sandbox's /proc) must neither skip the settle nor stretch it.
    latest_s = time.monotonic() - time.process_time()
    return started_s if started_s <= latest_s + 0.1 else latest_s


def _boot_minus_monotonic_s() -> float:
    """How far CLOCK_BOOTTIME is ahead. Read between two readings of the other clock that are close together: a process
    that is put aside between the two would take the start for earlier than it was, and read within the settle.
    """
    best_s, best_gap_s = 0.0, float("inf")
    for _ in range(100):
        before_s = time.monotonic()
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        gap_s = time.monotonic() - before_s
        if gap_s < best_gap_s:
            # The earlier reading: an error makes the start later than it was, never earlier.
            best_s, best_gap_s = boot_s - before_s - gap_s, gap_s
        if best_gap_s < 0.001:
            break
    return best_s


#: Beyond this a deadline is none: no timer takes it, and no kubelet waits so long.
_FOREVER_S = 1e8
_MAX_SLEEP_S = 3600.0


def arm_kernel_alarm(in_s: float) -> None:
    """The kernel ends the process after ``in_s`` seconds of real time; setting the clock does not move it."""
    if in_s < _FOREVER_S:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(in_s, 0.001))


def disarm_kernel_alarm() -> None:
    """Take back ``arm_kernel_alarm``."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def arm_cpu_timer(in_s: float) -> None:
    """The kernel ends the process when it has used ``in_s`` more seconds of CPU: a read uses some milliseconds."""
    if in_s < _FOREVER_S:
        signal.setitimer(signal.ITIMER_PROF, max(in_s, 0.001))


class Watchdog:
    """Calls ``last_words`` and ends the process with ``exit_status`` when ``at_s`` (monotonic) has come."""

    def __init__(self, at_s: float, exit_status: int, last_words: Callable[[], None]) -> None:
        self._at_s, self._exit_status, self._last_words = at_s, exit_status, last_words

    def start(self) -> None:
        """Takes the place of the kernel's alarm."""
        import threading

        if self._at_s - time.monotonic() >= _FOREVER_S:
            disarm_kernel_alarm()
            return
        signal.signal(signal.SIGALRM, lambda *_: self._end())
        signal.setitimer(signal.ITIMER_REAL, max(self._at_s - time.monotonic(), 0.001))
        try:
            threading.Thread(target=self._wait, name="watchdog", daemon=True).start()
        except RuntimeError:
            return  # no more threads for this user: the signal's handler has to do it

    def _wait(self) -> None:
        while (left_s := self._at_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _MAX_SLEEP_S))
        self._end()

    def _end(self) -> None:
        try:
            self._last_words()
        finally:
            os._exit(self._exit_status)
