"""Kubernetes Events: what is told, how often, and that no refusal of one is anybody's trouble."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, serving
from passes import NOW, run

from operator_glue.kube import EVENTS, Kube, Object
from operator_glue.retirement.data import Event
from operator_glue.runtime.lease import NotLeading
from operator_glue.runtime.recorder import REPEAT_S, Recorder


def about(name: str = "llama", uid: str = "u") -> Object:
    return {"metadata": {"name": name, "namespace": "models", "uid": uid, "resourceVersion": "7"}}


@dataclass
class Told:
    api: FakeApi
    kube: Kube
    recorder: Recorder
    now: float = NOW

    @property
    def bodies(self) -> list[Any]:
        return [call.body for call in self.api.asked("POST", EVENTS)]

    @property
    def messages(self) -> list[str]:
        return [body["message"] for body in self.bodies]


def telling(folder: Path, test: Callable[[Told], Awaitable[None]]) -> None:
    async def body() -> None:
        async with serving(folder) as (api, kube):
            told = Told(api, kube, Recorder(kube, "operator-0", lambda: told.now))
            await test(told)

    run(body())


def test_an_event_as_kubernetes_has_it(tmp_path: Path) -> None:
    async def test(told: Told) -> None:
        await told.recorder.tell(about(), Event("Why", "So.", warning=True))
        await told.recorder.tell(about(), Event("Why", "Well.", warning=False))
        body, other = told.bodies
        assert (body["type"], other["type"]) == ("Warning", "Normal")
        assert (body["reason"], body["message"], body["count"]) == ("Why", "So.", 1)
        assert body["firstTimestamp"] == body["lastTimestamp"] == "2027-01-15T08:00:00Z"
        assert body["involvedObject"] == {
            "apiVersion": "drainagent.io/v1alpha1",
            "kind": "ModelDeployment",
            "namespace": "models",
            "name": "llama",
            "uid": "u",
            "resourceVersion": "7",
        }
        assert body["source"] == {"component": "drainagent-operator", "host": "operator-0"}
        assert body["metadata"]["namespace"] == "models"
        assert body["metadata"]["name"] != other["metadata"]["name"]

    telling(tmp_path, test)


def test_what_lasts_is_told_again_after_a_while_and_what_happens_each_time(tmp_path: Path) -> None:
    async def test(told: Told) -> None:
        for _ in range(3):
            await told.recorder.tell(about(), Event("Lasts", "So.", lasts=True))
            await told.recorder.tell(about(), Event("Happens", "So."))
            told.now += 1
        assert [body["reason"] for body in told.bodies] == ["Lasts", "Happens", "Happens", "Happens"]
        told.now = NOW + REPEAT_S
        await told.recorder.tell(about(), Event("Lasts", "So.", lasts=True))
        assert [body["reason"] for body in told.bodies].count("Lasts") == 2
        assert len({body["metadata"]["name"] for body in told.bodies}) == 5

    telling(tmp_path, test)


def test_another_message_reason_or_object_is_another_event(tmp_path: Path) -> None:
    async def test(told: Told) -> None:
        await told.recorder.tell(about(), Event("A", "one", lasts=True))
        await told.recorder.tell(about(), Event("A", "two", lasts=True))
        await told.recorder.tell(about(), Event("B", "one", lasts=True))
        await told.recorder.tell(about(uid="v"), Event("A", "one", lasts=True))
        assert len(told.bodies) == 4

    telling(tmp_path, test)


def test_bounds(tmp_path: Path) -> None:
    async def test(told: Told) -> None:
        name = "n" * 53
        await told.recorder.tell(about(name), Event("A", "x" * 5_000, lasts=True))
        await told.recorder.tell(about(name), Event("A", "x" * 5_001, lasts=True))
        (body,) = told.bodies
        assert body["message"] == "x" * 1024
        assert body["metadata"]["name"].startswith(f"{name}.")
        assert len(body["metadata"]["name"]) <= 253

    telling(tmp_path, test)


@pytest.mark.parametrize("status", [403, 404, 409, 422, 500, 0])
def test_a_refusal_is_logged_and_nothing_more(tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """``status`` 0: no answer."""

    async def test(told: Told) -> None:
        told.api.fault("POST", EVENTS, status=status, lost=not status)
        with caplog.at_level(logging.INFO):
            await told.recorder.tell(about(), Event("Why", "So."))
        shown = [record for record in caplog.records if record.name == "operator_glue.runtime.recorder"]
        assert [record.levelname for record in shown] == ["INFO", "WARNING"]
        assert shown[0].getMessage() == "Why: So."
        assert vars(shown[0])["object"] == "models/llama"
        await told.recorder.tell(about(), Event("Why", "Well."))
        assert told.messages[-1] == "Well."

    telling(tmp_path, test)


def test_what_was_told_long_ago_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is bounded by number too: what is forgotten early is told once more."""
    monkeypatch.setattr("operator_glue.runtime.recorder._REMEMBERED", 3)

    async def test(told: Told) -> None:
        for message in ("1", "2", "3", "4", "4", "1"):
            await told.recorder.tell(about(), Event("A", message, lasts=True))
        assert told.messages == ["1", "2", "3", "4", "1"]

    telling(tmp_path, test)


def test_without_the_lease_nothing_is_told(tmp_path: Path) -> None:
    async def test(told: Told) -> None:
        def refuse() -> None:
            raise NotLeading("for the test")

        recorder = Recorder(told.kube.fenced(refuse, 1.0), "operator-0", lambda: NOW)
        await recorder.tell(about(), Event("A", "x"))
        assert told.bodies == []

    telling(tmp_path, test)
