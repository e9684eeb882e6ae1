"""A cluster small enough to try everything on: Pods, Workloads, routers, engines with requests, another hand, a clock.

A world is a value. ``actions`` gives what can happen to it, each with the next world; a rule that is broken on the way
raises. The operator's pass is the real ``look`` and ``step`` over real observations: Pods as rendered, envelopes as the
agent writes them, views of a router's list. Time is kept in ages: the clock stands still at ``NOW``, and a second that
goes by moves every time in the world back by one, so that worlds that differ by their date alone are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

from drainagent.catalogue import VLLM
from drainagent.envelope import END, SCHEMA
from operator_glue import names
from operator_glue.model import RouterName
from operator_glue.retirement import data
from operator_glue.retirement.data import (
    Baseline,
    Key,
    Looked,
    Member,
    MemberRead,
    Observation,
    Operation,
    Persisted,
    Reading,
    Replica,
    RouterPod,
    State,
    View,
    Workload,
)
from operator_glue.retirement.reasons import Reason

NOW = 1_800_000_000.0
#: Every age above is the same age: no rule asks for more.
OLDEST_S = 400.0
GRACE_S = 30
#: How far a cache may be behind.
STALE_AT_MOST_S = 20.0
#: Between the parts of a pass: each look is a moment of its own.
MOMENT_S = 0.01


class Pod(NamedTuple):
    """``phase``: new (no container ever started), run, term (being deleted) or ended. ``version`` counts its edits."""

    uid: str
    role: str
    ordinal: int
    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    phase: str = "run"
    serving: bool = True
    requests: int = 0
    restarts: int = 0
    version: int = 1

    @property
    def key(self) -> Key:
        return Key(self.role, self.ordinal)

    @property
    def address(self) -> str:
        return f"10.0.0.{self.uid}"

    def edited(self, **changes: Any) -> Pod:
        return self._replace(version=self.version + 1, **changes)


class Router(NamedTuple):
    """``lists``: UIDs of Pods. ``hears``: its discovery works. ``answers``: it can be asked."""

    uid: str
    process: str
    lists: frozenset[str]
    age_s: float = OLDEST_S
    hears: bool = True
    answers: bool = True


class Cache(NamedTuple):
    """What the operator's cache shows: the cluster as it was when it last heard of it."""

    pods: tuple[Pod, ...]
    workloads: tuple[tuple[str, Key], ...]
    wanted: tuple[tuple[str, int], ...]
    retry: str | None


@dataclass(frozen=True)
class Shape:
    """What kind of cluster. ``size``: Pods of a replica. ``stays_busy``: a request never ends."""

    name: str
    router: RouterName | None = RouterName.VLLM_ROUTER
    kueue: bool = False
    size: int = 1
    prove_from_member: bool = False
    stays_busy: bool = False


@dataclass(frozen=True)
class World:
    """``quiet``: of each replica, the reads that found it idle while it truly was withdrawn and idle, in a row: what
    the first rule asks for. ``began``: Pods whose delete was taken from the protocol. ``forgot``: another hand wrote
    the status. ``mischief``, ``passes``, ``jumps``: acts of another hand, passes of the operator and leaps of the
    clock that are left.
    """

    shape: Shape
    pods: tuple[Pod, ...]
    workloads: tuple[tuple[str, Key], ...]
    routers: tuple[Router, ...]
    wanted: tuple[tuple[str, int], ...]
    persisted: Persisted = field(default_factory=Persisted)
    retry: str | None = None
    cached: Cache | None = None
    quiet: tuple[tuple[str, int], ...] = ()
    began: frozenset[str] = frozenset()
    forgot: bool = False
    mischief: int = 0
    passes: int = 0
    jumps: int = 0
    next_uid: int = 100

    def pod(self, uid: str) -> Pod | None:
        return next((pod for pod in self.pods if pod.uid == uid), None)

    def with_pod(self, new: Pod) -> World:
        return replace(self, pods=tuple(new if pod.uid == new.uid else pod for pod in self.pods))

    def without_pod(self, uid: str) -> World:
        return replace(self, pods=tuple(pod for pod in self.pods if pod.uid != uid))


class Broken(Exception):  # noqa: N818
    """A rule that the protocol broke. ``rule``: its number in RULES."""

    def __init__(self, rule: int, what: str) -> None:
        super().__init__(f"rule {rule}: {what}")
        self.rule = rule


RULES = {
    1: "no member deleted whose replica was not proven idle by two reads after its withdrawal, which still holds",
    2: "nothing deleted under another UID than the captured one",
    3: "no Workload deleted while a Pod of it runs",
    4: "nothing deleted twice",
    5: "every budget ends its phase",
    6: "nothing of which a delete was taken ends as Aborted",
    7: "capacity is counted until the end: a replica stays, with its Workload, until its deletion has begun",
    8: "an Aborted replica blocks no other",
    9: "no livelock: left alone, every operation ends, and then nothing is written any more",
    10: "an operator killed between any two writes comes to the same end",
    11: "the reservation is written before anything is touched, the evidence before the first delete, a token before "
    "its annotation goes",
    12: "a replica that is wanted is not touched, but to restore it, and then is served again",
}


# ---- what the operator sees


@cache
def _pod_object(name: str, role: str, ordinal: int, index: int, size: int) -> dict[str, Any]:
    """As rendered, in what the protocol reads of it."""
    labels = {
        names.INSTANCE_LABEL: "llama",
        names.COMPONENT_LABEL: role,
        names.ROLE_KIND_LABEL: "Server",
        names.ORDINAL_LABEL: str(ordinal),
        **({names.MEMBER_INDEX_LABEL: str(index)} if size > 1 else {}),
    }
    annotations = {
        names.SCRAPE_ANNOTATION: "true",
        names.SCHEME_ANNOTATION: "http",
        names.PORT_ANNOTATION: "8000",
        names.PATH_ANNOTATION: "/metrics",
    }
    url = ("--url", "http://127.0.0.1:8000/metrics")
    main = {
        "name": names.MAIN_CONTAINER,
        "image": "vllm/vllm-openai:v0.32.0",
        "command": ["vllm", "serve", "m", "--enable-server-load-tracking"],
        "env": [{"name": names.REPLICA_SIZE_ENV, "value": str(size)}] if size > 1 else [],
        "lifecycle": {
            "preStop": {
                "exec": {
                    "command": ["python3", "-ISB", "/opt/drainagent", "hook", "--engine", "vllm", "--grace", "30", *url]
                }
            }
        },
    }
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations}, "spec": {"containers": [main]}}


@cache
def member(pod: Pod, size: int) -> Member:
    return Member(
        uid=pod.uid,
        name=f"pod-{pod.uid}",
        resource_version=str(pod.version),
        index=pod.index,
        serving=pod.serving,
        terminating=pod.phase in ("term", "ended"),  # what has ended here was deleted
        ended=pod.phase == "ended",
        never_ran=pod.phase == "new",
        main_running=pod.phase in ("run", "term"),
        restarts=pod.restarts,
        fingerprint=f"{pod.uid}-{pod.restarts}",
        addresses=(pod.address,),
        grace_s=GRACE_S,
        pod=_pod_object(f"pod-{pod.uid}", pod.role, pod.ordinal, pod.index, size),
    )


@cache
def envelope(busy: bool, restarts: int) -> bytes:
    return (
        json.dumps(
            {
                "schema": SCHEMA,
                "engine": "vLLM",
                "url": "http://127.0.0.1:8000/metrics",
                "processStartTime": float(restarts),
                "verdict": "idle",  # not to be believed
                "reason": None,
                "message": "",
                "complete": True,
                "engines": {"expected": 1, "shown": 1},
                "gauges": [
                    {"name": name, "sum": float(busy), "series": 1, "seriesDigest": "d"} for name in VLLM.expected
                ],
                "missing": [],
                "inFlight": {"connections": int(busy), "unackedBytes": 0, "unreadBytes": 0, "counter": None},
                "end": END,
            },
            separators=(",", ":"),
        )
        + "\n"
    ).encode()


def observation(world: World, seen: Cache, looked: Looked) -> Observation:
    replicas: dict[Key, list[Member]] = {}
    for pod in seen.pods:
        replicas.setdefault(pod.key, []).append(member(pod, world.shape.size))
    workloads = {key: Workload(uid, f"w-{uid}", "1") for uid, key in seen.workloads}
    keys = {*replicas, *workloads}
    return Observation(
        generation=1,
        roles=dict(seen.wanted),
        replicas={key: Replica(key, tuple(replicas.get(key, ())), workloads.get(key)) for key in sorted(keys)},
        router=world.shape.router,
        prove_from_member=world.shape.prove_from_member,
        retry=seen.retry,
        looked=looked,
    )


def now_cached(world: World) -> Cache:
    return Cache(world.pods, world.workloads, world.wanted, world.retry)


# ---- the operator's pass


class Protocol(NamedTuple):
    """The functions under test, or broken copies of them."""

    look: Callable[[Persisted, Observation, float], data.Look]
    step: Callable[[Persisted, Observation, float], data.Step]


def look_up(world: World, seen: Cache, wanted: data.Look) -> tuple[tuple[tuple[str, int], ...], Looked]:
    """What the edges find: reads first, then the routers and the endpoints. Reads that find it idle are counted:
    ``World.quiet`` as it is then."""
    reads = []
    for order in wanted.reads:
        pod = world.pod(order.member.uid)
        live = None if pod is None else member(pod, world.shape.size)
        busy = pod is not None and _works(world, pod.key)
        answer = envelope(busy, 0 if pod is None else pod.restarts)
        reads.append(MemberRead(order.member.uid, NOW, NOW + MOMENT_S, live, live, answer))
        if pod is not None and not busy and _is_withdrawn(world, pod.key) and pod.restarts == 0:
            world = _counted(world, pod.key)
        elif pod is not None:
            world = replace(world, quiet=tuple(one for one in world.quiet if one[0] != str(pod.key)))
    views = []
    if wanted.views:
        for router in world.routers:
            fault = None if router.answers else data.ViewFault(Reason.ROUTER_UNREACHABLE, "it is away")
            lists = frozenset(pod.address for pod in world.pods if pod.uid in router.lists and fault is None)
            handles = {address: (f"http://{address}:8000",) for address in lists}
            views.append(View(router.uid, NOW + 2 * MOMENT_S, fault, lists, handles))
            # A listing that is seen is one that the reads before it do not answer for.
            served = {str(pod.key) for pod in world.pods if pod.address in lists}
            world = replace(world, quiet=tuple(one for one in world.quiet if one[0] not in served))
    endpoints = None
    if wanted.endpoints:
        op = world.persisted.operation
        listed = any(pod.serving and op is not None and pod.uid in op.member_uids for pod in world.pods)
        endpoints = data.Endpoints(NOW + 2 * MOMENT_S, listed)
    return world.quiet, Looked(
        router_pods=tuple(
            RouterPod(router.uid, f"router-{router.uid}", False, router.process, NOW - router.age_s)
            for router in world.routers
        )
        if wanted.views
        else None,
        views=tuple(views),
        serving_addresses=frozenset(pod.address for pod in seen.pods if pod.serving and pod.phase == "run"),
        reads=tuple(reads),
        endpoints=endpoints,
        neighbours=() if wanted.neighbours else None,
        live=tuple(member(pod, world.shape.size) for pod in world.pods) if wanted.live else None,
    )


#: When the pass's step is taken: after the last look.
STEP_AT = NOW + 3 * MOMENT_S


def operator_pass(
    world: World,
    protocol: Protocol,
    *,
    stale: bool = False,
    meanwhile: Callable[[World], World] | None = None,
    writes: int | None = None,
    conflict: bool = False,
) -> tuple[World, int]:
    """One pass, and how many writes it had. ``meanwhile``: what happens between the looks and the writes. ``writes``:
    killed after so many. ``conflict``: another hand has written the object meanwhile."""
    seen = world.cached if stale and world.cached is not None else now_cached(world)
    world = replace(world, cached=seen)
    bare = observation(world, seen, Looked())
    quiet, looked = look_up(world, seen, protocol.look(world.persisted, bare, NOW))
    before = world.persisted
    answer = protocol.step(before, replace(bare, looked=looked), STEP_AT)
    if meanwhile is not None:
        then, world = world, meanwhile(world)
        # Another hand's edit of the object is seen by the lock.
        conflict |= (then.wanted, then.retry, then.persisted) != (world.wanted, world.retry, world.persisted)
    # What a pass finds and does not get written is not found.
    if answer.persisted == before or not (conflict or writes == 0):
        world = _noticed(replace(world, quiet=quiet))
    _judge_answer(world, before, answer)
    for at, write in enumerate(answer.writes):
        if writes is not None and at >= writes:
            break
        if isinstance(write, data.WriteStatus) and conflict:
            break
        after = _write(world, write)
        if after is None:
            break
        world = after
    return world, len(answer.writes)


def _judge_answer(world: World, before: Persisted, answer: data.Step) -> None:
    """Of the answer as a whole: the order of its writes, and what it may not say."""
    statuses = [write for write in answer.writes if isinstance(write, data.WriteStatus)]
    if len(statuses) > 1 or (statuses and answer.writes[0] is not statuses[0]):
        raise Broken(11, "the status is not written first")
    if bool(statuses) != (answer.persisted != before):
        raise Broken(11, "what follows rests on a status that is not written")
    op, old = answer.persisted.operation, before.operation
    ended = [*answer.persisted.retained, *([op] if op is not None and op.state is State.ABORTED else [])]
    for one in ended:
        if world.began & set(one.member_uids):
            raise Broken(6, f"{one.key} is Aborted after a delete was taken")
    if op is not None and op.state not in (State.ABORTED, State.DELETING) and op.reason is not Reason.SCALED_UP_AGAIN:
        budget = {State.DRAINING: 240.0}.get(op.state, 30.0)
        started = op.phase_started_at
        if op == old and started + budget < STEP_AT:
            raise Broken(5, f"{op.key} is in {op.state.value} for {STEP_AT - started:.0f} s")
        if op.state is not State.SETTLING and op == old and op.started_at + 300.0 < STEP_AT:
            raise Broken(5, f"{op.key} runs for {STEP_AT - op.started_at:.0f} s")


def _touches(world: World) -> frozenset[str]:
    """Pods whose reservation is written."""
    ops = [op for op in (world.persisted.operation, *world.persisted.retained) if op is not None]
    return frozenset(uid for op in ops for uid in op.member_uids)


def _write(world: World, write: data.Write) -> World | None:
    """None: refused, as by a conflict."""
    if isinstance(write, data.WriteStatus):
        return replace(world, persisted=write.persisted)
    if isinstance(write, data.SetServing):
        pod = world.pod(write.uid)
        if pod is None:
            return None
        if write.uid not in _touches(world):
            raise Broken(11, f"the label of Pod {write.uid} is set without a reservation")
        if not write.serving and _is_wanted(world.cached or now_cached(world), pod.key):
            raise Broken(12, f"Pod {write.uid} of a wanted replica loses its label")
        return _noticed(world.with_pod(pod.edited(serving=write.serving)))
    if isinstance(write, data.RouteOut):
        address = write.handle.removeprefix("http://").removesuffix(":8000")
        gone = {pod.uid for pod in world.pods if pod.address == address}
        if gone - _touches(world):
            raise Broken(11, f"{write.handle} is routed out without a reservation")
        return replace(
            world,
            routers=tuple(
                one._replace(lists=one.lists - gone) if one.uid == write.router_uid else one for one in world.routers
            ),
        )
    if isinstance(write, data.RouteIn):
        return _noticed(
            replace(
                world,
                routers=tuple(
                    one._replace(lists=one.lists | {write.member_uid}) if one.uid == write.router_uid else one
                    for one in world.routers
                ),
            )
        )
    if isinstance(write, data.ClearRetry):
        token = write.value.rpartition(":")[2]
        ops = [op for op in (world.persisted.operation, *world.persisted.retained) if op is not None]
        if all(op.retry_token != token for op in ops):
            raise Broken(11, "the annotation goes before its token is kept")
        return replace(world, retry=None) if world.retry == write.value else world
    if isinstance(write, data.DeletePod):
        return _delete_pod(world, write)
    if any(pod.key == write.key and pod.phase != "ended" for pod in (world.cached or now_cached(world)).pods):
        raise Broken(3, f"the Workload of {write.key} is to be deleted while a Pod of it is seen to run")
    live = [pod for pod in world.pods if pod.key == write.key and pod.phase != "ended"]
    if live or all(uid != write.uid for uid, _ in world.workloads):
        return None  # the edge's own look at the live Pods, or gone already
    return _delete_workload(world, write.uid, by_protocol=True)


def _delete_pod(world: World, write: data.DeletePod) -> World | None:
    pod = world.pod(write.uid)
    if pod is None:
        return world  # gone already
    if write.resource_version is not None and write.resource_version != str(pod.version):
        return None
    op = world.persisted.operation
    captured = op is not None and write.uid in op.member_uids
    if pod.phase == "term":
        raise Broken(4, f"Pod {pod.uid} is deleted twice")
    whole = captured and op is not None and all(_is_there(world, uid) for uid in op.member_uids)
    if _is_wanted(world.cached or now_cached(world), pod.key) and (whole or not captured):
        raise Broken(12, f"Pod {pod.uid} of a wanted replica is deleted")
    if pod.phase == "new":
        return world.without_pod(pod.uid)
    if not captured or op is None or op.state is not State.DELETING:
        raise Broken(2, f"Pod {pod.uid} is deleted and was not captured by an operation that deletes")
    if whole:  # the first delete of the operation
        if not _is_withdrawn(world, pod.key) or _works(world, pod.key):
            raise Broken(1, f"Pod {pod.uid} is deleted and is not withdrawn or not idle")
        if dict(world.quiet).get(str(pod.key), 0) < 2:
            raise Broken(1, f"Pod {pod.uid} is deleted after {dict(world.quiet).get(str(pod.key), 0)} idle reads")
        if not op.readings:
            raise Broken(11, f"Pod {pod.uid} is deleted and no evidence is written")
    world = replace(world, began=world.began | {pod.uid})
    if pod.phase == "ended":
        return world.without_pod(pod.uid) if not _workload_of(world, pod.key) else world.with_pod(pod.edited())
    return _noticed(world.with_pod(pod.edited(phase="term", serving=pod.serving)))


def _is_there(world: World, uid: str) -> bool:
    pod = world.pod(uid)
    return pod is not None and pod.phase not in ("term", "ended")


def _delete_workload(world: World, uid: str, *, by_protocol: bool) -> World:
    key = dict(world.workloads)[uid]
    running = [pod for pod in world.pods if pod.key == key and pod.phase in ("run", "term", "new")]
    if by_protocol and running:
        raise Broken(3, f"the Workload of {key} is deleted while a Pod of it runs")
    pods = tuple(pod for pod in world.pods if pod.key != key or pod.phase != "ended")
    return replace(world, workloads=tuple(one for one in world.workloads if one[0] != uid), pods=pods)


def _workload_of(world: World, key: Key) -> bool:
    return any(one == key for _, one in world.workloads)


def _is_wanted(seen: Cache, key: Key) -> bool:
    return key.ordinal < dict(seen.wanted).get(key.role, 0)


# ---- what is true


def _replica(world: World, key: Key) -> list[Pod]:
    """Its Pods; of the one that is being removed, those that were captured."""
    op = world.persisted.operation
    captured = op.member_uids if op is not None and op.key == key else None
    return [pod for pod in world.pods if pod.key == key and (captured is None or pod.uid in captured)]


def _works(world: World, key: Key) -> bool:
    return any(pod.requests for pod in _replica(world, key) if pod.phase in ("run", "term"))


def _is_withdrawn(world: World, key: Key) -> bool:
    here = {pod.uid for pod in _replica(world, key)}
    off = not any(pod.serving for pod in _replica(world, key))
    return off and not any(router.lists & here for router in world.routers)


def _counted(world: World, key: Key) -> World:
    quiet = dict(world.quiet)
    quiet[str(key)] = min(quiet.get(str(key), 0) + 1, 2)
    return replace(world, quiet=tuple(sorted(quiet.items())))


def _noticed(world: World) -> World:
    """Reads count from the last time on that the replica bore its label or restarted. What came and went between two
    reads has harmed nobody: a delete asks for nothing in flight."""
    quiet = {
        name: count
        for name, count in world.quiet
        if (key := _key(name)) and not any(pod.serving for pod in _replica(world, key)) and not _restarted(world, key)
    }
    return replace(world, quiet=tuple(sorted(quiet.items())))


def _restarted(world: World, key: Key) -> bool:
    return any(pod.restarts for pod in _replica(world, key) if pod.index == 0)  # who answers for it


def _key(name: str) -> Key:
    role, _, ordinal = name.partition("/")
    return Key(role, int(ordinal))


# ---- time


def later(world: World, seconds: float) -> World:
    """So much later: all times move back."""

    def back(at: float | None) -> float | None:
        return None if at is None else max(round(at - seconds, 2), NOW - OLDEST_S)

    def aged(op: Operation) -> Operation:
        moved: dict[str, Any] = {name: back(getattr(op, name)) for name in _TIMES}
        # A deadline is an age too; one that is long past is as past as any.
        return replace(
            op,
            **moved,
            routers=tuple(
                Baseline(
                    one.pod_uid,
                    one.process,
                    back(one.listed_at),
                    back(one.absent_at),
                    back(one.last_absent_at),
                    one.absences,
                    one.attempts,
                )
                for one in op.routers
            ),
            readings=tuple(
                replace(one, sampled_at=back(one.sampled_at) or NOW, idle_since=back(one.idle_since))
                for one in op.readings
            ),
        )

    persisted = Persisted(
        None if world.persisted.operation is None else aged(world.persisted.operation),
        tuple(aged(op) for op in world.persisted.retained),
    )
    routers = tuple(one._replace(age_s=min(one.age_s + seconds, OLDEST_S)) for one in world.routers)
    # A cache that has heard nothing for so long is one that the operator's process does not act on.
    cached = world.cached if seconds < STALE_AT_MOST_S else None
    return replace(world, persisted=persisted, routers=routers, cached=cached)


_TIMES = tuple(one.name for one in fields(Operation) if one.name.endswith("_at") or one.name == "deadline")
assert {one.name for one in fields(Reading) if one.name.endswith("_at")} == {"sampled_at"}


# ---- what else happens


def hear(world: World) -> World:
    """Every router whose discovery works lists the Pods that bear the label, run and are not being deleted.

    sglang-gateway's drops none for its label, and takes up none that it knew before.
    """
    running = frozenset(pod.uid for pod in world.pods if pod.phase == "run")
    serving = frozenset(pod.uid for pod in world.pods if pod.serving) & running

    def heard(router: Router) -> Router:
        if not router.hears:
            return router
        if world.shape.router is RouterName.SGLANG_GATEWAY and router.lists:
            return router._replace(lists=router.lists & running)
        return router._replace(lists=serving)

    return _noticed(replace(world, routers=tuple(map(heard, world.routers))))


def finish(world: World) -> World:
    """Every request ends."""
    if world.shape.stays_busy:
        return world
    return replace(world, pods=tuple(pod._replace(requests=0) for pod in world.pods))


def kubelet(world: World) -> World:
    """Every Pod that is being deleted ends; under Kueue its object stays until the Workload goes or a Pod follows."""
    for pod in world.pods:
        if pod.phase == "term":
            kept = world.shape.kueue and _workload_of(world, pod.key)
            world = world.with_pod(pod.edited(phase="ended", requests=0)) if kept else world.without_pod(pod.uid)
    joined = {pod.key for pod in world.pods if pod.phase in ("run", "new")}  # a successor: Kueue lets go
    return replace(world, pods=tuple(pod for pod in world.pods if pod.phase != "ended" or pod.key not in joined))


def requested(world: World) -> Iterator[World]:
    """A request reaches a Pod: through a router that lists it, or through its Service while it bears the label."""
    for pod in world.pods:
        listed = any(pod.uid in router.lists for router in world.routers)
        direct = pod.serving and world.shape.router is None
        if pod.phase == "run" and pod.index == 0 and not pod.requests and (listed or direct):
            yield _noticed(world.with_pod(pod._replace(requests=1)))


def another_hand(world: World) -> Iterator[tuple[str, World]]:
    """What nobody asked the protocol about."""
    if not world.mischief:
        return
    world = replace(world, mischief=world.mischief - 1)
    for pod in world.pods:
        if pod.phase == "run":
            yield f"delete {pod.uid}", world.with_pod(pod.edited(phase="term"))
            yield f"restart {pod.uid}", _noticed(world.with_pod(pod.edited(restarts=1, requests=0)))
            if not pod.serving and pod.index == 0:
                yield f"label {pod.uid}", _noticed(world.with_pod(pod.edited(serving=True)))
        if pod.phase in ("run", "term"):
            yield f"force delete {pod.uid}", world.without_pod(pod.uid)
        if pod.phase == "new":
            yield f"start {pod.uid}", world.with_pod(pod.edited(phase="run"))
    for role, ordinal in sorted({(pod.role, pod.ordinal) for pod in world.pods} | {("a", 1)}):
        if not any(pod.key == Key(role, ordinal) and pod.phase != "ended" for pod in world.pods):
            made = Pod(str(world.next_uid), role, ordinal, 0)
            yield f"recreate {role}/{ordinal}", replace(world, pods=(*world.pods, made), next_uid=world.next_uid + 1)
    for role, count in world.wanted:
        others = tuple(one for one in world.wanted if one[0] != role)
        yield f"scale {role} to {count + 1}", replace(world, wanted=tuple(sorted((*others, (role, count + 1)))))
        if count:
            yield f"scale {role} to {count - 1}", replace(world, wanted=tuple(sorted((*others, (role, count - 1)))))
        yield f"drop {role}", replace(world, wanted=others)
    for uid, key in world.workloads:
        yield f"delete workload {key}", _delete_workload(world, uid, by_protocol=False)
    running = frozenset(pod.uid for pod in world.pods if pod.phase == "run")
    for at, router in enumerate(world.routers):
        rest = (*world.routers[:at], *world.routers[at + 1 :])
        for what, new in (
            ("deaf", router._replace(hears=not router.hears)),
            ("away", router._replace(answers=not router.answers)),
            ("new process", router._replace(process=f"{router.process}'", lists=frozenset(), age_s=0.0)),
            ("lists all", router._replace(lists=running)),
            ("lists all, away", router._replace(lists=running, answers=False)),
        ):
            yield f"router {what}", _noticed(replace(world, routers=(*rest, new)))
    for text in ("a:1:x", "a:0:y", "nonsense"):
        if world.retry != text:
            yield f"retry {text}", replace(world, retry=text)
    op = world.persisted.operation
    # What another hand writes over is not known any more.
    world = replace(world, began=frozenset(), forgot=True)
    if op is not None:
        yield "status cleared", replace(world, persisted=Persisted())
        for state in (State.DRAINING, State.DELETING):
            edited = replace(op, state=state, reason=Reason.DRAINED)
            yield f"status {state.value}", replace(world, persisted=replace(world.persisted, operation=edited))


#: A second goes by with each pass. Leaps: past the age of evidence, to a bound and past it, past the whole.
LEAPS_S = (16.0, 29.0, 31.0, 301.0)

Action = tuple[str, Callable[[], World]]


def actions(world: World, protocol: Protocol) -> Iterator[Action]:
    """Everything that can happen next."""
    if world.passes:
        yield from _passes(later(replace(world, passes=world.passes - 1), 1.0), protocol)
    moves = [*another_hand(world), *((f"request {at}", moved) for at, moved in enumerate(requested(world)))]
    for name, moved in moves:
        yield name, partial(_same, moved)
    for name, change in (("hear", hear), ("finish", finish), ("kubelet", kubelet)):
        yield name, partial(change, world)
    if world.jumps:
        for seconds in LEAPS_S:
            yield f"{seconds:g} s", partial(later, replace(world, jumps=world.jumps - 1), seconds)


def _same(world: World) -> World:
    return world


def _passes(world: World, protocol: Protocol) -> Iterator[Action]:
    """A pass in every way it can go: whole, from a stale cache, killed, refused, with something happening meanwhile."""

    def one(**how: Any) -> Callable[[], World]:
        return lambda: operator_pass(world, protocol, **how)[0]

    yield "pass", one()
    if world.cached is not None and world.cached != now_cached(world):
        yield "stale pass", one(stale=True)
    for writes in (1, 2):
        yield f"pass, killed after {writes}", one(writes=writes)
    yield "pass, conflict", one(conflict=True)
    for name, _ in another_hand(world):
        # An edit of the status: the lock, as with a conflict. A router that lists a Pod anew between its view and the
        # delete, without cause: nobody who asks it can know; what it sends then the hook's window takes.
        if not name.startswith(("status", "router lists all")):
            yield f"pass, meanwhile {name}", one(meanwhile=partial(_act, name))
    yield "pass, meanwhile a request", one(meanwhile=_a_request)


def _act(name: str, world: World) -> World:
    return dict(another_hand(world)).get(name, world)


def _a_request(world: World) -> World:
    return next(requested(world), world)


def friendly(world: World) -> World:
    """A second in which nobody does harm: routers hear and answer, requests end, the kubelet ends what is deleted."""
    routers = tuple(one._replace(hears=True, answers=True) for one in world.routers)
    return later(kubelet(finish(hear(replace(world, routers=routers)))), 1.0)


def start(shape: Shape, *, pods: tuple[Pod, ...], wanted: dict[str, int], routers: int = 1) -> World:
    keys = sorted({pod.key for pod in pods})
    lists = frozenset(pod.uid for pod in pods if pod.serving and pod.phase == "run")
    count = routers if shape.router is not None else 0
    return World(
        shape=shape,
        pods=pods,
        workloads=tuple((f"w{at}", key) for at, key in enumerate(keys)) if shape.kueue else (),
        routers=tuple(Router(f"r{at}", "p", lists) for at in range(count)),
        wanted=tuple(sorted(wanted.items())),
    )
