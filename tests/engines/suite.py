"""What both suites with real engines share, this one and tests/cluster/engines."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

#: The engines' releases that setup.sh installs.
VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}


class Judged(Protocol):
    """A trial. ``retried``: it broke and was made once more; the second one counts."""

    retried: bool

    @property
    def held(self) -> bool: ...


_Trial = TypeVar("_Trial", bound=Judged)


def attempts(make: Callable[[], _Trial], *, retry: bool) -> Iterator[_Trial]:
    """A trial, and with ``retry`` a second one after one that broke."""
    trial = make()
    trial.retried = retry and not trial.held
    yield trial
    if trial.retried:
        yield make()


def report_dir(suite: Path) -> Path:
    """Where a suite's reports and logs go; git is told to ignore all of it."""
    path = suite / ".report"
    path.mkdir(exist_ok=True)
    (path / ".gitignore").write_text("*\n")
    return path


def interrupt_on_signals() -> None:
    """SIGTERM and SIGHUP are what Ctrl-C is, so that everything started is ended."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)


def ignore_signals() -> None:
    """For the end: everything is stopped whole, however often one is asked to hurry."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _interrupted(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
