"""Kubernetes Events on a ModelDeployment. They are told, never asked: what cannot be written is logged."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from operator_glue.kube import EVENTS, Kube, KubeError
from operator_glue.model import API_VERSION, KIND
from operator_glue.names import MANAGED_BY
from operator_glue.retirement.data import Event

#: What lasts is told again after so long: Kubernetes keeps events for an hour.
REPEAT_S = 300.0
#: Kubernetes' bound on an event's message.
_MESSAGE_CHARS = 1024
#: Of what was told lately.
_REMEMBERED = 10_000

_log = logging.getLogger(__name__)


class Recorder:
    """``clock``: seconds since the epoch."""

    def __init__(self, kube: Kube, instance: str, clock: Callable[[], float]) -> None:
        self._kube, self._instance, self._clock = kube, instance, clock
        #: By event: when it was told last.
        self._told: dict[str, float] = {}

    async def tell(self, about: Mapping[str, Any], event: Event) -> None:
        """``about``: the ModelDeployment."""
        metadata, now = about["metadata"], self._clock()
        message = event.message[:_MESSAGE_CHARS]
        key = hashlib.sha256(repr((metadata["uid"], event.reason, message)).encode()).hexdigest()[:16]
        if event.lasts and now - self._told.get(key, float("-inf")) < REPEAT_S:
            return
        _log.log(
            logging.WARNING if event.warning else logging.INFO,
            "%s: %s",
            event.reason,
            message,
            extra={"object": f"{metadata['namespace']}/{metadata['name']}"},
        )
        while len(self._told) >= _REMEMBERED:
            self._told.pop(next(iter(self._told)))
        self._told[key] = now
        stamp = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = f"{metadata['name']}.{key}{int(now * 1000):x}"[-253:]
        body = self._body(metadata, name, event.reason, message, stamp, event.warning)
        try:
            await self._kube.create(EVENTS, metadata["namespace"], body)
        except KubeError as error:
            _log.warning("the event %s of %s is not written: %s", event.reason, metadata["name"], error)

    def _body(
        self, about: Mapping[str, Any], name: str, reason: str, message: str, stamp: str, warning: bool
    ) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": about["namespace"]},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": about["namespace"],
                "name": about["name"],
                "uid": about["uid"],
                "resourceVersion": about.get("resourceVersion"),
            },
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "source": {"component": MANAGED_BY, "host": self._instance},
            "reportingComponent": f"drainagent.io/{MANAGED_BY}",
            "reportingInstance": self._instance,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
