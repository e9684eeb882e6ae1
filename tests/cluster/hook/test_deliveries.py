"""Each delivery and engine: the hook starts, the window holds, and no request that could finish is lost."""

from __future__ import annotations

import pytest
from load import ClientPlan, Request

from hook.clients import epoch_s, stream
from hook.contract import check_status, check_window, moments
from hook.manifests import (
    DELIVERIES,
    ENGINES,
    PORTS,
    TOKENS_PER_S,
    Delivery,
    Engine,
    deployment,
    engine_container,
    image_of,
    pod,
    with_hook_arguments,
)
from hook.replica import Seen
from hook.stage import Stage, sleep_until

KILLED = 137


def deliveries_and_engines() -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("delivery", "engine"), [(delivery, engine) for delivery in DELIVERIES for engine in ENGINES]
    )


def load() -> tuple[ClientPlan, ...]:
    """All can finish by G - 5: one ends in the settle, two arrive from a router that has not heard yet."""
    return (stream(-3, 2), stream(-2, 8), stream(1.5, 6), stream(4.5, 9))


@pytest.mark.alone
def test_starts_and_idle_deletes_with_nothing_beside_them(stage: Stage) -> None:
    stage.curtain()
    replicas = []
    for delivery in DELIVERIES * 3:
        plain = pod(stage.name("start"), [engine_container("vllm", image=image_of(delivery))])
        replica = stage.start(stage.inject(plain, delivery))
        created = replica.wait("its creation", lambda c: c.kind == "ADDED", 1)
        started_s = replica.process("main").started_s
        assert started_s is not None
        name, meaning = f"{delivery}: Pod created to engine started", "the API server's word of it to containerd's"
        stage.figures.add(name, meaning, started_s - created.at_s, spread=True)
        if delivery == "init-container":
            copy = replica.process("drainagent")
            assert copy.started_s is not None
            assert copy.ended_s is not None
            stage.figures.add(
                "the agent's copy", "the init container's process", copy.ended_s - copy.started_s, spread=True
            )
        replicas.append(replica)
    stage.quiet()
    deletes = []
    for replica in replicas:
        sleep_until(stage.turn())
        deletes.append((replica, replica.place.api.delete_pod(replica.name)))
    for replica, deleted in deletes:
        seen = replica.seen(deleted, 30)
        check_window(seen, 30)
        for name, meaning, value_s in moments(seen):
            stage.figures.add(f"alone: {name}", meaning, value_s, spread=True)


@pytest.mark.seconds(8)
@deliveries_and_engines()
def test_an_idle_replica_is_back_after_6_s(stage: Stage, delivery: Delivery, engine: Engine) -> None:
    # No grace in the manifest: inject writes Kubernetes' 30.
    plain = pod(stage.name("idle"), [engine_container(engine, image=image_of(delivery))])
    replica = stage.start(stage.inject(plain, delivery))
    assert replica.object["spec"]["terminationGracePeriodSeconds"] == 30
    stage.curtain()
    seen = stage.leave(replica, 30)
    check_window(seen, 30, stage.figures)
    check_status(seen, 0)
    assert seen.outcome["outcome"] == "idle", seen.text
    assert seen.hook is not None
    assert seen.hook.started_s is not None
    assert seen.hook.ended_s is not None
    back_s = seen.hook.ended_s - seen.hook.started_s
    # The second read is at 6 s. A probe of the kubelet that is just there at one of the two costs one more.
    assert seen.since_s(seen.hook.ended_s) >= 6
    assert back_s <= 10, f"back after {back_s:.3f} s"
    assert len(seen.reads_s) >= 2
    stage.figures.add("idle replica, delete to return", "the hook's end", seen.since_s(seen.hook.ended_s), spread=True)
    stage.figures.add(f"idle {engine}, delete to exit", "stand-in", seen.since_s(seen.main.ended_s), spread=True)


@pytest.mark.seconds(13)
@deliveries_and_engines()
def test_requests_that_can_finish_do(stage: Stage, delivery: Delivery, engine: Engine) -> None:
    plain = pod(stage.name("load"), [engine_container(engine, image=image_of(delivery))], 30)
    replica = stage.start(stage.inject(deployment(plain), delivery))
    stage.curtain()
    seen = stage.leave(replica, 30, load(), port=PORTS[engine])
    check_window(seen, 30, stage.figures)
    assert seen.lost == []
    assert seen.outcome["outcome"] == "idle", seen.text
    assert seen.hook is not None
    assert seen.hook.ended_s is not None
    last_s = max(epoch_s(answer.ended) for answer in seen.answers if answer.ended is not None)
    after_s = seen.hook.ended_s - last_s
    # Not before the second idle read in a row.
    assert after_s >= 1, f"the hook returned {after_s:.3f} s after the last byte"
    stage.figures.add(f"{engine}, last byte to return", "clients close their connections", after_s, spread=True)
    _add_requests(stage, seen, f"{engine} with the hook")


@pytest.mark.seconds(17)
@deliveries_and_engines()
def test_a_busy_replica_is_back_between_5_and_3_s_before_the_kill(
    stage: Stage, delivery: Delivery, engine: Engine
) -> None:
    plain = pod(stage.name("busy"), [engine_container(engine, image=image_of(delivery))], 15)
    replica = stage.start(stage.inject(plain, delivery))
    stage.curtain()
    seen = stage.leave(replica, 15, (stream(-2, 5), stream(-1, 60)), port=PORTS[engine])
    check_window(seen, 15, stage.figures)
    assert seen.outcome["outcome"] == "deadline", seen.text
    assert len(seen.lost) == 1, "one request outlasts the window, the other does not"
    assert seen.hook is not None
    assert seen.hook.started_s is not None
    assert seen.hook.ended_s is not None
    back_s = seen.hook.ended_s - seen.hook.started_s
    assert seen.since_s(seen.hook.ended_s) >= 10
    assert back_s <= 15 - 3, f"back after {back_s:.3f} s"
    assert seen.main.ended_s is not None
    gone_s = seen.main.ended_s - seen.hook.started_s
    # vLLM aborts at SIGTERM; SGLang drains, and only the kill ends what does not.
    check_status(seen, 0 if engine == "vllm" else KILLED)
    if engine == "sglang":
        assert seen.since_s(seen.main.ended_s) >= 15
        stage.figures.add(
            "killed after the grace",
            "SGLang drains beyond G = 15: from G after the hook's start",
            gone_s - 15,
            spread=True,
        )
    stage.figures.add("busy replica, return before the kill", "G = 15: G - the hook's end", 15 - back_s, spread=True)


#: In one step of 4 s, in which the gauges stay what they were.
LONG_PROMPT = 3500
SLOW_PREFILL = ("--prefill-tokens-per-second", "850", "--max-num-batched-tokens", "32768")


@pytest.mark.seconds(12)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gauges_only", [False, True], ids=["", "gauges-only"])
def test_a_quiet_replica_that_a_long_prompt_reaches_late(stage: Stage, engine: Engine, gauges_only: bool) -> None:
    plain = pod(stage.name("quiet"), [engine_container(engine, *SLOW_PREFILL)], 30)
    more = ["--gauges-only"] if gauges_only else []
    replica = stage.start(with_hook_arguments(stage.inject(plain), *more))
    stage.curtain()
    late = ClientPlan((Request(3.5, prompt=LONG_PROMPT, tokens=2 * TOKENS_PER_S),))
    seen = stage.leave(replica, 30, (late,), port=PORTS[engine])
    check_window(seen, 30, stage.figures)
    # The gauges alone do not see it, which is what the other two are there to show.
    assert gauges_only or seen.lost == []
    assert seen.outcome["outcome"] == "idle", seen.text
    assert seen.hook is not None
    name = f"{engine}, a long prompt reaches it late{', --gauges-only' if gauges_only else ''}"
    stage.figures.add(f"{name}: return", "from the delete", seen.since_s(seen.hook.ended_s))
    stage.figures.add(f"{name}: lost", "of 1", len(seen.lost), "requests")


@pytest.mark.seconds(13)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_same_deployment_loses_without_a_hook(stage: Stage, engine: Engine) -> None:
    plain = deployment(pod(stage.name("bare"), [engine_container(engine)], 30))
    replica = stage.start(plain)
    stage.curtain()
    seen = stage.leave(replica, 30, load(), port=PORTS[engine])
    assert seen.hook is None
    assert seen.sigterm_s is not None
    assert seen.since_s(seen.sigterm_s) <= 2
    if engine == "vllm":
        # Aborted at SIGTERM, or refused from there on.
        assert len(seen.lost) == len(seen.answers)
    _add_requests(stage, seen, f"{engine} without a hook")
    stage.figures.add("no hook, delete to SIGTERM", "the engine's line", seen.since_s(seen.sigterm_s), spread=True)


def _add_requests(stage: Stage, seen: Seen, who: str) -> None:
    meaning = "requests of a load that can all finish by G - 5; G = 30"
    stage.figures.add(f"{who}: requests", meaning, len(seen.answers), "requests")
    stage.figures.add(f"{who}: lost", meaning, len(seen.lost), "requests")
