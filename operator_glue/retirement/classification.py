"""Who answers for a replica, and what can be told before anything is touched. Pure.

Read from the replica as it is deployed, never from the spec: an edit elsewhere, or a role that was dropped, does not
change what its Pods are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drainagent.catalogue import VLLM, Engine
from drainagent.engine_argv import EngineCommand, Kind, read_command
from drainagent.engine_container import literal_env, words
from drainagent.podspec import Hook, agent_of, pre_stop_of, read_hook
from drainagent.url import DEFAULT_METRICS_PATH, ListenerUrl, parse_url
from drainagent.workloads import at
from operator_glue import names
from operator_glue.retirement.data import Member
from operator_glue.retirement.reasons import Reason

#: One half of a pair.
_HALVES = (Kind.PREFILL, Kind.DECODE, Kind.HALF)
_HALF_LABELS = ("Prefill", "Decode")
#: What a follower's command line has more than its leader's (operator_glue.render.command).
_HEADLESS, _NO_API_SERVER = "--headless", ["--api-server-count", "0"]
#: What an injected mesh leaves on a Pod (istio's and linkerd's injectors, istio's ambient mode).
_MESH_ANNOTATIONS = {
    "sidecar.istio.io/status": None,
    "linkerd.io/proxy-version": None,
    "ambient.istio.io/redirection": "enabled",
}
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


@dataclass(frozen=True)
class Answering:
    """The member that speaks for the replica.

    ``engine``, ``engines``: whose gauges its page has, and how many engines it shows. ``urls``: the metrics pages, as
    its hook names them; ``load_trusted``: vLLM's /load says something (one API server, and the flag for it).
    ``agent``: the argv that its hook begins with.
    """

    member_uid: str
    engine: Engine
    engines: int
    urls: tuple[str, ...]
    load_trusted: bool
    agent: tuple[str, ...]

    @property
    def url(self) -> str:
        return self.urls[0]

    def command(self, ignore_peers: Sequence[str] = ()) -> tuple[str, ...]:
        """What is run in the member."""
        return (
            *self.agent,
            "check",
            "--json",
            "--engine",
            self.engine.option,
            *(word for url in self.urls for word in ("--url", url)),
            *(word for peer in ignore_peers for word in ("--ignore-peer", peer)),
        )


@dataclass(frozen=True)
class Unanswerable:
    """Nobody can speak for it. ``message``: a sentence with the facts."""

    reason: Reason
    message: str


def classify(
    members: Sequence[Member], neighbours: Sequence[Mapping[str, Any]] | None, *, prove_from_member: bool
) -> Answering | Unanswerable:
    """``members``: the replica's Pods. ``neighbours``: all Pods on the nodes of those with the node's network, None
    where they could not be listed."""
    alive = [member for member in members if not member.ended]
    if not alive:
        return Unanswerable(Reason.NO_LEADER, "No Pod of the replica is left.")
    # What a member does of a request comes first: a half stays one whoever would answer for it, and whoever wrote its
    # command line.
    for member in alive:
        half = _half(member)
        if half is not None:
            return half
    leader = _leader(alive)
    if isinstance(leader, Unanswerable):
        return leader
    return _answering(leader, neighbours, prove_from_member)


def node_names(members: Sequence[Member]) -> tuple[str, ...]:
    """Nodes whose Pods are to be listed, since a member uses their network."""
    found = (at(member.pod, ("spec", "nodeName")) for member in members if _on_host(member.pod))
    return tuple(dict.fromkeys(name for name in found if isinstance(name, str) and name))


# ---- one member


def _main(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    for item in _list(pod, "spec", "containers"):
        if item.get("name") == names.MAIN_CONTAINER:
            return item
    return {}


def _list(value: Any, *path: str) -> list[Mapping[str, Any]]:
    found = at(value, path)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _label(member: Member, name: str) -> str | None:
    found = at(member.pod, ("metadata", "labels", name))
    return found if isinstance(found, str) else None


def _annotation(member: Member, name: str) -> str | None:
    found = at(member.pod, ("metadata", "annotations", name))
    return found if isinstance(found, str) else None


def _env(container: Mapping[str, Any]) -> dict[str, str]:
    items = [item for item in _list(container, "env") if isinstance(item.get("name"), str)]
    return literal_env({**container, "env": items})


def _argv(member: Member) -> list[str]:
    main = _main(member.pod)
    return [*words(main.get("command")), *words(main.get("args"))]


def _command(member: Member) -> EngineCommand | None:
    """Its engine's command line; None where it starts none that is known."""
    found = read_command(_argv(member), _env(_main(member.pod)))
    return found if isinstance(found, EngineCommand) else None


def _hook(member: Member) -> Hook | None:
    return read_hook(pre_stop_of(_main(member.pod)))


def _half(member: Member) -> Unanswerable | None:
    """Whether it is one half of a pair: its command line says so, or the label that it was rendered with."""
    command = _command(member)
    if command is not None and command.kind in _HALVES:
        balance = f", {command.balance} data-parallel balance" if command.balance != "internal" else ""
        return Unanswerable(
            Reason.PREFILL_DECODE,
            f"Pod {member.name} runs {command.engine.name} as {command.kind.value} by its command line{balance}.",
        )
    label = _label(member, names.ROLE_KIND_LABEL)
    if label in _HALF_LABELS:
        return Unanswerable(Reason.PREFILL_DECODE, f"Pod {member.name} has the label {names.ROLE_KIND_LABEL}={label}.")
    if command is not None and command.kind is Kind.UNREADABLE:
        why = "; ".join(str(item) for item in command.unread) or "a file can say it"
        return Unanswerable(Reason.UNREADABLE_COMMAND, f"Pod {member.name}: {why}.")
    return None


# ---- the replica


def deployed_size(member: Member) -> int | None:
    """The Pods of its replica, as it was told at its start; None where it was told nothing that is a number."""
    told = _env(_main(member.pod)).get(names.REPLICA_SIZE_ENV)
    if told is None:
        told = _annotation(member, names.POD_GROUP_TOTAL_COUNT_ANNOTATION) or "1"
    return int(told) if told.isascii() and told.isdigit() and len(told) < 6 else None


def _leader(alive: Sequence[Member]) -> Member | Unanswerable:
    sizes = {deployed_size(member) for member in alive}
    if len(sizes) > 1 or None in sizes:
        told = ", ".join(f"{member.name} {deployed_size(member)}" for member in alive)
        return Unanswerable(Reason.MEMBERS_DISAGREE, f"The replica's size, as each member was told it: {told}.")
    (size,) = sizes
    leaders = [member for member in alive if member.index == 0]
    if len(leaders) != 1:
        where = ", ".join(f"{member.name} {'none' if member.index is None else member.index}" for member in alive)
        reason = Reason.SEVERAL_LEADERS if leaders else Reason.NO_LEADER
        return Unanswerable(reason, f"{len(leaders)} of {len(alive)} members carry index 0: {where}.")
    if size != len(alive):
        message = f"The replica has {len(alive)} members and was deployed with {size}."
        return Unanswerable(Reason.WRONG_SIZE, message)
    indices = sorted(member.index for member in alive if member.index is not None)
    if indices != list(range(len(alive))):
        return Unanswerable(Reason.MEMBERS_DISAGREE, f"The members' indices are {', '.join(map(str, indices))}.")
    (leader,) = leaders
    expected = _configuration(leader)
    for member in alive:
        found = _configuration(member)
        differs = [name for name, value in found.items() if value != expected[name]]
        if differs:
            message = f"Pods {leader.name} and {member.name} differ in their {differs[0]}."
            return Unanswerable(Reason.MEMBERS_DISAGREE, message)
    return leader


def _configuration(member: Member) -> dict[str, Any]:
    """What the members of a replica have in common."""
    main = _main(member.pod)
    argv = _argv(member)
    if member.index != 0:
        if argv[-2:] == _NO_API_SERVER:
            argv = argv[:-2]
        argv = [word for word in argv if word != _HEADLESS]
    env = {name: value for name, value in _env(main).items() if not name.startswith("DRAINAGENT_")}
    return {
        "spec hash": _annotation(member, names.SPEC_HASH_ANNOTATION),
        "kind": _label(member, names.ROLE_KIND_LABEL),
        "image": main.get("image"),
        "command line": argv,
        "environment": env,
    }


def _answering(leader: Member, neighbours: Sequence[Mapping[str, Any]] | None, prove: bool) -> Answering | Unanswerable:
    command, hook = _command(leader), _hook(leader)
    port = _annotation(leader, names.PORT_ANNOTATION)
    if hook is None and port is None:  # what a rendered role that sets command lacks
        message = f"Pod {leader.name} has neither a drain hook nor a scrape annotation with a port."
        return Unanswerable(Reason.TAKE_OVER, message)
    if command is None:
        found = read_command(_argv(leader), _env(_main(leader.pod)))
        why = "" if isinstance(found, EngineCommand) else f": {found.why}"
        return Unanswerable(Reason.UNKNOWN_ENGINE, f"Pod {leader.name} starts no engine that is known{why}.")
    if hook is None:
        return Unanswerable(Reason.NO_AGENT, f"Pod {leader.name} has no drain hook that names an agent.")
    urls = _urls(leader, hook, command)
    if isinstance(urls, str):
        return Unanswerable(Reason.LISTENER_UNKNOWN, f"Pod {leader.name}: {urls}.")
    ports = {url.port for url in urls}
    if _on_host(leader.pod):
        ambiguous = _ambiguity(leader, ports, neighbours)
        if ambiguous is not None:
            return Unanswerable(Reason.AMBIGUOUS_LISTENER, ambiguous)
    if prove:
        beside = _beside_main(leader)
        if beside is not None:
            return Unanswerable(Reason.PROXIED_LISTENER, f"In Pod {leader.name}, {beside}.")
    return Answering(
        member_uid=leader.uid,
        engine=command.engine,
        engines=command.engines,
        urls=tuple(str(url) for url in urls),
        load_trusted=command.engine is VLLM and command.load_tracking and command.api_server_count == 1,
        agent=agent_of(pre_stop_of(_main(leader.pod))) or (),
    )


def _urls(leader: Member, hook: Hook, command: EngineCommand) -> tuple[ListenerUrl, ...] | str:
    """The pages over loopback, where annotations, hook and command line agree on them; else a phrase."""
    scrape, scheme = _annotation(leader, names.SCRAPE_ANNOTATION), _annotation(leader, names.SCHEME_ANNOTATION)
    port, path = _annotation(leader, names.PORT_ANNOTATION), _annotation(leader, names.PATH_ANNOTATION)
    if scrape != "true" or port is None or not _PORT.fullmatch(port):
        return (
            f"its scrape annotations name no port ({names.SCRAPE_ANNOTATION} {scrape}, {names.PORT_ANNOTATION} {port})"
        )
    if command.no_listener is not None:
        return command.no_listener
    if int(port) not in command.ports or any(item.flag in ("--port", "--uds", "--host") for item in command.unread):
        return f"its scrape annotation says port {port}, and its command line {', '.join(map(str, command.ports))}"
    if not command.metrics:
        return f"{command.engine.name} serves no gauges by its command line"
    wanted = (scheme or "http", path or DEFAULT_METRICS_PATH)
    try:
        urls = tuple(parse_url(url) for url in hook.urls)
    except ValueError as error:
        return f"its hook's URL cannot be read: {error}"
    if not urls:
        urls = (ListenerUrl(wanted[0], "127.0.0.1", int(port), wanted[1]),)
    if {url.port for url in urls} != set(command.ports) or int(port) != urls[0].port:
        return f"its hook reads port {', '.join(str(url.port) for url in urls)}, and its scrape annotation says {port}"
    if any((url.scheme, url.path) != wanted for url in urls):
        return f"its hook reads {urls[0]}, and its scrape annotations say {wanted[0]} and {wanted[1]}"
    if any(url.host not in ("127.0.0.1", "::1", "localhost") for url in urls):
        return f"its hook reads {urls[0]}, which is not on loopback"
    return urls


# ---- networks that are shared


def _on_host(pod: Mapping[str, Any]) -> bool:
    return at(pod, ("spec", "hostNetwork")) is True


def _ambiguity(leader: Member, ports: set[int], neighbours: Sequence[Mapping[str, Any]] | None) -> str | None:
    if neighbours is None:
        return f"Pod {leader.name} uses its node's network, and the Pods of that node could not be listed."
    node = at(leader.pod, ("spec", "nodeName"))
    for pod in neighbours:
        if at(pod, ("metadata", "uid")) == leader.uid or at(pod, ("spec", "nodeName")) != node:
            continue
        taken = ports & set(_host_ports(pod))
        if taken:
            namespace, name = at(pod, ("metadata", "namespace")), at(pod, ("metadata", "name"))
            return f"Pod {namespace}/{name} on node {node} declares port {min(taken)} too, on the node's network."
    return None


def _host_ports(pod: Mapping[str, Any]) -> Iterator[int]:
    on_host = _on_host(pod)
    for container in (*_list(pod, "spec", "containers"), *_list(pod, "spec", "initContainers")):
        for item in _list(container, "ports"):
            for key in ("hostPort", "containerPort") if on_host else ("hostPort",):
                port = item.get(key)
                if isinstance(port, int):
                    yield port


def _beside_main(leader: Member) -> str | None:
    """What runs beside the engine in its network and may hold clients that its own socket table does not show.

    Any container: what it does with the port is written nowhere.
    """
    for item in _list(leader.pod, "spec", "containers"):
        if item.get("name") != names.MAIN_CONTAINER:
            return f"container {item.get('name')} runs beside {names.MAIN_CONTAINER}"
    for item in _list(leader.pod, "spec", "initContainers"):
        if item.get("restartPolicy") == "Always":
            return f"the restartable init container {item.get('name')} runs beside {names.MAIN_CONTAINER}"
    for name, value in _MESH_ANNOTATIONS.items():
        found = _annotation(leader, name)
        if found is not None and value in (None, found):
            return f"annotation {name} says that a mesh has its port"
    return None
