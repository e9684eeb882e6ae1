"""Tries everything that can happen in a small world, each world once, and holds the protocol to its rules."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from model_cluster import (
    Broken,
    Pod,
    Protocol,
    Shape,
    World,
    actions,
    friendly,
    operator_pass,
    start,
)

from operator_glue.model import RouterName
from operator_glue.retirement.data import Persisted, State
from operator_glue.retirement.step import look, step

REAL = Protocol(look, step)
#: Passes a second apart that are enough for anything that ends: two whole operations.
PATIENCE = 1000


@dataclass
class Explored:
    """``worlds`` seen, ``transitions`` taken, and how a broken rule was come to."""

    worlds: int = 0
    transitions: int = 0
    exhausted: bool = False
    broken: Broken | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        how = f"{self.broken} after: {', '.join(self.trace)}" if self.broken is not None else "no rule broken"
        return f"{self.worlds} worlds, {self.transitions} transitions{'' if self.exhausted else ', not all'}: {how}"


def explore(first: World, protocol: Protocol = REAL, *, most: int = 10**6, live_every: int = 0) -> Explored:
    """Breadth first, until nothing new happens or ``most`` worlds were seen. ``live_every``: one of so many new worlds
    is left alone, to see that everything ends (rules 8 and 9)."""
    found = Explored()
    came_from: dict[World, tuple[World | None, str]] = {first: (None, "")}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        found.worlds += 1
        name = "left alone"
        try:
            if live_every and found.worlds % live_every == 0:
                ends(world, protocol)
            for name, act in actions(world, protocol):
                found.transitions += 1
                after = act()
                if after not in came_from and len(came_from) < most:
                    came_from[after] = (world, name)
                    queue.append(after)
        except Broken as broken:
            found.broken, found.trace = broken, (*_trace(world, came_from), name)
            return found
    found.exhausted = len(came_from) < most
    return found


def explore_all(
    shape: str, protocol: Protocol = REAL, *, passes: int, mischief: int, jumps: int, live_every: int = 0
) -> Explored:
    """From every world that a friendly run of this shape goes through. Stops at the first rule that is broken."""
    total = Explored(exhausted=True)
    try:
        firsts = along(WORLDS[shape], protocol)
    except Broken as broken:
        return Explored(1, 1, False, broken, ("a friendly run",))
    for world in firsts:
        bounded = replace(world, passes=passes, mischief=mischief, jumps=jumps)
        found = explore(bounded, protocol, live_every=live_every)
        total.worlds += found.worlds
        total.transitions += found.transitions
        total.exhausted &= found.exhausted
        if found.broken is not None:
            total.broken, total.trace = found.broken, found.trace
            break
    return total


def _trace(world: World, came_from: dict[World, tuple[World | None, str]]) -> tuple[str, ...]:
    names: list[str] = []
    at: World | None = world
    while at is not None:
        at, name = came_from[at]
        if name:
            names.append(name)
    return tuple(reversed(names))


def ends(world: World, protocol: Protocol = REAL) -> World:
    """Rules 8 and 9: left alone, with a pass each second, nothing runs any more, and then nothing is written."""
    world = replace(world, mischief=0, jumps=0)
    quiet = 0
    for _ in range(PATIENCE):
        world, writes = operator_pass(world, protocol)
        world = friendly(world)
        quiet = quiet + 1 if writes == 0 else 0
        op = world.persisted.operation
        if quiet >= 3 and (op is None or op.state is State.ABORTED):
            break
    else:
        raise Broken(9, f"after {PATIENCE} s still {world.persisted.operation}")
    kept = {op.key for op in world.persisted.retained}
    wanted = dict(world.wanted)
    left = {pod.key for pod in world.pods if pod.phase in ("run", "new") and pod.ordinal >= wanted.get(pod.role, 0)}
    if left - kept:
        raise Broken(8, f"{sorted(map(str, left - kept))} are not wanted, not kept as Aborted, and still there")
    for pod in world.pods:
        back = pod.serving and all(pod.uid in router.lists for router in world.routers)
        serves = pod.ordinal < wanted.get(pod.role, 0) and pod.phase == "run" and pod.index == 0
        if serves and not back and not world.forgot:
            raise Broken(12, f"Pod {pod.uid} is wanted and is not served again")
    return world


def same_end(first: World, protocol: Protocol = REAL, passes: int = 40) -> int:
    """Rule 10: a friendly run, and each run that is killed once at some write of it. How many kills were tried."""

    def outcome(world: World) -> object:
        return (
            tuple(sorted(pod._replace(version=0) for pod in world.pods)),
            world.workloads,
            world.persisted == Persisted(),
            tuple(op.key for op in world.persisted.retained),
        )

    def run(kill_at: int | None, kill_after: int) -> tuple[object, list[int]]:
        world, counts = first, []
        for at in range(passes):
            world, count = operator_pass(world, protocol, writes=kill_after if at == kill_at else None)
            counts.append(count)
            world = friendly(world)
        return outcome(ends(world, protocol)), counts

    wanted, counts = run(None, 0)
    kills = [(at, after) for at, count in enumerate(counts) for after in range(count)]
    for at, after in kills:
        found, _ = run(at, after)
        if found != wanted:
            raise Broken(10, f"killed in pass {at} after {after} writes: {found} and not {wanted}")
    return len(kills)


def along(first: World, protocol: Protocol = REAL) -> list[World]:
    """The worlds that a friendly run goes through: the first of each state and reason, with as many Pods and reads."""
    worlds: dict[object, World] = {}
    world, quiet = first, 0
    for _ in range(PATIENCE):
        op = world.persisted.operation
        reads = () if op is None else tuple(reading.idle_reads for reading in op.readings)
        where = (None, None) if op is None else (op.key, op.state, op.reason)
        worlds.setdefault((where, reads, len(world.persisted.retained), len(world.pods)), world)
        world, writes = operator_pass(world, protocol)
        world = friendly(world)
        quiet = quiet + 1 if writes == 0 else 0
        if quiet >= 3 and world.persisted.operation is None:
            break
    return list(worlds.values())


# ---- the small worlds

_TWO = (Pod("1", "a", 0, 0), Pod("2", "a", 1, 0))
_PAIR = (Pod("1", "a", 0, 0), Pod("2", "a", 1, 0), Pod("3", "a", 1, 1, serving=False))

WORLDS = {
    "one of two": start(Shape("one of two"), pods=_TWO, wanted={"a": 1}),
    "under Kueue": start(Shape("under Kueue", kueue=True), pods=_TWO, wanted={"a": 1}),
    "two routers": start(Shape("two routers"), pods=_TWO, wanted={"a": 1}, routers=2),
    "sglang-gateway": start(Shape("sglang-gateway", router=RouterName.SGLANG_GATEWAY), pods=_TWO, wanted={"a": 1}),
    "replicas of two Pods": start(Shape("replicas of two Pods", size=2, kueue=True), pods=_PAIR[1:], wanted={"a": 1}),
    "no router": start(Shape("no router", router=None), pods=_TWO, wanted={"a": 1}),
    "ProveFromMember": start(Shape("ProveFromMember", router=None, prove_from_member=True), pods=_TWO, wanted={"a": 1}),
    "two to go": start(Shape("two to go"), pods=_TWO, wanted={"a": 0}),
    "a role dropped": start(Shape("a role dropped"), pods=(_TWO[0], Pod("2", "b", 0, 0)), wanted={"a": 1}),
    "two that stay busy": start(
        Shape("two that stay busy", stays_busy=True),
        pods=(Pod("1", "a", 0, 0), Pod("2", "a", 1, 0, requests=1)),
        wanted={"a": 0},
    ),
    "never ran": start(
        Shape("never ran", kueue=True), pods=(_TWO[0], Pod("2", "a", 1, 0, phase="new")), wanted={"a": 1}
    ),
}
