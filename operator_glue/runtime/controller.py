"""One pass over one ModelDeployment: look, decide, write. What is decided is decided elsewhere, by pure functions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from operator_glue.kube import (
    PODS,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Kube,
    KubeError,
    Object,
)
from operator_glue.model import ModelDeployment, WithoutRouter
from operator_glue.names import INSTANCE_LABEL, RETRY_ANNOTATION
from operator_glue.reconcile.conditions import Seen, Trouble, Why, status_of
from operator_glue.reconcile.objects import Named, router_names, services_to_remove
from operator_glue.reconcile.placing import Placed, controller_uid, place
from operator_glue.reconcile.pods import CreateReplica, PodPlan, is_replica_ready, plan_pods
from operator_glue.reconcile.removal import FINALIZER, plan_removal
from operator_glue.render import replica_objects
from operator_glue.render.command import front_port
from operator_glue.render.router_parts import router_name
from operator_glue.retirement.data import Event, Key, Member, Observation, Operation, Persisted, State, Step
from operator_glue.retirement.members import member_of
from operator_glue.retirement.persisted import from_status, to_status
from operator_glue.retirement.step import look, step
from operator_glue.runtime.ahead import Ahead
from operator_glue.runtime.cache import Store
from operator_glue.runtime.looking import Looker, Target, routers_at
from operator_glue.runtime.metrics import Metrics
from operator_glue.runtime.objects import Keeper, Taken
from operator_glue.runtime.reading import Planned, Reader
from operator_glue.runtime.recorder import Recorder
from operator_glue.runtime.writing import Cut, Writer, merged

#: Pods of a deployment that are made at the same time.
CREATIONS = 8
#: A replica whose Pods end again and again before they were ever Ready is made anew after 10 s, doubling to 5 minutes.
FIRST_REMAKE_S, LAST_REMAKE_S = 10.0, 300.0

_log = logging.getLogger(__name__)


#: Nobody watches what a router has beside its Deployment and its Services.
REMOVAL_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """``due``: when the next pass is due though nothing changes (seconds since the epoch). ``trouble``: what the API
    server refused, to be tried again after a while."""

    due: float | None = None
    trouble: str | None = None


@dataclass
class Caches:
    """Kept by reflectors. Pods, services and router Deployments are indexed by ``namespace/name`` of their
    ModelDeployment; workloads by namespace."""

    deployments: Store
    pods: Store
    services: Store
    routers: Store
    workloads: Store


@dataclass
class _Remade:
    """How often a replica was made in a row without being Ready in between, and when last."""

    count: int
    at: float


@dataclass
class Controller:
    """``kube``: fenced. ``clock``: seconds since the epoch. ``may_write``: raises where the Lease is held no longer."""

    kube: Kube
    caches: Caches
    ahead: Ahead
    reader: Reader
    keeper: Keeper
    recorder: Recorder
    metrics: Metrics
    clock: Callable[[], float]
    may_write: Callable[[], None]
    _looker: Looker = field(init=False)
    _remade: dict[tuple[str, Key], _Remade] = field(default_factory=dict)
    _pruned: dict[str, frozenset[Named]] = field(default_factory=dict)
    _held: dict[tuple[str, str], list[tuple[str, ...]]] = field(default_factory=dict)
    _members: dict[str, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._looker = Looker(self.kube, self.clock)

    async def work(self, namespace: str, name: str) -> Outcome:
        """A pass. Cut: to be begun anew at once. KubeError: after a while."""
        cached = self.caches.deployments.get(namespace, name)
        if cached is None:
            self._show_held(namespace, name, Persisted(), None)
            return Outcome()
        thing = self.ahead.latest(cached)
        writer = Writer(self.kube, self.ahead, self.metrics, thing, self.may_write)
        if thing["metadata"].get("deletionTimestamp") is not None:
            return await self._remove(writer)
        if FINALIZER not in (thing["metadata"].get("finalizers") or ()):
            await writer.write_finalizers([*(thing["metadata"].get("finalizers") or ()), FINALIZER])
        planned = await self.reader.read(writer.thing)
        if planned.deployment is None:
            await self._refuse(writer, str(planned.fault))
            return Outcome()
        return await self._reconcile(writer, planned, planned.deployment)

    # ---- the pass

    async def _reconcile(self, writer: Writer, planned: Planned, deployment: ModelDeployment) -> Outcome:
        thing = writer.thing
        placed, events = self._placed(thing), _odd(self._placed(thing))
        persisted, faults = from_status(thing.get("status"))
        events += [Event("StatusUnreadable", sentence, True, True) for sentence in faults]
        result = await self._retire(writer, deployment, placed, persisted)
        now = self.clock()
        placed = self._placed(writer.thing)
        troubles = await self._objects(writer, planned, placed, events)
        running, kept = _taken(result.persisted)
        pods = {str(pod["metadata"]["uid"]): pod for pod in self._pods(writer.thing)}

        def plan(there: Placed, routed: frozenset[str] | None = None) -> PodPlan:
            late = self._not_before(thing, planned, placed)
            return plan_pods(planned.roles, there.replicas, running, kept, now, late, routed)

        decided = plan(placed)
        if decided.rolls:  # asked only when a replica is to be replaced
            decided = plan(placed, await self._looker.routed(writer.namespace, deployment))
        for delete in decided.deletes:
            await writer.delete_pod(delete, pods)
        for workload in decided.workloads:
            await writer.delete_workload(workload)
        for label in decided.labels:
            await writer.set_serving(label, pods)
        events += decided.events
        if decided.creates:
            live, _ = await self.kube.list(PODS, writer.namespace, labels={INSTANCE_LABEL: writer.name})
            creates = plan(self._place(writer.thing, live)).creates
            troubles += await self._create(writer, planned, creates, events)
        status = status_of(
            writer.thing.get("status") or {},
            Seen(
                generation=int(thing["metadata"]["generation"]),
                roles=planned.roles,
                replicas=self._placed(writer.thing).replicas,
                rollouts=decided.rollouts,
                router_ready=self._router_ready(writer, deployment),
                operation=_running(result.persisted),
                blocked=result.blocked,
                trouble=troubles[0] if troubles else None,
            ),
            self.clock(),
        )
        # What another hand wrote into the protocol's part and cannot be read goes.
        await writer.write_status(merged(status, to_status(result.persisted)))
        for event in events:
            await self.recorder.tell(writer.thing, event)
        self._show_held(writer.namespace, writer.name, result.persisted, result)
        due = min((at for at in (result.look_again_at, decided.due) if at is not None), default=None)
        return Outcome(due, next((one.message for one in troubles), None))

    async def _retire(self, writer: Writer, deployment: ModelDeployment, placed: Placed, persisted: Persisted) -> Step:
        """The protocol's pass, and its writes."""
        metadata, spec = writer.thing["metadata"], deployment.spec
        seen = Observation(
            generation=int(metadata["generation"]),
            roles={role.name: role.replicas for role in spec.roles},
            replicas=placed.replicas,
            router=None if spec.router is None else spec.router.name,
            prove_from_member=spec.retirement.without_router is WithoutRouter.PROVE_FROM_MEMBER,
            ignore_peers=tuple(spec.retirement.ignore_peers),
            retry=(metadata.get("annotations") or {}).get(RETRY_ANNOTATION),
        )
        target = Target(writer.namespace, str(metadata["uid"]), deployment, placed, persisted.operation)
        looked = await self._looker.look_up(target, look(persisted, seen, self.clock()))
        now = self.clock()
        result = step(persisted, replace(seen, looked=looked), now)
        routers, key = {}, None
        if spec.router is not None and result.writes:
            addresses = [pod for pod in self._pods(writer.thing) if controller_uid(pod) != metadata["uid"]]
            routers = {at.pod_uid: at for at in routers_at(spec.router, addresses)}
            key = await self._looker.key(writer.namespace, spec.router)
        roles, before = {role.name: role for role in spec.roles}, writer.thing
        try:
            await writer.issue(
                result.writes,
                {str(pod["metadata"]["uid"]): pod for pod in self._pods(writer.thing)},
                spec.router,
                routers,
                key,
                lambda role: front_port(deployment, roles[role]),
            )
        except (Cut, KubeError):
            if writer.thing is before:  # not even the status is written, so that nothing has happened
                raise
            await self._tell(writer, persisted, result, now)
            raise
        await self._tell(writer, persisted, result, now)
        return result

    async def _tell(self, writer: Writer, before: Persisted, result: Step, now: float) -> None:
        self._count(before, result, now)
        for event in result.events:
            await self.recorder.tell(writer.thing, event)

    async def _objects(
        self,
        writer: Writer,
        planned: Planned,
        placed: Placed,
        events: list[Event],
    ) -> list[Trouble]:
        """Services and the router's objects as they are rendered; what is no longer needed goes."""
        uid, namespace = str(writer.thing["metadata"]["uid"]), writer.namespace
        troubles: list[Trouble] = []
        for thing in planned.wanted.objects:
            trouble = await self._apply(uid, namespace, thing)
            if trouble is not None:
                troubles.append(trouble)
                events.append(Event(trouble.why.word, trouble.message, True, True))
        there = {key for key, replica in placed.replicas.items() if replica.members}
        services = [one for one in self.caches.services.of(_key(writer.thing)) if controller_uid(one) == uid]
        left = services_to_remove(services, planned.wanted.named, there)
        await self.keeper.remove(uid, namespace, [Named("Service", one["metadata"]["name"]) for one in left])
        router = [one for one in router_names(namespace, writer.name) if one not in planned.wanted.named]
        if self._pruned.get(uid) != planned.wanted.named:  # once for each change, and at the start
            await self.keeper.remove(uid, namespace, router)
            self._pruned[uid] = planned.wanted.named
            events += [Event("SpecWarning", f"{one.path}: {one.message}", True, True) for one in planned.warnings]
        return troubles

    async def _apply(self, uid: str, namespace: str, thing: Object) -> Trouble | None:
        named = f"{thing['kind']} {thing['metadata']['name']}"
        try:
            await self.keeper.apply(uid, namespace, thing)
        except Taken as error:
            return Trouble(Why.NAME_TAKEN, str(error))
        except (Forbidden, Invalid, Conflict) as error:
            return Trouble(Why.REFUSED, f"{named}: {error}")
        return None

    async def _create(
        self, writer: Writer, planned: Planned, creates: Iterable[CreateReplica], events: list[Event]
    ) -> list[Trouble]:
        """All Pods of a replica in a row, several replicas at the same time."""
        limit, made, troubles = asyncio.Semaphore(CREATIONS), [], list[Trouble]()
        broken: list[Exception] = []
        uid = str(writer.thing["metadata"]["uid"])

        async def create(one: CreateReplica) -> None:
            pods = [
                item for item in replica_objects(planned.plans[one.key.role], one.key.ordinal) if item["kind"] == "Pod"
            ]
            async with limit:
                if broken or any(trouble.why is Why.REFUSED for trouble in troubles):
                    return  # a quota refuses the others too
                try:
                    for index in one.indices:
                        await writer.create_pod(pods[index])
                except (Forbidden, Invalid, Conflict, Gone) as error:
                    troubles.append(Trouble(Why.REFUSED, f"A Pod of replica {one.key}: {error}"))
                    return
                except Exception as error:  # those that have begun end first: the next pass would make them once more
                    broken.append(error)
                    return
            made.append(one.key)
            known = self._remade.setdefault((uid, one.key), _Remade(0, 0.0))
            known.count, known.at = known.count + 1, self.clock()

        await asyncio.gather(*(create(one) for one in creates))
        if broken:
            raise broken[0]
        if made:
            events.append(Event("ReplicasCreated", f"Created: {', '.join(map(str, sorted(made)))}."))
        events += [Event("CreateRefused", trouble.message, True, True) for trouble in troubles]
        return troubles

    def _not_before(self, thing: Object, planned: Planned, placed: Placed) -> dict[Key, float]:
        """When replicas that were made lately are made again. One that has been Ready begins anew."""
        uid, found = str(thing["metadata"]["uid"]), {}
        for (owner, key), remade in list(self._remade.items()):
            if owner != uid:
                continue
            replica = placed.replicas.get(key)
            if (replica is not None and is_replica_ready(replica)) or key.role not in planned.plans:
                del self._remade[owner, key]
            elif remade.count > 1:
                found[key] = remade.at + min(FIRST_REMAKE_S * 2 ** (remade.count - 2), LAST_REMAKE_S)
        return found

    # ---- a spec that is refused, and the end

    async def _refuse(self, writer: Writer, fault: str) -> None:
        """Nothing is made, changed or deleted, and nothing is retired: what is wanted is not known."""
        seen = Seen(
            generation=int(writer.thing["metadata"]["generation"]),
            roles=(),
            replicas=self._placed(writer.thing).replicas,
            rollouts={},
            router_ready=None,
            operation=None,
            blocked=None,
            trouble=Trouble(Why.INVALID_SPEC, fault),
        )
        await writer.write_status(status_of(writer.thing.get("status") or {}, seen, self.clock()))
        await self.recorder.tell(writer.thing, Event(Why.INVALID_SPEC.word, fault, True, True))

    async def _remove(self, writer: Writer) -> Outcome:
        thing = writer.thing
        uid, finalizers = str(thing["metadata"]["uid"]), thing["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return Outcome()
        live, _ = await self.kube.list(PODS, writer.namespace, labels={INSTANCE_LABEL: writer.name})
        placed = self._place(thing, live)
        plan = plan_removal(placed)
        pods = {str(pod["metadata"]["uid"]): pod for pod in live}
        for delete in plan.deletes:
            await writer.delete_pod(delete, pods)
        for workload in plan.workloads:
            await writer.delete_workload(workload)
        left = 0
        if plan.router:
            left = await self.keeper.remove(uid, writer.namespace, router_names(writer.namespace, writer.name))
        if plan.done and not left:
            await self.recorder.tell(thing, Event("Removed", "Its Pods have drained; nothing of it is left."))
            await writer.write_finalizers([one for one in finalizers if one != FINALIZER])
            self.forget(uid)
            self._show_held(writer.namespace, writer.name, Persisted(), None)
            return Outcome()
        seen = Seen(
            generation=int(thing["metadata"]["generation"]),
            roles=(),
            replicas=placed.replicas,
            rollouts={},
            router_ready=None,
            operation=None,
            blocked=None,
            deleting=True,
        )
        await self.recorder.tell(thing, Event("Removing", "Its Pods are deleted and drain by their hooks.", lasts=True))
        await writer.write_status(status_of(thing.get("status") or {}, seen, self.clock()))
        return Outcome(self.clock() + REMOVAL_S if plan.router else None)

    def forget(self, uid: str) -> None:
        """The ModelDeployment is gone."""
        self.reader.forget(uid)
        self.keeper.forget(uid)
        self._pruned.pop(uid, None)
        for owner, key in list(self._remade):
            if owner == uid:
                del self._remade[owner, key]

    # ---- what is there

    def _pods(self, thing: Object) -> list[Object]:
        key, namespace = _key(thing), str(thing["metadata"]["namespace"])
        uid = thing["metadata"]["uid"]
        return self.ahead.over(
            self.caches.pods.of(key),
            lambda pod: pod["metadata"].get("namespace") == namespace and controller_uid(pod) == uid,
        )

    def _placed(self, thing: Object) -> Placed:
        return self._place(thing, self._pods(thing))

    def _place(self, thing: Object, pods: Iterable[Object]) -> Placed:
        metadata = thing["metadata"]
        workloads = self.caches.workloads.of(_key(thing))
        return place(str(metadata["name"]), str(metadata["uid"]), pods, workloads, self._member)

    def _member(self, pod: Mapping[str, Any]) -> Member:
        """Made once for each version of a Pod: a pass looks at all of them, and one of them has changed."""
        metadata = pod["metadata"]
        known = self._members.get(metadata["uid"])
        if known is None or known.resource_version != metadata["resourceVersion"]:
            self._members[metadata["uid"]] = known = member_of(pod)
        return known

    def forget_pod(self, uid: str) -> None:
        """It is gone."""
        self._members.pop(uid, None)

    def _router_ready(self, writer: Writer, deployment: ModelDeployment) -> int | None:
        router = deployment.spec.router
        if router is None or router.replicas == 0:
            return None
        found = self.caches.routers.get(writer.namespace, router_name(writer.name))
        return int(((found or {}).get("status") or {}).get("readyReplicas") or 0)

    # ---- metrics

    def _count(self, before: Persisted, result: Step, now: float) -> None:
        was, is_now = before.operation, result.persisted.operation
        if was is not None and (is_now is None or is_now.state is not was.state or is_now.key != was.key):
            self.metrics.phases.labels(was.state.value).observe(max(0.0, now - was.phase_started_at))
        for event in result.events:
            if event.reason == "RetirementAborted":
                last = is_now if is_now is not None and is_now.state is State.ABORTED else None
                last = last or (result.persisted.retained[-1] if result.persisted.retained else None)
                reason = "" if last is None else last.reason.word
                self.metrics.retirements.labels("Aborted", reason).inc()
            elif event.reason in ("RetirementCompleted", "CapacityReleaseUnobserved"):
                reason = "Completed" if event.reason == "RetirementCompleted" else event.reason
                self.metrics.retirements.labels("Completed", reason).inc()
            elif event.reason == "RetirementCancelled":
                self.metrics.retirements.labels("Cancelled", "ScaledUpAgain").inc()
        old = {one.pod_uid: one.sampled_at for one in (was.readings if was is not None else ())}
        for reading in is_now.readings if is_now is not None else ():
            if old.get(reading.pod_uid) != reading.sampled_at:
                self.metrics.reads.labels(reading.verdict.value).inc()

    def _show_held(self, namespace: str, name: str, persisted: Persisted, result: Step | None) -> None:
        """Of this deployment, one series for each removal that runs or is kept."""
        place = (namespace, name)
        for labels in self._held.pop(place, []):
            (self.metrics.held if len(labels) > 3 else self.metrics.blocked).remove(*labels)
        shown: list[tuple[str, ...]] = []
        operations = (*persisted.retained, *((persisted.operation,) if persisted.operation else ()))
        for op in operations:
            labels = (namespace, name, op.key.role, str(op.key.ordinal), op.reason.word)
            if labels not in shown:
                self.metrics.held.labels(*labels).set(1)
                shown.append(labels)
        if result is not None and result.blocked is not None:
            labels = (namespace, name, result.blocked.reason.word)
            self.metrics.blocked.labels(*labels).set(1)
            shown.append(labels)
        if shown:
            self._held[place] = shown


def _key(thing: Mapping[str, object]) -> str:
    metadata = thing["metadata"]
    assert isinstance(metadata, Mapping)
    return f"{metadata['namespace']}/{metadata['name']}"


def _running(persisted: Persisted) -> Operation | None:
    op = persisted.operation
    return None if op is None or op.state is State.ABORTED else op


def _taken(persisted: Persisted) -> tuple[Key | None, frozenset[Key]]:
    """The replica whose removal runs, and those that are kept."""
    op = _running(persisted)
    return None if op is None else op.key, frozenset(one.key for one in persisted.retained)


def _odd(placed: Placed) -> list[Event]:
    """What another hand has made or changed: told, and left alone."""
    found = [
        Event(
            "ForeignPod", f"Pod {name} has this deployment's labels and is not its own: it is not counted.", True, True
        )
        for name in placed.strangers
    ]
    return found + [
        Event(
            "PodUnplaced",
            f"Pod {one.name} is this deployment's, but its labels name no replica: left alone.",
            True,
            True,
        )
        for one in placed.unplaced
    ]
