"""A Pod under observation, and what was seen of its end: the API server, the kubelet, containerd, the engine, the hook.

Every moment is in seconds since the epoch, on the one clock of this machine and its node.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kube import Kube, Object
from load import Answer as Response

from hook.api import Answer, Api, Change, Watch
from hook.runtime import Container, Process, Runtime, rfc3339_s

READY_WITHIN_S = 90.0


@dataclass(frozen=True)
class Line:
    """A line of a container's log, with the moment at which containerd got it."""

    at_s: float
    text: str


class Log:
    """`kubectl logs --follow --timestamps` of one container."""

    def __init__(self, api: Api, pod: str, container: str) -> None:
        self.lines: list[Line] = []
        self._grown = threading.Condition()
        query = urllib.parse.urlencode({"container": container, "follow": "true", "timestamps": "true"})
        self._follow = api.lines(f"{api.path('pods', pod)}/log?{query}", self._take)

    def _take(self, line: str, _at_s: float) -> None:
        moment, _, text = line.partition(" ")
        with self._grown:
            self.lines.append(Line(rfc3339_s(moment), text))
            self._grown.notify_all()

    def wait(self, words: str, within_s: float) -> Line:
        end = time.monotonic() + within_s
        with self._grown:
            while True:
                found = next((line for line in self.lines if words in line.text), None)
                if found is not None:
                    return found
                left_s = end - time.monotonic()
                assert left_s > 0, f"not within {within_s:g} s in the log: {words}; {self._follow.fault or self.lines}"
                self._grown.wait(left_s)

    def end(self, within_s: float = 10.0) -> list[Line]:
        """All of it: the kubelet ends a followed log with its container."""
        self._follow.join(within_s)
        self._follow.close()
        return self.lines


@dataclass
class Place:
    """A namespace, and every change in it."""

    kube: Kube
    api: Api
    pods: Watch
    slices: Watch

    @classmethod
    def make(cls, namespace: str, labels: Object | None = None) -> Place:
        kube = Kube.of_cluster(namespace)
        kube.create_namespace()
        if labels:
            kube.run("label", "namespace", namespace, *(f"{key}={value}" for key, value in labels.items()))
        api = Api(kube)
        return cls(kube, api, Watch(api, "pods"), Watch(api, "endpointslices"))

    def close(self) -> None:
        self.pods.close()
        self.slices.close()
        self.kube.delete_namespace(wait=False)


@dataclass(frozen=True)
class Seen:
    """The end of a replica. ``hook`` None: the kubelet started none."""

    deleted: Answer
    hook: Process | None
    main: Process
    lines: list[Line]
    #: `state.terminated` of the container in the Pod's status, where the object lived to tell.
    terminated: Object | None
    answers: list[Response] = field(default_factory=list)

    def since_s(self, moment_s: float | None) -> float:
        """From the delete."""
        assert moment_s is not None
        return moment_s - self.deleted.sent_s

    @property
    def hook_lines(self) -> list[Object]:
        """The hook's log, where it is JSON."""
        return [json.loads(line.text) for line in self.lines if line.text.startswith('{"time"')]

    @property
    def outcome(self) -> Object:
        lines = self.hook_lines
        assert lines, f"no line of the hook in the log: {self.text}"
        assert lines[-1]["event"] == "outcome", f"the hook's last line is no outcome: {lines[-1]}"
        return lines[-1]

    @property
    def first_hook_line_s(self) -> float:
        return next(line.at_s for line in self.lines if line.text.startswith(('{"time"', "drainagent:")))

    @property
    def sigterm_s(self) -> float | None:
        """As the engine logged it."""
        return next((line.at_s for line in self.lines if "SIGTERM with" in line.text), None)

    @property
    def reads_s(self) -> list[float]:
        """When the engine answered the hook's reads, by its access log."""
        return [line.at_s for line in self.lines if '"GET /metrics"' in line.text]

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    @property
    def lost(self) -> list[str]:
        """Requests that did not end whole."""
        return [f"sent at {answer.request.at_s:g} s: {answer.fault}" for answer in self.answers if not answer.complete]


class Replica:
    """A Pod that serves, followed from now on."""

    def __init__(self, place: Place, runtime: Runtime, pod: Object, container: str = "main") -> None:
        self.place, self._runtime, self.container = place, runtime, container
        self.object = pod
        self.name: str = pod["metadata"]["name"]
        self.address: str = pod["status"]["podIP"]
        self.container_id = container_id(pod, container)
        self.log = Log(place.api, self.name, container)

    def process(self, container: str = "main") -> Process:
        """The first process of a container that was started."""
        identity = container_id(self.object, container)
        return self._runtime.wait(
            f"the start of {container}", identity, lambda c: c.main if c.main.started_s else None, 5
        )

    def hook(self, within_s: float = 5.0) -> Process:
        """The hook, once it has started."""
        return self._runtime.wait(
            f"the hook's start in {self.name}",
            self.container_id,
            lambda container: next(iter(container.execs.values()), None),
            within_s,
        )

    def seen(self, deleted: Answer, within_s: float, *, object_stays: bool = True) -> Seen:
        """The whole end, once the container is gone. ``object_stays`` False: a force delete."""
        main = self._runtime.wait(f"the end of {self.name}", self.container_id, _ended, within_s)
        lines = self.log.end()
        hooks = self._runtime.wait("", self.container_id, lambda c: list(c.execs.values()), 1)
        terminated = None
        if object_stays:
            change = self.place.pods.wait(f"the terminated state of {self.name}", self._terminated, 30)
            terminated = container_status(change.object, self.container)["state"]["terminated"]
        return Seen(deleted, hooks[0] if hooks else None, main, lines, terminated)

    def _terminated(self, change: Change) -> bool:
        return change.object["metadata"]["uid"] == self.object["metadata"]["uid"] and any(
            status["name"] == self.container and "terminated" in status["state"]
            for status in change.object["status"].get("containerStatuses", ())
        )

    def wait(self, what: str, wanted: Callable[[Change], bool], within_s: float) -> Change:
        uid = self.object["metadata"]["uid"]
        return self.place.pods.wait(
            f"{what} of {self.name}", lambda c: c.object["metadata"]["uid"] == uid and wanted(c), within_s
        )


def _ended(container: Container) -> Process | None:
    processes = (container.main, *container.execs.values())
    return container.main if all(process.ended_s for process in processes) else None


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def container_status(pod: Object, container: str) -> dict[str, Any]:
    """Empty while the kubelet has not told of it."""
    statuses: list[dict[str, Any]] = [
        *pod["status"].get("containerStatuses", ()),
        *pod["status"].get("initContainerStatuses", ()),
    ]
    return next((status for status in statuses if status["name"] == container), {})


def container_id(pod: Object, container: str) -> str:
    identity: str = container_status(pod, container)["containerID"]
    return identity.removeprefix("containerd://")
