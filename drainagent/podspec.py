"""The hook in a Pod template: what is added for it, what is taken away again, and what is there. Pure.

``inject`` and the operator's renderer both use it, so that an injected and a rendered hook cannot differ. Templates are
plain data; what is to change is a list of changes (drainagent.patch).
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from drainagent.catalogue import Engine, engine_by_name
from drainagent.hook_options import HOOK_OPTIONS
from drainagent.patch import Add, Change, Path, Remove, Replace
from drainagent.workloads import at

#: Where the agent is in an engine's container, baked in or mounted: the same, so that the hook is the same.
AGENT_HOME = "/opt/drainagent"
#: Isolated (-I), without site-packages and their .pth files (-S), writing no bytecode (-B).
PYTHON_OPTIONS = "-ISB"
#: The engine's own Python, and the one in the agent image that carries one.
ENGINE_PYTHON = "python3"
OWN_PYTHON = f"{AGENT_HOME}/python/bin/python3"
#: The volume, the init container and the volume mount bear this name.
NAME = "drainagent"
#: Holds what a template said before, so that it can be restored.
RECORD_ANNOTATION = "drainagent.io/injected"

#: The copied tree is well below this (images/README.md); the kubelet evicts a Pod whose emptyDir outgrows its limit.
VOLUME_SIZE_LIMIT = "64Mi"
#: What the copy may take: it is over in half a second with a whole core (docs/measured.md), and in 4 MB of memory.
COPY_LIMITS = {"cpu": "1", "memory": "64Mi"}
#: What it asks for. An init container's requests add nothing to a Pod whose containers ask for as much.
COPY_REQUESTS = {"cpu": "100m", "memory": "64Mi"}


class Delivery(Enum):
    """How the agent gets into the engine's container."""

    INIT_CONTAINER = "init-container"
    IMAGE_VOLUME = "image-volume"
    IN_IMAGE = "in-image"


@dataclass(frozen=True)
class AgentImage:
    """The carrier image and how the kubelet pulls it. ``pull_secrets``: names in the Pod's namespace."""

    reference: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hook:
    """A drain hook's command line. ``grace_s``: seconds, as written. ``extra``: its other options, in their order."""

    engine: Engine | None
    urls: tuple[str, ...]
    grace_s: str | None
    leader: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    python: str = ENGINE_PYTHON

    def argv(self) -> list[str]:
        """What the kubelet runs: everything literal, since it expands no variables in a hook."""
        return [
            self.python,
            PYTHON_OPTIONS,
            AGENT_HOME,
            "hook",
            *(["--engine", self.engine.option] if self.engine is not None else []),
            *(word for url in self.urls for word in ("--url", url)),
            *(["--grace", self.grace_s] if self.grace_s is not None else []),
            *self.leader,
            *self.extra,
        ]


@dataclass(frozen=True)
class Injection:
    """What a template is to carry. ``container``: index in spec.containers. ``flags``: added to the engine's command.

    ``grace_s``: written to the Pod when it says otherwise; None leaves it. ``image`` None: the agent is in the image.
    ``recorded``: a record of what the template said before goes with it; a rendered Pod said nothing before.
    """

    container: int
    hook: Hook
    delivery: Delivery
    image: AgentImage | None = None
    grace_s: int | None = None
    flags: tuple[str, ...] = ()
    recorded: bool = True


@dataclass
class Record:
    """What a template said before the injection. ``created``: lists and maps it had not. ``grace_s`` None: unset.

    ``wrote_s``: the grace that was written; another one that stands there later is another hand's, and stays.
    """

    container: str
    created: list[str] = field(default_factory=list)
    flags: dict[str, list[str]] = field(default_factory=dict)
    pre_stop: Any = None
    wrote_s: Any = None
    grace_s: Any = None
    pull_secrets: list[str] = field(default_factory=list)

    def text(self) -> str:
        """As the annotation holds it."""
        values = {
            "container": self.container,
            "created": self.created,
            "flags": self.flags,
            "preStop": self.pre_stop,
            "pullSecrets": self.pull_secrets,
        }
        kept = {key: value for key, value in values.items() if value or key == "container"}
        if self.wrote_s is not None:
            kept["terminationGracePeriodSeconds"] = [self.grace_s, self.wrote_s]
        return json.dumps(kept, separators=(",", ":"), sort_keys=True)


class BadRecordError(ValueError):
    """The record of an earlier injection cannot be read; the message is a sentence."""


def read_record(template: Mapping[str, Any]) -> Record | None:
    """The record of an earlier injection; None when there is none. BadRecordError when it is not ours to read."""
    text = at(template, ("metadata", "annotations", RECORD_ANNOTATION))
    if text is None:
        return None
    try:
        kept = json.loads(text)
        before_s, wrote_s = kept.get("terminationGracePeriodSeconds", (None, None))
        return Record(
            container=_typed(kept["container"], str),
            created=[_typed(name, str) for name in _typed(kept.get("created", []), list)],
            flags={key: list(map(str, value)) for key, value in _typed(kept.get("flags", {}), dict).items()},
            pre_stop=kept.get("preStop"),
            wrote_s=wrote_s,
            grace_s=before_s,
            pull_secrets=[_typed(name, str) for name in _typed(kept.get("pullSecrets", []), list)],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadRecordError(
            f"annotation {RECORD_ANNOTATION} holds {str(text)[:80]!r}, which is no record of an injection"
        ) from None


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def read_hook(pre_stop: Any) -> Hook | None:
    """A preStop hook that runs ``drainagent hook``, in whatever way; None when it runs something else, or is none."""
    agent = agent_of(pre_stop)
    if agent is None:
        return None
    argv = at(pre_stop, ("exec", "command"))
    options = {option.name: option for option in HOOK_OPTIONS}
    engine: Engine | None = None
    grace_s: str | None = None
    urls: list[str] = []
    leader: list[str] = []
    extra: list[str] = []
    given = argv[len(agent) + 1 :]
    while given:
        word = given.pop(0)
        name, equals, value = word.partition("=")
        option = options.get(name)
        if option is None or option.metavar is None or (not equals and not given):
            extra.append(word)
            continue
        value = value if equals else given.pop(0)
        if name == "--engine":
            engine = engine_by_name(value)
        elif name == "--url":
            urls.append(value)
        elif name == "--grace":
            grace_s = value
        elif name in ("--leader", "--leader-env"):
            leader = [name, value]
        else:
            extra += [name, value]
    return Hook(engine, tuple(urls), grace_s, tuple(leader), tuple(extra), argv[0])


def agent_of(pre_stop: Any) -> tuple[str, ...] | None:
    """What a drain hook's argv has before ``hook``: how the agent is started; None where it is no drain hook."""
    argv = at(pre_stop, ("exec", "command"))
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        return None
    called = (index for index in range(1, len(argv)) if argv[index] == "hook" and _is_agent(argv[index - 1]))
    index = next(called, None)
    return None if index is None else tuple(argv[:index])


def _is_agent(word: str) -> bool:
    return word.rstrip("/").rpartition("/")[2] == "drainagent"


def pre_stop_of(container: Mapping[str, Any]) -> Any:
    """The container's preStop hook; None when it has none."""
    return at(container, ("lifecycle", "preStop"))


def changes_to_inject(template: Mapping[str, Any], wanted: Injection) -> tuple[Change, ...]:
    """What to change in a template that carries no injection (one that does: changes_to_remove first).

    ValueError, a sentence, when a name that is needed is taken.
    """
    container = template["spec"]["containers"][wanted.container]
    where: Path = ("spec", "containers", wanted.container)
    record = Record(str(container.get("name") or ""))
    changes: list[Change] = []
    _refuse_taken_names(template, container)

    for flag in wanted.flags:
        key = "args" if container.get("args") is not None or container.get("command") is None else "command"
        record.flags.setdefault(key, []).append(flag)
    for key, flags in record.flags.items():
        changes += _append(record, template, (*where, key), flags)

    before = pre_stop_of(container)
    pre_stop = {"exec": {"command": wanted.hook.argv()}}
    if before is not None:
        record.pre_stop = before
        changes.append(Replace((*where, "lifecycle", "preStop"), pre_stop))
    elif isinstance(container.get("lifecycle"), Mapping):
        changes.append(Add((*where, "lifecycle", "preStop"), pre_stop))
    else:
        record.created.append("lifecycle")
        changes.append(Add((*where, "lifecycle"), {"preStop": pre_stop}))

    if wanted.delivery is not Delivery.IN_IMAGE:
        assert wanted.image is not None
        mount = {"name": NAME, "mountPath": AGENT_HOME, "readOnly": True}
        changes += _append(record, template, (*where, "volumeMounts"), [mount])
        if wanted.delivery is Delivery.INIT_CONTAINER:
            volume: dict[str, Any] = {"emptyDir": {"sizeLimit": VOLUME_SIZE_LIMIT}}
            copier = copy_container(template, wanted.image)
            changes += _append(record, template, ("spec", "initContainers"), [copier], first=True)
        else:
            volume = {"image": {"reference": wanted.image.reference, "pullPolicy": wanted.image.pull_policy}}
        changes += _append(record, template, ("spec", "volumes"), [{"name": NAME, **volume}])
        have = [at(item, ("name",)) for item in template["spec"].get("imagePullSecrets") or ()]
        record.pull_secrets = [name for name in wanted.image.pull_secrets if name not in have]
        if record.pull_secrets:
            secrets = [{"name": name} for name in record.pull_secrets]
            changes += _append(record, template, ("spec", "imagePullSecrets"), secrets)

    grace = template["spec"].get("terminationGracePeriodSeconds")
    if wanted.grace_s is not None and grace != wanted.grace_s:
        record.wrote_s, record.grace_s = wanted.grace_s, grace
        path: Path = ("spec", "terminationGracePeriodSeconds")
        changes.append((Add if grace is None else Replace)(path, wanted.grace_s))

    return (*changes, _annotate(record, template)) if wanted.recorded else tuple(changes)


def _append(
    record: Record, template: Mapping[str, Any], path: Path, items: Sequence[Any], first: bool = False
) -> list[Change]:
    """Items at the end of a list (or its beginning), which is created when it is not there."""
    there = at(template, path)
    if there is None:
        record.created.append(str(path[-1]))
        return [Add(path, list(items))]
    index = 0 if first else len(there)
    return [Add((*path, index), item) for item in items]


def _annotate(record: Record, template: Mapping[str, Any]) -> Change:
    for path in (("metadata",), ("metadata", "annotations")):
        if not isinstance(at(template, path), Mapping):
            record.created.append(path[-1])
    value: Any = record.text()
    if "metadata" in record.created:
        return Add(("metadata",), {"annotations": {RECORD_ANNOTATION: value}})
    if "annotations" in record.created:
        return Add(("metadata", "annotations"), {RECORD_ANNOTATION: value})
    return Add(("metadata", "annotations", RECORD_ANNOTATION), value)


def _refuse_taken_names(template: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    spec = template["spec"]
    for key in ("volumes", "initContainers", "containers"):
        if any(at(item, ("name",)) == NAME for item in spec.get(key) or ()):
            raise ValueError(f"spec.{key} has an entry named {NAME} that is not ours: rename it")
    for mount in container.get("volumeMounts") or ():
        path = posixpath.normpath(str(at(mount, ("mountPath",)) or "."))
        above = AGENT_HOME.startswith(path.rstrip("/") + "/") and at(mount, ("readOnly",)) is True
        if path == AGENT_HOME or path.startswith(AGENT_HOME + "/") or above:
            raise ValueError(f"container {container.get('name')} mounts something at {path}, where the agent belongs")


def restricted_context(template: Mapping[str, Any]) -> dict[str, Any]:
    """The security context of a container that needs nothing, fit for the restricted Pod security standard.

    It is told to be non-root unless the whole Pod is told to be root: the kubelet refuses the one beside the other.
    """
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if at(template, ("spec", "securityContext", "runAsUser")) == 0:
        del context["runAsNonRoot"]
    return context


def copy_container(template: Mapping[str, Any], image: AgentImage) -> dict[str, Any]:
    """The init container that copies the agent into its volume."""
    return {
        "name": NAME,
        "image": image.reference,
        "imagePullPolicy": image.pull_policy,
        "command": ["/copy", AGENT_HOME],
        "volumeMounts": [{"name": NAME, "mountPath": AGENT_HOME}],
        "resources": {
            "requests": dict(COPY_LIMITS if _is_guaranteed(template) else COPY_REQUESTS),
            "limits": dict(COPY_LIMITS),
        },
        "securityContext": restricted_context(template),
    }


def _is_guaranteed(template: Mapping[str, Any]) -> bool:
    """Every container's requests are its limits, of CPU and memory: one that differs takes the Pod's QoS class away."""
    spec = template["spec"]
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        limits, requests = at(container, ("resources", "limits")), at(container, ("resources", "requests"))
        for name in ("cpu", "memory"):
            limit = at(limits, (name,))
            if limit is None or at(requests, (name,)) not in (None, limit):
                return False
    return True


def changes_to_remove(template: Mapping[str, Any]) -> tuple[Change, ...]:
    """What brings a template back to what it said before its injection; empty when it carries none.

    BadRecordError when its record cannot be read. Something of ours that another hand took away is no error.
    """
    record = read_record(template)
    if record is None:
        return ()
    changes: list[Change] = []
    spec = template["spec"]
    index = _injected_container(spec["containers"], record)
    if index is not None:
        where: Path = ("spec", "containers", index)
        container = at(template, where)
        for key, flags in record.flags.items():
            changes += _take_out(record, template, (*where, key), lambda word, flags=flags: word in flags)
        changes += _take_out(record, template, (*where, "volumeMounts"), _is_our_mount)
        if read_hook(pre_stop_of(container)) is not None:
            lifecycle: Path = (*where, "lifecycle")
            if record.pre_stop is not None:
                changes.append(Replace((*lifecycle, "preStop"), record.pre_stop))
            elif "lifecycle" in record.created and set(container["lifecycle"]) == {"preStop"}:
                changes.append(Remove(lifecycle))
            else:
                changes.append(Remove((*lifecycle, "preStop")))
    changes += _take_out(record, template, ("spec", "initContainers"), _is_named)
    changes += _take_out(record, template, ("spec", "volumes"), _is_named)
    secrets = record.pull_secrets
    changes += _take_out(record, template, ("spec", "imagePullSecrets"), lambda item: at(item, ("name",)) in secrets)
    if record.wrote_s is not None and spec.get("terminationGracePeriodSeconds") == record.wrote_s:
        path: Path = ("spec", "terminationGracePeriodSeconds")
        changes.append(Remove(path) if record.grace_s is None else Replace(path, record.grace_s))
    return (*changes, _take_record(record, template))


def _injected_container(containers: Sequence[Any], record: Record) -> int | None:
    """The container of that name, else (it was renamed) the one that has our hook or our mount."""
    for index, item in enumerate(containers):
        if str(at(item, ("name",)) or "") == record.container:
            return index
    for index, item in enumerate(containers):
        if read_hook(pre_stop_of(item)) is not None or is_mounted(item):
            return index
    return None


def _is_named(item: Any) -> bool:
    return bool(at(item, ("name",)) == NAME)


def _is_our_mount(item: Any) -> bool:
    return _is_named(item) and bool(at(item, ("mountPath",)) == AGENT_HOME)


def _take_out(record: Record, template: Mapping[str, Any], path: Path, is_ours: Any) -> list[Change]:
    """Our items out of a list, and the list too when we made it and nothing else is in it."""
    items = at(template, path)
    if not isinstance(items, list):
        return []
    ours = [index for index, item in enumerate(items) if is_ours(item)]
    if ours and len(ours) == len(items) and path[-1] in record.created:
        return [Remove(path)]
    return [Remove((*path, index)) for index in ours]


def _take_record(record: Record, template: Mapping[str, Any]) -> Change:
    path: Path = ("metadata", "annotations", RECORD_ANNOTATION)
    if "annotations" in record.created and len(template["metadata"]["annotations"]) == 1:
        path = path[:2]
        if "metadata" in record.created and set(_set_keys(template["metadata"])) == {"annotations"}:
            path = path[:1]
    return Remove(path)


def _set_keys(metadata: Mapping[str, Any]) -> list[str]:
    """kubectl writes creationTimestamp: null into every template's metadata."""
    return [key for key, value in metadata.items() if value is not None]


def missing_of_delivery(template: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    """What a template lacks of an agent that is mounted; None when it is whole, or when nothing of it is there."""
    spec = template["spec"]
    mounted = any(at(mount, ("mountPath",)) == AGENT_HOME for mount in container.get("volumeMounts") or ())
    volume = next((item for item in spec.get("volumes") or () if _is_named(item)), None)
    copied = any(_is_named(item) for item in spec.get("initContainers") or ())
    if not mounted and volume is None and not copied:
        return None
    if not mounted:
        return f"container {container.get('name')} does not mount {AGENT_HOME}"
    if volume is None:
        return f"the Pod has no volume {NAME}"
    if "image" not in volume and not copied:
        return f"the Pod has no init container {NAME} that fills the volume"
    return None


def is_mounted(container: Mapping[str, Any]) -> bool:
    """The agent is mounted into this container."""
    return any(at(mount, ("mountPath",)) == AGENT_HOME for mount in container.get("volumeMounts") or ())
