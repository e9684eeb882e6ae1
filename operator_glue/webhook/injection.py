"""The mutating webhook: the drain hook into a Pod that another platform rendered, at its admission. Pure.

What is concluded and changed is ``inject``'s (drainagent.injection), on the Pod as it is admitted: after the API server
wrote its defaults, and after LeaderWorkerSet's own webhook wrote its variables. The options of ``inject`` that a Pod
can need are its annotations. The grace is always the Pod's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drainagent.catalogue import engine_by_name
from drainagent.engine_container import SKIP_ANNOTATION, SKIP_WORDS, Wanted
from drainagent.injection import LWS_LEADER_ENV, Outcome, Request, inject_into, remove_from
from drainagent.patch import Change, Replace, apply, json_patch
from drainagent.podspec import AgentImage, Delivery, pre_stop_of, read_hook
from drainagent.timeline import DEFAULT_GRACE_S, MAX_GRACE_S, MIN_GRACE_S
from drainagent.workloads import at, is_template, shape_fault
from operator_glue.facts import ClusterFacts
from operator_glue.names import DOMAIN
from operator_glue.webhook.envelope import Answer

#: On a namespace or a Pod: "true" opts in, on a Pod "false" (or another of SKIP_WORDS) opts out.
INJECT_LABEL = SKIP_ANNOTATION
OPT_IN = "true"
#: Options of ``inject``, as annotations of the Pod.
ENGINE_ANNOTATION = f"{DOMAIN}/engine"
CONTAINER_ANNOTATION = f"{DOMAIN}/container"
PORT_ANNOTATION = f"{DOMAIN}/port"
LEADER_ENV_ANNOTATION = f"{DOMAIN}/leader-env"
REPLACE_HOOK_ANNOTATION = f"{DOMAIN}/replace-hook"
_OPTIONS = {
    "--engine": ENGINE_ANNOTATION,
    "--container": CONTAINER_ANNOTATION,
    "--port": PORT_ANNOTATION,
    "--leader-env": LEADER_ENV_ANNOTATION,
    "--replace-hook": REPLACE_HOOK_ANNOTATION,
}

#: The kubelet makes it of a file; a change would reach nothing (k8s.io/api's core/v1: MirrorPodAnnotationKey).
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
#: Of a LeaderWorkerSet's Pods (LeaderWorkerSet 0.7.0, api/leaderworkerset/v1).
LWS_NAME_LABEL = "leaderworkerset.sigs.k8s.io/name"
LWS_WORKER_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"

_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
#: What ``inject`` notes of every hook alike.
_OF_EVERY_HOOK = "a request still running "


@dataclass(frozen=True)
class Settings:
    """How the agent gets into Pods, as in ClusterFacts. ``image``: None where it is in the engine's."""

    delivery: Delivery
    image: AgentImage | None
    own_python: bool = False

    @classmethod
    def of(cls, facts: ClusterFacts) -> Settings:
        image = None if facts.delivery is Delivery.IN_IMAGE else facts.agent_image
        return cls(facts.delivery, image, facts.own_python)


def inject_pod(request: Mapping[str, Any], settings: Settings) -> Answer:
    """The answer to an AdmissionReview's request: always allowed."""
    pod = request.get("object")
    if request.get("operation") != "CREATE" or request.get("subResource") or at(request, ("kind", "kind")) != "Pod":
        return Answer()
    if not isinstance(pod, Mapping) or not is_template(pod):
        return Answer()
    fault = shape_fault(pod)
    if fault is not None:  # and the API server will refuse it
        return Answer(said=f"left as it is: {fault}")
    if str(at(pod, ("metadata", "labels", INJECT_LABEL))).lower() in SKIP_WORDS:
        return Answer(said=f"left out by its label {INJECT_LABEL}")
    if at(pod, ("metadata", "annotations", MIRROR_ANNOTATION)) is not None:
        return Answer(said="left as it is: a static Pod is the kubelet's")
    if at(pod, ("metadata", "labels", LWS_NAME_LABEL)) is not None and not _has_variable(pod, LWS_LEADER_ENV):
        # Read without them, a worker can look like its leader. We are asked again after they are there.
        return Answer(said="left as it is so far: LeaderWorkerSet's webhook has still to write its variables")
    for index, container in enumerate(pod["spec"]["containers"]):
        if read_hook(pre_stop_of(container)) is not None:
            return _with_its_grace(pod, index)
    return _injected({**pod, "kind": "Pod"}, settings)


def _with_its_grace(pod: Mapping[str, Any], index: int) -> Answer:
    """A Pod that has a drain hook keeps it; another webhook may have changed the Pod's grace since it was written."""
    container = pod["spec"]["containers"][index]
    hook = read_hook(pre_stop_of(container))
    grace_s = at(pod, ("spec", "terminationGracePeriodSeconds"))
    grace_s = DEFAULT_GRACE_S if grace_s is None else grace_s
    argv = container["lifecycle"]["preStop"]["exec"]["command"]
    told = hook.grace_s if hook is not None else None
    if told is None or told == str(grace_s):
        return Answer(said=f"container {container.get('name')} has its drain hook already")
    if not isinstance(grace_s, int) or not MIN_GRACE_S <= grace_s <= MAX_GRACE_S:
        return Answer(
            warnings=(
                f"{INJECT_LABEL}: container {container.get('name')}: the drain hook's grace is {told}, the Pod's "
                f"terminationGracePeriodSeconds {grace_s} is outside {MIN_GRACE_S} to {MAX_GRACE_S}",
            )
        )
    word = next(index for index, item in enumerate(argv) if item.partition("=")[0] == "--grace")
    path = ("spec", "containers", index, "lifecycle", "preStop", "exec", "command")
    joined = argv[word] != "--grace"
    change = Replace((*path, word if joined else word + 1), f"--grace={grace_s}" if joined else str(grace_s))
    return Answer(patch=tuple(json_patch([change])), said=f"the drain hook's grace {told} is now the Pod's, {grace_s}")


def _injected(pod: Mapping[str, Any], settings: Settings) -> Answer:
    request = _request(pod, settings)
    if isinstance(request, str):
        return _left(request)
    removals: list[Change] = []  # of an earlier injection whose hook another hand took away
    for outcome in remove_from(pod):
        if outcome.problem is not None:
            return _left(outcome.problem)
        removals += outcome.changes
    clean = apply(pod, removals)
    (outcome,) = inject_into(clean, request)
    if outcome.problem is not None:
        return _left(outcome.problem)
    if not outcome.has_engine:
        return _without_engine(pod, outcome)
    notes = tuple(f"{INJECT_LABEL}: {note}" for note in outcome.notes if not note.startswith(_OF_EVERY_HOOK))
    return Answer(warnings=notes, patch=(*json_patch(removals), *json_patch(outcome.changes)), said=outcome.said)


def _request(pod: Mapping[str, Any], settings: Settings) -> Request | str:
    """What the Pod's annotations ask for; a sentence where one is wrong."""
    given = at(pod, ("metadata", "annotations")) or {}
    engine_name, port_text, leader_env = (
        given.get(name) for name in (ENGINE_ANNOTATION, PORT_ANNOTATION, LEADER_ENV_ANNOTATION)
    )
    engine = engine_by_name(str(engine_name)) if engine_name is not None else None
    if engine_name is not None and engine is None:
        return f"annotation {ENGINE_ANNOTATION} {str(engine_name)[:100]!r} must be vllm or sglang"
    port = None
    if port_text is not None:
        if not re.fullmatch(r"[1-9][0-9]{0,4}", str(port_text)) or int(port_text) > 65535:
            return f"annotation {PORT_ANNOTATION} {str(port_text)[:100]!r} must be a port from 1 to 65535"
        port = int(port_text)
    if leader_env is not None and not _VARIABLE.fullmatch(str(leader_env)):
        return f"annotation {LEADER_ENV_ANNOTATION} {str(leader_env)[:100]!r} is no name of a variable"
    if leader_env is None and _has_variable(pod, LWS_LEADER_ENV):
        leader_env = LWS_LEADER_ENV
    return Request(
        delivery=settings.delivery,
        image=settings.image,
        wanted=Wanted(engine, given.get(CONTAINER_ANNOTATION), port),
        replace_hook=str(given.get(REPLACE_HOOK_ANNOTATION)).lower() == "true",
        leader=("--leader-env", str(leader_env)) if leader_env is not None else (),
        own_python=settings.own_python,
    )


def _left(problem: str) -> Answer:
    """``inject``'s sentence, with what stands here for the options that it names."""
    problem = problem.replace(": --grace raises it", ": raise it in the Pod's template")
    problem = problem.replace("--leader URL or --leader-env NAME", f"annotation {LEADER_ENV_ANNOTATION}")
    problem = problem.replace(" (--remove brings it back)", "")
    asked = [name for option, name in _OPTIONS.items() if re.search(rf"{option}(?![-\w])", problem)]
    way_out = f" (options of inject, here the Pod's annotations {', '.join(asked)})" if asked else ""
    return Answer(
        warnings=(f"{INJECT_LABEL}: the Pod gets no drain hook: {problem}{way_out}",), said=f"left as it is: {problem}"
    )


def _without_engine(pod: Mapping[str, Any], outcome: Outcome) -> Answer:
    if at(pod, ("metadata", "labels", LWS_WORKER_INDEX_LABEL)) in (None, "0"):
        return Answer(said=outcome.said)
    return _left(
        "a LeaderWorkerSet's worker whose command starts no engine by itself: what its leader runs stands in another "
        "Pod; drainagent inject on the LeaderWorkerSet sees both"
    )


def _has_variable(pod: Mapping[str, Any], name: str) -> bool:
    return any(
        at(variable, ("name",)) == name
        for container in pod["spec"]["containers"]
        for variable in at(container, ("env",)) or ()
    )
