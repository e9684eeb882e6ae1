"""Runs the tests that take a ``stage`` beside each other (stage.py), and writes the figures at the end."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from kube import CLUSTER, Kube

from hook import images
from hook.figures import Figures
from hook.replica import Place
from hook.runtime import Runtime
from hook.stage import Rig, Stage, Wave

#: As many cases as one wave takes: some 14 Pods start in 15 s on two cores, and then need half of one.
WAVE = 12
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: a case that measures with nothing beside it")
    config.addinivalue_line("markers", "seconds(n): how long a case takes after its delete; like go with like")


class Cases:
    """The cases of this run, started when the first of them is asked for."""

    def __init__(self, rig: Rig, items: list[pytest.Function]) -> None:
        self._futures: dict[str, Future[None]] = {item.nodeid: Future() for item in items}
        self._expected_to_pass = [item.nodeid for item in items if item.get_closest_marker("xfail") is None]
        self._rig = rig
        self._stopped = False
        alone = [[item] for item in items if item.get_closest_marker("alone")]
        others = sorted((item for item in items if not item.get_closest_marker("alone")), key=_seconds)
        self._waves = [*alone, *(others[first : first + WAVE] for first in range(0, len(others), WAVE))]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for items in self._waves:
            if self._stopped:
                return
            wave = Wave(len(items))
            threads = [
                threading.Thread(
                    target=wave.run, args=(_case(item), self._rig, self._futures[item.nodeid]), daemon=True
                )
                for item in items
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def result(self, nodeid: str) -> None:
        self._futures[nodeid].result()

    def stop(self) -> None:
        """Begin no other wave: the run ends before its end."""
        self._stopped = True

    @property
    def failed(self) -> int:
        """Those that are known to (xfail) are not among them."""
        ended = (self._futures[nodeid] for nodeid in self._expected_to_pass)
        return sum(future.done() and future.exception() is not None for future in ended)

    def __len__(self) -> int:
        return len(self._futures)


def _seconds(item: pytest.Function) -> float:
    marker = item.get_closest_marker("seconds")
    return float(marker.args[0]) if marker else 15.0


def _case(item: pytest.Function) -> Any:
    values = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    return partial(_call, item.obj, values)


def _call(function: Any, values: dict[str, Any], stage: Stage) -> None:
    function(stage=stage, **values)


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    images.on_the_node()
    word = uuid.uuid4().hex[:6]
    rig = Rig(Runtime(), Place.make(f"hook-{word}"), Place.make(f"hook-restricted-{word}", RESTRICTED), Figures())
    yield rig
    rig.close()


@pytest.fixture(scope="session")
def cases(rig: Rig, request: pytest.FixtureRequest) -> Iterator[Cases]:
    began = time.monotonic()
    items = [
        item for item in request.session.items if isinstance(item, pytest.Function) and "stage" in item.fixturenames
    ]
    cases = Cases(rig, items)
    yield cases
    cases.stop()
    path = rig.figures.write(_versions(rig.place.kube), time.monotonic() - began, len(cases), cases.failed)
    print(f"\nfigures: {path}")


@pytest.fixture
def stage(cases: Cases) -> Cases:
    """Stands in a test's signature; the test itself gets a Stage, in a thread of its own (pytest_pyfunc_call)."""
    return cases


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if "stage" not in pyfuncitem.fixturenames:
        return None
    cases = pyfuncitem.funcargs["stage"]
    assert isinstance(cases, Cases)
    cases.result(pyfuncitem.nodeid)
    return True


def _versions(kube: Kube) -> dict[str, str]:
    version = json.loads(kube.run("version", "-o", "json"))
    (node,) = kube.find("nodes")
    info = node["status"]["nodeInfo"]
    runc = subprocess.run([CLUSTER, "inside", "runc", "--version"], check=True, capture_output=True, text=True).stdout
    return {
        "kubernetes": version["serverVersion"]["gitVersion"].removeprefix("v"),
        "kubelet": info["kubeletVersion"].removeprefix("v"),
        "containerd": info["containerRuntimeVersion"].removeprefix("containerd://"),
        "runc": runc.split()[2],
        "kernel": info["kernelVersion"],
    }
