"""A Pod, as the protocol sees it. Pure.

Called for each Pod that changes, so it looks at what it needs and no more. A Pod of another hand can hold anything:
what cannot be read counts as what holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from drainagent.timeline import DEFAULT_GRACE_S
from operator_glue import names
from operator_glue.retirement.data import Key, Member

_NOTHING: Mapping[str, Any] = {}


def member_of(pod: Mapping[str, Any]) -> Member:
    """``pod``: as the API gives it."""
    metadata, spec, status = _map(pod.get("metadata")), _map(pod.get("spec")), _map(pod.get("status"))
    labels, phase = _map(metadata.get("labels")), status.get("phase")
    terminating = metadata.get("deletionTimestamp") is not None
    main = _main_status(status)
    addresses = _addresses(status)
    return Member(
        uid=_text(metadata.get("uid")),
        name=_text(metadata.get("name")),
        resource_version=_text(metadata.get("resourceVersion")),
        index=_index(labels),
        serving=labels.get(names.SERVING_LABEL) == names.SERVING,
        terminating=terminating,
        ended=phase in ("Succeeded", "Failed") or (terminating and not spec.get("nodeName")),
        never_ran=phase in ("Pending", None) and (bool(spec.get("schedulingGates")) or not _ever_ran(status)),
        main_running=isinstance(_map(main.get("state")).get("running"), Mapping),
        restarts=_number(main.get("restartCount"), 0),
        fingerprint=_fingerprint(main, addresses, _map(metadata.get("annotations"))),
        addresses=addresses,
        grace_s=_number(spec.get("terminationGracePeriodSeconds"), DEFAULT_GRACE_S),
        pod=pod,
    )


def replica_key(pod: Mapping[str, Any], deployment: str) -> Key | None:
    """Where its labels place it among the deployment's replicas; None: nowhere. Whose it is, its owner says."""
    labels = _map(_map(pod.get("metadata")).get("labels"))
    role, ordinal = labels.get(names.COMPONENT_LABEL), labels.get(names.ORDINAL_LABEL)
    if labels.get(names.INSTANCE_LABEL) != deployment or not isinstance(role, str) or not role:
        return None
    place = _decimal(ordinal)
    return None if place is None else Key(role, place)


def _index(labels: Mapping[str, Any]) -> int | None:
    text = labels.get(names.MEMBER_INDEX_LABEL)
    return 0 if text is None else _decimal(text)


def _decimal(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10 else None


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else _NOTHING


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def _statuses(status: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    items = status.get(key)
    return (item for item in items if isinstance(item, Mapping)) if isinstance(items, list) else iter(())


def _main_status(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for item in _statuses(status, "containerStatuses"):
        if item.get("name") == names.MAIN_CONTAINER:
            return item
    return _NOTHING


def _ever_ran(status: Mapping[str, Any]) -> bool:
    """Whether any container started, those of its start among them."""
    for key in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        for item in _statuses(status, key):
            state, last = _map(item.get("state")), _map(item.get("lastState"))
            if (
                state.get("running") is not None
                or state.get("terminated") is not None
                or last.get("terminated") is not None
                or item.get("started") is True
                or item.get("restartCount")
            ):
                return True
    return False


def _addresses(status: Mapping[str, Any]) -> tuple[str, ...]:
    found = [status.get("podIP"), *(item.get("ip") for item in _statuses(status, "podIPs"))]
    return tuple(dict.fromkeys(address for address in found if isinstance(address, str) and address))


def _fingerprint(main: Mapping[str, Any], addresses: tuple[str, ...], annotations: Mapping[str, Any]) -> str:
    """What the specification has unchanged between two reads, in short."""
    parts = (main.get("containerID"), main.get("restartCount"), *sorted(addresses))
    known = sorted((str(key), str(value)) for key, value in annotations.items())
    return blake2b(repr((parts, known)).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
