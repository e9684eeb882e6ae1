"""What a case works with, and how cases run beside each other without disturbing what they measure.

Cases come in waves. In a wave every case sets up its Pods first; only when all are ready does the first delete happen,
and the deletes come one after the other.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import yaml
from kube import Object
from load import ClientPlan

from hook.api import Answer
from hook.clients import PodLoad
from hook.figures import Figures
from hook.manifests import Delivery, delivery_options, inject, with_hook_arguments
from hook.replica import READY_WITHIN_S, Place, Replica, Seen, is_ready
from hook.runtime import Runtime

#: Two deletes of different cases lie this far apart at the least.
BETWEEN_DELETES_S = 0.5
#: The first delete of a wave comes this long after its last Pod was ready: a Pod that has just changed gets its hook
#: late (contract.STARTED_WITHIN_S), and that has its own case.
QUIET_S = 3.0
#: The clients of a case start this long before its delete.
LEAD_S = 3.5
#: So many cases set up at a time: the node starts Pods one core at a time anyway.
SETTING_UP = 4
#: What a case may take from its delete on, beyond the grace.
SPARE_S = 25.0


@dataclass
class Rig:
    """What all cases share."""

    runtime: Runtime
    place: Place
    restricted: Place
    figures: Figures
    _next_delete: float = 0.0
    _turns: threading.Lock = field(default_factory=threading.Lock)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def turn(self, lead_s: float) -> float:
        """When the caller's delete is due, on the monotonic clock."""
        with self._turns:
            self._next_delete = max(time.monotonic() + lead_s, self._next_delete + BETWEEN_DELETES_S)
            return self._next_delete

    def quiet(self) -> None:
        with self._turns:
            self._next_delete = max(self._next_delete, time.monotonic() + QUIET_S - BETWEEN_DELETES_S)

    def number(self) -> int:
        return next(self._numbers)

    def close(self) -> None:
        self.place.close()
        self.restricted.close()
        self.runtime.close()


class Wave:
    """Cases that run beside each other."""

    def __init__(self, cases: int) -> None:
        self._setting_up = threading.Semaphore(SETTING_UP)
        self._all_ready = threading.Barrier(cases)

    def run(self, case: Callable[[Stage], None], rig: Rig, future: Future[None]) -> None:
        self._setting_up.acquire()
        stage = Stage(rig, self)
        failure: BaseException | None = None
        try:
            try:
                case(stage)
            finally:
                stage.tidy()
        except BaseException as caught:
            failure = caught
        # One that failed before its curtain must not hold the others up.
        stage.curtain()
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    def ready(self) -> None:
        self._setting_up.release()
        self._all_ready.wait()


class Stage:
    """One case's."""

    def __init__(self, rig: Rig, wave: Wave) -> None:
        self._rig, self._wave = rig, wave
        self._up = False
        self._applied: list[str] = []
        self.place = rig.place
        self.figures = rig.figures

    def name(self, word: str) -> str:
        return f"{word}-{self._rig.number()}"

    def in_restricted_namespace(self) -> None:
        self.place = self._rig.restricted

    def inject(self, manifest: Object, delivery: Delivery = "in-image", *options: str, json_log: bool = True) -> Object:
        """The manifest as `drainagent inject` writes it; the hook logs JSON where that is easier to judge.

        Most cases have the agent baked in: with an init container a Pod asks for 250m CPU at the least,
        and two cores have room for eight of these.
        """
        text, _ = inject(manifest, *delivery_options(delivery), *options)
        injected: Object = yaml.safe_load(text)
        return with_hook_arguments(injected, "--log-format", "json") if json_log else injected

    def start(self, manifest: Object, container: str = "main") -> Replica:
        """Applies a Pod, or a Deployment of one, and waits until it is ready."""
        return self.start_all(manifest, 1, container)[0]

    def start_all(self, manifest: Object, replicas: int, container: str = "main") -> list[Replica]:
        app = manifest["metadata"]["name"]
        self.apply(manifest)
        pods: dict[str, Object] = {}
        while len(pods) < replicas:
            change = self.place.pods.wait(
                f"ready: {app}",
                lambda c: (
                    c.object["metadata"]["labels"].get("app") == app
                    and c.object["metadata"]["uid"] not in pods
                    and is_ready(c.object)
                ),
                READY_WITHIN_S,
            )
            pods[change.object["metadata"]["uid"]] = change.object
        return [Replica(self.place, self._rig.runtime, pod, container) for pod in pods.values()]

    def apply(self, manifest: Object) -> None:
        """Until the case's end."""
        self.place.kube.apply(manifest)
        group = {"Pod": "api/v1", "Service": "api/v1", "Deployment": "apis/apps/v1"}[manifest["kind"]]
        path = f"{manifest['kind'].lower()}s/{manifest['metadata']['name']}"
        self._applied.append(f"/{group}/namespaces/{self.place.kube.namespace}/{path}")

    def tidy(self) -> None:
        """What the case leaves must not crowd the next wave's."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        for path in self._applied:
            self.place.api.request("DELETE", path, options)

    def curtain(self) -> None:
        """Set up; returns when every case of the wave is."""
        if not self._up:
            self._up = True
            self._wave.ready()
            self._rig.quiet()

    def quiet(self) -> None:
        """After Pods were started past the curtain."""
        self._rig.quiet()

    def turn(self, lead_s: float = 0.2) -> float:
        """When this case's delete is due, on the monotonic clock."""
        assert self._up, "a case deletes nothing before its curtain"
        return self._rig.turn(lead_s)

    def leave(
        self,
        replica: Replica,
        grace_s: float,
        plans: Sequence[ClientPlan] = (),
        *,
        port: int = 0,
        delete: Callable[[], Answer] | None = None,
        meanwhile: Callable[[float], None] | None = None,
        object_stays: bool = True,
    ) -> Seen:
        """Deletes the replica under the load of ``plans`` and sees it go.

        ``delete``: another way to do it. ``meanwhile``: what else happens, given the moment of the delete on the
        monotonic clock. ``grace_s`` bounds the waiting alone.
        """
        delete_at = self.turn(LEAD_S if plans else 0.2)
        load = PodLoad(plans, replica.address, port, delete_at)
        sleep_until(delete_at)
        deleted = delete() if delete is not None else replica.place.api.delete_pod(replica.name)
        assert deleted.status in {200, 201}, f"the delete was refused: {deleted.object}"
        if meanwhile is not None:
            meanwhile(delete_at)
        seen = replica.seen(deleted, grace_s + SPARE_S, object_stays=object_stays)
        seen.answers.extend(load.finish(SPARE_S))
        assert len(seen.answers) == sum(len(plan.requests) for plan in plans), "a request was never sent"
        return seen


def sleep_until(moment: float) -> None:
    """On the monotonic clock: for what happens at a given moment, never for what is to be waited for."""
    time.sleep(max(0.0, moment - time.monotonic()))
