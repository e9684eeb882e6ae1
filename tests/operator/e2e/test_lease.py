"""Two real processes and one Lease on the real API server: a holder that is stopped, killed, told to end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kube import Kube

PROCESS = Path(__file__).with_name("lease_process.py")
Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(kube: Kube) -> Iterator[Start]:
    kube.run("create", "configmap", "journal")
    started: list[subprocess.Popen[bytes]] = []

    def begin(identity: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROCESS), str(kube.kubeconfig), kube.namespace, identity]
        started.append(subprocess.Popen(command))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
    kube.run("delete", "configmap/journal", "lease/contended")


def lines(kube: Kube, identity: str) -> list[str]:
    data = kube.get("configmap/journal").get("data") or {}
    return sorted(key for key, who in data.items() if who == identity)


def wait(what: str, holds: Callable[[], object], within_s: float = 30.0) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.2)


def test_a_stopped_holder_writes_nothing_when_it_goes_on(kube: Kube, start: Start) -> None:
    one = start("one")
    wait("one writes", lambda: lines(kube, "one"))
    two = start("two")
    time.sleep(2)
    assert lines(kube, "two") == []
    one.send_signal(signal.SIGSTOP)
    before = lines(kube, "one")
    wait("two takes over", lambda: lines(kube, "two"))
    one.send_signal(signal.SIGCONT)
    assert one.wait(10) == 3
    # What it wrote last was on its way when it was stopped, if anything.
    assert len(lines(kube, "one")) <= len(before) + 1
    assert max(lines(kube, "one")) < min(lines(kube, "two"))
    two.terminate()
    assert two.wait(10) == 0


def test_a_killed_holder_is_waited_out_and_one_that_ends_is_not(kube: Kube, start: Start) -> None:
    one = start("one")
    wait("one writes", lambda: lines(kube, "one"))
    one.kill()
    two = start("two")
    time.sleep(5)
    assert lines(kube, "two") == []
    wait("two takes over", lambda: lines(kube, "two"))
    three = start("three")
    time.sleep(2)
    two.terminate()
    assert two.wait(10) == 0
    wait("three goes on at once", lambda: lines(kube, "three"), 10)
    three.terminate()
    assert three.wait(10) == 0
