"""What admission says of a ModelDeployment, offline and in the API server's words; and what it warns of. Pure.

The CRD's own schema and rules are evaluated (operator_glue.crd), so that ``validate`` and the API server cannot
disagree. Behind them come the webhook's rules: what CEL cannot say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drainagent.catalogue import SGLANG, VLLM, Engine
from drainagent.engine_argv import Kind, given_flags
from drainagent.engine_container import literal_env
from drainagent.injection import classic_meshes
from drainagent.settings import read_network
from drainagent.timeline import DEFAULT_GRACE_S, SETTLE_S, SPLIT_EXIT_0_5_23_S, SPLIT_EXIT_S, SPLIT_GRACE_S
from drainagent.workloads import name_of
from operator_glue.crd import schema
from operator_glue.facts import ClusterFacts
from operator_glue.faults import Fault, Path, Where, at, dotted, invalid
from operator_glue.model import (
    API_VERSION,
    GROUP,
    KIND,
    MAX_ARGS,
    MAX_ROLES,
    EngineName,
    ModelDeployment,
    Role,
    RoleKind,
    WithoutRouter,
)
from operator_glue.object_meta import FIELDS as METADATA_FIELDS
from operator_glue.object_meta import annotations_faults, keys_faults, metadata_faults
from operator_glue.owned import OWNED_FLAGS, WAY_OUT, OwnedFlag
from operator_glue.render import RenderError, role_plan
from operator_glue.render.command import listener
from operator_glue.schema_check import schema_faults
from operator_glue.structural import fill, plain, unknown_fields
from operator_glue.warnings import Warning

#: The webhook's rules: the field, what it asks, and why CEL cannot.
WEBHOOK_RULES = (
    (
        "roles[].extraArgs",
        "no flag that the operator sets, in any spelling that the engine's own parser takes: abbreviations, short "
        "flags, mixed underscores, dotted flags, values from variables",
        "CEL knows neither engine's flags",
    ),
    (
        "retirement.ignorePeers[]",
        "an address or a network such as 10.0.0.0/8",
        "CEL has no addresses below Kubernetes 1.31",
    ),
    (
        "roles[].template.metadata, roles[].template.spec.nodeSelector",
        "keys and values as Kubernetes takes them on a Pod",
        "a key's length has no bound in a schema, so that no pattern on it is cheap enough",
    ),
    (
        "roles[]",
        "Pods can be rendered: nothing of the user's has the name or the mount path of the agent",
        "it is the renderer that knows",
    ),
)

#: What the API server makes of generateName: five characters behind its beginning.
_GENERATED, _LONGEST_PREFIX = "x" * 5, 58
_ENGINES = {EngineName.VLLM: VLLM, EngineName.SGLANG: SGLANG}


@dataclass(frozen=True)
class Review:
    """``deployment``: the resource with its defaults, None when there are ``faults``."""

    faults: tuple[Fault, ...]
    deployment: ModelDeployment | None = None


def validate(document: Any) -> tuple[Fault, ...]:
    """Everything that admission has against a document, in the document's order; empty when it is taken."""
    return review(document).faults


def review(document: Any) -> Review:
    """Admits a document, or says all that is wrong with it."""
    if not isinstance(document, Mapping):
        return Review((Fault("", f"a {_shape(document)} is no {KIND}, which is a map of fields"),))
    if not is_meant(document):
        return Review((Fault("kind", f"{_who(document)} is no {KIND} of {API_VERSION}"),))
    data, whole = plain(document), schema()
    faults = list(_identity_faults(data))
    unknown = [*_unknown_metadata(data), *unknown_fields(data, whole)]
    faults += [Fault(dotted(path), f'unknown field "{dotted(path)}"') for path in unknown]
    faults += metadata_faults(data.get("metadata"))
    data.pop("status", None)  # another hand's: what a user writes there is dropped
    fill(data, whole)
    data |= {"apiVersion": API_VERSION, "kind": KIND, "metadata": _with_name(data.get("metadata"))}
    faults += schema_faults(data, whole, is_wrong=bool(faults))
    faults += webhook_faults(data)
    if faults:
        return Review(tuple(dict.fromkeys(faults)))
    deployment = ModelDeployment.model_validate(data)
    faults += rendering_faults(deployment)
    return Review(tuple(faults), None if faults else deployment)


def is_meant(document: Mapping[str, Any]) -> bool:
    """Whether the document is meant to be a ModelDeployment, well or badly written; else it is another object."""
    api_version, kind = document.get("apiVersion"), document.get("kind")
    return kind == KIND or (isinstance(api_version, str) and api_version.partition("/")[0] == GROUP)


def _identity_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    for field, wanted in (("kind", KIND), ("apiVersion", API_VERSION)):
        if data.get(field) != wanted:
            yield at((field,), invalid(data.get(field, ""), f"must be {wanted}"))


def _who(document: Mapping[str, Any]) -> str:
    if not document.get("kind") or not document.get("apiVersion"):
        missing = " and ".join(field for field in ("apiVersion", "kind") if not document.get(field))
        return f"an object without {missing}"
    return f"{name_of(document)} ({document['apiVersion']})"


def _shape(document: Any) -> str:
    names: dict[type, str] = {list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
    return names.get(type(document), "document without content")


def _unknown_metadata(data: Mapping[str, Any]) -> Iterator[Path]:
    metadata = data.get("metadata")
    if isinstance(metadata, Mapping):
        yield from (("metadata", key) for key in metadata if key not in METADATA_FIELDS)


def _with_name(metadata: Any) -> dict[str, Any]:
    """The metadata, with a name such as the API server makes of generateName."""
    found: dict[str, Any] = dict(metadata) if isinstance(metadata, Mapping) else {}
    found = {key: value for key, value in found.items() if value is not None}
    prefix = found.get("generateName")
    if not found.get("name") and isinstance(prefix, str) and prefix:
        found["name"] = prefix[:_LONGEST_PREFIX] + _GENERATED
    return found


# ---- the webhook's rules


def rendering_faults(deployment: ModelDeployment) -> Iterator[Fault]:
    """What the renderer cannot make Pods of, by the delivery that asks most: another one can be chosen later."""
    for role in deployment.spec.roles:
        try:
            role_plan(deployment, role, ClusterFacts())
        except RenderError as error:  # noqa: PERF203 - ten roles at most
            yield Fault(error.path, f"{error.path}: Forbidden: {error.message}", Where.WEBHOOK)


def webhook_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Over plain data, since the webhook's rules are checked where the schema's are broken too: within its bounds."""
    spec = _map(data.get("spec"))
    for index, peer in enumerate(_list(_map(spec.get("retirement")).get("ignorePeers"))):
        if isinstance(peer, str) and not _is_network(peer):
            peers: Path = ("spec", "retirement", "ignorePeers", index)
            yield at(peers, invalid(peer, "must be an address or a network such as 10.0.0.0/8"), Where.WEBHOOK)
    engine = next(
        (found for name, found in _ENGINES.items() if name.value == _map(spec.get("engine")).get("name")), None
    )
    for index, role in enumerate(_list(spec.get("roles"))[:MAX_ROLES]):
        path: Path = ("spec", "roles", index)
        for fault in _template_faults((*path, "template"), _map(_map(role).get("template"))):
            yield replace(fault, where=Where.WEBHOOK)
        if engine is not None and _map(role).get("command") is None:
            yield from _flag_faults(path, _map(role), engine)


def _template_faults(path: Path, template: Mapping[str, Any]) -> Iterator[Fault]:
    metadata = _map(template.get("metadata"))
    for key in _map(metadata.get("labels")):
        yield from keys_faults((*path, "metadata", "labels"), key)
    yield from annotations_faults((*path, "metadata", "annotations"), _texts(metadata.get("annotations")))
    for key in _map(_map(template.get("spec")).get("nodeSelector")):
        yield from keys_faults((*path, "spec", "nodeSelector"), key)


def _flag_faults(path: Path, role: Mapping[str, Any], engine: Engine) -> Iterator[Fault]:
    """Owned flags in spellings that the schema's rules do not know, as the engine's parser reads them."""
    words = [word for word in _list(role.get("extraArgs"))[:MAX_ARGS] if isinstance(word, str)]
    env = literal_env({"env": [item for item in _list(role.get("env")) if isinstance(item, Mapping)]})
    size, is_half = role.get("size"), role.get("kind") != RoleKind.SERVER.value
    owned: dict[str, OwnedFlag] = {}
    for flag in OWNED_FLAGS:
        if flag.when.holds(size=size if isinstance(size, int) else 1, is_half=is_half) and engine.name in flag.names:
            owned.setdefault(flag.names[engine.name], flag)
    told = [spelling for flag in OWNED_FLAGS for spelling in flag.spellings]
    given = given_flags(engine, words, env)
    for name, flag in owned.items():
        if name not in given:
            continue
        # Of a flag that is told in both ways, the simple spelling is the schema's to refuse.
        found = [index for index, word in enumerate(words) if name in given_flags(engine, [word], env)]
        found = [index for index in found if words[index].partition("=")[0] not in told]
        for index in found:
            text = f"{engine.name} reads it as {flag.flag}, which is set by the operator {flag.source}; {WAY_OUT}"
            yield at((*path, "extraArgs", index), invalid(words[index], text), Where.WEBHOOK)


def _is_network(text: str) -> bool:
    try:
        read_network(text)
    except ValueError:
        return False
    return True


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> dict[str, str]:
    return {key: item for key, item in _map(value).items() if isinstance(item, str)}


# ---- warnings


def warnings(deployment: ModelDeployment, facts: ClusterFacts) -> tuple[Warning, ...]:
    """What a user should know of a resource that is taken all the same."""
    found: list[Warning] = []
    if deployment.spec.router is None and deployment.spec.retirement.without_router is WithoutRouter.ABORT:
        found.append(
            Warning(
                "spec.retirement.withoutRouter",
                "without spec.router nothing proves that no client is connected to a replica: every scale-down of a "
                "running one ends as Aborted after 30 s and it stays; name a router, or set ProveFromMember",
            )
        )
    if facts.mesh_classic_sidecar:
        found.append(Warning("metadata.namespace", f"the namespace's mesh injects its proxy {_CLASSIC}"))
    for index, role in enumerate(deployment.spec.roles):
        found += _role_warnings(deployment, role, facts, f"spec.roles[{index}]")
    return tuple(found)


_CLASSIC = (
    "as a plain container, which stops at the delete: requests through it die while the hook waits; native sidecars "
    'are the way out (Istio: annotation sidecar.istio.io/nativeSidecar: "true" in template.metadata, Linkerd: '
    'config.linkerd.io/proxy-enable-native-sidecar: "true")'
)


def _role_warnings(deployment: ModelDeployment, role: Role, facts: ClusterFacts, path: str) -> Iterator[Warning]:
    metadata = {"labels": role.template.metadata.labels, "annotations": role.template.metadata.annotations}
    for mesh in (
        () if facts.mesh_classic_sidecar else classic_meshes({"metadata": metadata, "spec": {"containers": []}})
    ):
        yield Warning(f"{path}.template.metadata", f"{mesh} injects its proxy {_CLASSIC}")
    listening = listener(deployment, role, facts)
    if listening is None:
        return
    args, command, engine = f"{path}.extraArgs", listening.command, listening.command.engine
    given = given_flags(engine, role.extra_args, literal_env({"env": list(role.env)}))
    if listening.moved:
        flags = " and ".join(flag for flag in ("--host", "--port", "--uds") if flag in given)
        why = f"{flags} moves the listener" if flags else str(command.no_listener or "the listener is moved")
        yield Warning(
            args,
            f"{why}: nothing answers the drain hook on port {listening.port}, so that only its first {SETTLE_S:g} s "
            f"run and requests are cut at a delete; declare the port in ports instead",
        )
    if engine is VLLM and not command.metrics:
        yield Warning(
            args,
            "--disable-log-stats takes vLLM's gauges away: the drain hook has nothing to measure by them, and a "
            "retirement is held as IncompleteEnvelope until it aborts",
        )
    if engine is VLLM and command.api_server_count > 1:
        yield Warning(
            args,
            f"vLLM runs {command.api_server_count} API servers (the default is the data-parallel size): its gauges can "
            f"stick above zero, so that a delete waits to G - 5 and a retirement aborts; --api-server-count 1 is the "
            f"way out",
        )
    if role.kind is RoleKind.SERVER and command.kind is not Kind.SERVER:
        what = (
            f"{command.balance} data-parallel balance"
            if engine is VLLM and command.balance != "internal"
            else f"a configuration that reads as {command.kind.value}"
        )
        yield Warning(
            args,
            f"{what} on a Server: the retirement protocol takes its replicas for prefill or decode halves and refuses "
            f"them, so that every scale-down aborts; the drain hook works as ever",
        )
    grace_s = role.termination_grace_period_seconds or DEFAULT_GRACE_S
    if engine is SGLANG and role.kind is not RoleKind.SERVER and grace_s < SPLIT_GRACE_S:
        least_s, most_s = SPLIT_EXIT_0_5_23_S
        yield Warning(
            f"{path}.terminationGracePeriodSeconds",
            f"{grace_s} is below {SPLIT_GRACE_S}: SGLang's prefill and decode halves of releases such as 0.5.14 need "
            f"up to {SPLIT_EXIT_S} s after SIGTERM, so that the hook must return by {grace_s - SPLIT_EXIT_S} s after "
            f"the delete or the engine is killed; 0.5.23 exits in {least_s} to {most_s} s",
        )
