"""What ``inject`` does to one Kubernetes object: what it concludes, changes, notes and leaves undone. Pure.

The command (drainagent.workstation.inject) and the operator's webhook are edges around this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from drainagent.catalogue import SGLANG, VLLM
from drainagent.engine_argv import EngineCommand, Kind, read_arguments, read_command
from drainagent.engine_container import (
    LOAD_TRACKING_SINCE,
    SKIP_ANNOTATION,
    SKIP_WORDS,
    EngineContainer,
    NoEngine,
    Unsure,
    Wanted,
    find_engine,
    image_release,
    literal_env,
    words,
)
from drainagent.engine_start import NotAnEngine
from drainagent.patch import Change, Path, Remove
from drainagent.podspec import (
    ENGINE_PYTHON,
    OWN_PYTHON,
    AgentImage,
    BadRecordError,
    Delivery,
    Hook,
    Injection,
    changes_to_inject,
    changes_to_remove,
    is_mounted,
    missing_of_delivery,
    pre_stop_of,
    read_hook,
)
from drainagent.timeline import DEFAULT_GRACE_S, LAST_READ_BEFORE_KILL_S, MAX_GRACE_S, MIN_GRACE_S, SPLIT_GRACE_S
from drainagent.url import ListenerUrl
from drainagent.workloads import Member, Place, at, places, shape_fault

#: In every container of a LeaderWorkerSet's Pods (LeaderWorkerSet 0.7.0, api/leaderworkerset/v1: LwsLeaderAddress).
LWS_LEADER_ENV = "LWS_LEADER_ADDRESS"

_METRICS_FLAG = "--enable-metrics"
_LOAD_FLAG = "--enable-server-load-tracking"


@dataclass(frozen=True)
class Request:
    """What the user asked for. ``image`` is None with the agent in the engine's image. ``grace_s``: at least this.

    ``leader``: the hook's option for Pods without a listener of their own, outside of a LeaderWorkerSet.
    """

    delivery: Delivery = Delivery.INIT_CONTAINER
    image: AgentImage | None = None
    wanted: Wanted = field(default_factory=Wanted)
    grace_s: int | None = None
    replace_hook: bool = False
    leader: tuple[str, ...] = ()
    own_python: bool = False


@dataclass(frozen=True)
class Outcome:
    """One Pod template. ``said``: what was concluded. ``problem``: why it was left as it was, None when it was not.

    ``changes``: with paths from the object's root. ``has_engine``: an engine runs here, or may.
    """

    place: Place
    said: str
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str | None = None
    has_engine: bool = True


class _ProblemError(Exception):
    """Why a template is left as it is; a sentence."""


@dataclass(frozen=True)
class _Found:
    """The engine of a template and the hook that it wants, but for the grace."""

    container: EngineContainer
    urls: tuple[str, ...]
    leader: tuple[str, ...] = ()


def remove_from(found: Mapping[str, Any]) -> list[Outcome]:
    """Takes earlier injections out of an object."""
    outcomes = []
    for place in places(found):
        template = at(found, place.path)
        try:
            _refuse_fault(template)
            changes = changes_to_remove(template)
        except (_ProblemError, BadRecordError) as error:
            outcomes.append(Outcome(place, "", problem=str(error)))
            continue
        if changes:
            outcomes.append(Outcome(place, "taken out", _from_root(place, changes)))
        elif any(read_hook(pre_stop_of(item)) for item in at(template, ("spec", "containers"))):
            outcomes.append(
                Outcome(place, "", problem="it has a drain hook that inject did not put there; take it out by hand")
            )
    return outcomes


def extra_options(found: Mapping[str, Any]) -> dict[Path, tuple[str, ...]]:
    """The options that another hand gave to injected hooks, by the path of their templates: kept when injected anew."""
    kept: dict[Path, tuple[str, ...]] = {}
    for place in places(found):
        for container in at(found, (*place.path, "spec", "containers")):
            hook = read_hook(pre_stop_of(container))
            if hook is not None and hook.extra:
                kept[place.path] = hook.extra
    return kept


def inject_into(
    found: Mapping[str, Any], request: Request, extra: Mapping[Path, tuple[str, ...]] | None = None
) -> list[Outcome]:
    """Injects into each Pod template of an object that carries no injection yet (``remove_from`` first).

    ``extra``: options that hooks had before (``extra_options``).
    """
    outcomes = []
    leader_grace_s = 0
    for place, template, hit in _engines(found, request):
        if isinstance(hit, Outcome):
            outcomes.append(hit)
            continue
        try:
            least_s = leader_grace_s if place.member is Member.WORKER else 0
            if place.member is Member.LEADER:
                leader_grace_s = _grace(template, request)[0]
            outcomes.append(_inject(place, template, hit, request, (extra or {}).get(place.path), least_s))
        except (_ProblemError, ValueError) as error:
            outcomes.append(Outcome(place, _runs(hit), problem=str(error)))
    return outcomes


def verify(found: Mapping[str, Any], request: Request) -> list[Outcome]:
    """Whether each engine of an object has the hook that ``inject_into`` would give it. Nothing is changed."""
    outcomes = []
    for place, template, hit in _engines(found, request):
        if isinstance(hit, Outcome):
            outcomes.append(hit)
            continue
        try:
            outcomes.append(Outcome(place, _runs(hit), notes=_verify(template, hit, request)))
        except (_ProblemError, ValueError) as error:
            outcomes.append(Outcome(place, _runs(hit), problem=str(error)))
    return outcomes


# ---- which engine


def _engines(found: Mapping[str, Any], request: Request) -> Iterator[tuple[Place, Mapping[str, Any], _Found | Outcome]]:
    """Each Pod template with its engine, or with what is said instead. A leader comes before its workers."""
    leader: _Found | None = None
    for place in places(found):
        template = at(found, place.path)
        try:
            _refuse_fault(template)
            hit = _engine(place, template, request, leader)
        except _ProblemError as error:
            hit = Outcome(place, "", problem=str(error))
        if isinstance(hit, _Found) and place.member is Member.LEADER:
            leader = hit
        yield place, template, hit


def _refuse_fault(template: Mapping[str, Any]) -> None:
    fault = shape_fault(template)
    if fault is not None:
        raise _ProblemError(fault)


def _engine(place: Place, template: Mapping[str, Any], request: Request, leader: _Found | None) -> _Found | Outcome:
    if str(at(template, ("metadata", "annotations", SKIP_ANNOTATION))).lower() in SKIP_WORDS:
        return Outcome(place, f"left out by annotation {SKIP_ANNOTATION}", has_engine=False)
    hit = find_engine(template, request.wanted)
    if place.member is Member.WORKER and leader is not None:
        return _worker(template, hit, leader)
    if isinstance(hit, NoEngine):
        return Outcome(place, f"no engine: {hit.why}", has_engine=False)
    if isinstance(hit, Unsure):
        raise _ProblemError(hit.why)
    every_pod_serves = (
        hit.command is not None and hit.command.engine is VLLM and hit.command.balance in ("hybrid", "external")
    )
    if place.member is Member.BOTH and not every_pod_serves:
        raise _ProblemError(
            "leader and workers share one template, so that no hook is right for both: give it a leaderTemplate"
        )
    command = hit.command
    if command is None or command.no_listener is None:
        if place.member is Member.ONLY and command is not None:
            _refuse_open_rank(hit, command)
        return _Found(hit, _urls(hit))
    if command.uds is not None or "gRPC" in command.no_listener:
        raise _ProblemError(f"container {hit.name}: {command.no_listener}; the hook reads HTTP only")
    if not request.leader:
        raise _ProblemError(
            f"container {hit.name} has no listener of its own ({command.no_listener}): its hook must watch its leader, "
            f"which --leader URL or --leader-env NAME names"
        )
    return _Found(hit, _urls(hit), request.leader)


def _refuse_open_rank(hit: EngineContainer, command: EngineCommand) -> None:
    ranks = [item for item in command.unread if item.flag == "--node-rank"]
    if ranks:
        raise _ProblemError(
            f"container {hit.name}: whether it leads or follows is decided where it runs ({ranks[0]}), and no hook is "
            f"right for both: give leader and followers templates of their own"
        )


def _worker(template: Mapping[str, Any], hit: EngineContainer | NoEngine | Unsure, leader: _Found) -> _Found:
    """A worker's container: by its own command line, else the one like its leader's."""
    if isinstance(hit, EngineContainer) and hit.command is not None and _serves_itself(hit.command):
        return _Found(hit, _urls(hit))
    if isinstance(hit, EngineContainer):
        index, how = hit.index, "a worker of its leader's engine"
    else:
        containers = at(template, ("spec", "containers"))
        name = leader.container.name
        alike = [index for index, item in enumerate(containers) if at(item, ("name",)) == name]
        if not alike and len(containers) == 1:
            alike = [0]
        if not alike:
            raise _ProblemError(f"which container is the engine's worker cannot be read ({hit.why}): name it {name}")
        index, how = alike[0], "a worker of its leader's engine, whose command starts none by itself"
    name = str(at(template, ("spec", "containers", index, "name")))
    container = EngineContainer(
        index, name, leader.container.engine, leader.container.ports, leader.container.tls, how, None
    )
    return _Found(container, leader.urls[:1], ("--leader-env", LWS_LEADER_ENV))


def _serves_itself(command: EngineCommand) -> bool:
    """A worker with requests of its own: vLLM's API server runs in it (hybrid or external data-parallel balance)."""
    rank_is_open = any(item.flag == "--node-rank" for item in command.unread)
    return command.engine is VLLM and command.no_listener is None and command.node_rank == 0 and not rank_is_open


def _urls(hit: EngineContainer) -> tuple[str, ...]:
    scheme = "https" if hit.tls else "http"
    return tuple(str(ListenerUrl(scheme, "127.0.0.1", port)) for port in hit.ports)


def _runs(hit: _Found) -> str:
    container = hit.container
    ports = f"port{'s' if len(container.ports) > 1 else ''} {', '.join(map(str, container.ports))}"
    if hit.leader:
        return f"container {container.name}: {container.engine.name}, follower ({container.how}); watches its leader"
    return f"container {container.name}: {container.engine.name} on {ports} ({container.how})"


# ---- what it gets


def _inject(
    place: Place,
    template: Mapping[str, Any],
    hit: _Found,
    request: Request,
    extra: tuple[str, ...] | None,
    least_grace_s: int,
) -> Outcome:
    container = at(template, ("spec", "containers", hit.container.index))
    before = pre_stop_of(container)
    own = read_hook(before)
    if before is not None and own is None and not request.replace_hook:
        raise _ProblemError(
            f"container {hit.container.name} has a preStop hook of its own ({_shown(before)}); --replace-hook puts the "
            f"drain hook in its place (--remove brings it back), which keeps serving for 5 s before it reads anything"
        )
    # A worker outlives its leader's requests only with the leader's grace.
    grace_s, grace_notes = _grace(template, request, least_grace_s)
    flags, flag_notes = ((), ()) if hit.leader else _flags(hit.container, container)
    hook = replace(
        _hook(hit, request, grace_s), extra=extra if extra is not None else own.extra if own is not None else ()
    )
    injection = Injection(hit.container.index, hook, request.delivery, request.image, grace_s, flags)
    said = [_runs(hit), "hook"]
    said += [f"{flag} added to its command" for flag in flags]
    if own is None and before is not None:
        said.append(f"in place of its own preStop ({_shown(before)})")
    said.append(f"grace {grace_s} s")
    said.append("agent in the image" if request.image is None else f"agent by {request.delivery.value}")
    return Outcome(
        place,
        "; ".join(said),
        _from_root(place, changes_to_inject(template, injection)),
        (*grace_notes, *flag_notes, *_notes(template, hit, grace_s)),
    )


def _hook(hit: _Found, request: Request, grace_s: int) -> Hook:
    python = OWN_PYTHON if request.own_python else ENGINE_PYTHON
    return Hook(hit.container.engine, hit.urls, str(grace_s), hit.leader, (), python)


def _grace(template: Mapping[str, Any], request: Request, least_s: int = 0) -> tuple[int, tuple[str, ...]]:
    """The Pod's grace from now on. It is raised where asked and never lowered."""
    written = at(template, ("spec", "terminationGracePeriodSeconds"))
    name = "terminationGracePeriodSeconds"
    if written is not None and (not isinstance(written, int) or isinstance(written, bool)):
        raise _ProblemError(f"{name} {written!r} must be a whole number from {MIN_GRACE_S} to {MAX_GRACE_S}")
    now = DEFAULT_GRACE_S if written is None else written
    grace_s = max(now, request.grace_s or 0, least_s)
    if not MIN_GRACE_S <= grace_s <= MAX_GRACE_S:
        way_out = "--grace raises it" if grace_s < MIN_GRACE_S else "lower it in the manifest"
        raise _ProblemError(f"{name} {grace_s} is outside {MIN_GRACE_S} to {MAX_GRACE_S}: {way_out}")
    if request.grace_s is not None and request.grace_s < now:
        set_by = "Kubernetes' default" if written is None else "the manifest"
        return grace_s, (f"grace stays {now} s ({set_by}): --grace {request.grace_s} never lowers it",)
    return grace_s, ()


def _flags(hit: EngineContainer, container: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The flags to add to the engine's command, and notes on those that are not."""
    command = hit.command
    if command is None:
        flag = _METRICS_FLAG if hit.engine is SGLANG else _LOAD_FLAG
        return (), (
            f"its command was not read: {flag} must stand on it" + ("" if hit.engine is SGLANG else ", or not"),
        )
    if command.engine is SGLANG:
        if command.metrics:
            return (), ()
        if not _can_append(container, _METRICS_FLAG):
            raise _ProblemError(
                f"container {hit.name}: SGLang needs {_METRICS_FLAG} to have a metrics page, and its command is no "
                f"list that a flag can be added to; add it there"
            )
        return (_METRICS_FLAG,), ()
    if not command.metrics:
        raise _ProblemError(f"container {hit.name}: --disable-log-stats takes vLLM's gauges away; drop it")
    if command.load_tracking or command.no_listener is not None:
        return (), ()
    if command.api_server_count != 1 and not any(item.flag.startswith("--data-parallel") for item in command.unread):
        return (), (
            f"{command.api_server_count} API servers: a gauge can stay above zero, so that a delete waits until G - 5; "
            f"--api-server-count 1 is the way out",
        )
    without = "without it a client that keeps its connection open without a request holds the hook for up to 7 reads"
    release = image_release(container)
    if release is not None and release < LOAD_TRACKING_SINCE:
        return (), (
            f"{_LOAD_FLAG} is not added: vLLM has it from {'.'.join(map(str, LOAD_TRACKING_SINCE))} on; {without}",
        )
    given = (*words(container.get("command")), *words(container.get("args")))
    if any("no-enable-server-load-tracking" in word.replace("_", "-") for word in given):
        return (), (f"--no-enable-server-load-tracking stays; {without}",)
    if not _can_append(container, _LOAD_FLAG):
        return (), (f"{_LOAD_FLAG} is not added: its command is no list that a flag can be added to; {without}",)
    return (_LOAD_FLAG,), ()


def _can_append(container: Mapping[str, Any], flag: str) -> bool:
    """The command, read again with the flag at its end, has it."""
    command, args, env = words(container.get("command")), words(container.get("args")), literal_env(container)
    read: EngineCommand | NotAnEngine = read_command([*command, *args, flag], env)
    if isinstance(read, NotAnEngine) and not command:
        read = read_arguments(VLLM, [*args, flag], env)
    return isinstance(read, EngineCommand) and (read.load_tracking if read.engine is VLLM else read.metrics)


#: Native sidecars stop after the containers, so that a proxy serves until the engine has gone.
_PROXIES = {"istio-proxy": "Istio", "linkerd-proxy": "Linkerd", "kuma-sidecar": "Kuma", "consul-dataplane": "Consul"}
_MESHES = (
    ("Istio", "sidecar.istio.io/inject", "true", "sidecar.istio.io/nativeSidecar", "true"),
    ("Linkerd", "linkerd.io/inject", "enabled", "config.linkerd.io/proxy-enable-native-sidecar", "true"),
    ("Kuma", "kuma.io/sidecar-injection", "enabled", "", ""),
    ("Consul", "consul.hashicorp.com/connect-inject", "true", "", ""),
)


def _notes(template: Mapping[str, Any], hit: _Found, grace_s: int) -> tuple[str, ...]:
    """What a user should know of this Pod. The hook is right all the same."""
    notes = [
        f"a request still running {grace_s - LAST_READ_BEFORE_KILL_S:g} s after the delete is cut (G {grace_s} - 5); "
        f"--grace raises it"
    ]
    spec = template["spec"]
    notes += [
        f"{mesh} puts its proxy into this Pod as a plain container, as far as can be seen here: it stops at the "
        f"delete, and requests through it die while the hook waits. Native sidecars are the way out"
        for mesh in classic_meshes(template)
    ]
    if spec.get("shareProcessNamespace") is True:
        notes.append(
            "shareProcessNamespace: PID 1 is not the engine, and the hook's lines go to the engine's own output when "
            "it runs as root or as the engine's user, else to the kubelet's log"
        )
    command = hit.container.command
    if command is None:
        return tuple(notes)
    if command.client_certificate:
        notes.append("the listener demands a client certificate: the hook cannot read it and only keeps the first 5 s")
    if command.kind in (Kind.PREFILL, Kind.DECODE, Kind.HALF):
        if command.engine is SGLANG and grace_s < SPLIT_GRACE_S:
            notes.append(
                f"SGLang's prefill and decode halves of releases such as 0.5.14 need up to 20 s after SIGTERM: "
                f"--grace {SPLIT_GRACE_S} (0.5.23 exits in 3 to 5 s)"
            )
        if command.engine is VLLM and command.kind is not Kind.DECODE and not command.shutdown_timeout:
            notes.append(
                f"a vLLM prefill half that owes KV shows it in no signal: --shutdown-timeout {grace_s} waits for it"
            )
    return tuple(notes)


def classic_meshes(template: Mapping[str, Any]) -> Iterator[str]:
    """The meshes whose proxy is, or will be, a plain container of the Pod."""
    for container in at(template, ("spec", "containers")):
        name = str(at(container, ("name",)))
        if name in _PROXIES:
            yield _PROXIES[name]
    marks = {**(at(template, ("metadata", "labels")) or {}), **(at(template, ("metadata", "annotations")) or {})}
    for mesh, asks, word, native, native_word in _MESHES:
        if str(marks.get(asks)).lower() == word and str(marks.get(native)).lower() != (native_word or None):
            yield mesh


# ---- whether it has it


def _verify(template: Mapping[str, Any], hit: _Found, request: Request) -> tuple[str, ...]:
    """Notes; _ProblemError says what is missing."""
    name = hit.container.name
    container = at(template, ("spec", "containers", hit.container.index))
    before = pre_stop_of(container)
    hook = read_hook(before)
    if hook is None:
        raise _ProblemError(
            f"container {name} has no drain hook" + (f"; its preStop is {_shown(before)}" if before is not None else "")
        )
    written = at(template, ("spec", "terminationGracePeriodSeconds"))
    grace_s = DEFAULT_GRACE_S if written is None else written
    if hook.grace_s != str(grace_s):
        pod = f"{grace_s}" if written is not None else f"{grace_s} (Kubernetes' default)"
        raise _ProblemError(
            f"container {name}: the hook's grace is {hook.grace_s or 'missing'}, "
            f"the Pod's terminationGracePeriodSeconds is {pod}"
        )
    _grace(template, request)
    if request.grace_s is not None and grace_s < request.grace_s:
        raise _ProblemError(f"terminationGracePeriodSeconds {grace_s} is below --grace {request.grace_s}")
    wanted = _hook(hit, request, grace_s)
    for what, have, right in (
        ("engine", hook.engine and hook.engine.name, wanted.engine and wanted.engine.name),
        ("URL", " ".join(hook.urls), " ".join(wanted.urls)),
        ("leader option", " ".join(hook.leader), " ".join(wanted.leader)),
    ):
        if have != right:
            raise _ProblemError(
                f"container {name}: the hook's {what} is {have or 'missing'}, it should be {right or 'unset'}"
            )
    missing = missing_of_delivery(template, container)
    if missing is not None:
        raise _ProblemError(f"container {name}: {missing}")
    if not hit.leader:
        flags, _ = _flags(hit.container, container)
        if _METRICS_FLAG in flags:
            raise _ProblemError(f"container {name}: SGLang runs without {_METRICS_FLAG}")
    if not is_mounted(container) and request.delivery is not Delivery.IN_IMAGE:
        return ("nothing mounts the agent: the engine's image must carry it",)
    return ()


def _from_root(place: Place, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    prefixed: list[Change] = []
    for change in changes:
        path = (*place.path, *change.path)
        prefixed.append(Remove(path) if isinstance(change, Remove) else type(change)(path, change.value))
    return tuple(prefixed)


def _shown(pre_stop: Any) -> str:
    """A preStop hook in a few words."""
    argv = at(pre_stop, ("exec", "command"))
    if isinstance(argv, list):
        text = " ".join(map(str, argv))
        return text if len(text) <= 60 else text[:60] + "…"
    return next(iter(pre_stop), "empty") if isinstance(pre_stop, Mapping) else repr(pre_stop)
